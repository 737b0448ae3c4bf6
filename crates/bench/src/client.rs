//! The client side: few connections, many callers, each with one call in the air at a time. It runs on one
//! thread, so that the server keeps the other processor to itself.

use crate::Outcome;
use crate::process::{Cpu, Server};
use proto::baremetal::v1::machine_service_client::MachineServiceClient;
use proto::baremetal::v1::run_service_client::RunServiceClient;
use std::time::Duration;
use testkit::server::{Door, door};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::health_client::HealthClient;

/// A server takes 1,024 calls at a time on one connection.
const CONNECTIONS: usize = 4;
/// A page of a thousand machines is larger than what a client takes by itself.
const MESSAGE_MAX: usize = 64 << 20;
const WINDOW: u32 = 8 << 20;

pub struct Clients {
    channels: Vec<Channel>,
    token: String,
}

impl Clients {
    pub async fn connect(server: &Server) -> Outcome<Self> {
        Self::with(server, CONNECTIONS).await
    }

    pub async fn with(server: &Server, connections: usize) -> Outcome<Self> {
        let mut channels = Vec::new();
        for _ in 0..connections {
            let endpoint = Endpoint::from_shared(server.url())?
                .initial_connection_window_size(WINDOW)
                .initial_stream_window_size(WINDOW)
                .buffer_size(4096);
            channels.push(endpoint.connect().await?);
        }
        Ok(Self { channels, token: server.token.clone() })
    }

    fn channel(&self, caller: usize) -> Channel {
        self.channels[caller % self.channels.len()].clone()
    }

    pub fn door(&self, caller: usize) -> Door {
        door(self.channel(caller), Some(&self.token))
    }

    pub fn machines(&self, caller: usize) -> MachineServiceClient<Door> {
        MachineServiceClient::new(self.door(caller)).max_decoding_message_size(MESSAGE_MAX)
    }

    pub fn runs(&self, caller: usize) -> RunServiceClient<Door> {
        RunServiceClient::new(self.door(caller)).max_decoding_message_size(MESSAGE_MAX)
    }

    pub fn health(&self, caller: usize) -> HealthClient<Channel> {
        HealthClient::new(self.channel(caller))
    }
}

/// What came of a load.
#[derive(Clone, Copy, Debug)]
pub struct Tally {
    pub calls: u64,
    pub took: Duration,
}

impl Tally {
    pub fn rate(self) -> f64 {
        self.calls as f64 / self.took.as_secs_f64()
    }
}

/// So many callers, each calling again and again until the time is over. The first call that fails ends it.
pub async fn drive<C, F, E>(callers: usize, span: Duration, mut caller: impl FnMut(usize) -> C) -> Outcome<Tally>
where
    C: FnMut() -> F + Send + 'static,
    F: Future<Output = Result<(), E>> + Send,
    E: std::fmt::Display + Send + 'static,
{
    let begun = Instant::now();
    let until = begun + span;
    let mut working = JoinSet::new();
    for n in 0..callers {
        let mut call = caller(n);
        working.spawn(async move {
            let mut calls = 0u64;
            while Instant::now() < until {
                call().await.map_err(|e| e.to_string())?;
                calls += 1;
            }
            Ok::<u64, String>(calls)
        });
    }
    total(working, begun).await
}

/// So many callers, together through a list of tasks, once.
pub async fn work_off<C, F, E>(callers: usize, tasks: usize, mut caller: impl FnMut(usize) -> C) -> Outcome<Tally>
where
    C: FnMut(usize) -> F + Send + 'static,
    F: Future<Output = Result<(), E>> + Send,
    E: std::fmt::Display + Send + 'static,
{
    let begun = Instant::now();
    let mut working = JoinSet::new();
    for n in 0..callers {
        let mut call = caller(n);
        working.spawn(async move {
            let own = (n..tasks).step_by(callers);
            let calls = own.len() as u64;
            for task in own {
                call(task).await.map_err(|e| format!("task {task}: {e}"))?;
            }
            Ok::<u64, String>(calls)
        });
    }
    total(working, begun).await
}

async fn total(mut working: JoinSet<Result<u64, String>>, begun: Instant) -> Outcome<Tally> {
    let mut calls = 0;
    while let Some(done) = working.join_next().await {
        calls += done??;
    }
    Ok(Tally { calls, took: begun.elapsed() })
}

/// What a piece of load cost the server.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    pub tally: Tally,
    /// Of the server process.
    pub cpu: Duration,
}

impl Slice {
    /// Microseconds of the server's processors for each call.
    pub fn cpu_per_call(self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.tally.calls.max(1) as f64
    }
}

/// Runs a load and reads what it cost the server.
pub async fn costing(server: &Server, load: impl Future<Output = Outcome<Tally>>) -> Outcome<Slice> {
    let before = Cpu::of(server.pid())?;
    let tally = load.await?;
    Ok(Slice { tally, cpu: Cpu::of(server.pid())?.since(&before) })
}
