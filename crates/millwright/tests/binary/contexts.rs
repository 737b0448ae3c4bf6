//! Several servers by name: the contexts file, who wins over it, and what it refuses.

use crate::process::{program, run};
use crate::server::{Home, Server};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

const FILE: &str = "config/millwright/contexts.toml";

fn file(home: &Home) -> PathBuf {
    home.path(FILE)
}

/// A context for a server, by the token file that the server wrote.
fn set(home: &Home, name: &str, server: &Server) {
    let token_file = server.token_file.display().to_string();
    home.run(&["context", "set", name, "--server", &server.url, "--token-file", &token_file]).with(0);
}

#[test]
fn a_server_with_a_name_is_called_by_it() {
    let home = Home::new();
    let (one, two) =
        (home.launch("one").with(&["--sim", "1"]).start(), home.launch("two").with(&["--sim", "2"]).start());
    set(&home, "one", &one);
    set(&home, "two", &two);
    let machines =
        |words: &[&str]| home.run(&[words, &["machine", "list", "-o", "name"]].concat()).with(0).out.lines().count();
    assert_eq!(machines(&[]), 1, "the first one is the current one");
    assert_eq!(machines(&["--context", "two"]), 2);
    home.run(&["context", "use", "two"]).with(0);
    assert_eq!(machines(&[]), 2);
    let by_environment = |name: &str, value: &str| {
        let mut command = program(&home.path(""));
        command.args(["machine", "list", "-o", "name"]).env(name, value);
        run(&mut command)
    };
    assert_eq!(by_environment("MILLWRIGHT_CONTEXT", "one").with(0).out.lines().count(), 1);
    // the address of the environment wins, and the token of the context is not sent there
    by_environment("MILLWRIGHT_SERVER", &one.url).with(5).saying(&format!("is for {} only", two.url));
    // a context that was asked for on the command line goes over the environment
    let mut command = program(&home.path(""));
    command.args(["machine", "list", "-o", "name", "--context", "two"]).env("MILLWRIGHT_SERVER", &one.url);
    assert_eq!(run(&mut command).with(0).out.lines().count(), 2);

    let listed: serde_json::Value =
        serde_json::from_str(&home.run(&["context", "list", "-o", "json"]).with(0).out).expect("JSON");
    assert_eq!(listed["contexts"][1]["name"], "two");
    assert_eq!(listed["contexts"][1]["current"], true);
    home.run(&["context", "remove", "two"]).with(0).saying("no context is current");
    assert_eq!(home.run(&["context", "list", "-o", "name"]).with(0).out, "one\n");
    home.run(&["machine", "list", "--context", "two"]).with(3).saying("allowed: one");
}

#[test]
fn a_token_in_the_file_is_for_its_owner_alone_and_is_never_shown() {
    let home = Home::new();
    let server = home.launch("data").with(&["--sim", "1"]).start();
    let secret = std::fs::read_to_string(&server.token_file).expect("a token");
    let mut command = program(&home.path(""));
    command.args(["context", "set", "lab", "--server", &server.url, "--token-stdin"]);
    let set = command.stdin(std::fs::File::open(&server.token_file).expect("a token")).output().expect("runs");
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    let mode = std::fs::metadata(file(&home)).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert_eq!(home.run(&["machine", "list", "-o", "name"]).with(0).out, "sim-0001\n");
    for words in
        [&["context", "list"][..], &["context", "show"], &["context", "show", "lab", "-o", "json"], &["doctor"]]
    {
        let ended = home.run(words);
        assert!(!ended.out.contains(secret.trim()) && !ended.err.contains(secret.trim()), "{words:?}");
    }
    std::fs::set_permissions(file(&home), std::fs::Permissions::from_mode(0o644)).expect("set");
    let refused = home.run(&["machine", "list"]).with(2).saying("others can read it");
    assert!(refused.err.contains("chmod 600") && refused.err.contains(FILE), "{}", refused.err);
}

#[test]
fn mistakes_in_the_file_are_told_by_file_and_line() {
    let home = Home::new();
    home.file(FILE, "current = 'lab'\n\n[contexts.lab]\nserver = 'http://h:1'\nsevrer = 'x'\n");
    let told = home.run(&["machine", "list"]).with(2).saying("contexts.toml, line 5");
    assert!(told.err.contains("sevrer"), "{}", told.err);
    // who has said everything needs no file
    home.run(&["machine", "list", "--server", "127.0.0.1:1", "--token", "t"]).with(6);
    // and it can be elsewhere
    let elsewhere = home
        .file("elsewhere.toml", "current = 'x'\n[contexts.x]\nserver = 'http://127.0.0.1:1'\ntoken_file = 'x.token'\n");
    home.file("x.token", "mwt_x");
    let mut command = program(&home.path(""));
    command.args(["machine", "list"]).env("MILLWRIGHT_CONTEXTS", elsewhere);
    run(&mut command).with(6).saying("127.0.0.1:1");
}

#[test]
fn what_cannot_work_is_not_stored() {
    let home = Home::new();
    home.run(&["context", "set", "lab"]).with(2).saying("--server");
    home.run(&["context", "set", "a/b", "--server", "http://h:1"]).with(2).saying("letters");
    home.run(&["context", "set", "lab", "--server", "ftp://h"]).with(2).saying("https");
    home.run(&["context", "set", "lab", "--server", "http://h:1", "--token-file", "nowhere"]).with(2).saying("nowhere");
    home.run(&["context", "set", "lab", "--server", "http://h:1", "--token", "t"]).with(2).saying("--token-stdin");
    let junk = home.file("junk.pem", "junk").display().to_string();
    home.run(&["context", "set", "lab", "--server", "https://h:1", "--ca-file", &junk]).with(2).saying("junk.pem");
    home.run(&["context", "use", "lab"]).with(3).saying("context set lab");
    assert!(!file(&home).exists(), "nothing was written");
}
