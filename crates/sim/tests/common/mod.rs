//! A fleet whose clock is the paused clock of the test.
#![allow(dead_code, reason = "no test file uses all of it")]
#![allow(clippy::unwrap_used, reason = "test code outside test functions")]

use domain::machine::{Labels, MachineSpec};
use domain::{ExecutionId, MachineId, Timestamp};
use millwright_sim::{Clock, Effect, SimFleet};
use provider::{Ack, Command, Operation, ProviderError, ProviderResult, Target};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

pub const EPOCH_MICROS: i64 = 1_700_000_000_000_000;

pub fn clock() -> Clock {
    let start = Instant::now();
    Arc::new(move || Timestamp::from_micros(EPOCH_MICROS).plus(start.elapsed()))
}

pub fn fleet() -> SimFleet {
    SimFleet::in_memory(1, clock())
}

/// A machine that takes 10 ms for each act.
pub fn machine(labels: &[(&str, &str)]) -> Target {
    let mut all = Labels::from([("sim.latency_ms".to_owned(), "10".to_owned())]);
    all.extend(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
    Target {
        machine_id: MachineId::from_text("m1"),
        labels: all,
        spec: MachineSpec::default(),
        notes: provider::Notes::default(),
        by: provider::By::System,
    }
}

/// An operation of the stage, told apart by its attempt.
pub fn op(stage: &str, attempt: u32) -> Operation {
    let execution = ExecutionId::from_text("exe_00000000000000000000000000000001");
    Operation { execution, stage: stage.to_owned(), attempt, fence: "ses_1:4".to_owned() }
}

pub fn command(command: &str, args: &[&str]) -> Command {
    let args = args.iter().map(|a| (*a).to_owned()).collect();
    Command { command: command.to_owned(), args, environment: BTreeMap::from([("TOKEN".into(), "secret".into())]) }
}

pub fn kinds(fleet: &SimFleet) -> Vec<String> {
    fleet.effects().unwrap().into_iter().map(|e| e.kind).collect()
}

pub fn count(fleet: &SimFleet, kind: &str) -> usize {
    kinds(fleet).iter().filter(|k| *k == kind).count()
}

pub fn the_one(fleet: &SimFleet, kind: &str) -> Effect {
    let all: Vec<Effect> = fleet.effects().unwrap().into_iter().filter(|e| e.kind == kind).collect();
    assert_eq!(all.len(), 1, "{kind}");
    all.into_iter().next().unwrap()
}

/// For calls whose kind of yes is beside the point.
pub trait Yes {
    fn yes(self);
}

impl Yes for ProviderResult<Ack> {
    fn yes(self) {
        assert!(self.is_ok(), "{self:?}");
    }
}

pub async fn pass(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

pub fn is_unknown<T>(result: Result<T, ProviderError>) -> bool {
    matches!(result, Err(ProviderError::Unknown { .. }))
}
