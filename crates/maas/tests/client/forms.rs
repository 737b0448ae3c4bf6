//! How each call is formed: the one place where a boolean that is spelt differently erases disks.

use crate::fixtures::{
    CONSUMER, ID, MAC, SECRET, TOKEN, VERSION, WHO, access, client, mac, machine, new_machine, options,
};
use crate::server::{Asked, Reply, Server};
use domain::Secret;
use domain::maas::MaasPower;
use domain::site::{Erase, Layout, LinkMode};
use maas::Clients;
use provider::{
    Changes, Commissioning, Deployment, Maas, MaasClients as _, NewLink, NewMachine, PowerAccess, Release, ResultKind,
    StorageLayout, Which,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Yes to everything, in the form that each call has.
fn yes(asked: &Asked) -> Reply {
    let interface = r#"{"id": 3, "name": "eth0", "links": [], "vlan": null}"#;
    match (asked.method.as_str(), asked.path.as_str(), asked.op()) {
        ("GET", "users/", "whoami") => Reply::json(WHO),
        ("GET", "version/", _) => Reply::json(VERSION),
        ("GET", "machines/", _) => Reply::json(format!("[{}]", machine())),
        ("POST", "machines/", "allocate") => Reply::json(machine()),
        ("POST", "machines/", _) => Reply::json(new_machine()),
        ("GET", _, "query_power_state") => Reply::json(r#"{"state": "off"}"#),
        ("POST", _, "set_boot_disk") => Reply::text(200, "OK"),
        ("POST", _, "update_nodes") => Reply::json(r#"{"added": 1, "removed": 0}"#),
        ("DELETE", ..) => Reply::say(204, "text/plain", ""),
        ("GET", "events/", _) => Reply::json(
            r#"{"count": 2, "events": [{"id": 76, "level": "ERROR", "type": "Marking node failed", "description": "x", "node": "4g4aaq",
            "created": "Sun, 15 Nov. 2026 07:57:30"}, {"id": 75, "level": "ERROR", "type": "Node installation failure", "description": "'curtin' cmd-install", "node": "4g4aaq"}], "next_uri": "/x"}"#,
        ),
        ("GET", "nodes/4g4aaq/results/", _) => Reply::json(
            r#"[{"id": 9, "type": 1, "status": 5, "results": []}, {"id": 10, "status": 5, "results": [{"name": "/tmp/install.log", "status": 3,
            "status_name": "Failed", "exit_status": null, "output": "bGluZSAxChtbMm1saW5lIDIK", "started": "Sun, 15 Nov 2026 07:57:29 +0000"}]}]"#,
        ),
        ("GET", "subnets/", _) => Reply::json(
            r#"[{"id": 1, "name": "pxe", "cidr": "10.20.0.0/24", "vlan": {"id": 5001, "vid": 0}, "dns_servers": []}]"#,
        ),
        ("GET", "boot-resources/", _) => Reply::json(
            r#"[{"architecture": "amd64/ga-24.04", "id": 1, "last_deployed": null, "name": "ubuntu/noble", "type": "Synced"}]"#,
        ),
        ("GET", "resourcepools/", _) => Reply::json(r#"[{"id": 0, "name": "default"}, {"id": 1, "name": "gpu"}]"#),
        ("GET", "zones/", _) => Reply::json(r#"[{"id": 1, "name": "az1", "description": ""}]"#),
        (_, path, _) if path.contains("/interfaces/") => Reply::json(interface),
        _ => Reply::json(machine()),
    }
}

fn power() -> PowerAccess {
    let parameters = [("power_address", "192.0.2.194"), ("power_user", "root"), ("power_pass", "geheim & mehr")];
    PowerAccess {
        kind: "redfish".into(),
        parameters: parameters.map(|(name, value)| (name.to_owned(), Secret::new(value))).into(),
    }
}

fn new() -> NewMachine {
    NewMachine {
        architecture: "amd64/generic".into(),
        macs: vec![mac()],
        hostname: "one".into(),
        description: String::new(),
        power: power(),
        pool: "gpu".into(),
        zone: String::new(),
    }
}

