//! Clients: they start, cancel and end runs, move machines, change what is wrong with them, and put the
//! brake on. Each asks again, through whichever server, until it is told yes or no, or loses patience; what
//! it was told is kept in the ledger, against which the database is checked in the end.

use crate::nature::Nature;
use crate::world::World;
use domain::machine::{Labels, Phase};
use domain::{Code, Error};
use futures::future::BoxFuture;
use service::{Call, MachineUpdate, Service, StartRun};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A server that does not answer for so long is left for another.
const PATIENCE: Duration = Duration::from_secs(8);
/// Asked so often, every client has an answer: nothing rages for ever.
const TRIES_MAX: u32 = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Yes, with the id of what came of it.
    Yes(String),
    No,
    /// The client left before it knew.
    Nothing,
}

/// One request for a run.
#[derive(Clone, Debug)]
pub struct Start {
    pub request: StartRun,
    pub told: Told,
}

/// What all clients were told.
#[derive(Default)]
pub struct Ledger {
    pub starts: Vec<Start>,
    /// Other changes: the request's id, and what was told.
    pub changes: Vec<(String, Told)>,
    runs: Vec<String>,
    requests: u64,
}

pub struct Clients {
    world: Arc<World>,
    machines: Vec<String>,
    pub ledger: Mutex<Ledger>,
}

/// Steps whose faults a run takes; `verify` never lies, since a stage believes its looks.
const SPOILT: &[(&str, &[&str])] = &[
    ("ssh", &["fail:1", "slow:800", "drop:1", "lie:1", "hang:1", "forget:1"]),
    ("reboot", &["fail:2", "drop:1", "lie:1", "forget:1", "slow:1500", "power-loss:1", "hang:1"]),
    ("netboot", &["fail:1", "drop:2", "lie:1", "slow:1200", "power-loss:1", "wrong-machine"]),
    ("repave", &["fail:1", "drop:1", "slow:9000", "power-loss:1", "lie:1", "forget:1"]),
    ("join", &["fail:1", "drop:1", "slow:2000", "lie:1"]),
    ("verify", &["fail:1", "slow:700", "drop:1"]),
    ("net", &["fail:1", "drop:1", "lie:1", "forget:1"]),
    ("rma", &["fail:1", "drop:1", "lie:1"]),
    ("inspect", &["hang", "fail", "slow:2000", "wrong-machine", "fail:3"]),
];

/// What is asked for, beside the built-in plans of the types.
pub const PLANS: &[&str] = &["quick-repave", "quick-join", "quick-command", "quick-reboot", "quick-net"];
const TYPES: &[&str] = &["REPAVE", "REBOOT", "RMA", "NET_RECONFIG", "UPGRADE"];

impl Clients {
    pub fn new(world: Arc<World>, machines: Vec<String>) -> Arc<Self> {
        Arc::new(Self { world, machines, ledger: Mutex::default() })
    }

    fn nature(&self) -> &Nature {
        &self.world.nature
    }

    fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fresh(&self, what: &str) -> String {
        let mut ledger = self.ledger();
        ledger.requests += 1;
        format!("{what}-{}", ledger.requests)
    }

    /// One client, as long as the faults rage; what it has begun to ask it asks to the end.
    pub async fn act(self: Arc<Self>) {
        while self.nature().rages() {
            tokio::time::sleep(self.nature().millis(50, 4_000)).await;
            match self.nature().below(100) {
                0..40 => self.start_run().await,
                40..48 => self.replay().await,
                48..60 => self.cancel().await,
                60..64 => self.terminate().await,
                64..72 => self.set_phase().await,
                72..88 => self.spoil().await,
                88..91 => self.brake().await,
                _ => self.read().await,
            }
        }
    }

