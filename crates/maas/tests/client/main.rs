//! The client against a server that answers as MAAS was seen to: how each call is formed, what each answer means, what
//! becomes of answers that are none, and that a site which is down harms nobody but itself.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod answers;
mod apart;
mod fixtures;
mod forms;
mod hostile;
mod server;
mod trust;
