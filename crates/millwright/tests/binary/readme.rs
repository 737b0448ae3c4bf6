//! The README's tour, typed as it stands: every command of every `console` block is run, in one shell and in
//! order, and must print what the README shows. Ids, times and durations may differ; `…` stands for anything.

use crate::process::until;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use testkit::scratch::Watched;

/// One command and the lines shown below it.
struct Entry {
    command: String,
    shown: Vec<String>,
}

fn tour() -> Vec<Entry> {
    let text = include_str!("../../../../README.md");
    let mut entries: Vec<Entry> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            _ if !inside => {}
            _ => match line.strip_prefix("$ ") {
                Some(command) => entries.push(Entry { command: command.to_owned(), shown: Vec::new() }),
                None => entries.last_mut().expect("a command comes first").shown.push(line.to_owned()),
            },
        }
    }
    entries
}

/// A shell that is told one command after another. It ends with everything it started.
struct Shell {
    child: Child,
    lines: Receiver<String>,
    folder: Watched,
    port: u16,
}

impl Shell {
    fn start() -> Self {
        let folder = Watched::new();
        let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
        let mut command = Command::new("setsid");
        command.args(["bash", "--noprofile", "--norc"]).current_dir(folder.path());
        for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("MILLWRIGHT_")) {
            command.env_remove(name);
        }
        command
            .env("HOME", folder.path())
            .env("XDG_CONFIG_HOME", folder.path().join("config"))
            .env("COLUMNS", "140")
            // another server may listen where the README's does
            .env("MILLWRIGHT_SERVER__LISTEN", format!("127.0.0.1:{port}"))
            .env("MILLWRIGHT_SERVER", format!("http://127.0.0.1:{port}"))
            .env("MILLWRIGHT_LOG__LEVEL", "warn");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("bash and setsid are there");
        let mut stdin = child.stdin.take().expect("a pipe");
        // as at a prompt: aliases, jobs by number, errors among the rest
        stdin.write_all(b"exec 2>&1\nshopt -s expand_aliases\nset -m\n").expect("is told");
        child.stdin = Some(stdin);
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines, folder, port }
    }

    /// What a command prints until the prompt is back; `$?` stays what it was.
    fn run(&mut self, command: &str) -> Vec<String> {
        let binary = env!("CARGO_BIN_EXE_millwright");
        let command = command
            .replace("target/release/millwright", binary)
            .replace("127.0.0.1:7700", &format!("127.0.0.1:{}", self.port));
        let script = match command.contains("--wait") {
            // live progress needs a terminal
            true => format!("script -qec '{}' /dev/null < /dev/null", command.replacen("millwright", binary, 1)),
            false => command.clone(),
        };
        let script = format!("{script}\n__status=$?; echo __THE_PROMPT__; (exit $__status)\n");
        self.child.stdin.as_mut().expect("a pipe").write_all(script.as_bytes()).expect("is told");
        let mut said = Vec::new();
        until(&format!("the end of: {command}"), || {
            while let Ok(line) = self.lines.recv_timeout(Duration::from_millis(20)) {
                let line = self.as_shown(&line);
                if let Some(rest) = line.strip_suffix("__THE_PROMPT__") {
                    // what does not end its line has the prompt behind it
                    said.extend((!rest.is_empty()).then(|| rest.to_owned()));
                    return Some(());
                }
                said.push(line);
            }
            None
        });
        said
    }

    /// What comes later, from what runs in the background.
    fn more(&self) -> Option<String> {
        self.lines.recv_timeout(Duration::from_millis(50)).ok().map(|line| self.as_shown(&line))
    }

    fn as_shown(&self, line: &str) -> String {
        plain(line)
            .replace(&format!("127.0.0.1:{}", self.port), "127.0.0.1:7700")
            .replace(&*self.folder.path().to_string_lossy(), "~")
    }
}

/// The processes of a session, as the kernel lists them: a background job has a group of its own.
fn of_session(session: u32) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.map(|p| p.file_name().to_string_lossy().into_owned()).filter(|id| id.parse::<u32>().is_ok());
    ids.filter(|id| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // after the name, which may hold anything: state, parent, group, session
        let mut fields = stat.rsplit_once(')').map_or("", |f| f.1).split_whitespace();
        fields.nth(3) == Some(session.to_string().as_str())
    })
    .collect()
}

impl Drop for Shell {
    fn drop(&mut self) {
        // setsid made it the leader of a session of its own: all it started end with it
        let _ended = Command::new("kill").arg("-KILL").args(of_session(self.child.id())).status();
        let _reaped = self.child.wait();
    }
}

