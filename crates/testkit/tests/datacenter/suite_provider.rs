//! The same idea for the provider that the engine sees: every trait of it, on a machine whose BMC is our responder,
//! whose system is an OpenSSH server and whose cluster is a kube-apiserver. Every act passes through one table: done,
//! done twice, already done, never answered, given up in the middle, refused.

use crate::ground::{CLUSTER, Ground, SCRIPT_IMAGE, cluster, impatient, looks_until, operation, options, until};
use Act::*;
use datacenter::Datacenter;
use domain::Reason;
use domain::credential::Credential;
use domain::plan::{BootMode, RebootMode};
use provider::{
    Ack, BootControl as _, ClusterControl as _, Command, EvictOptions, Exec as _, ExecState, ImageControl as _,
    Inspect as _, Management as _, Membership, Operation, PowerControl as _, ProviderError, ProviderResult,
};
use std::collections::BTreeMap;
use testkit::http_faults::Fault;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Inspect,
    Reset,
    PowerOff,
    SetBoot,
    ClearBoot,
    Start,
    Install,
    Join,
    Cordon,
    Evict,
    DeleteNode,
    Rotate,
}

const ACTS: [Act; 12] =
    [Inspect, Reset, PowerOff, SetBoot, ClearBoot, Start, Install, Join, Cordon, Evict, DeleteNode, Rotate];

/// By whom it is done: what hangs or refuses for it to time out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Bmc,
    Host,
    Cluster,
}

impl Act {
    const fn by(self) -> By {
        match self {
            Inspect | Reset | PowerOff | SetBoot | ClearBoot | Rotate => By::Bmc,
            Start | Install | Join => By::Host,
            Cordon | Evict | DeleteNode => By::Cluster,
        }
    }

    async fn ask(self, g: &Ground, dc: &Datacenter, op: &Operation) -> ProviderResult<Ack> {
        let t = &g.target;
        match self {
            Inspect => dc.inspect(t).await.map(|_| Ack::Done),
            Reset => dc.reset(t, RebootMode::Bmc, op).await,
            PowerOff => dc.power_off(t, op).await,
            SetBoot => dc.set_boot(t, BootMode::Pxe, false, op).await,
            ClearBoot => dc.clear_boot(t, op).await,
            Start => dc.start(t, &command(), op).await,
            Install => dc.install(t, SCRIPT_IMAGE, "", op).await,
            Join => dc.join(t, CLUSTER, op).await,
            Cordon => dc.cordon(t, CLUSTER, true).await,
            Evict => dc.evict_pass(t, CLUSTER, &EvictOptions::default()).await.map(|_| Ack::Done),
            DeleteNode => dc.delete_node(t, CLUSTER).await,
            Rotate => dc.rotate_password(t).await,
        }
    }

    /// By the counterparts' own records: whether it is done, and where somebody counts, how often.
    async fn done(self, g: &Ground) -> usize {
        let lines = |path: &str| std::fs::read_to_string(g.host().inside(path)).map_or(0, |t| t.lines().count());
        let passwords = || {
            use testkit::redfish_responder::What;
            g.responder.journal().iter().filter(|e| matches!(e.what, What::PasswordSet { .. })).count()
        };
        match self {
            Inspect => 1,
            Reset | PowerOff => g.resets().len(),
            SetBoot => usize::from(g.responder.system(1).boot_target == "Pxe"),
            ClearBoot => usize::from(g.responder.system(1).boot_enabled == "Disabled"),
            Start => lines("/var/lib/started"),
            Install => lines("/var/lib/installs"),
            Join => node_exists(g),
            Cordon | Evict => usize::from(node(g).1["spec"]["unschedulable"] == true),
            DeleteNode => usize::from(node(g).0 == 404),
            Rotate => passwords(),
        }
    }

    /// The machine is such that there is something to do.
    async fn prepare(self, g: &Ground) {
        match self {
            ClearBoot => g.responder.change(1, |s| (s.boot_target, s.boot_enabled) = ("Cd".into(), "Once".into())),
            Cordon | Evict | DeleteNode => register(g),
            _ => {}
        }
    }
}

fn command() -> Command {
    let args = vec!["-c".to_owned(), "echo x >>/var/lib/started".to_owned()];
    Command { command: "sh".to_owned(), args, environment: BTreeMap::new() }
}

