//! The command line's client side: one file per noun, and below them what all nouns share.
//!
//! A command connects, calls, prints and ends with an exit code that scripts can trust ([`exit`]).
//! Everything is said through the same API that every other client uses; nothing here reads the store.

mod audit;
mod boot;
mod boot_look;
mod boot_watch;
mod cluster;
mod cluster_nodes;
mod connect;
mod context;
mod contexts;
mod credential;
mod discover;
mod dry_run;
mod engine;
mod events;
mod exit;
mod finding;
mod follow;
mod freeze;
#[cfg(test)]
pub mod fuzzed;
mod grammar;
mod hardware;
mod hardware_sheet;
mod image;
mod installer;
mod job;
mod job_look;
mod job_watch;
mod json;
mod machine;
mod machine_look;
mod node;
mod node_act;
mod node_look;
mod node_new;
mod node_onboard;
mod node_task;
mod output;
mod plan;
mod plan_file;
mod progress;
#[cfg(test)]
mod reference;
mod run;
mod run_look;
mod run_watch;
mod secret_input;
mod sheet;
mod site;
mod site_look;
mod target;
mod task;
mod text;
mod tls;
mod token;
mod upload;
mod wait_for;
mod watch;
mod why;
mod workflow;

use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

// for what runs beside the client in this binary: `demo`, `doctor`, and the plan folder of `serve`
pub use self::connect::{call, connect_as, connect_to};
pub use self::exit::CliError;
pub use self::grammar::{CompletionArgs, ManArgs, completion, man, usage_error};
pub use self::output::{Format, Screen, painted};
pub use self::plan_file::read as read_plan_file;
pub use self::progress::follow_run;
#[cfg(test)]
pub use self::reference::markdown;
pub use self::target::{Target, Token};
pub use self::text::{clean, dated, now, span};
pub use self::tls::{AUTHORITYS_OWN_HINT, install as install_cryptography, speaks_tls};

// What a client can be asked to do. (No doc comment: clap would print it as the program's own.)
#[derive(Subcommand)]
pub enum Command {
    /// Machines: register, look at, change, move between phases, work on their hardware
    #[command(subcommand, visible_alias = "machines")]
    Machine(machine::MachineCommand),
    /// Plans: the ordered steps that runs carry out
    #[command(subcommand, visible_alias = "plans")]
    Plan(plan::PlanCommand),
    /// Runs: start, watch, cancel, read their logs, wait for their end
    #[command(subcommand, visible_alias = "runs")]
    Run(run::RunCommand),
    /// Nodes: enrolments of machines into the GPU service; create, drain, quarantine, decommission, remove
    #[command(subcommand, visible_alias = "nodes")]
    Node(node::NodeCommand),
    /// Jobs: staged operations on nodes; watch, retry, resume, cancel
    #[command(subcommand, visible_alias = "jobs")]
    Job(job::JobCommand),
    /// Sites: the MAAS installations that machines come from; create, check, and see their machines
    #[command(subcommand, visible_alias = "sites")]
    Site(site::SiteCommand),
    /// Tasks: orders to nodes' agents, and what they print
    #[command(subcommand, visible_alias = "tasks")]
    Task(task::TaskCommand),
    /// Boot nodes: machines as they boot from the network; approve, install, verify, erase, retire
    #[command(subcommand)]
    Boot(boot::BootCommand),
    /// Workflows: what an installation boots and writes
    #[command(subcommand, visible_alias = "workflows")]
    Workflow(workflow::WorkflowCommand),
    /// Images: kernels, initrds, loaders and disk images that machines boot and write
    #[command(subcommand, visible_alias = "images")]
    Image(image::ImageCommand),
    /// Findings: what does not belong together, until somebody has settled it
    #[command(subcommand, visible_alias = "findings")]
    Finding(finding::FindingCommand),
    /// Tokens: who may call, in which role, for which customer
    #[command(subcommand, visible_alias = "tokens")]
    Token(token::TokenCommand),
    /// Credentials: what machines are reached with; set, list, delete, seal under another key
    #[command(subcommand, visible_alias = "credentials")]
    Credential(credential::CredentialCommand),
    /// Clusters that machines join, and the machines that are their nodes: add, check, drain, remove
    #[command(subcommand, visible_alias = "clusters")]
    Cluster(cluster::ClusterCommand),
    /// Who you are to the server, in which role
    Me(token::MeArgs),
    /// Why something is as it is, what it waits for, and what can be done about it
    Why(why::WhyArgs),
    /// Every change of every state, as it happens
    Events(events::EventsArgs),
    /// Who asked for what, and what came of it
    Audit(audit::AuditArgs),
    /// The engine below the runs: executions and their journals
    #[command(subcommand)]
    Engine(engine::EngineCommand),
    /// Stop all automation until `unfreeze`
    Freeze(freeze::FreezeArgs),
    /// Let automation go on after a freeze
    Unfreeze(freeze::UnfreezeArgs),
    /// Servers that you know by name
    #[command(subcommand, visible_alias = "contexts")]
    Context(context::ContextCommand),
}

