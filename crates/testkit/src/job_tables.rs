//! The tables of jobs in `docs/lifecycles.md`: each kind's stages in their order, and what an operator can do in each
//! status. Both are read off the judge that the product asks.

use domain::job::{Afterwards, Job, JobStatus, Purpose, StageDone};
use domain::job_action::{Effect, JobAction, judge_action};
use domain::job_stage::{Adoption, Ground, JobKind, JobStage, Mode, Undo};
use domain::lifecycle::State as _;
use domain::node::NodeStatus;
use domain::stage::Unwind;
use domain::{ExecutionId, JobId, NodeId, Timestamp};
use std::fmt::Write as _;

const KINDS: &str = "
## Kinds of jobs

The stages of each kind, in their order. A time-out is of one attempt; `resume` begins at the last checkpoint at or before
the stage in hand. What is taken back is taken back by an attempt of its own, when a job is cancelled or begun anew.
Adoption by sight: what the stage itself can see. By word: a person's, with a reason, on record. Never: it is what proves
a node that stays in service.
";

pub fn kinds(page: &mut String) {
    page.push_str(KINDS);
    for kind in JobKind::ALL {
        let from: Vec<String> = kind.begins_from().iter().map(|status| format!("`{status}`")).collect();
        let from = if from.is_empty() { "nothing: its node comes to be with it".to_owned() } else { from.join(", ") };
        let _ = write!(page, "\n### {kind}\n\nBegins from {from}.\n\n");
        page.push_str(
            "| stage | agent's task | the node is | after a failure | time-out | retries | checkpoint | taken back by | adoption |\n",
        );
        page.push_str("|---|---|---|---|---|---|---|---|---|\n");
        for stage in kind.stages() {
            let _ = writeln!(page, "{}", stage_row(kind, *stage));
        }
    }
}

fn stage_row(kind: JobKind, stage: JobStage) -> String {
    let decl = stage.decl();
    let task = stage.task(kind).map_or("–".to_owned(), |task| format!("`{task}`"));
    let busy = kind.busy_in(stage).map_or("as it is".to_owned(), |status| format!("`{status}`"));
    let undo = match (stage.undo(), decl.unwind) {
        (Some(Undo::LiftCordon), _) => "lifting the job's own cordon".to_owned(),
        (Some(Undo::WithdrawBundle), _) => "withdrawing the bundle".to_owned(),
        (Some(Undo::GiveBack), _) => "stopping what MAAS is at, and releasing the machine".to_owned(),
        (Some(Undo::CancelRun), _) => {
            "cancelling the run and withdrawing the bundle; what was overwritten is gone".to_owned()
        }
        (Some(Undo::RemoveCreated), _) => "removing the record, if the job has made it".to_owned(),
        (None, Unwind::PointOfNoReturn(why)) => format!("no return: {why}"),
        (None, Unwind::Undo | Unwind::RollForward) => "–".to_owned(),
    };
    let adoption = match stage.adoption(kind) {
        Adoption::BySight => "by sight",
        Adoption::ByWord => "by word",
        Adoption::Never => "never",
    };
    format!(
        "| `{stage}` | {task} | {busy} | {} | {} s | {} | {} | {undo} | {adoption} |",
        after_failure(kind, stage),
        decl.timeout.as_secs(),
        decl.max_retries,
        if stage.is_checkpoint(kind) { "yes" } else { "no" },
    )
}

/// Where a failure at this stage leaves the node.
fn after_failure(kind: JobKind, stage: JobStage) -> &'static str {
    let at = kind.stages().iter().position(|s| *s == stage).unwrap_or(0);
    // what was begun to be cleaned is unclean until a check has passed
    let unclean = kind.stages()[..=at].iter().enumerate().fold(false, |unclean, (i, s)| match s {
        JobStage::ValidateCleanNode if i < at => false,
        s => unclean || s.cleans(),
    });
    match (kind.busy_in(stage), unclean) {
        (Some(NodeStatus::Enrolling), _) => "`enrolling`",
        (Some(NodeStatus::Draining), true) => "`quarantined`",
        (Some(NodeStatus::Draining), false) => "`offline`",
        (Some(NodeStatus::Removing), _) => "`retired`",
        (_, true) => "`quarantined`, or `retired` where it was",
        (_, false) => "as it is",
    }
}

const ACTIONS: &str = "
## Actions on jobs

What each action does to a job in each status that has not ended: of a full decommission whose agent drains the node, and
of one that is being taken back. Where an action is not offered, the refusal says why and names those that are. All of
them are safe to take twice.
";

pub fn actions(page: &mut String) {
    page.push_str(ACTIONS);
    let forward = [
        (JobStatus::Pending, NodeStatus::Draining, None),
        (JobStatus::Running, NodeStatus::Draining, None),
        (JobStatus::FailedRetryable, NodeStatus::Offline, None),
        (JobStatus::FailedManualIntervention, NodeStatus::Offline, None),
    ];
    let back = [
        (JobStatus::Compensating, NodeStatus::Draining, Some(Afterwards::Cancelled)),
        (JobStatus::FailedManualIntervention, NodeStatus::Offline, Some(Afterwards::Cancelled)),
    ];
    table(page, "Forward", &forward);
    table(page, "Being taken back, to be cancelled", &back);
}

fn table(page: &mut String, title: &str, columns: &[(JobStatus, NodeStatus, Option<Afterwards>)]) {
    let heads: Vec<String> =
        columns.iter().map(|(job, node, _)| format!("`{}` (node `{node}`)", job.as_str())).collect();
    let _ = write!(page, "\n### {title}\n\n| action | needs a reason | {} |\n", heads.join(" | "));
    let _ = writeln!(page, "|---|---|{}", "---|".repeat(columns.len()));
    for action in JobAction::ALL {
        let cells: Vec<String> = columns.iter().map(|(job, node, then)| cell(action, *job, *node, *then)).collect();
        let reason = if action.needs_reason() { "yes" } else { "no" };
        let _ = writeln!(page, "| `{action}` | {reason} | {} |", cells.join(" | "));
    }
}

fn cell(action: JobAction, status: JobStatus, node: NodeStatus, then: Option<Afterwards>) -> String {
    let job = sample(status, then);
    match judge_action(action, &job, node) {
        Ok(Effect::Nothing) => "it is so already".to_owned(),
        Ok(effect) => effect.describe(&job),
        Err(why) => format!("refused: {why}"),
    }
}

/// A full decommission at its drain.
fn sample(status: JobStatus, afterwards: Option<Afterwards>) -> Job {
    let (kind, at) = (JobKind::Decommission(Mode::FullDecommission(Ground::Bundle)), Timestamp::from_micros(0));
    let begun = status != JobStatus::Pending;
    let before = [JobStage::DisableNode, JobStage::ForceReleaseAllocations];
    let done = |stage| StageDone { stage, adopted_by: String::new(), message: String::new(), at };
    Job {
        id: JobId::from_text("job"),
        kind,
        node_id: NodeId::from_text("node"),
        status,
        version: 1,
        stage: begun.then_some(JobStage::DrainNode),
        attempt: 1,
        execution_id: ExecutionId::from_text("execution"),
        purpose: if afterwards.is_some() { Purpose::Compensate } else { Purpose::Forward },
        first_stage: 0,
        afterwards,
        tasks_since: 1,
        failure: None,
        observed: String::new(),
        done: if begun { before.map(done).to_vec() } else { Vec::new() },
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
