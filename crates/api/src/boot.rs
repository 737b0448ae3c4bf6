//! `BootService`.

use crate::convert::timestamp;
use crate::error::to_status;
use crate::event::object;
use crate::gate::{nothing, open};
use domain::boot_node::BootNode;
use domain::boot_workflow::BootWorkflow;
use domain::install_order::InstallOrder;
use domain::lifecycle::{Owner, State as _};
use domain::{MachineId, Timestamp};
use futures::stream::{BoxStream, StreamExt as _};
use proto::millwright::v1 as pb;
use proto::millwright::v1::boot_service_server::BootService;
use service::{BootNodeMove, BootNodeRecord, BootNodeResult, BootNodeUpdate, NewBootNode, PageRequest, Service};
use tonic::{Request, Response, Status};

pub(crate) struct Boot(pub Service);

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn free(json: &str) -> Option<prost_types::Struct> {
    serde_json::from_str(json).ok().and_then(object)
}

fn order(o: &InstallOrder) -> pb::InstallOrder {
    pb::InstallOrder {
        id: o.id.to_string(),
        task: o.task.to_string(),
        state: o.state.as_str().to_owned(),
        workflow_id: o.workflow_id.clone(),
        image: o.image.clone(),
        opened_by: o.opened_by.clone(),
        run_id: o.run.as_ref().map(|(run, _)| run.to_string()).unwrap_or_default(),
        opened_at: Some(timestamp(o.opened_at)),
        attempt: i32::try_from(o.attempt).unwrap_or(i32::MAX),
        offered_at: o.offered_at.map(timestamp),
        started_at: o.started_at.map(timestamp),
        last_report_at: o.last_report_at.map(timestamp),
        log_tail: o.log_tail.clone(),
        evidence: free(&o.evidence),
        closed_at: o.closed.map(|(at, _)| timestamp(at)),
        closed_because: o.closed.map(|(_, why)| why.as_str().to_owned()).unwrap_or_default(),
    }
}

fn node(n: &BootNode) -> pb::BootNode {
    let machine = |id: &Option<MachineId>| id.as_ref().map(MachineId::to_string);
    pb::BootNode {
        id: n.id.to_string(),
        mac_address: n.mac.to_string(),
        state: n.state.as_str().to_owned(),
        workflow_id: some(&n.workflow_id),
        hostname: n.claims.hostname.clone(),
        ip_address: n.claims.ip_address.clone(),
        vendor: n.claims.vendor.clone(),
        model: n.claims.model.clone(),
        serial_number: n.claims.serial_number.clone(),
        system_uuid: n.claims.system_uuid.clone(),
        install_attempts: i32::try_from(n.install_attempts).unwrap_or(i32::MAX),
        install_progress: n.order.as_ref().and_then(|o| o.progress).map(i32::from),
        last_install_error: n.last_install_error.clone(),
        state_changed_at: Some(timestamp(n.state_changed_at)),
        machine_id: machine(&n.machine_id),
        proposed_machine_id: machine(&n.proposed_machine_id),
        arch: n.claims.arch.clone(),
        group: n.group.clone(),
        inventory: free(&n.inventory),
        created_at: Some(timestamp(n.created_at)),
        last_seen: n.last_seen.map(timestamp),
        order: n.order.as_ref().map(order),
        version: n.version,
    }
}

fn workflow(w: BootWorkflow) -> pb::Workflow {
    pb::Workflow {
        id: w.id,
        name: w.name,
        kernel: w.kernel,
        initrd: w.initrd,
        cmdline: w.cmdline,
        image: some(&w.image),
        image_sha256: some(&w.image_sha256),
        arch: w.arch,
        boot_mode: w.boot_mode,
        template: w.template,
        disk: w.disk,
        created_at: Some(timestamp(w.created_at)),
        created_by: w.created_by,
    }
}

