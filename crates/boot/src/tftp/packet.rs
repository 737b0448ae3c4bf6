//! The packets of TFTP (RFC 1350) and what a request may ask for beside its file (RFC 2347 to 2349, 7440). Requests come
//! from strangers: whatever is not well formed is none.

/// A request has no more bytes (RFC 2347).
pub const REQUEST_MAX: usize = 512;
const NAME_MAX: usize = 128;
/// What is sent where nothing else was agreed.
pub const BLOCK_DEFAULT: usize = 512;
/// With the headers this fills one Ethernet frame: larger blocks would travel in pieces, and firmware drops those.
const BLOCK_MAX: usize = 1468;
const BLOCK_MIN: usize = 8;
/// Blocks that are under way at once; what a transfer holds in memory.
const WINDOW_MAX: usize = 16;
/// Seconds that a client may ask us to wait before we send again.
const PAUSE_MAX: u8 = 10;

const READ: u16 = 1;
const WRITE: u16 = 2;
const DATA: u16 = 3;
const ACK: u16 = 4;
const ERROR: u16 = 5;
const AGREED: u16 = 6;

/// A well-formed request to read a file as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Never empty, without a slash before it, plain characters, no way up.
    pub name: String,
    pub block: Option<usize>,
    pub size: bool,
    pub pause: Option<u8>,
    pub window: Option<usize>,
}

/// What is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// No request; nothing is said.
    Malformed,
    /// Somebody wants to write.
    Write,
    /// Text with line ends made over, or mail.
    Mode,
    /// Nothing that is served could be called so.
    Name,
}

impl Request {
    pub fn read(datagram: &[u8]) -> Result<Self, Unserved> {
        if datagram.len() > REQUEST_MAX {
            return Err(Unserved::Malformed);
        }
        let (kind, rest) = kind(datagram).ok_or(Unserved::Malformed)?;
        // a last text without its zero is one that was cut off
        let rest = rest.strip_suffix(&[0]).ok_or(Unserved::Malformed)?;
        let mut texts = rest.split(|b| *b == 0);
        let (Some(name), Some(mode)) = (texts.next(), texts.next()) else { return Err(Unserved::Malformed) };
        match kind {
            READ if mode.eq_ignore_ascii_case(b"octet") => {}
            READ => return Err(Unserved::Mode),
            WRITE => return Err(Unserved::Write),
            _ => return Err(Unserved::Malformed),
        }
        let name = std::str::from_utf8(name).map(|name| name.trim_start_matches('/')).unwrap_or_default();
        let mut request = Self { name: name.to_owned(), block: None, size: false, pause: None, window: None };
        // some firmware fills up with zeros behind the last option
        while let Some(option) = texts.next().filter(|option| !option.is_empty()) {
            request.wants(option, texts.next().ok_or(Unserved::Malformed)?);
        }
        if is_a_name(name) { Ok(request) } else { Err(Unserved::Name) }
    }

    /// An option that is not known, or with a value that it cannot have, is as if it were not there (RFC 2347).
    fn wants(&mut self, option: &[u8], value: &[u8]) {
        let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let number = std::str::from_utf8(value).ok().filter(|_| digits).and_then(|text| text.parse::<u32>().ok());
        let Some(number) = number.and_then(|number| usize::try_from(number).ok()) else { return };
        if option.eq_ignore_ascii_case(b"blksize") && number >= BLOCK_MIN {
            self.block = Some(number.min(BLOCK_MAX));
        } else if option.eq_ignore_ascii_case(b"tsize") {
            self.size = true;
        } else if option.eq_ignore_ascii_case(b"timeout") {
            self.pause = u8::try_from(number).ok().filter(|seconds| (1..=PAUSE_MAX).contains(seconds));
        } else if option.eq_ignore_ascii_case(b"windowsize") && number >= 1 {
            self.window = Some(number.min(WINDOW_MAX));
        }
    }

    /// What we agree to, if anything was asked.
    pub fn agreed(&self, size: u64) -> Option<Vec<u8>> {
        let mut options: Vec<(&str, String)> = Vec::new();
        options.extend(self.block.map(|block| ("blksize", block.to_string())));
        options.extend(self.size.then(|| ("tsize", size.to_string())));
        options.extend(self.pause.map(|pause| ("timeout", pause.to_string())));
        options.extend(self.window.map(|window| ("windowsize", window.to_string())));
        if options.is_empty() {
            return None;
        }
        let mut bytes = AGREED.to_be_bytes().to_vec();
        for (name, value) in options {
            for text in [name, &value] {
                bytes.extend(text.as_bytes());
                bytes.push(0);
            }
        }
        Some(bytes)
    }
}

/// Names are looked up in a list and never joined to a path. This only keeps nonsense from the list.
fn is_a_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-+@/".contains(&b);
    !name.is_empty() && name.len() <= NAME_MAX && name.bytes().all(plain) && name.split('/').all(|part| part != "..")
}

fn kind(datagram: &[u8]) -> Option<(u16, &[u8])> {
    let (kind, rest) = datagram.split_first_chunk::<2>()?;
    Some((u16::from_be_bytes(*kind), rest))
}

/// What the client of a running transfer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromClient {
    Ack(u16),
    /// It wants no more.
    Enough,
    Nonsense,
}

impl FromClient {
    pub fn read(datagram: &[u8]) -> Self {
        match kind(datagram) {
            Some((ACK, &[high, low])) => Self::Ack(u16::from_be_bytes([high, low])),
            Some((ERROR, [_, _, ..])) => Self::Enough,
            _ => Self::Nonsense,
        }
    }
}

