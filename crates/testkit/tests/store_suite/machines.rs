//! Machines: registering, listing, filtering, identity, and compare-and-swap on the spec.

use crate::fixture::{TestStore, labels, machine_id, on_every_store, register, set_phase};
use domain::condition::{Condition, ConditionType};
use domain::lifecycle::{Owner, State as _};
use domain::machine::{Labels, Machine, MachineSpec, Phase};
use domain::{Reason, RunId};
use std::collections::BTreeSet;
use store::{Ambient as _, machine};

fn rich_spec() -> MachineSpec {
    MachineSpec {
        ssh_endpoint: "10.0.0.1:22".into(),
        bmc_endpoint: "https://10.0.1.1".into(),
        target_cluster_ref: "prod".into(),
        mac_addresses: vec!["aa:bb:cc:dd:ee:01".into(), "aa:bb:cc:dd:ee:02".into()],
        provider: "sim".into(),
        location: "zürich \"1\"".into(),
        rack: "r1".into(),
        serial_number: "SN-1".into(),
        customer_id: "acme".into(),
        system_uuid: "4d570000-0000-4000-8000-5254004d5800".into(),
        credentials_ref: "vault:a".into(),
    }
}

on_every_store!(what_is_registered_can_be_read, |store| async move {
    let (spec, tags) = (rich_spec(), labels(&[("env", "prod"), ("größe", "x'y\"z")]));
    let (s, l) = (spec.clone(), tags.clone());
    let inserted = store.put("m-1", move |tx| register(tx, &machine_id("m-1"), &s, &l)).await.expect("registers");
    assert_eq!((&inserted.spec, &inserted.labels, inserted.version), (&spec, &tags, 1));
    assert_eq!((inserted.phase, inserted.phase_set_by), (Phase::FactoryReady, Owner::Operator));
    assert_eq!((inserted.created_at, inserted.updated_at), (inserted.phase_set_at, inserted.phase_set_at));
    assert_eq!((&inserted.active_run, &inserted.last_seen(), inserted.conditions.len()), (&None, &None, 0));
    assert_eq!(store.machine("m-1").await, Some(inserted));
    assert_eq!(store.machine("m-2").await, None);
    assert_eq!(store.read(machine::count).await, Ok(1));
});

on_every_store!(registering_twice_is_refused_and_changes_nothing, |store| async move {
    let first = store.register("m-1").await;
    let head = store.head().await;
    let again = store.put("m-1", |tx| register(tx, &machine_id("m-1"), &MachineSpec::default(), &Labels::new())).await;
    assert!(again.is_err(), "callers look first; the key is the last line of defence");
    assert_eq!((store.machine("m-1").await, store.head().await), (Some(first), head));
});

/// Ids whose order by bytes differs from every language's.
fn awkward_ids() -> Vec<String> {
    let mut ids: Vec<String> =
        ["a", "B", "a-1", "a_1", "a.1", "A1", "a1", "Z", "z", "_", "-x", "10", "9", "aa", "aB", "AB"]
            .iter()
            .map(|s| (*s).to_owned())
            .collect();
    ids.extend((0..60).map(|i| format!("M-{i:03}")));
    ids
}

on_every_store!(paging_is_stable_and_complete_while_others_insert, |store| async move {
    let before = awkward_ids();
    for id in &before {
        store.register(id).await;
    }
    let inserting = async {
        for i in 0..60 {
            store.register(&format!("M-{i:03}x")).await;
        }
    };
    let paging = async {
        let (mut seen, mut after) = (Vec::new(), String::new());
        loop {
            let from = after.clone();
            let everything = machine::FILTER.parse("").expect("parses");
            let page = store.read(move |tx| machine::list(tx, &everything, &from, 7)).await.expect("lists");
            let Some(last) = page.last() else { return seen };
            after = last.id.to_string();
            seen.extend(page.into_iter().map(|m| m.id.to_string()));
            tokio::task::yield_now().await;
        }
    };
    let (_, seen) = tokio::join!(inserting, paging);
    assert!(seen.is_sorted(), "by bytes: {seen:?}");
    let set: BTreeSet<&String> = seen.iter().collect();
    assert_eq!(set.len(), seen.len(), "none twice");
    assert!(before.iter().all(|id| set.contains(id)), "none missing");
});

