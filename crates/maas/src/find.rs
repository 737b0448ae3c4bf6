//! Which machine of a MAAS is ours: by what the record says of its cards, its serial number and its UUID, never by a name.
//! What was found is remembered by its id, and recognized anew at every reading.

use crate::said::clean;
use crate::steps::MaasProvider;
use domain::Reason;
use domain::identity::{another_machine, confirms};
use domain::mac::MacAddress;
use domain::machine::MachineSpec;
use domain::site::Site;
use domain::stage::FailureClass;
use provider::{Maas, MaasAccess, MaasMachine, ProviderError, ProviderResult, Target, Which};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Where there is no MAC to ask by, everything is listed: no more often than this.
const INDEX_AGE: Duration = Duration::from_secs(60);
/// Machines whose ids are remembered.
const IDS_MAX: usize = 50_000;

/// A machine of ours, as its MAAS tells of it now.
pub(crate) struct Found {
    pub maas: Arc<dyn Maas>,
    pub access: MaasAccess,
    pub site: Site,
    pub machine: MaasMachine,
}

/// What a machine can be told by, where there is no MAC.
pub(crate) struct Known {
    system_id: String,
    serial: String,
    uuid: String,
}

impl Found {
    pub fn id(&self) -> &str {
        &self.machine.system_id
    }

    /// `machine 4g4aaq of site oslo (n1)`.
    pub fn name(&self) -> String {
        let host = &self.machine.hostname;
        format!("machine {} of site {} ({host})", self.machine.system_id, self.access.site)
    }

    /// Somebody has moved it to where this cannot be.
    pub fn wrong_state(&self, what: &str) -> ProviderError {
        let message = format!("{} is {} there: {what}", self.name(), self.machine.says());
        ProviderError::because(Reason::WrongState, FailureClass::Conflict, message)
    }
}

pub(crate) fn macs(spec: &MachineSpec) -> Vec<MacAddress> {
    spec.mac_addresses.iter().filter_map(|mac| MacAddress::parse(mac)).collect()
}

fn has_mac(machine: &MaasMachine, mac: &MacAddress) -> bool {
    machine.interfaces.iter().any(|interface| interface.mac == mac.as_str())
}

/// Whether it may be the one: it has a name of it, and contradicts none.
fn is_it(spec: &MachineSpec, machine: &MaasMachine) -> bool {
    let macs = macs(spec);
    let named = match macs.is_empty() {
        true => confirms(spec, &machine.serial, &machine.hardware_uuid),
        false => macs.iter().any(|mac| has_mac(machine, mac)),
    };
    named && another_machine(spec, &machine.serial, &machine.hardware_uuid).is_none()
}

impl MaasProvider {
    /// The machine as it is now. Whose id is known is read by it, and everything else looked for.
    pub(crate) async fn find(&self, target: &Target) -> ProviderResult<Found> {
        let (access, site, maas) = self.reach().await?;
        let known = self.ids().get(&target.machine_id).cloned();
        if let Some(id) = known {
            if let Some(machine) = maas.machine(&id).await?
                && is_it(&target.spec, &machine)
            {
                return Ok(Found { maas, access, site, machine });
            }
            self.ids().remove(&target.machine_id);
        }
        let machine = self.look_for(&*maas, target, INDEX_AGE).await?;
        Ok(self.remembered(target, Found { maas, access, site, machine }))
    }

    /// The same, before something is done to it: there must be one of that name only, it must say who it is, and nobody
    /// else may have it.
    pub(crate) async fn sure(&self, target: &Target) -> ProviderResult<Found> {
        let (access, site, maas) = self.reach().await?;
        let machine = self.look_for(&*maas, target, Duration::ZERO).await?;
        let found = self.remembered(target, Found { maas, access, site, machine });
        let (spec, machine) = (&target.spec, &found.machine);
        let only_macs = spec.serial_number.is_empty() && spec.system_uuid.is_empty();
        let all_macs = macs(spec).iter().all(|mac| has_mac(machine, mac));
        let sure = if only_macs { all_macs } else { confirms(spec, &machine.serial, &machine.hardware_uuid) };
        if !sure {
            let message = format!(
                "{} does not prove to be machine {}: the record has MACs {:?}, serial number {:?} and system UUID {:?}, and \
                 MAAS says {:?} and {:?}; commission it there, or correct the record",
                found.name(),
                target.machine_id,
                spec.mac_addresses,
                spec.serial_number,
                spec.system_uuid,
                machine.serial,
                machine.hardware_uuid
            );
            return Err(ProviderError::because(Reason::WrongMachine, FailureClass::NeedsOperator, message));
        }
        if machine.locked {
            let message = format!("{} is locked there; unlock it in MAAS if this is meant", found.name());
            return Err(ProviderError::because(Reason::WrongState, FailureClass::NeedsOperator, message));
        }
        let we = self.username(&found).await?;
        if !machine.owner.is_empty() && machine.owner != we {
            let message = format!(
                "{} belongs to {:?} there, and our API key is that of {we:?}; have it released, or give the site a key of \
                 that user",
                found.name(),
                machine.owner
            );
            return Err(ProviderError::because(Reason::WrongState, FailureClass::Conflict, message));
        }
        Ok(found)
    }

