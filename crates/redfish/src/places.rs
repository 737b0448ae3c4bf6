//! Where things are behind one controller, found once and kept: its paths are the vendor's own affair.

use crate::client::{Client, ROOT};
use crate::json;
use crate::quirks::Quirks;
use domain::stage::FailureClass;
use provider::ProviderResult;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::Mutex;

/// Systems that an error names.
const NAMED_MAX: usize = 16;

pub struct Places {
    pub system: String,
    pub chassis: Option<String>,
    pub managers: Option<String>,
    pub update_service: Option<String>,
    pub account_service: Option<String>,
    pub quirks: Quirks,
}

/// The places and the system as it is now.
pub struct Seen {
    pub places: Arc<Places>,
    pub system: Value,
}

#[derive(Default)]
pub struct Known(Mutex<Option<Arc<Places>>>);

impl Known {
    /// The system as it is now: one question, once its place is known. Places that are gone are looked for anew.
    pub async fn system(&self, client: &Client, named: &str) -> ProviderResult<Seen> {
        let known = self.0.lock().await.clone();
        if let Some(places) = known {
            match client.get_if_there(&places.system).await? {
                Some(system) => return Ok(Seen { places, system }),
                None => *self.0.lock().await = None,
            }
        }
        let seen = discover(client, named).await?;
        *self.0.lock().await = Some(seen.places.clone());
        Ok(seen)
    }
}

async fn discover(client: &Client, named: &str) -> ProviderResult<Seen> {
    let root = client.root().await?;
    let root = client.value(ROOT, &root)?;
    let place = |at| json::link(&root, at);
    let systems = place("/Systems");
    let asked = if named.is_empty() { only_system(client, systems.as_deref()).await? } else { named.to_owned() };
    let Some(system) = client.get_if_there(&asked).await? else {
        let all = list(client, systems.as_deref()).await.unwrap_or_default();
        let why = format!("has no system {asked}; it has {}", some_of(&all));
        return Err(client.refused(FailureClass::InvalidInput, &why));
    };
    if !system.is_object() {
        return Err(client.bad_answer(&format!("{asked} is not a system")));
    }
    let itself = system.get("@odata.id").and_then(Value::as_str).filter(|path| json::is_path(path));
    let places = Places {
        system: itself.map_or(asked, |path| path.trim_end_matches('/').to_owned()),
        chassis: place("/Chassis"),
        managers: place("/Managers"),
        update_service: place("/UpdateService"),
        account_service: place("/AccountService"),
        quirks: Quirks::of(&root, &system),
    };
    Ok(Seen { places: Arc::new(places), system })
}

async fn list(client: &Client, systems: Option<&str>) -> ProviderResult<Vec<String>> {
    match systems {
        Some(path) => Ok(json::links(&client.get(path).await?, "/Members")),
        None => Ok(Vec::new()),
    }
}

async fn only_system(client: &Client, systems: Option<&str>) -> ProviderResult<String> {
    let mut all = list(client, systems).await?;
    match (all.pop(), all.is_empty()) {
        (None, _) => Err(client.bad_answer("it has no systems")),
        (Some(one), true) => Ok(one),
        (Some(last), false) => {
            all.push(last);
            let why = format!(
                "has {} systems; name the one that is meant in bmc_endpoint, behind the host: {}",
                all.len(),
                some_of(&all)
            );
            Err(client.refused(FailureClass::InvalidInput, &why))
        }
    }
}

fn some_of(systems: &[String]) -> String {
    let more = if systems.len() > NAMED_MAX { ", …" } else { "" };
    let some: Vec<&str> = systems.iter().take(NAMED_MAX).map(String::as_str).collect();
    if some.is_empty() { "none".to_owned() } else { format!("{}{more}", some.join(", ")) }
}

/// The chassis that this system is in; all of them, if it does not say.
pub async fn chassis_of(client: &Client, seen: &Seen) -> ProviderResult<Vec<String>> {
    related(client, json::links(&seen.system, "/Links/Chassis"), seen.places.chassis.as_deref()).await
}

/// The managers of this system; all of them, if it does not say.
pub async fn managers_of(client: &Client, seen: &Seen) -> ProviderResult<Vec<String>> {
    related(client, json::links(&seen.system, "/Links/ManagedBy"), seen.places.managers.as_deref()).await
}

/// More than a few are not one machine's.
const RELATED_MAX: usize = 8;

async fn related(client: &Client, mut said: Vec<String>, all: Option<&str>) -> ProviderResult<Vec<String>> {
    if said.is_empty() {
        said = list(client, all).await?;
    }
    said.truncate(RELATED_MAX);
    Ok(said)
}

/// The members of a collection, each read where the collection does not already show it whole.
pub async fn members(client: &Client, collection: &str, most: usize) -> ProviderResult<Vec<Value>> {
    let listed = client.get(collection).await?;
    whole(client, json::list(&listed, "/Members"), most).await
}

/// Things, each read where it is only referred to.
pub async fn whole(client: &Client, things: &[Value], most: usize) -> ProviderResult<Vec<Value>> {
    let mut all = Vec::new();
    for thing in things.iter().take(most) {
        let expanded = thing.as_object().is_some_and(|fields| fields.len() > 1);
        match json::link(&serde_json::json!({ "at": thing }), "/at") {
            _ if expanded => all.push(thing.clone()),
            Some(path) => all.extend(client.get_if_there(&path).await?),
            None => {}
        }
    }
    Ok(all)
}