fn workflow_from(w: pb::Workflow) -> BootWorkflow {
    BootWorkflow {
        id: w.id,
        name: w.name,
        kernel: w.kernel,
        initrd: w.initrd,
        cmdline: w.cmdline,
        image: w.image.unwrap_or_default(),
        image_sha256: w.image_sha256.unwrap_or_default(),
        arch: w.arch,
        boot_mode: w.boot_mode,
        template: w.template,
        disk: w.disk,
        created_at: Timestamp::default(),
        created_by: String::new(),
    }
}

/// Who made a move, in the words of the history.
fn triggered_by(owner: &str) -> &'static str {
    match Owner::ALL.into_iter().find(|known| known.as_str() == owner) {
        Some(Owner::Operator) => "admin",
        Some(Owner::Node) => "node_report",
        Some(Owner::Executor | Owner::Reconciler) | None => "system",
    }
}

fn record(r: BootNodeRecord) -> pb::BootNodeMove {
    // a run moves it in the name of whoever started that
    let person = r.owner == Owner::Operator.as_str() || r.owner == Owner::Executor.as_str();
    pb::BootNodeMove {
        id: r.sequence.to_string(),
        from_state: r.from_state,
        to_state: r.to_state,
        triggered_by: triggered_by(&r.owner).to_owned(),
        user_id: person.then_some(r.actor),
        comment: some(&r.comment),
        metadata: free(&r.metadata).filter(|m| !m.fields.is_empty()),
        created_at: Some(timestamp(r.at)),
    }
}

fn result(r: BootNodeResult) -> pb::BootNodeResult {
    match r.outcome {
        Ok(node) => pb::BootNodeResult {
            id: r.id,
            ok: true,
            state: node.state.as_str().to_owned(),
            reason: String::new(),
            message: String::new(),
            allowed: Vec::new(),
        },
        Err(e) => pb::BootNodeResult {
            id: r.id,
            ok: false,
            state: String::new(),
            reason: e.reason.as_str().to_owned(),
            message: e.message,
            allowed: e.allowed,
        },
    }
}

#[tonic::async_trait]
impl BootService for Boot {
    type WatchBootNodeStream = BoxStream<'static, Result<pb::BootNode, Status>>;

    async fn list_boot_nodes(
        &self,
        request: Request<pb::ListBootNodesRequest>,
    ) -> Result<Response<pb::ListBootNodesResponse>, Status> {
        let (_, r) = open(request, nothing)?;
        let request = PageRequest { filter: r.filter, page_size: r.page_size, page_token: r.page_token };
        let page = self.0.list_boot_nodes(&request).await.map_err(to_status)?;
        let nodes = page.items.iter().map(node).collect();
        Ok(Response::new(pb::ListBootNodesResponse { nodes, next_page_token: page.next_page_token }))
    }

    async fn create_boot_node(
        &self,
        request: Request<pb::CreateBootNodeRequest>,
    ) -> Result<Response<pb::BootNode>, Status> {
        let (call, r) = open(request, |r| &r.mac_address)?;
        let new = NewBootNode {
            mac_address: r.mac_address,
            workflow_id: r.workflow_id,
            group: r.group,
            hostname: r.hostname,
            machine_id: r.machine_id,
        };
        let made = self.0.create_boot_node(&call, new).await.map_err(to_status)?;
        Ok(Response::new(node(&made)))
    }

    async fn get_boot_node(&self, request: Request<pb::GetBootNodeRequest>) -> Result<Response<pb::BootNode>, Status> {
        let (_, r) = open(request, |r| &r.id)?;
        let found = self.0.get_boot_node(&r.id).await.map_err(to_status)?;
        Ok(Response::new(node(&found)))
    }

    async fn watch_boot_node(
        &self,
        request: Request<pb::WatchBootNodeRequest>,
    ) -> Result<Response<Self::WatchBootNodeStream>, Status> {
        let (call, r) = open(request, |r| &r.id)?;
        let nodes = self.0.watch_boot_node(&call, &r.id).await.map_err(to_status)?;
        Ok(Response::new(nodes.map(|n| n.map(|n| node(&n)).map_err(to_status)).boxed()))
    }

