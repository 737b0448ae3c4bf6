//! A machine is given back: released and erased as the site's policy says, switched off, its record kept or removed. Before
//! anything that cannot be undone its identity is read again, and that nobody uses it. What somebody else has taken
//! meanwhile is left alone.

use super::{Learned, Looked, OnMaas, Sight, Standing, asked, clear_or_lost, done, fail, part, part_in_hand, waiting};
use domain::NodeId;
use domain::job::Job;
use domain::job_stage::{JobStage, Undo};
use domain::maas::{self, MaasPower};
use domain::node::{MaasRef, Node};
use domain::site::Erase;
use domain::stage::FailureClass;
use engine::{Acted, Failure, Look, Seen, StageCx};
use provider::{MaasMachine, Release, ResultKind};
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

const TAKE: &str = "having it, to erase it";
const RELEASE: &str = "its release";

/// Whose it is by now, if it is not ours any more.
fn left_alone(at: &Standing, machine: &MaasMachine) -> Option<String> {
    match at.taken_by(machine) {
        Some(owner) => Some(format!("left alone: {owner} has it in MAAS now")),
        None if at.is_taken_anew(machine) => Some("left alone: somebody has had it deployed anew".to_owned()),
        None => None,
    }
}

fn erase_failed(at: &Standing, machine: &MaasMachine) -> Looked<Look> {
    let message = format!(
        "MAAS says {} of machine {}, and its erasure has failed: what was on its disks may still be there; look at its release results in MAAS, then 'millwright job retry_stage {}'",
        machine.status_name, machine.system_id, at.sight.job.id
    );
    fail("ERASE_FAILED", FailureClass::Hardware, message)
}

