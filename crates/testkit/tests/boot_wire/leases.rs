//! As the only server: a real client gets, keeps, renews, loses, releases and declines its address.

use crate::clients::{Udhcpc, signal};
use crate::network::{Host, ip, privately, until};
use crate::service::{Shelf, US, World, only_server, pool, wired};
use boot::counts::Count;
use boot::dhcp::Mode;
use std::net::Ipv4Addr;
use std::time::Duration;

const CARD: &str = "52:54:00:4d:57:01";

async fn host() -> Host {
    let host = Host::new().await;
    wired(&host).await;
    host.ip(&format!("link set eth0 address {CARD}")).await;
    host
}

fn address(text: &str) -> Ipv4Addr {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no address"))
}

#[test]
fn a_client_gets_an_address_and_keeps_it_over_its_own_and_our_restarts() {
    privately(|| async {
        let host = host().await;
        let world = World::new("boot0", Shelf::default());
        let service = world.start(only_server()).await.expect("it starts");
        let client = Udhcpc::new(&host, "eth0");
        let told = client.asks(&[]).await.expect("an address");
        let wanted = [("subnet", "255.255.255.0"), ("router", "10.77.0.1"), ("dns", "10.77.0.53"), ("lease", "600")];
        for (name, value) in wanted.into_iter().chain([("serverid", "10.77.0.1")]) {
            assert_eq!(told.get(name).map(String::as_str), Some(value), "{name} of {told:?}");
        }
        assert_eq!(told.get("boot_file"), None, "it does not boot from here");
        let first = address(&told["ip"]);
        assert!((100..=120).contains(&first.octets()[3]), "{first}");
        assert_eq!(service.handle.leased_to(first).map(|mac| mac.to_string()), Some(CARD.to_owned()));
        assert_eq!(client.asks(&[]).await.map(|told| told["ip"].clone()), Ok(first.to_string()));
        // firmware and systems call themselves differently; the card is the same
        let other_name = client.asks(&["-x", "0x3d:ff00112233"]).await.expect("an address");
        assert_eq!(other_name["ip"], first.to_string());

        service.stop().await;
        let service = world.start(only_server()).await.expect("it starts again");
        assert_eq!(service.handle.leased_to(first).map(|mac| mac.to_string()), Some(CARD.to_owned()));
        assert_eq!(client.asks(&[]).await.map(|told| told["ip"].clone()), Ok(first.to_string()));
        // another card, another address
        host.ip("link set eth0 address 52:54:00:4d:57:02").await;
        let other = client.asks(&[]).await.expect("an address");
        assert_ne!(other["ip"], first.to_string());
        // leases end by our clock
        world.passes(Duration::from_secs(601));
        assert_eq!(service.handle.leased_to(first), None);
        service.stop().await;
    });
}

#[test]
fn a_lease_is_renewed_and_given_back() {
    privately(|| async {
        let host = host().await;
        let world = World::new("boot0", Shelf::default());
        let service = world.start(only_server()).await.expect("it starts");
        let client = Udhcpc::new(&host, "eth0");
        let mut running = client.stays(&["-R"]);
        client.until("bound", 1).await;
        let first = address(&client.told("bound")["ip"]);
        world.passes(Duration::from_secs(300));
        signal(&running, "-USR1").await;
        client.until("renew", 1).await;
        assert_eq!(address(&client.told("renew")["ip"]), first);
        // longer than the first lease would have been
        world.passes(Duration::from_secs(400));
        assert_eq!(service.handle.leased_to(first).map(|mac| mac.to_string()), Some(CARD.to_owned()));
        signal(&running, "-TERM").await;
        running.wait().await.expect("it ends");
        until("it was given back", || service.handle.leased_to(first).is_none()).await;
        assert_eq!(service.counted(Count::DhcpEnded), 1);
        service.stop().await;
    });
}

