//! Beside another server: what is sent, byte by byte, and who is left alone.

use super::samples::*;
use super::*;
use std::net::{Ipv4Addr, SocketAddrV4};

fn proxy() -> Responder {
    service(Mode::Proxy)
}

/// The head of every answer to `CARD`, up to the file.
fn head(client: [u8; 4], file: &str) -> Vec<u8> {
    let mut bytes = vec![2, 1, 6, 0, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0x80, 0];
    bytes.extend(client);
    bytes.extend([0, 0, 0, 0]); // no address for it
    bytes.extend([10, 77, 0, 1]); // from here
    bytes.extend([0, 0, 0, 0]);
    bytes.extend([0x52, 0x54, 0x00, 0x4d, 0x57, 0x01]);
    bytes.resize(108, 0);
    bytes.extend(file.bytes());
    bytes.resize(236, 0);
    bytes.extend([0x63, 0x82, 0x53, 0x63]);
    bytes
}

fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(300, 0);
    bytes
}

#[test]
fn bios_is_offered_a_loader_and_looks_no_further() {
    let guid = [0; 17];
    let asks = Asks::discover(CARD).class(BIOS, 0).with(94, &[1, 2, 1]).with(97, &guid);
    let answer = ask(&mut proxy(), &asks, 0).expect("an offer");
    let send = answer.send.expect("sent");
    assert_eq!(send.to, SocketAddrV4::new(Ipv4Addr::BROADCAST, 68));
    let mut expected = head([0; 4], "undionly.kpxe");
    expected.extend([53, 1, 2, 54, 4, 10, 77, 0, 1]);
    expected.extend(b"\x3c\x09PXEClient");
    expected.extend([43, 4, 6, 1, 8, 255]);
    expected.extend([97, 17]);
    expected.extend(guid);
    expected.push(255);
    assert_eq!(send.bytes, padded(expected));
    assert_eq!(answer.lease, None);
    assert_eq!(
        answer.told.to_string(),
        "52:54:00:4d:57:01 (PXE on BIOS) gets an offer without an address, to load undionly.kpxe"
    );
}

#[test]
fn uefi_is_offered_a_loader_and_asks_again_at_its_own_port() {
    let mut proxy = proxy();
    let offer = Read::of(&ask(&mut proxy, &Asks::discover(CARD).class(UEFI, 7), 0).expect("an offer"));
    assert_eq!((offer.file(), offer.next(), offer.yours()), ("ipxe.efi".to_owned(), US, Ipv4Addr::UNSPECIFIED));
    assert_eq!((offer.option(43), offer.option(60)), (None, Some(b"PXEClient".to_vec())));

    let client = SocketAddrV4::new(address(150), 4011);
    let asks = Asks::request(CARD).class(UEFI, 7).having(address(150));
    let answer = proxy.answer(&asks.bytes(), Arrival { from: client, port: PXE_PORT }, at(1)).expect("an answer");
    let send = answer.send.expect("sent");
    assert_eq!(send.to, client, "back to where it came from");
    let mut expected = head([10, 77, 0, 150], "ipxe.efi");
    expected.extend([53, 1, 5, 54, 4, 10, 77, 0, 1]);
    expected.extend(b"\x3c\x09PXEClient\xff");
    assert_eq!(send.bytes, padded(expected));
}

#[test]
fn each_firmware_is_given_what_it_can_run() {
    let given = |asks: Asks| {
        let answer = ask(&mut proxy(), &asks, 0)?;
        let read = Read::of(&answer);
        Ok((read.file(), read.option(60).unwrap_or_default()))
    };
    let pxe = |file: &str| Ok((file.to_owned(), b"PXEClient".to_vec()));
    let new = || Asks::discover(CARD);
    for number in [7, 9] {
        assert_eq!(given(new().class(UEFI, number)), pxe("ipxe.efi"));
    }
    assert_eq!(given(new().class(b"PXEClient:Arch:00011:UNDI:003000", 11)), pxe("ipxe-arm64.efi"));
    // only the text of the class says it
    assert_eq!(given(new().with(60, b"PXEClient:Arch:00011:UNDI:003000")), pxe("ipxe-arm64.efi"));
    assert_eq!(given(new().with(60, b"PXEClient")), pxe("undionly.kpxe"));
    let http = Ok(("http://10.77.0.1:8080/images/ipxe.efi".to_owned(), b"HTTPClient".to_vec()));
    assert_eq!(given(new().class(HTTP, 16)), http);
    for (class, number) in [(UEFI, 6), (HTTP, 19), (UEFI, 200)] {
        assert_eq!(given(new().class(class, number)), Err(Silence::NoFile), "{number}");
    }
    assert_eq!(given(new().with(60, b"HTTPClient")), Err(Silence::NoFile));
}

