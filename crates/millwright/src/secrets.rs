//! The key that credentials are sealed with: from a file, the environment or a program, or from the data folder.
//! A key that is not there is no reason not to start: what needs it says so, and all else goes on.

use crate::config::Secrets;
use crate::data_dir::{read_text, write_private};
use domain::Secret;
use service::{SecretKey, SecretKeys};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use zeroize::Zeroizing;

/// How long a program may take to print the key.
const COMMAND_WITHIN: Duration = Duration::from_secs(20);
/// More than any form of a key has.
const KEY_TEXT_MAX: u64 = 4096;

/// What was found.
pub struct Loaded {
    pub keys: SecretKeys,
    /// Where the key comes from, for people.
    pub from: String,
    /// What is wrong with any of the keys. Nothing secret.
    pub problems: Vec<String>,
}

/// The key that a server with its database for itself makes at first use.
pub fn own_key_file(folder: &Path) -> PathBuf {
    folder.join("secrets.key")
}

pub async fn load(config: &Secrets, folder: &Path, shared: bool) -> Loaded {
    let mut problems = Vec::new();
    let mut previous = Vec::new();
    for path in &config.previous_key_files {
        match from_file("secrets.previous_key_files", path) {
            Ok(key) => previous.push(key),
            Err(problem) => problems.push(problem),
        }
    }
    let own = own_key_file(folder);
    let (from, found) = match config {
        Secrets { key: Some(text), .. } => {
            let named = "MILLWRIGHT_SECRETS__KEY";
            (named.to_owned(), parse(named, text.reveal()).map(Some))
        }
        Secrets { key_file: Some(path), .. } => {
            (format!("secrets.key_file {}", path.display()), from_file("secrets.key_file", path).map(Some))
        }
        Secrets { key_command, .. } if !key_command.is_empty() => {
            ("secrets.key_command".to_owned(), from_command(key_command).await.map(Some))
        }
        Secrets { .. } if shared => {
            let none = "no key for credentials is configured, and servers that share a database must share one: set secrets.key_file (made with: openssl rand -base64 32), secrets.key_command or MILLWRIGHT_SECRETS__KEY on each of them";
            ("nowhere".to_owned(), Err(none.to_owned()))
        }
        Secrets { .. } if own.exists() => (own.display().to_string(), from_file("the key", &own).map(Some)),
        Secrets { .. } => (format!("{}, made at first use", own.display()), Ok(None)),
    };
    let keys = match found {
        Ok(Some(key)) => SecretKeys::given(key),
        Ok(None) => SecretKeys::made_at_first_use(Box::new(move |text| write_private(&own, text.reveal()))),
        Err(problem) => {
            problems.insert(0, problem.clone());
            SecretKeys::missing(problem)
        }
    };
    Loaded { keys: keys.with_previous(previous), from, problems }
}

fn parse(named: &str, text: &str) -> Result<SecretKey, String> {
    SecretKey::parse(text).map_err(|e| format!("{named} {e}"))
}

fn from_file(named: &str, path: &Path) -> Result<SecretKey, String> {
    let named = format!("{named} {}", path.display());
    match std::fs::metadata(path) {
        Ok(known) if known.len() > KEY_TEXT_MAX => return Err(format!("{named} is too large to be a key")),
        Ok(_) | Err(_) => {}
    }
    let text = read_text(path)?.ok_or_else(|| format!("{named} is not there; put it there, and restart"))?;
    parse(&named, Secret::new(text).reveal())
}

/// What the program says is the key, and told to nobody; nor is what it says on stderr, which may hold as much.
async fn from_command(words: &[String]) -> Result<SecretKey, String> {
    let Some((program, arguments)) = words.split_first() else { return Err("secrets.key_command is empty".to_owned()) };
    let named = format!("secrets.key_command ({program})");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|e| format!("{named} cannot be run: {e}"))?;
    let said = async {
        let mut text = Zeroizing::new(String::with_capacity(KEY_TEXT_MAX as usize));
        if let Some(stdout) = child.stdout.take() {
            let mut bounded = stdout.take(KEY_TEXT_MAX);
            bounded.read_to_string(&mut text).await.map_err(|_| format!("{named} printed something that is no key"))?;
        }
        let ended = child.wait().await.map_err(|e| format!("{named}: {e}"))?;
        if ended.success() { Ok(text) } else { Err(format!("{named} failed: {ended}; run it by hand to see why")) }
    };
    let text = tokio::time::timeout(COMMAND_WITHIN, said).await;
    let text = text.unwrap_or_else(|_| Err(format!("{named} did not end within {} s", COMMAND_WITHIN.as_secs())))?;
    parse(&format!("what {named} printed"), &text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn command(script: &str) -> Secrets {
        let key_command = ["sh", "-c", script].map(str::to_owned).to_vec();
        Secrets { key_command, ..Secrets::default() }
    }

    #[tokio::test]
    async fn a_key_comes_from_a_file_the_environment_or_a_program() {
        let folder = tempfile::tempdir().expect("a folder");
        let (key, text) = SecretKey::generate().expect("randomness");
        let path = folder.path().join("a.key");
        write_private(&path, text.reveal()).expect("written");
        let file = Secrets { key_file: Some(path.clone()), ..Secrets::default() };
        let environment = Secrets { key: Some(text.clone()), ..Secrets::default() };
        for config in [file, environment, command(&format!("cat {}", path.display()))] {
            let loaded = load(&config, folder.path(), true).await;
            assert_eq!(
                (loaded.keys.ids(), loaded.problems),
                (vec![key.id().to_owned()], Vec::new()),
                "{}",
                loaded.from
            );
        }
    }

    #[tokio::test]
    async fn what_is_wrong_is_told_and_no_secret_with_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let bad = folder.path().join("bad.key");
        std::fs::write(&bad, "hunter2").expect("written");
        let gone = Secrets { key_file: Some(folder.path().join("none.key")), ..Secrets::default() };
        let spoilt = Secrets { key_file: Some(bad.clone()), ..Secrets::default() };
        let previous = Secrets { previous_key_files: vec![bad], ..Secrets::default() };
        for (config, part) in [
            (gone, "none.key is not there"),
            (spoilt, "bad.key is not a key"),
            (previous, "previous_key_files"),
            (command("echo hunter2; echo hunter2 >&2; exit 3"), "exit status: 3"),
            (command("echo hunter2"), "printed is not a key"),
            (command("printf '\\377'"), "no key"),
            (Secrets { key_command: vec!["/nowhere/vault".to_owned()], ..Secrets::default() }, "cannot be run"),
        ] {
            let loaded = load(&config, folder.path(), false).await;
            let told = loaded.problems.join("\n");
            assert!(told.contains(part) && !told.contains("hunter2"), "{told}");
        }
        let shared = load(&Secrets::default(), folder.path(), true).await;
        assert!(shared.keys.problem().is_some_and(|why| why.contains("must share one")));
    }

    #[tokio::test]
    async fn a_server_by_itself_makes_one_and_finds_it_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let loaded = load(&Secrets::default(), folder.path(), false).await;
        assert!(loaded.problems.is_empty() && loaded.keys.ids().is_empty());
        let path = own_key_file(folder.path());
        assert!(!path.exists(), "not before something is to be sealed");
        let text = SecretKey::generate().expect("randomness").1;
        write_private(&path, text.reveal()).expect("written");
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(load(&Secrets::default(), folder.path(), false).await.keys.ids().len(), 1);
    }
}
