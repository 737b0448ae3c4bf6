//! The whole program against programs that nobody here wrote, as an operator types it: sushy-emulator for Redfish,
//! OpenIPMI's `ipmi_sim`, OpenSSH's server, and a Kubernetes API server. What happened is asked of them, not of us.
//! Passwords, keys and tokens are canaries: everything that is written at trace level is searched for them.

use crate::fleet::{list, text};
use crate::process::{Ended, until};
use crate::server::{Home, Server};
use serde_json::{Value, json};
use std::io::Write as _;
use std::process::{Command, Stdio};
use testkit::canary::{self, plant};
use testkit::closed_port::ClosedPort;
use testkit::ipmi_sim::{self, IpmiSim};
use testkit::kubernetes::{Api, Kubernetes};
use testkit::sshd::SshHost;
use testkit::sushy::{self, Sushy};
use testkit::tls::{Authority, Pair};

/// Looks often; calls that may take as long as they do on a busy machine, and a lease that is not waited for long.
const WATCHFUL: &str = "[observe]\nperiod_seconds = 1\ntimeout_seconds = 12\n\
    [engine]\nlease_seconds = 24\ncall_timeout_seconds = 12\n";

/// Looks at nothing by itself: what an operator is told is what the operator's own call found.
const INCURIOUS: &str = "[observe]\nperiod_seconds = 3600\nstale_after_seconds = 7200\n";

struct Site {
    home: Home,
    server: Server,
}

impl Site {
    fn new() -> Self {
        Self::with(WATCHFUL)
    }

    fn with(config: &str) -> Self {
        let home = Home::new();
        let server = home.launch("data").config(config).start();
        Self { home, server }
    }

    /// A file that holds a secret, by its name.
    fn secret(&self, name: &str, secret: &str) -> String {
        self.home.file(&format!("{name}.key"), secret).display().to_string()
    }

    fn bmc_login(&self, name: &str, password: &str) {
        let file = self.secret(name, password);
        let words = ["credential", "set", name, "--kind", "bmc", "--username", sushy::USERNAME];
        self.server.ok(&[&words[..], &["--password-file", &file]].concat());
    }

    fn ssh_login(&self, name: &str, host: &SshHost) {
        let file = self.secret(name, host.login().private_key.reveal());
        self.server.ok(&["credential", "set", name, "--kind", "ssh", "--username", "root", "--private-key", &file]);
    }

    /// A machine that is a host by SSH alone, once it has been seen.
    fn host(&self, id: &str, host: &SshHost, more: &[&str]) {
        let (at, uuid) = (host.at().to_string(), uuid_of(host));
        let words = ["machine", "register", id, "--provider", "datacenter", "--credentials", "fleet"];
        self.server.ok(&[&words[..], &["--ssh", &at, "--system-uuid", &uuid], more].concat());
        self.becomes(id, "Reachable", true);
    }

    fn plan(&self, id: &str, steps: &Value) {
        let file = self.home.file(&format!("{id}.json"), &json!({ "plan_id": id, "steps": steps }).to_string());
        self.server.ok(&["plan", "create", "-f", &file.display().to_string()]);
    }

    fn start(&self, machine: &str, plan: &str) -> String {
        self.server.ok(&["run", "start", machine, "--plan", plan, "-o", "name"]).trim().to_owned()
    }

    fn succeeds(&self, machine: &str, plan: &str) -> Value {
        let run = self.start(machine, plan);
        self.server.ok(&["run", "wait", &run, "--timeout", "100s"]);
        self.server.show(&run)
    }

    /// A condition as `machine show` has it, once it is so.
    fn becomes(&self, machine: &str, kind: &str, status: bool) -> Value {
        until(&format!("{kind} of {machine} is {status}"), || {
            let shown = self.server.json(&["machine", "show", machine]);
            let all = list(&shown["status"], "conditions");
            all.into_iter().find(|c| c["type"] == kind && c["status"] == status)
        })
    }

