//! Ten states, their moves, and who makes them.

use crate::on_both;
use crate::site::{MAC, until};
use domain::boot_node::BootState;
use domain::lifecycle::{Owner, State as _, allowed_next};
use serde_json::{Value, json};

on_both!(from_the_first_boot_to_the_last_day, |site| {
    site.script(&format!("mac={MAC}&serial=S1")).await;
    assert_eq!(site.state(MAC).await, "discovered");
    // nothing is installed with nothing
    site.set(MAC, &json!({ "state": "pending" })).await.refused(409, "WORKFLOW_MISSING");
    site.patch(MAC, &json!({ "workflow_id": "nobody's" })).await.refused(404, "WORKFLOW_NOT_FOUND");
    let id = site.active(MAC).await;
    site.moved(&id, "reprovision").await;
    site.moved(&id, "pending").await;
    let token = site.token(MAC).await.expect("an installer again");
    site.says(&token, MAC, "started", json!({})).await;
    site.says(&token, MAC, "complete", json!({})).await;
    site.moved(&id, "active").await;
    site.moved(&id, "migrating").await;
    site.moved(&id, "active").await;
    site.moved(&id, "deprovisioning").await;
    let token = site.token(MAC).await.expect("an eraser");
    site.says(&token, MAC, "started", json!({})).await;
    assert_eq!(site.says(&token, MAC, "complete", erased()).await.1, "retired");
    let moves = site.moves(&id).await;
    let words: Vec<(&str, &str)> = moves.iter().map(|(_, to, by)| (to.as_str(), by.as_str())).collect();
    let install = [("installing", "node_report"), ("installed", "node_report"), ("active", "admin")];
    let expected: Vec<(&str, &str)> = [("discovered", "node_report"), ("pending", "admin")]
        .into_iter()
        .chain(install)
        .chain([("reprovision", "admin"), ("pending", "admin")])
        .chain(install)
        .chain([("migrating", "admin"), ("active", "admin"), ("deprovisioning", "admin"), ("retired", "system")])
        .collect();
    assert_eq!(words, expected);
    let last = &site.history(&id).await[0];
    assert_eq!(last["metadata"]["evidence"]["disks"][0]["method"], "overwrite", "{last}");
    // its answer was lost on the way, and it says so again
    let again = site.says(&token, MAC, "complete", erased()).await;
    assert_eq!(again, (false, "retired".to_owned(), "ORDER_CLOSED".to_owned()));
    // the card may come again, as another node
    site.script(&format!("mac={MAC}")).await;
    assert_ne!(site.node(MAC).await["id"], Value::from(id));
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_other_move_is_refused_and_names_those_that_are_not() {
    let site = crate::site::Site::new().await;
    for (n, state) in BootState::ALL.iter().enumerate() {
        for (m, to) in BootState::ALL.iter().enumerate() {
            let mac = format!("52:54:00:00:{n:02x}:{m:02x}");
            let id = brought_to(&site, &mac, *state).await;
            let body = json!({ "state": to.as_str(), "force": true, "comment": "tried" });
            let answer = site.set(&id, &body).await;
            let allowed = allowed_next(Some(*state), Owner::Operator);
            if allowed.contains(to) {
                assert_eq!(answer.ok()["state"], to.as_str(), "{state} -> {to}");
            } else {
                let names: Vec<&str> = allowed.iter().map(|s| s.as_str()).collect();
                assert_eq!(answer.status(), 409, "{state} -> {to}: {}", answer.text());
                assert_eq!(answer.json()["error"]["allowed"], json!(names), "{state} -> {to}");
                assert_eq!(site.state(&id).await, state.as_str());
            }
        }
    }
}

/// A node that has come to a state by the ways there are.
async fn brought_to(site: &crate::site::Site, mac: &str, state: BootState) -> String {
    match state {
        BootState::Discovered => {
            site.script(&format!("mac={mac}")).await;
            site.patch(mac, &json!({ "workflow_id": "debian" })).await.ok()["id"].as_str().expect("an id").to_owned()
        }
        BootState::Pending => site.approved(mac).await,
        BootState::Installing => site.installing(mac).await.0,
        BootState::InstallFailed => {
            let (id, mut token) = site.installing(mac).await;
            for _ in 0..3 {
                site.says(&token, mac, "failed", json!({ "installation_error": "no disk" })).await;
                token = site.token(mac).await.unwrap_or_default();
                site.report(Some(&token), &json!({ "mac_address": mac, "installation_status": "started" })).await;
            }
            id
        }
        BootState::Installed => {
            let (id, token) = site.installing(mac).await;
            site.says(&token, mac, "complete", json!({})).await;
            id
        }
        BootState::Active => site.active(mac).await,
        BootState::Reprovision | BootState::Deprovisioning | BootState::Migrating | BootState::Retired => {
            let id = site.active(mac).await;
            site.moved(&id, state.as_str()).await;
            id
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_words_are_malformed_and_leave_nothing() {
    let site = crate::site::Site::new().await;
    let id = site.approved(MAC).await;
    let error = site.set(&id, &json!({ "state": "resting" })).await.refused(400, "INVALID_FIELD");
    assert_eq!(error["allowed"].as_array().map(Vec::len), Some(10), "{error}");
    site.set("btn_nobody", &json!({ "state": "active" })).await.refused(404, "BOOT_NODE_NOT_FOUND");
    site.http.post("/api/v1/nodes", &json!({ "mac_address": "card" })).await.refused(400, "INVALID_FIELD");
    site.http.post("/api/v1/nodes", &json!({ "mac_address": "ff:ff:ff:ff:ff:ff" })).await.refused(400, "INVALID_FIELD");
    site.http.post("/api/v1/nodes", &json!({ "mac_address": MAC })).await.refused(409, "IDENTITY_TAKEN");
    assert_eq!(site.state(&id).await, "pending");
}

on_both!(a_reset_needs_force_and_another_workflow_or_a_word, |site| {
    let id = brought_to(&site, MAC, BootState::InstallFailed).await;
    let node = site.node(&id).await;
    assert_eq!((node["state"].as_str(), node["install_attempts"].as_i64()), (Some("install_failed"), Some(3)));
    assert_eq!(node["last_install_error"], "no disk");
    let refused = site.set(&id, &json!({ "state": "pending" })).await.refused(409, "FORCE_NEEDED");
    assert_eq!(refused["allowed"], json!(["pending", "retired"]));
    site.set(&id, &json!({ "state": "pending", "force": true })).await.refused(409, "FORCE_NEEDED");
    site.patch(&id, &json!({ "workflow_id": "other" })).await.ok();
    site.set(&id, &json!({ "state": "pending" })).await.refused(409, "FORCE_NEEDED");
    let reset = site.set(&id, &json!({ "state": "pending", "force": true })).await.ok();
    assert_eq!((reset["install_attempts"].as_i64(), &reset["last_install_error"]), (Some(0), &Value::Null));
    assert_eq!(reset["order"]["workflow_id"], "other");
    assert!(site.token(MAC).await.is_some(), "it is in the queue again");
    let row = &site.history(&id).await[0];
    assert_eq!((row["triggered_by"].as_str(), row["user_id"].as_str()), (Some("admin"), Some("tester")), "{row}");
    assert_eq!(row["metadata"]["force"], true, "{row}");
    // force opens no other door
    site.set(&id, &json!({ "state": "active", "force": true })).await.refused(409, "ILLEGAL_TRANSITION");
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_in_use_keeps_its_boot_node() {
    let site = crate::site::Site::new().await;
    let id = site.active(MAC).await;
    let machine = site.node(&id).await["machine_id"].as_str().expect("a machine").to_owned();
    // a run that joins it to a cluster puts it into service
    let machine_path = format!("/api/v1/machines/{machine}");
    let member = json!({ "spec": { "target_cluster_ref": "cluster-a" } });
    site.http.patch(&machine_path, &member).await.ok();
    let run = json!({ "machine_id": machine, "type": "REPAVE", "request_id": "r1" });
    site.http.post("/api/v1/runs", &run).await.ok();
    until("it is in service", || async { site.http.get(&machine_path).await.ok()["status"]["phase"] == "IN_SERVICE" })
        .await;
    // nor is it out of use by being unlinked, or linked elsewhere
    let idle =
        site.http.post("/api/v1/machines", &json!({ "spec": { "provider": "sim", "serial_number": "I-1" } })).await;
    let idle = idle.ok()["machine_id"].as_str().expect("a machine").to_owned();
    for other in ["", &idle] {
        site.patch(&id, &json!({ "machine_id": other })).await.refused(409, "MACHINE_IN_USE");
    }
    for state in ["reprovision", "deprovisioning", "retired"] {
        let error = site.set(&id, &json!({ "state": state, "force": true })).await.refused(409, "MACHINE_IN_USE");
        assert_eq!(error["details"]["machine_id"], machine.as_str(), "{error}");
    }
    site.http.send("DELETE", &format!("/api/v1/nodes/{id}"), &[], b"").await.refused(409, "MACHINE_IN_USE");
    assert_eq!(site.state(&id).await, "active");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_are_moved_each_by_itself() {
    let site = crate::site::Site::new().await;
    let (a, b) = (site.approved("52:54:00:00:00:01").await, site.active("52:54:00:00:00:02").await);
    let body = json!({ "ids": [a, "btn_nobody", b], "state": "reprovision" });
    let results = site.http.post("/api/v1/nodes:setStates", &body).await.ok()["results"].clone();
    let told = |n: usize| (results[n]["ok"].as_bool(), results[n]["reason"].as_str());
    assert_eq!(told(0), (Some(false), Some("ILLEGAL_TRANSITION")), "{results}");
    assert_eq!(results[0]["allowed"], json!(["retired"]), "{results}");
    assert_eq!(told(1), (Some(false), Some("BOOT_NODE_NOT_FOUND")), "{results}");
    assert_eq!(told(2), (Some(true), Some("")), "{results}");
    assert_eq!((site.state(&a).await, site.state(&b).await), ("pending".to_owned(), "reprovision".to_owned()));
    site.http
        .post("/api/v1/nodes:setStates", &json!({ "ids": [], "state": "active" }))
        .await
        .refused(400, "INVALID_FIELD");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_ends_with_another_card() {
    let site = crate::site::Site::new().await;
    site.script(&format!("mac={MAC}&serial=S-1")).await;
    let id = site.active(MAC).await;
    let new = "52:54:00:4d:59:99";
    let body = json!({ "state": "active", "mac_address": new });
    let elsewhere = json!({ "state": "reprovision", "mac_address": new });
    site.set(&id, &elsewhere).await.refused(400, "INVALID_FIELD");
    site.moved(&id, "migrating").await;
    let node = site.set(&id, &body).await.ok();
    assert_eq!((node["mac_address"].as_str(), node["state"].as_str()), (Some(new), Some("active")));
    assert_eq!(node["serial_number"], "", "the old hardware's is not the new one's");
    site.script(&format!("mac={new}&serial=S-2")).await;
    assert_eq!(site.node(new).await["serial_number"], "S-2");
    assert_eq!(site.node(new).await["id"], Value::from(id));
}

/// What our installer says of a disk that it has overwritten.
pub fn erased() -> Value {
    json!({ "evidence": { "disks": [{
        "disk": "vda", "method": "overwrite", "sanitize": [], "ranges": [{ "from": 0, "bytes": 1024 }],
        "samples": [{ "offset": 0, "zero": true }], "verified": true,
    }] } })
}

on_both!(an_erasure_is_our_own_installers_and_proves_itself_or_has_failed, |site| {
    let id = site.active(MAC).await;
    let machine = site.node(&id).await["machine_id"].as_str().expect("a machine").to_owned();
    let intervention = async || {
        let machine = site.http.get(&format!("/api/v1/machines/{machine}")).await.ok();
        let conditions = machine["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "NeedsIntervention" && c["status"] == true)
    };
    site.moved(&id, "deprovisioning").await;
    let script = site.script(&format!("mac={MAC}")).await;
    assert!(script.contains("/images/installer-vmlinuz") && !script.contains("/images/vmlinuz"), "{script}");
    let mut unproven = erased();
    unproven["evidence"]["disks"][0]["samples"] = json!([]);
    for (attempt, evidence) in [(1, json!({})), (2, unproven), (3, json!({ "evidence": "all gone" }))] {
        let token = site.token(MAC).await.expect("an eraser");
        site.says(&token, MAC, "started", json!({})).await;
        assert_eq!(site.says(&token, MAC, "complete", evidence).await.1, "deprovisioning");
        let node = site.node(&id).await;
        assert_eq!(node["install_attempts"], attempt);
        assert!(node["last_install_error"].as_str().is_some_and(|e| e.contains("does not prove it")), "{node}");
    }
    assert_eq!(site.token(MAC).await, None, "as often as is allowed");
    assert!(intervention().await, "the machine says it, too");
    let log = site.node(&id).await["order"]["log_tail"].as_str().expect("lines").to_owned();
    for attempt in 1..=3 {
        assert!(log.contains(&format!("[attempt {attempt} has failed: ")), "{log}");
    }
    // and again, once the disk was looked at
    let node = site.moved(&id, "deprovisioning").await;
    assert_eq!((node["install_attempts"].as_i64(), &node["last_install_error"]), (Some(0), &Value::Null));
    assert!(!intervention().await);
    let findings = site.http.get("/api/v1/admin/findings").await.ok();
    assert_eq!(findings["findings"], json!([]), "what was found is settled");
    let token = site.token(MAC).await.expect("an eraser again");
    site.says(&token, MAC, "started", json!({})).await;
    assert_eq!(site.says(&token, MAC, "complete", erased()).await.1, "retired");
});

on_both!(a_failed_installation_is_the_machines_condition_until_it_is_reset, |site| {
    let id = brought_to(&site, MAC, BootState::InstallFailed).await;
    let machine = site.node(&id).await["machine_id"].as_str().expect("a machine").to_owned();
    let conditions = async || {
        let machine = site.http.get(&format!("/api/v1/machines/{machine}")).await.ok();
        let all = machine["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["type"] == "NeedsIntervention")
    };
    let condition = conditions().await.expect("a condition");
    assert_eq!((&condition["status"], &condition["reason"]), (&json!(true), &json!("InstallFailed")), "{condition}");
    site.set(&id, &json!({ "state": "pending", "force": true, "comment": "disk replaced" })).await.ok();
    assert_eq!(conditions().await.expect("a condition")["status"], json!(false));
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_approved_machine_is_does_not_change_by_what_anybody_says() {
    let site = crate::site::Site::new().await;
    site.script(&format!("mac={MAC}&serial=S-1")).await;
    let id = site.approved(MAC).await;
    // the card in another machine: no installer follows it, and somebody is told
    let script = site.script(&format!("mac={MAC}&serial=S-2")).await;
    assert!(script.contains("S-2, not S-1") && !script.contains("token"), "{script}");
    let findings = site.http.get("/api/v1/admin/findings").await.ok();
    assert_eq!(findings["findings"][0]["kind"], "IDENTITY_CONFLICT", "{findings}");
    site.script(&format!("mac={MAC}&arch=x86_64")).await;
    site.report(None, &json!({ "mac_address": MAC, "serial_number": "S-3", "hostname": "web-7" })).await.ok();
    let node = site.node(&id).await;
    assert_eq!((&node["serial_number"], &node["arch"]), (&json!("S-1"), &json!("x86_64")), "{node}");
    assert_eq!(node["hostname"], "web-7", "what it is called is no proof of anything");
    // its installer, which has shown its token, is the machine
    let token = site.token(MAC).await.expect("an installer");
    site.says(&token, MAC, "started", json!({ "serial_number": "S-4" })).await;
    assert_eq!(site.node(&id).await["serial_number"], "S-4");
}
