//! Real machines by the thousand: how long a sweep over their BMCs takes, what one look costs, and what dead BMCs
//! do to the others. The BMCs are responders of ours on loopback, which answer at once: what is measured is the
//! server, not the hardware. When a sweep began and ended stands in the server's own database.

use crate::Outcome;
use crate::bmcs::Bmcs;
use crate::client::{Clients, work_off};
use crate::ground::{Ground, Kind, QUIET_SECONDS, at_rest, id};
use crate::inspect;
use crate::options::Options;
use crate::process::{Cpu, Launch, Server, own_cpu};
use crate::report::{Figure, Goal, Report, Series, middle, plain};
use proto::baremetal::v1 as pb;
use proto::millwright::v1 as mw;
use proto::millwright::v1::credential_service_client::CredentialServiceClient;
use std::time::Duration;
use testkit::redfish_responder::Options as Behaviour;
use testkit::tls::Authority;
use tokio::time::Instant;

pub const SECTION: &str = "hardware";
const MIB: f64 = 1024.0 * 1024.0;
/// One in so many goes dark.
const DARK_ONE_IN: usize = 20;
/// Of all of them, so many are swept over TLS.
const TLS_ONE_IN: usize = 5;
/// Sweeps of each kind.
const SWEEPS: usize = 3;
/// The goal for one.
const SWEEP_SECONDS: f64 = 60.0;
const REGISTRARS: usize = 64;
/// While they are registered: of so many at once only some are looked at at once, and sweeps find the rest.
const REGISTERING_SECONDS: u64 = 2;
/// Looks that a server makes side by side (`observe.concurrency`).
const SIDE_BY_SIDE: usize = 64;
/// Something hangs that takes longer.
const PATIENCE: Duration = Duration::from_secs(600);
const LOOK_EVERY: Duration = Duration::from_millis(100);
const CREDENTIAL: &str = "bench";

/// A server with its BMCs.
struct Site {
    ground: Ground,
    bmcs: Bmcs,
    count: usize,
}

/// What became of some sweeps, in order.
#[derive(Default)]
struct Swept {
    /// Seconds of each sweep over the machines that answer.
    quick: Vec<f64>,
    /// Seconds of each sweep over those that do not.
    slow: Vec<f64>,
    questions: u64,
    cpu: Duration,
    /// Most of it, in MiB.
    memory: f64,
}

fn figure(what: String, unit: &'static str, measured: Vec<f64>, limit: Vec<f64>, against: &str, goal: Goal) -> Figure {
    Figure {
        section: SECTION,
        database: Kind::Sqlite.name(),
        what,
        unit,
        measured,
        limit,
        against: against.to_owned(),
        goal,
    }
}

pub async fn run(options: &Options, report: &mut Report) -> Outcome<()> {
    let dark = options.bmcs / DARK_ONE_IN;
    let mut site = Site::new(Bmcs::start(options.bmcs, dark, None).await?, options.bmcs)?;
    let none = site.populate().await?;
    let launch = site.ground.launch.with("observe.period_seconds", options.period);
    let cost = normal(&mut site, &launch, none, options, report).await?;
    inspect::run(&site.ground, &site.bmcs, report).await?;
    over_tls(options, cost, report).await
}

