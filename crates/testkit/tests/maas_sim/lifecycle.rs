//! From the rack to Deployed and back, with everything that is known to go wrong on the way.

use crate::caller::{Caller, id, now};
use crate::traps::{instant, ready};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::maas_sim::{BmcMood, DiskSpec, FirstBoot, MaasSim, Options, Pace, Racked, Trouble, status};

const MAC: &str = "52:54:00:00:00:01";
const BMC: &str = "192.0.2.1";

async fn manual() -> MaasSim {
    let sim = MaasSim::start(Options { pace: Pace::Manual, time: Arc::new(now), ..Options::default() }).await;
    sim.rack(Racked::new(MAC, BMC));
    sim
}

/// Ready, in a world whose time stands still.
async fn ready_by_hand(sim: &MaasSim) -> String {
    let caller = Caller::new(sim);
    let system_id = id(&caller.create(MAC, BMC).await);
    caller.op(&system_id, "commission", &[("testing_scripts", "none")]).await;
    sim.finish(&system_id);
    assert_eq!(caller.status(&system_id).await, u64::from(status::READY));
    system_id
}

fn minutes(n: u64) -> Duration {
    Duration::from_secs(n * 60)
}

#[tokio::test]
async fn a_deployment_takes_its_time_and_hands_its_user_data_on() {
    let sim = manual().await;
    let system_id = ready_by_hand(&sim).await;
    let boots: Arc<Mutex<Vec<FirstBoot>>> = Arc::default();
    let seen = boots.clone();
    sim.on_first_boot(move |boot| seen.lock().expect("not poisoned").push(boot));
    let caller = Caller::new(&sim);
    let form = [("user_data", "I2Nsb3VkLWNvbmZpZwpydW5jbWQ6IFtbdHJ1ZV1dCg=="), ("agent_name", "ours")];
    assert_eq!(caller.op(&system_id, "deploy", &form).await.status, 200);
    sim.advance(minutes(5));
    let machine = caller.get(&format!("machines/{system_id}/")).await;
    assert_eq!((machine["status"].as_u64(), machine["power_state"].as_str()), (Some(9), Some("on")));
    assert_eq!(machine["netboot"], true);
    assert!(boots.lock().expect("not poisoned").is_empty());
    sim.advance(minutes(30));
    assert_eq!(caller.status(&system_id).await, u64::from(status::DEPLOYED));
    let boots = boots.lock().expect("not poisoned").clone();
    let [boot] = boots.as_slice() else { panic!("one boot: {boots:?}") };
    assert_eq!(
        (boot.system_id.as_str(), boot.user_data.as_slice()),
        (system_id.as_str(), &b"#cloud-config\nruncmd: [[true]]\n"[..])
    );
    assert_eq!(boot.addresses, ["10.20.0.2"]);
    assert_eq!(sim.hardware(MAC).installed.as_deref(), Some("ubuntu/noble"));
}

#[tokio::test]
async fn user_data_that_is_not_base64_is_passed_on_as_it_stands() {
    let sim = instant().await;
    let system_id = ready(&sim, MAC, BMC).await;
    let boots: Arc<Mutex<Vec<FirstBoot>>> = Arc::default();
    let seen = boots.clone();
    sim.on_first_boot(move |boot| seen.lock().expect("not poisoned").push(boot));
    Caller::new(&sim).op(&system_id, "deploy", &[("user_data", "#!/bin/sh -e")]).await;
    assert_eq!(boots.lock().expect("not poisoned")[0].user_data, b"#!/bin/sh -e");
}

