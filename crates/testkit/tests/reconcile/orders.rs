//! Installations that nothing is heard of, on the virtual clock: an attempt that falls silent has failed, and a node that
//! never boots is a finding, until it does.

use crate::fixture::{Lab, pass};
use domain::Secret;
use domain::boot_node::{BOOTS_WITHIN, BootNode, BootState, SILENT_AFTER};
use domain::boot_workflow::BootWorkflow;
use domain::finding::{Finding, FindingKind, FindingState};
use domain::install_order::Closing;
use service::{BootNodeMove, BootRequest, BootSetup, PageRequest, Report};
use std::time::Duration;
use store::{Caller, switch};
use testkit::fleet::admin;

const MAC: &str = "52:54:00:4d:59:01";

async fn ordered(lab: &Lab) -> BootNode {
    let workflow = BootWorkflow { id: "debian".into(), kernel: "vmlinuz".into(), ..BootWorkflow::default() };
    lab.service.create_workflow(&admin(), workflow).await.expect("a workflow");
    let new = service::NewBootNode { mac_address: MAC.into(), workflow_id: "debian".into(), ..Default::default() };
    let node = lab.service.create_boot_node(&admin(), new).await.expect("a node");
    moved(lab, &node, "pending").await
}

async fn moved(lab: &Lab, node: &BootNode, state: &str) -> BootNode {
    let to = BootNodeMove { id: node.id.to_string(), state: state.to_owned(), ..BootNodeMove::default() };
    lab.service.move_boot_node(&admin(), to).await.expect("moves")
}

fn setup() -> BootSetup {
    BootSetup { discovered_max: 100, ..BootSetup::default() }
}

/// Boots, and says that its installer has begun.
async fn begins(lab: &Lab) {
    let asks = BootRequest { mac: MAC.into(), ..BootRequest::default() };
    let booting = lab.service.boot(&asks, &setup()).await.expect("an answer");
    says(lab, booting.token.expect("an installer"), "started").await;
}

async fn says(lab: &Lab, token: Secret, status: &str) {
    let report = Report { mac: MAC.into(), token: Some(token), status: Some(status.into()), ..Report::default() };
    assert!(lab.service.report(report, &setup()).await.expect("is taken").applied, "{status}");
}

async fn node(lab: &Lab) -> BootNode {
    lab.service.get_boot_node(MAC).await.expect("is there")
}

async fn findings(lab: &Lab) -> Vec<Finding> {
    lab.service.list_findings(&PageRequest::default()).await.expect("a list").items
}

#[tokio::test(start_paused = true)]
async fn three_silent_attempts_are_three_failures() {
    let lab = Lab::new().await;
    ordered(&lab).await;
    let reconciler = lab.observe();
    for attempt in 1..=3 {
        begins(&lab).await;
        pass(SILENT_AFTER - Duration::from_secs(60)).await;
        assert_eq!(node(&lab).await.install_attempts, attempt - 1, "not yet");
        pass(Duration::from_secs(120)).await;
        let now = node(&lab).await;
        assert_eq!(now.install_attempts, attempt);
        assert!(now.last_install_error.is_some_and(|e| e.contains("nothing was heard")), "of attempt {attempt}");
    }
    let failed = node(&lab).await;
    assert_eq!(failed.state, BootState::InstallFailed);
    assert_eq!(failed.order.and_then(|o| o.closed).map(|c| c.1), Some(Closing::Failed));
    let (moves, _) = lab.service.boot_node_history(MAC, None, 0).await.expect("a history");
    assert_eq!((moves[0].to_state.as_str(), moves[0].owner.as_str()), ("install_failed", "reconciler"));
    assert_eq!(findings(&lab).await.iter().map(|f| f.kind).collect::<Vec<_>>(), [FindingKind::InstallFailed]);
    reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_goes_on_reporting_is_not_silent() {
    let lab = Lab::new().await;
    ordered(&lab).await;
    let reconciler = lab.observe();
    let asks = BootRequest { mac: MAC.into(), ..BootRequest::default() };
    let token = lab.service.boot(&asks, &setup()).await.expect("an answer").token.expect("an installer");
    says(&lab, token.clone(), "started").await;
    for _ in 0..10 {
        pass(SILENT_AFTER / 2).await;
        says(&lab, token.clone(), "progress").await;
    }
    assert_eq!(node(&lab).await.install_attempts, 0);
    // handed out and never begun is silent, too
    says(&lab, token, "failed").await;
    assert!(lab.service.boot(&asks, &setup()).await.expect("an answer").token.is_some());
    pass(SILENT_AFTER + Duration::from_secs(60)).await;
    assert_eq!(node(&lab).await.install_attempts, 2);
    reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_never_boots_is_found_until_it_does() {
    let lab = Lab::new().await;
    let ordered = ordered(&lab).await;
    let reconciler = lab.observe();
    pass(BOOTS_WITHIN - Duration::from_secs(60)).await;
    assert_eq!(findings(&lab).await, []);
    pass(Duration::from_secs(120)).await;
    let found = findings(&lab).await;
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].kind, found[0].subject.as_str()), (FindingKind::NotBooted, ordered.id.as_str()));
    pass(Duration::from_secs(600)).await;
    let still = findings(&lab).await;
    assert!(still[0].last_seen > found[0].last_seen && still[0].version == found[0].version, "seen, and no news");
    assert_eq!(node(&lab).await.install_attempts, 0, "nothing was tried, so nothing failed");
    begins(&lab).await;
    assert_eq!(findings(&lab).await, []);
    let settled = lab.service.get_finding(found[0].id.as_str()).await.expect("is there");
    assert_eq!(settled.state, FindingState::Resolved);
    reconciler.stop().await;
}

