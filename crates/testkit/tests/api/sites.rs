//! Sites over the wire: kept as described, changed by who has read them, removed by nobody while nodes stand on them, and
//! asked point by point whether all is there.

use crate::callers::{Caller, root};
use crate::fixture::{Api, on_both};
use crate::refusal::{refused, refused_field};
use domain::Timestamp;
use domain::maas_machine::ObservedMachine;
use domain::node::{MaasRef, Node};
use proto::millwright::v1 as mw;
use provider::ProviderError;
use service::NewNode;
use store::{Caller as By, maas_machine, node};
use testkit::fleet::admin;
use testkit::pretend_maas::{PretendClients, PretendMaas};
use tonic::Code;

fn described(name: &str) -> mw::Site {
    let template = "#cloud-config\nhostname: {{ hostname }}\nx: {{ bundle_base64 }}\n";
    mw::Site {
        name: name.into(),
        url: "https://maas.example:5443/MAAS".into(),
        ca_pem: testkit::tls::Authority::default().pair().cert,
        credentials_ref: "maas-key".into(),
        policy: Some(mw::SitePolicy { poll_seconds: Some(7), keep_record: Some(false), ..Default::default() }),
        profiles: vec![
            mw::SiteProfile {
                name: "gpu".into(),
                series: "noble".into(),
                layout: "lvm".into(),
                boot_disk: Some(mw::DiskRule { model: "BOSS".into(), min_bytes: 1 << 37, ..Default::default() }),
                pxe_subnet: "cidr:10.0.0.0/24".into(),
                roce: vec![mw::RoceNetwork {
                    interface: "ens*".into(),
                    subnet: "name:roce".into(),
                    mtu: 9000,
                    ..Default::default()
                }],
                cloud_init: template.into(),
                tags: vec!["gpu".into()],
                pool: "gpu".into(),
                ..Default::default()
            },
            mw::SiteProfile { name: "cpu".into(), series: "jammy".into(), ..Default::default() },
        ],
        ..Default::default()
    }
}

async fn key(root: &Caller) {
    let request = mw::SetCredentialRequest {
        name: "maas-key".into(),
        kind: "maas".into(),
        api_key: "a:b:c".into(),
        ..Default::default()
    };
    root.credentials().set_credential(request).await.expect("a key");
}

async fn create(root: &Caller, site: mw::Site) -> Result<mw::Site, tonic::Status> {
    Ok(root.sites().create_site(mw::CreateSiteRequest { site: Some(site) }).await?.into_inner())
}

async fn update(root: &Caller, site: mw::Site) -> Result<mw::Site, tonic::Status> {
    Ok(root.sites().update_site(mw::UpdateSiteRequest { site: Some(site) }).await?.into_inner())
}

async fn remove(root: &Caller, name: &str) -> Result<mw::Site, tonic::Status> {
    Ok(root.sites().remove_site(mw::RemoveSiteRequest { name: name.into() }).await?.into_inner())
}

async fn get(root: &Caller, name: &str) -> Result<mw::Site, tonic::Status> {
    Ok(root.sites().get_site(mw::GetSiteRequest { name: name.into() }).await?.into_inner())
}

async fn seen(api: &Api, machines: Vec<ObservedMachine>) {
    let put = move |tx: &mut store::Tx<'_>| maas_machine::put(tx, "lab", &machines);
    api.server.service.store().write(&By::new("test"), "lab", put).await.expect("written");
}

