//! What of a tenant runs: its users' processes, containers, whoever holds a GPU. Read from /proc alone: no daemon is
//! asked, so none that hangs or was replaced can hide anything.

use crate::host::{Host, exits_within};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;
use std::collections::BTreeSet;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Users that systemd makes for services, and the two that mean nobody: no tenants, whatever their number.
const NOT_PEOPLE: [std::ops::RangeInclusive<u32>; 2] = [61_184..=65_519, 65_534..=65_535];
/// Who holds GPUs open for everybody.
const GPU_SERVICES: [&str; 4] = ["nvidia-persistenced", "nv-hostengine", "nv-fabricmanager", "dcgm-exporter"];
/// Looks at processes between two looks at whether to stop.
const SLICE: Duration = Duration::from_millis(200);

/// Tells tenants from the site.
#[derive(Clone, Debug)]
pub struct Who {
    pub uid_min: u32,
    pub kept: BTreeSet<u32>,
}

impl Who {
    pub fn is_tenant(&self, uid: u32) -> bool {
        uid >= self.uid_min
            && !self.kept.contains(&uid)
            && !NOT_PEOPLE.iter().any(|range| range.contains(&uid))
            && uid != u32::MAX
    }
}

/// A process that has no business on a drained machine.
#[derive(Clone, Debug)]
pub struct Occupant {
    pub pid: i32,
    /// With the number it is one process for ever: numbers are used again.
    started: u64,
    pub name: String,
    pub why: String,
}

impl Occupant {
    pub fn shown(&self) -> String {
        format!("{} ({}): {}", self.pid, self.name, self.why)
    }

    pub fn json(&self) -> serde_json::Value {
        json!({"pid": self.pid, "name": self.name, "why": self.why})
    }
}

#[derive(Debug, Default)]
pub struct Seen {
    pub examined: u64,
    pub users: Vec<Occupant>,
    pub containers: Vec<Occupant>,
    pub gpus: Vec<Occupant>,
}

impl Seen {
    pub fn all(self) -> Vec<Occupant> {
        let mut all: Vec<_> = self.users.into_iter().chain(self.containers).chain(self.gpus).collect();
        all.sort_by_key(|one| one.pid);
        all.dedup_by_key(|one| one.pid);
        all
    }
}

