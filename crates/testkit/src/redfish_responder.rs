//! A Redfish service of our own, after the DMTF's schema: for what emulators lack (sessions, accounts, logs, tasks,
//! BIOS, firmware updates), for faults on demand, and for load. One process serves thousands of systems, told apart
//! by their path (`/redfish/v1/Systems/N`, from 1), by a port of their own, or by an address of their own.
//!
//! What was really done stands in a journal: tests judge by that, not by what was answered.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

mod changes;
mod resources;

use crate::http_faults::{self, Asked, Faults, Handler, Reply};
use crate::tls::Pair;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ServerSessionMemoryCache;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Questions that are remembered word by word.
const REMEMBERED_MAX: usize = 10_000;

/// How it behaves. May be changed while it runs ([`Responder::behave`]).
#[derive(Clone, Debug)]
pub struct Options {
    pub systems: usize,
    /// Each system has a port of its own and is the only one there.
    pub own_ports: bool,
    /// Each system has an address of its own in 127.1.0.0/16, all at one port: Linux takes every address in
    /// 127.0.0.0/8 for itself, and thousands of listeners would be more than one process should have.
    pub own_addresses: bool,
    pub username: String,
    pub password: String,
    /// Whether there is a session service. Basic authentication always works.
    pub sessions: bool,
    pub manufacturer: String,
    pub reset_types: Vec<String>,
    /// The reset types are told in an ActionInfo of their own.
    pub action_info: bool,
    pub boot_targets: Vec<String>,
    /// Resources that are not there, by the last word of their path: `Bios`, `VirtualMedia`, `LogServices` …
    pub lacks: Vec<String>,
    /// Virtual media belong to the manager, as with older services.
    pub media_of_manager: bool,
    /// Changes are answered with 202 and a task that runs for so many looks.
    pub tasks: Option<usize>,
    /// Tasks end so, and nothing is done.
    pub task_failure: Option<String>,
    /// Changes of resources must say which version they change (If-Match), else 428.
    pub wants_etag: bool,
    /// The older pages instead of a collection of sensors, and an LED instead of a location indicator.
    pub old_schema: bool,
    /// Entries of its log, by number; how many on a page; and in which order.
    pub log_entries: usize,
    pub log_page: usize,
    pub log_newest_first: bool,
}

impl Default for Options {
    fn default() -> Self {
        let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect();
        Self {
            systems: 1,
            own_ports: false,
            own_addresses: false,
            username: "operator".into(),
            password: "correct horse".into(),
            sessions: true,
            manufacturer: "Contoso".into(),
            reset_types: words(&[
                "On",
                "ForceOff",
                "GracefulShutdown",
                "GracefulRestart",
                "ForceRestart",
                "PowerCycle",
            ]),
            action_info: false,
            boot_targets: words(&["None", "Pxe", "UefiHttp", "Hdd", "Cd", "BiosSetup"]),
            lacks: Vec::new(),
            media_of_manager: false,
            tasks: None,
            task_failure: None,
            wants_etag: false,
            old_schema: false,
            log_entries: 25,
            log_page: 10,
            log_newest_first: false,
        }
    }
}

/// One machine as it really is.
#[derive(Clone, Debug)]
pub struct System {
    pub uuid: String,
    pub serial: String,
    pub on: bool,
    pub boot_target: String,
    /// `Once`, `Continuous` or `Disabled`.
    pub boot_enabled: String,
    pub boot_mode: String,
    pub media: Option<String>,
    pub bios: Map<String, Value>,
    pub bios_pending: Map<String, Value>,
    pub firmware: String,
    pub lamp: bool,
    /// Raised with every reset.
    pub resets: u64,
    /// Raised with every change.
    pub version: u64,
}

/// Something that was really done.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// The word of the reset, and whether the machine is on after it.
    Power {
        word: String,
        on: bool,
    },
    /// The machine booted from there (`Hdd`: its own order).
    Booted {
        from: String,
    },
    BootSet {
        target: String,
        enabled: String,
        mode: String,
    },
    MediaIn(String),
    MediaOut,
    BiosSet(Map<String, Value>),
    BiosApplied(Map<String, Value>),
    Updated {
        image: String,
        targets: Vec<String>,
    },
    PasswordSet {
        username: String,
    },
    Lamp(bool),
    LoggedIn,
    LoginRefused,
    LoggedOut,
}

#[derive(Clone, Debug)]
pub struct Effect {
    pub at: Instant,
    /// From 1; 0: the controller itself.
    pub system: usize,
    pub what: What,
}

#[derive(Clone, Debug)]
struct Task {
    looks_left: usize,
    of: usize,
    failure: Option<String>,
}

/// What there is behind the listeners.
pub struct World {
    options: RwLock<Options>,
    systems: Vec<Mutex<System>>,
    journal: Mutex<Vec<Effect>>,
    /// By token: the number of the session.
    sessions: Mutex<HashMap<String, u64>>,
    accounts: Mutex<Vec<(String, String)>>,
    tasks: Mutex<Vec<Task>>,
    numbers: AtomicU64,
    questions: AtomicU64,
    remembered: Mutex<Vec<String>>,
}