/// Every known way for a deployment to fail, and where it is told.
#[tokio::test]
async fn deployments_fail_in_every_known_way() {
    for (trouble, after, stands, error) in [
        (Trouble::CurtinFails, 10, status::FAILED_DEPLOYMENT, "Node installation failure"),
        (Trouble::NoDatasource, 30, status::DEPLOYING, ""),
        (Trouble::NoDatasource, 90, status::FAILED_DEPLOYMENT, "Marking node failed"),
        (Trouble::DeployHangs, 50, status::DEPLOYING, ""),
        (Trouble::DeployHangs, 90, status::FAILED_DEPLOYMENT, "Marking node failed"),
        (Trouble::CloudInitFails, 90, status::DEPLOYED, "Node post-installation failure"),
    ] {
        let sim = manual().await;
        let system_id = ready_by_hand(&sim).await;
        sim.trouble(MAC, trouble, 1);
        let caller = Caller::new(&sim);
        caller.op(&system_id, "deploy", &[]).await;
        sim.advance(minutes(after));
        assert_eq!(caller.status(&system_id).await, u64::from(stands), "{trouble:?} after {after} minutes");
        let events = caller.get(&format!("events/?op=query&id={system_id}&level=ERROR")).await;
        let told = events["events"].as_array().expect("events").iter().any(|e| e["type"] == error);
        assert_eq!(told, !error.is_empty(), "{trouble:?}: {events}");
        if stands == status::FAILED_DEPLOYMENT {
            assert_eq!(caller.op(&system_id, "deploy", &[]).await.status, 409, "not from there");
            caller.op(&system_id, "release", &[]).await;
            sim.finish(&system_id);
            caller.op(&system_id, "deploy", &[]).await;
            sim.finish(&system_id);
            let machine = caller.get(&format!("machines/{system_id}/")).await;
            assert_eq!(machine["status"], 6, "the trouble came once");
            assert_ne!(machine["error_description"], "", "and what was said of it is still there");
        }
    }
}

#[tokio::test]
async fn a_dead_bmc_is_found_out_after_deploy_has_said_yes() {
    let sim = manual().await;
    let system_id = ready_by_hand(&sim).await;
    let caller = Caller::new(&sim);
    sim.bmc(MAC, BmcMood::Dead);
    assert_eq!(caller.op(&system_id, "deploy", &[]).await.status, 200);
    assert_eq!(caller.status(&system_id).await, u64::from(status::DEPLOYING));
    sim.finish(&system_id);
    assert_eq!(caller.status(&system_id).await, u64::from(status::FAILED_DEPLOYMENT));
    assert_eq!(sim.hardware(MAC).power_ons, 1, "only for its commissioning");
}

#[tokio::test]
async fn a_release_that_the_bmc_refuses_is_half_done() {
    let sim = instant().await;
    let system_id = ready(&sim, MAC, BMC).await;
    let caller = Caller::new(&sim);
    caller.op(&system_id, "deploy", &[("enable_hw_sync", "true")]).await;
    caller.op(&system_id, "set_workload_annotations", &[("mw", "1")]).await;
    sim.bmc(MAC, BmcMood::Refuses);
    assert_eq!(caller.op(&system_id, "release", &[]).await.status, 500);
    let seen = sim.machine(&system_id).expect("a machine");
    assert_eq!((seen.status, seen.owner.as_deref(), seen.netboot), (status::DEPLOYED, Some("admin"), true));
    assert_eq!((seen.osystem.as_str(), seen.annotations.len(), seen.last_sync), ("", 0, None));
    assert_eq!(seen.addresses.len(), 1, "its address is kept");
    sim.bmc(MAC, BmcMood::Fine);
    assert_eq!(caller.op(&system_id, "release", &[]).await.status, 200);
    assert_eq!(sim.machine(&system_id).expect("a machine").status, status::READY);
}

#[tokio::test]
async fn without_free_addresses_nothing_is_deployed() {
    let sim = instant().await;
    let system_id = ready(&sim, MAC, BMC).await;
    sim.leave_addresses(1, 0);
    let answer = Caller::new(&sim).op(&system_id, "deploy", &[]).await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(sim.machine(&system_id).expect("a machine").status, status::READY);
}

#[tokio::test]
async fn hardware_sync_moves_only_where_it_comes() {
    for comes in [true, false] {
        let sim = manual().await;
        let system_id = ready_by_hand(&sim).await;
        if !comes {
            sim.trouble(MAC, Trouble::SyncNeverMoves, 1);
        }
        let caller = Caller::new(&sim);
        caller.op(&system_id, "deploy", &[("enable_hw_sync", "true")]).await;
        sim.finish(&system_id);
        let at = async || caller.get(&format!("machines/{system_id}/")).await["last_sync"].clone();
        let first = at().await;
        assert!(first.is_string(), "it is there from the first moment on");
        sim.advance(minutes(14));
        assert_eq!(at().await, first);
        sim.advance(minutes(2));
        assert_eq!(at().await != first, comes);
        sim.advance(minutes(60));
        assert_eq!(sim.machine(&system_id).expect("a machine").syncs, if comes { 5 } else { 0 });
    }
}

