//! `millwright boot …`: machines as they boot from the network, from their first boot to their last.

use super::boot_look::{self, done};
use super::boot_watch;
use super::connect::{Clients, call, connect};
use super::dry_run::DryRun;
use super::exit::CliError;
use super::output::{self, Screen, note};
use super::text::{clean, now};
use super::{ClientOptions, ListArgs};
use clap::{ArgGroup, Args, Subcommand};
use proto::millwright::v1::{
    BootNode, CreateBootNodeRequest, GetBootNodeHistoryRequest, GetBootNodeRequest, ListBootNodesRequest,
    RetireBootNodeRequest, SetBootNodeStateRequest, SetBootNodeStatesRequest, UpdateBootNodeRequest,
};

#[derive(Subcommand)]
pub enum BootCommand {
    /// List boot nodes
    #[command(after_help = "Examples:
  millwright boot list
  millwright boot list --filter 'state=discovered'
  millwright boot list --filter 'group=lab AND state=install_failed' -o wide

  millwright boot list --filter 'install_attempts>0 AND state_changed_at<\"2026-11-01T00:00:00Z\"'

Filters: id, mac_address, state, workflow_id, group, hostname, ip_address, vendor, model, serial_number, system_uuid,
arch, install_attempts, install_progress, last_install_error, state_changed_at, machine_id, proposed_machine_id,
created_at, last_seen. Numbers and times also by <, <=, > and >=.")]
    List(ListArgs),
    /// Show one boot node: what it is, its order, how far its installation is, the installer's last lines
    #[command(
        after_help = "Examples:\n  millwright boot show 52:54:00:12:34:56\n  millwright boot show btn_0198c5… -o json | jq .inventory"
    )]
    Show {
        /// The boot node's id, or its MAC address
        #[arg(value_name = "NODE")]
        node: String,
    },
    /// Bring a boot node before it has booted for the first time
    #[command(after_help = "Examples:
  millwright boot register 52:54:00:12:34:56
  millwright boot register 52:54:00:12:34:56 --workflow debian-12 --machine m-1 --group lab

