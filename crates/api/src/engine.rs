//! `EngineService`: the engine's own surface.

use crate::convert::timestamp;
use crate::error::to_status;
use crate::gate::{nothing, open};
use proto::millwright::v1 as pb;
use proto::millwright::v1::engine_service_server::EngineService;
use service::{Execution, Freeze, PageRequest, Service, attempt_of};
use tonic::{Request, Response, Status};

pub(crate) struct Engines(pub Service);

fn execution(e: &Execution) -> pb::Execution {
    let open = !e.status.is_terminal();
    pb::Execution {
        execution_id: e.id.to_string(),
        workflow: e.workflow.clone(),
        workflow_version: i32::try_from(e.workflow_version).unwrap_or(i32::MAX),
        subject: e.subject.clone(),
        machine_id: e.machine_id.to_string(),
        status: e.status.as_str().to_owned(),
        stage: e.stage.clone(),
        attempt: i32::try_from(attempt_of(e.position)).unwrap_or(i32::MAX),
        waiting_for: e.waiting_for.clone(),
        wake_at: open.then(|| timestamp(e.wake_at)),
        deadline: open.then(|| timestamp(e.deadline)),
        holder: e.holder.as_ref().map_or(String::new(), ToString::to_string),
        fence: e.fence.to_string(),
        cancel_requested_by: e.cancel.as_ref().map_or(String::new(), |c| c.by.clone()),
        created_at: Some(timestamp(e.created_at)),
        updated_at: Some(timestamp(e.updated_at)),
    }
}

fn freeze_state(freeze: Option<Freeze>) -> pb::FreezeState {
    match freeze {
        Some(f) => pb::FreezeState { frozen: true, by: f.by, reason: f.reason, since: Some(timestamp(f.since)) },
        None => pb::FreezeState::default(),
    }
}

#[tonic::async_trait]
impl EngineService for Engines {
    async fn list_executions(
        &self,
        request: Request<pb::ListExecutionsRequest>,
    ) -> Result<Response<pb::ListExecutionsResponse>, Status> {
        let (_, r) = open(request, nothing)?;
        let request = PageRequest { filter: r.filter, page_size: r.page_size, page_token: r.page_token };
        let page = self.0.list_executions(&request).await.map_err(to_status)?;
        Ok(Response::new(pb::ListExecutionsResponse {
            executions: page.items.iter().map(execution).collect(),
            next_page_token: page.next_page_token,
        }))
    }

    async fn describe_execution(
        &self,
        request: Request<pb::DescribeExecutionRequest>,
    ) -> Result<Response<pb::DescribeExecutionResponse>, Status> {
        let (_, r) = open(request, |r| &r.execution_id)?;
        let described = self.0.describe_execution(&r.execution_id).await.map_err(to_status)?;
        let journal = described.journal.into_iter().map(|row| pb::JournalEntry {
            number: i64::try_from(row.number).unwrap_or(i64::MAX),
            at: Some(timestamp(row.at)),
            fence: row.fence,
            entry: row.entry,
            detail_json: row.detail,
        });
        Ok(Response::new(pb::DescribeExecutionResponse {
            execution: Some(execution(&described.execution)),
            journal: journal.collect(),
        }))
    }

    async fn cancel_execution(
        &self,
        request: Request<pb::CancelExecutionRequest>,
    ) -> Result<Response<pb::Execution>, Status> {
        let (call, r) = open(request, |r| &r.execution_id)?;
        let e = self.0.cancel_execution(&call, &r.execution_id, &r.reason).await.map_err(to_status)?;
        Ok(Response::new(execution(&e)))
    }

    async fn terminate_execution(
        &self,
        request: Request<pb::TerminateExecutionRequest>,
    ) -> Result<Response<pb::Execution>, Status> {
        let (call, r) = open(request, |r| &r.execution_id)?;
        let e = self.0.terminate_execution(&call, &r.execution_id, &r.reason).await.map_err(to_status)?;
        Ok(Response::new(execution(&e)))
    }

    async fn freeze(&self, request: Request<pb::FreezeRequest>) -> Result<Response<pb::FreezeState>, Status> {
        let (call, r) = open(request, nothing)?;
        let freeze = self.0.freeze(&call, &r.reason).await.map_err(to_status)?;
        Ok(Response::new(freeze_state(freeze)))
    }

    async fn unfreeze(&self, request: Request<pb::UnfreezeRequest>) -> Result<Response<pb::FreezeState>, Status> {
        let (call, _) = open(request, nothing)?;
        let freeze = self.0.unfreeze(&call).await.map_err(to_status)?;
        Ok(Response::new(freeze_state(freeze)))
    }

    async fn get_freeze(&self, request: Request<pb::GetFreezeRequest>) -> Result<Response<pb::FreezeState>, Status> {
        open(request, nothing)?;
        Ok(Response::new(freeze_state(self.0.frozen().await.map_err(to_status)?)))
    }
}
