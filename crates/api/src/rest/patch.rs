//! PATCH: what the body's keys say is to change, and nothing else. One level deep: a label or a field of
//! the spec is a thing of its own, what lies below is replaced whole.

use crate::json::{field_named, message_of};
use prost_reflect::MessageDescriptor;
use serde_json::{Map, Value};

/// A precondition, not a change.
const VERSION: &str = "version";
/// Managed by the server; whoever sends back what was read sends it, too.
const STATUS: &str = "status";

/// The paths that the keys of a body name. What is not the caller's to set is taken out, and a `null`
/// in a map, too: without a value the path says that the entry goes.
pub(crate) fn paths(message: &MessageDescriptor, body: &mut Map<String, Value>, in_path: &[&str]) -> Vec<String> {
    let mut paths = Vec::new();
    body.retain(|key, _| key != STATUS);
    for (key, value) in body.iter_mut() {
        // an unknown one is for the reader to refuse
        let Some(field) = field_named(message, key) else { continue };
        let name = field.name();
        if name == VERSION || in_path.contains(&name) {
            continue;
        }
        match (value, message_of(&field)) {
            (Value::Object(entries), _) if field.is_map() => {
                paths.extend(entries.keys().map(|key| format!("{name}.{key}")));
                entries.retain(|_, value| !value.is_null());
            }
            (Value::Object(fields), Some(inner)) => paths.extend(fields.keys().map(|key| {
                let inner = field_named(&inner, key);
                format!("{name}.{}", inner.as_ref().map_or(key.as_str(), |f| f.name()))
            })),
            _ => paths.push(name.to_owned()),
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::descriptor;
    use serde_json::json;

    fn told(mut body: Value) -> (Vec<String>, Value) {
        let machine = descriptor("baremetal.v1.Machine").expect("known");
        let Value::Object(object) = &mut body else { panic!("an object") };
        let paths = paths(&machine, object, &["machine_id"]);
        (paths, body)
    }

    #[test]
    fn keys_are_paths_one_level_deep() {
        let (paths, _) = told(json!({"spec": {"rack": "r1", "bmcEndpoint": null, "mac_addresses": []},
            "labels": {"env": "prod", "sim.latency_ms": "0"}}));
        let expected = ["labels.env", "labels.sim.latency_ms", "spec.bmc_endpoint", "spec.mac_addresses", "spec.rack"];
        let mut paths = paths;
        paths.sort();
        assert_eq!(paths, expected);
    }

    #[test]
    fn null_takes_away() {
        let (paths, body) = told(json!({"labels": {"env": null, "role": "x"}}));
        assert_eq!(paths, ["labels.env", "labels.role"]);
        assert_eq!(body, json!({"labels": {"role": "x"}}), "and the value is gone");
        assert_eq!(told(json!({"labels": null, "spec": null})).0, ["labels", "spec"], "whole");
    }

    #[test]
    fn what_is_not_the_callers_is_no_change() {
        let (paths, body) = told(json!({"machine_id": "m", "version": "3", "status": {"phase": "WHATEVER"}}));
        assert_eq!(paths, Vec::<String>::new());
        assert_eq!(body, json!({"machine_id": "m", "version": "3"}));
        assert_eq!(told(json!({"labels": {}, "spec": {}})).0, Vec::<String>::new());
    }
}
