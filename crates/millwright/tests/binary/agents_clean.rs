//! A node after its tenant: what is left is found and removed, the proof is signed with the node's own key, and what
//! cannot be removed keeps it out of service until it is gone.

use crate::agents_site::{Machine, Site, said};
use crate::fleet::text;
use crate::process::Process;
use crate::server::Client;
use serde_json::Value;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::Command;

const TENANT: u32 = 1001;

/// Installed as an operator does it: how the machine is then is what leftovers are told by.
fn installed(site: &Site, server: &Client, name: &str) -> (Machine, Process, Vec<PathBuf>) {
    let machine = site.machine(name);
    let before = tree(&machine.root);
    let bundle = site.create(server, name);
    let words = ["install", "--no-start", "--bundle", bundle.to_str().expect("a plain path")];
    machine.do_(&words).with(0);
    let agent = machine.run();
    server.node_is(name, "active");
    (machine, agent, before)
}

/// Every file and folder below.
fn tree(folder: &std::path::Path) -> Vec<PathBuf> {
    let found = said(Command::new("find").arg(folder).args(["-mindepth", "1"]));
    let mut all: Vec<PathBuf> = found.lines().map(PathBuf::from).collect();
    all.sort();
    all
}

/// What a tenant leaves.
fn plant(machine: &Machine) -> Vec<PathBuf> {
    for (file, line) in [
        ("etc/passwd", "tenant:x:1001:1001::/home/tenant:/bin/bash\n"),
        ("etc/shadow", "tenant:$6$x:19000:0:99999:7:::\n"),
        ("etc/group", "tenant:x:1001:\n"),
        ("etc/gshadow", "tenant:!::\n"),
        ("root/.ssh/authorized_keys", "ssh-ed25519 AAAAtenant tenant\n"),
    ] {
        let before = std::fs::read_to_string(machine.root.join(file)).expect("there");
        machine.file(file, &(before + line));
    }
    let planted =
        ["home/tenant/.ssh/id_ed25519", "tmp/left-over", "etc/cron.d/tenant", "var/spool/cron/crontabs/tenant"];
    let planted = planted.map(|path| {
        let path = machine.file(path, "* * * * * tenant mine\n");
        chown(&path, Some(TENANT), Some(TENANT)).expect("its owner");
        path
    });
    chown(machine.root.join("home/tenant"), Some(TENANT), Some(TENANT)).expect("its owner");
    planted.to_vec()
}

fn gone(machine: &Machine, planted: &[PathBuf]) {
    for path in planted {
        assert!(!path.exists(), "{}", path.display());
    }
    for file in ["etc/passwd", "etc/shadow", "etc/group", "etc/gshadow", "root/.ssh/authorized_keys"] {
        let text = std::fs::read_to_string(machine.root.join(file)).expect("there");
        assert!(!text.contains("tenant"), "{file}: {text}");
    }
}

/// Whether a record is the word of the key that the machine holds; by a program that is none of ours.
fn signed_by(machine: &Machine, record: &Value) {
    let kept: Value = serde_json::from_slice(&std::fs::read(machine.state.join("identity.json")).expect("an identity"))
        .expect("JSON");
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("key.pem"), text(&kept, "key_pem")).expect("written");
    said(
        Command::new("openssl")
            .args(["pkey", "-pubout", "-in"])
            .arg(path("key.pem"))
            .arg("-out")
            .arg(path("public.pem")),
    );
    said(
        Command::new("openssl")
            .args(["pkey", "-pubout", "-outform", "DER", "-in"])
            .arg(path("key.pem"))
            .arg("-out")
            .arg(path("public.der")),
    );
    let public: String =
        std::fs::read(path("public.der")).expect("a key").iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(record["agent_public_key"], public, "which key it was");
    let signature = text(record, "signature");
    let bytes: Vec<u8> =
        (0..signature.len() / 2).map(|n| u8::from_str_radix(&signature[2 * n..2 * n + 2], 16).expect("hex")).collect();
    std::fs::write(path("signature"), bytes).expect("written");
    let (task, fence, signed) = (text(record, "task_id"), text(record, "fence"), text(record, "signed_text"));
    let verified = |signed: &str| {
        std::fs::write(path("text"), signed).expect("written");
        let mut openssl = Command::new("openssl");
        openssl.args(["dgst", "-sha256", "-verify"]).arg(path("public.pem"));
        let out = openssl.arg("-signature").arg(path("signature")).arg(path("text")).output().expect("openssl");
        out.status.success()
    };
    assert!(verified(signed), "{record:#}");
    assert!(!verified(&format!("{signed} ")), "a word more, and it is not what was signed");
    // what is shown is what was signed
    let detail = signed.strip_prefix(&format!("millwright task result v1\n{task}\n{fence}\ntrue\n")).expect("a result");
    assert_eq!(serde_json::from_str::<Value>(detail).expect("JSON"), record["checked"]);
}

