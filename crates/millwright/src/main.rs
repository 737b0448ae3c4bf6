//! `millwright`: the control plane and its command line.

mod cli;
mod config;
mod data_dir;
mod demo;
mod logging;
mod maintenance;
mod plan_folder;
mod serve;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "millwright",
    version,
    about = "A control plane for fleets of physical servers",
    after_help = "Examples:
  millwright demo                          a simulated fleet, and a repave to watch
  millwright serve --sim 10                a server with ten simulated machines
  millwright machine list                  what is there
  millwright run start sim-0001 --type REPAVE --wait"
)]
struct Arguments {
    #[command(flatten)]
    client: cli::ClientOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant)] // made once, and taken apart at once
enum Command {
    /// Run the control plane
    Serve(serve::ServeOptions),
    /// Show the product on a simulated fleet, with nothing to install
    Demo(demo::DemoOptions),
    /// Copy the embedded database to a file, while the server runs
    Backup(maintenance::BackupOptions),
    /// Put a backup in the place of the embedded database
    Restore(maintenance::RestoreOptions),
    #[command(flatten)]
    Client(cli::Command),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // once, before the first use of TLS; an error means that it is there already
    drop(rustls::crypto::ring::default_provider().install_default());
    let server_side = matches!(arguments.command, Command::Serve(_) | Command::Demo(_));
    let mut builder = if server_side {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = match builder.enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return fail(&format!("starting the runtime: {e}")),
    };
    let outcome = runtime.block_on(async {
        match arguments.command {
            Command::Serve(options) => serve::run(options).await,
            Command::Demo(options) => demo::run(options).await,
            Command::Backup(options) => maintenance::backup(&options),
            Command::Restore(options) => maintenance::restore(&options),
            Command::Client(command) => Ok(cli::execute(command, arguments.client).await),
        }
    });
    match outcome {
        Ok(code) => code,
        Err(e) => fail(&e),
    }
}

fn fail(message: &str) -> ExitCode {
    use std::io::Write as _;
    // a closed stderr leaves nobody to tell
    drop(writeln!(std::io::stderr(), "error: {message}"));
    ExitCode::FAILURE
}
