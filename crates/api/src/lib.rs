//! The doors: messages in, use cases called, messages out. Thin: nothing is decided here. gRPC is the
//! one room; REST is the same calls in JSON, made in this process.

mod audit;
mod convert;
mod door;
mod engine;
mod error;
mod event;
mod explain;
mod gate;
pub mod json;
mod machine;
mod plan;
mod refused;
mod rest;
mod run;
mod server;
mod token;

pub use convert::plan_from_proto;
pub use door::Door;
pub use error::to_status;
pub use rest::openapi;
pub use server::{ServerOptions, serve};