    /// Asks until it is answered with yes or no. `None`: lost patience.
    pub async fn insist<T>(
        &self,
        what: &str,
        stubborn: bool,
        ask: impl Fn(Service) -> BoxFuture<'static, Result<T, Error>>,
    ) -> Option<Result<T, Error>> {
        for tries in 0..TRIES_MAX {
            if tries > 0 {
                if !stubborn && self.nature().chance(80) {
                    return None;
                }
                self.nature().count("client: asked again");
                tokio::time::sleep(self.nature().millis(100, 3_000)).await;
            }
            let Some(service) = self.world.any_service() else { continue };
            match tokio::time::timeout(PATIENCE, ask(service)).await {
                Err(_) => self.nature().count("client: gave up waiting"),
                Ok(Ok(answer)) => {
                    self.nature().count("client: answered");
                    return Some(Ok(answer));
                }
                Ok(Err(e)) => match e.code() {
                    Code::Unavailable | Code::Aborted | Code::ResourceExhausted => {}
                    Code::Internal => {
                        self.nature().wrong(format!("{what}: {e}"));
                        return Some(Err(e));
                    }
                    _ => {
                        self.nature().count("client: refused");
                        return Some(Err(e));
                    }
                },
            }
        }
        self.nature().wrong(format!("{what}: no answer after {TRIES_MAX} tries"));
        None
    }

