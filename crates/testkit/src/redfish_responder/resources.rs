//! What the responder shows.

use super::{Options, System, World, lock, not_found};
use crate::http_faults::{Asked, Reply};
use serde_json::{Value, json};

pub(super) const ROOT: &str = "/redfish/v1";

fn at(path: &str) -> Value {
    json!({ "@odata.id": format!("{ROOT}/{path}") })
}

fn collection(path: &str, members: impl Iterator<Item = String>) -> Value {
    let members: Vec<Value> = members.map(|member| at(&format!("{path}/{member}"))).collect();
    json!({"@odata.id": format!("{ROOT}/{path}"), "Name": path, "Members@odata.count": members.len(), "Members": members})
}

impl World {
    pub(super) fn show(&self, asked: &Asked, words: &[&str], only: Option<usize>, options: &Options) -> Reply {
        let found = match words {
            [] => Some(root(options)),
            ["Systems", rest @ ..] => self.show_system(asked, rest, only, options),
            ["Managers", rest @ ..] => self.show_manager(rest, only, options),
            ["Chassis", rest @ ..] => self.show_chassis(rest, only, options),
            ["UpdateService", rest @ ..] => self.show_update_service(rest),
            ["AccountService", rest @ ..] => self.show_accounts(rest),
            ["TaskService", "Tasks", number] => return self.show_task(number),
            ["SessionService"] if options.sessions => {
                Some(json!({"Id": "SessionService", "Sessions": at("SessionService/Sessions")}))
            }
            _ => None,
        };
        let path = format!("{ROOT}/{}", words.join("/"));
        let Some(mut value) = found else { return not_found(&path) };
        value["@odata.id"] = path.into();
        let etag = value.get("@odata.etag").and_then(Value::as_str).map(str::to_owned);
        let reply = Reply::json(200, &value);
        match etag {
            Some(etag) => reply.with("etag", etag),
            None => reply,
        }
    }

    /// The numbers of the systems that are seen from here.
    fn numbers(&self, only: Option<usize>) -> impl Iterator<Item = String> {
        let (from, to) = only.map_or((1, self.systems.len()), |one| (one, one));
        (from..=to).map(|number| number.to_string())
    }

    fn show_system(&self, asked: &Asked, words: &[&str], only: Option<usize>, options: &Options) -> Option<Value> {
        let [id, rest @ ..] = words else { return Some(collection("Systems", self.numbers(only))) };
        let number: usize = id.parse().ok().filter(|n| only.is_none_or(|one| one == *n))?;
        let base = format!("Systems/{id}");
        if rest == ["LogServices", "SEL", "Entries"] {
            return Some(log_page(asked, &format!("{base}/LogServices/SEL/Entries"), options));
        }
        let system = self.system(number)?;
        Some(match rest {
            [] => system_itself(&base, &system, options),
            ["ResetActionInfo"] if options.action_info => {
                json!({"Parameters": [{"Name": "ResetType", "Required": true, "AllowableValues": options.reset_types}]})
            }
            ["Bios"] => json!({
                "Attributes": system.bios,
                "@Redfish.Settings": {
                    "SettingsObject": at(&format!("{base}/Bios/Settings")),
                    "SupportedApplyTimes": ["OnReset"],
                },
            }),
            ["Bios", "Settings"] => json!({ "Attributes": system.bios_pending }),
            ["VirtualMedia", rest @ ..] if !options.media_of_manager => media(&base, rest, &system)?,
            ["Processors"] => collection(&format!("{base}/Processors"), words_of(&["CPU1", "GPU1"])),
            ["Processors", "CPU1"] => json!({
                "Id": "CPU1", "Name": "Socket 1", "ProcessorType": "CPU", "Model": "Contoso 9000", "TotalCores": 16,
                "Status": {"State": "Enabled", "Health": "OK"},
            }),
            ["Processors", "GPU1"] => json!({
                "Id": "GPU1", "Name": "GPU 1", "ProcessorType": "GPU", "Model": "Contoso H1", "SerialNumber": "GPU-77",
                "Status": {"State": "Enabled", "Health": "Warning"},
            }),
            ["Memory"] => collection(&format!("{base}/Memory"), words_of(&["DIMM1", "DIMM2"])),
            ["Memory", "DIMM1"] => json!({"Id": "DIMM1", "CapacityMiB": 32768}),
            ["Memory", "DIMM2"] => json!({"Id": "DIMM2", "Status": {"State": "Absent"}, "CapacityMiB": null}),
            ["Storage"] if !options.old_schema => collection(&format!("{base}/Storage"), words_of(&["1"])),
            ["Storage", "1"] => json!({"Id": "1", "Drives": [at(&format!("{base}/Storage/1/Drives/0"))]}),
            ["Storage", "1", "Drives", "0"] => json!({
                "Id": "0", "Name": "Bay 0", "MediaType": "SSD", "CapacityBytes": 960_197_124_096_u64, "Model": "Fast 960",
                "SerialNumber": "DRV-0", "Status": {"State": "Enabled", "Health": "OK"},
            }),
            ["SimpleStorage"] if options.old_schema => collection(&format!("{base}/SimpleStorage"), words_of(&["1"])),
            ["SimpleStorage", "1"] => json!({"Id": "1", "Devices": [
                {"Name": "Disk 0", "Model": "Old 500", "CapacityBytes": "500107862016", "Status": {"State": "Enabled"}},
                {"Name": "Disk 1", "Status": {"State": "Absent"}},
            ]}),
            ["EthernetInterfaces"] => collection(&format!("{base}/EthernetInterfaces"), words_of(&["eth0"])),
            ["EthernetInterfaces", "eth0"] => json!({
                "Id": "eth0", "MACAddress": mac(number), "LinkStatus": "LinkUp", "SpeedMbps": 25000,
            }),
            ["PCIeDevices", "1"] => {
                json!({"Id": "1", "Name": "Network card", "Model": "Contoso 25G", "SerialNumber": "PCI-1"})
            }
            ["LogServices"] => collection(&format!("{base}/LogServices"), words_of(&["Lifecycle", "SEL"])),
            ["LogServices", name] => json!({
                "Id": name, "LogEntryType": if *name == "SEL" { "SEL" } else { "Oem" },
                "Entries": at(&format!("{base}/LogServices/{name}/Entries")),
            }),
            _ => return None,
        })
    }

