//! Two servers on one database: what one does, the streams of the other hear of. Nothing more is said on them meanwhile.

use crate::fixture::{connected, fleet, reason_of_end};
use domain::agent::IdentityState;
use domain::task::TaskStatus;
use proto::agent::v1::from_agent::Message as Says;
use store::{Options, agent};
use testkit::agent_site::AgentSite;
use testkit::fleet::{Database, Fleet, eventually};

async fn two() -> (AgentSite, AgentSite) {
    let first = fleet(Database::Postgres).await;
    let config = first.postgres().expect("a database").clone();
    let second = tokio::task::spawn_blocking(move || Fleet::on_database(&Options::Postgres(Box::new(config)), 2));
    let second = second.await.expect("a second server");
    (AgentSite::start(first).await, AgentSite::start(second).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_stopped_through_one_ends_at_the_other() {
    let (first, second) = two().await;
    assert_eq!(first.dialer.authority, second.dialer.authority, "it was founded once");
    for (name, state, reason) in
        [("gpu-1", IdentityState::Revoked, "REVOKED"), ("gpu-2", IdentityState::Suspended, "CLONED")]
    {
        let (node, _agent, mut stream) = connected(&first, name).await;
        let id = node.clone();
        second.write(node.as_str(), move |tx| agent::set_state(tx, &id, state, "for a test")).await;
        assert_eq!(reason_of_end(&mut stream).await, reason);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_comes_to_the_other_leaves_the_first() {
    let (first, second) = two().await;
    let (node, mut agent, mut old) = connected(&first, "gpu-1").await;
    let mut new = agent.connect(&second.dialer).await.expect("connects");
    assert_eq!(reason_of_end(&mut old).await, "RETRY");
    let task = first.order(&node, "from afar").await;
    assert_eq!(new.task().await.task_id, task.as_str());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_is_ordered_at_one_goes_out_by_the_other() {
    let (first, second) = two().await;
    let (node, agent, mut stream) = connected(&first, "gpu-1").await;
    let id = second.order(&node, "from afar").await;
    let order = stream.task().await;
    assert_eq!(order.task_id, id.as_str());
    stream.say(Says::Result(agent.result(&order, true, ""))).await;
    assert!(stream.stored().await.applied);
    eventually("the other one sees it", || async { (second.task(&id).await.status == TaskStatus::Done).then_some(()) })
        .await;
}
