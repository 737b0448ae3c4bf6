//! Power: what is asked for is sent only if the controller says that it can, and only if it is not so already.

use crate::client::Client;
use crate::json;
use crate::places::Seen;
use crate::task;
use domain::hardware::PowerAction;
use http::Method;
use provider::{Ack, PowerState, ProviderResult};
use serde_json::{Value, json};

const RESET: &str = "/Actions/#ComputerSystem.Reset";

/// A machine that is on its way is not there yet.
pub fn state(client: &Client, system: &Value) -> ProviderResult<PowerState> {
    match json::text(system, "/PowerState").as_str() {
        "On" | "PoweringOff" | "Paused" => Ok(PowerState::On),
        "Off" | "PoweringOn" => Ok(PowerState::Off),
        other => Err(client.bad_answer(&format!("the system's PowerState is {other:?}"))),
    }
}

/// The words for it, the best first.
fn words(action: PowerAction) -> &'static [&'static str] {
    match action {
        PowerAction::On => &["On", "ForceOn"],
        PowerAction::GracefulOff => &["GracefulShutdown"],
        PowerAction::ForceOff => &["ForceOff"],
        PowerAction::GracefulRestart => &["GracefulRestart"],
        PowerAction::ForceRestart => &["ForceRestart"],
        PowerAction::Cycle => &["PowerCycle"],
    }
}

/// What it allows; empty: it does not say.
pub async fn allowed(client: &Client, system: &Value) -> ProviderResult<Vec<String>> {
    let listed = json::words(system, &format!("{RESET}/ResetType@Redfish.AllowableValues"));
    if !listed.is_empty() {
        return Ok(listed);
    }
    let info = json::text(system, &format!("{RESET}/@Redfish.ActionInfo"));
    if !json::is_path(&info) {
        return Ok(Vec::new());
    }
    let info = client.get(&info).await?;
    let reset_type = json::list(&info, "/Parameters").iter().find(|p| json::text(p, "/Name") == "ResetType");
    Ok(reset_type.map(|p| json::words(p, "/AllowableValues")).unwrap_or_default())
}

/// The actions that can be asked for.
pub fn actions(system: &Value, allowed: &[String]) -> Vec<PowerAction> {
    if json::text(system, &format!("{RESET}/target")).is_empty() {
        return Vec::new();
    }
    let offers = |action: &PowerAction| words(*action).iter().any(|word| allowed.iter().any(|a| a == word));
    PowerAction::ALL.iter().copied().filter(offers).collect()
}

pub async fn power(client: &Client, seen: &Seen, action: PowerAction) -> ProviderResult<Ack> {
    let now = json::text(&seen.system, "/PowerState");
    match (action, now.as_str()) {
        (PowerAction::On, "On") | (PowerAction::GracefulOff | PowerAction::ForceOff, "Off") => return Ok(Ack::Done),
        (PowerAction::On, "PoweringOn") | (PowerAction::GracefulOff, "PoweringOff") => return Ok(Ack::Accepted),
        _ => {}
    }
    let target = json::text(&seen.system, &format!("{RESET}/target"));
    if !json::is_path(&target) {
        return Err(client.lacks("power control"));
    }
    let allowed = allowed(client, &seen.system).await?;
    let mut words = words(action).iter();
    // one that does not say what it allows is simply asked
    let word = words.clone().find(|word| allowed.iter().any(|a| a == *word));
    let Some(word) = word.or_else(|| words.next().filter(|_| allowed.is_empty())) else {
        return Err(client.lacks(&format!("power action {action}; it allows {}", allowed.join(", "))));
    };
    let what = format!("do the power action {action} ({word})");
    let body = json!({ "ResetType": word });
    let _done = task::carry_out(client, Method::POST, &target, &body, &what).await?;
    // what it answered is that it was told, not that the machine is there
    Ok(Ack::Accepted)
}
