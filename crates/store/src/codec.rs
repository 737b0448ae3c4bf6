//! Row forms: how domain values are spelt inside a column. Kept apart from the domain, which has no
//! spelling of its own, and from the wire, which has another.

use crate::error::DbError;
use domain::condition::{Condition, ConditionType};
use domain::lifecycle::State;
use domain::observation::Observed;
use domain::plan::{BootMode, RebootMode, RmaAction, Step, StepKind};
use domain::run::{RunChange, RunError, RunPhase, RunType};
use domain::step::{StepState, StepStatus};
use domain::{MachineId, Timestamp};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

pub(crate) fn to_json<T: Serialize>(value: &T) -> String {
    // strings, numbers and maps with text keys: cannot fail
    serde_json::to_string(value).unwrap_or_default()
}

pub(crate) fn from_json<'a, T: Deserialize<'a>>(what: &str, text: &'a str) -> Result<T, DbError> {
    serde_json::from_str(text).map_err(|e| DbError::Defect(format!("{what} in the database does not read: {e}")))
}

pub(crate) fn unknown(what: &str, text: &str) -> DbError {
    DbError::Defect(format!("{what} {text:?} in the database is unknown to this version"))
}

pub(crate) fn state<S: State>(text: &str) -> Result<S, DbError> {
    S::parse(text).ok_or_else(|| unknown(S::ENTITY, text))
}

pub(crate) fn spelt<S: State>(state: S) -> &'static str {
    state.as_str()
}

pub(crate) fn run_type(text: &str) -> Result<Option<RunType>, DbError> {
    if text.is_empty() { Ok(None) } else { RunType::parse(text).map(Some).map_err(|_| unknown("run type", text)) }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct ConditionRow<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    status: bool,
    reason: String,
    message: String,
    last_transition: i64,
    observed_at: i64,
    /// Of what was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    confirmed: Option<bool>,
}

impl From<&Observed> for ConditionRow<'_> {
    fn from(o: &Observed) -> Self {
        Self { confirmed: Some(o.confirmed), ..Self::from(&o.condition) }
    }
}

impl TryFrom<ConditionRow<'_>> for Observed {
    type Error = DbError;
    fn try_from(row: ConditionRow<'_>) -> Result<Self, DbError> {
        let confirmed = row.confirmed.ok_or_else(|| DbError::Defect("seen, but not whether it still is".to_owned()))?;
        Ok(Observed { condition: Condition::try_from(row)?, confirmed })
    }
}

impl From<&Condition> for ConditionRow<'_> {
    fn from(c: &Condition) -> Self {
        Self {
            kind: Cow::Borrowed(c.kind.as_str()),
            status: c.status,
            reason: c.reason.clone(),
            message: c.message.clone(),
            last_transition: c.last_transition.micros(),
            observed_at: c.observed_at.micros(),
            confirmed: None,
        }
    }
}

