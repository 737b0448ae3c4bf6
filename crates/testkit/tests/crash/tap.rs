//! Counts the journal entries and provider calls of one life of the engine, and strikes where the script says.

use crate::model::Stage;
use crate::script::{Fault, Life, Moment, What};
use engine::{Engine, JournalObserver};
use provider::{Operation, ProviderError, ProviderResult};
use sim::SimFleet;
use std::future::{Future, pending};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Something that happened in a life, where a fault may strike another time.
#[derive(Clone, Debug)]
pub struct Seen {
    pub moment: Moment,
    /// For people: `entry 5 (stage_done repave)`, `call 7 (power.reset, reboot)`.
    pub name: String,
    /// The step it is about; `None` before the first.
    pub stage: Option<usize>,
    /// A call that changes something, as opposed to one that looks.
    pub acts: bool,
    pub method: &'static str,
}

/// A fault that struck.
#[derive(Clone, Debug)]
pub struct Struck {
    pub fault: Fault,
    pub seen: Seen,
    /// Effects on the machine by then.
    pub effects: usize,
}

/// Asks for a cancel, and hears when it is durable.
pub type Ask = tokio::sync::oneshot::Sender<()>;

pub struct Tap {
    faults: Vec<Fault>,
    stages: &'static [Stage],
    machine: String,
    sim: Arc<SimFleet>,
    asks: mpsc::UnboundedSender<Ask>,
    engine: OnceLock<Engine>,
    pub crashed: CancellationToken,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    /// Steps entered, in earlier lives too.
    entered: usize,
    entries: usize,
    calls: usize,
    seen: Vec<Seen>,
    struck: Vec<Struck>,
    refusing: Option<&'static str>,
}

impl Tap {
    pub fn new(
        life: &Life,
        stages: &'static [Stage],
        machine: &str,
        sim: Arc<SimFleet>,
        entered: usize,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<Ask>) {
        let (asks, asked) = mpsc::unbounded_channel();
        let tap = Self {
            faults: life.faults.clone(),
            stages,
            machine: machine.to_owned(),
            sim,
            asks,
            engine: OnceLock::new(),
            crashed: CancellationToken::new(),
            log: Mutex::new(Log { entered, ..Log::default() }),
        };
        (Arc::new(tap), asked)
    }

    pub fn watch(&self, engine: &Engine) {
        assert!(self.engine.set(engine.clone()).is_ok(), "a tap is for one life");
    }

    pub fn observer(self: &Arc<Self>) -> JournalObserver {
        let tap = self.clone();
        Arc::new(move |_, entry| tap.entry(entry))
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.log().seen.clone()
    }

    pub fn struck(&self) -> Vec<Struck> {
        self.log().struck.clone()
    }

    pub fn entered(&self) -> usize {
        self.log().entered
    }

    /// Effects on this run's machine, in order.
    pub fn effects(&self) -> usize {
        let all = self.sim.effects().expect("the effect journal reads");
        all.iter().filter(|e| e.machine == self.machine).count()
    }

    fn crash(&self) {
        self.engine.get().expect("an engine").kill();
        self.crashed.cancel();
    }

    fn strike(&self, seen: &Seen) -> Option<What> {
        let fault = self.faults.iter().find(|f| f.at == seen.moment).copied()?;
        let struck = Struck { fault, seen: seen.clone(), effects: self.effects() };
        self.log().struck.push(struck);
        Some(fault.what)
    }

    fn name_of(&self, stage: Option<usize>) -> &'static str {
        stage.and_then(|s| self.stages.get(s)).map_or("start", |s| s.name)
    }

    fn entry(&self, entry: &str) {
        let seen = {
            let mut log = self.log();
            log.entries += 1;
            log.entered += usize::from(entry == "stage_entered");
            let stage = log.entered.checked_sub(1);
            let name = format!("entry {} ({entry} {})", log.entries, self.name_of(stage));
            let seen = Seen { moment: Moment::Entry(log.entries), name, stage, acts: false, method: "" };
            log.seen.push(seen.clone());
            seen
        };
        match self.strike(&seen) {
            None => {}
            Some(What::Crash) => self.crash(),
            Some(other) => panic!("{other} makes no sense at a journal entry"),
        }
    }

    fn called(&self, method: &'static str, op: Option<&Operation>) -> (Seen, bool) {
        let mut log = self.log();
        log.calls += 1;
        let stage = match op {
            Some(op) => self.stages.iter().position(|s| s.name == op.stage),
            None => log.entered.checked_sub(1),
        };
        let name = format!("call {} ({method}, {})", log.calls, self.name_of(stage));
        let seen = Seen { moment: Moment::Call(log.calls), name, stage, acts: op.is_some(), method };
        log.seen.push(seen.clone());
        let refused = log.refusing == Some(method);
        (seen, refused)
    }

    /// Every call of every capability goes through here; one that changes something has an operation.
    pub async fn pass<T, F>(
        &self,
        method: &'static str,
        op: Option<&Operation>,
        call: impl Fn() -> F,
    ) -> ProviderResult<T>
    where
        F: Future<Output = ProviderResult<T>>,
    {
        let (seen, refused) = self.called(method, op);
        if refused {
            return Err(ProviderError::transient("injected: refused as before"));
        }
        match self.strike(&seen) {
            None => call().await,
            Some(What::CrashBefore) => {
                self.crash();
                pending().await
            }
            Some(What::Crash) => {
                drop(call().await);
                self.crash();
                pending().await
            }
            Some(What::LoseAnswer) => {
                drop(call().await);
                Err(ProviderError::unknown("injected: the answer was lost"))
            }
            Some(What::NeverAnswer) => {
                drop(call().await);
                pending().await
            }
            Some(What::Twice) => {
                drop(call().await);
                call().await
            }
            Some(What::Refuse(class)) => Err(ProviderError::refused(class, "injected: refused")),
            Some(What::RefuseFromNowOn) => {
                self.log().refusing = Some(method);
                Err(ProviderError::transient("injected: refused"))
            }
            Some(What::CancelBefore) => {
                self.ask().await;
                call().await
            }
            Some(What::CancelAfter) => {
                let answer = call().await;
                self.ask().await;
                answer
            }
        }
    }

    async fn ask(&self) {
        let (ask, durable) = tokio::sync::oneshot::channel();
        self.asks.send(ask).expect("somebody listens");
        drop(durable.await);
    }
}