    /// A secret that the search for canaries does not know, and that no file but its own holds.
    #[track_caller]
    fn nowhere(&self, secret: &str) {
        let mut grep = Command::new("grep");
        grep.args(["-r", "-l", "-a", "-F", "--exclude=*.key", "-e", secret]).arg(self.home.watched());
        let found = grep.output().expect("grep runs");
        assert_eq!(found.status.code(), Some(1), "{}", String::from_utf8_lossy(&found.stdout));
    }

    /// Ends it in order; what it wrote is searched, and there was something to search.
    fn searched(self) {
        self.server.terminate().with(0);
        let searched = canary::assert_none(self.home.watched());
        assert!(searched.bytes > 1 << 19 && searched.files > 10, "{searched:?}");
    }
}

fn uuid_of(host: &SshHost) -> String {
    let file = host.inside("/sys/class/dmi/id/product_uuid");
    std::fs::read_to_string(file).expect("its UUID").trim().to_owned()
}

/// What an error says to a script: its reason, and that it has a next action.
#[track_caller]
fn reason_of(ended: &Ended) -> String {
    let told: Value = serde_json::from_str(ended.err.trim()).unwrap_or_else(|e| panic!("{e}: {ended:?}"));
    let error = &told["error"];
    assert!(error["hint"].as_str().is_some_and(|hint| hint.len() > 20), "no next action: {ended:?}");
    assert!(error["message"].as_str().is_some_and(|message| message.len() > 20), "no sentence: {ended:?}");
    text(error, "reason").to_owned()
}

/// A Redfish service as `curl` sees it; the password goes in on its standard input.
struct Redfish<'a> {
    sushy: &'a Sushy,
    password: &'a str,
}

