//! The command line: what it takes, and what it exits with. 0: done; 1: it failed, and the message says what to do; 2: the
//! command does not read; 3: the server does not want this identity, and starting again does not help (the service is
//! not restarted after a 3).

use crate::bundle::{self, Bundle, Server, read_or_stdin};
use crate::clock::jitter;
use crate::connection::{self, Departure};
use crate::enrolment::{self, Refused};
use crate::folder::Folder;
use crate::host::Host;
use crate::identity::Identity;
use crate::setting::Setting;
use crate::{install, logging, show};
use clap::{Args, Parser, Subcommand, ValueEnum};
use domain::Secret;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Between tries to enrol.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// The server does not want this identity any more: starting again does not help.
pub const UNWANTED: u8 = 3;
const STOP_WITHIN: Duration = Duration::from_secs(60);

#[derive(Parser)]
#[command(
    name = "millwright-agent",
    version,
    about = "The node agent: enrols, tells of its machine, carries out typed tasks",
    after_help = "Examples:
  millwright-agent install --bundle bundle.json      a service of this machine, that enrols by itself
  millwright-agent enroll --bundle - < bundle.json   enrol now, in the foreground
  millwright-agent run                               stay connected, until stopped
  millwright-agent show -o json                      who this agent is, and what is in this machine
  millwright-agent uninstall                         leave nothing behind

Exit codes: 0 done, 1 failed, 2 the command does not read, 3 the server does not want this identity any more."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Trade a bootstrap token for this machine's certificate
    #[command(after_help = "Examples:
  millwright-agent enroll --bundle bundle.json
  millwright-agent enroll --bundle - < bundle.json
  millwright-agent enroll --server https://millwright.example:7701 --token-file token --authority authority.pem

The bundle and the token are removed when they are used up. The same bundle may be tried again on the same machine.")]
    Enroll(EnrolOptions),
    /// Stay connected and carry out tasks; enrols first where a bundle waits in the state folder
    #[command(after_help = "Examples:
  millwright-agent run
  MILLWRIGHT_AGENT_LOG=debug millwright-agent run --state /srv/agent")]
    Run(RunOptions),
    /// Make the agent a service of this machine
    #[command(after_help = "Example:
  millwright-agent install --bundle bundle.json")]
    Install(InstallOptions),
    /// Remove the agent from this machine, with everything it has brought
    #[command(after_help = "Example:
  millwright-agent uninstall")]
    Uninstall(UninstallOptions),
    /// Show who this agent is, and what is in this machine
    #[command(after_help = "Examples:
  millwright-agent show
  millwright-agent show -o json")]
    Show(ShowOptions),
}

#[derive(Args)]
struct StateOptions {
    /// Folder of the agent's key, certificate and journal
    #[arg(long, value_name = "DIR", default_value = install::STATE)]
    state: PathBuf,
}