/// What the domain says a filter means, on the machine as it was read.
fn field_of(machine: &Machine, name: &str) -> Option<String> {
    Some(match name {
        "machine_id" => machine.id.to_string(),
        "phase" => machine.phase.to_string(),
        "provider" => machine.spec.provider.clone(),
        "location" => machine.spec.location.clone(),
        "rack" => machine.spec.rack.clone(),
        "serial_number" => machine.spec.serial_number.clone(),
        "system_uuid" => machine.spec.system_uuid.clone(),
        "customer_id" => machine.spec.customer_id.clone(),
        "target_cluster_ref" => machine.spec.target_cluster_ref.clone(),
        "active_run_id" => machine.active_run.as_ref()?.id.to_string(),
        label => machine.labels.get(label.strip_prefix("labels.")?)?.clone(),
    })
}

async fn a_small_fleet(store: &TestStore) {
    for i in 0..24 {
        let id = machine_id(&format!("m-{i:02}"));
        let spec = MachineSpec {
            rack: format!("r{}", i % 3),
            provider: if i % 2 == 0 { "sim".into() } else { String::new() },
            customer_id: "acme".into(),
            serial_number: format!("S{i}"),
            ..MachineSpec::default()
        };
        let mut tags = labels(&[("n", &(i % 4).to_string())]);
        if i % 5 == 0 {
            tags.insert("env".into(), "prod".into());
            tags.insert("sim.latency_ms".into(), "0".into());
        }
        store
            .put(&id.to_string(), move |tx| {
                register(tx, &id, &spec, &tags)?;
                if i % 3 == 0 {
                    assert_eq!(set_phase(tx, &id, Phase::Ready)?, store::Moved::Moved);
                }
                Ok(())
            })
            .await
            .expect("registers");
    }
    let run = store.request("m-07", &["reboot"]).await;
    hold(store, "m-07", Some(run)).await;
}

async fn hold(store: &TestStore, id: &str, run: Option<RunId>) {
    let id = machine_id(id);
    store
        .put(&id.to_string(), move |tx| {
            let m = machine::get_for_update(tx, &id)?.expect("is there");
            machine::set_hold(tx, &m, run.as_ref(), &m.conditions)
        })
        .await
        .expect("holds");
}

on_every_store!(filters_mean_what_the_domain_says, |store| async move {
    a_small_fleet(&store).await;
    let all = store.read(|tx| machine::list(tx, &domain::filter::Filter::Everything, "", 100)).await.expect("lists");
    assert_eq!(all.len(), 24);
    let run = all.iter().find_map(|m| m.active_run.clone()).expect("one is held");
    for (text, at_least) in [
        ("phase=READY", 8),
        ("phase!=READY", 16),
        ("rack=r1 AND provider=sim", 4),
        ("rack=r1 OR rack=r2", 16),
        ("NOT rack=r1", 16),
        ("-rack=r1", 16),
        ("rack=r0 AND (labels.n=0 OR labels.n=2)", 4),
        ("labels.env=prod", 5),
        ("NOT labels.env=prod", 19),
        ("labels.env!=prod", 19),
        ("labels:env", 5),
        ("labels.env:*", 5),
        ("NOT labels:env", 19),
        ("labels.sim.latency_ms=0", 5),
        ("machine_id=m-03", 1),
        ("serial_number=S4 OR serial_number=S5", 2),
        ("provider=\"\"", 12),
        ("customer_id=acme AND NOT (rack=r0 OR labels.n=1)", 1),
        ("machine_id=\"m-03' OR '1'='1\"", 0),
        (&format!("active_run_id={}", run.id), 1),
        (&format!("active_run_id!={}", run.id), 23),
        (&format!("NOT active_run_id={} AND rack=r1", run.id), 7),
    ] {
        let filter = machine::FILTER.parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let expected: Vec<Machine> =
            all.iter().filter(|m| filter.matches(&|name| field_of(m, name))).cloned().collect();
        assert!(expected.len() >= at_least, "{text}: a test that finds nothing tests nothing: {}", expected.len());
        let found = store.read(move |tx| machine::list(tx, &filter, "", 100)).await.expect("lists");
        let ids = |list: &[Machine]| list.iter().map(|m| m.id.to_string()).collect::<Vec<_>>();
        assert_eq!(ids(&found), ids(&expected), "{text}");
    }
});

