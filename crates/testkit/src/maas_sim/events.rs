//! Events with their numbers and levels, and the results of scripts.

use super::clock::{self, Millis};
use super::request::{Answer, Call, Outcome};
use super::status;
use super::world::World;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

pub(super) const DEBUG: u8 = 10;
pub(super) const INFO: u8 = 20;
pub(super) const ERROR: u8 = 40;
const LEVELS: [(&str, u8); 6] =
    [("AUDIT", 0), ("DEBUG", DEBUG), ("INFO", INFO), ("WARNING", 30), ("ERROR", ERROR), ("CRITICAL", 50)];
const PAGE_MAX: usize = 1000;

pub(super) struct Event {
    pub at: Millis,
    pub level: u8,
    pub kind: &'static str,
    pub description: String,
    pub system_id: String,
    pub hostname: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetKind {
    Commissioning,
    Installation,
    Testing,
    Release,
}

impl SetKind {
    fn number(self) -> i64 {
        match self {
            SetKind::Commissioning => 0,
            SetKind::Installation => 1,
            SetKind::Testing => 2,
            SetKind::Release => 3,
        }
    }

    fn name(self) -> &'static str {
        match self {
            SetKind::Commissioning => "Commissioning",
            SetKind::Installation => "Installation",
            SetKind::Testing => "Testing",
            SetKind::Release => "Release",
        }
    }

    fn scripts(self) -> &'static [&'static str] {
        match self {
            SetKind::Commissioning => &["20-maas-01-install-lldpd", "20-maas-02-dhcp-unconfigured-ifaces"],
            SetKind::Installation => &["/tmp/install.log"],
            SetKind::Testing => &["smartctl-validate"],
            SetKind::Release => &["wipe-disks"],
        }
    }
}

/// The scripts of one commissioning, test, installation or release.
pub(super) struct ScriptSet {
    pub kind: SetKind,
    pub system_id: String,
    pub status: i64,
    pub started: Option<Millis>,
    pub ended: Option<Millis>,
    /// Of each of its scripts.
    pub scripts: Vec<i64>,
}

impl World {
    pub(super) fn event(&mut self, key: u64, level: u8, kind: &'static str, description: &str, action: &'static str) {
        let (at, id) = (self.now, self.events.len() as u64 + 1);
        let machine = self.touch(key);
        machine.events.push(id);
        if level >= INFO {
            machine.newest = Some((kind, description.to_owned(), action));
        }
        let (system_id, hostname) = (machine.system_id.clone(), machine.hostname.clone());
        self.events.push(Event { at, level, kind, description: description.to_owned(), system_id, hostname });
    }

    pub(super) fn query_events(&self, call: &Call) -> Outcome {
        let limit = match call.get("limit").map_or(Ok(100), str::parse) {
            Ok(limit) => limit,
            Err(_) => return Err(Answer::text(400, "limit: Please enter a whole number.")),
        };
        if limit > PAGE_MAX {
            let text = format!("Requested number of events {limit} is greater than limit: {PAGE_MAX}");
            return Err(Answer::text(400, text));
        }
        let word = call.get("level").unwrap_or("INFO");
        let Some((_, level)) = LEVELS.iter().find(|(name, _)| *name == word) else {
            return Err(Answer::text(400, format!("Unrecognised log level: {word}")));
        };
        let number = |name: &str| call.get(name).and_then(|n| n.parse::<u64>().ok());
        let (before, after) = (number("before"), number("after"));
        if before.is_some() && after.is_some() {
            return Err(Answer::text(
                400,
                "There is undefined behaviour when both `after` and `before` are specified.",
            ));
        }
        let (low, high) = (after.unwrap_or(0), before.unwrap_or(u64::MAX));
        let found = self.candidates(call);
        let fits = |id: &u64| {
            let event = &self.events[usize::try_from(id - 1).unwrap_or(0)];
            if *level == 0 { event.level == 0 } else { event.level >= *level }
        };
        let mut page: Vec<u64> = match &found {
            // of all: by number, from the end that is asked for
            None => {
                let last = (self.events.len() as u64).min(high.saturating_sub(1));
                match after {
                    Some(_) => (low + 1..=last).filter(fits).take(limit).collect(),
                    None => (low + 1..=last).rev().filter(fits).take(limit).collect(),
                }
            }
            Some(ids) => {
                let from = ids.partition_point(|id| *id <= low);
                let to = ids.partition_point(|id| *id < high).max(from);
                let part = ids[from..to].iter().copied();
                match after {
                    Some(_) => part.filter(fits).take(limit).collect(),
                    None => part.rev().filter(fits).take(limit).collect(),
                }
            }
        };
        page.sort_unstable_by(|a, b| b.cmp(a));
        let kept: Vec<String> = call
            .query
            .iter()
            .filter(|(name, _)| !["before", "after", "op"].contains(&name.as_str()))
            .map(|(name, value)| format!("&{name}={value}"))
            .collect();
        let base = format!("/MAAS/api/2.0/events/?op=query{}", kept.concat());
        let newest = page.first().copied().unwrap_or(low);
        let oldest = page.last().copied().unwrap_or(1);
        let events: Vec<Value> = page.iter().map(|id| self.event_json(*id)).collect();
        Ok(Answer::json(&json!({
            "count": events.len(), "events": events, "next_uri": format!("{base}&after={newest}"),
            "prev_uri": format!("{base}&before={oldest}"),
        })))
    }

