//! Fuzzing of what the program reads for itself: configuration and environment, contexts, plan files, and the small
//! texts of the command line. `testkit::fuzz` says how it is run. Compiled for tests only.
//!
//! A secret that stands in a file stands in no complaint about that file: inputs plant one and errors are searched
//! for it, whole or in part.
#![allow(clippy::expect_used, clippy::panic)] // for tests only

use crate::config::Config;
use crate::{cli, serve};
use testkit::fuzz::{Fuzz, Verdict};

/// Stands in inputs where a secret would; errors must not repeat it.
const SECRET: &str = "hunter2hunter2";

/// A complaint without what differs from input to input, if it is fit to be shown.
fn complaint(text: &str) -> Verdict {
    if text.contains(SECRET) {
        return Err(format!("repeats the secret: {text}"));
    }
    if text.trim().is_empty() || text.len() > 2_000 {
        return Err(format!("says nothing, or too much ({} bytes): {text:.300}", text.len()));
    }
    let mut quoted = false;
    let plain = text.chars().filter_map(|c| match c {
        '"' | '\'' | '`' => {
            quoted = !quoted;
            Some('"')
        }
        _ if quoted => None,
        c if c.is_ascii_digit() => Some('#'),
        c => Some(c),
    });
    Ok(plain.take(90).collect())
}

/// Whether the secret stands only as the value of keys such as these.
fn is_value_of(text: &str, keys: impl Fn(&str) -> bool) -> bool {
    text.lines().filter(|line| line.contains(SECRET)).all(|line| {
        line.split_once('=').is_some_and(|(key, _)| !key.contains(SECRET) && keys(&key.trim().to_lowercase()))
    })
}

const CONFIG_WORDS: &[&str] = &[
    "[server]",
    "[database]",
    "[engine]",
    "[observe]",
    "[plans]",
    "[providers.sim]",
    "[shutdown]",
    "[limits]",
    "[log]",
    "[tls]",
    "[metrics]",
    "[telemetry]",
    "listen = ",
    "data = ",
    "url = ",
    "password = ",
    "password_file = ",
    "lease_seconds = ",
    "call_timeout_seconds = ",
    "workers = ",
    "destructive_per_rack_and_hour = ",
    "period_seconds = ",
    "stale_after_seconds = ",
    "concurrency = ",
    "kind = ",
    "seed = ",
    "active_runs = ",
    "calls_per_second = ",
    "burst = ",
    "level = ",
    "json = ",
    "cert = ",
    "key = ",
    "public = ",
    "otlp_endpoint = ",
    "\n===\n",
    "MILLWRIGHT_DATABASE__PASSWORD=",
    "MILLWRIGHT_DATABASE__URL=",
    "MILLWRIGHT_ENGINE__WORKERS=",
    "MILLWRIGHT_LOG__LEVEL=",
    "MILLWRIGHT_PROVIDERS__SIM__KIND=",
    "MILLWRIGHT___=",
    "'''",
    "\"\"\"",
    "[[",
    "]]",
    "{",
    "}",
    "a.b.c = 1",
    "1979-05-27T07:32:00Z",
    "inf",
];