/// Looks at every process once.
pub fn look(host: &Host, who: &Who) -> io::Result<Seen> {
    let proc = host.path("/proc");
    let own_container = std::fs::read_to_string(proc.join("self/cgroup")).ok().and_then(|text| container(&text));
    let (mut seen, own) = (Seen::default(), std::process::id().to_string());
    let live = host.shows_live_processes();
    for entry in std::fs::read_dir(&proc)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        if live && name == own.as_str() {
            seen.examined += 1;
            continue;
        }
        // one that ends while it is being read is no trouble
        match judge(&entry.path(), pid, who, own_container.as_deref(), &mut seen) {
            Err(error) if !gone(&error) => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    if seen.examined == 0 {
        return Err(io::Error::other("there is not one process in /proc"));
    }
    Ok(seen)
}

fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

fn judge(folder: &Path, pid: i32, who: &Who, own: Option<&str>, seen: &mut Seen) -> io::Result<()> {
    let status = std::fs::read(folder.join("status"))?;
    let status = String::from_utf8_lossy(&status);
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    // dead, and only its parent can bury it
    if field("State:").is_some_and(|state| state.starts_with(['Z', 'X'])) {
        return Ok(());
    }
    seen.examined += 1;
    let uids: Vec<u32> =
        field("Uid:").unwrap_or_default().split_whitespace().filter_map(|uid| uid.parse().ok()).collect();
    if uids.is_empty() {
        return Err(io::Error::other(format!("process {pid} has no user")));
    }
    let name = field("Name:").unwrap_or("?").escape_default().to_string();
    let one = |why: String| -> io::Result<Occupant> {
        Ok(Occupant { pid, started: started(folder)?, name: name.clone(), why })
    };
    let cgroups = std::fs::read_to_string(folder.join("cgroup")).unwrap_or_default();
    // who logged in is remembered by the kernel even after sudo
    let login = std::fs::read_to_string(folder.join("loginuid")).ok().and_then(|uid| uid.trim().parse().ok());
    let slice =
        cgroups.split(['/', '\n']).find_map(|part| part.strip_prefix("user-")?.strip_suffix(".slice")?.parse().ok());
    if let Some(uid) = uids.iter().copied().chain(login).chain(slice).find(|uid| who.is_tenant(*uid)) {
        seen.users.push(one(format!("of user {uid}"))?);
    }
    let container = container(&cgroups).filter(|name| Some(name.as_str()) != own);
    if let Some(container) = &container {
        seen.containers.push(one(format!("in container {}", container.escape_default()))?);
    }
    if let Some(device) = gpu_device(folder)? {
        let program = std::fs::read_link(folder.join("exe")).unwrap_or_default();
        let service =
            program.file_name().and_then(|name| name.to_str()).is_some_and(|name| GPU_SERVICES.contains(&name));
        let tenant = container.is_some() || uids.iter().any(|uid| who.is_tenant(*uid));
        if !service || tenant {
            seen.gpus.push(one(format!("holds {device}"))?);
        }
    }
    Ok(())
}

/// A kernel's count, the twenty-second field; the name before it may contain anything, so from its last bracket on.
fn started(folder: &Path) -> io::Result<u64> {
    let stat = std::fs::read(folder.join("stat"))?;
    let stat = String::from_utf8_lossy(&stat);
    let after = stat.rsplit_once(')').map(|(_, after)| after).unwrap_or_default();
    after
        .split_whitespace()
        .nth(19)
        .and_then(|ticks| ticks.parse().ok())
        .ok_or_else(|| io::Error::other("no start time"))
}

fn gpu_device(folder: &Path) -> io::Result<Option<String>> {
    for entry in std::fs::read_dir(folder.join("fd"))? {
        let Ok(target) = std::fs::read_link(entry?.path()) else { continue };
        let Some(device) = target.as_os_str().as_bytes().strip_prefix(b"/dev/nvidia") else { continue };
        if device == b"-uvm" || device.first().is_some_and(u8::is_ascii_digit) {
            return Ok(Some(crate::host::shown(&target)));
        }
    }
    Ok(None)
}

/// The container that a process is in, by its control group, either version: each engine has its own habit.
fn container(cgroups: &str) -> Option<String> {
    for line in cgroups.lines() {
        let path = line.splitn(3, ':').nth(2).unwrap_or_default();
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        for (at, part) in parts.iter().enumerate() {
            let next = parts.get(at + 1).copied();
            let bare = part.strip_suffix(".scope").unwrap_or(part);
            let scoped = ["docker-", "libpod-", "crio-", "cri-containerd-", "nerdctl-", "lxc.payload.", "machine-"]
                .iter()
                .find_map(|head| bare.strip_prefix(head))
                .filter(|_| *part != "machine.slice" && !bare.starts_with("libpod-conmon-"));
            if let Some(name) = scoped {
                return Some(name.to_owned());
            }
            if part.starts_with("kubepods") {
                return Some(parts.last().copied().unwrap_or(part).to_owned());
            }
            if ["docker", "lxc", "lxc.payload", "containerd", "libpod_parent", "actions_job", "buildkit"].contains(part)
                && let Some(next) = next
            {
                return Some(next.to_owned());
            }
        }
    }
    None
}

/// Sends a signal to this very process; nothing where it is gone.
fn signal(host: &Host, one: &Occupant, signal: Signal) -> io::Result<Option<rustix::fd::OwnedFd>> {
    let Some(pid) = Pid::from_raw(one.pid) else { return Ok(None) };
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // looked at after it was taken hold of: now the number cannot become another process
    match started(&host.path(&format!("/proc/{}", one.pid))) {
        Ok(started) if started == one.started => {}
        Ok(_) => return Ok(None),
        Err(error) if gone(&error) => return Ok(None),
        Err(error) => return Err(error),
    }
    match pidfd_send_signal(&handle, signal) {
        Ok(()) => Ok(Some(handle)),
        Err(rustix::io::Errno::SRCH) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Ends them: asked first, then made to; each within the patience. Who survives that is found by the next look.
pub fn end(host: &Host, all: &[Occupant], patience: Duration, canceled: &dyn Fn() -> bool) -> io::Result<()> {
    if !host.shows_live_processes() {
        return Err(io::Error::other("these are not the processes of this machine: none was ended"));
    }
    for kind in [Signal::TERM, Signal::KILL] {
        let mut waiting = Vec::new();
        for one in all {
            waiting.extend(signal(host, one, kind)?);
        }
        let mut left = patience;
        while !waiting.is_empty() && !left.is_zero() && !canceled() {
            let slice = SLICE.min(left);
            let still: Vec<bool> = waiting
                .iter()
                .map(|one| exits_within(one, Duration::ZERO).map(|gone| !gone))
                .collect::<Result<_, _>>()?;
            let mut still = still.into_iter();
            waiting.retain(|_| still.next().unwrap_or(false));
            if let Some(first) = waiting.first() {
                exits_within(first, slice)?;
                left -= slice;
            }
        }
        if waiting.is_empty() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engines_containers_are_known_by_their_control_group() {
        let id = "4e38f4c8b5d3a0f1";
        for (path, name) in [
            (format!("0::/system.slice/docker-{id}.scope"), Some(id)),
            (format!("12:pids:/docker/{id}"), Some(id)),
            (format!("0::/machine.slice/libpod-{id}.scope/container"), Some(id)),
            (format!("0::/user.slice/user-1001.slice/user@1001.service/user.slice/libpod-{id}.scope"), Some(id)),
            (
                format!("0::/kubepods.slice/kubepods-besteffort.slice/cri-containerd-{id}.scope"),
                Some("cri-containerd-4e38f4c8b5d3a0f1.scope"),
            ),
            ("0::/lxc.payload.tenant/init.scope".to_owned(), Some("tenant")),
            ("0::/machine.slice/machine-qemu\\x2d1\\x2dvm.scope".to_owned(), Some("qemu\\x2d1\\x2dvm")),
            ("0::/system.slice/docker.service".to_owned(), None),
            ("0::/system.slice/containerd.service".to_owned(), None),
            ("0::/user.slice/user-0.slice/session-1.scope".to_owned(), None),
            ("0::/".to_owned(), None),
        ] {
            assert_eq!(container(&path).as_deref(), name, "{path}");
        }
    }

    #[test]
    fn service_users_and_nobody_are_no_tenants() {
        let who = Who { uid_min: 1000, kept: BTreeSet::from([1000]) };
        for (uid, tenant) in [
            (0, false),
            (999, false),
            (1000, false),
            (1001, true),
            (61_183, true),
            (61_184, false),
            (65_534, false),
            (65_536, true),
            (100_000, true),
            (u32::MAX, false),
        ] {
            assert_eq!(who.is_tenant(uid), tenant, "{uid}");
        }
    }
}
