//! The node agent: enrols with a one-time token, tells of its machine, carries out typed tasks and nothing else.

pub mod bundle;
pub mod clock;
pub mod connection;
pub mod enrolment;
pub mod folder;
pub mod host;
pub mod identity;
pub mod install;
pub mod inventory;
pub mod journal;
mod logging;
pub mod options;
pub mod runner;
pub mod setting;
mod show;
pub mod task;