#[test]
fn a_tenants_traces_are_removed_with_proof_and_what_stays_keeps_the_node_out() {
    let site = Site::new();
    let server = site.start();
    let (machine, agent, before) = installed(&site, &server, "gpu-1");
    let decommission = |mode: &str| {
        let words = ["node", "decommission", "gpu-1", "--mode", mode, "--grace", "1s", "--force", "-o", "name"];
        server.ok(&words).trim().to_owned()
    };
    let planted = plant(&machine);
    let job = decommission("soft_reset");
    let done = server.job_is(&job, "completed");
    gone(&machine, &planted);
    signed_by(&machine, &done["clean_record"]);
    let shown = server.json(&["job", "show", &job]);
    assert_eq!(shown["clean_record"], done["clean_record"]);
    let node = server.node_is("gpu-1", "active");
    assert_eq!(node["cordoned"], false, "it is in service again: {node:#}");

    // a file of the site's own that was changed is for a person
    let planted = plant(&machine);
    let original = std::fs::read_to_string(machine.root.join("etc/rc.local")).expect("there");
    machine.file("etc/rc.local", "#!/bin/sh\n/home/tenant/miner &\nexit 0\n");
    let job = decommission("soft_reset");
    let failed = server.job_is(&job, "failed_manual_intervention");
    assert_eq!(text(&failed, "failure_code"), "NOT_CLEAN", "{failed:#}");
    assert_eq!(failed["clean_record"], Value::Null, "nothing was proven: {failed:#}");
    gone(&machine, &planted);
    let node = server.node_is("gpu-1", "quarantined");
    assert_eq!(node["schedulable"], false);
    let told = [text(&node, "status_reason"), text(&failed, "failure_message"), &server.ok(&["why", &job])].join("\n");
    assert!(told.contains("rc.local") && told.contains("millwright job resume"), "{told}");
    // not before it is gone
    server.ok(&["job", "resume", &job]);
    server.job_is_again(&job, "failed_manual_intervention", 2);
    machine.file("etc/rc.local", &original);
    server.ok(&["job", "resume", &job]);
    let done = server.job_is_again(&job, "completed", 3);
    signed_by(&machine, &done["clean_record"]);
    let node = server.node("gpu-1");
    if node["status"] == "quarantined" {
        server.ok(&["node", "recover", "gpu-1", "--reason", "proven clean"]);
    }
    server.node_is("gpu-1", "active");

    // and out of service for good
    let planted = plant(&machine);
    let id = text(&node, "id").to_owned();
    let job = decommission("full_decommission");
    server.job_is(&job, "completed");
    server.node_is(&id, "deleted");
    agent.end().with(0);
    gone(&machine, &planted);
    assert!(!machine.state.exists());
    let left: Vec<PathBuf> = tree(&machine.root).into_iter().filter(|path| !before.contains(path)).collect();
    assert_eq!(left, Vec::<PathBuf>::new(), "nothing of the agent's is left");
}
