//! A machine of a MAAS becomes a node with nothing but the program: the site is made, the machine onboarded, and what
//! cloud-init was told is carried out on a machine of its own (a namespace over this one's files), where the real agent is
//! fetched, installed and started as its unit says. MAAS itself is played.

use crate::agents_site::{Site, binary, eventually, said};
use crate::process::Process;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use testkit::maas_sim::{FirstBoot, MaasSim, Options, Racked};
use tokio::runtime::Runtime;

const MAC: &str = "52:54:00:83:8e:9e";
const BMC: &str = "10.9.0.7";

/// A file served over HTTP, as often as it is asked for.
fn serve(runtime: &Runtime, content: Vec<u8>) -> String {
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
    let address = listener.local_addr().expect("an address");
    let app = axum::Router::new().fallback(move || {
        let content = content.clone();
        async move { content }
    });
    runtime.spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}/millwright-agent")
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// What cloud-init does with it, as far as it is used: files are written, then commands run, each by its words.
fn as_script(user_data: &[u8]) -> String {
    let text = std::str::from_utf8(user_data).expect("text");
    assert!(text.starts_with("#cloud-config\n"), "{text}");
    let told: Value = serde_yaml_ng::from_str(text).expect("YAML");
    let mut script = "set -eu\n".to_owned();
    for file in told["write_files"].as_array().expect("files") {
        let word = |name: &str| file[name].as_str().unwrap_or_else(|| panic!("{name} of {file}")).to_owned();
        assert_eq!(word("encoding"), "b64");
        let (path, mode, content) = (quoted(&word("path")), word("permissions"), word("content"));
        script.push_str(&format!(
            "mkdir -p \"$(dirname {path})\"\necho {content} | base64 -d > {path}\nchmod {mode} {path}\n"
        ));
    }
    for command in told["runcmd"].as_array().expect("commands") {
        let words: Vec<String> =
            command.as_array().expect("words").iter().map(|w| quoted(w.as_str().expect("a word"))).collect();
        script.push_str(&format!("{}\n", words.join(" ")));
    }
    script
}

/// A machine that has this one's programs, and files, hardware and a /run of its own: whatever is done there is gone with
/// its processes.
fn machine(folder: &Path, boot: &FirstBoot) -> Process {
    let file = |name: &str, content: &str| -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, content).expect("written");
        path
    };
    let first_boot = file("first-boot", &as_script(&boot.user_data));
    let uuid = format!("4d570000-0000-4000-8000-{}", MAC.replace(':', ""));
    let start = file(
        "start",
        &format!(
            "set -eu\n\
             w=$(mktemp -d)\n\
             mount -t tmpfs tmpfs \"$w\"\n\
             mkdir \"$w/upper\" \"$w/work\" \"$w/root\"\n\
             mount -t overlay overlay -o lowerdir=/,upperdir=\"$w/upper\",workdir=\"$w/work\" \"$w/root\"\n\
             mount --rbind /proc \"$w/root/proc\"\n\
             mount --rbind /dev \"$w/root/dev\"\n\
             mount -t tmpfs -o noexec tmpfs \"$w/root/run\"\n\
             mkdir -p \"$w/root/sys/class/dmi/id\" \"$w/root/sys/class/net\" \"$w/root/sys/block\"\n\
             echo {serial} > \"$w/root/sys/class/dmi/id/product_serial\"\n\
             echo {uuid} > \"$w/root/sys/class/dmi/id/product_uuid\"\n\
             chroot \"$w/root\" sh {first_boot}\n\
             unit=$(sed -n 's/^ExecStart=//p' \"$w/root/etc/systemd/system/millwright-agent.service\")\n\
             exec chroot \"$w/root\" $unit\n",
            serial = quoted(&boot.serial),
            first_boot = quoted(&first_boot.display().to_string()),
        ),
    );
    Process::spawn(Command::new("unshare").args(["--mount", "sh"]).arg(start))
}

#[test]
fn a_racked_machine_is_onboarded_by_what_its_cloud_init_was_told() {
    let runtime = Runtime::new().expect("a runtime");
    let sim = runtime.block_on(MaasSim::start(Options::default()));
    let boots: Arc<Mutex<Vec<FirstBoot>>> = Arc::default();
    let queue = boots.clone();
    sim.on_first_boot(move |boot| queue.lock().expect("a lock").push(boot));
    sim.rack(Racked::new(MAC, BMC));

    let program = std::fs::read(binary()).expect("the agent");
    let sum = said(Command::new("sha256sum").arg(binary()));
    let (url, sum) = (serve(&runtime, program), sum.split(' ').next().expect("a digest").to_owned());
    let site = Site::new();
    let server = site.start();
    let key = site.home.file("maas.key", &sim.key());
    let password = site.home.file("bmc.password", "p");
    server.ok(&["credential", "set", "ams-key", "--kind", "maas", "--api-key-file", key.to_str().expect("a path")]);
    let login = ["--username", "u", "--password-file", password.to_str().expect("a path")];
    server.ok(&[["credential", "set", "bmc", "--kind", "bmc"].as_slice(), &login].concat());
    let described = serde_json::json!({
        "name": "ams", "url": sim.url(), "credentials_ref": "ams-key",
        "profiles": [{"name": "gpu", "series": "noble", "agent_url": url, "agent_sha256": sum}],
    });
    let file = site.home.file("ams.json", &described.to_string());
    server.ok(&["site", "create", "--file", file.to_str().expect("a path")]);
    server.ok(&["site", "check", "ams"]);

    let onboard = ["node", "onboard", "gpu-1", "--site", "ams", "--mac", MAC];
    let power = ["--power", "redfish", "--bmc", BMC, "--credential", "bmc"];
    let preview = server.ok(&[onboard.as_slice(), &power, &["--dry-run"]].concat());
    assert!(preview.contains("nothing was done"), "{preview}");
    assert!(sim.machines().is_empty());
    let job = server.ok(&[onboard.as_slice(), &power, &["-o", "name"]].concat());
    let boot = eventually("the machine boots what was deployed", || boots.lock().expect("a lock").pop());
    let folder = testkit::scratch::folder();
    let _agent = machine(folder.path(), &boot);
    // hardware that tells of itself, as a deployed system does
    eventually("its onboarding is over", || {
        for seen in sim.machines().iter().filter(|seen| seen.status_name == "Deployed") {
            sim.sync(&seen.system_id);
        }
        let now = server.get(&format!("jobs/{}", job.trim()));
        let status = now["status"].as_str().expect("a status").to_owned();
        assert!(["pending", "running", "completed"].contains(&status.as_str()), "{now:#}");
        (status == "completed").then_some(())
    });
    let node = server.node_is("gpu-1", "active");
    assert_eq!(node["maas"]["site"], "ams", "{node:#}");
    let record = sim.with_mac(MAC);
    assert_eq!((record.len(), record[0].status_name), (1, "Deployed"));
    let shown = server.ok(&["job", "show", job.trim()]);
    assert!(shown.contains("wait_for_hardware_sync_healthy"), "{shown}");
    server.ok(&["why", "gpu-1"]);
}
