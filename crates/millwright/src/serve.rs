//! `millwright serve`: puts the pieces together, runs until told to stop, hands over.

use crate::agents::Agents;
use crate::config::{ActiveRuns, Config};
use crate::data_dir::{AdminToken, DataDir, Start};
use crate::logging::Logging;
use crate::maintenance::say;
use crate::netboot::{Netboot, Running};
use crate::open_files;
use crate::plan_folder;
use crate::providers;
use crate::secrets;
use crate::sites;
use clap::Args;
use engine::{Engine, EngineOptions, Workflow};
use provider::Providers;
use reconcile::{Reconciler, ReconcilerOptions, SiteReach};
use service::{Call, CallerLimits, NetbootOrders, NewMachine, Service, Vault};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use store::{Ambient, Options, Store, SystemAmbient};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use workflow::{JobWorkflow, NodePolicy, RunWorkflow};

#[derive(Args, Default)]
#[command(after_help = "Examples:
  millwright serve --sim 10
  millwright serve --database postgres://millwright@db/millwright --config /etc/millwright.toml
  millwright serve --netboot eno2 --config /etc/millwright.toml

Every key of the configuration can be set as MILLWRIGHT_SECTION__KEY, e.g. MILLWRIGHT_ENGINE__WORKERS=64.")]
pub struct ServeOptions {
    /// Where to listen [default: 127.0.0.1:7700]
    #[arg(long)]
    pub listen: Option<String>,
    /// The folder that belongs to this server; without --database the database is in it [default: millwright-data]
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// A PostgreSQL database that several servers can share; the password comes from database.password_file
    /// or MILLWRIGHT_DATABASE__PASSWORD
    #[arg(long)]
    pub database: Option<String>,
    /// A configuration file (TOML)
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Offer the provider `sim`, and register N simulated machines at the first start
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "0")]
    pub sim: Option<usize>,
    /// Boot machines from the network that this interface is on: DHCP and TFTP there, and HTTP at netboot.listen
    #[arg(long, value_name = "IFACE")]
    pub netboot: Option<String>,
    /// Where agents come to [default: the port after that of --listen]
    #[arg(long, value_name = "LISTEN", conflicts_with = "no_agents")]
    pub agent_listen: Option<String>,
    /// Take no agents
    #[arg(long)]
    pub no_agents: bool,
    /// At a stop, cancel the active runs instead of handing them over
    #[arg(long)]
    pub cancel_runs_on_shutdown: bool,
    /// Write a fresh administrator's token to DATA/admin.token, for when all others are lost
    #[arg(long)]
    pub new_admin_token: bool,
    /// Listen beyond loopback although tokens and data then cross the network unencrypted
    #[arg(long)]
    pub allow_plaintext: bool,
}

/// Simulated machines that one flag may register.
const SIM_MACHINES_MAX: usize = 100_000;
/// How long a stop waits for controllers to close our sessions; what is left ends by itself.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);
/// How long a stop waits for canceled runs to end.
const CANCEL_WITHIN: Duration = Duration::from_secs(30);

/// A server that runs.
pub struct Server {
    pub service: Service,
    pub address: SocketAddr,
    pub admin: AdminToken,
    data: DataDir,
    engine: Engine,
    providers: Providers,
    reconciler: Reconciler,
    netboot: Running,
    agents: tokio::task::JoinHandle<()>,
    stop: CancellationToken,
    /// Whether it speaks TLS.
    encrypted: bool,
    listening: tokio::task::JoinHandle<Result<(), Box<dyn std::error::Error + Send + Sync>>>,
    /// Set when nobody listens any more, whatever the reason.
    deaf: CancellationToken,
    cancel_runs: bool,
}

pub async fn run(options: ServeOptions) -> Result<ExitCode, String> {
    let config = configure(&options)?;
    let logging = Logging::start(&config.log, &config.telemetry)?;
    open_files::raise(&config);
    let ended = serve(&options, &config).await;
    logging.finish().await;
    ended
}

