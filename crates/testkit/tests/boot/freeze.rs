//! The brake: while all automation is frozen no machine is given anything that writes to its disk.

use crate::on_both;
use crate::site::{MAC, Site};
use serde_json::{Value, json};

impl Site {
    async fn freeze(&self) {
        self.http.post("/api/v1/admin/freeze", &json!({ "reason": "power work" })).await.ok();
    }

    async fn unfreeze(&self) {
        self.http.post("/api/v1/admin/unfreeze", &json!({})).await.ok();
    }
}

on_both!(no_installer_and_no_eraser_is_handed_out, |site| {
    let id = site.approved(MAC).await;
    site.freeze().await;
    let script = site.script(&format!("mac={MAC}")).await;
    assert!(script.contains("frozen by tester") && script.contains("power work"), "on its console: {script}");
    assert!(!script.contains("token=") && !script.contains("kernel"), "{script}");
    assert_eq!(site.node(&id).await["order"]["offered_at"], Value::Null, "nothing was handed out");
    let why = site.http.get(&format!("/api/v1/why/{id}")).await.ok();
    assert!(why["waiting_for"].as_str().is_some_and(|on| on.contains("unfreeze")), "{why}");
    assert_eq!(why["deadline"], Value::Null, "nothing runs out: {why}");
    site.unfreeze().await;
    let token = site.token(MAC).await.expect("goes on");
    site.says(&token, MAC, "started", json!({})).await;
    // one that is under way goes on and is heard; a boot in its middle is not counted before the end of the freeze
    site.freeze().await;
    assert!(site.says(&token, MAC, "progress", json!({ "installation_progress": 5 })).await.0);
    assert_eq!(site.token(MAC).await, None);
    assert_eq!(site.node(&id).await["install_attempts"], 0);
    assert_eq!(site.says(&token, MAC, "complete", json!({})).await.1, "installed");
    site.moved(&id, "active").await;
    // people are not stopped; what they order waits
    site.moved(&id, "deprovisioning").await;
    assert_eq!(site.token(MAC).await, None, "no eraser");
    site.unfreeze().await;
    assert!(site.token(MAC).await.is_some());
});
