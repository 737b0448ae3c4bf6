//! Unary reads: what a GetMachine costs the server, beside what the standard health check costs the very same
//! server. On PostgreSQL the limit also has one bare SELECT by key through the same client library. The loads
//! run in turns, slice by slice, so that whatever else the machine does hits both alike.

use crate::Outcome;
use crate::client::{Clients, Slice, Tally, costing, drive};
use crate::ground::{Ground, connect, id};
use crate::options::Options;
use crate::process::{Server, own_cpu};
use crate::report::{Figure, Goal, Report};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use proto::baremetal::v1 as pb;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tonic_health::pb::HealthCheckRequest;

const SECTION: &str = "reads";
const CALLERS: [usize; 3] = [1, 16, 64];

pub async fn run(ground: &Ground, options: &Options, report: &mut Report) -> Outcome<()> {
    let server = ground.start().await?;
    let clients = Clients::connect(&server).await?;
    let ids: Arc<[String]> = (0..ground.machines).map(id).collect();
    // caches warm, statements prepared
    get_machines(&server, &clients, &ids, 16, options.slice()).await?;
    for callers in CALLERS {
        let (mut health, mut machine, mut select, mut paced) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..options.slices() {
            health.push(checks(&server, &clients, callers, options.slice()).await?);
            machine.push(get_machines(&server, &clients, &ids, callers, options.slice()).await?);
            if ground.config().is_some() {
                select.push(bare_selects(ground, &ids, callers, options.slice()).await?);
                paced.push(paced_checks(&server, &clients, ground, &ids, callers, options.slice()).await?);
            }
        }
        let cpu = |slices: &[Slice]| slices.iter().map(|s| s.cpu_per_call()).collect::<Vec<_>>();
        let rate = |slices: &[Slice]| slices.iter().map(|s| s.tally.rate()).collect::<Vec<_>>();
        let and_select = |mut limit: Vec<f64>| {
            limit.iter_mut().zip(cpu(&select)).for_each(|(limit, select)| *limit += select);
            limit
        };
        let limit = and_select(cpu(&health));
        let against = match select.len() {
            0 => "health check".to_owned(),
            _ => format!("health check + bare SELECT ({:.1} µs)", crate::report::middle(&cpu(&select))),
        };
        let figure = |what: &str, unit, measured, limit, against, goal| Figure {
            section: SECTION,
            database: ground.kind.name(),
            what: format!("{what}, {callers} {}", if callers == 1 { "caller" } else { "callers" }),
            unit,
            measured,
            limit,
            against,
            goal,
        };
        report.add(figure("GetMachine, server CPU per call", "µs", cpu(&machine), limit, against, Goal::AtMost(1.5)));
        if !paced.is_empty() {
            let what = "a health check at the pace of a bare SELECT, server CPU per call";
            report.add(figure(what, "µs", cpu(&paced), cpu(&health), "health check".to_owned(), Goal::None));
            let against = "health check at the pace of a bare SELECT + bare SELECT".to_owned();
            let limit = and_select(cpu(&paced));
            report.add(figure("GetMachine, server CPU per call", "µs", cpu(&machine), limit, against, Goal::None));
        }
        let health_rate = "health checks per second".to_owned();
        report.add(figure(
            "GetMachine, calls per second",
            "/s",
            rate(&machine),
            rate(&health),
            health_rate,
            Goal::None,
        ));
    }
    server.stop()
}

pub async fn checks(server: &Server, clients: &Clients, callers: usize, span: Duration) -> Outcome<Slice> {
    let load = drive(callers, span, |caller| {
        let client = clients.health(caller);
        move || {
            let mut client = client.clone();
            async move { client.check(HealthCheckRequest::default()).await.map(drop) }
        }
    });
    costing(server, load).await
}

/// Of machines all over the fleet.
pub async fn get_machines(
    server: &Server,
    clients: &Clients,
    ids: &Arc<[String]>,
    callers: usize,
    span: Duration,
) -> Outcome<Slice> {
    let load = drive(callers, span, |caller| {
        let client = clients.machines(caller);
        let mut next = Scattered::new(ids.len(), caller);
        let ids = ids.clone();
        move || {
            let mut client = client.clone();
            let request = pb::GetMachineRequest { machine_id: ids[next.step()].clone() };
            async move { client.get_machine(request).await.map(drop) }
        }
    });
    costing(server, load).await
}

/// Health checks that come as calls that read from PostgreSQL do: each when the database has answered, not when the
/// server has. Fewer come at a time, so that each bears more of the cost of waking up.
async fn paced_checks(
    server: &Server,
    clients: &Clients,
    ground: &Ground,
    ids: &Arc<[String]>,
    callers: usize,
    span: Duration,
) -> Outcome<Slice> {
    let client = Arc::new(connect(ground.config().ok_or("no PostgreSQL")?).await?);
    let statement = client.prepare(BY_KEY).await?;
    let load = drive(callers, span, |caller| {
        let (database, statement, health) = (client.clone(), statement.clone(), clients.health(caller));
        let mut next = Scattered::new(ids.len(), caller);
        let ids = ids.clone();
        move || {
            let (database, statement, mut health) = (database.clone(), statement.clone(), health.clone());
            let id = ids[next.step()].clone();
            async move {
                database.query_one(&statement, &[&id]).await.map_err(|e| e.to_string())?;
                health.check(HealthCheckRequest::default()).await.map(drop).map_err(|e| e.to_string())
            }
        }
    });
    costing(server, load).await
}

const BY_KEY: &str = "SELECT * FROM machines WHERE machine_id = $1";

/// One statement by key, as many in the air as there are callers, on one connection; its cost is that of
/// this thread, which does nothing else meanwhile.
async fn bare_selects(ground: &Ground, ids: &[String], callers: usize, span: Duration) -> Outcome<Slice> {
    let client = connect(ground.config().ok_or("no PostgreSQL")?).await?;
    let statement = client.prepare(BY_KEY).await?;
    let mut next = Scattered::new(ids.len(), callers);
    let (begun, before) = (Instant::now(), own_cpu());
    let mut waiting = FuturesUnordered::new();
    let mut calls = 0u64;
    let ask = |id: &str| {
        let (client, statement, id) = (&client, &statement, id.to_owned());
        async move { client.query_one(statement, &[&id]).await }
    };
    for _ in 0..callers {
        waiting.push(ask(&ids[next.step()]));
    }
    while let Some(row) = waiting.next().await {
        row?;
        calls += 1;
        if begun.elapsed() < span {
            waiting.push(ask(&ids[next.step()]));
        }
    }
    let cpu = own_cpu().saturating_sub(before);
    Ok(Slice { tally: Tally { calls, took: begun.elapsed() }, cpu })
}

/// Numbers below a bound in an order that no cache guesses, the same in every run.
pub struct Scattered {
    state: u64,
    below: usize,
}

impl Scattered {
    pub fn new(below: usize, seed: usize) -> Self {
        Self { state: (seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15), below }
    }

    pub fn step(&mut self) -> usize {
        // Knuth's linear congruential generator; its upper half is good enough here
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % self.below.max(1)
    }
}
