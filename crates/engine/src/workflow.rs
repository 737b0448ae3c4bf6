//! What the engine asks of a procedure: its stages, how to look at one, how to do it, how to take it
//! back, and how the product's own rows follow.

use async_trait::async_trait;
use domain::limits::short;
use domain::stage::{Ending, FailureClass, StageDecl};
use domain::{Error, ExecutionId, Timestamp};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use store::execution::{Execution, Fence};
use store::{Store, Tx, TxResult};

/// Why an attempt failed, in a form that is stored and shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Stable, e.g. `STEP_TIMED_OUT`.
    pub code: String,
    #[serde(with = "class_text")]
    pub class: FailureClass,
    pub message: String,
}

impl Failure {
    pub fn new(code: &str, class: FailureClass, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), class, message: short(&message.into()) }
    }
}

mod class_text {
    use domain::stage::FailureClass;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(class: &FailureClass, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(class.as_str())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<FailureClass, D::Error> {
        let text = String::deserialize(d)?;
        FailureClass::parse(&text).ok_or_else(|| de::Error::custom(format!("unknown failure class {text:?}")))
    }
}

/// Which stage, which attempt, on whose authority.
#[derive(Clone, Debug)]
pub struct StageCx {
    pub execution: ExecutionId,
    pub index: usize,
    pub attempt: u32,
    pub fence: Fence,
    /// What earlier looks at this stage have stored.
    pub facts: serde_json::Value,
    /// Whether this attempt is known to have acted,
    pub acted: bool,
    /// or may have without our knowing, because its holder was lost.
    pub may_have_acted: bool,
    /// How long this attempt has been going on,
    pub elapsed: Duration,
    /// and how long ago it acted; zero: it has not.
    pub since_act: Duration,
    /// No call into a stage lasts longer: one that does is given up.
    pub call_limit: Duration,
}

impl StageCx {
    /// How soon to look again: a quarter of the time it has taken so far, within bounds. Prompt at first,
    /// cheap in the long run.
    pub fn look_again(&self) -> Duration {
        (self.elapsed / 4).clamp(Duration::from_millis(20), Duration::from_secs(30))
    }
}

/// What became of a stage that was to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Aborted {
    /// Nothing of it goes on.
    Stopped,
    /// What was accepted cannot be stopped, and takes effect by itself.
    TakesEffect,
}

/// What a look at the world shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    pub seen: Seen,
    /// What the stage printed since the last look, in order.
    pub output: Vec<(&'static str, Vec<u8>)>,
    /// To be stored before anything else happens; `None`: unchanged.
    pub facts: Option<serde_json::Value>,
}

impl From<Seen> for Look {
    fn from(seen: Seen) -> Self {
        Self { seen, output: Vec::new(), facts: None }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// It is done, by this attempt or an earlier one.
    Done(String),
    /// It is under way: look again.
    Waiting { on: String, look_again: Duration },
    /// Nothing of it is to be seen: clear to act.
    Clear,
    /// What was done so far is seen, and the stage has another part: clear to act once more. Which part that is stands
    /// in the facts of the same look, so that whoever takes over knows.
    NextPart,
    /// Something is wrong.
    Failed(Failure),
}

/// What came of an act.
#[derive(Clone, Debug, PartialEq)]
pub enum Acted {
    /// Said to be done or accepted: look.
    Yes,
    /// Sent, and no answer came: look before anything else.
    Unknown(String),
    /// Nothing was sent, since something must be waited for first: it is looked at again, and no attempt is spent.
    NotYet {
        on: String,
        look_again: Duration,
    },
    No(Failure),
}

/// What the product's rows must follow, in the transaction of the journal entry.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The first stage is about to be entered.
    Started,
    Entered {
        index: usize,
    },
    Retrying {
        index: usize,
        retry: u32,
        failure: Failure,
        at: Timestamp,
    },
    Done {
        index: usize,
        message: String,
    },
    Failed {
        index: usize,
        message: String,
    },
    Ended {
        ending: Ending,
        failure: Option<Failure>,
        not_undone: Vec<String>,
    },
}

/// One execution's work, loaded.
#[async_trait]
pub trait Work: Send + Sync {
    fn stages(&self) -> &[StageDecl];
    /// The rack whose blast-radius cap applies; empty: none.
    fn rack(&self) -> &str;
    async fn look(&self, cx: &StageCx) -> Look;
    async fn act(&self, cx: &StageCx) -> Acted;
    /// Whether a look that is not answered in time is waited out, within the stage's own time; otherwise it is a failed
    /// attempt.
    fn outwaits_silence(&self, _index: usize) -> bool {
        false
    }
    /// Stops what an attempt has under way, as far as that is possible.
    async fn abort(&self, cx: &StageCx) -> Result<Aborted, Failure>;
    /// Takes a stage back. Only called for stages declared so.
    async fn undo(&self, cx: &StageCx) -> Result<(), Failure>;
    /// Writes the product's rows.
    fn record(&self, tx: &mut Tx<'_>, events: &[Event]) -> TxResult<()>;
    /// Stores what a stage printed.
    fn record_output(&self, tx: &mut Tx<'_>, index: usize, output: &[(&'static str, Vec<u8>)]) -> TxResult<()>;
}

/// A kind of procedure.
#[async_trait]
pub trait Workflow: Send + Sync {
    fn name(&self) -> &'static str;
    /// Raised when the meaning of stored positions changes.
    fn version(&self) -> u32;
    async fn load(&self, store: &Store, execution: &Execution) -> Result<Arc<dyn Work>, Error>;
    /// Writes the product's rows for an execution that was ended from outside.
    fn record_ended_from_outside(&self, tx: &mut Tx<'_>, execution: &Execution, by: &str, reason: &str)
    -> TxResult<()>;
}
