//! A disk that was copied: two agents with one identity. Both stop, somebody is told, and one of them goes on only when a
//! person has said so.

use crate::agents_site::{Script, Site, eventually};
use crate::fleet::{list, text};
use crate::process::until;
use crate::server::Client;

const STOPPED: &str = "the server has stopped this agent";

fn clones(server: &Client) -> usize {
    let open = list(&server.get("findings"), "findings");
    open.iter().filter(|f| f["kind"] == "AGENT_CLONED" && f["state"] != "resolved").count()
}

#[test]
fn of_two_copies_both_stop_until_somebody_says_which_one_goes_on() {
    let site = Site::new();
    let server = site.start();
    let script = Script::new(&site);
    let (machine, agent) = site.active(&server, "gpu-1");
    machine.allow(&script.file);
    agent.signal("TERM");
    agent.end().with(0);
    let copy = machine.copied_to(&site.path("copy"));
    let agent = machine.run();
    // it is connected, and at work
    let task = server.exec("gpu-1", &script.file, &[&script.effects("t"), "wait"]);
    script.wait_for("t", "started");
    let second = copy.run();
    until("the copy is stopped", || second.err().contains(STOPPED).then_some(()));
    until("the first one is stopped, too", || agent.err().contains(STOPPED).then_some(()));
    let node = server.node("gpu-1");
    assert_eq!(text(&node["agent"], "identity"), "suspended", "{node:#}");
    assert_eq!(clones(&server), 1);
    let why = server.ok(&["why", "gpu-1"]);
    assert!(why.contains("millwright node repair"), "{why}");
    // what it was at has ended with it
    script.go("t");
    second.kill();
    agent.kill();

    // the copy is wiped, and the first one goes on with the key that it has
    let key = text(&machine.identity(), "key_sha256").to_owned();
    server.ok(&["node", "repair", "gpu-1", "--reason", "the copy was wiped"]);
    let agent = machine.run();
    server.node_is("gpu-1", "active");
    eventually("the finding is resolved", || (clones(&server) == 0).then_some(()));
    assert_eq!(text(&server.node("gpu-1")["agent"], "identity"), "good");
    assert_eq!(text(&machine.identity(), "key_sha256"), key);
    eventually("its task has come to an end", || {
        Some(server.task(&task)).filter(|t| ["done", "failed", "expired"].contains(&text(t, "status")))
    });
    assert_eq!((script.count("t", "started"), script.count("t", "ended")), (1, 0));

    // a new key: whoever still has the old one is nobody
    agent.signal("TERM");
    agent.end().with(0);
    machine.give(&site.bundle(&server, &["node", "rebootstrap", "gpu-1"]));
    let mut agent = machine.run();
    eventually("it has another key", || {
        let identity = machine.identity();
        (identity["key_sha256"].as_str() != Some(key.as_str())).then_some(())
    });
    server.node_is("gpu-1", "active");
    copy.do_(&["run"]).with(3).saying("millwright node rebootstrap");
    assert!(!agent.is_over(), "the one with the new key is not disturbed");
    assert_eq!(clones(&server), 0);
}
