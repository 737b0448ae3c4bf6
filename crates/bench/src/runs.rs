//! Complete five-step REPAVE runs on simulated hardware that answers at once: rows in the log, changes of the
//! store and server CPU for each, and how many in a second, beside what the write rate of the same server in
//! the same minutes would allow.

use crate::Outcome;
use crate::client::{Clients, work_off};
use crate::ground::{Ground, id};
use crate::options::Options;
use crate::process::{Cpu, Server};
use crate::report::{Figure, Goal, Report, middle, plain};
use crate::writes::{Flips, set_phase, store_alone};
use proto::baremetal::v1 as pb;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use store::{Store, SystemAmbient};
use tokio::time::Instant;

const SECTION: &str = "runs";
/// Started and carried out together.
const WAVE: usize = 400;
const CALLERS: usize = 64;
const WRITERS: usize = 1024;
/// A wave that takes longer hangs.
const WITHIN: Duration = Duration::from_secs(600);
pub const SUCCEEDED: &str = r#"millwright_transitions_total{lifecycle="run",from="RUNNING",to="SUCCEEDED"}"#;
/// Rows that a run leaves: its own, its steps', and the moves of its machine.
const ROWS: &str = "SELECT COUNT(*) FROM transitions WHERE sequence > $1 AND (entity_kind IN ('run', 'step') OR (entity_kind = 'machine' AND owner = 'executor'))";

/// What a wave of runs took.
pub struct Wave {
    pub per_second: f64,
    /// Microseconds of the server's processors for each run.
    pub cpu: f64,
    /// Changes that the store committed, for each run.
    pub writes: f64,
}

pub async fn run(ground: &Ground, options: &Options, report: &mut Report) -> Outcome<()> {
    let copy = ground.copy("runs_alone").await?;
    let server = ground.start().await?;
    let clients = Clients::connect(&server).await?;
    let alone = Store::open(&copy, Arc::new(SystemAmbient::new()))?;
    let (quarter, half) = (ground.machines / 4, ground.machines / 2);
    let (flips, flips_alone) = (Flips::new(WRITERS, half..half + quarter), Flips::new(WRITERS, half..half + quarter));
    let mut machines = half + quarter..ground.machines;
    wave(&server, &clients, take(&mut machines, WAVE)?, "warm").await?;
    let before = ground.number("SELECT seq FROM log_head", &[]).await?;
    let (mut rates, mut writes, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
    let (mut by_api, mut by_store) = (Vec::new(), Vec::new());
    for n in 0..options.slices() {
        let write_rate = set_phase(&server, &clients, &flips, options.slice()).await?.tally.rate();
        let store_rate = store_alone(&alone, &flips_alone, options.slice()).await?.rate();
        let wave = wave(&server, &clients, take(&mut machines, WAVE)?, &format!("w{n}")).await?;
        rates.push(wave.per_second);
        by_api.push(write_rate / (2.0 * wave.writes));
        by_store.push(store_rate / (2.0 * wave.writes));
        writes.push(wave.writes);
        cpu.push(wave.cpu);
    }
    let runs = options.slices() as usize * WAVE;
    let rows = ground.number(ROWS, &[before]).await? as f64 / runs as f64;
    let figure = |what: &str, unit, measured, limit, against: &str, goal| Figure {
        section: SECTION,
        database: ground.kind.name(),
        what: what.to_owned(),
        unit,
        measured,
        limit,
        against: against.to_owned(),
        goal,
    };
    report.add(figure(
        "log rows of a five-step REPAVE",
        "rows",
        vec![rows],
        vec![16.0],
        "the goal itself",
        Goal::AtMost(1.0),
    ));
    let each = plain(middle(&writes));
    let against = format!("SetPhase rate through the API / (2 × {each} writes per run)");
    report.add(figure("REPAVE runs per second", "/s", rates.clone(), by_api, &against, Goal::AtLeast(1.0)));
    let against = format!("SetPhase rate of the store alone / (2 × {each} writes per run)");
    report.add(figure("REPAVE runs per second", "/s", rates, by_store, &against, Goal::AtLeast(1.0)));
    report.note(format!(
        "{}: {} ms of the server's CPU for each run; waves of {WAVE} runs, started by {CALLERS} callers",
        ground.kind.name(),
        plain(middle(&cpu) / 1e3)
    ));
    server.stop()?;
    tokio::task::spawn_blocking(move || alone.close()).await?;
    Ok(())
}

/// Machines that no run had yet.
pub fn take(machines: &mut Range<usize>, count: usize) -> Outcome<Range<usize>> {
    if machines.len() < count {
        return Err("not enough machines for this section; use more --machines".into());
    }
    let taken = machines.start..machines.start + count;
    machines.start += count;
    Ok(taken)
}

pub fn start_request(machine: usize, request: &str) -> pb::StartRunRequest {
    pb::StartRunRequest {
        request_id: format!("{request}-{machine}"),
        machine_id: id(machine),
        r#type: "REPAVE".to_owned(),
        ..pb::StartRunRequest::default()
    }
}

/// Starts a run on each machine.
pub async fn start_all(clients: &Clients, callers: usize, machines: Range<usize>, request: &str) -> Outcome<()> {
    let first = machines.start;
    let started = work_off(callers, machines.len(), |caller| {
        let (client, request) = (clients.runs(caller), request.to_owned());
        move |n| {
            let mut client = client.clone();
            let request = start_request(first + n, &request);
            async move { client.start_run(request).await.map(drop) }
        }
    });
    started.await.map(drop)
}

/// Starts a run on each machine and waits until all have succeeded.
pub async fn wave(server: &Server, clients: &Clients, machines: Range<usize>, request: &str) -> Outcome<Wave> {
    let count = machines.len() as f64;
    let before = server.metrics()?;
    let (begun, cpu) = (Instant::now(), Cpu::of(server.pid())?);
    start_all(clients, CALLERS, machines, request).await?;
    let after = loop {
        let now = server.metrics()?;
        if now.get(SUCCEEDED) - before.get(SUCCEEDED) >= count {
            break now;
        }
        if begun.elapsed() > WITHIN {
            return Err(format!("of {count} runs only {} succeeded", now.get(SUCCEEDED) - before.get(SUCCEEDED)).into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let took = begun.elapsed();
    let cpu = Cpu::of(server.pid())?.since(&cpu);
    Ok(Wave {
        per_second: count / took.as_secs_f64(),
        cpu: cpu.as_secs_f64() * 1e6 / count,
        writes: (after.commits().0 - before.commits().0) / count,
    })
}
