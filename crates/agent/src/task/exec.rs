//! `host.exec`: runs a script that the site has allowed by its digest, in a list that only root can change. It gets a
//! fresh folder, an empty environment, nobody's rights unless the list says `root`, and no way to gain more; when it
//! ends, whatever it has started ends with it.

use super::cgroup::{Enclosure, MARK};
use super::{Context, Done, Failed, Outcome, canceled, failed, in_background};
use crate::host::Host;
use crate::install::{ALLOWED_SCRIPTS, EXEC};
use crate::task::clean::accounts;
use crate::task::clean::baseline::digest;
use domain::stage::FailureClass;
use proto::agent::v1::HostExec;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

/// After being asked to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// For what was printed last to be read, after everybody is gone.
const LAST_WORDS: Duration = Duration::from_secs(10);
const LIST_MAX: u64 = 1 << 20;
const SCRIPT_MAX: usize = 4 << 20;
const ARGS_MAX: usize = 64 << 10;
/// Waits until it is in its enclosure, then becomes the script. Who is killed before that has run nothing.
const GATE: &str = "read -r go && [ \"$go\" = go ] && exec \"$@\" </dev/null";

pub async fn run(script: &HostExec, context: &Context) -> Outcome {
    check(script)?;
    let host = context.host.clone();
    let wanted = script.sha256.to_ascii_lowercase();
    let as_root = in_background(context, move || allowed(&host, &wanted)).await??;
    if context.cancel.is_cancelled() {
        return Err(canceled(Value::Null));
    }
    let trouble =
        |what: &str, error: io::Error| failed("EXEC_FAILED", FailureClass::Transient, format!("{what}: {error}"));
    let (uid, gid) = if as_root { (0, 0) } else { nobody(&context.host) };
    let place = Place::new(&context.host, &script.script, uid, gid)
        .map_err(|error| trouble("a folder for the script", error))?;
    let mut enclosure = Enclosure::new(&context.host, &place.mark);
    let mut child =
        start(&place, &script.args, uid, gid).await.map_err(|error| trouble("starting the script", error))?;
    let Some(pid) = child.id() else {
        return Err(trouble("starting the script", io::Error::other("it has no number")));
    };
    enclosure.take(pid);
    if as_root && !enclosure.has_group() {
        // it waits at the gate still, and has run nothing
        end_group(pid, Signal::KILL);
        drop(child.wait().await);
        return Err(not_enclosed());
    }
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let print = async {
        tokio::join!(print(out, "stdout", context), print(err, "stderr", context));
    };
    tokio::pin!(print);
    if let Some(mut gate) = child.stdin.take() {
        // gone already: its end is seen below
        drop(gate.write_all(b"go\n").await);
    }
    let mut printed = false;
    let ended = loop {
        tokio::select! {
            biased;
            () = context.cancel.cancelled() => break None,
            status = child.wait() => break Some(status),
            () = &mut print, if !printed => printed = true,
        }
    };
    let status = match ended {
        Some(status) => Some(status.map_err(|error| trouble("waiting for the script", error))?),
        None => {
            end_politely(&mut child, pid).await;
            None
        }
    };
    // whoever it has left behind, detached or not
    let left = enclosure.end().await.map_err(|error| trouble("ending what the script has started", error))?;
    if !enclosure.has_group() {
        end_group(pid, Signal::KILL);
    }
    drop(child.wait().await);
    if !printed && !context.cancel.is_cancelled() {
        tokio::select! {
            () = context.cancel.cancelled() => {}
            _ = tokio::time::timeout(LAST_WORDS, print) => {}
        }
    }
    let detail = |status: Option<ExitStatus>| {
        json!({
            "sha256": script.sha256.to_ascii_lowercase(),
            "ran_as": if as_root { "root" } else { "nobody" },
            "exit_code": status.and_then(|status| status.code()),
            "signal": status.and_then(|status| status.signal()),
            "enclosed_by": if enclosure.has_group() { "control group" } else { "mark" },
            "processes_left_and_ended": if status.is_some() { left } else { 0 },
        })
    };
    match status {
        None => Err(canceled(detail(None))),
        Some(status) if status.success() => {
            Ok(Done { message: "the script has ended with success".to_owned(), detail: detail(Some(status)) })
        }
        Some(status) => Err(Failed {
            code: "SCRIPT_FAILED",
            class: FailureClass::NeedsOperator,
            message: format!("the script has ended with {status}"),
            detail: detail(Some(status)),
        }),
    }
}

