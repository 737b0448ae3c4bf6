//! Lists are filtered by every field that the contract names, by values as people write them.

use crate::on_both;
use crate::site::{MAC, Site};
use serde_json::{Value, json};

/// A query's value, whatever is in it.
fn encoded(text: &str) -> String {
    text.bytes().map(|b| format!("%{b:02X}")).collect()
}

async fn found(site: &Site, list: &str, filter: &str) -> Vec<String> {
    let what = list.rsplit('/').next().expect("a name");
    let answer = site.http.get(&format!("/api/v1/{list}?filter={}", encoded(filter))).await.ok();
    let ids = answer[what].as_array().unwrap_or_else(|| panic!("{filter}: {answer}"));
    ids.iter().map(|item| item["id"].as_str().expect("an id").to_owned()).collect()
}

on_both!(boot_nodes_are_found_by_each_of_their_fields, |site| {
    let claims = "hostname=web-1&vendor=Acme&product=Box&serial=S-1&uuid=4D570000-0001-4002-8000-5254004D5800";
    site.script(&format!("mac={MAC}&{claims}&arch=x86_64")).await;
    let (id, token) = site.installing(MAC).await;
    site.says(&token, MAC, "failed", json!({ "installation_error": "no disk", "ip_address": "10.0.0.7" })).await;
    let token = site.token(MAC).await.expect("another attempt");
    site.says(&token, MAC, "started", json!({})).await;
    site.says(&token, MAC, "progress", json!({ "installation_progress": 40 })).await;
    // one that has none of it
    site.script("mac=52:54:00:4d:59:02").await;
    let other = site.node("52:54:00:4d:59:02").await["id"].as_str().expect("an id").to_owned();
    let node = site.node(&id).await;
    // as the contract lists them
    for field in [
        "id",
        "mac_address",
        "state",
        "workflow_id",
        "hostname",
        "ip_address",
        "vendor",
        "model",
        "serial_number",
        "system_uuid",
        "install_attempts",
        "install_progress",
        "last_install_error",
        "state_changed_at",
        "machine_id",
        "created_at",
        "last_seen",
    ] {
        let value = match &node[field] {
            Value::String(text) if !text.is_empty() => format!("{text:?}"),
            Value::Number(number) => number.to_string(),
            none => panic!("{field} is {none}: nothing to look for"),
        };
        let found = |sign: &'static str| {
            let (site, filter) = (&site, format!("{field}{sign}{value}"));
            async move { found(site, "nodes", &filter).await }
        };
        assert_eq!(found("=").await, [id.as_str()], "{field}={value}");
        assert_eq!(found("!=").await, [other.as_str()], "{field}!={value}");
    }
    for same in ["52:54:00:4D:59:01", "52-54-00-4d-59-01", "5254.004d.5901", "5254004D5901"] {
        assert_eq!(found(&site, "nodes", &format!("mac_address={same:?}")).await, [id.as_str()], "{same}");
    }
    assert_eq!(found(&site, "nodes", "system_uuid=4D570000-0001-4002-8000-5254004D5800").await, [id.as_str()]);
    assert_eq!(found(&site, "nodes", "install_attempts>0 AND install_progress<=40").await, [id.as_str()]);
    assert_eq!(found(&site, "nodes", "install_attempts>1").await, Vec::<String>::new());
    assert_eq!(found(&site, "nodes", "state_changed_at>\"2001-01-01T00:00:00Z\"").await.len(), 2);
    assert_eq!(found(&site, "nodes", "last_install_error=\"\"").await, [other.as_str()]);
    for bad in ["install_attempts=many", "state_changed_at>soon", "mac_address=card", "colour=red"] {
        let answer = site.http.get(&format!("/api/v1/nodes?filter={}", encoded(bad))).await;
        answer.refused(400, "INVALID_FILTER");
    }
});

on_both!(workflows_and_findings_are_found_by_their_fields, |site| {
    let arm =
        json!({ "id": "arm", "name": "Arm", "kernel": "k", "arch": "arm64", "boot_mode": "uefi", "disk": "auto" });
    site.http.post("/api/v1/workflows", &arm).await.ok();
    for filter in ["id=arm", "name=Arm", "arch=arm64", "boot_mode=uefi", "arch=arm64 AND kernel=k", "NOT arch=\"\""] {
        assert_eq!(found(&site, "workflows", filter).await, ["arm"], "{filter}");
    }
    assert_eq!(found(&site, "workflows", "initrd=initrd AND cmdline=quiet").await, ["debian", "other"]);
    site.http.get("/api/v1/workflows?filter=colour%3Dred").await.refused(400, "INVALID_FILTER");
    // a finding, and one more
    for (n, card) in ["52:54:00:4d:59:01", "52:54:00:4d:59:02"].into_iter().enumerate() {
        let id = format!("rack-{n}");
        let spec = json!({ "provider": "sim", "serial_number": format!("S-{n}") });
        site.http.post("/api/v1/machines", &json!({ "machine": { "machine_id": id, "spec": spec } })).await.ok();
        site.http.post("/api/v1/nodes", &json!({ "mac_address": card, "machine_id": id })).await.ok();
        site.script(&format!("mac={card}&serial=another-{n}")).await;
    }
    let all = found(&site, "admin/findings", "kind=IDENTITY_CONFLICT").await;
    assert_eq!(all.len(), 2);
    assert_eq!(found(&site, "admin/findings", &format!("id={}", all[1])).await, all[1..]);
    assert_eq!(found(&site, "admin/findings", "first_seen<\"2001-01-01T00:00:00Z\"").await, Vec::<String>::new());
});
