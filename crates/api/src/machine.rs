//! `MachineService`.

use crate::convert;
use crate::error::to_status;
use crate::gate::{nothing, open};
use domain::Error;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_service_server::MachineService;
use service::{MachineUpdate, NewMachine, PageRequest, Service};
use tonic::{Request, Response, Status};

pub(crate) struct Machines(pub Service);

fn sent(machine: Option<pb::Machine>) -> Result<pb::Machine, Status> {
    machine.ok_or_else(|| to_status(Error::field("machine", "must be given")))
}

fn id(machine: &Option<pb::Machine>) -> &str {
    machine.as_ref().map_or("", |m| &m.machine_id)
}

#[tonic::async_trait]
impl MachineService for Machines {
    async fn register_machine(
        &self,
        request: Request<pb::RegisterMachineRequest>,
    ) -> Result<Response<pb::Machine>, Status> {
        let (call, r) = open(request, |r| id(&r.machine))?;
        let m = sent(r.machine)?;
        let new = NewMachine {
            id: m.machine_id,
            spec: convert::spec_from_proto(m.spec),
            labels: m.labels,
            version: m.version,
        };
        let machine = self.0.register_machine(&call, new).await.map_err(to_status)?;
        Ok(Response::new(convert::machine(machine)))
    }

    async fn get_machine(&self, request: Request<pb::GetMachineRequest>) -> Result<Response<pb::Machine>, Status> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        let machine = self.0.get_machine(&call, &r.machine_id).await.map_err(to_status)?;
        Ok(Response::new(convert::machine(machine)))
    }

    async fn list_machines(
        &self,
        request: Request<pb::ListMachinesRequest>,
    ) -> Result<Response<pb::ListMachinesResponse>, Status> {
        let (call, r) = open(request, nothing)?;
        let request = PageRequest { filter: r.filter, page_size: r.page_size, page_token: r.page_token };
        let page = self.0.list_machines(&call, &request).await.map_err(to_status)?;
        Ok(Response::new(pb::ListMachinesResponse {
            machines: page.items.into_iter().map(convert::machine).collect(),
            next_page_token: page.next_page_token,
        }))
    }

    async fn update_machine(
        &self,
        request: Request<pb::UpdateMachineRequest>,
    ) -> Result<Response<pb::Machine>, Status> {
        let (call, r) = open(request, |r| id(&r.machine))?;
        let m = sent(r.machine)?;
        let update = MachineUpdate {
            id: m.machine_id,
            spec: convert::spec_from_proto(m.spec),
            labels: m.labels,
            version: m.version,
            mask: r.update_mask.map(|mask| mask.paths),
        };
        let machine = self.0.update_machine(&call, update).await.map_err(to_status)?;
        Ok(Response::new(convert::machine(machine)))
    }

    async fn set_phase(&self, request: Request<pb::SetPhaseRequest>) -> Result<Response<pb::Machine>, Status> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        let phase = convert::phase_from_proto(r.phase).map_err(to_status)?;
        let machine = self.0.set_phase(&call, &r.machine_id, phase, &r.reason).await.map_err(to_status)?;
        Ok(Response::new(convert::machine(machine)))
    }

    async fn explain_machine(
        &self,
        request: Request<pb::ExplainMachineRequest>,
    ) -> Result<Response<pb::Explanation>, Status> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        let explanation = self.0.explain_machine(&call, &r.machine_id).await.map_err(to_status)?;
        Ok(Response::new(convert::explanation(explanation)))
    }
}