    /// By what is set for the site now.
    async fn reach(&self) -> ProviderResult<(MaasAccess, Site, Arc<dyn Maas>)> {
        let site = self.sites.site(&self.site).await?;
        let access = provider::access_to(&site, &*self.keyring).await?;
        let maas = self.clients.client(&access)?;
        Ok((access, site, maas))
    }

    fn remembered(&self, target: &Target, found: Found) -> Found {
        let mut ids = self.ids();
        if ids.len() >= IDS_MAX {
            ids.clear();
        }
        ids.insert(target.machine_id.clone(), found.machine.system_id.clone());
        found
    }

    /// Who our key is there.
    async fn username(&self, found: &Found) -> ProviderResult<String> {
        let known =
            self.account.lock().await.as_ref().filter(|(of, _)| *of == found.access).map(|(_, name)| name.clone());
        if let Some(name) = known {
            return Ok(name);
        }
        let name = found.maas.account().await?.username;
        *self.account.lock().await = Some((found.access.clone(), name.clone()));
        Ok(name)
    }

    async fn look_for(&self, maas: &dyn Maas, target: &Target, age: Duration) -> ProviderResult<MaasMachine> {
        let (spec, macs) = (&target.spec, macs(&target.spec));
        let mut named = match macs.is_empty() {
            false => maas.machines(&Which::Macs(macs)).await?,
            true => self.by_serial_or_uuid(maas, target, age).await?,
        };
        let ids: Vec<String> = named.iter().map(|m| format!("{} ({})", m.system_id, clean(&m.hostname, 63))).collect();
        let Some(machine) = named.pop() else {
            let message = format!(
                "site {} has no machine with MACs {:?}, serial number {:?} or system UUID {:?}; enlist it there, or correct \
                 the record of machine {}",
                self.site, spec.mac_addresses, spec.serial_number, spec.system_uuid, target.machine_id
            );
            return Err(ProviderError::refused(FailureClass::NeedsOperator, message));
        };
        if !named.is_empty() {
            let message = format!(
                "site {} has {} machines that may be machine {}: {}; delete those that are none there, or correct the record",
                self.site,
                ids.len(),
                target.machine_id,
                clean(&ids.join(", "), 200)
            );
            return Err(ProviderError::because(Reason::WrongMachine, FailureClass::Conflict, message));
        }
        match another_machine(spec, &machine.serial, &machine.hardware_uuid) {
            Some(why) => {
                let at = format!("{} at site {}", machine.system_id, self.site);
                Err(ProviderError::wrong_machine(format!("{at}: {why}")))
            }
            None => Ok(machine),
        }
    }

    async fn by_serial_or_uuid(
        &self,
        maas: &dyn Maas,
        target: &Target,
        age: Duration,
    ) -> ProviderResult<Vec<MaasMachine>> {
        let spec = &target.spec;
        let mut index = self.index.lock().await;
        if index.as_ref().is_none_or(|(read, _)| read.elapsed() >= age) {
            let read = Instant::now();
            let all = maas.machines(&Which::All).await?;
            let known = |m: MaasMachine| Known { system_id: m.system_id, serial: m.serial, uuid: m.hardware_uuid };
            *index = Some((read, all.into_iter().map(known).collect()));
        }
        let fits = |known: &&Known| confirms(spec, &known.serial, &known.uuid);
        let all = index.as_ref().map(|(_, all)| all.as_slice()).unwrap_or_default();
        let ids: Vec<String> = all.iter().filter(fits).map(|known| known.system_id.clone()).collect();
        drop(index);
        // as they are now
        maas.machines(&Which::Ids(ids)).await
    }
}