    /// The events of the machines that are asked for, in order; `None`: of all.
    fn candidates(&self, call: &Call) -> Option<Vec<u64>> {
        let mut keys: Option<Vec<u64>> = None;
        let mut narrow = |found: Vec<u64>| {
            keys = Some(match keys.take() {
                None => found,
                Some(so_far) => so_far.into_iter().filter(|k| found.contains(k)).collect(),
            });
        };
        let ids = call.all("id");
        if !ids.is_empty() {
            narrow(ids.iter().filter_map(|id| self.by_id.get(*id).copied()).collect());
        }
        let names = call.all("hostname");
        if !names.is_empty() {
            narrow(names.iter().filter_map(|name| self.by_name.get(*name).copied()).collect());
        }
        let macs = call.all("mac_address");
        if !macs.is_empty() {
            narrow(macs.iter().filter_map(|mac| self.by_mac.get(*mac)).flatten().copied().collect());
        }
        for (field, of) in [("zone", 0), ("owner", 1)] {
            let wanted = call.all(field);
            if !wanted.is_empty() {
                let fits = |key: &&u64| {
                    let machine = &self.machines[*key];
                    let value = if of == 0 { &machine.zone } else { machine.owner.as_ref().unwrap_or(&machine.zone) };
                    (of == 0 || machine.owner.is_some()) && wanted.contains(&value.as_str())
                };
                narrow(self.machines.keys().filter(fits).copied().collect());
            }
        }
        let keys = keys?;
        let mut all: Vec<u64> = keys.iter().flat_map(|key| self.machines[key].events.iter().copied()).collect();
        if keys.len() > 1 {
            all.sort_unstable();
        }
        Some(all)
    }

    fn event_json(&self, id: u64) -> Value {
        let e = &self.events[usize::try_from(id - 1).unwrap_or(0)];
        let level = LEVELS.iter().find(|(_, l)| *l == e.level).map(|(name, _)| *name);
        json!({
            "created": clock::in_print(e.at), "description": e.description, "hostname": e.hostname, "id": id,
            "level": level, "node": e.system_id, "type": e.kind, "username": "unknown",
        })
    }

    /// A new set, its scripts pending.
    pub(super) fn script_set(&mut self, key: u64, kind: SetKind) -> u64 {
        let id = self.sets.len() as u64 + 1;
        let system_id = self.machines[&key].system_id.clone();
        let scripts = vec![0; kind.scripts().len()];
        self.sets.push(ScriptSet { kind, system_id, status: 0, started: None, ended: None, scripts });
        // one that never began gives way to the next
        let sets = std::mem::take(&mut self.touch(key).sets);
        let began = |old: &u64| {
            let old = &self.sets[usize::try_from(old - 1).unwrap_or(0)];
            old.kind != kind || old.started.is_some()
        };
        let mut kept: Vec<u64> = sets.into_iter().filter(began).collect();
        kept.push(id);
        self.touch(key).sets = kept;
        id
    }