on_both!(a_site_is_kept_changed_and_removed_as_it_was_described, |api| async move {
    // with an authority of its own, the same throughout
    let (root, wished) = (root(&api).await, described("lab"));
    refused(create(&root, wished.clone()).await, Code::NotFound, "CREDENTIAL_NOT_FOUND");
    key(&root).await;
    let made = create(&root, wished.clone()).await.expect("made");
    assert_eq!((made.version, made.profiles[0].architecture.as_str()), (1, "amd64/generic"));
    let policy = made.policy.clone().expect("a policy");
    assert_eq!((policy.poll_seconds, policy.list_seconds, policy.erase.as_str()), (Some(7), Some(900), "quick"));
    assert_eq!(made.sight.as_ref().map(|s| s.state.as_str()), Some("not_observed"));
    assert_eq!(create(&root, wished.clone()).await.expect("the same again").version, 1);
    // what is shown can be given back as it is
    assert_eq!(update(&root, made.clone()).await.expect("no change").version, 1);
    refused(
        create(&root, mw::Site { url: "https://b/MAAS".into(), ..wished.clone() }).await,
        Code::AlreadyExists,
        "SITE_EXISTS",
    );
    let changed = update(&root, mw::Site { url: "https://b/MAAS".into(), ..made.clone() }).await.expect("changed");
    assert_eq!((changed.version, changed.url.as_str()), (2, "https://b/MAAS"));
    refused(update(&root, made.clone()).await, Code::Aborted, "VERSION_MISMATCH").says("read it again");
    let whatever = mw::Site { version: 0, ..made };
    assert_eq!(update(&root, whatever).await.expect("without a version").version, 3);
    refused(
        root.credentials()
            .delete_credential(mw::DeleteCredentialRequest { name: "maas-key".into(), force: false })
            .await,
        Code::FailedPrecondition,
        "CREDENTIAL_IN_USE",
    )
    .says("site lab");
    remove(&root, "lab").await.expect("removed");
    refused(get(&root, "lab").await, Code::NotFound, "SITE_NOT_FOUND");
    refused(remove(&root, "lab").await, Code::NotFound, "SITE_NOT_FOUND");
    assert_eq!(create(&root, wished.clone()).await.expect("again").version, 5);
    let log = root.entries("target=lab").await;
    assert!(log.iter().filter(|e| e.outcome == "done").count() >= 5, "{log:?}");
});

on_both!(what_cannot_be_a_site_is_refused_by_its_field, |api| async move {
    let root = root(&api).await;
    key(&root).await;
    let other = crate::credentials::bmc("a-bmc", "secret");
    root.credentials().set_credential(other).await.expect("another kind");
    let with = |change: fn(&mut mw::Site)| {
        let mut site = described("lab");
        change(&mut site);
        create(&root, site)
    };
    refused_field(with(|s| s.name = "a b".into()).await, "name");
    refused_field(with(|s| s.url = "https://root:hunter2@maas/MAAS".into()).await, "url");
    refused_field(
        with(|s| s.ca_pem = "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n".into()).await,
        "ca_pem",
    );
    refused_field(with(|s| s.ca_pem = "nothing".into()).await, "ca_pem");
    refused_field(with(|s| s.credentials_ref = "a-bmc".into()).await, "credentials_ref").says("of kind bmc");
    refused_field(with(|s| s.profiles.clear()).await, "profiles");
    refused_field(with(|s| s.profiles[0].layout = "zfs".into()).await, "profiles[0].layout");
    refused_field(with(|s| s.profiles[0].roce[0].mode = "x".into()).await, "profiles[0].roce[0].mode");
    refused_field(with(|s| s.profiles[1].tags = vec!["a b".into()]).await, "profiles[1].tags[0]");
    refused_field(
        with(|s| s.policy = Some(mw::SitePolicy { erase: "0".into(), ..Default::default() })).await,
        "policy.erase",
    );
    let unknown = "#cloud-config\n{{ bundle_base64 }} {{ password }}";
    let template = mw::Site {
        profiles: vec![mw::SiteProfile { name: "x".into(), cloud_init: unknown.into(), ..Default::default() }],
        ..described("lab")
    };
    refused_field(create(&root, template).await, "profiles[0].cloud_init").says("password");
    refused_field(root.sites().create_site(mw::CreateSiteRequest { site: None }).await, "site");
});

