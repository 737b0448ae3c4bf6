//! As the only server: what is sent, byte by byte, and every way that a lease begins, goes on and ends.

use super::samples::*;
use super::*;
use std::net::{Ipv4Addr, SocketAddrV4};

#[test]
fn a_client_is_offered_an_address_and_gets_it() {
    let mut service = only_server();
    let answer = ask(&mut service, &Asks::discover(CARD).with(61, &[1, 2, 3]), 0).expect("an offer");
    assert_eq!(answer.lease, None, "an offer is not kept");
    let offered = Read::of(&answer).yours();
    assert_eq!(service.leases().leased_to(offered, at(0)), None, "an offer is no lease");

    let request = Asks::request(CARD).wanting(offered).naming_us().with(61, &[1, 2, 3]);
    let answer = ask(&mut service, &request, 1).expect("an answer");
    let lease = Lease { address: offered, mac: CARD, until: at(3601) };
    assert_eq!(answer.lease, Some(lease), "to be kept before it is sent");
    let send = answer.send.expect("sent");
    assert_eq!(send.to, SocketAddrV4::new(Ipv4Addr::BROADCAST, 68));
    let mut expected = vec![2, 1, 6, 0, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0x80, 0];
    expected.extend([0; 4]);
    expected.extend(offered.octets());
    expected.extend([0; 8]);
    expected.extend(CARD.octets());
    expected.resize(236, 0);
    expected.extend([0x63, 0x82, 0x53, 0x63]);
    expected.extend([53, 1, 5, 54, 4, 10, 77, 0, 1]);
    expected.extend([51, 4, 0, 0, 0x0e, 0x10]); // 3600 s
    expected.extend([58, 4, 0, 0, 0x07, 0x08]); // half of it
    expected.extend([59, 4, 0, 0, 0x0c, 0x4e]); // seven eighths
    expected.extend([1, 4, 255, 255, 255, 0, 3, 4, 10, 77, 0, 1, 6, 4, 10, 77, 0, 53]);
    expected.extend([61, 3, 1, 2, 3, 255]);
    expected.resize(300, 0);
    assert_eq!(send.bytes, expected);
    assert_eq!(service.leases().leased_to(offered, at(3600)), Some(CARD));
    assert_eq!(service.leases().leased_to(offered, at(3601)), None, "a lease ends");
}

#[test]
fn who_boots_is_told_what_to_load_and_the_others_are_not() {
    let mut service = only_server();
    let mut offered = |asks: Asks| Read::of(&ask(&mut service, &asks, 0).expect("an offer"));
    let plain = offered(Asks::discover(card(1)));
    assert_eq!((plain.file(), plain.next()), (String::new(), Ipv4Addr::UNSPECIFIED));
    assert_eq!((plain.option(60), plain.option(175), plain.option(43)), (None, None, None));

    let bios = offered(Asks::discover(card(2)).class(BIOS, 0));
    assert_eq!((bios.file(), bios.next()), ("undionly.kpxe".to_owned(), US));
    assert!(!bios.yours().is_unspecified());

    let ipxe = offered(Asks::discover(card(2)).ipxe());
    assert_eq!(ipxe.file(), "http://10.77.0.1:8080/boot.ipxe");
    assert_eq!(ipxe.option(175), Some(vec![176, 1, 1]), "it waits for no proxy");
    assert_eq!(ipxe.yours(), bios.yours(), "the same card keeps its address from one program to the next");

    let http = offered(Asks::discover(card(3)).class(HTTP, 16));
    assert_eq!(
        (http.file(), http.option(60)),
        ("http://10.77.0.1:8080/images/ipxe.efi".to_owned(), Some(b"HTTPClient".to_vec()))
    );
    // firmware that there is no loader for still gets its address
    let other = offered(Asks::discover(card(4)).class(UEFI, 6));
    assert_eq!((other.file(), other.next()), (String::new(), Ipv4Addr::UNSPECIFIED));
    assert!(!other.yours().is_unspecified());
}

#[test]
fn a_lease_is_renewed_and_the_answer_goes_to_its_address() {
    let mut service = only_server();
    let address = bound(&mut service, CARD, 0);
    let asks = Asks::request(CARD).having(address);
    let from = Arrival { from: SocketAddrV4::new(address, 68), port: SERVER_PORT };
    let answer = service.answer(&asks.bytes(), from, at(1800)).expect("an answer");
    assert_eq!(answer.lease.map(|lease| (lease.address, lease.until)), Some((address, at(5400))));
    assert_eq!(answer.send.as_ref().map(|send| send.to), Some(SocketAddrV4::new(address, 68)));
    assert_eq!(Read::of(&answer).0[12..16], address.octets(), "what it has stays in its field");
    assert_eq!(service.leases().leased_to(address, at(5000)), Some(CARD));
}