    fn show_manager(&self, words: &[&str], only: Option<usize>, options: &Options) -> Option<Value> {
        let [id, rest @ ..] = words else { return Some(collection("Managers", self.numbers(only))) };
        let number: usize = id.parse().ok()?;
        let system = self.system(number)?;
        let base = format!("Managers/{id}");
        Some(match rest {
            [] => {
                let mut manager = json!({
                    "Id": id, "Name": "BMC", "FirmwareVersion": system.firmware, "ManagerType": "BMC",
                    "GraphicalConsole": {"ServiceEnabled": true, "ConnectTypesSupported": ["KVMIP"]},
                    "SerialConsole": {"ServiceEnabled": true, "ConnectTypesSupported": ["SSH", "IPMI"]},
                });
                if options.media_of_manager {
                    manager["VirtualMedia"] = at(&format!("{base}/VirtualMedia"));
                }
                manager
            }
            ["VirtualMedia", rest @ ..] if options.media_of_manager => media(&base, rest, &system)?,
            _ => return None,
        })
    }

    fn show_chassis(&self, words: &[&str], only: Option<usize>, options: &Options) -> Option<Value> {
        let [id, rest @ ..] = words else { return Some(collection("Chassis", self.numbers(only))) };
        let number: usize = id.parse().ok()?;
        drop(self.system(number)?);
        let base = format!("Chassis/{id}");
        let ok = json!({"State": "Enabled", "Health": "OK"});
        Some(match rest {
            [] if options.old_schema => {
                json!({"Id": id, "Thermal": at(&format!("{base}/Thermal")), "Power": at(&format!("{base}/Power"))})
            }
            [] => json!({"Id": id, "Sensors": at(&format!("{base}/Sensors"))}),
            ["Thermal"] => json!({
                "Temperatures": [{"Name": "Inlet", "ReadingCelsius": 21.5, "Status": ok}],
                "Fans": [{"Name": "Fan 1", "Reading": 9000, "ReadingUnits": "RPM", "Status": ok},
                         {"Name": "Fan 2", "Status": {"State": "Absent"}}],
            }),
            ["Power"] => json!({"PowerControl": [{"Name": "System", "PowerConsumedWatts": 310, "Status": ok}]}),
            ["Sensors"] => collection(&format!("{base}/Sensors"), words_of(&["inlet", "fan1"])),
            ["Sensors", "inlet"] => json!({"Name": "Inlet", "Reading": 21.5, "ReadingUnits": "Cel", "Status": ok}),
            ["Sensors", "fan1"] => json!({"Name": "Fan 1", "Reading": 9000, "ReadingUnits": "{rev}/min", "Status": ok}),
            _ => return None,
        })
    }

