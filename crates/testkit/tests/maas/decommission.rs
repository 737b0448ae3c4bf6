//! Decommission and reimage.

use crate::plant::Plant;
use domain::job::JobStatus;
use domain::job_stage::{Ground, JobKind, Mode};
use domain::node::NodeStatus;
use testkit::fleet::Database;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_given_back_through_all_thirteen_stages() {
    let plant = Plant::with(Database::Sqlite, |site| site.policy.keep_record = false).await;
    plant.start().await;
    let node = plant.onboarded(1).await;
    let begun = plant.decommission(&node, "full_decommission").await;
    let job = plant.rests(&begun).await;
    assert_eq!(job.status, JobStatus::Completed, "{:?}", job.failure);
    let done: Vec<_> = job.done.iter().map(|done| done.stage).collect();
    assert_eq!(done, JobKind::Decommission(Mode::FullDecommission(Ground::Maas)).stages());
    assert!(plant.is(&node, NodeStatus::Deleted).await);
    assert!(plant.sim.machines().is_empty(), "its record is gone");
    plant.audited().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reimaged_node_comes_back_by_its_own_new_agent() {
    let plant = Plant::new(Database::Sqlite).await;
    plant.start().await;
    let _sweeps = plant.reconciler();
    let node = plant.onboarded(1).await;
    let begun = plant.decommission(&node, "reimage").await;
    let job = plant.rests(&begun).await;
    assert_eq!(job.status, JobStatus::Completed, "{:?}", job.failure);
    let done: Vec<_> = job.done.iter().map(|done| done.stage).collect();
    assert_eq!(done, JobKind::Decommission(Mode::Reimage(Ground::Maas)).stages());
    assert!(plant.is(&node, NodeStatus::Active).await);
    plant.audited().await;
}
