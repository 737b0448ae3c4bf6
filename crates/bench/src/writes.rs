//! Durable writes: SetPhase through the API, beside the same statements run by the store with no RPC in front,
//! and that beside a naive pool with one transaction for each connection. Server and store work on copies of
//! one database and take turns.

use crate::Outcome;
use crate::client::{Clients, Slice, Tally, costing, drive};
use crate::ground::{Ground, Kind, id};
use crate::naive;
use crate::options::Options;
use crate::process::{Metrics, Server};
use crate::report::{Figure, Goal, Report, middle, plain};
use domain::MachineId;
use domain::machine::{Phase, SET_PHASE};
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase as WirePhase;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store::audit::Entry;
use store::machine::{self, PhaseChange};
use store::{Caller, Cause, Store, SystemAmbient, Tx, TxResult};

const SECTION: &str = "writes";
const CALLERS: [usize; 2] = [64, 1024];
/// At which the store stands beside the naive pool.
const POOL: usize = 64;

pub async fn run(ground: &Ground, options: &Options, report: &mut Report) -> Outcome<()> {
    let copy = ground.copy("store_alone").await?;
    let server = ground.start().await?;
    let clients = Clients::connect(&server).await?;
    let ambient = Arc::new(SystemAmbient::new());
    // the store in this process is measured as the server measures its own
    let render = api::collect_metrics(store::Ambient::now(ambient.as_ref()))?;
    let own = || Metrics::read(&render());
    let alone = Store::open(&copy, ambient)?;
    let quarter = ground.machines / 4;
    let mut alone_at_64 = Vec::new();
    for (n, callers) in CALLERS.into_iter().enumerate() {
        let part = n * quarter..(n + 1) * quarter;
        let (through_api, in_process) = (Flips::new(callers, part.clone()), Flips::new(callers, part));
        let (mut api, mut store) = (Vec::new(), Vec::new());
        let (mut api_batches, mut store_batches) = (Batches::default(), Batches::default());
        let mut cpu = Vec::new();
        for _ in 0..options.slices() {
            let before = server.metrics()?;
            let slice = set_phase(&server, &clients, &through_api, options.slice()).await?;
            api_batches.add(&before, &server.metrics()?);
            api.push(slice.tally.rate());
            cpu.push(slice.cpu_per_call());
            let before = own();
            store.push(store_alone(&alone, &in_process, options.slice()).await?.rate());
            store_batches.add(&before, &own());
        }
        report.add(Figure {
            section: SECTION,
            database: ground.kind.name(),
            what: format!("SetPhase through the API, {callers} callers"),
            unit: "/s",
            measured: api,
            limit: store.clone(),
            against: format!("the store alone; batches of {}, its own {}", api_batches.mean(), store_batches.mean()),
            goal: Goal::AtLeast(0.5),
        });
        report.note(format!(
            "{}, {callers} callers: {} µs of the server's CPU for each SetPhase; mean batch {} through the API, {} alone",
            ground.kind.name(),
            plain(middle(&cpu)),
            api_batches.mean(),
            store_batches.mean()
        ));
        if callers == POOL {
            alone_at_64 = store;
        }
    }
    server.stop()?;
    tokio::task::spawn_blocking(move || alone.close()).await?;
    let pool = Flips::new(POOL, 2 * quarter..3 * quarter);
    let mut naive = Vec::new();
    for _ in 0..options.slices() {
        naive.push(naive::run(&copy, &pool, options.slice()).await?.rate());
    }
    report.add(Figure {
        section: SECTION,
        database: ground.kind.name(),
        what: format!("the store alone, {POOL} callers"),
        unit: "/s",
        measured: alone_at_64,
        limit: naive,
        against: format!("a pool of {POOL} connections, one transaction each"),
        goal: Goal::AtLeast(match ground.kind {
            Kind::Sqlite => 5.0,
            Kind::Postgres => 1.5,
        }),
    });
    Ok(())
}

