//! The lifecycles as data: the documentation is their rendering, and every (state, event) has a verdict.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

use domain::condition::ConditionStatus;
use domain::job::JobStatus;
use domain::lifecycle::{Deadline, Edge, State};
use domain::machine::Phase;
use domain::node::NodeStatus;
use domain::run::RunPhase;
use domain::step::StepState;
use domain::task::TaskStatus;
use std::collections::HashSet;
use testkit::{golden, lifecycles};

#[test]
fn the_documentation_is_what_the_tables_say() {
    golden::check("docs/lifecycles.md", &lifecycles::document());
}

#[test]
fn every_state_and_event_has_its_verdict() {
    golden::check("crates/testkit/golden/verdicts.txt", &lifecycles::verdicts());
}

/// A state that nobody can reach, or that is not at rest and has no way out, is a trap.
fn no_traps<S: State + std::hash::Hash>() {
    let edges: &[Edge<S>] = S::edges();
    for state in S::ALL {
        let entered = edges.iter().any(|e| e.to == *state) || *state == S::ALL[0];
        assert!(entered, "{} {} cannot be reached", S::ENTITY, state.as_str());
        let left = edges.iter().any(|e| e.from == Some(*state) && e.to != *state);
        assert!(left || state.deadline() == Deadline::AtRest, "{} {} has no way out", S::ENTITY, state.as_str());
    }
    let mut seen = HashSet::new();
    for e in edges {
        assert!(seen.insert((e.from, e.to, e.trigger, e.owner)), "an edge stands twice: {e:?}");
    }
    let names: HashSet<&str> = S::ALL.iter().map(|s| s.as_str()).collect();
    assert_eq!(names.len(), S::ALL.len());
    assert!(S::ALL.iter().all(|s| S::parse(s.as_str()) == Some(*s)));
}

#[test]
fn no_state_is_a_trap() {
    no_traps::<Phase>();
    no_traps::<RunPhase>();
    no_traps::<StepState>();
    no_traps::<ConditionStatus>();
    no_traps::<NodeStatus>();
    no_traps::<JobStatus>();
    no_traps::<TaskStatus>();
}

/// G-6, G-9, N-3.1, N-4.1: the sets are exactly those of the documents, spelt as there (T-43 for runs).
#[test]
fn states_are_spelt_as_in_the_document() {
    let names = |all: &[&str]| all.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    let of = |all: Vec<&'static str>| all.into_iter().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(
        of(Phase::ALL.iter().map(|s| s.as_str()).collect()),
        names(&["FACTORY_READY", "READY", "PROVISIONING", "IN_SERVICE", "MAINTENANCE", "RMA", "RETIRED"])
    );
    assert_eq!(
        of(RunPhase::ALL.iter().map(|s| s.as_str()).collect()),
        names(&["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELED"])
    );
    assert_eq!(
        of(StepState::ALL.iter().map(|s| s.as_str()).collect()),
        names(&["WAITING", "RUNNING", "SUCCEEDED", "FAILED"])
    );
    assert_eq!(
        of(NodeStatus::ALL.iter().map(|s| s.as_str()).collect()),
        names(&[
            "bootstrap_issued",
            "enrolling",
            "active",
            "offline",
            "quarantined",
            "draining",
            "retired",
            "removing",
            "deleted"
        ])
    );
    assert_eq!(
        of(JobStatus::ALL.iter().map(|s| s.as_str()).collect()),
        names(&[
            "pending",
            "running",
            "completed",
            "failed_retryable",
            "failed_manual_intervention",
            "cancelled",
            "compensating",
            "reconciled"
        ])
    );
}
