//! `ExplainService`.

use crate::convert;
use crate::error::to_status;
use crate::gate::open;
use proto::baremetal::v1::Explanation;
use proto::millwright::v1::ExplainRequest;
use proto::millwright::v1::explain_service_server::ExplainService;
use service::Service;
use tonic::{Request, Response, Status};

pub(crate) struct Explain(pub Service);

#[tonic::async_trait]
impl ExplainService for Explain {
    async fn explain(&self, request: Request<ExplainRequest>) -> Result<Response<Explanation>, Status> {
        let (call, r) = open(request, |r| &r.id)?;
        let explanation = self.0.explain(&call, &r.id).await.map_err(to_status)?;
        Ok(Response::new(convert::explanation(explanation)))
    }
}
