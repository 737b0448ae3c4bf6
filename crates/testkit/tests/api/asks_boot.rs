//! Requests about boot nodes, workflows, images and findings: the fleet's own, whoever the customer is.

use crate::asks::{Ask, Asks, ask, only};
use domain::FindingId;
use domain::boot_workflow::BootWorkflow;
use domain::finding::FindingKind;
use proto::millwright::v1 as mw;
use service::{BootNodeMove, NewBootNode, NewImage};
use store::{Caller, finding};
use testkit::fleet::admin;

const WORKFLOW: &str = "asked-for";

impl Asks<'_> {
    /// A boot node of its own, with a workflow.
    async fn boot_node(&self) -> String {
        let service = &self.api.server.service;
        let workflow = BootWorkflow { id: WORKFLOW.into(), kernel: "vmlinuz".into(), ..BootWorkflow::default() };
        service.create_workflow(&admin(), workflow).await.expect("a workflow");
        let number = self.number();
        let mac_address =
            format!("52:54:00:{:02x}:{:02x}:{:02x}", number >> 16 & 0xff, number >> 8 & 0xff, number & 0xff);
        let new = NewBootNode { mac_address, workflow_id: WORKFLOW.into(), ..NewBootNode::default() };
        service.create_boot_node(&admin(), new).await.expect("a boot node").id.to_string()
    }

    async fn image(&self) -> String {
        let name = self.fresh("image");
        let new = NewImage { name: name.clone(), sha256: "ab".repeat(32), bytes: 7, kind: "raw".into() };
        self.api.server.service.name_image(&admin(), new).await.expect("an image");
        name
    }

    async fn finding(&self) -> String {
        let store = self.api.server.service.store();
        let id = FindingId::generate(store.ambient().uuid());
        let (raised, subject) = (id.clone(), self.fresh("subject"));
        let raise = move |tx: &mut store::Tx<'_>| {
            finding::raise(tx, raised.clone(), FindingKind::NotBooted, &subject, "a test", "test")
        };
        store.write(&Caller::new("test"), "findings", raise).await.expect("a finding");
        id.to_string()
    }

    pub(crate) async fn of_boot(&self, method: &str) -> Option<Ask> {
        let id = || self.boot_node();
        Some(match method {
            "ListBootNodes" => {
                only(&mw::ListBootNodesRequest { filter: format!("id={}", id().await), ..Default::default() })
            }
            "CreateBootNode" => {
                let new = || {
                    let number = self.number();
                    let mac_address = format!("52:55:00:00:{:02x}:{:02x}", number >> 8 & 0xff, number & 0xff);
                    mw::CreateBootNodeRequest { mac_address, ..Default::default() }
                };
                ask(&new(), &new())
            }
            "GetBootNode" => only(&mw::GetBootNodeRequest { id: id().await }),
            // of one that is retired the stream ends
            "WatchBootNode" => {
                let id = id().await;
                let retire = BootNodeMove { id: id.clone(), state: "retired".into(), ..BootNodeMove::default() };
                self.api.server.service.move_boot_node(&admin(), retire).await.expect("retires");
                only(&mw::WatchBootNodeRequest { id })
            }
            "UpdateBootNode" => {
                let id = id().await;
                let to = |group: &str| mw::UpdateBootNodeRequest {
                    id: id.clone(),
                    group: Some(group.to_owned()),
                    ..Default::default()
                };
                ask(&to("red"), &to("blue"))
            }
            "RetireBootNode" => {
                let of = |id| mw::RetireBootNodeRequest { id, comment: "a test".into() };
                ask(&of(id().await), &of(id().await))
            }
            "SetBootNodeState" => {
                let of = |id| mw::SetBootNodeStateRequest { id, state: "pending".into(), ..Default::default() };
                ask(&of(id().await), &of(id().await))
            }
            "SetBootNodeStates" => {
                let of =
                    |id| mw::SetBootNodeStatesRequest { ids: vec![id], state: "pending".into(), ..Default::default() };
                ask(&of(id().await), &of(id().await))
            }
            "GetBootNodeHistory" => only(&mw::GetBootNodeHistoryRequest { id: id().await, limit: None, offset: 0 }),
            "ListWorkflows" => {
                id().await;
                only(&mw::ListWorkflowsRequest::default())
            }
            "GetWorkflow" => {
                id().await;
                only(&mw::GetWorkflowRequest { id: WORKFLOW.into() })
            }
            "CreateWorkflow" => {
                let new =
                    || mw::Workflow { id: self.fresh("workflow"), kernel: "vmlinuz".into(), ..Default::default() };
                ask(&new(), &new())
            }
            _ => return None,
        })
    }

    pub(crate) async fn of_images(&self, method: &str) -> Option<Ask> {
        Some(match method {
            "ListImages" => {
                only(&mw::ListImagesRequest { filter: format!("name={}", self.image().await), ..Default::default() })
            }
            "GetImage" => only(&mw::GetImageRequest { name: self.image().await }),
            "RemoveImage" => ask(
                &mw::RemoveImageRequest { name: self.image().await },
                &mw::RemoveImageRequest { name: self.image().await },
            ),
            _ => return None,
        })
    }

    pub(crate) async fn of_findings(&self, method: &str) -> Option<Ask> {
        Some(match method {
            "ListFindings" => {
                self.finding().await;
                only(&mw::ListFindingsRequest::default())
            }
            "GetFinding" => only(&mw::GetFindingRequest { id: self.finding().await }),
            "AcknowledgeFinding" | "ResolveFinding" => {
                let of = |id| mw::HandleFindingRequest { id, comment: "a test".into() };
                ask(&of(self.finding().await), &of(self.finding().await))
            }
            _ => return None,
        })
    }
}
