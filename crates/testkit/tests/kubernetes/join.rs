//! Joining: tokens that the real server takes and refuses, and the script as a host would run it.

use crate::fixture::{cluster, number, server};
use kube::{JoinMaterial, JoinScript, NodeOf, join_script};
use provider::{Ack, Membership};
use serde_json::json;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use testkit::kubernetes::base64;

const TOKENS: &str = "/api/v1/namespaces/kube-system/secrets";

fn path_of(id: &str) -> String {
    format!("{TOKENS}/bootstrap-token-{id}")
}

/// Whom the server takes the bearer of a token for.
fn known_as(token: &str) -> Option<String> {
    let (status, answer) = server().by_token(token).call("GET", TOKENS, None);
    match status {
        401 => None,
        403 => answer["message"].as_str()?.split('"').nth(1).map(str::to_owned),
        _ => panic!("a bootstrap token reads secrets: {status} {answer}"),
    }
}

/// The same, once the server has learned of it: it does by a watch of its own.
fn comes_to_be_known_as(token: &str) -> Option<String> {
    (0..300).find_map(|_| {
        let known = known_as(token);
        if known.is_none() {
            std::thread::park_timeout(Duration::from_millis(100));
        }
        known
    })
}

#[tokio::test]
async fn a_minted_token_lets_its_bearer_in_until_it_is_forgotten() {
    let cluster = cluster();
    let minted = cluster.mint_join(Duration::from_secs(600)).await.expect("minted");
    let name = format!("system:bootstrap:{}", minted.token_id);
    assert_eq!(comes_to_be_known_as(minted.token.reveal()), Some(name));
    assert_eq!(minted.endpoint, server().url().trim_start_matches("https://"));
    let another = cluster.mint_join(Duration::from_secs(600)).await.expect("minted");
    assert_ne!(minted.token, another.token);

    let stored = server().admin().must("GET", &path_of(&minted.token_id), None);
    assert_eq!(stored["type"], "bootstrap.kubernetes.io/token");
    assert_eq!(stored["metadata"]["labels"]["app.kubernetes.io/managed-by"], "millwright");
    assert_eq!(stored["data"]["expiration"], base64(&minted.expires_at.to_string()));
    assert_eq!(stored["data"]["usage-bootstrap-signing"], base64("true"));

    assert_eq!(cluster.forget_join(&minted.token_id).await, Ok(Ack::Done));
    assert_eq!(server().admin().call("GET", &path_of(&minted.token_id), None).0, 404);
    // the server learns of it by a watch of its own
    for _ in 0..300 {
        if known_as(minted.token.reveal()).is_none() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(known_as(minted.token.reveal()), None);
    assert_eq!(cluster.forget_join(&minted.token_id).await, Ok(Ack::Done), "gone already is done");
    let not_one = cluster.forget_join("../../x").await.expect_err("no id");
    assert!(not_one.to_string().contains("not the id"), "{not_one}");
    assert_eq!(cluster.forget_join(&another.token_id).await, Ok(Ack::Done));
}

/// A token as an earlier run, or somebody else, left it.
fn leave_token(id: &str, expiration: &str, ours: bool) -> String {
    let secret = "0123456789abcdef";
    let labels = if ours { json!({ "app.kubernetes.io/managed-by": "millwright" }) } else { json!({}) };
    let object = json!({
        "metadata": { "name": format!("bootstrap-token-{id}"), "labels": labels },
        "type": "bootstrap.kubernetes.io/token",
        "data": {
            "token-id": base64(id), "token-secret": base64(secret), "expiration": base64(expiration),
            "usage-bootstrap-authentication": base64("true"),
        },
    });
    server().admin().must("POST", TOKENS, Some(&object));
    format!("{id}.{secret}")
}

#[tokio::test]
async fn an_expired_token_lets_nobody_in_and_only_ours_are_removed() {
    let (past, future) = ("2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z");
    let expired = leave_token("exprd1", past, true);
    let theirs = leave_token("exprd2", past, false);
    leave_token("strang", "one day", true);
    let living = leave_token("living", future, true);
    // made later: once it is known, so are the others
    assert_eq!(comes_to_be_known_as(&living).as_deref(), Some("system:bootstrap:living"));
    assert_eq!((known_as(&expired), known_as(&theirs)), (None, None));
    let minted = cluster().mint_join(Duration::from_secs(60)).await.expect("minted");
    let is_there = |id: &str| server().admin().call("GET", &path_of(id), None).0 == 200;
    assert!(!is_there("exprd1"), "ours, and expired");
    assert!(is_there("exprd2"), "expired, but not ours");
    assert!(is_there("living") && is_there(&minted.token_id), "ours, but not expired");
    assert!(is_there("strang"), "nobody knows when it ends");
}

#[tokio::test]
async fn the_life_of_a_token_is_bounded() {
    let cluster = cluster();
    let short = cluster.mint_join(Duration::ZERO).await.expect("minted");
    let long = cluster.mint_join(Duration::from_secs(10 * 365 * 86_400)).await.expect("minted");
    let day = Duration::from_secs(86_400);
    let between = long.expires_at.since(short.expires_at);
    assert!(between < day && between > day / 2, "a minute at least, a day at most: {between:?}");
}

/// The hash as everybody computes it, by openssl.
fn hash(pem: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ca.crt");
    std::fs::write(&file, pem).expect("written");
    let script =
        "openssl x509 -in \"$1\" -noout -pubkey | openssl pkey -pubin -outform der | sha256sum | cut -d' ' -f1";
    let out = Command::new("sh").args(["-c", script, "sh"]).arg(&file).output().expect("sh runs");
    format!("sha256:{}", String::from_utf8_lossy(&out.stdout).trim())
}

/// Runs what the SSH adapter would run on a host.
fn run(script: &JoinScript, host: &Path) -> Output {
    begin(script, host).wait_with_output().expect("it ends")
}

fn begin(script: &JoinScript, host: &Path) -> Child {
    let path = format!("{}:{}", host.display(), std::env::var("PATH").expect("PATH"));
    let mut shell = Command::new("sh");
    // as SSH does: the words are the login shell's to read
    shell.args(&script.command.args).env("PATH", path).env("TMPDIR", host).process_group(0);
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("sh runs");
    let text = script.stdin.reveal().to_owned();
    let mut stdin = shell.stdin.take().expect("its input");
    std::io::Write::write_all(&mut stdin, text.as_bytes()).expect("written");
    drop(stdin);
    shell
}

fn host(version: &str, uuid: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    testkit::kubeadm::install(folder.path());
    std::fs::write(folder.path().join("kubeadm.version"), version).expect("written");
    std::fs::write(folder.path().join("kubeadm.uuid"), uuid).expect("written");
    folder
}

fn log_of(host: &Path) -> String {
    std::fs::read_to_string(host.join("kubeadm.log")).unwrap_or_default()
}

/// Files of a join, wherever the script may have put them.
fn left_behind(material: &JoinMaterial) -> Vec<String> {
    let mut found = Vec::new();
    for place in ["/run", "/dev/shm", "/tmp"] {
        let grep = Command::new("grep").args(["-rl", "--include=join.yaml", material.token.reveal(), place]).output();
        found.extend(String::from_utf8_lossy(&grep.expect("grep runs").stdout).lines().map(str::to_owned));
    }
    found
}

#[tokio::test]
async fn a_host_joins_by_the_script_and_the_token_is_in_no_argument_and_no_file_afterwards() {
    let cluster = cluster();
    for version in ["v1.20.2", "v1.29.9", "v1.31.4", "v1.40.0"] {
        let n = number();
        let (name, uuid) = (format!("joined-{n}"), format!("4d570000-0000-4000-9000-{n:012x}"));
        let host = host(version, &uuid);
        let material = cluster.mint_join(Duration::from_secs(600)).await.expect("minted");
        assert_eq!(material.ca_hash, hash(&server().authority_pem()));
        let out = run(&join_script(&material, Some(&name)), host.path());
        let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "{version}: {said}\n{}", log_of(host.path()));
        let who = NodeOf { system_uuid: uuid, names: Vec::new() };
        assert!(matches!(cluster.membership(&who).await, Ok(Membership::NotReady(_))));
        assert_eq!(server().admin().call("GET", &format!("/api/v1/nodes/{name}"), None).0, 200);

        let secret = material.token.reveal().split('.').nth(1).expect("a secret part");
        let log = log_of(host.path());
        assert!(log.contains("args: join --config /") && log.contains(&material.token_id), "{log}");
        assert!(!log.contains(secret) && !said.contains(secret), "{said}{log}");
        assert_eq!(left_behind(&material), [""; 0]);
    }
}

