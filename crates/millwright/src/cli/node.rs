//! `millwright node …`: enrolments of machines into the GPU service, from their bundle to their removal.

use super::connect::{Clients, call, connect};
use super::exit::CliError;
use super::node_act::{self, DrainArgs, ReasonedArgs, ReasonedOneArgs, WhichArgs};
use super::node_new::{self, CreateArgs};
use super::node_onboard::{self, OnboardArgs};
use super::node_task::{self, DecommissionArgs, ExecArgs, OrderArgs};
use super::output::{self, Screen, note, streamed};
use super::text::{clean, now, possible, precise};
use super::watch::{Resuming, Source, tail};
use super::{ClientOptions, node_look};
use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use domain::node_action::NodeAction;
use proto::millwright::v1::node_service_client::NodeServiceClient;
use proto::millwright::v1::{GetNodeHistoryRequest, GetNodeRequest, ListNodesRequest, Node};
use tonic::{Status, Streaming};

#[derive(Subcommand)]
pub enum NodeCommand {
    /// List nodes: the inventory of those in use, by their coarse states
    #[command(after_help = "Examples:
  millwright node list
  millwright node list --view in_progress
  millwright node list --filter 'status=quarantined' -o wide
  millwright node list --view all --filter 'cordoned_by=\"ann\"' -o name

Views: inventory (active, offline, quarantined, retired, removing), in_progress (bootstrap_issued, enrolling, draining),
archive (deleted), all. A filter by status looks at all of them.
Filters: id, name, status, machine_id, active_job_id, cordoned_by, agent_mode, status_changed_at, created_at.")]
    List {
        #[command(flatten)]
        list: super::ListArgs,
        /// Which part of them
        #[arg(long, value_name = "VIEW", default_value = "", hide_default_value = true, hide_possible_values = true,
            value_parser = PossibleValuesParser::new(["", "inventory", "in_progress", "archive", "all"].map(possible)))]
        view: String,
    },
    /// Show one node: its lifecycle, its agent, what it is enrolled on
    #[command(after_help = "Examples:
  millwright node show gpu-7
  millwright node show nod_0198c5… -o json | jq .agent.inventory")]
    Show {
        /// The node's id, or its name
        #[arg(value_name = "NODE")]
        node: String,
    },
    /// Make a node, and the bundle that its agent is installed with; the bundle is shown this once
    #[command(after_help = "Examples:
  millwright node create gpu-7 --out gpu-7.bundle
  millwright node create gpu-7 --machine m-7 --onboard --out gpu-7.bundle
  millwright node create gpu-7 --bundle-for 2h > gpu-7.bundle

Then, on the machine: millwright-agent install --bundle gpu-7.bundle")]
    Create(CreateArgs),
    /// Onboard a machine of a MAAS site, many of them, or a node whose bundle was issued
    #[command(after_help = "Examples:
  millwright node onboard --site ams --from-maas 4y3h7n
  millwright node onboard gpu-7 --site ams --mac 52:54:00:12:34:56 --power redfish --bmc 10.0.0.7 --credential bmc
  millwright node onboard --site ams --serial SN0042 --dry-run
  millwright node onboard --site ams --filter 'status_name=Ready AND pool=gpu'          shown first; --yes does it
  millwright node onboard --site ams --csv rack-12.csv --power redfish --credential bmc --yes
  millwright node onboard gpu-7                                             its bundle was issued: wait for its agent")]
    Onboard(Box<OnboardArgs>),
    /// Follow a node: one line for each change
    #[command(after_help = "Examples:\n  millwright node watch gpu-7\n  millwright node watch gpu-7 -o json")]
    Watch {
        /// The node's id, or its name
        #[arg(value_name = "NODE")]
        node: String,
    },
    /// Every move of a node, of its jobs and its tasks, the newest first
    #[command(after_help = "Examples:
  millwright node history gpu-7
  millwright node history gpu-7 --limit 200 --offset 200 -o json")]
    History {
        /// The node's id, or its name
        #[arg(value_name = "NODE")]
        node: String,
        /// How many
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i32).range(1..=200))]
        limit: i32,
        /// Pass over so many of the newest
        #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..))]
        offset: i32,
    },
    /// Take nodes out of service for good: their work ends, then they are retired
    #[command(after_help = "Examples:
  millwright node drain gpu-7 --dry-run
  millwright node drain gpu-7 --grace 30m --force --reason 'returned to the lessor'
  millwright node drain --filter 'machine_id=\"m-7\"' --yes