async fn serve(options: &ServeOptions, config: &Config) -> Result<ExitCode, String> {
    let server = Server::start(options, config).await?;
    // before it is announced: whoever has read that it serves may ask it to stop
    let mut signals = StopSignals::listen()?;
    say(&format!("millwright {} listens on {}", env!("CARGO_PKG_VERSION"), server.url()));
    say(&format!("data folder: {}", server.data.path.display()));
    if let Some(told) = &server.netboot.told {
        say(told);
    }
    if let AdminToken::Made(_) = &server.admin {
        say("a new administrator token was made");
    }
    match server.admin.file() {
        Some(path) => say(&format!("administrator token: {}", path.display())),
        None => {
            say("administrator token: none in the data folder; use the one you kept, or start with --new-admin-token")
        }
    }
    let (engine, deaf) = (server.engine.clone(), server.deaf.clone());
    tokio::select! {
        () = signals.next() => {}
        // a server that looks healthy and does nothing is worse than one that is gone
        () = deaf.cancelled() => {
            server.stop().await;
            return Err("the server listens no more; the log has the reason".to_owned());
        }
        () = engine.ended() => {
            server.stop().await;
            return Err("the engine has ended by itself; the log has the reason".to_owned());
        }
    }
    say("stopping: work in hand goes to its next checkpoint (a second signal ends at once)");
    tokio::select! {
        () = server.stop() => Ok(ExitCode::SUCCESS),
        () = signals.next() => Ok(ExitCode::FAILURE),
    }
}

/// The signals that ask for a stop, heard from the moment this is made.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub fn listen() -> Result<Self, String> {
        let listen = |kind| signal(kind).map_err(|e| format!("listening for signals: {e}"));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// The file and the environment, with the flags over them.
fn configure(options: &ServeOptions) -> Result<Config, String> {
    let mut config = Config::load(options.config.as_deref())?;
    if let Some(listen) = &options.listen {
        listen.clone_into(&mut config.server.listen);
    }
    if let Some(data) = &options.data {
        data.clone_into(&mut config.server.data);
    }
    if let Some(url) = &options.database {
        url.clone_into(&mut config.database.url);
    }
    if let Some(interface) = &options.netboot {
        config.netboot.interface = Some(interface.clone());
    }
    if let Some(listen) = &options.agent_listen {
        config.agents.listen = Some(listen.clone());
        config.agents.enabled = true;
    }
    if options.no_agents {
        config.agents.enabled = false;
    }
    if options.cancel_runs_on_shutdown {
        config.shutdown.active_runs = ActiveRuns::Cancel;
    }
    Ok(config)
}

impl Server {
    pub async fn start(options: &ServeOptions, config: &Config) -> Result<Self, String> {
        let data = DataDir::open(&config.server.data)?;
        let ambient: Arc<dyn Ambient> = Arc::new(SystemAmbient::new());
        // before anything that is measured
        let metrics = api::collect_metrics(ambient.now())?;
        let database = database(&config.database, data.database())?;
        let opening = ambient.clone();
        let store = tokio::task::spawn_blocking(move || Store::open(&database, opening))
            .await
            .map_err(|e| format!("opening the database: {e}"))?
            .map_err(|e| e.to_string())?;
        let vault = open_vault(config, &data, &store).await;
        let netboot = Arc::new(NetbootOrders::new(store.clone()));
        let sites = sites::working(config);
        let parts = providers::Parts {
            store: &store,
            data: &data.path,
            ambient: &ambient,
            vault: &vault,
            netboot,
            sites: sites.clone(),
        };
        let providers = providers::configured(config, options.sim.is_some(), parts)?;
        let first_start = data.is_new();
        let instance = data.instance_id(|| ambient.uuid().to_string())?;
        let (hands, bundles) = sites::hands(sites, &vault);
        let workflows: Vec<Arc<dyn Workflow>> =
            vec![Arc::new(RunWorkflow::new(providers.clone())), Arc::new(JobWorkflow::new(node_policy(config), hands))];
        let observing = reconciler_options(config, &instance);
        let engine = Engine::new(store.clone(), engine_options(config, instance), workflows, None);
        let service = Service::with_vault(store, engine.clone(), providers.clone(), caller_limits(config), vault)
            .await
            .map_err(|e| e.to_string())?;
        service.keeps_nodes_by(node_policy(config));
        let looking = sites::observing();
        service.reaches_sites_by(looking.clone());
        bundles.come_from(&service);
        let reach = SiteReach { keyring: Arc::new(service.vault().clone()), clients: looking };
        let observing = ReconcilerOptions { sites: Some(reach), ..observing };
        let start = match first_start {
            _ if options.new_admin_token => Start::Fresh,
            true => Start::First,
            false => Start::Later,
        };
        let admin = data.ensure_admin(service.access(), start, ambient.now()).await?;
        if let Some(folder) = &config.plans.folder {
            plan_folder::load(&service, folder).await?;
        }
        if let Some(count) = options.sim {
            register_simulated(&service, count).await?;
        }
        // before the engine: a port that is taken should not cost a session
        let tls = load_tls(config, &ambient)?;
        let listener = listen(&config.server.listen, tls.is_some() || options.allow_plaintext).await?;
        let address = listener.local_addr().map_err(|e| format!("listening on {}: {e}", config.server.listen))?;
        let url = url_of(tls.is_some(), address);
        let netboot = Netboot::open(config, &data.path, &service, &ambient).await?;
        let agents = Agents::open(config, &service).await?;
        engine.start().await.map_err(|e| format!("starting the engine: {e}"))?;
        let reconciler = Reconciler::start(service.store(), providers.clone(), observing);
        let stop = CancellationToken::new();
        let encrypted = tls.is_some();
        let serving = api::ServerOptions {
            tls,
            metrics: Some(netboot.measured(metrics)),
            metrics_public: config.metrics.public,
            beside: netboot.beside(config, &service, &config.netboot.public_url.clone().unwrap_or(url)),
            ..api::ServerOptions::default()
        };
        let deaf = CancellationToken::new();
        let guard = deaf.clone().drop_guard();
        let listens = api::serve(listener, service.clone(), serving, stop.clone());
        let listening = tokio::spawn(async move {
            let ended = listens.await;
            drop(guard);
            ended
        });
        let netboot = netboot.run(config, &service, &stop, deaf.clone().drop_guard());
        let agents = agents.run(config, &service, &stop, deaf.clone().drop_guard());
        let cancel_runs = config.shutdown.active_runs == ActiveRuns::Cancel;
        Ok(Self {
            service,
            address,
            admin,
            data,
            engine,
            providers,
            reconciler,
            netboot,
            agents,
            stop,
            encrypted,
            listening,
            deaf,
            cancel_runs,
        })
    }

