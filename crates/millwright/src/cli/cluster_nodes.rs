//! `millwright cluster check|cordon|uncordon|drain|delete-node`: clusters, and the machines that are their nodes.

use super::ClientOptions;
use super::connect::{Clients, call, connect};
use super::exit::CliError;
use super::hardware::{changed, trial};
use super::output::{self, Screen, note};
use super::sheet::Sheet;
use super::text::{clean, now, parse_duration};
use clap::{Args, Subcommand};
use proto::millwright::v1::{
    CheckClusterRequest, ClusterHealth, CordonMachineRequest, DeleteClusterNodeRequest, DrainMachineRequest, DrainPass,
};
use std::time::Duration;
use tokio::time::Instant;

/// Between passes of a drain: short at first, since most pods leave at once.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(8);

#[derive(Subcommand)]
pub enum NodeCommand {
    /// Whether a cluster can be reached, and lets us do there what runs will need
    #[command(after_help = "Examples:\n  millwright cluster check prod-1\n  millwright cluster check prod-1 -o json")]
    Check {
        /// The cluster's name, as machines call it (spec.target_cluster_ref)
        #[arg(value_name = "NAME")]
        name: String,
        /// The provider that reaches it; may be left out where only one can
        #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
        provider: String,
    },
    /// Take a machine's node out of its cluster's scheduling; what runs there stays
    #[command(after_help = "Example:\n  millwright cluster cordon m-1 --reason 'fan noise'")]
    Cordon(CordonArgs),
    /// Let a machine's node back into its cluster's scheduling
    #[command(after_help = "Example:\n  millwright cluster uncordon m-1")]
    Uncordon(CordonArgs),
    /// Cordon a machine's node and wait until its pods have left
    #[command(after_help = "Examples:
  millwright cluster drain m-1
  millwright cluster drain m-1 --timeout 30m --grace 60s
  millwright cluster drain m-1 --unmanaged --delete-local-data

Disruption budgets are respected: a pod that may not go now is asked again until --timeout. What is left then is
told with the reason, and the node stays cordoned: repeat the command to go on, or uncordon it.")]
    Drain(DrainArgs),
    /// Take a machine's node object out of its cluster; the machine itself is not touched
    #[command(
        after_help = "Examples:\n  millwright cluster delete-node m-1 --dry-run\n  millwright cluster delete-node m-1

Drain it first: pods on a node that is deleted are lost."
    )]
    DeleteNode {
        /// The machine's id
        #[arg(value_name = "MACHINE")]
        machine: String,
        /// Print what would be sent, and send nothing
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Args)]
pub struct CordonArgs {
    /// The machine's id
    #[arg(value_name = "MACHINE")]
    machine: String,
    /// Why; kept in the audit
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    /// Print what would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
pub struct DrainArgs {
    /// The machine's id
    #[arg(value_name = "MACHINE")]
    machine: String,
    /// How long at most
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_duration)]
    timeout: Duration,
    /// How long each pod has to end, instead of its own time
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    grace: Option<Duration>,
    /// Also pods that nothing will start again elsewhere
    #[arg(long)]
    unmanaged: bool,
    /// Also pods whose local data is lost with them
    #[arg(long)]
    delete_local_data: bool,
    /// Why; kept in the audit
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    /// Print what would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
}

pub async fn execute(command: NodeCommand, options: &ClientOptions) -> Result<(), CliError> {
    match command {
        NodeCommand::Check { name, provider } => {
            let mut clusters = connect(options).await?.clusters;
            let found = call(clusters.check_cluster(CheckClusterRequest { cluster_ref: name, provider })).await?;
            output::one(options.output, &found, &found.cluster_ref, |found| health(found, Screen::stdout()))?;
            match found.problems.len() {
                0 => Ok(()),
                n => Err(CliError::failed(format!("cluster {} has {n} problem(s)", clean(&found.cluster_ref)))),
            }
        }
        NodeCommand::Cordon(args) => cordon(args, true, options).await,
        NodeCommand::Uncordon(args) => cordon(args, false, options).await,
        NodeCommand::Drain(args) => drain(args, options).await,
        NodeCommand::DeleteNode { machine, dry_run } => {
            let request = DeleteClusterNodeRequest { machine_id: machine };
            if dry_run {
                let name = "millwright.v1.ClusterService/DeleteClusterNode";
                return trial(name, &request.machine_id.clone(), &request, options);
            }
            let mut clusters = connect(options).await?.clusters;
            changed(options, &call(clusters.delete_cluster_node(request)).await?)
        }
    }
}

