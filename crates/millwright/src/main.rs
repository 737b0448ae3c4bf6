//! `millwright`: the control plane and its command line.

#[cfg(test)]
mod advice;
#[cfg(test)]
mod advice_nodes;
mod agents;
mod agents_config;
mod cli;
mod config;
mod data_dir;
mod demo;
mod doctor;
#[cfg(test)]
mod fuzz;
mod logging;
mod maintenance;
mod netboot;
mod netboot_config;
mod open_files;
mod plan_folder;
mod providers;
mod secrets;
mod serve;
mod sites;
mod toml_error;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
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
  millwright run start sim-0001 --type REPAVE --wait
  millwright why sim-0001                  what it waits for, and what you can do
  millwright doctor                        is everything as it should be?"
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
    /// Check a configuration and everything it points at, and the way to the server
    Doctor(doctor::DoctorOptions),
    #[command(flatten)]
    Client(cli::Command),
    /// Print a script that completes commands in your shell
    Completion(cli::CompletionArgs),
    /// Print the manual page, or write one for each command
    Man(cli::ManArgs),
}

fn main() -> ExitCode {
    cli::install_cryptography();
    let parsed = Arguments::command().try_get_matches().and_then(|m| Arguments::from_arg_matches(&m));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => return cli::usage_error(&error, std::env::args_os()),
    };
    let server_side = matches!(arguments.command, Command::Serve(_) | Command::Demo(_));
    let mut builder = if server_side {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let format = arguments.client.output;
    let outcome = match builder.enable_all().build() {
        Ok(runtime) => runtime.block_on(execute(arguments)),
        Err(e) => Err(format!("starting the runtime: {e}")),
    };
    outcome.unwrap_or_else(|message| cli::CliError::failed(message).report(format))
}

async fn execute(arguments: Arguments) -> Result<ExitCode, String> {
    let format = arguments.client.output;
    let written = |result: Result<(), cli::CliError>| match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => e.report(format),
    };
    match arguments.command {
        Command::Serve(options) => serve::run(options).await,
        Command::Demo(options) => demo::run(options).await,
        Command::Backup(options) => maintenance::backup(&options),
        Command::Restore(options) => maintenance::restore(&options),
        Command::Doctor(options) => Ok(doctor::run(options, &arguments.client).await),
        Command::Client(command) => Ok(cli::execute(command, arguments.client).await),
        Command::Completion(args) => Ok(written(cli::completion(Arguments::command(), &args))),
        Command::Man(args) => Ok(written(cli::man(Arguments::command(), &args))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every command that can be run, with its path.
    fn leaves(command: &clap::Command, path: &str, found: &mut Vec<(String, clap::Command)>) {
        let mut any = false;
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            any = true;
            leaves(sub, &format!("{path} {}", sub.get_name()), found);
        }
        if !any {
            found.push((path.to_owned(), command.clone()));
        }
    }

    #[test]
    fn every_command_shows_how_it_is_used() {
        let mut found = Vec::new();
        leaves(&Arguments::command(), "millwright", &mut found);
        assert!(found.len() > 30, "found the commands");
        for (path, command) in found {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{path} has no example");
            // an example that cannot be typed teaches nothing
            let words: Vec<&str> = path.split(' ').collect();
            let shows = |line: &str| words.iter().all(|word| line.contains(word));
            assert!(help.lines().any(shows), "{path} is not among its own examples:\n{help}");
        }
    }

    #[test]
    fn the_grammar_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_reference_follows_the_grammar() {
        testkit::golden::check("docs/cli.md", &cli::markdown(Arguments::command()));
    }
}
