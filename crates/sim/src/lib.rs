//! The simulated fleet: a provider whose machines misbehave on request, on a clock the caller holds.
//!
//! All that ever changes the world is an [`Effect`], appended to a journal before the call answers. The
//! world is nothing but the journal replayed, so it outlives a killed server, and the journal is what
//! auditors compare with what the control plane believes. No call alters or removes an effect.
//!
//! Machines obey labels: `sim.latency_ms`, `sim.output_bytes`, `sim.fault.STEPKIND` (see [`SimFleet`]).

mod act;
mod bmc;
mod capabilities;
mod change;
mod control;
mod controller;
mod effect;
mod exec;
mod fault;
mod fleet;
mod identity;
mod inventory;
mod job;
mod journal;
mod look;
mod machine;
mod output;
mod visit;
mod world;

pub use effect::Effect;
pub use fleet::{Clock, SimFleet};
pub use journal::read_effects;
