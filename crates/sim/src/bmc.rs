//! The management controller of one simulated machine, for people. What it does goes through the same acts and
//! looks as what runs do, so it is in the journal, takes its time and obeys the fault rules.

use crate::act::{CLEAR_BOOT, Manner, PERSON_BMC, PERSON_OFF, RESET, SET_BOOT, UPDATE};
use crate::change::Change;
use crate::fault::{Rule, step};
use crate::fleet::SimFleet;
use crate::identity::{Identity, wrong_machine};
use crate::inventory;
use crate::look::Look;
use crate::machine::Machine;
use async_trait::async_trait;
use domain::hardware::{
    Bios, BootOverride, ConsoleInfo, ControllerTask, Description, EventLogEntry, Health, PowerAction, Sensor,
};
use domain::machine::{Labels, MachineSpec};
use domain::stage::FailureClass;
use domain::{ExecutionId, MachineId, Timestamp};
use provider::{
    Ack, Bmc, BmcState, Discovered, Management, Operation, PowerState, ProviderError, ProviderResult, Target,
};
use std::collections::BTreeMap;

/// What is in force until somebody sets something else.
const BIOS: [(&str, &str); 3] = [("BootMode", "Uefi"), ("Hyperthreading", "Enabled"), ("SecureBoot", "Disabled")];

/// On behalf of a person: no execution is behind it.
pub(crate) fn by_hand(what: &str) -> Operation {
    Operation { execution: ExecutionId::from_text("person"), stage: what.to_owned(), attempt: 0, fence: String::new() }
}

struct SimBmc<'a> {
    fleet: &'a SimFleet,
    target: Target,
    name: String,
}

impl SimBmc<'_> {
    async fn act(&self, what: &str, manner: &Manner, change: Change) -> ProviderResult<Ack> {
        self.fleet.act(&self.target, &by_hand(what), manner, change).await
    }

    /// A look that the rules for looks can spoil, and what it shows.
    async fn see<T>(&self, show: impl FnOnce(&Identity, &Machine) -> T) -> ProviderResult<T> {
        if matches!(self.fleet.look(&self.target, step::INSPECT).await?, Look::No) {
            return Err(ProviderError::unreachable(&self.name, "simulated: no answer"));
        }
        let identity = Identity::of(&self.target);
        self.fleet.visit(&self.target, |visit| Ok(show(&identity, visit.machine()?)))
    }
}

