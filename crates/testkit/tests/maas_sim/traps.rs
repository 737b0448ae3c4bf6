//! MAAS's traps are there. Most were observed; that two machines with one UUID lose it is known from its source only,
//! and how a stranger enlists itself is our own reading.

use crate::caller::{Body, Caller, Signature, id, now, send};
use serde_json::json;
use std::sync::Arc;
use testkit::maas_sim::{Calls, MaasSim, Misbehaviour, Options, Racked, auditor, status};

const MAC: &str = "52:54:00:00:00:01";

pub async fn instant() -> MaasSim {
    let sim = MaasSim::start(Options { time: Arc::new(now), ..Options::default() }).await;
    sim.rack(Racked::new(MAC, "192.0.2.1"));
    sim
}

/// Ready.
pub async fn ready(sim: &MaasSim, mac: &str, bmc: &str) -> String {
    let caller = Caller::new(sim);
    let system_id = id(&caller.create(mac, bmc).await);
    let answer = caller.op(&system_id, "commission", &[("testing_scripts", "none")]).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(caller.status(&system_id).await, u64::from(status::READY));
    system_id
}

#[tokio::test]
async fn racing_creates_with_one_mac_all_succeed() {
    let sim = instant().await;
    let rule = sim.misbehave(Calls::create(), Misbehaviour::Race(3), 3);
    let caller = Caller::new(&sim);
    let answers = futures::future::join_all((0..3).map(|_| caller.create(MAC, "192.0.2.1"))).await;
    assert!(answers.iter().all(|a| a.status == 200), "{answers:?}");
    assert_eq!((sim.hits(rule), sim.with_mac(MAC).len()), (3, 3));
    let late = caller.create(MAC, "192.0.2.1").await;
    assert_eq!(late.status, 400, "who comes later is told: {}", late.text());
    let offences = auditor::double_creates(&sim.log(), &auditor::Ours::account("admin"));
    assert_eq!(offences.len(), 2, "{offences:?}");
}

#[tokio::test]
async fn parallel_deploys_of_one_machine_are_one() {
    let sim = instant().await;
    let system_id = ready(&sim, MAC, "192.0.2.1").await;
    sim.misbehave(Calls::op("deploy"), Misbehaviour::Race(4), 4);
    let caller = Caller::new(&sim);
    let answers = futures::future::join_all((0..4).map(|_| caller.op(&system_id, "deploy", &[]))).await;
    let mut codes: Vec<u16> = answers.iter().map(|a| a.status).collect();
    codes.sort_unstable();
    assert_eq!(codes, [200, 409, 409, 409]);
    assert_eq!(sim.hardware(MAC).installs, 1);
}

#[tokio::test]
async fn a_checkbox_takes_anything_for_a_yes() {
    for (value, erases) in [("true", 1), ("0", 1), ("no", 1), ("off", 1), ("false", 0), ("False", 0), ("", 0)] {
        let sim = instant().await;
        let system_id = ready(&sim, MAC, "192.0.2.1").await;
        let caller = Caller::new(&sim);
        caller.op(&system_id, "deploy", &[]).await;
        let answer = caller.op(&system_id, "release", &[("erase", value)]).await;
        assert_eq!(answer.status, 200);
        assert_eq!(sim.hardware(MAC).erases, erases, "erase={value}");
        assert_eq!(caller.status(&system_id).await, u64::from(status::READY));
        let traps = auditor::traps(&sim.log(), &auditor::Ours::account("admin"));
        assert_eq!(traps.len(), usize::from(erases == 1 && value != "true"), "erase={value}: {traps:?}");
    }
}

#[tokio::test]
async fn real_booleans_are_read_as_such() {
    for (value, on) in [("true", true), ("1", true), ("yes", true), ("0", false), ("off", false)] {
        let sim = instant().await;
        let system_id = ready(&sim, MAC, "192.0.2.1").await;
        let answer = Caller::new(&sim).op(&system_id, "deploy", &[("enable_hw_sync", value)]).await;
        assert_eq!(answer.json()["enable_hw_sync"], on, "enable_hw_sync={value}");
    }
}

#[tokio::test]
async fn json_is_read_by_create_and_ignored_by_deploy() {
    let sim = instant().await;
    let system_id = ready(&sim, MAC, "192.0.2.1").await;
    let signature = Signature::new(&sim.key());
    let path = format!("/MAAS/api/2.0/machines/{system_id}/?op=deploy");
    let jammy = json!({"distro_series": "jammy"});
    let answer = send(&sim, "POST", &path, Some(&signature), Body::Json(&jammy)).await.expect("an answer");
    assert_eq!(answer.json()["distro_series"], "noble");
    assert_eq!(auditor::traps(&sim.log(), &auditor::Ours::account("admin")).len(), 1);
}

