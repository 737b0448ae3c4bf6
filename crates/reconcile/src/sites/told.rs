//! What a MAAS says of a machine, cut down to what is kept of it. It comes from outside: every text is bounded and free of
//! what a terminal or a database would trip over, and what cannot be a machine's id is no machine.

use domain::MacAddress;
use domain::maas_machine::Told;
use provider::{MaasInterface, MaasMachine};

const TEXT_MAX: usize = 256;
const LIST_MAX: usize = 64;

/// As long as MAAS might make them one day.
const SYSTEM_ID_MAX: usize = 32;

/// Whatever else is said to be one would be refused by the client, with all that is asked for beside it.
pub(super) fn is_system_id(text: &str) -> bool {
    (1..=SYSTEM_ID_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

fn text(from: &str) -> String {
    from.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect()
}

fn list<'a>(from: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    from.into_iter().take(LIST_MAX).map(|item| text(item)).filter(|item| !item.is_empty()).collect()
}

fn mac(from: &str) -> Option<String> {
    MacAddress::parse(from).map(|mac| mac.as_str().to_ascii_lowercase())
}

/// The first address of the interface that it boots from; of a machine whose boot interface is part of a bond or a
/// bridge, the first that it has.
fn management_ip(machine: &MaasMachine, boot: Option<&MaasInterface>) -> String {
    let of_boot = boot.and_then(|i| i.links.iter().map(|link| &link.ip_address).find(|ip| !ip.is_empty()));
    let found = of_boot.or_else(|| machine.ip_addresses.first());
    found.filter(|ip| ip.parse::<std::net::IpAddr>().is_ok()).cloned().unwrap_or_default()
}

pub(super) fn told(machine: &MaasMachine) -> Told {
    let boot = machine.interfaces.iter().find(|i| Some(i.id) == machine.boot_interface);
    let mut macs: Vec<String> = machine.interfaces.iter().filter_map(|i| mac(&i.mac)).take(LIST_MAX).collect();
    // a bond has the MAC of one of its parents
    let mut seen = std::collections::HashSet::new();
    macs.retain(|mac| seen.insert(mac.clone()));
    Told {
        status: machine.status,
        status_name: text(&machine.status_name),
        power_state: text(&machine.power_state),
        hostname: text(&machine.hostname),
        owner: text(&machine.owner),
        hardware_uuid: text(&machine.hardware_uuid),
        serial: text(&machine.serial),
        pool: text(&machine.pool),
        zone: text(&machine.zone),
        osystem: text(&machine.osystem),
        series: text(&machine.distro_series),
        architecture: text(&machine.architecture),
        netboot: machine.netboot,
        locked: machine.locked,
        boot_mac: boot.and_then(|i| mac(&i.mac)).unwrap_or_default(),
        management_ip: management_ip(machine, boot),
        macs,
        addresses: list(&machine.ip_addresses),
        tags: list(&machine.tags),
        last_sync: text(&machine.hardware_sync.last_sync),
        installation: machine.installation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use provider::MaasLink;

    fn interface(id: i64, mac: &str, ip: &str) -> MaasInterface {
        let links = vec![MaasLink { ip_address: ip.into(), ..MaasLink::default() }];
        MaasInterface { id, mac: mac.into(), links, ..MaasInterface::default() }
    }

    #[test]
    fn what_comes_from_outside_is_bounded_and_plain() {
        let machine = MaasMachine {
            hostname: "a\u{1b}[31m\0b\n".into(),
            status_name: "x".repeat(5000),
            tags: vec!["t".into(); 1000],
            interfaces: vec![interface(1, "not a mac", ""), interface(2, "00:16:3E:00:00:01", "10.0.0.1")],
            ..MaasMachine::default()
        };
        let told = told(&machine);
        assert_eq!((told.hostname.as_str(), told.status_name.len(), told.tags.len()), ("a[31mb", 256, 64));
        assert_eq!(told.macs, ["00:16:3e:00:00:01"]);
        for bad in ["", "a/b", "a b", "ü", "A", "a-b", &"a".repeat(33)] {
            assert!(!is_system_id(bad), "{bad}");
        }
        assert!(is_system_id("4y3h7n"));
    }

    #[test]
    fn a_machine_is_reached_by_the_interface_it_boots_from() {
        let mut machine = MaasMachine {
            interfaces: vec![
                interface(1, "00:16:3e:00:00:01", "10.0.0.1"),
                interface(2, "00:16:3e:00:00:02", "10.9.0.2"),
            ],
            boot_interface: Some(2),
            ip_addresses: vec!["10.0.0.1".into(), "10.9.0.2".into()],
            ..MaasMachine::default()
        };
        assert_eq!(told(&machine).management_ip, "10.9.0.2");
        assert_eq!(told(&machine).boot_mac, "00:16:3e:00:00:02");
        machine.boot_interface = None;
        assert_eq!(told(&machine).management_ip, "10.0.0.1");
        machine.ip_addresses = vec!["$(reboot)".into()];
        assert_eq!(told(&machine).management_ip, "");
    }
}
