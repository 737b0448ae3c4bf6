//! The lamp by which a person finds the machine: on the system, or on the chassis it is in.

use crate::client::Client;
use crate::json;
use crate::places::{self, Seen};
use crate::task;
use domain::stage::FailureClass;
use http::Method;
use provider::{Ack, ProviderResult};
use serde_json::{Value, json};

const LAMP: &str = "LocationIndicatorActive";
/// What came before it.
const LED: &str = "IndicatorLED";

pub async fn identify(client: &Client, seen: &Seen, on: bool) -> ProviderResult<Ack> {
    if has_lamp(&seen.system) {
        return light(client, &seen.places.system, &seen.system, on).await;
    }
    for path in places::chassis_of(client, seen).await? {
        let chassis = client.get_if_there(&path).await?.unwrap_or(Value::Null);
        if has_lamp(&chassis) {
            return light(client, &path, &chassis, on).await;
        }
    }
    Err(client.lacks("an identify lamp"))
}

pub fn has_lamp(thing: &Value) -> bool {
    [LAMP, LED].iter().any(|lamp| thing.get(lamp).is_some_and(|value| !value.is_null()))
}

fn is_lit(thing: &Value) -> bool {
    match json::flag(thing, &format!("/{LAMP}")) {
        Some(lit) => lit,
        None => matches!(json::text(thing, &format!("/{LED}")).as_str(), "Lit" | "Blinking"),
    }
}

async fn light(client: &Client, path: &str, thing: &Value, on: bool) -> ProviderResult<Ack> {
    if is_lit(thing) == on {
        return Ok(Ack::Done);
    }
    let change = match thing.get(LAMP) {
        Some(value) if !value.is_null() => json!({ LAMP: on }),
        _ => json!({ LED: if on { "Lit" } else { "Off" } }),
    };
    let what = if on { "light the identify lamp" } else { "put out the identify lamp" };
    let ack = task::carry_out(client, Method::PATCH, path, &change, what).await?;
    if ack == Ack::Done && is_lit(&client.get(path).await?) != on {
        let why = format!("accepted to {what}, but reads back that it did not: it ignores what it is told");
        return Err(client.refused(FailureClass::Hardware, &why));
    }
    Ok(ack)
}
