//! Where each field of a call's message comes from.

use super::super::route::all;
use super::*;
use crate::json::{Json as Shown, pool};
use serde_json::json;

fn route(name: &str) -> Route {
    let routes = all(pool().expect("descriptors")).expect("routes");
    routes.into_iter().find(|r| r.rpc.name() == name).expect("the call is there")
}

fn asked(call: &str, captured: &[&str], query: &str, body: &str) -> Result<Json, Error> {
    let brought = Brought { captured, query: Some(query), body: body.as_bytes(), last_event: None };
    Ok(serde_json::to_value(Shown(&message(&route(call), &brought)?)).expect("JSON"))
}

fn wrong(call: &str, captured: &[&str], query: &str, body: &str) -> String {
    asked(call, captured, query, body).expect_err("is refused").message
}

#[test]
fn queries_set_fields_by_their_names() {
    let list = |query| asked("ListMachines", &[], query, "").expect("reads");
    let expected = json!({"filter": "labels.env=prod AND phase=READY", "page_size": 5, "page_token": ""});
    assert_eq!(list("filter=labels.env%3Dprod+AND+phase=READY&page_size=5"), expected);
    // a form that was not filled in
    assert_eq!(list("filter=&page_size=&page_token="), json!({"filter": "", "page_size": 0, "page_token": ""}));
    let logs = asked("StreamRunLogs", &["r-1"], "no_follow=true&after_sequence=18446744073709551615", "");
    let expected = json!({"run_id": "r-1", "after_sequence": "18446744073709551615", "no_follow": true});
    assert_eq!(logs.expect("reads"), expected);
}

#[test]
fn queries_that_do_not_fit_are_named() {
    let told = |query| wrong("ListMachines", &[], query, "");
    assert_eq!(told("page=1"), "page: unknown in the query; known are: filter, page_size, page_token");
    assert!(told("page_size=many").starts_with("page_size: expected a whole number"));
    assert!(told("page_size=99999999999").starts_with("page_size: expected a whole number"));
    assert_eq!(told("page_size=1&page_size=2"), "page_size: stands twice in the query");
    assert_eq!(wrong("GetRun", &["r"], "run_id=x", ""), "run_id: unknown in the query; this call takes nothing there");
    let follow = wrong("StreamRunLogs", &["r"], "no_follow=yes", "");
    assert_eq!(follow, "no_follow: expected true or false, found \"yes\"");
}

#[test]
fn a_body_is_the_field_or_wrapped_in_its_name() {
    let bare = asked("RegisterMachine", &[], "", r#"{"machine_id": "m"}"#).expect("reads");
    assert_eq!(bare["machine"]["machine_id"], "m");
    let wrapped = asked("RegisterMachine", &[], "", r#"{"machine": {"machine_id": "m"}}"#).expect("reads");
    assert_eq!(wrapped, bare);
    let more = wrong("RegisterMachine", &[], "", r#"{"machine": {}, "labels": {}}"#);
    assert!(more.starts_with("machine: unknown field"), "{more}");
    // absent: the handler says that it must be given
    for body in ["", " \n", "null"] {
        assert_eq!(asked("RegisterMachine", &[], "", body).expect("reads"), json!({"machine": null}));
    }
}

#[test]
fn an_empty_body_is_an_empty_object() {
    let cancel = asked("CancelRun", &["r-1"], "", "").expect("reads");
    assert_eq!(cancel, json!({"run_id": "r-1"}));
    assert_eq!(asked("CancelRun", &["r-1"], "", "{}").expect("reads"), cancel);
}

#[test]
fn the_body_may_repeat_the_path_but_not_contradict_it() {
    let body = |id: &str| format!(r#"{{"machine_id": "{id}", "phase": "READY"}}"#);
    let same = asked("SetPhase", &["m-1"], "", &body("m-1")).expect("reads");
    assert_eq!(same["machine_id"], "m-1");
    asked("SetPhase", &["m-1"], "", &body("")).expect("empty is absent");
    let told = "machine_id: the body and the path say different things";
    assert_eq!(wrong("SetPhase", &["m-1"], "", &body("m-2")), told);
    assert_eq!(wrong("UpdateMachine", &["m-1"], "", r#"{"machine_id": "m-2"}"#), told);
}

#[test]
fn a_patch_names_what_it_holds() {
    let body = r#"{"machine_id": "m-1", "version": "3", "status": {"phase": 1}, "labels": {"a": null, "b": "2"},
        "spec": {"rack": "r1"}}"#;
    let asked_for = asked("UpdateMachine", &["m-1"], "", body).expect("reads");
    assert_eq!(asked_for["update_mask"], "labels.a,labels.b,spec.rack");
    let machine = &asked_for["machine"];
    assert_eq!((&machine["version"], &machine["labels"]), (&json!("3"), &json!({"b": "2"})));
    assert_eq!((&machine["status"], &machine["spec"]["rack"]), (&json!(null), &json!("r1")));
    let nothing = asked("UpdateMachine", &["m-1"], "", "{}").expect("reads");
    assert_eq!((&nothing["update_mask"], &nothing["machine"]["machine_id"]), (&json!(""), &json!("m-1")));
    let given = asked("UpdateMachine", &["m-1"], "update_mask=spec.rack,labels", body).expect_err("a null label");
    assert_eq!(given.message, "labels.a: expected a text, found null");
    let given = asked("UpdateMachine", &["m-1"], "update_mask=spec.rack,labels", r#"{"labels": {}}"#).expect("reads");
    assert_eq!(given["update_mask"], "spec.rack,labels");
}

#[test]
fn the_last_event_wins_over_the_query() {
    let route = route("WatchRuns");
    let read = |last_event| {
        let brought = Brought { captured: &[], query: Some("after_sequence=3"), body: b"", last_event };
        message(&route, &brought).map(|m| serde_json::to_value(Shown(&m)).expect("JSON")["after_sequence"].clone())
    };
    assert_eq!(read(None).expect("reads"), "3");
    assert_eq!(read(Some("7")).expect("reads"), "7");
    assert_eq!(read(Some("")).expect("reads"), "3");
    assert_eq!(read(Some("x")).expect_err("is refused").message, "last-event-id: \"x\" is no sequence");
}

#[test]
fn what_is_no_json_says_where() {
    for body in
        ["{", "{\"a\": 1,}", "[1", "\u{feff}{}", "{} {}", "{\"machine_id\": \"\\ud800\"}", "'x'", "{\"a\": 1e999}"]
    {
        let told = wrong("RegisterMachine", &[], "", body);
        assert!(told.starts_with("body: is not valid JSON: ") && told.contains("line 1"), "{body}: {told}");
    }
    let brought = Brought { captured: &[], query: None, body: b"{\"machine_id\": \"\xff\"}", last_event: None };
    assert!(message(&route("RegisterMachine"), &brought).is_err(), "is no UTF-8");
}