/// A mark in the environment holds those who do not mean to get away. What runs as root could be anybody's afterwards.
fn not_enclosed() -> Failed {
    let message = "this machine gives the agent no control group (version 2) to hold a script of root's: nothing has run; \
                   boot with systemd.unified_cgroup_hierarchy=1, or allow the script without root";
    failed("NOT_ENCLOSED", FailureClass::NeedsOperator, message)
}

fn check(script: &HostExec) -> Result<(), Failed> {
    let invalid = |message: &str| Err(failed("INVALID", FailureClass::InvalidInput, message));
    if script.script.is_empty() || script.script.len() > SCRIPT_MAX {
        return invalid("a script is not empty, and no larger than 4 MiB");
    }
    if script.args.iter().map(|arg| arg.len() + 1).sum::<usize>() > ARGS_MAX {
        return invalid("the arguments are longer than 64 KiB");
    }
    if script.args.iter().any(|arg| arg.contains('\0')) {
        return invalid("an argument has a zero byte");
    }
    if digest(&script.script) != script.sha256.to_ascii_lowercase() {
        return Err(failed("WRONG_DIGEST", FailureClass::InvalidInput, "the script's content has another SHA-256"));
    }
    Ok(())
}

/// Whether the list has it, and whether as root. The list is the site's word against the server's: it counts only where
/// nobody but root can have written it.
fn allowed(host: &Host, wanted: &str) -> Result<bool, Failed> {
    let path = host.path(ALLOWED_SCRIPTS);
    let unsafe_list = |why: String| {
        let message = format!("the list of allowed scripts {ALLOWED_SCRIPTS} is not trusted: {why}");
        failed("LIST_NOT_TRUSTED", FailureClass::NeedsOperator, message)
    };
    let not_allowed = || {
        let message = format!("the site has not allowed this script: {ALLOWED_SCRIPTS} does not have its digest");
        failed("NOT_ALLOWED", FailureClass::NeedsOperator, message)
    };
    let folder = path.parent().unwrap_or(Path::new("/"));
    for (what, meta) in [("its folder", std::fs::symlink_metadata(folder)), ("it", std::fs::symlink_metadata(&path))] {
        let meta = match meta {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(not_allowed()),
            Err(error) => return Err(unsafe_list(error.to_string())),
        };
        safe(&meta, what == "it").map_err(|why| unsafe_list(format!("{what} {why}")))?;
    }
    let mut options = std::fs::OpenOptions::new();
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = options.read(true).custom_flags(flags.bits().cast_signed()).open(&path);
    let file = file.map_err(|error| unsafe_list(error.to_string()))?;
    // the one that was opened, whatever its name means by now
    let meta = file.metadata().map_err(|error| unsafe_list(error.to_string()))?;
    safe(&meta, true).map_err(|why| unsafe_list(format!("it {why}")))?;
    if meta.len() > LIST_MAX {
        return Err(unsafe_list("it is larger than 1 MiB".to_owned()));
    }
    let mut text = String::new();
    file.take(LIST_MAX).read_to_string(&mut text).map_err(|error| unsafe_list(error.to_string()))?;
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            [] => {}
            [digest] if digest.eq_ignore_ascii_case(wanted) => return Ok(false),
            [digest, "root"] if digest.eq_ignore_ascii_case(wanted) => return Ok(true),
            [_] | [_, "root"] => {}
            _ => return Err(unsafe_list(format!("its line {} is not understood", number + 1))),
        }
    }
    Err(not_allowed())
}

