//! The MAAS simulator against what was recorded of a real one, and against itself: that it keeps MAAS's traps, misbehaves
//! as it is told, and that its auditor finds what it is there to find.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod auditor;
mod caller;
mod lifecycle;
mod many;
mod misbehaviour;
mod replay;
mod traps;
mod walk;
