//! The machine that the agent lives on, as a root folder: `/`, or a scratch one in tests.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

impl Host {
    /// What is started here works in folders of its own: a root that is told from where we are would be somewhere else
    /// for it.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self { root: std::path::absolute(&root).unwrap_or(root) }
    }

    /// Where an absolute path of the machine is.
    pub fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// The same for names that may be no text.
    pub fn at(&self, absolute: &Path) -> PathBuf {
        self.root.join(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    /// What the machine itself calls a path that is given as seen from here.
    pub fn machine_path(&self, seen: &Path) -> PathBuf {
        match seen.strip_prefix(&self.root) {
            Ok(rest) => Path::new("/").join(rest),
            Err(_) => seen.to_owned(),
        }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether it is the machine itself, and not a folder that pretends to be one.
    pub fn is_real(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Another one after every start of the kernel.
    pub fn boot_id(&self) -> io::Result<String> {
        let id = std::fs::read_to_string(self.path("/proc/sys/kernel/random/boot_id"))?;
        let id = id.trim();
        if id.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel's boot id is empty"));
        }
        Ok(id.to_owned())
    }

    /// Whether /proc shows the processes that this one could send a signal to: not so in a scratch root that has files
    /// in its place, where a number must never be taken for a process.
    pub fn shows_live_processes(&self) -> bool {
        let proc = self.path("/proc");
        let is_procfs = rustix::fs::statfs(&proc).is_ok_and(|fs| fs.f_type == rustix::fs::PROC_SUPER_MAGIC);
        let own = std::fs::read_link(proc.join("self")).ok();
        is_procfs && own.is_some_and(|own| own.as_os_str() == OsStr::new(&std::process::id().to_string()))
    }

    /// Whether systemd runs this machine, and may be asked.
    pub fn systemd_runs(&self) -> bool {
        self.is_real() && self.path("/run/systemd/system").is_dir()
    }

    /// A program of this machine: never one of another, whatever PATH says.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        ["usr/sbin", "usr/bin", "sbin", "bin"]
            .iter()
            .map(|folder| self.root.join(folder).join(name))
            .find(|path| path.is_file())
    }

    /// Runs a program of this machine to its end, or ends it when the time is up.
    pub fn call(&self, name: &str, args: &[&str], limit: Duration) -> io::Result<ExitStatus> {
        let program = self
            .program(name)
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no program {name}")))?;
        let mut child = Command::new(program)
            .args(args)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LC_ALL", "C")
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        if !ends_within(&child, limit)? {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("{name} did not end in {} s", limit.as_secs()),
            ));
        }
        child.wait()
    }
}

fn ends_within(child: &Child, limit: Duration) -> io::Result<bool> {
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a process without a number"))?;
    exits_within(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?, limit)
}

/// Whether the process ends in time; asked of the kernel, not by looking again and again.
pub fn exits_within(process: impl AsFd, limit: Duration) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    loop {
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A name as it may be shown and stored: whatever bytes it has, one line, and always the same text for the same name.
pub fn shown(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes().escape_ascii().to_string()
}
