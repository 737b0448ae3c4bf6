//! What the tests share: a host, ways to reach it, and waiting for what must come.

use provider::{Chunk, Command, ExecProgress, ExecState, ProviderResult, Stream};
use ssh::{Host, Timeouts};
use std::sync::OnceLock;
use std::time::Duration;
use testkit::sshd::SshHost;
use tokio::time::Instant;

/// Long enough for a busy machine; what has not come by then is not coming.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// The host of those tests that leave it as it is.
pub fn shared() -> &'static SshHost {
    static SHARED: OnceLock<SshHost> = OnceLock::new();
    SHARED.get_or_init(SshHost::start)
}

pub fn patient() -> Timeouts {
    Timeouts { connect: PATIENCE, call: PATIENCE, idle: Duration::from_secs(30) }
}

pub fn reach(host: &SshHost) -> Host {
    Host::new(host.at(), host.login(), "fleet", host.fingerprint(), None, patient())
}

/// One short call, and the proof that it reached the host.
pub trait BootId {
    async fn boot_id(&self) -> ProviderResult<String>;
}

impl BootId for Host {
    async fn boot_id(&self) -> ProviderResult<String> {
        self.identity().await.map(|id| id.boot_id)
    }
}

/// A key like those of operations, unlike any other.
pub fn key() -> String {
    format!("{}.start.1", uuid::Uuid::now_v7())
}

pub fn sh(script: &str) -> Command {
    command("sh", &["-c", script])
}

pub fn command(program: &str, args: &[&str]) -> Command {
    let args = args.iter().map(|a| (*a).to_owned()).collect();
    Command { command: program.to_owned(), args, environment: Default::default() }
}

/// Polls on until `done`, and answers all that was printed on the way, pieces of the same stream joined.
pub async fn follow(
    host: &Host,
    key: &str,
    from: u64,
    done: impl Fn(&ExecState, &[Chunk]) -> bool,
) -> (ExecState, Vec<Chunk>, u64) {
    let (mut all, mut offset, begun): (Vec<Chunk>, _, _) = (Vec::new(), from, Instant::now());
    loop {
        let ExecProgress { state, output, offset: next } = host.poll(key, offset).await.expect("a poll");
        offset = next;
        let quiet = output.is_empty();
        for chunk in output {
            match all.last_mut() {
                Some(last) if last.stream == chunk.stream => last.data.extend(chunk.data),
                _ => all.push(chunk),
            }
        }
        if done(&state, &all) {
            return (state, all, offset);
        }
        assert!(begun.elapsed() < PATIENCE, "it took too long: {state:?}, {}", words(&all));
        if quiet {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Polls a command to its end: its status, and all it printed.
pub async fn ended(host: &Host, key: &str) -> (i32, Vec<Chunk>) {
    let (state, output, _) = follow(host, key, 0, |state, _| !matches!(state, ExecState::Running)).await;
    let ExecState::Exited(status) = state else { panic!("{state:?}") };
    (status, output)
}

pub fn of(stream: Stream, output: &[Chunk]) -> Vec<u8> {
    output.iter().filter(|c| c.stream == stream).flat_map(|c| c.data.clone()).collect()
}

/// For people: what was printed, in order.
pub fn words(output: &[Chunk]) -> String {
    let one = |c: &Chunk| format!("{}:{}", c.stream.as_str(), String::from_utf8_lossy(&c.data));
    output.iter().map(one).collect::<Vec<_>>().join("|")
}

/// Waits for something to become true.
pub async fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The command lines of all processes here with this word in them. Those of the hosts are among them.
pub fn processes_with(word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("proc").flatten() {
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(word) {
            found.push(line);
        }
    }
    found
}
