//! Findings and why: what needs somebody, and how it is settled.

use crate::on_both;
use crate::site::MAC;
use serde_json::json;

on_both!(a_failed_installation_is_found_taken_up_and_settled, |site| {
    let (id, mut token) = site.installing(MAC).await;
    for n in 0..3 {
        if n > 0 {
            token = site.token(MAC).await.expect("another attempt");
            site.says(&token, MAC, "started", json!({})).await;
        }
        site.says(&token, MAC, "failed", json!({ "installation_error": "I/O error on vda" })).await;
    }
    let open = || async { site.http.get("/api/v1/admin/findings").await.ok()["findings"].clone() };
    let found = open().await[0].clone();
    assert_eq!((found["kind"].as_str(), found["state"].as_str()), (Some("INSTALL_FAILED"), Some("open")), "{found}");
    assert!(found["message"].as_str().is_some_and(|m| m.contains("I/O error on vda")), "{found}");
    assert!(found["next_action"].as_str().is_some_and(|a| a.contains("workflow")), "{found}");
    let path = format!("/api/v1/admin/findings/{}", found["id"].as_str().expect("an id"));
    let taken = site.http.post(&format!("{path}/acknowledge"), &json!({ "comment": "looking" })).await.ok();
    assert_eq!((taken["state"].as_str(), taken["handled_by"].as_str()), (Some("acknowledged"), Some("tester")));
    let why = site.http.get(&format!("/api/v1/why/{id}")).await.ok();
    assert_eq!((why["kind"].as_str(), why["at_rest"].as_bool()), (Some("boot_node"), Some(false)), "{why}");
    assert!(why["problems"][0].as_str().is_some_and(|p| p.contains("INSTALL_FAILED")), "{why}");
    let action =
        why["actions"].as_array().expect("actions").iter().find(|a| a["name"] == "reset it").expect("a way out");
    assert_eq!(action["allowed"], true, "{action}");
    // evidence settles it: it was reset
    site.set(&id, &json!({ "state": "pending", "force": true, "comment": "new disk" })).await.ok();
    assert_eq!(open().await, json!([]));
    let settled = site.http.get(&path).await.ok();
    assert_eq!(settled["state"], "resolved");
    site.http.post(&format!("{path}/acknowledge"), &json!({})).await.refused(409, "ILLEGAL_TRANSITION");
    site.http.get("/api/v1/admin/findings/fnd_nobody").await.refused(404, "FINDING_NOT_FOUND");
    let why = site.http.get(&format!("/api/v1/why/{MAC}")).await.ok();
    assert_eq!(why["waiting_for"], "the machine to boot from the network", "{why}");
});
