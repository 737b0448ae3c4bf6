//! Wrong things, typed at both programs by somebody who sees them for the first time: each is refused with its own exit
//! code, and with a word on what to do instead.

use crate::agents_site::{Machine, Site};
use serde_json::Value;
use std::path::Path;

fn enrol(machine: &Machine, bundle: &Path) -> crate::process::Ended {
    machine.do_(&["enroll", "--wait", "1", "--bundle", bundle.to_str().expect("a plain path")])
}

#[test]
fn whoever_asks_for_what_is_not_there_is_told_what_is() {
    let site = Site::new();
    let server = site.start();
    server.run(&["node", "show", "gpu-9"]).with(3).saying("millwright node list");
    server.run(&["node", "drain", "gpu-9"]).with(3).saying("millwright node list");
    server.run(&["node", "dance", "gpu-9"]).with(2);
    server.run(&["node", "decommission", "gpu-9", "--mode", "burn"]).with(2).saying("soft_reset");
    server.run(&["job", "show", "job_nothing"]).with(3).saying("millwright job list");
    server.run(&["task", "show", "tsk_nothing"]).with(3).saying("millwright task list");
    let bundle = site.create(&server, "gpu-1");
    server.run(&["node", "create", "gpu-1"]).with(4).saying("gpu-1");
    let out = bundle.to_str().expect("a plain path");
    server.run(&["node", "create", "gpu-2", "--out", out]).with(2).saying("exists");
    server.run(&["node", "show", "gpu-2"]).with(3);
    // nobody is there to do anything yet
    server.run(&["node", "drain", "gpu-1"]).with(4).saying("millwright node revoke");
    server.run(&["node", "remove", "gpu-1", "--dry-run"]).with(4).saying("millwright why");
    server.run(&["node", "exec", "gpu-1", "--script", out]).with(4);
    let why = server.ok(&["why", "gpu-1"]);
    assert!(why.contains("its agent to come with its bundle") && why.contains("millwright node rebootstrap"), "{why}");
}

#[test]
fn bundles_that_are_used_stale_or_for_somebody_else_are_refused_and_the_way_on_is_named() {
    let (site, elsewhere) = (Site::new(), Site::new());
    let (server, stranger) = (site.start(), elsewhere.start());
    let machine = site.machine("gpu-1");
    machine.do_(&["run"]).with(1).saying("millwright-agent enroll --bundle");
    enrol(&machine, Path::new("/nowhere/bundle")).with(1).saying("/nowhere/bundle");
    let junk = site.home.file("junk", "not a bundle");
    enrol(&machine, &junk).with(1).saying("junk");
    machine.do_(&["enroll"]).with(2).saying("--bundle");

    // used: by another machine, and by this one
    let bundle = site.create(&server, "gpu-1");
    let copy = site.path("copy.json");
    std::fs::copy(&bundle, &copy).expect("copied");
    let enrolled = enrol(&machine, &bundle).with(0);
    assert!(enrolled.out.contains("millwright-agent run"), "{}", enrolled.out);
    assert!(!bundle.exists(), "used up");
    let other = site.machine("gpu-2");
    enrol(&other, &copy).with(1).saying("millwright node rebootstrap");
    other.give(&copy);
    other.do_(&["run"]).with(3).saying("millwright node rebootstrap");

    // issued again: the one before is of no more use
    let first = site.create(&server, "gpu-3");
    let second = site.bundle(&server, &["node", "rebootstrap", "gpu-3"]);
    let third = site.machine("gpu-3");
    enrol(&third, &first).with(1).saying("millwright node rebootstrap");
    enrol(&third, &second).with(0);

    // another server's, brought to this one: nothing is sent to whom it does not know
    let theirs = elsewhere.create(&stranger, "gpu-4");
    let mut misled: Value = serde_json::from_slice(&std::fs::read(&theirs).expect("read")).expect("JSON");
    let ours: Value = serde_json::from_slice(&std::fs::read(&copy).expect("read")).expect("JSON");
    misled["server"] = ours["server"].clone();
    std::fs::write(&theirs, misled.to_string()).expect("written");
    let fourth = site.machine("gpu-4");
    let refused = enrol(&fourth, &theirs).with(1).saying("nothing was sent");
    assert!(refused.err.contains("is not the server"), "{}", refused.err);
    assert!(theirs.exists(), "it may still be of use");
    // and their token, with our authority
    misled["authority_pem"] = ours["authority_pem"].clone();
    std::fs::write(&theirs, misled.to_string()).expect("written");
    enrol(&fourth, &theirs).with(1).saying("millwright node rebootstrap");

    // one agent on a state
    let agent = machine.run();
    server.node_is("gpu-1", "active");
    machine.do_(&["run"]).with(1).saying("in use by process");
    // nobody answers
    drop(agent);
    server.terminate();
    let fifth = site.machine("gpu-5");
    let mut nobody = ours.clone();
    nobody["token"] = "none".into();
    let file = site.path("nobody.json");
    std::fs::write(&file, nobody.to_string()).expect("written");
    enrol(&fifth, &file).with(1).saying("run the same command again");
}