on_every_store!(an_identity_conflict_names_the_holder_and_leaves_nothing, |store| async move {
    let spec = rich_spec();
    store.put("m-1", move |tx| register(tx, &machine_id("m-1"), &spec, &Labels::new())).await.expect("registers");
    let head = store.head().await;
    for (field, spec) in [
        (
            "mac",
            MachineSpec {
                mac_addresses: vec!["0a:00:00:00:00:01".into(), "aa:bb:cc:dd:ee:02".into()],
                ..MachineSpec::default()
            },
        ),
        (
            "serial_number",
            MachineSpec {
                serial_number: "SN-1".into(),
                mac_addresses: vec!["0a:00:00:00:00:01".into()],
                ..MachineSpec::default()
            },
        ),
        (
            "system_uuid",
            MachineSpec {
                system_uuid: rich_spec().system_uuid,
                serial_number: "free".into(),
                ..MachineSpec::default()
            },
        ),
    ] {
        let tags = labels(&[("left", "behind")]);
        let refused =
            store.put("m-2", move |tx| register(tx, &machine_id("m-2"), &spec, &tags)).await.expect_err(field);
        assert_eq!(refused.reason, Reason::IdentityTaken, "{field}");
        assert_eq!(refused.details.get("machine_id").map(String::as_str), Some("m-1"), "{field}");
        assert_eq!(refused.details.get("field").map(String::as_str), Some(field));
        assert!(refused.message.contains("m-1"), "{}", refused.message);
        assert_eq!((store.machine("m-2").await, store.head().await), (None, head), "{field}");
    }
    // what the refused ones had taken before they were refused is free again
    let spec = MachineSpec {
        mac_addresses: vec!["0a:00:00:00:00:01".into()],
        serial_number: "free".into(),
        ..MachineSpec::default()
    };
    let tags = labels(&[("left", "behind")]);
    store.put("m-3", move |tx| register(tx, &machine_id("m-3"), &spec, &tags)).await.expect("nothing is left behind");
});

on_every_store!(the_spec_is_compared_and_swapped, |store| async move {
    let old = store.register("m-1").await;
    let (m, spec, tags) = (old.clone(), rich_spec(), labels(&[("env", "prod")]));
    let (s, l) = (spec.clone(), tags.clone());
    let updated = store.put("m-1", move |tx| machine::update_spec(tx, &m, &s, &l)).await.expect("updates");
    assert_eq!((updated.version, &updated.spec, &updated.labels), (2, &spec, &tags));
    assert_eq!(store.machine("m-1").await, Some(updated.clone()));
    // the same again is no change
    let (m, s, l) = (updated.clone(), spec.clone(), tags.clone());
    let same = store.put("m-1", move |tx| machine::update_spec(tx, &m, &s, &l)).await.expect("nothing to do");
    assert_eq!(same, updated);
    // from a stale reading it is refused, and says that trying again will do
    let stale = MachineSpec { rack: "elsewhere".into(), ..spec.clone() };
    let lost = store.put("m-1", move |tx| machine::update_spec(tx, &old, &stale, &Labels::new())).await;
    assert_eq!(lost.map_err(|e| e.reason), Err(Reason::Contention));
    assert_eq!(store.machine("m-1").await, Some(updated.clone()));
    // labels and identifiers follow
    let bare = updated.clone();
    store
        .put("m-1", move |tx| machine::update_spec(tx, &bare, &MachineSpec::default(), &Labels::new()))
        .await
        .expect("updates");
    let filter = machine::FILTER.parse("labels:env").expect("parses");
    assert_eq!(store.read(move |tx| machine::list(tx, &filter, "", 10)).await, Ok(vec![]));
    store.put("m-2", move |tx| register(tx, &machine_id("m-2"), &spec, &tags)).await.expect("its identifiers are free");
});

