//! Everything that a controller tells of its machine. A part that cannot be read is a gap in the description, not
//! the end of it; only a login or a certificate that is refused ends it.

use crate::client::Client;
use crate::json::{self, count, first_text, health, is_absent, text};
use crate::places::{self, Seen};
use crate::{boot, console, events, identify, power};
use domain::Reason;
use domain::hardware::{Description, Firmware, Nic, Part};
use provider::{ProviderError, ProviderResult};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

/// Of any kind.
const PARTS_MAX: usize = 256;
const GAPS_MAX: usize = 64;

pub async fn describe(client: &Client, seen: &Seen) -> ProviderResult<Description> {
    let system = &seen.system;
    let powered = match text(system, "/PowerState").as_str() {
        "" => None,
        word => Some(matches!(word, "On" | "PoweringOff" | "Paused")),
    };
    let mut told = Telling {
        client,
        seen,
        until: Instant::now() + client.timeouts.describe,
        told: Description {
            source: "redfish".into(),
            manufacturer: text(system, "/Manufacturer"),
            model: text(system, "/Model"),
            serial_number: text(system, "/SerialNumber"),
            system_uuid: text(system, "/UUID").to_ascii_lowercase(),
            hostname: text(system, "/HostName"),
            powered,
            health: health(system),
            boot: boot::state(system, seen.places.quirks),
            ..Description::default()
        },
    };
    told.processors().await?;
    told.memory().await?;
    told.drives().await?;
    told.nics().await?;
    told.cards().await?;
    told.controller().await?;
    told.capabilities().await?;
    Ok(told.told)
}

struct Telling<'a> {
    client: &'a Client,
    seen: &'a Seen,
    until: Instant,
    told: Description,
}

