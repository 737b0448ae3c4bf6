//! A server with its agents' door over loopback, and nodes for agents to be of.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use crate::agent_client::{Dialer, WINDOW};
use crate::fleet::{Fleet, quick};
use domain::agent::BootstrapToken;
use domain::node::{AgentMode, ISSUED, Node, NodeStatus, ONBOARD, ONBOARDED};
use domain::task::{Task, TaskKind};
use domain::{NodeId, Secret, TaskId, Timestamp};
use engine::Engine;
use prost::Message as _;
use proto::agent::v1 as pb;
use service::Service;
use service::agents::{AgentSetup, new_bootstrap_token};
use std::time::Duration;
use store::task::NewTask;
use store::{Caller, Cause, Tx, TxResult, agent, node, task};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How long a token is good here.
pub const TOKEN_LIFE: Duration = Duration::from_secs(24 * 3600);

pub struct AgentSite {
    pub fleet: Fleet,
    pub engine: Engine,
    pub service: Service,
    pub dialer: Dialer,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

impl AgentSite {
    pub async fn start(fleet: Fleet) -> Self {
        Self::start_with(fleet, AgentSetup::default(), api::AgentOptions::default()).await
    }

    pub async fn start_with(fleet: Fleet, setup: AgentSetup, options: api::AgentOptions) -> Self {
        let engine = fleet.engine(quick("agents"), None);
        let service = fleet.service(&engine).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        service.serves_agents(AgentSetup { public_url: Ok(format!("https://{address}")), ..setup });
        let authority = service.agent_authority().await.expect("an authority").certificate().to_vec();
        let clock = fleet.ambient.clone();
        let dialer = Dialer { address, authority, clock: std::sync::Arc::new(move || clock.now()), window: WINDOW };
        let stop = CancellationToken::new();
        let serving = tokio::spawn(api::serve_agents(listener, service.clone(), options, stop.clone()));
        Self { fleet, engine, service, dialer, stop, serving }
    }

    pub fn now(&self) -> Timestamp {
        self.service.now()
    }

    /// A transaction of the test's own.
    pub async fn write<T: Send + 'static>(
        &self,
        key: &str,
        f: impl Fn(&mut Tx<'_>) -> TxResult<T> + Send + 'static,
    ) -> T {
        self.fleet.store.write(&Caller::new("test"), key, f).await.expect("written")
    }

    fn new_node(&self, name: &str, status: NodeStatus) -> Node {
        Node::new(NodeId::generate(self.fleet.ambient.uuid()), name, status, "", "tester", self.now())
    }

    /// A node that waits for its agent, with a token for it.
    pub async fn node(&self, name: &str) -> (NodeId, String) {
        let new = self.new_node(name, NodeStatus::Enrolling);
        let id = new.id.clone();
        self.write(id.as_str(), move |tx| node::insert(tx, &new, &Cause::operator("tester", ONBOARD, "")).map(drop))
            .await;
        let token = self.token(&id).await;
        (id, token)
    }

    /// A node whose onboarding begins when its agent comes.
    pub async fn awaited_node(&self, name: &str) -> (NodeId, String) {
        let new = self.new_node(name, NodeStatus::BootstrapIssued);
        let id = new.id.clone();
        self.write(id.as_str(), move |tx| node::insert(tx, &new, &Cause::operator("tester", ISSUED, "")).map(drop))
            .await;
        let token = self.token(&id).await;
        (id, token)
    }

    /// It has been taken into service.
    pub async fn activate(&self, id: &NodeId) {
        let id = id.clone();
        self.write(id.clone().as_str(), move |tx| {
            let there = node::get_for_update(tx, &id)?.expect("a node");
            let after = Node { status: NodeStatus::Active, ..there.clone() };
            let cause = Cause::executor("tester", ONBOARDED, "");
            node::move_to(tx, &there, &after, &serde_json::json!({}), &cause, |_| Ok(())).map(drop)
        })
        .await;
    }

    /// A fresh token; those before it are good no more.
    pub async fn token(&self, id: &NodeId) -> String {
        let (secret, hash) = new_bootstrap_token().expect("randomness");
        let now = self.now();
        let token = BootstrapToken {
            hash,
            node_id: id.clone(),
            expires_at: now.plus(TOKEN_LIFE),
            issued_by: "tester".to_owned(),
            issued_at: now,
            key_sha256: None,
            bound_at: None,
            withdrawn: false,
        };
        self.write(id.as_str(), move |tx| agent::issue(tx, &token)).await;
        Secret::reveal(&secret).to_owned()
    }

    pub async fn wish(&self, id: &NodeId, mode: AgentMode) {
        let id = id.clone();
        self.write(id.clone().as_str(), move |tx| {
            let there = node::get_for_update(tx, &id)?.expect("a node");
            node::save(tx, &Node { agent_mode: mode, agent_mode_by: "tester".to_owned(), ..there }).map(drop)
        })
        .await;
    }

    pub async fn identity(&self, id: &NodeId) -> domain::agent::AgentIdentity {
        self.fleet.store.point(agent::by_node(id)).await.expect("reads").expect("an agent")
    }

    pub async fn node_row(&self, id: &NodeId) -> Node {
        self.fleet.store.point(node::by_id(id)).await.expect("reads").expect("a node")
    }

    /// Orders a look for leftovers.
    pub async fn order(&self, node: &NodeId, operation: &str) -> TaskId {
        let (node, operation) = (node.clone(), operation.to_owned());
        let id = TaskId::generate(self.fleet.ambient.uuid());
        let (task_id, take_by) = (id.clone(), self.now().plus(Duration::from_secs(3600)));
        let kind = pb::task::Kind::NodeValidateClean(pb::NodeValidateClean::default());
        let order = pb::Task { kind: Some(kind), ..pb::Task::default() }.encode_to_vec();
        self.write(node.clone().as_str(), move |tx| {
            let new = NewTask {
                id: &task_id,
                node_id: &node,
                job: None,
                operation: &operation,
                kind: TaskKind::NodeValidateClean,
                order: &order,
                take_by,
            };
            task::queue(tx, &new, &Cause::operator("tester", domain::task::QUEUED, "")).map(drop)
        })
        .await;
        id
    }

    pub async fn task(&self, id: &TaskId) -> Task {
        self.fleet.store.point(task::by_id(id)).await.expect("reads").expect("a task")
    }

    /// Moves a task as its job or its operator would.
    pub async fn move_task(&self, id: &TaskId, cause: Cause, change: impl Fn(&mut Task) + Send + 'static) {
        let there = self.task(id).await;
        let id = id.clone();
        self.write(there.node_id.as_str(), move |tx| {
            let before = task::get_for_update(tx, &id)?.expect("a task");
            let mut after = before.clone();
            change(&mut after);
            task::move_to(tx, &before, &after, &cause).map(drop)
        })
        .await;
    }

    /// As SIGTERM does it.
    pub async fn stop(self) -> Fleet {
        self.service.refuse_calls();
        self.service.close();
        self.stop.cancel();
        self.serving.await.expect("stops serving");
        self.fleet
    }
}