#[derive(Args)]
struct MachineOptions {
    /// Root folder of the machine
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

#[derive(Args)]
struct EnrolOptions {
    #[command(flatten)]
    state: StateOptions,
    #[command(flatten)]
    machine: MachineOptions,
    /// The bundle from `millwright node create`; `-` reads standard input
    #[arg(long, value_name = "FILE", required_unless_present = "server", conflicts_with_all = ["server", "token_file", "authority"])]
    bundle: Option<PathBuf>,
    /// Where the server listens for agents, such as https://millwright.example:7701
    #[arg(long, value_name = "URL", requires = "token_file", requires = "authority")]
    server: Option<String>,
    /// File with the token; `-` reads standard input
    #[arg(long, value_name = "FILE", requires = "server")]
    token_file: Option<PathBuf>,
    /// File with the certificate of the server's authority, in PEM
    #[arg(long, value_name = "FILE", requires = "server")]
    authority: Option<PathBuf>,
    /// How long to try while the server cannot be reached
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    wait: u64,
}

#[derive(Args)]
struct RunOptions {
    #[command(flatten)]
    state: StateOptions,
    #[command(flatten)]
    machine: MachineOptions,
}

#[derive(Args)]
struct InstallOptions {
    #[command(flatten)]
    machine: MachineOptions,
    /// The bundle from `millwright node create`; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    bundle: PathBuf,
    /// Folder for its state, instead of /var/lib/millwright-agent of the machine
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// A new bundle for an agent that is installed already
    #[arg(long)]
    replace: bool,
    /// Leave it to somebody else to start it
    #[arg(long)]
    no_start: bool,
}

#[derive(Args)]
struct UninstallOptions {
    #[command(flatten)]
    machine: MachineOptions,
    /// Folder of its state, instead of /var/lib/millwright-agent of the machine
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

#[derive(Args)]
struct ShowOptions {
    #[command(flatten)]
    state: StateOptions,
    #[command(flatten)]
    machine: MachineOptions,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// How the process ends when it does not end well.
struct Failure {
    code: u8,
    message: String,
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self { code: 1, message }
    }
}

pub fn main() -> ExitCode {
    // clap exits with 2 by itself
    let arguments = Arguments::parse();
    logging::start();
    let done = match arguments.command {
        Command::Enroll(options) => with_runtime(enrol_command(options)),
        Command::Run(options) => with_runtime(run_command(options)),
        Command::Install(options) => install_command(&options),
        Command::Uninstall(options) => uninstall_command(&options),
        Command::Show(options) => show_command(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, message }) => {
            drop(writeln!(std::io::stderr().lock(), "millwright-agent: {message}"));
            ExitCode::from(code)
        }
    }
}

fn with_runtime(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    // one thread is plenty for one connection; looks at hardware and files have a few beside it
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .build()
        .map_err(|e| format!("starting: {e}"))?;
    let done = runtime.block_on(work);
    // a look that hangs in a driver does not keep the process
    runtime.shutdown_background();
    done
}

async fn enrol_command(options: EnrolOptions) -> Result<(), Failure> {
    let (bundle, used_up) = bundle_of(&options)?;
    let folder = Arc::new(Folder::open(&options.state.state)?);
    let _lock = folder.lock()?;
    let setting = Setting::new(Host::new(&options.machine.root), folder.clone());
    let until = Instant::now() + Duration::from_secs(options.wait);
    let identity = loop {
        match enrolment::enrol(&setting, &bundle).await {
            Ok(identity) => break identity,
            Err(Refused::Final(why)) => return Err(Failure { code: 1, message: why }),
            Err(Refused::Untrusted(why)) => {
                return Err(Failure { code: 1, message: format!("{why}; nothing was sent to it") });
            }
            Err(Refused::Later(why)) => {
                let wait = Duration::from_millis(500) + jitter(Duration::from_secs(2));
                if Instant::now() + wait >= until {
                    let message = format!(
                        "enrolling this machine: {why}; nothing is lost: run the same command again, the key is kept for it"
                    );
                    return Err(Failure { code: 1, message });
                }
                tracing::warn!("not enrolled yet: {why}");
                tokio::time::sleep(wait).await;
            }
        }
    };
    enrolment::tidy(&folder);
    if let Some(path) = used_up
        && let Err(e) = std::fs::remove_file(&path)
    {
        tracing::warn!("the token in {} is used up, and could not be removed: {e}", path.display());
    }
    say(&format!("enrolled with {} as node {}; start it: millwright-agent run", identity.server, identity.node_id))
}

/// The bundle, and the file that goes when it is used up.
fn bundle_of(options: &EnrolOptions) -> Result<(Bundle, Option<PathBuf>), String> {
    let file = |path: &Path| (path != Path::new("-")).then(|| path.to_owned());
    match (&options.bundle, &options.server, &options.token_file, &options.authority) {
        (Some(path), ..) => Ok((Bundle::load(path)?, file(path))),
        (None, Some(server), Some(token_file), Some(authority)) => {
            let token = String::from_utf8(read_or_stdin(token_file)?)
                .map_err(|_| format!("the token in {} is no text", token_file.display()))?;
            let token = Secret::new(token.trim());
            if token.is_empty() {
                return Err(format!("there is no token in {}", token_file.display()));
            }
            let authority_pem = String::from_utf8(read_or_stdin(authority)?)
                .map_err(|_| format!("the authority in {} is no PEM", authority.display()))?;
            let bundle = Bundle { server: Server::parse(server)?, token, authority_pem, node_id: String::new() };
            Ok((bundle, file(token_file)))
        }
        // clap asks for them
        _ => Err("give --bundle, or --server with --token-file and --authority".to_owned()),
    }
}

async fn run_command(options: RunOptions) -> Result<(), Failure> {
    let (host, state) = (Host::new(&options.machine.root), options.state.state);
    // before anything is made there
    if install::is_unfinished(&host, &state) {
        return depart(&host, &state);
    }
    let folder = Arc::new(Folder::open(&state)?);
    let lock = folder.lock()?;
    let setting = Setting::new(host.clone(), folder.clone());
    let stop = stop_signals()?;
    let identity = tokio::select! {
        identity = identity(&setting) => identity?,
        () = stop.cancelled() => return Ok(()),
    };
    let departure = connection::run(setting, identity.clone(), stop).await?;
    match departure {
        Departure::Stopped => Ok(()),
        Departure::Uninstalled => {
            let gone = depart(&host, &state);
            drop(lock);
            gone
        }
        Departure::Banished { reason, message } => {
            Err(Failure { code: UNWANTED, message: banished(&identity.node_id, &reason, &message) })
        }
    }
}

/// Everything of the agent's goes, and the process after it.
fn depart(host: &Host, state: &Path) -> Result<(), Failure> {
    tracing::info!("the agent was uninstalled by the server: it removes itself");
    install::remove_everything(host, state)?;
    // the unit would start it again, from memory, for anything else
    match std::env::var_os(install::STARTED_BY_UNIT) {
        Some(_) => Err(Failure {
            code: u8::try_from(install::UNINSTALLED).unwrap_or(UNWANTED),
            message: "the agent has removed itself".to_owned(),
        }),
        None => Ok(()),
    }
}

fn banished(node: &str, reason: &str, message: &str) -> String {
    let state = install::STATE;
    let now = match reason {
        "CLONED" => format!(
            "this identity is in use on two machines, and both have stopped: find the copy and remove {state} there, then \
             `millwright node repair {node} --reason WHY` and start this one, or enrol it anew (millwright node rebootstrap {node})"
        ),
        "DELETED" => {
            "the node was removed, and its identity does not come back: `millwright-agent uninstall`, or enrol this \
                      machine as a new node (millwright node create)"
                .to_owned()
        }
        _ => format!(
            "if this machine is to come back: `millwright node rebootstrap {node}`, and enrol with the new bundle"
        ),
    };
    format!("the server does not want node {node} any more ({reason}: {message}); its tasks have ended; {now}")
}

/// The identity that is there, after a bundle that waits was used.
async fn identity(setting: &Setting) -> Result<Identity, Failure> {
    let folder = &setting.folder;
    let known = Identity::load(folder);
    let Some(bundle) = Bundle::waiting(folder)? else {
        return known?.ok_or_else(|| {
            Failure::from(format!(
                "this machine is not enrolled: there is neither an identity nor {} in {}; ask for a bundle (millwright node create) and run `millwright-agent enroll --bundle FILE`",
                bundle::FILE,
                folder.path().display()
            ))
        });
    };
    let mut ceiling = Duration::from_secs(1);
    loop {
        match enrolment::enrol(setting, &bundle).await {
            Ok(identity) => {
                enrolment::tidy(folder);
                return Ok(identity);
            }
            Err(Refused::Final(why)) => {
                enrolment::tidy(folder);
                return match known {
                    Ok(Some(known)) => {
                        tracing::error!(node = %known.node_id, "the new bundle is of no use ({why}): the agent goes on as before");
                        Ok(known)
                    }
                    _ => Err(Failure { code: UNWANTED, message: why }),
                };
            }
            Err(why @ (Refused::Untrusted(_) | Refused::Later(_))) => {
                let wait = Duration::from_millis(100) + jitter(ceiling);
                ceiling = (ceiling * 2).min(RETRY_MAX);
                tracing::warn!("not enrolled yet: {why}");
                tokio::time::sleep(wait).await;
            }
        }
    }
}

fn stop_signals() -> Result<CancellationToken, String> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |e: std::io::Error| format!("listening for signals: {e}");
    let (mut term, mut int) =
        (signal(SignalKind::terminate()).map_err(failed)?, signal(SignalKind::interrupt()).map_err(failed)?);
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        tracing::info!("told to stop");
        told.cancel();
    });
    Ok(stop)
}

