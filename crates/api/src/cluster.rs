//! `ClusterService`.

use crate::error::to_status;
use crate::gate::open;
use crate::hardware::change;
use proto::millwright::v1 as pb;
use proto::millwright::v1::cluster_service_server::ClusterService;
use service::{Evict, Service};
use tonic::{Request, Response, Status};

pub(crate) struct Clusters(pub Service);

#[tonic::async_trait]
impl ClusterService for Clusters {
    async fn check_cluster(
        &self,
        request: Request<pb::CheckClusterRequest>,
    ) -> Result<Response<pb::ClusterHealth>, Status> {
        let (_, r) = open(request, |r| &r.cluster_ref)?;
        let found = self.0.check_cluster(&r.cluster_ref, &r.provider).await.map_err(to_status)?;
        Ok(Response::new(pb::ClusterHealth {
            cluster_ref: r.cluster_ref,
            endpoint: found.endpoint,
            version: found.version,
            nodes: found.nodes,
            ready_nodes: found.ready_nodes,
            problems: found.problems,
        }))
    }

    async fn cordon_machine(
        &self,
        request: Request<pb::CordonMachineRequest>,
    ) -> Result<Response<pb::HardwareChange>, Status> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        let done = self.0.cordon_machine(&call, &r.machine_id, r.on, &r.reason).await.map_err(to_status)?;
        Ok(Response::new(change(done)))
    }

    async fn drain_machine(
        &self,
        request: Request<pb::DrainMachineRequest>,
    ) -> Result<Response<pb::DrainPass>, Status> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        let options = Evict { grace_seconds: r.grace_seconds, unmanaged: r.unmanaged, local_data: r.local_data };
        let pass = self.0.drain_machine(&call, &r.machine_id, options, &r.reason).await.map_err(to_status)?;
        Ok(Response::new(pb::DrainPass {
            machine_id: r.machine_id,
            drained: pass.left.is_empty(),
            evicted: pass.evicted,
            left: pass.left.into_iter().map(|(pod, why)| pb::PodLeft { pod, why }).collect(),
        }))
    }

    async fn delete_cluster_node(
        &self,
        request: Request<pb::DeleteClusterNodeRequest>,
    ) -> Result<Response<pb::HardwareChange>, Status> {
        let (call, r) = open(request, |r| &r.machine_id)?;
        let done = self.0.delete_cluster_node(&call, &r.machine_id).await.map_err(to_status)?;
        Ok(Response::new(change(done)))
    }
}