pub fn data(number: u16, block: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + block.len());
    bytes.extend(DATA.to_be_bytes());
    bytes.extend(number.to_be_bytes());
    bytes.extend(block);
    bytes
}

/// An error that ends it; the numbers are the standard's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Failed = 0,
    NotFound = 1,
    NoWriting = 2,
    BadMode = 4,
    Stranger = 5,
}

impl Refusal {
    pub fn bytes(self, text: &str) -> Vec<u8> {
        let mut bytes = ERROR.to_be_bytes().to_vec();
        bytes.extend([0, self as u8]);
        bytes.extend(text.as_bytes());
        bytes.push(0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Request, Unserved> {
        Request::read(bytes)
    }

    fn plain(name: &str) -> Request {
        Request { name: name.to_owned(), block: None, size: false, pause: None, window: None }
    }

    #[test]
    fn a_request_is_read_with_what_it_asks_for() {
        assert_eq!(read(b"\0\x01ipxe.efi\0octet\0"), Ok(plain("ipxe.efi")));
        assert_eq!(read(b"\0\x01/ipxe.efi\0OCTET\0"), Ok(plain("ipxe.efi")));
        // as OVMF and iPXE ask
        let asked =
            read(b"\0\x01ipxe.efi\0octet\0tsize\x000\0blksize\x001468\0windowsize\x004\0").expect("well formed");
        assert_eq!(asked, Request { block: Some(1468), size: true, window: Some(4), ..plain("ipxe.efi") });
        assert_eq!(asked.agreed(7), Some(b"\0\x06blksize\x001468\0tsize\x007\0windowsize\x004\0".to_vec()));
        assert_eq!(plain("a").agreed(7), None);
    }

    #[test]
    fn what_is_too_much_is_made_less_and_what_makes_no_sense_is_not_there() {
        let asked = |options: &[u8]| read(&[b"\0\x01a\0octet\0", options].concat());
        assert_eq!(
            asked(b"blksize\x0065464\0WINDOWSIZE\x0065535\0").map(|r| (r.block, r.window)),
            Ok((Some(1468), Some(16)))
        );
        for nonsense in [
            &b"blksize\x007\0"[..],
            b"blksize\0-1\0",
            b"blksize\0+9\0",
            b"blksize\099999999999999999999\0",
            b"blksize\0\0",
            b"timeout\x000\0",
            b"timeout\x00255\0",
            b"windowsize\x000\0",
            b"multicast\0x\0",
            b"\0\0\0",
        ] {
            assert_eq!(asked(nonsense), Ok(plain("a")), "{}", nonsense.escape_ascii());
        }
        assert_eq!(asked(b"timeout\x003\0").map(|r| r.pause), Ok(Some(3)));
    }

    #[test]
    fn what_is_not_served_is_told_apart() {
        for malformed in [
            &b""[..],
            b"\0",
            b"\0\x01",
            b"\0\x01\0",
            b"\0\x01a\0",
            b"\0\x01a\0octet",
            b"\0\x01a\0octet\0blksize\0",
            b"\0\x01a\0octet\0blksize\x008",
            b"\0\x03\0\x01data\0",
            b"\0\x04\0\x01",
            b"\0\x07a\0octet\0",
            b"\x01\x01a\0octet\0",
        ] {
            assert_eq!(read(malformed), Err(Unserved::Malformed), "{}", malformed.escape_ascii());
        }
        let long = [b"\0\x01", &[b'a'; 600][..], b"\0octet\0"].concat();
        assert_eq!(read(&long), Err(Unserved::Malformed));
        assert_eq!(read(b"\0\x02a\0octet\0"), Err(Unserved::Write));
        assert_eq!(read(b"\0\x01a\0netascii\0"), Err(Unserved::Mode));
        assert_eq!(read(b"\0\x01a\0mail\0"), Err(Unserved::Mode));
    }

    #[test]
    fn a_name_leads_nowhere() {
        for name in ["", "/", "../etc/passwd", "a/../../b", "a/..", "..", "a\\b", "a b", "a\nb", "é", "%2e%2e/x", "a:b"]
        {
            let request = [b"\0\x01", name.as_bytes(), b"\0octet\0"].concat();
            assert_eq!(read(&request), Err(Unserved::Name), "{name:?}");
        }
        let long = [b"\0\x01", &[b'a'; 129][..], b"\0octet\0"].concat();
        assert_eq!(read(&long), Err(Unserved::Name));
        assert_eq!(read(b"\0\x01\xff\xfe\0octet\0"), Err(Unserved::Name));
        assert_eq!(read(b"\0\x01a..b/c.d\0octet\0"), Ok(plain("a..b/c.d")));
    }

    #[test]
    fn packets_are_spelled_as_the_standard_has_them() {
        assert_eq!(data(0x0102, b"xy"), b"\0\x03\x01\x02xy");
        assert_eq!(Refusal::Stranger.bytes("no"), b"\0\x05\0\x05no\0");
        assert_eq!(FromClient::read(b"\0\x04\x01\x02"), FromClient::Ack(0x0102));
        assert_eq!(FromClient::read(b"\0\x05\0\x08aborted\0"), FromClient::Enough);
        for nonsense in [&b""[..], b"\0\x04", b"\0\x04\0", b"\0\x04\0\x01x", b"\0\x05", b"\0\x03\0\x01"] {
            assert_eq!(FromClient::read(nonsense), FromClient::Nonsense);
        }
    }
}
