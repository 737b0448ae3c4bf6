//! `TaskService`.

use crate::convert::timestamp;
use crate::error::to_status;
use crate::gate::{nothing, open};
use crate::node::document;
use domain::task::{Task, TaskFence, TaskResult};
use futures::stream::{BoxStream, StreamExt as _};
use proto::millwright::v1 as pb;
use proto::millwright::v1::task_service_server::TaskService;
use service::{NewTaskOrder, PageRequest, Service, TaskPiece};
use tonic::{Request, Response, Status};

pub(crate) struct Tasks(pub Service);

fn result(r: TaskResult) -> pb::TaskResult {
    pb::TaskResult {
        failure_class: if r.ok { "none".to_owned() } else { r.class.as_str().to_owned() },
        ok: r.ok,
        code: r.code,
        message: r.message,
        detail: document(&r.detail),
        signature: r.signature,
        started_at: r.started_at.map(timestamp),
        finished_at: r.finished_at.map(timestamp),
    }
}

pub(crate) fn task(t: Task) -> pb::Task {
    let (job_id, stage) = t.job.map_or((String::new(), String::new()), |(job, stage)| (job.into_text(), stage));
    pb::Task {
        id: t.id.into_text(),
        node_id: t.node_id.into_text(),
        job_id,
        stage,
        kind: t.kind.as_str().to_owned(),
        status: t.status.to_string(),
        // before the first dispatch there is none
        fence: if t.fence == TaskFence::default() { String::new() } else { t.fence.to_string() },
        requeues: t.requeues,
        queued_at: Some(timestamp(t.queued_at)),
        take_by: Some(timestamp(t.take_by)),
        dispatched_at: t.dispatched_at.map(timestamp),
        lease_until: t.lease_until.map(timestamp),
        result: t.result.map(result),
        expired_because: t.expired_because,
        output_bytes: t.output_bytes,
        ordered_by: t.ordered_by,
        version: t.version,
    }
}

fn piece(p: TaskPiece) -> pb::TaskPiece {
    let offset = p.start_at + p.data.len() as u64;
    pb::TaskPiece { offset, at: Some(timestamp(p.at)), stream: p.stream, data: p.data }
}

#[tonic::async_trait]
impl TaskService for Tasks {
    type StreamTaskOutputStream = BoxStream<'static, Result<pb::TaskPiece, Status>>;

    async fn list_tasks(
        &self,
        request: Request<pb::ListTasksRequest>,
    ) -> Result<Response<pb::ListTasksResponse>, Status> {
        let (_, r) = open(request, nothing)?;
        let request = PageRequest { filter: r.filter, page_size: r.page_size, page_token: r.page_token };
        let page = self.0.list_tasks(&request).await.map_err(to_status)?;
        let tasks = page.items.into_iter().map(task).collect();
        Ok(Response::new(pb::ListTasksResponse { tasks, next_page_token: page.next_page_token }))
    }

    async fn get_task(&self, request: Request<pb::GetTaskRequest>) -> Result<Response<pb::Task>, Status> {
        let (_, r) = open(request, |r| &r.id)?;
        Ok(Response::new(task(self.0.get_task(&r.id).await.map_err(to_status)?)))
    }

    async fn stream_task_output(
        &self,
        request: Request<pb::StreamTaskOutputRequest>,
    ) -> Result<Response<Self::StreamTaskOutputStream>, Status> {
        let (call, r) = open(request, |r| &r.id)?;
        let pieces = self.0.stream_task_output(&call, &r.id, r.after_offset, !r.no_follow).await.map_err(to_status)?;
        Ok(Response::new(pieces.map(|p| p.map(piece).map_err(to_status)).boxed()))
    }

    async fn order_task(&self, request: Request<pb::OrderTaskRequest>) -> Result<Response<pb::Task>, Status> {
        let (call, r) = open(request, |r| &r.node_id)?;
        let new = NewTaskOrder { node: r.node_id, kind: r.kind, reason: r.reason, script: r.script, args: r.args };
        Ok(Response::new(task(self.0.order_task(&call, new).await.map_err(to_status)?)))
    }

    async fn cancel_task(&self, request: Request<pb::CancelTaskRequest>) -> Result<Response<pb::Task>, Status> {
        let (call, r) = open(request, |r| &r.id)?;
        Ok(Response::new(task(self.0.cancel_task(&call, &r.id, &r.reason).await.map_err(to_status)?)))
    }
}
