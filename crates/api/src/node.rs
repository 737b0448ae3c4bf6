//! `NodeService`.

use crate::convert::timestamp;
use crate::error::to_status;
use crate::event::object;
use crate::gate::{nothing, open};
use crate::{job, site};
use domain::lifecycle::State as _;
use domain::node_action::NodeAction;
use domain::{BootNodeId, JobId, MachineId};
use futures::stream::{BoxStream, StreamExt as _};
use proto::millwright::v1 as pb;
use proto::millwright::v1::node_service_server::NodeService;
use service::{
    Bulk, BulkOutcome, BulkResult, IssuedNode, LifecycleView, LogRow, MaasWish, NewNode, NewOnboarding, NodeAct,
    NodeActed, NodeView, PageRequest, PowerWish, Service,
};
use tonic::{Request, Response, Status};

pub(crate) struct Nodes(pub Service);

/// In the place of a bundle that an earlier answer to the same request has shown.
const ALREADY_SHOWN: &str = "SECRET_ALREADY_SHOWN";
/// In the place of one that was not made.
const DRY_RUN: &str = "DRY_RUN";

/// A stored document; nothing, if there is none.
pub(crate) fn document(json: &str) -> Option<prost_types::Struct> {
    serde_json::from_str(json).ok().and_then(object)
}

fn lifecycle(l: LifecycleView) -> pb::Lifecycle {
    pb::Lifecycle {
        job_id: l.job_id,
        kind: l.kind,
        workflow_state: l.workflow_state,
        current_stage: l.current_stage,
        attempt_count: l.attempts,
        failure_class: l.failure_class,
        last_observed_state: l.last_observed_state,
        recommended_next_action: l.recommended,
        message: l.message,
    }
}

fn agent(view: &NodeView) -> pb::NodeAgent {
    let Some(a) = &view.agent else { return pb::NodeAgent::default() };
    // what is large is told of one node, not in lists
    let whole = view.lifecycle.is_some();
    pb::NodeAgent {
        identity: a.state.as_str().to_owned(),
        identity_reason: a.state_reason.clone(),
        version: a.agent_version.clone(),
        last_heartbeat: a.last_beat.map(timestamp),
        heartbeats: a.beats,
        clock_skew_ms: a.skew_ms,
        certificate_until: Some(timestamp(a.certificate_until)),
        enrolled_at: Some(timestamp(a.enrolled_at)),
        boot_id: a.boot_id.clone(),
        inventory: whole.then(|| document(&a.inventory)).flatten(),
        health: whole.then(|| document(&a.health)).flatten(),
        connected: view.connected,
    }
}

/// Of a machine that is gone nothing is reached.
fn management_ip(view: &NodeView) -> String {
    let machine = view.maas.as_ref().and_then(|maas| maas.machine.as_ref()).map(|seen| &seen.machine);
    machine.filter(|m| m.absent_since.is_none()).map(|m| m.told.management_ip.clone()).unwrap_or_default()
}

fn node(view: NodeView) -> pb::Node {
    let (agent, n) = (agent(&view), &view.node);
    let because = view.schedulable().err();
    pb::Node {
        id: n.id.to_string(),
        name: n.name.clone(),
        status: n.status.as_str().to_owned(),
        status_reason: n.status_reason.clone(),
        status_changed_at: Some(timestamp(n.status_changed_at)),
        schedulable: because.is_none(),
        unschedulable_because: because.unwrap_or_default(),
        cordoned: n.is_cordoned(),
        cordoned_by: n.cordoned_by.clone(),
        cordon_reason: n.cordon_reason.clone(),
        machine_id: n.machine_id.as_ref().map(MachineId::to_string),
        boot_node_id: view.boot_node_id.as_ref().map(BootNodeId::to_string),
        active_job_id: n.active_job.as_ref().map(JobId::to_string),
        agent_mode: n.agent_mode.as_str().to_owned(),
        agent: Some(agent),
        created_at: Some(timestamp(n.created_at)),
        created_by: n.created_by.clone(),
        version: n.version,
        bundle_expires_at: view.bundle_expires_at.map(timestamp),
        unclean: n.unclean.clone(),
        quarantined_by: n.quarantined_by.clone(),
        management_ip: management_ip(&view),
        maas: view.maas.clone().map(|maas| pb::NodeMaas {
            says: maas.says(),
            site: maas.at.site,
            system_id: maas.at.system_id,
            machine: maas.machine.map(site::machine),
        }),
        lifecycle: view.lifecycle.map(lifecycle),
    }
}