#[test]
fn ipxe_is_given_its_script_however_it_says_what_it_is() {
    let new = || Asks::discover(CARD).class(UEFI, 7);
    for asks in
        [new().with(77, b"iPXE"), new().with(77, b"\x04iPXE"), new().with(175, &[177, 5, 1, 0x1a, 0xf4, 0x10, 0])]
    {
        let answer = Read::of(&ask(&mut proxy(), &asks, 0).expect("an offer"));
        assert_eq!(answer.file(), "http://10.77.0.1:8080/boot.ipxe");
        assert_eq!(answer.option(60), Some(b"PXEClient".to_vec()));
    }
    for not in [&b"iPXE2"[..], b"\x05iPXE2", b"ipxe"] {
        let answer = Read::of(&ask(&mut proxy(), &new().with(77, not), 0).expect("an offer"));
        assert_eq!(answer.file(), "ipxe.efi");
    }
}

#[test]
fn a_long_url_is_an_option_and_not_a_cut_field() {
    let mut long = files();
    long.script = format!("http://10.77.0.1:8080/{}", "b".repeat(170));
    let settings = Settings { files: long.clone(), mode: Mode::Proxy, limits: Limits::default() };
    let here = Here { address: US, subnet: subnet(US) };
    let mut proxy = Responder::new(here, settings, Vec::new()).expect("fits").0;
    let answer = Read::of(&ask(&mut proxy, &Asks::discover(CARD).ipxe(), 0).expect("an offer"));
    assert_eq!((answer.file(), answer.option(67)), (String::new(), Some(long.script.clone().into_bytes())));
    long.script.push_str("bbbbbbbbbbbbbb");
    assert!(long.check().is_err());
}

#[test]
fn nobody_but_booting_clients_is_answered() {
    let mut proxy = proxy();
    for plain in [
        Asks::discover(CARD),
        Asks::discover(CARD).with(60, b"udhcp 1.35.0"),
        Asks::discover(CARD).with(60, b"MSFT 5.0"),
    ] {
        assert_eq!(ask(&mut proxy, &plain, 0), Err(Silence::NotBooting));
    }
    // addresses are between it and the other server
    for kind in [3, 4, 7, 8] {
        assert_eq!(ask(&mut proxy, &Asks::new(kind, CARD).class(BIOS, 0), 0), Err(Silence::NotAsked), "{kind}");
    }
    let at_pxe = |from| Arrival { from: SocketAddrV4::new(from, 68), port: PXE_PORT };
    let discover = Asks::discover(CARD).class(UEFI, 7).bytes();
    assert_eq!(proxy.answer(&discover, at_pxe(address(9)), at(0)), Err(Silence::NotAsked));
    let request = Asks::request(CARD).class(UEFI, 7).bytes();
    assert_eq!(proxy.answer(&request, at_pxe(Ipv4Addr::UNSPECIFIED), at(0)), Err(Silence::NotAsked));
}

#[test]
fn a_relay_gets_the_answer_for_its_client() {
    let relay = Ipv4Addr::new(10, 99, 0, 1);
    let asks = Asks::discover(CARD).class(BIOS, 0).by_relay(relay).with(82, &[1, 2, 7, 7]);
    let answer = ask(&mut proxy(), &asks, 0).expect("an offer");
    assert_eq!(answer.send.as_ref().map(|send| send.to), Some(SocketAddrV4::new(relay, 67)));
    let read = Read::of(&answer);
    assert_eq!(read.0[24..28], relay.octets());
    assert_eq!(read.option(82), Some(vec![1, 2, 7, 7]), "what the relay added comes back to it");
}
