//! `AuditService`.

use crate::convert::timestamp;
use crate::error::to_status;
use crate::gate::{nothing, open};
use proto::millwright::v1 as pb;
use proto::millwright::v1::audit_service_server::AuditService;
use service::{AuditEntry, PageRequest, Service};
use tonic::{Request, Response, Status};

pub(crate) struct Audit(pub Service);

fn entry(e: AuditEntry) -> pb::AuditEntry {
    pb::AuditEntry {
        number: e.number,
        at: Some(timestamp(e.at)),
        outcome: e.outcome().to_owned(),
        actor: e.actor,
        token_id: e.token_id,
        role: e.role,
        call: e.call,
        target: e.target,
        code: e.code,
        reason: e.reason,
        message: e.message,
        request_id: e.request_id,
        count: e.count,
    }
}

#[tonic::async_trait]
impl AuditService for Audit {
    async fn list_audit(
        &self,
        request: Request<pb::ListAuditRequest>,
    ) -> Result<Response<pb::ListAuditResponse>, Status> {
        let (_, r) = open(request, nothing)?;
        let request = PageRequest { filter: r.filter, page_size: r.page_size, page_token: r.page_token };
        let page = self.0.list_audit(&request).await.map_err(to_status)?;
        Ok(Response::new(pb::ListAuditResponse {
            entries: page.items.into_iter().map(entry).collect(),
            next_page_token: page.next_page_token,
        }))
    }
}