/// How many changes went into a commit.
#[derive(Default)]
struct Batches {
    changes: f64,
    commits: f64,
}

impl Batches {
    fn add(&mut self, before: &Metrics, after: &Metrics) {
        let (before, after) = (before.commits(), after.commits());
        self.changes += after.0 - before.0;
        self.commits += after.1 - before.1;
    }

    fn mean(&self) -> String {
        plain(self.changes / self.commits)
    }
}

/// Every caller has machines of its own and moves them to MAINTENANCE, one after the other, then back to
/// READY, and so on: every call changes something, and no two wait for each other.
pub struct Flips {
    part: Range<usize>,
    done: Vec<Arc<AtomicUsize>>,
}

impl Flips {
    pub fn new(callers: usize, part: Range<usize>) -> Self {
        Self { part, done: (0..callers).map(|_| Arc::default()).collect() }
    }

    pub fn callers(&self) -> usize {
        self.done.len()
    }

    /// What a caller does next, again and again.
    pub fn of(&self, caller: usize) -> impl FnMut() -> (String, Phase) + Send + 'static {
        let (callers, first, done) = (self.done.len(), self.part.start, self.done[caller].clone());
        let each = (self.part.len() / callers).max(1);
        move || {
            let n = done.fetch_add(1, Ordering::Relaxed);
            let to = if (n / each).is_multiple_of(2) { Phase::Maintenance } else { Phase::Ready };
            (id(first + caller + (n % each) * callers), to)
        }
    }
}

pub async fn set_phase(server: &Server, clients: &Clients, flips: &Flips, span: Duration) -> Outcome<Slice> {
    let load = drive(flips.callers(), span, |caller| {
        let client = clients.machines(caller);
        let mut next = flips.of(caller);
        move || {
            let mut client = client.clone();
            let (machine_id, to) = next();
            let phase = match to {
                Phase::Maintenance => WirePhase::Maintenance,
                _ => WirePhase::Ready,
            };
            let request = pb::SetPhaseRequest { machine_id, phase: phase.into(), reason: "bench".to_owned() };
            async move { client.set_phase(request).await.map(drop) }
        }
    });
    costing(server, load).await
}

/// The statements of one SetPhase, without a door, an access check or a feed.
pub async fn store_alone(store: &Store, flips: &Flips, span: Duration) -> Outcome<Tally> {
    drive(flips.callers(), span, |caller| {
        let mut next = flips.of(caller);
        let store = store.clone();
        move || {
            let store = store.clone();
            let (id, to) = next();
            async move {
                let id = MachineId::from_text(id);
                let key = id.to_string();
                store.write(&Caller::new("bench"), &key, move |tx| move_phase(tx, &id, to)).await
            }
        }
    })
    .await
}

fn move_phase(tx: &mut Tx<'_>, id: &MachineId, to: Phase) -> TxResult<()> {
    let gone = || domain::Error::internal("the machine is gone");
    let there = machine::get_for_update(tx, id)?.ok_or_else(gone)?;
    let change = PhaseChange {
        to,
        active_run: None,
        previous_phase: there.previous_phase,
        conditions: there.conditions.clone(),
    };
    let moved = machine::set_phase(tx, &there, &change, &Cause::operator("bench", SET_PHASE, "bench"), |_| Ok(()))?;
    if moved != store::Moved::Moved {
        return Err(domain::Error::internal("nothing was changed").into());
    }
    let entry = Entry {
        actor: "bench".to_owned(),
        token_id: "tok_00000000000000000000000000000000".to_owned(),
        role: "admin".to_owned(),
        call: "baremetal.v1.MachineService/SetPhase".to_owned(),
        target: id.to_string(),
        request_id: "00000000-0000-0000-0000-000000000000".to_owned(),
        ..Entry::default()
    };
    store::audit::insert(tx, &entry);
    Ok(())
}
