//! Listing machines: filters in one grammar, pages that are complete and stable.

use crate::fixture::{Api, map, on_both, sim_machine, start};
use crate::refusal::refused;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase;
use std::collections::BTreeSet;
use tonic::{Code, Status};

async fn page(api: &Api, filter: &str, size: i32, token: &str) -> Result<pb::ListMachinesResponse, Status> {
    let request = pb::ListMachinesRequest { filter: filter.into(), page_size: size, page_token: token.into() };
    Ok(api.machines().list_machines(request).await?.into_inner())
}

/// Four machines that differ in phase, labels and spec.
async fn four(api: &Api) {
    for (id, env, rack) in [("m-1", "prod", "r1"), ("m-2", "prod", "r2"), ("m-3", "test", "r1"), ("m-4", "test", "r2")]
    {
        let mut machine = sim_machine(id, &[("env", env)]);
        machine.spec.as_mut().expect("a spec").rack = rack.into();
        if id == "m-3" {
            // the label counts where the field is empty
            machine.spec.as_mut().expect("a spec").provider = String::new();
            machine.labels.insert("provider".into(), "sim".into());
        }
        api.register(machine).await;
    }
    api.set_phase("m-2", Phase::Ready).await;
    api.set_phase("m-4", Phase::Ready).await;
    api.set_phase("m-4", Phase::Maintenance).await;
}

// G-15-05, CONTRACT's grammar: `phase=IN_SERVICE AND labels.env=prod`
on_both!(filters_select_by_fields_and_labels_with_and_or_not, |api| async move {
    four(&api).await;
    for (filter, expected) in [
        ("", vec!["m-1", "m-2", "m-3", "m-4"]),
        ("phase=FACTORY_READY", vec!["m-1", "m-3"]),
        ("phase=MAINTENANCE", vec!["m-4"]),
        ("phase=RETIRED", vec![]),
        ("phase != FACTORY_READY", vec!["m-2", "m-4"]),
        ("machine_id=m-3", vec!["m-3"]),
        ("rack=r1", vec!["m-1", "m-3"]),
        ("provider=sim", vec!["m-1", "m-2", "m-3", "m-4"]),
        ("labels.env=prod", vec!["m-1", "m-2"]),
        ("labels.env=\"prod\"", vec!["m-1", "m-2"]),
        ("labels.sim.latency_ms=0", vec!["m-1", "m-2", "m-3", "m-4"]),
        ("labels.sim.latency_ms=1", vec![]),
        ("labels:env", vec!["m-1", "m-2", "m-3", "m-4"]),
        ("labels:nothing", vec![]),
        ("labels.env:prod", vec!["m-1", "m-2"]),
        ("labels.env:*", vec!["m-1", "m-2", "m-3", "m-4"]),
        ("labels.env=prod AND rack=r2", vec!["m-2"]),
        ("phase=READY OR phase=MAINTENANCE", vec!["m-2", "m-4"]),
        ("NOT labels.env=prod", vec!["m-3", "m-4"]),
        ("-labels.env=prod", vec!["m-3", "m-4"]),
        ("labels.env=test AND NOT rack=r1", vec!["m-4"]),
        ("(labels.env=prod AND rack=r1) OR machine_id=m-4", vec!["m-1", "m-4"]),
        // OR binds tighter than AND (AIP-160)
        ("labels.env=prod AND rack=r1 OR machine_id=m-4", vec!["m-1"]),
    ] {
        assert_eq!(api.machine_ids(filter).await, expected, "{filter}");
    }
});

// G-15-05: a machine that is held by nobody is not held by that run
on_both!(filters_by_active_run_count_machines_without_one, |api| async move {
    api.freeze().await;
    api.sim("m-1", &[]).await;
    api.sim("m-2", &[]).await;
    let run = api.start(start("m-1", "REBOOT", "r1")).await.run_id;
    assert_eq!(api.machine_ids(&format!("active_run_id={run}")).await, ["m-1"]);
    assert_eq!(api.machine_ids(&format!("active_run_id!={run}")).await, ["m-2"]);
    assert_eq!(api.machine_ids(&format!("NOT active_run_id={run}")).await, ["m-2"]);
});

// CONTRACT: a bad filter is INVALID_ARGUMENT
#[tokio::test]
async fn a_bad_filter_says_what_is_wrong() {
    let api = Api::new().await;
    let long = "x".repeat(3000);
    let many = vec!["phase=READY"; 40].join(" OR ");
    let deep = "(".repeat(500);
    for (filter, says) in [
        ("phase=SLEEPING", "FACTORY_READY"),
        ("colour=red", "colour"),
        ("phase", "phase"),
        ("phase>READY", "phase"),
        ("phase=READY rack=r1", "AND"),
        ("phase=", "filter"),
        ("=READY", "filter"),
        ("phase=READY AND", "filter"),
        ("f(x)=1", "f"),
        ("labels=prod", "labels"),
        ("conditions.Reachable=true", "conditions"),
        (long.as_str(), "filter"),
        (many.as_str(), "terms"),
        (deep.as_str(), "filter"),
    ] {
        let refusal = refused(page(&api, filter, 0, "").await, Code::InvalidArgument, "INVALID_FILTER").says(says);
        assert_eq!(refusal.field, "filter", "{filter}");
    }
    let refusal = refused(page(&api, "colour=red", 0, "").await, Code::InvalidArgument, "INVALID_FILTER");
    assert!(refusal.allowed().contains(&"phase"), "the known fields are listed: {refusal:?}");
}

