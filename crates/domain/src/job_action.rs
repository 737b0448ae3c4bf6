//! What an operator can do about a job: nine actions, and for each status and stage whether it is allowed, what will
//! happen, and why not. Pure, so that a preview and the deed cannot differ.

use crate::job::{Afterwards, Job, JobStatus};
use crate::job_stage::{Adoption, Ground, JobKind, JobStage};
use crate::lifecycle::{Owner, Verdict, judge};
use crate::maas_stage::MaasStage;
use crate::node::{self, NodeStatus};
use crate::stage::FailureClass;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobAction {
    RetryStage,
    Resume,
    Rerun,
    RestartClean,
    Cancel,
    AdoptObservedState,
    MarkManualInterventionRequired,
    Reconcile,
    Quarantine,
}

impl JobAction {
    pub const ALL: [JobAction; 9] = [
        JobAction::RetryStage,
        JobAction::Resume,
        JobAction::Rerun,
        JobAction::RestartClean,
        JobAction::Cancel,
        JobAction::AdoptObservedState,
        JobAction::MarkManualInterventionRequired,
        JobAction::Reconcile,
        JobAction::Quarantine,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            JobAction::RetryStage => "retry_stage",
            JobAction::Resume => "resume",
            JobAction::Rerun => "rerun",
            JobAction::RestartClean => "restart_clean",
            JobAction::Cancel => "cancel",
            JobAction::AdoptObservedState => "adopt_observed_state",
            JobAction::MarkManualInterventionRequired => "mark_manual_intervention_required",
            JobAction::Reconcile => "reconcile",
            JobAction::Quarantine => "quarantine",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.as_str() == text)
    }

    /// Whether it must be said why.
    pub const fn needs_reason(self) -> bool {
        match self {
            JobAction::RestartClean
            | JobAction::AdoptObservedState
            | JobAction::MarkManualInterventionRequired
            | JobAction::Quarantine => true,
            JobAction::RetryStage | JobAction::Resume | JobAction::Rerun | JobAction::Cancel | JobAction::Reconcile => {
                false
            }
        }
    }
}

impl fmt::Display for JobAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an allowed action does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It is under way as it is: what sleeps is woken, a task whose lease ran out is queued again, nothing is done twice.
    Nudge,
    /// A new attempt, from this stage on.
    Go { from: usize },
    /// What is in hand is stopped; then what was done is taken back.
    Stop { afterwards: Afterwards },
    /// What was done is taken back, in an attempt of its own.
    TakeBack { afterwards: Afterwards },
    /// What cannot be taken back elsewhere stays as it is, on somebody's word; the rest is taken back.
    LeaveBehind { afterwards: Afterwards },
    /// Nothing is to be taken back: it ends, or begins anew, at once.
    EndCancelled,
    /// The stage is taken as done on somebody's word; goes on from the next one, or ends as `reconciled`.
    Adopt { stage: JobStage, next: Option<usize> },
    /// Stands still until somebody acts.
    Freeze,
    /// The node is quarantined; what is under way stands still.
    Quarantine { freeze: bool },
    /// Engine, task and node are compared with the job, and what differs is put right.
    Reconcile,
    /// It is so already.
    Nothing,
}

impl Effect {
    /// For a preview.
    pub fn describe(&self, job: &Job) -> String {
        let name = |index: usize| job.stages().get(index).map_or("the end", |s| s.as_str());
        let then = |afterwards: Afterwards| match afterwards {
            Afterwards::Cancelled => "it ends as cancelled",
            Afterwards::Restart => "it begins anew",
        };
        match self {
            Effect::Nudge => "it is under way: it is woken, and a task whose lease ran out is queued again".to_owned(),
            Effect::Go { from } => format!("a new attempt begins at {}", name(*from)),
            Effect::Stop { afterwards } | Effect::TakeBack { afterwards } => {
                let undo: Vec<&str> = job.to_take_back().iter().map(|s| s.as_str()).collect();
                let undo = if undo.is_empty() { "nothing".to_owned() } else { undo.join(", ") };
                let stop = if matches!(self, Effect::Stop { .. }) { "the stage in hand is stopped; " } else { "" };
                format!("{stop}taken back: {undo}; then {}", then(*afterwards))
            }
            Effect::LeaveBehind { afterwards } => format!(
                "what could not be taken back in MAAS stays there as it is, on your word; then {}",
                then(*afterwards)
            ),
            Effect::EndCancelled => "it ends as cancelled; nothing is to be taken back".to_owned(),
            Effect::Adopt { stage, next: Some(next) } => {
                format!("{stage} counts as done on your word; goes on with {}", name(*next))
            }
            Effect::Adopt { stage, next: None } => {
                format!("{stage} counts as done on your word, and the job ends as reconciled")
            }
            Effect::Freeze => "it stands still until somebody acts".to_owned(),
            Effect::Quarantine { freeze: true } => {
                "the node is quarantined, and the job stands still until somebody acts".to_owned()
            }
            Effect::Quarantine { freeze: false } => "the node is quarantined; the job stays as it is".to_owned(),
            Effect::Reconcile => {
                "engine, task and node are compared with the job, and what differs is put right".to_owned()
            }
            Effect::Nothing => "it is so already: nothing happens".to_owned(),
        }
    }
}

