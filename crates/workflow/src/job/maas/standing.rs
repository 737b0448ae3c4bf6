//! What a stage on a MAAS stands on: its job, its site, and the machine upstream, with whose that is.

use super::super::hardware_of;
use super::super::stage::Sight;
use super::{JOB_ANNOTATION, Learned, Looked, MaasWish, NODE_ANNOTATION, fail, unread};
use domain::identity::{same_uuid, tells};
use domain::job_stage::JobKind;
use domain::maas::{self, MaasClass};
use domain::site::{Profile, Site};
use domain::stage::FailureClass;
use provider::{Maas, MaasMachine};
use std::sync::{Arc, Mutex, PoisonError};

/// What a stage stands on.
pub(super) struct Standing {
    pub sight: Sight,
    pub site: Site,
    pub profile: Profile,
    pub wish: MaasWish,
    pub learned: Learned,
    pub maas: Arc<dyn Maas>,
    /// What MAAS said of the machine in this look.
    pub said: Mutex<Option<String>>,
}

impl Standing {
    /// The same with what was learned since, in the same turn at the site.
    pub(super) fn since(&self, sight: Sight) -> Self {
        let mut learned = Learned::read(&sight.job.learned);
        if learned.system_id.is_empty() {
            learned.system_id.clone_from(&self.learned.system_id);
        }
        let (site, profile, wish) = (self.site.clone(), self.profile.clone(), self.wish.clone());
        Self { sight, site, profile, wish, learned, maas: self.maas.clone(), said: Mutex::new(None) }
    }

    pub(super) fn system_id(&self) -> &str {
        &self.learned.system_id
    }

    pub(super) fn node(&self) -> &str {
        self.sight.node.id.as_str()
    }

    /// The machine, which was there before: that it is not is a case of its own, and for a person. So is one that somebody
    /// else has; what they only pass through with it is waited for.
    pub(super) async fn machine(&self) -> Looked<MaasMachine> {
        let Some(machine) = self.read().await? else {
            return self.is_gone();
        };
        let passes = match machine.class() {
            MaasClass::Commissioning | MaasClass::Transitional => true,
            // what somebody else has deployed may be taken as it is; nothing is done there to what they only hold
            MaasClass::Deploying | MaasClass::Deployed => !self.learned.adopted_by.is_empty(),
            MaasClass::New | MaasClass::Ready | MaasClass::Allocated | MaasClass::Failed | MaasClass::Unknown => false,
        };
        match self.taken_by(&machine) {
            Some(_) if !passes => self.surprise(&machine, "ours or nobody's"),
            Some(_) | None => Ok(machine),
        }
    }

