//! What the steps of a plan ask for, by the means that the machine has.

use crate::datacenter::Datacenter;
use crate::lane::For;
use async_trait::async_trait;
use domain::Reason;
use domain::hardware::{BootOverride, PowerAction};
use domain::limits::short;
use domain::plan::{BootMode, RebootMode};
use domain::stage::FailureClass;
use kube::NodeOf;
use provider::{
    Ack, Bmc as _, BootControl, ClusterControl, Command, Drain, Exec, ExecProgress, ExecState, Joining, Membership,
    Operation, PowerControl, PowerState, ProviderError, ProviderResult, Target,
};
use std::collections::BTreeMap;

#[async_trait]
impl PowerControl for Datacenter {
    /// `bmc`: by the BMC, asking the system where the BMC can, else hard. `force`: hard. `inband`: by the system
    /// itself, and by nothing else.
    async fn reset(&self, target: &Target, mode: RebootMode, _: &Operation) -> ProviderResult<Ack> {
        let inner = &self.inner;
        if mode == RebootMode::Inband {
            let reached = inner.host(target, For::Work).await?;
            return inner.on_host(&reached, For::Work, reached.host.reboot()).await;
        }
        let (bmc, state) = inner.checked(target, For::Work).await?;
        if target.spec.ssh_endpoint.is_empty() && state.last_reset.is_empty() {
            let message = format!(
                "a reboot of machine {} could not be proven: it has no spec.ssh_endpoint, and {} does not tell when it was \
                 last reset; give it an SSH endpoint, or use 'millwright machine power'",
                target.machine_id,
                bmc.name()
            );
            return Err(ProviderError::because(Reason::CapabilityMissing, FailureClass::InvalidInput, message));
        }
        match (state.power, mode) {
            (PowerState::Off, _) => bmc.power(PowerAction::On).await,
            (PowerState::On, RebootMode::Bmc) => match bmc.power(PowerAction::GracefulRestart).await {
                Err(e) if e.reason() == Reason::CapabilityMissing => {
                    target.notes.add(format!("{} cannot ask the system to restart: it is reset", bmc.name()));
                    hard_restart(&bmc, target).await
                }
                answer => answer,
            },
            (PowerState::On, RebootMode::Force | RebootMode::Inband) => hard_restart(&bmc, target).await,
        }
    }

    async fn power_off(&self, target: &Target, _: &Operation) -> ProviderResult<Ack> {
        let (bmc, state) = self.inner.checked(target, For::Work).await?;
        match state.power {
            PowerState::Off => Ok(Ack::Done),
            PowerState::On => match bmc.power(PowerAction::GracefulOff).await {
                Err(e) if e.reason() == Reason::CapabilityMissing => {
                    target.notes.add(format!("{} cannot ask the system to shut down: its power is cut", bmc.name()));
                    bmc.power(PowerAction::ForceOff).await
                }
                answer => answer,
            },
        }
    }
}

async fn hard_restart(bmc: &dyn provider::Bmc, target: &Target) -> ProviderResult<Ack> {
    match bmc.power(PowerAction::ForceRestart).await {
        Err(e) if e.reason() == Reason::CapabilityMissing => {
            target.notes.add(format!("{} cannot reset: its power is cycled", bmc.name()));
            bmc.power(PowerAction::Cycle).await
        }
        answer => answer,
    }
}

#[async_trait]
impl BootControl for Datacenter {
    async fn set_boot(&self, target: &Target, mode: BootMode, persistent: bool, _: &Operation) -> ProviderResult<Ack> {
        let (bmc, _) = self.inner.checked(target, For::Work).await?;
        bmc.set_boot(Some(BootOverride { mode, persistent })).await
    }

    async fn clear_boot(&self, target: &Target, _: &Operation) -> ProviderResult<Ack> {
        let (bmc, _) = self.inner.checked(target, For::Work).await?;
        bmc.set_boot(None).await
    }
}

#[async_trait]
impl Exec for Datacenter {
    async fn start(&self, target: &Target, command: &Command, op: &Operation) -> ProviderResult<Ack> {
        // who is there, before anything runs on it
        self.inner.reading(target, For::Work).await?;
        let reached = self.inner.host(target, For::Work).await?;
        self.inner.on_host(&reached, For::Work, reached.host.start(command, &op.key(), None)).await
    }

    async fn poll(&self, target: &Target, op: &Operation, offset: u64) -> ProviderResult<ExecProgress> {
        let reached = self.inner.host(target, For::Work).await?;
        self.inner.on_host(&reached, For::Work, reached.host.poll(&op.key(), offset)).await
    }

    async fn kill(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        let reached = self.inner.host(target, For::Work).await?;
        self.inner.on_host(&reached, For::Work, reached.host.kill(&op.key())).await
    }
}

#[async_trait]
impl ClusterControl for Datacenter {
    /// The host runs `kubeadm` by itself, with a token that goes by its standard input and is good for minutes.
    async fn join(&self, target: &Target, cluster_ref: &str, op: &Operation) -> ProviderResult<Ack> {
        let inner = &self.inner;
        inner.reading(target, For::Work).await?;
        let cluster = inner.cluster(cluster_ref).await?;
        let material = cluster.mint_join(inner.options.join_ttl).await?;
        let node = NodeOf::machine(target);
        let script = kube::join_script(&material, node.names.first().map(String::as_str));
        let reached = inner.host(target, For::Work).await?;
        let mut words = script.command.split(' ').map(str::to_owned);
        let command = words.next().unwrap_or_default();
        let command = Command { command, args: words.collect(), environment: BTreeMap::new() };
        let key = op.key();
        let started = reached.host.start(&command, &key, Some(&script.stdin));
        inner.on_host(&reached, For::Work, started).await
    }

    async fn joining(&self, target: &Target, op: &Operation) -> ProviderResult<Joining> {
        let reached = self.inner.host(target, For::Work).await?;
        let progress = self.inner.on_host(&reached, For::Work, reached.host.poll(&op.key(), 0)).await?;
        Ok(match progress.state {
            ExecState::NeverStarted | ExecState::Exited(0) => Joining::Unknown,
            ExecState::Running => Joining::Running,
            ExecState::Exited(status) => {
                let said: Vec<u8> = progress.output.iter().flat_map(|chunk| chunk.data.clone()).collect();
                let said = String::from_utf8_lossy(&said);
                Joining::Failed(short(&format!("kubeadm join ended with exit status {status}: {}", said.trim())))
            }
        })
    }

    async fn membership(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Membership> {
        self.inner.cluster(cluster_ref).await?.membership(&NodeOf::machine(target)).await
    }

    async fn drain_state(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Drain> {
        self.inner.cluster(cluster_ref).await?.drain_state(&NodeOf::machine(target)).await
    }

    async fn watch_membership(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Membership> {
        self.inner.cluster(cluster_ref).await?.watch_membership(&NodeOf::machine(target)).await
    }

    async fn watch_drain(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Drain> {
        self.inner.cluster(cluster_ref).await?.watch_drain(&NodeOf::machine(target)).await
    }
}
