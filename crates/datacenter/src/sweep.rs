//! How a machine stands: all of it for a step that is at work, the cheap part of it for a sweep over thousands.

use crate::datacenter::{Datacenter, Inner};
use crate::host::is_down;
use crate::installation::{Going, Installation, image_of};
use crate::lane::For;
use async_trait::async_trait;
use domain::Reason;
use domain::hardware::BootOverride;
use domain::stage::FailureClass;
use provider::{
    Bmc as _, BmcState, FailedInstall, Inspect, Inspection, Install, NetbootOrder, PowerState, ProviderError,
    ProviderResult, Standing, Target,
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
pub(crate) enum System {
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
        // before the system is read: what that proves is newer than what the installer has said
        let order = self.network_order(target, begun.as_ref()).await?;
        let renewed = self.renewed(begun.as_ref(), order.as_ref());
        let (bmc, system) =
            tokio::join!(self.bmc_state(target, whom), self.system(target, whom, begun.as_ref(), renewed));
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
        let now = match order {
            Some(order) => self.network_disk(target, bmc.as_ref(), &system, begun, order, whom).await?,
            None => self.disk(target, &system, begun, whom).await?,
        };
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
                // only where there is no other: the two are never compared with each other
                System::NotAsked if target.spec.ssh_endpoint.is_empty() => last_reset.clone(),
                System::NotAsked | System::Down | System::Closed | System::Up => String::new(),
            },
            last_reset,
            boot_override: self.boot_asked_for(target, bmc.and_then(|bmc| bmc.boot)),
            installed: now.installed,
            disk_read: now.read,
            installing: now.installing,
            install_note: now.note,
            failed_install: now.failed,
        })
    }

    /// What a controller shows, as a step has asked for it: it may have other words.
    pub fn boot_asked_for(&self, target: &Target, shown: Option<BootOverride>) -> Option<BootOverride> {
        shown.map(|shown| self.boots.get(&target.machine_id, &shown).unwrap_or(shown))
    }

    /// `None`: the machine has no BMC.
    async fn bmc_state(&self, target: &Target, whom: For) -> ProviderResult<Option<BmcState>> {
        if target.spec.bmc_endpoint.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.controller(target, whom).await?.state().await?))
    }

    /// Whether the system there may rightly be another than the one that is known.
    fn renewed(&self, begun: Option<&Installation>, order: Option<&NetbootOrder>) -> bool {
        let written = |order: &NetbootOrder| match order.standing {
            Standing::Written { .. } => begun.is_some_and(|begun| begun.operation == order.operation),
            Standing::Ordered { .. }
            | Standing::Booting { .. }
            | Standing::Installing { .. }
            | Standing::Installed
            | Standing::Failed { .. }
            | Standing::CalledOff => false,
        };
        begun.is_some_and(Installation::is_open) || order.is_some_and(written)
    }

    async fn system(
        &self,
        target: &Target,
        whom: For,
        begun: Option<&Installation>,
        in_hand: bool,
    ) -> ProviderResult<System> {
        if target.spec.ssh_endpoint.is_empty() {
            return Ok(System::NotAsked);
        }
        if whom == For::Sweep && !in_hand && self.known(target, begun).is_some() {
            return match self.answers(target, whom).await {
                Ok(()) => Ok(System::Up),
                Err(e) => shut(target, e, whom),
            };
        }
        match self.reading(target, whom).await {
            // what was reinstalled has another key, and is looked at with it from now on
            Err(e) if e.reason() == Reason::HostKeyChanged && in_hand => {
                let operation = begun.map_or("", |begun| &begun.operation);
                let why = format!("its system is being reinstalled ({operation})");
                self.repin_host(&target.machine_id, &why).await?;
                self.reading(target, whom).await.map(System::Read).or_else(|e| shut(target, e, whom))
            }
            Ok(host) => Ok(System::Read(host)),
            Err(e) => shut(target, e, whom),
        }
    }

    /// What an earlier login has shown, if that is still good enough.
    fn known(&self, target: &Target, begun: Option<&Installation>) -> Option<Reading> {
        let reading = self.readings.get(&target.machine_id, &shown_by(target, begun))?;
        (reading.at.elapsed() < self.options.host_reading).then_some(reading)
    }

    pub async fn disk(
        &self,
        target: &Target,
        system: &System,
        begun: Option<Installation>,
        whom: For,
    ) -> ProviderResult<Disk> {
        let in_hand = begun.as_ref().is_some_and(Installation::is_open);
        let disk = match system {
            System::Read(host) => self.read(target, host, begun.as_ref(), whom).await?,
            // as long as nobody has installed anything, it is what it was
            System::Up | System::Down | System::Closed if !in_hand => {
                let known = self.readings.get(&target.machine_id, &shown_by(target, begun.as_ref()));
                Disk { read: known.is_some(), installed: known.and_then(|k| k.image), ..Disk::default() }
            }
            System::Up | System::Down | System::Closed | System::NotAsked => Disk::default(),
        };
        match begun.filter(Installation::is_open) {
            Some(begun) => self.in_hand(target, disk, begun, whom).await,
            None => Ok(disk),
        }
    }

    async fn read(
        &self,
        target: &Target,
        host: &HostIdentity,
        begun: Option<&Installation>,
        whom: For,
    ) -> ProviderResult<Disk> {
        let begun = match (whom, begun.cloned()) {
            (For::Work, Some(begun)) => self.finish(target, host, begun).await?,
            (For::Work | For::Sweep, begun) => begun,
        };
        let image = image_of(host, begun.as_ref());
        let reading = Reading { at: Instant::now(), image: image.clone() };
        // by what is begun now: it may have been seen to be done
        let begun = self.begun(target).await?;
        self.readings.put(&target.machine_id, shown_by(target, begun.as_ref()), reading);
        Ok(Disk { read: true, installed: image, ..Disk::default() })
    }

    /// An installation is open: it is there, goes on, or went wrong.
    async fn in_hand(&self, target: &Target, disk: Disk, begun: Installation, whom: For) -> ProviderResult<Disk> {
        let is_there = |disk: &Disk| disk.installed.as_ref().is_some_and(|i| i.operation == begun.operation);
        if is_there(&disk) {
            return Ok(disk);
        }
        let (operation, image) = (begun.operation.clone(), begun.image.clone());
        match self.going(target, &begun).await? {
            Going::NotBegun => Ok(disk),
            Going::On => {
                let installing = Some(Install { image, operation });
                Ok(Disk { installed: None, installing, ..disk })
            }
            Going::Wrong(why) => {
                // the disk was read before that was heard, and the last thing a script does is to write there
                let host = self.reading(target, whom).await?;
                let disk = self.read(target, &host, Some(&begun), whom).await?;
                if is_there(&disk) {
                    return Ok(disk);
                }
                let class = FailureClass::Transient;
                Ok(Disk { failed: Some(FailedInstall { operation, why, class }), ..disk })
            }
        }
    }
}

