//! `millwright credential` and `millwright cluster` against a server, with its key where it is made, lost, replaced and
//! found again.

use crate::process::program;
use crate::server::{Home, Server};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use testkit::canary::plant;

fn set(server: &Server, home: &Home, name: &str) {
    let file = home.file(&format!("{name}.key"), &plant("bmc")).display().to_string();
    server.ok(&["credential", "set", name, "--kind", "bmc", "--username", "admin", "--password-file", &file]);
}

fn names(server: &Server, noun: &str) -> Vec<String> {
    server.ok(&[noun, "list", "-o", "name"]).lines().map(str::to_owned).collect()
}

#[test]
fn credentials_are_set_listed_shown_and_deleted() {
    let home = Home::new();
    let server = home.launch("data").start();
    let own = home.path("data/secrets.key");
    assert!(!own.exists(), "no key before there is something to seal");
    set(&server, &home, "rack-1");
    assert_eq!(std::fs::metadata(&own).expect("made").permissions().mode() & 0o777, 0o600);
    let shown = server.ok(&["credential", "show", "rack-1"]);
    assert!(shown.contains("Kind") && shown.contains("bmc") && shown.contains("by admin"), "{shown}");
    server.run(&["credential", "show", "none"]).with(3).saying("no credential");
    let text = format!("clusters: [{{cluster: {{server: x}}}}]\nusers: [{{user: {{token: {}}}}}]", plant("cluster"));
    let file = home.file("prod.key", &text).display().to_string();
    server.ok(&["cluster", "add", "prod", "--kubeconfig", &file]);
    assert_eq!(
        (names(&server, "credential"), names(&server, "cluster")),
        (vec!["prod".into(), "rack-1".into()], vec!["prod".into()])
    );
    let password = home.path("rack-1.key").display().to_string();
    server.run(&["cluster", "remove", "rack-1"]).with(4).saying("no cluster");
    server
        .run(&["credential", "set", "prod", "--kind", "bmc", "--username", "u", "--password-file", &password])
        .with(2)
        .saying("of kind kubeconfig");
    server.ok(&["cluster", "remove", "prod"]);
    server.ok(&["credential", "delete", "rack-1", "--dry-run"]);
    assert_eq!(names(&server, "credential"), ["rack-1"]);
    server.ok(&["credential", "delete", "rack-1"]);
    assert!(names(&server, "credential").is_empty());
    server.terminate().with(0);
}

// a password by a pipe; and nobody there to be asked
#[test]
fn a_password_comes_from_stdin_or_is_not_asked_for_in_a_script() {
    let home = Home::new();
    let server = home.launch("data").start();
    let words = ["credential", "set", "rack-1", "--kind", "bmc", "--username", "admin"];
    server.run(&words).with(2).saying("--password-file or --password-stdin");
    let mut command: Command = program(&home.path(""));
    command.args(words).args(["--password-stdin", "--server", &server.url, "--token-file"]).arg(&server.token_file);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    writeln!(child.stdin.take().expect("piped"), "{}", plant("stdin")).expect("written");
    let ended = child.wait_with_output().expect("ends");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(names(&server, "credential"), ["rack-1"]);
    server.terminate().with(0);
}

// a key is lost, found again, and replaced: the server starts each time, and says what it needs
#[test]
fn a_key_is_lost_found_and_replaced() {
    let home = Home::new();
    let launch = home.launch("data");
    let server = launch.start();
    set(&server, &home, "rack-1");
    server.terminate().with(0);
    let (own, aside) = (home.path("data/secrets.key"), home.path("aside.key"));
    let doctor = |more: &[&str]| {
        let data = launch.data.display().to_string();
        home.run(&[&["doctor", "--data", &data], more].concat()).out
    };
    assert!(doctor(&[]).contains("1 stored credentials open"), "{}", doctor(&[]));
    std::fs::rename(&own, &aside).expect("lost");
    assert!(doctor(&[]).contains("1 credentials are sealed under key"), "{}", doctor(&[]));
    let server = launch.start();
    let file = home.file("other.key", &plant("bmc")).display().to_string();
    let words = ["credential", "set", "rack-2", "--kind", "bmc", "--username", "admin", "--password-file", &file];
    server.run(&words).with(4).saying("put secrets.key back");
    assert!(!own.exists(), "and no other was made in its place");
    assert_eq!(names(&server, "credential"), ["rack-1"], "all else works");
    server.terminate().with(0);
    // named as an earlier one: a new one is made, and everything sealed under it
    let config = format!("[secrets]\nprevious_key_files = ['{}']\n", aside.display());
    let server = home.launch("data").config(&config).start();
    server.ok(&words);
    let rotated = server.json(&["credential", "rotate-key"]);
    assert_eq!((rotated["resealed"].as_str(), rotated["sealed"].as_str()), (Some("1"), Some("2")), "{rotated}");
    server.terminate().with(0);
    let server = launch.start();
    let again = server.json(&["credential", "rotate-key"]);
    assert_eq!(
        (again["resealed"].as_str(), again["sealed"].as_str(), again["left"].as_array().map(Vec::len)),
        (Some("0"), Some("2"), Some(0))
    );
    server.terminate().with(0);
    // a backup in another folder holds no key: there it cannot be opened, and that is said
    let (backup, copy) = (home.path("fleet.backup").display().to_string(), home.path("copy").display().to_string());
    home.run(&["backup", "--data", &launch.data.display().to_string(), &backup]).with(0);
    home.run(&["restore", "--data", &copy, &backup]).with(0);
    let server = home.launch("copy").start();
    let ended = server.run(&["credential", "rotate-key"]).with(4);
    assert!(ended.err.contains("put secrets.key back"), "{}", ended.err);
    server.terminate().with(0);
}

// a shared database has no key of its own: it is said when one is needed, and nothing else is the worse for it
#[test]
fn a_shared_database_needs_a_key_that_was_given() {
    let home = Home::new();
    let settings = format!("[database]\nurl = '{}'\n", testkit::postgres::url(&testkit::postgres::database()));
    let server = home.launch("data").config(&settings).start();
    let file = home.file("bmc.key", &plant("bmc")).display().to_string();
    let words = ["credential", "set", "rack-1", "--kind", "bmc", "--username", "admin", "--password-file", &file];
    server.run(&words).with(4).saying("must share one");
    server.ok(&["credential", "list"]);
    server.ok(&["machine", "register", "m-1"]);
    assert!(!home.path("data/secrets.key").exists());
    server.terminate().with(0);
    let key = home.file("shared.key", service::SecretKey::generate().expect("randomness").1.reveal());
    let given = format!("{settings}[secrets]\nkey_command = ['cat', '{}']\n", key.display());
    let server = home.launch("data").config(&given).start();
    server.ok(&words);
    server.terminate().with(0);
}