#[async_trait]
impl Bmc for SimBmc<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    async fn state(&self) -> ProviderResult<BmcState> {
        self.see(|identity, machine| BmcState {
            serial_number: identity.serial_number.clone(),
            system_uuid: identity.system_uuid.clone(),
            power: if machine.powered { PowerState::On } else { PowerState::Off },
            boot: inventory::boot_override(machine),
            health: Some(Health::Ok),
            last_reset: machine.boots.to_string(),
        })
        .await
    }

    async fn describe(&self) -> ProviderResult<Description> {
        self.see(|identity, machine| inventory::describe(&self.target, identity, machine)).await
    }

    async fn power(&self, action: PowerAction) -> ProviderResult<Ack> {
        let powered = self.see(|_, machine| machine.powered).await?;
        let reset = Change::Reset { mode: action.as_str().to_owned(), due_micros: 0 };
        match (action, powered) {
            (PowerAction::On, true) | (PowerAction::GracefulOff | PowerAction::ForceOff, false) => Ok(Ack::Done),
            (PowerAction::GracefulOff | PowerAction::ForceOff, true) => {
                self.act("power", &PERSON_OFF, Change::PowerOff {}).await
            }
            (PowerAction::GracefulRestart | PowerAction::ForceRestart, false) => Err(ProviderError::refused(
                FailureClass::Conflict,
                format!("{} is off: there is nothing to restart; use on", self.target.machine_id),
            )),
            (PowerAction::On | PowerAction::Cycle, false)
            | (PowerAction::GracefulRestart | PowerAction::ForceRestart | PowerAction::Cycle, true) => {
                self.act("power", &RESET, reset).await
            }
        }
    }

    async fn set_boot(&self, boot: Option<BootOverride>) -> ProviderResult<Ack> {
        match boot {
            Some(BootOverride { mode, persistent }) => {
                self.act("boot", &SET_BOOT, Change::Netboot { mode, persistent }).await
            }
            None => self.act("boot", &CLEAR_BOOT, Change::ClearNetboot {}).await,
        }
    }

    async fn media(&self) -> ProviderResult<Option<String>> {
        self.see(|_, machine| machine.controller().media.clone()).await
    }

    async fn insert_media(&self, url: &str) -> ProviderResult<Ack> {
        match self.media().await? {
            Some(there) if there == url => Ok(Ack::Done),
            Some(_) | None => self.act("media", &PERSON_BMC, Change::MediaInserted { url: url.to_owned() }).await,
        }
    }

    async fn eject_media(&self) -> ProviderResult<Ack> {
        match self.media().await? {
            None => Ok(Ack::Done),
            Some(_) => self.act("media", &PERSON_BMC, Change::MediaEjected {}).await,
        }
    }

    async fn bios(&self) -> ProviderResult<Bios> {
        self.see(|_, machine| {
            let mut current: BTreeMap<String, String> =
                BIOS.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            current.extend(machine.controller().bios.clone());
            Bios { current, pending: machine.controller().bios_pending.clone() }
        })
        .await
    }

    async fn set_bios(&self, attributes: &BTreeMap<String, String>) -> ProviderResult<Ack> {
        let there = self.bios().await?;
        if let Some(unknown) = attributes.keys().find(|key| !there.current.contains_key(*key)) {
            let known: Vec<&str> = there.current.keys().map(String::as_str).collect();
            return Err(ProviderError::refused(
                FailureClass::InvalidInput,
                format!("{} has no BIOS attribute {unknown:?}; it has {}", self.name, known.join(", ")),
            ));
        }
        self.act("bios", &PERSON_BMC, Change::BiosSet { attributes: attributes.clone() }).await
    }

    async fn update_firmware(&self, image_url: &str, _targets: &[String]) -> ProviderResult<String> {
        let (busy, number) =
            self.see(|_, machine| (machine.controller().updating.is_some(), machine.controller().updates + 1)).await?;
        if busy {
            let message = format!("{} is being updated already", self.target.machine_id);
            return Err(ProviderError::refused(FailureClass::Conflict, message));
        }
        let task = format!("update-{number}");
        let change = Change::UpdateStarted { task: task.clone(), image: image_url.to_owned(), due_micros: 0 };
        match self.act("firmware", &UPDATE, change).await? {
            Ack::Done | Ack::Accepted => Ok(task),
        }
    }

    async fn task(&self, task: &str) -> ProviderResult<ControllerTask> {
        let now = (self.fleet.clock)().micros();
        let state = self.see(|_, machine| {
            let controller = machine.controller();
            if let Some(done) = controller.updated.iter().find(|update| update.task == task) {
                return Some(ControllerTask::Done { message: format!("{} is installed", done.image) });
            }
            let running = controller.updating.as_ref().filter(|update| update.what.task == task)?;
            let whole = (running.due_micros - running.what.begun_micros).max(1);
            let part = (now - running.what.begun_micros).clamp(0, whole) * 100 / whole;
            let message = format!("installing {}", running.what.image);
            Some(ControllerTask::Running { percent: u8::try_from(part).ok(), message })
        });
        state.await?.ok_or_else(|| {
            ProviderError::refused(FailureClass::InvalidInput, format!("{} has no task {task:?}", self.name))
        })
    }

    async fn event_log(&self, limit: usize) -> ProviderResult<Vec<EventLogEntry>> {
        self.see(|_, machine| {
            let entries = machine.controller().log.iter().rev().take(limit);
            let mut log: Vec<EventLogEntry> = entries
                .map(|noted| EventLogEntry {
                    id: noted.number.to_string(),
                    at: Some(Timestamp::from_micros(noted.at_micros)),
                    severity: noted.severity.to_owned(),
                    message: noted.message.clone(),
                })
                .collect();
            if log.len() < limit {
                let message = "The log begins here".to_owned();
                log.push(EventLogEntry { id: "0".to_owned(), at: None, severity: "OK".to_owned(), message });
            }
            log
        })
        .await
    }

    async fn sensors(&self) -> ProviderResult<Vec<Sensor>> {
        self.see(inventory::sensors).await
    }

    async fn identify(&self, on: bool) -> ProviderResult<Ack> {
        if self.see(|_, machine| machine.controller().lamp).await? == on {
            return Ok(Ack::Done);
        }
        self.act("identify", &PERSON_BMC, Change::Lamp { on }).await
    }

    async fn console(&self) -> ProviderResult<Vec<ConsoleInfo>> {
        let id = &self.target.machine_id;
        Ok(vec![ConsoleInfo {
            kind: "serial".to_owned(),
            protocol: "sim".to_owned(),
            connect: format!("sim://{id}/console"),
            note: "a simulated machine has no real console".to_owned(),
        }])
    }
}

#[async_trait]
impl Management for SimFleet {
    async fn bmc(&self, target: &Target) -> ProviderResult<(Box<dyn Bmc + '_>, BmcState)> {
        if Rule::another_machine_shows(&target.labels) {
            return Err(wrong_machine(target));
        }
        let name = format!("the simulated BMC of {}", target.machine_id);
        let bmc = SimBmc { fleet: self, target: target.clone(), name };
        let state = bmc.state().await?;
        Ok((Box::new(bmc), state))
    }

    /// Whatever the endpoint says, a machine stands there, always the same one; none at names under `invalid`.
    async fn discover(&self, spec: &MachineSpec) -> ProviderResult<Discovered> {
        let what = format!("the simulated BMC at {}", spec.bmc_endpoint);
        let host = spec.bmc_endpoint.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        if host.split(':').next().is_some_and(|name| name.ends_with(".invalid")) {
            return Err(ProviderError::unreachable(&what, "simulated: no such name"));
        }
        let identity = Identity::made_of(&spec.bmc_endpoint);
        let id = MachineId::from_text(identity.serial_number.to_ascii_lowercase());
        let target = Target {
            machine_id: id,
            labels: Labels::new(),
            spec: spec.clone(),
            notes: provider::Notes::default(),
            by: provider::By::System,
        };
        let description = inventory::describe(&target, &identity, &Machine::new());
        let mut spec = spec.clone();
        spec.serial_number.clone_from(&identity.serial_number);
        spec.system_uuid.clone_from(&identity.system_uuid);
        spec.mac_addresses = description.nics.iter().map(|nic| nic.mac_address.clone()).collect();
        Ok(Discovered { description, spec })
    }

    async fn rotate_password(&self, target: &Target) -> ProviderResult<Ack> {
        self.act(target, &by_hand("rotate"), &PERSON_BMC, Change::PasswordRotated {}).await
    }

    async fn repin(&self, target: &Target) -> ProviderResult<Ack> {
        self.act(target, &by_hand("repin"), &PERSON_BMC, Change::Repinned {}).await
    }
}
