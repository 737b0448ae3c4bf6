//! Sites in the store, how each was last seen, and what was seen of its machines.

use crate::fixture::{TestStore, on_every_store, on_threaded_stores};
use domain::filter::Filter;
use domain::finding::FindingKind;
use domain::job::JobStatus;
use domain::job_stage::JobKind;
use domain::maas::{MaasClass, MaasPower, Upstream};
use domain::maas_machine::{Identifier, ObservedMachine, Sight, Told};
use domain::node::{MaasRef, Node};
use domain::site::{
    CHANGED, CREATED, DiskRule, Erase, Layout, LinkMode, Profile, REMOVED, RoceNetwork, Site, SitePolicy, SiteState,
};
use domain::{Error, FindingId, Timestamp};
use futures::future::join_all;
use std::time::Duration;
use store::{Ambient as _, Cause, finding, maas_machine, node, site, site_sight};

fn profile(name: &str) -> Profile {
    Profile {
        name: name.to_owned(),
        architecture: "amd64/generic".into(),
        series: "noble".into(),
        kernel: "ga-24.04".into(),
        layout: Layout::Lvm,
        root_size: "100G".into(),
        boot_disk: DiskRule { model: "BOSS".into(), tag: "ssd".into(), min_bytes: 1 << 37, max_bytes: u64::MAX / 2 },
        pxe_subnet: "cidr:10.0.0.0/24".into(),
        roce: vec![RoceNetwork {
            interface: "ens*np0".into(),
            subnet: "name:roce \"a\"".into(),
            mode: LinkMode::Auto,
            mtu: 9000,
        }],
        cloud_init: "#cloud-config\nx: '{{ node }}'\n".into(),
        agent_url: "https://files/agent".into(),
        agent_sha256: "ab".repeat(32),
        tags: vec!["gpu".into(), "h100".into()],
        pool: "gpu".into(),
        zone: "hall-1".into(),
        testing_scripts: vec!["none".into()],
    }
}

pub fn site(name: &str) -> Site {
    Site {
        name: name.to_owned(),
        state: SiteState::Present,
        version: 1,
        url: format!("https://{name}:5240/MAAS"),
        ca_pem: "-----BEGIN CERTIFICATE-----".into(),
        credentials_ref: format!("{name}-key"),
        policy: SitePolicy {
            poll: Duration::from_millis(7500),
            list: Duration::from_secs(77),
            calls_max: 3,
            erase: Erase::Secure,
            keep_record: false,
            datasource_retries: 1,
            hardware_sync: false,
            sync_intervals: 5,
        },
        profiles: vec![profile("gpu"), profile("cpu")],
        created_at: Timestamp::default(),
        updated_at: Timestamp::default(),
    }
}

async fn make(store: &TestStore, name: &str) -> Site {
    let new = site(name);
    let put = move |tx: &mut store::Tx<'_>| site::put(tx, None, &new, &Cause::operator("root", CREATED, ""));
    store.put(name, put).await.expect("made")
}

fn machine(site: &str, id: &str, mac: &str) -> ObservedMachine {
    let at = Timestamp::from_micros(5);
    ObservedMachine {
        at: MaasRef { site: site.to_owned(), system_id: id.to_owned() },
        told: Told {
            status: 6,
            status_name: "Deployed".into(),
            power_state: "on".into(),
            hostname: format!("host-{id}"),
            owner: "millwright".into(),
            hardware_uuid: format!("4C4C4544-0033-3210-8053-{id:0>12}"),
            serial: format!("SN-{id}"),
            pool: "gpu".into(),
            zone: "hall-1".into(),
            osystem: "ubuntu".into(),
            series: "noble".into(),
            architecture: "amd64/generic".into(),
            netboot: false,
            locked: true,
            macs: vec![mac.to_owned()],
            boot_mac: mac.to_owned(),
            addresses: vec!["10.0.0.7".into()],
            management_ip: "10.0.0.7".into(),
            tags: vec!["a 'quoted' one".into()],
            last_sync: "2026-11-15T07:46:41.000Z".into(),
            installation: Some(12),
        },
        settled: None,
        first_seen_at: at,
        status_since: at,
        changed_at: at,
        absent_since: None,
    }
}

async fn seen(store: &TestStore, site: &'static str, machines: Vec<ObservedMachine>) {
    store.put(site, move |tx| maas_machine::put(tx, site, &machines)).await.expect("written");
}

