//! A controller behind its lane: every call waits its turn, is bounded, and teaches the breaker.

use crate::lane::{For, Lane, Lanes};
use crate::options::Options;
use async_trait::async_trait;
use domain::hardware::{
    Bios, BootOverride, ConsoleInfo, ControllerTask, Description, EventLogEntry, PowerAction, Sensor,
};
use domain::{Reason, Secret};
use provider::{Ack, Bmc, BmcState, ProviderError, ProviderResult};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A controller that is kept, and when it last refused our login: it is not tried again and again, since
/// controllers lock accounts. Another login makes another controller.
#[derive(Clone)]
pub(crate) struct Controller {
    open: Arc<Open>,
    refused: Arc<Mutex<Option<(Instant, ProviderError)>>>,
}

/// A controller, until the last one who uses it is done. Then its session is closed: controllers have few, and some
/// keep one for half an hour that nobody asks by any more.
struct Open {
    bmc: Arc<dyn Bmc>,
    lanes: Arc<Lanes>,
    lane: Arc<Lane>,
    limit: Duration,
}

impl Open {
    /// As any call: in its turn, within the fleet's bound, and not to one that does not answer. What cannot be closed
    /// ends by itself.
    async fn close(bmc: Arc<dyn Bmc>, lanes: Arc<Lanes>, lane: Arc<Lane>, limit: Duration) {
        if bmc.has_session()
            && let Err(e) = lanes.call(&lane, For::Sweep, limit, bmc.close()).await
        {
            tracing::debug!(bmc = bmc.name(), error = %e, "its session is left to end by itself");
        }
        bmc.hang_up();
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.bmc.has_session() {
            return;
        }
        // without a runtime there is nobody left to do it
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(Self::close(self.bmc.clone(), self.lanes.clone(), self.lane.clone(), self.limit));
        }
    }
}

/// How long a login that was refused is not tried again.
const LOGIN_PAUSE: Duration = Duration::from_secs(300);

impl Controller {
    pub fn new(bmc: Arc<dyn Bmc>, lanes: &Arc<Lanes>, address: &str, options: &Options) -> Self {
        let (lanes, lane, limit) = (lanes.clone(), lanes.to(address), options.call_timeout);
        Self { open: Arc::new(Open { bmc, lanes, lane, limit }), refused: Arc::default() }
    }

    /// Closes its session now.
    pub async fn close(&self) {
        let Open { bmc, lanes, lane, limit } = &*self.open;
        Open::close(bmc.clone(), lanes.clone(), lane.clone(), *limit).await;
    }

    fn may_log_in(&self) -> ProviderResult<()> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        match refused.as_ref().filter(|(at, _)| at.elapsed() < LOGIN_PAUSE) {
            Some((_, no)) => Err(no.clone()),
            None => Ok(()),
        }
    }

    fn heard<T>(&self, answer: &ProviderResult<T>) {
        let no = answer.as_ref().err().filter(|e| e.reason() == Reason::LoginRefused);
        if let Some(no) = no {
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), no.clone()));
        }
    }
}

pub(crate) struct Guarded {
    pub controller: Controller,
    pub whom: For,
    pub call_timeout: Duration,
    /// Of a walk over everything a controller has.
    pub walk_timeout: Duration,
}

impl Guarded {
    pub fn new(controller: Controller, whom: For, options: &Options) -> Self {
        Self { controller, whom, call_timeout: options.call_timeout, walk_timeout: options.walk_timeout }
    }

    async fn call<T>(&self, call: impl Future<Output = ProviderResult<T>>) -> ProviderResult<T> {
        self.within(self.call_timeout, call).await
    }

    async fn walk<T>(&self, call: impl Future<Output = ProviderResult<T>>) -> ProviderResult<T> {
        self.within(self.walk_timeout, call).await
    }

    async fn within<T>(&self, limit: Duration, call: impl Future<Output = ProviderResult<T>>) -> ProviderResult<T> {
        self.controller.may_log_in()?;
        let Open { lanes, lane, .. } = &*self.controller.open;
        let answer = lanes.call(lane, self.whom, limit, call).await;
        self.controller.heard(&answer);
        answer
    }
}

