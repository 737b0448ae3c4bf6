//! Every job that can be thought of, in every status of its node: at least one action leads on unless it has ended, what
//! is refused says why, what is recommended is allowed, and what an action would do makes sense.

use crate::table;
use domain::job::{Afterwards, Job, JobFailure, JobStatus, Purpose, StageDone};
use domain::job_action::{Effect, JobAction, judge_all, recommend};
use domain::job_stage::{Adoption, Ground, JobKind, JobStage};
use domain::lifecycle::State as _;
use domain::node::NodeStatus;
use domain::stage::FailureClass;
use domain::{ExecutionId, JobId, NodeId, Timestamp};

fn job(kind: JobKind, stage: Option<JobStage>, status: JobStatus) -> Job {
    let at = Timestamp::from_micros(0);
    let index = stage.and_then(|stage| kind.stages().iter().position(|s| *s == stage)).unwrap_or(0);
    let done = |stage: &JobStage| StageDone { stage: *stage, adopted_by: String::new(), message: String::new(), at };
    Job {
        id: JobId::from_text("job_1"),
        kind,
        node_id: NodeId::from_text("nod_1"),
        status,
        version: 1,
        stage,
        attempt: 1,
        execution_id: ExecutionId::from_text("exe_1"),
        purpose: Purpose::Forward,
        first_stage: 0,
        afterwards: None,
        tasks_since: 1,
        failure: None,
        observed: String::new(),
        done: kind.stages()[..index].iter().map(done).collect(),
        parameters: String::new(),
        learned: "{}".to_owned(),
        clean_record: String::new(),
        requested_by: String::new(),
        reason: String::new(),
        created_at: at,
        updated_at: at,
        finished_at: None,
    }
}

fn stands(status: JobStatus) -> bool {
    !status.is_terminal() && !status.is_under_way()
}

/// Every failure that a job in this status can tell of.
fn failures(status: JobStatus) -> Vec<Option<JobFailure>> {
    if !stands(status) {
        return vec![None];
    }
    let named = |class, code: &str| Some(JobFailure { class, code: code.into(), message: "why".into() });
    let mut all: Vec<_> = FailureClass::ALL
        .into_iter()
        .filter(|class| status == JobStatus::FailedManualIntervention || JobStatus::after_failure(*class) == status)
        .map(|class| named(class, "SOMETHING"))
        .collect();
    if status == JobStatus::FailedManualIntervention {
        all.extend(
            ["NOT_CLEAN", "FROZEN", "ENDED_OUTSIDE", "COMPENSATION_FAILED"]
                .map(|code| named(FailureClass::NeedsOperator, code)),
        );
    }
    all
}

/// All jobs of a kind.
fn every(kind: JobKind) -> Vec<Job> {
    let mut all = Vec::new();
    let stages = std::iter::once(None).chain(kind.stages().iter().copied().map(Some));
    for stage in stages {
        for status in JobStatus::ALL {
            for failure in failures(*status) {
                let forward = Job { failure: failure.clone(), ..job(kind, stage, *status) };
                let taking_back = stands(*status) || *status == JobStatus::Compensating;
                all.push(forward.clone());
                for afterwards in Afterwards::ALL.into_iter().filter(|_| taking_back) {
                    let purpose = Purpose::Compensate;
                    all.push(Job { purpose, afterwards: Some(afterwards), ..forward.clone() });
                }
            }
        }
    }
    all
}

/// Whether it brings the job to another status, or on its way.
fn leads_on(effect: &Effect) -> bool {
    match effect {
        Effect::Go { .. }
        | Effect::TakeBack { .. }
        | Effect::LeaveBehind { .. }
        | Effect::EndCancelled
        | Effect::Adopt { .. } => true,
        Effect::Nudge | Effect::Stop { .. } | Effect::Freeze => true,
        Effect::Quarantine { .. } | Effect::Reconcile | Effect::Nothing => false,
    }
}

