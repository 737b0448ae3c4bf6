//! BIOS attributes: those in force, and those that wait for the next boot.

use crate::client::Client;
use crate::json;
use crate::places::Seen;
use crate::task;
use domain::hardware::Bios;
use domain::stage::FailureClass;
use http::Method;
use provider::{Ack, ProviderResult};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// No BIOS has as many.
const ATTRIBUTES_MAX: usize = 4096;

struct Found {
    bios: Bios,
    raw: Map<String, Value>,
    /// Where a change is written.
    settings: Option<String>,
    apply_on_reset: bool,
}

pub async fn read(client: &Client, seen: &Seen) -> ProviderResult<Bios> {
    Ok(find(client, seen).await?.bios)
}

async fn find(client: &Client, seen: &Seen) -> ProviderResult<Found> {
    let Some(path) = json::link(&seen.system, "/Bios") else { return Err(client.lacks("BIOS attributes")) };
    let now = client.get(&path).await?;
    let settings = json::link(&now, "/@Redfish.Settings/SettingsObject");
    let pending = match &settings {
        Some(path) => client.get_if_there(path).await?.unwrap_or(Value::Null),
        None => Value::Null,
    };
    let raw = now.get("Attributes").and_then(Value::as_object).cloned().unwrap_or_default();
    let current = readable(&raw);
    let mut waiting = pending.get("Attributes").and_then(Value::as_object).map(readable).unwrap_or_default();
    // some show all of them there, and those that stay as they are do not wait
    waiting.retain(|name, value| current.get(name) != Some(value));
    let times = json::words(&now, "/@Redfish.Settings/SupportedApplyTimes");
    let apply_on_reset = times.iter().any(|time| time == "OnReset");
    Ok(Found { bios: Bios { current, pending: waiting }, raw, settings, apply_on_reset })
}

fn readable(attributes: &Map<String, Value>) -> BTreeMap<String, String> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    attributes.iter().take(ATTRIBUTES_MAX).map(|(name, value)| (name.clone(), text(value))).collect()
}

pub async fn set(client: &Client, seen: &Seen, wanted: &BTreeMap<String, String>) -> ProviderResult<Ack> {
    let found = find(client, seen).await?;
    let mut change = Map::new();
    for (name, value) in wanted {
        let Some(now) = found.raw.get(name) else {
            let why = format!("has no BIOS attribute {name:?}; 'millwright machine inspect' shows those it has");
            return Err(client.refused(FailureClass::InvalidInput, &why));
        };
        let is = found.bios.pending.get(name).or_else(|| found.bios.current.get(name));
        if is != Some(value) {
            change.insert(name.clone(), typed(client, name, now, value)?);
        }
    }
    if change.is_empty() {
        let waits = wanted.keys().any(|name| found.bios.pending.contains_key(name));
        return Ok(if waits { Ack::Accepted } else { Ack::Done });
    }
    let Some(settings) = found.settings else { return Err(client.lacks("changes of BIOS attributes")) };
    let mut body = json!({ "Attributes": change });
    if found.apply_on_reset {
        body["@Redfish.SettingsApplyTime"] = json!({"ApplyTime": "OnReset"});
    }
    let ack = task::carry_out(client, Method::PATCH, &settings, &body, "set BIOS attributes").await?;
    if ack == Ack::Accepted {
        return Ok(ack);
    }
    let now = find(client, seen).await?.bios;
    let mut waits = false;
    for (name, value) in wanted {
        match (now.pending.get(name), now.current.get(name)) {
            (Some(pending), _) if pending == value => waits = true,
            (None, Some(current)) if current == value => {}
            (pending, current) => {
                let is = pending.or(current).map_or("nothing", String::as_str);
                let why = format!(
                    "accepted the BIOS attribute {name} = {value:?}, but reads back {is:?}: it ignores what it is told"
                );
                return Err(client.refused(FailureClass::Hardware, &why));
            }
        }
    }
    Ok(if waits { Ack::Accepted } else { Ack::Done })
}

/// In the type that the attribute has.
fn typed(client: &Client, name: &str, now: &Value, value: &str) -> ProviderResult<Value> {
    let typed = match now {
        Value::Number(_) => value.parse::<serde_json::Number>().ok().map(Value::Number),
        Value::Bool(_) => value.parse().ok().map(Value::Bool),
        _ => Some(value.into()),
    };
    typed.ok_or_else(|| {
        let why = format!("has the BIOS attribute {name} as {now}; {value:?} is not of that type");
        client.refused(FailureClass::InvalidInput, &why)
    })
}
