//! Workflows: made once, judged when they are made.

use crate::site::Site;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workflow_never_changes() {
    let site = Site::new().await;
    let workflow = json!({ "id": "w-1", "kernel": "vmlinuz", "image": "disk", "arch": "x86_64" });
    let made = site.http.post("/api/v1/workflows", &workflow).await.ok();
    assert_eq!((made["disk"].as_str(), &made["image_sha256"]), (Some("auto"), &serde_json::Value::Null));
    assert_eq!(site.http.post("/api/v1/workflows", &workflow).await.ok(), made, "the same again");
    let mut other = workflow.clone();
    other["cmdline"] = "quiet".into();
    site.http.post("/api/v1/workflows", &other).await.refused(409, "WORKFLOW_EXISTS");
    assert_eq!(site.http.get("/api/v1/workflows/w-1").await.ok(), made);
    let all = site.http.get("/api/v1/workflows").await.ok();
    assert_eq!(all["workflows"].as_array().map(Vec::len), Some(3));
    for (field, value) in
        [("cmdline", "${nobody}"), ("kernel", "../../etc/shadow"), ("arch", "vax"), ("boot_mode", "tape")]
    {
        let mut bad = json!({ "id": "bad", "kernel": "vmlinuz" });
        bad[field] = value.into();
        let message = site.http.post("/api/v1/workflows", &bad).await.malformed();
        assert!(message.contains(field) || message.contains(value), "{message}");
    }
    site.http.get("/api/v1/workflows/bad").await.refused(404, "WORKFLOW_NOT_FOUND");
}
