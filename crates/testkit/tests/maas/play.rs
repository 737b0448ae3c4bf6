//! One job on one machine in a plant of its own, driven turn by turn; its rows are compared with the table at every turn,
//! and what was done upstream is judged from the simulator's own log when it has ended.

use crate::plant::{self, Plant, SITE, mac};
use crate::rows::rows_hold;
use crate::table;
use domain::job::{Job, JobStatus};
use domain::job_action::{JobAction, recommend};
use domain::job_stage::{Ground, JobKind, JobStage, Mode};
use domain::node::{Node, NodeStatus};
use domain::site::{DiskRule, Erase, LinkMode, RoceNetwork, Site};
use domain::{JobId, NodeId};
use engine::Engine;
use reconcile::Reconciler;
use service::MaasWish;
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use store::{agent, job, node};
use testkit::fleet::Database;
use testkit::maas_sim::{DiskSpec, Pace, Racked, auditor, status};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Plants at a time, in all tests together: most of their time they wait.
static WIDTH: Semaphore = Semaphore::const_new(12);
/// Turns without anything new before a play counts as stuck: a bound, not a verdict.
const TURNS_MAX: u32 = 2_500;
/// After so many of them the clock is moved on: what waits by the clock alone need not be waited for.
const SKIP_AFTER: u32 = 150;
const SKIP: Duration = Duration::from_secs(900);

pub const ONBOARDING: JobKind = JobKind::Onboarding(Ground::Maas);
pub const REIMAGE: JobKind = JobKind::Decommission(Mode::Reimage(Ground::Maas));
pub const FULL: JobKind = JobKind::Decommission(Mode::FullDecommission(Ground::Maas));

/// What MAAS knows of the machine before we come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    Nothing,
    New,
    Ready,
}

impl Before {
    pub const ALL: [Before; 3] = [Before::Nothing, Before::New, Before::Ready];

    pub fn of(number: usize) -> Self {
        Self::ALL[number % Self::ALL.len()]
    }
}

pub struct Play {
    pub plant: Plant,
    pub kind: JobKind,
    pub node: NodeId,
    pub job: JobId,
    pub name: String,
    /// What node and job is to be there after it, if it is called off.
    found: Option<String>,
    sweeps: Option<Reconciler>,
    /// How often its disks had been erased before the job.
    erases: u64,
}

/// A profile that asks for everything that a profile can.
pub fn rich(site: &mut Site) {
    let profile = &mut site.profiles[0];
    profile.tags = vec!["gpu".to_owned(), "row-1".to_owned()];
    profile.boot_disk = DiskRule { model: "BOSS".to_owned(), ..DiskRule::default() };
    profile.roce = vec![RoceNetwork {
        interface: "eth1".to_owned(),
        subnet: "name:fabric".to_owned(),
        mode: LinkMode::Auto,
        mtu: 9000,
    }];
    site.policy.keep_record = false;
}

/// Another card of a machine, for the fabric.
pub fn fabric_mac(number: u32) -> String {
    mac(number).replacen("52:54:00", "52:54:0f", 1)
}

impl Play {
    /// A plant with one racked machine, which has what the rich profile asks for.
    pub async fn plant(pace: Pace, change: impl FnOnce(&mut Site)) -> Plant {
        Self::plant_on(Database::Memory, pace, change).await
    }

    pub async fn plant_on(database: Database, pace: Pace, change: impl FnOnce(&mut Site)) -> Plant {
        let plant = Plant::paced(database, pace, |site| {
            rich(site);
            change(site);
        })
        .await;
        let (vlan, _) = plant.sim.add_subnet("fabric", "10.77.0.0/24");
        let disks = vec![
            DiskSpec::new("sda", "Micron 7450", 3_840_000_000_000),
            DiskSpec::new("sdb", "DELLBOSS VD", 480_000_000_000),
        ];
        plant.sim.rack(Racked::new(&mac(1), &plant::bmc_address(1)).disks(disks).nic("eth1", &fabric_mac(1), vlan));
        plant
    }

    /// An onboarding that nobody works on yet.
    pub async fn onboarding(name: &str, before: Before) -> Self {
        Self::onboarding_with(name, before, |_| {}).await
    }

    pub async fn onboarding_with(name: &str, before: Before, change: impl FnOnce(&mut Site)) -> Self {
        Self::onboarding_of(name, before, change, Plant::wish(1)).await
    }

    pub async fn onboarding_of(name: &str, before: Before, change: impl FnOnce(&mut Site), wish: MaasWish) -> Self {
        Self::onboarding_at(Pace::Instant, name, before, change, wish).await
    }

