//! Network boot: what machines are told to boot, beside the health check over the same kind of connection; and what
//! installers report, durably, beside the same statements run by the store with no HTTP in front. A fleet that was
//! without power asks all at once, each machine for the first time in a while; machines that wait ask again and again.
//! Every answer is looked at: one that is not what the node's state calls for ends the run.

use crate::Outcome;
use crate::boot_nodes::{bring_all, mac, question, state};
use crate::client::{Clients, Slice, Tally, costing, drive, work_off};
use crate::ground::{Ground, Kind};
use crate::options::Options;
use crate::plain_http::{Own, get, lines, post};
use crate::process::Server;
use crate::reads::{Scattered, checks};
use crate::report::{Figure, Goal, Report};
use crate::writes::{Flips, store_alone};
use domain::boot_node::BootState;
use domain::install_report::{Effect, Said};
use domain::{Error, FindingId, MacAddress};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store::{Caller, Store, SystemAmbient, Tx, TxResult, boot_node};
use tokio::sync::Mutex;
use workflow::install::{self, Told};

const SECTION: &str = "boot";
/// Boot nodes of the small fleet, and of the part of the large one that asks again and again.
const FEW: usize = 100;
const CALLERS: [usize; 2] = [16, 64];
/// That ask when a whole fleet does.
const AT_ONCE: usize = 64;
const REPORTERS: [usize; 2] = [64, 1024];
/// That one of them reports about.
const INSTALLS_EACH: usize = 4;
/// How much dearer a decision may be among many nodes than among few.
const FLAT: f64 = 1.2;

/// What a machine asks, and what must be in the answer.
struct Question {
    asks: Vec<u8>,
    answer: &'static str,
}

impl Question {
    fn of(n: usize) -> Self {
        let answer = match state(n) {
            BootState::Pending => "millwright.token=mwr_",
            _ => "booting from disk\n",
        };
        Self { asks: get(&question(n)), answer }
    }
}

/// A server, and what its machines ask.
struct Site {
    server: Server,
    clients: Clients,
    questions: Arc<[Question]>,
}

impl Site {
    async fn open(ground: &Ground) -> Outcome<Self> {
        let server = ground.start().await?;
        let clients = Clients::connect(&server).await?;
        let questions = (0..ground.machines).map(Question::of).collect();
        Ok(Self { server, clients, questions })
    }

    /// New ones for each load: a server hangs up on whoever is silent for long.
    async fn lines(&self, callers: usize) -> Outcome<Vec<Own>> {
        lines(&self.server.address, callers).await
    }

    async fn health(&self, callers: usize, span: Duration) -> Outcome<Slice> {
        let lines = self.lines(callers).await?;
        let asks: Arc<[u8]> = get("/healthz").into();
        let load = drive(callers, span, |caller| {
            let (line, asks) = (lines[caller].clone(), asks.clone());
            move || {
                let (line, asks) = (line.clone(), asks.clone());
                async move { expect(line.lock().await.ask(&asks).await?, "ok\n") }
            }
        });
        costing(&self.server, load).await
    }

    /// `next` says for each caller which of the machines asks.
    async fn decisions<N>(&self, callers: usize, span: Duration, next: impl Fn(usize) -> N) -> Outcome<Slice>
    where
        N: FnMut() -> usize + Send + 'static,
    {
        let lines = self.lines(callers).await?;
        let load = drive(callers, span, |caller| {
            let (line, questions, mut next) = (lines[caller].clone(), self.questions.clone(), next(caller));
            move || {
                let (line, questions, n) = (line.clone(), questions.clone(), next());
                async move {
                    let Some(question) = questions.get(n) else {
                        return Err("more decisions than machines: give more --machines or fewer --seconds".to_owned());
                    };
                    expect(line.lock().await.ask(&question.asks).await?, question.answer)
                }
            }
        });
        costing(&self.server, load).await
    }

    /// A few machines from all over the fleet, again and again.
    async fn again(&self, callers: usize, span: Duration) -> Outcome<Slice> {
        // a step that is no multiple of ten, so that every state is among them
        let step = self.questions.len() / FEW;
        let step = if step > 1 { step + 1 } else { step };
        let all = self.questions.len();
        self.decisions(callers, span, |caller| {
            let mut next = Scattered::new(FEW, caller);
            move || next.step() * step % all
        })
        .await
    }
}

