//! The exit codes of the client, each as a script would meet it.

use crate::fleet::text;
use crate::server::{Home, QUICK};

const FAILING: &str = "plan_id: reboot-once\nsteps:\n- {name: reboot, max_retries: 0, reboot: {mode: bmc}}\n";

#[test]
fn every_way_to_fail_has_its_exit_code() {
    let home = Home::new();
    let server = home.launch("data").with(&["--sim", "2"]).start();

    let stranger = server.with_token(&home.file("wrong.token", "mw_not-a-token\n"));
    stranger.run(&["machine", "list"]).with(5).saying("TOKEN_INVALID");
    let missing = server.with_token(&home.path("nobody.token"));
    missing.run(&["machine", "list"]).with(5).saying("nobody.token");
    home.run(&["machine", "list", "--server", &server.url]).with(5).saying("no token was given");

    home.run(&["machine", "list", "--server", "127.0.0.1:1", "--token", "t"]).with(6).saying("127.0.0.1:1");

    server.run(&["machine", "show", "nobody"]).with(3).saying("MACHINE_NOT_FOUND");
    server.run(&["run", "start", "nobody", "--type", "REBOOT"]).with(3);
    server.run(&["run", "show", "run_0"]).with(3);
    server.run(&["plan", "show", "none"]).with(3);

    let refused = server.run(&["machine", "phase", "sim-0001", "IN_SERVICE", "--reason", "hope"]).with(4);
    assert!(refused.saying("allowed:").err.contains("READY"), "names what is allowed");

    server.run(&["machine", "phase", "sim-0001", "ASLEEP"]).with(2);
    server.run(&["run", "start", "sim-0001"]).with(2).saying("--type");
    server.run(&["run", "start", "sim-0001", "--type", "DANCE"]).with(2);
    server.run(&["machine", "list", "--filter", "colour=red"]).with(2);
    home.run(&["no-such-command"]).with(2);
}

#[test]
fn a_run_that_fails_is_an_exit_code_for_whoever_waits() {
    let home = Home::new();
    let server = home.launch("data").with(&["--sim", "0"]).start();
    server.register("m-1", &["sim.latency_ms=0", "sim.fault.reboot=fail"]);
    server.ok(&["plan", "create", "-f", home.file("plan.yaml", FAILING).to_str().expect("a plain path")]);
    let start = ["run", "start", "m-1", "--type", "REBOOT", "--plan", "reboot-once", "--request-id", "r-1"];
    server.run(&[&start[..], &["--wait"]].concat()).with(1).saying("FAILED");

    let run = text(&server.runs()[0], "run_id").to_owned();
    // the same request is the same run, ended or not
    assert_eq!(server.ok(&[&start[..], &["-o", "name"]].concat()).trim(), run);
    server.run(&["run", "wait", &run]).with(1);
    server.run(&["run", "wait", &run, "--for", "terminal"]).with(0);
    server.run(&["run", "watch", &run]).with(0);
    server.run(&["run", "cancel", &run]).with(4);
}

#[test]
fn a_machine_with_an_active_run_refuses_another() {
    let home = Home::new();
    let server = home.launch("data").with(&["--sim", "0"]).config(QUICK).start();
    server.register("m-1", &["sim.fault.reboot=hang"]);
    let run = server.start("m-1", "REBOOT");
    server.run(&["run", "start", "m-1", "--type", "REPAVE"]).with(4).saying(&run);
    server.run(&["run", "wait", &run, "--timeout", "10ms"]).with(1);
    server.ok(&["run", "cancel", &run]);
    server.run(&["run", "wait", &run]).with(1).saying("CANCELED");
}
