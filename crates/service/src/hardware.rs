//! One machine's management controller, for people. Reads are answered within bounds. What changes a machine is
//! refused while a run holds it, holds it against runs and others meanwhile, goes to no other machine than the one that
//! is named, is on record before it begins (see `act`), and the machine is looked at soon after.
//!
//! A freeze stops automation, not people: as with `set_phase`, nothing here asks for it.

use crate::act::{Acted, Asked, HardwareChange, Outcome, answer, done};
use crate::machines::{find, no_active_run, not_held, required};
use crate::{Call, Service};
use domain::credential::{CredentialKind, names};
use domain::hardware::{
    Bios, BootOverride, ConsoleInfo, ControllerTask, Description, EventLogEntry, PowerAction, Sensor,
};
use domain::identity::another_machine;
use domain::limits;
use domain::machine::{Machine, MachineSpec, Phase, check_text};
use domain::plan::BootMode;
use domain::{Error, MachineId, Reason};
use futures::future::BoxFuture;
use provider::{Bmc, By, Discovered, Management, Provider, ProviderError, ProviderResult, Target};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use store::{Caller, credential, hold, machine as machines};

/// Entries of a controller's log, unless the caller says how many.
const EVENTS: usize = 100;
const EVENTS_MAX: usize = 1000;
/// What an act may take beyond its own bounds: the database, a busy server.
const HOLD_MARGIN: Duration = Duration::from_secs(15);
/// BIOS attributes in one request.
const ATTRIBUTES_MAX: usize = 256;

#[derive(Clone, Debug, Default)]
pub struct SetBoot {
    /// Empty: an override is taken away.
    pub mode: String,
    pub persistent: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Discover {
    pub bmc_endpoint: String,
    pub credentials_ref: String,
    pub provider: String,
}

impl Outcome for Discovered {
    const REPEATABLE: bool = true;
}

/// Whether a run that holds the machine is in the way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    Refuses,
    /// It changes nothing that a run could meet.
    DoesNotMatter,
}

impl Held {
    pub(crate) fn allows(self, machine: &Machine) -> Result<(), Error> {
        match self {
            Held::Refuses => no_active_run(machine),
            Held::DoesNotMatter => Ok(()),
        }
    }
}

/// A retired machine's address may be anybody's by now: nobody is sent its credentials.
pub(crate) fn not_retired(machine: &Machine) -> Result<(), Error> {
    match machine.phase {
        Phase::Retired => Err(Error::new(
            Reason::MachineRetired,
            format!("machine {} is RETIRED and is not talked to any more; register it anew if it is back", machine.id),
        )),
        Phase::FactoryReady
        | Phase::Ready
        | Phase::Provisioning
        | Phase::InService
        | Phase::Maintenance
        | Phase::Rma => Ok(()),
    }
}

fn controller_of(machine: &Machine) -> String {
    format!("the management controller of {}", machine.id)
}

fn managed<'a>(provider: &'a dyn Provider, machine: &Machine) -> Result<&'a dyn Management, Error> {
    let name = machine.spec.provider_name(&machine.labels);
    let lacks = || ProviderError::capability_missing(&format!("provider {name:?}"), "work on one machine's controller");
    provider.management().ok_or_else(|| lacks().into())
}

/// A place to fetch something from, which will stand in the audit.
fn checked_url(field: &str, url: &str) -> Result<String, Error> {
    let url = required(field, url)?;
    check_text(field, &url, limits::COMMENT_MAX)?;
    let Some((_, rest)) = url.split_once("://").filter(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty()) else {
        return Err(Error::field(field, format!("{url:?} is not a URL like https://host/image.iso")));
    };
    if rest.split('/').next().is_some_and(|authority| authority.contains('@')) {
        return Err(Error::field(field, "has a user or password in it, which would stand in logs; leave it out"));
    }
    Ok(url)
}

/// Without what may be a signature.
fn without_query(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or(url)
}

impl Service {
    pub async fn inspect_machine(&self, call: &Arc<Call>, id: &str) -> Result<Description, Error> {
        self.ask(call, id, self.act_within(), |bmc| bmc.describe()).await
    }