#[tokio::test]
async fn in_an_instant_world_a_sync_comes_once_somebody_has_looked() {
    let sim = instant().await;
    let system_id = ready(&sim, MAC, BMC).await;
    let caller = Caller::new(&sim);
    caller.op(&system_id, "deploy", &[("enable_hw_sync", "true")]).await;
    let first = caller.get(&format!("machines/{system_id}/")).await["last_sync"].clone();
    let second = caller.get(&format!("machines/{system_id}/")).await["last_sync"].clone();
    assert!(first.is_string() && second.is_string() && first != second, "{first} {second}");
}

#[tokio::test]
async fn a_sync_without_addresses_takes_the_links_away() {
    let sim = manual().await;
    let system_id = ready_by_hand(&sim).await;
    sim.trouble(MAC, Trouble::SyncLosesLinks, 1);
    let caller = Caller::new(&sim);
    caller.op(&system_id, "deploy", &[("enable_hw_sync", "true")]).await;
    sim.finish(&system_id);
    sim.advance(minutes(20));
    caller.op(&system_id, "release", &[]).await;
    sim.finish(&system_id);
    let answer = caller.op(&system_id, "deploy", &[]).await;
    assert!(answer.status == 400 && answer.text().contains("network"), "{}", answer.text());
}

#[tokio::test]
async fn commissioning_and_tests_and_erases_fail_on_demand() {
    let sim = instant().await;
    let caller = Caller::new(&sim);
    let system_id = id(&caller.create(MAC, BMC).await);
    sim.trouble(MAC, Trouble::CommissioningFails, 1);
    sim.trouble(MAC, Trouble::TestsFail, 1);
    caller.op(&system_id, "commission", &[]).await;
    assert_eq!(caller.status(&system_id).await, u64::from(status::FAILED_COMMISSIONING));
    caller.op(&system_id, "commission", &[]).await;
    assert_eq!(caller.status(&system_id).await, u64::from(status::FAILED_TESTING));
    caller.op(&system_id, "test", &[]).await;
    assert_eq!(caller.status(&system_id).await, u64::from(status::FAILED_TESTING), "as it was before");
    caller.op(&system_id, "override_failed_testing", &[]).await;
    caller.op(&system_id, "deploy", &[]).await;
    sim.trouble(MAC, Trouble::EraseFails, 1);
    caller.op(&system_id, "release", &[("erase", "true")]).await;
    assert_eq!(caller.status(&system_id).await, u64::from(status::FAILED_DISK_ERASING));
    assert_eq!(sim.hardware(MAC).erases, 0);
    sim.trouble(MAC, Trouble::EraseHangs, 1);
    caller.op(&system_id, "release", &[("erase", "true")]).await;
    assert_eq!(caller.status(&system_id).await, u64::from(status::DISK_ERASING), "instant worlds have hangs too");
    sim.advance(minutes(31));
    caller.op(&system_id, "release", &[("erase", "true")]).await;
    let seen = sim.machine(&system_id).expect("a machine");
    assert_eq!((seen.status, seen.owner, sim.hardware(MAC).erases), (status::READY, None, 1));
}

#[tokio::test]
async fn a_release_that_hangs_fails_in_time() {
    let sim = manual().await;
    let system_id = ready_by_hand(&sim).await;
    let caller = Caller::new(&sim);
    caller.op(&system_id, "deploy", &[]).await;
    sim.finish(&system_id);
    sim.trouble(MAC, Trouble::ReleaseHangs, 1);
    caller.op(&system_id, "release", &[]).await;
    sim.advance(minutes(4));
    assert_eq!(caller.status(&system_id).await, u64::from(status::RELEASING));
    sim.advance(minutes(2));
    assert_eq!(caller.status(&system_id).await, u64::from(status::FAILED_RELEASING));
}

#[tokio::test]
async fn broken_while_deployed_loses_its_system_and_keeps_its_owner() {
    let sim = instant().await;
    let system_id = ready(&sim, MAC, BMC).await;
    let caller = Caller::new(&sim);
    assert_eq!(caller.op(&system_id, "mark_broken", &[]).await.status, 403, "not while nobody owns it");
    caller.op(&system_id, "deploy", &[]).await;
    caller.op(&system_id, "mark_broken", &[("comment", "smoke")]).await;
    let seen = sim.machine(&system_id).expect("a machine");
    assert_eq!((seen.status, seen.owner.as_deref(), seen.osystem.as_str()), (status::BROKEN, Some("admin"), ""));
    assert!(!sim.hardware(MAC).on);
    let machine = caller.get(&format!("machines/{system_id}/")).await;
    assert_eq!(machine["status_message"], "Releasing", "stale, as ever");
    caller.op(&system_id, "mark_fixed", &[]).await;
    let seen = sim.machine(&system_id).expect("a machine");
    assert_eq!((seen.status, seen.osystem.as_str()), (status::DEPLOYED, ""));
}

