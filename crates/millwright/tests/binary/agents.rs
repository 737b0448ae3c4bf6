//! The agents' door of a server as a process: where it is, when it is not, and that what is founded once lasts.

use crate::server::{Home, Server};
use crate::shared_database::database;
use serde_json::Value;
use std::sync::Arc;
use store::{Ambient as _, SystemAmbient};
use testkit::agent_client::{Agent, Dialer, WINDOW, der_of};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// The bundle of a fresh node.
fn bundle(server: &Server, home: &Home, name: &str) -> Value {
    let file = home.path(&format!("{name}.bundle"));
    server.ok(&["node", "create", name, "--out", file.to_str().expect("a plain path")]);
    let bundle: Value = serde_json::from_slice(&std::fs::read(&file).expect("reads")).expect("JSON");
    // it holds a secret, as it must
    std::fs::remove_file(file).expect("removed");
    bundle
}

fn text<'a>(bundle: &'a Value, name: &str) -> &'a str {
    bundle[name].as_str().expect("text")
}

fn dialer(bundle: &Value) -> Dialer {
    let address = text(bundle, "server").trim_start_matches("https://").parse().expect("an address");
    let (authority, clock) = (der_of(text(bundle, "authority_pem")).expect("an authority"), SystemAmbient::new());
    Dialer { address, authority, clock: Arc::new(move || clock.now()), window: WINDOW }
}

#[test]
fn an_agent_enrols_and_comes_back_to_the_next_server() {
    let home = Home::new();
    let server = home.launch("data").start();
    assert!(!home.path("data/secrets.key").exists(), "nothing is founded before it is needed");
    let first = bundle(&server, &home, "gpu-1");
    let runtime = runtime();
    let mut agent = runtime.block_on(async {
        let mut agent = Agent::enrol(&dialer(&first), text(&first, "token")).await.expect("enrols");
        agent.connect(&dialer(&first)).await.expect("connects");
        agent
    });
    assert_eq!(text(&first, "node_id"), agent.node_id);
    server.terminate().with(0);
    let again = home.launch("data").start();
    let second = bundle(&again, &home, "gpu-2");
    assert_eq!(first["authority_pem"], second["authority_pem"], "it was founded once");
    runtime.block_on(async { agent.connect(&dialer(&second)).await.map(drop).expect("its identity lasts") });
    again.terminate().with(0);
}

#[test]
fn a_port_that_is_taken_is_a_clear_error() {
    let home = Home::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let ended = home.launch("data").with(&["--agent-listen", &address]).refused();
    assert!(ended.err.contains(&format!("listening on {address} for agents")), "{}", ended.err);
    assert!(ended.err.contains("--no-agents"), "{}", ended.err);
}

#[test]
fn a_server_without_agents_makes_no_bundles() {
    let home = Home::new();
    let server = home.launch("data").with(&["--no-agents"]).start();
    server.run(&["node", "create", "gpu-1", "--out", "never"]).with(4).saying("takes no agents");
    server.terminate().with(0);
}

#[test]
fn without_a_key_the_door_stays_shut_and_says_what_to_set() {
    let home = Home::new();
    let url = database();
    let server = home.launch("one").with(&["--database", &url]).start();
    server.run(&["node", "create", "gpu-1", "--out", "never"]).with(4).saying("secrets.key_file");
    let ended = server.terminate().with(0);
    assert!(ended.err.contains("no agents are taken") && ended.err.contains("secrets.key_file"), "{}", ended.err);
}

#[test]
fn the_authority_is_sealed_anew_with_everything_else() {
    let home = Home::new();
    let key = |name: &str, byte: &str| home.file(name, &byte.repeat(32)).display().to_string();
    let (old, new) = (key("old.key", "a1"), key("new.key", "b2"));
    let url = database();
    let with = |config: String| home.launch("one").with(&["--database", &url]).config(&config);
    let server = with(format!("[secrets]\nkey_file = '{old}'\n")).start();
    let first = bundle(&server, &home, "gpu-1");
    server.terminate().with(0);
    let both = with(format!("[secrets]\nkey_file = '{new}'\nprevious_key_files = ['{old}']\n")).start();
    both.ok(&["credential", "rotate-key"]);
    both.terminate().with(0);
    let server = with(format!("[secrets]\nkey_file = '{new}'\n")).start();
    let second = bundle(&server, &home, "gpu-2");
    assert_eq!(first["authority_pem"], second["authority_pem"]);
    let enrolled = runtime()
        .block_on(async { Agent::enrol(&dialer(&second), text(&second, "token")).await.map(|agent| agent.node_id) });
    assert_eq!(enrolled.expect("enrols"), text(&second, "node_id"));
    server.terminate().with(0);
}
