//! Files that hold one message, such as plans and workflows: JSON or YAML with the API's field names. What is wrong is
//! told with its path.

use super::exit::CliError;
use super::json::{Wire, descriptor, is_choice, message_of};
use super::text::cut;
use api::json::Strict;
use domain::limits::short;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use proto::baremetal::v1::Plan;
use serde_json::{Map, Value};
use std::io::Read;
use std::path::Path;

/// Far above what a message of the largest size needs.
const FILE_MAX_BYTES: u64 = 8 * 1024 * 1024;

/// Reads a plan from a file, or from stdin when the path is `-`.
pub fn read(path: &Path) -> Result<Plan, CliError> {
    read_as(path)
}

/// The same for any message.
pub fn read_as<T: Wire + Default>(path: &Path) -> Result<T, CliError> {
    let stdin = path == Path::new("-");
    let name = if stdin { "stdin".into() } else { path.display().to_string() };
    let wrong = |problem: String| CliError::usage(format!("{name}: {problem}"));
    let mut text = String::new();
    let read = if stdin {
        std::io::stdin().lock().take(FILE_MAX_BYTES + 1).read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(FILE_MAX_BYTES + 1).read_to_string(&mut text))
    };
    let bytes = read.map_err(|e| wrong(e.to_string()))?;
    if bytes as u64 > FILE_MAX_BYTES {
        return Err(wrong(format!("is larger than {FILE_MAX_BYTES} bytes")));
    }
    let descriptor = descriptor(T::NAME)?;
    if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("toml")) {
        return parse_toml(&text, &descriptor).map_err(wrong);
    }
    parse(&text, &descriptor).map_err(wrong)
}

fn parse_toml<T: Wire + Default>(text: &str, descriptor: &MessageDescriptor) -> Result<T, String> {
    let value: Value = toml::from_str(text).map_err(|e| short(&format!("not valid TOML: {}", e.message())))?;
    fitted(value, descriptor).map_err(|e| short(&e))
}

pub(super) fn parse<T: Wire + Default>(text: &str, descriptor: &MessageDescriptor) -> Result<T, String> {
    // what is wrong names keys as they stand there, and those can be of any length
    parse_whole(text, descriptor).map_err(|e| short(&e))
}

fn parse_whole<T: Wire + Default>(text: &str, descriptor: &MessageDescriptor) -> Result<T, String> {
    let Strict(value) = if text.trim_start().starts_with('{') {
        serde_json::from_str(text).map_err(|e| format!("not valid JSON: {e}"))?
    } else {
        serde_yaml_ng::from_str(text).map_err(|e| format!("not valid YAML: {e}"))?
    };
    fitted(value, descriptor)
}

fn fitted<T: Wire + Default>(mut value: Value, descriptor: &MessageDescriptor) -> Result<T, String> {
    check(descriptor, &mut value, "")?;
    let dynamic = DynamicMessage::deserialize(descriptor.clone(), value).map_err(|e| e.to_string())?;
    dynamic.transcode_to::<T>().map_err(|e| e.to_string())
}

