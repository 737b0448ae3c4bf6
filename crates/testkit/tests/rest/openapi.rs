//! The description of the door: checked in, served, and true.

use crate::doors::methods;
use crate::world::World;
use serde_json::Value;
use std::collections::BTreeSet;

fn document() -> Value {
    serde_json::from_str(&api::openapi().expect("a description")).expect("JSON")
}

// UPDATE_GOLDEN=1 cargo test -p millwright-testkit --test rest openapi
#[test]
fn the_checked_in_copy_is_the_present_one() {
    testkit::golden::check("docs/openapi.json", &api::openapi().expect("a description"));
}

#[tokio::test]
async fn the_served_copy_is_the_checked_in_one() {
    let world = World::new().await;
    let answer = world.http.get("/api/v1/openapi.json").await;
    assert_eq!(answer.ok(), document());
    assert_eq!(answer.text(), api::openapi().expect("a description"));
}

#[test]
fn every_call_is_described() {
    let document = document();
    let mut described = BTreeSet::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            let id = operation["operationId"].as_str().expect("an id").to_owned();
            if id != "OpenApi" {
                assert!(operation["summary"].as_str().is_some_and(|s| !s.is_empty()), "{path}");
            }
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let refers = |name: &str| parameters.iter().any(|p| p["$ref"] == format!("#/components/parameters/{name}"));
            assert_eq!(refers("IdempotencyKey"), method != "get", "{method} {path}");
            let streams = operation["responses"]["200"]["content"].get("text/event-stream").is_some();
            // of progress nothing is told again, so there is nothing to go on from
            let live = path.ends_with("odes/{id}/watch") || path == "/api/v1/admin/jobs/{id}/watch";
            assert_eq!(refers("LastEventId"), streams && !live, "{path}");
            for name in path.split('/').filter_map(|s| s.strip_prefix('{')?.strip_suffix('}')) {
                assert!(parameters.iter().any(|p| p["name"] == name && p["in"] == "path"), "{path}: {name}");
            }
            assert!(described.insert(id), "{path}: an id stands twice");
        }
    }
    for rpc in methods() {
        let id = format!("{}_{}", rpc.parent_service().name(), rpc.name());
        assert!(described.contains(&id), "{id} is not described");
    }
}

/// Every reference in a value.
fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            if let Some(Value::String(name)) = object.get("$ref") {
                found.insert(name.clone());
            }
            object.values().for_each(|v| references(v, found));
        }
        Value::Array(items) => items.iter().for_each(|v| references(v, found)),
        _ => {}
    }
}

#[test]
fn every_reference_leads_somewhere() {
    let document = document();
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(found.len() > 20, "{found:?}");
    for name in found {
        assert!(document.pointer(name.trim_start_matches('#')).is_some_and(|v| !v.is_null()), "{name}");
    }
}

/// What a schema of ours says against a value: names of fields, presence, plain types.
fn complaints(document: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let schema = document.pointer(name.trim_start_matches('#')).expect("a schema");
        return complaints(document, schema, value, at, found);
    }
    if let Some(options) = schema["anyOf"].as_array() {
        if !value.is_null() {
            complaints(document, &options[0], value, at, found);
        }
        return;
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let kinds = schema["type"].as_array().cloned().unwrap_or_else(|| vec![schema["type"].clone()]);
    if !kinds.iter().any(|k| k == kind) {
        found.push(format!("{at}: {kind} is none of {kinds:?}"));
    }
    if let Some(values) = schema["enum"].as_array().filter(|v| !v.contains(value)) {
        found.push(format!("{at}: {value} is none of {values:?}"));
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if value.get(name).is_none() {
            found.push(format!("{at}.{name} is missing"));
        }
    }
    for (key, inner) in value.as_object().into_iter().flatten() {
        match (schema["properties"].get(key), &schema["additionalProperties"]) {
            (Some(property), _) => complaints(document, property, inner, &format!("{at}.{key}"), found),
            (None, Value::Object(all)) => {
                complaints(document, &Value::Object(all.clone()), inner, &format!("{at}.{key}"), found);
            }
            (None, Value::Bool(true)) => {}
            (None, _) => found.push(format!("{at}.{key} is not described")),
        }
    }
    for item in value.as_array().into_iter().flatten() {
        complaints(document, &schema["items"], item, &format!("{at}[]"), found);
    }
}

// what is answered is what was described
#[tokio::test]
async fn answers_are_as_described() {
    let (world, run) = World::lived_in().await;
    let document = document();
    let mut found = Vec::new();
    for (template, path) in [
        ("/api/v1/machines", "/api/v1/machines".to_owned()),
        ("/api/v1/machines/{machine_id}", "/api/v1/machines/m-1".to_owned()),
        ("/api/v1/plans", "/api/v1/plans".to_owned()),
        ("/api/v1/runs", "/api/v1/runs".to_owned()),
        ("/api/v1/runs/{run_id}", format!("/api/v1/runs/{run}")),
        ("/api/v1/admin/executions/{execution_id}", format!("/api/v1/admin/executions/{run}")),
        ("/api/v1/admin/freeze", "/api/v1/admin/freeze".to_owned()),
    ] {
        let answer = world.http.get(&path).await.ok();
        let schema = &document["paths"][template]["get"]["responses"]["200"]["content"]["application/json"]["schema"];
        complaints(&document, schema, &answer, template, &mut found);
    }
    let error = world.http.get("/api/v1/machines/nope").await.json();
    let schema = &document["components"]["responses"]["Error"]["content"]["application/json"]["schema"];
    complaints(&document, schema, &error, "an error", &mut found);
    assert!(found.is_empty(), "{found:#?}");
}
