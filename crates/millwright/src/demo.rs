//! `millwright demo`: the whole product on a simulated fleet in a temporary folder.

use crate::cli;
use crate::config::{Config, Log, Telemetry};
use crate::logging::Logging;
use crate::maintenance::say;
use crate::serve::{ServeOptions, Server, StopSignals, simulated_machine};
use clap::Args;
use service::{Call, NewMachine, RunView, StartRun};
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "Examples:\n  millwright demo\n  millwright demo --machines 50\n  millwright demo --once")]
pub struct DemoOptions {
    /// How many simulated machines
    #[arg(long, default_value_t = 8)]
    machines: usize,
    /// Exit with the result of the run instead of serving until Ctrl-C
    #[arg(long)]
    once: bool,
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:7700")]
    listen: String,
}

const MACHINES_MAX: usize = 10_000;
/// Slow enough to be watched.
const LATENCY_MS: &str = "700";
const CLUSTER: &str = "demo-cluster";

pub async fn run(options: DemoOptions) -> Result<ExitCode, String> {
    if options.machines == 0 || options.machines > MACHINES_MAX {
        return Err(format!("--machines {}: from 1 to {MACHINES_MAX}", options.machines));
    }
    // holds nothing to flush: the demo sends no traces
    drop(Logging::start(&Log { level: "warn".to_owned(), json: false }, &Telemetry::default())?);
    let folder = tempfile::tempdir().map_err(|e| format!("making a temporary folder: {e}"))?;
    let server = start_server(&options, folder.path()).await?;
    let mut signals = StopSignals::listen()?;
    let result = tokio::select! {
        shown = show(&server, &options) => shown,
        () = signals.next() => Ok(ExitCode::SUCCESS),
    };
    server.stop().await;
    result
}

async fn start_server(options: &DemoOptions, folder: &std::path::Path) -> Result<Server, String> {
    let mut config = Config::default();
    options.listen.clone_into(&mut config.server.listen);
    folder.join("data").clone_into(&mut config.server.data);
    let serve = ServeOptions { sim: Some(0), ..ServeOptions::default() };
    match Server::start(&serve, &config).await {
        Err(e) if e.contains("listening on") => {
            say(&format!("{e}; taking a free port instead"));
            "127.0.0.1:0".clone_into(&mut config.server.listen);
            Server::start(&serve, &config).await
        }
        started => started,
    }
}

async fn show(server: &Server, options: &DemoOptions) -> Result<ExitCode, String> {
    let token_file = server.admin.file().ok_or("the demo has no token")?;
    let token = std::fs::read_to_string(token_file).map_err(|e| format!("reading {}: {e}", token_file.display()))?;
    let url = format!("http://{}", server.address);
    register(server, options.machines).await?;
    say(&format!(
        "millwright demo: {} simulated machines, embedded database in {}",
        options.machines,
        folder_of(token_file)
    ));
    say("");
    say("In another terminal:");
    say(&format!("  export MILLWRIGHT_SERVER={url}"));
    say(&format!("  export MILLWRIGHT_TOKEN={}", token.trim()));
    say(&format!("  {} machine list", program()));
    say("");
    let run = start_repave(server).await?;
    say(&format!("Repaving {} and joining it to {CLUSTER}:", run.run.machine_id));
    let clients = cli::connect_to(&url, token.trim()).await.map_err(|e| e.to_string())?;
    let ended = cli::follow_run(&clients, run.run.id.as_str()).await.map_err(|e| e.to_string())?;
    let succeeded = ended.phase() == proto::baremetal::v1::run::Phase::Succeeded;
    if options.once {
        return Ok(if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    say("");
    say("The server goes on until Ctrl-C. Try:");
    for command in [
        "run start sim-0002 --type REBOOT --wait",
        "machine update sim-0003 --label sim.fault.repave=fail:1",
        "run start sim-0003 --type REPAVE --wait",
    ] {
        say(&format!("  {} {command}", program()));
    }
    // until the caller hears a signal
    std::future::pending().await
}

/// As it was called, so that what is printed can be typed.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "millwright".to_owned())
}

fn folder_of(file: &std::path::Path) -> String {
    file.parent().map_or(String::new(), |p| p.display().to_string())
}

async fn register(server: &Server, machines: usize) -> Result<(), String> {
    let by = Call::system();
    for n in 1..=machines {
        let mut machine: NewMachine = simulated_machine(n);
        machine.labels.insert("env".to_owned(), if n % 4 == 0 { "staging" } else { "prod" }.to_owned());
        machine.labels.insert("sim.latency_ms".to_owned(), LATENCY_MS.to_owned());
        CLUSTER.clone_into(&mut machine.spec.target_cluster_ref);
        server.service.register_machine(&by, machine).await.map_err(|e| format!("registering a machine: {e}"))?;
    }
    Ok(())
}

async fn start_repave(server: &Server) -> Result<RunView, String> {
    let request = StartRun {
        request_id: "demo".to_owned(),
        machine_id: "sim-0001".to_owned(),
        run_type: "REPAVE".to_owned(),
        ..StartRun::default()
    };
    server.service.start_run(&Call::system(), request).await.map_err(|e| format!("starting the run: {e}"))
}
