//! Named probes of the machine's health. What cannot be known is not held against it, and says so.

use super::gpus::Seen;
use super::{read, system};
use crate::host::Host;
use proto::agent::v1::Probe;
use std::path::Path;

/// Fine, or not; and why.
type Verdict = Result<String, String>;

/// Every one of them.
const NAMES: [&str; 7] =
    ["disk_space", "disk_errors", "memory", "clock", "gpu_present", "gpu_ecc", "gpu_remapped_rows"];

/// All of them, while nobody can look: what is not known to be well must not pass for it by being left out.
pub fn unknown(why: &str) -> Vec<Probe> {
    NAMES.map(|name| Probe { name: name.to_owned(), ok: false, message: format!("not known: {why}") }).into()
}

pub fn probes(host: &Host, state: &Path, gpus: &Seen) -> Vec<Probe> {
    let verdicts: [Verdict; NAMES.len()] = [
        disk_space(host, state),
        disk_errors(host),
        memory(host),
        clock(host),
        gpu_present(gpus),
        gpu_ecc(gpus),
        gpu_remapped_rows(gpus),
    ];
    NAMES
        .into_iter()
        .zip(verdicts)
        .map(|(name, verdict)| {
            let ok = verdict.is_ok();
            let (Ok(message) | Err(message)) = verdict;
            Probe { name: name.to_owned(), ok, message }
        })
        .collect()
}

/// The root file system, and that of the agent's state: without it a task's outcome cannot be kept.
fn disk_space(host: &Host, state: &Path) -> Verdict {
    let mut told = Vec::new();
    for (what, path) in [("root", host.root()), ("state", state)] {
        match rustix::fs::statvfs(path) {
            Ok(stat) => {
                let free = stat.f_bavail.saturating_mul(stat.f_frsize);
                let total = stat.f_blocks.saturating_mul(stat.f_frsize);
                told.push(space(what, free, total, stat.f_ffree, stat.f_files)?);
            }
            Err(_) => told.push(format!("{what}: not known")),
        }
    }
    Ok(told.join("; "))
}

fn space(what: &str, free: u64, total: u64, free_files: u64, files: u64) -> Verdict {
    let mib = free >> 20;
    if total > 0 && (free < 256 << 20 || free < total / 50) {
        return Err(format!("{what}: only {mib} MiB of {} free", total >> 20));
    }
    // some file systems do not count
    if files > 0 && free_files < files / 100 {
        return Err(format!("{what}: only {free_files} of {files} files free"));
    }
    Ok(format!("{what}: {mib} MiB free"))
}

/// What file systems and mirrors have noted down themselves; a disk's own counters count what is no error, too.
fn disk_errors(host: &Host) -> Verdict {
    let ext4 = host.path("/sys/fs/ext4");
    for name in read::names(&ext4) {
        let errors = read::number::<u64>(&ext4.join(&name).join("errors_count")).unwrap_or_default();
        if errors > 0 {
            return Err(format!("{name}: its file system counts {errors} error(s); check it"));
        }
    }
    let block = host.path("/sys/block");
    for name in read::names(&block).iter().filter(|name| name.starts_with("md")) {
        let missing = read::number::<u64>(&block.join(name).join("md/degraded")).unwrap_or_default();
        if missing > 0 {
            return Err(format!("{name}: {missing} disk(s) of the array are missing"));
        }
    }
    Ok("none noted".to_owned())
}

fn memory(host: &Host) -> Verdict {
    let controllers = host.path("/sys/devices/system/edac/mc");
    let (mut corrected, mut counted) = (0u64, false);
    for name in read::names(&controllers).iter().filter(|name| name.starts_with("mc")) {
        let count = |file: &str| read::number::<u64>(&controllers.join(name).join(file));
        let uncorrected = count("ue_count").unwrap_or_default();
        if uncorrected > 0 {
            return Err(format!("{name}: {uncorrected} uncorrected error(s) since boot"));
        }
        counted |= count("ce_count").is_some();
        corrected = corrected.saturating_add(count("ce_count").unwrap_or_default());
    }
    let lines = read::lines(&host.path("/proc/meminfo"));
    let errors = if counted { format!(", {corrected} corrected error(s)") } else { String::new() };
    match (system::meminfo(&lines, "MemAvailable"), system::meminfo(&lines, "MemTotal")) {
        (Some(available), Some(total)) if available < total / 50 => {
            Err(format!("only {} MiB of {} available", available >> 20, total >> 20))
        }
        (Some(available), Some(_)) => Ok(format!("{} MiB available{errors}", available >> 20)),
        _ => Ok(format!("how much is available is not known{errors}")),
    }
}