Again: goes on with it, and nothing is done twice. For a while only, use cordon.")]
    Drain(DrainArgs),
    /// Keep new work off nodes; their status stays
    #[command(after_help = "Examples:
  millwright node cordon gpu-7 --reason 'fan noise'
  millwright node cordon --filter 'status=active' --reason 'power work' --yes")]
    Cordon(WhichArgs),
    /// Take a cordon back
    #[command(after_help = "Examples:
  millwright node uncordon gpu-7
  millwright node uncordon --filter 'cordoned_by=\"ann\"' --yes")]
    Uncordon(WhichArgs),
    /// Use retired nodes again, with the identity they have
    #[command(after_help = "Example:\n  millwright node reactivate gpu-7")]
    Reactivate(WhichArgs),
    /// Remove retired nodes: their agents are uninstalled, their identities taken back
    #[command(after_help = "Examples:
  millwright node remove gpu-7 --dry-run
  millwright node remove gpu-7

An identity that is gone never comes back; the machine can be enrolled again as a new node.")]
    Remove(WhichArgs),
    /// Block nodes from scheduling until somebody has looked at them
    #[command(after_help = "Examples:
  millwright node quarantine gpu-7 --reason 'ECC errors'
  millwright node quarantine --filter 'status=offline' --reason 'row 3 lost cooling' --stop-on-failure --yes")]
    Quarantine(ReasonedArgs),
    /// End a quarantine: the node is well again
    #[command(after_help = "Example:\n  millwright node recover gpu-7 --reason 'board replaced'")]
    Recover(ReasonedArgs),
    /// Go on with what nodes are in the middle of
    #[command(after_help = "Examples:
  millwright node resume gpu-7
  millwright node resume --filter 'status=draining' --yes

Its job is woken, resumed or made anew; its task is queued again if its lease ran out, and left alone if it lives.")]
    Resume(WhichArgs),
    /// Give a node's agent a new key by a new bundle; also when a bundle has expired
    #[command(after_help = "Examples:
  millwright node rebootstrap gpu-7 --out gpu-7.bundle
  millwright node rebootstrap gpu-7 --dry-run

The agent's present key is good until another one has come with the bundle.")]
    Rebootstrap(node_new::RebootstrapArgs),
    /// Let a stopped identity go on with its key: the next agent that comes with it is the one
    #[command(after_help = "Example:\n  millwright node repair gpu-7 --reason 'the copy was wiped'")]
    Repair(ReasonedOneArgs),
    /// Take an agent's identity back at once, or a bundle that nobody has used; the node stays
    #[command(after_help = "Example:\n  millwright node revoke gpu-7 --reason 'its disk was stolen'")]
    Revoke(ReasonedOneArgs),
    /// Run a script on a node, as its agent allows it by digest
    #[command(after_help = "Examples:
  millwright node exec gpu-7 --script collect.sh --wait
  millwright node exec gpu-7 --script collect.sh --wait -- --since yesterday

For administrators; the script's SHA-256 must be on the node's list.")]
    Exec(ExecArgs),
    /// Reboot a node by its agent; done when another boot is proven
    #[command(after_help = "Example:\n  millwright node reboot gpu-7 --reason 'new kernel' --wait")]
    Reboot(OrderArgs),
    /// Look for what a tenant may have left on a node; nothing is removed
    #[command(after_help = "Example:\n  millwright node check-clean gpu-7 --wait")]
    CheckClean(OrderArgs),
    /// Take a tenant's traces off a node, or the node out of service for good
    #[command(after_help = "Examples:
  millwright node decommission gpu-7 --mode soft_reset
  millwright node decommission gpu-7 --mode storage_cleanup --scratch /data --dry-run
  millwright node decommission gpu-7 --mode full_decommission --grace 1h --force

soft_reset and storage_cleanup leave the node in service once it is proven clean; full_decommission removes it.")]
    Decommission(DecommissionArgs),
}