fn deployment(user_data: &str) -> Deployment {
    Deployment {
        series: "noble".into(),
        kernel: String::new(),
        user_data: Secret::new(user_data),
        hardware_sync: true,
        agent_name: "mw".into(),
        comment: "c".into(),
    }
}

/// `METHOD path?query | form`.
fn line(asked: &Asked) -> String {
    let pairs = |pairs: &[(String, String)]| {
        pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    };
    format!("{} {}?{} | {}", asked.method, asked.path, pairs(&asked.query), pairs(&asked.form)).trim_end().to_owned()
}

async fn everything(maas: &dyn Maas) {
    let account = maas.account().await.expect("account");
    assert_eq!((account.username.as_str(), account.is_admin, account.version.as_str()), ("admin", true, "3.7.3"));
    assert_eq!(maas.machines(&Which::All).await.expect("all").len(), 1);
    assert_eq!(maas.machines(&Which::Ids(vec![ID.into()])).await.expect("ids").len(), 1);
    assert_eq!(maas.machines(&Which::Macs(vec![mac()])).await.expect("macs").len(), 1);
    assert!(maas.machines(&Which::Ids(Vec::new())).await.expect("none").is_empty());
    assert!(maas.machine(ID).await.expect("one").is_some());
    maas.create(&new()).await.expect("create");
    let changes = Changes { pool: Some("p".into()), zone: Some("z".into()), ..Changes::default() };
    maas.change(ID, &changes).await.expect("change");
    let changes = Changes { hostname: Some("h".into()), power: Some(power()), ..Changes::default() };
    maas.change(ID, &changes).await.expect("change");
    maas.commission(ID, &Commissioning::default()).await.expect("commission");
    let testing_scripts = vec!["memtester".to_owned(), "smart".to_owned()];
    let keep_bmc_login = true;
    maas.commission(ID, &Commissioning { testing_scripts, keep_bmc_login }).await.expect("commission");
    maas.allocate(ID, "mw", "c").await.expect("allocate");
    maas.set_boot_disk(ID, 1).await.expect("boot disk");
    let layout = StorageLayout { layout: Layout::Lvm, root_size: "100G".into(), root_device: Some(1) };
    maas.set_storage_layout(ID, &layout).await.expect("layout");
    let layout = StorageLayout { layout: Layout::Flat, root_size: String::new(), root_device: None };
    maas.set_storage_layout(ID, &layout).await.expect("layout");
    maas.set_mtu(ID, 3, 9000).await.expect("mtu");
    let link = NewLink { mode: LinkMode::Auto, subnet: "cidr:10.20.0.0/24".into(), force: true };
    maas.link(ID, 3, &link).await.expect("link");
    let link = NewLink { mode: LinkMode::LinkUp, subnet: String::new(), force: false };
    maas.link(ID, 3, &link).await.expect("link");
    maas.unlink(ID, 3, 8).await.expect("unlink");
    maas.deploy(ID, &deployment("#cloud-config\n")).await.expect("deploy");
    let plain = Deployment { hardware_sync: false, series: String::new(), ..deployment("") };
    maas.deploy(ID, &plain).await.expect("deploy");
    for erase in [Erase::None, Erase::Quick, Erase::Secure, Erase::Full] {
        maas.release(ID, &Release { erase, comment: "c".into() }).await.expect("release");
    }
    maas.abort(ID, "stop").await.expect("abort");
    maas.power_on(ID).await.expect("on");
    maas.power_off(ID).await.expect("off");
    assert_eq!(maas.power_now(ID).await, Ok(MaasPower::Off));
    assert_eq!(maas.delete(ID).await, Ok(true));
    let annotations = BTreeMap::from([("mw".to_owned(), "a b".to_owned()), ("old".to_owned(), String::new())]);
    maas.annotate(ID, &annotations).await.expect("annotate");
    maas.tag(ID, "gpu-8x").await.expect("tag");
    let events = maas.events(Some(70), "ERROR", &[ID.to_owned()]).await.expect("events");
    assert_eq!(events.iter().map(|e| e.id).collect::<Vec<_>>(), [75, 76], "oldest first");
    assert_eq!(events[0].kind, "Node installation failure");
    let results = maas.results(ID, ResultKind::Installation, true).await.expect("results");
    assert_eq!((results.len(), results[0].status, results[0].output.as_str()), (1, 3, "line 1\n[2mline 2\n"));
    maas.results(ID, ResultKind::Release, false).await.expect("results");
    assert_eq!(maas.subnets().await.expect("subnets")[0].vlan, Some(5001));
    assert_eq!(maas.images().await.expect("images"), [("ubuntu/noble".to_owned(), "amd64/ga-24.04".to_owned())]);
    assert_eq!(maas.pools().await, Ok(Some(vec!["default".to_owned(), "gpu".to_owned()])));
    assert_eq!(maas.zones().await, Ok(Some(vec!["az1".to_owned()])));
}

