//! `node onboard`: a node whose bundle was issued; a machine of a MAAS site; or many of them, from a file or by a filter,
//! shown before anything is begun.

use super::ClientOptions;
use super::connect::{Clients, call, connect};
use super::dry_run::DryRun;
use super::exit::CliError;
use super::node_act::{not_confirmed, print_list, print_results};
use super::output;
use super::text::clean;
use clap::Args;
use futures::stream::{self, StreamExt as _};
use proto::millwright::v1::{
    ActionResult, ListSiteMachinesRequest, MaasPower, OnboardNodeRequest, OnboardNodeResponse, SiteMachine,
    StartOnboardingRequest,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct OnboardArgs {
    /// A node whose bundle was issued; with --site the name of the new one
    #[arg(value_name = "NODE", required_unless_present = "site")]
    node: Option<String>,
    /// The site whose MAAS has the machine, or is to have it
    #[arg(long, value_name = "SITE")]
    site: Option<String>,
    /// What it is made to [default: the site's first profile]
    #[arg(long, value_name = "NAME", requires = "site", default_value = "", hide_default_value = true)]
    profile: String,
    /// Its MAC address; several times for several
    #[arg(long, value_name = "MAC", requires = "site")]
    mac: Vec<String>,
    /// Its serial number
    #[arg(long, value_name = "TEXT", requires = "site", default_value = "", hide_default_value = true)]
    serial: String,
    /// Its system UUID
    #[arg(long, value_name = "UUID", requires = "site", default_value = "", hide_default_value = true)]
    uuid: String,
    /// Its id in MAAS, where it has a record already
    #[arg(long, value_name = "SYSTEM_ID", requires = "site", default_value = "", hide_default_value = true)]
    from_maas: String,
    /// What it is to be called there
    #[arg(long, value_name = "NAME", requires = "site", default_value = "", hide_default_value = true)]
    hostname: String,
    /// How MAAS drives its power: redfish, ipmi, webhook, manual, virsh, amt; to make its record
    #[arg(long, value_name = "KIND", requires = "site")]
    power: Option<String>,
    /// The address of its BMC
    #[arg(long, value_name = "ADDRESS", requires = "power", default_value = "", hide_default_value = true)]
    bmc: String,
    /// The credential with its login
    #[arg(long, value_name = "NAME", requires = "power", default_value = "", hide_default_value = true)]
    credential: String,
    /// What else MAAS is told of its power, by its own names; several times for several
    #[arg(long, value_name = "NAME=VALUE", requires = "power")]
    power_parameter: Vec<String>,
    /// Many: a file with the columns name, mac, serial, uuid, system_id, hostname, profile, power, bmc, credential
    #[arg(long, value_name = "FILE", requires = "site", conflicts_with_all = ["mac", "serial", "uuid", "from_maas", "node", "filter"])]
    csv: Option<PathBuf>,
    /// Many: machines that the site's MAAS has, as `site machines` shows them
    #[arg(long, value_name = "FILTER", requires = "site", conflicts_with_all = ["mac", "serial", "uuid", "from_maas", "node"])]
    filter: Option<String>,
    /// Of many: how many at a time [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    concurrency: Option<u32>,
    /// Of many: do it, and do not only show what would happen
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,
    /// Why; kept in the history
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    /// Do nothing; say what would happen
    #[arg(long)]
    dry_run: bool,
}

/// Rows of a file that are taken at once.
const ROWS_MAX: usize = 10_000;
const CONCURRENCY: u32 = 4;

pub async fn onboard(args: OnboardArgs, options: &ClientOptions) -> Result<(), CliError> {
    let Some(site) = args.site.clone() else { return by_bundle(args, options).await };
    let power = power(&args)?;
    let base = OnboardNodeRequest {
        name: args.node.clone().unwrap_or_default(),
        site,
        profile: args.profile.clone(),
        mac_addresses: args.mac.clone(),
        serial_number: args.serial.clone(),
        system_uuid: args.uuid.clone(),
        system_id: args.from_maas.clone(),
        hostname: args.hostname.clone(),
        power,
        reason: args.reason.clone(),
        dry_run: args.dry_run,
    };
    if let Some(path) = &args.csv {
        let rows = rows(path, &base)?;
        return many(rows, &args, options).await;
    }
    if let Some(filter) = &args.filter {
        let rows = of_site(&base, filter, options).await?;
        return many(rows, &args, options).await;
    }
    let mut nodes = connect(options).await?.nodes;
    let answer = call(nodes.onboard_node(base)).await?;
    let id = answer.job.as_ref().map(|job| job.id.clone()).unwrap_or_default();
    output::one(options.output, &answer, &id, lines)
}

/// Its bundle was issued: its onboarding begins before its agent has come.
async fn by_bundle(args: OnboardArgs, options: &ClientOptions) -> Result<(), CliError> {
    let request = StartOnboardingRequest { node_id: args.node.unwrap_or_default(), reason: args.reason };
    if args.dry_run {
        return DryRun::new("millwright.v1.JobService/StartOnboarding", &request.node_id, &request)?
            .print(options.output);
    }
    let mut jobs = connect(options).await?.jobs;
    let job = call(jobs.start_onboarding(request)).await?;
    output::one(options.output, &job, &job.id, |job| {
        vec![
            clean(&format!("{} is {}: waits for {}", job.id, job.status, job.waiting_for)),
            format!("follow it: millwright job watch {}", job.id),
        ]
    })
}

fn power(args: &OnboardArgs) -> Result<Option<MaasPower>, CliError> {
    let Some(kind) = args.power.clone() else { return Ok(None) };
    let mut parameters = BTreeMap::new();
    for text in &args.power_parameter {
        let Some((name, value)) = text.split_once('=') else {
            return Err(CliError::usage(format!("--power-parameter: {text:?} is not NAME=VALUE")));
        };
        parameters.insert(name.to_owned(), value.to_owned());
    }
    Ok(Some(MaasPower { kind, address: args.bmc.clone(), credentials_ref: args.credential.clone(), parameters }))
}

fn lines(answer: &OnboardNodeResponse) -> Vec<String> {
    let mut lines = vec![clean(&answer.effect)];
    match (&answer.node, &answer.job) {
        (Some(node), Some(job)) => {
            lines.push(clean(&format!("{} ({}) is {}", node.id, node.name, node.status)));
            lines.push(format!("follow it: millwright job watch {}", job.id));
        }
        _ => lines.push("dry run: nothing was done".to_owned()),
    }
    lines
}

/// Each is judged by the server first; with --yes each is begun.
async fn many(rows: Vec<OnboardNodeRequest>, args: &OnboardArgs, options: &ClientOptions) -> Result<(), CliError> {
    let clients = connect(options).await?;
    let at_once = usize::try_from(args.concurrency.unwrap_or(CONCURRENCY)).unwrap_or(1);
    let mut asked = stream::iter(rows)
        .map(|row| one_of_many(&clients, OnboardNodeRequest { dry_run: !args.yes, ..row }))
        .buffered(at_once);
    let (mut results, mut broken) = (Vec::new(), None);
    while let Some(result) = asked.next().await {
        match result {
            Ok(result) => results.push(result),
            Err(e) => {
                broken = Some(e);
                break;
            }
        }
    }
    // what was begun is told, whatever came after it
    if let Some(e) = broken {
        print_list(results, options).await?;
        return Err(e);
    }
    let count = results.iter().filter(|result| result.ok).count();
    if args.yes || args.dry_run {
        return print_results(results, options).await;
    }
    print_list(results, options).await?;
    Err(not_confirmed(count))
}

async fn one_of_many(clients: &Clients, request: OnboardNodeRequest) -> Result<ActionResult, CliError> {
    let told = ActionResult { id: named(&request), tried: true, ..ActionResult::default() };
    match call(clients.nodes.clone().onboard_node(request)).await {
        Ok(done) => Ok(ActionResult { ok: true, effect: done.effect, ..told }),
        Err(e) if e.is_an_answer() => Ok(ActionResult { message: e.to_string(), ..told }),
        // nothing was decided, and the next one will not be either
        Err(e) => Err(e),
    }
}

fn named(request: &OnboardNodeRequest) -> String {
    let names = [&request.name, &request.hostname, &request.system_id, &request.serial_number, &request.system_uuid];
    let mac = request.mac_addresses.first();
    names.into_iter().find(|text| !text.is_empty()).or(mac).cloned().unwrap_or_default()
}

/// The machines that the site's MAAS has, as far as they are seen.
async fn of_site(
    base: &OnboardNodeRequest,
    filter: &str,
    options: &ClientOptions,
) -> Result<Vec<OnboardNodeRequest>, CliError> {
    let mut sites = connect(options).await?.sites;
    let (mut rows, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = ListSiteMachinesRequest {
            site: base.site.clone(),
            filter: filter.to_owned(),
            page_token: std::mem::take(&mut page_token),
            ..ListSiteMachinesRequest::default()
        };
        let answer = call(sites.list_site_machines(request)).await?;
        // those that are nodes already are no news, those that somebody has are theirs, and some are gone
        let free = |m: &SiteMachine| m.node_id.is_empty() && m.owner.is_empty() && m.absent_since.is_none();
        let new = answer.machines.into_iter().filter(free);
        rows.extend(new.map(|machine: SiteMachine| OnboardNodeRequest {
            name: machine.hostname,
            system_id: machine.system_id,
            ..base.clone()
        }));
        if answer.next_page_token.is_empty() || rows.len() > ROWS_MAX {
            break;
        }
        page_token = answer.next_page_token;
    }
    within_bounds(rows)
}

fn within_bounds(rows: Vec<OnboardNodeRequest>) -> Result<Vec<OnboardNodeRequest>, CliError> {
    match rows.len() {
        0 => Err(CliError::usage("there is nothing to onboard")),
        n if n > ROWS_MAX => Err(CliError::usage(format!("more than {ROWS_MAX} at once; take a part of them"))),
        _ => Ok(rows),
    }
}

fn rows(path: &Path, base: &OnboardNodeRequest) -> Result<Vec<OnboardNodeRequest>, CliError> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| CliError::usage(format!("reading {shown}: {e}")))?;
    within_bounds(parse(&text, base).map_err(|why| CliError::usage(format!("{shown}: {why}")))?)
}