on_both!(machines_are_listed_with_their_nodes_and_a_site_with_nodes_stays, |api| async move {
    let root = root(&api).await;
    key(&root).await;
    create(&root, described("lab")).await.expect("made");
    let one = |name: &str| mw::GetSiteMachineRequest { site: "lab".into(), system_id: name.into() };
    refused(root.sites().get_site_machine(one("m1")).await, Code::NotFound, "SITE_MACHINE_NOT_FOUND")
        .says("not listed yet");
    let gone =
        ObservedMachine { absent_since: Some(Timestamp::from_micros(9)), ..testkit::sites::observed("lab", "m3") };
    seen(&api, vec![testkit::sites::observed("lab", "m1"), testkit::sites::observed("lab", "m2"), gone]).await;
    let made = api.server.service.create_node(&admin(), NewNode { name: "gpu-1".into(), ..NewNode::default() }).await;
    let id = made.expect("a node").view.node.id;
    let (of, at) = (id.clone(), MaasRef { site: "lab".into(), system_id: "m2".into() });
    let link = move |tx: &mut store::Tx<'_>| {
        let there = tx.point(&node::by_id(&of))?.expect("is there");
        node::save(tx, &Node { maas: Some(at.clone()), ..there }).map(drop)
    };
    api.server.service.store().write(&By::new("test"), id.as_str(), link).await.expect("linked");
    let list = |filter: &str| mw::ListSiteMachinesRequest {
        site: "lab".into(),
        filter: filter.into(),
        page_size: 2,
        ..Default::default()
    };
    let page = root.sites().list_site_machines(list("")).await.expect("lists").into_inner();
    assert_eq!(page.machines.iter().map(|m| m.system_id.as_str()).collect::<Vec<_>>(), ["m1", "m2"]);
    assert_eq!((page.machines[1].node_name.as_str(), page.machines[0].node_id.as_str()), ("gpu-1", ""));
    let rest = mw::ListSiteMachinesRequest { page_token: page.next_page_token, ..list("") };
    let rest = root.sites().list_site_machines(rest).await.expect("lists").into_inner();
    assert!(rest.machines.len() == 1 && rest.machines[0].absent_since.is_some());
    let mine = root.sites().list_site_machines(list(&format!("node_id={id}"))).await.expect("lists").into_inner();
    assert_eq!(mine.machines.iter().map(|m| m.system_id.as_str()).collect::<Vec<_>>(), ["m2"]);
    let free = root.sites().list_site_machines(list("class=ready AND node_id=\"\"")).await.expect("lists").into_inner();
    assert_eq!(free.machines.len(), 2, "{free:?}");
    let sight = get(&root, "lab").await.expect("a site").sight.expect("a sight");
    assert_eq!((sight.machines, sight.nodes), (2, 1));
    refused(remove(&root, "lab").await, Code::FailedPrecondition, "SITE_IN_USE").says("gpu-1");
    let shown = api.server.service.get_node(id.as_str()).await.expect("a node").maas.expect("is on one");
    assert!(shown.says().contains("MAAS says of lab/m2 (host-m2): Ready (4), power off"), "{}", shown.says());
    let why = root.explain().explain(mw::ExplainRequest { id: id.to_string() }).await.expect("explains").into_inner();
    assert!(format!("{why:?}").contains("Ready (4)"), "{why:?}");
});

#[tokio::test]
async fn a_check_says_of_each_point_what_is_wrong_and_what_to_do() {
    let api = Api::new().await;
    let root = root(&api).await;
    key(&root).await;
    create(&root, described("lab")).await.expect("made");
    let maas = PretendMaas::new();
    api.server.service.reaches_sites_by(PretendClients::with(&[("lab", &maas)]));
    let check = || async {
        let request = mw::CheckSiteRequest { name: "lab".into() };
        root.sites().check_site(request).await.expect("checks").into_inner()
    };
    let verdicts = |check: &mw::SiteCheck| -> Vec<String> {
        check.points.iter().map(|p| format!("{} {}", p.what, p.verdict)).collect()
    };
    maas.offers(
        &[("ubuntu/noble", "amd64/ga-24.04"), ("ubuntu/jammy", "amd64/ga-22.04")],
        &[(1, "boot", "10.0.0.0/24"), (2, "roce", "10.1.0.0/24")],
        &["default", "gpu"],
    );
    let good = check().await;
    assert!(good.ok && good.maas_version == "3.7.3", "{good:?}");
    assert!(good.points.iter().all(|p| p.verdict == "ok" && p.todo.is_empty()), "{good:?}");
    maas.offers(
        &[("ubuntu/noble", "arm64/ga-24.04")],
        &[(1, "roce", "10.0.0.0/24"), (2, "roce", "10.1.0.0/24")],
        &["default"],
    );
    maas.account_is(false, -400_000);
    let bad = check().await;
    assert!(!bad.ok);
    let wanted = [
        "reached ok",
        "key ok",
        "admin failed",
        "clock failed",
        "image failed",
        "image failed",
        "subnet ok",
        "subnet failed",
        "pool failed",
    ];
    assert_eq!(verdicts(&bad), wanted, "{bad:?}");
    assert!(bad.points.iter().all(|p| (p.verdict == "ok") == p.todo.is_empty()), "{bad:?}");
    maas.is_down(Some(ProviderError::login_refused("the lab", "maas-key")));
    assert_eq!(verdicts(&check().await), ["key failed"]);
    maas.is_down(Some(ProviderError::unreachable("the lab", "no route")));
    assert_eq!(verdicts(&check().await), ["reached failed"]);
}
