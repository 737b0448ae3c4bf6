//! The demo, from its start to the end of its run.

use crate::server::Home;

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
fn a_taken_port_does_not_stop_the_demo() {
    let home = Home::new();
    let server = home.launch("data").start();
    let taken = server.url.trim_start_matches("http://");
    let ended = home.run(&["demo", "--once", "--machines", "1", "--listen", taken]).with(0);
    assert!(ended.out.contains("taking a free port instead"), "{}", ended.out);
}