    pub async fn console_info(&self, call: &Arc<Call>, id: &str) -> Result<Vec<ConsoleInfo>, Error> {
        self.ask(call, id, self.look_within(), |bmc| bmc.console()).await
    }

    pub async fn hardware_events(&self, call: &Arc<Call>, id: &str, limit: i32) -> Result<Vec<EventLogEntry>, Error> {
        let limit = match usize::try_from(limit) {
            Ok(0) => EVENTS,
            Ok(limit) if limit <= EVENTS_MAX => limit,
            Ok(_) | Err(_) => return Err(Error::field("limit", format!("use 0 to {EVENTS_MAX}"))),
        };
        let mut events = self.ask(call, id, self.act_within(), move |bmc| bmc.event_log(limit)).await?;
        events.truncate(limit);
        Ok(events)
    }

    pub async fn sensors(&self, call: &Arc<Call>, id: &str) -> Result<Vec<Sensor>, Error> {
        self.ask(call, id, self.act_within(), |bmc| bmc.sensors()).await
    }

    pub async fn media(&self, call: &Arc<Call>, id: &str) -> Result<Option<String>, Error> {
        self.ask(call, id, self.look_within(), |bmc| bmc.media()).await
    }

    pub async fn bios(&self, call: &Arc<Call>, id: &str) -> Result<Bios, Error> {
        self.ask(call, id, self.look_within(), |bmc| bmc.bios()).await
    }

    pub async fn hardware_task(&self, call: &Arc<Call>, id: &str, task: &str) -> Result<ControllerTask, Error> {
        let task = required("task", task)?;
        self.ask(call, id, self.look_within(), move |bmc| Box::pin(async move { bmc.task(&task).await })).await
    }

    pub async fn set_power(
        &self,
        call: &Arc<Call>,
        id: &str,
        action: &str,
        reason: &str,
    ) -> Result<HardwareChange, Error> {
        let action = PowerAction::parse("action", action)?;
        let asked = Asked::new(format!("power {action}"), reason)?;
        self.instruct(call, id, asked, Held::Refuses, move |bmc| {
            Box::pin(async move { bmc.power(action).await.map(Acted::from) })
        })
        .await
    }

    pub async fn set_boot(
        &self,
        call: &Arc<Call>,
        id: &str,
        boot: SetBoot,
        reason: &str,
    ) -> Result<HardwareChange, Error> {
        let wanted = match boot.mode.as_str() {
            "" if boot.persistent => return Err(Error::field("persistent", "needs a mode")),
            "" => None,
            mode => Some(BootOverride { mode: BootMode::parse("mode", mode)?, persistent: boot.persistent }),
        };
        let what = match wanted {
            None => "boot as the BIOS decides".to_owned(),
            Some(BootOverride { mode, persistent: false }) => format!("boot {mode} once"),
            Some(BootOverride { mode, persistent: true }) => format!("boot {mode} from now on"),
        };
        self.instruct(call, id, Asked::new(what, reason)?, Held::Refuses, move |bmc| {
            Box::pin(async move { bmc.set_boot(wanted).await.map(Acted::from) })
        })
        .await
    }

    /// Also while a run is active: to find the machine is harmless, and then most wanted.
    pub async fn identify_machine(&self, call: &Arc<Call>, id: &str, on: bool) -> Result<HardwareChange, Error> {
        let asked = Asked::new(if on { "identify on" } else { "identify off" }, "")?;
        self.instruct(call, id, asked, Held::DoesNotMatter, move |bmc| {
            Box::pin(async move { bmc.identify(on).await.map(Acted::from) })
        })
        .await
    }

    pub async fn insert_media(
        &self,
        call: &Arc<Call>,
        id: &str,
        url: &str,
        reason: &str,
    ) -> Result<HardwareChange, Error> {
        let url = checked_url("url", url)?;
        let asked = Asked::new(format!("insert media {}", without_query(&url)), reason)?;
        self.instruct(call, id, asked, Held::Refuses, move |bmc| {
            Box::pin(async move { bmc.insert_media(&url).await.map(Acted::from) })
        })
        .await
    }

    pub async fn eject_media(&self, call: &Arc<Call>, id: &str) -> Result<HardwareChange, Error> {
        self.instruct(call, id, Asked::new("eject media", "")?, Held::Refuses, |bmc| {
            Box::pin(async move { bmc.eject_media().await.map(Acted::from) })
        })
        .await
    }

