//! What the responder does when it is told to, and what it notes of it.

use super::resources::ROOT;
use super::{Options, System, Task, What, World, error, lock, not_found};
use crate::canary;
use crate::http_faults::{Asked, Reply};
use serde_json::{Map, Value, json};
use std::sync::atomic::Ordering;

/// Looks at an update before it has ended.
const UPDATE_LOOKS: usize = 3;

impl World {
    pub(super) fn change(&self, asked: &Asked, words: &[&str], options: &Options) -> Reply {
        let body: Value = match serde_json::from_slice(&asked.body) {
            Ok(value) => value,
            Err(_) if asked.body.is_empty() => Value::Null,
            Err(_) => return error(400, "the request body is not JSON"),
        };
        match (asked.method.as_str(), words) {
            ("POST", ["SessionService", "Sessions"]) if options.sessions => self.log_in(&body),
            ("DELETE", ["SessionService", "Sessions", number]) => self.log_out(number),
            ("POST", ["UpdateService", "Actions", "UpdateService.SimpleUpdate"]) => self.update(&body, options),
            ("PATCH", ["AccountService", "Accounts", number]) => self.set_account(number, &body),
            (method, ["Systems" | "Managers", number, rest @ ..]) => {
                let Ok(number) = number.parse::<usize>() else { return not_found(number) };
                if let Some(why) = &options.task_failure {
                    return self.task(0, Some(why.clone()));
                }
                let reply = self.change_system(asked, method, number, rest, &body, options);
                match options.tasks {
                    Some(looks) if (200..300).contains(&reply.status) => self.task(looks, None),
                    _ => reply,
                }
            }
            _ => error(405, "the method is not allowed here"),
        }
    }

    fn change_system(
        &self,
        asked: &Asked,
        method: &str,
        number: usize,
        words: &[&str],
        body: &Value,
        options: &Options,
    ) -> Reply {
        let Some(mut system) = self.system(number) else { return not_found(&number.to_string()) };
        let system = &mut *system;
        match (method, words) {
            ("PATCH", []) => {
                let etag = format!("\"{}\"", system.version);
                let said = asked.headers.get("if-match").and_then(|value| value.to_str().ok());
                if options.wants_etag && said != Some(&etag) {
                    return error(428, "If-Match is required");
                }
                self.patch_system(number, system, body, options)
            }
            ("POST", ["Actions", "ComputerSystem.Reset"]) => self.reset(number, system, body, options),
            ("PATCH", ["Bios", "Settings"]) => self.set_bios(number, system, body),
            ("POST", ["VirtualMedia", "Cd", "Actions", action]) => match (*action, body["Image"].as_str()) {
                ("VirtualMedia.InsertMedia", _) if system.media.is_some() => error(409, "a medium is inserted"),
                ("VirtualMedia.InsertMedia", Some(image)) => {
                    system.media = Some(image.to_owned());
                    self.note(number, What::MediaIn(image.to_owned()));
                    Reply::status(204)
                }
                ("VirtualMedia.InsertMedia", None) => error(400, "the property Image is missing"),
                ("VirtualMedia.EjectMedia", _) => {
                    system.media = None;
                    self.note(number, What::MediaOut);
                    Reply::status(204)
                }
                _ => error(405, "there is no such action"),
            },
            _ => error(405, "the method is not allowed here"),
        }
    }

    fn patch_system(&self, number: usize, system: &mut System, body: &Value, options: &Options) -> Reply {
        if let Some(boot) = body.get("Boot") {
            let word = |name: &str, old: &str| boot[name].as_str().unwrap_or(old).to_owned();
            let target = word("BootSourceOverrideTarget", &system.boot_target);
            let enabled = word("BootSourceOverrideEnabled", &system.boot_enabled);
            let mode = word("BootSourceOverrideMode", &system.boot_mode);
            if !options.boot_targets.contains(&target) {
                return error(400, &format!("the value {target} of BootSourceOverrideTarget is not in the list"));
            }
            if options.manufacturer == "Supermicro" && boot["BootSourceOverrideMode"].is_null() && enabled != "Disabled"
            {
                // taken, and forgotten
                return Reply::status(200);
            }
            self.note(number, What::BootSet { target: target.clone(), enabled: enabled.clone(), mode: mode.clone() });
            (system.boot_target, system.boot_enabled, system.boot_mode) = (target, enabled, mode);
        }
        let lamp = match (body["LocationIndicatorActive"].as_bool(), body["IndicatorLED"].as_str()) {
            (Some(on), _) => Some(on),
            (None, Some(word)) => Some(word != "Off"),
            (None, None) => None,
        };
        if let Some(on) = lamp {
            system.lamp = on;
            self.note(number, What::Lamp(on));
        }
        system.version += 1;
        Reply::status(204)
    }

