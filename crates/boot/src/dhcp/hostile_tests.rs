//! Packets that no honest client sends: none is answered, none changes anything, each is known for what it is.

use super::samples::*;
use super::*;
use std::net::Ipv4Addr;

fn read(asks: &Asks) -> Result<Packet, Malformed> {
    Packet::read(&asks.bytes())
}

/// Raw bytes in the place of the options.
fn raw(options: &[u8]) -> Vec<u8> {
    [&Asks::discover(CARD).head[..], options].concat()
}

#[test]
fn every_packet_that_is_cut_short_is_refused() {
    let whole = Asks::discover(CARD).ipxe().with(97, &[0; 17]).bytes();
    assert!(Packet::read(&whole).is_ok());
    for length in 0..whole.len() {
        assert!(Packet::read(&whole[..length]).is_err(), "{length}");
    }
}

#[test]
fn lengths_that_lie_are_found() {
    for (options, why) in [
        (&[53, 1, 1][..], Malformed::NoEnd),
        (&[53, 1, 1, 60], Malformed::CutShort),
        (&[53, 1, 1, 60, 200, 1, 255], Malformed::CutShort),
        (&[53, 1, 1, 60, 255], Malformed::CutShort),
        (&[], Malformed::NoEnd),
        (&[255], Malformed::NotDhcp),
        (&[53, 0, 255], Malformed::Length(53)),
        (&[53, 2, 1, 1, 255], Malformed::Length(53)),
        // said twice is one in pieces, and too long
        (&[53, 1, 1, 53, 1, 1, 255], Malformed::Length(53)),
        (&[53, 1, 1, 50, 3, 1, 1, 1, 255], Malformed::Length(50)),
        (&[53, 1, 1, 54, 5, 1, 1, 1, 1, 1, 255], Malformed::Length(54)),
        (&[53, 1, 1, 57, 1, 1, 255], Malformed::Length(57)),
        (&[53, 1, 1, 61, 1, 1, 255], Malformed::Length(61)),
        (&[53, 1, 1, 93, 1, 0, 255], Malformed::Length(93)),
        (&[53, 1, 1, 93, 0, 255], Malformed::Length(93)),
        (&[53, 1, 1, 97, 2, 0, 0, 255], Malformed::Length(97)),
        (&[53, 1, 1, 60, 0, 255], Malformed::Length(60)),
        (&[53, 1, 2, 255], Malformed::NotARequest),
        (&[53, 1, 200, 255], Malformed::NotARequest),
    ] {
        assert_eq!(Packet::read(&raw(options)), Err(why), "{options:?}");
    }
}

#[test]
fn options_in_other_fields_are_read_once_and_lead_no_further() {
    // the file field holds the class, the server's name the architecture
    let mut asks = Asks::discover(CARD).with(52, &[3]);
    asks.head.splice(108..108 + 12, *b"\x3c\x09PXEClient\xff");
    asks.head.splice(44..44 + 5, [93, 2, 0, 7, 255]);
    let packet = read(&asks).expect("well formed");
    assert_eq!(Booter::of(&packet), Some(Booter::Pxe(Architecture::UefiX64)));

    for (at, field) in [(108, 128), (44, 64)] {
        let overloaded = |bytes: &[u8]| {
            let mut asks = Asks::discover(CARD).with(52, &[if at == 108 { 1 } else { 2 }]);
            asks.head.splice(at..at + bytes.len(), bytes.iter().copied());
            read(&asks)
        };
        assert_eq!(overloaded(&[52, 1, 3, 255]), Err(Malformed::Overload), "a circle");
        assert_eq!(overloaded(&vec![0; field]), Err(Malformed::NoEnd));
        let mut past = vec![0; field];
        past[field - 1] = 60;
        assert_eq!(overloaded(&past), Err(Malformed::CutShort));
        past[field - 2..].copy_from_slice(&[60, 40]);
        assert_eq!(overloaded(&past), Err(Malformed::CutShort), "not on into the next field");
    }
    for value in [&[0][..], &[4], &[255], &[1, 1], &[]] {
        assert_eq!(read(&Asks::discover(CARD).with(52, value)), Err(Malformed::Overload), "{value:?}");
    }
    assert_eq!(read(&Asks::discover(CARD).with(52, &[1]).with(52, &[2])), Err(Malformed::Overload));
}

