//! What it costs to wait: memory of an idle server with all machines, memory and reads with ten thousand runs
//! that wait.

use crate::Outcome;
use crate::client::Clients;
use crate::flight::{Flight, SETTLED};
use crate::ground::{Ground, at_rest, id};
use crate::options::Options;
use crate::process::{Cpu, Server};
use crate::reads::get_machines;
use crate::report::{Figure, Goal, Report, Series, plain};
use proto::millwright::v1 as mw;
use proto::millwright::v1::engine_service_client::EngineServiceClient;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const SECTION: &str = "waiting";
const MIB: f64 = 1024.0 * 1024.0;
const CALLERS: usize = 16;
/// Long enough for a sweep over all machines.
const IDLE: Duration = Duration::from_secs(12);
const LOOK_EVERY: Duration = Duration::from_millis(250);

fn figure(
    ground: &Ground,
    what: String,
    unit: &'static str,
    measured: Vec<f64>,
    limit: Vec<f64>,
    against: &str,
    goal: Goal,
) -> Figure {
    Figure {
        section: SECTION,
        database: ground.kind.name(),
        what,
        unit,
        measured,
        limit,
        against: against.to_owned(),
        goal,
    }
}

/// A server as installed, with all the machines and nothing to do but look at them.
pub async fn idle(ground: &Ground, report: &mut Report) -> Outcome<()> {
    let server = ground.launch.start()?;
    at_rest(&server).await?;
    let before = Cpu::of(server.pid())?;
    let memory = memory_for(&server, IDLE).await?;
    let share = Cpu::of(server.pid())?.since(&before).as_secs_f64() / IDLE.as_secs_f64();
    let most = memory.iter().map(|m| m.1).fold(0.0, f64::max);
    let what = format!("memory, idle with {} machines", ground.machines);
    report.add(figure(ground, what, "MiB", vec![most], vec![150.0], "the goal itself", Goal::AtMost(1.0)));
    report.note(format!("idle, it uses {} of a processor to look at its machines every 30 s", plain(share)));
    server.stop()
}

async fn memory_for(server: &Server, span: Duration) -> Outcome<Vec<(f64, f64)>> {
    let begun = Instant::now();
    let mut memory = Vec::new();
    while begun.elapsed() < span {
        memory.push((begun.elapsed().as_secs_f64(), server.resident()? / MIB));
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(memory)
}

/// Microseconds of CPU for each read, without what the server would have used anyway.
async fn read_cost(server: &Server, clients: &Clients, ids: &Arc<[String]>, options: &Options) -> Outcome<Vec<f64>> {
    let mut costs = Vec::new();
    for _ in 0..options.slices() {
        let (before, begun) = (Cpu::of(server.pid())?, Instant::now());
        tokio::time::sleep(options.slice()).await;
        let share = Cpu::of(server.pid())?.since(&before).as_secs_f64() / begun.elapsed().as_secs_f64();
        let slice = get_machines(server, clients, ids, CALLERS, options.slice()).await?;
        let anyway = share * slice.tally.took.as_secs_f64() * 1e6 / slice.tally.calls.max(1) as f64;
        costs.push((slice.cpu_per_call() - anyway).max(0.0));
    }
    Ok(costs)
}

async fn reads_without(ground: &Ground, ids: &Arc<[String]>, options: &Options) -> Outcome<Vec<f64>> {
    let server = ground.start().await?;
    let clients = Clients::connect(&server).await?;
    get_machines(&server, &clients, ids, CALLERS, options.slice()).await?;
    let costs = read_cost(&server, &clients, ids, options).await?;
    server.stop()?;
    Ok(costs)
}

/// Reads on the machines without a run, then on the branch with all of them waiting, then without again.
pub async fn measure(ground: &Ground, flight: &Flight, options: &Options, report: &mut Report) -> Outcome<()> {
    let ids: Arc<[String]> = (0..ground.machines).map(id).collect();
    let begun = Instant::now();
    let mut without = reads_without(ground, &ids, options).await?;
    let mut memory = memory_for(&flight.server, SETTLED.saturating_sub(begun.elapsed())).await?;
    let clients = Clients::connect(&flight.server).await?;
    get_machines(&flight.server, &clients, &ids, CALLERS, options.slice()).await?;
    let before = Cpu::of(flight.server.pid())?;
    let more = memory_for(&flight.server, Duration::from_secs(2)).await?;
    let share = Cpu::of(flight.server.pid())?.since(&before).as_secs_f64() / 2.0;
    let with = read_cost(&flight.server, &clients, &ids, options).await?;
    // what of it is the looks' doing, and what that the runs are there at all?
    let mut brake = EngineServiceClient::new(clients.door(0));
    brake.freeze(mw::FreezeRequest { reason: "to measure without looks".to_owned() }).await?;
    let braked = read_cost(&flight.server, &clients, &ids, options).await;
    brake.unfreeze(mw::UnfreezeRequest::default()).await?;
    let braked = braked?;
    let open = flight.open().await?;
    let shift = memory.last().map_or(0.0, |m| m.0);
    memory.extend(more.into_iter().map(|(at, mib)| (shift + at, mib)));
    memory.push((shift + 2.5, flight.server.resident()? / MIB));
    let most = memory.iter().map(|m| m.1).fold(0.0, f64::max);
    without.extend(reads_without(ground, &ids, options).await?);
    let what = format!("memory with {open} runs waiting");
    report.add(figure(ground, what, "MiB", vec![most], vec![400.0], "the goal itself", Goal::AtMost(1.0)));
    let what = format!("GetMachine, net CPU per call with {open} runs waiting");
    report.add(figure(ground, what, "µs", with, without.clone(), "with none", Goal::AtMost(1.1)));
    let what = format!("the same, while a freeze keeps the {open} from being looked at");
    report.add(figure(ground, what, "µs", braked, without, "with none", Goal::None));
    report.note(format!("{open} waiting runs use {} of a processor to be looked at", plain(share)));
    report.series.push(Series {
        section: SECTION,
        title: format!("Memory of the server with {open} waiting runs and {} machines", ground.machines),
        x: "seconds",
        y: "MiB",
        lines: vec![(ground.kind.name().to_owned(), memory)],
    });
    Ok(())
}
