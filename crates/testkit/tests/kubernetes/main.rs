//! The cluster adapter against a real Kubernetes API server, and against a responder of ours for what that one lacks.
//! The server is built once by `scripts/kube-apiserver`, and shared by all tests here: each has its own nodes and
//! namespaces.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod drain;
mod faults;
mod fixture;
mod join;
mod membership;
mod refusals;
mod responder;
mod shapes;
