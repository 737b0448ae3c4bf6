//! SIGTERM: the work is handed over to the next start, or canceled where that was asked for.

use crate::audit::World;
use crate::fleet::text;
use crate::process::until;
use crate::server::{Home, Launch, QUICK, Server};
use testkit::canary;
use testkit::redfish_responder::{Options, Responder};

/// Long enough to be met half-way, without a call in the air.
const SLOW: [&str; 2] = ["sim.latency_ms=0", "sim.fault.repave=slow:4000"];

/// A server whose only run is in the middle of its repave.
fn half_way(server: Server, launch: &Launch) -> (Server, String) {
    server.register("m-1", &SLOW);
    let run = server.start("m-1", "REPAVE");
    World::of(&launch.data).wait_for("repave_started", 1);
    (server, run)
}

#[test]
fn a_stop_hands_over_and_the_next_start_goes_on() {
    let home = Home::new();
    let mut launch = home.launch("data").with(&["--sim", "0"]);
    let (server, run) = half_way(launch.start_at_a_fixed_address(), &launch);
    let follower = server.spawn(&["run", "watch", &run, "-o", "json"]);
    until("the follower hears something", || (!follower.out().is_empty()).then_some(()));
    let ended = server.terminate().with(0);
    assert!(ended.out.contains("stopping"), "{}", ended.out);
    let world = World::of(&launch.data);
    assert_eq!(world.count("reset"), 0, "the run has not gone on to its end");

    let server = launch.start();
    let stands = server.show(&run);
    assert!(matches!(text(&stands, "phase"), "RUNNING" | "SUCCEEDED"), "{stands:#}");
    let ended = server.ended(&run);
    assert_eq!(text(&ended, "phase"), "SUCCEEDED", "{ended:#}");
    world.each_once(&["repave_started", "repaved", "reset"], &server.executions());
    assert!(!server.journal(&run).iter().any(|entry| entry == "holder_lost"), "handed over, not lost");
    let followed = follower.end().with(0);
    let last = followed.out.lines().last().expect("events");
    assert!(last.contains(r#""phase":"SUCCEEDED""#), "it was followed across the restart: {}", followed.out);
}

#[test]
fn a_stop_in_the_middle_of_a_call_waits_for_its_answer() {
    let home = Home::new();
    let launch = home.launch("data").with(&["--sim", "0"]);
    let server = launch.start();
    server.register("m-1", &["sim.latency_ms=600"]);
    let run = server.start("m-1", "REBOOT");
    // journaled before the act, which takes a while
    until("the reboot is looked at", || server.journal(&run).iter().any(|entry| entry == "observed").then_some(()));
    server.stop("INT").with(0);
    let world = World::of(&launch.data);
    assert_eq!(world.count("reset"), 1, "the call was waited for");
    let server = launch.start();
    assert_eq!(text(&server.ended(&run), "phase"), "SUCCEEDED");
    world.each_once(&["reset"], &server.executions());
}

#[test]
fn a_stop_asked_for_as_soon_as_it_serves_is_in_order() {
    let home = Home::new();
    for signal in ["TERM", "INT", "TERM", "INT"] {
        home.launch("data").start().stop(signal).with(0);
    }
}

#[test]
fn a_second_signal_ends_at_once_and_nothing_is_lost() {
    let home = Home::new();
    let config = "[engine]\nlease_seconds = 6\ncall_timeout_seconds = 3";
    let launch = home.launch("data").with(&["--sim", "0"]).config(config);
    let mut server = launch.start();
    server.register("m-1", &["sim.fault.reboot=hang:1"]);
    let run = server.start("m-1", "REBOOT");
    World::of(&launch.data).wait_for("fault", 1);
    // an operator who does not wait for the call that hangs
    until("the end", || {
        server.process.signal("TERM");
        server.process.is_over().then_some(())
    });
    let ended = server.process.end().with(1);
    assert!(ended.out.contains("a second signal ends at once"), "{}", ended.out);
    let server = launch.start();
    assert_eq!(text(&server.ended(&run), "phase"), "SUCCEEDED");
    World::of(&launch.data).each_once(&["reset"], &server.executions());
}

#[test]
fn a_stop_that_cancels_says_so_in_every_run() {
    let home = Home::new();
    for (name, flags, config) in [
        ("flag", &["--sim", "0", "--cancel-runs-on-shutdown"][..], QUICK.to_owned()),
        ("file", &["--sim", "0"], format!("{QUICK}[shutdown]\nactive_runs = 'cancel'\n")),
    ] {
        let launch = home.launch(name).with(flags).config(&config);
        let (server, run) = half_way(launch.start(), &launch);
        server.terminate().with(0);
        let server = launch.start();
        let ended = server.show(&run);
        assert_eq!(text(&ended, "phase"), "CANCELED", "{ended:#}");
        assert!(text(&ended["error"], "message").contains("server_shutdown"), "{ended:#}");
        assert_eq!(World::of(&launch.data).count("reset"), 0, "nothing went on after the cancel");
        let machine = server.json(&["machine", "show", "m-1"]);
        assert_eq!(text(&machine["status"], "active_run_id"), "", "the machine is let go: {machine:#}");
    }
}

/// Controllers have few sessions: a server that stops leaves none behind. By the controller's own count.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_closes_the_sessions_at_controllers() {
    let options = Options { password: canary::plant("bmc"), ..Options::default() };
    let (username, password) = (options.username.clone(), options.password.clone());
    let responder = Responder::start(options).await;
    let endpoint = responder.endpoint(1);
    let home = Home::new();
    let server = home.launch("data").config("[observe]\nperiod_seconds = 1\n").start();
    let file = home.file("bmc.key", &password).display().to_string();
    let set = ["credential", "set", "rack", "--kind", "bmc", "--username", &username, "--password-file", &file];
    server.ok(&set);
    server.ok(&["machine", "register", "m-1", "--provider", "datacenter", "--bmc", &endpoint, "--credentials", "rack"]);
    until("it is looked at", || (responder.open_sessions() > 0).then_some(()));
    let ended = tokio::task::spawn_blocking(move || server.terminate().with(0));
    ended.await.expect("stopped");
    assert_eq!(responder.open_sessions(), 0);
}