impl TryFrom<ConditionRow<'_>> for Condition {
    type Error = DbError;
    fn try_from(c: ConditionRow<'_>) -> Result<Self, DbError> {
        Ok(Condition {
            kind: ConditionType::parse(&c.kind).ok_or_else(|| unknown("condition", &c.kind))?,
            status: c.status,
            reason: c.reason,
            message: c.message,
            last_transition: Timestamp::from_micros(c.last_transition),
            observed_at: Timestamp::from_micros(c.observed_at),
        })
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct StepRow {
    name: String,
    timeout_seconds: Option<i32>,
    max_retries: Option<i32>,
    kind: KindRow,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KindRow {
    Ssh { command: String, args: Vec<String>, environment: BTreeMap<String, String> },
    Reboot { mode: String },
    Netboot { mode: String, persistent: bool },
    Repave { image: String, user_data_ref: String },
    Join { cluster_ref: String },
    Verify { cluster_ref: String },
    Net { parameters: BTreeMap<String, String> },
    Rma { action: String, reason: String },
}

impl From<&Step> for StepRow {
    fn from(s: &Step) -> Self {
        let kind = match s.kind.clone() {
            StepKind::Ssh { command, args, environment } => KindRow::Ssh { command, args, environment },
            StepKind::Reboot { mode } => KindRow::Reboot { mode: mode.to_string() },
            StepKind::Netboot { mode, persistent } => KindRow::Netboot { mode: mode.to_string(), persistent },
            StepKind::Repave { image, user_data_ref } => KindRow::Repave { image, user_data_ref },
            StepKind::Join { cluster_ref } => KindRow::Join { cluster_ref },
            StepKind::Verify { cluster_ref } => KindRow::Verify { cluster_ref },
            StepKind::Net { parameters } => KindRow::Net { parameters },
            StepKind::Rma { action, reason } => KindRow::Rma { action: action.to_string(), reason },
        };
        Self { name: s.name.clone(), timeout_seconds: s.timeout_seconds, max_retries: s.max_retries, kind }
    }
}

impl TryFrom<StepRow> for Step {
    type Error = DbError;
    fn try_from(s: StepRow) -> Result<Self, DbError> {
        let kind = match s.kind {
            KindRow::Ssh { command, args, environment } => StepKind::Ssh { command, args, environment },
            KindRow::Reboot { mode } => {
                StepKind::Reboot { mode: RebootMode::parse("mode", &mode).map_err(|_| unknown("reboot mode", &mode))? }
            }
            KindRow::Netboot { mode, persistent } => StepKind::Netboot {
                mode: BootMode::parse("mode", &mode).map_err(|_| unknown("boot mode", &mode))?,
                persistent,
            },
            KindRow::Repave { image, user_data_ref } => StepKind::Repave { image, user_data_ref },
            KindRow::Join { cluster_ref } => StepKind::Join { cluster_ref },
            KindRow::Verify { cluster_ref } => StepKind::Verify { cluster_ref },
            KindRow::Net { parameters } => StepKind::Net { parameters },
            KindRow::Rma { action, reason } => StepKind::Rma {
                action: RmaAction::parse("action", &action).map_err(|_| unknown("RMA action", &action))?,
                reason,
            },
        };
        Ok(Step { name: s.name, timeout_seconds: s.timeout_seconds, max_retries: s.max_retries, kind })
    }
}

pub(crate) fn steps_to_json(steps: &[Step]) -> String {
    to_json(&steps.iter().map(StepRow::from).collect::<Vec<_>>())
}

pub(crate) fn steps_from_json(text: &str) -> Result<Vec<Step>, DbError> {
    from_json::<Vec<StepRow>>("steps", text)?.into_iter().map(Step::try_from).collect()
}

#[derive(Serialize, Deserialize, Clone)]
pub(crate) struct RunErrorRow {
    code: String,
    class: String,
    message: String,
    retryable: bool,
}

impl From<&RunError> for RunErrorRow {
    fn from(e: &RunError) -> Self {
        Self { code: e.code.clone(), class: e.class.clone(), message: e.message.clone(), retryable: e.retryable }
    }
}

impl From<RunErrorRow> for RunError {
    fn from(e: RunErrorRow) -> Self {
        Self { code: e.code, class: e.class, message: e.message, retryable: e.retryable }
    }
}

/// The part of a run that changes as a whole.
#[derive(Serialize, Deserialize)]
pub(crate) struct RunStatusRow {
    pub steps: Vec<StepStatusRow>,
    pub error: Option<RunErrorRow>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct StepStatusRow {
    name: String,
    state: String,
    retry_count: u32,
    started_at: Option<i64>,
    finished_at: Option<i64>,
    message: String,
}

impl From<&StepStatus> for StepStatusRow {
    fn from(s: &StepStatus) -> Self {
        Self {
            name: s.name.clone(),
            state: s.state.to_string(),
            retry_count: s.retry_count,
            started_at: s.started_at.map(Timestamp::micros),
            finished_at: s.finished_at.map(Timestamp::micros),
            message: s.message.clone(),
        }
    }
}

impl TryFrom<StepStatusRow> for StepStatus {
    type Error = DbError;
    fn try_from(s: StepStatusRow) -> Result<Self, DbError> {
        Ok(StepStatus {
            name: s.name,
            state: state::<StepState>(&s.state)?,
            retry_count: s.retry_count,
            started_at: s.started_at.map(Timestamp::from_micros),
            finished_at: s.finished_at.map(Timestamp::from_micros),
            message: s.message,
        })
    }
}

/// What a log row of a run says beyond its states.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ChangeRow {
    Requested {
        machine_id: String,
        request_id: String,
        #[serde(rename = "type")]
        run_type: String,
        plan_id: String,
        steps: Vec<String>,
        parameters: BTreeMap<String, String>,
    },
    Started,
    StepStarted {
        step: String,
    },
    StepRetrying {
        step: String,
        retry_count: u32,
        message: String,
    },
    StepSucceeded {
        step: String,
        message: String,
    },
    StepFailed {
        step: String,
        message: String,
    },
    Finished {
        phase: String,
        error: Option<RunErrorRow>,
    },
}

pub(crate) fn change_to_json(change: &RunChange) -> String {
    let row = match change.clone() {
        // whose it is stands beside it in the row
        RunChange::Requested { machine_id, customer_id: _, request_id, run_type, plan_id, steps, parameters } => {
            ChangeRow::Requested {
                machine_id: machine_id.to_string(),
                request_id,
                run_type: run_type.map_or("", RunType::as_str).to_owned(),
                plan_id,
                steps,
                parameters,
            }
        }
        RunChange::Started => ChangeRow::Started,
        RunChange::StepStarted { step } => ChangeRow::StepStarted { step },
        RunChange::StepRetrying { step, retry_count, message } => {
            ChangeRow::StepRetrying { step, retry_count, message }
        }
        RunChange::StepSucceeded { step, message } => ChangeRow::StepSucceeded { step, message },
        RunChange::StepFailed { step, message } => ChangeRow::StepFailed { step, message },
        RunChange::Finished { phase, error } => {
            ChangeRow::Finished { phase: phase.to_string(), error: error.as_ref().map(RunErrorRow::from) }
        }
    };
    to_json(&row)
}

pub(crate) fn change_from_json(text: &str, customer_id: &str) -> Result<RunChange, DbError> {
    Ok(match from_json::<ChangeRow>("a run's log row", text)? {
        ChangeRow::Requested { machine_id, request_id, run_type: kind, plan_id, steps, parameters } => {
            RunChange::Requested {
                machine_id: MachineId::from_text(machine_id),
                customer_id: customer_id.to_owned(),
                request_id,
                run_type: run_type(&kind)?,
                plan_id,
                steps,
                parameters,
            }
        }
        ChangeRow::Started => RunChange::Started,
        ChangeRow::StepStarted { step } => RunChange::StepStarted { step },
        ChangeRow::StepRetrying { step, retry_count, message } => {
            RunChange::StepRetrying { step, retry_count, message }
        }
        ChangeRow::StepSucceeded { step, message } => RunChange::StepSucceeded { step, message },
        ChangeRow::StepFailed { step, message } => RunChange::StepFailed { step, message },
        ChangeRow::Finished { phase, error } => {
            RunChange::Finished { phase: state::<RunPhase>(&phase)?, error: error.map(RunError::from) }
        }
    })
}
