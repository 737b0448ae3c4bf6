//! The doors: messages in, use cases called, messages out. Thin: nothing is decided here. gRPC is the
//! one room; REST is the same calls in JSON, made in this process.

mod agent;
mod audit;
mod boot;
mod cluster;
mod convert;
mod credential;
mod door;
mod engine;
mod error;
mod event;
mod executor;
mod explain;
mod finding;
mod gate;
mod hardware;
mod image;
mod job;
pub mod json;
mod machine;
mod metrics;
mod node;
mod opening;
mod outbox;
mod plan;
mod refused;
mod rest;
mod run;
mod server;
mod sight;
mod site;
mod task;
mod tls;
mod token;

pub use agent::{AgentOptions, serve_agents};
pub use convert::plan_from_proto;
pub use door::Door;
pub use error::{code_name, to_status};
pub use metrics::{Render, collect_metrics};
pub use rest::{openapi, rest_error};
pub use server::{ServerOptions, serve};
pub use sight::{REQUEST_ID, RequestId};
pub use tls::{Tls, pem_problem};
