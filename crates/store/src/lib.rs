//! The transactional store: one contract, SQLite and PostgreSQL beneath it.
//!
//! Operations are synchronous closures over an open transaction ([`Tx`]), run by the store's own
//! threads: `store.write(caller, key, |tx| …).await`. A closure cannot await, so no transaction spans
//! foreign work; it may be run again, so it has no effects outside its transaction. Waiting closures
//! are committed together (group commit) and answered only after the commit is durable.
//!
//! Every state moves through [`Tx::transition`] and leaves one row in the ordered log.

/// Declares the fixed statements of a module, and a list of them for [`prepare_all`].
macro_rules! statements {
    ($($name:ident = $text:expr;)+) => {
        $(const $name: &str = $text;)+
        pub(crate) const STATEMENTS: &[(&str, &str)] = &[$((stringify!($name), $name)),+];
    };
}
pub(crate) use statements;

pub mod agent;
mod ambient;
pub mod audit;
mod backup;
pub mod boot_node;
pub mod boot_workflow;
mod census;
mod codec;
pub mod credential;
mod db;
mod error;
pub mod execution;
mod feed;
mod filter_sql;
pub mod finding;
pub mod hold;
pub mod idempotency;
pub mod image;
pub mod inspect;
pub mod install_order;
pub mod job;
mod log;
pub mod maas_machine;
pub mod machine;
mod newest;
pub mod node;
pub mod observation;
pub mod pin;
mod place;
pub mod plan;
mod point;
mod postgres;
mod prepare;
mod queue;
mod rising;
pub mod run;
mod schema;
mod servers;
pub mod session;
mod sight;
mod signal;
mod simulated;
pub mod site;
pub mod site_sight;
mod sqlite;
pub mod step_log;
mod store;
pub mod sweep;
pub mod switch;
pub mod task;
pub mod task_output;
pub mod token;
mod transition;
mod tx;
mod writer;

pub use ambient::{Ambient, SystemAmbient};
pub use backup::{backup, restore};
pub use census::{Census, Open, WAIT_PREFIX, census};
pub use error::{Failure, TxResult, is_fenced};
pub use feed::{Feed, LogEvent, RunEvent};
pub use log::{LogRange, LogRow, after as log_after, of_subject as log_of_subject, range as log_range};
pub use point::Point;
#[doc(hidden)]
pub use prepare::prepare_all;
pub use rising::Follower;
pub use schema::SCHEMA_VERSION;
pub use sight::tell_zeros;
pub use signal::{Signal, Signals};
pub use simulated::{Fate, Way};
pub use store::{Caller, Options, Store};
pub use transition::{Cause, Moved, Transition};
pub use tx::Tx;
