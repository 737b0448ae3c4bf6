//! A server whose PostgreSQL can be made to fail, its clients, and a witness who sees what is really stored.

use engine::EngineOptions;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_service_client::MachineServiceClient;
use proto::baremetal::v1::machine_status::Phase;
use proto::baremetal::v1::run_service_client::RunServiceClient;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;
use store::Options;
use testkit::fault_proxy::FaultProxy;
use testkit::fleet::{Fleet, eventually, quick};
use testkit::postgres::{Cluster, Durability};
use testkit::server::{Door, TestServer};
use tokio_postgres::{Config, NoTls};
use tonic::{Code, Request, Response, Status};
use tonic_types::StatusExt as _;

/// One PostgreSQL for all tests that do not stop it, as it is installed.
pub fn stock() -> &'static Cluster {
    static STOCK: OnceLock<Cluster> = OnceLock::new();
    STOCK.get_or_init(|| Cluster::start(Durability::Stock))
}

/// Work that blocks, off the runtime's threads.
pub async fn blocking<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(f).await.expect("no panic")
}

pub fn from_environment(name: &str, default: usize) -> usize {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")),
        Err(_) => default,
    }
}

/// A lease that is renewed so rarely that renewals do not count, and calls that are soon waited out.
pub fn steady() -> EngineOptions {
    EngineOptions { lease: Duration::from_secs(120), call_timeout: Duration::from_millis(200), ..quick("test") }
}

/// What a client was told.
#[derive(Debug)]
pub enum Told<T> {
    Done(T),
    /// Not done, and sure of it.
    NotDone,
    /// Done or not: to repeat the call is safe, and tells.
    Unknown,
    /// Not done: no space.
    Full,
}

/// Anything else is a lie or of no use to a client; so is a refusal without a hint when to try again.
pub fn told<T>(answer: Result<Response<T>, Status>, what: &str) -> Told<T> {
    let status = match answer {
        Ok(answer) => return Told::Done(answer.into_inner()),
        Err(status) => status,
    };
    let details = status.get_error_details();
    assert!(details.retry_info().is_some(), "{what}: no hint when to try again: {status:?}");
    let reason = details.error_info().map(|info| info.reason.as_str());
    match (status.code(), reason) {
        (Code::Unavailable, Some("STORE_UNAVAILABLE")) => Told::NotDone,
        (Code::Unavailable, Some("OUTCOME_UNKNOWN")) => Told::Unknown,
        (Code::ResourceExhausted, Some("STORAGE_FULL")) => Told::Full,
        _ => panic!("{what}: {status:?}"),
    }
}

pub struct Bench {
    pub proxy: FaultProxy,
    pub server: TestServer,
    pub witness: Witness,
    machines: MachineServiceClient<Door>,
    runs: RunServiceClient<Door>,
}

impl Bench {
    /// On a database of its own, reached through the proxy.
    pub async fn new(options: EngineOptions) -> Self {
        let database = blocking(|| stock().database()).await;
        Self::on(&database, options).await
    }

    pub async fn on(database: &Config, options: EngineOptions) -> Self {
        let proxy = FaultProxy::before(database).await;
        let store = Options::Postgres(Box::new(proxy.config()));
        let fleet = blocking(move || Fleet::on_database(&store, 1)).await;
        let server = TestServer::start_with(fleet, options).await;
        let (machines, runs) = (server.machines().await, server.runs().await);
        Self { proxy, server, witness: Witness::on(database).await, machines, runs }
    }

    /// Nobody works: only what a client asks for is written.
    pub async fn without_engine() -> Self {
        let bench = Self::new(steady()).await;
        bench.server.engine.kill();
        bench.server.engine.ended().await;
        bench
    }

    pub fn machines(&self) -> MachineServiceClient<Door> {
        self.machines.clone()
    }

    pub fn runs(&self) -> RunServiceClient<Door> {
        self.runs.clone()
    }

    /// A machine with a cluster to join, registered in good weather.
    pub async fn register(&self, id: &str, labels: &[(&str, &str)]) {
        register(self.machines(), id, labels).await;
    }

    pub async fn set_phase(&self, id: &str, to: Phase, key: &str) -> Told<pb::Machine> {
        told(self.machines().set_phase(move_to(id, to, key)).await, key)
    }

    pub async fn start(&self, id: &str, kind: &str, key: &str) -> Told<pb::Run> {
        told(self.runs().start_run(run_of(id, kind, key)).await, key)
    }

    /// Reads until it works again.
    pub async fn until_reads_work(&self, id: &str) -> pb::Machine {
        eventually("reads to work again", || async {
            let request = pb::GetMachineRequest { machine_id: id.to_owned() };
            match told(self.machines().get_machine(request).await, "a read") {
                Told::Done(machine) => Some(machine),
                Told::NotDone => None,
                other => panic!("a read was answered with {other:?}"),
            }
        })
        .await
    }

