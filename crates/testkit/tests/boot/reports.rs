//! What installers report: the table, and everything that does not fit it.

use crate::on_both;
use crate::site::MAC;
use futures::future::join_all;
use serde_json::{Value, json};

on_both!(each_report_does_what_the_table_says, |site| {
    let id = site.approved(MAC).await;
    let token = site.token(MAC).await.expect("an installer");
    let none = |status: &'static str, reason: &'static str| (status, reason);
    for (status, reason) in [none("progress", "MISMATCH"), none("complete", "MISMATCH"), none("failed", "MISMATCH")] {
        let told = site.says(&token, MAC, status, json!({})).await;
        assert_eq!(told, (false, "pending".to_owned(), reason.to_owned()), "{status}");
    }
    assert_eq!(site.says(&token, MAC, "started", json!({})).await, (true, "installing".to_owned(), String::new()));
    assert_eq!(site.says(&token, MAC, "started", json!({})).await.2, "DUPLICATE");
    for (percent, counts) in [(10, true), (40, true), (39, false), (40, true), (100, true)] {
        let told = site.says(&token, MAC, "progress", json!({ "installation_progress": percent })).await;
        assert_eq!(told.0, counts, "{percent}");
    }
    assert_eq!(site.node(&id).await["install_progress"], 100);
    assert_eq!(site.says(&token, MAC, "complete", json!({})).await.1, "installed");
    for status in ["started", "progress", "complete", "failed"] {
        let told = site.says(&token, MAC, status, json!({})).await;
        assert_eq!(told, (false, "installed".to_owned(), "ORDER_CLOSED".to_owned()), "{status}");
    }
    assert_eq!(site.moves(&id).await.len(), 4, "progress is no move");
});