fn path(g: &Ground) -> String {
    format!("/api/v1/nodes/{}", g.target.machine_id)
}

fn node(g: &Ground) -> (u16, serde_json::Value) {
    cluster().admin().call("GET", &path(g), None)
}

fn node_exists(g: &Ground) -> usize {
    usize::from(node(g).0 == 200)
}

/// As its kubelet would.
fn register(g: &Ground) {
    let status = serde_json::json!({ "nodeInfo": { "systemUUID": g.target.spec.system_uuid } });
    let metadata = serde_json::json!({ "name": g.target.machine_id.as_str() });
    let node = serde_json::json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status });
    cluster().admin().must("POST", "/api/v1/nodes", Some(&node));
}

/// With a cluster and a `kubeadm` on its host.
pub async fn member_to_be(options: datacenter::Options) -> Ground {
    let g = Ground::whole(options).await;
    let server = tokio::task::spawn_blocking(cluster).await.expect("a cluster");
    let kubeconfig = Credential::Kubeconfig(server.kubeconfig(&server.millwright_token));
    g.keyring.set(CLUSTER, kubeconfig);
    testkit::kubeadm::install(&g.host().programs());
    std::fs::write(g.host().programs().join("kubeadm.uuid"), &g.target.spec.system_uuid).expect("written");
    g
}

