//! What a site may be told, and what is refused by its field.

use super::*;
use crate::site::{Layout, SiteState};
use crate::time::Timestamp;

fn profile() -> Profile {
    Profile {
        name: "gpu".into(),
        architecture: "amd64/generic".into(),
        series: "noble".into(),
        kernel: String::new(),
        layout: Layout::Flat,
        root_size: "100G".into(),
        boot_disk: DiskRule::default(),
        pxe_subnet: "cidr:10.0.0.0/24".into(),
        roce: vec![RoceNetwork {
            interface: "ens*np0".into(),
            subnet: "name:roce 1".into(),
            mode: LinkMode::Auto,
            mtu: 9000,
        }],
        cloud_init: "#cloud-config\nhostname: {{ hostname }}\nx: {{bundle_base64}}\n".into(),
        agent_url: "https://files.example/agent".into(),
        agent_sha256: "ab".repeat(32),
        tags: vec!["gpu".into()],
        pool: "gpu".into(),
        zone: "default".into(),
        testing_scripts: Vec::new(),
    }
}

fn site() -> Site {
    Site {
        name: "lab".into(),
        state: SiteState::Present,
        version: 1,
        url: "https://maas.example:5443/MAAS".into(),
        ca_pem: String::new(),
        credentials_ref: "lab-maas".into(),
        policy: SitePolicy::default(),
        profiles: vec![profile()],
        created_at: Timestamp::default(),
        updated_at: Timestamp::default(),
    }
}

fn field(site: &Site) -> String {
    site.check().err().and_then(|e| e.details.get("field").cloned()).unwrap_or_default()
}

#[test]
fn a_whole_site_is_taken() {
    assert_eq!(site().check(), Ok(()));
    for url in ["http://10.0.0.1:5240/MAAS", "https://[2001:db8::1]:5443/MAAS", "https://proxy/lab-1/MAAS"] {
        assert_eq!(Site { url: url.into(), ..site() }.check(), Ok(()), "{url}");
    }
}

#[test]
fn hostile_urls_are_refused() {
    for url in [
        "",
        "ftp://maas/MAAS",
        "https://user:pass@maas/MAAS",
        "https://maas:0/MAAS",
        "https://maas:99999/MAAS",
        "https://maas:+80/MAAS",
        "https:///MAAS",
        "https://maas/MAAS/",
        "https://maas/",
        "https://maas/../MAAS",
        "https://maas//MAAS",
        "https://maas/MAAS?x=/MAAS",
        "https://maas/a#/MAAS",
        "https://ma as/MAAS",
        "https://maas\n/MAAS",
        "https://[::1/MAAS",
        "https://-x/MAAS",
        "https://maas\\evil/MAAS",
    ] {
        assert_eq!(field(&Site { url: url.into(), ..site() }), "url", "{url:?}");
    }
}

/// A change that makes a profile one that is refused, and the field that is to blame.
type Bad = (&'static str, fn(&mut Profile));

#[test]
fn everything_else_is_refused_by_its_field() {
    let cases: &[Bad] = &[
        ("name", |p| p.name = "a b".into()),
        ("architecture", |p| p.architecture = "amd64".into()),
        ("architecture", |p| p.architecture = "amd64/generic&x=1".into()),
        ("series", |p| p.series = "noble&erase=0".into()),
        ("series", |p| p.series = "a/b/c".into()),
        ("kernel", |p| p.kernel = "x y".into()),
        ("root_size", |p| p.root_size = "lots".into()),
        ("root_size", |p| p.root_size = "1GG".into()),
        ("pool", |p| p.pool = "a,b".into()),
        ("zone", |p| p.zone = "ü".into()),
        ("tags[1]", |p| p.tags.push("a b".into())),
        ("tags[1]", |p| p.tags.push("a.b".into())),
        ("tags", |p| p.tags = vec!["t".into(); 33]),
        ("testing_scripts[0]", |p| p.testing_scripts = vec!["$(reboot)".into()]),
        ("boot_disk.max_bytes", |p| p.boot_disk = DiskRule { min_bytes: 2, max_bytes: 1, ..DiskRule::default() }),
        ("boot_disk.model", |p| p.boot_disk.model = "a\u{1b}[31m".into()),
        ("pxe_subnet", |p| p.pxe_subnet = "10.0.0.0/24".into()),
        ("pxe_subnet", |p| p.pxe_subnet = "cidr:10.0.0.0/33".into()),
        ("roce[0].interface", |p| p.roce[0].interface = "eth0;x".into()),
        ("roce[0].subnet", |p| p.roce[0].subnet = String::new()),
        ("roce[0].mtu", |p| p.roce[0].mtu = 7),
        ("agent_url", |p| p.agent_url = "https://a@b/c".into()),
        ("agent_url", |p| p.agent_url = "https://b/\"; reboot".into()),
        ("agent_sha256", |p| p.agent_sha256 = String::new()),
        ("agent_sha256", |p| p.agent_url = String::new()),
        ("cloud_init", |p| p.cloud_init = "#!/bin/sh\n{{ bundle_base64 }}".into()),
        ("cloud_init", |p| p.cloud_init = "#cloud-config\n{{ bundle_base64".into()),
        ("cloud_init", |p| p.cloud_init = "#cloud-config\nbundle_base64 }}".into()),
        ("cloud_init", |p| p.cloud_init = "#cloud-config\n{{ bundle_base64 }}{{ password }}".into()),
        ("cloud_init", |p| p.cloud_init = "#cloud-config\n".into()),
        ("cloud_init", |p| p.cloud_init = format!("#cloud-config\n{}", "x".repeat(limits::USER_DATA_MAX))),
        ("cloud_init", |p| p.cloud_init = "#cloud-config\n\0{{ bundle_base64 }}".into()),
    ];
    for (wanted, spoil) in cases {
        let mut bad = profile();
        spoil(&mut bad);
        let shown = format!("{bad:?}");
        assert_eq!(field(&Site { profiles: vec![bad], ..site() }), format!("profiles[0].{wanted}"), "{shown}");
    }
    assert_eq!(field(&Site { profiles: Vec::new(), ..site() }), "profiles");
    assert_eq!(field(&Site { profiles: vec![profile(), profile()], ..site() }), "profiles[1].name");
    assert_eq!(field(&Site { credentials_ref: "a,b".into(), ..site() }), "credentials_ref");
    let policy = |policy| field(&Site { policy, ..site() });
    let (day, default) = (Duration::from_secs(25 * 3600), SitePolicy::default());
    assert_eq!(policy(SitePolicy { poll: Duration::ZERO, ..default.clone() }), "policy.poll_seconds");
    assert_eq!(policy(SitePolicy { list: day, ..default.clone() }), "policy.list_seconds");
    assert_eq!(policy(SitePolicy { calls_max: 0, ..default.clone() }), "policy.calls_max");
    assert_eq!(policy(SitePolicy { sync_intervals: 0, ..default }), "policy.sync_intervals");
}