on_both!(the_third_failure_is_the_last_and_each_counts_once, |site| {
    let (id, mut token) = site.installing(MAC).await;
    for attempt in 1..=3 {
        let error = json!({ "installation_error": format!("disk {attempt} not found") });
        // the same, many times at once: one counts
        let said = join_all((0..8).map(|_| site.says(&token, MAC, "failed", error.clone()))).await;
        assert_eq!(said.iter().filter(|s| s.0).count(), 1, "{said:?}");
        let node = site.node(&id).await;
        assert_eq!(node["install_attempts"], attempt);
        assert_eq!(node["last_install_error"], format!("disk {attempt} not found"));
        assert_eq!(node["state"], if attempt < 3 { "installing" } else { "install_failed" });
        if attempt < 3 {
            let old = token.clone();
            token = site.token(MAC).await.expect("the installer again");
            assert_ne!(old, token, "a token of its own for each attempt");
            assert_eq!(site.says(&old, MAC, "complete", json!({})).await.2, "ATTEMPT_ENDED");
            assert!(site.says(&token, MAC, "started", json!({})).await.0);
            assert_eq!(site.node(&id).await["install_attempts"], attempt, "the counter stays");
        }
    }
    assert_eq!(site.token(MAC).await, None, "no installer any more");
    let row = &site.history(&id).await[0];
    assert_eq!(row["from_state"], "installing");
    assert_eq!((row["to_state"].as_str(), row["triggered_by"].as_str()), (Some("install_failed"), Some("node_report")));
    assert_eq!(
        (&row["user_id"], &row["metadata"]),
        (&Value::Null, &json!({ "error": "disk 3 not found", "attempt": 3 }))
    );
    assert_eq!(site.moves(&id).await.iter().filter(|m| m.1 == "install_failed").count(), 1);
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_one_nodes_and_one_attempts() {
    let site = crate::site::Site::new().await;
    let other = "52:54:00:4d:59:02";
    let ((_, token), (_, others)) = (site.installing(MAC).await, site.installing(other).await);
    let body = json!({ "mac_address": MAC, "installation_status": "complete" });
    for bad in [others.as_str(), "mwr_x", "forged", &token[..token.len() - 1], &format!("{token}0")] {
        site.report(Some(bad), &body).await.refused(401, "REPORT_TOKEN_INVALID");
    }
    let mut in_body = body.clone();
    in_body["token"] = others.as_str().into();
    site.report(None, &in_body).await.refused(401, "REPORT_TOKEN_INVALID");
    // without one, facts only
    let told = site
        .report(None, &json!({ "mac_address": MAC, "installation_status": "complete", "hostname": "web-1" }))
        .await
        .ok();
    assert_eq!(told, json!({ "applied": false, "state": "installing", "reason": "NO_TOKEN" }));
    assert_eq!(site.node(MAC).await["hostname"], "web-1");
    // an operator's token is no machine's
    site.report(Some(&site.http.token), &body).await.refused(401, "REPORT_TOKEN_INVALID");
    assert_eq!(site.state(MAC).await, "installing");
    in_body["token"] = token.as_str().into();
    assert_eq!(site.report(None, &in_body).await.ok()["state"], "installed");
    let audit = site.http.get("/api/v1/audit?filter=reason=REPORT_TOKEN_INVALID").await.ok();
    assert!(audit["entries"].as_array().is_some_and(|e| !e.is_empty()), "{audit}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_makes_no_sense_is_refused_whole() {
    let site = crate::site::Site::new().await;
    let (id, token) = site.installing(MAC).await;
    let before = site.node(&id).await;
    for (body, status) in [
        (json!({ "mac_address": MAC, "installation_status": "melted" }), 400),
        (json!({ "mac_address": MAC, "installation_status": "progress", "installation_progress": 101 }), 400),
        (json!({ "mac_address": MAC, "installation_status": "progress", "installation_progress": -1 }), 400),
        (json!({ "mac_address": "nobody" }), 400),
        (json!({ "installation_status": "complete" }), 400),
        (json!({ "mac_address": "52:54:00:4d:59:77", "installation_status": "started" }), 404),
        (json!([1, 2]), 400),
        (json!({ "mac_address": MAC, "log_lines": vec!["x"; 1000] }), 400),
    ] {
        let answer = site.report(Some(&token), &body).await;
        assert_eq!(answer.status(), status, "{body}: {}", answer.text());
    }
    let mut after = site.node(&id).await;
    after["last_seen"] = before["last_seen"].clone();
    assert_eq!(after, before, "nothing was left behind");
    site.http.get("/api/v1/nodes/52:54:00:4d:59:77").await.refused(404, "BOOT_NODE_NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_boot_in_the_middle_ends_the_attempt() {
    let site = crate::site::Site::new().await;
    let (id, first) = site.installing(MAC).await;
    let second = site.token(MAC).await.expect("the next attempt");
    assert_eq!(site.node(&id).await["install_attempts"], 1);
    assert_eq!(site.token(MAC).await.as_ref(), Some(&second), "asked again before it began: the same attempt");
    assert_eq!(site.says(&first, MAC, "complete", json!({})).await.2, "ATTEMPT_ENDED");
    site.says(&second, MAC, "started", json!({})).await;
    let third = site.token(MAC).await.expect("the last attempt");
    site.says(&third, MAC, "started", json!({})).await;
    assert_eq!(site.token(MAC).await, None);
    assert_eq!(site.state(&id).await, "install_failed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_installers_lines_and_the_way_of_one_node_are_kept() {
    let site = crate::site::Site::new().await;
    let (id, token) = site.installing(MAC).await;
    let more = json!({ "installation_progress": 5, "log_lines": ["writing /dev/vda", "a\u{1b}[31mb"] });
    site.says(&token, MAC, "progress", more).await;
    let tail = site.node(&id).await["order"]["log_tail"].as_str().expect("lines").to_owned();
    assert_eq!(tail, "writing /dev/vda\na[31mb\n");
    let path = format!("/api/v1/nodes/{id}/installation-status");
    let bearer = format!("Bearer {token}");
    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    let told = site.http.send("POST", &path, &headers, br#"{"installation_status":"complete"}"#).await.ok();
    assert_eq!((told["applied"].as_bool(), told["state"].as_str()), (Some(true), Some("installed")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_is_promoted_needs_nobody_to_verify() {
    let site = crate::site::Site::new().await;
    site.script(&format!("mac={MAC}")).await;
    site.patch(MAC, &json!({ "workflow_id": "debian", "group": "promoted" })).await.ok();
    let id = site.moved(MAC, "pending").await["id"].as_str().expect("an id").to_owned();
    let token = site.token(MAC).await.expect("an installer");
    site.says(&token, MAC, "started", json!({})).await;
    assert_eq!(site.says(&token, MAC, "complete", json!({})).await.1, "active");
    let last: Vec<_> = site.moves(&id).await.into_iter().rev().take(2).map(|m| (m.1, m.2)).collect();
    let expected = [("active", "system"), ("installed", "node_report")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(last, expected);
}

on_both!(a_report_with_a_forged_token_is_on_record, |site| {
    site.installing(MAC).await;
    let audit = || async {
        let entries = site.http.get("/api/v1/audit?filter=reason=REPORT_TOKEN_INVALID").await.ok();
        entries["entries"].as_array().expect("entries").clone()
    };
    assert_eq!(audit().await, Vec::<serde_json::Value>::new());
    let body = json!({ "mac_address": MAC, "installation_status": "complete" });
    site.report(Some("mwr_forged"), &body).await.refused(401, "REPORT_TOKEN_INVALID");
    let told = audit().await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0]["call"], "report", "{told:?}");
    assert!(!told[0].to_string().contains("mwr_forged"), "what was shown is not kept: {told:?}");
});
