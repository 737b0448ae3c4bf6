//! What a machine is made of and how it is, as its own management controller tells it.

use crate::plan::BootMode;
use crate::time::Timestamp;
use crate::words::words;
use std::collections::BTreeMap;

words!(
/// What can be done to a machine's power.
PowerAction {
    On = "on",
    /// Asks the system to shut down.
    GracefulOff = "graceful-off",
    ForceOff = "force-off",
    /// Asks the system to restart.
    GracefulRestart = "graceful-restart",
    ForceRestart = "force-restart",
    /// Takes the power away and gives it back.
    Cycle = "cycle",
});

words!(Health { Ok = "OK", Warning = "Warning", Critical = "Critical", Unknown = "Unknown" });

/// The whole of it: what `machine inspect` shows and a discovery fills a record from. What a controller
/// does not tell is empty, never guessed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Description {
    /// How it was read: `redfish`, `ipmi`, `sim`.
    pub source: String,
    pub manufacturer: String,
    pub model: String,
    pub serial_number: String,
    pub system_uuid: String,
    pub hostname: String,
    pub powered: Option<bool>,
    pub health: Option<Health>,
    pub boot: Option<BootOverride>,
    pub cpus: Vec<Part>,
    pub memory_mib: u64,
    pub drives: Vec<Part>,
    pub nics: Vec<Nic>,
    /// GPUs, network and other cards.
    pub devices: Vec<Part>,
    pub firmware: Vec<Firmware>,
    /// What it allows and offers, by name: `power.on`, `boot.pxe`, `virtual-media`, `bios`, `event-log` …
    pub capabilities: Vec<String>,
    /// What could not be read, and why. The rest stands.
    pub gaps: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootOverride {
    pub mode: BootMode,
    pub persistent: bool,
}

/// A processor, drive, GPU or other card.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    /// Where it sits, as the controller calls it.
    pub name: String,
    /// `CPU`, `SSD`, `HDD`, `GPU`, `FPGA`, …
    pub kind: String,
    pub model: String,
    pub serial_number: String,
    pub health: Option<Health>,
    /// Cores of a processor, bytes of a drive; 0: not told.
    pub size: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Nic {
    pub name: String,
    pub mac_address: String,
    pub link_up: Option<bool>,
    pub speed_mbps: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Firmware {
    pub name: String,
    pub version: String,
    pub updateable: bool,
}

/// An entry of a controller's own event log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventLogEntry {
    pub id: String,
    /// By the controller's clock, which need not be ours.
    pub at: Option<Timestamp>,
    pub severity: String,
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sensor {
    pub name: String,
    /// With its unit: `38 degrees C`.
    pub reading: String,
    pub health: Option<Health>,
}

/// BIOS attributes in force, and those that wait for the next boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bios {
    pub current: BTreeMap<String, String>,
    pub pending: BTreeMap<String, String>,
}

/// Work that a controller does by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerTask {
    Running { percent: Option<u8>, message: String },
    Done { message: String },
    Failed { message: String },
}

/// How a person gets at the console of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsoleInfo {
    /// `serial` or `graphical`.
    pub kind: String,
    /// `ssh`, `ipmi-sol`, `web`, …
    pub protocol: String,
    /// A command or a URL; never with a password in it.
    pub connect: String,
    pub note: String,
}
