//! `millwright machine …`

use super::connect::{call, connect};
use super::events::{FromArgs, both, follow};
use super::exit::CliError;
use super::hardware::{self, HardwareCommand};
use super::output::{self, Column, Listed, Screen, note};
use super::sheet::Sheet;
use super::text::{dated, now, pairs, parse_pair, possible, relative, rfc3339, show_pairs};
use super::token::quoted;
use super::{ClientOptions, ListArgs};
use super::{discover, machine_look};
use clap::{Args, Subcommand};
use proto::baremetal::v1::machine_status::Phase;
use proto::baremetal::v1::{
    Condition, GetMachineRequest, ListMachinesRequest, Machine, MachineSpec, MachineStatus, RegisterMachineRequest,
    SetPhaseRequest, UpdateMachineRequest,
};
use std::collections::BTreeSet;

#[derive(Subcommand)]
pub enum MachineCommand {
    #[command(flatten)]
    Hardware(HardwareCommand),
    /// List machines in order of their ids
    #[command(after_help = "Examples:
  millwright machine list
  millwright machine list --filter 'phase=MAINTENANCE AND labels.env=prod' -o wide
  millwright machine list -o name | wc -l")]
    List(ListArgs),
    /// Show one machine: its facts, its phase and what is known of its condition
    #[command(
        after_help = "Examples:\n  millwright machine show m-1\n  millwright machine show m-1 -o json | jq .status"
    )]
    Show {
        /// The machine's id
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Register a machine, or give a known one new facts; its status is never touched
    #[command(after_help = "Examples:
  millwright machine register m-1 --provider sim --mac aa:bb:cc:dd:ee:01 --label env=lab
  millwright machine register --provider dc-1 --serial C02X --bmc 10.0.0.41 --rack r7
  millwright machine register m-1 --provider sim --dry-run
  millwright machine register m-1 --bmc https://10.0.0.41 --credentials rack-7 --discover

With --discover the hardware at --bmc is asked for its serial number, UUID and network addresses, which fill what
was not given; what was given and is contradicted stops it. A machine that is registered again gets exactly the facts given; `update` changes single ones.
--dry-run checks the facts, tells whether the machine is known, prints the request and sends nothing.")]
    Register {
        /// Its id; the server chooses one when it is left out
        #[arg(value_name = "ID", value_parser = clap::builder::NonEmptyStringValueParser::new())]
        id: Option<String>,
        #[command(flatten)]
        facts: Facts,
        /// Ask the hardware at --bmc who it is, and fill in what was not given
        #[arg(long, requires = "bmc")]
        discover: bool,
        /// Check and print what would be sent, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Change single facts and labels; what is not named stays
    #[command(after_help = "Examples:
  millwright machine update m-1 --rack r7 --label env=prod --remove-label lab
  millwright machine update m-1 --cluster ''        (empty: take it away)
  millwright machine update m-1 --rack r8 --if-version 7 --dry-run

--dry-run looks at the machine, prints the request and changes nothing.")]
    Update(UpdateArgs),
    /// Move a machine to another phase by your decision
    #[command(after_help = "Examples:
  millwright machine phase m-1 MAINTENANCE --reason 'fan replacement, ticket 4711'

  millwright machine phase m-1 READY --dry-run

A move that is not allowed is refused, and the phases that are allowed are named. --dry-run tells by the machine
as it stands now, prints the request and changes nothing.")]
    Phase {
        /// The machine's id
        #[arg(value_name = "ID")]
        id: String,
        /// Where to
        #[arg(value_name = "PHASE", value_parser = phase_parser(), ignore_case = true)]
        phase: String,
        /// Why; kept in the log
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        reason: String,
        /// Judge and print what would be sent, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Follow what happens to one machine, or to all of them, one line for each change
    #[command(after_help = "Examples:
  millwright machine watch m-1
  millwright machine watch --filter 'to=MAINTENANCE'
  millwright machine watch m-1 --no-follow              (its history)

A broken connection is mended by itself, from the last event heard.")]
    Watch {
        /// The machine's id; all machines when left out
        #[arg(value_name = "ID")]
        id: Option<String>,
        /// Only what matches; by id, to, trigger or actor
        #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true)]
        filter: String,
        #[command(flatten)]
        from: FromArgs,
    },
}

/// What is known of a machine, as flags.
#[derive(Args)]
pub struct Facts {
    /// The provider that drives it
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// A network interface's address; may be repeated, replaces all that are stored
    #[arg(long = "mac", value_name = "MAC", value_delimiter = ',')]
    macs: Vec<String>,
    /// A label; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_pair)]
    labels: Vec<(String, String)>,
    /// The serial number
    #[arg(long, value_name = "SERIAL")]
    serial: Option<String>,
    /// The system's UUID as its firmware tells it
    #[arg(long, value_name = "UUID")]
    system_uuid: Option<String>,
    /// The rack it stands in
    #[arg(long, value_name = "RACK")]
    rack: Option<String>,
    /// The site or room
    #[arg(long, value_name = "PLACE")]
    location: Option<String>,
    /// The customer it belongs to
    #[arg(long, value_name = "ID")]
    customer: Option<String>,
    /// The cluster it shall join
    #[arg(long, value_name = "REF")]
    cluster: Option<String>,
    /// Its management controller: HOST, https://HOST[:PORT][?tls=ca:NAME|pin:SHA256|insecure], ipmi://HOST[?cipher=3]
    #[arg(long, value_name = "ENDPOINT")]
    bmc: Option<String>,
    /// Where it is reached by SSH: HOST[:PORT], or ssh://HOST[:PORT]?jump=HOST2[:PORT]
    #[arg(long, value_name = "ENDPOINT")]
    ssh: Option<String>,
    /// The names of the credentials it is reached with, with commas between; see `millwright credential`
    #[arg(long, visible_alias = "credentials", value_name = "NAMES")]
    credentials_ref: Option<String>,
}

#[derive(Args)]
pub struct UpdateArgs {
    /// The machine's id
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    facts: Facts,
    /// A label to take away; may be repeated
    #[arg(long = "remove-label", value_name = "KEY")]
    remove_labels: Vec<String>,
    /// Refuse when the machine is not at this version any more
    #[arg(long, value_name = "VERSION", default_value_t = 0, hide_default_value = true)]
    if_version: u64,
    /// Look, print what would be sent, and change nothing
    #[arg(long)]
    dry_run: bool,
}

pub async fn execute(command: MachineCommand, options: &ClientOptions) -> Result<(), CliError> {
    match command {
        MachineCommand::List(args) => list(args, options).await,
        MachineCommand::Show { id } => {
            let mut machines = connect(options).await?.machines;
            let machine = call(machines.get_machine(GetMachineRequest { machine_id: id })).await?;
            show(options, &machine)
        }
        MachineCommand::Hardware(command) => hardware::execute(command, options).await,
        MachineCommand::Register { id, facts, discover, dry_run } => {
            let mut machine = facts.machine(id.unwrap_or_default())?;
            if discover {
                discover::fill(&connect(options).await?, &mut machine, options.output).await?;
            }
            let request = RegisterMachineRequest { machine: Some(machine) };
            if dry_run {
                return machine_look::register(&connect(options).await?, &request, options.output).await;
            }
            let mut machines = connect(options).await?.machines;
            done(options, &call(machines.register_machine(request)).await?, "registered")
        }
        MachineCommand::Update(args) => {
            let dry_run = args.dry_run;
            let request = args.request()?;
            if dry_run {
                return machine_look::update(&connect(options).await?, &request, options.output).await;
            }
            let mut machines = connect(options).await?.machines;
            done(options, &call(machines.update_machine(request)).await?, "updated")
        }
        MachineCommand::Phase { id, phase, reason, dry_run } => {
            let phase = phase_of_word(&phase).unwrap_or(Phase::Unspecified);
            let request = SetPhaseRequest { machine_id: id, phase: phase.into(), reason };
            if dry_run {
                return machine_look::phase(&connect(options).await?, &request, options.output).await;
            }
            let mut machines = connect(options).await?.machines;
            done(options, &call(machines.set_phase(request)).await?, "moved")
        }
        MachineCommand::Watch { id, filter, from } => {
            let clients = connect(options).await?;
            let own = match id {
                // asked first, so that an unknown machine is told as such
                Some(machine_id) => {
                    let request = GetMachineRequest { machine_id };
                    let machine = call(clients.machines.clone().get_machine(request)).await?;
                    format!("subject={}", quoted(&machine.machine_id))
                }
                None => "kind=machine".to_owned(),
            };
            follow(&clients, both(&own, &filter), &from, options).await
        }
    }
}

async fn list(args: ListArgs, options: &ClientOptions) -> Result<(), CliError> {
    let machines = connect(options).await?.machines;
    output::list(options.output, &args.filter, args.limit, async |page_size, page_token| {
        let request = ListMachinesRequest { filter: args.filter.clone(), page_size, page_token };
        let page = call(machines.clone().list_machines(request)).await?;
        Ok((page.machines, page.next_page_token))
    })
    .await
}

/// Every phase by its name, whatever its case and with `-` for `_`.
fn phase_parser() -> clap::builder::PossibleValuesParser {
    let phases = (1..=7).filter_map(|n| Phase::try_from(n).ok());
    clap::builder::PossibleValuesParser::new(phases.map(|phase| possible(phase.as_str_name())))
}

/// What was typed, as the grammar let it pass.
fn phase_of_word(word: &str) -> Option<Phase> {
    Phase::from_str_name(&word.to_ascii_uppercase().replace('-', "_"))
}

impl Facts {
    fn machine(self, machine_id: String) -> Result<Machine, CliError> {
        let labels = pairs(&self.labels).map_err(|e| CliError::usage(format!("--label: {e}")))?;
        let spec = MachineSpec {
            ssh_endpoint: self.ssh.unwrap_or_default(),
            bmc_endpoint: self.bmc.unwrap_or_default(),
            target_cluster_ref: self.cluster.unwrap_or_default(),
            mac_addresses: self.macs.into_iter().filter(|mac| !mac.is_empty()).collect(),
            provider: self.provider.unwrap_or_default(),
            location: self.location.unwrap_or_default(),
            rack: self.rack.unwrap_or_default(),
            serial_number: self.serial.unwrap_or_default(),
            customer_id: self.customer.unwrap_or_default(),
            system_uuid: self.system_uuid.unwrap_or_default(),
            credentials_ref: self.credentials_ref.unwrap_or_default(),
        };
        Ok(Machine { machine_id, labels, spec: Some(spec), ..Default::default() })
    }

    /// The paths of what was given.
    fn mask(&self) -> Vec<String> {
        let given = [
            (self.ssh.is_some(), "spec.ssh_endpoint"),
            (self.bmc.is_some(), "spec.bmc_endpoint"),
            (self.cluster.is_some(), "spec.target_cluster_ref"),
            (!self.macs.is_empty(), "spec.mac_addresses"),
            (self.provider.is_some(), "spec.provider"),
            (self.location.is_some(), "spec.location"),
            (self.rack.is_some(), "spec.rack"),
            (self.serial.is_some(), "spec.serial_number"),
            (self.customer.is_some(), "spec.customer_id"),
            (self.system_uuid.is_some(), "spec.system_uuid"),
            (self.credentials_ref.is_some(), "spec.credentials_ref"),
        ];
        let mut paths: Vec<String> =
            given.iter().filter(|(given, _)| *given).map(|(_, path)| (*path).to_owned()).collect();
        paths.extend(self.labels.iter().map(|(key, _)| format!("labels.{key}")));
        paths
    }
}

impl UpdateArgs {
    fn request(self) -> Result<UpdateMachineRequest, CliError> {
        let mut paths = self.facts.mask();
        for key in &self.remove_labels {
            if self.facts.labels.iter().any(|(given, _)| given == key) {
                return Err(CliError::usage(format!("label {key} is both set and removed")));
            }
            paths.push(format!("labels.{key}"));
        }
        let mut seen = BTreeSet::new();
        paths.retain(|path| seen.insert(path.clone()));
        if paths.is_empty() {
            return Err(CliError::usage("nothing to change was given").hint("millwright machine update --help"));
        }
        let mut machine = self.facts.machine(self.id)?;
        machine.version = self.if_version;
        Ok(UpdateMachineRequest { machine: Some(machine), update_mask: Some(prost_types::FieldMask { paths }) })
    }
}

/// A change was made: one line for people, the machine for scripts.
fn done(options: &ClientOptions, machine: &Machine, what: &str) -> Result<(), CliError> {
    output::one(options.output, machine, &machine.machine_id, |machine| {
        vec![format!("{} {what}: {}, version {}", machine.machine_id, phase_of(machine), machine.version)]
    })
}

fn show(options: &ClientOptions, machine: &Machine) -> Result<(), CliError> {
    output::one(options.output, machine, &machine.machine_id, |machine| sheet(machine, Screen::stdout(), now()))?;
    let run = machine.status.as_ref().map(|status| status.active_run_id.as_str()).unwrap_or_default();
    if options.output.is_for_people() && !run.is_empty() && Screen::stdout().is_terminal() {
        note(&format!("\na run is active; follow it with: millwright run watch {run}"));
    }
    Ok(())
}

fn status(machine: &Machine) -> &MachineStatus {
    static EMPTY: MachineStatus = MachineStatus {
        phase: 0,
        conditions: Vec::new(),
        active_run_id: String::new(),
        effective_state: 0,
        last_seen: None,
        phase_set_by: String::new(),
        desired: String::new(),
        observed: String::new(),
        execution: String::new(),
    };
    machine.status.as_ref().unwrap_or(&EMPTY)
}

fn spec(machine: &Machine, field: fn(&MachineSpec) -> &str) -> String {
    machine.spec.as_ref().map(field).unwrap_or_default().to_owned()
}

fn word(phase: i32) -> &'static str {
    match Phase::try_from(phase) {
        Ok(Phase::Unspecified) => "",
        Ok(phase) => phase.as_str_name(),
        Err(_) => "UNKNOWN",
    }
}

fn phase_of(machine: &Machine) -> String {
    word(status(machine).phase).to_owned()
}

/// `Reachable, !Drained, Degraded?`: `!` means false, `?` means that the observation is old.
fn conditions(machine: &Machine) -> String {
    let short =
        |c: &Condition| format!("{}{}{}", if c.status { "" } else { "!" }, c.r#type, if c.stale { "?" } else { "" });
    status(machine).conditions.iter().map(short).collect::<Vec<_>>().join(" ")
}

static COLUMNS: [Column<Machine>; 20] = [
    Column::new("MACHINE", |m: &Machine, _| m.machine_id.clone()),
    Column::new("PHASE", |m: &Machine, _| phase_of(m)).state(),
    Column::new("EFFECTIVE", |m: &Machine, _| word(status(m).effective_state).to_owned()).state(),
    Column::new("ACTIVE RUN", |m: &Machine, _| status(m).active_run_id.clone()),
    Column::new("PROVIDER", |m: &Machine, _| spec(m, |s| &s.provider)),
    Column::new("RACK", |m: &Machine, _| spec(m, |s| &s.rack)),
    Column::new("SEEN", |m: &Machine, now| relative(status(m).last_seen.as_ref(), now)).narrow(),
    Column::new("SEEN", |m: &Machine, _| rfc3339(status(m).last_seen.as_ref())).wide(),
    Column::new("SET BY", |m: &Machine, _| status(m).phase_set_by.clone()).wide(),
    Column::new("CONDITIONS", |m: &Machine, _| conditions(m)).wide(),
    Column::new("CLUSTER", |m: &Machine, _| spec(m, |s| &s.target_cluster_ref)).wide(),
    Column::new("CUSTOMER", |m: &Machine, _| spec(m, |s| &s.customer_id)).wide(),
    Column::new("LOCATION", |m: &Machine, _| spec(m, |s| &s.location)).wide(),
    Column::new("SERIAL", |m: &Machine, _| spec(m, |s| &s.serial_number)).wide(),
    Column::new("MAC", |m: &Machine, _| m.spec.as_ref().map(|s| s.mac_addresses.join(",")).unwrap_or_default()).wide(),
    Column::new("BMC", |m: &Machine, _| spec(m, |s| &s.bmc_endpoint)).wide(),
    Column::new("SSH", |m: &Machine, _| spec(m, |s| &s.ssh_endpoint)).wide(),
    Column::new("VERSION", |m: &Machine, _| m.version.to_string()).wide(),
    Column::new("LABELS", |m: &Machine, _| show_pairs(&m.labels)).flex().narrow(),
    Column::new("LABELS", |m: &Machine, _| show_pairs(&m.labels)).wide(),
];

static CONDITIONS: [Column<Condition>; 7] = [
    Column::new("CONDITION", |c: &Condition, _| c.r#type.clone()),
    Column::new("STATUS", |c: &Condition, _| if c.status { "true".to_owned() } else { "false".to_owned() }),
    Column::new("SINCE", |c: &Condition, _| rfc3339(c.last_transition.as_ref())),
    Column::new("OBSERVED", |c: &Condition, now| relative(c.observed_at.as_ref(), now)),
    Column::new("STALE", |c: &Condition, _| if c.stale { "stale".to_owned() } else { String::new() }),
    Column::new("REASON", |c: &Condition, _| c.reason.clone()),
    Column::new("MESSAGE", |c: &Condition, _| c.message.clone()),
];

impl Listed for Machine {
    type Message = Self;
    const PLURAL: &'static str = "machines";
    const PAGED: bool = true;

    fn columns() -> &'static [Column<Self>] {
        &COLUMNS
    }

    fn id(&self) -> &str {
        &self.machine_id
    }

    fn message(&self) -> &Self {
        self
    }
}

fn sheet(machine: &Machine, screen: Screen, now: jiff::Timestamp) -> Vec<String> {
    let status = status(machine);
    let mut sheet = Sheet::new(screen, now);
    sheet
        .row("Machine", &machine.machine_id)
        .state("Phase", word(status.phase))
        .row("Set by", &status.phase_set_by)
        .state("Effective", word(status.effective_state))
        .row("Active run", &status.active_run_id)
        .row("Desired", &status.desired)
        .row("Observed", &status.observed)
        .row("Execution", &status.execution)
        .row("Last seen", &dated(status.last_seen.as_ref(), now));
    if let Some(spec) = &machine.spec {
        sheet
            .row("Provider", &spec.provider)
            .row("Location", &spec.location)
            .row("Rack", &spec.rack)
            .row("Serial", &spec.serial_number)
            .row("System UUID", &spec.system_uuid)
            .rows("MAC", spec.mac_addresses.iter().cloned())
            .row("BMC", &spec.bmc_endpoint)
            .row("SSH", &spec.ssh_endpoint)
            .row("Cluster", &spec.target_cluster_ref)
            .row("Customer", &spec.customer_id)
            .row("Credentials", &spec.credentials_ref);
    }
    sheet
        .rows("Labels", machine.labels.iter().map(|(key, value)| format!("{key}={value}")))
        .row("Version", &machine.version.to_string())
        .table("Conditions", &CONDITIONS, &status.conditions);
    sheet.lines()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Update {
        #[command(flatten)]
        args: UpdateArgs,
    }

    fn update(words: &[&str]) -> Result<UpdateMachineRequest, CliError> {
        let words = ["update", "m-1"].iter().chain(words);
        Update::try_parse_from(words).map_err(|e| CliError::usage(e.to_string()))?.args.request()
    }

    #[test]
    fn an_update_names_exactly_what_was_given() {
        let words = ["--rack", "r7", "--cluster", "", "--label", "a.b=1", "--remove-label", "old", "--if-version", "4"];
        let request = update(&words).expect("a request");
        let paths = request.update_mask.expect("a mask").paths;
        assert_eq!(paths, ["spec.target_cluster_ref", "spec.rack", "labels.a.b", "labels.old"]);
        let machine = request.machine.expect("a machine");
        assert_eq!((machine.machine_id.as_str(), machine.version), ("m-1", 4));
        assert_eq!(machine.labels.into_iter().collect::<Vec<_>>(), [("a.b".to_owned(), "1".to_owned())]);
    }

    #[test]
    fn an_update_of_nothing_or_of_contradictions_is_refused() {
        assert_eq!(update(&[]).expect_err("nothing").exit().code(), 2);
        assert!(update(&["--label", "a=1", "--remove-label", "a"]).is_err());
    }

    #[derive(Parser)]
    struct Move {
        #[command(subcommand)]
        command: MachineCommand,
    }

    #[test]
    fn phases_are_read_as_typed() {
        for (typed, phase) in
            [("in-service", Phase::InService), ("RMA", Phase::Rma), ("Factory_Ready", Phase::FactoryReady)]
        {
            let parsed = Move::try_parse_from(["machine", "phase", "m-1", typed]).expect(typed);
            assert!(
                matches!(&parsed.command, MachineCommand::Phase { phase: word, .. }
                if phase_of_word(word) == Some(phase)),
                "{typed}"
            );
        }
        let wrong =
            Move::try_parse_from(["machine", "phase", "m-1", "PHASE_UNSPECIFIED"]).map(|_| ()).expect_err("none");
        assert!(wrong.to_string().contains("MAINTENANCE"), "{wrong}");
    }

    #[test]
    fn a_sheet_is_readable_without_any_status() {
        let machine = Machine { machine_id: "m-1".to_owned(), ..Default::default() };
        let lines = sheet(&machine, Screen::PLAIN, jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(lines[0], "Machine  m-1");
    }
}