/// Dropped: it is gone, with all its connections.
pub struct Responder {
    pub world: Arc<World>,
    pub faults: Arc<Faults>,
    ports: Vec<u16>,
    tls: bool,
    closed: CancellationToken,
}

impl Responder {
    pub async fn start(options: Options) -> Self {
        Self::start_with(options, None).await
    }

    /// With TLS, if there is a certificate. `old_tls`: no newer version than 1.2.
    pub async fn start_with(options: Options, tls: Option<(&Pair, bool)>) -> Self {
        let acceptor = tls.map(|(pair, old_tls)| acceptor(pair, old_tls, options.systems));
        // one listener for all addresses has to take them all; what comes by another is nobody's
        let host = if options.own_addresses { "0.0.0.0:0" } else { "127.0.0.1:0" };
        let listeners = if options.own_ports { options.systems } else { 1 };
        let world = Arc::new(World::new(options));
        let (faults, closed) = (Arc::new(Faults::default()), CancellationToken::new());
        let mut ports = Vec::with_capacity(listeners);
        for number in 1..=listeners {
            let listener = TcpListener::bind(host).await.expect("a port");
            ports.push(listener.local_addr().expect("an address").port());
            let alone = match (world.options().own_ports, world.options().own_addresses) {
                (true, _) => Alone::Always(number),
                (false, true) => Alone::ByAddress,
                (false, false) => Alone::Never,
            };
            let door = Arc::new(Door { world: world.clone(), alone });
            tokio::spawn(http_faults::serve(listener, acceptor.clone(), faults.clone(), door, closed.clone()));
        }
        Self { world, faults, ports, tls: acceptor.is_some(), closed }
    }

