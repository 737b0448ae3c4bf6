//! Judges by the simulator's log alone what was done to machines by us. What it finds it says in words; nothing found is
//! an empty list.

use super::log::{Answered, By, Entry, Kind, Told};
use super::status;
use std::collections::{BTreeMap, BTreeSet};

/// Who we are, and what we may touch.
#[derive(Clone, Debug, Default)]
pub struct Ours {
    accounts: BTreeSet<String>,
    macs: Option<BTreeSet<String>>,
}

impl Ours {
    /// With this account, over the wire.
    pub fn account(name: &str) -> Self {
        Self { accounts: BTreeSet::from([name.to_owned()]), macs: None }
    }

    /// Only hardware with these MACs may be touched; without this, whatever belongs to nobody else.
    #[must_use]
    pub fn only_macs<I: IntoIterator<Item = S>, S: Into<String>>(mut self, macs: I) -> Self {
        self.macs = Some(macs.into_iter().map(Into::into).collect());
        self
    }

    fn did(&self, by: &By) -> bool {
        matches!(by, By::Account(name) if self.accounts.contains(name))
    }
}

/// What became of one machine, by the numbers of entries.
#[derive(Default)]
struct Track {
    by_us: bool,
    macs: Vec<(u64, Vec<String>)>,
    owner: Vec<(u64, Option<String>)>,
    status: Vec<(u64, u8)>,
    /// Who said last whose it is.
    claims: Vec<(u64, bool)>,
    /// Changes of what it is, of how it stands, of whose it is.
    changes: Vec<u64>,
    deleted: bool,
    /// Where we saw it, all of it, and the answer came.
    reads: Vec<u64>,
}

fn at<T>(history: &[(u64, T)], number: u64) -> Option<&T> {
    history.iter().rev().find(|(n, _)| *n <= number).map(|(_, value)| value)
}

/// A request of ours that changed something.
struct Act<'a> {
    number: u64,
    since: u64,
    method: &'a str,
    op: &'a str,
    system_id: &'a str,
}

struct Story<'a> {
    machines: BTreeMap<String, Track>,
    acts: Vec<Act<'a>>,
    /// Reads of everything.
    lists: Vec<u64>,
}

fn read<'a>(log: &'a [Entry], ours: &Ours) -> Story<'a> {
    let mut story = Story { machines: BTreeMap::new(), acts: Vec::new(), lists: Vec::new() };
    for entry in log {
        let number = entry.number;
        match &entry.kind {
            Kind::Created { system_id, macs } => {
                let track = story.machines.entry(system_id.clone()).or_default();
                track.by_us = ours.did(&entry.by);
                track.macs.push((number, macs.clone()));
                track.status.push((number, status::NEW));
                track.changes.push(number);
            }
            Kind::Identity { system_id, macs, .. } => {
                let track = story.machines.entry(system_id.clone()).or_default();
                track.macs.push((number, macs.clone()));
                track.changes.push(number);
            }
            Kind::Status { system_id, to, .. } => {
                let track = story.machines.entry(system_id.clone()).or_default();
                track.status.push((number, *to));
                track.changes.push(number);
            }
            Kind::Owner { system_id, owner } => {
                let track = story.machines.entry(system_id.clone()).or_default();
                track.owner.push((number, owner.clone()));
                track.changes.push(number);
            }
            Kind::Claim { system_id, ours } => {
                story.machines.entry(system_id.clone()).or_default().claims.push((number, *ours));
            }
            Kind::Deleted { system_id, .. } => story.machines.entry(system_id.clone()).or_default().deleted = true,
            Kind::Request { method, op, system_id, status, done, since, answered, told, .. } if ours.did(&entry.by) => {
                if method == "GET" && *status == 200 && *answered == Answered::Properly {
                    match told {
                        Told::Everything => story.lists.push(number),
                        Told::Machines(ids) => {
                            for id in ids {
                                story.machines.entry(id.clone()).or_default().reads.push(number);
                            }
                        }
                        Told::Nothing => {}
                    }
                }
                if *done {
                    story.acts.push(Act { number, since: *since, method, op, system_id });
                }
            }
            _ => {}
        }
    }
    story
}

/// Two machines at a time for one MAC, both made by us.
pub fn double_creates(log: &[Entry], ours: &Ours) -> Vec<String> {
    let mut holders: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut offences = Vec::new();
    for entry in log {
        match &entry.kind {
            Kind::Created { system_id, macs } if ours.did(&entry.by) => {
                for mac in macs {
                    let there = holders.entry(mac).or_default();
                    if let Some(other) = there.first() {
                        offences.push(format!(
                            "{}: we made {system_id} for {mac}, for which we had already made {other}",
                            entry.number
                        ));
                    }
                    there.push(system_id);
                }
            }
            Kind::Deleted { system_id, .. } => {
                holders.values_mut().for_each(|there| there.retain(|id| id != system_id));
            }
            _ => {}
        }
    }
    offences
}

/// What changes a machine, or what runs on it.
fn touches(act: &Act<'_>) -> bool {
    let harmless = ["set_workload_annotations", "update_nodes", "lock", "unlock"];
    match act.method {
        "DELETE" | "PUT" => true,
        "POST" => !act.op.is_empty() && !harmless.contains(&act.op),
        _ => false,
    }
}

