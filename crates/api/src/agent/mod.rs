//! The agents' door: a port of its own, mutual TLS by our own authority, one stream for each agent. Everything that
//! comes in is bounded before it is read, and no agent holds up another.

mod allowance;
mod convert;
mod grpc;
mod handler;
mod line;
mod listener;
mod session;
mod tls;

pub use listener::{AgentOptions, serve_agents};
