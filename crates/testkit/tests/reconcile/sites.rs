//! What a MAAS says is seen, kept and judged: promptly, with few requests, and never more than it has said.

use crate::fixture::Lab;
use domain::finding::{Finding, FindingKind, FindingState};
use domain::job::{self, Job, JobStatus, Purpose};
use domain::job_stage::{JobKind, Mode};
use domain::maas_machine::ObservedMachine;
use domain::node::{MaasRef, Node, NodeStatus};
use domain::{ExecutionId, JobId, NodeId, Secret};
use provider::ProviderError;
use reconcile::{Reconciler, ReconcilerOptions, SiteReach};
use service::{NewCredential, NewNode};
use std::sync::Arc;
use std::time::Duration;
use store::{Caller, Cause, finding, maas_machine, node, site_sight};
use testkit::fleet::{admin, vault};
use testkit::nodes;
use testkit::pretend_maas::{PretendClients, PretendMaas};

const READY: i64 = 4;
const DEPLOYED: i64 = 6;
const BROKEN: i64 = 8;

/// A fleet with sites, each a MAAS of the test's.
struct Land {
    lab: Lab,
    reconciler: Reconciler,
}

impl Land {
    async fn with(sites: &[(&str, &Arc<PretendMaas>)]) -> Self {
        let lab = Lab::new().await;
        let (name, kind, api_key) = ("key".into(), "maas".into(), Secret::new("a:b:c"));
        let key = NewCredential { name, kind, api_key, ..NewCredential::default() };
        lab.service.set_credential(&admin(), key).await.expect("a key");
        for (name, _) in sites {
            lab.service.create_site(&admin(), testkit::sites::site(name, "key")).await.expect("a site");
        }
        let reach = SiteReach { keyring: Arc::new(vault(&lab.fleet.store)), clients: PretendClients::with(sites) };
        // nobody's heartbeat is judged here
        let mut options = ReconcilerOptions { sites: Some(reach), ..ReconcilerOptions::new("test") };
        options.nodes.heartbeat.lost_after = Duration::from_secs(365 * 24 * 3600);
        let reconciler = lab.fleet.reconciler(options);
        Self { lab, reconciler }
    }

    /// A node in that status, on a machine of the lab's, for long enough that nobody was just there.
    async fn node(&self, system_id: &str, status: NodeStatus) -> NodeId {
        let new = NewNode { name: format!("node-{system_id}"), ..NewNode::default() };
        let id = self.lab.service.create_node(&admin(), new).await.expect("a node").view.node.id;
        let store = &self.lab.fleet.store;
        if status != NodeStatus::BootstrapIssued {
            nodes::enrol(store, &id, 9).await;
        }
        nodes::bring(store, &id, status).await;
        let (of, at) = (id.clone(), MaasRef { site: "lab".into(), system_id: system_id.into() });
        store
            .write(&Caller::new("test"), id.as_str(), move |tx| {
                let there = tx.point(&node::by_id(&of))?.expect("is there");
                node::save(tx, &Node { maas: Some(at.clone()), ..there }).map(drop)
            })
            .await
            .expect("is on a machine");
        self.lab.fleet.pass(Duration::from_secs(120));
        id
    }

    async fn machine(&self, system_id: &str) -> Option<ObservedMachine> {
        let at = MaasRef { site: "lab".into(), system_id: system_id.into() };
        self.lab.fleet.store.point(maas_machine::by_ref(&at)).await.expect("reads")
    }

    async fn finding(&self, subject: &str, kind: FindingKind) -> Option<Finding> {
        let subject = subject.to_owned();
        let of = move |tx: &mut store::Tx<'_>| finding::of(tx, &subject, kind);
        self.lab.fleet.store.read(of).await.expect("reads")
    }

    async fn found(&self, subject: &str, kind: FindingKind) -> Finding {
        eventually(&format!("{} about {subject}", kind.as_str()), || async {
            self.finding(subject, kind).await.filter(|f| f.state == FindingState::Open)
        })
        .await
    }