fn safe(meta: &std::fs::Metadata, file: bool) -> Result<(), String> {
    if file && !meta.is_file() || !file && !meta.is_dir() {
        return Err("is a link or something else".to_owned());
    }
    if meta.uid() != 0 {
        return Err(format!("belongs to user {}, not to root", meta.uid()));
    }
    if meta.mode() & 0o022 != 0 {
        return Err(format!("may be written by others (mode {:o})", meta.mode() & 0o7777));
    }
    Ok(())
}

fn nobody(host: &Host) -> (u32, u32) {
    let passwd = std::fs::read(host.path("/etc/passwd")).unwrap_or_default();
    let nobody = accounts::users(&passwd).into_iter().find(|user| user.name == "nobody" && user.uid != 0);
    nobody.map_or((65_534, 65_534), |user| (user.uid, user.gid))
}

/// Where one script runs: gone when it is done.
struct Place {
    folder: PathBuf,
    mark: String,
}

impl Place {
    fn new(host: &Host, script: &[u8], uid: u32, gid: u32) -> io::Result<Self> {
        let exec = host.path(EXEC);
        match std::fs::DirBuilder::new().mode(0o711).create(&exec) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mark = mark()?;
        let place = Self { folder: exec.join(&mark), mark };
        std::fs::DirBuilder::new().mode(0o700).create(&place.folder)?;
        // the umask may have taken the right to pass
        std::fs::set_permissions(&exec, PermissionsExt::from_mode(0o711))?;
        // nobody but its user reads it: what a script says may be a secret
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o500).open(place.script())?.write_all(script)?;
        std::fs::DirBuilder::new().mode(0o700).create(place.work())?;
        // last: from here on the folder is the script's own
        for path in [place.script(), place.work(), place.folder.clone()] {
            std::os::unix::fs::chown(path, Some(uid), Some(gid))?;
        }
        Ok(place)
    }

    fn script(&self) -> PathBuf {
        self.folder.join("script")
    }

    fn work(&self) -> PathBuf {
        self.folder.join("work")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // the standard library follows no links here, and whoever it belonged to has ended
        drop(std::fs::remove_dir_all(&self.folder));
        if let Some(exec) = self.folder.parent() {
            drop(std::fs::remove_dir(exec));
        }
    }
}

fn mark() -> io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// From a thread of its own: what a thread gives up, its children never get back, and no other thread is touched.
async fn start(place: &Place, args: &[String], uid: u32, gid: u32) -> io::Result<Child> {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", GATE, "sh"])
        .arg(place.script())
        .args(args)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C.UTF-8")
        .env("HOME", place.work())
        .env("TMPDIR", place.work())
        .env(MARK, &place.mark)
        .current_dir(place.work())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    if uid != 0 {
        command.uid(uid).gid(gid);
    }
    let runtime = tokio::runtime::Handle::current();
    let (answer, started) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("exec".to_owned()).spawn(move || {
        let _inside = runtime.enter();
        let child = rustix::thread::set_no_new_privs(true).map_err(io::Error::from).and_then(|()| command.spawn());
        drop(answer.send(child));
    })?;
    started.await.map_err(|_| io::Error::other("the thread that starts scripts has died"))?
}

/// Its output, as it comes: whoever prints faster than it is taken waits.
async fn print(from: Option<impl AsyncRead + Unpin>, stream: &'static str, context: &Context) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        context.printer.bytes(stream, buffer[..count].to_vec()).await;
    }
}

async fn end_politely(child: &mut Child, pid: u32) {
    end_group(pid, Signal::TERM);
    if tokio::time::timeout(PATIENCE, child.wait()).await.is_err() {
        end_group(pid, Signal::KILL);
    }
}

fn end_group(pid: u32, signal: Signal) {
    if let Some(group) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // nobody left in it: as wanted
        let _ = kill_process_group(group, signal);
    }
}
