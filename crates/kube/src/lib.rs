//! Kubernetes clusters as machines see them: material to join one, whether a machine is a member and drained,
//! and the way out of it (cordon, evict, delete). One [`Cluster`] for each configured cluster.
//!
//! ```text
//!   cluster.rs     what is offered: membership, cordon, delete
//!   check.rs       whether a kubeconfig lets us do all of it
//!   drain.rs       what counts as running there, and one pass of evictions
//!   join.rs        bootstrap tokens, and the script that a host joins with
//!   node.rs        which node object is this machine
//!   shared.rs      one listing for everybody who asks at the same time
//!   objects.rs     the few fields that are read of the server's objects
//!   rest.rs        one call: connection, deadline, what an answer means
//!   kubeconfig.rs  where the server is, and who we are there
//! ```
//!
//! Every call has a deadline, pages and bodies are bounded, and nothing here is remembered beyond a few seconds:
//! the cluster is the truth. Each change may be repeated safely. Tokens and keys are in no error, log or `Debug`.

mod check;
mod cluster;
mod drain;
mod join;
mod kubeconfig;
mod node;
mod objects;
mod rest;
mod shared;

pub use check::ClusterCheck;
pub use cluster::Cluster;
pub use drain::{DrainPass, Evict, Kept, Left};
pub use join::{JoinMaterial, JoinScript, join_script};
pub use node::NodeOf;