#[async_trait]
impl Bmc for Guarded {
    fn name(&self) -> &str {
        self.controller.open.bmc.name()
    }
    fn hang_up(&self) {
        self.controller.open.bmc.hang_up();
    }
    async fn state(&self) -> ProviderResult<BmcState> {
        let state = self.call(self.controller.open.bmc.state()).await;
        if self.whom == For::Sweep {
            // it comes again in half a minute, and after it thousands of connections would lie idle: more than the
            // files a process may have open. The session stays: it is one word in memory, and to log in and out at
            // every sweep is three questions instead of one, and two lines in each controller's log
            self.hang_up();
        }
        state
    }
    async fn describe(&self) -> ProviderResult<Description> {
        self.walk(self.controller.open.bmc.describe()).await
    }
    async fn power(&self, action: PowerAction) -> ProviderResult<Ack> {
        self.call(self.controller.open.bmc.power(action)).await
    }
    async fn set_boot(&self, boot: Option<BootOverride>) -> ProviderResult<Ack> {
        self.call(self.controller.open.bmc.set_boot(boot)).await
    }
    async fn media(&self) -> ProviderResult<Option<String>> {
        self.call(self.controller.open.bmc.media()).await
    }
    async fn insert_media(&self, url: &str) -> ProviderResult<Ack> {
        self.call(self.controller.open.bmc.insert_media(url)).await
    }
    async fn eject_media(&self) -> ProviderResult<Ack> {
        self.call(self.controller.open.bmc.eject_media()).await
    }
    async fn bios(&self) -> ProviderResult<Bios> {
        self.call(self.controller.open.bmc.bios()).await
    }
    async fn set_bios(&self, attributes: &BTreeMap<String, String>) -> ProviderResult<Ack> {
        self.call(self.controller.open.bmc.set_bios(attributes)).await
    }
    async fn update_firmware(&self, image_url: &str, targets: &[String]) -> ProviderResult<String> {
        self.call(self.controller.open.bmc.update_firmware(image_url, targets)).await
    }
    async fn task(&self, task: &str) -> ProviderResult<ControllerTask> {
        self.call(self.controller.open.bmc.task(task)).await
    }
    async fn event_log(&self, limit: usize) -> ProviderResult<Vec<EventLogEntry>> {
        self.walk(self.controller.open.bmc.event_log(limit)).await
    }
    async fn sensors(&self) -> ProviderResult<Vec<Sensor>> {
        self.walk(self.controller.open.bmc.sensors()).await
    }
    async fn identify(&self, on: bool) -> ProviderResult<Ack> {
        self.call(self.controller.open.bmc.identify(on)).await
    }
    async fn set_password(&self, username: &str, password: &Secret) -> ProviderResult<Ack> {
        self.call(self.controller.open.bmc.set_password(username, password)).await
    }
    async fn console(&self) -> ProviderResult<Vec<ConsoleInfo>> {
        self.call(self.controller.open.bmc.console()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Lets nobody in, and counts who tries.
    struct Closed(AtomicUsize);

    #[async_trait]
    impl Bmc for Closed {
        fn name(&self) -> &str {
            "the BMC"
        }
        async fn state(&self) -> ProviderResult<BmcState> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Err(ProviderError::login_refused("the BMC", "rack"))
        }
        async fn describe(&self) -> ProviderResult<Description> {
            Err(self.lacks("a description"))
        }
        async fn power(&self, _: PowerAction) -> ProviderResult<Ack> {
            Err(self.lacks("power"))
        }
        async fn set_boot(&self, _: Option<BootOverride>) -> ProviderResult<Ack> {
            Err(self.lacks("boot"))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_login_that_was_refused_is_not_tried_again_and_again() {
        let (options, closed) = (Options::default(), Arc::new(Closed(AtomicUsize::new(0))));
        let lanes = Arc::new(Lanes::new(&options, 1));
        let controller = Controller::new(closed.clone(), &lanes, "bmc-1", &options);
        for tries in [1, 1, 1] {
            let guarded = Guarded::new(controller.clone(), For::Sweep, &options);
            assert_eq!(guarded.state().await.map_err(|e| e.reason()), Err(Reason::LoginRefused));
            assert_eq!(closed.0.load(Ordering::SeqCst), tries);
        }
        tokio::time::advance(LOGIN_PAUSE).await;
        let guarded = Guarded::new(controller, For::Work, &options);
        assert!(guarded.state().await.is_err());
        assert_eq!(closed.0.load(Ordering::SeqCst), 2, "after the pause once more");
    }
}