// the text of the file, a line of ===, then NAME=VALUE
#[test]
fn config() {
    let example = include_str!("../../../deploy/millwright.toml").to_owned();
    let seeds = [
        example,
        format!("[database]\npassword = '{SECRET}'\nurl = 'postgres://u@h:5432/d'\n===\nMILLWRIGHT_ENGINE__WORKERS=7"),
        format!("[database]\npassword = {SECRET}\n"),
        format!("[database]\npassword = 12\nurl = 'postgres://u:{SECRET}@h/d'"),
        format!("[database.password]\nx = '{SECRET}'"),
        format!("database = '{SECRET}'"),
        format!("\n===\nMILLWRIGHT_DATABASE__PASSWORD={SECRET}\nMILLWRIGHT_DATABASE__URL=postgres://u@h/d"),
        format!("\n===\nMILLWRIGHT_DATABASE__PASSWORD__X={SECRET}"),
        format!("\n===\nMILLWRIGHT_DATABASE__URL=postgres://u:{SECRET}@h:x/d"),
        format!("\n===\nMILLWRIGHT_DATABASE__URL=host=h password={SECRET} port=x"),
        format!("[telemetry]\notlp_endpoint = 'https://u:{SECRET}@h:4317'"),
        "[engine]\nlease_seconds = 4\ncall_timeout_seconds = 2\n[log]\nlevel = 'info,h2=trace'".to_owned(),
        "[providers.a]\nkind = 'sim'\nseed = 1\n[shutdown]\nactive_runs = 'cancel'".to_owned(),
    ];
    Fuzz::new("config", module_path!()).seeds(seeds).words(CONFIG_WORDS).inputs(4_000).run(|| {
        let folder = tempfile::tempdir().expect("a folder");
        move |input| {
            let text = String::from_utf8_lossy(input).into_owned();
            let (file, environment) = text.split_once("\n===\n").unwrap_or((&text, ""));
            // under another key it is a word like others
            let hidden =
                is_value_of(&text, |key| ["password", "url", "otlp", "database"].iter().any(|k| key.contains(k)));
            let complaint = |e: &str| if hidden { complaint(e) } else { complaint(&e.replace(SECRET, "-")) };
            let pairs = environment.lines().filter_map(|l| l.split_once('='));
            let pairs: Vec<(String, String)> = pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
            let config = match Config::parse(file, "the configuration f.toml", pairs.into_iter()) {
                Ok(config) => config,
                Err(e) => return complaint(&e),
            };
            if format!("{:?}", config.database.password).contains(SECRET) {
                return Err(format!("shows the secret: {config:?}"));
            }
            match serve::database(&config.database, folder.path().join("x.db")) {
                Ok(_) => Ok(format!("taken {} {}", config.providers.len().min(3), config.database.url.is_empty())),
                Err(e) => complaint(&e),
            }
        }
    });
}

#[test]
fn contexts() {
    let seeds = [
        format!("current = 'prod'\n[contexts.prod]\nserver = 'https://h:7700'\ntoken = '{SECRET}'\nca_file = 'a.pem'"),
        "[contexts.a]\nserver = 'h'\ntoken_file = 'f'".to_owned(),
        format!("[contexts]\nprod = '{SECRET}'"),
        format!("contexts = '{SECRET}'"),
        format!("token = '{SECRET}'"),
        format!("[contexts.a]\nserver = 'h'\ntoken = {SECRET}"),
        format!("[contexts.a]\nserver = 'h'\ntoken_file = 'f'\ntoken = ['{SECRET}']"),
        format!("current = ['{SECRET}']"),
    ];
    let words = [
        "current = ",
        "[contexts.",
        "[contexts]",
        "server = ",
        "token = ",
        "token_file = ",
        "ca_file = ",
        "'",
        "\"",
        "]",
        "x",
        SECRET,
    ];
    Fuzz::new("contexts", module_path!()).seeds(seeds).words(words).inputs(4_000).run(|| {
        |input: &[u8]| {
            let text = String::from_utf8_lossy(input);
            match cli::fuzzed::contexts(&text) {
                Ok(again) if again => Ok("taken".to_owned()),
                Ok(_) => Err("reads not what it wrote".to_owned()),
                Err((line, why)) if line > text.matches('\n').count() + 1 => {
                    Err(format!("line {line} is not there: {why}"))
                }
                // the names that a person gave to contexts are told; the secret is none
                Err((_, why)) if is_value_of(&text, |key| key != "current") => complaint(&why),
                Err((_, why)) => complaint(&why.replace(SECRET, "-")),
            }
        }
    });
}

#[test]
fn plan_file() {
    let seeds = [
        r#"{"plan_id":"p-1","display_name":"R","steps":[{"name":"a","timeout_seconds":60,"max_retries":2,"netboot":{"mode":"PXE"}},{"name":"b","ssh":{"command":"echo","args":["a"],"environment":{"A":"1"}}}]}"#,
        "plan_id: p-1\ndisplay_name: Repave\nsteps:\n- {name: a, timeout_seconds: 60, netboot: {mode: PXE}}\n- name: b\n  max_retries: null\n  repave: {image: ubuntu-22.04}\n",
        "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nsteps: [*c, *c]\n",
        "plan_id: !!binary aGVsbG8=\nsteps: !x [1]\n? {a: b}\n: c\n",
        "--- a\n--- b\n",
    ];
    let words = [
        "plan_id: ",
        "steps:",
        "- name: ",
        "timeout_seconds: ",
        "max_retries: ",
        "ssh: {",
        "reboot: {mode: bmc}",
        "join: {}",
        "net: {parameters: {",
        "&a ",
        "*a",
        "<<: *a",
        "!!str ",
        "!!float ",
        "|\n ",
        ">-\n ",
        "---\n",
        "...\n",
        "? ",
        ": ",
        "- ",
        "{",
        "}",
        "[",
        "]",
        "\"steps\":[",
        "~",
        ".inf",
        "0o7",
        "\t",
    ];
    Fuzz::new("plan_file", module_path!()).seeds(seeds).words(words).inputs(4_000).run(|| {
        |input: &[u8]| {
            let Ok(text) = std::str::from_utf8(input) else { return Ok("no text".to_owned()) };
            let plan = match cli::fuzzed::plan(text) {
                Ok(Ok(plan)) => plan,
                Ok(Err(why)) => return Err(why),
                Err(e) => return complaint(&e),
            };
            match api::plan_from_proto(plan).and_then(|plan| plan.validate()) {
                Ok(()) => Ok("a plan".to_owned()),
                Err(e) => complaint(&e.message),
            }
        }
    });
}

