//! What a simulated machine is made of: always the same for the same identity.

use crate::identity::Identity;
use crate::machine::Machine;
use domain::hardware::{BootOverride, Description, Firmware, Health, Nic, Part, PowerAction, Sensor};
use domain::plan::BootMode;
use domain::stage::mix;
use provider::Target;

const CAPABILITIES: [&str; 7] =
    ["virtual-media", "bios", "firmware-update", "event-log", "sensors", "identify", "password-rotation"];

/// A number that depends on who the machine is, and on what is asked about it.
fn dice(identity: &Identity, what: &str) -> u64 {
    let text = format!("{}/{what}", identity.serial_number);
    text.bytes().fold(0x5151, |hash, byte| mix(hash ^ u64::from(byte)))
}

/// Those of the spec; without any, two that the identity decides. Locally administered, so nobody's.
pub(crate) fn mac_addresses(target: &Target, identity: &Identity) -> Vec<String> {
    if !target.spec.mac_addresses.is_empty() {
        return target.spec.mac_addresses.clone();
    }
    let bytes = dice(identity, "mac").to_be_bytes();
    let mac = |last: u8| {
        format!("02:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}", bytes[0], bytes[1], bytes[2], bytes[3], bytes[4] & 0xfe | last)
    };
    vec![mac(0), mac(1)]
}

pub(crate) fn describe(target: &Target, identity: &Identity, machine: &Machine) -> Description {
    let part = |name: String, kind: &str, model: &str, size: u64| Part {
        serial_number: format!("{}-{name}", identity.serial_number),
        name,
        kind: kind.to_owned(),
        model: model.to_owned(),
        health: Some(Health::Ok),
        size,
    };
    let gpus = if dice(identity, "gpus").is_multiple_of(3) { 8 } else { 0 };
    let mut devices: Vec<Part> = (1..=gpus).map(|n| part(format!("GPU {n}"), "GPU", "Simulated G1", 0)).collect();
    devices.push(part("Slot 1".to_owned(), "Network", "Simulated 2x25G", 0));
    let nics = mac_addresses(target, identity).into_iter().enumerate().map(|(i, mac_address)| Nic {
        name: format!("NIC {}", i + 1),
        mac_address,
        link_up: Some(machine.powered && i == 0),
        speed_mbps: if machine.powered && i == 0 { 25_000 } else { 0 },
    });
    let firmware = |name: &str, version: String| Firmware { name: name.to_owned(), version, updateable: true };
    let power = PowerAction::ALL.iter().map(|action| format!("power.{action}"));
    let boot = BootMode::ALL.iter().map(|mode| format!("boot.{}", mode.as_str().to_ascii_lowercase()));
    Description {
        source: "sim".to_owned(),
        manufacturer: "Simulated".to_owned(),
        model: if gpus > 0 { "SIM-G8" } else { "SIM-R2" }.to_owned(),
        serial_number: identity.serial_number.clone(),
        system_uuid: identity.system_uuid.clone(),
        hostname: target.machine_id.to_string(),
        powered: Some(machine.powered),
        health: Some(Health::Ok),
        boot: boot_override(machine),
        cpus: (1..=2).map(|n| part(format!("CPU {n}"), "CPU", "Simulated 9000", 32)).collect(),
        memory_mib: if gpus > 0 { 2 << 20 } else { 512 << 10 },
        drives: (0..4).map(|n| part(format!("Disk {n}"), "SSD", "Simulated NVMe", 3_840_755_982_336)).collect(),
        nics: nics.collect(),
        devices,
        firmware: vec![
            firmware("BIOS", format!("2.{}", machine.controller().updates)),
            firmware("BMC", format!("7.10.{}", machine.controller().updates)),
        ],
        capabilities: power.chain(boot).chain(CAPABILITIES.map(str::to_owned)).collect(),
        gaps: Vec::new(),
    }
}

pub(crate) fn boot_override(machine: &Machine) -> Option<BootOverride> {
    machine.boot_override.map(|o| BootOverride { mode: o.mode, persistent: o.persistent })
}

pub(crate) fn sensors(identity: &Identity, machine: &Machine) -> Vec<Sensor> {
    let degrees = if machine.powered { 30 + dice(identity, "heat") % 15 } else { 21 };
    let (watts, rpm) = if machine.powered { (380 + dice(identity, "load") % 120, 7200) } else { (9, 0) };
    let sensor = |name: &str, reading: String| Sensor { name: name.to_owned(), reading, health: Some(Health::Ok) };
    vec![
        sensor("CPU 1 Temp", format!("{} degrees C", degrees + 12)),
        sensor("Inlet Temp", format!("{degrees} degrees C")),
        sensor("Fan 1", format!("{rpm} RPM")),
        sensor("Power", format!("{watts} W")),
    ]
}
