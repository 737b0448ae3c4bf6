//! What the steps of a plan ask for, by the means that the machine has.

use crate::datacenter::Datacenter;
use crate::lane::For;
use async_trait::async_trait;
use domain::Reason;
use domain::hardware::{BootOverride, PowerAction};
use domain::plan::{BootMode, RebootMode};
use domain::stage::FailureClass;
use provider::{
    Ack, Bmc as _, BootControl, Command, Exec, ExecProgress, Operation, PowerControl, PowerState, ProviderError,
    ProviderResult, Target,
};

#[async_trait]
impl PowerControl for Datacenter {
    /// `bmc`: by the BMC, asking the system where the BMC can, else hard. `force`: hard. `inband`: by the system
    /// itself, and by nothing else.
    async fn reset(&self, target: &Target, mode: RebootMode, _: &Operation) -> ProviderResult<Ack> {
        let inner = &self.inner;
        if mode == RebootMode::Inband {
            // who is there, before it is rebooted
            inner.reading(target, For::Work).await?;
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

pub(crate) async fn hard_restart(bmc: &dyn provider::Bmc, target: &Target) -> ProviderResult<Ack> {
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
        let wanted = BootOverride { mode, persistent };
        let ack = bmc.set_boot(Some(wanted)).await?;
        // done means that the controller was read back, and how it shows this is for its adapter to know
        if ack == Ack::Done
            && let Ok(state) = bmc.state().await
            && let Some(shown) = state.boot
        {
            self.inner.boots.put(&target.machine_id, shown, wanted);
        }
        Ok(ack)
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
