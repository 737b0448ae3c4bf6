//! `JobService`.

use crate::convert::timestamp;
use crate::error::to_status;
use crate::gate::{nothing, open};
use crate::node::{Results, document, results};
use crate::task;
use domain::NodeId;
use domain::job_stage::{JobKind, JobStage};
use futures::stream::{BoxStream, StreamExt as _};
use proto::millwright::v1 as pb;
use proto::millwright::v1::job_service_server::JobService;
use service::{
    Begun, Bulk, JobAct, JobActed, JobView, JobsOf, NewDecommission, Offer, Page, PageRequest, Service, StageView,
};
use std::sync::Arc;
use tonic::{Request, Response, Status};

pub(crate) struct Jobs(pub Service);

fn stage(kind: JobKind, s: StageView) -> pb::JobStage {
    pb::JobStage {
        state: s.state.to_owned(),
        message: s.message,
        finished_at: s.finished_at.map(timestamp),
        ..declared(kind, s.stage)
    }
}

/// One that nothing has happened in.
fn declared(kind: JobKind, stage: JobStage) -> pb::JobStage {
    pb::JobStage {
        name: stage.as_str().to_owned(),
        state: "waiting".to_owned(),
        message: String::new(),
        finished_at: None,
        checkpoint: stage.is_checkpoint(kind),
        timeout_seconds: u32::try_from(stage.decl().timeout.as_secs()).unwrap_or(u32::MAX),
    }
}

fn offer(o: Offer) -> pb::JobActionOffer {
    let action = o.action.as_str().to_owned();
    match o.judged {
        Ok(effect) => pb::JobActionOffer { action, allowed: true, effect, not_because: String::new() },
        Err(not_because) => pb::JobActionOffer { action, allowed: false, effect: String::new(), not_because },
    }
}

/// As it stands in lists.
fn listed(view: &JobView) -> pb::Job {
    let job = &view.job;
    let (recommended_action, because) = view.recommended();
    let failure = job.failure.as_ref();
    pb::Job {
        id: job.id.to_string(),
        kind: job.kind.as_str().to_owned(),
        mode: job.kind.mode().to_owned(),
        ground: job.kind.ground().as_str().to_owned(),
        node_id: job.node_id.to_string(),
        status: job.status.to_string(),
        stage: view.stage_name().to_owned(),
        attempt: job.attempt,
        failure_class: view.failure_class().to_owned(),
        failure_code: failure.map_or(String::new(), |f| f.code.clone()),
        failure_message: failure.map_or(String::new(), |f| f.message.clone()),
        last_observed_state: view.observed(),
        recommended_action: recommended_action.to_owned(),
        recommended_because: because.to_owned(),
        stages: view.stages().into_iter().map(|s| stage(job.kind, s)).collect(),
        actions: Vec::new(),
        execution_id: job.execution_id.to_string(),
        purpose: job.purpose.as_str().to_owned(),
        waiting_for: view.waiting_for(),
        next_try: view.next_try().map(timestamp),
        task: None,
        parameters: document(&job.parameters),
        clean_record: document(&job.clean_record),
        requested_by: job.requested_by.clone(),
        reason: job.reason.clone(),
        created_at: Some(timestamp(job.created_at)),
        updated_at: Some(timestamp(job.updated_at)),
        finished_at: job.finished_at.map(timestamp),
        version: job.version,
    }
}

/// With everything.
pub(crate) fn one(view: JobView) -> pb::Job {
    let actions = view.offers().into_iter().map(offer).collect();
    pb::Job { actions, task: view.task.clone().map(task::task), ..listed(&view) }
}

/// What a job would be, if it were begun.
fn preview(node: &NodeId, kind: JobKind, effect: String) -> pb::Job {
    pb::Job {
        kind: kind.as_str().to_owned(),
        mode: kind.mode().to_owned(),
        ground: kind.ground().as_str().to_owned(),
        node_id: node.to_string(),
        stage: kind.stages().first().map_or(String::new(), |s| s.as_str().to_owned()),
        failure_class: "none".to_owned(),
        recommended_action: "none".to_owned(),
        recommended_because: effect,
        stages: kind.stages().iter().map(|s| declared(kind, *s)).collect(),
        ..pb::Job::default()
    }
}

fn acted(a: JobActed) -> pb::ActOnJobResponse {
    pb::ActOnJobResponse { job: Some(one(a.view)), effect: a.effect, done: a.done }
}

impl Jobs {
    async fn list(&self, request: Request<pb::ListJobsRequest>, of: JobsOf) -> Result<Page<pb::Job>, Status> {
        let (_, r) = open(request, nothing)?;
        let request = PageRequest { filter: r.filter, page_size: r.page_size, page_token: r.page_token };
        let page = self.0.list_jobs(&request, of).await.map_err(to_status)?;
        Ok(Page { items: page.items.iter().map(listed).collect(), next_page_token: page.next_page_token })
    }

    async fn get(&self, request: Request<pb::GetJobRequest>, of: JobsOf) -> Result<Response<pb::Job>, Status> {
        let (_, r) = open(request, |r| &r.id)?;
        Ok(Response::new(one(self.0.get_job(&r.id, of).await.map_err(to_status)?)))
    }

