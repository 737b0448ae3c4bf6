//! What is read of MAAS's answers: the few fields that are kept, typed, bounded and cleaned. What is null is empty; what
//! is of another kind than MAAS has it is refused.

use crate::said::clean;
use provider::{HardwareSync, MaasDisk, MaasEvent, MaasInterface, MaasLink, MaasMachine, MaasSubnet, ScriptResult};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// Names, addresses, words.
const TEXT_MAX: usize = 256;
/// Of one thing.
const LIST_MAX: usize = 1024;
const SYSTEM_ID_MAX: usize = 32;

/// Whether it can be the id of a machine: it becomes part of a path.
pub fn is_system_id(text: &str) -> bool {
    (1..=SYSTEM_ID_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// A text for people, or null.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Text(pub String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Of;
        impl Visitor<'_> for Of {
            type Value = Text;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }
            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text(clean(text, TEXT_MAX)))
            }
            fn visit_unit<E>(self) -> Result<Text, E> {
                Ok(Text::default())
            }
        }
        from.deserialize_any(Of)
    }
}

/// Null is the default.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

/// A list, or null. Longer than any of its kind is: refused.
struct List<T>(Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Of<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Of<T> {
            type Value = List<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_unit<E>(self) -> Result<List<T>, E> {
                Ok(List::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<List<T>, A::Error> {
                let mut all = Vec::new();
                while let Some(item) = items.next_element()? {
                    if all.len() >= LIST_MAX {
                        return Err(A::Error::custom("a list of too many"));
                    }
                    all.push(item);
                }
                Ok(List(all))
            }
        }
        from.deserialize_any(Of(PhantomData))
    }
}

/// Of which only the number counts.
#[derive(Deserialize)]
struct Numbered {
    id: i64,
}

#[derive(Default, Deserialize)]
pub struct Named {
    #[serde(default)]
    pub name: Text,
}

#[derive(Deserialize)]
pub struct Machine {
    system_id: String,
    status: i64,
    #[serde(default)]
    status_name: Text,
    #[serde(default)]
    status_message: Text,
    #[serde(default)]
    hostname: Text,
    #[serde(default)]
    fqdn: Text,
    #[serde(default)]
    description: Text,
    #[serde(default)]
    power_state: Text,
    #[serde(default)]
    power_type: Text,
    #[serde(default)]
    owner: Text,
    #[serde(default, deserialize_with = "or_default")]
    locked: bool,
    #[serde(default)]
    hardware_uuid: Text,
    #[serde(default, deserialize_with = "or_default")]
    hardware_info: HardwareInfo,
    #[serde(default)]
    architecture: Text,
    #[serde(default)]
    osystem: Text,
    #[serde(default)]
    distro_series: Text,
    #[serde(default, deserialize_with = "or_default")]
    netboot: bool,
    #[serde(default, deserialize_with = "or_default")]
    enable_hw_sync: bool,
    #[serde(default, deserialize_with = "or_default")]
    sync_interval: u64,
    #[serde(default)]
    last_sync: Text,
    #[serde(default)]
    interface_set: List<Interface>,
    #[serde(default)]
    boot_interface: Option<Numbered>,
    #[serde(default)]
    physicalblockdevice_set: List<Disk>,
    #[serde(default)]
    boot_disk: Option<Numbered>,
    #[serde(default)]
    ip_addresses: List<Text>,
    #[serde(default, deserialize_with = "or_default")]
    pool: Named,
    #[serde(default, deserialize_with = "or_default")]
    zone: Named,
    #[serde(default)]
    tag_names: List<Text>,
    #[serde(default, deserialize_with = "or_default")]
    workload_annotations: BTreeMap<String, Text>,
    #[serde(default)]
    current_installation_result_id: Option<i64>,
}

#[derive(Default, Deserialize)]
struct HardwareInfo {
    #[serde(default)]
    system_serial: Text,
}

#[derive(Deserialize)]
pub struct Interface {
    id: i64,
    #[serde(default)]
    name: Text,
    #[serde(default)]
    mac_address: Text,
    #[serde(default, rename = "type")]
    kind: Text,
    #[serde(default, deserialize_with = "or_default")]
    enabled: bool,
    #[serde(default, deserialize_with = "or_default")]
    link_connected: bool,
    #[serde(default, deserialize_with = "or_default")]
    effective_mtu: u32,
    #[serde(default)]
    tags: List<Text>,
    #[serde(default)]
    vlan: Option<Numbered>,
    #[serde(default)]
    links: List<Link>,
}

#[derive(Deserialize)]
struct Link {
    id: i64,
    #[serde(default)]
    mode: Text,
    #[serde(default)]
    subnet: Option<Subnet>,
    #[serde(default)]
    ip_address: Text,
}

#[derive(Deserialize)]
pub struct Subnet {
    id: i64,
    #[serde(default)]
    name: Text,
    #[serde(default)]
    cidr: Text,
    #[serde(default)]
    vlan: Option<Numbered>,
}

#[derive(Deserialize)]
struct Disk {
    id: i64,
    #[serde(default)]
    name: Text,
    #[serde(default)]
    path: Text,
    #[serde(default)]
    model: Text,
    #[serde(default)]
    serial: Text,
    #[serde(default, deserialize_with = "or_default")]
    size: u64,
    #[serde(default)]
    tags: List<Text>,
}

fn texts(list: List<Text>) -> Vec<String> {
    list.0.into_iter().map(|text| text.0).collect()
}

/// MAAS's own word for what it could not read.
fn told(text: Text) -> String {
    if text.0 == "Unknown" { String::new() } else { text.0 }
}

impl Machine {
    pub fn kept(self) -> Result<MaasMachine, String> {
        if !is_system_id(&self.system_id) {
            return Err("the system_id of a machine is none".to_owned());
        }
        if self.workload_annotations.len() > LIST_MAX {
            return Err("a machine has more annotations than can be".to_owned());
        }
        let annotations = self.workload_annotations.into_iter().map(|(name, text)| (clean(&name, TEXT_MAX), text.0));
        Ok(MaasMachine {
            system_id: self.system_id,
            hostname: self.hostname.0,
            fqdn: self.fqdn.0,
            description: self.description.0,
            status: self.status,
            status_name: self.status_name.0,
            status_message: self.status_message.0,
            power_state: self.power_state.0,
            power_type: self.power_type.0,
            owner: self.owner.0,
            locked: self.locked,
            hardware_uuid: told(self.hardware_uuid),
            serial: told(self.hardware_info.system_serial),
            architecture: self.architecture.0,
            osystem: self.osystem.0,
            distro_series: self.distro_series.0,
            netboot: self.netboot,
            hardware_sync: HardwareSync {
                enabled: self.enable_hw_sync,
                interval_seconds: self.sync_interval,
                last_sync: self.last_sync.0,
            },
            interfaces: self.interface_set.0.into_iter().map(Interface::kept).collect(),
            boot_interface: self.boot_interface.map(|of| of.id),
            disks: self.physicalblockdevice_set.0.into_iter().map(Disk::kept).collect(),
            boot_disk: self.boot_disk.map(|of| of.id),
            ip_addresses: texts(self.ip_addresses),
            pool: self.pool.name.0,
            zone: self.zone.name.0,
            tags: texts(self.tag_names),
            annotations: annotations.collect(),
            installation: self.current_installation_result_id,
        })
    }
}

impl Interface {
    fn kept(self) -> MaasInterface {
        MaasInterface {
            id: self.id,
            name: self.name.0,
            mac: self.mac_address.0.to_ascii_lowercase(),
            kind: self.kind.0,
            enabled: self.enabled,
            link_connected: self.link_connected,
            mtu: self.effective_mtu,
            tags: texts(self.tags),
            vlan: self.vlan.map(|of| of.id),
            links: self.links.0.into_iter().map(Link::kept).collect(),
        }
    }
}

impl Link {
    fn kept(self) -> MaasLink {
        let subnet = self.subnet.map(Subnet::kept);
        MaasLink {
            id: self.id,
            mode: self.mode.0,
            subnet: subnet.as_ref().map(|subnet| subnet.id),
            subnet_name: subnet.as_ref().map_or(String::new(), |subnet| subnet.name.clone()),
            cidr: subnet.map_or(String::new(), |subnet| subnet.cidr),
            ip_address: self.ip_address.0,
        }
    }
}

impl Subnet {
    pub fn kept(self) -> MaasSubnet {
        MaasSubnet { id: self.id, name: self.name.0, cidr: self.cidr.0, vlan: self.vlan.map(|of| of.id) }
    }
}

impl Disk {
    fn kept(self) -> MaasDisk {
        MaasDisk {
            id: self.id,
            name: self.name.0,
            path: self.path.0,
            model: self.model.0,
            serial: self.serial.0,
            size: self.size,
            tags: texts(self.tags),
        }
    }
}

/// What is not looked at, as long as it is there.
#[derive(Deserialize)]
pub struct Anything(#[allow(dead_code, reason = "that it is there is all")] IgnoredAny);

#[derive(Deserialize)]
pub struct WhoAmI {
    pub username: Text,
    #[serde(default, deserialize_with = "or_default")]
    pub is_superuser: bool,
}

#[derive(Deserialize)]
pub struct Version {
    pub version: Text,
    #[serde(default)]
    pub subversion: Text,
}

#[derive(Deserialize)]
pub struct PowerNow {
    pub state: Text,
}

#[derive(Deserialize)]
pub struct Tagged {
    pub added: i64,
}

#[derive(Deserialize)]
pub struct Image {
    pub name: Text,
    #[serde(default)]
    pub architecture: Text,
}

#[derive(Deserialize)]
pub struct Events {
    events: List<Event>,
}

#[derive(Deserialize)]
struct Event {
    id: i64,
    #[serde(default)]
    level: Text,
    #[serde(default, rename = "type")]
    kind: Text,
    #[serde(default)]
    description: Text,
    #[serde(default)]
    node: Text,
}

impl Events {
    /// Oldest first.
    pub fn kept(self) -> Vec<MaasEvent> {
        let kept = |event: Event| MaasEvent {
            id: event.id,
            level: event.level.0,
            kind: event.kind.0,
            description: event.description.0,
            system_id: event.node.0,
        };
        let mut events: Vec<MaasEvent> = self.events.0.into_iter().map(kept).collect();
        events.sort_by_key(|event| event.id);
        events
    }
}

#[derive(Deserialize)]
pub struct ResultSet {
    pub id: i64,
    results: List<ResultOf>,
}

#[derive(Deserialize)]
struct ResultOf {
    #[serde(default)]
    name: Text,
    status: i64,
    #[serde(default)]
    status_name: Text,
    #[serde(default)]
    exit_status: Option<i64>,
    /// In base64.
    #[serde(default)]
    output: Option<String>,
}

impl ResultSet {
    pub fn kept(self, output: impl Fn(&str) -> String) -> Vec<ScriptResult> {
        let kept = |result: ResultOf| ScriptResult {
            name: result.name.0,
            status: result.status,
            status_name: result.status_name.0,
            exit_status: result.exit_status,
            output: result.output.as_deref().map(&output).unwrap_or_default(),
        };
        self.results.0.into_iter().map(kept).collect()
    }
}
