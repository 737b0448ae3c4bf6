//! The auditor finds what it is there to find, and nothing where nothing is.

use crate::caller::{Caller, id};
use crate::traps::{instant, ready};
use std::collections::BTreeSet;
use testkit::maas_sim::auditor::{self, Ours};
use testkit::maas_sim::{MaasSim, Racked, Trouble};

const MAC: &str = "52:54:00:00:00:01";
const BMC: &str = "192.0.2.1";

fn all(sim: &MaasSim, claimed: &[&str]) -> Vec<String> {
    let claimed: BTreeSet<String> = claimed.iter().map(|id| (*id).to_owned()).collect();
    auditor::everything(&sim.log(), &Ours::account("admin"), &claimed)
}

#[tokio::test]
async fn an_orderly_life_has_no_offence() {
    let sim = instant().await;
    let system_id = ready(&sim, MAC, BMC).await;
    let caller = Caller::new(&sim);
    caller.op(&system_id, "deploy", &[("enable_hw_sync", "true")]).await;
    assert_eq!(all(&sim, &[&system_id]), Vec::<String>::new());
    caller.get(&format!("machines/{system_id}/")).await;
    caller.op(&system_id, "release", &[("erase", "true")]).await;
    caller.get(&format!("machines/{system_id}/")).await;
    caller.ask("DELETE", &format!("machines/{system_id}/"), &[]).await;
    assert_eq!(all(&sim, &[]), Vec::<String>::new());
    assert_eq!(id(&caller.create(MAC, BMC).await).len(), 6, "and again");
    assert_eq!(all(&sim, &[]), Vec::<String>::new());
}

#[tokio::test]
async fn an_erase_without_a_look_is_found() {
    let sim = instant().await;
    let system_id = ready(&sim, MAC, BMC).await;
    let caller = Caller::new(&sim);
    caller.op(&system_id, "deploy", &[]).await;
    caller.op(&system_id, "release", &[("erase", "true")]).await;
    let offences = auditor::unguarded_erases(&sim.log(), &Ours::account("admin"));
    assert_eq!(offences.len(), 1, "{offences:?}");
}

#[tokio::test]
async fn a_look_before_the_last_change_is_none() {
    let sim = instant().await;
    let system_id = ready(&sim, MAC, BMC).await;
    let caller = Caller::new(&sim);
    caller.op(&system_id, "deploy", &[]).await;
    caller.get(&format!("machines/{system_id}/")).await;
    sim.as_somebody().change_identity(&system_id, None, "another");
    caller.op(&system_id, "release", &[("erase", "true")]).await;
    assert_eq!(auditor::unguarded_erases(&sim.log(), &Ours::account("admin")).len(), 1);
    // a list of everything is a look too
    caller.op(&system_id, "deploy", &[]).await;
    caller.get("machines/").await;
    caller.op(&system_id, "release", &[("erase", "true")]).await;
    assert_eq!(auditor::unguarded_erases(&sim.log(), &Ours::account("admin")).len(), 1);
}

#[tokio::test]
async fn what_is_not_ours_is_not_to_be_touched() {
    let sim = instant().await;
    let system_id = ready(&sim, MAC, BMC).await;
    let caller = Caller::new(&sim);
    let ours = Ours::account("admin");
    sim.as_somebody().deploy(&system_id, "noble");
    assert_eq!(sim.machine(&system_id).expect("a machine").owner.as_deref(), Some("somebody"));
    assert_eq!(auditor::foreign(&sim.log(), &ours), Vec::<String>::new(), "what others do is theirs");
    caller.op(&system_id, "release", &[]).await;
    assert_eq!(auditor::foreign(&sim.log(), &ours).len(), 1);
    // an attempt that was refused changed nothing
    sim.as_somebody().deploy(&system_id, "noble");
    assert_eq!(caller.op(&system_id, "deploy", &[]).await.status, 409);
    assert_eq!(auditor::foreign(&sim.log(), &ours).len(), 1);
    sim.as_somebody().release(&system_id);
    sim.claim(&system_id, false);
    caller.op(&system_id, "deploy", &[]).await;
    caller.ask("DELETE", &format!("machines/{system_id}/"), &[]).await;
    let offences = auditor::foreign(&sim.log(), &ours);
    assert_eq!(offences.len(), 3, "{offences:?}");
}

