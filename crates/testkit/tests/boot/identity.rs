//! Who a boot node is, beyond its first boot: what it says later, in another spelling, or wrongly.

use crate::on_both;
use crate::site::{MAC, Site};
use serde_json::{Value, json};

const UUID: &str = "4d570000-0001-4002-8000-5254004d5800";

async fn register(site: &Site, id: &str, spec: Value) {
    let machine = json!({ "machine": { "machine_id": id, "spec": spec } });
    site.http.post("/api/v1/machines", &machine).await.ok();
}

async fn findings(site: &Site) -> Vec<Value> {
    site.http.get("/api/v1/admin/findings").await.ok()["findings"].as_array().expect("a list").clone()
}

async fn machines(site: &Site) -> Vec<Value> {
    site.http.get("/api/v1/machines").await.ok()["machines"].as_array().expect("a list").clone()
}

on_both!(a_serial_number_is_one_in_any_case, |site| {
    register(&site, "rack-1", json!({ "provider": "sim", "serial_number": "Cz3-0007a" })).await;
    site.script(&format!("mac={MAC}&serial=CZ3-0007A")).await;
    assert_eq!(site.node(MAC).await["proposed_machine_id"], "rack-1");
    assert_eq!(machines(&site).await.len(), 1, "and no second machine is made of it");
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_makers_leave_in_the_place_of_a_name_is_nobodys() {
    let site = Site::new().await;
    for (n, junk) in ["To%20be%20filled", "0123456789", "Chassis%20Serial%20Number"].into_iter().enumerate() {
        for m in 0..2 {
            site.script(&format!("mac=52:54:00:00:{n:02x}:{m:02x}&serial={junk}")).await;
        }
    }
    let all = machines(&site).await;
    assert_eq!(all.len(), 6);
    assert!(all.iter().all(|m| m["spec"]["serial_number"] == ""), "{all:?}");
    assert_eq!(findings(&site).await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_cannot_be_read_leaves_the_others() {
    let site = Site::new().await;
    site.script(&format!("mac={MAC}&serial=S-1&uuid={}", UUID.replace('-', "%2F"))).await;
    let all = machines(&site).await;
    let spec = &all[0]["spec"];
    assert_eq!((spec["serial_number"].as_str(), spec["system_uuid"].as_str()), (Some("S-1"), Some("")), "{spec}");
    assert_eq!(spec["mac_addresses"], json!([MAC]));
}

// whoever looks for who made it must not find a person
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_a_boot_makes_is_the_nodes_own_doing() {
    let site = Site::new().await;
    site.script(&format!("mac={MAC}")).await;
    let all = machines(&site).await;
    assert_eq!(all[0]["status"]["phase_set_by"], "node", "{}", all[0]);
}

on_both!(one_that_was_brought_by_hand_is_known_by_its_first_boot, |site| {
    register(&site, "rack-1", json!({ "provider": "sim", "system_uuid": UUID })).await;
    let by_hand = |card: &'static str| {
        let site = &site;
        async move { site.http.post("/api/v1/nodes", &json!({ "mac_address": card })).await.ok() }
    };
    by_hand(MAC).await;
    site.script(&format!("mac={MAC}&uuid={UUID}&serial=S-1")).await;
    let node = site.node(MAC).await;
    assert_eq!((&node["machine_id"], node["proposed_machine_id"].as_str()), (&Value::Null, Some("rack-1")), "{node}");
    // matching nothing, it is a machine of its own
    let other = "52:54:00:4d:59:02";
    by_hand(other).await;
    assert_eq!(site.node(other).await["machine_id"], Value::Null);
    site.script(&format!("mac={other}&serial=S-2")).await;
    let made = site.node(other).await["machine_id"].as_str().expect("a machine").to_owned();
    assert_eq!(site.http.get(&format!("/api/v1/machines/{made}")).await.ok()["spec"]["serial_number"], "S-2");
    assert_eq!(findings(&site).await, Vec::<Value>::new());
});

on_both!(what_it_says_later_is_compared_and_never_merged, |site| {
    register(&site, "rack-1", json!({ "provider": "sim", "system_uuid": UUID })).await;
    // its card alone at first, as a bare question says it
    site.script(&format!("mac={MAC}")).await;
    let first = site.node(MAC).await;
    let made = first["machine_id"].as_str().expect("a machine of its own");
    site.script(&format!("mac={MAC}&uuid={UUID}")).await;
    let found = findings(&site).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0]["kind"].as_str(), &found[0]["subject"]), (Some("IDENTITY_CONFLICT"), &first["id"]));
    let message = found[0]["message"].as_str().expect("a sentence");
    assert!(message.contains("rack-1") && message.contains(made), "{message}");
    assert_eq!(site.node(MAC).await["machine_id"], made, "nothing was linked otherwise");
});

on_both!(what_contradicts_the_linked_machine_is_found_until_it_does_not, |site| {
    register(&site, "rack-1", json!({ "provider": "sim", "serial_number": "S-1" })).await;
    site.http.post("/api/v1/nodes", &json!({ "mac_address": MAC, "machine_id": "rack-1" })).await.ok();
    site.script(&format!("mac={MAC}&serial=S-1")).await;
    assert_eq!(findings(&site).await, Vec::<Value>::new());
    site.script(&format!("mac={MAC}&serial=S-2")).await;
    let found = findings(&site).await;
    assert_eq!((found.len(), found[0]["kind"].as_str()), (1, Some("IDENTITY_CONFLICT")), "{found:?}");
    let message = found[0]["message"].as_str().expect("a sentence");
    assert!(message.contains("rack-1") && message.contains("S-1") && message.contains("S-2"), "{message}");
    site.script(&format!("mac={MAC}&serial=S-1")).await;
    assert_eq!(findings(&site).await, Vec::<Value>::new());
});
