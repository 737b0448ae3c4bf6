//! The simulated fleet behind a tap: every capability, call by call.

use crate::tap::Tap;
use async_trait::async_trait;
use domain::plan::{BootMode, RebootMode};
use provider::{
    Ack, BootControl, ClusterControl, Command, Drain, Exec, ExecProgress, ImageControl, Inspect, Inspection,
    Membership, NetworkControl, Operation, PowerControl, Provider, ProviderResult, RmaControl, Target,
};
use sim::SimFleet;
use std::collections::BTreeMap;
use std::sync::Arc;

pub struct Tapped {
    pub sim: Arc<SimFleet>,
    pub tap: Arc<Tap>,
}

impl Provider for Tapped {
    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
    fn power(&self) -> Option<&dyn PowerControl> {
        Some(self)
    }
    fn boot(&self) -> Option<&dyn BootControl> {
        Some(self)
    }
    fn image(&self) -> Option<&dyn ImageControl> {
        Some(self)
    }
    fn exec(&self) -> Option<&dyn Exec> {
        Some(self)
    }
    fn cluster(&self) -> Option<&dyn ClusterControl> {
        Some(self)
    }
    fn network(&self) -> Option<&dyn NetworkControl> {
        Some(self)
    }
    fn rma(&self) -> Option<&dyn RmaControl> {
        Some(self)
    }
}

#[async_trait]
impl Inspect for Tapped {
    async fn inspect(&self, target: &Target) -> ProviderResult<Inspection> {
        self.tap.pass("inspect", None, || Inspect::inspect(&*self.sim, target)).await
    }
}

#[async_trait]
impl PowerControl for Tapped {
    async fn reset(&self, target: &Target, mode: RebootMode, op: &Operation) -> ProviderResult<Ack> {
        self.tap.pass("power.reset", Some(op), || self.sim.reset(target, mode, op)).await
    }

    async fn power_off(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        self.tap.pass("power.power_off", Some(op), || self.sim.power_off(target, op)).await
    }
}

#[async_trait]
impl BootControl for Tapped {
    async fn set_boot(&self, target: &Target, mode: BootMode, persistent: bool, op: &Operation) -> ProviderResult<Ack> {
        self.tap.pass("boot.set_boot", Some(op), || self.sim.set_boot(target, mode, persistent, op)).await
    }

    async fn clear_boot(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        self.tap.pass("boot.clear_boot", Some(op), || self.sim.clear_boot(target, op)).await
    }
}

#[async_trait]
impl ImageControl for Tapped {
    async fn install(&self, target: &Target, image: &str, user_data_ref: &str, op: &Operation) -> ProviderResult<Ack> {
        self.tap.pass("image.install", Some(op), || self.sim.install(target, image, user_data_ref, op)).await
    }

    async fn abort_install(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        self.tap.pass("image.abort_install", Some(op), || self.sim.abort_install(target, op)).await
    }
}

#[async_trait]
impl Exec for Tapped {
    async fn start(&self, target: &Target, command: &Command, op: &Operation) -> ProviderResult<Ack> {
        self.tap.pass("exec.start", Some(op), || self.sim.start(target, command, op)).await
    }

    async fn poll(&self, target: &Target, op: &Operation, offset: u64) -> ProviderResult<ExecProgress> {
        self.tap.pass("exec.poll", None, || self.sim.poll(target, op, offset)).await
    }

    async fn kill(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        self.tap.pass("exec.kill", Some(op), || self.sim.kill(target, op)).await
    }
}

#[async_trait]
impl ClusterControl for Tapped {
    async fn join(&self, target: &Target, cluster_ref: &str, op: &Operation) -> ProviderResult<Ack> {
        self.tap.pass("cluster.join", Some(op), || self.sim.join(target, cluster_ref, op)).await
    }

    async fn membership(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Membership> {
        self.tap.pass("cluster.membership", None, || self.sim.membership(target, cluster_ref)).await
    }

    async fn drain_state(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Drain> {
        self.tap.pass("cluster.drain_state", None, || self.sim.drain_state(target, cluster_ref)).await
    }
}

#[async_trait]
impl NetworkControl for Tapped {
    async fn apply(
        &self,
        target: &Target,
        parameters: &BTreeMap<String, String>,
        op: &Operation,
    ) -> ProviderResult<Ack> {
        self.tap.pass("network.apply", Some(op), || self.sim.apply(target, parameters, op)).await
    }

    async fn current(&self, target: &Target) -> ProviderResult<BTreeMap<String, String>> {
        self.tap.pass("network.current", None, || self.sim.current(target)).await
    }
}

#[async_trait]
impl RmaControl for Tapped {
    async fn open_return(&self, target: &Target, reason: &str, op: &Operation) -> ProviderResult<Ack> {
        self.tap.pass("rma.open_return", Some(op), || self.sim.open_return(target, reason, op)).await
    }

    async fn open_return_of(&self, target: &Target) -> ProviderResult<Option<String>> {
        self.tap.pass("rma.open_return_of", None, || self.sim.open_return_of(target)).await
    }
}