    async fn onboarding_at(
        pace: Pace,
        name: &str,
        before: Before,
        change: impl FnOnce(&mut Site),
        wish: MaasWish,
    ) -> Self {
        let plant = Self::plant(pace, change).await;
        let found = match before {
            Before::Nothing => None,
            Before::New | Before::Ready => {
                let id = plant.sim.as_somebody().create("found", &mac(1), &plant::bmc_address(1));
                if before == Before::Ready {
                    plant.sim.as_somebody().commission(&id);
                    plant.sim.finish(&id);
                }
                Some(id)
            }
        };
        let (node, job) = plant.onboard(wish).await;
        let name = format!("{name} ({before:?} in MAAS)");
        Self { plant, kind: ONBOARDING, node, job, name, found, sweeps: None, erases: 0 }
    }

    /// An onboarding in a plant that is there.
    pub async fn on(plant: Plant, name: &str, wish: MaasWish, found: Option<String>) -> Self {
        let (node, job) = plant.onboard(wish).await;
        Self { plant, kind: ONBOARDING, node, job, name: name.to_owned(), found, sweeps: None, erases: 0 }
    }

    /// The node that came of the job before it is taken on.
    pub async fn goes_on_with(&mut self, kind: JobKind) {
        self.sweeps.get_or_insert_with(|| self.plant.reconciler());
        let name = self.name.clone();
        self.plant.is_soon(&self.node, NodeStatus::Active, &name).await;
        self.kind = kind;
        self.erases = self.plant.sim.hardware(&mac(1)).erases;
        self.job = self.plant.decommission(&self.node, kind.mode()).await;
    }

    /// An onboarded node, and a job of this kind on it that nobody works on yet.
    pub async fn of(kind: JobKind, name: &str, before: Before) -> Self {
        Self::at(Pace::Instant, kind, name, before).await
    }

    /// The same, with a MAAS in which things take their time.
    pub async fn slow(kind: JobKind, name: &str, before: Before) -> Self {
        Self::at(Pace::Manual, kind, name, before).await
    }

    async fn at(pace: Pace, kind: JobKind, name: &str, before: Before) -> Self {
        let mut play = Self::onboarding_at(pace, name, before, |_| {}, Plant::wish(1)).await;
        if kind == ONBOARDING {
            return play;
        }
        let engine = play.plant.life(None).await;
        play.completes().await;
        play.sweeps = Some(play.plant.reconciler());
        play.plant.is_soon(&play.node, NodeStatus::Active, name).await;
        engine.stop().await;
        play.goes_on_with(kind).await;
        play
    }

    /// Node and job as they are together; a pair outside the table is a failure.
    pub async fn look(&self) -> (Node, Job) {
        let (id, of) = (self.job.clone(), self.node.clone());
        let read =
            self.plant.fleet.store.snapshot(move |tx| Ok((tx.point(&node::by_id(&of))?, tx.point(&job::by_id(&id))?)));
        let (node, job) = read.await.expect("reads");
        let (node, job) = (node.expect("a node"), job.expect("a job"));
        let pair = table::meaning(self.kind, job.status, node.status);
        // what becomes of a node after its job has ended is no more its job's
        let since = job.finished_at.is_some_and(|ended| node.status_changed_at > ended);
        assert!(
            pair.is_some() || since,
            "{}: a node that is {} with a job that is {} at {:?} ({:?})",
            self.name,
            node.status,
            job.status,
            job.stage,
            job.failure
        );
        (node, job)
    }

    /// Goes on until the job rests, or this is so.
    pub async fn lives_until(&self, mut is: impl FnMut(&Job) -> bool) -> (Node, Job) {
        let (mut last, mut turns) = (None, 0);
        loop {
            let (node, job) = self.look().await;
            if !job.status.is_under_way() || is(&job) {
                return (node, job);
            }
            let at = (job.status, job.stage, job.attempt, job.learned.clone());
            if last.as_ref() != Some(&at) {
                (last, turns) = (Some(at), 0);
            }
            turns += 1;
            // a skip is a gap in the heartbeats: what waits for steady ones would be looked at after nothing but gaps
            if turns % SKIP_AFTER == 0 && job.stage != Some(JobStage::CheckHealth) {
                self.plant.fleet.pass(SKIP);
            }
            assert!(turns < TURNS_MAX, "{}: stuck: {job:#?}\n{}", self.name, self.plant.waits_for(&job).await);
            self.plant.turn().await;
        }
    }

    /// With nobody at work on it, right after it has come to that stage.
    pub async fn killed_at(&self, stage: JobStage) {
        let at = |stage: JobStage| self.kind.stages().iter().position(|s| *s == stage).expect("one of its stages");
        loop {
            let now = self.look().await.1.stage.map_or(0, |there| at(there) + 1);
            let left = at(stage) + 1 - now;
            if left == 0 {
                return;
            }
            self.killed_after(left).await;
            let there = self.look().await.1.stage.map_or(0, |there| at(there) + 1);
            assert!((now..=at(stage) + 1).contains(&there), "{}: beyond {stage}", self.name);
        }
    }

