//! A server as a process, the folder it lives in, and the command line as its client.

use crate::process::{Ended, Process, SAID, program, run, until};
use serde_json::Value;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use testkit::scratch::Watched;

/// Short enough that a takeover does not take long: the last call of a lost holder is waited out.
pub const QUICK: &str = "[engine]\nlease_seconds = 4\ncall_timeout_seconds = 1\n";

/// In a watched folder.
const HOME: &str = "home";

/// A temporary folder with everything that one test needs. Searched for secrets at the end, with what each process
/// said beside it.
pub struct Home(Watched);

impl Home {
    pub fn new() -> Self {
        Self::of(Watched::new())
    }

    pub fn of(folder: Watched) -> Self {
        for name in [HOME, SAID] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        Self(folder)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(HOME).join(name)
    }

    /// All that is searched for secrets at the end.
    pub fn watched(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file and answers with its path.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("below the home")).expect("a folder");
        std::fs::write(&path, text).expect("written");
        path
    }

    /// A server with a data folder of its own in here.
    pub fn launch(&self, data: &str) -> Launch {
        Launch {
            home: self.path(""),
            data: self.path(data),
            listen: "127.0.0.1:0".into(),
            words: vec![],
            env: vec![],
            own_log: false,
        }
    }

    /// A command that needs no server.
    pub fn run(&self, words: &[&str]) -> Ended {
        run(program(&self.path("")).args(words))
    }
}

/// How a server is started; the same again for every start.
#[derive(Clone)]
pub struct Launch {
    home: PathBuf,
    pub data: PathBuf,
    listen: String,
    words: Vec<String>,
    env: Vec<(String, String)>,
    /// Whether the test has a word to say about the log.
    own_log: bool,
}

impl Launch {
    pub fn with(mut self, words: &[&str]) -> Self {
        self.words.extend(words.iter().map(|w| (*w).to_owned()));
        self
    }

    pub fn listen(mut self, address: &str) -> Self {
        address.clone_into(&mut self.listen);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With a configuration file of this text.
    pub fn config(mut self, text: &str) -> Self {
        self.own_log |= text.contains("[log]");
        let mut name = self.data.clone().into_os_string();
        name.push(".toml");
        let path = PathBuf::from(name);
        std::fs::write(&path, text).expect("written");
        self.with(&["--config", path.to_str().expect("a plain path")])
    }

    fn command(&self) -> Command {
        let mut command = program(&self.home);
        command.args(["serve", "--listen", &self.listen, "--data"]).arg(&self.data).args(&self.words);
        // as talkative as it can be: whatever it says is searched for secrets
        if !self.own_log {
            command.env("MILLWRIGHT_LOG__LEVEL", "trace");
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts it and waits for nothing.
    pub fn begin(&self) -> Process {
        Process::spawn(&mut self.command())
    }

    /// Starts it and waits until it serves.
    pub fn start(&self) -> Server {
        match self.try_start() {
            Ok(server) => server,
            Err(ended) => panic!("the server did not start:\n{}\n{}", ended.out, ended.err),
        }
    }

    pub fn try_start(&self) -> Result<Server, Ended> {
        let mut process = self.begin();
        let url = until("the server serves or ends", || {
            let over = process.is_over();
            // the last line comes when all is ready
            let ready = process.out().lines().any(|line| line.starts_with("administrator token: "));
            if ready {
                return Some(after(&process.out(), "listens on "));
            }
            over.then_some(None)
        });
        let Some(url) = url else { return Err(process.end()) };
        let client = Client { url, token_file: self.data.join("admin.token"), home: self.home.clone() };
        Ok(Server { process, client })
    }

    /// Starts it where it must refuse to start.
    #[track_caller]
    pub fn refused(&self) -> Ended {
        match self.try_start() {
            Ok(_) => panic!("the server started"),
            Err(ended) => ended.with(1),
        }
    }

    /// Starts it at an address that stays the same at the next start. From a range out of which the system
    /// gives no ports by itself, so that nobody takes it meanwhile.
    pub fn start_at_a_fixed_address(&mut self) -> Server {
        // none is tried twice in this process: a neighbour may have it, and be between two starts
        static TRIED: AtomicU32 = AtomicU32::new(0);
        for _ in 0..50 {
            let tried = TRIED.fetch_add(1, Ordering::Relaxed);
            self.listen = format!("127.0.0.1:{}", 20_000 + (std::process::id() + tried * 199) % 10_000);
            match self.try_start() {
                Ok(server) => return server,
                Err(ended) => drop(ended.saying("listening on")),
            }
        }
        panic!("no free port");
    }
}

/// What stands after a word on a line.
pub fn after(text: &str, word: &str) -> Option<String> {
    text.lines().find_map(|line| line.split_once(word)).map(|(_, rest)| rest.trim().to_owned())
}

/// A server that runs. Dropped: killed.
pub struct Server {
    pub process: Process,
    client: Client,
}

impl Deref for Server {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Server {
    pub fn kill(self) {
        assert_eq!(self.process.kill().code, None, "ended by the signal");
    }

    /// Asks it to stop, and waits until it has.
    pub fn terminate(self) -> Ended {
        self.stop("TERM")
    }

    pub fn stop(self, signal: &str) -> Ended {
        self.process.signal(signal);
        self.process.end()
    }
}

/// The command line with an address and a token.
#[derive(Clone)]
pub struct Client {
    pub url: String,
    pub token_file: PathBuf,
    home: PathBuf,
}

impl Client {
    /// The same server with another token.
    pub fn with_token(&self, token_file: &Path) -> Self {
        Self { token_file: token_file.to_owned(), ..self.clone() }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = program(&self.home);
        // what comes after a double dash is for somebody else
        let (words, rest) = words.split_at(words.iter().position(|w| *w == "--").unwrap_or(words.len()));
        command.args(words).args(["--server", &self.url, "--token-file"]).arg(&self.token_file).args(rest);
        command
    }

    pub fn run(&self, words: &[&str]) -> Ended {
        run(&mut self.command(words))
    }

    /// Leaves it running.
    pub fn spawn(&self, words: &[&str]) -> Process {
        Process::spawn(&mut self.command(words))
    }

    /// What it prints, when all goes well.
    #[track_caller]
    pub fn ok(&self, words: &[&str]) -> String {
        self.run(words).with(0).out
    }

    #[track_caller]
    pub fn json(&self, words: &[&str]) -> Value {
        let out = self.ok(&[words, &["-o", "json"]].concat());
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{words:?}: {e}\n{out}"))
    }
}