fn issued(i: IssuedNode) -> pb::IssuedNode {
    let install_hint = match (&i.bundle, i.done) {
        (Some(_), _) => {
            "keep the bundle in a file that nobody else can read, bring it to the machine, and run there: millwright-agent install --bundle FILE".to_owned()
        }
        (None, true) => "the bundle was shown once; issue another: millwright node rebootstrap".to_owned(),
        (None, false) => String::new(),
    };
    let reason = match (&i.bundle, i.done) {
        (Some(_), _) => "",
        (None, true) => ALREADY_SHOWN,
        (None, false) => DRY_RUN,
    };
    pb::IssuedNode {
        node: Some(node(i.view)),
        secret_bundle: i.bundle.unwrap_or_default(),
        install_hint,
        reason: reason.to_owned(),
        effect: i.effect,
        done: i.done,
    }
}

fn acted(a: NodeActed) -> pb::NodeActionResponse {
    pb::NodeActionResponse { node: Some(node(a.view)), job: a.job.map(job::one), effect: a.effect, done: a.done }
}

fn record(row: LogRow) -> pb::NodeRecord {
    pb::NodeRecord {
        sequence: row.sequence,
        at: Some(timestamp(row.at)),
        entity_kind: row.entity_kind,
        entity_id: row.entity_id,
        from: row.from_state,
        to: row.to_state,
        trigger: row.trigger,
        owner: row.owner,
        actor: row.actor,
        comment: row.comment,
        metadata: document(&row.metadata),
    }
}

/// What became of each, and how many were done, refused and not tried.
pub(crate) struct Results {
    pub results: Vec<pb::ActionResult>,
    pub done: u32,
    pub refused: u32,
    pub untried: u32,
}

pub(crate) fn results(all: Vec<BulkResult>) -> Results {
    let mut told = Results { results: Vec::with_capacity(all.len()), done: 0, refused: 0, untried: 0 };
    for BulkResult { id, outcome } in all {
        let one = pb::ActionResult { id, tried: true, ..pb::ActionResult::default() };
        told.results.push(match outcome {
            BulkOutcome::Done(effect) => {
                told.done += 1;
                pb::ActionResult { ok: true, effect, ..one }
            }
            BulkOutcome::Refused(e) => {
                told.refused += 1;
                let (code, reason) = (e.code().as_str().to_owned(), e.reason.as_str().to_owned());
                pb::ActionResult { code, reason, message: e.message, ..one }
            }
            BulkOutcome::Untried => {
                told.untried += 1;
                let message = "not tried: another one had failed before it".to_owned();
                pb::ActionResult { tried: false, message, ..one }
            }
        });
    }
    told
}

fn wish(r: pb::NodeActionRequest) -> NodeAct {
    NodeAct { id: r.id, reason: r.reason, dry_run: r.dry_run, grace_seconds: r.grace_seconds, force: r.force }
}

type Acted = Result<Response<pb::NodeActionResponse>, Status>;

impl Nodes {
    async fn act(&self, action: NodeAction, request: Request<pb::NodeActionRequest>) -> Acted {
        let (call, r) = open(request, |r| &r.id)?;
        let done = self.0.act_on_node(&call, action, wish(r)).await.map_err(to_status)?;
        Ok(Response::new(acted(done)))
    }
}

#[tonic::async_trait]
impl NodeService for Nodes {
    type WatchNodeStream = BoxStream<'static, Result<pb::Node, Status>>;

    async fn list_nodes(
        &self,
        request: Request<pb::ListNodesRequest>,
    ) -> Result<Response<pb::ListNodesResponse>, Status> {
        let (_, r) = open(request, nothing)?;
        let request = PageRequest { filter: r.filter, page_size: r.page_size, page_token: r.page_token };
        let page = self.0.list_nodes(&request, &r.view).await.map_err(to_status)?;
        let nodes = page.items.into_iter().map(node).collect();
        Ok(Response::new(pb::ListNodesResponse { nodes, next_page_token: page.next_page_token }))
    }

    async fn get_node(&self, request: Request<pb::GetNodeRequest>) -> Result<Response<pb::Node>, Status> {
        let (_, r) = open(request, |r| &r.id)?;
        Ok(Response::new(node(self.0.get_node(&r.id).await.map_err(to_status)?)))
    }

    async fn create_node(&self, request: Request<pb::CreateNodeRequest>) -> Result<Response<pb::IssuedNode>, Status> {
        let (call, r) = open(request, |r| &r.name)?;
        let new =
            NewNode { name: r.name, machine_id: r.machine_id, bundle_seconds: r.bundle_seconds, onboard: r.onboard };
        Ok(Response::new(issued(self.0.create_node(&call, new).await.map_err(to_status)?)))
    }

