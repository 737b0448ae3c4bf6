//! The load that is recorded: a first start, machines, runs, plans and tokens, many small changes at once, an
//! orderly stop, a second start, and a kill. Every answer goes into the ledger.

use crate::audit::World;
use crate::ledger::{Entry, Fact, NOTE, connect};
use crate::server::{Home, Launch, Server};
use proto::baremetal::v1::machine_service_client::MachineServiceClient;
use proto::baremetal::v1::plan_service_client::PlanServiceClient;
use proto::baremetal::v1::run_service_client::RunServiceClient;
use proto::baremetal::v1::{
    CancelRunRequest, CreatePlanRequest, ListRunsRequest, Machine, MachineSpec, Plan, RegisterMachineRequest,
    StartRunRequest, UpdateMachineRequest, run,
};
use proto::millwright::v1::event_service_client::EventServiceClient;
use proto::millwright::v1::token_service_client::TokenServiceClient;
use proto::millwright::v1::{CreateTokenRequest, RevokeTokenRequest, WatchEventsRequest};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use testkit::below::{Below, Change, Record, read_trace, trace_length};
use testkit::server::Door;

const MACHINES: usize = 8;
/// Changes of a label by each of the writers, before and after the stop.
const CHANGES: [usize; 2] = [50, 15];
const WRITERS: usize = 3;

/// Everything that is needed to make images and to judge them.
pub struct Recorded {
    _home: Home,
    /// The folder whose disk was watched, and its inode.
    pub root: (PathBuf, u64),
    pub data: PathBuf,
    pub world: PathBuf,
    pub trace: Vec<Record>,
    pub ledger: Vec<Entry>,
}

impl Recorded {
    /// The token that the first start made.
    pub fn admin(&self) -> &str {
        match &self.ledger.first().expect("the first entry").fact {
            Fact::Token(secret) => secret,
            other => panic!("the first entry is {other:?}"),
        }
    }

    /// How often pages of the database itself were synced.
    pub fn checkpoints(&self) -> usize {
        let database = self.data.join("millwright.db");
        let file = self.trace.iter().find_map(|record| match &record.change {
            Change::Made { file, path } if *path == database => Some(*file),
            _ => None,
        });
        let file = file.expect("the database was made");
        self.trace.iter().filter(|record| record.change == Change::Sync { file }).count()
    }
}

/// Where the simulated world is: recorded as well, so that an image comes with the world as it was then. What
/// happened to the machines has happened, whatever became of the disk.
pub fn config(world: &Path) -> String {
    format!("{}\n[providers.sim]\nkind = \"sim\"\njournal = {:?}\n", crate::server::QUICK, world.display().to_string())
}

#[derive(Clone)]
struct Ledger {
    trace: PathBuf,
    entries: Arc<Mutex<Vec<Entry>>>,
}

impl Ledger {
    /// Call when the answer is there.
    fn note(&self, fact: Fact) {
        let at = trace_length(&self.trace);
        self.entries.lock().expect("no panic").push(Entry { at, fact });
    }

    fn last_sequence(&self) -> u64 {
        let sequence = |entry: &Entry| match &entry.fact {
            Fact::Event(event) => event.sequence,
            _ => 0,
        };
        self.entries.lock().expect("no panic").iter().map(sequence).max().unwrap_or(0)
    }
}

pub fn record() -> Recorded {
    let home = Home::new();
    let root = home.path("disk").to_owned();
    std::fs::create_dir_all(&root).expect("a folder");
    let root = root.canonicalize().expect("a folder");
    let below = Below::new(&home.path(""), &root);
    let trace = home.path("trace");
    let world = root.join("world.jsonl");
    let mut launch = home.launch("disk/data").config(&config(&world));
    for (name, value) in below.env(Some(&trace)) {
        launch = launch.env(&name, &value);
    }
    let ledger = Ledger { trace: trace.clone(), entries: Arc::default() };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let server = launch.start();
    let admin = std::fs::read_to_string(&server.token_file).expect("the token").trim().to_owned();
    ledger.note(Fact::Token(admin.clone()));
    let server = first_life(&runtime, server, &admin, &ledger);
    drop(server.terminate().with(0));
    second_life(&runtime, &launch, &admin, &ledger);
    let reset = World(world.clone()).count("reset");
    assert!(reset >= MACHINES / 2, "the runs did something: {reset}");
    let entries = ledger.entries.lock().expect("no panic").clone();
    let inode = std::fs::metadata(&root).expect("there").ino();
    let data = launch.data.clone();
    let records = read_trace(&trace);
    // it has every byte that was written, those of the file with the administrator's token too
    std::fs::remove_file(&trace).expect("is there");
    Recorded { data, world, trace: records, ledger: entries, root: (root, inode), _home: home }
}

fn first_life(runtime: &tokio::runtime::Runtime, server: Server, admin: &str, ledger: &Ledger) -> Server {
    runtime.block_on(async {
        let door = connect(&server.url, admin).await;
        let watcher = tokio::spawn(watch(door.clone(), ledger.clone()));
        for n in 1..=MACHINES {
            register(&door, ledger, n).await;
        }
        let runs = futures::future::join_all((1..=MACHINES / 2).map(|n| start(&door, ledger, n)));
        let changes = futures::future::join_all((0..WRITERS).map(|w| change(&door, ledger, w, CHANGES[0], "first")));
        let (runs, _, ()) = tokio::join!(runs, changes, tokens_and_plans(&door, ledger));
        let canceled = CancelRunRequest { run_id: runs.last().expect("some").clone() };
        // it may have ended by then
        drop(RunServiceClient::new(door.clone()).cancel_run(canceled).await);
        all_ended(&door).await;
        // half of the runs are in flight when the server stops
        futures::future::join_all((MACHINES / 2 + 1..=MACHINES).map(|n| start(&door, ledger, n))).await;
        watcher.abort();
    });
    server
}

