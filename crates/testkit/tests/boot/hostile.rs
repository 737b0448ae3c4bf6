//! What machines, and those that pretend to be one, send to the door: none of it brings the server down, is kept without
//! bounds, reaches another machine or becomes a command. (Random inputs are the suite `fuzz`'s.)

use crate::on_both;
use crate::site::{MAC, Site};
use proto::millwright::v1::ListBootNodesRequest;
use proto::millwright::v1::boot_service_client::BootServiceClient;
use serde_json::{Value, json};

const OTHER: &str = "52:54:00:4d:59:02";

/// All but when it was last heard of.
async fn known(site: &Site, id: &str) -> Value {
    let mut node = site.node(id).await;
    node["last_seen"] = Value::Null;
    node
}

on_both!(a_token_of_the_last_installation_says_nothing_in_this_one, |site| {
    let (id, replayed) = site.installing(MAC).await;
    assert_eq!(site.says(&replayed, MAC, "complete", json!({})).await.1, "installed");
    for state in ["active", "reprovision", "pending"] {
        site.moved(&id, state).await;
    }
    let token = site.token(MAC).await.expect("a token");
    assert!(site.says(&token, MAC, "started", json!({})).await.0);
    let before = known(&site, &id).await;
    for status in ["started", "progress", "complete", "failed"] {
        let more = json!({ "installation_progress": 99, "installation_error": "x", "log_lines": ["from the past"] });
        let told = site.says(&replayed, MAC, status, more).await;
        assert_eq!(told, (false, "installing".to_owned(), "ORDER_CLOSED".to_owned()), "{status}");
    }
    assert_eq!(known(&site, &id).await, before);
    let bearer = format!("Bearer {replayed}");
    for path in ["/api/v1/boot/order", "/api/v1/boot/seed/user-data"] {
        site.http.send("GET", path, &[("Authorization", &bearer)], b"").await.refused(409, "ILLEGAL_TRANSITION");
    }
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_for_another_machine_is_refused_on_record_and_changes_neither() {
    let site = Site::new().await;
    let ((a, token), (b, _)) = (site.installing(MAC).await, site.installing(OTHER).await);
    let before = (known(&site, &a).await, known(&site, &b).await);
    for status in ["started", "progress", "complete", "failed"] {
        let body =
            json!({ "mac_address": OTHER, "installation_status": status, "hostname": "mine", "facts": { "a": 1 } });
        site.report(Some(&token), &body).await.refused(401, "REPORT_TOKEN_INVALID");
        let path = format!("/api/v1/nodes/{b}/installation-status");
        let bearer = format!("Bearer {token}");
        let answer = site.http.send("POST", &path, &[("Authorization", &bearer)], body.to_string().as_bytes()).await;
        answer.refused(401, "REPORT_TOKEN_INVALID");
    }
    assert_eq!((known(&site, &a).await, known(&site, &b).await), before);
    let audit = site.http.get("/api/v1/audit?filter=reason=REPORT_TOKEN_INVALID").await.ok();
    assert!(audit["entries"].as_array().is_some_and(|entries| !entries.is_empty()), "{audit}");
}

on_both!(what_is_too_large_odd_or_for_nobody_is_told_so, |site| {
    let (id, token) = site.installing(MAC).await;
    let before = known(&site, &id).await;
    let huge = json!({ "mac_address": MAC, "installation_status": "complete", "hostname": "x".repeat(300_000) });
    assert_eq!(site.report(Some(&token), &huge).await.status(), 413);
    let stranger = json!({ "mac_address": "52:54:00:4d:59:77", "installation_status": "started" });
    site.report(Some(&token), &stranger).await.refused(404, "BOOT_NODE_NOT_FOUND");
    for path in ["%00", "%0a", "..%2f..", "nobody", "52:54:00:4d:59:77", &"n".repeat(4000)] {
        let path = format!("/api/v1/nodes/{path}/installation-status");
        let status = site.http.send("POST", &path, &[("Authorization", "-")], b"{}").await.status();
        assert!([400, 404].contains(&status), "{path}: {status}");
    }
    for body in
        [&b"{\"mac_address\":\"x\",\"mac_address\":\"y\"}"[..], b"{\"\xff\":1}", b"{\"a\":\"\xff\"}", b"", b"null"]
    {
        let bearer = format!("Bearer {token}");
        site.http
            .send("POST", "/api/v1/report", &[("Authorization", &bearer)], body)
            .await
            .refused(400, "INVALID_FIELD");
    }
    // a list is read by the order of its items, if one lets it be
    let list = json!([MAC, null, null, null, null, null, null, "complete"]);
    assert!(site.report(Some(&token), &list).await.malformed().contains("object"));
    for query in ["mac=%00", &format!("mac={MAC}%00"), &format!("mac={MAC}&mac=x&serial={}", "x".repeat(9000))] {
        let status = site.boot(query).await.status();
        assert!([200, 400].contains(&status), "{query:.60}: {status}");
    }
    let mut after = known(&site, &id).await;
    // the last question was one after all, in the middle of an installation
    assert_eq!(after["serial_number"].as_str().map(str::len), Some(128));
    assert_eq!(after["install_attempts"], 1, "which has ended that attempt");
    for field in ["serial_number", "install_attempts", "last_install_error", "order", "install_progress", "version"] {
        after[field] = before[field].clone();
    }
    assert_eq!(after, before);
});

on_both!(an_error_is_one_line_of_text_whatever_was_sent, |site| {
    let (id, token) = site.installing(MAC).await;
    let error = format!("no \u{0}disk\n\u{1b}[31mred{}", "x".repeat(5000));
    let more =
        json!({ "installation_error": error, "log_lines": ["a\u{0}b\nc", "\u{7f}\u{85}"], "hostname": "a\u{0}b" });
    assert!(site.says(&token, MAC, "failed", more).await.0);
    let node = site.node(&id).await;
    let kept = node["last_install_error"].as_str().expect("an error");
    assert!(kept.starts_with("no  disk  [31mred") && kept.len() <= 1024 + "…".len(), "{kept}");
    assert_eq!(node["order"]["log_tail"], format!("abc\n\n[attempt 1 has failed: {kept}]\n"));
    assert_eq!(node["hostname"], "ab");
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_was_found_in_a_machine_people_can_read_it_and_all_others() {
    let site = Site::new().await;
    site.script(&format!("mac={MAC}")).await;
    let mut deep = json!(1);
    for _ in 0..100 {
        deep = json!({ "a": deep });
    }
    let message = site.report(None, &json!({ "mac_address": MAC, "facts": deep })).await.malformed();
    assert!(message.contains("facts") && message.contains("levels"), "{message}");
    // as deep as is taken, and as many small numbers as fit, on as many machines as make it large
    let mut deep = json!({});
    for level in 1..16 {
        deep = if level % 2 == 0 { json!([deep]) } else { json!({ "a": deep }) };
    }
    site.report(None, &json!({ "mac_address": MAC, "facts": { "a": deep["a"] } })).await.ok();
    assert!(site.node(MAC).await["inventory"].is_object());
    let dense = json!({ "numbers": vec![0; 30_000] });
    for n in 0..40 {
        let mac = format!("52:54:00:4d:5a:{n:02x}");
        site.script(&format!("mac={mac}")).await;
        site.report(None, &json!({ "mac_address": mac, "facts": dense })).await.ok();
    }
    // by gRPC, whose clients take four megabytes in one message unless they are told otherwise
    let mut nodes = BootServiceClient::new(site.server.door_with(Some(&site.http.token)).await);
    let (mut seen, mut request) = (0, ListBootNodesRequest { page_size: 1000, ..ListBootNodesRequest::default() });
    loop {
        let page = nodes.list_boot_nodes(request.clone()).await.expect("a page that fits").into_inner();
        seen += page.nodes.len();
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, 41);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_claim_becomes_an_option_of_a_kernel_or_a_command_of_ipxe() {
    let site = Site::new().await;
    for (n, cmdline) in ["quiet ${serial}", "host=${hostname:shell}", "\"${vendor}\""].into_iter().enumerate() {
        let bad = json!({ "id": format!("bad-{n}"), "kernel": "vmlinuz", "cmdline": cmdline });
        assert!(site.http.post("/api/v1/workflows", &bad).await.malformed().contains("cmdline"), "{cmdline}");
    }
    let named = json!({ "id": "named", "kernel": "vmlinuz", "cmdline": "s=${serial} v=${vendor}" });
    site.http.post("/api/v1/workflows", &named).await.ok();
    let hostile = ["%26%26", "init=/bin/sh", "x%20%7C%7C%20shell", "%24%7Bmac%7D", "%23", ";", "A/B"];
    for (n, claim) in hostile.into_iter().enumerate() {
        let mac = format!("52:54:00:4d:60:{n:02x}");
        site.script(&format!("mac={mac}&serial={claim}&vendor={claim}")).await;
        site.patch(&mac, &json!({ "workflow_id": "named" })).await.ok();
        site.moved(&mac, "pending").await;
        let script = site.script(&format!("mac={mac}")).await;
        assert!(!script.contains("kernel") && script.contains("sleep"), "{claim}: {script}");
    }
    site.script(&format!("mac={MAC}&serial=S-1&vendor=A.B")).await;
    site.patch(MAC, &json!({ "workflow_id": "named" })).await.ok();
    site.moved(MAC, "pending").await;
    let script = site.script(&format!("mac={MAC}")).await;
    assert!(script.contains(" s=S-1 v=A.B millwright.url="), "{script}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_a_name_to_cloud_init_too() {
    let site = Site::new().await;
    site.approved(MAC).await;
    let token = site.token(MAC).await.expect("a token");
    let bearer = format!("Bearer {token}");
    for (said, name) in
        [("null", "null"), ("1.5", "1.5"), ("-", "-"), ("a: b\n#c", "abc"), ("[x]", "x"), ("\"y\\", "y")]
    {
        site.report(None, &json!({ "mac_address": MAC, "hostname": said })).await.ok();
        let seed =
            site.http.send("GET", "/api/v1/boot/seed/meta-data", &[("Authorization", &bearer)], b"").await.text();
        let read: Value = serde_yaml_ng::from_str(&seed).unwrap_or_else(|e| panic!("{e}: {seed}"));
        assert_eq!(read["local-hostname"], name, "{seed}");
        assert_eq!(read.as_object().map(|o| o.len()), Some(2), "{seed}");
    }
}
