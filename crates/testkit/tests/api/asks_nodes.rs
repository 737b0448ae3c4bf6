//! Requests about nodes, jobs and tasks: the fleet's own, whoever the customer is.

use crate::asks::{Ask, Asks, ask, only};
use domain::node::NodeStatus;
use domain::{NodeId, TaskId};
use proto::millwright::v1 as mw;
use service::{JobAct, JobsOf, NewDecommission, NewNode, NewTaskOrder};
use testkit::fleet::{admin, eventually};
use testkit::nodes;

impl Asks<'_> {
    /// A node of its own in that status, with an agent that was heard of.
    async fn node(&self, status: NodeStatus) -> String {
        let (service, store) = (&self.api.server.service, self.api.server.service.store());
        let new = NewNode { name: self.fresh("node"), ..NewNode::default() };
        let made = service.create_node(&admin(), new).await.expect("a node").view.node.id;
        if status != NodeStatus::BootstrapIssued {
            nodes::enrol(store, &made, 9).await;
        }
        nodes::bring(store, &made, status).await;
        made.into_text()
    }

    /// An onboarding that waits for its agent.
    async fn onboarding(&self) -> String {
        let node = self.node(NodeStatus::BootstrapIssued).await;
        let job = self.api.server.service.start_onboarding(&admin(), &node, "").await.expect("begins");
        job.job.id.into_text()
    }

    async fn decommission(&self) -> String {
        let node = self.node(NodeStatus::Active).await;
        let new = NewDecommission { node, mode: "soft_reset".into(), ..NewDecommission::default() };
        match self.api.server.service.start_decommission(&admin(), new).await.expect("begins") {
            service::Begun::Job(view) => view.job.id.into_text(),
            service::Begun::Preview { .. } => panic!("not a preview"),
        }
    }

    /// One that has ended.
    async fn ended_job(&self) -> String {
        let (id, service) = (self.onboarding().await, &self.api.server.service);
        let cancel =
            JobAct { id: id.clone(), action: "cancel".into(), reason: String::new(), dry_run: false, of: JobsOf::All };
        service.act_on_job(&admin(), cancel).await.expect("is called off");
        eventually("the job to end", || async {
            let view = service.get_job(&id, JobsOf::All).await.expect("a job");
            view.job.status.is_terminal().then_some(())
        })
        .await;
        id
    }

    /// One that waits for its agent, and has printed something.
    async fn task(&self) -> String {
        let node = self.node(NodeStatus::Active).await;
        let new = NewTaskOrder { node: node.clone(), kind: "host.reboot".into(), ..NewTaskOrder::default() };
        let service = &self.api.server.service;
        let id = service.order_task(&admin(), new).await.expect("is queued").id.into_text();
        nodes::print(service.store(), &NodeId::from_text(node), &TaskId::from_text(id.as_str()), 0, "hello\n").await;
        id
    }

    pub(crate) async fn of_nodes(&self, method: &str) -> Option<Ask> {
        let acts = async |status: NodeStatus| {
            let of = |id| mw::NodeActionRequest { id, reason: "a test".into(), ..Default::default() };
            ask(&of(self.node(status).await), &of(self.node(status).await))
        };
        Some(match method {
            "ListNodes" => {
                let filter = format!("id={}", self.node(NodeStatus::Active).await);
                only(&mw::ListNodesRequest { filter, ..Default::default() })
            }
            "GetNode" => only(&mw::GetNodeRequest { id: self.node(NodeStatus::Active).await }),
            // of one that is deleted the stream ends
            "WatchNode" => only(&mw::GetNodeRequest { id: self.node(NodeStatus::Deleted).await }),
            "GetNodeHistory" => {
                only(&mw::GetNodeHistoryRequest { id: self.node(NodeStatus::Active).await, limit: None, offset: 0 })
            }
            "CreateNode" => {
                let new = || mw::CreateNodeRequest { name: self.fresh("new"), ..Default::default() };
                ask(&new(), &new())
            }
            "OnboardNode" => {
                let site = self.site().await;
                let new = |id: &str| mw::OnboardNodeRequest {
                    name: self.fresh("new"),
                    site: site.clone(),
                    system_id: id.to_owned(),
                    ..Default::default()
                };
                ask(&new("abc123"), &new("abc124"))
            }
            "DrainNode" | "CordonNode" | "UncordonNode" | "QuarantineNode" | "RebootstrapNode" | "RevokeNode" => {
                acts(NodeStatus::Active).await
            }
            "ReactivateNode" | "RemoveNode" => acts(NodeStatus::Retired).await,
            "RecoverNode" => acts(NodeStatus::Quarantined).await,
            "ResumeNode" => acts(NodeStatus::Draining).await,
            "RepairNode" => {
                let mut of = Vec::new();
                for _ in 0..2 {
                    let id = self.node(NodeStatus::Offline).await;
                    let (store, stopped) = (self.api.server.service.store(), domain::agent::IdentityState::Suspended);
                    nodes::set_identity(store, &NodeId::from_text(id.as_str()), stopped).await;
                    of.push(mw::NodeActionRequest { id, reason: "a test".into(), ..Default::default() });
                }
                ask(&of[0], &of[1])
            }
            "ActOnNodes" => {
                let of = |id: String| mw::ActOnNodesRequest {
                    filter: format!("id={id}"),
                    action: "cordon".into(),
                    ..Default::default()
                };
                ask(&of(self.node(NodeStatus::Active).await), &of(self.node(NodeStatus::Active).await))
            }
            _ => return None,
        })
    }

    pub(crate) async fn of_jobs(&self, method: &str) -> Option<Ask> {
        let listed = |id: String| mw::ListJobsRequest { filter: format!("id={id}"), ..Default::default() };
        let of = |id: String| mw::ActOnJobRequest { id, action: "reconcile".into(), ..Default::default() };
        Some(match method {
            "ListJobs" | "ListOnboardings" => only(&listed(self.onboarding().await)),
            "ListDecommissions" => only(&listed(self.decommission().await)),
            "GetJob" | "GetOnboarding" => only(&mw::GetJobRequest { id: self.onboarding().await }),
            "GetDecommission" => only(&mw::GetJobRequest { id: self.decommission().await }),
            "WatchJob" => only(&mw::GetJobRequest { id: self.ended_job().await }),
            "ActOnJob" | "ActOnOnboarding" => ask(&of(self.onboarding().await), &of(self.onboarding().await)),
            "ActOnDecommission" => ask(&of(self.decommission().await), &of(self.decommission().await)),
            "ActOnJobs" => {
                let of = |id: String| mw::ActOnJobsRequest {
                    filter: format!("id={id}"),
                    action: "reconcile".into(),
                    ..Default::default()
                };
                ask(&of(self.onboarding().await), &of(self.onboarding().await))
            }
            "StartOnboarding" => {
                let of = |node_id| mw::StartOnboardingRequest { node_id, reason: "a test".into() };
                let issued = NodeStatus::BootstrapIssued;
                ask(&of(self.node(issued).await), &of(self.node(issued).await))
            }
            "StartDecommission" => {
                let of = |node_id| mw::StartDecommissionRequest {
                    node_id,
                    mode: "storage_cleanup".into(),
                    ..Default::default()
                };
                ask(&of(self.node(NodeStatus::Active).await), &of(self.node(NodeStatus::Active).await))
            }
            _ => return None,
        })
    }

    pub(crate) async fn of_tasks(&self, method: &str) -> Option<Ask> {
        Some(match method {
            "ListTasks" => {
                only(&mw::ListTasksRequest { filter: format!("id={}", self.task().await), ..Default::default() })
            }
            "GetTask" => only(&mw::GetTaskRequest { id: self.task().await }),
            "StreamTaskOutput" => {
                only(&mw::StreamTaskOutputRequest { id: self.task().await, no_follow: true, ..Default::default() })
            }
            "OrderTask" => {
                let of = |node_id| mw::OrderTaskRequest {
                    node_id,
                    kind: "node.validate_clean".into(),
                    ..Default::default()
                };
                ask(&of(self.node(NodeStatus::Active).await), &of(self.node(NodeStatus::Active).await))
            }
            "CancelTask" => {
                let of = |id| mw::CancelTaskRequest { id, reason: "a test".into() };
                ask(&of(self.task().await), &of(self.task().await))
            }
            _ => return None,
        })
    }
}