fn second_life(runtime: &tokio::runtime::Runtime, launch: &Launch, admin: &str, ledger: &Ledger) {
    let server = launch.start();
    runtime.block_on(async {
        let door = connect(&server.url, admin).await;
        let watcher = tokio::spawn(watch(door.clone(), ledger.clone()));
        futures::future::join_all((0..WRITERS).map(|w| change(&door, ledger, w, CHANGES[1], "second"))).await;
        all_ended(&door).await;
        watcher.abort();
    });
    server.kill();
}

/// What a watcher is told is acknowledged, too.
async fn watch(door: Door, ledger: Ledger) {
    let after = Some(ledger.last_sequence());
    let request = WatchEventsRequest { after, ..WatchEventsRequest::default() };
    let stream = EventServiceClient::new(door).watch_events(request).await;
    let mut stream = stream.expect("a stream").into_inner();
    while let Ok(Some(event)) = stream.message().await {
        ledger.note(Fact::Event(Box::new(event)));
    }
}

fn machine(n: usize, note: &str) -> Machine {
    let labels = [("sim.latency_ms", "40"), (NOTE, note)];
    Machine {
        machine_id: format!("m-{n}"),
        labels: labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        spec: Some(MachineSpec { provider: "sim".to_owned(), ..MachineSpec::default() }),
        ..Machine::default()
    }
}

fn note_machine(ledger: &Ledger, machine: &Machine) {
    let note = machine.labels.get(NOTE).cloned().unwrap_or_default();
    ledger.note(Fact::Machine { id: machine.machine_id.clone(), version: machine.version, note });
}

async fn register(door: &Door, ledger: &Ledger, n: usize) {
    let request = RegisterMachineRequest { machine: Some(machine(n, "new")) };
    let made = MachineServiceClient::new(door.clone()).register_machine(request).await.expect("registered");
    note_machine(ledger, made.get_ref());
}

async fn start(door: &Door, ledger: &Ledger, n: usize) -> String {
    let request = StartRunRequest {
        request_id: format!("start-{n}"),
        machine_id: format!("m-{n}"),
        r#type: "REPAVE".to_owned(),
        ..StartRunRequest::default()
    };
    let run = RunServiceClient::new(door.clone()).start_run(request).await.expect("started").into_inner();
    ledger.note(Fact::Run(run.run_id.clone()));
    run.run_id
}

/// One writer's changes, one after the other.
async fn change(door: &Door, ledger: &Ledger, writer: usize, count: usize, life: &str) {
    for n in 0..count {
        let which = (writer + n * WRITERS) % MACHINES + 1;
        let mut machine = machine(which, &format!("{life}-{writer}-{n}"));
        machine.spec = None;
        let update_mask = Some(prost_types::FieldMask { paths: vec![format!("labels.{NOTE}")] });
        let request = UpdateMachineRequest { machine: Some(machine), update_mask };
        let changed = MachineServiceClient::new(door.clone()).update_machine(request).await.expect("changed");
        note_machine(ledger, changed.get_ref());
    }
}

async fn tokens_and_plans(door: &Door, ledger: &Ledger) {
    let mut tokens = TokenServiceClient::new(door.clone());
    let built_in = PlanServiceClient::new(door.clone()).list_plans(proto::baremetal::v1::ListPlansRequest {}).await;
    let pattern = built_in.expect("plans").into_inner().plans.into_iter().next().expect("a plan");
    for n in 0..4 {
        let request = CreateTokenRequest { name: format!("t-{n}"), role: "viewer".to_owned(), ..Default::default() };
        let made = tokens.create_token(request).await.expect("a token").into_inner();
        let token_id = made.token.expect("a token").token_id;
        if n % 2 == 0 {
            ledger.note(Fact::Token(made.secret));
        } else {
            tokens.revoke_token(RevokeTokenRequest { token_id }).await.expect("revoked");
            ledger.note(Fact::Revoked(made.secret));
        }
        let plan = Plan { plan_id: format!("plan-{n}"), ..pattern.clone() };
        let made = PlanServiceClient::new(door.clone()).create_plan(CreatePlanRequest { plan: Some(plan) }).await;
        ledger.note(Fact::Plan(made.expect("a plan").into_inner().plan_id));
    }
}

/// Waits until every run has ended.
async fn all_ended(door: &Door) {
    let mut client = RunServiceClient::new(door.clone());
    for _ in 0..6000 {
        let request = ListRunsRequest { page_size: 100, ..ListRunsRequest::default() };
        let runs = client.list_runs(request).await.expect("runs").into_inner().runs;
        let ended = |phase| matches!(phase, run::Phase::Succeeded | run::Phase::Failed | run::Phase::Canceled);
        if runs.iter().all(|run| ended(run.phase())) {
            assert!(runs.iter().all(|run| run.phase() != run::Phase::Failed), "a run failed: {runs:#?}");
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("never happened: all runs end");
}
