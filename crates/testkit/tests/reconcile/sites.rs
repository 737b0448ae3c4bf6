//! What a MAAS says is seen, kept and judged: promptly, with few requests, and never more than it has said.

use crate::fixture::Lab;
use domain::finding::{Finding, FindingKind, FindingState};
use domain::maas_machine::ObservedMachine;
use domain::node::{MaasRef, Node, NodeStatus};
use domain::{NodeId, Secret};
use provider::ProviderError;
use reconcile::{Reconciler, ReconcilerOptions, SiteReach};
use service::{NewCredential, NewNode};
use std::sync::Arc;
use std::time::Duration;
use store::{Caller, finding, maas_machine, node, site_sight};
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
    (1..=60).for_each(|n| maas.add(&format!("m{n:05}"), n));
    let land = Land::with(&[("lab", &maas)]).await;
    land.seen("m00060", |_| true).await;
    land.polls(2).await;
    maas.asked();
    maas.moves("m00007", BROKEN);
    land.polls(1).await;
    let seen = land.machine("m00007").await.expect("is known");
    assert_eq!((seen.told.status, seen.told.status_name.as_str()), (BROKEN, "Broken"));
    assert!(seen.status_since > seen.first_seen_at);
    let asked = maas.asked();
    assert!(asked.contains(&"ids m00007".to_owned()) && rounds(&asked, "list") == 0, "{asked:?}");
    // more than one request takes are read over a few polls
    (1..=60).for_each(|n| maas.moves(&format!("m{n:05}"), READY));
    land.seen("m00060", |m| m.told.status == READY).await;
    let asked = maas.asked();
    assert!(rounds(&asked, "list") == 0 && rounds(&asked, "ids") >= 2, "{asked:?}");
    assert!(asked.iter().all(|a| a.split(',').count() <= 50));
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
    land.seen("aaa111", |m| m.told.status == BROKEN && m.settled.is_none()).await;
    land.polls(20).await;
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
