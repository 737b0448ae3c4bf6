//! What a look has shown, beside what was known: only what is new is written, and only while nobody else has looked since.

use super::look::Looked;
use crate::reconciler::Core;
use domain::maas_machine::{ObservedMachine, Sight, Told};
use domain::node::MaasRef;
use domain::{Error, Timestamp};
use std::collections::BTreeSet;
use std::time::Duration;
use store::{Caller, Tx, TxResult, execution, job, maas_machine, node, site, site_sight};

/// Rows that are written at a time, and read.
const BATCH: usize = 100;

/// So long people are told that a machine was there.
const ABSENT_FOR: Duration = Duration::from_secs(30 * 24 * 3600);

/// What became of a look.
pub(super) enum Recorded {
    /// These are new, or were another before.
    Kept(Vec<String>),
    /// The site is gone, or another server looks at it.
    Overtaken,
}

/// A machine as it is by now; `None`: nothing is new.
fn merged(at: MaasRef, known: Option<&ObservedMachine>, told: &Told, now: Timestamp) -> Option<ObservedMachine> {
    let Some(known) = known else {
        return Some(ObservedMachine {
            at,
            told: told.clone(),
            settled: None,
            first_seen_at: now,
            status_since: now,
            changed_at: now,
            absent_since: None,
        });
    };
    let back = known.absent_since.is_some();
    if known.told == *told && !back {
        return None;
    }
    // that it has reported again is no change of it
    let same = Told { last_sync: told.last_sync.clone(), ..known.told.clone() } == *told;
    Some(ObservedMachine {
        told: told.clone(),
        status_since: if back || known.told.status != told.status { now } else { known.status_since },
        changed_at: if back || !same { now } else { known.changed_at },
        absent_since: None,
        ..known.clone()
    })
}

/// One that is not there: known until now, or one that a node is said to run on.
fn absent(at: MaasRef, known: Option<&ObservedMachine>, now: Timestamp) -> Option<ObservedMachine> {
    match known {
        Some(known) if known.absent_since.is_some() => None,
        Some(known) => Some(ObservedMachine { absent_since: Some(now), changed_at: now, ..known.clone() }),
        None => Some(ObservedMachine {
            at,
            told: Told::default(),
            settled: None,
            first_seen_at: now,
            status_since: now,
            changed_at: now,
            absent_since: Some(now),
        }),
    }
}

struct Writer<'a> {
    core: &'a Core,
    site: &'a str,
    round: u64,
    changed: Vec<String>,
    waiting: Vec<ObservedMachine>,
}

impl Writer<'_> {
    fn at(&self, id: &str) -> MaasRef {
        MaasRef { site: self.site.to_owned(), system_id: id.to_owned() }
    }

    fn add(&mut self, machine: Option<ObservedMachine>) {
        self.waiting.extend(machine);
    }

    /// `false`: overtaken.
    async fn flush(&mut self) -> Result<bool, Error> {
        while !self.waiting.is_empty() {
            let rest = self.waiting.split_off(self.waiting.len().min(BATCH));
            let batch = std::mem::replace(&mut self.waiting, rest);
            self.changed.extend(batch.iter().map(|machine| machine.at.system_id.clone()));
            let (site, round) = (self.site.to_owned(), self.round);
            let write = move |tx: &mut Tx<'_>| {
                if !is_ours(tx, &site, round)? {
                    return Ok(false);
                }
                maas_machine::put(tx, &site, &batch)?;
                batch.iter().try_for_each(|machine| wake(tx, &machine.at))?;
                Ok(true)
            };
            if !self.core.store.write(&Caller::reconciler(), self.site, write).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Writer<'_> {
    /// What is long gone and no node's is not kept for ever. `false`: overtaken.
    async fn forget(&self, now: Timestamp) -> Result<bool, Error> {
        let (site, round) = (self.site.to_owned(), self.round);
        let write = move |tx: &mut Tx<'_>| {
            if !is_ours(tx, &site, round)? {
                return Ok(false);
            }
            maas_machine::forget_absent(tx, &site, now.minus(ABSENT_FOR))?;
            Ok(true)
        };
        self.core.store.write(&Caller::reconciler(), self.site, write).await
    }
}

/// A job that waits for its machine looks at once, and not when its time has come.
fn wake(tx: &mut Tx<'_>, at: &MaasRef) -> TxResult<()> {
    let Some(job) = tx.point(&node::by_maas(at))?.and_then(|node| node.active_job) else { return Ok(()) };
    match tx.point(&job::by_id(&job))?.filter(|job| job.status.is_under_way()) {
        Some(job) => execution::wake(tx, &job.execution_id),
        None => Ok(()),
    }
}

