//! `PlanService`.

use crate::convert;
use crate::error::to_status;
use crate::gate::{nothing, open};
use domain::Error;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::plan_service_server::PlanService;
use service::Service;
use tonic::{Request, Response, Status};

pub(crate) struct Plans(pub Service);

#[tonic::async_trait]
impl PlanService for Plans {
    async fn get_plan(&self, request: Request<pb::GetPlanRequest>) -> Result<Response<pb::Plan>, Status> {
        let (_, r) = open(request, |r| &r.plan_id)?;
        let plan = self.0.get_plan(&r.plan_id).await.map_err(to_status)?;
        Ok(Response::new(convert::plan(&plan)))
    }

    async fn list_plans(
        &self,
        request: Request<pb::ListPlansRequest>,
    ) -> Result<Response<pb::ListPlansResponse>, Status> {
        open(request, nothing)?;
        let plans = self.0.list_plans().await.map_err(to_status)?;
        Ok(Response::new(pb::ListPlansResponse { plans: plans.iter().map(convert::plan).collect() }))
    }

    async fn create_plan(&self, request: Request<pb::CreatePlanRequest>) -> Result<Response<pb::Plan>, Status> {
        let (call, r) = open(request, |r| r.plan.as_ref().map_or("", |p| &p.plan_id))?;
        let sent = r.plan.ok_or_else(|| to_status(Error::field("plan", "must be given")))?;
        let plan = convert::plan_from_proto(sent).map_err(to_status)?;
        let plan = self.0.create_plan(&call, plan, "api").await.map_err(to_status)?;
        Ok(Response::new(convert::plan(&plan)))
    }
}
