//! A server looks at its machines by itself, as it is configured to.

use crate::fleet::text;
use crate::process::until;
use crate::server::{Home, Server};
use serde_json::Value;

fn condition(machine: &Value, kind: &str) -> Value {
    let all = machine["status"]["conditions"].as_array().expect("conditions");
    all.iter().find(|c| c["type"] == kind).expect("every type is there").clone()
}

fn machine_when(server: &Server, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    until(what, || Some(server.json(&["machine", "show", "sim-0001"])).filter(&wanted))
}

#[test]
fn machines_become_ready_and_what_falls_silent_grows_stale() {
    let home = Home::new();
    let settings = "[observe]\nperiod_seconds = 1\ntimeout_seconds = 1\nstale_after_seconds = 2";
    let launch = home.launch("data").config(settings).with(&["--sim", "1"]);
    let server = launch.start();
    let machine = machine_when(&server, "it becomes READY", |m| m["status"]["phase"] == "READY");
    assert_eq!(text(&machine["status"], "phase_set_by"), "reconciler");
    assert!(text(&machine["status"], "observed").starts_with("BMC answers, power on"));
    server.ok(&["machine", "update", "sim-0001", "--label", "sim.fault.inspect=hang"]);
    let stale = |m: &Value| condition(m, "Reachable")["stale"] == true && condition(m, "Degraded")["status"] == true;
    let machine = machine_when(&server, "it grows stale", stale);
    assert_eq!(condition(&machine, "Reconciled")["reason"], "Stale");
    // a look in the air holds no stop up, and the next server goes on from what is known
    server.terminate().with(0);
    let server = launch.start();
    let machine = machine_when(&server, "it is there", |_| true);
    assert_eq!(condition(&machine, "Degraded")["status"], true);
    server.ok(&["machine", "update", "sim-0001", "--remove-label", "sim.fault.inspect"]);
    machine_when(&server, "it answers again", |m| condition(m, "Reconciled")["status"] == true);
}
