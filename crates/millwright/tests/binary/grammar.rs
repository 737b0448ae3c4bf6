//! What is made from the grammar: completions that a shell can read, a manual page for each command, and
//! words for those who mistype.

use crate::server::Home;
use std::collections::BTreeSet;
use std::process::Command;

#[test]
fn completions_are_scripts_that_their_shells_can_read() {
    let home = Home::new();
    for (shell, check) in [
        ("bash", Some(["bash", "-n"])),
        ("zsh", Some(["zsh", "-n"])),
        ("fish", Some(["fish", "-n"])),
        ("elvish", None),
        ("powershell", None),
    ] {
        let script = home.run(&["completion", shell]).with(0).out;
        assert!(script.contains("millwright") && script.contains("token"), "{shell}");
        let path = home.file(&format!("completion.{shell}"), &script);
        // where the shell is not installed, nobody can be asked
        if let Some([program, flag]) = check
            && let Ok(read) = Command::new(program).arg(flag).arg(&path).output()
        {
            assert!(read.status.success(), "{shell}: {}", String::from_utf8_lossy(&read.stderr));
        }
    }
    // offered words come from the grammar, values included
    let script = home.run(&["completion", "bash"]).with(0).out;
    assert!(script.contains("NET_RECONFIG") && script.contains("MAINTENANCE"), "values are completed");
    home.run(&["completion", "cobol"]).with(2).saying("bash");
}

#[test]
fn every_command_has_a_manual_page() {
    let home = Home::new();
    let told = home.run(&["man", "--out", "pages"]).with(0).out;
    let pages: BTreeSet<String> = std::fs::read_dir(home.path("pages"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    for name in [
        "millwright",
        "millwright-serve",
        "millwright-run",
        "millwright-run-start",
        "millwright-token-create",
        "millwright-context-set",
        "millwright-doctor",
        "millwright-why",
    ] {
        assert!(pages.contains(&format!("{name}.1")), "{name} is not among {pages:?}");
    }
    assert!(told.starts_with(&format!("{} pages", pages.len())), "{told}");
    let page = std::fs::read_to_string(home.path("pages/millwright-run-start.1")).expect("a page");
    assert!(page.contains("\\-\\-dry\\-run") && page.contains("Examples"), "{page}");
    assert!(home.run(&["man"]).with(0).out.starts_with(".ie"), "the main page");
}

#[test]
fn a_slip_of_the_hand_is_met_with_what_was_meant() {
    let home = Home::new();
    home.run(&["machne", "list"]).with(2).saying("machine");
    home.run(&["run", "strat", "m-1"]).with(2).saying("start");
    home.run(&["machine", "list", "--fliter", "x"]).with(2).saying("--filter");
    home.run(&["run", "start", "m-1", "--type", "DANCE"]).with(2).saying("NET_RECONFIG");
    home.run(&["machine", "phase", "m-1", "ASLEEP"]).with(2).saying("MAINTENANCE");
    home.run(&["token", "create", "ci", "--role", "king"]).with(2).saying("operator");
    home.run(&["run", "wait", "run_1", "--for", "lunch"]).with(2).saying("step=NAME");
    let nothing = home.run(&["run", "start", "m-1"]).with(2).saying("--type");
    assert!(nothing.err.contains("allowed: REPAVE, RMA"), "{}", nothing.err);
}

#[test]
fn with_json_an_error_is_one_object_on_stderr() {
    let home = Home::new();
    let error = |words: &[&str], code: i32| {
        let ended = home.run(words).with(code);
        assert_eq!(ended.out, "");
        assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
        let value: serde_json::Value = serde_json::from_str(&ended.err).expect("JSON");
        for key in ["code", "reason", "message", "allowed", "hint"] {
            assert!(value["error"].get(key).is_some(), "{key} is missing: {value}");
        }
        value["error"].clone()
    };
    let away = error(&["machine", "list", "-o", "json", "--server", "127.0.0.1:1", "--token", "t"], 6);
    assert_eq!(away["code"], "UNAVAILABLE");
    assert!(away["hint"].as_str().is_some_and(|hint| hint.contains("millwright serve")), "{away}");
    let typed = error(&["run", "start", "m-1", "--type", "DANCE", "-o", "json"], 2);
    assert_eq!(typed["allowed"][0], "REPAVE", "{typed}");
    let untold = error(&["run", "start", "m-1", "-ojson"], 2);
    assert_eq!(untold["allowed"].as_array().map(Vec::len), Some(5), "{untold}");
    assert_eq!(error(&["machine", "list", "-o", "json"], 5)["code"], "UNAUTHENTICATED");
    error(&["backup", "x.db", "--data", "nowhere", "-o", "json"], 1);
}

#[test]
fn no_colour_and_no_control_characters_where_nobody_looks() {
    let home = Home::new();
    for words in [&["--help"][..], &["run", "start", "--help"], &["machne"], &["doctor"]] {
        let ended = home.run(words);
        assert!(!ended.out.contains('\u{1b}') && !ended.err.contains('\u{1b}'), "{words:?}");
    }
}