    /// An engine that is killed right after it has entered so many stages.
    async fn killed_after(&self, number: usize) {
        let (seen, there) = (AtomicUsize::new(0), CancellationToken::new());
        let (reached, killed) = (there.clone(), Arc::new(OnceLock::<Engine>::new()));
        let kills = killed.clone();
        let engine = self.plant.engine(Some(Arc::new(move |_, entry| {
            if entry == "stage_entered" && seen.fetch_add(1, Ordering::Relaxed) + 1 == number {
                kills.get().expect("an engine").kill();
                reached.cancel();
            }
        })));
        assert!(killed.set(engine.clone()).is_ok());
        engine.start().await.expect("starts");
        let (_, job) = self.lives_until(|_| there.is_cancelled()).await;
        assert!(there.is_cancelled(), "{}: rests before that: {job:#?}", self.name);
        engine.ended().await;
    }

    /// Until it rests; where MAAS waits for a time-out of its own, that comes.
    pub async fn with_maas_timeouts(&self) -> Job {
        let mut turns = 0;
        let timeouts = |_: &Job| {
            turns += 1;
            let waits = |m: &testkit::maas_sim::Seen| status::is_intermediate(m.status);
            if turns % 20 == 0 && self.plant.sim.machines().iter().any(waits) {
                self.plant.sim.advance(Duration::from_secs(65 * 60));
            }
            false
        };
        self.lives_until(timeouts).await.1
    }

    pub async fn rests(&self) -> (Node, Job) {
        self.lives_until(|_| false).await
    }

    /// Takes what is recommended until it has ended.
    pub async fn ends(&self) -> (Node, Job) {
        let mut taken = Vec::new();
        for _ in 0..6 {
            let (node, job) = self.rests().await;
            rows_hold(&self.name, &self.plant.fleet.store, &self.job).await;
            if job.status.is_terminal() {
                return (node, job);
            }
            let (action, why) = recommend(&job, node.status);
            let action = action.unwrap_or_else(|| panic!("{}: nothing is recommended ({why}): {job:#?}", self.name));
            taken.push(format!("{action} at {:?} after {:?}", job.stage, job.failure));
            self.act(action)
                .await
                .unwrap_or_else(|e| panic!("{}: {action} is recommended and refused: {e:?}", self.name));
        }
        panic!("{}: what is recommended leads nowhere: {taken:#?}", self.name);
    }

    pub async fn act(&self, action: JobAction) -> Result<service::JobActed, domain::Error> {
        self.plant.act(&self.job, action).await
    }

    /// The node of a job that was called off is not stuck: a full decommission takes it, on somebody's word where its agent
    /// is gone.
    pub async fn called_off_node_can_go(&mut self) {
        self.name = format!("{}, then its node goes", self.name);
        self.kind = FULL;
        self.job = self.plant.decommission(&self.node, FULL.mode()).await;
        loop {
            let by_agent =
                |job: &Job| job.status == JobStatus::Running && job.stage.is_some_and(|s| s.task(FULL).is_some());
            let (node, job) = self.lives_until(by_agent).await;
            if by_agent(&job) {
                self.act(JobAction::AdoptObservedState).await.unwrap_or_else(|e| panic!("{}: {e:?}", self.name));
                continue;
            }
            assert!(matches!(job.status, JobStatus::Completed | JobStatus::Reconciled), "{}: {job:#?}", self.name);
            assert_eq!(node.status, NodeStatus::Deleted, "{}", self.name);
            return;
        }
    }

    pub async fn fails_with(&self, code: &str) -> Job {
        let (_, job) = self.rests().await;
        let told = job.failure.as_ref().map(|f| f.code.as_str());
        assert_eq!(told, Some(code), "{}: {job:#?}", self.name);
        job
    }

    pub async fn completes(&self) -> Job {
        let (_, job) = self.rests().await;
        assert_eq!(job.status, JobStatus::Completed, "{}: {job:#?}", self.name);
        job
    }

    /// The id of the machine upstream, which there must be.
    pub async fn system_id(&self) -> String {
        let node = self.plant.node(&self.node).await;
        node.maas.map(|at| at.system_id).filter(|id| !id.is_empty()).expect("a machine upstream")
    }

