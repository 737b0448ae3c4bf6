//! MAC addresses, spelt in one way: six pairs of lower-case digits with colons between.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(String);

impl MacAddress {
    /// Pairs with colons or hyphens, fours with dots, or twelve digits.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        // how long it is says how it must be spelt
        let (group, separators): (usize, &[u8]) = match bytes.len() {
            12 => (12, b""),
            14 => (4, b"."),
            17 => (2, b":-"),
            _ => return None,
        };
        let separator = bytes.get(group).copied();
        let mut digits = String::with_capacity(12);
        for (i, byte) in bytes.iter().enumerate() {
            let between = i % (group + 1) == group;
            if between && separator == Some(*byte) && separators.contains(byte) {
                continue;
            }
            if between || !byte.is_ascii_hexdigit() {
                return None;
            }
            digits.push(char::from(byte.to_ascii_lowercase()));
        }
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
        for text in ["52:54:00:4D:59:01", "52-54-00-4d-59-01", "5254.004d.5901", "5254004d5901"] {
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
    fn groups_and_zeros_are_no_cards() {
        let card = |text| MacAddress::parse(text).is_some_and(|m| m.is_a_cards());
        assert!(card("52:54:00:4d:59:01"));
        assert!(!card("ff:ff:ff:ff:ff:ff") && !card("01:00:5e:00:00:01") && !card("00:00:00:00:00:00"));
    }
}