async fn comes_to(act: Act, g: &Ground, times: usize, what: &str) {
    let begun = tokio::time::Instant::now();
    while act.done(g).await != times {
        let late = begun.elapsed() > std::time::Duration::from_secs(60);
        assert!(!late, "{what}: {} times, not {times}", act.done(g).await);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// A second, hard-of-hearing server that shares everything with the first.
fn impatient_one(g: &Ground) -> Datacenter {
    Datacenter::new(impatient(), g.keyring.clone())
}

async fn passes(act: Act) {
    let g = member_to_be(options()).await;
    act.prepare(&g).await;
    let none = if act == Inspect { 1 } else { 0 };
    assert_eq!(act.done(&g).await, none, "{act:?}, before");
    let op = operation("suite", 1);

    // never answered
    match act.by() {
        By::Bmc => {
            g.responder.faults.arm("", "", Fault::Hold, usize::MAX);
            let silent = act.ask(&g, &impatient_one(&g), &op).await.expect_err("nobody answers");
            crate::subjects::is_silence(&silent, &format!("{act:?}"));
            g.responder.faults.disarm();
        }
        By::Host => {
            tokio::task::block_in_place(|| g.host().power_off());
            let away = act.ask(&g, &impatient_one(&g), &op).await.expect_err("nobody answers");
            assert!(matches!(away.reason(), Reason::ConnectionRefused | Reason::Unreachable), "{act:?}: {away}");
            tokio::task::block_in_place(|| g.host().power_on());
        }
        By::Cluster => {
            let (deaf, at) = deaf();
            let silent = testkit::kubernetes::kubeconfig(&format!("https://{at}"), &cluster().authority_pem(), "t");
            g.keyring.set(CLUSTER, Credential::Kubeconfig(silent));
            drop(deaf);
            let away = act.ask(&g, &g.dc, &op).await.expect_err("nobody answers");
            assert!(matches!(away.reason(), Reason::ConnectionRefused | Reason::Unreachable), "{act:?}: {away}");
            let right = Credential::Kubeconfig(cluster().kubeconfig(&cluster().millwright_token));
            g.keyring.set(CLUSTER, right);
        }
    }
    assert_eq!(act.done(&g).await, none, "{act:?}, after silence");

    // refused
    let no = match act.by() {
        By::Bmc => {
            let method = if act == Inspect { "GET" } else { "" };
            let path = if act == Inspect { "/Systems/1" } else { "" };
            if act != Inspect {
                g.look().await;
                for method in ["POST", "PATCH"] {
                    g.responder.faults.arm(method, "", Fault::Status(403, "{}".into()), usize::MAX);
                }
            } else {
                g.responder.faults.arm(method, path, Fault::Status(403, "{}".into()), usize::MAX);
            }
            let no = act.ask(&g, &g.dc, &op).await.expect_err("a no");
            assert!(g.responder.faults.disarm() > 0, "{act:?}: it was the BMC that refused");
            no
        }
        By::Host => {
            let right = g.keyring.get("ssh").expect("a login");
            let stranger = domain::credential::SshLogin { username: "nobody-here".into(), ..g.host().login() };
            g.keyring.set("ssh", Credential::Ssh(stranger));
            let no = act.ask(&g, &g.dc, &op).await.expect_err("a no");
            g.keyring.set("ssh", right);
            no
        }
        By::Cluster => {
            let limited = cluster().kubeconfig(&cluster().limited_token);
            g.keyring.set(CLUSTER, Credential::Kubeconfig(limited));
            let no = act.ask(&g, &g.dc, &op).await.expect_err("a no");
            let right = Credential::Kubeconfig(cluster().kubeconfig(&cluster().millwright_token));
            g.keyring.set(CLUSTER, right);
            no
        }
    };
    assert!(matches!(no, ProviderError::Refused { .. }), "{act:?}: {no:?}");
    assert_eq!(act.done(&g).await, none, "{act:?}, after a no");

    // given up in the middle: nothing is left locked, and the next call does it
    if act.by() == By::Bmc {
        g.responder.faults.arm("", "", Fault::Hold, usize::MAX);
        tokio::select! {
            () = until("it is asked", || g.responder.faults.hits() > 0) => {}
            answer = act.ask(&g, &g.dc, &op) => panic!("{act:?} was answered: {answer:?}"),
        }
        g.responder.faults.disarm();
    } else {
        for _ in 0..2 {
            drop(tokio::time::timeout(std::time::Duration::from_millis(15), act.ask(&g, &g.dc, &op)).await);
        }
    }

    // done, and done again under the same key
    let mut answers = Vec::new();
    for _ in 0..2 {
        answers.push(act.ask(&g, &g.dc, &op).await.unwrap_or_else(|e| panic!("{act:?}: {e}")));
        comes_to(act, &g, if act == Rotate || act == Reset { answers.len() } else { 1 }, &format!("{act:?}")).await;
        if act == Reset {
            g.settled().await;
        }
    }
    // what shows is told as done the second time
    if matches!(act, PowerOff | SetBoot | ClearBoot | Cordon | DeleteNode) {
        assert_eq!(answers[1], Ack::Done, "{act:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_act_of_the_provider_passes() {
    tokio::task::spawn_blocking(cluster).await.expect("a cluster");
    for pair in ACTS.chunks(4) {
        futures::future::join_all(pair.iter().map(|act| passes(*act))).await;
    }
}

fn deaf() -> (std::net::TcpListener, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address").to_string();
    (listener, at)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_is_installed_joined_drained_and_forgotten() {
    let g = member_to_be(options()).await;
    let install = operation("repave", 1);
    g.dc.install(&g.target, SCRIPT_IMAGE, "", &install).await.map(drop).expect("begun");
    looks_until(&g, "it is installed", |seen| seen.installed.is_some()).await;
    assert_eq!(g.dc.membership(&g.target, CLUSTER).await, Ok(Membership::NotFound));
    let join = operation("join", 1);
    for _ in 0..2 {
        assert_eq!(g.dc.join(&g.target, CLUSTER, &join).await, Ok(Ack::Accepted));
    }
    comes_to(Join, &g, 1, "joined").await;
    let ended = || async { g.dc.poll(&g.target, &join, 0).await.expect("a poll").state };
    for _ in 0..500 {
        if ended().await == ExecState::Exited(0) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(ended().await, ExecState::Exited(0));
    let log = std::fs::read_to_string(g.host().programs().join("kubeadm.log")).expect("a log");
    assert_eq!(log.matches("args: join").count(), 1, "{log}");
    let token = log.split("token-id=").nth(1).expect("a token").trim();
    let token = token.lines().next().expect("its id");
    let secret = format!("/api/v1/namespaces/kube-system/secrets/bootstrap-token-{token}");
    assert_eq!(cluster().admin().call("GET", &secret, None).0, 200, "it is good until it has served");
    assert!(matches!(g.dc.membership(&g.target, CLUSTER).await, Ok(Membership::NotReady(_))));
    assert_eq!(cluster().admin().call("GET", &secret, None).0, 404, "a token that has served is gone");
    let pass = g.dc.evict_pass(&g.target, CLUSTER, &EvictOptions::default()).await.expect("a pass");
    assert_eq!(pass.left, [], "nothing runs there");
    assert_eq!(g.dc.delete_node(&g.target, CLUSTER).await, Ok(Ack::Done));
    assert_eq!(node_exists(&g), 0);
}
