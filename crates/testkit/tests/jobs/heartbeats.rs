//! Heartbeats and probes on the virtual clock: they move nodes between `active` and `offline`, block what probes are
//! named for and free only that; nothing else ever follows from silence.

use crate::audit::node_folds;
use crate::world::World;
use domain::NodeId;
use domain::lifecycle::State as _;
use domain::node::NodeStatus::{self, Active, Offline, Quarantined};
use domain::node::{NOT_CLEAN, Node};
use std::time::Duration;
use store::{Cause, node, switch};
use testkit::fleet::Database;
use testkit::pretend_agent::PretendAgent;

const LOST_AFTER: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_secs(15);
const SECOND: Duration = Duration::from_secs(1);

struct Watched {
    world: World,
    node: NodeId,
    agent: PretendAgent,
}

impl Watched {
    async fn new(status: NodeStatus) -> Self {
        let world = World::new(Database::Memory);
        let node = world.node(status).await;
        let agent = world.agent(&node).await;
        Self { world, node, agent }
    }

    /// After so long, and a sweep.
    async fn after(&self, span: Duration) -> NodeStatus {
        self.world.fleet.pass(span);
        self.world.sweep().await;
        self.world.node_row(&self.node).await.status
    }

    /// So many beats, one interval apart, with a sweep after each.
    async fn beats(&self, count: usize) -> NodeStatus {
        let mut status = self.world.node_row(&self.node).await.status;
        for _ in 0..count {
            self.world.fleet.pass(INTERVAL);
            self.agent.beat().await;
            status = self.after(Duration::ZERO).await;
        }
        status
    }
}

#[tokio::test(start_paused = true)]
async fn silence_makes_an_active_node_offline_and_nothing_more_for_weeks() {
    let watched = Watched::new(Active).await;
    watched.agent.beat().await;
    assert_eq!(watched.after(LOST_AFTER - SECOND).await, Active, "not yet");
    assert_eq!(watched.after(SECOND).await, Offline);
    for _ in 0..30 {
        assert_eq!(watched.after(Duration::from_secs(24 * 3600)).await, Offline);
    }
    let (id, node) = (watched.node.clone(), watched.world.node_row(&watched.node).await);
    let last = watched.world.read(move |tx| tx.point(&store::job::last_of_node(&id))).await;
    assert_eq!((last, node.active_job, node.cordoned_by.as_str()), (None, None, ""), "nothing was begun");
    node_folds(&watched.world, &watched.node).await;
}

#[tokio::test(start_paused = true)]
async fn only_several_beats_without_a_gap_bring_a_node_back() {
    let watched = Watched::new(Active).await;
    watched.beats(5).await;
    assert_eq!(watched.after(LOST_AFTER).await, Offline);
    assert_eq!(watched.beats(2).await, Offline, "two are not several; those before it went offline do not count");
    assert_eq!(watched.beats(1).await, Active);
    assert_eq!(watched.after(LOST_AFTER).await, Offline);
    // one that comes and goes
    for _ in 0..8 {
        assert_eq!(watched.beats(2).await, Offline, "flapping");
        assert_eq!(watched.after(LOST_AFTER).await, Offline, "flapping");
    }
    assert_eq!(watched.beats(3).await, Active);
    node_folds(&watched.world, &watched.node).await;
}

/// One that went offline with a long row of beats behind it, and beats on without a gap.
#[tokio::test(start_paused = true)]
async fn beats_before_a_node_went_offline_prove_nothing() {
    let watched = Watched::new(Active).await;
    watched.beats(5).await;
    let id = watched.node.clone();
    // sent offline for another reason, in the middle of its beats
    let send = move |tx: &mut store::Tx<'_>| {
        let there = node::get_for_update(tx, &id)?.expect("a node");
        let after = Node { status: Offline, ..there.clone() };
        let cause = Cause::reconciler("tester", domain::node::HEARTBEAT_LOST, "");
        node::move_to(tx, &there, &after, &serde_json::json!({}), &cause, |_| Ok(()))
    };
    watched.world.write("n", send).await.expect("moves");
    assert_eq!(watched.after(SECOND).await, Offline);
    assert_eq!(watched.beats(1).await, Offline, "one beat since is not several");
    assert_eq!(watched.beats(1).await, Offline);
    assert_eq!(watched.beats(1).await, Active);
}