    async fn closed(&self, subject: &str, kind: FindingKind) -> Finding {
        eventually(&format!("no {} about {subject}", kind.as_str()), || async {
            self.finding(subject, kind).await.filter(|f| f.state == FindingState::Resolved)
        })
        .await
    }

    async fn seen(&self, what: &str, is: impl Fn(&ObservedMachine) -> bool) -> ObservedMachine {
        let id = what.to_owned();
        eventually(&format!("{what} to be seen"), || async { self.machine(&id).await.filter(|m| is(m)) }).await
    }

    /// A reimage of the node runs for a few polls, and ends so.
    async fn works_on(&self, node: &NodeId, end: JobStatus) {
        let (store, ambient) = (&self.lab.fleet.store, self.lab.fleet.store.ambient());
        let job = Job {
            id: JobId::generate(ambient.uuid()),
            kind: JobKind::Decommission(Mode::Reimage(domain::job_stage::Ground::Maas)),
            node_id: node.clone(),
            status: JobStatus::Pending,
            version: 1,
            stage: None,
            attempt: 1,
            execution_id: ExecutionId::generate(ambient.uuid()),
            purpose: Purpose::Forward,
            first_stage: 0,
            afterwards: None,
            tasks_since: 1,
            failure: None,
            observed: String::new(),
            done: Vec::new(),
            parameters: "{}".to_owned(),
            learned: "{}".to_owned(),
            clean_record: String::new(),
            requested_by: "test".to_owned(),
            reason: "a test".to_owned(),
            created_at: ambient.now(),
            updated_at: ambient.now(),
            finished_at: None,
        };
        let requested = Cause::operator("test", job::REQUESTED, "a test");
        let caller = Caller::new("test");
        let made = store.write(&caller, "jobs", move |tx| store::job::insert(tx, &job, &requested)).await;
        let (made, started) = (made.expect("a job"), Cause::executor("test", job::STARTED, ""));
        let running = Job { status: JobStatus::Running, ..made.clone() };
        let moved = store.write(&caller, "jobs", move |tx| store::job::move_to(tx, &made, &running, &started)).await;
        self.polls(4).await;
        self.lab.fleet.pass(Duration::from_secs(600));
        let (running, word) =
            (moved.expect("runs"), if end == JobStatus::Completed { job::FINISHED } else { job::CANCELLED });
        let ended = Job { status: end, finished_at: Some(store.ambient().now()), ..running.clone() };
        let cause = Cause::executor("test", word, "");
        let moved = store.write(&caller, "jobs", move |tx| store::job::move_to(tx, &running, &ended, &cause)).await;
        moved.expect("has ended");
        self.lab.fleet.pass(Duration::from_secs(120));
    }

    /// So many polls later.
    async fn polls(&self, n: u32) {
        tokio::time::sleep(Duration::from_secs(12) * n).await;
    }
}