    fn reset(&self, number: usize, system: &mut System, body: &Value, options: &Options) -> Reply {
        let word = body["ResetType"].as_str().unwrap_or_default();
        if !options.reset_types.iter().any(|allowed| allowed == word) {
            return error(400, &format!("the value {word} of ResetType is not in the list"));
        }
        let was_on = system.on;
        system.on = !matches!(word, "ForceOff" | "GracefulShutdown");
        system.resets += 1;
        system.version += 1;
        self.note(number, What::Power { word: word.to_owned(), on: system.on });
        if system.on && (!was_on || !matches!(word, "On" | "ForceOn")) {
            self.boot(number, system);
        }
        Reply::status(204)
    }

    fn boot(&self, number: usize, system: &mut System) {
        if !system.bios_pending.is_empty() {
            let applied = std::mem::take(&mut system.bios_pending);
            system.bios.extend(applied.clone());
            self.note(number, What::BiosApplied(applied));
        }
        let from = if system.boot_enabled == "Disabled" { "Hdd".to_owned() } else { system.boot_target.clone() };
        if system.boot_enabled == "Once" {
            (system.boot_enabled, system.boot_target) = ("Disabled".into(), "None".into());
        }
        self.note(number, What::Booted { from });
    }

    fn set_bios(&self, number: usize, system: &mut System, body: &Value) -> Reply {
        let empty = Map::new();
        let wanted = body["Attributes"].as_object().unwrap_or(&empty);
        for (name, value) in wanted {
            let same_type = |old: &Value| std::mem::discriminant(old) == std::mem::discriminant(value);
            if !system.bios.get(name).is_some_and(same_type) {
                return error(400, &format!("the attribute {name} is unknown or of another type"));
            }
        }
        system.bios_pending.extend(wanted.clone());
        self.note(number, What::BiosSet(wanted.clone()));
        Reply::status(200)
    }

    fn update(&self, body: &Value, _options: &Options) -> Reply {
        let Some(image) = body["ImageURI"].as_str() else { return error(400, "the property ImageURI is missing") };
        if image.contains("bad") {
            return self.task(UPDATE_LOOKS, Some("the image is damaged".to_owned()));
        }
        let targets = body["Targets"].as_array().into_iter().flatten();
        let targets: Vec<String> = targets.filter_map(Value::as_str).map(str::to_owned).collect();
        for (index, system) in self.systems.iter().enumerate() {
            let path = format!("{ROOT}/Systems/{}", index + 1);
            if targets.is_empty() && index == 0 || targets.iter().any(|t| t.starts_with(&path)) {
                lock(system).firmware = "2.0.0".into();
                self.note(index + 1, What::Updated { image: image.to_owned(), targets: targets.clone() });
            }
        }
        self.task(UPDATE_LOOKS, None)
    }

    fn task(&self, looks: usize, failure: Option<String>) -> Reply {
        let mut tasks = lock(&self.tasks);
        tasks.push(Task { looks_left: looks, of: looks, failure });
        let id = format!("{ROOT}/TaskService/Tasks/{}", tasks.len());
        Reply::json(202, &json!({"@odata.id": id, "TaskState": "New"})).with("location", id)
    }

    fn set_account(&self, number: &str, body: &Value) -> Reply {
        let mut accounts = lock(&self.accounts);
        let index = number.parse::<usize>().ok().and_then(|n| n.checked_sub(1));
        let Some((username, password)) = index.and_then(|i| accounts.get_mut(i)) else { return not_found(number) };
        let Some(new) = body["Password"].as_str() else { return error(400, "the property Password is missing") };
        if new.len() < 8 {
            // quoting what one was sent is what real ones do, too
            return error(400, &format!("the value {new} of Password does not meet the policy"));
        }
        new.clone_into(password);
        self.note(0, What::PasswordSet { username: username.clone() });
        Reply::status(200)
    }

    fn log_in(&self, body: &Value) -> Reply {
        let text = |name: &str| body[name].as_str().unwrap_or_default();
        if !self.knows(text("UserName"), text("Password")) {
            self.note(0, What::LoginRefused);
            return error(401, "the login is not accepted");
        }
        let (number, token) = (self.numbers.fetch_add(1, Ordering::Relaxed), canary::plant("session"));
        lock(&self.sessions).insert(token.clone(), number);
        self.note(0, What::LoggedIn);
        let at = format!("{ROOT}/SessionService/Sessions/{number}");
        Reply::json(201, &json!({ "@odata.id": at })).with("x-auth-token", token).with("location", at)
    }

    fn log_out(&self, number: &str) -> Reply {
        let Ok(number) = number.parse::<u64>() else { return not_found(number) };
        lock(&self.sessions).retain(|_, n| *n != number);
        self.note(0, What::LoggedOut);
        Reply::status(204)
    }
}
