//! How much is asked in a second, by one card and by all: beyond that there is silence. Whoever floods the network
//! costs us a look at each packet and no more; what is remembered is bounded by what is let through.

use super::settings::Limits;
use crate::Mac;
use domain::time::Timestamp;
use std::collections::HashMap;
use std::time::Duration;

const WINDOW: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct Limit {
    limits: Limits,
    since: Timestamp,
    all: u32,
    of: HashMap<Mac, u32>,
}

impl Limit {
    pub fn new(limits: Limits) -> Self {
        Self { limits, since: Timestamp::default(), all: 0, of: HashMap::new() }
    }

    /// Whether one more of this card may be answered; counts it if so.
    pub fn admits(&mut self, mac: Mac, now: Timestamp) -> bool {
        // a clock that went back begins anew, too
        if now < self.since || now.since(self.since) >= WINDOW {
            (self.since, self.all) = (now, 0);
            self.of.clear();
        }
        let of_one = self.of.get(&mac).copied().unwrap_or(0);
        let admitted = self.all < self.limits.of_all && of_one < self.limits.of_one;
        if admitted {
            self.all += 1;
            self.of.insert(mac, of_one + 1);
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_800_000_000_000_000).plus(Duration::from_millis(millis))
    }

    fn mac(last: u8) -> Mac {
        Mac::new([2, 0, 0, 0, 0, last])
    }

    #[test]
    fn one_card_cannot_take_the_turn_of_others_and_all_have_an_end() {
        let mut limit = Limit::new(Limits { of_one: 2, of_all: 4 });
        let taken: Vec<bool> = [1, 1, 1, 2, 2, 3].map(|card| limit.admits(mac(card), at(0))).to_vec();
        assert_eq!(taken, [true, true, false, true, true, false]);
        assert!(!limit.admits(mac(3), at(999)));
        assert!(limit.admits(mac(1), at(1000)) && limit.admits(mac(3), at(1000)));
        assert!(limit.admits(mac(1), at(500)), "a clock that went back does not lock anybody out");
    }

    #[test]
    fn a_flood_of_cards_is_not_remembered() {
        let mut limit = Limit::new(Limits { of_one: 2, of_all: 4 });
        for card in 0..=255 {
            limit.admits(mac(card), at(0));
        }
        assert_eq!(limit.of.len(), 4);
    }
}