    fn show_update_service(&self, words: &[&str]) -> Option<Value> {
        let target = format!("{ROOT}/UpdateService/Actions/UpdateService.SimpleUpdate");
        Some(match words {
            [] => json!({
                "Id": "UpdateService", "ServiceEnabled": true,
                "FirmwareInventory": at("UpdateService/FirmwareInventory"),
                "Actions": {"#UpdateService.SimpleUpdate": {
                    "target": target, "TransferProtocol@Redfish.AllowableValues": ["HTTP", "HTTPS"],
                }},
            }),
            ["FirmwareInventory"] => collection("UpdateService/FirmwareInventory", words_of(&["BMC"])),
            ["FirmwareInventory", "BMC"] => {
                json!({"Id": "BMC", "Name": "BMC firmware", "Version": self.system(1)?.firmware, "Updateable": true})
            }
            _ => return None,
        })
    }

    fn show_accounts(&self, words: &[&str]) -> Option<Value> {
        let accounts = lock(&self.accounts);
        Some(match words {
            [] => json!({"Id": "AccountService", "Accounts": at("AccountService/Accounts")}),
            ["Accounts"] => collection("AccountService/Accounts", (1..=accounts.len()).map(|n| n.to_string())),
            ["Accounts", number] => {
                let (name, _) = accounts.get(number.parse::<usize>().ok()?.checked_sub(1)?)?;
                json!({"Id": number, "UserName": name, "Password": null, "RoleId": "Administrator"})
            }
            _ => return None,
        })
    }

    /// Each look brings it nearer to its end.
    fn show_task(&self, number: &str) -> Reply {
        let mut tasks = lock(&self.tasks);
        let index = number.parse::<usize>().ok().and_then(|n| n.checked_sub(1));
        let Some(task) = index.and_then(|i| tasks.get_mut(i)) else { return not_found(number) };
        let id = format!("{ROOT}/TaskService/Tasks/{number}");
        if task.looks_left > 0 {
            task.looks_left -= 1;
            let percent = 100 - 100 * (task.looks_left + 1) / (task.of + 1);
            let running = json!({"@odata.id": id, "TaskState": "Running", "PercentComplete": percent, "Messages": []});
            return Reply::json(202, &running).with("retry-after", "0");
        }
        let (state, message) = match &task.failure {
            Some(why) => ("Exception", why.as_str()),
            None => ("Completed", "the task has completed"),
        };
        let ended = json!({
            "@odata.id": id, "TaskState": state, "PercentComplete": 100, "Messages": [{"Message": message}],
        });
        Reply::json(200, &ended)
    }
}

