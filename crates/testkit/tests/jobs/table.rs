//! In which status a node may be while its job is in one of its own, as data: the rows of the document (N-4.3, N-5.3),
//! those that were added to it (T-11, T-12), and what the document leaves to heartbeats and operators. A pair that is
//! not here is a failure.

use domain::job::JobStatus::{
    self, Cancelled, Compensating, Completed, FailedManualIntervention, FailedRetryable, Pending, Reconciled, Running,
};
use domain::job_stage::{JobKind, Mode};
use domain::node::NodeStatus::{self, Active, Deleted, Draining, Enrolling, Offline, Quarantined, Removing, Retired};

pub struct Row {
    pub jobs: &'static [JobStatus],
    pub nodes: &'static [NodeStatus],
    pub meaning: &'static str,
}

const fn row(jobs: &'static [JobStatus], nodes: &'static [NodeStatus], meaning: &'static str) -> Row {
    Row { jobs, nodes, meaning }
}

const ONBOARDING: &[Row] = &[
    row(&[Pending, Running], &[Enrolling], "normal onboarding in progress"),
    row(&[FailedRetryable], &[Enrolling], "not ready; safe to go on"),
    row(&[FailedManualIntervention], &[Enrolling, Quarantined], "blocked until somebody decides"),
    row(&[Completed, Reconciled], &[Active], "success; after an adoption it is reconciled"),
    row(
        &[Running, FailedRetryable, Compensating, Completed, Reconciled],
        &[Quarantined],
        "quarantined meanwhile: no move leads back to enrolling, so it stays until somebody recovers it",
    ),
    row(&[Compensating], &[Enrolling], "being taken back"),
    row(&[Cancelled], &[Quarantined], "called off"),
];

const DRAIN: &[Row] = &[
    row(&[Pending, Running], &[Draining], "the drain is in progress"),
    row(
        &[FailedRetryable, FailedManualIntervention],
        &[Offline, Active, Quarantined],
        "the drain failed: offline, until heartbeats or a quarantine say otherwise",
    ),
    row(&[Compensating], &[Draining, Offline, Active, Quarantined], "being taken back"),
    row(&[Cancelled], &[Offline, Active, Quarantined], "called off short of retirement"),
    row(&[Completed, Reconciled], &[Retired], "drained"),
];

const REMOVAL: &[Row] = &[
    row(&[Pending], &[Removing], "accepted"),
    row(&[Running], &[Removing, Deleted], "uninstalling; then only what is left is cleaned up"),
    row(&[FailedRetryable, FailedManualIntervention], &[Retired, Deleted], "the identity is preserved, or gone"),
    row(&[Compensating], &[Removing, Retired], "being taken back"),
    row(&[Cancelled], &[Retired, Deleted], "called off"),
    row(&[Completed, Reconciled], &[Deleted], "removed"),
];

const STAYS: &[Row] = &[row(
    &[Pending, Running, FailedRetryable, FailedManualIntervention, Compensating, Cancelled, Completed, Reconciled],
    &[Active, Offline, Quarantined, Retired],
    "the node stays what it is, or is quarantined where it is not proven clean: nothing but heartbeats, probes and operators move it",
)];

const FULL: &[Row] = &[
    row(&[Pending], &[Draining, Retired], "accepted; one that was retired stays so"),
    row(&[Running], &[Draining, Retired, Removing, Deleted], "on its way out"),
    row(
        &[FailedRetryable, FailedManualIntervention],
        &[Offline, Active, Quarantined, Retired, Deleted],
        "at rest where it had come to",
    ),
    row(&[Compensating], &[Draining, Offline, Active, Quarantined, Retired, Removing], "being taken back"),
    row(&[Cancelled], &[Offline, Active, Quarantined, Retired, Deleted], "called off"),
    row(&[Completed, Reconciled], &[Deleted], "gone for good"),
];

const REIMAGE: &[Row] = &[
    row(&[Pending], &[Draining, Retired], "accepted; one that was retired stays so"),
    row(
        &[Running],
        &[Draining, Retired, Offline, Active, Quarantined],
        "retired until what came anew is proven, then as heartbeats and probes say",
    ),
    row(
        &[FailedRetryable, FailedManualIntervention],
        &[Offline, Active, Quarantined, Retired],
        "at rest where it had come to",
    ),
    row(&[Compensating], &[Draining, Offline, Active, Quarantined, Retired], "being taken back"),
    row(&[Cancelled], &[Offline, Active, Quarantined, Retired], "called off"),
    row(
        &[Completed, Reconciled],
        &[Active, Quarantined],
        "its system came anew; what was found since is its own matter",
    ),
];

pub fn rows(kind: JobKind) -> &'static [Row] {
    match kind {
        JobKind::Onboarding(_) => ONBOARDING,
        JobKind::Drain => DRAIN,
        JobKind::Removal => REMOVAL,
        JobKind::Decommission(Mode::SoftReset | Mode::StorageCleanup) => STAYS,
        JobKind::Decommission(Mode::Reimage(_)) => REIMAGE,
        JobKind::Decommission(Mode::FullDecommission(_)) => FULL,
    }
}

/// What the pair means; `None`: it must not be.
pub fn meaning(kind: JobKind, job: JobStatus, node: NodeStatus) -> Option<&'static str> {
    rows(kind).iter().find(|row| row.jobs.contains(&job) && row.nodes.contains(&node)).map(|row| row.meaning)
}