#[test]
fn an_address_that_is_not_its_own_is_refused_aloud() {
    let mut service = only_server();
    let taken = bound(&mut service, card(1), 0);
    let mut refused = |asks: Asks, seconds| {
        let answer = ask(&mut service, &asks, seconds).expect("an answer");
        assert_eq!((answer.told.kind, answer.lease), (Some(Kind::Nak), None), "{}", answer.told);
        let send = answer.send.clone().expect("sent");
        assert_eq!(Read::of(&answer).yours(), Ipv4Addr::UNSPECIFIED);
        assert_eq!(Read::of(&answer).option(51), None);
        send
    };
    // another's, starting again and renewing
    let send = refused(Asks::request(card(2)).wanting(taken), 0);
    assert_eq!(send.to, SocketAddrV4::new(Ipv4Addr::BROADCAST, 68));
    let send = refused(Asks::request(card(2)).having(taken), 1);
    assert_eq!(
        send.to,
        SocketAddrV4::new(Ipv4Addr::BROADCAST, 68),
        "it is not told at an address that it must not use"
    );
    // of another network, out of the range, the router's
    for address in [Ipv4Addr::new(192, 168, 1, 5), address(200), US] {
        refused(Asks::request(card(2)).wanting(address), 2);
    }
    refused(Asks::request(card(2)).having(Ipv4Addr::new(192, 168, 1, 5)), 3);
    // by a relay it is broadcast there
    let relayed = refused(Asks::request(card(2)).wanting(taken).by_relay(address(2)), 4);
    assert_eq!((relayed.to, relayed.bytes[10] & 0x80), (SocketAddrV4::new(address(2), 67), 0x80));
    assert_eq!(service.leases().leased_to(taken, at(4)), Some(card(1)));
}

#[test]
fn starting_again_with_a_known_or_a_free_address_works() {
    let mut service = only_server();
    let address = bound(&mut service, CARD, 0);
    let again = ask(&mut service, &Asks::request(CARD).wanting(address), 100).expect("an answer");
    assert_eq!(again.told.kind, Some(Kind::Ack));
    // we have forgotten it, it has not, and nobody else has it
    let mut forgetful = only_server();
    let again = ask(&mut forgetful, &Asks::request(CARD).wanting(address), 100).expect("an answer");
    assert_eq!((again.told.kind, again.told.address), (Some(Kind::Ack), Some(address)));
}

#[test]
fn another_server_s_clients_are_left_alone() {
    let mut service = only_server();
    let other = Asks::request(CARD).wanting(address(100)).with(54, &[10, 77, 0, 9]);
    assert_eq!(ask(&mut service, &other, 0), Err(Silence::OtherServer));
    let address = bound(&mut service, CARD, 1);
    for kind in [4, 7] {
        let asks = Asks::new(kind, CARD).having(address).wanting(address);
        assert_eq!(ask(&mut service, &asks, 1), Err(Silence::OtherServer), "names no server");
        assert_eq!(ask(&mut service, &asks.with(54, &[10, 77, 0, 9]), 1), Err(Silence::OtherServer));
    }
    assert_eq!(service.leases().leased_to(address, at(1)), Some(CARD));
}

#[test]
fn a_released_address_is_nobody_s_and_comes_back_to_its_card() {
    let mut service = only_server();
    let address = bound(&mut service, CARD, 0);
    let stranger = Asks::new(7, card(9)).having(address).naming_us();
    assert_eq!(ask(&mut service, &stranger, 1), Err(Silence::NotItsOwn));
    let release = Asks::new(7, CARD).having(address).naming_us();
    let answer = ask(&mut service, &release, 1).expect("heard");
    assert_eq!((answer.send.clone(), answer.lease), (None, Some(Lease { address, mac: CARD, until: at(1) })));
    assert_eq!(answer.told.to_string(), format!("52:54:00:4d:57:01 gave back {address}"));
    assert_eq!(service.leases().leased_to(address, at(1)), None);
    assert_eq!(ask(&mut service, &release, 2), Err(Silence::NotItsOwn), "once");
    assert_eq!(bound(&mut service, CARD, 3), address);
}

#[test]
fn a_declined_address_is_left_alone_and_another_is_found() {
    let mut service = only_server();
    let first = bound(&mut service, CARD, 0);
    let decline = |mac| Asks::new(4, mac).wanting(first).naming_us();
    assert_eq!(ask(&mut service, &decline(card(9)), 1), Err(Silence::NotItsOwn));
    let answer = ask(&mut service, &decline(CARD), 1).expect("heard");
    assert_eq!((answer.send, answer.lease.map(|lease| lease.until)), (None, Some(at(1))));
    assert_eq!(service.leases().leased_to(first, at(1)), None);
    let second = bound(&mut service, CARD, 2);
    assert_ne!(second, first);
    // nobody else gets it either, though it is the last
    let others: Vec<Ipv4Addr> = (1..=2).map(|last| bound(&mut service, card(last), 3)).collect();
    assert!(!others.contains(&first));
    assert_eq!(ask(&mut service, &Asks::discover(card(3)), 3), Err(Silence::NoAddressLeft));
    assert_eq!(bound(&mut service, card(3), 400), first, "after a while it is tried again");
}