    pub fn url(&self) -> String {
        url_of(self.encrypted, self.address)
    }

    /// Refuses new calls, ends the streams, hands the work over, lets calls in flight finish.
    pub async fn stop(self) {
        // the door stays open until the work is handed over: whoever calls meanwhile is told when to come
        // back, and not left to guess from a port that nobody listens on
        self.service.refuse_calls();
        if self.cancel_runs
            && let Err(e) =
                self.engine.cancel_all(workflow::RUN_WORKFLOW, "system", "server_shutdown", CANCEL_WITHIN).await
        {
            tracing::error!(error = %e, "canceling the active runs");
        }
        self.service.close();
        self.reconciler.stop().await;
        self.engine.stop().await;
        self.stop.cancel();
        match self.listening.await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => tracing::error!(error = %e, "serving"),
            Err(e) => tracing::error!(error = %e, "serving"),
        }
        self.netboot.ended().await;
        if let Err(e) = self.agents.await {
            tracing::error!(error = %e, "serving agents");
        }
        // nobody asks a machine any more
        if tokio::time::timeout(CLOSE_WITHIN, self.providers.close()).await.is_err() {
            tracing::warn!("not every controller closed its session in time; what is left ends by itself");
        }
        let store = self.service.store().clone();
        // the last writes are durable before the process ends
        drop(tokio::task::spawn_blocking(move || store.close()).await);
    }
}

fn url_of(encrypted: bool, address: SocketAddr) -> String {
    format!("{}://{address}", if encrypted { "https" } else { "http" })
}

pub(crate) fn database(database: &crate::config::Database, embedded: PathBuf) -> Result<Options, String> {
    if database.url.is_empty() {
        return Ok(Options::Sqlite(embedded));
    }
    let bad = |e: &dyn std::fmt::Display| format!("database.url: {e}; expected postgres://USER@HOST:PORT/NAME");
    let mut parsed: tokio_postgres::Config = database.url.parse().map_err(|e| bad(&e))?;
    if parsed.get_password().is_some() {
        return Err(
            "database.url: must not hold the password; use database.password_file or MILLWRIGHT_DATABASE__PASSWORD"
                .into(),
        );
    }
    if let Some(file) = &database.password_file {
        let text =
            std::fs::read_to_string(file).map_err(|e| format!("database.password_file {}: {e}", file.display()))?;
        parsed.password(text.trim());
    } else if let Some(password) = &database.password {
        parsed.password(password.reveal());
    }
    parsed.application_name("millwright");
    Ok(Options::Postgres(Box::new(parsed)))
}

fn engine_options(config: &Config, instance: String) -> EngineOptions {
    EngineOptions {
        lease: Duration::from_secs(config.engine.lease_seconds),
        call_timeout: Duration::from_secs(config.engine.call_timeout_seconds),
        workers: config.engine.workers,
        destructive_per_rack_and_hour: config.engine.destructive_per_rack_and_hour,
        ..EngineOptions::new(instance)
    }
}

