//! The nouns, their lifecycles as data, and every decision that needs no I/O.
//!
//! Pure: no async, no clock, no database, no wire. What time it is and what the world looks like
//! come in as arguments, so that everything here replays and can be tested to exhaustion.

pub mod condition;
pub mod credential;
pub mod endpoint;
pub mod error;
pub mod filter;
pub mod hardware;
pub mod id;
pub mod identity;
pub mod lifecycle;
pub mod limits;
pub mod look;
pub mod machine;
pub mod metric;
pub mod observation;
pub mod pin;
pub mod plan;
pub mod plan_defaults;
pub mod run;
pub mod secret;
pub mod stage;
pub mod step;
pub mod time;
pub mod token;
mod words;

pub use error::{Code, Error, Reason};
pub use id::{ExecutionId, MachineId, RunId, SessionId, TokenId};
pub use secret::Secret;
pub use time::Timestamp;
