//! A thousand watchers on a hundred changing runs: each must be told every event, in order and once, and the
//! server's memory must not grow with what it has told.

use crate::Outcome;
use crate::client::Clients;
use crate::ground::Ground;
use crate::report::{Figure, Goal, Report, Series, plain};
use crate::runs::{take, wave};
use proto::baremetal::v1 as pb;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Streaming};

const SECTION: &str = "waiting";
const WATCHERS: usize = 1000;
const RUNS: usize = 100;
/// By half of them the server's buffers have grown to what slow readers make of them; from there on nothing
/// may be added.
const ROUNDS: usize = 8;
/// What is still on its way when the last run has ended arrives within this, or never.
const WITHIN: Duration = Duration::from_secs(300);
const FLAT: f64 = 1.1;

/// Of an event only its number: a thousand clients on one thread have no time to read the rest.
#[derive(Clone, PartialEq, prost::Message)]
struct Numbered {
    #[prost(uint64, tag = "4")]
    sequence: u64,
}

/// What a watcher has seen: how many, and a sum that depends on each of them.
#[derive(Default)]
struct Seen {
    count: AtomicU64,
    sum: AtomicU64,
    out_of_order: AtomicU64,
}

pub async fn run(ground: &Ground, report: &mut Report) -> Outcome<()> {
    let server = ground.start().await?;
    let clients = Clients::connect(&server).await?;
    let mut machines = ground.machines / 2..ground.machines;
    // the memory of a server that has carried out runs, but has no watchers
    wave(&server, &clients, take(&mut machines, RUNS)?, "watch-warm").await?;
    let head = ground.number("SELECT seq FROM log_head", &[]).await?;
    let seen: Vec<Arc<Seen>> = (0..WATCHERS).map(|_| Arc::default()).collect();
    let mut watching = JoinSet::new();
    for (n, seen) in seen.iter().enumerate() {
        let stream = watch(&clients, n, head as u64).await?;
        watching.spawn(follow(stream, seen.clone()));
    }
    let begun = Instant::now();
    let (mut memory, mut after_rounds) = (Vec::new(), Vec::new());
    let mut expected = 0;
    for round in 0..ROUNDS {
        wave(&server, &clients, take(&mut machines, RUNS)?, &format!("watch-{round}")).await?;
        let of_runs = "SELECT COUNT(*) FROM transitions WHERE sequence > $1 AND entity_kind IN ('run', 'step')";
        expected = ground.number(of_runs, &[head]).await? as u64;
        loop {
            memory.push((begun.elapsed().as_secs_f64(), server.resident()? / MIB));
            let told: u64 = seen.iter().map(|s| s.count.load(Ordering::Relaxed)).sum();
            if told >= expected * WATCHERS as u64 {
                break;
            }
            if begun.elapsed() > WITHIN {
                return Err(format!("{told} events were delivered, {} expected", expected * WATCHERS as u64).into());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        after_rounds.push(server.resident()? / MIB);
    }
    let took = begun.elapsed();
    let of_runs = "SELECT CAST(COALESCE(SUM(sequence), 0) AS BIGINT) FROM transitions WHERE sequence > $1 AND entity_kind IN ('run', 'step')";
    let sum = ground.number(of_runs, &[head]).await? as u64;
    let complete = seen.iter().filter(|s| {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        (read(&s.count), read(&s.sum), read(&s.out_of_order)) == (expected, sum, 0)
    });
    let complete = complete.count();
    watching.shutdown().await;
    report.add(Figure {
        section: SECTION,
        database: ground.kind.name(),
        what: format!("watchers that were told all {expected} events of {} runs, once and in order", ROUNDS * RUNS),
        unit: "watchers",
        measured: vec![complete as f64],
        limit: vec![WATCHERS as f64],
        against: "all of them".to_owned(),
        goal: Goal::AtLeast(1.0),
    });
    report.add(Figure {
        section: SECTION,
        database: ground.kind.name(),
        what: format!("memory with {WATCHERS} watchers, after the last round of {RUNS} runs"),
        unit: "MiB",
        measured: after_rounds.last().copied().into_iter().collect(),
        limit: after_rounds.get(ROUNDS / 2 - 1).copied().into_iter().collect(),
        against: "after half of the rounds".to_owned(),
        goal: Goal::AtMost(FLAT),
    });
    let events = expected * WATCHERS as u64;
    report.note(format!("{events} events delivered, {} /s", plain(events as f64 / took.as_secs_f64())));
    report.series.push(Series {
        section: SECTION,
        title: format!("Memory of the server with {WATCHERS} watchers"),
        x: "seconds",
        y: "MiB",
        lines: vec![(ground.kind.name().to_owned(), memory)],
    });
    server.stop()
}

const MIB: f64 = 1024.0 * 1024.0;

async fn watch(clients: &Clients, n: usize, after: u64) -> Outcome<Streaming<Numbered>> {
    let mut grpc = tonic::client::Grpc::new(clients.door(n));
    grpc.ready().await?;
    let request = pb::WatchRunsRequest { filter: String::new(), after_sequence: Some(after) };
    let codec = tonic_prost::ProstCodec::<pb::WatchRunsRequest, Numbered>::default();
    let path = PathAndQuery::from_static("/baremetal.v1.RunService/WatchRuns");
    Ok(grpc.server_streaming(Request::new(request), path, codec).await?.into_inner())
}

async fn follow(mut stream: Streaming<Numbered>, seen: Arc<Seen>) {
    let mut last = 0;
    while let Ok(Some(event)) = stream.message().await {
        if event.sequence <= last {
            seen.out_of_order.fetch_add(1, Ordering::Relaxed);
        }
        last = event.sequence;
        seen.sum.fetch_add(event.sequence, Ordering::Relaxed);
        seen.count.fetch_add(1, Ordering::Relaxed);
    }
}
