//! What of a MAAS's word about a node's machine does not belong there: pure, from what was seen last. Nothing follows from
//! it but findings, and a finding goes only when its contrary was seen.

use crate::finding::FindingKind;
use crate::id::NodeId;
use crate::job::JobStatus;
use crate::job_stage::JobStage;
use crate::maas::{self, MaasClass, Upstream};
use crate::maas_machine::{Identifier, ObservedMachine};
use crate::node::{MaasRef, NodeStatus};
use crate::time::Timestamp;
use std::time::Duration;

/// So long after we ourselves had to do with a node, nothing is said: what was seen may be from before.
pub const GRACE: Duration = Duration::from_secs(60);

/// What of a node is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfNode {
    pub id: NodeId,
    pub status: NodeStatus,
    pub status_changed_at: Timestamp,
}

/// What of a job is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfJob {
    pub status: JobStatus,
    pub stage: Option<JobStage>,
}

impl OfJob {
    /// What its stage expects of the machine; `None`: the stage is not about that.
    fn expects(self) -> Option<&'static [MaasClass]> {
        match self.stage? {
            JobStage::Maas(stage) => Some(stage.expects()).filter(|classes| !classes.is_empty()),
            JobStage::WaitForAgentEnrollment | JobStage::LinkMachine | JobStage::CheckHealth => {
                Some(&[MaasClass::Deployed])
            }
            JobStage::RepaveMachine
            | JobStage::DisableNode
            | JobStage::ForceReleaseAllocations
            | JobStage::DrainNode
            | JobStage::CleanupStorage
            | JobStage::ScrubGpu
            | JobStage::ValidateCleanNode
            | JobStage::RetireGpuaasNode
            | JobStage::RemoveGpuaasNodeRecord
            | JobStage::CleanupSecrets => None,
        }
    }
}

/// A node, what its MAAS says of its machine, and what is being done about it.
#[derive(Clone, Debug)]
pub struct Beheld<'a> {
    pub node: &'a OfNode,
    pub machine: &'a ObservedMachine,
    /// The one that has not ended.
    pub job: Option<OfJob>,
    /// When the node last moved or a job of it last ended.
    pub quiet_since: Timestamp,
    /// What its machine has in common with others.
    pub shared: &'a [(Identifier, String, MaasRef)],
    pub now: Timestamp,
}

/// What is to be said of a kind of trouble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is there, in a sentence.
    Found(String),
    /// It was seen to be gone.
    Gone(String),
}