#[test]
fn heads_that_make_no_sense_are_found() {
    let changed = |at: usize, byte: u8| {
        let mut asks = Asks::discover(CARD);
        asks.head[at] = byte;
        read(&asks).expect_err("malformed")
    };
    assert_eq!(changed(0, 2), Malformed::NotARequest);
    assert_eq!(changed(1, 32), Malformed::Hardware, "not Ethernet");
    for length in [0, 5, 7, 16, 17, 255] {
        assert_eq!(changed(2, length), Malformed::Hardware, "{length}");
    }
    assert_eq!(changed(3, 17), Malformed::TooManyHops);
    assert_eq!(changed(28, 0x01), Malformed::Hardware, "a group of cards");
    assert_eq!(changed(236, 0), Malformed::NotDhcp);
    for address in [Ipv4Addr::BROADCAST, Ipv4Addr::LOCALHOST, Ipv4Addr::new(224, 0, 0, 1), Ipv4Addr::new(0, 0, 0, 1)] {
        assert_eq!(read(&Asks::discover(CARD).by_relay(address)), Err(Malformed::Address), "{address}");
        assert_eq!(read(&Asks::discover(CARD).having(address)), Err(Malformed::Address), "{address}");
    }
    let long = [Asks::discover(CARD).bytes(), vec![0; PACKET_MAX]].concat();
    assert_eq!(Packet::read(&long), Err(Malformed::TooLong));
}

#[test]
fn nothing_hostile_changes_anything() {
    let mut service = only_server();
    let before = service.leases().clone();
    for bytes in [raw(&[53, 1, 1]), raw(&[53, 1, 1, 60, 200, 255]), vec![0xff; 600], Vec::new()] {
        assert!(matches!(service.answer(&bytes, by_broadcast(), at(0)), Err(Silence::Malformed(_))));
    }
    // somebody plays a relay that has our own address
    let asks = Asks::discover(CARD).by_relay(US);
    assert_eq!(ask(&mut service, &asks, 0), Err(Silence::Malformed(Malformed::Address)));
    assert_eq!(*service.leases(), before);
}

#[test]
fn what_a_client_sends_along_does_not_make_an_answer_too_large() {
    let mut service = only_server();
    let mut asks = Asks::discover(CARD).class(UEFI, 7).with(61, &[7; 255]).with(97, &[0; 17]);
    asks = asks.by_relay(address(2)).with(82, &[9; 255]);
    let answer = Read::of(&ask(&mut service, &asks, 0).expect("an offer"));
    assert!(answer.0.len() <= 548, "{}", answer.0.len());
    assert_eq!((answer.option(97), answer.option(82)), (Some(vec![0; 17]), None), "left out, not cut");
    // with more room all of it comes back
    let answer = Read::of(&ask(&mut service, &asks.with(57, &1500_u16.to_be_bytes()), 0).expect("an offer"));
    assert_eq!((answer.option(61), answer.option(82)), (Some(vec![7; 255]), Some(vec![9; 255])));
    assert!(answer.0.len() <= 1472);
}

#[test]
fn a_flood_is_met_with_silence() {
    let mut service = only_server();
    let asks = Asks::discover(CARD);
    let answered = (0..100).filter(|_| ask(&mut service, &asks, 0).is_ok()).count();
    assert_eq!(answered, 10);
    assert_eq!(ask(&mut service, &asks, 0), Err(Silence::TooMany));
    assert!(ask(&mut service, &asks, 1).is_ok());
}