    async fn act(
        &self,
        request: Request<pb::ActOnJobRequest>,
        of: JobsOf,
    ) -> Result<Response<pb::ActOnJobResponse>, Status> {
        let (call, r): (Arc<service::Call>, _) = open(request, |r| &r.id)?;
        let act = JobAct { id: r.id, action: r.action, reason: r.reason, dry_run: r.dry_run, of };
        Ok(Response::new(acted(self.0.act_on_job(&call, act).await.map_err(to_status)?)))
    }
}

type Acted = Result<Response<pb::ActOnJobResponse>, Status>;

#[tonic::async_trait]
impl JobService for Jobs {
    type WatchJobStream = BoxStream<'static, Result<pb::Job, Status>>;

    async fn list_jobs(&self, request: Request<pb::ListJobsRequest>) -> Result<Response<pb::ListJobsResponse>, Status> {
        let Page { items, next_page_token } = self.list(request, JobsOf::All).await?;
        Ok(Response::new(pb::ListJobsResponse { jobs: items, next_page_token }))
    }

    async fn get_job(&self, request: Request<pb::GetJobRequest>) -> Result<Response<pb::Job>, Status> {
        self.get(request, JobsOf::All).await
    }

    async fn watch_job(&self, request: Request<pb::GetJobRequest>) -> Result<Response<Self::WatchJobStream>, Status> {
        let (call, r) = open(request, |r| &r.id)?;
        let changes = self.0.watch_job(&call, &r.id).await.map_err(to_status)?;
        Ok(Response::new(changes.map(|change| change.map(one).map_err(to_status)).boxed()))
    }

    async fn act_on_job(&self, request: Request<pb::ActOnJobRequest>) -> Acted {
        self.act(request, JobsOf::All).await
    }

    async fn act_on_jobs(
        &self,
        request: Request<pb::ActOnJobsRequest>,
    ) -> Result<Response<pb::ActOnJobsResponse>, Status> {
        let (call, r) = open(request, |r| &r.filter)?;
        let bulk = Bulk {
            filter: r.filter,
            action: r.action,
            reason: r.reason,
            dry_run: r.dry_run,
            concurrency: r.concurrency,
            stop_on_failure: r.stop_on_failure,
            ..Bulk::default()
        };
        let all = self.0.act_on_jobs(&call, bulk).await.map_err(to_status)?;
        let Results { results, done, refused, untried } = results(all);
        let request_id = call.request_id.clone();
        Ok(Response::new(pb::ActOnJobsResponse { results, request_id, done, refused, untried }))
    }

    async fn list_onboardings(
        &self,
        request: Request<pb::ListJobsRequest>,
    ) -> Result<Response<pb::ListOnboardingsResponse>, Status> {
        let Page { items, next_page_token } = self.list(request, JobsOf::Onboarding).await?;
        Ok(Response::new(pb::ListOnboardingsResponse { onboardings: items, next_page_token }))
    }

    async fn start_onboarding(
        &self,
        request: Request<pb::StartOnboardingRequest>,
    ) -> Result<Response<pb::Job>, Status> {
        let (call, r) = open(request, |r| &r.node_id)?;
        let begun = self.0.start_onboarding(&call, &r.node_id, &r.reason).await.map_err(to_status)?;
        Ok(Response::new(one(begun)))
    }

    async fn get_onboarding(&self, request: Request<pb::GetJobRequest>) -> Result<Response<pb::Job>, Status> {
        self.get(request, JobsOf::Onboarding).await
    }

    async fn act_on_onboarding(&self, request: Request<pb::ActOnJobRequest>) -> Acted {
        self.act(request, JobsOf::Onboarding).await
    }

    async fn list_decommissions(
        &self,
        request: Request<pb::ListJobsRequest>,
    ) -> Result<Response<pb::ListDecommissionsResponse>, Status> {
        let Page { items, next_page_token } = self.list(request, JobsOf::Decommission).await?;
        Ok(Response::new(pb::ListDecommissionsResponse { decommissions: items, next_page_token }))
    }

    async fn start_decommission(
        &self,
        request: Request<pb::StartDecommissionRequest>,
    ) -> Result<Response<pb::Job>, Status> {
        let (call, r) = open(request, |r| &r.node_id)?;
        let new = NewDecommission {
            node: r.node_id,
            mode: r.mode,
            reason: r.reason,
            grace_seconds: r.grace_seconds,
            force: r.force,
            scratch_paths: r.scratch_paths,
            profile: r.profile,
            dry_run: r.dry_run,
        };
        let job = match self.0.start_decommission(&call, new).await.map_err(to_status)? {
            Begun::Job(view) => one(*view),
            Begun::Preview { node, kind, effect } => preview(&node, kind, effect),
        };
        Ok(Response::new(job))
    }

    async fn get_decommission(&self, request: Request<pb::GetJobRequest>) -> Result<Response<pb::Job>, Status> {
        self.get(request, JobsOf::Decommission).await
    }

    async fn act_on_decommission(&self, request: Request<pb::ActOnJobRequest>) -> Acted {
        self.act(request, JobsOf::Decommission).await
    }
}
