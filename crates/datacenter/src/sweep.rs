//! How a machine stands: all of it for a step that is at work, the cheap part of it for a sweep over thousands.

use crate::datacenter::{Datacenter, Inner};
use crate::host::is_down;
use crate::installation::Installation;
use crate::lane::For;
use async_trait::async_trait;
use provider::{
    Bmc as _, BmcState, FailedInstall, Inspect, Inspection, Install, PowerState, ProviderError, ProviderResult, Target,
};
use ssh::HostIdentity;
use tokio::time::Instant;

/// What the last login on a host has shown.
#[derive(Clone)]
pub(crate) struct Reading {
    at: Instant,
    image: Option<Install>,
}

/// What was found out about the system on a machine.
enum System {
    /// There is no way to ask.
    NotAsked,
    Down,
    /// It answers, and does not let us in.
    Closed,
    /// It answers; who it is was not asked this time.
    Up,
    Read(HostIdentity),
}

#[async_trait]
impl Inspect for Datacenter {
    async fn inspect(&self, target: &Target) -> ProviderResult<Inspection> {
        self.inner.look(target, For::Work).await
    }

    async fn watch(&self, target: &Target) -> ProviderResult<Inspection> {
        self.inner.look(target, For::Sweep).await
    }
}

impl Inner {
    async fn look(&self, target: &Target, whom: For) -> ProviderResult<Inspection> {
        let begun = self.begun(target).await?;
        let (bmc, system) = tokio::join!(self.bmc_state(target, whom), self.system(target, whom, begun.as_ref()));
        let (bmc, system) = (bmc?, system?);
        let power = match (&bmc, &system) {
            (Some(bmc), _) => bmc.power,
            // nothing but its system to go by
            (None, System::Read(_) | System::Up | System::Closed) => PowerState::On,
            (None, System::Down | System::NotAsked) => {
                let what = format!("machine {}", target.machine_id);
                return Err(ProviderError::unreachable(&what, "its system does not answer, and it has no BMC to ask"));
            }
        };
        let now = self.disk(target, &system, begun).await?;
        let last_reset = bmc.as_ref().map_or(String::new(), |bmc| bmc.last_reset.clone());
        let (bmc_serial, bmc_uuid) =
            bmc.as_ref().map_or((String::new(), String::new()), |b| (b.serial_number.clone(), b.system_uuid.clone()));
        let host = match &system {
            System::Read(host) => Some(host),
            System::NotAsked | System::Down | System::Closed | System::Up => None,
        };
        let or =
            |bmc: String, host: Option<&String>| if bmc.is_empty() { host.cloned().unwrap_or_default() } else { bmc };
        Ok(Inspection {
            serial_number: or(bmc_serial, host.map(|h| &h.serial_number)),
            system_uuid: or(bmc_uuid, host.map(|h| &h.system_uuid)),
            power,
            reachable: matches!(system, System::Read(_) | System::Up | System::Closed),
            host_asked: !matches!(system, System::NotAsked),
            boot_id: match &system {
                System::Read(host) => host.boot_id.clone(),
                System::NotAsked => last_reset,
                System::Down | System::Closed | System::Up => String::new(),
            },
            boot_override: bmc.and_then(|bmc| bmc.boot).map(|boot| boot.mode),
            installed: now.installed,
            disk_read: now.read,
            installing: now.installing,
            failed_install: now.failed,
        })
    }

    /// `None`: the machine has no BMC.
    async fn bmc_state(&self, target: &Target, whom: For) -> ProviderResult<Option<BmcState>> {
        if target.spec.bmc_endpoint.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.controller(target, whom).await?.state().await?))
    }

    async fn system(&self, target: &Target, whom: For, begun: Option<&Installation>) -> ProviderResult<System> {
        if target.spec.ssh_endpoint.is_empty() {
            return Ok(System::NotAsked);
        }
        if whom == For::Sweep && begun.is_none() && self.known(target).is_some() {
            return match self.answers(target, whom).await {
                Ok(()) => Ok(System::Up),
                Err(e) => shut(target, e, whom),
            };
        }
        match self.reading(target, whom).await {
            // what was reinstalled has another key, and is looked at with it from now on
            Err(e) if e.reason() == domain::Reason::HostKeyChanged && begun.is_some_and(Installation::is_open) => {
                self.repin_host(&target.machine_id, "its system is being reinstalled").await?;
                self.reading(target, whom).await.map(System::Read).or_else(|e| shut(target, e, whom))
            }
            Ok(host) => Ok(System::Read(host)),
            Err(e) => shut(target, e, whom),
        }
    }

    /// What an earlier login has shown, if that is still good enough.
    fn known(&self, target: &Target) -> Option<Reading> {
        let reading = self.readings.get(&target.machine_id, &target.spec.ssh_endpoint)?;
        (reading.at.elapsed() < self.options.host_reading).then_some(reading)
    }

    async fn disk(&self, target: &Target, system: &System, begun: Option<Installation>) -> ProviderResult<Disk> {
        let (machine, endpoint) = (&target.machine_id, &target.spec.ssh_endpoint);
        let mut disk = match system {
            System::Read(host) => {
                let image = self.image_of(target, host, begun.as_ref()).await?;
                let reading = Reading { at: Instant::now(), image: image.clone() };
                self.readings.put(machine, endpoint.clone(), reading);
                Disk { read: true, installed: image, ..Disk::default() }
            }
            // as long as nobody has installed anything, it is what it was
            System::Up | System::Down | System::Closed if begun.is_none() => {
                let known = self.readings.get(machine, endpoint);
                Disk { read: known.is_some(), installed: known.and_then(|k| k.image), ..Disk::default() }
            }
            System::Up | System::Down | System::Closed | System::NotAsked => Disk::default(),
        };
        if let Some(begun) = begun.filter(Installation::is_open) {
            let ours = |install: &Install| install.operation == begun.operation;
            if !disk.installed.as_ref().is_some_and(ours) {
                match self.failure(target, &begun).await? {
                    Some(why) => disk.failed = Some(FailedInstall { operation: begun.operation, why }),
                    None => {
                        disk.installed = None;
                        disk.installing = Some(Install { image: begun.image, operation: begun.operation });
                    }
                }
            }
        }
        Ok(disk)
    }
}

#[derive(Default)]
struct Disk {
    read: bool,
    installed: Option<Install>,
    installing: Option<Install>,
    failed: Option<FailedInstall>,
}

/// A system that could not be read: down, or closed to us, which a person should be told.
fn shut(target: &Target, e: ProviderError, whom: For) -> ProviderResult<System> {
    if is_down(&e) {
        return Ok(System::Down);
    }
    if e.reason() == domain::Reason::WrongMachine || whom == For::Sweep && target.spec.bmc_endpoint.is_empty() {
        return Err(e);
    }
    target.notes.add(format!("its system answers, but could not be read: {e}"));
    Ok(System::Closed)
}