fn expect(answer: &str, wanted: &str) -> Result<(), String> {
    if answer.contains(wanted) { Ok(()) } else { Err(format!("{answer:?}, where {wanted:?} was to be")) }
}

fn figure(ground: &Ground, what: String, unit: &'static str, against: &str, goal: Goal) -> Figure {
    let (measured, limit) = (Vec::new(), Vec::new());
    let (database, against) = (ground.kind.name(), against.to_owned());
    Figure { section: SECTION, database, what, unit, measured, limit, against, goal }
}

/// Rate and cost of one load beside another's.
struct Pair {
    rate: Figure,
    cpu: Figure,
}

impl Pair {
    fn new(ground: &Ground, what: &str, against: &str, rate: Goal, cpu: Goal) -> Self {
        Self {
            rate: figure(ground, format!("{what} per second"), "/s", against, rate),
            cpu: figure(ground, format!("{what}, server CPU of each"), "µs", against, cpu),
        }
    }

    fn add(&mut self, measured: Slice, limit: Slice) {
        self.rate.measured.push(measured.tally.rate());
        self.rate.limit.push(limit.tally.rate());
        self.cpu.measured.push(measured.cpu_per_call());
        self.cpu.limit.push(limit.cpu_per_call());
    }
}

/// A large fleet and a small one, whose nodes are in the same states.
pub struct Fleets {
    many: Ground,
    few: Ground,
}

impl Fleets {
    /// For all of these machines, and for a few others.
    pub async fn new(many: Ground) -> Outcome<Self> {
        let mut few = Ground::new(Kind::Sqlite)?;
        few.register(FEW).await?;
        for ground in [&many, &few] {
            bring_all(ground).await?;
        }
        Ok(Self { many, few })
    }

    /// The same, on either database.
    pub async fn on(&self, kind: Kind) -> Outcome<Self> {
        let (mut many, mut few) = match kind {
            Kind::Sqlite => (self.many.branch("many")?, self.few.branch("few")?),
            Kind::Postgres => (self.many.in_postgres().await?, self.few.in_postgres().await?),
        };
        for ground in [&mut many, &mut few] {
            // what tokens are made with; servers that may share a database are given one
            ground.launch = ground.launch.with("secrets.key", "07".repeat(32));
        }
        Ok(Self { many, few })
    }
}

pub async fn run(fleets: &Fleets, options: &Options, report: &mut Report) -> Outcome<()> {
    let Fleets { many: fleet, few } = fleets;
    let copy = fleet.copy("boot_alone").await?;
    let (many, few) = (Site::open(fleet).await?, Site::open(few).await?);
    decisions(fleet, &many, &few, options, report).await?;
    few.server.stop()?;
    let alone = Store::open(&copy, Arc::new(SystemAmbient::new()))?;
    reports(fleet, &many, &alone, options, report).await?;
    many.server.stop()?;
    Ok(tokio::task::spawn_blocking(move || alone.close()).await?)
}

async fn decisions(fleet: &Ground, many: &Site, few: &Site, options: &Options, report: &mut Report) -> Outcome<()> {
    let (stored, span) = (many.questions.len(), options.slice());
    // caches warm, statements prepared, the few seen
    for site in [many, few] {
        site.health(AT_ONCE, span).await?;
        site.again(AT_ONCE, span).await?;
    }
    let (health, standard) = ("health check over HTTP", "standard health check, gRPC");
    for callers in CALLERS {
        let what = format!("boot decisions, {callers} callers, {FEW} of {stored} nodes again and again");
        let mut beside_health = Pair::new(fleet, &what, health, Goal::AtLeast(0.5), Goal::None);
        let mut beside_standard = Pair::new(fleet, &what, standard, Goal::AtLeast(0.5), Goal::None);
        let against = format!("with {FEW} nodes stored");
        let mut beside_few = Pair::new(fleet, &what, &against, Goal::None, Goal::AtMost(FLAT));
        for _ in 0..options.slices() {
            let health = many.health(callers, span).await?;
            let measured = many.again(callers, span).await?;
            beside_health.add(measured, health);
            beside_standard.add(measured, checks(&many.server, &many.clients, callers, span).await?);
            beside_few.add(measured, few.again(callers, span).await?);
        }
        report.add(beside_health.rate);
        report.add(beside_health.cpu);
        report.add(beside_standard.rate);
        report.add(beside_standard.cpu);
        report.add(beside_few.cpu);
    }
    let what = format!("boot decisions, {AT_ONCE} callers, each of {stored} nodes once");
    let mut once = Pair::new(fleet, &what, health, Goal::AtLeast(0.5), Goal::None);
    let (order, asked) = (shuffled(stored), Arc::new(AtomicUsize::new(0)));
    for _ in 0..options.slices() {
        let health = many.health(AT_ONCE, span).await?;
        let measured = many.decisions(AT_ONCE, span, |_| {
            let (order, asked) = (order.clone(), asked.clone());
            // past the end there is no such machine, which ends the run
            move || order.get(asked.fetch_add(1, Ordering::Relaxed)).copied().unwrap_or(usize::MAX)
        });
        once.add(measured.await?, health);
    }
    report.add(once.rate);
    report.add(once.cpu);
    Ok(())
}

