//! MAAS: what it costs the server to bring machines in through one, how often that is asked, and how soon what happens
//! there is seen. The MAAS is the simulator over HTTP: it answers at once, so this is the cost of the server and not of
//! installing anything.

use crate::Outcome;
use crate::maas_agents::Crew;
use crate::maas_observed;
use crate::maas_site::{BMC, Call, Ground, Maas, SITE, bmc_address, mac};
use crate::options::Options;
use crate::process::Cpu;
use crate::report::{Figure, Goal, Report, plain};
use domain::Timestamp;
use futures::stream::{FuturesUnordered, StreamExt as _};
use proto::millwright::v1 as mw;
use proto::millwright::v1::job_service_client::JobServiceClient;
use proto::millwright::v1::node_service_client::NodeServiceClient;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

const SECTION: &str = "maas";
/// Onboardings that are asked for at a time.
const AT_A_TIME: usize = 32;
const DONE: &str = "SELECT COUNT(*) FROM nodes WHERE status = 'active' AND active_job_id IS NULL";
const STOPPED: &str =
    "SELECT failure_code || ' at ' || stage || ': ' || failure_message FROM jobs WHERE status LIKE 'failed%' LIMIT 1";
const DONE_WITHIN: Duration = Duration::from_secs(1200);
/// What a server at rest is watched for.
const REST: Duration = Duration::from_secs(15);

pub fn figure(what: String, unit: &'static str, measured: f64, limit: f64, against: &str, goal: Goal) -> Figure {
    let (measured, limit, against) = (vec![measured], vec![limit], against.to_owned());
    Figure { section: SECTION, database: "SQLite", what, unit, measured, limit, against, goal }
}

pub async fn run(options: &Options, report: &mut Report) -> Outcome<()> {
    println!("  onboarding {} machines", options.onboarded);
    onboarding(options.onboarded, report).await?;
    println!("  observing {} machines", options.observed);
    maas_observed::run(options, report).await
}

/// What some onboardings came to.
struct Batch {
    /// Milliseconds of the server's processors for each, over what it uses at rest.
    cpu: f64,
    /// Calls of jobs to MAAS for each.
    calls: f64,
    took: Duration,
}

async fn onboarding(count: usize, report: &mut Report) -> Outcome<()> {
    let maas = Maas::start()?;
    let ground = Ground::new(&maas).await?;
    let mut crew = Crew::of(&maas, &ground);
    let mut field = Field { maas: &maas, ground: &ground, crew: &mut crew, begun: 0 };
    let first = field.batch(1).await?;
    let stages = field.stages().await?;
    println!("    calls to MAAS, by stage of one onboarding:");
    for (stage, calls) in &stages {
        println!("      {stage:<34} {calls:>3}");
    }
    let total: usize = stages.iter().map(|(_, calls)| calls).sum();
    report.note(format!("calls of one onboarding, by stage: {}", shown(&stages)));
    let few = field.batch(count / 10).await?;
    let many = field.batch(count).await?;
    let tenth = count / 10;
    report.add(figure(
        format!("server CPU of an onboarding, {count} at once"),
        "ms",
        many.cpu,
        few.cpu,
        &format!("with {tenth} at once"),
        Goal::AtMost(1.2),
    ));
    report.add(figure(
        format!("calls to MAAS of an onboarding, {count} at once"),
        "calls",
        many.calls,
        total as f64,
        "alone, by stage",
        Goal::AtMost(1.5),
    ));
    report.note(format!(
        "{count} onboardings took {} s, {tenth} took {}, one {}; three heartbeats, 15 s apart, are part of each",
        plain(many.took.as_secs_f64()),
        plain(few.took.as_secs_f64()),
        plain(first.took.as_secs_f64()),
    ));
    report.note(format!("calls of an onboarding, {tenth} at once: {}", plain(few.calls)));
    field.crew.stop();
    ground.server.stop()
}

fn shown(stages: &[(String, usize)]) -> String {
    stages.iter().map(|(stage, calls)| format!("{stage} {calls}")).collect::<Vec<_>>().join(", ")
}

struct Field<'a> {
    maas: &'a Maas,
    ground: &'a Ground,
    crew: &'a mut Crew,
    /// Onboardings that were begun so far.
    begun: usize,
}