/// All of them answer; then some go dark. Answers what a look costs, in microseconds of processor time.
async fn normal(
    site: &mut Site,
    launch: &Launch,
    none: f64,
    options: &Options,
    report: &mut Report,
) -> Outcome<Vec<f64>> {
    let (count, alive) = (site.count, site.bmcs.alive());
    let dark = count - alive;
    let goal = || (vec![SWEEP_SECONDS], "the goal itself", Goal::AtMost(1.0));
    let server = launch.start()?;
    let first = site.watch(&server, 1, 0).await?;
    let (limit, against, at_most) = goal();
    let what = format!("first sweep of {count} BMCs after a start");
    report.add(figure(what, "s", first.quick.clone(), limit, against, at_most));
    report.note(format!("the first sweep asked {} questions: logins, and where things are", first.questions));

    let (mut rates, mut costs, mut bare_rates, mut bare_costs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut without, mut memory) = (Vec::new(), first.memory);
    for _ in 0..SWEEPS {
        let swept = site.watch(&server, 1, 0).await?;
        let (before, bare) = (own_cpu(), site.bmcs.bare(SIDE_BY_SIDE, options.slice()).await?);
        bare_costs.push((own_cpu() - before).as_secs_f64() * 1e6 / bare.calls.max(1) as f64);
        bare_rates.push(bare.rate());
        if swept.questions < count as u64 {
            return Err(format!("a sweep of {count} machines asked {} questions", swept.questions).into());
        }
        rates.push(swept.questions as f64 / swept.quick.iter().sum::<f64>());
        costs.push(swept.cpu.as_secs_f64() * 1e6 / count as f64);
        without.extend(swept.quick);
        memory = memory.max(swept.memory);
    }
    let (limit, against, at_most) = goal();
    let what = format!("sweep of {count} BMCs, all answering");
    report.add(figure(what, "s", without.clone(), limit, against, at_most));
    let against = format!("bare GETs per second, a connection each, {SIDE_BY_SIDE} at a time");
    let what = "BMC reads per second in a sweep".to_owned();
    report.add(figure(what, "/s", rates, bare_rates, &against, Goal::None));
    let what = "server CPU of one look at a BMC".to_owned();
    report.add(figure(what, "µs", costs.clone(), bare_costs, "a bare GET over a connection of its own", Goal::None));
    let per_thousand = (memory - none) / (count as f64 / 1000.0);
    let what = format!("memory for 1,000 real machines (most, with {count})");
    let against = "the server without machines";
    report.add(figure(what, "MiB", vec![per_thousand], vec![none], against, Goal::None));

    let watching = Instant::now();
    site.bmcs.go_dark().await?;
    let dying = site.watch(&server, 1, 0).await?;
    let settled = Instant::now();
    while site.lane("slow").await? < dark as i64 {
        if settled.elapsed() > PATIENCE {
            return Err(format!("of {dark} dead BMCs only {} were found", site.lane("slow").await?).into());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    report.note(format!("{:.0} s after they went dark, {dark} were swept apart", watching.elapsed().as_secs_f64()));
    let with = site.watch(&server, SWEEPS, SWEEPS.min(dark)).await?;
    let (quick, slow) = (site.lane("quick").await?, site.lane("slow").await?);
    if (quick, slow) != (alive as i64, dark as i64) {
        return Err(format!("{quick} machines answer and {slow} do not, instead of {alive} and {dark}").into());
    }
    server.stop()?;
    let server = launch.start()?;
    let again = site.watch(&server, 1, 1.min(dark)).await?;
    server.stop()?;

    let (limit, against, at_most) = goal();
    let what = format!("sweep of {count} BMCs, {dark} dead, all of it");
    report.add(figure(what, "s", whole(&with), limit, against, at_most));
    let (limit, against, at_most) = goal();
    let what = format!("first sweep of {count} BMCs after a start, {dark} dead, all of it");
    report.add(figure(what, "s", whole(&again), limit, against, at_most));
    let against = "the same with all answering";
    let what = format!("sweep of the {alive} that answer, {dark} dead");
    report.add(figure(what, "s", with.quick.clone(), without.clone(), against, Goal::AtMost(2.0)));
    let what = format!("sweep of {count} in which {dark} go dark");
    report.add(figure(what, "s", dying.quick.clone(), vec![middle(&without)], against, Goal::None));
    report.note(format!("the dead by themselves took {} s; a third each refuse, drop and hang", list(&with.slow)));
    report.series.push(Series {
        section: SECTION,
        title: format!("Seconds of each sweep over {count} BMCs; {dark} go dark before sweep {}", SWEEPS + 2),
        x: "sweep",
        y: "s",
        lines: vec![("machines that answer".to_owned(), numbered(&[first.quick, without, dying.quick, with.quick]))],
    });
    Ok(costs)
}

/// Both kinds of machines, side by side: the longer one.
fn whole(swept: &Swept) -> Vec<f64> {
    let slow = swept.slow.iter().copied().chain(std::iter::repeat(0.0));
    swept.quick.iter().zip(slow).map(|(quick, slow)| quick.max(slow)).collect()
}

fn list(seconds: &[f64]) -> String {
    seconds.iter().map(|s| plain(*s)).collect::<Vec<_>>().join(", ")
}

fn numbered(sweeps: &[Vec<f64>]) -> Vec<(f64, f64)> {
    sweeps.iter().flatten().enumerate().map(|(n, seconds)| (n as f64 + 1.0, *seconds)).collect()
}

async fn over_tls(options: &Options, plain_cost: Vec<f64>, report: &mut Report) -> Outcome<()> {
    let count = (options.bmcs / TLS_ONE_IN).max(1);
    let mut site = Site::new(Bmcs::start(count, 0, Some(Authority::default().pair())).await?, count)?;
    site.populate().await?;
    let pins = site.ground.number("SELECT COUNT(*) FROM pins", &[]).await?;
    if pins < count as i64 {
        return Err(format!("of {count} certificates {pins} were pinned").into());
    }
    let server = site.ground.launch.with("observe.period_seconds", options.period).start()?;
    let first = site.watch(&server, 1, 0).await?;
    let (mut costs, mut seconds) = (Vec::new(), Vec::new());
    for _ in 0..SWEEPS {
        let swept = site.watch(&server, 1, 0).await?;
        costs.push(swept.cpu.as_secs_f64() * 1e6 / count as f64);
        seconds.extend(swept.quick);
    }
    server.stop()?;
    let what = format!("server CPU of one look over TLS, pinned, {count} BMCs");
    report.add(figure(what, "µs", costs, plain_cost, "the same in the clear", Goal::None));
    report.note(format!(
        "{count} BMCs over TLS: {} s for a sweep, {} s for the first after a start",
        plain(middle(&seconds)),
        plain(middle(&first.quick))
    ));
    Ok(())
}

impl Site {
    fn new(bmcs: Bmcs, count: usize) -> Outcome<Self> {
        let mut ground = Ground::new(Kind::Sqlite)?;
        ground.launch.simulated = false;
        Ok(Self { ground, bmcs, count })
    }

    /// Registers the BMCs' machines, and waits until each has proven itself. Answers the memory of the server
    /// before, in MiB.
    async fn populate(&mut self) -> Outcome<f64> {
        let server = self.ground.launch.with("observe.period_seconds", REGISTERING_SECONDS).start()?;
        at_rest(&server).await?;
        let none = server.resident()? / MIB;
        let clients = Clients::connect(&server).await?;
        let login = Behaviour::default();
        let credential = mw::SetCredentialRequest {
            name: CREDENTIAL.to_owned(),
            kind: "bmc".to_owned(),
            username: login.username,
            password: login.password,
            ..mw::SetCredentialRequest::default()
        };
        CredentialServiceClient::new(clients.door(0)).set_credential(credential).await?;
        let endpoints: std::sync::Arc<[String]> = self.bmcs.endpoints().into();
        let registered = work_off(REGISTRARS, self.count, |caller| {
            let (client, endpoints) = (clients.machines(caller), endpoints.clone());
            move |n| {
                let (mut client, machine) = (client.clone(), machine(n, &endpoints[n]));
                async move {
                    let request = pb::RegisterMachineRequest { machine: Some(machine) };
                    client.register_machine(request).await.map(drop)
                }
            }
        });
        let registered = registered.await?;
        let (begun, ready) = (Instant::now(), r#"millwright_machines{phase="READY"}"#);
        while (server.metrics()?.get(ready) as usize) < self.count {
            if begun.elapsed() > PATIENCE {
                return Err(format!("not all machines became READY: {}", server.metrics()?.get(ready)).into());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        println!(
            "    {} real machines registered through the API at {:.0}/s, all READY {:.1} s later",
            self.count,
            registered.rate(),
            begun.elapsed().as_secs_f64()
        );
        server.stop()?;
        Ok(none)
    }

    /// Machines in a lane: those that answer, or those that do not.
    async fn lane(&self, lane: &str) -> Outcome<i64> {
        self.ground.number(&format!("SELECT COUNT(*) FROM observations WHERE lane = '{lane}'"), &[]).await
    }

    /// The last sweep of a lane that has ended: its number, and how many microseconds it took.
    async fn last(&self, lane: &str) -> Outcome<(i64, i64)> {
        let of = |what: &str| {
            format!("SELECT COALESCE(MAX({what}), 0) FROM sweeps WHERE lane = '{lane}' AND finished_at IS NOT NULL")
        };
        let round = self.ground.number(&of("round"), &[]).await?;
        let took = self.ground.number(&format!("{} AND round = $1", of("finished_at - started_at")), &[round]).await?;
        Ok((round, took))
    }

    /// Waits until so many further sweeps of each lane have ended.
    async fn watch(&self, server: &Server, quick: usize, slow: usize) -> Outcome<Swept> {
        let (begun, cpu, questions) = (Instant::now(), Cpu::of(server.pid())?, self.bmcs.questions());
        let (mut quick_round, mut slow_round) = (self.last("quick").await?.0, self.last("slow").await?.0);
        let mut swept = Swept::default();
        while swept.quick.len() < quick || swept.slow.len() < slow {
            tokio::time::sleep(LOOK_EVERY).await;
            for (lane, known, seconds) in
                [("quick", &mut quick_round, &mut swept.quick), ("slow", &mut slow_round, &mut swept.slow)]
            {
                let (round, took) = self.last(lane).await?;
                if round > *known {
                    *known = round;
                    seconds.push(took as f64 / 1e6);
                }
            }
            let memory = server.resident()? / MIB;
            swept.memory = swept.memory.max(memory);
            if begun.elapsed() > PATIENCE {
                return Err(format!("no sweep ends: {quick} and {slow} were waited for").into());
            }
        }
        swept.cpu = Cpu::of(server.pid())?.since(&cpu);
        swept.questions = self.bmcs.questions() - questions;
        Ok(swept)
    }
}

/// A real machine, reached by its BMC only.
fn machine(n: usize, bmc_endpoint: &str) -> pb::Machine {
    let spec = pb::MachineSpec {
        provider: "datacenter".to_owned(),
        rack: format!("r{}", n / 40 + 1),
        bmc_endpoint: bmc_endpoint.to_owned(),
        credentials_ref: CREDENTIAL.to_owned(),
        ..pb::MachineSpec::default()
    };
    pb::Machine { machine_id: id(n), spec: Some(spec), ..pb::Machine::default() }
}

/// A server that sweeps once and then leaves its BMCs alone.
pub fn quiet(ground: &Ground) -> Outcome<Server> {
    ground.launch.with("observe.period_seconds", QUIET_SECONDS).start()
}