One that boots from the network is written down by itself; this is for those that are known before.")]
    Register {
        /// The MAC address of the card that it will boot from
        #[arg(value_name = "MAC")]
        mac: String,
        #[command(flatten)]
        facts: Facts,
        /// Print what would be sent, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Say what boot nodes are installed with, and which machine one is
    #[command(after_help = "Examples:
  millwright boot assign 52:54:00:12:34:56 --workflow debian-12
  millwright boot assign btn_0198c5… --machine m-1 --hostname web-7
  millwright boot assign btn_0198c5… --machine ''          (empty: it is no machine's any more)
  millwright boot assign btn_0198c5… --not-proposed        (it is not the machine that is proposed)")]
    #[command(group(
        ArgGroup::new("what").args(["workflow", "group", "hostname", "machine", "not_proposed"]).required(true).multiple(true)
    ))]
    Assign {
        /// Ids or MAC addresses
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<String>,
        #[command(flatten)]
        facts: Facts,
        /// It is not the machine that is proposed
        #[arg(long)]
        not_proposed: bool,
        /// Print what would be sent, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Order boot nodes to be installed: their disks are written at the next boot
    #[command(after_help = "Examples:
  millwright boot approve 52:54:00:12:34:56 --workflow debian-12
  millwright boot approve btn_0198c5… --link               (it is the machine that is proposed)
  millwright boot approve btn_0198c5… --wait               (until it is installed, or has failed)
  millwright boot list --filter 'state=discovered AND group=lab' -o name | xargs millwright boot approve --workflow debian-12

Also after reprovision. With --wait the exit code is 1 if the installation fails.")]
    Approve(ApproveArgs),
    /// Try an installation again that has failed for good, with the counter of attempts reset
    #[command(after_help = "Examples:
  millwright boot retry btn_0198c5… --workflow debian-12-raid
  millwright boot retry btn_0198c5… --comment 'disk replaced'

With the workflow that failed, a comment must say why it will do now.")]
    Retry(ApproveArgs),
    /// Say that an installed boot node works: it is active
    #[command(after_help = "Examples:
  millwright boot verify btn_0198c5…
  millwright boot list --filter 'state=installed' -o name | xargs millwright boot verify")]
    Verify(MoveArgs),
    /// Mark active boot nodes for a new installation, which approve then orders
    #[command(after_help = "Examples:
  millwright boot reprovision btn_0198c5… --comment 'new kernel'
  millwright boot approve btn_0198c5… --workflow debian-13 --wait")]
    Reprovision(MoveArgs),
    /// Erase every disk of boot nodes at their next boot; proven, they are retired
    #[command(after_help = "Examples:
  millwright boot erase btn_0198c5… --comment 'goes back to the lessor'
  millwright boot erase btn_0198c5… --dry-run
  millwright boot show btn_0198c5… -o json | jq .order.evidence

What is erased is gone. The evidence says how each disk was erased, and what was read back.")]
    Erase(MoveArgs),
    /// Take a boot node through a change of its hardware
    #[command(after_help = "Examples:
  millwright boot migrate btn_0198c5…                       (the hardware is being replaced)
  millwright boot migrate btn_0198c5… --to 52:54:00:99:88:77  (done: this is its card now)
  millwright boot migrate btn_0198c5… --done                (done, with the same card)")]
    Migrate {
        /// Its id or MAC address
        #[arg(value_name = "NODE")]
        node: String,
        /// The card of the new hardware; ends the migration
        #[arg(long, value_name = "MAC")]
        to: Option<String>,
        /// Ends the migration, with the card it had
        #[arg(long, conflicts_with = "to")]
        done: bool,
        /// Why; kept in its history
        #[arg(long, value_name = "TEXT")]
        comment: Option<String>,
        /// Print what would be sent, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Take boot nodes out of service for good; their records stay
    #[command(after_help = "Examples:
  millwright boot retire btn_0198c5… --comment 'scrapped'
  millwright boot retire 52:54:00:12:34:56 --dry-run

Refused while its machine is in use. For administrators.")]
    Retire(MoveArgs),
    /// Every move of a boot node, the newest first
    #[command(after_help = "Examples:
  millwright boot history btn_0198c5…
  millwright boot history 52:54:00:12:34:56 --limit 200 --offset 200 -o json")]
    History {
        /// Its id or MAC address
        #[arg(value_name = "NODE")]
        node: String,
        /// How many
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i32).range(1..=200))]
        limit: i32,
        /// Pass over so many of the newest
        #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..))]
        offset: i32,
    },
    /// Follow a boot node: its state, the progress of its installation and the installer's lines
    #[command(after_help = "Examples:
  millwright boot watch btn_0198c5…
  millwright boot watch 52:54:00:12:34:56 -o json

Ends with the order that is open, or on Ctrl-C. A broken connection is mended by itself.")]
    Watch {
        /// Its id or MAC address
        #[arg(value_name = "NODE")]
        node: String,
    },
}

/// What a person says about a boot node.
#[derive(Args)]
pub struct Facts {
    /// What it is installed with (millwright workflow list)
    #[arg(long, value_name = "ID")]
    workflow: Option<String>,
    /// Whose setting for promotion it follows
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// What it is called
    #[arg(long, value_name = "NAME")]
    hostname: Option<String>,
    /// The machine that it is
    #[arg(long, value_name = "ID")]
    machine: Option<String>,
}