const HEADING: &str = "Client options";

// How every client command finds its server, proves who it is, and prints.
#[derive(Args, Clone)]
pub struct ClientOptions {
    /// The server's address [env: MILLWRIGHT_SERVER] [default: the context's, or http://127.0.0.1:7700]
    #[arg(long, global = true, help_heading = HEADING, value_name = "URL")]
    pub server: Option<String>,
    /// The access token; better given by environment, file or context [env: MILLWRIGHT_TOKEN]
    #[arg(long, global = true, help_heading = HEADING, value_name = "TOKEN")]
    pub token: Option<String>,
    /// A file that holds the token; wins over --token. To the local server without any token,
    /// ./millwright-data/admin.token is tried
    #[arg(long, global = true, help_heading = HEADING, value_name = "PATH")]
    pub token_file: Option<PathBuf>,
    /// Certificates (PEM) to trust beside the system's, for https:// [env: MILLWRIGHT_CA_FILE]
    #[arg(long, global = true, help_heading = HEADING, value_name = "PATH")]
    pub ca_file: Option<PathBuf>,
    /// Which of the servers in the contexts file; see `millwright context` [env: MILLWRIGHT_CONTEXT]
    #[arg(long, global = true, help_heading = HEADING, value_name = "NAME")]
    pub context: Option<String>,
    /// How to print; `wide` has more columns and RFC 3339 times, `name` only ids. With `json`, errors are JSON too
    #[arg(
        short,
        long,
        global = true,
        help_heading = HEADING,
        value_enum,
        value_name = "FORMAT",
        default_value_t = Format::Table
    )]
    pub output: Format,
}

/// The options of every list.
#[derive(Args)]
pub struct ListArgs {
    /// Only what matches, e.g. "phase=IN_SERVICE AND labels.env=prod"
    #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true)]
    pub filter: String,
    /// Stop after this many; all are listed by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}

/// Does what was asked, says on stderr what went wrong, and answers with the exit code.
pub async fn execute(command: Command, options: ClientOptions) -> ExitCode {
    match dispatch(command, &options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => mixed_up(&error, &options).unwrap_or(error).report(options.output),
    }
}

/// A connection that broke without a word, because the port speaks TLS and the address says that it does not.
fn mixed_up(error: &CliError, options: &ClientOptions) -> Option<CliError> {
    if error.exit() != exit::Exit::Unreachable || error.is_an_answer() {
        return None;
    }
    let server = Target::resolve(options).ok()?.server;
    let encrypted = server.strip_prefix("http://").filter(|_| tls::speaks_tls(&server))?;
    let error = CliError::unreachable(format!("the server at {server} speaks TLS"));
    Some(error.hint(format!("use https://{encrypted}")))
}

async fn dispatch(command: Command, options: &ClientOptions) -> Result<(), CliError> {
    match command {
        Command::Machine(command) => machine::execute(command, options).await,
        Command::Plan(command) => plan::execute(command, options).await,
        Command::Run(command) => run::execute(command, options).await,
        Command::Node(command) => node::execute(command, options).await,
        Command::Job(command) => job::execute(command, options).await,
        Command::Site(command) => site::execute(command, options).await,
        Command::Task(command) => task::execute(command, options).await,
        Command::Boot(command) => boot::execute(command, options).await,
        Command::Workflow(command) => workflow::execute(command, options).await,
        Command::Image(command) => image::execute(command, options).await,
        Command::Finding(command) => finding::execute(command, options).await,
        Command::Token(command) => token::execute(command, options).await,
        Command::Credential(command) => credential::execute(command, options).await,
        Command::Cluster(command) => cluster::execute(command, options).await,
        Command::Me(_) => token::me(options).await,
        Command::Why(args) => why::execute(args, options).await,
        Command::Events(args) => events::execute(args, options).await,
        Command::Audit(args) => audit::execute(args, options).await,
        Command::Engine(command) => engine::execute(command, options).await,
        Command::Freeze(args) => freeze::freeze(args, options).await,
        Command::Unfreeze(args) => freeze::unfreeze(args, options).await,
        Command::Context(command) => context::execute(command, options),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory as _, Parser};

    #[derive(Parser)]
    struct Top {
        #[command(flatten)]
        options: ClientOptions,
        #[command(subcommand)]
        command: Command,
    }

    fn walk(command: &clap::Command) {
        for sub in command.get_subcommands() {
            assert!(sub.get_about().is_some(), "{} has no description", sub.get_name());
            for argument in sub.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {} has no help", sub.get_name(), argument.get_id());
            }
            walk(sub);
        }
    }

