//! Where a section works: a database of either kind with its machines in it, on a real disk, and the server
//! that is started on it. Made once in a run of this program, and used by all sections.

use crate::Outcome;
use crate::carry;
use crate::client::{Clients, work_off};
use crate::process::{Cpu, Launch, Server};
use proto::baremetal::v1 as pb;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use testkit::postgres::{Cluster, Durability};
use tokio::time::Instant;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, NoTls};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Sqlite,
    Postgres,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Sqlite => "SQLite",
            Kind::Postgres => "PostgreSQL",
        }
    }
}

/// In the data folder of a server.
const DATABASE: &str = "millwright.db";
/// Callers that register the machines.
const REGISTRARS: usize = 1024;
/// Every machine is looked at once after it was registered; what takes longer than this hangs.
const SEEN_WITHIN: Duration = Duration::from_secs(600);
/// No further sweep while something is measured: what a read costs is not to be mixed with looks.
pub const QUIET_SECONDS: u64 = 86_400;
/// While machines are registered.
const SWEEP_SECONDS: u64 = 2;
/// A server that uses less of a processor than this does nothing but wait.
const REST: f64 = 0.03;
const REST_WINDOW: Duration = Duration::from_millis(400);

pub struct Ground {
    pub kind: Kind,
    pub machines: usize,
    pub launch: Launch,
    /// The cluster goes when this does.
    postgres: Option<(Cluster, Config)>,
    folder: tempfile::TempDir,
}

pub fn id(n: usize) -> String {
    format!("m-{n:06}")
}

/// A simulated machine that answers at once, with what real ones have.
pub fn machine(n: usize) -> pb::Machine {
    let spec = pb::MachineSpec {
        provider: "sim".to_owned(),
        rack: format!("r{}", n / 40 + 1),
        location: "hall-1".to_owned(),
        serial_number: format!("BENCH{n:06}"),
        target_cluster_ref: "bench".to_owned(),
        bmc_endpoint: format!("10.{}.{}.{}", n >> 16 & 0xff, n >> 8 & 0xff, n & 0xff),
        mac_addresses: vec![format!("02:00:00:{:02x}:{:02x}:{:02x}", n >> 16 & 0xff, n >> 8 & 0xff, n & 0xff)],
        ..pb::MachineSpec::default()
    };
    let labels = BTreeMap::from([("env", "prod"), ("sim.latency_ms", "0")].map(|(k, v)| (k.to_owned(), v.to_owned())));
    pb::Machine { machine_id: id(n), labels, spec: Some(spec), ..pb::Machine::default() }
}