fn install_command(options: &InstallOptions) -> Result<(), Failure> {
    let host = Host::new(&options.machine.root);
    let content = read_or_stdin(&options.bundle)?;
    // told before anything is changed on the machine
    Bundle::parse(&content, &options.bundle.display().to_string())?;
    let wanted = install::Options {
        binary: std::env::current_exe().map_err(|e| format!("finding this program: {e}"))?,
        state: options.state.clone().unwrap_or_else(|| host.path(install::STATE)),
        replace: options.replace,
        start: !options.no_start,
    };
    let installed = install::install(&host, &content, &wanted).map_err(|e| format!("installing the agent: {e}"))?;
    let next = if installed.started { "it runs" } else { "start it: systemctl start millwright-agent" };
    let said: String = installed.said.iter().map(|line| format!("{line}\n")).collect();
    let file = &options.bundle;
    let left = if file == Path::new("-") {
        String::new()
    } else {
        format!("; {} still holds the token: remove it", file.display())
    };
    say(&format!("{said}the agent is installed; {next}{left}"))
}

fn uninstall_command(options: &UninstallOptions) -> Result<(), Failure> {
    let host = Host::new(&options.machine.root);
    let state = options.state.clone().unwrap_or_else(|| host.path(install::STATE));
    if host.systemd_runs() {
        // not there, or not running, is as well: the lock tells
        drop(host.call("systemctl", &["stop", "millwright-agent.service"], STOP_WITHIN));
    }
    let _lock = if state.is_dir() { Some(Folder::open(&state)?.lock()?) } else { None };
    install::remove_everything(&host, &state)?;
    say("the agent is removed from this machine; the server still has its node: millwright node remove NODE")
}

fn show_command(options: &ShowOptions) -> Result<(), Failure> {
    let shown = show::show(&options.state.state, &Host::new(&options.machine.root))?;
    match options.output {
        Format::Text => say(show::lines(&shown).trim_end()),
        Format::Json => say(&serde_json::to_string_pretty(&shown).map_err(|e| e.to_string())?),
    }
}

fn say(text: &str) -> Result<(), Failure> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        // whoever reads has seen enough
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(e) => Err(Failure::from(format!("printing: {e}"))),
        Ok(()) => Ok(()),
    }
}