fn consistent(job: &Job, node: NodeStatus, action: JobAction, effect: &Effect) -> Result<(), String> {
    let stands = stands(job.status);
    let index = job.stage_index();
    let ok = match effect {
        Effect::Nudge => job.status.is_under_way(),
        Effect::Go { from } => {
            let where_to = match action {
                JobAction::RetryStage => *from == index,
                // on a MAAS from the last safe stage: what others have moved may be before the one in hand
                JobAction::AdoptObservedState if job.kind.ground() == Ground::Maas => {
                    *from <= index && job.stages()[*from].is_checkpoint(job.kind)
                }
                JobAction::AdoptObservedState => *from == index,
                JobAction::Rerun => *from == 0,
                JobAction::Resume => *from <= index && job.stages()[*from].is_checkpoint(job.kind),
                _ => false,
            };
            stands && job.afterwards.is_none() && *from < job.stages().len() && where_to
        }
        Effect::Stop { afterwards } => {
            matches!(job.status, JobStatus::Running | JobStatus::Compensating) && job.afterwards != Some(*afterwards)
        }
        Effect::TakeBack { afterwards } => {
            let wished = match action {
                JobAction::Cancel => *afterwards == Afterwards::Cancelled,
                JobAction::RestartClean => *afterwards == Afterwards::Restart,
                // what was being taken back goes on to the end that was wished for
                _ => job.afterwards == Some(*afterwards),
            };
            stands && wished
        }
        Effect::LeaveBehind { afterwards } => {
            let wished = action == JobAction::AdoptObservedState && job.afterwards == Some(*afterwards);
            stands && wished && job.kind.ground() == Ground::Maas
        }
        Effect::EndCancelled => {
            let nothing = job.to_take_back().is_empty() || node == NodeStatus::Deleted;
            action == JobAction::Cancel && (job.status == JobStatus::Pending || stands && nothing)
        }
        Effect::Adopt { stage, next } => {
            let (at, end) = (Some(*stage) == job.stages().get(index).copied(), index + 1 == job.stages().len());
            at && stage.adoption(job.kind) == Adoption::ByWord && *next == (!end).then_some(index + 1)
        }
        Effect::Freeze => matches!(job.status, JobStatus::Running | JobStatus::Compensating),
        Effect::Quarantine { freeze } => {
            let can = matches!(node, NodeStatus::Enrolling | NodeStatus::Active | NodeStatus::Offline);
            can && *freeze == matches!(job.status, JobStatus::Running | JobStatus::Compensating)
        }
        Effect::Reconcile => action == JobAction::Reconcile,
        Effect::Nothing => match action {
            JobAction::Quarantine => node == NodeStatus::Quarantined,
            _ => job.status == JobStatus::FailedManualIntervention,
        },
    };
    let said = effect.describe(job);
    if ok && !said.is_empty() { Ok(()) } else { Err(format!("{action} would {effect:?} ({said})")) }
}

#[test]
fn every_job_has_a_way_on_in_every_status_of_its_node() {
    let mut looked_at = 0;
    for kind in JobKind::ALL {
        for job in every(kind) {
            for node in NodeStatus::ALL.iter().copied() {
                let what = format!(
                    "{kind}, {:?}, {}, {:?}, then {:?}, on a node that is {node}",
                    job.stage, job.status, job.failure, job.afterwards
                );
                let judged = judge_all(&job, node);
                assert_eq!(judged.len(), JobAction::ALL.len());
                for (action, verdict) in &judged {
                    match verdict {
                        Ok(effect) => consistent(&job, node, *action, effect).unwrap_or_else(|e| panic!("{what}: {e}")),
                        Err(why) => assert!(why.len() > 10, "{what}: {action} is refused without a reason"),
                    }
                }
                let ways = judged.iter().filter(|(_, v)| v.as_ref().is_ok_and(leads_on)).count();
                assert_eq!(ways == 0, job.status.is_terminal(), "{what}: {judged:?}");
                let (recommended, why) = recommend(&job, node);
                let allowed = |a| judged.iter().any(|(b, v)| *b == a && v.is_ok());
                assert!(recommended.is_none_or(allowed), "{what}: {recommended:?}");
                assert_eq!(recommended.is_some(), stands(job.status), "{what}: {why}");
                assert!(!why.is_empty(), "{what}");
                // whatever is busy by its status can be gone on with
                let busy = matches!(node, NodeStatus::Draining | NodeStatus::Removing);
                if busy && table::meaning(kind, job.status, node).is_some() && !job.status.is_terminal() {
                    assert!(allowed(JobAction::Resume), "{what}");
                }
                looked_at += 1;
            }
        }
    }
    println!("jobs: {looked_at} combinations judged");
    assert!(looked_at > 3_000, "only {looked_at}");
}

#[test]
fn what_a_person_vouches_for_is_never_what_proves_a_node_that_stays() {
    for kind in JobKind::ALL {
        for job in every(kind) {
            for (_, verdict) in judge_all(&job, NodeStatus::Active) {
                if let Ok(Effect::Adopt { stage, .. }) = verdict {
                    let proves =
                        matches!(stage, JobStage::CleanupStorage | JobStage::ScrubGpu | JobStage::ValidateCleanNode);
                    assert!(kind.removes() || !proves, "{kind} {stage}");
                }
            }
        }
    }
}

/// A compensation is loaded from what is to be taken back: one that is undone must not shift the others out of their places.
#[test]
fn what_has_been_taken_back_moves_nothing_that_is_still_to_be() {
    for kind in JobKind::ALL {
        for stage in kind.stages() {
            let whole = job(kind, Some(*stage), JobStatus::Compensating);
            let mut left = whole.clone();
            for undone in whole.to_take_back() {
                left.done.retain(|done| done.stage != undone);
                assert_eq!(left.to_take_back(), whole.to_take_back(), "{kind} {stage}");
            }
            let last = whole.to_take_back();
            let places: Vec<usize> = last.iter().filter_map(|s| kind.stages().iter().position(|k| k == s)).collect();
            assert!(places.windows(2).all(|pair| pair[0] > pair[1]), "last first: {kind} {stage}");
        }
    }
}

/// Every pair that the table names is about statuses that the lifecycles have, and every status that can be open has a
/// row: a job whose node could be nowhere would be a job that cannot be.
#[test]
fn the_table_names_a_place_for_every_status() {
    for kind in JobKind::ALL {
        for status in JobStatus::ALL {
            assert!(table::rows(kind).iter().any(|row| row.jobs.contains(status)), "{kind} {status}");
        }
        for row in table::rows(kind) {
            assert!(!row.meaning.is_empty() && !row.nodes.contains(&NodeStatus::BootstrapIssued));
        }
    }
}
