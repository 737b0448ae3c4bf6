//! A machine is given back: released and erased as the site's policy says, switched off, its record kept or removed. Before
//! anything that cannot be undone its identity is read again, and that nobody uses it. What somebody else has taken
//! meanwhile is left alone.

use super::{Learned, Looked, OnMaas, Standing, asked, clear_or_lost, done, fail, waiting};
use domain::NodeId;
use domain::job::Job;
use domain::job_stage::{JobStage, Undo};
use domain::maas::{self, MaasPower};
use domain::node::{MaasRef, Node};
use domain::site::Erase;
use domain::stage::FailureClass;
use engine::{Acted, Failure, Look, Seen, StageCx};
use provider::{MaasMachine, Release};
use store::{job, node};

/// Statuses that MAAS releases from.
const RELEASABLE: [i64; 8] = [
    maas::DEPLOYED,
    maas::BROKEN,
    maas::DEPLOYING,
    maas::ALLOCATED,
    maas::FAILED_DEPLOYMENT,
    maas::RELEASING_FAILED,
    maas::FAILED_DISK_ERASING,
    maas::RESERVED,
];

impl OnMaas<'_> {
    pub(super) async fn released(&self, at: &Standing, cx: &StageCx) -> Looked<Look> {
        let Some(machine) = at.read().await? else {
            return match at.sight.job.kind.removes() {
                true => Ok(done("it is not in MAAS any more")),
                false => fail("MACHINE_GONE", FailureClass::NeedsOperator, at.gone()),
            };
        };
        if at.taken_by(&machine).is_some() {
            // nobody's word has somebody else's machine erased
            return at.surprise(&machine, "ours");
        }
        match machine.status {
            maas::READY | maas::NEW => Ok(done(format!("MAAS says {}", machine.status_name))),
            maas::RELEASING | maas::DISK_ERASING => Ok(waiting(format!("MAAS: {}", machine.says()), cx).into()),
            maas::FAILED_DISK_ERASING | maas::RELEASING_FAILED if cx.acted => {
                let message = format!(
                    "MAAS says {} of machine {}: what was on its disks may still be there; look at its release results in MAAS, then 'millwright job retry_stage {}'",
                    machine.status_name, machine.system_id, at.sight.job.id
                );
                fail("ERASE_FAILED", FailureClass::Hardware, message)
            }
            status if RELEASABLE.contains(&status) => {
                self.may_destroy(at, &machine).await?;
                Ok(clear_or_lost(cx, "its release").into())
            }
            _ => at.surprise(&machine, "a machine that can be released"),
        }
    }

    /// The last word before what cannot be undone.
    async fn may_destroy(&self, at: &Standing, machine: &MaasMachine) -> Looked<()> {
        if machine.locked {
            let message = format!("machine {} is locked in MAAS: unlock it there, then try again", machine.system_id);
            return fail("LOCKED", FailureClass::NeedsOperator, message);
        }
        let placed = self.work.hands.allocations.on(&at.sight.node.id).await.map_err(|e| super::failed(&e))?;
        if !placed.is_empty() {
            let message = format!("{} is still placed on node {}", placed.join(", "), at.sight.node.id);
            return fail("STILL_ASSIGNED", FailureClass::NeedsOperator, message);
        }
        if !at.sight.job.is_done(JobStage::DrainNode) {
            let message = format!("node {} was not drained by this job", at.sight.node.id);
            return fail("NOT_DRAINED", FailureClass::NeedsOperator, message);
        }
        Ok(())
    }

    pub(super) async fn release(&self, at: &Standing) -> Acted {
        let machine = match at.machine().await {
            Ok(machine) if at.taken_by(&machine).is_none() => machine,
            Ok(machine) => return at.surprise(&machine, "ours").map_or_else(super::prepare::unmoved, |()| Acted::Yes),
            Err(stopped) => return super::prepare::unmoved(stopped),
        };
        if let Err(stopped) = self.may_destroy(at, &machine).await {
            return super::prepare::unmoved(stopped);
        }
        let comment = format!("millwright job {}", at.sight.job.id);
        asked(at.maas.release(at.system_id(), &Release { erase: at.site.policy.erase, comment }).await)
    }

    pub(super) async fn powered_off(&self, at: &Standing, cx: &StageCx) -> Looked<Look> {
        let Some(machine) = at.read().await? else { return Ok(done("it is not in MAAS any more")) };
        if let Some(owner) = at.taken_by(&machine) {
            return Ok(done(format!("left alone: {owner} has it in MAAS now")));
        }
        // also where somebody has vouched for its release: what MAAS is at is not cut short
        if matches!(machine.status, maas::RELEASING | maas::DISK_ERASING) {
            return Ok(waiting(format!("MAAS: {}", machine.says()), cx).into());
        }
        let power = at.maas.power_now(at.system_id()).await.map_err(|e| super::unread(&e))?;
        Ok(match power {
            MaasPower::Off => done("it is off"),
            MaasPower::Unknown if machine.power_type == "manual" => done("MAAS does not drive its power"),
            MaasPower::On | MaasPower::Unknown | MaasPower::Error => clear_or_lost(cx, "its switching off").into(),
        })
    }

    pub(super) async fn record_gone(&self, at: &Standing, cx: &StageCx) -> Looked<Look> {
        if at.site.policy.keep_record {
            return Ok(done("kept in MAAS, as the site's policy says"));
        }
        let Some(machine) = at.read().await? else { return Ok(done("it is not in MAAS any more")) };
        if let Some(owner) = at.taken_by(&machine) {
            return Ok(done(format!("left alone: {owner} has it in MAAS now")));
        }
        if let Some(other) = self.is_anothers(at).await? {
            return Ok(done(format!("left alone: it is node {other} by now")));
        }
        if matches!(machine.status, maas::RELEASING | maas::DISK_ERASING) {
            return Ok(waiting(format!("MAAS: {}", machine.says()), cx).into());
        }
        Ok(clear_or_lost(cx, "the removal of its record").into())
    }

    /// The node that the machine has become since ours is gone.
    async fn is_anothers(&self, at: &Standing) -> Looked<Option<NodeId>> {
        let place = MaasRef { site: at.site.name.clone(), system_id: at.system_id().to_owned() };
        let read = self.work.store.read(move |tx| tx.point(&node::by_maas(&place)));
        let there = read.await.map_err(|e| super::failed(&e))?;
        Ok(there.map(|node| node.id).filter(|id| *id != at.sight.node.id))
    }

    /// Whose it is is read again: between a look and this somebody may have taken it.
    pub(super) async fn remove_record(&self, at: &Standing) -> Acted {
        match (at.read().await, self.is_anothers(at).await) {
            (Ok(Some(machine)), Ok(None)) if at.taken_by(&machine).is_none() => {
                asked(at.maas.delete(at.system_id()).await.map(drop))
            }
            // the next look says so
            (Ok(_), Ok(_)) => Acted::Yes,
            (Err(stopped), _) | (_, Err(stopped)) => super::prepare::unmoved(stopped),
        }
    }

    pub(super) async fn given_back(&self, undo: Undo, at: &Standing, cx: &StageCx) -> Looked<Seen> {
        let Some(machine) = at.read().await? else {
            if undo == Undo::RemoveCreated {
                self.forget(at).await?;
            }
            return Ok(Seen::Done("it is not in MAAS".to_owned()));
        };
        if let Some(owner) = at.taken_by(&machine) {
            return Ok(Seen::Done(format!("left alone: {owner} has it in MAAS now")));
        }
        let ours = at.learned.created || at.learned.is_ours();
        Ok(match undo {
            Undo::GiveBack => match machine.status {
                maas::COMMISSIONING if at.learned.commissioned => clear_or_lost(cx, "the end of its commissioning"),
                maas::RELEASING | maas::DISK_ERASING | maas::TESTING => {
                    waiting(format!("MAAS: {}", machine.says()), cx)
                }
                status if RELEASABLE.contains(&status) && ours => clear_or_lost(cx, "its release"),
                _ => Seen::Done(format!("MAAS says {}", machine.status_name)),
            },
            Undo::RemoveCreated if !at.learned.created => Seen::Done("its record was there before".to_owned()),
            Undo::RemoveCreated => clear_or_lost(cx, "the removal of its record"),
            Undo::LiftCordon | Undo::WithdrawBundle | Undo::CancelRun => {
                return fail("UNKNOWN_STAGE", FailureClass::NeedsOperator, "nothing of a MAAS");
            }
        })
    }

    /// Its record upstream is gone: whoever begins anew makes another one.
    async fn forget(&self, at: &Standing) -> Looked<()> {
        if at.system_id().is_empty() {
            return Ok(());
        }
        let written = self.work.write(|tx, there, of| {
            let learned = Learned { system_id: String::new(), created: false, ..Learned::read(&of.learned) };
            job::save(tx, &Job { learned: learned.text(), ..of })?;
            match there.maas.clone() {
                Some(place) => {
                    let maas = Some(MaasRef { system_id: String::new(), ..place });
                    node::save(tx, &Node { maas, ..there }).map(drop)
                }
                None => Ok(()),
            }
        });
        written.await.map(drop).map_err(|e| super::failed(&e).into())
    }

    pub(super) async fn give_back(&self, undo: Undo, at: &Standing) -> Acted {
        let machine = match at.read().await {
            Ok(Some(machine)) if at.taken_by(&machine).is_none() => machine,
            // the next look says so
            Ok(_) => return Acted::Yes,
            Err(stopped) => return super::prepare::unmoved(stopped),
        };
        let comment = format!("millwright job {}: taken back", at.sight.job.id);
        match (undo, machine.status) {
            (Undo::GiveBack, maas::COMMISSIONING) => asked(at.maas.abort(at.system_id(), &comment).await),
            // nobody has used what runs there
            (Undo::GiveBack, _) => {
                asked(at.maas.release(at.system_id(), &Release { erase: Erase::None, comment }).await)
            }
            (Undo::RemoveCreated, _) => asked(at.maas.delete(at.system_id()).await.map(drop)),
            (Undo::LiftCordon | Undo::WithdrawBundle | Undo::CancelRun, _) => {
                Acted::No(Failure::new("UNKNOWN_STAGE", FailureClass::NeedsOperator, "nothing of a MAAS"))
            }
        }
    }
}
