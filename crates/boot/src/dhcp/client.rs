//! Who is asking: firmware that loads its first program from the network, iPXE that fetches a script, or a system that
//! only wants an address.

use super::packet::{Packet, code};
use std::fmt;

/// What a loader must be built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Architecture {
    Bios,
    UefiX64,
    UefiArm64,
    /// One that there is nothing for.
    Other(u16),
}

/// A client that boots from the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Booter {
    /// Loads by TFTP.
    Pxe(Architecture),
    /// UEFI that loads by HTTP itself.
    Http(Architecture),
    /// The loader that we gave it, or that its card has.
    Ipxe(Architecture),
}

impl Booter {
    /// `None`: it does not boot from the network.
    pub fn of(packet: &Packet) -> Option<Self> {
        let class = packet.option(code::CLASS).unwrap_or_default();
        let (number, over_http) = (number(packet, class), class.starts_with(b"HTTPClient"));
        let architecture = architecture(number.unwrap_or(0));
        if is_ipxe(packet) {
            Some(Self::Ipxe(architecture))
        } else if over_http {
            // without a number it could be anything: HTTP is not what BIOS does
            Some(Self::Http(number.map_or(Architecture::Other(0), |_| architecture)))
        } else if class.starts_with(b"PXEClient") {
            Some(Self::Pxe(architecture))
        } else {
            None
        }
    }
}

impl fmt::Display for Booter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, architecture) = match self {
            Self::Pxe(a) => ("PXE", a),
            Self::Http(a) => ("HTTP boot", a),
            Self::Ipxe(a) => ("iPXE", a),
        };
        match architecture {
            Architecture::Bios => write!(f, "{word} on BIOS"),
            Architecture::UefiX64 => write!(f, "{word} on UEFI x64"),
            Architecture::UefiArm64 => write!(f, "{word} on UEFI arm64"),
            Architecture::Other(number) => write!(f, "{word} on architecture {number}"),
        }
    }
}

/// By its own options, or by the class of user: plain, as iPXE sends it, or with lengths before each (RFC 3004).
fn is_ipxe(packet: &Packet) -> bool {
    packet.option(code::IPXE).is_some()
        || packet.option(code::USER_CLASS).is_some_and(|class| class == b"iPXE" || class.starts_with(b"\x04iPXE"))
}

/// The first of the architectures it names (RFC 4578); old firmware has it only in the text of its class,
/// `PXEClient:Arch:00007:UNDI:003016`.
fn number(packet: &Packet, class: &[u8]) -> Option<u16> {
    if let Some([high, low, ..]) = packet.option(code::ARCHITECTURE) {
        return Some(u16::from_be_bytes([*high, *low]));
    }
    let digits = class.split(|b| *b == b':').skip_while(|part| *part != b"Arch").nth(1)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// By IANA's list of processor architecture types. 9 is EBC there, but firmware for x64 uses it for itself.
const fn architecture(number: u16) -> Architecture {
    match number {
        0 => Architecture::Bios,
        7 | 9 | 16 => Architecture::UefiX64,
        11 | 19 => Architecture::UefiArm64,
        other => Architecture::Other(other),
    }
}