#[tokio::test(start_paused = true)]
async fn a_node_without_an_agent_does_not_stay_active() {
    let world = World::new(Database::Memory);
    let id = world.node(Active).await;
    world.fleet.pass(LOST_AFTER);
    world.sweep().await;
    assert_eq!(world.node_row(&id).await.status, Offline);
}

/// Whatever is neither active nor offline is not heartbeats' business; those that are busy get their job back.
#[tokio::test(start_paused = true)]
async fn no_other_status_moves_by_silence_or_by_beats() {
    for status in NodeStatus::ALL.iter().copied() {
        use NodeStatus::{Draining, Enrolling, Removing};
        if matches!(status, Active | Offline | Enrolling | Draining | Removing) {
            continue;
        }
        let watched = Watched::new(status).await;
        assert_eq!(watched.beats(6).await, status);
        assert_eq!(watched.after(Duration::from_secs(24 * 3600)).await, status);
    }
}

#[tokio::test(start_paused = true)]
async fn probes_block_a_node_and_free_what_they_blocked() {
    let watched = Watched::new(Active).await;
    watched.agent.probes(&[("gpu_present", true), ("disk_smart", false)]).await;
    assert_eq!(watched.beats(4).await, Active, "a probe that is not named for it blocks nothing");
    watched.agent.probes(&[("gpu_present", false), ("disk_smart", true)]).await;
    assert_eq!(watched.beats(1).await, Quarantined);
    let blocked = watched.world.node_row(&watched.node).await;
    assert!(blocked.status_reason.contains("gpu_present"), "{}", blocked.status_reason);
    assert_eq!(watched.beats(5).await, Quarantined, "it fails still");
    watched.agent.probes(&[("gpu_present", true)]).await;
    // steady, and heard of since it was blocked
    assert_eq!(watched.beats(1).await, Active);
    node_folds(&watched.world, &watched.node).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_person_has_blocked_is_not_freed_by_probes() {
    let watched = Watched::new(Quarantined).await;
    watched.agent.probes(&[("gpu_present", true), ("gpu_remapped_rows", true)]).await;
    assert_eq!(watched.beats(10).await, Quarantined);
}

/// Blocked by probes first, found dirty later: that it is dirty counts.
#[tokio::test(start_paused = true)]
async fn what_is_not_clean_is_not_freed_by_probes() {
    use crate::world::spelt;
    use domain::job::JobStatus;
    use domain::job_action::JobAction;
    use domain::job_stage::{JobKind, Mode};
    use domain::stage::FailureClass;
    use domain::task::TaskKind;
    use testkit::pretend_agent::Answer;

    let world = World::new(Database::Memory);
    let kind = JobKind::Decommission(Mode::SoftReset);
    let play = crate::world::Play::start(&world, kind, &spelt(kind)).await;
    let class = FailureClass::NeedsOperator;
    play.agent.answers(TaskKind::NodeValidateClean, Answer::Fails { code: "NOT_CLEAN".into(), class });
    play.agent.probes(&[("gpu_present", false)]).await;
    let (engine, looks_after) = (world.engine(None), world.reconciler());
    engine.start().await.expect("starts");
    let (node, job) = play.rests().await;
    assert_eq!((node.status, job.status), (Quarantined, JobStatus::FailedManualIntervention));
    assert!(node.status_reason.contains("validate_clean_node"), "why it is blocked now: {}", node.status_reason);
    play.agent.probes(&[("gpu_present", true)]).await;
    play.act(JobAction::Cancel).await.expect("is allowed");
    play.rests().await;
    for _ in 0..20 {
        play.agent.lives().await;
        tokio::time::sleep(INTERVAL).await;
    }
    assert_eq!(world.node_row(&play.node).await.status, Quarantined, "its probes pass, and it is dirty still");
    looks_after.stop().await;
    engine.stop().await;
    assert_eq!(NOT_CLEAN, "not_clean");
}

#[tokio::test(start_paused = true)]
async fn the_brake_stops_all_of_it() {
    let watched = Watched::new(Active).await;
    watched.agent.beat().await;
    watched.world.write("switch", |tx| switch::freeze(tx, "alice", "because")).await.expect("freezes");
    assert_eq!(watched.after(Duration::from_secs(3600)).await, Active);
    watched.agent.probes(&[("gpu_present", false)]).await;
    assert_eq!(watched.beats(3).await, Active);
    watched.world.write("switch", switch::unfreeze).await.expect("thaws");
    assert_eq!(watched.after(Duration::ZERO).await, Quarantined, "all that had been held back");
}