    pub async fn set_bios(
        &self,
        call: &Arc<Call>,
        id: &str,
        attributes: BTreeMap<String, String>,
        reason: &str,
    ) -> Result<HardwareChange, Error> {
        if attributes.is_empty() || attributes.len() > ATTRIBUTES_MAX {
            return Err(Error::field("attributes", format!("give 1 to {ATTRIBUTES_MAX} of them")));
        }
        for (name, value) in &attributes {
            required("attributes", name)?;
            check_text("attributes", value, limits::COMMENT_MAX)?;
        }
        // values may be passwords: what is remembered of the request is keyed, as with credentials
        if call.idempotency_key.is_some() {
            let mut request = Vec::new();
            for part in [id, reason].into_iter().chain(attributes.iter().flat_map(|(k, v)| [k.as_str(), v.as_str()])) {
                request.extend_from_slice(&part.len().to_le_bytes());
                request.extend_from_slice(part.as_bytes());
            }
            call.asks(&self.vault().key().await?.veil(&request));
        }
        let names: Vec<&str> = attributes.keys().map(String::as_str).collect();
        let asked = Asked::new(format!("set BIOS {}", names.join(", ")), reason)?;
        self.instruct(call, id, asked, Held::Refuses, move |bmc| {
            Box::pin(async move { bmc.set_bios(&attributes).await.map(Acted::from) })
        })
        .await
    }

    pub async fn update_firmware(
        &self,
        call: &Arc<Call>,
        id: &str,
        image_url: &str,
        targets: Vec<String>,
        reason: &str,
    ) -> Result<HardwareChange, Error> {
        let url = checked_url("image_url", image_url)?;
        for name in &targets {
            required("targets", name)?;
        }
        let asked = Asked::new(format!("update firmware from {}", without_query(&url)), reason)?;
        self.instruct(call, id, asked, Held::Refuses, move |bmc| {
            Box::pin(async move {
                let task = bmc.update_firmware(&url, &targets).await?;
                Ok(Acted { ack: provider::Ack::Accepted, task })
            })
        })
        .await
    }

    pub async fn rotate_bmc_password(&self, call: &Arc<Call>, id: &str, reason: &str) -> Result<HardwareChange, Error> {
        let asked = Asked::new("rotate the controller's password", reason)?;
        self.has_its_own_password(&self.talked_to(call, id).await?).await?;
        self.manage(call, id, asked, |management, target| {
            Box::pin(async move { management.rotate_password(target).await.map(Acted::from) })
        })
        .await
    }

    /// A password that several controllers take cannot be changed on one of them alone.
    async fn has_its_own_password(&self, machine: &Machine) -> Result<(), Error> {
        let named: Vec<String> = names(&machine.spec.credentials_ref).map(str::to_owned).collect();
        let shared = self.store().read(move |tx| {
            let uses = credential::uses(tx)?;
            for name in &named {
                let there = tx.point(&credential::by_name(name))?;
                let machines = uses.get(name).copied().unwrap_or(0);
                if machines > 1 && there.is_some_and(|there| there.record.kind == CredentialKind::Bmc) {
                    return Ok(Some((name.clone(), machines)));
                }
            }
            Ok(None)
        });
        match shared.await? {
            None => Ok(()),
            Some((name, machines)) => Err(Error::new(
                Reason::CredentialInUse,
                format!(
                    "credential {name} is that of {machines} machines, and the others would be locked out; give {} one of its own first",
                    machine.id
                ),
            )),
        }
    }

    /// No identity is asked for: what answers there is not trusted before this.
    pub async fn repin_machine(&self, call: &Arc<Call>, id: &str, reason: &str) -> Result<HardwareChange, Error> {
        let asked = Asked::new("forget the pinned certificate and host key", reason)?;
        self.manage(call, id, asked, |management, target| {
            Box::pin(async move { management.repin(target).await.map(Acted::from) })
        })
        .await
    }

