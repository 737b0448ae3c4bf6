//! The network that machines are put on: it is a private one, and it is gone when it should be.

use std::process::Command;
use testkit::netns::{ADDRESS, BRIDGE, Netns};

fn said(command: &mut Command) -> String {
    String::from_utf8(command.output().expect("runs").stdout).expect("text")
}

#[test]
fn a_network_of_its_own_has_its_taps_and_no_way_out_and_is_gone_when_dropped() {
    let network = Netns::start(2);
    let links = said(network.command("ip").args(["-br", "link"]));
    let names: Vec<&str> = links.lines().filter_map(|line| line.split([' ', '@']).next()).collect();
    assert_eq!(names, ["lo", BRIDGE, "tap0", "tap1"], "{links}");
    assert!(said(network.command("ip").args(["route"])).lines().all(|line| line.starts_with("10.77.0.0/24 ")));
    let here = said(Command::new("ip").args(["-br", "link", "show", "type", "bridge"]));
    assert!(!here.contains(&format!("{BRIDGE} ")) || !said(Command::new("ip").args(["addr"])).contains(ADDRESS));
    let place = network.flag().trim_start_matches("--net=").to_owned();
    assert!(std::fs::metadata(&place).is_ok());
    drop(network);
    assert!(std::fs::metadata(&place).is_err(), "the namespace's process is gone");
}

#[test]
fn a_network_goes_with_a_test_that_panics() {
    let place = std::sync::Mutex::new(String::new());
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let network = Netns::start(1);
        *place.lock().expect("a lock") = network.flag().trim_start_matches("--net=").to_owned();
        panic!("on purpose");
    }));
    assert!(outcome.is_err());
    let place = place.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    assert!(!place.is_empty() && std::fs::metadata(place.as_str()).is_err());
}