impl Redfish<'_> {
    fn system(&self, number: usize) -> Value {
        let settings = format!("url = \"{}\"\nuser = \"admin:{}\"\n", self.sushy.endpoint(number), self.password);
        let mut curl = Command::new("curl");
        curl.args(["-sSk", "--max-time", "60", "-K", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut curl = curl.spawn().expect("curl is there (apt-get install -y --no-install-recommends curl)");
        curl.stdin.take().expect("its input").write_all(settings.as_bytes()).expect("written");
        serde_json::from_slice(&curl.wait_with_output().expect("curl ends").stdout).expect("JSON")
    }

    fn comes_to(&self, number: usize, power: &str) {
        until(&format!("system {number} is {power}"), || (self.system(number)["PowerState"] == power).then_some(()));
    }
}

/// The certificate's SHA-256, as openssl tells it.
fn fingerprint(pair: &Pair) -> String {
    let mut openssl = Command::new("openssl");
    openssl.args(["x509", "-noout", "-fingerprint", "-sha256"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut openssl = openssl.spawn().expect("openssl is there (apt-get install -y --no-install-recommends openssl)");
    openssl.stdin.take().expect("its input").write_all(pair.cert.as_bytes()).expect("written");
    let out = openssl.wait_with_output().expect("openssl ends").stdout;
    let text = String::from_utf8(out).expect("text");
    text.split_once('=').expect("a fingerprint").1.trim().replace(':', "").to_lowercase()
}

#[test]
fn a_redfish_controller_fills_in_the_record_and_is_worked_on_by_hand() {
    let (site, password, pair) = (Site::new(), plant("bmc"), Authority::default().pair());
    let emulator = Sushy::start(2, &password, Some(&pair));
    let redfish = Redfish { sushy: &emulator, password: &password };
    let server = &site.server;
    site.bmc_login("rack-1", &password);
    let first = emulator.endpoint(0);
    let register = ["machine", "register", "m-1", "--bmc", &first, "--credentials", "rack-1", "--discover"];
    let found = server.run(&register).with(0);
    assert!(found.err.contains("found at") && found.err.contains("52:54:00:4d:00:00"), "{found:?}");
    let spec = server.json(&["machine", "show", "m-1"])["spec"].clone();
    assert_eq!(text(&spec, "system_uuid"), Sushy::uuid(0));
    assert_eq!(list(&spec, "mac_addresses"), ["52:54:00:4d:00:00"]);
    assert_eq!(text(&spec, "provider"), "datacenter");
    assert_eq!(text(&spec, "bmc_endpoint"), format!("{first}?tls=pin:{}", fingerprint(&pair)), "pinned");
    site.becomes("m-1", "BMCReachable", true);

    let sheet = server.ok(&["machine", "inspect", "m-1", "-o", "wide"]);
    assert!(sheet.contains("node-0000") || sheet.contains(&Sushy::uuid(0)), "{sheet}");
    assert_eq!(text(&server.json(&["machine", "inspect", "m-1"]), "power"), "off");
    server.ok(&["machine", "power", "m-1", "on", "--reason", "trying it out"]);
    redfish.comes_to(0, "On");
    server.ok(&["machine", "power", "m-1", "off", "--force"]);
    redfish.comes_to(0, "Off");
    server.ok(&["machine", "boot", "m-1", "pxe"]);
    assert_eq!(redfish.system(0)["Boot"]["BootSourceOverrideTarget"], "Pxe");
    server.ok(&["machine", "sensors", "m-1"]);
    server.ok(&["machine", "console-info", "m-1"]);
    let log = server.run(&["machine", "bmc-log", "m-1", "-o", "json"]);
    assert_eq!(reason_of(&log), "CAPABILITY_MISSING");
    server.run(&["machine", "bmc-log", "m-1"]).with(4).saying("log");

    // another endpoint is an admin's word, and it is a machine of its own that answers there
    let token = site.home.path("operator.token").display().to_string();
    server.ok(&["token", "create", "op", "--role", "operator", "--write", &token]);
    let operator = server.with_token(&site.home.path("operator.token"));
    let second = emulator.endpoint(1);
    let moves = ["machine", "update", "m-1", "--bmc", &second];
    operator.run(&moves).with(5).saying("ROLE_TOO_LOW");
    operator.ok(&["machine", "update", "m-1", "--rack", "r7"]);
    server.ok(&moves);
    let wrong = server.run(&["machine", "power", "m-1", "on"]).with(4).saying("WRONG_MACHINE");
    assert!(wrong.err.contains(&Sushy::uuid(0)) && wrong.err.contains(&Sushy::uuid(1)), "both are named: {wrong:?}");
    assert_eq!(redfish.system(1)["PowerState"], "Off", "nothing was sent to the wrong machine");
    server.ok(&["machine", "update", "m-1", "--system-uuid", &Sushy::uuid(1)]);
    server.ok(&["machine", "power", "m-1", "on"]);
    redfish.comes_to(1, "On");
    let pins = server.ok(&["events", "--after", "0", "--no-follow", "--filter", "subject=m-1 AND kind=pin"]);
    assert!(pins.contains("m-1"), "what answers at the new endpoint is pinned by itself: {pins}");
    site.searched();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ipmi_controller_is_discovered_and_switched() {
    // as long as IPMI allows, which is too short for the search that is done anyway
    let password = uuid::Uuid::now_v7().simple().to_string()[16..].to_owned();
    let sim = IpmiSim::start(&password).await;
    let site = Site::new();
    let server = &site.server;
    site.bmc_login("old-rack", &password);
    let endpoint = sim.endpoint_text();
    let register = ["machine", "register", "m-2", "--bmc", &endpoint, "--credentials", "old-rack", "--discover"];
    server.ok(&register);
    let spec = server.json(&["machine", "show", "m-2"])["spec"].clone();
    assert_eq!((text(&spec, "serial_number"), text(&spec, "system_uuid")), (ipmi_sim::SERIAL, ipmi_sim::UUID));
    server.ok(&["machine", "power", "m-2", "on"]);
    until("the machine behind it is on", || sim.is_on().then_some(()));
    server.ok(&["machine", "boot", "m-2", "pxe"]);
    assert_eq!(sim.journal(), ["power 1", "boot pxe"]);
    assert!(server.ok(&["machine", "sensors", "m-2"]).contains("CPU Temp"));
    server.ok(&["machine", "bmc-log", "m-2"]);
    assert!(server.ok(&["machine", "console-info", "m-2"]).contains("sol activate"));
    let http = server.run(&["machine", "boot", "m-2", "http", "-o", "json"]);
    assert_eq!(reason_of(&http), "CAPABILITY_MISSING");
    site.becomes("m-2", "BMCReachable", true);
    let ended = tokio::task::spawn_blocking(move || {
        site.nowhere(&password);
        site.searched();
        drop(sim);
    });
    ended.await.expect("searched");
}

/// Processes of this machine, those in namespaces too, that have this word on their command line.
fn processes_with(word: &str) -> usize {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = all.filter_map(|p| std::fs::read(p.path().join("cmdline")).ok());
    lines.filter(|line| line.split(|b| *b == 0).any(|w| w == word.as_bytes())).count()
}

#[test]
fn a_host_reboots_with_proof_and_its_commands_outlive_a_killed_server() {
    let (mut site, host) = (Site::new(), SshHost::start());
    site.ssh_login("fleet", &host);
    site.host("h-1", &host, &[]);
    let shell =
        |name: &str, script: &str| json!([{ "name": name, "ssh": { "command": "sh", "args": ["-c", script] } }]);

    site.plan("say", &shell("say", "echo one; sleep 0.3; echo two >&2; sleep 0.3; echo three"));
    let said = site.succeeds("h-1", "say");
    let logs = site.server.run(&["run", "logs", text(&said, "run_id"), "-o", "json"]).with(0).out;
    let chunks: Vec<(String, String)> = logs
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("one chunk a line"))
        .map(|chunk| (text(&chunk, "stream").to_owned(), chunk.to_string()))
        .collect();
    let streams: Vec<&str> = chunks.iter().map(|(stream, _)| stream.as_str()).collect();
    assert_eq!(streams, ["stdout", "stderr", "stdout"], "{logs}");
    let plain = site.server.run(&["run", "logs", text(&said, "run_id")]).with(0);
    assert!(plain.out.contains("one") && plain.out.contains("three"), "{plain:?}");

    let (boots, before) = (host.boots(), host.boot_id());
    site.plan("inband", &json!([{ "name": "reboot", "reboot": { "mode": "inband" } }]));
    let reboot = site.succeeds("h-1", "inband");
    assert_eq!(host.boots(), boots + 1, "once");
    let message = list(&reboot, "steps")[0].to_string();
    assert!(message.contains(&before) && message.contains(&host.boot_id()), "both boots are named: {message}");

    // killed on the remote side, and not only forgotten
    let mark = "86399.25";
    site.plan("long", &shell("long", &format!("trap '' HUP; sleep {mark}; echo never")));
    let run = site.start("h-1", "long");
    until("it runs there", || (processes_with(mark) > 0).then_some(()));
    site.server.ok(&["run", "cancel", &run]);
    assert_eq!(site.server.ended(&run)["phase"], "CANCELED");
    assert_eq!(processes_with(mark), 0, "it was killed");

    let counted = host.inside("/var/lib/counted");
    let script =
        "echo x >> /var/lib/counted; echo before; while [ ! -e /var/lib/go-on ]; do sleep 0.1; done; echo after";
    site.plan("count", &shell("count", script));
    let run = site.start("h-1", "count");
    until("it has begun", || counted.exists().then_some(()));
    site.server.kill();
    site.server = site.home.launch("data").config(WATCHFUL).start();
    std::fs::write(host.inside("/var/lib/go-on"), "").expect("told to go on");
    assert_eq!(site.server.ended(&run)["phase"], "SUCCEEDED");
    assert_eq!(std::fs::read_to_string(&counted).expect("counted"), "x\n", "it ran once");
    let logs = site.server.ok(&["run", "logs", &run]);
    assert_eq!((logs.matches("before").count(), logs.matches("after").count()), (1, 1), "{logs}");
    site.searched();
}

/// Its kubelet makes itself known.
fn ready(kubelet: &Api, node: &str) {
    let condition = json!({ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "posts" });
    let status = json!({ "status": { "conditions": [condition] } });
    kubelet.must("PATCH", &format!("/api/v1/nodes/{node}/status"), Some(&status));
}

#[test]
fn a_machine_joins_a_cluster_is_drained_and_leaves_it() {
    let (site, host, cluster) = (Site::new(), SshHost::start(), Kubernetes::start());
    let server = &site.server;
    cluster.set_up_joining();
    let kubeconfig = site.secret("prod", cluster.kubeconfig(&cluster.millwright_token).reveal());
    server.ok(&["cluster", "add", "prod", "--kubeconfig", &kubeconfig]);
    let check = server.run(&["cluster", "check", "prod"]).with(1);
    assert!(check.out.contains("v1.20") && check.out.contains("Problems"), "rights are missing by name: {check:?}");
    cluster.grant_millwright();
    let sheet = until("the rights are known", || {
        Some(server.run(&["cluster", "check", "prod"])).filter(|ended| ended.code == Some(0))
    });
    assert!(sheet.out.contains("0 ready of 0"), "{sheet:?}");
    let elsewhere = kubeconfig_of_nobody(&cluster);
    let elsewhere = site.secret("elsewhere", &elsewhere);
    server.ok(&["cluster", "add", "elsewhere", "--kubeconfig", &elsewhere]);
    assert_eq!(reason_of(&server.run(&["cluster", "check", "elsewhere", "-o", "json"])), "LOGIN_REFUSED");

    // its kubeadm keeps what it was told, so that the token can be searched for
    let own = host.inside("/var/lib/kubeadm");
    std::fs::create_dir(&own).expect("a folder");
    testkit::kubeadm::install(&own);
    std::fs::write(own.join("kubeadm.uuid"), uuid_of(&host)).expect("written");
    let wrapper = "#!/bin/sh\n[ \"$1\" != join ] || cp \"$3\" /var/lib/told\nexec /var/lib/kubeadm/kubeadm \"$@\"\n";
    host.program("kubeadm", wrapper);
    site.ssh_login("fleet", &host);
    site.host("c-1", &host, &["--cluster", "prod"]);
    site.becomes("c-1", "InCustomerCluster", false);
    site.plan("join", &json!([{ "name": "join", "join": {} }]));
    let run = site.start("c-1", "join");
    let node = until("kubeadm has made the node", || {
        let nodes = cluster.admin().must("GET", "/api/v1/nodes", None);
        nodes["items"].as_array().and_then(|all| Some(all.first()?["metadata"]["name"].as_str()?.to_owned()))
    });
    let kubelet = cluster.kubelet(&node);
    ready(&kubelet, &node);
    assert_eq!(server.ended(&run)["phase"], "SUCCEEDED");
    site.becomes("c-1", "InCustomerCluster", true);
    site.becomes("c-1", "Drained", false);

    server.ok(&["cluster", "cordon", "c-1", "--reason", "fan noise"]);
    let path = format!("/api/v1/nodes/{node}");
    assert_eq!(cluster.admin().must("GET", &path, None)["spec"]["unschedulable"], true);
    server.ok(&["cluster", "uncordon", "c-1"]);
    assert_eq!(cluster.admin().must("GET", &path, None)["spec"]["unschedulable"], Value::Null);
    let owner = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": "u-1", "controller": true });
    let pod = json!({ "metadata": { "name": "web", "ownerReferences": [owner] },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "registry.test/image" }] } });
    let pods = "/api/v1/namespaces/default/pods";
    cluster.admin().must(
        "POST",
        "/api/v1/namespaces/default/serviceaccounts",
        Some(&json!({ "metadata": { "name": "default" } })),
    );
    cluster.admin().must("POST", pods, Some(&pod));
    let draining = server.spawn(&["cluster", "drain", "c-1", "--timeout", "90s"]);
    until("the pod was told to go", || {
        let (status, pod) = cluster.admin().call("GET", &format!("{pods}/web"), None);
        (status == 404 || pod["metadata"]["deletionTimestamp"].is_string()).then_some(())
    });
    let (_, _) = kubelet.call("DELETE", &format!("{pods}/web"), Some(&json!({ "gracePeriodSeconds": 0 })));
    assert_eq!(draining.end().with(0).out, "c-1 is drained\n");
    site.becomes("c-1", "Drained", true);
    server.ok(&["cluster", "delete-node", "c-1"]);
    assert_eq!(cluster.admin().call("GET", &path, None).0, 404);
    site.becomes("c-1", "InCustomerCluster", false);

    let told = std::fs::read_to_string(host.inside("/var/lib/told")).expect("what kubeadm was told");
    let token = told.lines().find_map(|line| line.trim().strip_prefix("token: ")).expect("a token").replace('"', "");
    let (_, secret) = token.split_once('.').expect("two parts");
    site.server.run(&["run", "logs", &run]).with(0);
    site.nowhere(secret);
    site.searched();
}