impl Ground {
    /// An empty database and the folder of a server.
    pub fn new(kind: Kind) -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("millwright-bench-").tempdir()?;
        let postgres = match kind {
            Kind::Sqlite => None,
            Kind::Postgres => {
                let cluster = Cluster::start(Durability::Stock);
                let config = cluster.database();
                Some((cluster, config))
            }
        };
        let launch = Launch {
            data: folder.path().join("data"),
            database: postgres.as_ref().map(|(_, config)| url(config)).transpose()?,
            simulated: true,
            settings: Vec::new(),
        };
        // one token makes all the calls here; what it may use is not what is measured
        let launch = launch
            .with("limits.calls_per_second", 1_000_000_000)
            .with("limits.burst", 1_000_000_000)
            .with("limits.streams_per_caller", 1_000_000)
            .with("engine.destructive_per_rack_and_hour", 1_000_000_000);
        Ok(Self { kind, machines: 0, launch, postgres, folder })
    }

    /// Starts a server that makes no sweep but its first.
    pub fn start_at_once(&self) -> Outcome<Server> {
        self.launch.with("observe.period_seconds", QUIET_SECONDS).start()
    }

    /// The same, and waits until that sweep is over.
    pub async fn start(&self) -> Outcome<Server> {
        let server = self.start_at_once()?;
        at_rest(&server).await?;
        Ok(server)
    }

    /// Registers machines through the API, and waits until each was looked at and is READY.
    pub async fn register(&mut self, machines: usize) -> Outcome<()> {
        // of so many at once only some are looked at when they are registered; sweeps find the rest
        let server = self.launch.with("observe.period_seconds", SWEEP_SECONDS).start()?;
        let clients = Clients::connect(&server).await?;
        let first = self.machines;
        let registered = work_off(REGISTRARS, machines, |caller| {
            let client = clients.machines(caller);
            move |n| {
                let mut client = client.clone();
                async move {
                    let request = pb::RegisterMachineRequest { machine: Some(machine(first + n)) };
                    client.register_machine(request).await.map(drop)
                }
            }
        });
        let registered = registered.await?;
        self.machines += machines;
        let begun = Instant::now();
        let ready = r#"millwright_machines{phase="READY"}"#;
        while (server.metrics()?.get(ready) as usize) < self.machines {
            if begun.elapsed() > SEEN_WITHIN {
                return Err(format!("not all machines became READY: {}", server.metrics()?.get(ready)).into());
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        println!(
            "    {}: {machines} machines registered through the API in {:.1} s ({:.0}/s), all looked at {:.1} s later",
            self.kind.name(),
            registered.took.as_secs_f64(),
            registered.rate(),
            begun.elapsed().as_secs_f64()
        );
        server.stop()
    }

    /// The same database again, for whoever works on it without a server. The server must be stopped.
    pub async fn copy(&self, name: &str) -> Outcome<store::Options> {
        match &self.postgres {
            None => {
                // with what was not carried over into the file itself yet
                for ending in ["", "-wal"] {
                    let from = self.launch.data.join(format!("{DATABASE}{ending}"));
                    let to = self.folder.path().join(format!("{name}.db{ending}"));
                    if from.is_file() {
                        std::fs::copy(from, &to)?;
                        // on disk before anything is measured
                        std::fs::File::open(&to)?.sync_all()?;
                    }
                }
                Ok(store::Options::Sqlite(self.folder.path().join(format!("{name}.db"))))
            }
            Some((_, config)) => {
                let from = config.get_dbname().unwrap_or_default();
                let mut admin = config.clone();
                let copy = format!("CREATE DATABASE {name} TEMPLATE {from}");
                connect(admin.dbname("postgres")).await?.batch_execute(&copy).await?;
                let mut config = config.clone();
                config.dbname(name);
                Ok(store::Options::Postgres(Box::new(config)))
            }
        }
    }

    /// A number from the database itself, while the server runs or not: what is true is not what it says.
    pub async fn number(&self, sql: &str, values: &[i64]) -> Outcome<i64> {
        match &self.postgres {
            None => {
                let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
                let db = rusqlite::Connection::open_with_flags(self.database_file(), flags)?;
                Ok(db.query_row(&sql.replace('$', "?"), rusqlite::params_from_iter(values), |row| row.get(0))?)
            }
            Some((_, config)) => {
                let values: Vec<&(dyn tokio_postgres::types::ToSql + Sync)> =
                    values.iter().map(|v| v as &(dyn tokio_postgres::types::ToSql + Sync)).collect();
                Ok(connect(config).await?.query_one(sql, &values).await?.get(0))
            }
        }
    }

    /// The same machines in a folder of their own, for a section that leaves things changed. The server must
    /// be stopped.
    pub fn branch(&self, name: &str) -> Outcome<Self> {
        if self.kind != Kind::Sqlite {
            return Err("only a database that is a file can be branched off".into());
        }
        let folder = tempfile::Builder::new().prefix(&format!("millwright-bench-{name}-")).tempdir()?;
        let data = folder.path().join("data");
        copy_folder(&self.launch.data, &data)?;
        let launch = Launch { data, ..self.launch.clone() };
        Ok(Self { kind: self.kind, machines: self.machines, launch, postgres: None, folder })
    }

    /// The same rows in PostgreSQL: registering them there again would take longer, and show nothing new.
    pub async fn in_postgres(&self) -> Outcome<Self> {
        let ground = Self::new(Kind::Postgres)?;
        // makes the tables
        ground.launch.start()?.stop()?;
        std::fs::remove_dir_all(&ground.launch.data)?;
        copy_folder(&self.launch.data, &ground.launch.data)?;
        let client = connect(ground.config().ok_or("no PostgreSQL")?).await?;
        carry::over(&self.database_file(), &client).await?;
        client.batch_execute("VACUUM ANALYZE").await?;
        client.batch_execute("CHECKPOINT").await?;
        Ok(Self { machines: self.machines, ..ground })
    }

    /// What really happened to the simulated machines, from the journal that no server can change.
    pub fn world(&self) -> PathBuf {
        self.launch.data.join("sim-world.jsonl")
    }

    pub fn database_file(&self) -> PathBuf {
        self.launch.data.join(DATABASE)
    }

    pub fn config(&self) -> Option<&Config> {
        self.postgres.as_ref().map(|(_, config)| config)
    }
}

/// Waits until the server has nothing to do any more.
pub async fn at_rest(server: &Server) -> Outcome<()> {
    let begun = Instant::now();
    loop {
        let before = Cpu::of(server.pid())?;
        tokio::time::sleep(REST_WINDOW).await;
        let share = Cpu::of(server.pid())?.since(&before).as_secs_f64() / REST_WINDOW.as_secs_f64();
        if share < REST {
            return Ok(());
        }
        if begun.elapsed() > SEEN_WITHIN {
            return Err(format!("the server does not come to rest: it uses {share:.2} of a processor").into());
        }
    }
}

fn copy_folder(from: &Path, to: &Path) -> Outcome<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let copy = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &copy)?;
            continue;
        }
        std::fs::copy(entry.path(), &copy)?;
        // on disk before anything is measured
        std::fs::File::open(&copy)?.sync_all()?;
    }
    Ok(())
}

/// A connection whose other half is driven by this runtime.
pub async fn connect(config: &Config) -> Outcome<Client> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

/// The private cluster listens on a socket only.
fn url(config: &Config) -> Outcome<String> {
    let socket = config.get_hosts().iter().find_map(|host| match host {
        Host::Unix(path) => Some(path.display().to_string()),
        Host::Tcp(_) => None,
    });
    let mut encoded = String::new();
    for byte in socket.ok_or("a cluster without a socket")?.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}")?;
        }
    }
    let (user, name) = (config.get_user().unwrap_or_default(), config.get_dbname().unwrap_or_default());
    Ok(format!("postgres://{user}@/{name}?host={encoded}"))
}