    /// Who else has it. One that bears our node's mark is ours, whoever's key has deployed it; one that bears another
    /// node's is not, and where nobody has said who we are there, nobody's is.
    pub(super) fn taken_by<'a>(&self, machine: &'a MaasMachine) -> Option<&'a str> {
        match machine.annotations.get(NODE_ANNOTATION) {
            Some(node) if node == self.node() => None,
            Some(other) => Some(other.as_str()),
            None => {
                let others = !machine.owner.is_empty() && machine.owner != self.learned.account;
                others.then_some(machine.owner.as_str())
            }
        }
    }

    /// Whether what is deployed there bears this job's mark, or was taken as it was found.
    pub(super) fn is_marked(&self, machine: &MaasMachine) -> bool {
        self.bears_mark(machine) || !self.learned.adopted_by.is_empty()
    }

    pub(super) fn bears_mark(&self, machine: &MaasMachine) -> bool {
        let job = self.sight.job.id.as_str();
        machine.annotations.get(JOB_ANNOTATION).is_some_and(|marked| marked == job)
    }

    /// Whether somebody had it deployed or allocated since it was ours, with the very key that is ours: a release takes our
    /// node's mark away, and nobody else sets it.
    pub(super) fn is_taken_anew(&self, machine: &MaasMachine) -> bool {
        let theirs = match machine.class() {
            MaasClass::Allocated | MaasClass::Deploying | MaasClass::Deployed => true,
            MaasClass::Failed => machine.status == maas::FAILED_DEPLOYMENT,
            MaasClass::New
            | MaasClass::Commissioning
            | MaasClass::Ready
            | MaasClass::Transitional
            | MaasClass::Unknown => false,
        };
        theirs && machine.annotations.get(NODE_ANNOTATION).is_none_or(|node| node != self.node())
    }

    /// The machine, after this job has deployed it and marked it. Whoever releases it takes the mark away.
    pub(super) async fn deployed_machine(&self) -> Looked<MaasMachine> {
        let machine = self.machine().await?;
        if machine.status == maas::DEPLOYED && !self.is_marked(&machine) {
            return self.surprise(&machine, "what this job has deployed");
        }
        Ok(machine)
    }

    /// Somebody has deleted it. It is made anew only from what a record is made from.
    pub(super) fn is_gone<T>(&self) -> Looked<T> {
        let (job, wish) = (&self.sight.job, &self.wish);
        let makes = match job.kind {
            JobKind::Onboarding(_) => wish.system_id.is_empty() && !wish.macs.is_empty() && wish.power.is_some(),
            JobKind::Drain | JobKind::Removal | JobKind::Decommission(_) => false,
        };
        let anew = match makes {
            true => format!("'millwright job restart_clean {} --reason WHY' makes it anew, ", job.id),
            false => String::new(),
        };
        let message = format!(
            "machine {} is not in the MAAS of site {} any more: somebody has deleted it; {anew}'millwright job cancel {}' calls the job off",
            self.system_id(),
            self.site.name,
            job.id
        );
        let code = match job.kind {
            JobKind::Onboarding(_) if !makes => "NOT_IN_MAAS",
            JobKind::Onboarding(_) | JobKind::Drain | JobKind::Removal | JobKind::Decommission(_) => "MACHINE_GONE",
        };
        fail(code, FailureClass::NeedsOperator, message)
    }

    /// What MAAS shows under our machine's id, as long as it is our machine.
    pub(super) async fn read(&self) -> Looked<Option<MaasMachine>> {
        let read = self.shown().await?;
        match read.as_ref().and_then(|machine| self.contradiction(machine)) {
            Some(why) => fail("WRONG_MACHINE", FailureClass::Conflict, why),
            None => Ok(read),
        }
    }

    /// What MAAS shows under our machine's id, whatever it is.
    pub(super) async fn shown(&self) -> Looked<Option<MaasMachine>> {
        if self.system_id().is_empty() {
            return Ok(None);
        }
        let read = self.maas.machine(self.system_id()).await.map_err(|e| unread(&e))?;
        let said = read.as_ref().map_or_else(|| "absent".to_owned(), MaasMachine::says);
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("MAAS: {said}"));
        Ok(read)
    }

    /// Whether what MAAS shows under our machine's id is another machine: read again before anything is done to it.
    pub(super) fn contradiction(&self, machine: &MaasMachine) -> Option<String> {
        let agent = self.sight.agent.as_ref().map(hardware_of).unwrap_or_default();
        let known = [
            (self.wish.serial_number.as_str(), self.wish.system_uuid.as_str()),
            (agent.serial_number.as_str(), agent.system_uuid.as_str()),
        ];
        for (serial, uuid) in known {
            if tells(serial) && tells(&machine.serial) && !serial.eq_ignore_ascii_case(&machine.serial) {
                return Some(self.is_another("serial number", serial, &machine.serial));
            }
            if !uuid.is_empty() && !machine.hardware_uuid.is_empty() && !same_uuid(uuid, &machine.hardware_uuid) {
                return Some(self.is_another("UUID", uuid, &machine.hardware_uuid));
            }
        }
        None
    }

    pub(super) fn is_another(&self, what: &str, ours: &str, theirs: &str) -> String {
        format!(
            "machine {} of site {} has the {what} {theirs:?}, where node {} has {ours:?}: it is another machine, and is left alone",
            self.system_id(),
            self.site.name,
            self.node()
        )
    }

    /// Somebody else did something that nobody here may take for ours.
    pub(super) fn surprise<T>(&self, machine: &MaasMachine, wanted: &str) -> Looked<T> {
        let owner = if machine.owner.is_empty() { "nobody" } else { machine.owner.as_str() };
        let job = &self.sight.job.id;
        let runs = matches!(machine.class(), MaasClass::Deploying | MaasClass::Deployed);
        let or = match self.taken_by(machine) {
            // what somebody else only holds is theirs: nobody's word has anything done to it
            Some(_) if !runs => String::new(),
            Some(_) | None => {
                format!(", or take it as it is: 'millwright job adopt_observed_state {job} --reason WHY'")
            }
        };
        let message = format!(
            "MAAS says {} and owned by {owner} of machine {} where {wanted} was expected: somebody else has moved it; settle that there, then 'millwright job resume {job}'{or}",
            machine.says(),
            machine.system_id,
        );
        fail("STATE_DISAGREES", FailureClass::Conflict, message)
    }

    /// Whether it is beyond what comes before a deployment, by this job's own doing or by somebody's word.
    pub(super) fn is_beyond(&self, machine: &MaasMachine) -> bool {
        let beyond = match machine.class() {
            MaasClass::Deploying | MaasClass::Deployed => true,
            MaasClass::Failed => machine.status == maas::FAILED_DEPLOYMENT,
            MaasClass::New
            | MaasClass::Commissioning
            | MaasClass::Ready
            | MaasClass::Allocated
            | MaasClass::Transitional
            | MaasClass::Unknown => false,
        };
        beyond && self.learned.is_ours()
    }
}