const COLUMNS: [&str; 10] =
    ["name", "mac", "serial", "uuid", "system_id", "hostname", "profile", "power", "bmc", "credential"];

/// The first line names the columns; several MAC addresses have spaces between them.
fn parse(text: &str, base: &OnboardNodeRequest) -> Result<Vec<OnboardNodeRequest>, String> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let head = reader.headers().map_err(|e| e.to_string())?.clone();
    if let Some(unknown) = head.iter().find(|name| !COLUMNS.contains(name)) {
        return Err(format!("there is no column {unknown:?}; there are {}", COLUMNS.join(", ")));
    }
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|e| e.to_string())?;
        let field = |name: &str| {
            head.iter().position(|h| h == name).and_then(|at| record.get(at)).unwrap_or_default().to_owned()
        };
        let or = |text: String, otherwise: &str| if text.is_empty() { otherwise.to_owned() } else { text };
        let power = match (field("power"), &base.power) {
            (kind, Some(base)) if kind.is_empty() => Some(MaasPower {
                address: or(field("bmc"), &base.address),
                credentials_ref: or(field("credential"), &base.credentials_ref),
                ..base.clone()
            }),
            (kind, _) if kind.is_empty() => None,
            (kind, _) => Some(MaasPower {
                kind,
                address: field("bmc"),
                credentials_ref: field("credential"),
                parameters: BTreeMap::new(),
            }),
        };
        rows.push(OnboardNodeRequest {
            name: field("name"),
            mac_addresses: field("mac").split_whitespace().map(str::to_owned).collect(),
            serial_number: field("serial"),
            system_uuid: field("uuid"),
            system_id: field("system_id"),
            hostname: field("hostname"),
            profile: or(field("profile"), &base.profile),
            power,
            ..base.clone()
        });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_row_for_each_machine_and_what_it_leaves_out_is_as_the_flags_say() {
        let power = MaasPower { kind: "ipmi".into(), credentials_ref: "bmc".into(), ..MaasPower::default() };
        let base =
            OnboardNodeRequest { site: "ams".into(), profile: "gpu".into(), power: Some(power), ..Default::default() };
        let text = "name, mac, bmc, profile\ng1, 52:54:00:00:00:01 52:54:00:00:00:02, 10.0.0.1,\n\"g,2\",525400000003,10.0.0.2,big\n";
        let rows = parse(text, &base).expect("two rows");
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].name.as_str(), rows[0].mac_addresses.len(), rows[0].profile.as_str()), ("g1", 2, "gpu"));
        assert_eq!((rows[1].name.as_str(), rows[1].profile.as_str()), ("g,2", "big"));
        let power = rows[1].power.clone().expect("power");
        assert_eq!(
            (power.kind.as_str(), power.address.as_str(), power.credentials_ref.as_str()),
            ("ipmi", "10.0.0.2", "bmc")
        );
        for (text, why) in [("nome\nx", "no column"), ("name,mac\nx", "record")] {
            let refused = parse(text, &base).expect_err(text);
            assert!(refused.contains(why), "{refused}");
        }
    }
}