    #[test]
    fn the_grammar_is_sound_and_everything_has_help() {
        Top::command().debug_assert();
        walk(&Top::command());
    }

    #[test]
    fn client_options_are_taken_after_the_verb() {
        let top = Top::parse_from(["millwright", "run", "list", "-o", "json", "--server", "http://h:1"]);
        assert_eq!(top.options.output, Format::Json);
        assert_eq!(top.options.server.as_deref(), Some("http://h:1"));
        assert!(matches!(top.command, Command::Run(_)));
    }

    #[test]
    fn usage_errors_are_caught_before_anything_is_sent() {
        for bad in [
            &["millwright", "run", "list", "--limit", "0"][..],
            &["millwright", "machine", "phase", "m-1", "SLEEPING"],
            &["millwright", "machine", "update", "m-1", "--label", "novalue"],
            &["millwright", "machine", "power", "m-1", "sideways"],
            &["millwright", "machine", "register", "--discover"],
            &["millwright", "cluster", "drain", "m-1", "--timeout", "soon"],
            &["millwright", "engine", "terminate", "exe_1"],
            &["millwright", "freeze"],
            &["millwright", "run", "wait", "run_1", "--timeout", "soon"],
            &["millwright", "run", "wait", "run_1", "--for", "lunch"],
            &["millwright", "run", "start", "m-1", "--type", "DANCE"],
            &["millwright", "token", "create", "ci"],
            &["millwright", "token", "create", "ci", "--role", "king"],
            &["millwright", "token", "create", "ci", "--role", "viewer", "--ttl", "soon"],
            &["millwright", "audit", "--limit", "5", "--all"],
            &["millwright", "credential", "set", "x", "--kind", "telnet"],
            &["millwright", "credential", "set", "x", "--kind", "bmc", "--password", "hunter2"],
            &["millwright", "cluster", "add", "x"],
            &["millwright", "node", "drain"],
            &["millwright", "node", "drain", "n", "--filter", "status=active"],
            &["millwright", "node", "quarantine", "n"],
            &["millwright", "node", "list", "--view", "sideways"],
            &["millwright", "node", "decommission", "n"],
            &["millwright", "node", "exec", "n"],
            &["millwright", "job", "dance", "job_1"],
            &["millwright", "job", "restart_clean", "job_1"],
            &["millwright", "task", "output"],
            &["millwright", "boot", "approve"],
            &["millwright", "boot", "approve", "n", "--wait", "--dry-run"],
            &["millwright", "boot", "history", "n", "--limit", "201"],
            &["millwright", "image", "add", "disk.raw", "--sha256", "abc"],
            &["millwright", "workflow", "create"],
            &["millwright", "site", "create", "lab"],
            &["millwright", "site", "create", "--file", "a", "--url", "b"],
            &["millwright", "site", "machines", "lab", "abc123", "--limit", "3"],
            &["millwright", "credential", "set", "x", "--kind", "maas", "--api-key", "a:b:c"],
        ] {
            let error = Top::try_parse_from(bad).map(|_| ()).expect_err("must be refused");
            assert_eq!(error.exit_code(), 2, "{bad:?}");
        }
    }
}
