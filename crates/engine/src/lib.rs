//! Durable execution of stages over the store.
//!
//! An execution walks through its stages: decide (pure, in `domain`), commit the intent, look, act, look
//! again, commit the result. What waits longer than a moment is a row with a reason and a time, and
//! holds no worker. Every claim raises the fence; every write carries it, and an old one loses. After a
//! crash a stage in flight is looked at before it is done again.

mod claimer;
mod engine;
mod lease;
mod options;
mod sight;
mod worker;
mod workflow;

pub use engine::{Engine, JournalObserver};
pub use options::EngineOptions;
pub use sight::{tell_open, tell_zeros};
pub use workflow::{Aborted, Acted, Event, Failure, Look, Seen, StageCx, Work, Workflow};
