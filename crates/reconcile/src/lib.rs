//! Reconcilers that take no input: conditions, from looking at every machine again and again; installations that
//! nothing is heard of; nodes by their heartbeats, tasks by their leases, jobs by their executions; machines of MAAS by what it says.
//!
//! - **Nothing is told, everything is looked at.** A sweep goes over all machines once in a period; a
//!   machine that has just changed is looked at at once. What a lost hint would have told, the next sweep
//!   finds.
//! - **No machine delays another.** Looks are made side by side, each with its own deadline; machines that
//!   do not answer are swept apart from those that do.
//! - **An idle fleet writes nothing** but the one row that says when it was last swept.
//! - **A look changes nothing outside.** The only move is the move from FACTORY_READY to READY, at the first
//!   proof that the machine can be managed.

mod ask;
mod every;
mod heartbeats;
mod layers;
mod node_jobs;
mod node_sweep;
mod options;
mod orders;
mod prompt;
mod reconciler;
mod record;
mod sites;
mod sweep;
mod task_leases;
mod watch;

pub use options::ReconcilerOptions;
pub use reconciler::Reconciler;
pub use sites::SiteReach;
