//! Network boot with the program itself: machines that boot and report by plain HTTP, as firmware and the installer do,
//! and a person at the command line.

use crate::process::until;
use crate::server::{Home, Server};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

const MAC: &str = "52:54:00:b0:07:01";

/// One request, one answer: status and body.
pub fn http(url: &str, method: &str, path: &str, token: Option<&str>, body: &[u8]) -> (u16, String) {
    let address = url.strip_prefix("http://").expect("an http URL");
    let mut stream = TcpStream::connect(address).expect("connects");
    let token = token.map_or(String::new(), |token| format!("authorization: Bearer {token}\r\n"));
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{token}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("sent");
    // one who is refused at once may have closed before all was sent
    drop(stream.write_all(body));
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer));
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{method} {path}: {answer:?}"));
    (head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status"), body.to_owned())
}

/// What a machine that boots is told.
fn script(url: &str, mac: &str) -> String {
    let query = format!("mac={mac}&uuid=4c4c4544-0051-3510-8052-b4c04f4a3101&serial=SN-{}&arch=x86_64", &mac[15..]);
    let (status, script) = http(url, "GET", &format!("/api/v1/boot?{query}"), None, b"");
    assert_eq!(status, 200, "{script}");
    assert!(script.starts_with("#!ipxe\n"), "{script}");
    script
}

fn token(script: &str) -> Option<String> {
    script.split_whitespace().find_map(|word| word.strip_prefix("millwright.token=")).map(str::to_owned)
}

fn report(url: &str, token: Option<&str>, mac: &str, status: &str, more: &Value) -> Value {
    let mut body = json!({ "mac_address": mac, "installation_status": status });
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    let (status, answer) = http(url, "POST", "/api/v1/report", token, body.to_string().as_bytes());
    assert_eq!(status, 200, "{answer}");
    serde_json::from_str(&answer).expect("JSON")
}

fn says(url: &str, token: &str, status: &str, more: &Value) -> (bool, String) {
    let answer = report(url, Some(token), MAC, status, more);
    (answer["applied"] == true, answer["state"].as_str().expect("a state").to_owned())
}

fn workflow(home: &Home, id: &str, more: &str) -> String {
    let text = format!("id: {id}\nname: {id}\nkernel: installer-vmlinuz\ninitrd: installer-initrd\n{more}");
    home.file(&format!("{id}.yaml"), &text).display().to_string()
}

/// The bytes that lie in the image store, whole and half added, as the file system has them.
fn stored(data: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(data.join("images/sha256")).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name != ".naming" && !name.starts_with(".unnamed-"));
    names.sort();
    names
}

fn sha256(path: &Path) -> String {
    let out = std::process::Command::new("sha256sum").arg(path).output().expect("coreutils");
    String::from_utf8_lossy(&out.stdout).split(' ').next().expect("a digest").to_owned()
}

fn state(server: &Server, node: &str) -> String {
    server.json(&["boot", "show", node])["state"].as_str().expect("a state").to_owned()
}

fn admin(server: &Server) -> String {
    std::fs::read_to_string(&server.token_file).expect("a token").trim().to_owned()
}

