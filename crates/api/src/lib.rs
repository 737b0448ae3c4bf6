//! The gRPC door: messages in, use cases called, messages out. Thin: nothing is decided here.

mod auth;
mod convert;
mod engine;
mod error;
mod machine;
mod metrics;
mod plan;
mod refused;
mod run;
mod server;
mod sight;
mod tls;

pub use convert::plan_from_proto;
pub use error::to_status;
pub use metrics::{Render, collect_metrics};
pub use server::{ServerOptions, serve};
pub use sight::{Door, REQUEST_ID, RequestId};
pub use tls::Tls;
