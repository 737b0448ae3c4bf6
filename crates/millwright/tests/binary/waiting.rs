//! `run wait --for`: each goal, and what an end that is not the goal looks like to a script.

use crate::server::Home;

#[test]
fn a_wait_ends_where_it_was_told_to() {
    let home = Home::new();
    let server = home.launch("data").with(&["--sim", "0"]).start();
    server.register("m-1", &["sim.latency_ms=0", "sim.fault.repave=slow:60000"]);
    let run = server.start("m-1", "REPAVE");
    let wait = |goal: &str| server.run(&["run", "wait", &run, "--for", goal, "--timeout", "100s"]);
    wait("RUNNING").with(0);
    wait("step=set-netboot").with(0);
    assert!(wait("step=repave:RUNNING").with(0).out.contains("RUNNING"));
    wait("step=repvae").with(2).saying("allowed: set-netboot, repave, reboot");
    server.run(&["run", "wait", &run, "--for", "step=repave", "--timeout", "1s"]).with(1).saying("after waiting 1.0s");
    server.ok(&["run", "cancel", &run]);
    wait("terminal").with(0);
    wait("CANCELED").with(0);
    wait("SUCCEEDED").with(1).saying("CANCELED");
    wait("FAILED").with(1);
    wait("step=reboot").with(1).saying("step reboot was never SUCCEEDED");
    // what was, was
    wait("RUNNING").with(0);
    server.run(&["run", "wait", "run_0"]).with(3);
}
