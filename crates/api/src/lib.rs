//! The gRPC door: messages in, use cases called, messages out. Thin: nothing is decided here.

mod auth;
mod convert;
mod engine;
mod error;
mod machine;
mod plan;
mod refused;
mod run;
mod server;

pub use convert::plan_from_proto;
pub use error::to_status;
pub use server::{ServerOptions, serve};
