//! A MAAS that answers at once, on a thread of its own in this process, and the server's site that it is: what it is asked
//! is counted by its own log, and what the server has seen is read from the server's database.

use crate::Outcome;
use crate::client::Clients;
use crate::process::{Launch, Server};
use domain::Timestamp;
use proto::millwright::v1 as mw;
use proto::millwright::v1::credential_service_client::CredentialServiceClient;
use proto::millwright::v1::site_service_client::SiteServiceClient;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;
use store::{Ambient as _, SystemAmbient};
use tempfile::TempDir;
use testkit::maas_sim::log::{By, Kind};
use testkit::maas_sim::{DiskSpec, MaasSim, Options, Racked};
use tokio::sync::oneshot;

pub const SITE: &str = "bench";
const KEY: &str = "bench-key";
pub const BMC: &str = "bench-bmc";
/// Long enough for a busy machine.
const SEEN_WITHIN: Duration = Duration::from_secs(300);

pub fn clock() -> Timestamp {
    static CLOCK: LazyLock<SystemAmbient> = LazyLock::new(SystemAmbient::new);
    CLOCK.now()
}

/// A simulator that lives until this is dropped. Its machines and calls cost the server nothing.
pub struct Maas {
    pub sim: Arc<MaasSim>,
    /// When each request came, by our clock: the simulator asks for the time once for each.
    came: Arc<Mutex<Vec<Timestamp>>>,
    _stop: oneshot::Sender<()>,
    vlan: u64,
}

/// A request that came over the wire.
pub struct Asked {
    pub at: Timestamp,
    pub call: Call,
}

/// Who asked for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The observer, for all machines.
    List,
    /// The observer, for what moved.
    Look,
    /// A job.
    Job,
}