    async fn change<T: 'static>(
        &self,
        what: &'static str,
        about: &str,
        ask: impl Fn(Service, Arc<Call>) -> BoxFuture<'static, Result<T, Error>>,
    ) -> Option<Result<T, Error>> {
        let request = self.fresh(what);
        let asked = AtomicU32::new(0);
        let answer = self.insist(&request, false, |service| {
            asked.fetch_add(1, Ordering::Relaxed);
            ask(service, call(what, &request))
        });
        let answer = answer.await;
        let told = match &answer {
            Some(Ok(_)) => Told::Yes(String::new()),
            Some(Err(_)) if asked.load(Ordering::Relaxed) == 1 => Told::No,
            // an earlier asking may still lie with a server that stands still, and be done when it goes on
            Some(Err(_)) | None => Told::Nothing,
        };
        let said = match &answer {
            Some(Err(e)) => format!("no: {}", e.reason.as_str()),
            _ => format!("{told:?}"),
        };
        self.nature().note(format!("client: {request} about {about}: {said}"));
        self.ledger().changes.push((request, told));
        answer
    }

    async fn start_run(&self) {
        let machine = self.nature().pick(&self.machines).clone();
        let mut request = StartRun { request_id: self.fresh("run"), machine_id: machine, ..StartRun::default() };
        // those have long steps, and what a device forgets is waited for to their end
        if self.nature().chance(850) {
            request.plan_id = (*self.nature().pick(PLANS)).to_owned();
        } else {
            request.run_type = (*self.nature().pick(TYPES)).to_owned();
        }
        if request.run_type == "NET_RECONFIG" || request.plan_id == "quick-net" {
            request.parameters.insert("mtu".into(), self.nature().between(1_500, 1_504).to_string());
        }
        self.ask_for(request).await;
    }

    async fn ask_for(&self, request: StartRun) {
        let asked = request.clone();
        let name = format!("{} on {}", request.request_id, request.machine_id);
        let answer = self
            .insist(&name, false, move |service| {
                let request = asked.clone();
                Box::pin(async move { service.start_run(&Call::system(), request).await })
            })
            .await;
        let told = match answer {
            Some(Ok(view)) => Told::Yes(view.run.id.to_string()),
            Some(Err(_)) => Told::No,
            None => Told::Nothing,
        };
        self.nature().note(format!("client: {name} ({}{}): {told:?}", request.run_type, request.plan_id));
        let mut ledger = self.ledger();
        if let Told::Yes(run) = &told {
            ledger.runs.push(run.clone());
        }
        ledger.starts.push(Start { request, told });
    }

    /// An old request once more: the answer must be the one it had, if it had any.
    async fn replay(&self) {
        let old = {
            let ledger = self.ledger();
            if ledger.starts.is_empty() {
                return;
            }
            self.nature().pick(&ledger.starts).clone()
        };
        self.nature().count("client: replayed");
        self.ask_for(old.request).await;
    }

    fn some_run(&self) -> Option<String> {
        let ledger = self.ledger();
        let newest = ledger.runs.iter().rev().take(6).cloned().collect::<Vec<_>>();
        drop(ledger);
        (!newest.is_empty()).then(|| self.nature().pick(&newest).clone())
    }

    async fn cancel(&self) {
        let Some(run) = self.some_run() else { return };
        let by_execution = self.nature().chance(250);
        let about = run.clone();
        self.change("cancel", &about, move |service, call| {
            let run = run.clone();
            Box::pin(async move {
                if by_execution {
                    service.cancel_execution(&call, &run, "a client").await.map(drop)
                } else {
                    service.cancel_run(&call, &run).await.map(drop)
                }
            })
        })
        .await;
    }

    async fn terminate(&self) {
        let Some(run) = self.some_run() else { return };
        let about = run.clone();
        let done = self
            .change("terminate", &about, move |service, call| {
                let run = run.clone();
                Box::pin(async move { service.terminate_execution(&call, &run, "a client").await })
            })
            .await;
        if let Some(Ok(_)) = done {
            self.nature().count("execution: terminated");
        }
    }

    async fn set_phase(&self) {
        let machine = self.nature().pick(&self.machines).clone();
        let to = *self.nature().pick(&[Phase::Ready, Phase::Maintenance, Phase::InService, Phase::Rma]);
        let about = format!("{machine} to {to}");
        self.change("phase", &about, move |service, call| {
            let machine = machine.clone();
            Box::pin(async move { service.set_phase(&call, &machine, to, "a client").await.map(drop) })
        })
        .await;
    }

    /// Something is wrong with a machine from now on, or no longer.
    async fn spoil(&self) {
        let machine = self.nature().pick(&self.machines).clone();
        let (step, rules) = self.nature().pick(SPOILT);
        let rule = self.nature().chance(700).then(|| (*self.nature().pick(rules)).to_owned());
        if rule.is_some() {
            self.nature().count("device: fault rule");
        }
        let key = format!("sim.fault.{step}");
        let about = format!("{machine}: {key}={}", rule.as_deref().unwrap_or(""));
        let labels: Labels = rule.into_iter().map(|rule| (key.clone(), rule)).collect();
        let mask = Some(vec![format!("labels.{key}")]);
        let update = MachineUpdate { id: machine, labels, mask, ..MachineUpdate::default() };
        self.change("labels", &about, move |service, call| {
            let update = update.clone();
            Box::pin(async move { service.update_machine(&call, update).await.map(drop) })
        })
        .await;
    }

    async fn brake(&self) {
        self.nature().count("brake: frozen");
        let on = |service: Service, call: Arc<Call>| -> BoxFuture<'static, Result<(), Error>> {
            Box::pin(async move { service.freeze(&call, "a client").await.map(drop) })
        };
        self.change("freeze", "everything", on).await;
        tokio::time::sleep(self.nature().millis(500, 15_000)).await;
        let off = |service: Service, call: Arc<Call>| -> BoxFuture<'static, Result<(), Error>> {
            Box::pin(async move { service.unfreeze(&call).await.map(drop) })
        };
        self.change("unfreeze", "everything", off).await;
    }

    async fn read(&self) {
        let (machine, run) = (self.nature().pick(&self.machines).clone(), self.some_run());
        let explained = self
            .insist("explain", false, move |service| {
                let id = run.clone().unwrap_or_else(|| machine.clone());
                Box::pin(async move { service.explain(&Call::system(), &id).await })
            })
            .await;
        if let Some(Err(e)) = explained {
            self.nature().wrong(format!("explain was refused: {e}"));
        }
    }

    /// After the faults: what is wrong with the machines goes, the brake is released.
    pub async fn repair(&self, labels: &BTreeMap<String, Labels>) {
        for (id, labels) in labels {
            let mask = Some(vec!["labels".to_owned()]);
            let update = MachineUpdate { id: id.clone(), labels: labels.clone(), mask, ..MachineUpdate::default() };
            let repaired = self
                .insist("repair", true, move |service| {
                    let update = update.clone();
                    Box::pin(async move { service.update_machine(&Call::system(), update).await })
                })
                .await;
            if !matches!(repaired, Some(Ok(_))) {
                self.nature().wrong(format!("machine {id} could not be repaired: {repaired:?}"));
            }
        }
        let released = self
            .insist("unfreeze", true, |service| Box::pin(async move { service.unfreeze(&Call::system()).await }))
            .await;
        if !matches!(released, Some(Ok(_))) {
            self.nature().wrong("the brake could not be released");
        }
    }
}

/// A call that can be repeated: one key, one request id.
fn call(what: &'static str, request: &str) -> Arc<Call> {
    let call = Call::new(Call::system().by.clone(), what, request.to_owned(), Some(request.to_owned()));
    call.asks(request.as_bytes());
    Arc::new(call)
}