    pub async fn end(self) {
        let fleet = self.server.stop().await;
        blocking(move || fleet.store.close()).await;
    }
}

pub async fn register(mut machines: MachineServiceClient<Door>, id: &str, labels: &[(&str, &str)]) {
    let pairs = [("sim.latency_ms", "0")].iter().chain(labels);
    let labels = pairs.map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let spec = pb::MachineSpec { provider: "sim".into(), target_cluster_ref: "cluster-a".into(), ..Default::default() };
    let machine = pb::Machine { machine_id: id.into(), labels, spec: Some(spec), ..Default::default() };
    machines.register_machine(pb::RegisterMachineRequest { machine: Some(machine) }).await.expect("registers");
}

pub fn move_to(id: &str, to: Phase, key: &str) -> Request<pb::SetPhaseRequest> {
    let request = pb::SetPhaseRequest { machine_id: id.into(), phase: to.into(), ..Default::default() };
    let mut request = Request::new(request);
    request.metadata_mut().insert("x-idempotency-key", key.parse().expect("a header"));
    request
}

pub fn run_of(id: &str, kind: &str, key: &str) -> pb::StartRunRequest {
    pb::StartRunRequest { request_id: key.into(), machine_id: id.into(), r#type: kind.into(), ..Default::default() }
}

/// Looks at the rows on a connection of its own, past the store and past every fault.
pub struct Witness {
    client: tokio_postgres::Client,
}

impl Witness {
    pub async fn on(database: &Config) -> Self {
        let (client, connection) = database.connect(NoTls).await.expect("the server is there");
        tokio::spawn(async move { drop(connection.await) });
        Self { client }
    }

    pub async fn count(&self, from_where: &str, id: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM {from_where}");
        self.client.query_one(&sql, &[&id]).await.expect("counts").get(0)
    }

    /// The version of a machine, how many rows of the log are its own, and how many moves are on record: in one
    /// look, since a commit whose answer was lost may land at any time.
    pub async fn machine(&self, id: &str) -> (i64, i64, i64) {
        let sql = "SELECT version,
                   (SELECT count(*) FROM transitions WHERE entity_kind = 'machine' AND entity_id = $1),
                   (SELECT count(*) FROM audit WHERE target = $1 AND outcome = 'done' AND call LIKE '%SetPhase')
                   FROM machines WHERE machine_id = $1";
        let row = self.client.query_one(sql, &[&id]).await.expect("is there");
        (row.get(0), row.get(1), row.get(2))
    }

    /// The phases of a machine's runs.
    pub async fn runs(&self, machine: &str) -> Vec<(String, String)> {
        let sql = "SELECT run_id, phase FROM runs WHERE machine_id = $1 ORDER BY run_id";
        let rows = self.client.query(sql, &[&machine]).await.expect("reads");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// The log has no hole and no double, and ends where its head says.
    pub async fn check_log(&self) {
        let sql = "SELECT count(*), COALESCE(min(sequence), 1), COALESCE(max(sequence), 0),
                   (SELECT seq FROM log_head WHERE one = 1) FROM transitions";
        let row = self.client.query_one(sql, &[]).await.expect("reads");
        let (count, first, last, head): (i64, i64, i64, i64) = (row.get(0), row.get(1), row.get(2), row.get(3));
        assert_eq!((first, last, head), (1, count, count), "first, last and head of the log");
        // every row of an entity raises its version by one
        let sql = "SELECT subject, entity_kind, count(*), max(version) FROM transitions
                   WHERE entity_kind = 'run' GROUP BY 1, 2 HAVING count(DISTINCT version) <> count(*)";
        let doubled = self.client.query(sql, &[]).await.expect("reads");
        assert!(doubled.is_empty(), "a version that was written twice: {doubled:?}");
    }
}

/// What a repave that joins a cluster does to its machine.
pub const REPAVE: [&str; 6] = ["netboot", "repave_started", "repaved", "reset", "join_started", "joined"];

/// From the effect journal: each was done to the machine exactly once.
pub fn each_once(fleet: &Fleet, machine: &str, kinds: &[&str], what: &str) {
    let mut done: BTreeMap<String, usize> = BTreeMap::new();
    for effect in fleet.sim.effects().expect("the effect journal reads").into_iter().filter(|e| e.machine == machine) {
        *done.entry(effect.kind).or_default() += 1;
    }
    for kind in kinds {
        assert_eq!(done.get(*kind), Some(&1), "{what}: {kind} of {machine} in {done:?}");
    }
}
