//! A controller behind its lane: every call waits its turn, is bounded, and teaches the breaker.

use crate::lane::{For, Lane, Lanes};
use crate::options::Options;
use async_trait::async_trait;
use domain::Secret;
use domain::hardware::{
    Bios, BootOverride, ConsoleInfo, ControllerTask, Description, EventLogEntry, PowerAction, Sensor,
};
use provider::{Ack, Bmc, BmcState, ProviderResult};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(crate) struct Guarded {
    pub bmc: Arc<dyn Bmc>,
    pub lanes: Arc<Lanes>,
    pub lane: Arc<Lane>,
    pub whom: For,
    pub call_timeout: Duration,
    /// Of a walk over everything a controller has.
    pub walk_timeout: Duration,
}

impl Guarded {
    pub fn new(bmc: Arc<dyn Bmc>, lanes: &Arc<Lanes>, address: &str, whom: For, options: &Options) -> Self {
        Self {
            bmc,
            lanes: lanes.clone(),
            lane: lanes.to(address),
            whom,
            call_timeout: options.call_timeout,
            walk_timeout: options.walk_timeout,
        }
    }

    async fn call<T>(&self, call: impl Future<Output = ProviderResult<T>>) -> ProviderResult<T> {
        self.lanes.call(&self.lane, self.whom, self.call_timeout, call).await
    }

    async fn walk<T>(&self, call: impl Future<Output = ProviderResult<T>>) -> ProviderResult<T> {
        self.lanes.call(&self.lane, self.whom, self.walk_timeout, call).await
    }
}

#[async_trait]
impl Bmc for Guarded {
    fn name(&self) -> &str {
        self.bmc.name()
    }
    fn hang_up(&self) {
        self.bmc.hang_up();
    }
    async fn state(&self) -> ProviderResult<BmcState> {
        let state = self.call(self.bmc.state()).await;
        if self.whom == For::Sweep {
            // it comes again in half a minute, and after it thousands of connections would lie idle: more than the
            // files a process may have open
            self.hang_up();
        }
        state
    }
    async fn describe(&self) -> ProviderResult<Description> {
        self.walk(self.bmc.describe()).await
    }
    async fn power(&self, action: PowerAction) -> ProviderResult<Ack> {
        self.call(self.bmc.power(action)).await
    }
    async fn set_boot(&self, boot: Option<BootOverride>) -> ProviderResult<Ack> {
        self.call(self.bmc.set_boot(boot)).await
    }
    async fn media(&self) -> ProviderResult<Option<String>> {
        self.call(self.bmc.media()).await
    }
    async fn insert_media(&self, url: &str) -> ProviderResult<Ack> {
        self.call(self.bmc.insert_media(url)).await
    }
    async fn eject_media(&self) -> ProviderResult<Ack> {
        self.call(self.bmc.eject_media()).await
    }
    async fn bios(&self) -> ProviderResult<Bios> {
        self.call(self.bmc.bios()).await
    }
    async fn set_bios(&self, attributes: &BTreeMap<String, String>) -> ProviderResult<Ack> {
        self.call(self.bmc.set_bios(attributes)).await
    }
    async fn update_firmware(&self, image_url: &str, targets: &[String]) -> ProviderResult<String> {
        self.call(self.bmc.update_firmware(image_url, targets)).await
    }
    async fn task(&self, task: &str) -> ProviderResult<ControllerTask> {
        self.call(self.bmc.task(task)).await
    }
    async fn event_log(&self, limit: usize) -> ProviderResult<Vec<EventLogEntry>> {
        self.walk(self.bmc.event_log(limit)).await
    }
    async fn sensors(&self) -> ProviderResult<Vec<Sensor>> {
        self.walk(self.bmc.sensors()).await
    }
    async fn identify(&self, on: bool) -> ProviderResult<Ack> {
        self.call(self.bmc.identify(on)).await
    }
    async fn set_password(&self, username: &str, password: &Secret) -> ProviderResult<Ack> {
        self.call(self.bmc.set_password(username, password)).await
    }
    async fn console(&self) -> ProviderResult<Vec<ConsoleInfo>> {
        self.call(self.bmc.console()).await
    }
}