impl Telling<'_> {
    /// What a part tells, or nothing and a gap.
    async fn part<T: Default>(
        &mut self,
        name: &str,
        reading: impl Future<Output = ProviderResult<T>>,
    ) -> ProviderResult<T> {
        let late = || ProviderError::unreachable(&self.client.name, "no time is left for it");
        let why = match timeout_at(self.until, reading).await.unwrap_or_else(|_| Err(late())) {
            Ok(part) => return Ok(part),
            Err(e) if matches!(e.reason(), Reason::LoginRefused | Reason::UntrustedCertificate) => return Err(e),
            Err(e) => e,
        };
        if self.told.gaps.len() < GAPS_MAX {
            self.told.gaps.push(format!("{name}: {why}"));
        }
        Ok(T::default())
    }

    /// The members of a collection that the system links to.
    async fn collection(&mut self, name: &str, at: &str) -> ProviderResult<Vec<Value>> {
        let Some(path) = json::link(&self.seen.system, at) else { return Ok(Vec::new()) };
        let client = self.client;
        let mut all = self.part(name, places::members(client, &path, PARTS_MAX)).await?;
        all.retain(|member| !is_absent(member));
        Ok(all)
    }

    async fn processors(&mut self) -> ProviderResult<()> {
        for processor in self.collection("processors", "/Processors").await? {
            let kind = text(&processor, "/ProcessorType");
            let kind = if kind.is_empty() { "CPU".to_owned() } else { kind };
            let size = count(&processor, "/TotalCores");
            let part = Part { kind, size, ..part(&processor) };
            if part.kind == "CPU" { self.told.cpus.push(part) } else { self.told.devices.push(part) }
        }
        let system = &self.seen.system;
        if self.told.cpus.is_empty() {
            // the summary says less, but says it
            let sockets = count(system, "/ProcessorSummary/Count").min(PARTS_MAX as u64);
            let cores = count(system, "/ProcessorSummary/CoreCount").checked_div(sockets).unwrap_or(0);
            self.told.cpus = (1..=sockets)
                .map(|n| Part {
                    name: format!("CPU {n}"),
                    kind: "CPU".into(),
                    model: text(system, "/ProcessorSummary/Model"),
                    size: cores,
                    ..Part::default()
                })
                .collect();
        }
        Ok(())
    }

    async fn memory(&mut self) -> ProviderResult<()> {
        let total = json::number(&self.seen.system, "/MemorySummary/TotalSystemMemoryGiB");
        self.told.memory_mib = match total.filter(|gib| (0.0..1e9).contains(gib)) {
            Some(gib) => (gib * 1024.0).round() as u64,
            None => {
                let modules = self.collection("memory", "/Memory").await?;
                modules.iter().map(|module| count(module, "/CapacityMiB")).sum()
            }
        };
        Ok(())
    }

    async fn drives(&mut self) -> ProviderResult<()> {
        let client = self.client;
        for storage in self.collection("storage", "/Storage").await? {
            let drives = json::list(&storage, "/Drives");
            let name = format!("drives of storage {}", text(&storage, "/Id"));
            let drives = self.part(&name, places::whole(client, drives, PARTS_MAX)).await?;
            let there = drives.iter().filter(|drive| !is_absent(drive));
            self.told.drives.extend(there.map(|drive| {
                let kind = text(drive, "/MediaType");
                Part { kind, size: count(drive, "/CapacityBytes"), ..part(drive) }
            }));
        }
        if self.told.drives.is_empty() {
            for storage in self.collection("simple storage", "/SimpleStorage").await? {
                let devices = json::list(&storage, "/Devices").iter().filter(|device| !is_absent(device));
                self.told
                    .drives
                    .extend(devices.map(|device| Part { size: count(device, "/CapacityBytes"), ..part(device) }));
            }
        }
        self.told.drives.truncate(PARTS_MAX);
        Ok(())
    }

    async fn nics(&mut self) -> ProviderResult<()> {
        for nic in self.collection("network interfaces", "/EthernetInterfaces").await? {
            let link_up = match text(&nic, "/LinkStatus").as_str() {
                "LinkUp" => Some(true),
                "LinkDown" | "NoLink" => Some(false),
                _ => None,
            };
            self.told.nics.push(Nic {
                name: first_text(&nic, &["/Id", "/Name"]),
                // the one it was made with: what it boots by
                mac_address: first_text(&nic, &["/PermanentMACAddress", "/MACAddress"]).to_ascii_lowercase(),
                link_up,
                speed_mbps: count(&nic, "/SpeedMbps"),
            });
        }
        Ok(())
    }

    async fn cards(&mut self) -> ProviderResult<()> {
        let client = self.client;
        // a list of references in the system; in later versions a collection of the chassis
        let mut cards = json::list(&self.seen.system, "/PCIeDevices").to_vec();
        if cards.is_empty() {
            for chassis in self.part("chassis", places::chassis_of(client, self.seen)).await? {
                let chassis = self.part("chassis", client.get_if_there(&chassis)).await?.unwrap_or(Value::Null);
                if let Some(devices) = json::link(&chassis, "/PCIeDevices") {
                    cards.extend(self.part("PCIe devices", places::members(client, &devices, PARTS_MAX)).await?);
                }
            }
        }
        let cards = self.part("PCIe devices", places::whole(client, &cards, PARTS_MAX)).await?;
        let there = cards.iter().filter(|card| !is_absent(card));
        self.told.devices.extend(there.map(|card| Part { kind: "PCIe".into(), ..part(card) }));
        Ok(())
    }

    /// The manager's own part: firmware, and what it offers.
    async fn controller(&mut self) -> ProviderResult<()> {
        let (client, seen) = (self.client, self.seen);
        let offers = |told: &mut Description, name: &str| {
            if !told.capabilities.iter().any(|c| c == name) {
                told.capabilities.push(name.to_owned());
            }
        };
        let mut consoles = !console::of(client, &seen.system).is_empty();
        let mut media = json::link(&seen.system, "/VirtualMedia").is_some();
        let mut own = Vec::new();
        for manager in self.part("managers", places::managers_of(client, seen)).await? {
            let manager = self.part("managers", client.get_if_there(&manager)).await?.unwrap_or(Value::Null);
            media |= json::link(&manager, "/VirtualMedia").is_some();
            consoles |= !console::of(client, &manager).is_empty();
            own.push((first_text(&manager, &["/Name", "/Id"]), text(&manager, "/FirmwareVersion")));
        }
        own.push(("BIOS".to_owned(), text(&seen.system, "/BiosVersion")));
        if media {
            offers(&mut self.told, "virtual-media");
        }
        if consoles {
            offers(&mut self.told, "console");
        }
        if let Some(service) = &seen.places.update_service {
            let service = self.part("firmware", client.get_if_there(service)).await?.unwrap_or(Value::Null);
            if !text(&service, "/Actions/#UpdateService.SimpleUpdate/target").is_empty() {
                offers(&mut self.told, "firmware-update");
            }
            if let Some(inventory) = json::link(&service, "/FirmwareInventory") {
                let all = self.part("firmware inventory", places::members(client, &inventory, PARTS_MAX)).await?;
                self.told.firmware.extend(all.iter().map(|item| Firmware {
                    name: first_text(item, &["/Name", "/Id"]),
                    version: text(item, "/Version"),
                    updateable: json::flag(item, "/Updateable").unwrap_or(false),
                }));
            }
        }
        if self.told.firmware.is_empty() {
            let told = own.into_iter().filter(|(_, version)| !version.is_empty());
            self.told.firmware = told.map(|(name, version)| Firmware { name, version, updateable: false }).collect();
        }
        Ok(())
    }

    async fn capabilities(&mut self) -> ProviderResult<()> {
        let (client, seen) = (self.client, self.seen);
        let allowed = self.part("power actions", power::allowed(client, &seen.system)).await?;
        let mut names: Vec<String> =
            power::actions(&seen.system, &allowed).iter().map(|a| format!("power.{a}")).collect();
        let modes = boot::modes(&seen.system);
        names.extend(modes.iter().map(|mode| format!("boot.{}", mode.as_str().to_ascii_lowercase())));
        if json::link(&seen.system, "/Bios").is_some() {
            names.push("bios".into());
        }
        if self.part("event log", events::entries_of(client, seen)).await?.is_some() {
            names.push("event-log".into());
        }
        if seen.places.account_service.is_some() {
            names.push("accounts".into());
        }
        let (mut lamp, mut sensors) = (identify::has_lamp(&seen.system), false);
        for chassis in self.part("chassis", places::chassis_of(client, seen)).await? {
            let chassis = self.part("chassis", client.get_if_there(&chassis)).await?.unwrap_or(Value::Null);
            lamp |= identify::has_lamp(&chassis);
            sensors |= ["/Sensors", "/Thermal", "/Power"].iter().any(|at| json::link(&chassis, at).is_some());
        }
        names.extend(lamp.then(|| "identify".into()));
        names.extend(sensors.then(|| "sensors".into()));
        names.append(&mut self.told.capabilities);
        self.told.capabilities = names;
        Ok(())
    }
}

/// What any of them tells.
fn part(value: &Value) -> Part {
    Part {
        name: first_text(value, &["/Name", "/Id"]),
        kind: String::new(),
        model: first_text(value, &["/Model", "/Manufacturer"]),
        serial_number: text(value, "/SerialNumber"),
        health: health(value),
        size: 0,
    }
}
