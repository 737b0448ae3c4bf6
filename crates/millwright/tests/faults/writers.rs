//! Clients that write and read without pause, and count what they are answered: apart for every stretch of time
//! between two faults, and only calls that lay wholly within one.

use crate::ledger::{Entry, Fact, NOTE, connect};
use crate::process::until;
use proto::baremetal::v1::machine_service_client::MachineServiceClient;
use proto::baremetal::v1::{GetMachineRequest, Machine, MachineSpec, RegisterMachineRequest, UpdateMachineRequest};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::server::Door;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Between two calls of one writer.
const PAUSE: Duration = Duration::from_millis(5);

/// What the calls of one stretch were answered.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    pub written: u64,
    pub read: u64,
    /// By code and reason.
    pub refused_writes: BTreeMap<(String, String), u64>,
    pub refused_reads: BTreeMap<(String, String), u64>,
}

impl Answers {
    pub fn refused(&self) -> u64 {
        self.refused_writes.values().sum()
    }

    /// Whoever was refused was told that it is the store, and that it may pass.
    pub fn refusals_are_honest(&self) {
        let allowed = [
            ("Unavailable", "STORE_UNAVAILABLE"),
            ("Unavailable", "OUTCOME_UNKNOWN"),
            ("ResourceExhausted", "STORAGE_FULL"),
        ];
        for (code, reason) in self.refused_writes.keys().chain(self.refused_reads.keys()) {
            assert!(allowed.contains(&(code.as_str(), reason.as_str())), "{code} {reason}: {self:#?}");
        }
    }

    pub fn refused_because(&self, reason: &str) -> u64 {
        self.refused_writes.iter().filter(|((_, found), _)| found == reason).map(|(_, count)| count).sum()
    }
}

#[derive(Default)]
pub struct Tally {
    stretch: AtomicU64,
    answers: Mutex<BTreeMap<u64, Answers>>,
    pub acknowledged: Mutex<Vec<Entry>>,
}

impl Tally {
    /// Begins a new stretch and answers which.
    pub fn begin(&self) -> u64 {
        self.stretch.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub fn of(&self, stretch: u64) -> Answers {
        self.answers.lock().expect("no panic").get(&stretch).cloned().unwrap_or_default()
    }

    pub fn wait_for(&self, stretch: u64, what: &str, enough: impl Fn(&Answers) -> bool) -> Answers {
        until(what, || Some(self.of(stretch)).filter(&enough))
    }

    fn note(&self, begun: u64, change: impl FnOnce(&mut Answers)) {
        if self.stretch.load(Ordering::SeqCst) == begun {
            change(self.answers.lock().expect("no panic").entry(begun).or_default());
        }
    }
}

fn told(status: &Status) -> (String, String) {
    let reason = status.get_details_error_info().map(|info| info.reason).unwrap_or_default();
    (format!("{:?}", status.code()), reason)
}

/// Writers on machines of their own, until they are stopped.
pub struct Writers {
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Writers {
    pub fn start(runtime: &tokio::runtime::Runtime, url: &str, admin: &str, count: usize, tally: &Arc<Tally>) -> Self {
        let tasks = (0..count).map(|n| {
            let (url, admin, tally) = (url.to_owned(), admin.to_owned(), tally.clone());
            runtime.spawn(async move { write(connect(&url, &admin).await, format!("w-{n}"), &tally).await })
        });
        Self { tasks: tasks.collect() }
    }

    /// Ends them; none may have ended by itself.
    pub fn stop(self) {
        for task in &self.tasks {
            assert!(!task.is_finished(), "a writer has ended by itself");
            task.abort();
        }
    }
}

async fn write(door: Door, id: String, tally: &Tally) {
    let mut machines = MachineServiceClient::new(door);
    let spec = MachineSpec { provider: "sim".to_owned(), ..MachineSpec::default() };
    let machine = Machine { machine_id: id.clone(), spec: Some(spec), ..Machine::default() };
    match machines.register_machine(RegisterMachineRequest { machine: Some(machine) }).await {
        Ok(_) => {}
        Err(status) if status.code() == Code::AlreadyExists => {}
        Err(status) => panic!("registering {id}: {status}"),
    }
    for n in 0u64.. {
        let note = format!("{n}");
        let begun = tally.stretch.load(Ordering::SeqCst);
        let labels = [(NOTE.to_owned(), note.clone())].into();
        let request = UpdateMachineRequest {
            machine: Some(Machine { machine_id: id.clone(), labels, ..Machine::default() }),
            update_mask: Some(prost_types::FieldMask { paths: vec![format!("labels.{NOTE}")] }),
        };
        match machines.update_machine(request).await {
            Ok(machine) => {
                let fact = Fact::Machine { id: id.clone(), version: machine.get_ref().version, note };
                tally.acknowledged.lock().expect("no panic").push(Entry { at: 0, fact });
                tally.note(begun, |answers| answers.written += 1);
            }
            Err(status) => {
                tally.note(begun, |answers| *answers.refused_writes.entry(told(&status)).or_default() += 1);
            }
        }
        let begun = tally.stretch.load(Ordering::SeqCst);
        match machines.get_machine(GetMachineRequest { machine_id: id.clone() }).await {
            Ok(_) => tally.note(begun, |answers| answers.read += 1),
            Err(status) => {
                tally.note(begun, |answers| *answers.refused_reads.entry(told(&status)).or_default() += 1);
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