    pub(super) fn set_mut(&mut self, id: Option<u64>) -> Option<&mut ScriptSet> {
        self.sets.get_mut(usize::try_from(id?.checked_sub(1)?).ok()?)
    }

    /// All its scripts end so.
    pub(super) fn end_set(&mut self, id: Option<u64>, status: i64) {
        let now = self.now;
        if let Some(set) = self.set_mut(id) {
            set.status = status;
            set.started.get_or_insert(now);
            if set.kind != SetKind::Installation || status == 2 {
                set.ended = Some(now);
            }
            set.scripts.fill(status);
        }
    }

    pub(super) fn results(&self, call: &Call, key: u64) -> Outcome {
        let wanted = call.all("type");
        let of_kind = |kind: SetKind| wanted.is_empty() || wanted.contains(&kind.name().to_ascii_lowercase().as_str());
        let sets = self.machines[&key].sets.iter().map(|id| (*id, &self.sets[usize::try_from(id - 1).unwrap_or(0)]));
        let output = call.boolean("include_output").unwrap_or(false);
        let found = sets.filter(|(_, s)| of_kind(s.kind) && s.scripts.iter().any(|s| *s >= 0));
        Ok(Answer::json(&Value::Array(found.map(|(id, set)| set_json(id, set, output)).collect())))
    }

    pub(super) fn result(&self, call: &Call, key: u64, which: &str) -> Outcome {
        let machine = &self.machines[&key];
        let id = match which {
            "current-commissioning" => machine.commissioning,
            "current-testing" => machine.testing,
            "current-installation" => machine.installation,
            number => number.parse().ok().filter(|id| machine.sets.contains(id)),
        };
        let Some(id) = id else {
            return Err(match which.strip_prefix("current-") {
                Some(kind) => Answer::text(400, format!("No current {kind} script set exists for this node.")),
                None => Answer::missing("ScriptSet"),
            });
        };
        let set = &self.sets[usize::try_from(id - 1).unwrap_or(0)];
        Ok(Answer::json(&set_json(id, set, call.boolean("include_output").unwrap_or(false))))
    }
}

fn set_json(id: u64, set: &ScriptSet, output: bool) -> Value {
    let time = |at: Option<Millis>| at.map(clock::rfc2822);
    let results: Vec<Value> = set
        .kind
        .scripts()
        .iter()
        .zip(&set.scripts)
        .enumerate()
        .map(|(number, (name, state))| {
            // an installation's log has no exit status while it failed
            let exit = match (set.kind, state) {
                (_, 2) => Some(0),
                (SetKind::Installation, _) => None,
                (_, 3) => Some(1),
                _ => None,
            };
            let mut value = json!({
                "created": time(set.started), "ended": if exit.is_some() { time(set.ended.or(set.started)) } else { None },
                "estimated_runtime": "0:00:10", "exit_status": exit, "id": id * 10 + number as u64, "name": name,
                "parameters": {}, "runtime": "", "started": time(set.started), "status": state,
                "status_name": status::script_status(*state), "suppressed": false, "updated": time(set.started),
            });
            if output {
                let text = BASE64.encode("ok\n");
                value["output"] = json!(text);
                value["stdout"] = json!(text);
                value["stderr"] = json!("");
                value["result"] = json!("");
            }
            value
        })
        .collect();
    json!({
        "ended": time(set.ended), "id": id, "last_ping": time(set.started), "results": results,
        "resource_uri": format!("/MAAS/api/2.0/nodes/{}/results/{id}/", set.system_id), "runtime": "",
        "started": time(set.started), "status": set.status, "status_name": status::script_status(set.status),
        "system_id": set.system_id, "type": set.kind.number(), "type_name": set.kind.name(),
    })
}
