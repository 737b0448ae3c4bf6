//! `RunService`.

use crate::convert::{self, timestamp};
use crate::error::to_status;
use crate::gate::{nothing, open};
use futures::stream::{BoxStream, StreamExt as _};
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::run_service_server::RunService;
use service::{PageRequest, Service, StartRun};
use tonic::{Request, Response, Status};

pub(crate) struct Runs(pub Service);

#[tonic::async_trait]
impl RunService for Runs {
    async fn start_run(&self, request: Request<pb::StartRunRequest>) -> Result<Response<pb::Run>, Status> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        let start = StartRun {
            request_id: r.request_id,
            machine_id: r.machine_id,
            run_type: r.r#type,
            plan_id: r.plan_id,
            parameters: r.parameters,
            override_reason: r.override_reason,
        };
        let view = self.0.start_run(&call, start).await.map_err(to_status)?;
        tracing::Span::current().record("run_id", view.run.id.as_str());
        Ok(Response::new(convert::run_view(view)))
    }

    async fn get_run(&self, request: Request<pb::GetRunRequest>) -> Result<Response<pb::Run>, Status> {
        let (call, r) = open(request, |r| &r.run_id)?;
        let view = self.0.get_run(&call, &r.run_id).await.map_err(to_status)?;
        Ok(Response::new(convert::run_view(view)))
    }

    async fn list_runs(&self, request: Request<pb::ListRunsRequest>) -> Result<Response<pb::ListRunsResponse>, Status> {
        let (call, r) = open(request, nothing)?;
        let request = PageRequest { filter: r.filter, page_size: r.page_size, page_token: r.page_token };
        let page = self.0.list_runs(&call, &request).await.map_err(to_status)?;
        Ok(Response::new(pb::ListRunsResponse {
            runs: page.items.into_iter().map(convert::run_view).collect(),
            next_page_token: page.next_page_token,
        }))
    }

    async fn cancel_run(&self, request: Request<pb::CancelRunRequest>) -> Result<Response<pb::Run>, Status> {
        let (call, r) = open(request, |r| &r.run_id)?;
        let view = self.0.cancel_run(&call, &r.run_id).await.map_err(to_status)?;
        Ok(Response::new(convert::run_view(view)))
    }

    type WatchRunsStream = BoxStream<'static, Result<pb::RunEvent, Status>>;

    async fn watch_runs(
        &self,
        request: Request<pb::WatchRunsRequest>,
    ) -> Result<Response<Self::WatchRunsStream>, Status> {
        let (call, r) = open(request, nothing)?;
        let events = self.0.watch_runs(&call, &r.filter, r.after_sequence).await.map_err(to_status)?;
        let stream = events.map(|event| match event {
            Ok(e) => Ok(pb::RunEvent {
                ts: Some(timestamp(e.at)),
                snapshot: Some(convert::run(&e.run)),
                message: e.message,
                sequence: e.sequence,
            }),
            Err(e) => Err(to_status(e)),
        });
        Ok(Response::new(stream.boxed()))
    }

    type StreamRunLogsStream = BoxStream<'static, Result<pb::LogChunk, Status>>;

    async fn stream_run_logs(
        &self,
        request: Request<pb::StreamRunLogsRequest>,
    ) -> Result<Response<Self::StreamRunLogsStream>, Status> {
        let (call, r) = open(request, |r| &r.run_id)?;
        let chunks =
            self.0.stream_run_logs(&call, &r.run_id, r.after_sequence, !r.no_follow).await.map_err(to_status)?;
        let run_id = r.run_id;
        let stream = chunks.map(move |chunk| match chunk {
            Ok(c) => Ok(pb::LogChunk {
                ts: Some(timestamp(c.at)),
                run_id: run_id.clone(),
                stream: c.stream,
                data: c.data,
                sequence: c.sequence,
                step: c.step,
            }),
            Err(e) => Err(to_status(e)),
        });
        Ok(Response::new(stream.boxed()))
    }

    async fn explain_run(&self, request: Request<pb::ExplainRunRequest>) -> Result<Response<pb::Explanation>, Status> {
        let (call, r) = open(request, |r| &r.run_id)?;
        let explanation = self.0.explain_run(&call, &r.run_id).await.map_err(to_status)?;
        Ok(Response::new(convert::explanation(explanation)))
    }
}