#[tokio::test]
async fn every_call_has_the_form_that_maas_wants() {
    let server = Server::start(yes).await;
    everything(&*client(&server.url)).await;
    let asked = server.asked();
    let lines: Vec<String> = asked.iter().map(line).collect();
    let expected = [
        "GET users/?op=whoami |",
        "GET version/? |",
        "GET machines/? |",
        "GET machines/?id=4g4aaq |",
        "GET machines/?mac_address=52:54:00:83:8e:9e |",
        "GET machines/4g4aaq/? |",
        "POST machines/? | architecture=amd64/generic commission=false mac_addresses=52:54:00:83:8e:9e hostname=one pool=gpu \
         power_type=redfish power_parameters_power_address=192.0.2.194 power_parameters_power_pass=geheim & mehr \
         power_parameters_power_user=root",
        "PUT machines/4g4aaq/? | pool=p zone=z",
        "PUT machines/4g4aaq/? | hostname=h power_type=redfish power_parameters_power_address=192.0.2.194 \
         power_parameters_power_pass=geheim & mehr power_parameters_power_user=root",
        "POST machines/4g4aaq/?op=commission |",
        "POST machines/4g4aaq/?op=commission | testing_scripts=memtester,smart skip_bmc_config=true",
        "POST machines/?op=allocate | system_id=4g4aaq agent_name=mw comment=c",
        "POST nodes/4g4aaq/blockdevices/1/?op=set_boot_disk |",
        "POST machines/4g4aaq/?op=set_storage_layout | storage_layout=lvm root_size=100G root_device=1",
        "POST machines/4g4aaq/?op=set_storage_layout | storage_layout=flat",
        "PUT nodes/4g4aaq/interfaces/3/? | mtu=9000",
        "POST nodes/4g4aaq/interfaces/3/?op=link_subnet | mode=AUTO subnet=cidr:10.20.0.0/24 force=true",
        "POST nodes/4g4aaq/interfaces/3/?op=link_subnet | mode=LINK_UP",
        "POST nodes/4g4aaq/interfaces/3/?op=unlink_subnet | id=8",
        "POST machines/4g4aaq/?op=deploy | distro_series=noble agent_name=mw comment=c enable_hw_sync=true \
         user_data=I2Nsb3VkLWNvbmZpZwo=",
        "POST machines/4g4aaq/?op=deploy | agent_name=mw comment=c",
        "POST machines/4g4aaq/?op=release | comment=c",
        "POST machines/4g4aaq/?op=release | comment=c erase=true quick_erase=true",
        "POST machines/4g4aaq/?op=release | comment=c erase=true secure_erase=true",
        "POST machines/4g4aaq/?op=release | comment=c erase=true",
        "POST machines/4g4aaq/?op=abort | comment=stop",
        "POST machines/4g4aaq/?op=power_on |",
        "POST machines/4g4aaq/?op=power_off | stop_mode=hard",
        "GET machines/4g4aaq/?op=query_power_state |",
        "DELETE machines/4g4aaq/? |",
        "POST machines/4g4aaq/?op=set_workload_annotations | mw=a b old=",
        "POST tags/gpu-8x/?op=update_nodes | add=4g4aaq",
        "GET events/?op=query limit=1000 after=70 level=ERROR id=4g4aaq |",
        "GET nodes/4g4aaq/results/?type=installation include_output=true |",
        "GET nodes/4g4aaq/results/?type=release |",
        "GET subnets/? |",
        "GET boot-resources/? |",
        "GET resourcepools/? |",
        "GET zones/? |",
    ];
    for (n, expected) in expected.iter().enumerate() {
        assert_eq!(lines.get(n).map(String::as_str), Some(*expected), "call {n}");
    }
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for asked in &asked {
        assert!(asked.path.ends_with('/'), "{}", asked.path);
        let kind = asked.headers.get("content-type").map(String::as_str);
        let form = (asked.method != "GET").then_some("application/x-www-form-urlencoded");
        assert_eq!(kind, form, "{} {}", asked.method, asked.path);
        // a checkbox that holds anything at all is a yes; only create's commission is asked with a no
        for (name, value) in &asked.form {
            let no = ["false", "0", "no", "off", "False"].contains(&value.as_str());
            assert!(!no || name == "commission", "{name}={value}");
        }
    }
}

