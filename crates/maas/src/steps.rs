//! The provider for machines that a MAAS manages: what the steps of a run ask for, as far as MAAS has it. Power is read
//! from the BMC before and after; a machine is known by its identity, and touched only while it is nobody else's.

use crate::find::{Found, Known, macs};
use async_trait::async_trait;
use domain::hardware::BootOverride;
use domain::maas::{DEPLOYED, MaasClass, MaasPower};
use domain::machine::MachineSpec;
use domain::plan::{BootMode, RebootMode, StepKind};
use domain::site::Site;
use domain::stage::FailureClass;
use domain::{MachineId, Reason};
use provider::{
    Ack, BootControl, ImageControl, Inspect, Inspection, Keyring, MaasAccess, MaasClients, MaasMachine, Operation,
    PowerControl, PowerState, Provider, ProviderError, ProviderResult, Target,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Where a provider learns of its site.
#[async_trait]
pub trait SiteSource: Send + Sync {
    /// The site of this name, as it is set by now.
    async fn site(&self, name: &str) -> ProviderResult<Site>;
}

pub struct MaasProvider {
    pub(crate) site: String,
    pub(crate) sites: Arc<dyn SiteSource>,
    pub(crate) clients: Arc<dyn MaasClients>,
    pub(crate) keyring: Arc<dyn Keyring>,
    /// A call of ours ends within this; what takes longer goes on by itself.
    call_timeout: Duration,
    ids: Mutex<HashMap<MachineId, String>>,
    pub(crate) account: tokio::sync::Mutex<Option<(MaasAccess, String)>>,
    pub(crate) index: tokio::sync::Mutex<Option<(Instant, Vec<Known>)>>,
    /// When a part of an installation was last begun.
    pub(crate) acts: Mutex<HashMap<MachineId, Instant>>,
}

/// On a deployed machine: the operation that last cycled its power. Gone with its deployment.
pub(crate) const BOOTED: &str = "millwright-boot";
/// How long a machine may take to be without power.
const OFF_WITHIN: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_secs(2);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MaasProvider {
    pub fn new(
        site: &str,
        sites: Arc<dyn SiteSource>,
        clients: Arc<dyn MaasClients>,
        keyring: Arc<dyn Keyring>,
        call_timeout: Duration,
    ) -> Self {
        Self {
            site: site.to_owned(),
            sites,
            clients,
            keyring,
            call_timeout,
            ids: Mutex::default(),
            account: tokio::sync::Mutex::default(),
            index: tokio::sync::Mutex::default(),
            acts: Mutex::default(),
        }
    }

    pub(crate) fn ids(&self) -> MutexGuard<'_, HashMap<MachineId, String>> {
        lock(&self.ids)
    }

    fn cannot(&self, what: &str) -> ProviderError {
        let message = format!("the MAAS of site {} does not offer {what}", self.site);
        ProviderError::because(Reason::CapabilityMissing, FailureClass::InvalidInput, message)
    }
}

/// MAAS is at it: what its power is meanwhile is MAAS's own business.
pub(crate) fn is_busy(machine: &MaasMachine) -> bool {
    match machine.class() {
        MaasClass::Commissioning | MaasClass::Deploying | MaasClass::Transitional => true,
        MaasClass::New
        | MaasClass::Ready
        | MaasClass::Allocated
        | MaasClass::Deployed
        | MaasClass::Failed
        | MaasClass::Unknown => false,
    }
}

fn power(found: &Found, power: MaasPower) -> ProviderResult<PowerState> {
    match power {
        MaasPower::On => Ok(PowerState::On),
        MaasPower::Off => Ok(PowerState::Off),
        MaasPower::Unknown | MaasPower::Error => {
            let message = format!(
                "MAAS cannot tell whether {} is powered on (it says {power}, by power type {:?}); check its power settings there",
                found.name(),
                found.machine.power_type
            );
            Err(ProviderError::transient(message))
        }
    }
}

#[async_trait]
impl Provider for MaasProvider {
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
    fn lacks(&self, spec: &MachineSpec, step: &StepKind) -> Option<String> {
        if macs(spec).is_empty() && spec.serial_number.is_empty() && spec.system_uuid.is_empty() {
            return Some(
                "it has neither MAC addresses nor a serial number nor a system UUID to be found by".to_owned(),
            );
        }
        match step {
            StepKind::Reboot { mode: RebootMode::Inband } => Some("MAAS has no way into its system".to_owned()),
            StepKind::Netboot { mode: BootMode::Pxe, persistent: false } => None,
            StepKind::Netboot { .. } => Some(ITSELF.to_owned()),
            StepKind::Reboot { .. }
            | StepKind::Repave { .. }
            | StepKind::Ssh { .. }
            | StepKind::Join { .. }
            | StepKind::Verify { .. }
            | StepKind::Net { .. }
            | StepKind::Rma { .. } => None,
        }
    }
    fn resting(&self) -> usize {
        usize::from(self.clients.is_resting(&self.site))
    }
}

/// Every boot begins on the network, and MAAS sends a deployed machine on to its disk.
const ITSELF: &str =
    "MAAS decides by itself where its machines boot from; leave the step out, or have it boot from pxe once";