impl OnMaas<'_> {
    pub(super) async fn released(&self, at: &Standing, cx: &StageCx) -> Looked<Look> {
        let Some(machine) = at.read().await? else {
            return match at.sight.job.kind.removes() {
                true => Ok(done("it is not in MAAS any more")),
                false => at.is_gone(),
            };
        };
        if at.taken_by(&machine).is_some() {
            // nobody's word has somebody else's machine erased
            return at.surprise(&machine, "ours");
        }
        // what this job has ordered and not marked yet is its own; and a person may say that it is to go all the same
        let ours = (!at.learned.ordered.is_empty() && !at.learned.marked) || !at.learned.adopted_by.is_empty();
        if at.is_taken_anew(&machine) && machine.status != maas::ALLOCATED && !ours {
            return at.surprise(&machine, "what was deployed for this node");
        }
        match machine.status {
            maas::READY | maas::NEW if self.is_erased(at).await? => {
                Ok(done(format!("MAAS says {}", machine.status_name)))
            }
            // it came to its end, and badly: once more would be without end
            maas::READY if at.learned.erases && cx.acted && part_in_hand(cx) == RELEASE => erase_failed(at, &machine),
            maas::READY => {
                self.may_destroy(at, &machine).await?;
                Ok(part(&cx.facts, TAKE, cx))
            }
            maas::NEW => {
                let message = format!(
                    "machine {0} is New in MAAS: somebody has given it back there, and nothing says that its disks were erased, as the site's policy asks; commission it in MAAS, then 'millwright job retry_stage {1}' erases it; where that cannot be, 'millwright job adopt_observed_state {1} --reason WHY' vouches for it, if the node goes for good",
                    machine.system_id, at.sight.job.id
                );
                fail("NOT_ERASED", FailureClass::NeedsOperator, message)
            }
            maas::RELEASING | maas::DISK_ERASING => Ok(waiting(format!("MAAS: {}", machine.says()), cx).into()),
            maas::FAILED_DISK_ERASING | maas::RELEASING_FAILED if cx.acted => erase_failed(at, &machine),
            status if RELEASABLE.contains(&status) => {
                self.may_destroy(at, &machine).await?;
                Ok(part(&cx.facts, RELEASE, cx))
            }
            _ => at.surprise(&machine, "a machine that can be released"),
        }
    }

    /// Whether nothing is left to erase on a machine that is nobody's: this job has had it erased, and MAAS shows no failure
    /// of that. That it is Ready says nothing: whoever else has released it may have left its disks as they were.
    async fn is_erased(&self, at: &Standing) -> Looked<bool> {
        // no system of ours ever came up there
        if at.site.policy.erase == Erase::None || at.sight.agent.is_none() {
            return Ok(true);
        }
        if !at.learned.erases {
            return Ok(false);
        }
        let results =
            at.maas.results(at.system_id(), ResultKind::Release, false).await.map_err(|e| super::unread(&e))?;
        Ok(!results.iter().any(|result| super::failure::is_bad(result.status)))
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

    /// Only what somebody has can be released, and erased by that: what is nobody's is had first.
    pub(super) async fn release(&self, at: &Standing, cx: &StageCx) -> Acted {
        let machine = match at.machine().await {
            Ok(machine) if at.taken_by(&machine).is_none() => machine,
            Ok(machine) => return at.surprise(&machine, "ours").map_or_else(super::unmoved, |()| Acted::Yes),
            Err(stopped) => return super::unmoved(stopped),
        };
        if let Err(stopped) = self.may_destroy(at, &machine).await {
            return super::unmoved(stopped);
        }
        let comment = format!("millwright job {}", at.sight.job.id);
        let wanted = part_in_hand(cx) == TAKE && machine.status == maas::READY
            || part_in_hand(cx) != TAKE && RELEASABLE.contains(&machine.status);
        if !wanted {
            // MAAS says yes to the release of what is released, and erases nothing by that
            return super::not_yet(format!("MAAS: {}", machine.says()));
        }
        if part_in_hand(cx) == TAKE {
            let agent_name = format!("millwright {}", at.sight.node.id);
            return asked(at.maas.allocate(at.system_id(), &agent_name, &comment).await);
        }
        if let Err(failure) = self.learn(at, |learned| learned.erases = true).await {
            return Acted::No(failure);
        }
        let release = Release { erase: at.site.policy.erase, comment };
        self.unless_sent(at, asked(at.maas.release(at.system_id(), &release).await)).await
    }

    pub(super) async fn powered_off(&self, at: &Standing, cx: &StageCx) -> Looked<Look> {
        let Some(machine) = at.read().await? else { return Ok(done("it is not in MAAS any more")) };
        if let Some(owner) = left_alone(at, &machine) {
            return Ok(done(owner));
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
        if let Some(owner) = left_alone(at, &machine) {
            return Ok(done(owner));
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
            (Ok(Some(machine)), Ok(None)) if left_alone(at, &machine).is_none() => {
                asked(at.maas.delete(at.system_id()).await.map(drop))
            }
            // the next look says so
            (Ok(_), Ok(_)) => Acted::Yes,
            (Err(stopped), _) | (_, Err(stopped)) => super::unmoved(stopped),
        }
    }

    /// What an undo finds. Whoever begins anew, or onboards the machine as another node, finds it by what it is known by.
    pub(super) async fn given_back(&self, undo: Undo, at: &Standing, cx: &StageCx) -> Looked<Seen> {
        let seen = self.is_given_back(undo, at, cx).await?;
        if undo == Undo::RemoveCreated && matches!(seen, Seen::Done(_)) {
            self.forget(&at.sight).await?;
        }
        Ok(seen)
    }

    async fn is_given_back(&self, undo: Undo, at: &Standing, cx: &StageCx) -> Looked<Seen> {
        let Some(machine) = at.shown().await? else { return self.never_heard_of(undo, at, cx).await };
        if let Some(why) = at.contradiction(&machine) {
            return Ok(Seen::Done(why));
        }
        if let Some(owner) = at.taken_by(&machine) {
            return Ok(Seen::Done(format!("left alone: {owner} has it in MAAS now")));
        }
        // what somebody else has deployed, and a person took as it was, is theirs to release; and so is what was released
        // since it was ours
        if at.learned.marked && at.is_taken_anew(&machine) {
            return Ok(Seen::Done("left alone: somebody has had it deployed anew".to_owned()));
        }
        let ours = at.learned.created || !at.learned.ordered.is_empty();
        Ok(match undo {
            Undo::GiveBack => match machine.status {
                maas::COMMISSIONING if at.learned.commissioned => clear_or_lost(cx, "the end of its commissioning"),
                maas::RELEASING | maas::DISK_ERASING | maas::TESTING => {
                    waiting(format!("MAAS: {}", machine.says()), cx)
                }
                // somebody's mark, which a release would take away
                maas::BROKEN => Seen::Done("MAAS says Broken: somebody has marked it so".to_owned()),
                status if RELEASABLE.contains(&status) && ours => clear_or_lost(cx, "its release"),
                // an order of which nothing was heard
                maas::READY if !at.learned.ordered.is_empty() && self.may_still_come(at) => {
                    waiting("what was ordered, which may still come", cx)
                }
                _ => Seen::Done(format!("MAAS says {}", machine.status_name)),
            },
            Undo::RemoveCreated if !at.learned.created => Seen::Done("its record was there before".to_owned()),
            Undo::RemoveCreated => clear_or_lost(cx, "the removal of its record"),
            Undo::LiftCordon | Undo::WithdrawBundle | Undo::CancelRun => {
                return fail("UNKNOWN_STAGE", FailureClass::NeedsOperator, "nothing of a MAAS");
            }
        })
    }

    /// No record of it is known; one that was asked for, and of which nothing was heard, may be there or come.
    async fn never_heard_of(&self, undo: Undo, at: &Standing, cx: &StageCx) -> Looked<Seen> {
        if undo == Undo::RemoveCreated {
            if self.made_unheard(at).await?.is_some() {
                return Ok(clear_or_lost(cx, "the removal of its record"));
            }
            if self.may_still_come(at) {
                return Ok(waiting("its record, which was asked for and may still come", cx));
            }
        }
        Ok(Seen::Done("it is not in MAAS".to_owned()))
    }

    /// The node has no machine there any more.
    pub(in crate::job) async fn forget(&self, sight: &Sight) -> Result<(), Failure> {
        let placed = sight.node.maas.as_ref().is_some_and(|place| !place.system_id.is_empty());
        if !placed && Learned::read(&sight.job.learned).system_id.is_empty() {
            return Ok(());
        }
        let written = self.work.write(|tx, there, of| {
            let before = Learned::read(&of.learned);
            let learned = Learned { system_id: String::new(), created: false, sent_at_us: None, ..before };
            job::save(tx, &Job { learned: learned.text(), ..of })?;
            match there.maas.clone() {
                Some(place) => {
                    let maas = Some(MaasRef { system_id: String::new(), ..place });
                    node::save(tx, &Node { maas, ..there }).map(drop)
                }
                None => Ok(()),
            }
        });
        written.await.map(drop).map_err(|e| super::failed(&e))
    }

    pub(super) async fn give_back(&self, undo: Undo, at: &Standing) -> Acted {
        let machine = match at.read().await {
            Ok(Some(machine)) if at.taken_by(&machine).is_none() => machine,
            Ok(None) if undo == Undo::RemoveCreated => {
                return match self.made_unheard(at).await {
                    Ok(Some(made)) => asked(at.maas.delete(&made.system_id).await.map(drop)),
                    // the next look says so
                    Ok(None) => Acted::Yes,
                    Err(stopped) => super::unmoved(stopped),
                };
            }
            // the next look says so
            Ok(_) => return Acted::Yes,
            Err(stopped) => return super::unmoved(stopped),
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
