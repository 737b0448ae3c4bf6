//! The first boot: a machine of its own, one that is known, or one that nobody can be sure of.

use crate::site::{MAC, Site};
use serde_json::{Value, json};

const UUID: &str = "4d570000-0001-4002-8000-5254004d5800";
const SWAPPED: &str = "0000574d-0100-0240-8000-5254004d5800";

async fn register(site: &Site, id: &str, spec: Value) {
    site.http.post("/api/v1/machines", &json!({ "machine": { "machine_id": id, "spec": spec } })).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_matches_nothing_is_a_new_machine() {
    let site = Site::new().await;
    site.script(&format!("mac={MAC}&uuid={UUID}&serial=S-1&vendor=Acme&product=Box%20%2B%201&arch=x86_64")).await;
    let node = site.node(MAC).await;
    assert_eq!((node["vendor"].as_str(), node["model"].as_str()), (Some("Acme"), Some("Box + 1")));
    let machine = node["machine_id"].as_str().expect("a machine");
    let spec = site.http.get(&format!("/api/v1/machines/{machine}")).await.ok()["spec"].clone();
    assert_eq!((spec["serial_number"].as_str(), spec["system_uuid"].as_str()), (Some("S-1"), Some(UUID)));
    assert_eq!(spec["mac_addresses"], json!([MAC]));
    // again: nothing new
    site.script(&format!("mac={MAC}&uuid={UUID}&serial=S-1")).await;
    assert_eq!(site.http.get("/api/v1/nodes").await.ok()["nodes"].as_array().map(Vec::len), Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn junk_names_no_machine() {
    let site = Site::new().await;
    for n in 1..=3 {
        let zeros = "00000000-0000-0000-0000-000000000000";
        site.script(&format!("mac=52:54:00:4d:59:0{n}&uuid={zeros}&serial=To%20be%20filled%20by%20O.E.M.")).await;
    }
    let machines = site.http.get("/api/v1/machines").await.ok()["machines"].clone();
    assert_eq!(machines.as_array().map(Vec::len), Some(3), "three machines, and no one serial number: {machines}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_stranger_says_is_proposed_and_confirmed_by_a_person() {
    let site = Site::new().await;
    register(&site, "rack-1", json!({ "provider": "sim", "system_uuid": UUID, "serial_number": "S-1" })).await;
    site.script(&format!("mac={MAC}&uuid={SWAPPED}&serial=S-1")).await;
    let node = site.node(MAC).await;
    assert_eq!((&node["machine_id"], node["proposed_machine_id"].as_str()), (&Value::Null, Some("rack-1")));
    site.patch(MAC, &json!({ "workflow_id": "debian" })).await.ok();
    let node = site.set(MAC, &json!({ "state": "pending", "link": true })).await.ok();
    assert_eq!((node["machine_id"].as_str(), &node["proposed_machine_id"]), (Some("rack-1"), &Value::Null));
    site.script("mac=52:54:00:4d:59:02").await;
    let refused = site.patch("52:54:00:4d:59:02", &json!({ "machine_id": "rack-1" })).await;
    refused.refused(409, "IDENTITY_TAKEN");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conflict_is_a_finding_and_never_a_merge() {
    let site = Site::new().await;
    register(&site, "rack-1", json!({ "provider": "sim", "system_uuid": UUID })).await;
    register(&site, "rack-2", json!({ "provider": "sim", "serial_number": "S-2" })).await;
    site.script(&format!("mac={MAC}&uuid={UUID}&serial=S-2")).await;
    let node = site.node(MAC).await;
    assert_eq!((&node["machine_id"], &node["proposed_machine_id"]), (&Value::Null, &Value::Null));
    let found = site.http.get("/api/v1/admin/findings").await.ok()["findings"][0].clone();
    assert_eq!((found["kind"].as_str(), &found["subject"]), (Some("IDENTITY_CONFLICT"), &node["id"]), "{found}");
    let message = found["message"].as_str().expect("a sentence");
    assert!(message.contains("rack-1") && message.contains("rack-2"), "{message}");
    // a person decides; the finding is settled with that
    site.patch(MAC, &json!({ "machine_id": "rack-2" })).await.ok();
    assert_eq!(site.http.get("/api/v1/admin/findings").await.ok()["findings"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_discovery_boot_has_found_is_kept() {
    let site = Site::new().await;
    site.script(&format!("mac={MAC}")).await;
    let facts = json!({ "cpus": 8, "disks": [{ "name": "vda", "bytes": 1073741824u64 }], "gpus": [] });
    let told = site.report(None, &json!({ "mac_address": MAC, "facts": facts })).await.ok();
    assert_eq!(told["applied"], false);
    assert_eq!(site.node(MAC).await["inventory"]["disks"][0]["name"], "vda");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_do_not_fill_the_database() {
    let site = Site::new().await;
    for n in 0..1000 {
        let answer = site.boot(&format!("mac=52:54:00:01:{:02x}:{:02x}", n / 256, n % 256)).await;
        assert_eq!(answer.status(), 200);
    }
    let script = site.script("mac=52:54:00:02:00:00").await;
    assert!(script.contains("exit"), "one more boots its disk: {script}");
    site.http.get("/api/v1/nodes/52:54:00:02:00:00").await.refused(404, "BOOT_NODE_NOT_FOUND");
}