// filters are values, never SQL
on_both!(quotes_and_wildcards_in_a_filter_are_plain_text, |api| async move {
    let odd = "it's \"odd\" 100%_";
    api.sim("m-1", &[("note", odd)]).await;
    api.sim("m-2", &[("note", "plain")]).await;
    let quoted = odd.replace('"', "\\\"");
    assert_eq!(api.machine_ids(&format!("labels.note=\"{quoted}\"")).await, ["m-1"]);
    assert_eq!(api.machine_ids("labels.note=\"%\"").await, Vec::<String>::new());
    assert_eq!(api.machine_ids("labels.note=\"' OR '1'='1\"").await, Vec::<String>::new());
});

// G-15-06, G-15-07, G-15-08, G-15-12
on_both!(following_page_tokens_returns_each_machine_once_in_order, |api| async move {
    // upper and lower case, digits and signs: the order is that of bytes on either database
    let mut ids: Vec<String> = (0..23).map(|i| format!("{}-{i}", ["a", "B", "_c", "d.d", "0"][i % 5])).collect();
    for id in &ids {
        api.sim(id, &[]).await;
    }
    ids.sort();
    for size in [1, 5, 7, 23, 24, 1000] {
        let (mut seen, mut token) = (Vec::new(), String::new());
        loop {
            let next = page(&api, "", size, &token).await.expect("a page");
            assert!(next.machines.len() <= usize::try_from(size).expect("a size"));
            seen.extend(next.machines.into_iter().map(|m| m.machine_id));
            token = next.next_page_token;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(seen, ids, "pages of {size}");
    }
});

// G-15-12
#[tokio::test]
async fn pages_stay_complete_while_machines_are_added() {
    let api = Api::new().await;
    let before: Vec<String> = (0..20).map(|i| format!("m-{:02}", 2 * i)).collect();
    for id in &before {
        api.sim(id, &[]).await;
    }
    let (mut seen, mut token, mut added) = (Vec::new(), String::new(), 1);
    loop {
        let next = page(&api, "", 3, &token).await.expect("a page");
        seen.extend(next.machines.into_iter().map(|m| m.machine_id));
        token = next.next_page_token;
        if token.is_empty() {
            break;
        }
        // one before and one behind the place where we are
        api.sim("a-early", &[]).await;
        api.sim(&format!("m-{added:02}"), &[]).await;
        added += 12;
    }
    let unique: BTreeSet<&String> = seen.iter().collect();
    assert_eq!(unique.len(), seen.len(), "none twice");
    assert!(before.iter().all(|id| unique.contains(id)), "none left out: {seen:?}");
    assert!(seen.is_sorted());
}

// G-15-06: the default, and the bounds
#[tokio::test]
async fn a_page_has_a_hundred_unless_told_and_a_thousand_at_most() {
    let api = Api::new().await;
    let api = &api;
    futures::future::join_all((0..101).map(|i| async move { api.sim(&format!("m-{i}"), &[]).await })).await;
    assert_eq!(page(api, "", 0, "").await.expect("a page").machines.len(), 100);
    let whole = page(api, "", 1000, "").await.expect("a page");
    assert_eq!((whole.machines.len(), whole.next_page_token.as_str()), (101, ""));
}

// G-15-05 and G-15-12 together
#[tokio::test]
async fn a_filter_holds_over_all_pages() {
    let api = Api::new().await;
    for i in 0..9 {
        api.sim(&format!("m-{i}"), &[("odd", if i % 2 == 1 { "yes" } else { "no" })]).await;
    }
    let first = page(&api, "labels.odd=yes", 3, "").await.expect("a page");
    let second = page(&api, "labels.odd=yes", 3, &first.next_page_token).await.expect("a page");
    let ids = |p: pb::ListMachinesResponse| p.machines.into_iter().map(|m| m.machine_id).collect::<Vec<_>>();
    assert_eq!(second.next_page_token, "");
    assert_eq!((ids(first), ids(second)), (vec!["m-1".into(), "m-3".into(), "m-5".into()], vec!["m-7".into()]));
}

// G-20-11, G-20-12: what a caller does with an answer never reaches the store
#[tokio::test]
async fn what_is_read_is_a_copy() {
    let api = Api::new().await;
    let mut mine = api.sim("m-1", &[("env", "prod")]).await;
    mine.labels = map(&[("env", "changed by the caller")]);
    assert_eq!(api.machine("m-1").await.labels["env"], "prod");
}
