//! Who this agent is and what machine it is on, for people and for scripts. Nothing secret: no key, no token.

use crate::folder::Folder;
use crate::host::Host;
use crate::identity::Identity;
use crate::inventory;
use proto::agent::v1::Inventory;
use serde_json::{Value, json};
use std::path::Path;

pub fn show(state: &Path, host: &Host) -> Result<Value, String> {
    // looking must not make anything
    let identity = match state.is_dir() {
        true => Identity::load(&Folder::open(state)?)?,
        false => None,
    };
    let who = identity.map_or(Value::Null, |own| {
        json!({
            "node_id": own.node_id,
            "server": own.server.to_string(),
            "key_sha256": own.key.fingerprint(),
            "certificate_from": own.certificate.not_before.to_string(),
            "certificate_until": own.certificate.not_after.to_string(),
            "epoch": own.epoch,
            "session": own.session,
        })
    });
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "state": state.display().to_string(),
        "identity": who,
        "inventory": machine(&inventory::inventory(host)),
    }))
}

fn machine(found: &Inventory) -> Value {
    let facts = found.facts.clone().unwrap_or_default();
    let disks: Vec<_> = found
        .disks
        .iter()
        .map(|d| {
            json!({
                "name": d.name, "model": d.model, "serial_number": d.serial_number, "bytes": d.bytes,
                "rotational": d.rotational,
            })
        })
        .collect();
    let nics: Vec<_> = found
        .nics
        .iter()
        .map(|n| {
            json!({
                "name": n.name, "mac_address": n.mac_address, "speed_mbps": n.speed_mbps, "up": n.up, "driver": n.driver,
            })
        })
        .collect();
    let gpus: Vec<_> = found
        .gpus
        .iter()
        .map(|g| {
            json!({
                "index": g.index, "uuid": g.uuid, "name": g.name, "memory_bytes": g.memory_bytes,
                "serial_number": g.serial_number, "pci_bus_id": g.pci_bus_id, "mig": g.mig,
            })
        })
        .collect();
    json!({
        "system_uuid": facts.system_uuid,
        "serial_number": facts.serial_number,
        "vendor": facts.vendor,
        "model": facts.model,
        "hostname": facts.hostname,
        "boot_id": facts.boot_id,
        "mac_addresses": facts.mac_addresses,
        "os": found.os,
        "kernel": found.kernel,
        "architecture": found.architecture,
        "cpu": { "model": found.cpu_model, "sockets": found.cpu_sockets, "cores": found.cpu_cores, "threads": found.cpu_threads },
        "memory_bytes": found.memory_bytes,
        "disks": disks,
        "nics": nics,
        "gpus": gpus,
        "gpu_driver": found.gpu_driver,
        "gpu_note": found.gpu_note,
    })
}

/// One line for each thing that is known, indented by where it belongs.
pub fn lines(value: &Value) -> String {
    let mut text = String::new();
    write(value, 0, &mut text);
    text
}

fn write(value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = name.replace('_', " ");
                match value {
                    Value::Object(_) | Value::Array(_) => {
                        text.push_str(&format!("{indent}{name}:\n"));
                        write(value, depth + 1, text);
                    }
                    Value::Null => text.push_str(&format!("{indent}{name}: none\n")),
                    Value::String(plain) => text.push_str(&format!("{indent}{name}: {plain}\n")),
                    other => text.push_str(&format!("{indent}{name}: {other}\n")),
                }
            }
        }
        Value::Array(some) => {
            for one in some {
                match one {
                    Value::Object(fields) => {
                        let parts: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
                        text.push_str(&format!("{indent}- {}\n", parts.join(" ")));
                    }
                    Value::String(plain) => text.push_str(&format!("{indent}- {plain}\n")),
                    other => text.push_str(&format!("{indent}- {other}\n")),
                }
            }
        }
        other => text.push_str(&format!("{indent}{other}\n")),
    }
}
