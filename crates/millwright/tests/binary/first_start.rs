//! The first start, the second one, and a second server where one is already.

use crate::fleet::list;
use crate::process::program;
use crate::server::{Home, after};
use std::os::unix::fs::PermissionsExt as _;

fn server_made_one(out: &str) -> bool {
    out.contains("a new administrator token was made")
}

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
    let first = server.terminate().with(0).out;
    assert!(server_made_one(&first), "the first start says that it made one: {first}");
    let server = launch.start();
    assert!(!server_made_one(&server.process.out()), "{}", server.process.out());
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

#[test]
fn a_text_that_lies_there_does_not_become_the_administrators() {
    let home = Home::new();
    let planted = home.file("data/admin.token", "hunter2\n");
    let server = home.launch("data").start();
    assert!(server_made_one(&server.process.out()), "{}", server.process.out());
    server.with_token(&home.file("hunter.token", "hunter2")).run(&["me"]).with(5);
    assert_ne!(std::fs::read_to_string(&planted).expect("a token").trim(), "hunter2");
    assert_eq!(server.json(&["me"])["role"], "admin");
    assert_eq!(std::fs::metadata(&planted).expect("there").permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_fresh_token_is_written_whenever_it_is_asked_for() {
    let home = Home::new();
    let launch = home.launch("data");
    let server = launch.start();
    let old = std::fs::read_to_string(&server.token_file).expect("a token");
    server.terminate().with(0);
    std::fs::set_permissions(launch.data.join("admin.token"), std::fs::Permissions::from_mode(0o644)).expect("set");

    let server = launch.clone().with(&["--new-admin-token"]).start();
    assert!(server_made_one(&server.process.out()), "{}", server.process.out());
    let fresh = std::fs::read_to_string(&server.token_file).expect("a token");
    assert_ne!(fresh, old);
    assert_eq!(std::fs::metadata(&server.token_file).expect("there").permissions().mode() & 0o777, 0o600);
    assert_eq!(server.json(&["me"])["role"], "admin");
    // what was there may be lost or not: who has the new one decides
    server.with_token(&home.file("old.token", &old)).ok(&["me"]);
}

#[test]
fn a_lesser_token_is_never_called_the_administrators() {
    let home = Home::new();
    let launch = home.launch("data");
    let server = launch.start();
    let token = |name: &str, more: &[&str]| server.ok(&[&["token", "create", name, "--role"][..], more].concat());
    let revoked = token("gone", &["admin"]);
    let id = server.ok(&["token", "list", "--filter", "name=gone", "-o", "name"]);
    server.ok(&["token", "revoke", id.trim()]);
    let lesser = [token("look", &["viewer"]), token("acme", &["admin", "--customer", "acme"]), revoked];
    let other = token("other", &["admin"]);
    server.terminate().with(0);

    for secret in lesser {
        home.file("data/admin.token", &secret);
        let server = launch.start();
        let told = after(&server.process.out(), "administrator token: ").expect("told");
        assert!(told.starts_with("none"), "a later start: {told}");
        server.terminate().with(0);
        // as in a folder that a backup was restored into
        std::fs::remove_file(home.path("data/instance")).expect("removed");
        let server = launch.start();
        assert!(server_made_one(&server.process.out()), "{}", server.process.out());
        assert_ne!(std::fs::read_to_string(&server.token_file).expect("a token"), secret);
        assert_eq!(server.json(&["me"])["role"], "admin");
        server.terminate().with(0);
    }
    home.file("data/admin.token", &other);
    std::fs::remove_file(home.path("data/instance")).expect("removed");
    let server = launch.start();
    assert!(!server_made_one(&server.process.out()), "{}", server.process.out());
    assert_eq!(server.json(&["me"])["name"], "other");
}