/// All numbers below, each once, in an order that no cache guesses.
fn shuffled(below: usize) -> Arc<[usize]> {
    let mut all: Vec<usize> = (0..below).collect();
    for n in (1..below).rev() {
        let other = Scattered::new(n + 1, n).step();
        all.swap(n, other);
    }
    all.into()
}

/// Installations under way: of each its node, and what its installer shows.
struct Installs {
    of: Vec<(usize, String)>,
    /// How many reports each caller has sent.
    sent: Vec<Arc<AtomicUsize>>,
}

impl Installs {
    /// What a caller reports next: of which of them, and how far it is.
    fn next(&self, caller: usize) -> impl FnMut() -> (usize, u8) + Send + 'static {
        let (callers, all, sent) = (self.sent.len(), self.of.len(), self.sent[caller].clone());
        let own = all / callers;
        move || {
            let n = sent.fetch_add(1, Ordering::Relaxed);
            (caller + (n % own) * callers, u8::try_from(n / own).unwrap_or(100).min(100))
        }
    }

    fn by(&mut self, callers: usize) -> Outcome<()> {
        if self.of.len() < callers {
            let message = format!("{} installations for {callers} callers; give more --machines", self.of.len());
            return Err(message.into());
        }
        self.sent = (0..callers).map(|_| Arc::default()).collect();
        Ok(())
    }
}

