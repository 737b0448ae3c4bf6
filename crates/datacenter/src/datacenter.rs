//! The provider and what it keeps between calls.

use crate::clusters;
use crate::controller;
use crate::guarded::Controller;
use crate::host;
use crate::installation::Installation;
use crate::kept::Kept;
use crate::lane::Lanes;
use crate::management::Passwords;
use crate::options::{Image, Options};
use crate::sweep::Reading;
use async_trait::async_trait;
use domain::MachineId;
use domain::endpoint::BmcEndpoint;
use domain::hardware::BootOverride;
use domain::machine::MachineSpec;
use domain::plan::{RebootMode, RmaAction, StepKind};
use kube::Cluster;
use provider::{
    BootControl, ClusterControl, Exec, ImageControl, Inspect, Keyring, Management, Netboot, PowerControl, Provider,
};
use ssh::{Host, Places};
use std::sync::Arc;
use tokio::task::JoinSet;

/// Drives machines by their BMC, their SSH endpoint and their cluster.
#[derive(Clone)]
pub struct Datacenter {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub options: Options,
    pub keyring: Arc<dyn Keyring>,
    /// None: machines are not installed by network boot.
    pub netboot: Option<Arc<dyn Netboot>>,
    pub redfish: Arc<Lanes>,
    pub ipmi: Arc<Lanes>,
    pub ssh: Arc<Lanes>,
    pub controllers: Kept<MachineId, controller::MadeFrom, Controller>,
    /// Which protocol was found where a machine does not say.
    pub protocols: Kept<MachineId, BmcEndpoint, BmcEndpoint>,
    /// The places at each jump host.
    pub jumps: Kept<String, (), Places>,
    pub hosts: Kept<MachineId, host::MadeFrom, Arc<Host>>,
    pub clusters: Kept<String, clusters::MadeFrom, Arc<Cluster>>,
    pub passwords: Passwords,
    /// The token that a machine was given to join with, until it has served. Whoever is lost leaves it to its end.
    pub tokens: Kept<MachineId, String, String>,
    pub readings: Kept<MachineId, String, Reading>,
    /// The installation of which a step was told that it cannot be proven, so that it is told once.
    pub unproven: Kept<MachineId, Installation, ()>,
    /// What a step has set, by how the controller shows it: some have fewer words than we do.
    pub boots: Kept<MachineId, BootOverride, BootOverride>,
}

/// Machines whose controllers and hosts are kept; more are made again when needed.
const MACHINES_MAX: usize = 50_000;
const CLUSTERS_MAX: usize = 1_000;
const JUMPS_MAX: usize = 10_000;

impl Datacenter {
    pub fn new(options: Options, keyring: Arc<dyn Keyring>) -> Self {
        Self::made(options, keyring, None)
    }

    /// One that also installs machines by network boot, where they have a boot node.
    pub fn with_netboot(options: Options, keyring: Arc<dyn Keyring>, netboot: Arc<dyn Netboot>) -> Self {
        Self::made(options, keyring, Some(netboot))
    }

    fn made(options: Options, keyring: Arc<dyn Keyring>, netboot: Option<Arc<dyn Netboot>>) -> Self {
        let lanes = |calls| Arc::new(Lanes::new(&options, calls));
        Self {
            inner: Arc::new(Inner {
                redfish: lanes(options.redfish_calls),
                ipmi: lanes(options.ipmi_calls),
                ssh: Arc::new(Lanes::to_hosts(&options)),
                controllers: Kept::new(MACHINES_MAX),
                protocols: Kept::new(MACHINES_MAX),
                jumps: Kept::new(JUMPS_MAX),
                hosts: Kept::new(MACHINES_MAX),
                clusters: Kept::new(CLUSTERS_MAX),
                tokens: Kept::new(MACHINES_MAX),
                passwords: Passwords::default(),
                readings: Kept::new(MACHINES_MAX),
                unproven: Kept::new(MACHINES_MAX),
                boots: Kept::new(MACHINES_MAX),
                options,
                keyring,
                netboot,
            }),
        }
    }
}

#[async_trait]
impl Provider for Datacenter {
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
    fn lacks(&self, spec: &MachineSpec, step: &StepKind) -> Option<String> {
        let empty = |field: &str, text: &str| text.is_empty().then(|| format!("its {field} is empty"));
        let bmc = || empty("spec.bmc_endpoint", &spec.bmc_endpoint);
        let ssh = || empty("spec.ssh_endpoint", &spec.ssh_endpoint);
        match step {
            StepKind::Ssh { .. } | StepKind::Join { .. } => ssh(),
            StepKind::Reboot { mode: RebootMode::Inband } => ssh(),
            StepKind::Reboot { mode: RebootMode::Bmc | RebootMode::Force } | StepKind::Netboot { .. } => bmc(),
            StepKind::Repave { image, .. } => match self.inner.options.images.get(image) {
                Some(Image::Media { .. }) => bmc().or_else(ssh),
                Some(Image::Script { .. }) => ssh(),
                // whoever starts a run knows whether network boot has it
                None if self.inner.netboot.is_some() => bmc(),
                None => Some(format!("there is no image {image:?} in the configuration's [images]")),
            },
            StepKind::Rma { action: RmaAction::Shutdown, .. } => bmc(),
            StepKind::Rma { .. } | StepKind::Verify { .. } | StepKind::Net { .. } => None,
        }
    }
    fn knows_image(&self, image: &str) -> bool {
        self.inner.netboot.is_none() || self.inner.options.images.contains_key(image)
    }
    fn management(&self) -> Option<&dyn Management> {
        Some(self)
    }
    async fn close(&self) {
        let mut closing = JoinSet::new();
        for controller in self.inner.controllers.take_all() {
            // in turn and within the fleet's bound, as every call
            closing.spawn(async move { controller.close().await });
        }
        while closing.join_next().await.is_some() {}
    }
    fn resting(&self) -> usize {
        self.inner.redfish.resting() + self.inner.ipmi.resting() + self.inner.ssh.resting()
    }
}