/// Whether `action` is allowed on this job, with its node in that status: what it does, or why not.
pub fn judge_action(action: JobAction, job: &Job, node: NodeStatus) -> Result<Effect, String> {
    if job.status.is_terminal() {
        return Err(format!("it has ended as {}; start a new job", job.status));
    }
    match action {
        JobAction::RetryStage => go(job, node, job.stage_index()),
        JobAction::Resume => go(job, node, safe_stage(job)),
        JobAction::Rerun => go(job, node, 0),
        JobAction::RestartClean => take_back(job, node, Afterwards::Restart),
        JobAction::Cancel => take_back(job, node, Afterwards::Cancelled),
        JobAction::AdoptObservedState => adopt(job, node),
        JobAction::MarkManualInterventionRequired => match job.status {
            JobStatus::Running | JobStatus::Compensating => Ok(Effect::Freeze),
            JobStatus::FailedManualIntervention => Ok(Effect::Nothing),
            JobStatus::Pending => Err("nothing has begun: cancel it instead".to_owned()),
            JobStatus::FailedRetryable => Err("nothing of it goes on by itself: it waits for you already".to_owned()),
            JobStatus::Completed | JobStatus::Cancelled | JobStatus::Reconciled => Err(ended(job)),
        },
        JobAction::Reconcile => Ok(Effect::Reconcile),
        JobAction::Quarantine => quarantine(job, node),
    }
}

/// All of them, with what each would do or why it is not offered.
pub fn judge_all(job: &Job, node: NodeStatus) -> Vec<(JobAction, Result<Effect, String>)> {
    JobAction::ALL.into_iter().map(|action| (action, judge_action(action, job, node))).collect()
}

fn ended(job: &Job) -> String {
    format!("it has ended as {}", job.status)
}

/// The last stage at or before the one in hand that needs nothing done again before it.
fn safe_stage(job: &Job) -> usize {
    let at = job.stage_index();
    (0..=at).rev().find(|i| job.stages().get(*i).is_some_and(|s| s.is_checkpoint(job.kind))).unwrap_or(0)
}

fn go(job: &Job, node: NodeStatus, from: usize) -> Result<Effect, String> {
    match job.status {
        JobStatus::Pending | JobStatus::Running => Ok(Effect::Nudge),
        JobStatus::Compensating => Ok(Effect::Nudge),
        // what was being taken back goes on being taken back
        JobStatus::FailedRetryable | JobStatus::FailedManualIntervention => match job.afterwards {
            Some(afterwards) => Ok(Effect::TakeBack { afterwards }),
            None => can_enter(job.kind, job.stages().get(from).copied(), node).map(|()| Effect::Go { from }),
        },
        JobStatus::Completed | JobStatus::Cancelled | JobStatus::Reconciled => Err(ended(job)),
    }
}

/// Whether the node can be, or become, what a stage needs it to be.
fn can_enter(kind: JobKind, stage: Option<JobStage>, node: NodeStatus) -> Result<(), String> {
    let Some(needed) = stage.and_then(|stage| kind.busy_in(stage)) else { return Ok(()) };
    let by = |to: NodeStatus| match to {
        NodeStatus::Draining => Some((node::DRAIN, Owner::Operator)),
        NodeStatus::Removing => Some((node::REMOVE, Owner::Executor)),
        NodeStatus::Enrolling => Some((node::ONBOARD, Owner::Operator)),
        NodeStatus::BootstrapIssued
        | NodeStatus::Active
        | NodeStatus::Offline
        | NodeStatus::Quarantined
        | NodeStatus::Retired
        | NodeStatus::Deleted => None,
    };
    let reached = by(needed)
        .is_some_and(|(trigger, owner)| matches!(judge(Some(node), needed, trigger, owner), Verdict::Allowed(_)));
    // retired is what draining leads to, and deleted what removing does: the stage's own look finds that it is done
    let beyond = match needed {
        NodeStatus::Draining => matches!(node, NodeStatus::Retired | NodeStatus::Removing | NodeStatus::Deleted),
        NodeStatus::Removing => node == NodeStatus::Deleted,
        NodeStatus::Enrolling => matches!(node, NodeStatus::Active | NodeStatus::Offline | NodeStatus::Quarantined),
        NodeStatus::BootstrapIssued
        | NodeStatus::Active
        | NodeStatus::Offline
        | NodeStatus::Quarantined
        | NodeStatus::Retired
        | NodeStatus::Deleted => false,
    };
    if node == needed || reached || beyond {
        return Ok(());
    }
    Err(format!("the node is {node}, and from there it cannot be {needed} again: cancel the job"))
}