impl Beheld<'_> {
    /// A job is at it now, or we were just there: what is seen upstream is our own doing, or about to be.
    pub fn is_ours(&self) -> bool {
        self.job.is_some_and(|job| job.status.is_under_way()) || self.now.since(self.quiet_since) < GRACE
    }

    /// What there is to say. What is not mentioned stays as it was.
    pub fn verdicts(&self) -> Vec<(FindingKind, Verdict)> {
        if self.is_ours() {
            return Vec::new();
        }
        let mut all = vec![
            (FindingKind::MaasMachineGone, self.gone()),
            (FindingKind::MaasStatusUnknown, unknown(self.machine)),
            (FindingKind::MaasDuplicate, duplicate(self.machine, self.shared)),
        ];
        match self.job {
            None => {
                all.push((FindingKind::MaasDrift, self.drift()));
                all.extend(self.changed().map(|verdict| (FindingKind::MaasChanged, verdict)));
            }
            // how it was before is the job's own doing; what belongs to the stage it stands still at is known
            Some(job) => all.extend(self.drift_from(job).map(|verdict| (FindingKind::MaasDrift, verdict))),
        }
        all
    }

    fn says(&self) -> String {
        let (machine, told) = (self.machine, &self.machine.told);
        format!("{} is {} since {}", machine.at, told.says(), machine.status_since)
    }

    fn gone(&self) -> Verdict {
        let (node, at) = (self.node, &self.machine.at);
        match self.machine.absent_since {
            Some(since) if !maas::is_expected(node.status, Upstream::Absent) => Verdict::Found(format!(
                "node {} is {}, and its machine {at} ({}) is not in MAAS any more since {since}; it was {} before",
                node.id,
                node.status,
                self.machine.told.hostname,
                self.machine.told.says(),
            )),
            Some(_) => Verdict::Gone(format!("a node that is {} needs no machine", node.status)),
            None => Verdict::Gone(format!("MAAS has it: {}", self.says())),
        }
    }

    fn drift(&self) -> Verdict {
        let (node, seen) = (self.node, self.machine.upstream());
        match seen {
            // each has a finding of its own
            Upstream::Absent => Verdict::Gone("its machine is not in MAAS any more".to_owned()),
            Upstream::There { class: MaasClass::Unknown, .. } => {
                Verdict::Gone("MAAS says a status that is not known".to_owned())
            }
            Upstream::There { class, .. } if !maas::is_expected(node.status, seen) => Verdict::Found(format!(
                "node {} is {} since {}, and its machine {}: {class} does not belong to that",
                node.id,
                node.status,
                node.status_changed_at,
                self.says(),
            )),
            Upstream::There { .. } => Verdict::Gone(format!("{}, which belongs to {}", self.says(), node.status)),
        }
    }

    fn drift_from(&self, job: OfJob) -> Option<Verdict> {
        let (expected, stage) = (job.expects()?, job.stage?);
        match self.machine.upstream() {
            Upstream::Absent | Upstream::There { class: MaasClass::Unknown, .. } => None,
            Upstream::There { class, .. } if !expected.contains(&class) => Some(Verdict::Found(format!(
                "the job of node {} stands still at {stage}, and its machine {}: {class} does not belong to that; somebody else has moved it",
                self.node.id,
                self.says(),
            ))),
            Upstream::There { .. } => Some(Verdict::Gone(format!("{}, which belongs to {stage}", self.says()))),
        }
    }

    /// `None`: there is nothing to compare with, or nothing to compare.
    fn changed(&self) -> Option<Verdict> {
        let before = self.machine.settled.as_ref()?;
        if self.machine.absent_since.is_some() {
            return None;
        }
        let changes = before.changes(&self.machine.told.traits());
        Some(match changes.is_empty() {
            true => Verdict::Gone(format!("{} is as it was", self.machine.at)),
            false => Verdict::Found(format!(
                "the machine {} of node {} was changed in MAAS, seen at {}: {}",
                self.machine.at,
                self.node.id,
                self.machine.changed_at,
                changes.join(", ")
            )),
        })
    }
}

pub fn unknown(machine: &ObservedMachine) -> Verdict {
    let (at, told) = (&machine.at, &machine.told);
    match machine.upstream() {
        Upstream::There { class: MaasClass::Unknown, .. } => Verdict::Found(format!(
            "{at} ({}) has the status {} ({:?}) since {}, which this version does not know",
            told.hostname, told.status, told.status_name, machine.status_since
        )),
        Upstream::There { .. } => Verdict::Gone(format!("it is {}", told.says())),
        Upstream::Absent => Verdict::Gone("it is not in MAAS any more".to_owned()),
    }
}