fn body(n: usize, said: Said, percent: u8) -> String {
    let said = said.as_str();
    let mac = mac(n);
    format!(r#"{{"mac_address":"{mac}","installation_status":"{said}","installation_progress":{percent}}}"#)
}

/// Every caller has installations of its own: no two reports wait for each other, and each counts.
async fn reports(fleet: &Ground, site: &Site, alone: &Store, options: &Options, report: &mut Report) -> Outcome<()> {
    let mut numbers = (0..fleet.machines).filter(|n| state(*n) == BootState::Pending);
    let quarter = fleet.machines / 4;
    for (round, callers) in REPORTERS.into_iter().enumerate() {
        let part = numbers.by_ref().take(callers * INSTALLS_EACH).collect();
        let mut installs = Installs { of: begin(site, part).await?, sent: Vec::new() };
        installs.by(callers)?;
        let mut in_store = Installs { of: installs.of.clone(), sent: Vec::new() };
        in_store.by(callers)?;
        begin_alone(alone, &in_store).await?;
        let flips = Flips::new(callers, round * quarter..(round + 1) * quarter);
        let what = format!("reports of installers, {callers} callers, durable");
        let mut same = figure(fleet, format!("{what}, per second"), "/s", "the same by the store alone", Goal::None);
        let against = "SetPhase by the store alone, as in writes";
        let mut changes = figure(fleet, format!("{what}, per second"), "/s", against, Goal::AtLeast(0.5));
        let against = "health check over HTTP";
        let mut cpu = figure(fleet, format!("{what}, server CPU of each"), "µs", against, Goal::None);
        for _ in 0..options.slices() {
            let health = site.health(callers.min(AT_ONCE), options.slice()).await?;
            let measured = progress(site, &installs, options.slice()).await?;
            let stored = progress_alone(alone, &in_store, options.slice()).await?;
            let flipped = store_alone(alone, &flips, options.slice()).await?;
            for (figure, limit) in [(&mut same, stored), (&mut changes, flipped)] {
                figure.measured.push(measured.tally.rate());
                figure.limit.push(limit.rate());
            }
            cpu.measured.push(measured.cpu_per_call());
            cpu.limit.push(health.cpu_per_call());
        }
        [same, changes, cpu].into_iter().for_each(|figure| report.add(figure));
    }
    Ok(())
}

/// Each boots, is given its token, and says that it has begun.
async fn begin(site: &Site, numbers: Vec<usize>) -> Outcome<Vec<(usize, String)>> {
    let begun: Arc<Mutex<Vec<(usize, String)>>> = Arc::default();
    let (all, lines): (Arc<[usize]>, _) = (numbers.into(), site.lines(AT_ONCE).await?);
    let load = work_off(AT_ONCE, all.len(), |caller| {
        let (line, all, begun) = (lines[caller].clone(), all.clone(), begun.clone());
        move |task| {
            let (line, n, begun) = (line.clone(), all[task], begun.clone());
            async move {
                let mut line = line.lock().await;
                let script = line.ask(&get(&question(n))).await?;
                let token = script.split_whitespace().find_map(|word| word.strip_prefix("millwright.token="));
                let token = token.ok_or_else(|| format!("no token in {script:?}"))?.to_owned();
                let answer = line.ask(&post("/api/v1/report", &token, &body(n, Said::Started, 0))).await?;
                expect(answer, r#""applied":true"#)?;
                begun.lock().await.push((n, token));
                Ok::<(), String>(())
            }
        }
    });
    load.await?;
    Ok(begun.lock().await.clone())
}

async fn progress(site: &Site, installs: &Installs, span: Duration) -> Outcome<Slice> {
    let own = site.lines(installs.sent.len()).await?;
    let of: Arc<[(usize, String)]> = installs.of.clone().into();
    let load = drive(own.len(), span, |caller| {
        let (line, of, mut next) = (own[caller].clone(), of.clone(), installs.next(caller));
        move || {
            let (line, of, (which, percent)) = (line.clone(), of.clone(), next());
            async move {
                let (n, token) = &of[which];
                let sends = post("/api/v1/report", token, &body(*n, Said::Progress, percent));
                expect(line.lock().await.ask(&sends).await?, r#""applied":true"#)
            }
        }
    });
    costing(&site.server, load).await
}

async fn begin_alone(store: &Store, installs: &Installs) -> Outcome<()> {
    let of: Arc<[usize]> = installs.of.iter().map(|(n, _)| *n).collect();
    let load = work_off(AT_ONCE, of.len(), |_| {
        let (store, of) = (store.clone(), of.clone());
        move |task| {
            let (store, n) = (store.clone(), of[task]);
            async move { say_alone(&store, n, Said::Started, 0).await }
        }
    });
    load.await.map(drop)
}

async fn progress_alone(store: &Store, installs: &Installs, span: Duration) -> Outcome<Tally> {
    let of: Arc<[usize]> = installs.of.iter().map(|(n, _)| *n).collect();
    drive(installs.sent.len(), span, |caller| {
        let (store, of, mut next) = (store.clone(), of.clone(), installs.next(caller));
        move || {
            let (store, of, (which, percent)) = (store.clone(), of.clone(), next());
            async move { say_alone(&store, of[which], Said::Progress, percent).await }
        }
    })
    .await
}

/// The statements of one report, without a door, a token or a log line.
async fn say_alone(store: &Store, n: usize, said: Said, percent: u8) -> Result<(), Error> {
    let mac = MacAddress::from_text(mac(n));
    let (error, evidence) = (String::new(), String::new());
    let finding = FindingId::generate(store.ambient().uuid());
    let progress = Some(percent);
    let told = Told { said: Some(said), progress, error, lines: Vec::new(), evidence, finding, promote: false };
    let gone = || Error::internal("the boot node is gone");
    let id = store.point(boot_node::by_mac(&mac)).await?.ok_or_else(gone)?.id;
    store.write(&Caller::new("bench"), id.clone().as_str(), move |tx| counts(tx, &id, &told)).await
}

fn counts(tx: &mut Tx<'_>, id: &domain::BootNodeId, told: &Told) -> TxResult<()> {
    let there = boot_node::get_for_update(tx, id)?.ok_or_else(|| Error::internal("the boot node is gone"))?;
    match install::report(tx, &there, 1, told)?.1 {
        Effect::Nothing(_) => Err(Error::internal("the report did not count").into()),
        Effect::Begins | Effect::BeginsAgain | Effect::Progresses(_) | Effect::Completes | Effect::Fails(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_is_asked_once() {
        let mut all = shuffled(1000).to_vec();
        assert!(all.windows(2).any(|two| two[0] > two[1]), "in some other order");
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
    }
}
