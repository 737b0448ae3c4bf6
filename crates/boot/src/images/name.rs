//! What images are called: by the digest of their bytes, which never means anything else, or by a name that people
//! give and may move. Neither can spell a path.

use std::fmt;
use std::str::FromStr;

/// Why a text is no digest or no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("a digest is 64 hexadecimal digits in lower case")]
    Digest,
    #[error("an image's name has 1 to 63 of a-z A-Z 0-9 . _ -, and is neither . nor ..")]
    Name,
}

/// SHA-256 of an image's bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = Malformed;

    /// One spelling only, so that one image has one address.
    fn from_str(text: &str) -> Result<Self, Malformed> {
        let value = |c: u8| match c {
            b'0'..=b'9' => Ok(c - b'0'),
            b'a'..=b'f' => Ok(c - b'a' + 10),
            _ => Err(Malformed::Digest),
        };
        let mut bytes = [0; 32];
        if text.len() != 2 * bytes.len() {
            return Err(Malformed::Digest);
        }
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = value(pair[0])? << 4 | value(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

const NAME_MAX: usize = 63;

/// What people call an image.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageName(String);

impl ImageName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ImageName {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let fits = (1..=NAME_MAX).contains(&text.len());
        let plain = text.bytes().all(|c| c.is_ascii_alphanumeric() || b"._-".contains(&c));
        if fits && plain && text != "." && text != ".." { Ok(Self(text.to_owned())) } else { Err(Malformed::Name) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_has_one_spelling() {
        let text = "00ff".repeat(16);
        assert_eq!(text.parse::<Digest>().expect("a digest").to_string(), text);
        for bad in ["", "00", &text.to_uppercase(), &text[1..], &format!("{text}0"), &text.replace('0', "g")] {
            assert_eq!(bad.parse::<Digest>(), Err(Malformed::Digest), "{bad}");
        }
        // as many bytes, fewer letters
        assert_eq!("é".repeat(32).parse::<Digest>(), Err(Malformed::Digest));
    }

    #[test]
    fn a_name_cannot_spell_a_path() {
        for good in ["a", "ubuntu-24.04.raw.gz", "undionly.kpxe", "_", "-", "...", ".x", &"n".repeat(63)] {
            assert_eq!(good.parse::<ImageName>().expect("a name").as_str(), good);
        }
        for bad in ["", ".", "..", "a/b", "a\\b", "a%2fb", "a b", "a\0", "é", "a\n", &"n".repeat(64)] {
            assert_eq!(bad.parse::<ImageName>(), Err(Malformed::Name), "{bad:?}");
        }
    }
}