/// What a login has shown is good for this endpoint, until something else is begun.
fn shown_by(target: &Target, begun: Option<&Installation>) -> String {
    format!("{} {}", target.spec.ssh_endpoint, begun.map_or(String::new(), Installation::text))
}

#[derive(Default)]
pub(crate) struct Disk {
    pub read: bool,
    pub installed: Option<Install>,
    pub installing: Option<Install>,
    pub failed: Option<FailedInstall>,
    /// What is to be said of what is being installed.
    pub note: String,
}

/// A system that could not be read: down, closed to us, or not asked at all, which a person should be told.
fn shut(target: &Target, e: ProviderError, whom: For) -> ProviderResult<System> {
    if is_down(&e) {
        return Ok(System::Down);
    }
    if whom == For::Sweep && target.spec.bmc_endpoint.is_empty() {
        return Err(e);
    }
    let system = match e.reason() {
        Reason::LoginRefused | Reason::HostKeyChanged | Reason::BadAnswer | Reason::CapabilityMissing => System::Closed,
        // nobody went there, so whether it answers is not known
        Reason::CredentialMissing | Reason::CredentialNotFound | Reason::InvalidField => System::NotAsked,
        _ => return Err(e),
    };
    target.notes.add(format!("its system could not be read: {e}"));
    Ok(system)
}
