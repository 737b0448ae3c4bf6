//! `FindingService`.

use crate::convert::timestamp;
use crate::error::to_status;
use crate::gate::{nothing, open};
use domain::finding::Finding;
use proto::millwright::v1 as pb;
use proto::millwright::v1::finding_service_server::FindingService;
use service::{PageRequest, Service};
use tonic::{Request, Response, Status};

pub(crate) struct Findings(pub Service);

fn shown(f: Finding) -> pb::Finding {
    pb::Finding {
        id: f.id.to_string(),
        kind: f.kind.as_str().to_owned(),
        state: f.state.to_string(),
        subject: f.subject,
        message: f.message,
        next_action: f.kind.next_action().to_owned(),
        first_seen: Some(timestamp(f.first_seen)),
        last_seen: Some(timestamp(f.last_seen)),
        handled_by: f.handled_by,
        comment: f.comment,
        version: f.version,
    }
}

#[tonic::async_trait]
impl FindingService for Findings {
    async fn list_findings(
        &self,
        request: Request<pb::ListFindingsRequest>,
    ) -> Result<Response<pb::ListFindingsResponse>, Status> {
        let (_, r) = open(request, nothing)?;
        let request = PageRequest { filter: r.filter, page_size: r.page_size, page_token: r.page_token };
        let page = self.0.list_findings(&request).await.map_err(to_status)?;
        let findings = page.items.into_iter().map(shown).collect();
        Ok(Response::new(pb::ListFindingsResponse { findings, next_page_token: page.next_page_token }))
    }

    async fn get_finding(&self, request: Request<pb::GetFindingRequest>) -> Result<Response<pb::Finding>, Status> {
        let (_, r) = open(request, |r| &r.id)?;
        Ok(Response::new(shown(self.0.get_finding(&r.id).await.map_err(to_status)?)))
    }

    async fn acknowledge_finding(
        &self,
        request: Request<pb::HandleFindingRequest>,
    ) -> Result<Response<pb::Finding>, Status> {
        let (call, r) = open(request, |r| &r.id)?;
        let taken = self.0.acknowledge_finding(&call, &r.id, &r.comment).await.map_err(to_status)?;
        Ok(Response::new(shown(taken)))
    }

    async fn resolve_finding(
        &self,
        request: Request<pb::HandleFindingRequest>,
    ) -> Result<Response<pb::Finding>, Status> {
        let (call, r) = open(request, |r| &r.id)?;
        let settled = self.0.resolve_finding(&call, &r.id, &r.comment).await.map_err(to_status)?;
        Ok(Response::new(shown(settled)))
    }
}
