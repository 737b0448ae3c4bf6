//! The demo, from its start to the end of its run.

use crate::process::{Process, program, until};
use crate::server::{Home, after};
use std::path::Path;

#[test]
fn the_demo_shows_every_step_and_ends_with_the_result() {
    let home = Home::new();
    let ended = home.run(&["demo", "--once", "--machines", "3", "--listen", "127.0.0.1:0"]).with(0);
    for part in [
        "3 simulated machines",
        "export MILLWRIGHT_SERVER=http://127.0.0.1:",
        "export MILLWRIGHT_TOKEN=",
        "Repaving sim-0001",
        "set-netboot",
        "repave",
        "reboot",
        "join-cluster",
        "verify",
        "SUCCEEDED",
    ] {
        assert!(ended.out.contains(part), "{part:?} is not in:\n{}", ended.out);
    }
    assert_eq!(ended.err, "", "nothing to complain about");
}

#[test]
fn on_a_taken_port_it_takes_another_and_serves_until_it_is_interrupted() {
    let home = Home::new();
    let server = home.launch("data").start();
    let taken = server.url.trim_start_matches("http://");
    let mut command = program(&home.path(""));
    let demo = Process::spawn(command.args(["demo", "--machines", "1", "--listen", taken]));
    until("the run is over and it serves on", || demo.out().contains("goes on until Ctrl-C").then_some(()));
    let url = after(&demo.out(), "export MILLWRIGHT_SERVER=").expect("an address");
    let token = after(&demo.out(), "export MILLWRIGHT_TOKEN=").expect("a token");
    let listed = home.run(&["machine", "list", "-o", "name", "--server", &url, "--token", &token]).with(0);
    assert_eq!(listed.out, "sim-0001\n");

    demo.signal("INT");
    let ended = demo.end().with(0);
    assert!(ended.out.contains("taking a free port instead"), "{}", ended.out);
    let folder = after(&ended.out, "embedded database in ").expect("a folder");
    assert!(!Path::new(&folder).exists(), "{folder} is left behind");
}