fn words_of<'a>(words: &'a [&'a str]) -> impl Iterator<Item = String> + use<'a> {
    words.iter().map(|word| (*word).to_owned())
}

fn mac(number: usize) -> String {
    format!("52:54:00:{:02X}:{:02X}:{:02X}", (number >> 16) & 255, (number >> 8) & 255, number & 255)
}

fn root(options: &Options) -> Value {
    let mut root = json!({
        "@odata.type": "#ServiceRoot.v1_9_0.ServiceRoot", "Id": "RootService", "RedfishVersion": "1.11.0",
        "Vendor": options.manufacturer, "Systems": at("Systems"), "Managers": at("Managers"), "Chassis": at("Chassis"),
        "Tasks": at("TaskService"),
    });
    for service in ["UpdateService", "AccountService"] {
        if !options.lacks.iter().any(|l| l == service) {
            root[service] = at(service);
        }
    }
    if options.sessions {
        root["SessionService"] = at("SessionService");
        root["Links"] = json!({ "Sessions": at("SessionService/Sessions") });
    }
    root
}

fn system_itself(base: &str, system: &System, options: &Options) -> Value {
    let reset = format!("{ROOT}/{base}/Actions/ComputerSystem.Reset");
    let number = base.rsplit('/').next().unwrap_or_default();
    let mut value = json!({
        "@odata.type": "#ComputerSystem.v1_13_0.ComputerSystem", "@odata.etag": format!("\"{}\"", system.version),
        "Id": number, "Name": format!("node-{number}"), "HostName": format!("node-{number}"),
        "Manufacturer": options.manufacturer, "Model": "Tower 1", "SerialNumber": system.serial, "UUID": system.uuid,
        "PowerState": if system.on { "On" } else { "Off" },
        "Status": {"State": "Enabled", "Health": "OK", "HealthRollup": "Warning"},
        "BiosVersion": "2.3", "LastResetTime": format!("2026-01-01T00:{:02}:{:02}Z", system.resets / 60 % 60, system.resets % 60),
        "MemorySummary": {"TotalSystemMemoryGiB": 32}, "ProcessorSummary": {"Count": 1, "Model": "Contoso 9000"},
        "Boot": {
            "BootSourceOverrideTarget": system.boot_target, "BootSourceOverrideEnabled": system.boot_enabled,
            "BootSourceOverrideMode": system.boot_mode,
            "BootSourceOverrideTarget@Redfish.AllowableValues": options.boot_targets,
        },
        "PCIeDevices": [at(&format!("{base}/PCIeDevices/1"))],
        "Links": {"ManagedBy": [at(&format!("Managers/{number}"))], "Chassis": [at(&format!("Chassis/{number}"))]},
        "Actions": {"#ComputerSystem.Reset": {"target": reset}},
    });
    if options.action_info {
        value["Actions"]["#ComputerSystem.Reset"]["@Redfish.ActionInfo"] =
            format!("{ROOT}/{base}/ResetActionInfo").into();
    } else {
        value["Actions"]["#ComputerSystem.Reset"]["ResetType@Redfish.AllowableValues"] = json!(options.reset_types);
    }
    if options.old_schema {
        value["IndicatorLED"] = if system.lamp { "Lit" } else { "Off" }.into();
    } else {
        value["LocationIndicatorActive"] = system.lamp.into();
    }
    let storage = if options.old_schema { "SimpleStorage" } else { "Storage" };
    let mut parts = vec!["Bios", "Processors", "Memory", storage, "EthernetInterfaces", "LogServices"];
    if !options.media_of_manager {
        parts.push("VirtualMedia");
    }
    for part in parts {
        // what is lacking is not linked to, either
        if !options.lacks.iter().any(|l| l == part) {
            value[part] = at(&format!("{base}/{part}"));
        }
    }
    if options.lacks.iter().any(|l| l == "Lamp") {
        value["LocationIndicatorActive"] = Value::Null;
    }
    value
}

fn media(base: &str, words: &[&str], system: &System) -> Option<Value> {
    let action = |slot: &str, act: &str| json!({ "target": format!("{ROOT}/{base}/VirtualMedia/{slot}/Actions/VirtualMedia.{act}") });
    Some(match words {
        [] => collection(&format!("{base}/VirtualMedia"), words_of(&["Usb", "Cd"])),
        ["Usb"] => json!({"Id": "Usb", "MediaTypes": ["USBStick"], "Image": null, "Inserted": false}),
        ["Cd"] => json!({
            "Id": "Cd", "MediaTypes": ["CD", "DVD"], "Image": system.media, "Inserted": system.media.is_some(),
            "Actions": {
                "#VirtualMedia.InsertMedia": action("Cd", "InsertMedia"),
                "#VirtualMedia.EjectMedia": action("Cd", "EjectMedia"),
            },
        }),
        _ => return None,
    })
}

/// Entry `n` was made at minute `n`.
fn log_page(asked: &Asked, base: &str, options: &Options) -> Value {
    let skip: usize = asked.path.split_once("$skip=").and_then(|(_, n)| n.parse().ok()).unwrap_or(0);
    let all: Vec<usize> = match options.log_newest_first {
        true => (1..=options.log_entries).rev().collect(),
        false => (1..=options.log_entries).collect(),
    };
    let entry = |n: &usize| {
        json!({
            "@odata.id": format!("{ROOT}/{base}/{n}"), "Id": n.to_string(), "Severity": "Warning",
            "Created": format!("2026-01-01T{:02}:{:02}:00+00:00", n / 60 % 24, n % 60), "Message": format!("event {n}"),
        })
    };
    let page: Vec<Value> = all.iter().skip(skip).take(options.log_page).map(entry).collect();
    let next = skip + page.len();
    let mut value = json!({"Members@odata.count": all.len(), "Members": page});
    if next < all.len() {
        value["Members@odata.nextLink"] = format!("{ROOT}/{base}?$skip={next}").into();
    }
    value
}
