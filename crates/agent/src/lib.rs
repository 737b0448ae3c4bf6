//! The node agent: enrols with a one-time token, tells of its machine, carries out typed tasks and nothing else.

pub mod host;
pub mod install;
pub mod inventory;
pub mod task;
