//! What is ordered of a node by hand: tasks for its agent, and decommissions.

use super::ClientOptions;
use super::connect::{call, connect};
use super::dry_run::DryRun;
use super::exit::CliError;
use super::node_act::seconds;
use super::output::{self, Screen, note};
use super::text::{clean, now, parse_duration, possible};
use super::{job_look, task};
use clap::Args;
use clap::builder::PossibleValuesParser;
use proto::millwright::v1::{OrderTaskRequest, StartDecommissionRequest};
use std::path::PathBuf;
use std::time::Duration;

/// The server's own bound is lower.
const SCRIPT_MAX: u64 = 1024 * 1024;

#[derive(Args)]
pub struct OrderArgs {
    /// The node's id, or its name
    #[arg(value_name = "NODE")]
    node: String,
    /// Why; kept in the history
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    /// Show what it prints, and end with it
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
    /// Print what would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
pub struct ExecArgs {
    #[command(flatten)]
    order: OrderArgs,
    /// The file with the script
    #[arg(long, value_name = "FILE")]
    script: PathBuf,
    /// What the script is called with
    #[arg(value_name = "ARG", last = true)]
    args: Vec<String>,
}

#[derive(Args)]
pub struct DecommissionArgs {
    /// The node's id, or its name
    #[arg(value_name = "NODE")]
    node: String,
    /// How much is taken back: soft_reset, storage_cleanup, reimage, full_decommission
    #[arg(long, value_name = "MODE", hide_possible_values = true,
        value_parser = PossibleValuesParser::new(["soft_reset", "storage_cleanup", "full_decommission", "reimage"].map(possible)))]
    mode: String,
    /// Why; kept in the history
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    /// How long what runs there has, e.g. 30m [default: 10m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    grace: Option<Duration>,
    /// End what still runs after that
    #[arg(long)]
    force: bool,
    /// A folder that is emptied, beside those of the configuration
    #[arg(long, value_name = "PATH")]
    scratch: Vec<String>,
    /// Of a reimage: the site's profile, or the boot workflow, that is deployed [default: the one that was deployed last]
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    profile: String,
    /// Ask the server what would happen, and do nothing
    #[arg(long)]
    dry_run: bool,
}

pub async fn exec(args: ExecArgs, options: &ClientOptions) -> Result<(), CliError> {
    let path = args.script.display();
    let read = || -> Result<Vec<u8>, std::io::Error> {
        let large = std::fs::metadata(&args.script)?.len() > SCRIPT_MAX;
        if large { Err(std::io::Error::other("it is too large for a script")) } else { std::fs::read(&args.script) }
    };
    let script = read().map_err(|e| CliError::usage(format!("--script {path}: {e}")))?;
    let OrderArgs { node, reason, wait, dry_run } = args.order;
    let request = OrderTaskRequest { node_id: node, kind: "host.exec".to_owned(), reason, script, args: args.args };
    ordered(request, wait, dry_run, options).await
}

pub async fn order(kind: &str, args: OrderArgs, options: &ClientOptions) -> Result<(), CliError> {
    let OrderArgs { node, reason, wait, dry_run } = args;
    let request = OrderTaskRequest { node_id: node, kind: kind.to_owned(), reason, ..OrderTaskRequest::default() };
    ordered(request, wait, dry_run, options).await
}

async fn ordered(
    request: OrderTaskRequest,
    wait: bool,
    dry_run: bool,
    options: &ClientOptions,
) -> Result<(), CliError> {
    if dry_run {
        return DryRun::new("millwright.v1.TaskService/OrderTask", &request.node_id, &request)?.print(options.output);
    }
    let clients = connect(options).await?;
    let ordered = call(clients.tasks.clone().order_task(request)).await?;
    if wait {
        if options.output.is_for_people() {
            note(&clean(&format!("{} is {}", ordered.id, ordered.status)));
        }
        return task::to_the_end(&clients, &ordered.id, options).await;
    }
    output::one(options.output, &ordered, &ordered.id, |t| {
        vec![
            clean(&format!("{} ({}) is {}", t.id, t.kind, t.status)),
            format!("see what it prints: millwright task output {} -f", t.id),
        ]
    })
}

pub async fn decommission(args: DecommissionArgs, options: &ClientOptions) -> Result<(), CliError> {
    let request = StartDecommissionRequest {
        node_id: args.node,
        mode: args.mode,
        reason: args.reason,
        grace_seconds: seconds(args.grace)?,
        force: args.force,
        scratch_paths: args.scratch,
        profile: args.profile,
        dry_run: args.dry_run,
    };
    let mut jobs = connect(options).await?.jobs;
    let job = call(jobs.start_decommission(request)).await?;
    output::one(options.output, &job, &job.id, |job| {
        if args.dry_run {
            let mut lines = vec![clean(&format!("dry run: nothing was done: {}", job.recommended_because))];
            lines.extend(job_look::stage_lines(job, Screen::stdout(), now()));
            return lines;
        }
        vec![
            clean(&format!("{} ({} {}) is {}", job.id, job.kind, job.mode, job.status)),
            format!("follow it: millwright job watch {}", job.id),
        ]
    })
}
