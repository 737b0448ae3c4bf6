//! What the service has seen and done, counted. The set of counts is closed; whoever shows metrics reads them here.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counted {
    ($($(#[$about:meta])* $name:ident = $word:literal,)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Count { $($(#[$about])* $name,)+ }

        impl Count {
            pub const ALL: &'static [Count] = &[$(Count::$name),+];

            /// As a label is spelled.
            pub const fn word(self) -> &'static str {
                match self { $(Count::$name => $word,)+ }
            }
        }
    };
}

counted! {
    DhcpReceived = "dhcp_received",
    DhcpOffers = "dhcp_offers",
    DhcpAcks = "dhcp_acks",
    DhcpNaks = "dhcp_naks",
    /// Released or declined: heard, and nothing to say.
    DhcpEnded = "dhcp_ended",
    /// Hostile or broken: cut short, lengths that are wrong, options that lead in circles.
    DhcpMalformed = "dhcp_malformed",
    /// More than one sender, or all together, may ask in a second.
    DhcpTooMany = "dhcp_too_many",
    /// Not addressed to us, or nothing that we answer.
    DhcpNotForUs = "dhcp_not_for_us",
    /// We would have, but there was no address left, no network that fits, no file for this firmware.
    DhcpNothingToGive = "dhcp_nothing_to_give",
    /// A lease could not be kept, so it was not given.
    DhcpNotKept = "dhcp_not_kept",
    TftpReceived = "tftp_received",
    TftpMalformed = "tftp_malformed",
    /// Asked to write, for another mode, for a name that is not served.
    TftpRefused = "tftp_refused",
    TftpTooMany = "tftp_too_many",
    TftpBegun = "tftp_begun",
    TftpDone = "tftp_done",
    /// The client said that it had enough, went silent, or the file could not be read.
    TftpBroken = "tftp_broken",
    TftpResent = "tftp_resent",
    TftpStrangers = "tftp_strangers",
    /// What the network refused to carry.
    SendFailures = "send_failures",
}

/// Shared by all that count.
#[derive(Debug)]
pub struct Counts(Vec<AtomicU64>);

impl Default for Counts {
    fn default() -> Self {
        Self(Count::ALL.iter().map(|_| AtomicU64::new(0)).collect())
    }
}

impl Counts {
    pub fn add(&self, count: Count) {
        if let Some(number) = self.0.get(count as usize) {
            number.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn of(&self, count: Count) -> u64 {
        self.0.get(count as usize).map_or(0, |number| number.load(Ordering::Relaxed))
    }

    /// All of them as they are now.
    pub fn snapshot(&self) -> Vec<(Count, u64)> {
        Count::ALL.iter().map(|count| (*count, self.of(*count))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_has_its_own_place_and_word() {
        let counts = Counts::default();
        for (times, count) in Count::ALL.iter().enumerate() {
            (0..times).for_each(|_| counts.add(*count));
        }
        for (times, (count, number)) in counts.snapshot().into_iter().enumerate() {
            assert_eq!(number, times as u64, "{}", count.word());
        }
        let words: Vec<&str> = Count::ALL.iter().map(|c| c.word()).collect();
        assert_eq!(words, domain::metric::HEARD_AND_DONE);
        let apart: std::collections::BTreeSet<&str> = words.iter().copied().collect();
        assert_eq!(apart.len(), words.len());
    }
}
