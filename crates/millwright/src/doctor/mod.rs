//! `millwright doctor`: looks at a configuration and everything it points at, and at the way to the server.
//!
//! One line for each thing looked at: fine, doubtful or failed, and then what to do. It changes nothing: no
//! file is made, no schema brought forward, no port kept. It says no secret, whatever it had to read.

mod agents;
mod client;
mod configuration;
mod data;
mod database;
mod hardware;
mod netboot;
mod plans;
mod report;
mod secrets;
mod sites;
mod tls;

use self::report::Report;
use crate::cli::ClientOptions;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "Examples:
  millwright doctor                                    this folder, and the server that commands talk to
  millwright doctor --config /etc/millwright.toml      a server's configuration, before it is started
  millwright doctor --client --context prod            only the way to a server
  millwright doctor -o json | jq '.checks[] | select(.status == \"FAIL\")'

Ends with 0 when nothing failed, else with 1. Nothing is changed by looking.")]
pub struct DoctorOptions {
    /// The server's configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The server's data folder [default: what the configuration says]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Look only at the way to the server, not at a server's configuration
    #[arg(long, conflicts_with_all = ["config", "data"])]
    client: bool,
}

pub async fn run(options: DoctorOptions, client: &ClientOptions) -> ExitCode {
    let mut report = Report::new();
    if !options.client
        && let Some(found) = configuration::check(&mut report, options.config.as_deref(), options.data)
    {
        let held = data::check(&mut report, &found.config);
        let named = database::check(&mut report, &found.config, held).await;
        let keys = secrets::check(&mut report, &found.config, &named.keys).await;
        tls::check(&mut report, &found.tls);
        plans::check(&mut report, &found.config);
        hardware::check(&mut report, &found.config);
        netboot::check(&mut report, &found.config, held, named.images.as_deref());
        data::check_address(&mut report, &found, held);
        agents::check(&mut report, &found.config, held, &keys, named.authority_key.as_deref());
    }
    data::check_clock(&mut report);
    client::check(&mut report, client).await;
    sites::check(&mut report, client).await;
    report.print(client.output)
}