/// Waits for it, for longer than two lists are apart. A bound, not a verdict.
async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    for _ in 0..1_000 {
        if let Some(found) = look().await {
            return found;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    panic!("never happened: {what}");
}

fn rounds(asked: &[String], what: &str) -> usize {
    asked.iter().filter(|a| a.split(' ').next() == Some(what)).count()
}

#[tokio::test(start_paused = true)]
async fn all_machines_are_seen_once_and_nothing_is_written_again() {
    let maas = PretendMaas::new();
    maas.add("aaa111", 1);
    maas.add("bbb222", 2);
    let land = Land::with(&[("lab", &maas)]).await;
    let first = land.seen("aaa111", |_| true).await;
    assert_eq!((first.told.status, first.told.management_ip.as_str()), (DEPLOYED, "10.0.0.1"));
    assert_eq!((first.told.boot_mac.as_str(), first.told.serial.as_str()), ("00:16:3e:00:00:01", "SN-1"));
    land.seen("bbb222", |_| true).await;
    maas.asked();
    land.polls(200).await;
    let asked = maas.asked();
    let (lists, events) = (rounds(&asked, "list"), rounds(&asked, "events"));
    assert!((2..=4).contains(&lists), "a list each quarter of an hour: {lists}");
    assert!(events > 150 && rounds(&asked, "ids") == 0, "nothing moved, and no node is there: {events}");
    assert_eq!(land.machine("aaa111").await.as_ref(), Some(&first));
    land.reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_events_tell_is_read_at_the_next_poll_and_nothing_else_is() {
    let maas = PretendMaas::new();
    (1..=160).for_each(|n| maas.add(&format!("m{n:05}"), n));
    let land = Land::with(&[("lab", &maas)]).await;
    land.seen("m00160", |_| true).await;
    land.polls(2).await;
    maas.asked();
    maas.moves("m00007", BROKEN);
    land.polls(1).await;
    let seen = land.machine("m00007").await.expect("is known");
    assert_eq!((seen.told.status, seen.told.status_name.as_str()), (BROKEN, "Broken"));
    assert!(seen.status_since > seen.first_seen_at);
    let asked = maas.asked();
    assert!(asked.contains(&"ids m00007".to_owned()) && rounds(&asked, "list") == 0, "{asked:?}");
    // more than one request takes are read by several
    (1..=160).for_each(|n| maas.moves(&format!("m{n:05}"), READY));
    land.seen("m00160", |m| m.told.status == READY).await;
    let asked = maas.asked();
    assert!(rounds(&asked, "list") == 0 && rounds(&asked, "ids") >= 2, "{asked:?}");
    assert!(asked.iter().all(|a| a.split(',').count() <= 100));
    land.reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_site_that_fails_makes_nothing_absent_and_is_a_finding_until_it_answers() {
    let maas = PretendMaas::new();
    maas.add("aaa111", 1);
    let land = Land::with(&[("lab", &maas)]).await;
    let node = land.node("aaa111", NodeStatus::Active).await;
    let seen = land.seen("aaa111", |_| true).await;
    maas.is_down(Some(ProviderError::unreachable("the lab", "no route")));
    land.polls(2).await;
    assert!(land.finding("lab", FindingKind::SiteUnreachable).await.is_none(), "a moment is nothing");
    let found = land.found("lab", FindingKind::SiteUnreachable).await;
    assert!(found.message.contains("no route"), "{}", found.message);
    // out of reach is another thing than gone
    assert_eq!(land.machine("aaa111").await, Some(seen));
    assert!(land.finding(node.as_str(), FindingKind::MaasMachineGone).await.is_none());
    let why = land.lab.service.get_node(node.as_str()).await.expect("a node").maas.expect("on a site").says();
    assert!(why.contains("Deployed (6)") && why.contains("out of reach since"), "{why}");
    maas.deletes("aaa111");
    maas.is_down(None);
    maas.asked();
    land.closed("lab", FindingKind::SiteUnreachable).await;
    assert!(rounds(&maas.asked(), "list") >= 1, "after an outage everything is listed");
    land.found(node.as_str(), FindingKind::MaasMachineGone).await;
    land.reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_done_behind_our_back_is_a_finding_within_a_poll_and_gone_when_undone() {
    let maas = PretendMaas::new();
    (1..=3).for_each(|n| maas.add(&format!("m{n}"), n));
    let land = Land::with(&[("lab", &maas)]).await;
    let mut ids = Vec::new();
    for n in 1..=3 {
        ids.push(land.node(&format!("m{n}"), NodeStatus::Active).await.into_text());
    }
    land.seen("m3", |_| true).await;
    land.polls(8).await;
    for (id, kind) in ids.iter().flat_map(|id| [FindingKind::MaasDrift, FindingKind::MaasChanged].map(|k| (id, k))) {
        assert!(land.finding(id, kind).await.is_none(), "all is as it should be");
    }
    maas.moves("m1", READY);
    maas.moves("m2", BROKEN);
    maas.deletes("m3");
    land.polls(2).await;
    let drift = land.finding(&ids[0], FindingKind::MaasDrift).await.expect("released");
    assert!(drift.message.contains("Ready (4)") && drift.message.contains("active"), "{}", drift.message);
    assert!(land.finding(&ids[1], FindingKind::MaasDrift).await.is_some(), "broken");
    let gone = land.finding(&ids[2], FindingKind::MaasMachineGone).await.expect("deleted");
    assert!(gone.message.contains("lab/m3") && gone.message.contains("Deployed (6)"), "{}", gone.message);
    assert!(gone.kind.next_action().contains("millwright node"));
    for n in 1..=2 {
        maas.moves(&format!("m{n}"), DEPLOYED);
    }
    maas.add("m3", 3);
    land.closed(&ids[0], FindingKind::MaasDrift).await;
    land.closed(&ids[1], FindingKind::MaasDrift).await;
    let closed = land.closed(&ids[2], FindingKind::MaasMachineGone).await;
    assert!(closed.comment.contains("MAAS has it"), "{}", closed.comment);
    let node = land.lab.service.get_node(&ids[0]).await.expect("a node");
    assert_eq!(node.node.status, NodeStatus::Active, "nothing was healed by guessing");
    land.reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_is_told_with_before_and_after_until_it_is_undone_or_accepted() {
    let maas = PretendMaas::new();
    maas.add("aaa111", 1);
    let land = Land::with(&[("lab", &maas)]).await;
    let id = land.node("aaa111", NodeStatus::Active).await.into_text();
    land.seen("aaa111", |m| m.settled.is_some()).await;
    maas.changes("aaa111", |m| m.hostname = "renamed".into());
    let found = land.found(&id, FindingKind::MaasChanged).await;
    assert!(found.message.contains(r#"hostname: "host-1" → "renamed""#), "{}", found.message);
    maas.changes("aaa111", |m| m.hostname = "host-1".into());
    land.closed(&id, FindingKind::MaasChanged).await;
    maas.changes("aaa111", |m| {
        m.pool = "other".into();
        m.netboot = true;
    });
    let found = land.found(&id, FindingKind::MaasChanged).await;
    assert!(found.message.contains("pool") && found.message.contains("netboot"), "{}", found.message);
    land.lab.service.resolve_finding(&admin(), found.id.as_str(), "it was meant").await.expect("resolved");
    land.polls(10).await;
    let still = land.finding(&id, FindingKind::MaasChanged).await.expect("is there");
    assert_eq!(still.state, FindingState::Resolved, "who has said so is believed");
    maas.changes("aaa111", |m| m.pool = "a third".into());
    let again = land.found(&id, FindingKind::MaasChanged).await;
    assert!(again.message.contains(r#""other" → "a third""#), "{}", again.message);
    land.reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_late_duplicate_is_told_of_both_until_one_is_gone() {
    let maas = PretendMaas::new();
    maas.add("aaa111", 1);
    let land = Land::with(&[("lab", &maas)]).await;
    let id = land.node("aaa111", NodeStatus::Active).await.into_text();
    land.seen("aaa111", |_| true).await;
    land.polls(8).await;
    maas.add("zzz999", 1);
    let found = land.found(&id, FindingKind::MaasDuplicate).await;
    assert!(found.message.contains("00:16:3e:00:00:01 with lab/zzz999"), "{}", found.message);
    land.found("lab/zzz999", FindingKind::MaasDuplicate).await;
    maas.deletes("zzz999");
    // nothing tells of it: the list does
    land.closed(&id, FindingKind::MaasDuplicate).await;
    land.closed("lab/zzz999", FindingKind::MaasDuplicate).await;
    land.reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_status_that_nobody_knows_is_kept_as_it_came_and_told() {
    let maas = PretendMaas::new();
    maas.add("aaa111", 1);
    maas.moves("aaa111", 42);
    let land = Land::with(&[("lab", &maas)]).await;
    let found = land.found("lab/aaa111", FindingKind::MaasStatusUnknown).await;
    assert!(found.message.contains("42"), "{}", found.message);
    assert_eq!(land.machine("aaa111").await.map(|m| m.told.status), Some(42));
    maas.moves("aaa111", READY);
    land.closed("lab/aaa111", FindingKind::MaasStatusUnknown).await;
    land.reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_site_that_never_answers_delays_no_other() {
    let (slow, quick) = (PretendMaas::new(), PretendMaas::new());
    slow.hangs();
    quick.add("aaa111", 1);
    let land = Land::with(&[("a-slow-one", &slow), ("lab", &quick)]).await;
    land.seen("aaa111", |_| true).await;
    quick.moves("aaa111", BROKEN);
    land.polls(1).await;
    assert_eq!(land.machine("aaa111").await.map(|m| m.told.status), Some(BROKEN));
    land.reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn while_frozen_it_is_looked_and_nothing_is_said() {
    let maas = PretendMaas::new();
    maas.add("aaa111", 1);
    let land = Land::with(&[("lab", &maas)]).await;
    let id = land.node("aaa111", NodeStatus::Active).await.into_text();
    land.seen("aaa111", |m| m.settled.is_some()).await;
    land.lab.service.freeze(&admin(), "a test").await.expect("frozen");
    maas.moves("aaa111", READY);
    land.seen("aaa111", |m| m.told.status == READY).await;
    land.polls(10).await;
    assert!(land.finding(&id, FindingKind::MaasDrift).await.is_none());
    land.lab.service.unfreeze(&admin()).await.expect("goes on");
    land.found(&id, FindingKind::MaasDrift).await;
    land.reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn while_a_job_is_at_it_nothing_is_said() {
    let maas = PretendMaas::new();
    maas.add("aaa111", 1);
    let land = Land::with(&[("lab", &maas)]).await;
    let id = land.node("aaa111", NodeStatus::Active).await;
    land.seen("aaa111", |m| m.settled.is_some()).await;
    let drain = service::NodeAct { id: id.to_string(), ..service::NodeAct::default() };
    land.lab.service.act_on_node(&admin(), domain::node_action::NodeAction::Drain, drain).await.expect("begins");
    maas.moves("aaa111", BROKEN);
    land.seen("aaa111", |m| m.told.status == BROKEN).await;
    land.polls(20).await;
    assert!(land.machine("aaa111").await.expect("is known").settled.is_some(), "a drain changes nothing upstream");
    assert!(land.finding(id.as_str(), FindingKind::MaasDrift).await.is_none());
    land.reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn hostile_words_are_kept_plain_and_what_has_no_id_is_no_machine() {
    let maas = PretendMaas::new();
    maas.add("aaa111", 1);
    maas.add("../admin", 2);
    maas.changes("aaa111", |m| {
        m.hostname = "a\0\u{1b}[2J".into();
        m.tags = vec!["x".repeat(100_000); 500];
        m.owner = "'; DROP TABLE nodes; --".into();
    });
    let land = Land::with(&[("lab", &maas)]).await;
    let seen = land.seen("aaa111", |_| true).await;
    assert_eq!(seen.told.hostname, "a[2J");
    assert_eq!(seen.told.owner, "'; DROP TABLE nodes; --");
    assert!(seen.told.tags.len() == 64 && seen.told.tags.iter().all(|t| t.len() == 256));
    assert!(land.machine("../admin").await.is_none());
    land.reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_site_that_is_removed_is_asked_no_more_and_what_was_said_about_it_closes() {
    let maas = PretendMaas::new();
    maas.add("aaa111", 1);
    maas.moves("aaa111", 42);
    let land = Land::with(&[("lab", &maas)]).await;
    land.found("lab/aaa111", FindingKind::MaasStatusUnknown).await;
    land.lab.service.remove_site(&admin(), "lab").await.expect("removed");
    land.closed("lab/aaa111", FindingKind::MaasStatusUnknown).await;
    maas.asked();
    land.polls(10).await;
    assert_eq!(maas.asked(), Vec::<String>::new());
    assert_eq!(land.lab.fleet.store.point(site_sight::of_site("lab")).await, Ok(None));
    assert!(land.machine("aaa111").await.is_none());
    land.reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn on_a_large_site_what_nothing_tells_of_is_seen_within_a_few_polls() {
    let maas = PretendMaas::new();
    let ids: Vec<String> = (1..=350).map(|n| format!("m{n:05}")).collect();
    for (n, id) in (1..).zip(&ids) {
        maas.add(id, n);
    }
    let land = Land::with(&[("lab", &maas)]).await;
    for id in &ids {
        land.node(id, NodeStatus::Active).await;
    }
    land.seen("m00350", |m| m.settled.is_some()).await;
    land.polls(4).await;
    ids.iter().for_each(|id| maas.changes(id, |m| m.hostname = format!("renamed-{id}")));
    maas.asked();
    land.polls(3).await;
    let asked = maas.asked();
    assert_eq!(rounds(&asked, "list"), 0, "{asked:?}");
    assert!(asked.len() < 36, "less than a request each second: {}", asked.len());
    for id in &ids {
        let seen = land.machine(id).await.expect("is known");
        assert_eq!(seen.told.hostname, format!("renamed-{id}"), "not seen yet");
    }
    land.reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn neither_what_moves_nor_what_is_worked_on_keeps_the_others_waiting() {
    let maas = PretendMaas::new();
    let ids: Vec<String> = (1..=480).map(|n| format!("m{n:05}")).collect();
    for (n, id) in (1..).zip(&ids) {
        maas.add(id, n);
    }
    // some move all the time, some have a job under way, and some rest
    let (restless, nodes) = ids.split_at(310);
    let land = Land::with(&[("lab", &maas)]).await;
    for (n, id) in nodes.iter().enumerate() {
        let node = land.node(id, NodeStatus::Active).await;
        if n < 100 {
            let drain = service::NodeAct { id: node.to_string(), ..service::NodeAct::default() };
            let (call, action) = (admin(), domain::node_action::NodeAction::Drain);
            land.lab.service.act_on_node(&call, action, drain).await.expect("begins");
        }
    }
    land.seen("m00480", |m| m.settled.is_some()).await;
    land.polls(4).await;
    nodes.iter().for_each(|id| maas.changes(id, |m| m.pool = "another".into()));
    maas.asked();
    for _ in 0..3 {
        restless.iter().for_each(|id| maas.moves(id, READY));
        land.polls(1).await;
    }
    assert_eq!(rounds(&maas.asked(), "list"), 0);
    for id in nodes {
        assert_eq!(land.machine(id).await.expect("is known").told.pool, "another", "{id} is not seen yet");
    }
    land.reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn that_a_bmc_was_asked_is_no_reason_to_read_unless_it_said_something_new() {
    let maas = PretendMaas::new();
    (1..=60).for_each(|n| maas.add(&format!("m{n:05}"), n));
    let land = Land::with(&[("lab", &maas)]).await;
    land.seen("m00060", |_| true).await;
    land.polls(2).await;
    maas.asked();
    for n in 1..=60 {
        maas.tells(&format!("m{n:05}"), "Queried node's BMC", "Power state queried: on");
    }
    land.polls(2).await;
    let asked = maas.asked();
    assert!(rounds(&asked, "events") >= 2 && rounds(&asked, "ids") == 0, "{asked:?}");
    maas.changes("m00007", |m| m.power_state = "off".into());
    maas.tells("m00007", "Queried node's BMC", "Power state queried: off");
    land.polls(1).await;
    assert_eq!(land.machine("m00007").await.expect("is known").told.power_state, "off");
    assert!(maas.asked().contains(&"ids m00007".to_owned()));
    land.reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_answer_that_did_not_come_is_no_reason_to_list_everything() {
    let maas = PretendMaas::new();
    maas.add("aaa111", 1);
    let land = Land::with(&[("lab", &maas)]).await;
    land.seen("aaa111", |_| true).await;
    land.polls(2).await;
    maas.is_down(Some(ProviderError::unreachable("the lab", "no route")));
    maas.asked();
    eventually("a poll that fails", || async { (!maas.asked().is_empty()).then_some(()) }).await;
    maas.is_down(None);
    maas.moves("aaa111", BROKEN);
    land.seen("aaa111", |m| m.told.status == BROKEN).await;
    assert_eq!(rounds(&maas.asked(), "list"), 0);
    land.reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_was_deployed_anew_stays_found_until_somebody_has_said_that_it_is_fine() {
    let maas = PretendMaas::new();
    maas.add("aaa111", 1);
    let land = Land::with(&[("lab", &maas)]).await;
    let id = land.node("aaa111", NodeStatus::Active).await.into_text();
    land.seen("aaa111", |m| m.settled.is_some()).await;
    maas.moves("aaa111", READY);
    land.found(&id, FindingKind::MaasDrift).await;
    maas.redeploys("aaa111");
    // all is as it was, but for what runs there
    land.closed(&id, FindingKind::MaasDrift).await;
    let found = land.found(&id, FindingKind::MaasChanged).await;
    assert!(found.message.contains(r#"installation: "1" → "2""#), "{}", found.message);
    // a job that has nothing to do with it settles nothing
    let drain = service::NodeAct { id: id.clone(), ..service::NodeAct::default() };
    land.lab.service.act_on_node(&admin(), domain::node_action::NodeAction::Drain, drain).await.expect("begins");
    land.polls(10).await;
    let seen = land.machine("aaa111").await.expect("is known");
    assert_eq!(seen.settled.expect("how it was").installation, Some(1));
    let still = land.finding(&id, FindingKind::MaasChanged).await.expect("is there");
    assert_eq!(still.state, FindingState::Open);
    land.reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_system_that_came_anew_between_two_looks_is_found_until_a_job_of_ours_has_deployed_another() {
    let maas = PretendMaas::new();
    maas.add("aaa111", 1);
    let land = Land::with(&[("lab", &maas)]).await;
    let node = land.node("aaa111", NodeStatus::Active).await;
    let id = node.to_string();
    land.seen("aaa111", |m| m.settled.is_some()).await;
    maas.redeploys("aaa111");
    land.found(&id, FindingKind::MaasChanged).await;
    land.works_on(&node, JobStatus::Cancelled).await;
    land.polls(10).await;
    let still = land.finding(&id, FindingKind::MaasChanged).await.expect("is there");
    assert_eq!(still.state, FindingState::Open, "a reimage that was called off has deployed nothing");
    maas.redeploys("aaa111");
    land.works_on(&node, JobStatus::Completed).await;
    let closed = land.closed(&id, FindingKind::MaasChanged).await;
    assert!(closed.comment.contains("a job of ours"), "{}", closed.comment);
    assert_eq!(land.machine("aaa111").await.and_then(|m| m.settled?.installation), Some(3));
    land.reconciler.stop().await;
}

/// Where it is reached is kept fresh: a new lease is seen within one turn of the nodes' machines, though no event tells.
#[tokio::test(start_paused = true)]
async fn the_address_of_a_nodes_machine_is_kept_fresh() {
    let maas = PretendMaas::new();
    maas.add("aaa111", 1);
    let land = Land::with(&[("lab", &maas)]).await;
    land.node("aaa111", NodeStatus::Active).await;
    land.seen("aaa111", |m| m.told.management_ip == "10.0.0.1").await;
    maas.changes("aaa111", |m| m.interfaces[0].links[0].ip_address = "10.0.9.9".into());
    land.seen("aaa111", |m| m.told.management_ip == "10.0.9.9").await;
    land.reconciler.stop().await;
}

/// Controllers have events, too; and machines that are long gone are forgotten, unless a node is on them.
#[tokio::test(start_paused = true)]
async fn only_machines_are_kept_and_those_that_are_long_gone_are_not() {
    let maas = PretendMaas::new();
    (1..=3).for_each(|n| maas.add(&format!("aaa11{n}"), n));
    let land = Land::with(&[("lab", &maas)]).await;
    land.seen("aaa113", |_| true).await;
    let node = land.node("aaa111", NodeStatus::Active).await;
    maas.tells("rack01", "Rack controller", "is connected");
    maas.deletes("aaa111");
    maas.deletes("aaa112");
    land.seen("aaa112", |m| m.absent_since.is_some()).await;
    land.found(node.as_str(), FindingKind::MaasMachineGone).await;
    assert_eq!(land.machine("rack01").await, None);
    land.lab.fleet.pass(Duration::from_secs(31 * 24 * 3600));
    eventually("aaa112 to be forgotten", || async { land.machine("aaa112").await.is_none().then_some(()) }).await;
    assert!(land.machine("aaa111").await.is_some(), "a node is on it");
    assert!(land.machine("aaa113").await.is_some(), "it is there");
    land.reconciler.stop().await;
}
