//! A control group for what a task starts: whoever is in it can be ended, however often it has forked and whatever it
//! has detached itself from. Where the kernel gives us none, a mark in the environment has to do.

use crate::host::Host;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is in the environment of everything that a script starts.
pub const MARK: &str = "MILLWRIGHT_TASK_MARK";
const SLICE: Duration = Duration::from_millis(50);
/// Looks at whether they are all gone.
const LOOKS: usize = 100;

pub struct Enclosure {
    group: Option<PathBuf>,
    mark: String,
}

impl Enclosure {
    /// Below the agent's own group, which is where systemd lets it make some.
    pub fn new(host: &Host, mark: &str) -> Self {
        let group = own_group(host).map(|own| own.join(format!("millwright-{mark}")));
        let group = group.filter(|group| std::fs::create_dir(group).is_ok());
        Self { group, mark: mark.to_owned() }
    }

    /// Puts a process in; its later children are born there.
    pub fn take(&mut self, pid: u32) {
        if let Some(group) = &self.group
            && std::fs::write(group.join("cgroup.procs"), pid.to_string()).is_err()
        {
            drop(std::fs::remove_dir(group));
            self.group = None;
        }
    }

    pub fn has_group(&self) -> bool {
        self.group.is_some()
    }

    /// Everybody in it, at this moment.
    pub fn members(&self) -> io::Result<Vec<i32>> {
        if let Some(group) = &self.group {
            let list = std::fs::read_to_string(group.join("cgroup.procs"))?;
            return Ok(list.lines().filter_map(|pid| pid.parse().ok()).collect());
        }
        let mark = format!("{MARK}={}", self.mark);
        let mut members = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let entry = entry?;
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            if environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()) {
                members.push(pid);
            }
        }
        Ok(members)
    }

    /// Ends everybody in it at once, and waits until they are gone; answers how many there were.
    pub async fn end(&self) -> io::Result<usize> {
        let mut most = 0;
        for _ in 0..LOOKS {
            let members = self.members()?;
            most = most.max(members.len());
            if members.is_empty() {
                return Ok(most);
            }
            let at_once =
                self.group.as_ref().is_some_and(|group| std::fs::write(group.join("cgroup.kill"), "1").is_ok());
            if !at_once {
                for pid in members.into_iter().filter_map(rustix::process::Pid::from_raw) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
            tokio::time::sleep(SLICE).await;
        }
        Err(io::Error::other("some of its processes cannot be ended"))
    }
}

impl Drop for Enclosure {
    fn drop(&mut self) {
        if let Some(group) = &self.group {
            drop(std::fs::remove_dir(group));
        }
    }
}

/// Where this process is in the unified hierarchy, wherever that is mounted.
fn own_group(host: &Host) -> Option<PathBuf> {
    let groups = std::fs::read(host.path("/proc/self/cgroup")).ok()?;
    let own = groups.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"0::/"))?;
    let mounts = std::fs::read_to_string(host.path("/proc/self/mountinfo")).ok()?;
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    let mut fields = line.split(' ').skip(3);
    let (root, at) = (fields.next()?, fields.next()?);
    let own = Path::new("/").join(OsStr::from_bytes(own));
    Some(Path::new(at).join(own.strip_prefix(root).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[tokio::test]
    async fn without_a_control_group_the_mark_finds_who_has_detached_itself() {
        let mark = format!("test-{}", std::process::id());
        let enclosure = Enclosure { group: None, mark: mark.clone() };
        let started =
            Command::new("sh").args(["-c", "(setsid sleep 86400 &)"]).env(MARK, &mark).status().expect("sh runs");
        assert!(started.success());
        let mut tries = 0;
        while enclosure.members().expect("processes").is_empty() {
            tries += 1;
            assert!(tries < 1000, "it was never seen");
            tokio::time::sleep(SLICE).await;
        }
        assert!(enclosure.end().await.expect("ended") >= 1);
        assert_eq!(enclosure.members().expect("processes"), Vec::<i32>::new());
    }
}
