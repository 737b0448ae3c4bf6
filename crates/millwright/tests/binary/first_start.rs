//! The first start, the second one, and a second server where one is already.

use crate::fleet::list;
use crate::process::program;
use crate::server::{Home, after};
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn the_first_start_writes_a_token_that_later_starts_keep() {
    let home = Home::new();
    let launch = home.launch("data");
    let server = launch.start();
    let told = after(&server.process.out(), "administrator token: ").expect("told where");
    assert_eq!(told, server.token_file.display().to_string());
    let mode = std::fs::metadata(&server.token_file).expect("the token file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let token = std::fs::read_to_string(&server.token_file).expect("a token");
    assert!(token.trim().len() >= 32, "{} characters", token.trim().len());
    server.ok(&["machine", "register", "m-1", "--provider", "nowhere"]);
    server.terminate().with(0);

    let server = launch.start();
    assert_eq!(after(&server.process.out(), "administrator token: "), Some(told));
    assert_eq!(std::fs::read_to_string(&server.token_file).expect("a token"), token);
    assert_eq!(server.ok(&["machine", "list", "-o", "name"]), "m-1\n");
}

#[test]
fn address_and_token_come_from_the_environment_too() {
    let home = Home::new();
    let server = home.launch("data").with(&["--sim", "2"]).start();
    let token = std::fs::read_to_string(&server.token_file).expect("a token");
    let mut command = program(&home.path(""));
    command.args(["machine", "list", "-o", "name"]);
    command.env("MILLWRIGHT_SERVER", &server.url).env("MILLWRIGHT_TOKEN", token.trim());
    assert_eq!(crate::process::run(&mut command).with(0).out, "sim-0001\nsim-0002\n");
}

#[test]
fn simulated_machines_are_registered_at_the_first_start_only() {
    let home = Home::new();
    let server = home.launch("data").with(&["--sim", "3"]).start();
    assert_eq!(server.machines().len(), 3);
    server.kill();
    let server = home.launch("data").with(&["--sim", "5"]).start();
    assert_eq!(server.machines().len(), 3);
}

#[test]
fn a_second_server_in_the_same_folder_is_refused_and_the_first_goes_on() {
    let home = Home::new();
    let launch = home.launch("data").with(&["--sim", "1"]);
    let first = launch.start();
    let refused = launch.refused();
    assert!(refused.err.contains("in use by another millwright"), "{}", refused.err);
    assert!(refused.err.contains(&*launch.data.to_string_lossy()), "{}", refused.err);
    assert_eq!(refused.out, "", "it said nothing of serving");
    assert_eq!(list(&first.json(&["machine", "list"]), "machines").len(), 1);
    first.ok(&["run", "start", "sim-0001", "--type", "REBOOT", "--wait"]);
    // a lock that outlives its holder would keep the next one out
    first.kill();
    launch.start();
}