/// Deployed, released, erased, removed or otherwise changed by us, and not ours: somebody else's, of another identity, or
/// said to be so by the test.
pub fn foreign(log: &[Entry], ours: &Ours) -> Vec<String> {
    let story = read(log, ours);
    let mut offences = Vec::new();
    for act in story.acts.iter().filter(|act| touches(act)) {
        let Some(track) = story.machines.get(act.system_id) else { continue };
        let what = if act.op.is_empty() { act.method } else { act.op };
        let mut offend = |why: String| offences.push(format!("{}: our {what} of {}, {why}", act.number, act.system_id));
        match at(&track.claims, act.since) {
            Some(false) => {
                offend("which is not ours".to_owned());
                continue;
            }
            Some(true) => continue,
            None => {}
        }
        if let Some(Some(owner)) = at(&track.owner, act.since)
            && !ours.accounts.contains(owner)
        {
            offend(format!("which belongs to {owner}"));
        }
        if let (Some(allowed), Some(macs)) = (&ours.macs, at(&track.macs, act.since))
            && !macs.iter().any(|mac| allowed.contains(mac))
        {
            offend(format!("which has {macs:?}: another machine than any of ours"));
        }
    }
    offences
}

/// Erased by us, and we had not looked at which machine it is since anything about it changed last.
pub fn unguarded_erases(log: &[Entry], ours: &Ours) -> Vec<String> {
    let story = read(log, ours);
    let mut offences = Vec::new();
    for act in &story.acts {
        let Some(track) = story.machines.get(act.system_id) else { continue };
        let within = |n: u64| n > act.since && n < act.number;
        if !track.status.iter().any(|(n, to)| within(*n) && *to == status::DISK_ERASING) {
            continue;
        }
        let changed = track.changes.iter().rev().find(|n| **n <= act.since).copied().unwrap_or(0);
        let guards = |reads: &[u64]| reads.iter().any(|n| *n > changed && *n <= act.since);
        if !guards(&track.reads) && !guards(&story.lists) {
            offences.push(format!(
                "{}: we erased {}, which had changed at {changed} and which we had not looked at since",
                act.number, act.system_id
            ));
        }
    }
    offences
}

/// Deployed by us onto something else than was laid out on its boot disk by us since, or with more links than one on the
/// interface that it boots from.
pub fn unprepared(log: &[Entry], ours: &Ours) -> Vec<String> {
    // by machine: whether what is on its disks is what we have laid out, on the disk that is booted from
    let mut laid: BTreeMap<&str, bool> = BTreeMap::new();
    let mut offences = Vec::new();
    for entry in log {
        let by_us = ours.did(&entry.by);
        match &entry.kind {
            // commissioning lays out its own default
            Kind::Status { system_id, from: status::COMMISSIONING, .. } => drop(laid.insert(system_id, false)),
            Kind::Request { op, system_id, done: true, .. } if by_us => match op.as_str() {
                "set_storage_layout" => drop(laid.insert(system_id, true)),
                "set_boot_disk" => drop(laid.insert(system_id, false)),
                _ => {}
            },
            Kind::Deploys { system_id, root_on_boot_disk, boot_links } if by_us => {
                let mut offend = |why: &str| offences.push(format!("{}: we deployed {system_id}, {why}", entry.number));
                if !laid.get(system_id.as_str()).copied().unwrap_or(false) {
                    offend("whose disks we had not laid out since they were last");
                }
                if !root_on_boot_disk {
                    offend("whose root is not on the disk that it boots from");
                }
                if *boot_links != 1 {
                    offend(&format!("whose interface that it boots from has {boot_links} links"));
                }
            }
            _ => {}
        }
    }
    offences
}

/// At the end: on the way to somewhere, or ours with nobody who claims it, or claimed and not there.
pub fn left_over(log: &[Entry], ours: &Ours, claimed: &BTreeSet<String>) -> Vec<String> {
    let story = read(log, ours);
    let mut offences = Vec::new();
    for (id, track) in story.machines.iter().filter(|(_, t)| !t.deleted && !t.status.is_empty()) {
        let stands = track.status.last().map_or(status::NEW, |(_, status)| *status);
        if status::is_intermediate(stands) {
            offences.push(format!("{id} is left {}", status::name(stands)));
        }
        if let Some((_, Some(owner))) = track.owner.last()
            && ours.accounts.contains(owner)
            && !claimed.contains(id)
        {
            offences.push(format!("{id} is left {} with us as its owner, and nobody claims it", status::name(stands)));
        }
    }
    for id in claimed {
        if story.machines.get(id).is_none_or(|track| track.deleted) {
            offences.push(format!("{id} is claimed and not there"));
        }
    }
    offences
}

/// Fallen for by us.
pub fn traps(log: &[Entry], ours: &Ours) -> Vec<String> {
    let fallen = log.iter().filter(|entry| ours.did(&entry.by));
    fallen
        .filter_map(|entry| match &entry.kind {
            Kind::Trap { system_id, what } => Some(format!("{}: {system_id} {what}", entry.number)),
            _ => None,
        })
        .collect()
}

/// All of the above but what is prepared: who deploys a machine as it stands asks for no layout.
pub fn everything(log: &[Entry], ours: &Ours, claimed: &BTreeSet<String>) -> Vec<String> {
    let mut offences = double_creates(log, ours);
    offences.extend(foreign(log, ours));
    offences.extend(unguarded_erases(log, ours));
    offences.extend(left_over(log, ours, claimed));
    offences.extend(traps(log, ours));
    offences
}