fn is_ours(tx: &mut Tx<'_>, site: &str, round: u64) -> TxResult<bool> {
    Ok(site::hold(tx, site)?.is_some() && site_sight::is_still(tx, site, round)?)
}

pub(super) async fn record(core: &Core, site: &str, looked: Looked, sight: &Sight) -> Result<Recorded, Error> {
    let now = core.store.ambient().now();
    let mut writer = Writer { core, site, round: sight.round, changed: Vec::new(), waiting: Vec::new() };
    let whole = looked.whole;
    let mark = looked.mark.or(sight.event_mark);
    let kept = if whole { every(&mut writer, looked, now).await? } else { asked(&mut writer, looked, now).await? };
    if !kept {
        return Ok(Recorded::Overtaken);
    }
    let next = Sight {
        round: sight.round,
        observer: core.options.sweeper.clone(),
        last_poll_at: Some(now),
        last_list_at: if whole { Some(now) } else { sight.last_list_at },
        event_mark: mark,
        unreachable_since: None,
        unreachable_why: String::new(),
    };
    Ok(if put(core, site, next).await? { Recorded::Kept(writer.changed) } else { Recorded::Overtaken })
}

/// That a look has failed, and since when they do. `None`: somebody else has looked.
pub(super) async fn failed(core: &Core, site: &str, sight: &Sight, why: &str) -> Result<Option<Sight>, Error> {
    let now = core.store.ambient().now();
    let next = Sight {
        observer: core.options.sweeper.clone(),
        unreachable_since: sight.unreachable_since.or(Some(now)),
        unreachable_why: domain::limits::short(why),
        ..sight.clone()
    };
    Ok(put(core, site, next.clone()).await?.then_some(next))
}

async fn put(core: &Core, site: &str, next: Sight) -> Result<bool, Error> {
    let name = site.to_owned();
    let write = move |tx: &mut Tx<'_>| match site::hold(tx, &name)? {
        Some(_) => site_sight::put(tx, &name, &next),
        None => Ok(false),
    };
    core.store.write(&Caller::reconciler(), site, write).await
}

/// Those that were asked for by id.
async fn asked(writer: &mut Writer<'_>, looked: Looked, now: Timestamp) -> Result<bool, Error> {
    let ids: Vec<String> = looked.asked.iter().cloned().collect();
    for ids in ids.chunks(BATCH) {
        let refs: Vec<MaasRef> = ids.iter().map(|id| writer.at(id)).collect();
        let read = move |tx: &mut Tx<'_>| {
            let both = |at| Ok((tx.point(&maas_machine::by_ref(at))?, tx.point(&node::by_maas(at))?.is_some()));
            refs.iter().map(both).collect::<TxResult<Vec<_>>>()
        };
        let known = writer.core.store.read(read).await?;
        for (id, (known, of_node)) in ids.iter().zip(known) {
            let (at, known) = (writer.at(id), known.as_ref());
            writer.add(match looked.machines.get(id) {
                Some(told) => merged(at, known, told, now),
                // controllers have events, too, and are no machines
                None if known.is_none() && !of_node => None,
                None => absent(at, known, now),
            });
        }
        if !writer.flush().await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Everything that is known, page by page, and then what is left of the list.
async fn every(writer: &mut Writer<'_>, looked: Looked, now: Timestamp) -> Result<bool, Error> {
    let (mut after, mut known_ids) = (String::new(), BTreeSet::new());
    loop {
        let (site, from) = (writer.site.to_owned(), after.clone());
        let page = writer.core.store.read(move |tx| maas_machine::after(tx, &site, &from, BATCH)).await?;
        for known in &page {
            let at = known.at.clone();
            writer.add(match looked.machines.get(&known.at.system_id) {
                Some(told) => merged(at, Some(known), told, now),
                None => absent(at, Some(known), now),
            });
            known_ids.insert(known.at.system_id.clone());
        }
        if !writer.flush().await? {
            return Ok(false);
        }
        match page.last() {
            Some(last) if page.len() >= BATCH => after.clone_from(&last.at.system_id),
            Some(_) | None => break,
        }
    }
    for (id, told) in looked.machines.iter().filter(|(id, _)| !known_ids.contains(*id)) {
        let at = writer.at(id);
        writer.add(merged(at, None, told, now));
    }
    Ok(writer.flush().await? && writer.forget(now).await?)
}
