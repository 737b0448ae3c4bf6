//! Network cards that are hardware, or that a hypervisor says are.

use super::read;
use crate::host::Host;
use proto::agent::v1::Nic;
use std::path::{Path, PathBuf};

pub fn nics(host: &Host) -> Vec<Nic> {
    cards(host)
        .map(|(name, at)| Nic {
            mac_address: mac(&at),
            // a card without a link says -1, or refuses
            speed_mbps: read::number(&at.join("speed")).unwrap_or_default(),
            up: read::value(&at.join("operstate")) == "up",
            driver: read::link(&at.join("device/driver")),
            name,
        })
        .collect()
}

/// The addresses that tell machines apart, in order.
pub fn macs(host: &Host) -> Vec<String> {
    const RANDOM: &str = "1";
    let mut macs: Vec<String> = cards(host)
        // the wire to a management controller has the same address in every machine of some makers
        .filter(|(_, at)| read::link(&at.join("device/subsystem")) != "usb")
        .filter(|(_, at)| read::value(&at.join("addr_assign_type")) != RANDOM)
        .map(|(_, at)| mac(&at))
        // InfiniBand's are longer, and begin with what changes
        .filter(|mac| mac.len() == 17 && mac != "00:00:00:00:00:00" && mac != "ff:ff:ff:ff:ff:ff")
        .collect();
    macs.sort();
    macs.dedup();
    macs
}

fn cards(host: &Host) -> impl Iterator<Item = (String, PathBuf)> {
    let folder = host.path("/sys/class/net");
    read::names(&folder).into_iter().map(move |name| (folder.join(&name), name)).filter_map(|(at, name)| {
        // a part of a card that was cut up for guests is not a card
        let card = at.join("device").exists() && !at.join("device/physfn").exists();
        card.then_some((name, at))
    })
}

/// A card in a bond wears the bond's; its own is kept beside.
fn mac(at: &Path) -> String {
    let own = read::value(&at.join("bonding_slave/perm_hwaddr"));
    let mac = if own.is_empty() { read::value(&at.join("address")) } else { own };
    let mac = mac.to_ascii_lowercase();
    let pairs = mac.split(':').all(|pair| pair.len() == 2 && pair.bytes().all(|b| b.is_ascii_hexdigit()));
    if pairs { mac } else { String::new() }
}