#[tokio::test]
async fn every_attempt_has_a_login_of_its_own() {
    let tries = AtomicUsize::new(0);
    let server = Server::start(move |_| match tries.fetch_add(1, Ordering::SeqCst) {
        n if n % 3 < 2 => Reply::text(503, "later").with("retry-after", "0"),
        _ => Reply::json(machine()),
    })
    .await;
    let maas = client(&server.url);
    for _ in 0..4 {
        maas.machine(ID).await.expect("at the third attempt");
    }
    let asked = server.asked();
    assert_eq!(asked.len(), 12);
    let nonces: BTreeSet<String> = asked.iter().map(|asked| asked.oauth("oauth_nonce")).collect();
    assert_eq!(nonces.len(), 12, "{nonces:?}");
    #[allow(clippy::disallowed_methods, reason = "what a MAAS compares it with")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    for asked in &asked {
        assert!(asked.oauth("oauth_nonce").len() >= 16);
        assert_eq!(asked.oauth("oauth_version"), "1.0");
        assert_eq!(asked.oauth("oauth_signature_method"), "PLAINTEXT");
        assert_eq!(asked.oauth("oauth_consumer_key"), CONSUMER);
        assert_eq!(asked.oauth("oauth_token"), TOKEN);
        assert_eq!(asked.oauth("oauth_signature"), format!("%26{SECRET}"));
        let at: u64 = asked.oauth("oauth_timestamp").parse().expect("seconds");
        assert!(now.abs_diff(at) < 200, "{at} and {now}");
    }
}

/// Without a key that is taken, MAAS would take a create for a machine's own introduction.
#[tokio::test]
async fn nothing_is_made_before_our_key_was_taken_once() {
    let server = Server::start(|asked| match asked.op() {
        "whoami" => Reply::text(401, "Forbidden"),
        _ => Reply::json(new_machine()),
    })
    .await;
    let no = client(&server.url).create(&new()).await.expect_err("not known");
    assert_eq!(no.reason().as_str(), "LOGIN_REFUSED");
    assert!(server.asked().iter().all(|asked| asked.method == "GET"), "{:?}", server.asked());
}

#[tokio::test]
async fn machines_are_asked_for_in_bounded_pieces_and_none_is_not_all() {
    let server = Server::start(|_| Reply::json("[]")).await;
    let maas = client(&server.url);
    let ids: Vec<String> = (0..250).map(|n| format!("id{n}")).collect();
    assert!(maas.machines(&Which::Ids(ids)).await.expect("none").is_empty());
    assert_eq!(server.asked().iter().map(|asked| asked.query.len()).collect::<Vec<_>>(), [100, 100, 50]);
    assert!(maas.machines(&Which::Macs(Vec::new())).await.expect("none").is_empty());
    assert_eq!(server.asked().len(), 3, "whoever asks for none is not given all");
}

