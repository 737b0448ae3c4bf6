//! MAC addresses, spelt in one way: six pairs of lower-case digits with colons between.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(String);

impl MacAddress {
    /// Pairs with colons or hyphens, fours with dots, or twelve digits; each separator in its place.
    pub fn parse(text: &str) -> Option<Self> {
        let grouped = |separator: char, of: usize| {
            let groups: Vec<&str> = text.split(separator).collect();
            (groups.len() * of == 12 && groups.iter().all(|group| group.len() == of)).then(|| groups.concat())
        };
        let digits =
            grouped(':', 2).or_else(|| grouped('-', 2)).or_else(|| grouped('.', 4)).or_else(|| grouped(':', 12));
        let digits = digits.filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?.to_ascii_lowercase();
        let pairs: Vec<&str> = (0..6).filter_map(|i| digits.get(2 * i..2 * i + 2)).collect();
        Some(Self(pairs.join(":")))
    }

    /// Whether it can be one card's own: not a group's, and not all zeros.
    pub fn is_a_cards(&self) -> bool {
        let first = u8::from_str_radix(self.0.get(..2).unwrap_or("ff"), 16).unwrap_or(0xff);
        first & 1 == 0 && self.0 != "00:00:00:00:00:00"
    }

    /// Takes a text that is already known to be one: from a row.
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_usual_spelling_is_one() {
        for text in ["52:54:00:4D:59:01", "52-54-00-4d-59-01", "5254.004D.5901", "5254004d5901", "5254004D5901"] {
            assert_eq!(MacAddress::parse(text).map(|m| m.0).as_deref(), Some("52:54:00:4d:59:01"), "{text}");
        }
        for bad in [
            "",
            "52:54:00:4d:59",
            "52:54:00:4d:59:0g",
            "52:54:00:4d:59:01:02",
            "5-254004d5901",
            "ü",
            "52:54-00:4d-59:01",
            "5:2:5:4:0:04d5901",
            "52540:04d5901.",
            "5254:004d:5901",
            "5254.004d5901.",
        ] {
            assert_eq!(MacAddress::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn separators_stand_in_their_places() {
        let misplaced =
            [":::::5254004d5901", "5254004d59.0.1", "5254004d5901:::::", "52:54:00:4d:5901:", "5:25:40:04:d5:901"];
        let mixed = ["52:54-00:4d-59:01", "52.54.00.4d.59.01", "5254:004d:5901", "5254-004d-5901", "525400-4d5901"];
        for bad in misplaced.into_iter().chain(mixed) {
            assert_eq!(MacAddress::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn groups_and_zeros_are_no_cards() {
        let card = |text| MacAddress::parse(text).is_some_and(|m| m.is_a_cards());
        assert!(card("52:54:00:4d:59:01"));
        assert!(!card("ff:ff:ff:ff:ff:ff") && !card("01:00:5e:00:00:01") && !card("00:00:00:00:00:00"));
    }
}
