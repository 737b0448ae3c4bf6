//! `MachineService`.

use crate::auth::caller;
use crate::convert;
use crate::error::to_status;
use domain::Error;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_service_server::MachineService;
use service::{MachineUpdate, NewMachine, PageRequest, Service};
use tonic::{Request, Response, Status};

pub(crate) struct Machines(pub Service);

fn sent(machine: Option<pb::Machine>) -> Result<pb::Machine, Status> {
    machine.ok_or_else(|| to_status(Error::field("machine", "must be given")))
}

#[tonic::async_trait]
impl MachineService for Machines {
    async fn register_machine(
        &self,
        request: Request<pb::RegisterMachineRequest>,
    ) -> Result<Response<pb::Machine>, Status> {
        let by = caller(&self.0, &request).await?;
        let m = sent(request.into_inner().machine)?;
        let new = NewMachine {
            id: m.machine_id,
            spec: convert::spec_from_proto(m.spec),
            labels: m.labels,
            version: m.version,
        };
        let machine = self.0.register_machine(&by, new).await.map_err(to_status)?;
        Ok(Response::new(convert::machine(&machine)))
    }

    async fn get_machine(&self, request: Request<pb::GetMachineRequest>) -> Result<Response<pb::Machine>, Status> {
        caller(&self.0, &request).await?;
        let machine = self.0.get_machine(&request.into_inner().machine_id).await.map_err(to_status)?;
        Ok(Response::new(convert::machine(&machine)))
    }

    async fn list_machines(
        &self,
        request: Request<pb::ListMachinesRequest>,
    ) -> Result<Response<pb::ListMachinesResponse>, Status> {
        caller(&self.0, &request).await?;
        let r = request.into_inner();
        let request = PageRequest { filter: r.filter, page_size: r.page_size, page_token: r.page_token };
        let page = self.0.list_machines(&request).await.map_err(to_status)?;
        Ok(Response::new(pb::ListMachinesResponse {
            machines: page.items.iter().map(convert::machine).collect(),
            next_page_token: page.next_page_token,
        }))
    }

    async fn update_machine(
        &self,
        request: Request<pb::UpdateMachineRequest>,
    ) -> Result<Response<pb::Machine>, Status> {
        let by = caller(&self.0, &request).await?;
        let r = request.into_inner();
        let m = sent(r.machine)?;
        let update = MachineUpdate {
            id: m.machine_id,
            spec: convert::spec_from_proto(m.spec),
            labels: m.labels,
            version: m.version,
            mask: r.update_mask.map(|mask| mask.paths),
        };
        let machine = self.0.update_machine(&by, update).await.map_err(to_status)?;
        Ok(Response::new(convert::machine(&machine)))
    }

    async fn set_phase(&self, request: Request<pb::SetPhaseRequest>) -> Result<Response<pb::Machine>, Status> {
        let by = caller(&self.0, &request).await?;
        let r = request.into_inner();
        let phase = convert::phase_from_proto(r.phase).map_err(to_status)?;
        let machine = self.0.set_phase(&by, &r.machine_id, phase, &r.reason).await.map_err(to_status)?;
        Ok(Response::new(convert::machine(&machine)))
    }

    async fn explain_machine(
        &self,
        _request: Request<pb::ExplainMachineRequest>,
    ) -> Result<Response<pb::Explanation>, Status> {
        Err(Status::unimplemented("soon"))
    }
}