fn caller_limits(config: &Config) -> CallerLimits {
    CallerLimits {
        calls_per_second: config.limits.calls_per_second,
        burst: config.limits.burst,
        streams: config.limits.streams_per_caller,
    }
}

fn node_policy(config: &Config) -> NodePolicy {
    NodePolicy { heartbeat: config.agents.heartbeat(), ..NodePolicy::default() }
}

fn reconciler_options(config: &Config, instance: &str) -> ReconcilerOptions {
    let observe = &config.observe;
    ReconcilerOptions {
        period: Duration::from_secs(observe.period_seconds),
        timeout: Duration::from_secs(observe.timeout_seconds),
        concurrency: observe.concurrency,
        stale_after: Duration::from_secs(observe.stale_after()),
        silent_after: config.netboot.silent_after(),
        nodes: node_policy(config),
        ..ReconcilerOptions::new(instance)
    }
}

/// The credentials, and so the keyring of the providers.
async fn open_vault(config: &Config, data: &DataDir, store: &Store) -> Vault {
    let loaded = secrets::load(&config.secrets, &data.path, store.is_shared()).await;
    if config.secrets.is_configured() {
        for problem in &loaded.problems {
            tracing::warn!("{problem}");
        }
    }
    let vault = Vault::new(store.clone(), loaded.keys);
    match vault.unopened().await {
        Ok(keys) => {
            for (key_id, credentials) in keys {
                tracing::warn!(key_id, credentials, "credentials are sealed under a key that is not configured");
            }
        }
        Err(e) => tracing::warn!(error = %e, "looking which keys credentials are sealed under"),
    }
    vault
}

fn load_tls(config: &Config, ambient: &Arc<dyn Ambient>) -> Result<Option<Arc<api::Tls>>, String> {
    config.tls.pair().map(|(cert, key)| api::Tls::load(cert, key, ambient.now())).transpose()
}

async fn listen(address: &str, allowed_beyond_loopback: bool) -> Result<TcpListener, String> {
    let listener = TcpListener::bind(address).await.map_err(|e| format!("listening on {address}: {e}"))?;
    let beyond = listener.local_addr().is_ok_and(|a| !a.ip().is_loopback());
    if beyond && !allowed_beyond_loopback {
        return Err(format!(
            "{address} can be reached from other machines, and tokens would cross the network unencrypted; set tls.cert and tls.key, listen on 127.0.0.1, or say --allow-plaintext"
        ));
    }
    Ok(listener)
}

/// At the first start only: an operator who removed them does not want them back.
async fn register_simulated(service: &Service, count: usize) -> Result<(), String> {
    if count > SIM_MACHINES_MAX {
        return Err(format!("--sim {count}: at most {SIM_MACHINES_MAX} machines"));
    }
    if count == 0 || service.store().read(store::machine::count).await.map_err(|e| e.to_string())? > 0 {
        return Ok(());
    }
    let by = Call::system();
    let mut registering = tokio::task::JoinSet::new();
    for n in 1..=count {
        while registering.len() >= 256 {
            joined(registering.join_next().await)?;
        }
        let (service, by) = (service.clone(), by.clone());
        registering.spawn(async move { service.register_machine(&by, simulated_machine(n)).await.map(drop) });
    }
    while !registering.is_empty() {
        joined(registering.join_next().await)?;
    }
    Ok(())
}

type Joined = Option<Result<Result<(), domain::Error>, tokio::task::JoinError>>;

fn joined(result: Joined) -> Result<(), String> {
    match result {
        None | Some(Ok(Ok(()))) => Ok(()),
        Some(Ok(Err(e))) => Err(format!("registering a simulated machine: {e}")),
        Some(Err(e)) => Err(format!("registering a simulated machine: {e}")),
    }
}

pub fn simulated_machine(n: usize) -> NewMachine {
    NewMachine {
        id: format!("sim-{n:04}"),
        spec: domain::machine::MachineSpec {
            provider: "sim".to_owned(),
            location: "simulated".to_owned(),
            rack: format!("r{}", (n - 1) / 40 + 1),
            serial_number: format!("SIM{n:06}"),
            mac_addresses: vec![format!("02:00:00:{:02x}:{:02x}:{:02x}", n >> 16 & 0xff, n >> 8 & 0xff, n & 0xff)],
            ..domain::machine::MachineSpec::default()
        },
        ..NewMachine::default()
    }
}
