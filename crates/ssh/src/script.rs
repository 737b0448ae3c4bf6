//! The scripts that a host runs, made from those in `sh/` and from values that no shell gets to interpret.
//!
//! A script travels on the standard input of `/bin/sh -s`: it is in no process list. It is one compound command, so
//! that a shell which gets only the beginning of it does nothing at all.

use domain::secret::Secret;
use domain::stage::FailureClass;
use provider::{Command, ProviderError, ProviderResult};
use zeroize::Zeroizing;

const COMMON: &str = include_str!("sh/common.sh");
const RECORD: &str = include_str!("sh/record.sh");

/// What a command is said to have ended with when its host went down before it ended, or when its recorder was
/// killed: nobody knows what it would have been. The output says so, too.
pub const INTERRUPTED_STATUS: i32 = 255;
/// Of one stream of one command; the rest is read and dropped, and the place is marked.
pub const RECORDED_MAX_BYTES: u64 = 8 << 20;
/// Pieces of one stream, each of what was there to be read at a time: keeps the index as bounded as the output.
const RECORDED_MAX_PIECES: u32 = 262_144;
/// Of output in one answer to a poll, give or take one piece of at most 64 KiB.
pub(crate) const PAGE_BYTES: u64 = 256 << 10;
const PAGE_LINES: u32 = 1000;
/// Arguments, environment and a script together: below what a kernel takes.
const COMMAND_MAX_BYTES: usize = 256 << 10;
/// One argument: a kernel takes 128 KiB.
const WORD_MAX_BYTES: usize = 100 << 10;
/// Fits into a pipe, so that nothing waits for a command that never reads it.
const INPUT_MAX_BYTES: usize = 32 << 10;
const KEY_MAX: usize = 200;
/// Far beyond any index; a shell counts no further than 2^63.
const OFFSET_MAX: u64 = 1 << 40;

/// The text of a script; it may hold secrets.
pub(crate) type Script = Zeroizing<String>;

fn invalid(message: impl Into<String>) -> ProviderError {
    ProviderError::refused(FailureClass::InvalidInput, message)
}

/// One word for the shell, whatever is in it.
fn quoted(text: &str) -> Zeroizing<String> {
    let mut word = Zeroizing::new(String::with_capacity(text.len() + 2));
    word.push('\'');
    let mut parts = text.split('\'');
    word.push_str(parts.next().unwrap_or_default());
    for part in parts {
        word.push_str("'\\''");
        word.push_str(part);
    }
    word.push('\'');
    word
}

fn whole(parts: &[&str]) -> Script {
    let length: usize = parts.iter().map(|part| part.len() + 1).sum();
    let mut script = Zeroizing::new(String::with_capacity(length + COMMON.len() + 64));
    script.push_str("{\n");
    script.push_str(COMMON);
    for part in parts {
        script.push_str(part);
        script.push('\n');
    }
    // what the shell itself says goes nowhere; its answers are lines of their own
    script.push_str("exit 0\n} 2>/dev/null\n");
    script
}

fn checked_key(key: &str) -> ProviderResult<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let fine = !key.is_empty() && key.len() <= KEY_MAX && !key.starts_with(['.', '-']) && key.chars().all(plain);
    if fine { Ok(format!("key='{key}'")) } else { Err(invalid(format!("{key:?} cannot be the name of a recording"))) }
}

fn name_of_environment(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(plain)
}

/// The command as a script that ends in it, and the script it stands for, if it is one.
fn body(command: &Command) -> ProviderResult<(Zeroizing<String>, Option<&str>)> {
    let words = || std::iter::once(&command.command).chain(&command.args);
    let all = words().chain(command.environment.values()).map(String::len).sum::<usize>();
    if all > COMMAND_MAX_BYTES {
        return Err(invalid(format!("the command has {all} bytes, at most {COMMAND_MAX_BYTES} are possible")));
    }
    if words().chain(command.environment.values()).any(|text| text.contains('\0')) {
        return Err(invalid("a command, its arguments and its environment cannot hold a NUL"));
    }
    if command.args.iter().any(|word| word.len() > WORD_MAX_BYTES) {
        return Err(invalid(format!("an argument is longer than {WORD_MAX_BYTES} bytes")));
    }
    let mut text = Zeroizing::new(String::from("rm -f \"$0\"\n"));
    for (name, value) in &command.environment {
        if !name_of_environment(name) {
            return Err(invalid(format!("{name:?} cannot be the name of an environment variable")));
        }
        let value = quoted(value);
        text.push_str("export ");
        text.push_str(name);
        text.push('=');
        text.push_str(&value);
        text.push('\n');
    }
    let script = command.command.starts_with("#!").then_some(command.command.as_str());
    text.push_str("exec ");
    match script {
        Some(_) => text.push_str("\"${0%/*}/script\""),
        None if command.command.is_empty() || command.command.starts_with('-') => {
            return Err(invalid(format!("{:?} cannot be the name of a program", command.command)));
        }
        None => text.push_str(&quoted(&command.command)),
    }
    for word in &command.args {
        text.push(' ');
        text.push_str(&quoted(word));
    }
    text.push('\n');
    Ok((text, script))
}