impl Maas {
    pub fn start() -> Outcome<Self> {
        let came: Arc<Mutex<Vec<Timestamp>>> = Arc::default();
        let asked = came.clone();
        let time = move || {
            let now = clock();
            asked.lock().unwrap_or_else(PoisonError::into_inner).push(now);
            u64::try_from(now.micros()).unwrap_or(0) / 1_000_000
        };
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::channel();
        // ends when the other half is dropped
        std::thread::spawn(move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
            runtime.block_on(async {
                let sim = MaasSim::start(Options { time: Arc::new(time), ..Options::default() }).await;
                drop(tell.send(Arc::new(sim)));
                drop(stopped.await);
            });
        });
        let sim: Arc<MaasSim> = told.recv()?;
        sim.resize_pxe("10.20.0.0/16");
        let (vlan, _) = sim.add_subnet("fabric", "10.64.0.0/12");
        // one question was its own
        came.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(Self { sim, came, _stop: stop, vlan })
    }

    /// Into the rack, with two disks and a card for the fabric.
    pub fn rack(&self, number: usize) {
        let disks = vec![
            DiskSpec::new("sda", "Micron 7450", 3_840_000_000_000),
            DiskSpec::new("sdb", "DELLBOSS VD", 480_000_000_000),
        ];
        let racked = Racked::new(&mac(number), &bmc_address(number)).disks(disks);
        self.sim.rack(racked.nic("eth1", &mac(number).replacen("52:54:00", "52:54:0f", 1), self.vlan));
    }

    /// What the server has asked, in order, from the `from`th request on.
    pub fn asked(&self, from: usize) -> Vec<Asked> {
        let came = self.came.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let log = self.sim.log();
        let requests = log.iter().filter_map(|entry| match &entry.kind {
            Kind::Request { method, path, op, fields, .. } => {
                Some((matches!(entry.by, By::Account(_)), call(method, path, op, fields)))
            }
            _ => None,
        });
        let timed = requests.zip(came).skip(from);
        timed.filter(|((ours, _), _)| *ours).map(|((_, call), at)| Asked { at, call }).collect()
    }

    /// Requests so far, ours and those of others.
    pub fn requests(&self) -> usize {
        self.came.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// The observer follows the events of all machines, and reads machines by id; a job asks for the events of its own machine,
/// and finds machines by their MAC.
fn call(method: &str, path: &str, op: &str, fields: &[String]) -> Call {
    let has = |name: &str| fields.iter().any(|field| field == name);
    match (method, path, op) {
        ("GET", "/MAAS/api/2.0/machines/", "") if fields.is_empty() => Call::List,
        ("GET", "/MAAS/api/2.0/machines/", "") if has("id") => Call::Look,
        ("GET", "/MAAS/api/2.0/events/", "query") if !has("id") => Call::Look,
        _ => Call::Job,
    }
}

pub fn mac(number: usize) -> String {
    format!("52:54:00:{:02x}:{:02x}:{:02x}", number >> 16 & 0xff, number >> 8 & 0xff, number & 0xff)
}

pub fn bmc_address(number: usize) -> String {
    format!("10.{}.{}.{}", 100 + (number >> 16 & 0xff), number >> 8 & 0xff, number & 0xff)
}

/// A server with that MAAS as its one site.
pub struct Ground {
    pub server: Server,
    pub clients: Clients,
    /// Where agents come to.
    pub agents: std::net::SocketAddr,
    database: PathBuf,
    _folder: TempDir,
}

impl Ground {
    pub async fn new(maas: &Maas) -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("millwright-bench-maas-").tempdir()?;
        let agents = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let data = folder.path().join("data");
        let settings = [("agents.listen", agents.to_string()), ("limits.calls_per_second", "100000".to_owned())];
        let settings = settings.map(|(key, value)| (key.to_owned(), value)).to_vec();
        let launch = Launch { data: data.clone(), database: None, simulated: false, settings };
        let server = launch.start()?;
        let clients = Clients::connect(&server).await?;
        let mut credentials = CredentialServiceClient::new(clients.door(0));
        let key = mw::SetCredentialRequest {
            name: KEY.to_owned(),
            kind: "maas".to_owned(),
            api_key: maas.sim.key(),
            ..Default::default()
        };
        credentials.set_credential(key).await?;
        let login = mw::SetCredentialRequest {
            name: BMC.to_owned(),
            kind: "bmc".to_owned(),
            username: "u".to_owned(),
            password: "p".to_owned(),
            ..Default::default()
        };
        credentials.set_credential(login).await?;
        let site = mw::Site {
            name: SITE.to_owned(),
            url: maas.sim.url(),
            credentials_ref: KEY.to_owned(),
            profiles: vec![profile()],
            ..Default::default()
        };
        SiteServiceClient::new(clients.door(0)).create_site(mw::CreateSiteRequest { site: Some(site) }).await?;
        Ok(Self { server, clients, agents, database: data.join("millwright.db"), _folder: folder })
    }

    /// A connection that only looks, past the server: looking costs it nothing.
    pub fn look(&self) -> Outcome<rusqlite::Connection> {
        Ok(rusqlite::Connection::open_with_flags(&self.database, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY)?)
    }

    /// Waits until the database says so many.
    pub async fn until(&self, what: &str, sql: &str, count: usize) -> Outcome<()> {
        let (look, begun) = (self.look()?, tokio::time::Instant::now());
        let mut so_far = 0u32;
        while (so_far as usize) < count {
            if begun.elapsed() > SEEN_WITHIN {
                return Err(format!("only {so_far} of {count} {what} after {} s", SEEN_WITHIN.as_secs()).into());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
            so_far = look.query_row(sql, [], |row| row.get(0))?;
        }
        Ok(())
    }
}

/// Which asks for everything that a profile can: a disk by its model, a fabric, tags.
fn profile() -> mw::SiteProfile {
    mw::SiteProfile {
        name: "gpu".to_owned(),
        series: "noble".to_owned(),
        boot_disk: Some(mw::DiskRule { model: "BOSS".to_owned(), ..Default::default() }),
        roce: vec![mw::RoceNetwork {
            interface: "eth1".to_owned(),
            subnet: "name:fabric".to_owned(),
            mode: "auto".to_owned(),
            mtu: 9000,
        }],
        agent_url: "https://images.example/millwright-agent".to_owned(),
        agent_sha256: "ab".repeat(32),
        tags: vec!["gpu".to_owned()],
        ..Default::default()
    }
}