async fn cordon(args: CordonArgs, on: bool, options: &ClientOptions) -> Result<(), CliError> {
    let request = CordonMachineRequest { machine_id: args.machine, on, reason: args.reason };
    if args.dry_run {
        return trial("millwright.v1.ClusterService/CordonMachine", &request.machine_id.clone(), &request, options);
    }
    let mut clusters = connect(options).await?.clusters;
    changed(options, &call(clusters.cordon_machine(request)).await?)
}

async fn drain(args: DrainArgs, options: &ClientOptions) -> Result<(), CliError> {
    let grace_seconds = args.grace.map(|grace| u32::try_from(grace.as_secs()).unwrap_or(u32::MAX));
    let request = DrainMachineRequest {
        machine_id: args.machine,
        grace_seconds,
        unmanaged: args.unmanaged,
        local_data: args.delete_local_data,
        reason: args.reason,
    };
    if args.dry_run {
        return trial("millwright.v1.ClusterService/DrainMachine", &request.machine_id.clone(), &request, options);
    }
    let clients = connect(options).await?;
    let pass = passes(&clients, &request, args.timeout, options.output.is_for_people()).await?;
    output::one(options.output, &pass, &pass.machine_id, |pass| {
        vec![match pass.left.len() {
            0 => format!("{} is drained", clean(&pass.machine_id)),
            n => format!("{} is not drained: {n} pod(s) are left", clean(&pass.machine_id)),
        }]
    })?;
    if pass.drained { Ok(()) } else { Err(unfinished(&pass)) }
}

/// Pass after pass until nothing is left or the time is over; the last one.
async fn passes(
    clients: &Clients,
    request: &DrainMachineRequest,
    timeout: Duration,
    tell: bool,
) -> Result<DrainPass, CliError> {
    let until = Instant::now() + timeout;
    let (mut pause, mut said) = (FIRST_PAUSE, Vec::new());
    loop {
        let pass = call(clients.clusters.clone().drain_machine(request.clone())).await?;
        let news = told(&pass);
        if tell && news != said {
            news.iter().for_each(|line| note(line));
            said = news;
        }
        if pass.drained || Instant::now() + pause > until {
            return Ok(pass);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn told(pass: &DrainPass) -> Vec<String> {
    let evicted = pass.evicted.iter().map(|pod| format!("told to go: {}", clean(pod)));
    let left = pass.left.iter().map(|pod| format!("still there: {} ({})", clean(&pod.pod), clean(&pod.why)));
    evicted.chain(left).collect()
}

fn unfinished(pass: &DrainPass) -> CliError {
    let left: Vec<String> = pass.left.iter().map(|pod| format!("{} ({})", clean(&pod.pod), clean(&pod.why))).collect();
    let id = &pass.machine_id;
    CliError::failed(format!("{id} still has {}", left.join(", "))).because("NOT_DRAINED").hint(format!(
        "it stays cordoned: repeat with a longer --timeout, or give it back with millwright cluster uncordon {id}"
    ))
}

fn health(found: &ClusterHealth, screen: Screen) -> Vec<String> {
    let mut sheet = Sheet::new(screen, now());
    sheet
        .row("Cluster", &found.cluster_ref)
        .row("Endpoint", &found.endpoint)
        .row("Version", &found.version)
        .row("Nodes", &format!("{} ready of {}", found.ready_nodes, found.nodes))
        .rows("Problems", found.problems.iter().cloned());
    sheet.lines()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::millwright::v1::PodLeft;

    #[test]
    fn what_is_left_is_told_with_the_reason_and_the_way_on() {
        let left = vec![PodLeft { pod: "db/pg-0".into(), why: "its budget allows none now".into() }];
        let pass = DrainPass { machine_id: "m-1".into(), drained: false, evicted: vec!["web/a".into()], left };
        assert_eq!(told(&pass), ["told to go: web/a", "still there: db/pg-0 (its budget allows none now)"]);
        let error = unfinished(&pass);
        assert!(error.to_string().contains("db/pg-0 (its budget allows none now)"), "{error}");
        assert!(error.next_step().is_some_and(|hint| hint.contains("cluster uncordon m-1")));
        assert_eq!(error.exit().code(), 1);
    }

    #[test]
    fn a_cluster_is_told_on_one_sheet() {
        let found = ClusterHealth { cluster_ref: "c1".into(), nodes: 3, ready_nodes: 2, ..ClusterHealth::default() };
        assert_eq!(health(&found, Screen::PLAIN), ["Cluster  c1", "Nodes    2 ready of 3"]);
    }
}