    async fn onboard_node(
        &self,
        request: Request<pb::OnboardNodeRequest>,
    ) -> Result<Response<pb::OnboardNodeResponse>, Status> {
        let (call, r) = open(request, |r| &r.name)?;
        let power = r.power.map(|p| PowerWish {
            kind: p.kind,
            address: p.address,
            credentials_ref: p.credentials_ref,
            parameters: p.parameters.into_iter().collect(),
        });
        let wish = MaasWish {
            site: r.site,
            profile: r.profile,
            macs: r.mac_addresses,
            serial_number: r.serial_number,
            system_uuid: r.system_uuid,
            system_id: r.system_id,
            hostname: r.hostname,
            power,
        };
        let new = NewOnboarding { name: r.name, wish, reason: r.reason, dry_run: r.dry_run };
        let begun = self.0.onboard_node(&call, new).await.map_err(to_status)?;
        Ok(Response::new(pb::OnboardNodeResponse {
            node: begun.node.map(node),
            job: begun.job.map(job::one),
            effect: begun.effect,
            done: begun.done,
        }))
    }

    async fn watch_node(
        &self,
        request: Request<pb::GetNodeRequest>,
    ) -> Result<Response<Self::WatchNodeStream>, Status> {
        let (call, r) = open(request, |r| &r.id)?;
        let changes = self.0.watch_node(&call, &r.id).await.map_err(to_status)?;
        Ok(Response::new(changes.map(|change| change.map(node).map_err(to_status)).boxed()))
    }

    async fn get_node_history(
        &self,
        request: Request<pb::GetNodeHistoryRequest>,
    ) -> Result<Response<pb::GetNodeHistoryResponse>, Status> {
        let (_, r) = open(request, |r| &r.id)?;
        let (rows, total) = self.0.node_history(&r.id, r.limit, r.offset).await.map_err(to_status)?;
        Ok(Response::new(pb::GetNodeHistoryResponse { data: rows.into_iter().map(record).collect(), total }))
    }

    async fn drain_node(&self, request: Request<pb::NodeActionRequest>) -> Acted {
        self.act(NodeAction::Drain, request).await
    }

    async fn cordon_node(&self, request: Request<pb::NodeActionRequest>) -> Acted {
        self.act(NodeAction::Cordon, request).await
    }

    async fn uncordon_node(&self, request: Request<pb::NodeActionRequest>) -> Acted {
        self.act(NodeAction::Uncordon, request).await
    }

    async fn reactivate_node(&self, request: Request<pb::NodeActionRequest>) -> Acted {
        self.act(NodeAction::Reactivate, request).await
    }

    async fn remove_node(&self, request: Request<pb::NodeActionRequest>) -> Acted {
        self.act(NodeAction::Remove, request).await
    }

    async fn quarantine_node(&self, request: Request<pb::NodeActionRequest>) -> Acted {
        self.act(NodeAction::Quarantine, request).await
    }

    async fn recover_node(&self, request: Request<pb::NodeActionRequest>) -> Acted {
        self.act(NodeAction::Recover, request).await
    }

    async fn resume_node(&self, request: Request<pb::NodeActionRequest>) -> Acted {
        self.act(NodeAction::Resume, request).await
    }

    async fn repair_node(&self, request: Request<pb::NodeActionRequest>) -> Acted {
        self.act(NodeAction::Repair, request).await
    }

    async fn revoke_node(&self, request: Request<pb::NodeActionRequest>) -> Acted {
        self.act(NodeAction::Revoke, request).await
    }

    async fn rebootstrap_node(
        &self,
        request: Request<pb::NodeActionRequest>,
    ) -> Result<Response<pb::IssuedNode>, Status> {
        let (call, r) = open(request, |r| &r.id)?;
        Ok(Response::new(issued(self.0.rebootstrap_node(&call, wish(r)).await.map_err(to_status)?)))
    }

    async fn act_on_nodes(
        &self,
        request: Request<pb::ActOnNodesRequest>,
    ) -> Result<Response<pb::ActOnNodesResponse>, Status> {
        let (call, r) = open(request, |r| &r.filter)?;
        let bulk = Bulk {
            filter: r.filter,
            action: r.action,
            reason: r.reason,
            dry_run: r.dry_run,
            concurrency: r.concurrency,
            stop_on_failure: r.stop_on_failure,
            grace_seconds: r.grace_seconds,
            force: r.force,
        };
        let all = self.0.act_on_nodes(&call, bulk).await.map_err(to_status)?;
        let Results { results, done, refused, untried } = results(all);
        let request_id = call.request_id.clone();
        Ok(Response::new(pb::ActOnNodesResponse { results, request_id, done, refused, untried }))
    }
}
