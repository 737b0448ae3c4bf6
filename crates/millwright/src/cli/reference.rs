//! The reference page of the command line, `docs/cli.md`, written from the grammar. A test keeps it true.

use clap::{Arg, ArgAction, Command};
use std::fmt::Write as _;

const OPENING: &str = "# The command line

Written from the grammar itself: `UPDATE_GOLDEN=1 cargo test -p millwright --bin millwright reference`.

Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 refused (conflict or precondition), 5 unauthenticated or
forbidden, 6 unreachable. Errors go to stderr; with `-o json` as one object
`{\"error\":{\"code\",\"reason\",\"message\",\"allowed\",\"hint\"}}`. Colour only on a terminal, and not with `NO_COLOR`.

";

/// The whole page.
pub fn markdown(mut grammar: Command) -> String {
    grammar.build();
    let mut page = OPENING.to_owned();
    page.push_str("## Options of every client command\n\n");
    let global: Vec<&Arg> = grammar.get_arguments().filter(|arg| arg.is_global_set() && !is_built_in(arg)).collect();
    arguments(&mut page, &global);
    command(&mut page, &grammar, &[]);
    // one empty line between things, none at the end
    format!("{}\n", page.trim_end())
}

fn is_built_in(arg: &Arg) -> bool {
    matches!(arg.get_id().as_str(), "help" | "version")
}

fn command(page: &mut String, command_: &Command, above: &[&str]) {
    let path = [above, &[command_.get_name()]].concat();
    let subcommands: Vec<&Command> =
        command_.get_subcommands().filter(|sub| sub.get_name() != "help" && !sub.is_hide_set()).collect();
    let about = command_.get_about().map(ToString::to_string).unwrap_or_default();
    writeln!(page, "{} `{}`\n\n{about}.\n", "#".repeat((path.len() + 1).min(4)), path.join(" ")).ok();
    let aliases: Vec<&str> = command_.get_visible_aliases().collect();
    if !aliases.is_empty() {
        writeln!(page, "Also: `{}`.\n", aliases.join("`, `")).ok();
    }
    if subcommands.is_empty() {
        let usage = command_.clone().render_usage().to_string();
        writeln!(page, "```text\n{}\n```\n", usage.trim_start_matches("Usage: ").trim()).ok();
        let own: Vec<&Arg> = command_.get_arguments().filter(|arg| !arg.is_global_set() && !is_built_in(arg)).collect();
        arguments(page, &own);
    } else {
        for sub in &subcommands {
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            let anchor = [&path[..], &[sub.get_name()]].concat().join("-");
            writeln!(page, "- [`{}`](#{anchor}): {about}", sub.get_name()).ok();
        }
        page.push('\n');
    }
    if let Some(after) = command_.get_after_help() {
        writeln!(page, "```text\n{}\n```\n", after.to_string().trim_end()).ok();
    }
    for sub in subcommands {
        command(page, sub, &path);
    }
}

fn arguments(page: &mut String, list: &[&Arg]) {
    for arg in list {
        let mut name = match (arg.get_short(), arg.get_long()) {
            (Some(short), Some(long)) => format!("-{short}, --{long}"),
            (None, Some(long)) => format!("--{long}"),
            (Some(short), None) => format!("-{short}"),
            (None, None) => String::new(),
        };
        let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
        if takes_value {
            let value = arg.get_value_names().and_then(|names| names.first()).map_or("VALUE", |name| name.as_str());
            name = if name.is_empty() { value.to_owned() } else { format!("{name} {value}") };
        }
        let help = arg
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        write!(page, "- `{name}`: {help}").ok();
        let values: Vec<String> = arg.get_possible_values().iter().map(|v| v.get_name().to_owned()).collect();
        if takes_value && !values.is_empty() {
            write!(page, " (one of `{}`)", values.join("`, `")).ok();
        }
        let defaults: Vec<String> = arg.get_default_values().iter().map(|v| v.to_string_lossy().into_owned()).collect();
        if takes_value && !defaults.is_empty() && !arg.is_hide_default_value_set() {
            write!(page, " [default: {}]", defaults.join(", ")).ok();
        }
        page.push('\n');
    }
    if !list.is_empty() {
        page.push('\n');
    }
}