    /// What stands at an endpoint, and the machine that this would be.
    pub async fn discover_hardware(&self, call: &Arc<Call>, discover: Discover) -> Result<Discovered, Error> {
        let spec = MachineSpec {
            bmc_endpoint: required("bmc_endpoint", &discover.bmc_endpoint)?,
            credentials_ref: discover.credentials_ref,
            provider: discover.provider,
            ..MachineSpec::default()
        };
        let mut spec = spec.normalized()?;
        let what = "discovery of hardware";
        let (name, provider) = self.inner.providers.choose(&spec.provider, what, |p| p.management().is_some())?;
        spec.provider = name;
        let (service, entity) = (self.clone(), spec.bmc_endpoint.clone());
        self.act(
            call,
            &entity,
            Asked::new(what, "")?,
            |_| Ok(()),
            move |()| async move {
                let lacks = || ProviderError::capability_missing(&format!("provider {:?}", spec.provider), what);
                let management = provider.management().ok_or_else(lacks)?;
                let place = format!("the management controller at {}", spec.bmc_endpoint);
                let mut found = answer(&place, service.act_within(), management.discover(&spec)).await?;
                found.spec = found.spec.normalized()?;
                Ok(found)
            },
        )
        .await
    }

    /// The machine, if it is there and still is talked to.
    async fn talked_to(&self, call: &Arc<Call>, id: &str) -> Result<Machine, Error> {
        let machine = self.get_machine(call, id).await?;
        not_retired(&machine)?;
        Ok(machine)
    }

