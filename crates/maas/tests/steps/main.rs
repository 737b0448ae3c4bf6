//! The provider for machines that a MAAS manages, against a small MAAS of its own in memory: which machine is meant, what
//! is refused before it is touched, power with its proof, and repaving part by part, also when parts are lost on the way.
//! The looks and acts are those of a step, in its order.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod power;
mod repave;
mod which;
mod world;
