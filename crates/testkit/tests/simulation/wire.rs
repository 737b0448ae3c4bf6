//! The wire between a process and the devices: calls are refused, lost on their way or on the way back,
//! late, or stuck. What was sent is carried out, whatever becomes of the sender; never later than the
//! longest call.

use crate::link::Link;
use async_trait::async_trait;
use domain::plan::{BootMode, RebootMode};
use futures::future::BoxFuture;
use provider::{
    Ack, BootControl, ClusterControl, Command, Drain, Exec, ExecProgress, ImageControl, Inspect, Inspection,
    Membership, NetworkControl, Operation, PowerControl, Provider, ProviderError, ProviderResult, RmaControl, Target,
};
use sim::SimFleet;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What a call may take on its way; together with the slowest device well below the longest call.
const LATE_MAX_MS: u64 = 1_000;
const POLL_WHILE_STUCK: Duration = Duration::from_secs(1);

pub struct Wire {
    sim: Arc<SimFleet>,
    link: Arc<Link>,
    /// Looks are answered with what was seen some time ago. Only for observers: a stage believes a look.
    stale: Option<Mutex<BTreeMap<String, Inspection>>>,
}

impl Wire {
    pub fn of_engine(sim: Arc<SimFleet>, link: Arc<Link>) -> Arc<Self> {
        Arc::new(Self { sim, link, stale: None })
    }

    pub fn of_observer(sim: Arc<SimFleet>, link: Arc<Link>) -> Arc<Self> {
        Arc::new(Self { sim, link, stale: Some(Mutex::default()) })
    }

    async fn until_faults_end(&self) {
        while self.link.nature.rages() {
            tokio::time::sleep(POLL_WHILE_STUCK).await;
        }
    }

    async fn act(&self, call: BoxFuture<'static, ProviderResult<Ack>>) -> ProviderResult<Ack> {
        let nature = &self.link.nature;
        self.link.pass().await;
        let (mut late, mut answer_lost) = (Duration::ZERO, false);
        if nature.device_fails() {
            match nature.below(5) {
                0 => {
                    nature.count("device: refused");
                    return Err(ProviderError::transient("simulated: busy"));
                }
                1 => {
                    nature.count("device: request lost");
                    return Err(ProviderError::unknown("simulated: no route"));
                }
                2 => {
                    nature.count("device: answer lost");
                    answer_lost = true;
                }
                3 => {
                    nature.count("device: late");
                    late = nature.millis(1, LATE_MAX_MS);
                }
                _ => {
                    nature.count("device: stuck");
                    self.until_faults_end().await;
                    return Err(ProviderError::unknown("simulated: stuck"));
                }
            }
        }
        // on its way: nobody can take it back
        let landing = tokio::spawn(async move {
            tokio::time::sleep(late).await;
            call.await
        });
        let answer = landing.await.unwrap_or_else(|_| Err(ProviderError::unknown("simulated: died")));
        self.link.pass().await;
        if answer_lost { Err(ProviderError::unknown("simulated: the answer was lost")) } else { answer }
    }

    async fn look<T>(&self, call: impl Future<Output = ProviderResult<T>>) -> ProviderResult<T> {
        let nature = &self.link.nature;
        self.link.pass().await;
        if nature.device_fails() {
            match nature.below(4) {
                0 => {
                    nature.count("device: look stuck");
                    self.until_faults_end().await;
                }
                1 => tokio::time::sleep(nature.millis(1, 2_000)).await,
                _ => {
                    nature.count("device: look failed");
                    return Err(ProviderError::transient("simulated: no answer to a look"));
                }
            }
        }
        let seen = call.await;
        self.link.pass().await;
        seen
    }
}

impl Provider for Wire {
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
    fn exec(&self) -> Option<&dyn Exec> {
        Some(self)
    }
    fn cluster(&self) -> Option<&dyn ClusterControl> {
        Some(self)
    }
    fn network(&self) -> Option<&dyn NetworkControl> {
        Some(self)
    }
    fn rma(&self) -> Option<&dyn RmaControl> {
        Some(self)
    }
}

/// An act on owned copies of its arguments, since it may outlive its caller.
macro_rules! act {
    ($self:ident, $target:ident, $op:ident, |$sim:ident, $t:ident, $o:ident| $call:expr) => {{
        let ($sim, $t, $o) = ($self.sim.clone(), $target.clone(), $op.clone());
        $self.act(Box::pin(async move { $call.await })).await
    }};
}

