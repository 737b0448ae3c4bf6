//! The adapter itself: the `Bmc` trait, one call at a time handed to where it is done.

use crate::client::{Client, Timeouts};
use crate::places::{Known, Seen};
use crate::trust::Trust;
use crate::{account, bios, boot, console, describe, events, firmware, identify, json, media, power, sensors, task};
use async_trait::async_trait;
use domain::credential::BmcLogin;
use domain::endpoint::BmcEndpoint;
use domain::hardware::{
    Bios, BootOverride, ConsoleInfo, ControllerTask, Description, EventLogEntry, PowerAction, Sensor,
};
use domain::{Reason, Secret};
use provider::{Ack, Bmc, BmcState, ProviderError, ProviderResult};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// One system behind one controller. Cheap to keep: a few paths, the token of a session, and for a moment after
/// each call a connection.
pub struct Redfish {
    client: Client,
    known: Known,
    /// The system meant, where the endpoint names one.
    named: String,
}

impl Redfish {
    /// Nothing is asked yet. `trust` is decided: at a first contact the caller pins with
    /// [`certificate_of`](crate::certificate_of) before. `credential_name` is for messages.
    pub fn new(
        endpoint: &BmcEndpoint,
        trust: Trust,
        login: BmcLogin,
        credential_name: &str,
        timeouts: Timeouts,
    ) -> Self {
        let client = Client::new(endpoint, &trust, login, credential_name, timeouts);
        Self { client, known: Known::default(), named: endpoint.system.clone() }
    }

    /// A read of many parts, bounded as a whole.
    async fn within<T>(&self, reading: impl Future<Output = ProviderResult<T>>) -> ProviderResult<T> {
        let bound = self.client.timeouts.describe;
        let late = || ProviderError::unreachable(self.name(), &format!("it does not tell everything within {bound:?}"));
        tokio::time::timeout(bound, reading).await.unwrap_or_else(|_| Err(late()))
    }

    async fn seen(&self) -> ProviderResult<Seen> {
        self.known.system(&self.client, &self.named).await
    }
}

impl fmt::Debug for Redfish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Redfish").field(&self.client.name).finish()
    }
}

/// Whether something that speaks Redfish answers there; nobody needs to log in for that. `false`: it answers
/// otherwise.
pub async fn is_there(endpoint: &BmcEndpoint, trust: Trust) -> ProviderResult<bool> {
    let nobody = BmcLogin { username: String::new(), password: Secret::default() };
    let client = Client::new(endpoint, &trust, nobody, "", Timeouts::default());
    match client.root().await {
        Ok(answer) => {
            let root: Value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
            let says = !json::text(&root, "/RedfishVersion").is_empty()
                || json::text(&root, "/@odata.type").contains("ServiceRoot");
            Ok(answer.status == 200 && says)
        }
        // something else that listens there
        Err(e) if e.reason() == Reason::BadAnswer => Ok(false),
        Err(e) => Err(e),
    }
}

#[async_trait]
impl Bmc for Redfish {
    fn name(&self) -> &str {
        &self.client.name
    }

    fn hang_up(&self) {
        self.client.hang_up();
    }

    fn has_session(&self) -> bool {
        self.client.has_session()
    }

    async fn close(&self) -> ProviderResult<()> {
        self.client.log_out().await
    }

    async fn state(&self) -> ProviderResult<BmcState> {
        let Seen { places, system } = self.seen().await?;
        Ok(BmcState {
            serial_number: json::text(&system, "/SerialNumber"),
            system_uuid: json::text(&system, "/UUID").to_ascii_lowercase(),
            power: power::state(&self.client, &system)?,
            boot: boot::state(&system, places.quirks),
            health: json::health(&system),
            last_reset: json::text(&system, "/LastResetTime"),
        })
    }

    async fn describe(&self) -> ProviderResult<Description> {
        describe::describe(&self.client, &self.seen().await?).await
    }

    async fn power(&self, action: PowerAction) -> ProviderResult<Ack> {
        power::power(&self.client, &self.seen().await?, action).await
    }

    async fn set_boot(&self, boot: Option<BootOverride>) -> ProviderResult<Ack> {
        boot::set(&self.client, &self.known, &self.named, self.seen().await?, boot).await
    }

    async fn media(&self) -> ProviderResult<Option<String>> {
        let seen = self.seen().await?;
        self.within(media::inserted(&self.client, &seen)).await
    }

    async fn insert_media(&self, url: &str) -> ProviderResult<Ack> {
        media::insert(&self.client, &self.seen().await?, url).await
    }

    async fn eject_media(&self) -> ProviderResult<Ack> {
        media::eject(&self.client, &self.seen().await?).await
    }

    async fn bios(&self) -> ProviderResult<Bios> {
        let seen = self.seen().await?;
        self.within(bios::read(&self.client, &seen)).await
    }

    async fn set_bios(&self, attributes: &BTreeMap<String, String>) -> ProviderResult<Ack> {
        bios::set(&self.client, &self.seen().await?, attributes).await
    }

    async fn update_firmware(&self, image_url: &str, targets: &[String]) -> ProviderResult<String> {
        firmware::update(&self.client, &self.seen().await?, image_url, targets).await
    }

    async fn task(&self, task: &str) -> ProviderResult<ControllerTask> {
        task::task(&self.client, task).await
    }

    async fn event_log(&self, limit: usize) -> ProviderResult<Vec<EventLogEntry>> {
        let seen = self.seen().await?;
        self.within(events::newest(&self.client, &seen, limit)).await
    }

    async fn sensors(&self) -> ProviderResult<Vec<Sensor>> {
        let seen = self.seen().await?;
        self.within(sensors::read(&self.client, &seen)).await
    }

    async fn identify(&self, on: bool) -> ProviderResult<Ack> {
        identify::identify(&self.client, &self.seen().await?, on).await
    }

    async fn set_password(&self, username: &str, password: &Secret) -> ProviderResult<Ack> {
        account::set_password(&self.client, &self.seen().await?, username, password).await
    }

    async fn console(&self) -> ProviderResult<Vec<ConsoleInfo>> {
        let seen = self.seen().await?;
        self.within(console::read(&self.client, &seen)).await
    }
}
