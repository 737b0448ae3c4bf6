//! Tokens, `me`, and what a role lets through, as a script meets them.

use crate::fleet::{list, text};
use crate::server::{Client, Home};
use std::os::unix::fs::PermissionsExt as _;

/// Makes a token and answers with a client that has it.
fn client(home: &Home, server: &Client, name: &str, role: &str) -> Client {
    let secret = server.ok(&["token", "create", name, "--role", role]);
    server.with_token(&home.file(&format!("{name}.token"), &secret))
}

fn id_of(server: &Client, name: &str) -> String {
    server.ok(&["token", "list", "--filter", &format!("name={name}"), "-o", "name"]).trim().to_owned()
}

#[test]
fn a_secret_stands_alone_on_stdout_and_works() {
    let home = Home::new();
    let server = home.launch("data").with(&["--sim", "1"]).start();
    let made =
        server.run(&["token", "create", "ci", "--role", "viewer", "--ttl", "30d"]).with(0).saying("shown this once");
    assert_eq!(made.out.lines().count(), 1, "{}", made.out);
    let secret = made.out.trim();
    assert!(!made.err.contains(secret), "{}", made.err);
    let viewer = server.with_token(&home.file("ci.token", secret));
    assert_eq!(viewer.ok(&["machine", "list", "-o", "name"]), "sim-0001\n");
    let me = viewer.json(&["me"]);
    assert_eq!((text(&me, "name"), text(&me, "role")), ("ci", "viewer"));
    assert_eq!(text(&me, "server_version"), env!("CARGO_PKG_VERSION"));
    viewer.run(&["machine", "phase", "sim-0001", "READY"]).with(5);
    viewer.run(&["token", "create", "mine", "--role", "admin"]).with(5);

    let id = id_of(&server, "ci");
    for words in [&["token", "list", "-o", "wide"][..], &["token", "list", "-o", "json"], &["token", "show", &id]] {
        assert!(!server.ok(words).contains(secret), "{words:?} shows the secret");
    }
    assert!(server.ok(&["token", "show", &id]).contains("viewer"));
    server.run(&["token", "show", "tok_none"]).with(3).saying("token list");
}

#[test]
fn a_secret_goes_into_a_file_when_that_is_asked_for() {
    let home = Home::new();
    let server = home.launch("data").start();
    let path = home.path("op.token");
    let file = path.display().to_string();
    let made =
        server.run(&["token", "create", "op", "--role", "operator", "--write", &file]).with(0).saying("op.token");
    assert_eq!(made.out, "", "the secret is in the file alone");
    assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    assert_eq!(text(&server.with_token(&path).json(&["me"]), "role"), "operator");
    // what is there is not written over, and no token is made for nothing
    let before = list(&server.json(&["token", "list"]), "tokens").len();
    server.run(&["token", "create", "op2", "--role", "operator", "--write", &file]).with(2).saying("op.token");
    assert_eq!(list(&server.json(&["token", "list"]), "tokens").len(), before);
    let whole = server.json(&["token", "create", "whole", "--role", "viewer"]);
    assert!(!text(&whole, "secret").is_empty() && text(&whole["token"], "name") == "whole", "the whole answer");
}

#[test]
fn a_revoked_token_is_refused_and_nobody_locks_himself_out() {
    let home = Home::new();
    let server = home.launch("data").start();
    let operator = client(&home, &server, "op", "admin");
    let id = text(&operator.json(&["me"]), "token_id").to_owned();
    operator.run(&["token", "revoke", &id]).with(4).saying("TOKEN_IN_USE").saying("--force");
    operator.ok(&["machine", "list"]);
    server.ok(&["token", "revoke", &id]);
    operator.run(&["machine", "list"]).with(5);
    assert_eq!(text(&server.json(&["token", "show", &id]), "state"), "revoked");

    let other = client(&home, &server, "other", "admin");
    let id = text(&other.json(&["me"]), "token_id").to_owned();
    other.ok(&["token", "revoke", &id, "--force"]);
    other.run(&["me"]).with(5);
}

#[test]
fn the_doctor_tells_role_and_version() {
    let home = Home::new();
    let server = home.launch("data").start();
    let viewer = client(&home, &server, "look", "viewer");
    let told = viewer.ok(&["doctor", "--client"]);
    assert!(told.contains("takes the token: look, viewer") && told.contains("on both sides"), "{told}");
}

#[test]
fn a_token_tells_whose_machines_it_is_for_and_an_unset_variable_makes_none() {
    let home = Home::new();
    let server = home.launch("data").start();
    let before = list(&server.json(&["token", "list"]), "tokens").len();
    for empty in ["", " "] {
        let refused = server.run(&["token", "create", "ci", "--role", "admin", "--customer", empty]).with(2);
        refused.saying("--customer").saying("leave --customer out for the whole fleet");
    }
    assert_eq!(list(&server.json(&["token", "list"]), "tokens").len(), before, "nothing was made");
    let create = |more: &[&str]| server.run(&[&["token", "create", "ci", "--role", "viewer"][..], more].concat());
    create(&[]).with(0).saying("viewer for the whole fleet, good until it is revoked");
    create(&["--customer", "acme"]).with(0).saying("viewer for customer acme, good until");
}