#[derive(Args)]
pub struct MoveArgs {
    /// Ids or MAC addresses
    #[arg(value_name = "NODE", required = true)]
    nodes: Vec<String>,
    /// Why; kept in the history
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,
    /// Look, print what would be sent, and change nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
pub struct ApproveArgs {
    #[command(flatten)]
    moves: MoveArgs,
    /// Assign this workflow first
    #[arg(long, value_name = "ID")]
    workflow: Option<String>,
    /// It is the machine that is proposed
    #[arg(long)]
    link: bool,
    /// Follow the installation until it has ended (one node)
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
}

/// Where the nodes are to go.
struct Wish {
    state: &'static str,
    force: bool,
    link: bool,
}

impl Wish {
    const fn to(state: &'static str) -> Self {
        Self { state, force: false, link: false }
    }
}

pub async fn execute(command: BootCommand, options: &ClientOptions) -> Result<(), CliError> {
    match command {
        BootCommand::List(args) => {
            let boot = connect(options).await?.boot;
            output::list(options.output, &args.filter, args.limit, async |page_size, page_token| {
                let request = ListBootNodesRequest { filter: args.filter.clone(), page_size, page_token };
                let page = call(boot.clone().list_boot_nodes(request)).await?;
                Ok((page.nodes, page.next_page_token))
            })
            .await
        }
        BootCommand::Show { node } => {
            let node = get(&connect(options).await?, &node).await?;
            output::one(options.output, &node, &node.id, |node| boot_look::sheet(node, Screen::stdout(), now()))
        }
        BootCommand::Register { mac, facts, dry_run } => register(mac, facts, dry_run, options).await,
        BootCommand::Assign { nodes, facts, not_proposed, dry_run } => {
            assign(&nodes, &facts, not_proposed, dry_run, options).await
        }
        BootCommand::Approve(args) => approve(args, false, options).await,
        BootCommand::Retry(args) => approve(args, true, options).await,
        BootCommand::Verify(args) => set(args, &Wish::to("active"), options).await,
        BootCommand::Reprovision(args) => set(args, &Wish::to("reprovision"), options).await,
        BootCommand::Erase(args) => set(args, &Wish::to("deprovisioning"), options).await,
        BootCommand::Migrate { node, to, done: ended, comment, dry_run } => {
            let state = if to.is_some() || ended { "active" } else { "migrating" };
            let state = state.to_owned();
            let request =
                SetBootNodeStateRequest { id: node, state, comment, force: false, link: false, mac_address: to };
            set_one(request, dry_run, options).await
        }
        BootCommand::Retire(args) => retire(args, options).await,
        BootCommand::History { node, limit, offset } => history(node, limit, offset, options).await,
        BootCommand::Watch { node } => boot_watch::watch(&node, options).await,
    }
}

async fn get(clients: &Clients, node: &str) -> Result<BootNode, CliError> {
    call(clients.boot.clone().get_boot_node(GetBootNodeRequest { id: node.to_owned() })).await
}

async fn register(mac: String, facts: Facts, dry_run: bool, options: &ClientOptions) -> Result<(), CliError> {
    let request = CreateBootNodeRequest {
        mac_address: mac,
        workflow_id: facts.workflow.unwrap_or_default(),
        group: facts.group.unwrap_or_default(),
        hostname: facts.hostname.unwrap_or_default(),
        machine_id: facts.machine.unwrap_or_default(),
    };
    if dry_run {
        let id = request.mac_address.clone();
        return DryRun::new("millwright.v1.BootService/CreateBootNode", &id, &request)?.print(options.output);
    }
    let mut boot = connect(options).await?.boot;
    done(options, &call(boot.create_boot_node(request)).await?, "registered")
}

async fn assign(
    nodes: &[String],
    facts: &Facts,
    not_proposed: bool,
    dry_run: bool,
    options: &ClientOptions,
) -> Result<(), CliError> {
    let Facts { workflow, group, hostname, machine } = facts;
    if nodes.len() > 1 && (hostname.is_some() || machine.is_some()) {
        return Err(CliError::usage("a hostname or a machine belongs to one boot node, and several were given"));
    }
    for node in nodes {
        let request = UpdateBootNodeRequest {
            id: node.clone(),
            workflow_id: workflow.clone(),
            group: group.clone(),
            hostname: hostname.clone(),
            machine_id: machine.clone(),
            proposed_machine_id: not_proposed.then(String::new),
        };
        if dry_run {
            DryRun::new("millwright.v1.BootService/UpdateBootNode", node, &request)?.print(options.output)?;
            continue;
        }
        let mut boot = connect(options).await?.boot;
        done(options, &call(boot.update_boot_node(request)).await?, "updated")?;
    }
    Ok(())
}

async fn approve(args: ApproveArgs, force: bool, options: &ClientOptions) -> Result<(), CliError> {
    let ApproveArgs { moves, workflow, link, wait } = args;
    if wait && moves.nodes.len() > 1 {
        return Err(CliError::usage("--wait follows one boot node, and several were given"));
    }
    if let Some(workflow) = workflow
        && !moves.dry_run
    {
        let boot = connect(options).await?.boot;
        for node in &moves.nodes {
            let workflow_id = Some(workflow.clone());
            let request = UpdateBootNodeRequest { id: node.clone(), workflow_id, ..UpdateBootNodeRequest::default() };
            call(boot.clone().update_boot_node(request)).await?;
        }
    }
    let waited = wait.then(|| moves.nodes.first().cloned()).flatten();
    let wish = Wish { state: "pending", force, link };
    match waited {
        None => set(moves, &wish, options).await,
        Some(node) => {
            let clients = connect(options).await?;
            let request = one_of(node, &moves, &wish);
            let approved = call(clients.boot.clone().set_boot_node_state(request)).await?;
            if options.output.is_for_people() {
                note(&boot_look::line(&approved, "approved"));
            }
            boot_watch::to_the_end(&clients, &approved, options).await
        }
    }
}

fn one_of(id: String, args: &MoveArgs, wish: &Wish) -> SetBootNodeStateRequest {
    SetBootNodeStateRequest {
        id,
        state: wish.state.to_owned(),
        comment: args.comment.clone(),
        force: wish.force,
        link: wish.link,
        mac_address: None,
    }
}

/// One by itself, so that its refusal is the answer; several with a result for each.
async fn set(args: MoveArgs, wish: &Wish, options: &ClientOptions) -> Result<(), CliError> {
    match args.nodes.as_slice() {
        [node] => set_one(one_of(node.clone(), &args, wish), args.dry_run, options).await,
        _ => set_several(args, wish, options).await,
    }
}

async fn set_one(request: SetBootNodeStateRequest, dry_run: bool, options: &ClientOptions) -> Result<(), CliError> {
    let clients = connect(options).await?;
    if dry_run {
        let node = get(&clients, &request.id).await?;
        let mut trial = DryRun::new("millwright.v1.BootService/SetBootNodeState", &node.id, &request)?;
        boot_look::judge(&mut trial, &node, &request);
        return trial.print(options.output);
    }
    let node = call(clients.boot.clone().set_boot_node_state(request)).await?;
    done(options, &node, "moved")
}

async fn set_several(args: MoveArgs, wish: &Wish, options: &ClientOptions) -> Result<(), CliError> {
    let MoveArgs { nodes, comment, dry_run } = args;
    let request = SetBootNodeStatesRequest {
        ids: nodes,
        state: wish.state.to_owned(),
        comment,
        force: wish.force,
        link: wish.link,
    };
    if dry_run {
        return DryRun::new("millwright.v1.BootService/SetBootNodeStates", "", &request)?.print(options.output);
    }
    let mut boot = connect(options).await?.boot;
    let results = call(boot.set_boot_node_states(request)).await?.results;
    let refused = results.iter().filter(|result| !result.ok).count();
    let all = results.len();
    let mut results = Some(results);
    output::list(options.output, "", None, async |_, _| Ok((results.take().unwrap_or_default(), String::new())))
        .await?;
    match refused {
        0 => Ok(()),
        n => Err(CliError::refused(format!("{n} of {all} were refused"))),
    }
}

async fn retire(args: MoveArgs, options: &ClientOptions) -> Result<(), CliError> {
    if let [node] = args.nodes.as_slice()
        && !args.dry_run
    {
        let request = RetireBootNodeRequest { id: node.clone(), comment: args.comment.unwrap_or_default() };
        let mut boot = connect(options).await?.boot;
        return done(options, &call(boot.retire_boot_node(request)).await?, "retired");
    }
    set(args, &Wish::to("retired"), options).await
}

async fn history(id: String, limit: i32, offset: i32, options: &ClientOptions) -> Result<(), CliError> {
    let mut boot = connect(options).await?.boot;
    let request = GetBootNodeHistoryRequest { id, limit: Some(limit), offset };
    let found = call(boot.get_boot_node_history(request)).await?;
    let (shown, total) = (found.data.len(), found.total);
    let mut rows = Some(found.data);
    output::list(options.output, "", None, async |_, _| Ok((rows.take().unwrap_or_default(), String::new()))).await?;
    if options.output.is_for_people() && i64::from(total) > shown as i64 + i64::from(offset) {
        note(&clean(&format!("{shown} of {total}; --offset {} shows older ones", i64::from(offset) + shown as i64)));
    }
    Ok(())
}