/// A function that prints the input, which is in no process list: `printf` is a part of the shell.
fn feed(input: Option<&Secret>) -> ProviderResult<Zeroizing<String>> {
    let text = input.map_or("", Secret::reveal);
    if text.len() > INPUT_MAX_BYTES {
        return Err(invalid(format!("the input has {} bytes, at most {INPUT_MAX_BYTES} are possible", text.len())));
    }
    if text.contains('\0') {
        return Err(invalid("the input cannot hold a NUL"));
    }
    let mut function = Zeroizing::new(String::from("feed() { printf '%s' "));
    function.push_str(&quoted(text));
    function.push_str("; }");
    Ok(function)
}

fn assign(name: &str, value: &str) -> Zeroizing<String> {
    let mut line = Zeroizing::new(format!("{name}="));
    line.push_str(&quoted(value));
    line
}

pub(crate) fn start(command: &Command, key: &str, input: Option<&Secret>) -> ProviderResult<Script> {
    let (body, script) = body(command)?;
    let limits = format!("max={RECORDED_MAX_BYTES} most={RECORDED_MAX_PIECES}");
    Ok(whole(&[
        &checked_key(key)?,
        &assign("body", &body),
        &assign("script", script.unwrap_or_default()),
        &assign("record", RECORD),
        &limits,
        &feed(input)?,
        include_str!("sh/start.sh"),
    ]))
}

pub(crate) fn poll(key: &str, offset: u64) -> ProviderResult<Script> {
    let page = format!("offset={} page={PAGE_BYTES} lines={PAGE_LINES}", offset.min(OFFSET_MAX));
    Ok(whole(&[&checked_key(key)?, &page, include_str!("sh/poll.sh")]))
}

pub(crate) fn kill(key: &str) -> ProviderResult<Script> {
    Ok(whole(&[&checked_key(key)?, include_str!("sh/kill.sh")]))
}

pub(crate) fn identity() -> Script {
    whole(&[include_str!("sh/identity.sh")])
}

pub(crate) fn reboot() -> Script {
    whole(&[include_str!("sh/reboot.sh")])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn command(command: &str, args: &[&str], environment: &[(&str, &str)]) -> Command {
        let environment =
            environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>();
        Command { command: command.into(), args: args.iter().map(|a| (*a).to_owned()).collect(), environment }
    }

    #[test]
    fn what_cannot_be_passed_on_is_refused() {
        for bad in ["", "-c", "a\0b"] {
            assert!(start(&command(bad, &[], &[]), "k", None).is_err(), "{bad:?}");
        }
        for bad in ["", "A B", "1A", "A=B", "A;B", "Ä", "A\n"] {
            assert!(start(&command("true", &[], &[(bad, "")]), "k", None).is_err(), "{bad:?}");
        }
        for bad in ["", "../x", "a/b", ".x", "-x", "a b", "a'b", "a\n", &"x".repeat(201)] {
            assert!(kill(bad).is_err(), "{bad:?}");
        }
        assert!(start(&command("true", &["a\0"], &[]), "k", None).is_err());
        assert!(start(&command("true", &[], &[]), "k", Some(&Secret::new("x".repeat(40_000)))).is_err());
    }

    #[test]
    fn quotes_end_nothing() {
        assert_eq!(quoted("it's").as_str(), r"'it'\''s'");
        assert_eq!(quoted("$(x)`y`\n\"\\").as_str(), "'$(x)`y`\n\"\\'");
    }
}