/// Walks the value along the message and names the first thing that does not fit.
fn check(message: &MessageDescriptor, value: &mut Value, path: &str) -> Result<(), String> {
    let names = || message.fields().map(|f| f.name().to_owned()).collect::<Vec<_>>().join(", ");
    let at = if path.is_empty() { "the file" } else { path };
    let Value::Object(object) = value else {
        return Err(format!("{at}: must be a mapping with fields of: {}", names()));
    };
    // null means absent, as in every JSON form of a message
    object.retain(|_, value| !value.is_null());
    let mut chosen: Option<String> = None;
    for (key, value) in object.iter_mut() {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let field = message.get_field_by_name(key).or_else(|| message.get_field_by_json_name(key));
        let Some(field) = field else {
            return Err(format!("{path}: unknown field; known are: {}", names()));
        };
        if is_choice(&field)
            && let Some(other) = chosen.replace(key.clone())
        {
            return Err(format!("{at}: has both {other} and {key}, at most one is possible"));
        }
        match (message_of(&field), value) {
            (Some(inner), Value::Array(items)) if field.is_list() => {
                for (i, item) in items.iter_mut().enumerate() {
                    check(&inner, item, &format!("{path}[{i}]"))?;
                }
            }
            (Some(_), _) if field.is_list() => return Err(format!("{path}: must be a list")),
            (Some(inner), value) => check(&inner, value, &path)?,
            (None, value) => {
                let alone: Map<String, Value> = [(key.clone(), value.clone())].into_iter().collect();
                DynamicMessage::deserialize(message.clone(), Value::Object(alone))
                    .map_err(|e| format!("{path}: {}: {e}", cut(&value.to_string(), 60)))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::baremetal::v1::step::Kind;

    fn plan(text: &str) -> Result<Plan, String> {
        parse(text, &descriptor(Plan::NAME).expect("known"))
    }

    const JSON: &str = r#"{"plan_id": "p-1", "display_name": "Repave", "steps": [
        {"name": "set-netboot", "timeout_seconds": 60, "max_retries": 2, "netboot": {"mode": "PXE"}},
        {"name": "repave-os", "max_retries": 0, "repave": {"image": "ubuntu-22.04"}},
        {"name": "tell", "ssh": {"command": "echo", "args": ["a"], "environment": {"A": "1"}}}]}"#;

    const YAML: &str = "plan_id: p-1\ndisplay_name: Repave\nsteps:
- {name: set-netboot, timeout_seconds: 60, max_retries: 2, netboot: {mode: PXE}}
- name: repave-os
  timeout_seconds: null
  max_retries: 0
  repave: {image: ubuntu-22.04}
- name: tell
  ssh: {command: echo, args: [a], environment: {A: '1'}}\n";

    #[test]
    fn json_and_yaml_say_the_same() {
        let (json, yaml) = (plan(JSON).expect("JSON"), plan(YAML).expect("YAML"));
        assert_eq!(json, yaml);
        assert_eq!(json.steps[0].timeout_seconds, Some(60));
        assert_eq!((json.steps[1].timeout_seconds, json.steps[1].max_retries), (None, Some(0)));
        assert!(matches!(&json.steps[2].kind, Some(Kind::Ssh(ssh)) if ssh.environment["A"] == "1"));
    }

    #[test]
    fn what_is_printed_can_be_read_again() {
        let before = plan(JSON).expect("a plan");
        let shown = super::super::json::shown(&before).expect("shown");
        assert_eq!(plan(&shown.pretty(0).expect("JSON")).as_ref(), Ok(&before));
        assert_eq!(plan(&shown.yaml().expect("YAML")).as_ref(), Ok(&before));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_path() {
        for (text, path, word) in [
            (r#"{"plan": "x"}"#, "plan:", "plan_id, display_name, steps"),
            (r#"{"plan_id": 7}"#, "plan_id:", "string"),
            (r#"{"steps": {}}"#, "steps:", "list"),
            (r#"{"steps": [{"name": "a"}, {"nome": "b"}]}"#, "steps[1].nome:", "unknown field"),
            (r#"{"steps": [{"timeout_seconds": "long"}]}"#, "steps[0].timeout_seconds:", "long"),
            (r#"{"steps": [{"timeout_seconds": 99999999999}]}"#, "steps[0].timeout_seconds:", "99999999999"),
            (r#"{"steps": [{"reboot": {"mode": []}}]}"#, "steps[0].reboot.mode:", "string"),
            (r#"{"steps": [{"reboot": "bmc"}]}"#, "steps[0].reboot:", "mapping"),
            (r#"{"steps": [{"ssh": {"environment": {"A": 1}}}]}"#, "steps[0].ssh.environment:", "string"),
            (r#"{"steps": [{"reboot": {}, "netboot": {}}]}"#, "steps[0]:", "both"),
            ("steps: [1]", "steps[0]:", "mapping"),
            ("- a\n- b", "the file:", "mapping"),
            ("", "the file:", "mapping"),
            ("{", "not valid JSON:", "line 1"),
            ("a: b: c", "not valid YAML:", "line 1"),
            ("plan_id: a\nplan_id: b", "not valid YAML:", "plan_id stands twice"),
            (r#"{"steps": [{"name": "a", "name": "b"}]}"#, "not valid JSON:", "name stands twice"),
        ] {
            let error = plan(text).expect_err(text);
            assert!(error.starts_with(path) && error.contains(word), "{text}\n{error}");
        }
    }
}