#[tokio::test]
async fn a_join_that_fails_leaves_nothing_behind_and_says_why() {
    let cluster = cluster();
    let material = cluster.mint_join(Duration::from_secs(600)).await.expect("minted");
    let of = |change: &dyn Fn(&mut JoinMaterial)| {
        let mut changed = material.clone();
        change(&mut changed);
        changed
    };
    let host = host("v1.31.4", "");
    let cases = [
        (of(&|m| m.ca_hash = format!("sha256:{}", "0".repeat(64))), "the cluster's authority has the hash"),
        (of(&|m| m.token = domain::Secret::new("aaaaaa.0123456789abcdef")), "answered 401"),
        (of(&|m| m.token = domain::Secret::new("nonsense")), "token is invalid"),
    ];
    for (material, why) in cases {
        let out = run(&join_script(&material, Some("never")), host.path());
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.contains(why), "{said}");
        assert_eq!(left_behind(&material), [""; 0]);
    }
    std::fs::write(host.path().join("kubeadm.version"), "devel").expect("written");
    let out = run(&join_script(&material, None), host.path());
    assert!(String::from_utf8_lossy(&out.stderr).contains("not understood"));
    assert_eq!(server().admin().call("GET", "/api/v1/nodes/never", None).0, 404);
}

#[tokio::test]
async fn a_join_that_is_cancelled_leaves_nothing_behind() {
    let material = cluster().mint_join(Duration::from_secs(600)).await.expect("minted");
    let host = host("v1.31.4", "");
    std::fs::write(host.path().join("kubeadm.hangs"), "").expect("written");
    let joining = begin(&join_script(&material, Some("never")), host.path());
    for _ in 0..600 {
        if log_of(host.path()).contains("hangs") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(left_behind(&material).len(), 1, "while it runs the file is there: {}", log_of(host.path()));
    // as the SSH adapter does it: the whole process group
    let group = format!("-{}", joining.id());
    assert!(Command::new("kill").args(["-TERM", "--", &group]).status().expect("kill runs").success());
    // ends when all of them have
    assert!(!joining.wait_with_output().expect("it ends").status.success());
    assert_eq!(left_behind(&material), [""; 0]);
}

#[tokio::test]
async fn without_cluster_info_the_kubeconfig_says_where_to_join() {
    // a user who may make tokens and read nothing else: cluster-info is closed to it
    let rules = json!([{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["create"] }]);
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system";
    let token = leave_token("mkoken", "2099-01-01T00:00:00Z", false);
    let admin = server().admin();
    admin.must("POST", &format!("{rbac}/roles"), Some(&json!({ "metadata": { "name": "mint-only" }, "rules": rules })));
    let subject = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:bootstrap:mkoken" });
    let role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "mint-only" });
    let binding = json!({ "metadata": { "name": "mint-only" }, "roleRef": role, "subjects": [subject] });
    admin.must("POST", &format!("{rbac}/rolebindings"), Some(&binding));
    let cluster = crate::fixture::cluster_of("closed", &server().kubeconfig(&token)).expect("a kubeconfig");
    // the server's authorizer learns of rights by a watch of its own
    let mut minted = cluster.mint_join(Duration::from_secs(60)).await;
    for _ in 0..300 {
        if minted.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        minted = cluster.mint_join(Duration::from_secs(60)).await;
    }
    let minted = minted.expect("minted, though what has expired cannot be listed");
    assert_eq!(minted.endpoint, server().url().trim_start_matches("https://"));
    assert_eq!(minted.ca_hash, hash(&server().authority_pem()));
}
