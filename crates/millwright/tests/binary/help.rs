//! Every command explains itself.

use crate::server::Home;

/// The commands that a help text lists.
fn commands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    listed
        .take_while(|line| !line.is_empty())
        // what is indented deeper goes on from the line before
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_command_has_help() {
    let home = Home::new();
    let mut waiting: Vec<Vec<String>> = vec![vec![]];
    let mut seen = Vec::new();
    while let Some(path) = waiting.pop() {
        let words: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
        let help = home.run(&words).with(0).out;
        assert!(help.contains("Usage:") && help.lines().count() >= 4, "{words:?}:\n{help}");
        let leads_on = help.contains("\nCommands:");
        assert!(leads_on || help.contains("Example"), "{words:?} has no example:\n{help}");
        waiting.extend(commands(&help).into_iter().map(|name| [path.clone(), vec![name]].concat()));
        seen.push(path.join(" "));
    }
    for name in ["serve", "demo", "backup", "restore", "machine phase", "plan create", "run wait", "engine terminate"] {
        assert!(seen.iter().any(|s| s == name), "{name} is not among {seen:?}");
    }
    for name in ["doctor", "why", "me", "events", "audit", "token create", "context set", "completion", "man"] {
        assert!(seen.iter().any(|s| s == name), "{name} is not among {seen:?}");
    }
    for name in ["freeze", "unfreeze", "run logs", "run cancel", "machine register", "engine describe"] {
        assert!(seen.iter().any(|s| s == name), "{name} is not among {seen:?}");
    }
    assert!(home.run(&["--version"]).with(0).out.starts_with("millwright "));
}
