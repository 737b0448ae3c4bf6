//! A fleet with a reconciler, and a provider whose every answer is in the test's hand.

use async_trait::async_trait;
use domain::condition::ConditionType;
use domain::machine::Machine;
use domain::observation::{Lane, Shown};
use engine::Engine;
use provider::{
    Ack, ClusterControl, Drain, Inspect, Inspection, Membership, Operation, PowerState, Provider, ProviderError,
    ProviderResult, Providers, Target,
};
use reconcile::{Reconciler, ReconcilerOptions};
use service::{MachineUpdate, NewMachine, Service};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::sweep::{self, Sweep};
use store::{LogRow, Store};
use testkit::fleet::{Database, Fleet, admin, machine, quick};

pub const PERIOD: Duration = Duration::from_secs(30);

pub struct Lab {
    pub fleet: Fleet,
    pub engine: Engine,
    pub service: Service,
}

impl Lab {
    /// In memory, with an engine that is not started.
    pub async fn new() -> Self {
        let fleet = Fleet::new(Database::Memory, 1);
        let engine = fleet.engine(quick("test"), None);
        let service = fleet.service(&engine).await;
        Self { fleet, engine, service }
    }

    pub async fn register(&self, new: NewMachine) -> Machine {
        self.service.register_machine(&admin(), new).await.expect("registers")
    }

    pub fn observe(&self) -> Reconciler {
        self.fleet.reconciler(ReconcilerOptions::new("test"))
    }

    pub fn observe_with(&self, probe: &Arc<Probe>, options: ReconcilerOptions) -> Reconciler {
        Reconciler::start(&self.fleet.store, probe.providers(), options)
    }

    pub async fn machine(&self, id: &str) -> Machine {
        self.service.get_machine(&admin(), id).await.expect("is there")
    }

    pub async fn shown(&self, id: &str, kind: ConditionType) -> Shown {
        let all = self.machine(id).await.shown_conditions();
        all.into_iter().find(|c| c.kind == kind).expect("every type is shown")
    }

    /// `True Answers`, with a `?` if it is stale.
    pub async fn says(&self, id: &str, kind: ConditionType) -> String {
        let c = self.shown(id, kind).await;
        format!("{} {}{}", if c.status { "True" } else { "False" }, c.reason, if c.stale { "?" } else { "" })
    }

    pub async fn label(&self, id: &str, key: &str, value: Option<&str>) {
        let labels = value.map(|v| (key.to_owned(), v.to_owned())).into_iter().collect();
        let mask = Some(vec![format!("labels.{key}")]);
        let update = MachineUpdate { id: id.to_owned(), labels, mask, ..MachineUpdate::default() };
        self.service.update_machine(&admin(), update).await.expect("updates");
    }

    pub async fn log(&self) -> Vec<LogRow> {
        log(&self.fleet.store).await
    }

    /// How often a condition has flipped.
    pub async fn flips(&self, id: &str, kind: ConditionType) -> Vec<String> {
        let entity = format!("{id}/{}", kind.as_str());
        self.log().await.into_iter().filter(|r| r.entity_id == entity).map(|r| r.to_state).collect()
    }

    pub async fn sweep(&self, lane: Lane) -> Option<Sweep> {
        swept(&self.fleet.store, lane).await
    }
}

pub async fn log(store: &Store) -> Vec<LogRow> {
    store.read(|tx| store::log_after(tx, 0, 1_000_000)).await.expect("reads")
}

pub async fn swept(store: &Store, lane: Lane) -> Option<Sweep> {
    store.read(move |tx| sweep::get(tx, lane)).await.expect("reads")
}

/// Lets virtual time pass.
pub async fn pass(span: Duration) {
    tokio::time::sleep(span).await;
}

/// A machine of the provider `probe`.
pub fn probed(id: &str) -> NewMachine {
    let mut new = machine(id);
    "probe".clone_into(&mut new.spec.provider);
    new
}

/// How a machine of the probe behaves when it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    Answers,
    /// After a while.
    Takes(Duration),
    Hangs,
    Panics,
    /// Its upstream is away.
    Away,
    /// Answers, and its cluster never does.
    ClusterHangs,
}

/// Counts the looks at each machine.
#[derive(Default)]
pub struct Probe {
    manners: Mutex<HashMap<String, Manner>>,
    looks: Mutex<HashMap<String, usize>>,
    asked_cluster: Mutex<usize>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Probe {
    pub fn providers(self: &Arc<Self>) -> Providers {
        Providers::default().with("probe", self.clone())
    }

    pub fn set(&self, id: &str, manner: Manner) {
        lock(&self.manners).insert(id.to_owned(), manner);
    }

    pub fn looks(&self, id: &str) -> usize {
        lock(&self.looks).get(id).copied().unwrap_or(0)
    }

    fn manner(&self, target: &Target) -> Manner {
        lock(&self.manners).get(target.machine_id.as_str()).copied().unwrap_or(Manner::Answers)
    }
}

impl Provider for Probe {
    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
    fn cluster(&self) -> Option<&dyn ClusterControl> {
        Some(self)
    }
}

#[async_trait]
impl Inspect for Probe {
    async fn inspect(&self, target: &Target) -> ProviderResult<Inspection> {
        *lock(&self.looks).entry(target.machine_id.to_string()).or_default() += 1;
        match self.manner(target) {
            Manner::Answers | Manner::ClusterHangs => {}
            Manner::Takes(span) => tokio::time::sleep(span).await,
            Manner::Hangs => std::future::pending().await,
            Manner::Panics => panic!("a provider that panics, as the test wants it"),
            Manner::Away => {
                let class = domain::stage::FailureClass::DependencyDown;
                return Err(ProviderError::refused(class, "the upstream is away"));
            }
        }
        Ok(Inspection {
            serial_number: format!("S-{}", target.machine_id),
            system_uuid: String::new(),
            power: PowerState::On,
            reachable: true,
            host_asked: true,
            boot_id: "1".into(),
            last_reset: String::new(),
            boot_override: None,
            installed: None,
            disk_read: true,
            installing: None,
            install_note: String::new(),
            failed_install: None,
        })
    }
}

#[async_trait]
impl ClusterControl for Probe {
    async fn join(&self, _: &Target, _: &str, _: &Operation) -> ProviderResult<Ack> {
        Ok(Ack::Done)
    }

    /// Says it in other words each time.
    async fn membership(&self, target: &Target, _: &str) -> ProviderResult<Membership> {
        if self.manner(target) == Manner::ClusterHangs {
            std::future::pending::<()>().await;
        }
        let mut asked = lock(&self.asked_cluster);
        *asked += 1;
        Ok(Membership::NotReady(format!("question {asked}")))
    }

    async fn drain_state(&self, _: &Target, _: &str) -> ProviderResult<Drain> {
        Ok(Drain::InUse(format!("{} pods", lock(&self.asked_cluster))))
    }
}