fn take_back(job: &Job, node: NodeStatus, afterwards: Afterwards) -> Result<Effect, String> {
    if node == NodeStatus::Deleted {
        return match (job.status, afterwards) {
            (JobStatus::FailedRetryable | JobStatus::FailedManualIntervention, Afterwards::Cancelled) => {
                Ok(Effect::EndCancelled)
            }
            _ => Err("the node is deleted: nothing can be taken back any more; let the rest be finished".to_owned()),
        };
    }
    if afterwards == Afterwards::Restart && is_given_back(job) {
        let why =
            "the machine is being given back, and its system is gone: let the rest be finished, or cancel the job";
        return Err(why.to_owned());
    }
    match job.status {
        JobStatus::Pending => match afterwards {
            Afterwards::Cancelled => Ok(Effect::EndCancelled),
            Afterwards::Restart => Err("nothing has begun, so there is nothing to begin anew".to_owned()),
        },
        JobStatus::Running => Ok(Effect::Stop { afterwards }),
        JobStatus::Compensating if job.afterwards == Some(afterwards) => Ok(Effect::Nudge),
        // it ends otherwise than was wished before
        JobStatus::Compensating => Ok(Effect::Stop { afterwards }),
        JobStatus::FailedRetryable | JobStatus::FailedManualIntervention => {
            if job.to_take_back().is_empty() && afterwards == Afterwards::Cancelled {
                return Ok(Effect::EndCancelled);
            }
            if afterwards == Afterwards::Restart {
                can_enter(job.kind, job.stages().first().copied(), node)?;
            }
            Ok(Effect::TakeBack { afterwards })
        }
        JobStatus::Completed | JobStatus::Cancelled | JobStatus::Reconciled => Err(ended(job)),
    }
}

/// Whether a node that goes may have lost its system already: what its agent did could not be done again.
fn is_given_back(job: &Job) -> bool {
    let release = JobStage::Maas(MaasStage::ReleaseMaasNode);
    job.kind.removes() && job.stages().iter().take(job.stage_index() + 1).any(|stage| *stage == release)
}

fn adopt(job: &Job, node: NodeStatus) -> Result<Effect, String> {
    match job.status {
        JobStatus::Pending => return Err("nothing has begun: there is no stage to adopt".to_owned()),
        JobStatus::Compensating => return Err("what was done is being taken back: wait, or freeze it".to_owned()),
        JobStatus::Running | JobStatus::FailedRetryable | JobStatus::FailedManualIntervention => {}
        JobStatus::Completed | JobStatus::Cancelled | JobStatus::Reconciled => return Err(ended(job)),
    }
    if let Some(afterwards) = job.afterwards {
        return match (job.status, job.kind.ground()) {
            // a MAAS that is gone for good, or shows another machine by now, never lets anything be taken back
            (JobStatus::FailedRetryable | JobStatus::FailedManualIntervention, Ground::Maas) => {
                Ok(Effect::LeaveBehind { afterwards })
            }
            (JobStatus::FailedRetryable | JobStatus::FailedManualIntervention, Ground::Bundle | Ground::Boot) => {
                Err("what was done was being taken back, all of it here: resume that, or cancel".to_owned())
            }
            _ => Err("it is being stopped: wait, or freeze it".to_owned()),
        };
    }
    let index = job.stage_index();
    let Some(stage) = job.stages().get(index).copied() else { return Err("there is no stage to adopt".to_owned()) };
    match stage.adoption(job.kind) {
        Adoption::ByWord => {
            let next = index + 1;
            Ok(Effect::Adopt { stage, next: (next < job.stages().len()).then_some(next) })
        }
        // its own look adopts what it finds
        Adoption::BySight => match job.status {
            JobStatus::Running => Ok(Effect::Nudge),
            // what others have moved may be before this stage: it goes on from what is true
            _ if job.kind.ground() == Ground::Maas => go(job, node, safe_stage(job)),
            _ => go(job, node, index),
        },
        Adoption::Never => Err(format!(
            "{stage} is what proves that the node is clean, and the node stays in service: nobody's word does that; run it, or decommission the node fully"
        )),
    }
}