    async fn update_boot_node(
        &self,
        request: Request<pb::UpdateBootNodeRequest>,
    ) -> Result<Response<pb::BootNode>, Status> {
        let (call, r) = open(request, |r| &r.id)?;
        let update = BootNodeUpdate {
            id: r.id,
            workflow_id: r.workflow_id,
            group: r.group,
            hostname: r.hostname,
            machine_id: r.machine_id,
            proposed_machine_id: r.proposed_machine_id,
        };
        let updated = self.0.update_boot_node(&call, update).await.map_err(to_status)?;
        Ok(Response::new(node(&updated)))
    }

    async fn retire_boot_node(
        &self,
        request: Request<pb::RetireBootNodeRequest>,
    ) -> Result<Response<pb::BootNode>, Status> {
        let (call, r) = open(request, |r| &r.id)?;
        let retire =
            BootNodeMove { id: r.id, state: "retired".to_owned(), comment: r.comment, ..BootNodeMove::default() };
        let retired = self.0.move_boot_node(&call, retire).await.map_err(to_status)?;
        Ok(Response::new(node(&retired)))
    }

    async fn set_boot_node_state(
        &self,
        request: Request<pb::SetBootNodeStateRequest>,
    ) -> Result<Response<pb::BootNode>, Status> {
        let (call, r) = open(request, |r| &r.id)?;
        let change = BootNodeMove {
            id: r.id,
            state: r.state,
            comment: r.comment.unwrap_or_default(),
            force: r.force,
            link: r.link,
            mac_address: r.mac_address,
        };
        let moved = self.0.move_boot_node(&call, change).await.map_err(to_status)?;
        Ok(Response::new(node(&moved)))
    }

    async fn set_boot_node_states(
        &self,
        request: Request<pb::SetBootNodeStatesRequest>,
    ) -> Result<Response<pb::SetBootNodeStatesResponse>, Status> {
        let (call, r) = open(request, nothing)?;
        let change = BootNodeMove {
            state: r.state,
            comment: r.comment.unwrap_or_default(),
            force: r.force,
            link: r.link,
            ..BootNodeMove::default()
        };
        let results = self.0.move_boot_nodes(&call, &r.ids, &change).await.map_err(to_status)?;
        Ok(Response::new(pb::SetBootNodeStatesResponse { results: results.into_iter().map(result).collect() }))
    }

    async fn get_boot_node_history(
        &self,
        request: Request<pb::GetBootNodeHistoryRequest>,
    ) -> Result<Response<pb::GetBootNodeHistoryResponse>, Status> {
        let (_, r) = open(request, |r| &r.id)?;
        let (moves, total) = self.0.boot_node_history(&r.id, r.limit, r.offset).await.map_err(to_status)?;
        let total = i32::try_from(total).unwrap_or(i32::MAX);
        Ok(Response::new(pb::GetBootNodeHistoryResponse { data: moves.into_iter().map(record).collect(), total }))
    }

    async fn list_workflows(
        &self,
        request: Request<pb::ListWorkflowsRequest>,
    ) -> Result<Response<pb::ListWorkflowsResponse>, Status> {
        let (_, r) = open(request, nothing)?;
        let request = PageRequest { filter: r.filter, page_size: r.page_size, page_token: r.page_token };
        let page = self.0.list_workflows(&request).await.map_err(to_status)?;
        let workflows = page.items.into_iter().map(workflow).collect();
        Ok(Response::new(pb::ListWorkflowsResponse { workflows, next_page_token: page.next_page_token }))
    }

    async fn get_workflow(&self, request: Request<pb::GetWorkflowRequest>) -> Result<Response<pb::Workflow>, Status> {
        let (_, r) = open(request, |r| &r.id)?;
        let found = self.0.get_workflow(&r.id).await.map_err(to_status)?;
        Ok(Response::new(workflow(found)))
    }

    async fn create_workflow(&self, request: Request<pb::Workflow>) -> Result<Response<pb::Workflow>, Status> {
        let (call, r) = open(request, |r| &r.id)?;
        let made = self.0.create_workflow(&call, workflow_from(r)).await.map_err(to_status)?;
        Ok(Response::new(workflow(made)))
    }
}