#[tokio::test]
async fn another_identity_is_another_machine() {
    let sim = instant().await;
    sim.rack(Racked::new("52:54:00:00:00:02", "192.0.2.2"));
    let ours = Ours::account("admin").only_macs([MAC]);
    let own = ready(&sim, MAC, BMC).await;
    let other = sim.as_somebody().create("theirs", "52:54:00:00:00:02", "192.0.2.2");
    sim.as_somebody().commission(&other);
    let caller = Caller::new(&sim);
    caller.op(&own, "deploy", &[]).await;
    assert_eq!(auditor::foreign(&sim.log(), &ours), Vec::<String>::new());
    caller.op(&other, "deploy", &[]).await;
    assert_eq!(auditor::foreign(&sim.log(), &ours).len(), 1);
}

#[tokio::test]
async fn what_is_left_over_is_found() {
    let sim = instant().await;
    let system_id = ready(&sim, MAC, BMC).await;
    let caller = Caller::new(&sim);
    sim.trouble(MAC, Trouble::DeployHangs, 1);
    caller.op(&system_id, "deploy", &[]).await;
    let offences = all(&sim, &[]);
    assert_eq!(offences.len(), 2, "under way, and nobody's: {offences:?}");
    sim.advance(std::time::Duration::from_secs(2 * 3600));
    assert_eq!(all(&sim, &[&system_id]), Vec::<String>::new());
    sim.as_somebody().delete(&system_id);
    let offences = all(&sim, &[&system_id]);
    assert_eq!(offences.len(), 1, "claimed, and not there: {offences:?}");
}

/// Everything that others do behind our back is done, and is theirs in the log.
#[tokio::test]
async fn somebody_does_as_he_likes() {
    let sim = instant().await;
    let system_id = ready(&sim, MAC, BMC).await;
    let caller = Caller::new(&sim);
    caller.op(&system_id, "deploy", &[]).await;
    let somebody = sim.as_somebody();
    somebody.rename(&system_id, "renamed");
    somebody.move_to_pool(&system_id, "theirs");
    somebody.mark_broken(&system_id, "smoke");
    let seen = sim.machine(&system_id).expect("a machine");
    assert_eq!((seen.hostname.as_str(), seen.pool.as_str(), seen.status), ("renamed", "theirs", 8));
    somebody.mark_fixed(&system_id);
    somebody.release(&system_id);
    somebody.set_status(&system_id, 7);
    assert_eq!(caller.status(&system_id).await, 7);
    somebody.set_owner(&system_id, Some("them"));
    somebody.delete(&system_id);
    assert_eq!(caller.ask("GET", &format!("machines/{system_id}/"), &[]).await.status, 404);
    assert_eq!(all(&sim, &[]), Vec::<String>::new());
}

#[tokio::test]
async fn a_deployment_of_what_was_not_prepared_is_found() {
    let sim = instant().await;
    let system_id = ready(&sim, MAC, BMC).await;
    let caller = Caller::new(&sim);
    let ours = Ours::account("admin");
    let found = |sim: &MaasSim| auditor::unprepared(&sim.log(), &ours);
    caller.op(&system_id, "set_storage_layout", &[("storage_layout", "lvm")]).await;
    caller.op(&system_id, "deploy", &[]).await;
    assert_eq!(found(&sim), Vec::<String>::new());
    caller.op(&system_id, "release", &[]).await;
    // it lays out its own default
    caller.op(&system_id, "commission", &[("testing_scripts", "none")]).await;
    caller.op(&system_id, "deploy", &[]).await;
    assert_eq!(found(&sim).len(), 1, "{:?}", found(&sim));
    caller.op(&system_id, "release", &[]).await;
    caller.op(&system_id, "set_storage_layout", &[("storage_layout", "flat")]).await;
    let interface = sim.json(&system_id).expect("a machine")["boot_interface"]["id"].to_string();
    let path = format!("nodes/{system_id}/interfaces/{interface}/");
    let (status, body) = sim.as_somebody().ask("POST", &path, "link_subnet", &[("mode", "AUTO"), ("subnet", "1")]);
    assert_eq!(status, 200, "{body}");
    caller.op(&system_id, "deploy", &[]).await;
    let offences = found(&sim);
    assert!(offences.len() == 2 && offences[1].contains("2 links"), "{offences:?}");
}
