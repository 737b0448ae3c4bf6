//! The doors: messages in, use cases called, messages out. Thin: nothing is decided here.

mod audit;
mod convert;
mod engine;
mod error;
mod event;
mod explain;
mod gate;
mod machine;
mod plan;
mod refused;
mod run;
mod server;
mod token;

pub use convert::plan_from_proto;
pub use error::to_status;
pub use server::{ServerOptions, serve};
