//! Actions on nodes: one, several by name, or all that a filter finds. The server judges; `--dry-run` asks it what would
//! happen, and a filter is acted on only with `--yes`, after its preview.

use super::ClientOptions;
use super::connect::{Clients, call, connect};
use super::exit::CliError;
use super::output;
use super::text::{clean, parse_duration};
use clap::Args;
use domain::node_action::NodeAction;
use proto::millwright::v1::{ActOnNodesRequest, ActionResult, NodeActionRequest, NodeActionResponse};
use std::time::Duration;

/// All that a filter finds, instead of some by name.
#[derive(Args, Clone, Default)]
pub struct BulkArgs {
    /// All that match, instead of some by name; shown first, and acted on with --yes
    #[arg(long, value_name = "FILTER")]
    pub filter: Option<String>,
    /// How many at a time [default: 4]
    #[arg(long, value_name = "N", requires = "filter", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub concurrency: Option<u32>,
    /// Begin no other once one has failed
    #[arg(long, requires = "filter")]
    pub stop_on_failure: bool,
    /// Do it, and do not only show what would happen
    #[arg(long, requires = "filter", conflicts_with = "dry_run")]
    pub yes: bool,
}

/// Which nodes.
#[derive(Args)]
pub struct Targets {
    /// Ids or names
    #[arg(value_name = "NODE", required_unless_present = "filter", conflicts_with = "filter")]
    nodes: Vec<String>,
    #[command(flatten)]
    bulk: BulkArgs,
    /// Ask the server what would happen, and do nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
pub struct WhichArgs {
    #[command(flatten)]
    targets: Targets,
    /// Why; kept in the history
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
}

#[derive(Args)]
pub struct ReasonedArgs {
    #[command(flatten)]
    targets: Targets,
    /// Why; kept in the history
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

#[derive(Args)]
pub struct DrainArgs {
    #[command(flatten)]
    which: WhichArgs,
    /// How long what runs there has, e.g. 30m [default: 10m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    grace: Option<Duration>,
    /// End what still runs after that
    #[arg(long)]
    force: bool,
}

/// One node, and no filter: what concerns an identity.
#[derive(Args)]
pub struct OneArgs {
    /// The node's id, or its name
    #[arg(value_name = "NODE")]
    pub node: String,
    /// Why; kept in the history
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
    /// Do nothing; say what would happen, or what would be sent
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Args)]
pub struct ReasonedOneArgs {
    /// The node's id, or its name
    #[arg(value_name = "NODE")]
    node: String,
    /// Why; kept in the history
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Ask the server what would happen, and do nothing
    #[arg(long)]
    dry_run: bool,
}

/// What is said about each node.
struct Wish {
    action: NodeAction,
    reason: String,
    grace_seconds: u32,
    force: bool,
}

pub fn seconds(duration: Option<Duration>) -> Result<u32, CliError> {
    let seconds = duration.map_or(0, |d| d.as_secs());
    u32::try_from(seconds).map_err(|_| CliError::usage(format!("--grace: {seconds} s is too long")))
}

pub async fn act(action: NodeAction, args: WhichArgs, options: &ClientOptions) -> Result<(), CliError> {
    let wish = Wish { action, reason: args.reason, grace_seconds: 0, force: false };
    carry_out(args.targets, wish, options).await
}

pub async fn act_for(action: NodeAction, args: ReasonedArgs, options: &ClientOptions) -> Result<(), CliError> {
    let wish = Wish { action, reason: args.reason, grace_seconds: 0, force: false };
    carry_out(args.targets, wish, options).await
}

pub async fn drain(args: DrainArgs, options: &ClientOptions) -> Result<(), CliError> {
    let DrainArgs { which, grace, force } = args;
    let wish = Wish { action: NodeAction::Drain, reason: which.reason, grace_seconds: seconds(grace)?, force };
    carry_out(which.targets, wish, options).await
}

pub async fn one_for(action: NodeAction, args: ReasonedOneArgs, options: &ClientOptions) -> Result<(), CliError> {
    let ReasonedOneArgs { node, reason, dry_run } = args;
    let targets = Targets { nodes: vec![node], bulk: BulkArgs::default(), dry_run };
    carry_out(targets, Wish { action, reason, grace_seconds: 0, force: false }, options).await
}

async fn carry_out(targets: Targets, wish: Wish, options: &ClientOptions) -> Result<(), CliError> {
    let Targets { nodes, bulk, dry_run } = targets;
    let clients = connect(options).await?;
    if let Some(filter) = bulk.filter.clone() {
        return by_filter(&clients, filter, &bulk, dry_run, &wish, options).await;
    }
    match nodes.as_slice() {
        [node] => {
            let done = one(&clients, node, &wish, dry_run).await?;
            let id = done.node.as_ref().map(|n| n.id.clone()).unwrap_or_default();
            output::one(options.output, &done, &id, |done| lines(done, wish.action))
        }
        _ => {
            let mut results = Vec::with_capacity(nodes.len());
            for node in &nodes {
                let made = one(&clients, node, &wish, dry_run).await;
                let told = ActionResult { id: node.clone(), tried: true, ..ActionResult::default() };
                results.push(match made {
                    Ok(done) => ActionResult { ok: true, effect: done.effect, ..told },
                    Err(e) if e.is_an_answer() => ActionResult { message: e.to_string(), ..told },
                    // nothing was decided, and the next one will not be either
                    Err(e) => return Err(e),
                });
            }
            print_results(results, options).await
        }
    }
}

async fn one(clients: &Clients, node: &str, wish: &Wish, dry_run: bool) -> Result<NodeActionResponse, CliError> {
    let mut nodes = clients.nodes.clone();
    let request = NodeActionRequest {
        id: node.to_owned(),
        reason: wish.reason.clone(),
        dry_run,
        grace_seconds: wish.grace_seconds,
        force: wish.force,
    };
    match wish.action {
        NodeAction::Drain => call(nodes.drain_node(request)).await,
        NodeAction::Cordon => call(nodes.cordon_node(request)).await,
        NodeAction::Uncordon => call(nodes.uncordon_node(request)).await,
        NodeAction::Reactivate => call(nodes.reactivate_node(request)).await,
        NodeAction::Remove => call(nodes.remove_node(request)).await,
        NodeAction::Quarantine => call(nodes.quarantine_node(request)).await,
        NodeAction::Recover => call(nodes.recover_node(request)).await,
        NodeAction::Resume => call(nodes.resume_node(request)).await,
        NodeAction::Repair => call(nodes.repair_node(request)).await,
        NodeAction::Revoke => call(nodes.revoke_node(request)).await,
        NodeAction::Rebootstrap => Err(CliError::usage("a new bundle is issued by `millwright node rebootstrap`")),
    }
}

fn lines(done: &NodeActionResponse, action: NodeAction) -> Vec<String> {
    let node = done.node.clone().unwrap_or_default();
    let word = if done.done { format!("{action}") } else { format!("dry run of {action}: nothing was done") };
    let mut lines = vec![clean(&format!("{} ({}) {word}: {}", node.id, node.name, done.effect))];
    if done.done {
        lines.push(clean(&format!("it is {}", node.status)));
        if let Some(job) = &done.job {
            lines.push(clean(&format!("follow it: millwright job watch {}", job.id)));
        }
    }
    lines
}

async fn by_filter(
    clients: &Clients,
    filter: String,
    bulk: &BulkArgs,
    dry_run: bool,
    wish: &Wish,
    options: &ClientOptions,
) -> Result<(), CliError> {
    let request = ActOnNodesRequest {
        filter,
        action: wish.action.as_str().to_owned(),
        reason: wish.reason.clone(),
        dry_run: !bulk.yes,
        concurrency: bulk.concurrency.unwrap_or(0),
        stop_on_failure: bulk.stop_on_failure,
        grace_seconds: wish.grace_seconds,
        force: wish.force,
    };
    let answer = call(clients.nodes.clone().act_on_nodes(request)).await?;
    let count = answer.results.len();
    if bulk.yes || dry_run {
        return print_results(answer.results, options).await;
    }
    print_list(answer.results, options).await?;
    Err(not_confirmed(count))
}

/// A filter can find more than was meant: it is shown first.
pub fn not_confirmed(count: usize) -> CliError {
    CliError::refused(format!("nothing was done: {count} would be acted on as shown"))
        .because("NOT_CONFIRMED")
        .hint("repeat it with --yes")
}

pub async fn print_list(results: Vec<ActionResult>, options: &ClientOptions) -> Result<(), CliError> {
    let mut results = Some(results);
    output::list(options.output, "", None, async |_, _| Ok((results.take().unwrap_or_default(), String::new()))).await
}

/// What became of each; some that were refused or not tried are no success.
pub async fn print_results(results: Vec<ActionResult>, options: &ClientOptions) -> Result<(), CliError> {
    let (all, short) = (results.len(), results.iter().filter(|r| !r.ok).count());
    let untried = results.iter().filter(|r| !r.tried).count();
    print_list(results, options).await?;
    match short {
        0 => Ok(()),
        n if untried > 0 => {
            Err(CliError::refused(format!("{} of {all} were refused, {untried} not tried", n - untried)))
        }
        n => Err(CliError::refused(format!("{n} of {all} were refused"))),
    }
}
