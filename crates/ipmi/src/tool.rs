//! One `ipmitool` child: how it is started, told its secrets, bounded and ended.
//!
//! Everything it is told comes by its standard input, a pipe: the password, which it reads as its password file,
//! and then the commands, which it reads as its script. So a password is on no command line, in no environment and
//! in no file, and nothing is left behind however either of us ends. Between the two stand empty lines, which a
//! script may have: the first reader takes a block at a time, and whatever it takes too much of is padding.

use domain::Reason;
use domain::Secret;
use domain::credential::BmcLogin;
use domain::endpoint::BmcEndpoint;
use domain::stage::FailureClass;
use provider::{ProviderError, ProviderResult};
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

const PROGRAM: &str = "ipmitool";
/// More than any C library's block for reading a file, and less than a pipe holds.
const PADDING: usize = 16 * 1024;
/// The longest answers (an event log, all sensors of a large machine) are far below.
const OUTPUT_MAX: u64 = 1 << 20;
/// IPMI 2.0 has room for this many bytes of a password, and for 16 of a name.
pub(crate) const PASSWORD_MAX: usize = 20;
pub(crate) const USERNAME_MAX: usize = 16;
/// How long it waits for one answer, and how often it asks, before it gives up by itself.
const ANSWER_SECONDS: &str = "2";
const ASKED: &str = "3";

/// What a child said, and how it ended.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) success: bool,
}

#[derive(Debug)]
pub(crate) enum Ran {
    Ended(Said),
    /// Still at it when the time was up; it was killed.
    TimedOut,
    /// It said more than anything has to say; it was killed.
    TooMuch,
}

/// Where the program is: as given, else in `PATH`.
pub(crate) fn find(given: Option<&Path>) -> ProviderResult<PathBuf> {
    let runs =
        |path: &Path| path.metadata().is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0);
    // looked for once; what is missing is looked for again, it may have been installed since
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    let in_path = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).map(|folder| folder.join(PROGRAM)).find(|file| runs(file))?;
        Some(FOUND.get_or_init(|| found).clone())
    };
    let found = match given {
        Some(given) => Some(given.to_owned()).filter(|given| runs(given)),
        None => FOUND.get().cloned().or_else(in_path),
    };
    found.ok_or_else(|| {
        ProviderError::because(
            Reason::CapabilityMissing,
            FailureClass::DependencyDown,
            "ipmitool is not installed, and without it no BMC can be reached by IPMI; install it where the server runs: apt-get install ipmitool",
        )
    })
}

/// Why this login cannot be sent, if so. Too long a password would be cut short without a word.
pub(crate) fn unfit(login: &BmcLogin) -> Option<String> {
    let most = |what: &str, length: usize, most: usize| {
        (length > most).then(|| format!("its {what} has {length} bytes, and IPMI takes at most {most}"))
    };
    let plain = |what: &str, text: &str| {
        text.contains(['\n', '\r', '\0']).then(|| format!("its {what} holds a line break or a zero byte"))
    };
    most("user name", login.username.len(), USERNAME_MAX)
        .or_else(|| most("password", login.password.reveal().len(), PASSWORD_MAX))
        .or_else(|| plain("user name", &login.username))
        .or_else(|| plain("password", login.password.reveal()))
        .or_else(|| login.username.is_empty().then(|| "it has no user name".to_owned()))
        .or_else(|| login.password.is_empty().then(|| "it has no password".to_owned()))
}

/// Only what anybody may see stands here.
pub(crate) fn arguments(endpoint: &BmcEndpoint, username: &str) -> Vec<OsString> {
    let (cipher, port) = (endpoint.cipher.to_string(), endpoint.port.to_string());
    // -v: only so does it say why a session was refused
    let all = [
        "-I",
        "lanplus",
        "-C",
        &cipher,
        "-H",
        &endpoint.host,
        "-p",
        &port,
        "-U",
        username,
        "-L",
        "ADMINISTRATOR",
        "-N",
        ANSWER_SECONDS,
        "-R",
        ASKED,
        "-v",
        "-f",
        "/dev/stdin",
        "exec",
        "/dev/stdin",
    ];
    all.into_iter().map(OsString::from).collect()
}

/// Runs a script; whatever happens, the child is gone when this returns.
pub(crate) async fn run(
    program: &Path,
    arguments: &[OsString],
    password: &Secret,
    script: &Secret,
    within: Duration,
) -> ProviderResult<Ran> {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("LC_ALL", "C").env("TZ", "UTC");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let failed = |what: &str, e: &std::io::Error| {
        let message = format!("ipmitool could not be {what}: {e}");
        ProviderError::because(Reason::Internal, FailureClass::DependencyDown, message)
    };
    let mut child = command.spawn().map_err(|e| failed("started", &e))?;
    let ended = tokio::time::timeout(within, talk(&mut child, password, script)).await;
    let ran = match ended {
        Ok(Ok(Some(said))) => return Ok(Ran::Ended(said)),
        Ok(Ok(None)) => Ran::TooMuch,
        Ok(Err(e)) => {
            end(&mut child).await;
            return Err(failed("talked to", &e));
        }
        Err(_) => Ran::TimedOut,
    };
    end(&mut child).await;
    Ok(ran)
}

/// Kills and reaps. A killed process that does not go is left to tokio, which reaps it when it does.
async fn end(child: &mut Child) {
    const REAPED_WITHIN: Duration = Duration::from_secs(2);
    if !matches!(tokio::time::timeout(REAPED_WITHIN, child.kill()).await, Ok(Ok(()))) {
        tracing::warn!(pid = child.id(), "ipmitool was killed and is not gone yet");
    }
}

async fn talk(child: &mut Child, password: &Secret, script: &Secret) -> std::io::Result<Option<Said>> {
    let padding = "\n".repeat(PADDING);
    // `set verbose 0` makes the answers short again; why a session was refused is said all the same
    let words = Secret::new([password.reveal(), &padding, "set verbose 0\n", script.reveal(), "\n"].concat());
    let stdin = child.stdin.take();
    let tell = async {
        if let Some(mut stdin) = stdin {
            // a child that ended early says why by itself
            match stdin.write_all(words.reveal().as_bytes()).await {
                Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => return Err(e),
                _ => {}
            }
        }
        Ok(())
    };
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (told, out, err) = tokio::join!(tell, all_of(out), all_of(err));
    told?;
    let (Some(out), Some(err)) = (out?, err?) else { return Ok(None) };
    let success = child.wait().await?.success();
    Ok(Some(Said { out, err, success }))
}

/// Everything up to the end; `None` when there is too much of it.
async fn all_of(from: Option<impl AsyncRead + Unpin>) -> std::io::Result<Option<String>> {
    let mut all = Vec::new();
    if let Some(from) = from {
        from.take(OUTPUT_MAX + 1).read_to_end(&mut all).await?;
    }
    let whole = u64::try_from(all.len()).is_ok_and(|length| length <= OUTPUT_MAX);
    Ok(whole.then(|| String::from_utf8_lossy(&all).into_owned()))
}