#[test]
fn workflow_file() {
    let seeds = [
        r#"{"id":"w-1","name":"Debian","kernel":"vmlinuz","initrd":"initrd","cmdline":"quiet host=${hostname}","image":"debian.raw","image_sha256":null,"arch":"x86_64","boot_mode":"uefi","disk":"/dev/vda"}"#,
        "id: ubuntu\nname: Ubuntu, autoinstall\nkernel: http://h/vmlinuz\ninitrd: ubuntu-initrd\ncmdline: autoinstall ds=nocloud;s=${answers_url}\ntemplate: |\n  #cloud-config\n  hostname: ${hostname:yaml}\n",
        "id: w\nkernel: ../../etc/shadow\ncmdline: ${serial} ${mac:shell} ${nobody} $x\ndisk: serial:../x\n",
        "id: w\nkernel: k\ntemplate: >-\n  ${mac\nimage: http://h/i\nimage_sha256: 12\n",
        "id: &a w\nkernel: *a\nname: !!binary aGVsbG8=\ncreated_at: 2026-01-01T00:00:00Z\nversion: 3\n",
        "a: &a [x, x]\nb: &b [*a, *a]\ntemplate: [*b, *b]\n",
    ];
    let words = [
        "id: ",
        "kernel: ",
        "initrd: ",
        "cmdline: ",
        "image: ",
        "image_sha256: ",
        "arch: ",
        "boot_mode: ",
        "template: |\n  ",
        "disk: ",
        "${mac}",
        "${hostname:yaml}",
        "${serial}",
        "$$",
        "${",
        "http://",
        "..",
        "/dev/",
        "serial:",
        "&a ",
        "*a",
        "<<: *a",
        "!!str ",
        "|\n ",
        "---\n",
        "{",
        "}",
        "[",
        "~",
        "\t",
    ];
    Fuzz::new("workflow_file", module_path!()).seeds(seeds).words(words).inputs(4_000).run(|| {
        |input: &[u8]| {
            let Ok(text) = std::str::from_utf8(input) else { return Ok("no text".to_owned()) };
            match cli::fuzzed::workflow(text) {
                Ok(Ok(Ok(()))) => Ok("a workflow".to_owned()),
                Ok(Err(why)) => Err(why),
                // what was written is told again, and cut where it is shown
                Ok(Ok(Err(e))) => complaint(&domain::limits::short(&e)),
                Err(e) => complaint(&e),
            }
        }
    });
}

// what is typed: durations, pairs, goals, addresses, times to live; and a token in the place of each
#[test]
fn words() {
    let seeds = [
        "30s",
        "1h30m",
        "30d",
        "2w",
        "P1Y",
        "PT1S",
        "a=b",
        "step=repave:RUNNING",
        "SUCCEEDED",
        "https://h:7700",
        "http://[::1]:1/",
        "h",
        "0",
        "acme",
        "1d -2h",
        "-1s ago",
    ];
    let more = [
        "s", "m", "h", "d", "w", "y", "mo", "ns", "ago", "P", "T", "step=", ":", "terminal", "http://", "https://",
        "@", "/", "?", "[::1]", "xn--", "%", "e", ".",
    ];
    Fuzz::new("words", module_path!()).seeds(seeds).words(more).inputs(6_000).run(|| {
        |input: &[u8]| {
            let Ok(text) = std::str::from_utf8(input) else { return Ok("no text".to_owned()) };
            let mut shapes = Vec::new();
            for (name, read) in cli::fuzzed::words(text) {
                match read {
                    Ok(()) => shapes.push(name.to_owned()),
                    // what was typed is told again: bounded by what a command line can hold
                    Err(e) if e.len() > text.len() * 10 + 500 => return Err(format!("{name} says too much: {e:.300}")),
                    Err(_) => {}
                }
            }
            Ok(shapes.join(" "))
        }
    });
}