impl MaasProvider {
    /// `asks`: the BMC, now; otherwise what MAAS was last told.
    async fn inspection(&self, target: &Target, asks: bool) -> ProviderResult<Inspection> {
        let found = self.find(target).await?;
        let busy = is_busy(&found.machine);
        let last = found.machine.power();
        let power = match (busy, asks) {
            (true, _) => power(&found, last).unwrap_or(PowerState::On),
            (false, true) => power(&found, found.maas.power_now(found.id()).await?)?,
            (false, false) => power(&found, last)?,
        };
        let now = self.disk(target, &found, asks).await?;
        let deployed = found.machine.status == DEPLOYED;
        let cycled = found.machine.annotations.get(BOOTED).map_or("-", String::as_str);
        Ok(Inspection {
            serial_number: found.machine.serial.clone(),
            system_uuid: found.machine.hardware_uuid.clone(),
            power,
            reachable: false,
            host_asked: false,
            boot_id: if deployed { format!("{}:{cycled}", found.id()) } else { String::new() },
            last_reset: String::new(),
            boot_override: Some(BootOverride { mode: BootMode::Pxe, persistent: false }),
            installed: now.installed,
            disk_read: deployed,
            installing: now.installing,
            install_note: now.note,
            failed_install: now.failed,
        })
    }
}

#[async_trait]
impl Inspect for MaasProvider {
    async fn inspect(&self, target: &Target) -> ProviderResult<Inspection> {
        self.inspection(target, true).await
    }

    async fn watch(&self, target: &Target) -> ProviderResult<Inspection> {
        self.inspection(target, false).await
    }
}

#[async_trait]
impl PowerControl for MaasProvider {
    /// Off, seen to be off, and on again. That this was so is kept with the machine, as the proof of its boot.
    async fn reset(&self, target: &Target, mode: RebootMode, op: &Operation) -> ProviderResult<Ack> {
        if mode == RebootMode::Inband {
            return Err(self.cannot("a reboot by the system itself; choose another mode"));
        }
        let found = self.sure(target).await?;
        // to one that is allocated, power means: deploy
        if found.machine.status != DEPLOYED {
            return Err(found.wrong_state("only what is deployed is rebooted; repave it first"));
        }
        if mode == RebootMode::Bmc {
            target.notes.add("MAAS cannot ask the system to restart: its power is cycled".to_owned());
        }
        let begun = Instant::now();
        let on = power(&found, found.maas.power_now(found.id()).await?)? == PowerState::On;
        if on {
            found.maas.power_off(found.id()).await?;
        }
        // a machine that was switched off is switched on again, whoever still waits for it
        let (name, key) = (found.name(), op.key());
        let rest = tokio::spawn(async move { on_again(&found, &key, on).await });
        let left = (self.call_timeout * 8 / 10).saturating_sub(begun.elapsed());
        match tokio::time::timeout(left, rest).await {
            Ok(Ok(done)) => done.map(|()| Ack::Accepted),
            Ok(Err(_)) => Err(ProviderError::unknown(format!("{name} was switched off, and perhaps not on again"))),
            Err(_) => Ok(Ack::Accepted),
        }
    }

    async fn power_off(&self, target: &Target, _: &Operation) -> ProviderResult<Ack> {
        let found = self.sure(target).await?;
        if is_busy(&found.machine) {
            return Err(found.wrong_state("MAAS is at it; wait for the end of that"));
        }
        if power(&found, found.maas.power_now(found.id()).await?)? == PowerState::Off {
            return Ok(Ack::Done);
        }
        target.notes.add("MAAS cannot ask the system to shut down: its power is cut".to_owned());
        found.maas.power_off(found.id()).await?;
        Ok(Ack::Accepted)
    }
}

/// The second half of a cycle. `was_on`: the first half changed something, so that a no is no longer nothing.
async fn on_again(found: &Found, operation: &str, was_on: bool) -> ProviderResult<()> {
    let half = |e: ProviderError| match was_on {
        true => ProviderError::unknown(format!("{} was told to switch off, and then: {e}", found.name())),
        false => e,
    };
    let done = async {
        let until = Instant::now() + OFF_WITHIN;
        while was_on && found.maas.power_now(found.id()).await? != MaasPower::Off {
            if Instant::now() >= until {
                let why = format!("it is still not off after {} s", OFF_WITHIN.as_secs());
                return Err(ProviderError::transient(why));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        found.maas.power_on(found.id()).await?;
        let mark = BTreeMap::from([(BOOTED.to_owned(), operation.to_owned())]);
        found.maas.annotate(found.id(), &mark).await
    };
    let done = done.await.map_err(half);
    if let Err(e) = &done {
        tracing::warn!(machine = found.name(), error = %e, "a power cycle was left half done");
    }
    done
}

#[async_trait]
impl BootControl for MaasProvider {
    async fn set_boot(&self, target: &Target, mode: BootMode, persistent: bool, _: &Operation) -> ProviderResult<Ack> {
        if mode != BootMode::Pxe || persistent {
            return Err(self.cannot(&format!("setting where a machine boots from: {ITSELF}")));
        }
        self.find(target).await?;
        Ok(Ack::Done)
    }

    async fn clear_boot(&self, _: &Target, _: &Operation) -> ProviderResult<Ack> {
        Ok(Ack::Done)
    }
}
