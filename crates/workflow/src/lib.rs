//! Stage bodies: what each procedure does, one file for each stage. They see providers through their
//! capabilities and the product's rows through the store; the engine decides when they run.

mod erasure;
pub mod install;
pub mod job;
mod run;

pub use job::{JOB_WORKFLOW, JobWorkflow, NodePolicy};
pub use run::{RUN_WORKFLOW, RUN_WORKFLOW_VERSION, RunWorkflow};
