//! The nouns, their lifecycles as data, and every decision that needs no I/O.
//!
//! Pure: no async, no clock, no database, no wire. What time it is and what the world looks like
//! come in as arguments, so that everything here replays and can be tested to exhaustion.

pub mod agent;
pub mod boot_decision;
pub mod boot_node;
pub mod boot_workflow;
pub mod condition;
pub mod credential;
pub mod endpoint;
pub mod error;
pub mod filter;
pub mod finding;
pub mod hardware;
pub mod id;
pub mod identity;
pub mod image;
pub mod install_order;
pub mod install_report;
pub mod job;
pub mod job_action;
pub mod job_stage;
pub mod layers;
pub mod lifecycle;
pub mod limits;
pub mod link;
pub mod look;
pub mod maas;
pub mod maas_drift;
pub mod maas_machine;
pub mod maas_stage;
pub mod mac;
pub mod machine;
pub mod metric;
pub mod node;
pub mod node_action;
pub mod observation;
pub mod pin;
pub mod plan;
pub mod plan_defaults;
pub mod run;
pub mod secret;
pub mod site;
pub mod site_check;
pub mod stage;
pub mod step;
pub mod task;
#[cfg(test)]
mod testing;
pub mod time;
pub mod token;
mod words;

pub use error::{Code, Error, Reason};
pub use id::{
    BootNodeId, ExecutionId, FindingId, JobId, MachineId, NodeId, OrderId, RunId, SessionId, TaskId, TokenId,
};
pub use mac::MacAddress;
pub use secret::Secret;
pub use time::Timestamp;