#[test]
fn a_client_whose_address_is_no_longer_given_out_is_told_so_and_asks_anew() {
    privately(|| async {
        let host = host().await;
        let world = World::new("boot0", Shelf::default());
        let service = world.start(only_server()).await.expect("it starts");
        let client = Udhcpc::new(&host, "eth0");
        let running = client.stays(&[]);
        client.until("bound", 1).await;
        service.stop().await;
        let service = world.start(Mode::Authoritative(vec![pool(200, 210)])).await.expect("it starts");
        signal(&running, "-USR1").await;
        client.until("nak", 1).await;
        client.until("bound", 2).await;
        let now = address(&client.told("bound")["ip"]);
        assert!((200..=210).contains(&now.octets()[3]), "{now}");
        assert!(service.counted(Count::DhcpNaks) >= 1);
        service.stop().await;
    });
}

#[test]
fn a_client_that_finds_its_address_in_use_declines_it_and_gets_another() {
    privately(|| async {
        let host = host().await;
        let world = World::new("boot0", Shelf::default());
        // one that sits on the only two addresses but one
        ip("address add 10.77.0.100/24 dev boot0").await;
        let service = world.start(Mode::Authoritative(vec![pool(100, 101)])).await.expect("it starts");
        let client = Udhcpc::new(&host, "eth0");
        let told = client.asks(&["-a500", "-A", "1", "-r", "10.77.0.100"]).await.expect("an address");
        assert_eq!(told["ip"], "10.77.0.101");
        assert_eq!(service.counted(Count::DhcpEnded), 1);
        service.stop().await;
    });
}

#[test]
fn a_reserved_address_goes_to_its_card() {
    privately(|| async {
        let host = host().await;
        let world = World::new("boot0", Shelf::default());
        let mut reserved = pool(100, 120);
        reserved.reserved.insert(CARD.parse().expect("a card"), Ipv4Addr::new(10, 77, 0, 7));
        let service = world.start(Mode::Authoritative(vec![reserved])).await.expect("it starts");
        let client = Udhcpc::new(&host, "eth0");
        assert_eq!(client.asks(&[]).await.map(|told| told["ip"].clone()), Ok("10.77.0.7".to_owned()));
        service.stop().await;
    });
}

#[test]
fn who_boots_is_told_what_to_load_by_its_architecture() {
    privately(|| async {
        let host = host().await;
        let world = World::new("boot0", Shelf::default());
        let service = world.start(only_server()).await.expect("it starts");
        let client = Udhcpc::new(&host, "eth0");
        let ipxe = ["-V", "PXEClient:Arch:00007:UNDI:003010", "-x", "0x5d:0007", "-x", "0x4d:69505845"];
        for (arguments, file) in [
            (&["-V", "PXEClient:Arch:00000:UNDI:002001", "-x", "0x5d:0000"][..], "undionly.kpxe"),
            (&["-V", "PXEClient:Arch:00007:UNDI:003016", "-x", "0x5d:0007"], "ipxe.efi"),
            (&["-V", "PXEClient:Arch:00009:UNDI:003016", "-x", "0x5d:0009"], "ipxe.efi"),
            (&["-V", "PXEClient:Arch:00011:UNDI:003016", "-x", "0x5d:000b"], "ipxe-arm64.efi"),
            (&["-V", "HTTPClient:Arch:00016:UNDI:003001", "-x", "0x5d:0010"], crate::service::UEFI_LOADER_URL),
            (&ipxe, crate::service::SCRIPT),
        ] {
            let told = client.asks(&[arguments, &["-O", "175", "-O", "60"]].concat()).await.expect("an address");
            assert_eq!(told.get("boot_file").map(String::as_str), Some(file), "{arguments:?} {told:?}");
            assert_eq!(told.get("siaddr"), Some(&US.to_string()), "{arguments:?}");
            let no_proxy = told.get("opt175").map(String::as_str);
            assert_eq!(no_proxy, (arguments == ipxe).then_some("b00101"), "{arguments:?} {told:?}");
        }
        service.stop().await;
    });
}