#[async_trait]
impl Inspect for Wire {
    async fn inspect(&self, target: &Target) -> ProviderResult<Inspection> {
        let seen = self.look(Inspect::inspect(self.sim.as_ref(), target)).await?;
        let Some(stale) = &self.stale else { return Ok(seen) };
        let id = target.machine_id.to_string();
        let before = stale.lock().unwrap_or_else(PoisonError::into_inner).insert(id, seen.clone());
        let nature = &self.link.nature;
        match before {
            Some(before) if nature.rages() && nature.device_fails() => {
                nature.count("device: stale look");
                Ok(before)
            }
            Some(_) | None => Ok(seen),
        }
    }
}

#[async_trait]
impl PowerControl for Wire {
    async fn reset(&self, target: &Target, mode: RebootMode, op: &Operation) -> ProviderResult<Ack> {
        act!(self, target, op, |sim, t, o| sim.reset(&t, mode, &o))
    }

    async fn power_off(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        act!(self, target, op, |sim, t, o| sim.power_off(&t, &o))
    }
}

#[async_trait]
impl BootControl for Wire {
    async fn set_boot(&self, target: &Target, mode: BootMode, persistent: bool, op: &Operation) -> ProviderResult<Ack> {
        act!(self, target, op, |sim, t, o| sim.set_boot(&t, mode, persistent, &o))
    }

    async fn clear_boot(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        act!(self, target, op, |sim, t, o| sim.clear_boot(&t, &o))
    }
}

#[async_trait]
impl ImageControl for Wire {
    async fn install(&self, target: &Target, image: &str, user_data_ref: &str, op: &Operation) -> ProviderResult<Ack> {
        let (image, user_data) = (image.to_owned(), user_data_ref.to_owned());
        act!(self, target, op, |sim, t, o| sim.install(&t, &image, &user_data, &o))
    }

    async fn abort_install(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        act!(self, target, op, |sim, t, o| sim.abort_install(&t, &o))
    }
}

#[async_trait]
impl Exec for Wire {
    async fn start(&self, target: &Target, command: &Command, op: &Operation) -> ProviderResult<Ack> {
        let command = command.clone();
        act!(self, target, op, |sim, t, o| sim.start(&t, &command, &o))
    }

    async fn poll(&self, target: &Target, op: &Operation, offset: u64) -> ProviderResult<ExecProgress> {
        self.look(self.sim.poll(target, op, offset)).await
    }

    async fn kill(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        act!(self, target, op, |sim, t, o| sim.kill(&t, &o))
    }
}

#[async_trait]
impl ClusterControl for Wire {
    async fn join(&self, target: &Target, cluster_ref: &str, op: &Operation) -> ProviderResult<Ack> {
        let cluster = cluster_ref.to_owned();
        act!(self, target, op, |sim, t, o| sim.join(&t, &cluster, &o))
    }

    async fn membership(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Membership> {
        self.look(self.sim.membership(target, cluster_ref)).await
    }

    async fn drain_state(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Drain> {
        self.look(self.sim.drain_state(target, cluster_ref)).await
    }

    async fn watch_membership(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Membership> {
        self.look(self.sim.watch_membership(target, cluster_ref)).await
    }

    async fn watch_drain(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Drain> {
        self.look(self.sim.watch_drain(target, cluster_ref)).await
    }
}

#[async_trait]
impl NetworkControl for Wire {
    async fn apply(
        &self,
        target: &Target,
        parameters: &BTreeMap<String, String>,
        op: &Operation,
    ) -> ProviderResult<Ack> {
        let parameters = parameters.clone();
        act!(self, target, op, |sim, t, o| sim.apply(&t, &parameters, &o))
    }

    async fn current(&self, target: &Target) -> ProviderResult<BTreeMap<String, String>> {
        self.look(self.sim.current(target)).await
    }
}

#[async_trait]
impl RmaControl for Wire {
    async fn open_return(&self, target: &Target, reason: &str, op: &Operation) -> ProviderResult<Ack> {
        let reason = reason.to_owned();
        act!(self, target, op, |sim, t, o| sim.open_return(&t, &reason, &o))
    }

    async fn open_return_of(&self, target: &Target) -> ProviderResult<Option<String>> {
        self.look(self.sim.open_return_of(target)).await
    }
}
