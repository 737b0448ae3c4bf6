//! A management controller, whatever it speaks. Adapters implement what their protocol has; the rest is
//! refused by name.

use crate::{Ack, PowerState, ProviderError, ProviderResult, Target};
use async_trait::async_trait;
use domain::Secret;
use domain::hardware::{
    Bios, BootOverride, ConsoleInfo, ControllerTask, Description, EventLogEntry, Health, PowerAction, Sensor,
};
use domain::machine::MachineSpec;
use std::collections::BTreeMap;

/// What one cheap read shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BmcState {
    pub serial_number: String,
    pub system_uuid: String,
    pub power: PowerState,
    pub boot: Option<BootOverride>,
    pub health: Option<Health>,
    /// Changes with every reset that the controller knows of; empty: it does not tell.
    pub last_reset: String,
}

/// One system behind one controller. Every call ends in bounded time and is safe to repeat after a look.
#[async_trait]
pub trait Bmc: Send + Sync {
    /// What it is, with its address, for messages: `the BMC at https://10.0.0.1 (Redfish)`.
    fn name(&self) -> &str;

    /// Nobody will ask for a while: what is kept open for the next question is closed.
    fn hang_up(&self) {}

    /// Whether a session of ours is open at the controller itself.
    fn has_session(&self) -> bool {
        false
    }

    /// Ends that session. Whoever asks afterwards opens another.
    async fn close(&self) -> ProviderResult<()> {
        Ok(())
    }

    /// Who it is and how its power and boot stand: what a sweep asks of every machine.
    async fn state(&self) -> ProviderResult<BmcState>;

    /// Everything it tells. Takes as many reads as it has parts.
    async fn describe(&self) -> ProviderResult<Description>;

    /// `Done` if it is already so.
    async fn power(&self, action: PowerAction) -> ProviderResult<Ack>;

    /// Sets the next boot (all boots, when persistent) and reads it back; `None` takes an override away.
    async fn set_boot(&self, boot: Option<BootOverride>) -> ProviderResult<Ack>;

    /// The image in the virtual drive, if one is in.
    async fn media(&self) -> ProviderResult<Option<String>> {
        Err(self.lacks("virtual media"))
    }
    async fn insert_media(&self, _url: &str) -> ProviderResult<Ack> {
        Err(self.lacks("virtual media"))
    }
    async fn eject_media(&self) -> ProviderResult<Ack> {
        Err(self.lacks("virtual media"))
    }

    async fn bios(&self) -> ProviderResult<Bios> {
        Err(self.lacks("BIOS attributes"))
    }
    /// Takes effect with the next boot.
    async fn set_bios(&self, _attributes: &BTreeMap<String, String>) -> ProviderResult<Ack> {
        Err(self.lacks("BIOS attributes"))
    }

    /// Begins an update from an image that the controller fetches; answers with the name of its task.
    async fn update_firmware(&self, _image_url: &str, _targets: &[String]) -> ProviderResult<String> {
        Err(self.lacks("firmware updates"))
    }
    async fn task(&self, _task: &str) -> ProviderResult<ControllerTask> {
        Err(self.lacks("tasks"))
    }

    /// The newest entries of its own event log, newest first.
    async fn event_log(&self, _limit: usize) -> ProviderResult<Vec<EventLogEntry>> {
        Err(self.lacks("an event log"))
    }
    async fn sensors(&self) -> ProviderResult<Vec<Sensor>> {
        Err(self.lacks("sensors"))
    }
    /// Lights the lamp by which a person finds the machine.
    async fn identify(&self, _on: bool) -> ProviderResult<Ack> {
        Err(self.lacks("an identify lamp"))
    }
    /// Sets the password of one of its own accounts.
    async fn set_password(&self, _username: &str, _password: &Secret) -> ProviderResult<Ack> {
        Err(self.lacks("account management"))
    }

    /// How a person gets at the machine's console.
    async fn console(&self) -> ProviderResult<Vec<ConsoleInfo>> {
        Ok(Vec::new())
    }

    fn lacks(&self, what: &str) -> ProviderError {
        ProviderError::capability_missing(self.name(), what)
    }
}

/// Gives people the controller of a machine, behind the same bounds that runs and sweeps have.
#[async_trait]
pub trait Management: Send + Sync {
    /// The controller of this machine, its identity checked, and the state that it was checked by: whoever wants to
    /// be sure of it need not ask again.
    async fn bmc(&self, target: &Target) -> ProviderResult<(Box<dyn Bmc + '_>, BmcState)>;

    /// What stands at an endpoint that no machine is registered with yet.
    async fn discover(&self, spec: &MachineSpec) -> ProviderResult<Discovered>;

    /// Gives the controller's account a new password and keeps it under the same credential. Whatever fails
    /// in the middle, the stored one is the one that works, or both are kept until it is known.
    async fn rotate_password(&self, target: &Target) -> ProviderResult<Ack>;

    /// Forgets which certificate and host key were pinned: the next contact pins what it finds.
    async fn repin(&self, target: &Target) -> ProviderResult<Ack>;
}

/// A machine as its hardware tells it, and the spec that this makes.
#[derive(Clone, Debug, PartialEq)]
pub struct Discovered {
    pub description: Description,
    pub spec: MachineSpec,
}