#[test]
fn a_machine_is_registered_approved_installed_and_verified() {
    let home = Home::new();
    let server = home.launch("data").start();
    server.run(&["boot", "show", MAC]).with(3).saying("no boot node");
    let registered = server.json(&["boot", "register", "52-54-00-B0-07-01", "--group", "lab", "--hostname", "web-7"]);
    let node = registered["id"].as_str().expect("an id").to_owned();
    assert_eq!((registered["mac_address"].as_str(), registered["state"].as_str()), (Some(MAC), Some("discovered")));
    // nothing says what with
    server.run(&["boot", "approve", &node]).with(4).saying("boot assign");
    server.run(&["boot", "approve", &node, "--workflow", "debian"]).with(3).saying("no workflow");
    server.ok(&["workflow", "create", "-f", &workflow(&home, "debian", "cmdline: quiet host=${hostname}")]);
    server.ok(&["boot", "approve", MAC, "--workflow", "debian"]);
    let shown = server.ok(&["boot", "show", &node]);
    for part in ["pending", "debian", "install", "web-7"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let script = script(&server.url, MAC);
    let token = token(&script).expect("an installer");
    assert!(script.contains(&format!("kernel {}/images/installer-vmlinuz", server.url)), "{script}");
    assert!(script.contains(&format!("millwright.url={}", server.url)) && script.contains("host=web-7"), "{script}");
    let (status, order) = http(&server.url, "GET", "/api/v1/boot/order", Some(&token), b"");
    assert!(status == 200 && order.contains("task='install'\n"), "{order}");
    // somebody waits at the command line while it installs
    let waiting = server.spawn(&["boot", "watch", &node]);
    assert_eq!(says(&server.url, &token, "started", &json!({})), (true, "installing".to_owned()));
    let lines = json!({ "installation_progress": 40, "log_lines": ["writing /dev/vda", "40 of 100 MiB"] });
    assert_eq!(says(&server.url, &token, "progress", &lines), (true, "installing".to_owned()));
    let shown = server.ok(&["boot", "show", MAC]);
    assert!(shown.contains("[############------------------]  40%") && shown.contains("40 of 100 MiB"), "{shown}");
    assert!(server.ok(&["boot", "list", "--filter", "state=installing"]).contains("40%"));
    assert_eq!(says(&server.url, &token, "complete", &json!({})), (true, "installed".to_owned()));
    let watched = waiting.end().with(0).out;
    assert!(watched.contains("installed"), "{watched}");
    // told again, and late
    assert_eq!(says(&server.url, &token, "complete", &json!({})), (false, "installed".to_owned()));
    server.ok(&["boot", "verify", &node]);
    assert_eq!(state(&server, MAC), "active");
    let history = server.json(&["boot", "history", &node]);
    let moves: Vec<(&str, &str)> = (history["data"].as_array().expect("rows").iter().rev())
        .map(|row| (row["to_state"].as_str().expect("a state"), row["triggered_by"].as_str().expect("a word")))
        .collect();
    assert_eq!(
        moves,
        [
            ("discovered", "admin"),
            ("pending", "admin"),
            ("installing", "node_report"),
            ("installed", "node_report"),
            ("active", "admin")
        ]
    );
    assert!(server.ok(&["why", &node]).contains("active"));
    // from here it is erased, and the record stays
    server.run(&["boot", "approve", &node, "--dry-run"]).with(4).saying("not yours");
    server.ok(&["boot", "erase", &node, "--comment", "goes back"]);
    let erasing = token_of(&server, MAC);
    assert_eq!(says(&server.url, &erasing, "started", &json!({})).1, "deprovisioning");
    let evidence = json!({ "evidence": { "disks": [{
        "disk": "vda", "method": "overwrite", "ranges": [{ "from": 0, "bytes": 512 }],
        "samples": [{ "offset": 0, "zero": true }], "verified": true,
    }] } });
    assert_eq!(says(&server.url, &erasing, "complete", &evidence), (true, "retired".to_owned()));
    let shown = server.json(&["boot", "show", &node]);
    assert_eq!(shown["order"]["evidence"]["disks"][0]["method"], "overwrite", "{shown}");
    server.terminate().with(0);
}

fn token_of(server: &Server, mac: &str) -> String {
    token(&script(&server.url, mac)).expect("an installer")
}

#[test]
fn an_installation_that_fails_three_times_waits_for_somebody_and_is_found() {
    let home = Home::new();
    let server = home.launch("data").start();
    for id in ["bad", "good"] {
        server.ok(&["workflow", "create", "-f", &workflow(&home, id, "")]);
    }
    script(&server.url, MAC);
    let approving = server.spawn(&["boot", "approve", MAC, "--workflow", "bad", "--wait"]);
    until("it is approved", || (state(&server, MAC) == "pending").then_some(()));
    for attempt in 1..=3 {
        let token = token_of(&server, MAC);
        says(&server.url, &token, "started", &json!({}));
        let error = json!({ "installation_error": format!("no disk {attempt}") });
        let expected = if attempt == 3 { "install_failed" } else { "installing" };
        assert_eq!(says(&server.url, &token, "failed", &error), (true, expected.to_owned()));
    }
    approving.end().with(1).saying("no disk 3");
    assert_eq!(token(&script(&server.url, MAC)), None, "no installer is served any more");
    let findings = server.json(&["finding", "list"]);
    let finding = &findings["findings"][0];
    assert_eq!((finding["kind"].as_str(), finding["state"].as_str()), (Some("INSTALL_FAILED"), Some("open")));
    let id = finding["id"].as_str().expect("an id");
    assert!(server.ok(&["why", id]).contains("install"), "why works for findings");
    server.ok(&["finding", "acknowledge", id, "--comment", "ticket 4711"]);
    assert!(server.ok(&["finding", "show", id]).contains("ticket 4711"));
    server.run(&["finding", "show", "fnd_none"]).with(3).saying("no finding");
    // the one that failed is still assigned
    server.run(&["boot", "approve", MAC]).with(4).saying("boot retry");
    server.run(&["boot", "retry", MAC]).with(4).saying("comment");
    server.ok(&["boot", "retry", MAC, "--workflow", "good"]);
    assert_eq!(state(&server, MAC), "pending");
    assert!(
        server.json(&["finding", "list"])["findings"].as_array().is_some_and(Vec::is_empty),
        "it is gone by itself"
    );
    let resolved = server.json(&["finding", "list", "--filter", "state=resolved"]);
    assert_eq!(resolved["findings"].as_array().map(Vec::len), Some(1));
    // several at once: each by itself
    server.ok(&["boot", "register", "52:54:00:b0:07:02"]);
    let ended = server.run(&["boot", "verify", MAC, "52:54:00:b0:07:02"]).with(4);
    assert_eq!(ended.out.matches("refused").count(), 2, "{}", ended.out);
    let retired = server.json(&["boot", "retire", MAC, "--comment", "scrapped"]);
    assert_eq!(state(&server, retired["id"].as_str().expect("an id")), "retired");
    server.run(&["boot", "show", MAC]).with(3).saying("no boot node");
    server.terminate().with(0);
}

// the server is gone in the middle of an installation, and comes back: the machine does not notice
#[test]
fn a_server_killed_in_the_middle_of_an_installation_takes_it_up_again() {
    let home = Home::new();
    let mut launch = home.launch("data");
    let server = launch.start_at_a_fixed_address();
    server.ok(&["workflow", "create", "-f", &workflow(&home, "debian", "")]);
    script(&server.url, MAC);
    server.ok(&["boot", "approve", MAC, "--workflow", "debian"]);
    let token = token_of(&server, MAC);
    assert_eq!(says(&server.url, &token, "started", &json!({})).1, "installing");
    assert!(says(&server.url, &token, "progress", &json!({ "installation_progress": 60 })).0);
    server.kill();
    let server = launch.start();
    let node = server.json(&["boot", "show", MAC]);
    assert_eq!((node["state"].as_str(), node["install_progress"].as_i64()), (Some("installing"), Some(60)));
    assert_eq!(node["order"]["attempt"], 1);
    let (status, order) = http(&server.url, "GET", "/api/v1/boot/order", Some(&token), b"");
    assert!(status == 200 && order.contains("attempt='1'"), "the token is still good: {order}");
    assert_eq!(
        says(&server.url, &token, "progress", &json!({ "installation_progress": 80 })),
        (true, "installing".into())
    );
    assert_eq!(says(&server.url, &token, "complete", &json!({})), (true, "installed".to_owned()));
    let history = server.json(&["boot", "history", MAC]);
    assert_eq!(history["data"].as_array().map(Vec::len), Some(4), "no move was lost or made twice: {history}");
    server.terminate().with(0);
}

#[test]
fn images_are_added_whole_or_not_at_all_and_freed_a_day_after_their_last_name() {
    let home = Home::new();
    let launch = home.launch("data").config("[netboot]\nimage_bytes_max = 3000000\n");
    let server = launch.start();
    let data = home.path("data");
    let file = home.path("disk.raw");
    let bytes: Vec<u8> = (0..2_500_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&file, &bytes).expect("written");
    let (path, digest) = (file.display().to_string(), sha256(&file));
    let added = server.ok(&["image", "add", &path, "--sha256", &digest]);
    assert!(added.contains("disk.raw added") && added.contains(&digest), "{added}");
    assert_eq!(stored(&data), [digest.as_str()]);
    assert_eq!(std::fs::read(data.join("images/sha256").join(&digest)).expect("read"), bytes);
    // what is served is what was added
    let (status, served) = http(&server.url, "GET", "/images/disk.raw", None, b"");
    assert_eq!((status, served.len()), (200, String::from_utf8_lossy(&bytes).len()));
    // another digest than said: by the command line, and by the server
    server
        .run(&["image", "add", &path, "--name", "other", "--sha256", &"0".repeat(64)])
        .with(4)
        .saying("nothing was sent");
    let secret = admin(&server);
    let wrong = format!("/api/v1/images/other?sha256={}", "0".repeat(64));
    let (status, said) = http(&server.url, "PUT", &wrong, Some(&secret), b"abc");
    assert!(status == 400 && said.contains("nothing was added"), "{status} {said}");
    // too large, badly named, by nobody, by somebody who may not
    let large = home.file("large.raw", &"x".repeat(3_000_001)).display().to_string();
    server.run(&["image", "add", &large]).with(1).saying("image_bytes_max");
    server.run(&["image", "add", &path, "--name", "a/b"]).with(2);
    server.run(&["image", "add", "/nowhere/disk.raw"]).with(2).saying("/nowhere/disk.raw");
    assert_eq!(http(&server.url, "PUT", "/api/v1/images/x", None, b"abc").0, 401);
    let operator = server.json(&["token", "create", "ops", "--role", "operator"]);
    let operator = operator["secret"].as_str().expect("a secret");
    let (status, said) = http(&server.url, "PUT", "/api/v1/images/x", Some(operator), b"abc");
    assert!(status == 403 && said.contains("ROLE_TOO_LOW"), "{status} {said}");
    // one who goes in the middle
    let mut gone = TcpStream::connect(server.url.strip_prefix("http://").expect("an http URL")).expect("connects");
    let head = format!("PUT /api/v1/images/x HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {secret}\r\n");
    gone.write_all(format!("{head}content-length: 2000000\r\n\r\n{}", "x".repeat(1_500_000)).as_bytes()).expect("sent");
    until("half of it is there", || (stored(&data).len() == 2).then_some(()));
    drop(gone);
    until("nothing came of any of these", || (stored(&data) == [digest.as_str()]).then_some(()));
    server.run(&["image", "show", "x"]).with(3);
    // a second name for the same bytes, and a name that comes to mean others
    server.ok(&["image", "add", &path, "--name", "copy.raw"]);
    let names = |server: &Server| server.ok(&["image", "list", "-o", "name"]);
    assert_eq!(names(&server), "copy.raw\ndisk.raw\n");
    server.ok(&["image", "remove", "disk.raw"]);
    assert_eq!(stored(&data), [digest.as_str()], "another name means them");
    let small = home.file("small.raw", "abc").display().to_string();
    server.ok(&["image", "add", &small, "--name", "copy.raw"]);
    // a machine that was ordered to write them comes back for the rest by their digest
    let (status, _) = http(&server.url, "GET", &format!("/images/sha256/{digest}"), None, b"");
    assert_eq!((status, stored(&data).len()), (200, 2), "and now none does");
    // a workflow needs it
    server.ok(&["workflow", "create", "-f", &workflow(&home, "w", "image: copy.raw")]);
    server.run(&["image", "remove", "copy.raw"]).with(4).saying("workflow");
    server.run(&["image", "show", "disk.raw"]).with(3).saying("no image");
    // who did it is on record
    let audit = server.ok(&["audit", "--all"]);
    assert!(audit.contains("PutImage") && audit.contains("RemoveImage") && audit.contains("ROLE_TOO_LOW"), "{audit}");
    server.terminate().with(0);
    // a day later
    let mark = data.join(format!("images/sha256/.unnamed-{digest}"));
    let marked = std::fs::metadata(&mark).and_then(|mark| mark.modified()).expect("a mark");
    let earlier = marked - std::time::Duration::from_secs(25 * 3600);
    std::fs::File::options().write(true).open(&mark).and_then(|mark| mark.set_modified(earlier)).expect("set");
    let server = launch.start();
    let small = sha256(&home.path("small.raw"));
    // the bytes go first, then their mark
    until("what no name means is gone", || (stored(&data) == [small.as_str()] && !mark.exists()).then_some(()));
    server.terminate().with(0);
}

#[test]
fn workflows_are_checked_before_they_are_kept() {
    let home = Home::new();
    let server = home.launch("data").start();
    let bad = workflow(&home, "bad", "cmdline: x=${nonsense}");
    server.run(&["workflow", "create", "-f", &bad]).with(2).saying("nonsense");
    server.run(&["workflow", "create", "-f", &bad, "--dry-run"]).with(2).saying("nonsense");
    let unknown = workflow(&home, "unknown", "kernal: x");
    server.run(&["workflow", "create", "-f", &unknown]).with(2).saying("kernal");
    let far = workflow(&home, "far", "image: http://example.test/disk.raw");
    server.run(&["workflow", "create", "-f", &far]).with(2).saying("digest");
    let good = workflow(&home, "good", "template: |\n  host=${hostname:shell}\n");
    server.ok(&["workflow", "create", "-f", &good, "--dry-run"]);
    assert!(server.json(&["workflow", "list"])["workflows"].as_array().is_some_and(Vec::is_empty));
    server.ok(&["workflow", "create", "-f", &good]);
    server.ok(&["workflow", "create", "-f", &good]);
    let other = workflow(&home, "good", "template: |\n  another\n");
    server.run(&["workflow", "create", "-f", &other]).with(4).saying("another id");
    let shown = server.ok(&["workflow", "show", "good"]);
    assert!(shown.contains("host=${hostname:shell}"), "{shown}");
    server.run(&["workflow", "show", "none"]).with(3).saying("no workflow");
    server.terminate().with(0);
}

/// One whose discovery boot never reports (no driver, no address) is not kept from its disk.
#[test]
fn a_look_that_brings_nothing_is_tried_three_times() {
    let home = Home::new();
    let server = home.launch("data").start();
    assert!(script(&server.url, MAC).contains("booting from disk"), "no installer is there: that is no look");
    for name in ["installer-vmlinuz", "installer-initrd"] {
        server.ok(&["image", "add", &home.file(name, name).display().to_string()]);
    }
    for look in 1..=3 {
        let script = script(&server.url, MAC);
        assert!(script.contains("millwright.discover=http"), "look {look}: {script}");
    }
    let script = script(&server.url, MAC);
    assert!(script.contains("booting from disk") && !script.contains("kernel"), "{script}");
    server.terminate().with(0);
}

// what a stranger is served, and that the calls beside the machines' paths are still calls
#[test]
fn a_stranger_is_written_down_and_boots_its_disk() {
    let home = Home::new();
    let server = home.launch("data").start();
    let script = script(&server.url, MAC);
    assert!(script.contains("booting from disk") && token(&script).is_none(), "no installer is there: {script}");
    assert_eq!(state(&server, MAC), "discovered");
    // a discovery boot needs both
    for name in ["installer-vmlinuz", "installer-initrd"] {
        let file = home.file(name, name).display().to_string();
        server.ok(&["image", "add", &file]);
    }
    let script = self::script(&server.url, MAC);
    assert!(script.contains("millwright.discover=http") && token(&script).is_none(), "{script}");
    let facts = json!({ "facts": { "cpus": 8 }, "hostname": "seen-7" });
    let body = report(&server.url, None, MAC, "started", &facts);
    assert_eq!((body["applied"].as_bool(), body["reason"].as_str()), (Some(false), Some("NO_TOKEN")), "{body}");
    assert!(self::script(&server.url, MAC).contains("booting from disk"), "looked at once");
    assert_eq!(server.json(&["boot", "show", MAC])["inventory"]["cpus"], 8);
    let (status, said) = http(&server.url, "GET", "/boot.ipxe", None, b"");
    assert!(status == 200 && said.contains(&format!("{}/api/v1/boot?", server.url)), "{said}");
    let secret = admin(&server);
    assert_eq!(http(&server.url, "GET", "/api/v1/images/installer-initrd", Some(&secret), b"").0, 200);
    assert_eq!(http(&server.url, "GET", "/api/v1/images/installer-initrd", None, b"").0, 401);
    assert_eq!(http(&server.url, "DELETE", "/api/v1/images/installer-initrd", Some(&secret), b"").0, 200);
    assert_eq!(http(&server.url, "GET", "/images/installer-initrd", None, b"").0, 404);
    let (status, metrics) = http(&server.url, "GET", "/metrics", Some(&secret), b"");
    assert_eq!(status, 200);
    for line in ["boot_decisions_total{served=\"discover\"} 1", "boot_decisions_total{served=\"disk\"} 2"] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    server.terminate().with(0);
}

#[test]
fn an_interface_that_is_not_there_is_told_at_the_start_and_by_the_doctor() {
    let home = Home::new();
    let launch = home.launch("data").with(&["--netboot", "nosuchif0"]);
    launch.refused().saying("nosuchif0");
    let config = home.file("millwright.toml", "[netboot]\ninterface = 'nosuchif0'\n").display().to_string();
    let ended = home.run(&["doctor", "--config", &config]).with(1);
    assert!(ended.out.contains("FAIL  netboot") && ended.out.contains("nosuchif0"), "{}", ended.out);
}