#[tokio::test]
async fn a_mac_is_found_by_its_stored_spelling_only() {
    let sim = instant().await;
    let caller = Caller::new(&sim);
    let system_id = id(&caller.create("52-54-00-00-00-AB", "192.0.2.1").await);
    let find = async |mac: &str| caller.get(&format!("machines/?mac_address={mac}")).await;
    assert_eq!(find("52:54:00:00:00:ab").await[0]["system_id"], system_id.as_str());
    assert_eq!(find("52:54:00:00:00:AB").await, json!([]));
    assert_eq!(find("52-54-00-00-00-ab").await, json!([]));
}

#[tokio::test]
async fn a_key_that_is_lost_still_creates() {
    let sim = instant().await;
    let form: Vec<(String, String)> =
        [("architecture", "amd64/generic"), ("mac_addresses", MAC)].map(|(n, v)| (n.into(), v.into())).into();
    let answer = send(&sim, "POST", "/MAAS/api/2.0/machines/", None, Body::Form(&form)).await.expect("an answer");
    assert_eq!((answer.status, answer.json()["status"].as_u64()), (200, Some(0)), "{}", answer.text());
}

#[tokio::test]
async fn who_may_not_is_told_nothing() {
    let sim = instant().await;
    let system_id = ready(&sim, MAC, "192.0.2.1").await;
    let key = sim.add_account("user", false);
    let user = Caller { sim: &sim, key };
    for op in ["commission", "set_storage_layout"] {
        let answer = user.op(&system_id, op, &[("storage_layout", "flat")]).await;
        assert_eq!((answer.status, answer.text()), (403, String::new()), "{op}");
    }
    let answer = user.ask("PUT", &format!("machines/{system_id}/"), &[("description", "mine")]).await;
    assert_eq!((answer.status, answer.text()), (403, String::new()));
    assert_eq!(user.get("users/?op=whoami").await["is_superuser"], false);
    let admin = Caller::new(&sim);
    sim.revoke("admin");
    assert_eq!(admin.ask("GET", "users/?op=whoami", &[]).await.status, 401, "its key is taken no more");
    assert_eq!(user.ask("GET", "users/?op=whoami", &[]).await.status, 200);
}

#[tokio::test]
async fn a_locked_machine_is_left_alone() {
    let sim = instant().await;
    let system_id = ready(&sim, MAC, "192.0.2.1").await;
    let caller = Caller::new(&sim);
    caller.op(&system_id, "deploy", &[]).await;
    assert_eq!(caller.op(&system_id, "lock", &[]).await.status, 200);
    assert_eq!(caller.op(&system_id, "lock", &[]).await.status, 409);
    assert_eq!(caller.op(&system_id, "release", &[]).await.status, 403);
    assert_eq!(caller.ask("DELETE", &format!("machines/{system_id}/"), &[]).await.status, 403);
    assert_eq!(caller.op(&system_id, "unlock", &[]).await.status, 200);
    assert_eq!(caller.ask("DELETE", &format!("machines/{system_id}/"), &[]).await.status, 204);
    assert!(sim.hardware(MAC).on, "what is removed runs on");
}

/// The form of a deploy that is not taken leaves the machine as it was.
#[tokio::test]
async fn a_refused_deploy_acquires_nothing() {
    let sim = instant().await;
    let system_id = ready(&sim, MAC, "192.0.2.1").await;
    let caller = Caller::new(&sim);
    assert_eq!(caller.op(&system_id, "deploy", &[("distro_series", "nosuch")]).await.status, 400);
    caller.op(&system_id, "set_storage_layout", &[("storage_layout", "blank")]).await;
    let answer = caller.op(&system_id, "deploy", &[]).await;
    assert!(answer.status == 400 && answer.text().contains("storage"), "{}", answer.text());
    let seen = sim.machine(&system_id).expect("a machine");
    assert_eq!((seen.status, seen.owner), (status::READY, None));
}

#[tokio::test]
async fn two_machines_with_one_uuid_have_none() {
    let sim = instant().await;
    let other = "52:54:00:00:00:02";
    let uuid = sim.hardware(MAC).racked.uuid;
    sim.rack(Racked::new(other, "192.0.2.2").known_as(&uuid, "SN2"));
    let first = ready(&sim, MAC, "192.0.2.1").await;
    assert!(sim.machine(&first).expect("a machine").uuid.is_some());
    let second = ready(&sim, other, "192.0.2.2").await;
    for system_id in [first, second] {
        assert_eq!(sim.machine(&system_id).expect("a machine").uuid, None);
    }
}

#[tokio::test]
async fn whoever_boots_and_is_not_known_enlists_itself() {
    let sim = instant().await;
    // the record has the BMC of another machine
    let caller = Caller::new(&sim);
    let system_id = id(&caller.create("52:54:00:00:00:99", "192.0.2.1").await);
    caller.op(&system_id, "commission", &[("testing_scripts", "none")]).await;
    assert_eq!(caller.status(&system_id).await, u64::from(status::COMMISSIONING), "it never reports");
    assert_eq!(sim.with_mac(MAC).len(), 1, "and the other has enlisted itself");
    sim.advance(std::time::Duration::from_secs(3600));
    assert_eq!(caller.status(&system_id).await, u64::from(status::FAILED_COMMISSIONING));
}
