//! The controller's own event log. Which of its logs that is, where they are and how they are ordered differs.

use crate::client::Client;
use crate::json;
use crate::places::{self, Seen};
use domain::Timestamp;
use domain::hardware::EventLogEntry;
use provider::ProviderResult;
use serde_json::Value;

/// A log is read to its end, since the newest entry may be the last; but not for ever.
const PAGES_MAX: usize = 64;
const ENTRIES_MAX: usize = 20_000;
const LOGS_MAX: usize = 16;
/// What vendors call the log of the hardware's own events, the best first.
const NAMES: [&str; 7] = ["sel", "iel", "iml", "eventlog", "event", "log1", "standardlog"];

/// The place of its entries.
pub async fn entries_of(client: &Client, seen: &Seen) -> ProviderResult<Option<String>> {
    let mut services: Vec<String> = json::link(&seen.system, "/LogServices").into_iter().collect();
    for manager in places::managers_of(client, seen).await? {
        services.extend(client.get_if_there(&manager).await?.and_then(|m| json::link(&m, "/LogServices")));
    }
    let mut best: Option<(usize, String)> = None;
    for service in services {
        let Some(listed) = client.get_if_there(&service).await? else { continue };
        for log in places::whole(client, json::list(&listed, "/Members"), LOGS_MAX).await? {
            let Some(entries) = json::link(&log, "/Entries") else { continue };
            let id = json::text(&log, "/Id").to_ascii_lowercase();
            let kind = json::text(&log, "/LogEntryType");
            let rank = NAMES.iter().position(|name| *name == id).unwrap_or(match kind.as_str() {
                "SEL" | "Event" => NAMES.len(),
                _ => NAMES.len() + 1,
            });
            if best.as_ref().is_none_or(|(other, _)| rank < *other) {
                best = Some((rank, entries));
            }
        }
    }
    Ok(best.map(|(_, entries)| entries))
}

/// The newest `limit`, newest first.
pub async fn newest(client: &Client, seen: &Seen, limit: usize) -> ProviderResult<Vec<EventLogEntry>> {
    let Some(first) = entries_of(client, seen).await? else { return Err(client.lacks("an event log")) };
    let mut found: Vec<Value> = Vec::new();
    let mut next = Some(first);
    for _ in 0..PAGES_MAX {
        let Some(path) = next.take() else { break };
        let page = client.get(&path).await?;
        found.extend(json::list(&page, "/Members").iter().cloned());
        if found.len() >= ENTRIES_MAX || (found.len() >= limit && is_newest_first(&found)) {
            break;
        }
        next = match page.get("Members@odata.nextLink") {
            Some(Value::String(path)) if json::is_path(path) => Some(path.clone()),
            Some(_) => json::link(&page, "/Members@odata.nextLink"),
            None => None,
        };
    }
    found.truncate(ENTRIES_MAX);
    newest_first(&mut found);
    let found = places::whole(client, &found, limit).await?;
    let mut entries: Vec<EventLogEntry> = found.iter().map(entry).collect();
    // a stable sort: those of one moment stay in the order of their numbers
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.at));
    Ok(entries)
}

fn is_newest_first(entries: &[Value]) -> bool {
    match (entries.first().and_then(created), entries.last().and_then(created)) {
        (Some(first), Some(last)) => first > last,
        _ => false,
    }
}

/// By time where all tell it, else by number, else they are taken to be listed oldest first.
fn newest_first(entries: &mut [Value]) {
    let number = |entry: &Value| {
        let id = json::first_text(entry, &["/Id"]);
        let id = if id.is_empty() { json::text(entry, "/@odata.id") } else { id };
        id.rsplit('/').next().and_then(|last| last.parse::<u64>().ok())
    };
    if entries.iter().all(|entry| created(entry).is_some()) {
        entries.sort_by_key(|entry| std::cmp::Reverse((created(entry), number(entry))));
    } else if entries.iter().all(|entry| number(entry).is_some()) {
        entries.sort_by_key(|entry| std::cmp::Reverse(number(entry)));
    } else {
        entries.reverse();
    }
}

fn created(entry: &Value) -> Option<Timestamp> {
    let text = json::first_text(entry, &["/Created", "/EventTimestamp"]);
    let at: jiff::Timestamp = text.parse().ok()?;
    Some(Timestamp::from_micros(at.as_microsecond()))
}

fn entry(value: &Value) -> EventLogEntry {
    EventLogEntry {
        id: json::first_text(value, &["/Id", "/@odata.id"]),
        at: created(value),
        severity: json::first_text(value, &["/Severity", "/MessageSeverity"]),
        message: json::first_text(value, &["/Message", "/Name", "/MessageId"]),
    }
}
