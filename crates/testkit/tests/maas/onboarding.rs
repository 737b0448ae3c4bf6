//! Onboarding, stage by stage.

use crate::plant::{Plant, mac};
use domain::job::JobStatus;
use domain::job_stage::{Ground, JobKind};
use domain::node::NodeStatus;
use testkit::fleet::Database;
use testkit::maas_sim::log::Kind;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_racked_machine_becomes_a_node_through_all_stages_in_their_order() {
    let plant = Plant::new(Database::Sqlite).await;
    plant.start().await;
    plant.rack(1);
    let (node, begun) = plant.onboard(Plant::wish(1)).await;
    let job = plant.rests(&begun).await;
    assert_eq!(job.status, JobStatus::Completed, "{:?}", job.failure);
    let done: Vec<_> = job.done.iter().map(|done| done.stage).collect();
    assert_eq!(done, JobKind::Onboarding(Ground::Maas).stages());
    let node = plant.node(&node).await;
    assert_eq!(node.status, NodeStatus::Active);
    let records = plant.sim.with_mac(&mac(1));
    assert_eq!(records.len(), 1);
    assert_eq!(node.maas.expect("its machine").system_id, records[0].system_id);
    assert_eq!(records[0].status_name, "Deployed");
    assert_eq!(records[0].annotations.get("millwright-node"), Some(&node.id.to_string()));
    plant.audited().await;
    // its BMC keeps the login that MAAS was given
    let kept = plant.sim.log().iter().any(|entry| match &entry.kind {
        Kind::Request { op, fields, .. } => op == "commission" && fields.iter().any(|f| f == "skip_bmc_config"),
        _ => false,
    });
    assert!(kept, "commissioned without skip_bmc_config");
    for (call, times) in plant.sim.calls() {
        println!("{times:>4} {call}");
    }
}
