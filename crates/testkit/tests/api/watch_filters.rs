//! WatchRuns by fields that never change, and by no others.

use crate::fixture::{Api, start, start_plan};
use crate::refusal::refused;
use crate::watch::{next, snapshot, try_watch, watch};
use proto::baremetal::v1 as pb;
use tonic::Code;

/// Runs that differ in machine, type and request, all ended; their events in order.
async fn history(api: &Api) -> Vec<pb::RunEvent> {
    api.sim("m-1", &[]).await;
    api.sim("m-2", &[]).await;
    let mut last = String::new();
    for request in [
        start("m-1", "REBOOT", "req-1"),
        start("m-2", "REBOOT", "req-1"),
        start("m-1", "REPAVE", "req-2"),
        start_plan("m-2", "default-reboot", "req-3"),
        start("m-1", "REBOOT", "req-4"),
    ] {
        last = api.carry_out(request).await.run_id;
    }
    let mut stream = watch(api, "", Some(0)).await;
    let mut events = Vec::new();
    loop {
        let event = next(&mut stream).await;
        let is_last = snapshot(&event).run_id == last && crate::fixture::is_terminal(snapshot(&event));
        events.push(event);
        if is_last {
            return events;
        }
    }
}

type Wanted = fn(&pb::Run) -> bool;

// CONTRACT: filters use run_id, machine_id, type, request_id
#[tokio::test]
async fn a_filter_lets_through_exactly_what_matches() {
    let api = Api::new().await;
    let everything = history(&api).await;
    let filters: [(&str, Wanted); 7] = [
        ("machine_id=m-1", |r| r.machine_id == "m-1"),
        ("type=REBOOT", |r| r.r#type == "REBOOT"),
        ("type=\"\"", |r| r.r#type.is_empty()),
        ("request_id=req-1", |r| r.request_id == "req-1"),
        ("machine_id=m-1 AND type=REBOOT", |r| r.machine_id == "m-1" && r.r#type == "REBOOT"),
        ("request_id=req-1 OR request_id=req-4", |r| r.request_id == "req-1" || r.request_id == "req-4"),
        ("NOT machine_id=m-1", |r| r.machine_id != "m-1"),
    ];
    for (filter, wanted) in filters {
        let expected: Vec<&pb::RunEvent> = everything.iter().filter(|e| wanted(snapshot(e))).collect();
        assert!(!expected.is_empty() && expected.len() < everything.len(), "{filter}");
        let mut stream = watch(&api, filter, Some(0)).await;
        for event in expected {
            assert_eq!(next(&mut stream).await, *event, "{filter}");
        }
    }
}

// the filter holds for what is yet to come
#[tokio::test]
async fn a_filter_holds_for_what_follows() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    api.sim("m-2", &[]).await;
    let mut stream = watch(&api, "machine_id=m-2", None).await;
    api.carry_out(start("m-1", "REBOOT", "r1")).await;
    let run = api.carry_out(start("m-2", "REBOOT", "r1")).await;
    for version in 1..=run.version {
        let event = next(&mut stream).await;
        assert_eq!((snapshot(&event).run_id.as_str(), snapshot(&event).version), (run.run_id.as_str(), version));
    }
}

// CONTRACT: fields that change cannot be watched by, or an event would slip past
#[tokio::test]
async fn a_filter_by_phase_is_refused() {
    let api = Api::new().await;
    for filter in
        ["phase=RUNNING", "plan_id=p", "current_step=reboot", "machine_id=m-1 AND phase=PENDING", "type=DANCE"]
    {
        let refusal = try_watch(&api, filter, None).await.map(drop);
        let refusal = refused(refusal, Code::InvalidArgument, "INVALID_FILTER");
        assert_eq!(refusal.field, "filter", "{filter}");
    }
    let refusal =
        refused(try_watch(&api, "phase=RUNNING", None).await.map(drop), Code::InvalidArgument, "INVALID_FILTER");
    assert_eq!(refusal.allowed(), ["run_id", "machine_id", "request_id", "type"]);
}

// one run, named together with what it is not
#[tokio::test]
async fn a_run_that_the_rest_of_the_filter_excludes_is_not_found() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    let run = api.carry_out(start("m-1", "REBOOT", "r1")).await;
    let filter = format!("run_id={} AND machine_id=m-2", run.run_id);
    refused(try_watch(&api, &filter, None).await.map(drop), Code::NotFound, "RUN_NOT_FOUND");
}
