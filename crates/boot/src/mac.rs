//! The hardware address of a network card, as one value with one spelling: lower case, colons.

use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac([u8; 6]);

impl Mac {
    pub const fn new(octets: [u8; 6]) -> Self {
        Self(octets)
    }

    pub const fn octets(self) -> [u8; 6] {
        self.0
    }

    /// A card's own address: neither a group of cards nor the zeros that stand for none.
    pub fn is_of_one_card(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a hardware address: write six pairs of hexadecimal digits, such as 52:54:00:12:34:56")]
pub struct NotAMac(String);

impl FromStr for Mac {
    type Err = NotAMac;

    /// Colons or hyphens between, either case.
    fn from_str(text: &str) -> Result<Self, NotAMac> {
        let wrong = || NotAMac(text.chars().take(40).collect());
        let separator = if text.contains('-') { '-' } else { ':' };
        let mut octets = [0; 6];
        let mut parts = text.split(separator);
        for octet in &mut octets {
            let part = parts.next().filter(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()));
            *octet = part.and_then(|p| u8::from_str_radix(p, 16).ok()).ok_or_else(wrong)?;
        }
        if parts.next().is_some() { Err(wrong()) } else { Ok(Self(octets)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_has_one_spelling() {
        for text in ["52:54:00:AB:cd:0E", "52-54-00-ab-CD-0e"] {
            assert_eq!(text.parse::<Mac>().map(|m| m.to_string()), Ok("52:54:00:ab:cd:0e".to_owned()));
        }
        for text in [
            "",
            "52:54:00:ab:cd",
            "52:54:00:ab:cd:0e:11",
            "5:254:00:ab:cd:0e",
            "52:54:00:ab:cd:+e",
            "é2:54:00:ab:cd:0e",
        ] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
    }

    #[test]
    fn groups_and_nobody_are_no_card() {
        assert!(Mac::new([0x52, 0x54, 0, 1, 2, 3]).is_of_one_card());
        for octets in [[0; 6], [0xff; 6], [0x01, 0x00, 0x5e, 0, 0, 1]] {
            assert!(!Mac::new(octets).is_of_one_card());
        }
    }
}
