//! A provider whose machines are simulated, but for what is on their disks: that is written by network boot alone.

use async_trait::async_trait;
use domain::stage::FailureClass;
use provider::{
    Ack, BootControl, FailedInstall, ImageControl, Inspect, Inspection, Install, Netboot as _, Operation, PowerControl,
    Provider, ProviderResult, Standing, Target,
};
use service::NetbootOrders;
use sim::SimFleet;
use std::sync::Arc;

pub struct ByNetwork {
    pub sim: Arc<SimFleet>,
    pub orders: NetbootOrders,
}

#[async_trait]
impl Provider for ByNetwork {
    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
    fn power(&self) -> Option<&dyn PowerControl> {
        self.sim.power()
    }
    fn boot(&self) -> Option<&dyn BootControl> {
        self.sim.boot()
    }
    fn image(&self) -> Option<&dyn ImageControl> {
        Some(self)
    }
    fn knows_image(&self, _: &str) -> bool {
        false
    }
}

#[async_trait]
impl Inspect for ByNetwork {
    async fn inspect(&self, target: &Target) -> ProviderResult<Inspection> {
        let sim = Inspect::inspect(self.sim.as_ref(), target).await?;
        let seen = Inspection { installed: None, installing: None, ..sim };
        let Some(order) = self.orders.state(&target.machine_id).await? else { return Ok(seen) };
        let this = Install { image: order.image, operation: order.operation.clone() };
        Ok(match order.standing {
            Standing::Ordered { .. } | Standing::Booting { .. } | Standing::Installing { .. } => {
                Inspection { installing: Some(this), ..seen }
            }
            Standing::Written { disk_booted: false } => Inspection { installing: Some(this), ..seen },
            Standing::Written { disk_booted: true } => {
                self.orders.proven(&target.machine_id, &order.operation, "it came up").await?;
                Inspection { installed: Some(this), ..seen }
            }
            Standing::Installed => Inspection { installed: Some(this), ..seen },
            Standing::Failed { why } => {
                let (operation, class) = (order.operation, FailureClass::Hardware);
                Inspection { failed_install: Some(FailedInstall { operation, why, class }), ..seen }
            }
            Standing::CalledOff => seen,
        })
    }
}

#[async_trait]
impl ImageControl for ByNetwork {
    async fn install(&self, target: &Target, image: &str, user_data_ref: &str, op: &Operation) -> ProviderResult<Ack> {
        self.orders.order(target, image, user_data_ref, op).await.map(|_| Ack::Accepted)
    }

    async fn abort_install(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        self.orders.call_off(&target.machine_id, &op.key(), "the run was stopped").await.map(|()| Ack::Done)
    }
}