on_every_store!(a_site_comes_changes_and_goes_and_keeps_its_row, |store| async move {
    let before = store.log_after(0).await.len() as u64;
    let made = make(&store, "lab").await;
    assert_eq!(made, Site { created_at: made.created_at, updated_at: made.updated_at, ..site("lab") });
    let wished = Site { url: "https://other:5443/MAAS".into(), profiles: vec![profile("one")], ..made.clone() };
    let (there, new) = (made.clone(), wished.clone());
    store.clock.skip(Duration::from_secs(1));
    let changed = store
        .put("lab", move |tx| site::put(tx, Some(&there), &new, &Cause::operator("root", CHANGED, "")))
        .await
        .expect("changed");
    assert_eq!(changed, Site { version: 2, updated_at: changed.updated_at, ..wished });
    assert!(changed.updated_at > made.updated_at && changed.created_at == made.created_at);
    let (stale, new) = (made.clone(), made.clone());
    let late = store.put("lab", move |tx| site::put(tx, Some(&stale), &new, &Cause::operator("root", CHANGED, "")));
    assert!(late.await.is_err(), "who has read an older one changes nothing");
    let (there, gone) = (changed.clone(), Site { state: SiteState::Removed, ..changed });
    let gone = store
        .put("lab", move |tx| site::put(tx, Some(&there), &gone, &Cause::operator("root", REMOVED, "")))
        .await
        .expect("removed");
    assert_eq!(store.read(|tx| site::list(tx, &Filter::Everything, "", 10)).await, Ok(Vec::new()));
    assert_eq!(store.put("lab", |tx| site::hold(tx, "lab")).await, Ok(None));
    assert_eq!(store.point(site::by_name("lab")).await, Ok(Some(gone.clone())), "its row stays");
    let again = Site { state: SiteState::Present, ..gone.clone() };
    let back = store.put("lab", move |tx| site::put(tx, Some(&gone), &again, &Cause::operator("root", CREATED, "")));
    assert_eq!(back.await.map(|s| (s.version, s.state)), Ok((4, SiteState::Present)));
    let log = store.log_after(before).await;
    let moves: Vec<_> = log.iter().map(|r| (r.to_state.as_str(), r.trigger.as_str(), r.version)).collect();
    assert_eq!(
        moves,
        [("present", CREATED, 1), ("present", CHANGED, 2), ("removed", REMOVED, 3), ("present", CREATED, 4)]
    );
    assert!(!log.iter().any(|r| r.metadata.contains("CERTIFICATE")));
});

on_every_store!(sites_are_listed_by_name_and_found_by_their_credential, |store| async move {
    for name in ["b", "a", "c"] {
        make(&store, name).await;
    }
    let names = |after: &'static str, filter: &'static str| {
        let store = &store;
        async move {
            let filter = site::FILTER.parse(filter).expect("a filter");
            let found = store.read(move |tx| site::list(tx, &filter, after, 2)).await.expect("reads");
            found.into_iter().map(|s| s.name).collect::<Vec<_>>()
        }
    };
    assert_eq!(names("", "").await, ["a", "b"]);
    assert_eq!(names("b", "").await, ["c"]);
    assert_eq!(names("", "credentials_ref=b-key").await, ["b"]);
    assert_eq!(store.read(|tx| site::with_credential(tx, "c-key")).await, Ok(Some("c".to_owned())));
    assert_eq!(store.read(|tx| site::with_credential(tx, "d-key")).await, Ok(None));
    assert_eq!(store.read(|tx| site::nodes(tx, "a")).await, Ok((0, None)));
});

on_every_store!(what_a_maas_says_is_read_as_it_was_written, |store| async move {
    make(&store, "lab").await;
    let one = machine("lab", "aaaaaa", "00:16:3e:00:00:01");
    seen(&store, "lab", vec![one.clone(), machine("lab", "bbbbbb", "00:16:3e:00:00:02")]).await;
    assert_eq!(store.point(maas_machine::by_ref(&one.at)).await, Ok(Some(one.clone())));
    assert_eq!(one.upstream(), Upstream::There { class: MaasClass::Deployed, power: MaasPower::On });
    let later = Timestamp::from_micros(9);
    let released = ObservedMachine {
        told: Told {
            status: 4,
            status_name: "Ready".into(),
            macs: vec!["00:16:3e:00:00:09".into()],
            ..one.told.clone()
        },
        settled: Some(one.told.traits()),
        status_since: later,
        changed_at: later,
        absent_since: Some(later),
        // not written again
        first_seen_at: later,
        ..one.clone()
    };
    seen(&store, "lab", vec![released.clone()]).await;
    let there = store.point(maas_machine::by_ref(&one.at)).await.expect("reads").expect("is there");
    assert_eq!(there, ObservedMachine { first_seen_at: one.first_seen_at, ..released });
    assert_eq!(there.upstream(), Upstream::Absent);
    let by = |mac: &'static str| store.read(move |tx| maas_machine::by_identifier(tx, Identifier::Mac, mac));
    assert_eq!(by("00:16:3e:00:00:01").await, Ok(Vec::new()), "it has another card since");
    assert_eq!(by("00:16:3e:00:00:09").await, Ok(Vec::new()), "and what is absent is not found");
    assert_eq!(by("00:16:3E:00:00:02").await.map(|m| m.len()), Ok(1), "in whatever case");
    assert_eq!(store.read(|tx| maas_machine::count(tx, "lab")).await, Ok(1));
    let at = one.at.clone();
    store.put("lab", move |tx| maas_machine::settle(tx, &at, None)).await.expect("written");
    let there = store.point(maas_machine::by_ref(&one.at)).await.expect("reads").expect("is there");
    assert_eq!(there.settled, None);
    store.put("lab", |tx| maas_machine::forget(tx, "lab")).await.expect("forgotten");
    assert_eq!(store.read(|tx| maas_machine::after(tx, "lab", "", 10)).await, Ok(Vec::new()));
});