pub async fn execute(command: NodeCommand, options: &ClientOptions) -> Result<(), CliError> {
    match command {
        NodeCommand::List { list, view } => {
            let nodes = connect(options).await?.nodes;
            output::list(options.output, &list.filter, list.limit, async |page_size, page_token| {
                let (filter, view) = (list.filter.clone(), view.clone());
                let page =
                    call(nodes.clone().list_nodes(ListNodesRequest { filter, page_size, page_token, view })).await?;
                Ok((page.nodes, page.next_page_token))
            })
            .await
        }
        NodeCommand::Show { node } => {
            let node = get(&connect(options).await?, &node).await?;
            output::one(options.output, &node, &node.id, |node| node_look::sheet(node, Screen::stdout(), now()))
        }
        NodeCommand::Create(args) => node_new::create(args, options).await,
        NodeCommand::Onboard(args) => node_onboard::onboard(*args, options).await,
        NodeCommand::Watch { node } => watch(node, options).await,
        NodeCommand::History { node, limit, offset } => history(node, limit, offset, options).await,
        NodeCommand::Drain(args) => node_act::drain(args, options).await,
        NodeCommand::Cordon(args) => node_act::act(NodeAction::Cordon, args, options).await,
        NodeCommand::Uncordon(args) => node_act::act(NodeAction::Uncordon, args, options).await,
        NodeCommand::Reactivate(args) => node_act::act(NodeAction::Reactivate, args, options).await,
        NodeCommand::Remove(args) => node_act::act(NodeAction::Remove, args, options).await,
        NodeCommand::Quarantine(args) => node_act::act_for(NodeAction::Quarantine, args, options).await,
        NodeCommand::Recover(args) => node_act::act_for(NodeAction::Recover, args, options).await,
        NodeCommand::Resume(args) => node_act::act(NodeAction::Resume, args, options).await,
        NodeCommand::Rebootstrap(args) => node_new::rebootstrap(args, options).await,
        NodeCommand::Repair(args) => node_act::one_for(NodeAction::Repair, args, options).await,
        NodeCommand::Revoke(args) => node_act::one_for(NodeAction::Revoke, args, options).await,
        NodeCommand::Exec(args) => node_task::exec(args, options).await,
        NodeCommand::Reboot(args) => node_task::order("host.reboot", args, options).await,
        NodeCommand::CheckClean(args) => node_task::order("node.validate_clean", args, options).await,
        NodeCommand::Decommission(args) => node_task::decommission(args, options).await,
    }
}

pub async fn get(clients: &Clients, node: &str) -> Result<Node, CliError> {
    call(clients.nodes.clone().get_node(GetNodeRequest { id: node.to_owned() })).await
}

/// The changes of one node. What it is now comes first, however often it is asked.
struct Changes {
    client: NodeServiceClient<super::connect::Door>,
    id: String,
}

impl Source for Changes {
    type Item = Node;
    type Stream = Streaming<Node>;
    const RESTARTS: bool = true;

    async fn open(&mut self, _: Option<u64>) -> Result<Self::Stream, Status> {
        Ok(self.client.watch_node(GetNodeRequest { id: self.id.clone() }).await?.into_inner())
    }

    fn sequence(_: &Node) -> u64 {
        0
    }
}

async fn watch(node: String, options: &ClientOptions) -> Result<(), CliError> {
    let clients = connect(options).await?;
    let format = options.output;
    let changes = Resuming::new(Changes { client: clients.nodes.clone(), id: node }, None);
    tail(changes, true, |node| {
        streamed(format, node, &node.id, |node| {
            let at = jiff::Timestamp::now();
            let at = prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() };
            format!("{}  {}", precise(Some(&at)), node_look::line(node))
        })
    })
    .await
}

async fn history(id: String, limit: i32, offset: i32, options: &ClientOptions) -> Result<(), CliError> {
    let mut nodes = connect(options).await?.nodes;
    let request = GetNodeHistoryRequest { id, limit: Some(limit), offset };
    let found = call(nodes.get_node_history(request)).await?;
    let (shown, total) = (found.data.len() as u64, found.total);
    let mut rows: Option<Vec<node_look::Record>> = Some(found.data.into_iter().map(node_look::Record::new).collect());
    output::list(options.output, "", None, async |_, _| Ok((rows.take().unwrap_or_default(), String::new()))).await?;
    let passed = u64::try_from(offset).unwrap_or(0) + shown;
    if options.output.is_for_people() && total > passed {
        note(&clean(&format!("{shown} of {total}; --offset {passed} shows older ones")));
    }
    Ok(())
}