/// A kubeconfig whose token nobody knows.
fn kubeconfig_of_nobody(cluster: &Kubernetes) -> String {
    cluster.kubeconfig(&plant("nobody")).reveal().to_owned()
}

#[test]
fn six_things_that_go_wrong_have_six_reasons_and_a_next_action_each() {
    let (site, password) = (Site::with(INCURIOUS), plant("bmc"));
    let (ours, theirs) = (Authority::default(), Authority::default());
    let emulator = Sushy::start(6, &password, Some(&ours.pair()));
    let server = &site.server;
    site.bmc_login("right", &password);
    site.bmc_login("wrong", &plant("wrong"));
    let ca = site.home.file("other-ca.pem", &theirs.pem()).display().to_string();
    server.ok(&["credential", "set", "other-ca", "--kind", "ca", "--certificates", &ca]);
    let nobody = ClosedPort::new();
    // takes connections and says nothing
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent_at = silent.local_addr().expect("an address");
    let mut reasons = Vec::new();
    for (number, id, bmc, login, words) in [
        (0, "refused", format!("https://{}", nobody.at), "right", &["machine", "inspect"][..]),
        (1, "unreachable", format!("https://{silent_at}"), "right", &["machine", "inspect"]),
        (2, "password", emulator.endpoint(2), "wrong", &["machine", "inspect"]),
        (3, "certificate", format!("{}?tls=ca:other-ca", emulator.endpoint(3)), "right", &["machine", "inspect"]),
        (4, "another", emulator.endpoint(0), "right", &["machine", "identify"]),
        (5, "missing", emulator.endpoint(5), "right", &["machine", "bmc-log"]),
    ] {
        let register = ["machine", "register", id, "--provider", "datacenter", "--bmc", &bmc, "--credentials", login];
        server.ok(&[&register[..], &["--system-uuid", &Sushy::uuid(number)]].concat());
        reasons.push(reason_of(&server.run(&[words, &[id, "-o", "json"]].concat())));
    }
    let wanted = [
        "CONNECTION_REFUSED",
        "UNREACHABLE",
        "LOGIN_REFUSED",
        "UNTRUSTED_CERTIFICATE",
        "WRONG_MACHINE",
        "CAPABILITY_MISSING",
    ];
    assert_eq!(reasons, wanted);
    drop(silent);
    site.searched();
}
