//! Behind a relay, ISC's own: clients of a network that we are not in get addresses of theirs, and renew past it.

use crate::clients::{Udhcpc, signal};
use crate::network::{Host, ip, output, privately};
use crate::service::{Shelf, World, pool, wired};
use boot::dhcp::{Mode, Pool};
use boot::interface::Subnet;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

fn dhcrelay() -> String {
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|cache| !cache.is_empty()).map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"))).expect("a home");
    let relay = cache.join("millwright-tests/dhcp-relay-1/dhcrelay");
    assert!(relay.is_file(), "{} is not there; fetch it: scripts/dhcp-relay (or run scripts/test)", relay.display());
    relay.display().to_string()
}

#[test]
fn a_client_behind_a_relay_gets_an_address_of_its_network_and_renews_past_the_relay() {
    privately(|| async {
        let (relay, far) = (Host::new().await, Host::new().await);
        wired(&relay).await;
        relay.ip("address add 10.77.0.2/24 dev eth0").await;
        relay.wire_to("eth1", &far, "eth0").await;
        relay.ip("address add 10.99.0.1/24 dev eth1").await;
        // it is the router between the two as well
        let forwards = relay.command("sysctl", &["-q", "-w", "net.ipv4.ip_forward=1"]);
        assert!(output(forwards).await.status.success());
        ip("route add 10.99.0.0/24 via 10.77.0.2").await;

        let there = |last| Ipv4Addr::new(10, 99, 0, last);
        let behind = Pool {
            subnet: Subnet::around(there(1), Ipv4Addr::new(255, 255, 255, 0)).expect("a mask"),
            first: there(50),
            last: there(60),
            router: Some(there(1)),
            ..pool(100, 120)
        };
        let world = World::new("boot0", Shelf::default());
        let service = world.start(Mode::Authoritative(vec![pool(100, 120), behind])).await.expect("it starts");
        // it adds what it knows of the client's port, and drops answers that do not bring that back
        let arguments = ["-4", "-d", "-a", "--no-pid", "-id", "eth1", "-iu", "eth0", "10.77.0.1"];
        let mut passing = relay.command(&dhcrelay(), &arguments);
        let _passing = passing.stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("dhcrelay starts");

        let client = Udhcpc::new(&far, "eth0");
        let running = client.stays(&["-V", "PXEClient:Arch:00007:UNDI:003016", "-x", "0x5d:0007"]);
        client.until("bound", 1).await;
        let told = client.told("bound");
        let address: Ipv4Addr = told["ip"].parse().expect("an address");
        assert!((50..=60).contains(&address.octets()[3]) && address.octets()[..3] == [10, 99, 0], "{address}");
        assert_eq!((told["router"].as_str(), told["serverid"].as_str()), ("10.99.0.1", "10.77.0.1"));
        assert_eq!(told["boot_file"], "ipxe.efi");
        world.passes(Duration::from_secs(500));
        signal(&running, "-USR1").await;
        client.until("renew", 1).await;
        world.passes(Duration::from_secs(500));
        assert!(service.handle.leased_to(address).is_some(), "it was renewed");
        service.stop().await;
    });
}