pub fn duplicate(machine: &ObservedMachine, shared: &[(Identifier, String, MaasRef)]) -> Verdict {
    if shared.is_empty() || machine.absent_since.is_some() {
        return Verdict::Gone(format!("{} shares nothing with another machine that is there", machine.at));
    }
    let each: Vec<String> =
        shared.iter().map(|(kind, value, other)| format!("{} {value} with {other}", kind.as_str())).collect();
    Verdict::Found(format!("{} ({}) shares {}", machine.at, machine.told.hostname, each.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::State as _;
    use crate::maas::STATUSES;
    use crate::maas_machine::Told;
    use crate::maas_stage::MaasStage;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn node(status: NodeStatus) -> OfNode {
        OfNode { id: NodeId::from_text("nod_1"), status, status_changed_at: at(0) }
    }

    fn machine(status: i64) -> ObservedMachine {
        ObservedMachine {
            at: MaasRef { site: "lab".into(), system_id: "abc123".into() },
            told: Told { status, power_state: "on".into(), hostname: "gpu-1".into(), ..Told::default() },
            settled: None,
            first_seen_at: at(0),
            status_since: at(0),
            changed_at: at(0),
            absent_since: None,
        }
    }

    fn judged(
        node: &OfNode,
        machine: &ObservedMachine,
        job: Option<JobStatus>,
        quiet: i64,
    ) -> Vec<(FindingKind, Verdict)> {
        let job = job.map(|status| OfJob { status, stage: None });
        Beheld { node, machine, job, quiet_since: at(quiet), shared: &[], now: at(1000) }.verdicts()
    }

    fn found(verdicts: &[(FindingKind, Verdict)]) -> Vec<FindingKind> {
        verdicts.iter().filter(|(_, v)| matches!(v, Verdict::Found(_))).map(|(kind, _)| *kind).collect()
    }

    #[test]
    fn every_status_on_every_node_is_judged_by_the_table() {
        for status in NodeStatus::ALL {
            for (number, _, class) in STATUSES {
                let (node, machine) = (node(*status), machine(number));
                let expected = maas::is_expected(*status, Upstream::There { class, power: machine.told.power() });
                let drift = if expected { vec![] } else { vec![FindingKind::MaasDrift] };
                assert_eq!(found(&judged(&node, &machine, None, 0)), drift, "{status} {number}");
                assert!(judged(&node, &machine, Some(JobStatus::Running), 0).is_empty(), "a job is at it");
                assert!(judged(&node, &machine, None, 990).is_empty(), "we were just there");
                let stopped = judged(&node, &machine, Some(JobStatus::FailedManualIntervention), 0);
                assert!(found(&stopped).is_empty(), "it has not come to any stage");
            }
            let gone = ObservedMachine { absent_since: Some(at(5)), ..machine(6) };
            let expected = maas::is_expected(*status, Upstream::Absent);
            let wanted = if expected { vec![] } else { vec![FindingKind::MaasMachineGone] };
            assert_eq!(found(&judged(&node(*status), &gone, None, 0)), wanted, "{status}");
        }
    }

    #[test]
    fn a_job_that_stands_still_expects_what_its_stage_does() {
        let node = node(NodeStatus::Enrolling);
        let stands = |stage, number| {
            let machine = machine(number);
            let job = Some(OfJob { status: JobStatus::FailedManualIntervention, stage: Some(stage) });
            let beheld = Beheld { node: &node, machine: &machine, job, quiet_since: at(0), shared: &[], now: at(1000) };
            found(&beheld.verdicts())
        };
        let storage = JobStage::Maas(MaasStage::ConfigureStorage);
        assert_eq!(stands(storage, maas::READY), []);
        assert_eq!(stands(storage, maas::DEPLOYED), [FindingKind::MaasDrift], "somebody has deployed it");
        assert_eq!(stands(JobStage::WaitForAgentEnrollment, maas::READY), [FindingKind::MaasDrift], "released");
        assert_eq!(stands(JobStage::WaitForAgentEnrollment, maas::BROKEN), [FindingKind::MaasDrift]);
        assert_eq!(stands(JobStage::Maas(MaasStage::LoadSiteConfig), maas::BROKEN), [], "nothing is known yet");
        assert_eq!(stands(JobStage::DrainNode, maas::READY), [], "not about MAAS");
    }

    #[test]
    fn a_status_from_the_future_is_a_finding_of_its_own() {
        let verdicts = judged(&node(NodeStatus::Active), &machine(99), None, 0);
        assert_eq!(found(&verdicts), [FindingKind::MaasStatusUnknown]);
    }

    #[test]
    fn what_somebody_changed_is_told_with_before_and_after() {
        let mut machine = machine(6);
        machine.settled = Some(machine.told.traits());
        let node = node(NodeStatus::Active);
        assert_eq!(found(&judged(&node, &machine, None, 0)), []);
        machine.told.hostname = "evil\u{1b}".into();
        machine.told.pool = "other".into();
        let verdicts = judged(&node, &machine, None, 0);
        assert_eq!(found(&verdicts), [FindingKind::MaasChanged]);
        let text = format!("{verdicts:?}");
        assert!(text.contains("pool") && text.contains("other") && !text.contains('\u{1b}'), "{text}");
    }
}
