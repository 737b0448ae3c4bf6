//! Runs in the store. The row is what [`Run::apply`] makes of the log; both are written together.

use crate::codec::{self, RunStatusRow, from_json, to_json};
use crate::db::{Row, params};
use crate::error::{DbError, Failure, TxResult};
use crate::feed::RunEvent;
use crate::filter_sql::Where;
use crate::log::LogRow;
use crate::signal::Signal;
use crate::transition::{Cause, Moved, Transition};
use crate::tx::Tx;
use domain::filter::{Field, Filter, Schema};
use domain::lifecycle::State;
use domain::plan::Step;
use domain::run::{BadFold, CANCELED_EARLY, FINISHED, Run, RunChange, RunError, RunPhase, STARTED};
use domain::step::{STEP_ENDED, STEP_RETRYING, STEP_STARTED, StepState, StepStatus};
use domain::{MachineId, RunId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

const TYPES: &[&str] = &["REPAVE", "RMA", "REBOOT", "UPGRADE", "NET_RECONFIG", ""];

/// What runs can be listed by.
pub const FILTER: Schema = Schema {
    fields: &[
        Field::text("run_id"),
        Field::text("machine_id"),
        Field::text("request_id"),
        Field::one_of("type", TYPES),
        Field::text("plan_id"),
        Field::one_of("phase", &["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELED"]),
        Field::text("customer_id"),
    ],
    labels: false,
};

/// What runs can be watched by: only what never changes, so that an event cannot slip past the filter.
pub const WATCH_FILTER: Schema = Schema {
    fields: &[
        Field::text("run_id"),
        Field::text("machine_id"),
        Field::text("request_id"),
        Field::one_of("type", TYPES),
    ],
    labels: false,
};

macro_rules! run_columns {
    () => {
        "run_id, machine_id, request_id, type, plan_id, phase, current_step, version, spec, status, created_at, started_at, finished_at, customer_id"
    };
}

crate::statements! {
    STARTER = "SELECT actor FROM transitions WHERE subject = $1 AND entity_kind = 'run' ORDER BY sequence LIMIT 1";
    GET = concat!("SELECT ", run_columns!(), " FROM runs WHERE run_id = $1");
    LIST = concat!("SELECT ", run_columns!(), " FROM runs WHERE run_id < $1");
    ACTIVE = concat!("SELECT ", run_columns!(), " FROM runs WHERE phase IN ('PENDING', 'RUNNING') AND run_id > $1 ORDER BY run_id LIMIT $2");
    ACTIVE_OF = concat!("SELECT ", run_columns!(), " FROM runs WHERE phase IN ('PENDING', 'RUNNING') AND run_id > $1 AND customer_id = $3 ORDER BY run_id LIMIT $2");
    INSERT = concat!("INSERT INTO runs(", run_columns!(), ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)");
    UPDATE = "UPDATE runs SET phase = $3, current_step = $4, version = $5, status = $6, started_at = $7, finished_at = $8 WHERE run_id = $1 AND version = $2";
}

/// What never changes about a run.
#[derive(Serialize, Deserialize)]
struct SpecRow {
    steps: Vec<codec::StepRow>,
    parameters: BTreeMap<String, String>,
}

fn read(row: &Row) -> Result<(Run, Vec<Step>), DbError> {
    let spec: SpecRow = from_json("a run's spec", row.text(8)?)?;
    let status: RunStatusRow = from_json("a run's status", row.text(9)?)?;
    let run = Run {
        id: RunId::from_text(row.string(0)?),
        machine_id: MachineId::from_text(row.string(1)?),
        request_id: row.string(2)?,
        run_type: codec::run_type(row.text(3)?)?,
        plan_id: row.string(4)?,
        phase: codec::state(row.text(5)?)?,
        current_step: row.string(6)?,
        version: row.uint(7)?,
        steps: status.steps.into_iter().map(StepStatus::try_from).collect::<Result<_, _>>()?,
        parameters: spec.parameters,
        error: status.error.map(RunError::from),
        created_at: row.time(10)?,
        started_at: row.maybe(11, Row::time)?,
        finished_at: row.maybe(12, Row::time)?,
        customer_id: row.string(13)?,
    };
    Ok((run, spec.steps.into_iter().map(Step::try_from).collect::<Result<_, _>>()?))
}

pub fn get(tx: &mut Tx<'_>, id: &RunId) -> TxResult<Option<Run>> {
    Ok(get_with_steps(tx, id)?.map(|(run, _)| run))
}

/// The run and the steps it carries out, as they were resolved when it was requested.
pub fn get_with_steps(tx: &mut Tx<'_>, id: &RunId) -> TxResult<Option<(Run, Vec<Step>)>> {
    Ok(tx.row(GET, params![id.as_str()])?.as_ref().map(read).transpose()?)
}

/// Who asked for it, as far as the log goes back.
pub fn starter(tx: &mut Tx<'_>, id: &RunId) -> TxResult<Option<String>> {
    Ok(tx.row(STARTER, params![id.as_str()])?.map(|row| row.string(0)).transpose()?)
}

/// Runs, newest first, before `before` (all, when empty).
pub fn list(tx: &mut Tx<'_>, filter: &Filter, before: &str, limit: usize) -> TxResult<Vec<Run>> {
    let mut clause = Where::before(before);
    clause.and(filter, &|field| match field {
        "run_id" => "run_id",
        "machine_id" => "machine_id",
        "request_id" => "request_id",
        "type" => "type",
        "plan_id" => "plan_id",
        "phase" => "phase",
        "customer_id" => "customer_id",
        _ => "NULL",
    });
    let sql = format!("{LIST}{} ORDER BY run_id DESC LIMIT {limit}", clause.sql);
    Ok(tx.rows(&sql, &clause.params)?.iter().map(|row| read(row).map(|r| r.0)).collect::<Result<_, _>>()?)
}

/// Runs that are not terminal, in order of their ids: all, or one customer's.
pub fn list_active(tx: &mut Tx<'_>, customer_id: &str, after: &str, limit: usize) -> TxResult<Vec<Run>> {
    let rows = match customer_id {
        "" => tx.rows(ACTIVE, params![after, limit])?,
        customer => tx.rows(ACTIVE_OF, params![after, limit, customer])?,
    };
    Ok(rows.iter().map(|row| read(row).map(|r| r.0)).collect::<Result<_, _>>()?)
}

fn status_json(run: &Run) -> String {
    to_json(&RunStatusRow {
        steps: run.steps.iter().map(codec::StepStatusRow::from).collect(),
        error: run.error.as_ref().map(codec::RunErrorRow::from),
    })
}

fn bad_fold(e: BadFold) -> Failure {
    DbError::Defect(e.0).into()
}

/// A new run. `change` is its first log row.
pub fn insert(tx: &mut Tx<'_>, id: &RunId, change: &RunChange, steps: &[Step], cause: &Cause) -> TxResult<Run> {
    let run = Run::requested(id.clone(), tx.now(), change).map_err(bad_fold)?;
    let t = Transition {
        entity_id: id.as_str(),
        subject: id.as_str(),
        customer_id: &run.customer_id,
        from: None,
        to: RunPhase::Pending,
        version: run.version,
        metadata: codec::change_to_json(change),
    };
    let spec = SpecRow { steps: steps.iter().map(codec::StepRow::from).collect(), parameters: run.parameters.clone() };
    let moved = tx.transition(
        t,
        cause,
        |_| Ok(()),
        |tx| {
            Ok(tx.exec(
                INSERT,
                params![
                    id.as_str(),
                    run.machine_id.as_str(),
                    &run.request_id,
                    run.type_text(),
                    &run.plan_id,
                    run.phase.as_str(),
                    &run.current_step,
                    run.version,
                    to_json(&spec),
                    status_json(&run),
                    run.created_at,
                    run.started_at,
                    run.finished_at,
                    &run.customer_id,
                ],
            )?)
        },
    )?;
    debug_assert_eq!(moved, Moved::Moved);
    Ok(run)
}

/// Applies changes in order, each with its own log row, and writes the run's row once.
pub fn change(tx: &mut Tx<'_>, run: &mut Run, changes: &[RunChange], actor: &str) -> TxResult<()> {
    let before = run.version;
    let now = tx.now();
    for change in changes {
        let old = run.clone();
        run.apply(now, change).map_err(bad_fold)?;
        log_change(tx, &old, run, change, actor)?;
    }
    let changed = tx.exec(
        UPDATE,
        params![
            run.id.as_str(),
            before,
            run.phase.as_str(),
            &run.current_step,
            run.version,
            status_json(run),
            run.started_at,
            run.finished_at,
        ],
    )?;
    if changed != 1 {
        return Err(Failure::Lost(format!("run {}", run.id)));
    }
    if run.phase.is_terminal() {
        // followers of the output end with the run
        tx.signal(Signal::Output(run.id.clone()));
    }
    Ok(())
}

/// One log row: of the run, or of one of its steps. The run's row itself is swapped by [`change`].
fn log_change(tx: &mut Tx<'_>, old: &Run, new: &Run, change: &RunChange, actor: &str) -> TxResult<()> {
    let metadata = codec::change_to_json(change);
    let version = new.version;
    let (trigger, step) = match change {
        RunChange::Requested { .. } => return Err(DbError::Defect(format!("run {} requested twice", new.id)).into()),
        RunChange::Started => (STARTED, None),
        RunChange::Finished { .. } if old.phase == RunPhase::Pending => (CANCELED_EARLY, None),
        RunChange::Finished { .. } => (FINISHED, None),
        RunChange::StepStarted { step } => (STEP_STARTED, Some(step)),
        RunChange::StepRetrying { step, .. } => (STEP_RETRYING, Some(step)),
        RunChange::StepSucceeded { step, .. } | RunChange::StepFailed { step, .. } => (STEP_ENDED, Some(step)),
    };
    let cause = Cause::executor(actor, trigger, "");
    let moved = match step {
        None => {
            let t = Transition {
                entity_id: new.id.as_str(),
                subject: new.id.as_str(),
                customer_id: &new.customer_id,
                from: Some(old.phase),
                to: new.phase,
                version,
                metadata,
            };
            tx.transition(t, &cause, |_| Ok(()), |_| Ok(1))?
        }
        Some(name) => {
            let state = |run: &Run| run.step(name).map_or(StepState::Waiting, |s| s.state);
            let id = format!("{}/{name}", new.id);
            let t = Transition {
                entity_id: &id,
                subject: new.id.as_str(),
                customer_id: &new.customer_id,
                from: Some(state(old)),
                to: state(new),
                version,
                metadata,
            };
            tx.transition(t, &cause, |_| Ok(()), |_| Ok(1))?
        }
    };
    match moved {
        Moved::Moved => Ok(()),
        Moved::AlreadyThere => Err(DbError::Defect(format!("run {}: {change:?} moves nothing", new.id)).into()),
    }
}

/// Whether a log row belongs to a run.
pub(crate) fn is_run_row(row: &LogRow) -> bool {
    row.entity_kind == RunPhase::ENTITY || row.entity_kind == StepState::ENTITY
}

/// One more row onto a fold.
pub(crate) fn fold_row(run: Option<Run>, row: &LogRow) -> Result<(Run, RunChange), DbError> {
    let change = codec::change_from_json(&row.metadata, &row.customer_id)?;
    let defect = |e: BadFold| DbError::Defect(format!("log row {}: {}", row.sequence, e.0));
    let run = match run {
        None => Run::requested(RunId::from_text(row.subject.clone()), row.at, &change).map_err(defect)?,
        Some(mut run) => {
            run.apply(row.at, &change).map_err(defect)?;
            run
        }
    };
    if run.version == row.version {
        Ok((run, change))
    } else {
        Err(DbError::Defect(format!(
            "log row {} of {} has version {}, the fold {}",
            row.sequence, row.subject, row.version, run.version
        )))
    }
}

/// Rows one run can have: its steps, each with all retries, and its own phases.
const ROWS_MAX: usize = 2 * domain::limits::PLAN_STEPS_MAX * (domain::limits::STEP_RETRIES_MAX as usize + 2) + 8;

/// The run as it was after the row with this sequence; `None` before its first row.
pub fn fold(tx: &mut Tx<'_>, id: &RunId, up_to: u64) -> TxResult<Option<Run>> {
    let mut run = None;
    for row in crate::log::of_subject(tx, id.as_str(), 0, up_to, ROWS_MAX)? {
        run = Some(fold_row(run, &row)?.0);
    }
    Ok(run)
}

/// The corruption detector: what the log says against what the row says.
pub fn check_fold(tx: &mut Tx<'_>, id: &RunId) -> TxResult<Result<(), String>> {
    let folded = fold(tx, id, i64::MAX as u64)?;
    let stored = get(tx, id)?;
    Ok(if folded == stored {
        Ok(())
    } else {
        Err(format!("run {id}: the log folds to {folded:?}, the row says {stored:?}"))
    })
}

/// One run's events after a sequence, each with the run as it was.
pub fn events_after(tx: &mut Tx<'_>, id: &RunId, after: u64, up_to: u64) -> TxResult<Vec<RunEvent>> {
    let mut events = Vec::new();
    let mut run = None;
    for row in crate::log::of_subject(tx, id.as_str(), 0, up_to, ROWS_MAX)? {
        let (next, change) = fold_row(run, &row)?;
        if row.sequence > after {
            let message = change.describe();
            events.push(RunEvent { sequence: row.sequence, at: row.at, run: Arc::new(next.clone()), message });
        }
        run = Some(next);
    }
    Ok(events)
}