on_every_store!(an_update_that_takes_anothers_identity_is_undone_whole, |store| async move {
    let first = store
        .put("m-1", |tx| {
            let spec = MachineSpec { serial_number: "SN-2".into(), rack: "r1".into(), ..MachineSpec::default() };
            register(tx, &machine_id("m-1"), &spec, &labels(&[("a", "b")]))
        })
        .await
        .expect("registers");
    store.put("m-2", |tx| register(tx, &machine_id("m-2"), &rich_spec(), &Labels::new())).await.expect("registers");
    let m = first.clone();
    let refused = store.put("m-1", move |tx| machine::update_spec(tx, &m, &rich_spec(), &Labels::new())).await;
    assert_eq!(refused.map_err(|e| e.reason), Err(Reason::IdentityTaken));
    assert_eq!(store.machine("m-1").await, Some(first));
    let takes = |tx: &mut store::Tx<'_>| {
        let spec = MachineSpec { serial_number: "SN-2".into(), ..MachineSpec::default() };
        register(tx, &machine_id("m-3"), &spec, &Labels::new())
    };
    let kept = store.put("m-3", takes).await.expect_err("m-1 still holds its own");
    assert_eq!(kept.details.get("machine_id").map(String::as_str), Some("m-1"));
});

on_every_store!(conditions_and_hold_survive_the_way_through_a_row, |store| async move {
    let machine = store.register("m-1").await;
    let now = store.clock.now();
    let mut conditions: Vec<Condition> = Vec::new();
    for (i, kind) in ConditionType::ALL.into_iter().enumerate() {
        let mut condition = Condition::new(kind, i % 2 == 0, "Reason", now);
        condition.message = format!("\"{i}\" \\ ü");
        conditions.push(condition);
    }
    let (m, c) = (machine.clone(), conditions.clone());
    store.put("m-1", move |tx| machine::set_hold(tx, &m, None, &c)).await.expect("sets");
    let read = store.machine("m-1").await.expect("is there");
    assert_eq!((read.conditions, read.version), (conditions, 2));
    let lost = store.put("m-1", move |tx| machine::set_hold(tx, &machine, None, &[])).await;
    assert_eq!(lost.map_err(|e| e.reason), Err(Reason::Contention), "the version has moved");
});

on_every_store!(the_active_run_is_read_with_its_machine, |store| async move {
    store.register("m-1").await;
    let run = store.request("m-1", &["reboot"]).await;
    hold(&store, "m-1", Some(run.clone())).await;
    let active = store.machine("m-1").await.and_then(|m| m.active_run).expect("is held");
    assert_eq!((&active.id, active.phase.as_str(), active.run_type.as_str()), (&run, "PENDING", "REBOOT"));
    hold(&store, "m-1", None).await;
    assert_eq!(store.machine("m-1").await.and_then(|m| m.active_run), None);
});

on_every_store!(no_change_is_lost_between_many_writers, |store| async move {
    store.register("m-1").await;
    let one = || async {
        store
            .put("m-1", |tx| {
                let m = machine::get_for_update(tx, &machine_id("m-1"))?.expect("is there");
                let n: u64 = m.labels.get("n").map_or(0, |n| n.parse().expect("a number"));
                machine::update_spec(tx, &m, &m.spec, &labels(&[("n", &(n + 1).to_string())]))
            })
            .await
            .expect("counts")
    };
    futures::future::join_all((0..200).map(|_| one())).await;
    let m = store.machine("m-1").await.expect("is there");
    assert_eq!((m.labels.get("n").map(String::as_str), m.version), (Some("200"), 201));
});