    /// Asks a machine's controller something that changes nothing.
    async fn ask<T>(
        &self,
        call: &Arc<Call>,
        id: &str,
        within: Duration,
        question: impl for<'a> FnOnce(&'a dyn Bmc) -> BoxFuture<'a, ProviderResult<T>>,
    ) -> Result<T, Error> {
        let machine = self.talked_to(call, id).await?;
        let provider = self.inner.providers.get(machine.spec.provider_name(&machine.labels))?;
        let (management, target) = (managed(provider.as_ref(), &machine)?, Target::of(&machine));
        answer(&controller_of(&machine), within, async {
            let (bmc, _) = management.bmc(&target).await?;
            question(bmc.as_ref()).await
        })
        .await
    }

    /// Tells a machine's controller to change something, once it is sure that it is this machine's.
    async fn instruct(
        &self,
        call: &Arc<Call>,
        id: &str,
        asked: Asked,
        held: Held,
        order: impl for<'a> FnOnce(&'a dyn Bmc) -> BoxFuture<'a, ProviderResult<Acted>> + Send + 'static,
    ) -> Result<HardwareChange, Error> {
        let (service, what, by) = (self.clone(), asked.what.clone(), By::Person(call.by.name.clone()));
        self.on_machine(call, id, asked, held, move |machine, hold| async move {
            let provider = service.inner.providers.get(machine.spec.provider_name(&machine.labels))?;
            let (management, target) = (managed(provider.as_ref(), &machine)?, Target::of(&machine).on_behalf_of(by));
            let bmc = answer(&controller_of(&machine), service.look_within(), async {
                // whatever a provider forgets
                let (bmc, state) = management.bmc(&target).await?;
                match another_machine(&machine.spec, &state.serial_number, &state.system_uuid) {
                    Some(problem) => Err(ProviderError::wrong_machine(format!("{}: {problem}", bmc.name()))),
                    None => Ok(bmc),
                }
            })
            .await?;
            // that took its time
            service.still_held(&machine.id, hold.as_deref()).await?;
            done(&format!("{what} of {}", machine.id), service.act_within(), order(bmc.as_ref())).await
        })
        .await
    }

    /// The same for what the provider does with the controller as such.
    async fn manage(
        &self,
        call: &Arc<Call>,
        id: &str,
        asked: Asked,
        order: impl for<'a> FnOnce(&'a dyn Management, &'a Target) -> BoxFuture<'a, ProviderResult<Acted>> + Send + 'static,
    ) -> Result<HardwareChange, Error> {
        let (service, what, by) = (self.clone(), asked.what.clone(), By::Person(call.by.name.clone()));
        self.on_machine(call, id, asked, Held::Refuses, move |machine, _| async move {
            let provider = service.inner.providers.get(machine.spec.provider_name(&machine.labels))?;
            let (management, target) = (managed(provider.as_ref(), &machine)?, Target::of(&machine).on_behalf_of(by));
            done(&format!("{what} of {}", machine.id), service.act_within(), order(management, &target)).await
        })
        .await
    }

    /// An act on a machine that is there, is talked to and is free; it is looked at soon after. `work` is given the
    /// machine, and the hold that it has on it.
    pub(crate) async fn on_machine<W>(
        &self,
        call: &Arc<Call>,
        id: &str,
        asked: Asked,
        held: Held,
        work: impl FnOnce(Machine, Option<String>) -> W + Send + 'static,
    ) -> Result<HardwareChange, Error>
    where
        W: Future<Output = Result<Acted, Error>> + Send,
    {
        let what = asked.what.clone();
        let acted = self.free_machine(call, id, asked, held, work).await?;
        Ok(HardwareChange { machine_id: id.to_owned(), what, acted })
    }

    /// No run begins on the machine, and nobody else does anything to it, until the work has ended.
    pub(crate) async fn free_machine<T: Outcome, W>(
        &self,
        call: &Arc<Call>,
        id: &str,
        asked: Asked,
        held: Held,
        work: impl FnOnce(Machine, Option<String>) -> W + Send + 'static,
    ) -> Result<T, Error>
    where
        W: Future<Output = Result<T, Error>> + Send,
    {
        let id = MachineId::from_text(required("machine_id", id)?);
        let (by, key, entity, service) = (call.clone(), id.clone(), id.to_string(), self.clone());
        let act = (held == Held::Refuses).then(|| self.store().ambient().uuid().to_string());
        let (what, lasts) = (asked.what.clone(), self.look_within() + self.act_within() + HOLD_MARGIN);
        let taken = act.clone();
        let judge = move |tx: &mut store::Tx<'_>| {
            if taken.is_some() {
                // before anything is read: a run that begins now waits for us, or we for it
                machines::get_for_update(tx, &key)?;
            }
            let machine = find(tx, &by, &key)?;
            not_retired(&machine)?;
            held.allows(&machine)?;
            if let Some(act) = &taken {
                not_held(&key, hold::of(tx, &key)?.as_ref())?;
                hold::take(tx, &key, act, &what, &by.by.name, lasts)?;
            }
            Ok(machine)
        };
        self.act(call, &entity, asked, judge, move |machine| async move {
            let result = work(machine, act.clone()).await;
            if let Some(act) = act {
                service.let_go(&id, act).await;
            }
            // whatever became of it
            service.store().signals().look_at(&id);
            result
        })
        .await
    }

    async fn let_go(&self, id: &MachineId, act: String) {
        let key = id.clone();
        let released =
            self.store().write(&Caller::new("system"), id.as_str(), move |tx| hold::release(tx, &key, &act)).await;
        if let Err(e) = released {
            tracing::info!(error = %e, machine = id.as_str(), "a hold was not given up; it ends by itself");
        }
    }

    /// A server that was stopped for longer than its hold lasts must not go on as if nothing had happened.
    async fn still_held(&self, id: &MachineId, act: Option<&str>) -> Result<(), Error> {
        let Some(act) = act else { return Ok(()) };
        let key = id.clone();
        let hold = self.store().read(move |tx| hold::of(tx, &key)).await?;
        if hold.as_ref().is_some_and(|hold| hold.act == act) {
            return Ok(());
        }
        not_held(id, hold.as_ref())?;
        Err(Error::new(
            Reason::MachineHeld,
            format!("the hold on machine {id} ended before anything was done; nothing was done, try again"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_hold_no_password_and_are_told_without_their_query() {
        assert_eq!(checked_url("url", "https://h/a.iso").as_deref(), Ok("https://h/a.iso"));
        assert_eq!(checked_url("url", "https://h/a@b.iso?sig=x").as_deref(), Ok("https://h/a@b.iso?sig=x"));
        assert_eq!(without_query("https://h/a@b.iso?sig=x"), "https://h/a@b.iso");
        for bad in ["", "a.iso", "://h/a", "http://", "https://u:p@h/a.iso"] {
            assert_eq!(checked_url("url", bad).map_err(|e| e.reason), Err(Reason::InvalidField), "{bad}");
        }
        let told = checked_url("url", "https://u:secret@h/a.iso").expect_err("a password");
        assert!(!told.message.contains("secret"), "{told}");
    }
}