    /// How a system (from 1) is reached, as a `bmc_endpoint`; without what says how its certificate is judged.
    pub fn endpoint(&self, system: usize) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        let options = self.world.options();
        if options.own_addresses {
            format!("{scheme}://{}:{}", address(system), self.port(1))
        } else if options.own_ports {
            format!("{scheme}://localhost:{}", self.port(system))
        } else if options.systems == 1 {
            format!("{scheme}://localhost:{}", self.port(1))
        } else {
            format!("{scheme}://localhost:{}/redfish/v1/Systems/{system}", self.port(1))
        }
    }

    pub fn port(&self, system: usize) -> u16 {
        self.ports.get(system - 1).or(self.ports.first()).copied().expect("a port")
    }

    pub fn behave(&self, change: impl FnOnce(&mut Options)) {
        change(&mut self.world.options.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// The machine as it really is, from 1.
    pub fn system(&self, number: usize) -> System {
        self.world.system(number).expect("a system").clone()
    }

    /// Changes the machine behind the controller's back.
    pub fn change(&self, number: usize, change: impl FnOnce(&mut System)) {
        change(&mut self.world.system(number).expect("a system"));
    }

    pub fn journal(&self) -> Vec<Effect> {
        lock(&self.world.journal).clone()
    }

    /// What was done to a machine, in order.
    pub fn done_to(&self, system: usize) -> Vec<What> {
        self.world.done_to(system)
    }

    /// The questions since the last time, as `METHOD path`.
    pub fn take_questions(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.world.remembered))
    }

    /// All questions ever.
    pub fn questions(&self) -> u64 {
        self.world.questions.load(Ordering::Relaxed)
    }

    pub fn open_sessions(&self) -> usize {
        lock(&self.world.sessions).len()
    }

    pub fn tokens(&self) -> Vec<String> {
        lock(&self.world.sessions).keys().cloned().collect()
    }

    /// Every session ends, as after a restart of the controller.
    pub fn end_sessions(&self) {
        lock(&self.world.sessions).clear();
    }

    pub fn password_of(&self, username: &str) -> Option<String> {
        lock(&self.world.accounts).iter().find(|(name, _)| name == username).map(|(_, password)| password.clone())
    }

    /// Behind everybody's back.
    pub fn set_password(&self, username: &str, password: &str) {
        lock(&self.world.accounts).retain(|(name, _)| name != username);
        lock(&self.world.accounts).push((username.to_owned(), password.to_owned()));
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

/// The address of a system, from 1.
fn address(system: usize) -> Ipv4Addr {
    let [high, low] = u16::try_from(system).expect("not so many").to_be_bytes();
    Ipv4Addr::new(127, 1, high, low)
}

/// The system at an address; 0, which none has, where it is nobody's.
fn system_at(at: SocketAddr) -> usize {
    match at.ip() {
        IpAddr::V4(ip) => match ip.octets() {
            [127, 1, high, low] => usize::from(u16::from_be_bytes([high, low])),
            _ => 0,
        },
        IpAddr::V6(_) => 0,
    }
}

fn acceptor(pair: &Pair, old_tls: bool, systems: usize) -> TlsAcceptor {
    let versions: &[&rustls::SupportedProtocolVersion] =
        if old_tls { &[&rustls::version::TLS12] } else { rustls::ALL_VERSIONS };
    let certs = CertificateDer::pem_slice_iter(pair.cert.as_bytes()).map(|c| c.expect("PEM")).collect();
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("a key");
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(versions)
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(certs, key)
        .expect("a pair");
    // each of them remembers its own callers, as controllers of their own would
    config.session_storage = ServerSessionMemoryCache::new(256.max(systems * 8));
    TlsAcceptor::from(Arc::new(config))
}

/// One listener.
struct Door {
    world: Arc<World>,
    alone: Alone,
}

/// Whether one system is alone behind a listener.
enum Alone {
    Never,
    Always(usize),
    ByAddress,
}

impl Handler for Door {
    async fn answer(&self, asked: Asked) -> Reply {
        let only = match self.alone {
            Alone::Never => None,
            Alone::Always(number) => Some(number),
            Alone::ByAddress => Some(system_at(asked.at)),
        };
        self.world.answer(&asked, only)
    }
}

impl World {
    fn new(options: Options) -> Self {
        let system = |number: usize| {
            let bios = json!({"BootMode": "Uefi", "NumLock": "On", "Cores": 16, "QuietBoot": true});
            Mutex::new(System {
                uuid: format!("4d570000-0000-4000-8000-{number:012x}"),
                serial: format!("SN{number:06}"),
                on: false,
                boot_target: "None".into(),
                boot_enabled: "Disabled".into(),
                boot_mode: "UEFI".into(),
                media: None,
                bios: bios.as_object().cloned().unwrap_or_default(),
                bios_pending: Map::new(),
                firmware: "1.0.0".into(),
                lamp: false,
                resets: 0,
                version: 1,
            })
        };
        Self {
            systems: (1..=options.systems).map(system).collect(),
            journal: Mutex::default(),
            sessions: Mutex::default(),
            accounts: Mutex::new(vec![
                (options.username.clone(), options.password.clone()),
                ("auditor".into(), "looks only".into()),
            ]),
            tasks: Mutex::default(),
            numbers: AtomicU64::new(1),
            questions: AtomicU64::new(0),
            remembered: Mutex::default(),
            options: RwLock::new(options),
        }
    }

    /// What was done to a machine, in order.
    pub fn done_to(&self, system: usize) -> Vec<What> {
        lock(&self.journal).iter().filter(|e| e.system == system).map(|e| e.what.clone()).collect()
    }

    fn options(&self) -> RwLockReadGuard<'_, Options> {
        self.options.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn system(&self, number: usize) -> Option<MutexGuard<'_, System>> {
        self.systems.get(number.checked_sub(1)?).map(lock)
    }

    fn note(&self, system: usize, what: What) {
        lock(&self.journal).push(Effect { at: Instant::now(), system, what });
    }

    fn answer(&self, asked: &Asked, only: Option<usize>) -> Reply {
        self.questions.fetch_add(1, Ordering::Relaxed);
        {
            let mut remembered = lock(&self.remembered);
            if remembered.len() < REMEMBERED_MAX {
                remembered.push(format!("{} {}", asked.method, asked.path));
            }
        }
        let path = asked.path.split('?').next().unwrap_or_default();
        let Some(below) = path.trim_end_matches('/').strip_prefix("/redfish/v1") else { return not_found(path) };
        let words: Vec<&str> = below.split('/').filter(|word| !word.is_empty()).collect();
        let options = self.options();
        if words.iter().any(|word| options.lacks.iter().any(|l| l == word)) {
            return not_found(path);
        }
        let open = words.is_empty() || (asked.method == "POST" && words == ["SessionService", "Sessions"]);
        if !open && !self.lets_in(asked) {
            return error(401, "the login is not accepted").with("www-authenticate", "Basic realm=\"Redfish\"");
        }
        if asked.method == "GET" {
            self.show(asked, &words, only, &options)
        } else {
            self.change(asked, &words, &options)
        }
    }

    fn lets_in(&self, asked: &Asked) -> bool {
        let header = |name: &str| asked.headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(token) = header("x-auth-token") {
            return lock(&self.sessions).contains_key(token);
        }
        let Some(basic) = header("authorization").and_then(|value| value.strip_prefix("Basic ")) else { return false };
        let decoded = BASE64.decode(basic).unwrap_or_default();
        let text = String::from_utf8_lossy(&decoded);
        let good = text.split_once(':').is_some_and(|(name, password)| self.knows(name, password));
        if !good {
            self.note(0, What::LoginRefused);
        }
        good
    }

    fn knows(&self, name: &str, password: &str) -> bool {
        lock(&self.accounts).iter().any(|(n, p)| n == name && p == password)
    }
}

fn not_found(path: &str) -> Reply {
    error(404, &format!("the resource {path} is not there"))
}

fn error(status: u16, message: &str) -> Reply {
    let info = json!([{"MessageId": "Base.1.8.GeneralError", "Message": message}]);
    let body = json!({"error": {"code": "Base.1.8.GeneralError", "message": "see ExtendedInfo", "@Message.ExtendedInfo": info}});
    Reply::json(status, &body)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