    /// When it has ended: nothing is out, nothing is left over, nothing was done twice or to somebody else's machine.
    pub async fn audited(&self) {
        let (node, job) = self.look().await;
        let name = &self.name;
        rows_hold(name, &self.plant.fleet.store, &self.job).await;
        assert!(job.status.is_terminal(), "{name}: {}", job.status);
        self.plant.agents_did_nothing_twice(name);
        self.tokens(&job).await;
        let records = self.plant.sim.with_mac(&mac(1));
        assert!(records.len() <= 1, "{name}: {records:#?}");
        match job.status {
            JobStatus::Completed | JobStatus::Reconciled if job.kind == FULL => {
                assert!(records.is_empty(), "{name}: its record is left: {records:#?}");
            }
            JobStatus::Completed | JobStatus::Reconciled => {
                let there = records.first().unwrap_or_else(|| panic!("{name}: no record upstream"));
                assert_eq!(there.status, status::DEPLOYED, "{name}: {there:#?}");
                let node = node.maas.as_ref().map(|at| at.system_id.as_str());
                assert_eq!(node, Some(there.system_id.as_str()), "{name}: the node is on another machine");
            }
            _ => self.called_off(&node, &job, records.first()),
        }
        let gives_back = matches!(job.kind, REIMAGE | FULL) && job.status == JobStatus::Completed;
        if gives_back && self.site().await.policy.erase != Erase::None {
            let erases = self.plant.sim.hardware(&mac(1)).erases;
            assert!(erases > self.erases, "{name}: given back, and never erased: {job:#?}");
        }
        let offences = self.offences().await;
        assert!(offences.is_empty(), "{name}: {job:#?} {offences:#?}");
    }

    /// A machine that we have made is gone; one that was there is as it was, or was made ready.
    fn called_off(&self, node: &Node, job: &Job, record: Option<&testkit::maas_sim::Seen>) {
        let name = &self.name;
        if job.kind != ONBOARDING {
            let there = record.unwrap_or_else(|| panic!("{name}: called off, and its record is gone"));
            // a node that may come into service again has the system that it had, or the new one
            if matches!(node.status, NodeStatus::Active | NodeStatus::Offline) {
                let marked = there.annotations.get("millwright-node").map(String::as_str);
                let told = (there.status, marked);
                assert_eq!(told, (status::DEPLOYED, Some(node.id.as_str())), "{name}: {} {there:#?}", node.status);
            }
            return;
        }
        match (&self.found, record) {
            (None, None) => {}
            (None, Some(left)) => panic!("{name}: the record that it made is left: {left:#?}"),
            (Some(found), None) => panic!("{name}: {found} was there before, and is gone"),
            (Some(found), Some(left)) => {
                assert_eq!(*found, left.system_id, "{name}: {left:#?}");
                assert!(matches!(left.status, status::NEW | status::READY), "{name}: {left:#?}");
                assert_eq!(left.owner, None, "{name}: {left:#?}");
            }
        }
    }

    /// No bundle of a node is good whose job is over.
    async fn tokens(&self, job: &Job) {
        let of = self.node.clone();
        let read = self.plant.fleet.store.read(move |tx| agent::tokens_of(tx, &of));
        let out: Vec<_> =
            read.await.expect("reads").into_iter().filter(|t| !t.withdrawn && t.key_sha256.is_none()).collect();
        assert!(out.is_empty(), "{}: {} and a bundle is out: {out:?}", self.name, job.status);
    }

    async fn site(&self) -> Site {
        self.plant.service.get_site(SITE).await.expect("a site").site
    }

    pub async fn offences(&self) -> Vec<String> {
        let ours = auditor::Ours::account(self.plant.sim.account());
        let nodes = self.plant.fleet.store.read(|tx| node::of_site(tx, SITE, "", 100)).await.expect("reads");
        let claimed: BTreeSet<String> = nodes
            .iter()
            .filter_map(|n| n.maas.as_ref())
            .map(|at| at.system_id.clone())
            .filter(|id| !id.is_empty())
            .collect();
        let log = self.plant.sim.log();
        let mut offences = auditor::everything(&log, &ours, &claimed);
        offences.extend(auditor::unprepared(&log, &ours));
        offences
    }

    pub async fn over(self, engine: Option<Engine>) {
        if let Some(engine) = engine {
            engine.stop().await;
        }
        if let Some(sweeps) = &self.sweeps {
            sweeps.stop().await;
        }
        self.plant.fleet.store.close();
    }
}

/// Plays all of them, some at a time; tells of all that went wrong.
pub async fn side_by_side<F>(title: &str, plays: Vec<F>) -> usize
where
    F: Future<Output = ()> + Send + 'static,
{
    let count = plays.len();
    let in_turn = |play: F| {
        tokio::spawn(async move {
            let _turn = WIDTH.acquire().await.expect("never closed");
            play.await;
        })
    };
    let ended = futures::future::join_all(plays.into_iter().map(in_turn)).await;
    let failed = ended.iter().filter(|end| end.is_err()).count();
    assert_eq!(failed, 0, "{title}: {failed} of {count} plays went wrong; each said why when it did");
    println!("maas: {title}: {count} plays");
    count
}