fn quarantine(job: &Job, node: NodeStatus) -> Result<Effect, String> {
    let freeze = matches!(job.status, JobStatus::Running | JobStatus::Compensating);
    match node {
        NodeStatus::Enrolling | NodeStatus::Active | NodeStatus::Offline => {
            if job.status == JobStatus::Pending {
                return Err("nothing has begun: cancel the job, then quarantine the node".to_owned());
            }
            Ok(Effect::Quarantine { freeze })
        }
        NodeStatus::Quarantined if freeze => Ok(Effect::Freeze),
        NodeStatus::Quarantined => Ok(Effect::Nothing),
        NodeStatus::BootstrapIssued
        | NodeStatus::Draining
        | NodeStatus::Retired
        | NodeStatus::Removing
        | NodeStatus::Deleted => {
            Err(format!("a node that is {node} cannot be quarantined; nothing is placed on it as it is"))
        }
    }
}

/// What is best done next about a job, and why.
pub fn recommend(job: &Job, node: NodeStatus) -> (Option<JobAction>, &'static str) {
    match job.status {
        JobStatus::Pending => (None, "wait: a worker takes it up"),
        JobStatus::Running => (None, "wait: it is under way"),
        JobStatus::Compensating => (None, "wait: what was done is being taken back"),
        JobStatus::Completed | JobStatus::Cancelled | JobStatus::Reconciled => (None, "nothing: it has ended"),
        JobStatus::FailedRetryable | JobStatus::FailedManualIntervention => {
            let (action, why) = after_failure(job);
            // what is recommended is always allowed
            match judge_action(action, job, node) {
                Ok(_) => (Some(action), why),
                Err(_) => (Some(JobAction::Cancel), "it cannot go on from here: call it off"),
            }
        }
    }
}

fn after_failure(job: &Job) -> (JobAction, &'static str) {
    if job.afterwards.is_some() {
        return (JobAction::Resume, "go on with taking back what was done; adopt_observed_state leaves it as it is");
    }
    let Some(failure) = &job.failure else { return (JobAction::Resume, "go on from the last safe stage") };
    match (failure.class, failure.code.as_str()) {
        (_, "NOT_CLEAN") => (JobAction::Resume, "look at what is left, then clean up and check again"),
        (_, "FROZEN") => (JobAction::Resume, "somebody has stopped it: when that is settled, go on"),
        (_, "MACHINE_GONE") if matches!(job.kind, JobKind::Onboarding(_)) => {
            (JobAction::RestartClean, "somebody has deleted the machine: it is made anew")
        }
        (_, "MACHINE_GONE") => {
            (JobAction::Cancel, "somebody has deleted the machine: call it off, decommission the node")
        }
        (_, "STATE_DISAGREES") => (JobAction::Resume, "settle it in MAAS, then go on from what is true"),
        (_, "COMMISSIONING_FAILED" | "COMMISSIONING_REVERTED") => {
            (JobAction::Resume, "look at the machine, then have it commissioned again")
        }
        (
            _,
            "DATASOURCE_REPEATED"
            | "INSTALLATION_FAILED"
            | "POWER_FAILED"
            | "NEVER_BOOTED"
            | "DEPLOYMENT_FAILED"
            | "BUNDLE_OUTDATED",
        ) => (JobAction::Resume, "settle what the message says, then have it deployed again"),
        (_, "HARDWARE_SYNC_OFF") => (JobAction::RestartClean, "it can only be set by another deployment"),
        (FailureClass::Transient, _) => (JobAction::RetryStage, "it may well work now"),
        (FailureClass::DependencyDown, _) => (JobAction::RetryStage, "when what it depends on is back"),
        (FailureClass::Hardware, _) => (JobAction::RetryStage, "look at the hardware first"),
        (FailureClass::NeedsOperator, _) => (JobAction::RetryStage, "settle what the message says, then try again"),
        (FailureClass::Conflict, _) => (JobAction::RetryStage, "settle the conflict (see its finding), then try again"),
        (FailureClass::InvalidInput, _) => {
            (JobAction::Cancel, "as it was asked for it cannot work: call it off, ask again")
        }
    }
}