impl Field<'_> {
    async fn batch(&mut self, count: usize) -> Outcome<Batch> {
        let pid = self.ground.server.pid();
        let (before, begun) = (Cpu::of(pid)?, Instant::now());
        self.crew.works_for(REST).await;
        let at_rest = Cpu::of(pid)?.since(&before).as_secs_f64() / begun.elapsed().as_secs_f64();
        let from = self.maas.requests();
        let numbers = self.begun..self.begun + count;
        self.begun = numbers.end;
        numbers.clone().for_each(|number| self.maas.rack(number));
        let (before, begun) = (Cpu::of(pid)?, Instant::now());
        self.order(numbers).await?;
        self.all_active().await?;
        let took = begun.elapsed();
        let spent = Cpu::of(pid)?.since(&before).as_secs_f64() - at_rest * took.as_secs_f64();
        let calls = self.maas.asked(from).iter().filter(|asked| asked.call == Call::Job).count();
        let each = |total: f64| total / count.max(1) as f64;
        Ok(Batch { cpu: each(spent * 1000.0), calls: each(calls as f64), took })
    }

    async fn order(&mut self, numbers: std::ops::Range<usize>) -> Outcome<()> {
        let mut left = numbers;
        let mut asked = FuturesUnordered::new();
        loop {
            while asked.len() < AT_A_TIME
                && let Some(number) = left.next()
            {
                let mut nodes = NodeServiceClient::new(self.ground.clients.door(number));
                asked.push(async move { nodes.onboard_node(wish(number)).await });
            }
            tokio::select! {
                begun = asked.next() => match begun {
                    Some(begun) => drop(begun?),
                    None => return Ok(()),
                },
                () = self.crew.works() => {}
            }
        }
    }

    /// Until every node is active and no job is left.
    async fn all_active(&mut self) -> Outcome<()> {
        let (look, begun) = (self.ground.look()?, Instant::now());
        loop {
            self.crew.works_for(Duration::from_millis(200)).await;
            let done: u32 = look.query_row(DONE, [], |row| row.get(0))?;
            if done as usize >= self.begun {
                return Ok(());
            }
            let stopped: Option<String> = look.query_row(STOPPED, [], |row| row.get(0)).map(Some).or_else(none)?;
            if let Some(why) = stopped {
                return Err(format!("an onboarding has stopped: {why}").into());
            }
            if begun.elapsed() > DONE_WITHIN {
                return Err(format!("only {done} of {} are active after {:?}", self.begun, DONE_WITHIN).into());
            }
        }
    }

    /// The calls of the one job there is, each in the stage that ended next.
    async fn stages(&self) -> Outcome<Vec<(String, usize)>> {
        let mut jobs = JobServiceClient::new(self.ground.clients.door(0));
        let listed = jobs.list_jobs(mw::ListJobsRequest::default()).await?.into_inner();
        let id = listed.jobs.first().ok_or("no job")?.id.clone();
        let job = jobs.get_job(mw::GetJobRequest { id }).await?.into_inner();
        let ends: Vec<(Timestamp, String)> = job
            .stages
            .iter()
            .filter_map(|stage| stage.finished_at.as_ref().map(|at| (micros(at), stage.name.clone())))
            .collect();
        let mut calls: BTreeMap<usize, usize> = BTreeMap::new();
        for asked in self.maas.asked(0).iter().filter(|asked| asked.call == Call::Job) {
            let stage = ends.iter().position(|(end, _)| asked.at <= *end).unwrap_or(ends.len().saturating_sub(1));
            *calls.entry(stage).or_default() += 1;
        }
        let of = |(n, (_, name)): (usize, &(Timestamp, String))| (name.clone(), calls.get(&n).copied().unwrap_or(0));
        Ok(ends.iter().enumerate().map(of).collect())
    }
}

fn none(e: rusqlite::Error) -> Result<Option<String>, rusqlite::Error> {
    match e {
        rusqlite::Error::QueryReturnedNoRows => Ok(None),
        e => Err(e),
    }
}

fn micros(at: &prost_types::Timestamp) -> Timestamp {
    Timestamp::from_micros(at.seconds * 1_000_000 + i64::from(at.nanos) / 1000)
}

fn wish(number: usize) -> mw::OnboardNodeRequest {
    mw::OnboardNodeRequest {
        name: format!("gpu-{number:05}"),
        site: SITE.to_owned(),
        mac_addresses: vec![mac(number)],
        power: Some(mw::MaasPower {
            kind: "redfish".to_owned(),
            address: bmc_address(number),
            credentials_ref: BMC.to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    }
}