#[tokio::test]
async fn a_tag_that_is_missing_is_made_even_by_two_at_once() {
    for made in
        [Reply::json("{}"), Reply::say(400, "application/json", r#"{"name": ["Tag with this Name already exists."]}"#)]
    {
        let tries = AtomicUsize::new(0);
        let server = Server::start(move |asked| match (asked.path.as_str(), tries.fetch_add(1, Ordering::SeqCst)) {
            ("tags/", _) => made.clone(),
            (_, 0) => Reply::text(404, "No Tag matches the given query."),
            _ => Reply::json(r#"{"added": 1, "removed": 0}"#),
        })
        .await;
        client(&server.url).tag(ID, "gpu").await.expect("tagged");
        assert_eq!(server.asked().len(), 3);
    }
    let server = Server::start(|_| Reply::json(r#"{"added": 0, "removed": 0}"#)).await;
    let no = client(&server.url).tag(ID, "gpu").await.expect_err("there is no such machine");
    assert_eq!(no.reason().as_str(), "WRONG_STATE");
}

#[tokio::test]
async fn a_client_stays_the_same_until_something_changes() {
    let clients = Clients::new(options());
    let one = access("oslo", "http://127.0.0.1:1/MAAS");
    let first = clients.client(&one).expect("a client");
    let same = |other: &std::sync::Arc<dyn Maas>| std::sync::Arc::ptr_eq(&first, other);
    assert!(same(&clients.client(&one.clone()).expect("a client")));
    let other = provider::MaasAccess { calls_max: 5, ..one.clone() };
    assert!(!same(&clients.client(&other).expect("a client")));
    assert!(!same(&clients.client(&access("bergen", &one.url)).expect("a client")));
    assert!(!same(&clients.client(&one).expect("a client")), "it is made anew when it comes back");
}

#[tokio::test]
async fn how_far_its_clock_is_off_is_known_from_its_answers() {
    let server = Server::start(|asked| match asked.path.as_str() {
        "version/" => Reply::json(VERSION),
        _ => Reply::json(WHO).with("date", "Fri, 01 Jan 2100 00:00:00 GMT"),
    })
    .await;
    let maas = client(&server.url);
    assert_eq!(maas.clock_ahead_ms().await, Ok(None), "nobody has asked it anything");
    maas.account().await.expect("an answer");
    let ahead = maas.clock_ahead_ms().await.expect("no call").expect("known");
    assert!(ahead > 365 * 86_400 * 1000, "{ahead}");
}

#[tokio::test]
async fn a_machine_is_read_whole() {
    let server = Server::start(yes).await;
    let machine = client(&server.url).machine(ID).await.expect("read").expect("there");
    assert_eq!(machine.interfaces[0].mac, MAC);
    assert_eq!((machine.interfaces[0].links[0].subnet, machine.interfaces[0].links[1].subnet), (Some(1), None));
    assert_eq!((machine.boot_disk, machine.boot_interface, machine.disks[0].size), (Some(1), Some(3), 250_000_000_000));
    assert_eq!(
        (machine.serial.as_str(), machine.pool.as_str(), machine.zone.as_str()),
        ("SN-4g4aaq", "default", "az1")
    );
    assert_eq!((machine.status, machine.status_name.as_str(), machine.owner.as_str()), (6, "Deployed", "admin"));
    assert_eq!((machine.hardware_sync.enabled, machine.hardware_sync.interval_seconds), (true, 900));
    assert_eq!((machine.tags.len(), machine.annotations["mw"].as_str()), (1, "1"));
    let server = Server::start(|_| Reply::json(new_machine())).await;
    let fresh = client(&server.url).machine(ID).await.expect("read").expect("there");
    assert_eq!((fresh.boot_disk, fresh.serial.as_str(), fresh.owner.as_str()), (None, "", ""));
}