on_every_store!(machines_that_share_an_identifier_are_told_with_each_other, |store| async move {
    make(&store, "lab").await;
    make(&store, "far").await;
    let mac = "00:16:3e:00:00:01";
    let twin = ObservedMachine {
        told: Told { serial: "sn-AAAAAA".into(), ..machine("far", "cccccc", mac).told },
        ..machine("far", "cccccc", mac)
    };
    let gone = ObservedMachine { absent_since: Some(Timestamp::from_micros(6)), ..machine("lab", "dddddd", mac) };
    // vendors write this where they have nothing to say
    let blank = |id: &str, mac: &str| {
        let m = machine("lab", id, mac);
        ObservedMachine {
            told: Told { serial: "To be filled by O.E.M.".into(), hardware_uuid: String::new(), ..m.told },
            ..m
        }
    };
    seen(
        &store,
        "lab",
        vec![machine("lab", "AAAAAA", mac), gone, blank("e1", "00:16:3e:00:00:0e"), blank("e2", "00:16:3e:00:00:0f")],
    )
    .await;
    seen(&store, "far", vec![twin]).await;
    let at = |site: &str, id: &str| MaasRef { site: site.to_owned(), system_id: id.to_owned() };
    let shared = |of: MaasRef| store.read(move |tx| maas_machine::shared(tx, &of));
    let other = at("far", "cccccc");
    assert_eq!(
        shared(at("lab", "AAAAAA")).await,
        Ok(vec![
            (Identifier::Mac, mac.to_owned(), other.clone()),
            (Identifier::Serial, "sn-aaaaaa".to_owned(), other.clone())
        ])
    );
    assert_eq!(shared(at("lab", "e1")).await, Ok(Vec::new()));
    let both = store.read(move |tx| maas_machine::by_identifier(tx, Identifier::Mac, mac)).await.expect("reads");
    assert_eq!(both.iter().map(|m| m.at.to_string()).collect::<Vec<_>>(), ["far/cccccc", "lab/AAAAAA"]);
});

on_every_store!(machines_are_listed_by_what_is_asked_for, |store| async move {
    make(&store, "lab").await;
    let ready = |m: ObservedMachine| ObservedMachine {
        told: Told { status: 4, status_name: "Ready".into(), owner: String::new(), ..m.told },
        ..m
    };
    let all = vec![
        machine("lab", "a", "00:16:3e:00:00:0a"),
        ready(machine("lab", "b", "00:16:3e:00:00:0b")),
        ready(machine("lab", "c", "00:16:3e:00:00:0c")),
    ];
    seen(&store, "lab", all).await;
    let ids = |filter: &'static str, after: &'static str, limit: usize| {
        let store = &store;
        async move {
            let filter = maas_machine::FILTER.parse(filter).expect("a filter");
            let found =
                store.read(move |tx| maas_machine::list(tx, "lab", &filter, after, limit)).await.expect("reads");
            found.into_iter().map(|m| m.machine.at.system_id).collect::<Vec<_>>()
        }
    };
    assert_eq!(ids("", "", 2).await, ["a", "b"]);
    assert_eq!(ids("", "b", 2).await, ["c"]);
    assert_eq!(ids("class=ready", "", 9).await, ["b", "c"]);
    assert_eq!(ids("status<5 AND serial=SN-c", "", 9).await, ["c"]);
    assert_eq!(ids("node_id=nod_1", "", 9).await, Vec::<String>::new());
});

