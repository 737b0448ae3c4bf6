//! PATCH: the keys of the body say what changes.

use crate::world::World;
use serde_json::{Value, json};

const M1: &str = "/api/v1/machines/m-1";

async fn world() -> World {
    let world = World::new().await;
    let machine = json!({"machine_id": "m-1", "labels": {"env": "prod", "role": "worker"},
        "spec": {"provider": "sim", "rack": "r1", "location": "here", "mac_addresses": ["aa:bb:cc:dd:ee:01"]}});
    world.http.post("/api/v1/machines", &machine).await.ok();
    world
}

// CONTRACT: REST PATCH derives the mask from the keys present
#[tokio::test]
async fn only_what_the_body_names_changes() {
    let world = world().await;
    let changed =
        world.http.patch(M1, &json!({"spec": {"rack": "r2"}, "labels": {"env": "test", "new": "1"}})).await.ok();
    assert_eq!(changed["labels"], json!({"env": "test", "new": "1", "role": "worker"}));
    let spec = &changed["spec"];
    assert_eq!((&spec["rack"], &spec["location"]), (&json!("r2"), &json!("here")));
    assert_eq!(spec["mac_addresses"], json!(["aa:bb:cc:dd:ee:01"]));
    assert_eq!(world.http.get(M1).await.ok(), changed);
}

#[tokio::test]
async fn null_takes_a_label_away_and_clears_a_field() {
    let world = world().await;
    let changed =
        world.http.patch(M1, &json!({"spec": {"rack": null, "mac_addresses": []}, "labels": {"env": null}})).await.ok();
    assert_eq!(changed["labels"], json!({"role": "worker"}));
    assert_eq!((&changed["spec"]["rack"], &changed["spec"]["mac_addresses"]), (&json!(""), &json!([])));
    let changed = world.http.patch(M1, &json!({"labels": null})).await.ok();
    assert_eq!(changed["labels"], json!({}), "all of them");
    assert_eq!(changed["spec"]["location"], "here", "and nothing else");
}

// status is managed by the server, the id is the path's, the version a precondition
#[tokio::test]
async fn what_was_read_can_be_sent_back() {
    let world = world().await;
    let mut read = world.http.get(M1).await.ok();
    read["labels"]["env"] = json!("test");
    read["status"]["phase"] = json!("RETIRED");
    let changed = world.http.patch(M1, &read).await.ok();
    assert_eq!((&changed["labels"]["env"], &changed["status"]["phase"]), (&json!("test"), &json!("FACTORY_READY")));
    let stale = world.http.patch(M1, &read).await;
    assert_eq!(stale.refused(409, "VERSION_MISMATCH")["code"], "ABORTED");
    let wrapped = world.http.patch(M1, &json!({"machine": {"labels": {"env": "again"}}})).await.ok();
    assert_eq!(wrapped["labels"]["env"], "again");
}

#[tokio::test]
async fn an_empty_patch_changes_nothing() {
    let world = world().await;
    let before = world.http.get(M1).await.ok();
    for body in ["", "{}", "null", r#"{"labels": {}, "spec": {}}"#, r#"{"status": {"phase": "RMA"}}"#] {
        let after = world.http.send("PATCH", M1, &[], body.as_bytes()).await.ok();
        assert_eq!((&after["spec"], &after["labels"]), (&before["spec"], &before["labels"]), "{body}");
    }
}

#[tokio::test]
async fn patches_that_do_not_fit_are_refused_by_field() {
    let world = world().await;
    let before = world.http.get(M1).await.ok();
    for (body, says) in [
        (json!({"machine_id": "m-2"}), "machine_id: the body and the path say different things"),
        (json!({"colour": "red"}), "colour: unknown field"),
        (json!({"spec": {"colour": "red"}}), "spec.colour: unknown field"),
        (json!({"spec": {"rack": 5}}), "spec.rack: expected a text, found 5"),
        (json!({"labels": {"a": 5}}), "labels.a: expected a text, found 5"),
        (json!({"labels": []}), "labels: expected an object"),
        (json!({"spec": "x"}), "spec: expected an object"),
        (json!([]), "body: expected an object"),
    ] {
        let told = world.http.patch(M1, &body).await.malformed();
        assert!(told.starts_with(says), "{body}: {told}");
    }
    assert_eq!(world.http.get(M1).await.ok(), before, "and nothing changed");
    world.http.patch("/api/v1/machines/nope", &json!({})).await.refused(404, "MACHINE_NOT_FOUND");
}

// a mask that is given is taken as it is: what it names and the body does not hold is cleared
#[tokio::test]
async fn a_mask_in_the_query_is_taken_as_it_is() {
    let world = world().await;
    let path = format!("{M1}?update_mask=labels,spec.rack");
    let changed = world.http.patch(&path, &json!({"labels": {"only": "1"}, "spec": {"location": "there"}})).await.ok();
    assert_eq!(changed["labels"], json!({"only": "1"}));
    assert_eq!((&changed["spec"]["rack"], &changed["spec"]["location"]), (&json!(""), &json!("here")));
    assert_eq!(changed["status"]["phase"], Value::from("FACTORY_READY"));
}

// docs/rest.md: an empty value counts as not given
#[tokio::test]
async fn an_empty_mask_in_the_query_is_none() {
    let world = World::new().await;
    world.api.sim("m-1", &[]).await;
    let before = world.http.get("/api/v1/machines/m-1").await.ok();
    let after = world.http.patch("/api/v1/machines/m-1?update_mask=", &json!({"labels": {"w": "1"}})).await.ok();
    assert_eq!(after["spec"], before["spec"]);
    assert_eq!(after["labels"]["w"], "1");
}