/// Nothing was written, so nothing has failed; but somebody must know, and those behind it are judged all the same.
#[tokio::test(start_paused = true)]
async fn who_takes_the_installer_and_never_begins_is_found_and_keeps_nobody_waiting() {
    let lab = Lab::new().await;
    let stuck = ordered(&lab).await;
    let other = "52:54:00:4d:59:02";
    let new = service::NewBootNode { mac_address: other.into(), workflow_id: "debian".into(), ..Default::default() };
    let behind = lab.service.create_boot_node(&admin(), new).await.expect("a node");
    moved(&lab, &behind, "pending").await;
    let asks = |mac: &str| BootRequest { mac: mac.into(), ..BootRequest::default() };
    let token = lab.service.boot(&asks(other), &setup()).await.expect("an answer").token.expect("an installer");
    let begun = Report { mac: other.into(), token: Some(token), status: Some("started".into()), ..Report::default() };
    assert!(lab.service.report(begun, &setup()).await.expect("is taken").applied);
    let reconciler = lab.observe();
    for _ in 0..4 {
        assert!(lab.service.boot(&asks(MAC), &setup()).await.expect("an answer").token.is_some(), "handed out again");
        pass(SILENT_AFTER + Duration::from_secs(60)).await;
    }
    let now = node(&lab).await;
    assert_eq!((now.state, now.install_attempts), (BootState::Pending, 0));
    let found = findings(&lab).await;
    let about = found.iter().find(|f| f.subject == stuck.id.as_str()).expect("a finding");
    assert_eq!(about.kind, FindingKind::NotBooted);
    assert!(about.message.contains("has not said that it began"), "{}", about.message);
    assert_eq!(lab.service.get_boot_node(other).await.expect("is there").install_attempts, 1, "judged all the same");
    begins(&lab).await;
    assert!(findings(&lab).await.iter().all(|f| f.subject != stuck.id.as_str()), "it has begun");
    reconciler.stop().await;
}

/// Its word that it began was lost on the way.
#[tokio::test(start_paused = true)]
async fn progress_alone_is_a_beginning_too() {
    let lab = Lab::new().await;
    ordered(&lab).await;
    let reconciler = lab.observe();
    let asks = BootRequest { mac: MAC.into(), ..BootRequest::default() };
    begins(&lab).await;
    let token = lab.service.boot(&asks, &setup()).await.expect("an answer").token.expect("the next attempt");
    for _ in 0..4 {
        pass(SILENT_AFTER / 2).await;
        says(&lab, token.clone(), "progress").await;
    }
    assert_eq!(node(&lab).await.install_attempts, 1, "only the one that was lost");
    reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_freeze_counts_nothing() {
    let lab = Lab::new().await;
    ordered(&lab).await;
    begins(&lab).await;
    let caller = Caller::new("test");
    lab.fleet.store.write(&caller, "f", |tx| switch::freeze(tx, "tester", "")).await.expect("freezes");
    let reconciler = lab.observe();
    pass(3 * SILENT_AFTER).await;
    assert_eq!(node(&lab).await.install_attempts, 0);
    lab.fleet.store.write(&caller, "f", switch::unfreeze).await.expect("goes on");
    // nobody was served meanwhile, so that its silence begins now
    pass(SILENT_AFTER - Duration::from_secs(60)).await;
    assert_eq!(node(&lab).await.install_attempts, 0);
    pass(Duration::from_secs(120)).await;
    assert_eq!(node(&lab).await.install_attempts, 1);
    reconciler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_could_not_boot_during_a_freeze_is_not_found_at_once() {
    let lab = Lab::new().await;
    ordered(&lab).await;
    let caller = Caller::new("test");
    lab.fleet.store.write(&caller, "f", |tx| switch::freeze(tx, "tester", "")).await.expect("freezes");
    let reconciler = lab.observe();
    pass(2 * BOOTS_WITHIN).await;
    lab.fleet.store.write(&caller, "f", switch::unfreeze).await.expect("goes on");
    pass(BOOTS_WITHIN - Duration::from_secs(60)).await;
    assert_eq!(findings(&lab).await, []);
    pass(Duration::from_secs(120)).await;
    assert_eq!(findings(&lab).await.len(), 1);
    reconciler.stop().await;
}

/// The time by which `why` says that something must have been heard.
async fn due(lab: &Lab) -> domain::Timestamp {
    let why = lab.service.explain(&admin(), MAC).await.expect("is explained");
    let (deadline, left) = (why.deadline.expect("a deadline"), why.seconds_left.expect("seconds"));
    assert!(left > 0, "in time: {why:?}");
    deadline
}

#[tokio::test(start_paused = true)]
async fn why_counts_as_the_server_does() {
    let lab = Lab::new().await;
    let silent_after = Duration::from_secs(120);
    lab.service.fails_silence_after(silent_after);
    ordered(&lab).await;
    let asks = BootRequest { mac: MAC.into(), ..BootRequest::default() };
    let token = lab.service.boot(&asks, &setup()).await.expect("an answer").token.expect("an installer");
    says(&lab, token.clone(), "started").await;
    let heard = node(&lab).await.order.and_then(|o| o.heard_at()).expect("began");
    assert_eq!(due(&lab).await, heard.plus(silent_after), "as it is set up");
    // an attempt that takes longer than an order may wait for its first boot, and then fails
    for _ in 0..=BOOTS_WITHIN.as_secs() / 60 {
        pass(Duration::from_secs(60)).await;
        says(&lab, token.clone(), "progress").await;
    }
    says(&lab, token, "failed").await;
    let failed = lab.fleet.ambient.now();
    assert_eq!(due(&lab).await, failed.plus(BOOTS_WITHIN), "of the attempt that comes, not of the order");
}