/// A line without what only a terminal understands.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line.chars().filter(|c| *c != '\r');
    while let Some(c) = rest.next() {
        if c == '\u{1b}' {
            // an escape sequence ends with its first letter
            let _sequence = rest.by_ref().find(char::is_ascii_alphabetic);
        } else {
            text.push(c);
        }
    }
    text
}

/// Words of which only the kind counts.
fn kind(word: &str) -> &str {
    let bare = word.trim_matches(|c: char| matches!(c, '(' | ')' | ',' | ';' | ':' | '"'));
    let id = |w: &str| {
        w.split_once('_').is_some_and(|(p, hex)| {
            ["run", "exe", "tok", "ses"].contains(&p) && hex.len() == 32 && hex.chars().all(|c| c.is_ascii_hexdigit())
        })
    };
    let time = |w: &str| w.len() >= 20 && w.as_bytes().get(10) == Some(&b'T') && w.contains('Z');
    let span = |w: &str| {
        let digits = w.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = &w[digits.len()..];
        !digits.is_empty()
            && ["ms", "s", "m", "h"].contains(&unit)
            && digits.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 'm' | 'h'))
    };
    if id(bare) || bare.starts_with("mwt_") {
        "ID"
    } else if time(bare) {
        "TIME"
    } else if span(bare) || bare == "now" || bare == "ago" {
        "SPAN"
    } else {
        word
    }
}

/// Whether a printed line is the shown one; ids of the README learn which they are today.
fn same(shown: &str, printed: &str, ids: &mut BTreeMap<String, String>) -> bool {
    let words = |line: &str| -> Vec<String> {
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        // "4s ago" and "now" say the same
        words.retain(|w| w != "ago");
        words
    };
    let (shown, printed) = (words(shown), words(printed));
    let open = shown.last().is_some_and(|w| w == "…");
    let wanted = if open { &shown[..shown.len() - 1] } else { &shown[..] };
    if printed.len() < wanted.len() || (!open && printed.len() != wanted.len()) {
        return false;
    }
    let alike = wanted.iter().zip(&printed).all(|(a, b)| kind(a) == kind(b));
    if alike {
        let known = wanted.iter().zip(&printed).filter(|(a, _)| kind(a) == "ID");
        ids.extend(known.map(|(a, b)| (a.clone(), b.clone())));
    }
    alike
}

/// The first shown line that was not printed in its place.
fn missing<'a>(shown: &'a [String], printed: &[String], ids: &mut BTreeMap<String, String>) -> Option<&'a str> {
    let mut printed = printed.iter();
    let mut skip = false;
    for line in shown {
        if line == "…" {
            skip = true;
            continue;
        }
        loop {
            match printed.next() {
                None => return Some(line),
                Some(p) if same(line, p, ids) => break,
                Some(_) if skip => {}
                Some(_) => return Some(line),
            }
        }
        skip = false;
    }
    (!skip).then(|| printed.next()).flatten().map(|_| "nothing more")
}

/// Commands that only look: what they show may take a moment to become so.
fn only_looks(command: &str) -> bool {
    [" list", " show", " why", " audit", "curl ", " doctor"].iter().any(|w| command.contains(w))
        && !["-X ", " --data", "create", " start"].iter().any(|w| command.contains(w))
}

#[test]
fn the_tour_works_as_printed() {
    let entries = tour();
    assert!(entries.len() >= 15, "the tour has {} commands", entries.len());
    let mut shell = Shell::start();
    let mut ids: BTreeMap<String, String> = BTreeMap::new();
    for Entry { command, shown } in &entries {
        let live = command.contains("--wait");
        let typed = ids.iter().fold(command.clone(), |c, (readme, today)| c.replace(readme.as_str(), today));
        let mut printed = shell.run(&typed);
        if live {
            // of live progress, how it looks in the end
            printed.drain(..printed.len().saturating_sub(shown.len()));
        }
        if command.ends_with('&') {
            until(&format!("what {command} prints"), || {
                printed.extend(shell.more());
                // its last line, where the README shows it or not: what came later would be the next command's
                let ready = printed.iter().any(|line| line.starts_with("administrator token: "));
                (ready && missing(shown, &printed, &mut ids).is_none()).then_some(())
            });
            // the client finds the token by itself only where the README's server listens
            shell.run("export MILLWRIGHT_TOKEN=$(cat millwright-data/admin.token)");
        } else if only_looks(command) {
            let mut tries = 0;
            while missing(shown, &printed, &mut ids).is_some() && tries < 200 {
                std::thread::park_timeout(Duration::from_millis(50));
                printed = shell.run(&typed);
                tries += 1;
            }
        }
        if let Some(line) = missing(shown, &printed, &mut ids) {
            panic!("$ {command}\nthe README shows: {line}\nprinted was:\n{}", printed.join("\n"));
        }
    }
}