#[tokio::test]
async fn storage_and_links_are_what_commissioning_found() {
    let sim = instant().await;
    let (vlan, subnet) = sim.add_subnet("roce", "10.30.0.0/24");
    let mac = "52:54:00:00:00:05";
    let boss = DiskSpec { serial: "B1".into(), ..DiskSpec::new("nvme0n1", "DELLBOSS VD", 480_000_000_000) };
    let racked = Racked::new(mac, "192.0.2.5")
        .nic("enp1s0", "52:54:00:00:00:06", vlan)
        .disks(vec![DiskSpec::new("sda", "big", 8_000_000_000_000), boss]);
    sim.rack(racked);
    let system_id = ready(&sim, mac, "192.0.2.5").await;
    let caller = Caller::new(&sim);
    let machine = caller.get(&format!("machines/{system_id}/")).await;
    let disks = machine["physicalblockdevice_set"].as_array().expect("disks");
    assert_eq!(disks[1]["model"], "DELLBOSS VD");
    let boss = disks[1]["id"].to_string();
    let answer = caller.ask("POST", &format!("nodes/{system_id}/blockdevices/{boss}/?op=set_boot_disk"), &[]).await;
    assert_eq!(answer.text(), "OK");
    let form = [("storage_layout", "lvm"), ("root_device", boss.as_str()), ("root_size", "100G")];
    let answer = caller.op(&system_id, "set_storage_layout", &form).await;
    assert_eq!(answer.json()["boot_disk"]["id"].to_string(), boss);
    assert_eq!(answer.json()["virtualblockdevice_set"][0]["filesystem"]["mount_point"], "/");
    let nic = machine["interface_set"][1]["id"].to_string();
    let subnet = subnet.to_string();
    let path = format!("nodes/{system_id}/interfaces/{nic}/");
    assert_eq!(caller.ask("PUT", &path, &[("mtu", "9000")]).await.json()["effective_mtu"], 9000);
    let link = [("mode", "AUTO"), ("subnet", subnet.as_str()), ("force", "true")];
    caller.ask("POST", &format!("{path}?op=link_subnet"), &link).await;
    let linked = caller.ask("POST", &format!("{path}?op=link_subnet"), &link[..2]).await.json();
    let links = linked["links"].as_array().expect("links");
    assert_eq!(links.len(), 2, "one more each time");
    let last = links[1]["id"].to_string();
    let left = caller.ask("POST", &format!("{path}?op=unlink_subnet"), &[("id", last.as_str())]).await.json();
    assert_eq!(left["links"].as_array().map(Vec::len), Some(1));
    caller.op(&system_id, "deploy", &[]).await;
    assert_eq!(sim.machine(&system_id).expect("a machine").addresses, ["10.20.0.2", "10.30.0.2"]);
    let answer = caller.ask("POST", &format!("{path}?op=link_subnet"), &link).await;
    assert_eq!(answer.status, 409, "not while it is deployed");
}

/// Pages of events leave nothing out, whichever way they are turned.
#[tokio::test]
async fn following_events_skips_none() {
    let sim = instant().await;
    let system_id = ready(&sim, MAC, BMC).await;
    let caller = Caller::new(&sim);
    for _ in 0..20 {
        caller.op(&system_id, "deploy", &[]).await;
        caller.op(&system_id, "release", &[]).await;
    }
    let numbers = |page: &Value| -> Vec<u64> {
        page["events"].as_array().expect("events").iter().map(|e| e["id"].as_u64().expect("a number")).collect()
    };
    let all = numbers(&caller.get("events/?op=query&level=DEBUG&limit=1000").await);
    assert!(all.is_sorted_by(|a, b| a > b), "newest first");
    let (mut after, mut followed) = (0, Vec::new());
    loop {
        let filter = if after % 2 == 0 { format!("&id={system_id}") } else { String::new() };
        let page = caller.get(&format!("events/?op=query&level=DEBUG&limit=7&after={after}{filter}")).await;
        let mut page = numbers(&page);
        page.reverse();
        let Some(last) = page.last() else { break };
        after = *last;
        followed.extend(page);
    }
    followed.reverse();
    assert_eq!(followed, all);
}