#[test]
fn who_has_an_address_already_is_told_the_rest() {
    let mut service = only_server();
    let asks = Asks::new(8, CARD).having(address(9)).class(UEFI, 7);
    let answer = ask(&mut service, &asks, 0).expect("an answer");
    assert_eq!(answer.send.as_ref().map(|send| send.to), Some(SocketAddrV4::new(address(9), 68)));
    let read = Read::of(&answer);
    assert_eq!((read.yours(), read.option(51), read.file()), (Ipv4Addr::UNSPECIFIED, None, "ipxe.efi".to_owned()));
    assert_eq!(read.option(1), Some(vec![255, 255, 255, 0]));
    assert_eq!(answer.lease, None);
    // it is sent to where it says, so that has to be in our networks
    let elsewhere = Asks::new(8, CARD).having(Ipv4Addr::new(8, 8, 8, 8));
    assert_eq!(ask(&mut service, &elsewhere, 0), Err(Silence::UnknownNetwork));
    assert_eq!(ask(&mut service, &Asks::new(8, CARD), 0), Err(Silence::UnknownNetwork));
}

#[test]
fn a_relay_s_clients_get_addresses_of_their_own_network() {
    let far = Ipv4Addr::new(10, 99, 0, 1);
    let mut behind = pool();
    behind.subnet = subnet(far);
    (behind.first, behind.last) = (Ipv4Addr::new(10, 99, 0, 50), Ipv4Addr::new(10, 99, 0, 60));
    behind.router = Some(far);
    let mut service = service(Mode::Authoritative(vec![pool(), behind]));
    let answer = ask(&mut service, &Asks::discover(CARD).by_relay(far), 0).expect("an offer");
    assert_eq!(answer.send.as_ref().map(|send| send.to), Some(SocketAddrV4::new(far, 67)));
    let (there, router) = (Read::of(&answer).yours(), Read::of(&answer).option(3));
    assert!(subnet(far).contains(there) && router == Some(far.octets().to_vec()));
    // the same card has an address here as well, and keeps both
    let here = bound(&mut service, CARD, 0);
    assert!(subnet(US).contains(here));
    let request = Asks::request(CARD).wanting(there).naming_us().by_relay(far);
    assert_eq!(ask(&mut service, &request, 1).map(|a| a.told.kind), Ok(Some(Kind::Ack)));
    assert_eq!(service.leases().leased_to(there, at(1)), Some(CARD));
    assert_eq!(service.leases().leased_to(here, at(1)), Some(CARD));
    // it renews past its relay
    let renew = Asks::request(CARD).having(there);
    let from = Arrival { from: SocketAddrV4::new(there, 68), port: SERVER_PORT };
    assert_eq!(service.answer(&renew.bytes(), from, at(2)).map(|a| a.told.kind), Ok(Some(Kind::Ack)));
    // a relay may say that its client is elsewhere
    let link = Asks::discover(card(5)).by_relay(address(2)).with(82, &[5, 4, 10, 99, 0, 0]);
    assert!(subnet(far).contains(Read::of(&ask(&mut service, &link, 2).expect("an offer")).yours()));
    let unknown = Asks::discover(CARD).by_relay(Ipv4Addr::new(10, 98, 0, 1));
    assert_eq!(ask(&mut service, &unknown, 2), Err(Silence::UnknownNetwork));
    assert_eq!(
        ask(&mut service, &Asks::request(CARD).wanting(there).by_relay(Ipv4Addr::new(10, 98, 0, 1)), 2),
        Err(Silence::UnknownNetwork)
    );
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let refused = |change: &dyn Fn(&mut Pool)| {
        let mut pool = pool();
        change(&mut pool);
        let settings = Settings { files: files(), mode: Mode::Authoritative(vec![pool]), limits: Limits::default() };
        let here = Here { address: US, subnet: subnet(US) };
        Responder::new(here, settings, Vec::new()).expect_err("refused")
    };
    assert!(refused(&|p| p.first = address(104)).contains("ends before it begins"));
    assert!(refused(&|p| p.last = address(255)).contains("10.77.0.255 is no host's address in 10.77.0.0/24"));
    assert!(refused(&|p| p.lease = std::time::Duration::from_secs(5)).contains("a lease of 5 s"));
    assert!(refused(&|p| p.router = Some(Ipv4Addr::new(10, 78, 0, 1))).contains("10.78.0.1"));
    assert!(refused(&|p| p.reserved = [(card(1), address(7)), (card(2), address(7))].into()).contains("two cards"));
    assert!(
        refused(&|p| {
            p.subnet = subnet(Ipv4Addr::new(10, 99, 0, 1));
            (p.first, p.last, p.router) = (Ipv4Addr::new(10, 99, 0, 5), Ipv4Addr::new(10, 99, 0, 6), None);
        })
        .contains("no range is set for our own network")
    );
}
