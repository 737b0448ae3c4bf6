//! One machine described through the server, beside the same walk by `curl` as a person would write it: the same
//! resources, each once, a process for each of them or one process for all.

use crate::Outcome;
use crate::bmcs::Bmcs;
use crate::client::Clients;
use crate::ground::{Ground, Kind, at_rest};
use crate::hardware::{SECTION, quiet};
use crate::report::{Figure, Goal, Report, plain};
use proto::baremetal::v1 as pb;
use proto::millwright::v1 as mw;
use proto::millwright::v1::hardware_service_client::HardwareServiceClient;
use std::process::{Command, Stdio};
use std::time::Duration;
use testkit::redfish_responder::Options as Behaviour;
use tokio::time::Instant;

/// Machines that are described, each once.
const TIMES: usize = 20;
/// By then the connections of the sweep are closed.
const CLOSED: Duration = Duration::from_secs(7);

const ONE_EACH: &str = r#"for url in "$@"; do curl -sf -u "$LOGIN" -o /dev/null "$url" || exit 1; done"#;
const ONE_FOR_ALL: &str = r#"for url in "$@"; do set -- "$@" -o /dev/null; done; exec curl -sf -u "$LOGIN" "$@""#;

pub async fn run(ground: &Ground, bmcs: &Bmcs, report: &mut Report) -> Outcome<()> {
    let server = quiet(ground)?;
    let clients = Clients::connect(&server).await?;
    let mut hardware = HardwareServiceClient::new(clients.door(0));
    at_rest(&server).await?;
    tokio::time::sleep(CLOSED).await;
    let living = bmcs.living()?;
    let (mut inspected, mut by_loop, mut by_one) = (Vec::new(), Vec::new(), Vec::new());
    let (mut asked, mut there, mut opened) = (Vec::new(), Vec::new(), Vec::new());
    for machine in living_machines(&clients, &living.endpoint(1)).await? {
        living.take_questions();
        let (connections, begun) = (living.faults.opened(), Instant::now());
        let request = mw::InspectMachineRequest { machine_id: machine.machine_id };
        let told = hardware.inspect_machine(request).await?.into_inner();
        inspected.push(begun.elapsed().as_secs_f64() * 1e3);
        if !told.gaps.is_empty() || told.drives.is_empty() || told.firmware.is_empty() {
            return Err(format!("{} was not described: {:?}", told.machine_id, told.gaps).into());
        }
        opened.push((living.faults.opened() - connections) as f64);
        let questions = living.take_questions();
        let mut paths: Vec<&str> = questions.iter().filter_map(|q| q.strip_prefix("GET ")).collect();
        asked.push(questions.len() as f64);
        paths.sort_unstable();
        paths.dedup();
        there.push(paths.len() as f64);
        let endpoint = machine.spec.unwrap_or_default().bmc_endpoint;
        let urls: Vec<String> = paths.iter().map(|path| format!("{endpoint}{path}")).collect();
        by_loop.push(timed(ONE_EACH, &urls)?);
        by_one.push(timed(ONE_FOR_ALL, &urls)?);
        if living.take_questions().len() != 2 * urls.len() {
            return Err("curl has not asked what it should have".into());
        }
    }
    server.stop()?;
    let figure = |what: &str, unit, measured: &[f64], limit: &[f64], against: String| Figure {
        section: SECTION,
        database: Kind::Sqlite.name(),
        what: what.to_owned(),
        unit,
        measured: measured.to_vec(),
        limit: limit.to_vec(),
        against,
        goal: Goal::None,
    };
    let resources = plain(there.first().copied().unwrap_or(f64::NAN));
    let against = format!("curl, a process for each of {resources} resources");
    report.add(figure("machine inspect", "ms", &inspected, &by_loop, against));
    let against = format!("one curl for all {resources}, over one connection");
    report.add(figure("machine inspect", "ms", &inspected, &by_one, against));
    let against = "resources, each asked once".to_owned();
    report.add(figure("requests of a machine inspect", "requests", &asked, &there, against));
    report.note(format!("an inspect opened {} connections", plain(opened.iter().sum::<f64>() / opened.len() as f64)));
    Ok(())
}

/// Machines whose BMC is in the same group as this one.
async fn living_machines(clients: &Clients, endpoint: &str) -> Outcome<Vec<pb::Machine>> {
    let port = endpoint.rsplit(':').next().unwrap_or_default();
    let request = pb::ListMachinesRequest { page_size: 1000, ..pb::ListMachinesRequest::default() };
    let page = clients.machines(0).list_machines(request).await?.into_inner().machines;
    let alive = |m: &pb::Machine| m.spec.as_ref().is_some_and(|s| s.bmc_endpoint.ends_with(&format!(":{port}")));
    let found: Vec<pb::Machine> = page.into_iter().filter(alive).take(TIMES).collect();
    if found.is_empty() { Err("no machine answers".into()) } else { Ok(found) }
}

/// Milliseconds of a script with these words.
fn timed(script: &str, urls: &[String]) -> Outcome<f64> {
    let login = Behaviour::default();
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).args(urls).stdin(Stdio::null()).stdout(Stdio::null());
    shell.env("LOGIN", format!("{}:{}", login.username, login.password));
    let begun = Instant::now();
    let ended = shell.status()?;
    let took = begun.elapsed().as_secs_f64() * 1e3;
    if ended.success() { Ok(took) } else { Err("curl failed; is it installed? (apt-get install curl)".into()) }
}