/// By the word of those who keep it; how far it is off is the server's to measure.
fn clock(host: &Host) -> Verdict {
    if host.path("/run/systemd/timesync/synchronized").exists() {
        return Ok("synchronised by systemd-timesyncd".to_owned());
    }
    // the folder is there while the service runs
    if host.path("/run/systemd/timesync").is_dir() {
        return Err("systemd-timesyncd runs, and has not synchronised the clock since boot".to_owned());
    }
    let others = [("/run/chrony", "chronyd"), ("/run/chrony.pid", "chronyd"), ("/run/ntpd.pid", "ntpd")];
    match others.into_iter().find(|(path, _)| host.path(path).exists()) {
        Some((_, who)) => Ok(format!("not known: kept by {who}")),
        None => Ok("not known: nobody is seen to keep it".to_owned()),
    }
}

/// A driver that hangs says nothing bad of its GPUs.
fn answered(seen: &Seen) -> Result<(), String> {
    if seen.unanswered { Err("not known: the GPUs have not answered".to_owned()) } else { Ok(()) }
}

fn gpu_present(seen: &Seen) -> Verdict {
    let gpus = &seen.gpus.gpus;
    if !seen.missing.is_empty() {
        let note = seen.gpus.note.as_ref().map_or_else(String::new, |note| format!(" ({note})"));
        return Err(format!("gone since the baseline was recorded: {}{note}", seen.missing.join(", ")));
    }
    answered(seen)?;
    if let Some((gpu, fault)) = gpus.iter().find_map(|gpu| Some((gpu, gpu.fault.as_ref()?))) {
        return Err(format!("GPU {}: {fault}", gpu.index));
    }
    // one that was given away to a guest is its business
    let ours = |driver: Option<&str>| !matches!(driver, Some("vfio-pci"));
    let mut unseen = seen.on_bus.iter().filter(|on| ours(on.driver.as_deref()));
    if let Some(on) = unseen.find(|on| !gpus.iter().any(|gpu| gpu.pci_bus_id.as_ref() == Some(&on.address))) {
        let note = seen.gpus.note.as_deref().unwrap_or("it does not list it");
        return Err(format!("on the PCI bus at {}, but not under the driver: {note}", on.address));
    }
    match (gpus.len(), &seen.gpus.note) {
        (0, Some(note)) => Ok(format!("none: {note}")),
        (count, _) => Ok(format!("{count} there")),
    }
}

/// What computations have met since the last reset; what was repaired by one before is history.
fn gpu_ecc(seen: &Seen) -> Verdict {
    answered(seen)?;
    let mut told = 0;
    for gpu in &seen.gpus.gpus {
        let health = &gpu.health;
        if let Some(errors @ 1..) = health.ecc_uncorrected_since_reset {
            let life = health.ecc_uncorrected.unwrap_or(errors);
            let message =
                format!("GPU {}: {errors} uncorrected error(s) since its last reset, {life} in all", gpu.index);
            return Err(message);
        }
        told += usize::from(health.ecc_uncorrected_since_reset.is_some());
    }
    Ok(of_those(told, seen))
}

fn gpu_remapped_rows(seen: &Seen) -> Verdict {
    answered(seen)?;
    let mut told = 0;
    for gpu in &seen.gpus.gpus {
        if gpu.health.remapping_failed == Some(true) {
            return Err(format!("GPU {}: no spare row was left to remap to; replace it", gpu.index));
        }
        if gpu.health.remapping_pending == Some(true) {
            return Err(format!("GPU {}: a row waits to be remapped; reset the GPU, or reboot", gpu.index));
        }
        told += usize::from(gpu.health.remapping_failed.is_some());
    }
    Ok(of_those(told, seen))
}

fn of_those(told: usize, seen: &Seen) -> String {
    match seen.gpus.gpus.len() {
        0 => "no GPU is known".to_owned(),
        all if told == 0 => format!("not known: none of {all} GPU(s) tells"),
        all => format!("{told} of {all} GPU(s) tell, and are well"),
    }
}

#[cfg(test)]
mod tests;
