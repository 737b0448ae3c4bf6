//! A world: one database and one fleet, and a few server processes that come and go on them.

use crate::judge::Ends;
use crate::link::{Life, Link};
use crate::nature::Nature;
use crate::wire::Wire;
use domain::Error;
use domain::stage::mix;
use engine::{Engine, EngineOptions, JournalObserver};
use provider::Providers;
use reconcile::{Reconciler, ReconcilerOptions};
use service::{CallerLimits, Service};
use sim::SimFleet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::{Ambient as _, Options, Store};
use testkit::ambient::VirtualAmbient;
use workflow::RunWorkflow;

pub const LEASE: Duration = Duration::from_secs(20);
/// Longer than anything takes on the wire and in the slowest device that is used here.
pub const CALL: Duration = Duration::from_secs(5);
pub const SWEEP: Duration = Duration::from_secs(10);

pub struct Process {
    pub service: Service,
    pub link: Arc<Link>,
    engine: Engine,
    reconciler: Mutex<Option<Reconciler>>,
    clock: Arc<VirtualAmbient>,
    /// When its clock began to run.
    born: Duration,
}

struct Slot {
    lives: u64,
    /// Only one process of an instance is ever alive.
    starting: bool,
    process: Option<Arc<Process>>,
}

pub struct World {
    pub seed: u64,
    pub nature: Arc<Nature>,
    /// Past all faults, for those who judge.
    pub store: Store,
    pub sim: Arc<SimFleet>,
    ends: Arc<Ends>,
    slots: Mutex<Vec<Slot>>,
}

impl World {
    pub fn new(seed: u64, ends: Arc<Ends>) -> Result<Self, Error> {
        let nature = Arc::new(Nature::new(seed));
        let clock = VirtualAmbient::new(seed);
        let store = Store::open(&Options::Memory, clock.clone())?;
        let sim = Arc::new(SimFleet::in_memory(seed, Arc::new(move || clock.now())));
        let count = nature.between(1, 3);
        let slots = (0..count).map(|_| Slot { lives: 0, starting: false, process: None }).collect();
        Ok(Self { seed, nature, store, sim, ends, slots: Mutex::new(slots) })
    }

    fn slots(&self) -> std::sync::MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn places(&self) -> usize {
        self.slots().len()
    }

    pub fn process(&self, place: usize) -> Option<Arc<Process>> {
        self.slots().get(place).and_then(|s| s.process.clone())
    }

    /// Those that are not dead, with their places.
    pub fn processes(&self) -> Vec<(usize, Arc<Process>)> {
        self.slots().iter().enumerate().filter_map(|(n, s)| s.process.clone().map(|p| (n, p))).collect()
    }

    /// A service that somebody can reach; it may be that of a process that is stopped.
    pub fn any_service(&self) -> Option<Service> {
        let all = self.processes();
        (!all.is_empty()).then(|| self.nature.pick(&all).1.service.clone())
    }

    /// Starts a process where there is none. It may fail, as any start on a bad day.
    pub async fn start(&self, place: usize) {
        let life = {
            let mut slots = self.slots();
            if slots[place].process.is_some() || std::mem::replace(&mut slots[place].starting, true) {
                return;
            }
            slots[place].lives += 1;
            slots[place].lives
        };
        let link = Link::new(self.nature.clone());
        let started = tokio::time::timeout(LEASE, self.launch(place, life, link.clone())).await;
        self.slots()[place].starting = false;
        match started {
            Ok(Ok(process)) => {
                self.nature.note(format!("server-{place}: life {life} has begun"));
                self.slots()[place].process = Some(Arc::new(process));
            }
            Ok(Err(e)) => {
                link.set(Life::Dead);
                self.nature.note(format!("server-{place}: life {life} did not start: {e}"));
            }
            Err(_) => {
                link.set(Life::Dead);
                self.nature.note(format!("server-{place}: life {life} did not start in time"));
            }
        }
    }

    async fn launch(&self, place: usize, life: u64, link: Arc<Link>) -> Result<Process, Error> {
        let clock = VirtualAmbient::new(mix(self.seed ^ ((place as u64) << 32) ^ (life << 40)));
        let born = self.nature.passed();
        let store = self.store.simulated(clock.clone(), link.clone())?;
        let name = format!("server-{place}");
        let providers = |wire: Arc<Wire>| Providers::default().with("sim", wire);
        let of_engine = providers(Wire::of_engine(self.sim.clone(), link.clone()));
        let of_observer = providers(Wire::of_observer(self.sim.clone(), link.clone()));
        let options = EngineOptions { lease: LEASE, call_timeout: CALL, ..EngineOptions::new(name.clone()) };
        let options = EngineOptions { workers: usize::try_from(self.nature.between(2, 16)).unwrap_or(2), ..options };
        let (ends, nature) = (self.ends.clone(), self.nature.clone());
        let observer: JournalObserver = Arc::new(move |id, entry| {
            if entry == "ended" {
                ends.note(id.as_str(), nature.passed());
            }
        });
        let workflow = Arc::new(RunWorkflow::new(of_engine.clone()));
        let engine = Engine::new(store.clone(), options, vec![workflow], Some(observer));
        set_clock(&clock, born, self.nature.between(0, 2_000_000) as i64 - 1_000_000);
        let service = Service::new(store.clone(), engine.clone(), of_engine, CallerLimits::default()).await?;
        if let Err(e) = engine.start().await {
            service.close();
            return Err(e);
        }
        let observe = ReconcilerOptions {
            period: SWEEP,
            timeout: Duration::from_secs(3),
            concurrency: 4,
            stale_after: SWEEP * 4,
            ..ReconcilerOptions::new(name)
        };
        let reconciler = Mutex::new(Some(Reconciler::start(&store, of_observer, observe)));
        Ok(Process { service, link, engine, reconciler, clock, born })
    }

    /// As by SIGKILL: nothing more comes from it, whatever it was about to do.
    pub fn kill(&self, place: usize) {
        let Some(process) = self.slots()[place].process.take() else { return };
        process.link.set(Life::Dead);
        process.engine.kill();
        process.service.close();
        drop(process.reconciler.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.nature.note(format!("server-{place}: killed"));
    }

    /// As by SIGTERM.
    pub async fn hand_over(&self, place: usize) {
        let Some(process) = self.process(place) else { return };
        self.nature.note(format!("server-{place}: hands over"));
        process.service.close();
        let reconciler = process.reconciler.lock().unwrap_or_else(PoisonError::into_inner).take();
        // who stops a server kills it when that takes too long
        let stopping = async {
            if let Some(reconciler) = reconciler {
                reconciler.stop().await;
            }
            process.engine.stop().await;
        };
        let stopped = tokio::time::timeout(LEASE, stopping).await.is_ok();
        self.nature.note(format!("server-{place}: {}", if stopped { "has stopped" } else { "would not stop" }));
        self.kill(place);
    }

    /// All processes of the last seed would otherwise hold on to each other.
    pub fn end(&self) {
        for place in 0..self.places() {
            self.kill(place);
        }
    }
}

impl Process {
    /// Sets how far its wall clock is ahead of the true time.
    pub fn set_clock(&self, micros: i64) {
        set_clock(&self.clock, self.born, micros);
    }
}

fn set_clock(clock: &VirtualAmbient, born: Duration, micros: i64) {
    clock.set_ahead(i64::try_from(born.as_micros()).unwrap_or(0) + micros);
}
