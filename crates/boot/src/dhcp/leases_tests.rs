//! Leases over time: whose an address is, was, and will be again.

use super::super::samples::{US, address, at, card, pool};
use super::*;

fn leases() -> Leases {
    Leases::new(vec![pool()], US)
}

fn take(leases: &mut Leases, mac: Mac, seconds: u64) -> Option<Ipv4Addr> {
    let offered = leases.offer(0, mac, None, at(seconds))?;
    leases.grant(0, mac, offered, at(seconds)).map(|lease| lease.address)
}

#[test]
fn a_card_keeps_its_address_after_its_lease_has_ended_while_nobody_needs_it() {
    let mut leases = leases();
    let address = take(&mut leases, card(1), 0).expect("an address");
    assert_eq!(take(&mut leases, card(1), 100_000), Some(address));
    for other in 2..=4 {
        take(&mut leases, card(other), 100_001).expect("an address");
    }
    // all four are in use, and none goes to a fifth card
    assert_eq!(take(&mut leases, card(5), 100_002), None);
    // the lease that ended first is the one that is given away
    assert_eq!(take(&mut leases, card(5), 103_600), Some(address));
    assert_eq!(leases.leased_to(address, at(103_600)), Some(card(5)));
    assert_eq!(leases.grant(0, card(1), address, at(103_600)), None);
}

#[test]
fn what_was_kept_is_taken_up_after_a_restart() {
    let mut before = leases();
    let given: Vec<Ipv4Addr> = (1..=3).filter_map(|last| take(&mut before, card(last), last.into())).collect();
    let kept = before.all();
    let mut after = leases();
    assert_eq!(after.load(kept.clone()), 0);
    assert_eq!(after.all(), kept);
    for (last, address) in (1..=3).zip(&given) {
        assert_eq!(after.leased_to(*address, at(10)), Some(card(last)));
        assert_eq!(take(&mut after, card(last), 20), Some(*address));
    }
}

#[test]
fn what_no_longer_fits_is_left_out_and_the_newest_wins() {
    let lease = |last, mac, seconds| Lease { address: address(last), mac, until: at(seconds) };
    let mut changed = pool();
    changed.reserved = [(card(1), address(7)), (card(2), address(101))].into();
    let mut leases = Leases::new(vec![changed], US);
    // out of the range; our own; not what is reserved for it; reserved for another; then two for one card
    let kept = vec![
        lease(99, card(3), 50),
        lease(1, card(3), 50),
        lease(100, card(1), 50),
        lease(101, card(4), 50),
        lease(103, card(5), 60),
        lease(102, card(5), 50),
    ];
    assert_eq!(leases.load(kept), 4);
    assert_eq!(leases.leased_to(address(103), at(0)), Some(card(5)));
    assert_eq!(leases.leased_to(address(102), at(0)), None);
    assert_eq!(take(&mut leases, card(5), 0), Some(address(103)));
}

#[test]
fn a_reserved_address_is_its_card_s_alone() {
    let mut reserved = pool();
    // one beside the range, one in it
    reserved.reserved = [(card(1), address(7)), (card(2), address(102))].into();
    let mut leases = Leases::new(vec![reserved], US);
    assert_eq!(take(&mut leases, card(1), 0), Some(address(7)));
    let others: Vec<Option<Ipv4Addr>> = (3..=6).map(|last| take(&mut leases, card(last), 0)).collect();
    assert_eq!(others[3], None, "three are left for the others");
    assert!(!others.contains(&Some(address(102))));
    assert_eq!(leases.grant(0, card(3), address(102), at(0)), None);
    assert_eq!(leases.offer(0, card(9), Some(address(102)), at(0)), None);
    assert_eq!(take(&mut leases, card(2), 0), Some(address(102)));
    assert_eq!(leases.grant(0, card(2), address(100), at(0)), None, "and it has no other");
    // however long ago it ended, nobody else gets it
    assert_eq!(take(&mut leases, card(9), 3700).map(|a| a == address(102) || a == address(7)), Some(false));
    // somebody else sits on it: then there is none for a while
    assert!(leases.decline(card(2), address(102), at(10)).is_some());
    assert_eq!(leases.offer(0, card(2), None, at(11)), None);
    assert_eq!(leases.grant(0, card(2), address(102), at(11)), None);
    assert_eq!(take(&mut leases, card(2), 400), Some(address(102)));
}

#[test]
fn a_wish_is_granted_where_it_is_free() {
    let mut leases = leases();
    assert_eq!(leases.offer(0, card(1), Some(address(102)), at(0)), Some(address(102)));
    assert_ne!(leases.offer(0, card(2), Some(address(102)), at(0)), Some(address(102)), "offered to another");
    let not_ours = leases.offer(0, card(3), Some(address(9)), at(0)).expect("an address");
    assert!((100..=103).contains(&not_ours.octets()[3]));
}

#[test]
fn an_offer_that_is_not_taken_up_goes_to_another() {
    let mut leases = leases();
    let offered: BTreeSet<_> = (1..=4).filter_map(|last| leases.offer(0, card(last), None, at(0))).collect();
    assert_eq!(offered.len(), 4);
    assert_eq!(leases.offer(0, card(5), None, at(29)), None);
    assert!(leases.offer(0, card(5), None, at(30)).is_some());
    assert!(leases.all().is_empty(), "an offer is nothing to keep");
}

#[test]
fn offers_do_not_touch_a_lease_that_runs() {
    let mut leases = leases();
    let address = take(&mut leases, card(1), 0).expect("an address");
    let before = leases.clone();
    assert_eq!(leases.offer(0, card(1), None, at(100)), Some(address));
    assert_eq!(leases, before);
}

#[test]
fn the_first_address_of_a_card_follows_from_the_card() {
    let mut wide = pool();
    (wide.first, wide.last) = (address(10), address(250));
    let alone = |last| take(&mut Leases::new(vec![wide.clone()], US), card(last), 0);
    let mut together = Leases::new(vec![wide.clone()], US);
    let same = (1..=20).rev().filter(|last| take(&mut together, card(*last), 0) == alone(*last)).count();
    assert!(same >= 18, "{same} of 20 have the address that they would have alone");
}

#[test]
fn the_table_stays_as_small_as_the_range_whoever_asks() {
    let mut leases = leases();
    for round in 0..2_000_u64 {
        let bytes = round.to_be_bytes();
        let mac = Mac::new([2, bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]]);
        if let Some(address) = leases.offer(0, mac, None, at(round * 7)) {
            match round % 4 {
                0 => drop(leases.grant(0, mac, address, at(round * 7))),
                1 => drop(leases.decline(mac, address, at(round * 7))),
                2 => drop(leases.release(mac, address, at(round * 7))),
                _ => {}
            }
        }
        let table = &leases.0[0];
        assert!(table.entries.len() <= 4 && table.of_card.len() <= 4 && table.by_end.len() == table.entries.len());
        assert_eq!(table.free.len() + table.entries.len(), 4, "each address is in one place");
    }
}
