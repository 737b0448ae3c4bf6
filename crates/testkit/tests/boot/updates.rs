//! What a person may say about a boot node, and what not.

use crate::on_both;
use crate::site::MAC;
use serde_json::{Value, json};

on_both!(what_is_pending_keeps_a_workflow_and_what_is_retired_stays_as_it_is, |site| {
    let id = site.approved(MAC).await;
    site.patch(&id, &json!({ "workflow_id": "" })).await.refused(409, "WORKFLOW_MISSING");
    assert_eq!(site.node(&id).await["workflow_id"], "debian");
    site.patch(&id, &json!({ "workflow_id": "other" })).await.ok();
    site.moved(&id, "retired").await;
    let before = site.node(&id).await;
    for change in [json!({ "workflow_id": "debian" }), json!({ "hostname": "web-1" }), json!({ "group": "lab" })] {
        site.patch(&id, &change).await.refused(409, "ILLEGAL_TRANSITION");
    }
    assert_eq!(site.node(&id).await, before);
});

on_both!(a_proposal_can_be_rejected, |site| {
    let spec = json!({ "provider": "sim", "serial_number": "S-1" });
    site.http.post("/api/v1/machines", &json!({ "machine": { "machine_id": "rack-1", "spec": spec } })).await.ok();
    site.script(&format!("mac={MAC}&serial=S-1")).await;
    assert_eq!(site.node(MAC).await["proposed_machine_id"], "rack-1");
    site.patch(MAC, &json!({ "proposed_machine_id": "rack-2" })).await.refused(400, "INVALID_FIELD");
    let node = site.patch(MAC, &json!({ "proposed_machine_id": "" })).await.ok();
    assert_eq!((&node["proposed_machine_id"], &node["machine_id"]), (&Value::Null, &Value::Null));
    // saying the same again is no news
    site.script(&format!("mac={MAC}&serial=S-1")).await;
    assert_eq!(site.node(MAC).await["proposed_machine_id"], Value::Null);
    site.patch(MAC, &json!({ "workflow_id": "debian" })).await.ok();
    site.set(MAC, &json!({ "state": "pending", "link": true })).await.refused(409, "NOT_CONFIRMED");
});