on_every_store!(only_the_last_observer_writes_how_a_site_was_seen, |store| async move {
    make(&store, "lab").await;
    assert_eq!(store.point(site_sight::of_site("lab")).await, Ok(None));
    let first = Sight { observer: "one".into(), last_poll_at: Some(Timestamp::from_micros(3)), ..Sight::default() };
    let put = |sight: Sight| store.put("lab", move |tx| site_sight::put(tx, "lab", &sight));
    assert_eq!(put(first.clone()).await, Ok(true));
    assert_eq!(put(Sight { observer: "two".into(), ..first.clone() }).await, Ok(false), "there is a first one");
    let second = Sight {
        round: 1,
        observer: "two".into(),
        last_poll_at: Some(Timestamp::from_micros(4)),
        last_list_at: Some(Timestamp::from_micros(4)),
        event_mark: Some(-7),
        unreachable_since: Some(Timestamp::from_micros(4)),
        unreachable_why: "it is silent".into(),
    };
    assert_eq!(put(second.clone()).await, Ok(true));
    assert_eq!(put(Sight { round: 1, ..first }).await, Ok(false));
    assert_eq!(store.point(site_sight::of_site("lab")).await, Ok(Some(Sight { round: 2, ..second })));
    let still = |round| store.put("lab", move |tx| site_sight::is_still(tx, "lab", round));
    assert_eq!((still(1).await, still(2).await), (Ok(false), Ok(true)));
});

on_threaded_stores!(of_many_that_look_at_once_one_is_written, |store| async move {
    make(&store, "lab").await;
    let look = |n: usize| {
        let sight = Sight { observer: format!("server {n}"), ..Sight::default() };
        store.put("lab", move |tx| site_sight::put(tx, "lab", &sight))
    };
    let written: Vec<Result<bool, Error>> = join_all((0..8).map(look)).await;
    assert_eq!(written.iter().filter(|w| **w == Ok(true)).count(), 1, "{written:?}");
});

on_every_store!(machines_of_nodes_come_with_what_they_are_judged_by, |store| async move {
    make(&store, "lab").await;
    let mac = "00:16:3e:00:00:01";
    let twin = machine("lab", "twin", mac);
    seen(&store, "lab", vec![machine("lab", "a", mac), machine("lab", "b", "00:16:3e:00:00:02"), twin]).await;
    let mut nodes = Vec::new();
    for id in ["a", "b", "unseen"] {
        let row = crate::nodes::insert(&store, id).await;
        let row = Node { maas: Some(MaasRef { site: "lab".into(), system_id: id.into() }), ..row };
        nodes.push(store.put("nodes", move |tx| node::save(tx, &row)).await.expect("saves"));
    }
    crate::jobs::insert(&store, &nodes[1].id, JobKind::Onboarding(domain::job_stage::Ground::Maas))
        .await
        .expect("a job");
    let subject = nodes[0].id.to_string();
    let fresh = FindingId::generate(store.clock.uuid());
    let raise = move |tx: &mut store::Tx<'_>| {
        finding::raise(tx, fresh.clone(), FindingKind::MaasDuplicate, &subject, "twice", "test")
    };
    store.put("findings", raise).await.expect("raised");
    let linked = store.read(|tx| maas_machine::linked(tx, "lab", "", 9)).await.expect("reads");
    let of = |job: &Option<domain::maas_drift::OfJob>| job.map(|job| (job.status, job.stage));
    let shown: Vec<_> =
        linked.iter().map(|l| (l.machine.at.system_id.as_str(), of(&l.job), l.shares, l.open)).collect();
    assert_eq!(shown, [("a", None, true, 1), ("b", Some((JobStatus::Pending, None)), false, 0)]);
    assert_eq!((&linked[0].node.id, linked[0].quiet_since), (&nodes[0].id, nodes[0].status_changed_at));
    let one = store.point(maas_machine::linked_node("lab", &nodes[1].id)).await.expect("reads");
    assert_eq!(one.as_ref(), Some(&linked[1]));
    assert_eq!(store.read(|tx| maas_machine::linked(tx, "lab", "a", 9)).await.map(|l| l.len()), Ok(1));
    assert_eq!(linked.iter().map(|l| (l.deploys, l.deployed_at)).collect::<Vec<_>>(), [(false, None), (true, None)]);
    // never seen, or a job is at it; those at rest wait for their turn
    let urgent = |after: &'static str, limit| store.read(move |tx| maas_machine::urgent(tx, "lab", after, limit));
    assert_eq!(urgent("", 9).await, Ok(vec!["b".to_owned(), "unseen".to_owned()]));
    assert_eq!(urgent("b", 9).await, Ok(vec!["unseen".to_owned(), "b".to_owned()]), "whoever was last is last");
    assert_eq!(urgent("unseen", 1).await, Ok(vec!["b".to_owned()]));
    let open = store.read(|tx| finding::open_of_kind(tx, FindingKind::MaasDuplicate, "", 9)).await.expect("reads");
    assert_eq!(open.iter().map(|f| f.message.as_str()).collect::<Vec<_>>(), ["twice"]);
});
