//! Where a machine's BMC and its host are reached: the texts of `bmc_endpoint` and `ssh_endpoint`, understood.
//!
//! ```text
//! bmc_endpoint  HOST[:PORT]                       Redfish over TLS, or IPMI where there is no Redfish
//!               https://HOST[:PORT]               Redfish, its certificate pinned at first contact
//!               https://HOST?tls=ca:NAME          Redfish, its certificate signed by credential NAME (kind ca)
//!               https://HOST?tls=pin:SHA256       Redfish, the certificate with this fingerprint
//!               https://HOST?tls=insecure         Redfish, any certificate: said by an admin, on purpose
//!               http://HOST[:PORT]                Redfish in the clear (emulators; also an admin's word)
//!               https://HOST/redfish/v1/Systems/2 this one of several systems behind one BMC
//!               ipmi://HOST[:PORT][?cipher=17]    IPMI over LAN
//! ssh_endpoint  HOST[:PORT], ssh://HOST[:PORT]    directly
//!               ssh://HOST?jump=HOST2[:PORT]      by way of another host
//! ```

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BmcProtocol {
    Redfish,
    /// Redfish without TLS.
    RedfishPlain,
    Ipmi,
    /// Not said: Redfish if it is there, else IPMI.
    Any,
}

/// How a BMC's certificate is judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsTrust {
    /// Pinned at the first contact, refused when it changes.
    FirstContact,
    /// The SHA-256 of the certificate, in lower-case hex.
    Pinned(String),
    /// Signed by the certificates in the credential of this name.
    Ca(String),
    Insecure,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BmcEndpoint {
    pub protocol: BmcProtocol,
    pub host: String,
    pub port: u16,
    pub trust: TlsTrust,
    /// The system behind it, where it has several: a path such as `/redfish/v1/Systems/2`. Empty: its only one.
    pub system: String,
    /// Of IPMI: the cipher suite asked for.
    pub cipher: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshEndpoint {
    pub at: HostPort,
    pub jump: Option<HostPort>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    pub host: String,
    pub port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

pub const SSH_PORT: u16 = 22;
pub const HTTPS_PORT: u16 = 443;
pub const HTTP_PORT: u16 = 80;
pub const IPMI_PORT: u16 = 623;
/// SHA-1 and AES-128, and the SHA-256 form that newer BMCs want. Suites without a password check are refused.
const CIPHERS: [u8; 2] = [3, 17];
const DEFAULT_CIPHER: u8 = 17;

impl HostPort {
    fn parse(text: &str, default_port: u16) -> Result<Self, String> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']').ok_or_else(|| format!("{text:?} lacks a ]"))?;
                if host.parse::<std::net::Ipv6Addr>().is_err() {
                    return Err(format!("{host:?} is not an IPv6 address"));
                }
                (host, after.strip_prefix(':'))
            }
            // an IPv6 address without brackets has no port
            None if text.parse::<std::net::Ipv6Addr>().is_ok() => (text, None),
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
        if host.is_empty() || host.starts_with('-') || !host.chars().all(plain) {
            return Err(format!("{host:?} is not a host name or address"));
        }
        let port = match port {
            None => default_port,
            Some(port) => port
                .parse()
                .ok()
                .filter(|p| *p != 0)
                .ok_or_else(|| format!("{port:?} is not a port between 1 and 65535"))?,
        };
        Ok(Self { host: host.to_owned(), port })
    }
}

/// An endpoint's text, taken apart.
struct Parts<'a> {
    scheme: &'a str,
    /// What stands between `://` and `?`.
    rest: &'a str,
    options: Vec<(&'a str, &'a str)>,
}

fn split(text: &str) -> Result<Parts<'_>, String> {
    // before anything is quoted: what stands before it may be a password
    if text.contains('@') {
        return Err("a user or password has no place here; credentials are named in spec.credentials_ref".to_owned());
    }
    let (rest, query) = text.split_once('?').unwrap_or((text, ""));
    let (scheme, rest) = rest.split_once("://").unwrap_or(("", rest));
    let options = query.split('&').filter(|option| !option.is_empty()).map(|option| {
        option.split_once('=').ok_or_else(|| format!("the option {option:?} has no value; write {option}=…"))
    });
    Ok(Parts { scheme, rest, options: options.collect::<Result<_, _>>()? })
}

impl BmcEndpoint {
    pub fn parse(text: &str) -> Result<Self, String> {
        let Parts { scheme, rest, options } = split(text)?;
        let (protocol, port) = match scheme {
            "" => (BmcProtocol::Any, HTTPS_PORT),
            "https" | "redfish" => (BmcProtocol::Redfish, HTTPS_PORT),
            "http" => (BmcProtocol::RedfishPlain, HTTP_PORT),
            "ipmi" => (BmcProtocol::Ipmi, IPMI_PORT),
            other => return Err(format!("{other:?} is not known; use https://, http:// or ipmi://")),
        };
        let (at, system) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let system = system.trim_end_matches('/');
        if !system.is_empty() && (!system.starts_with("/redfish/") || system.contains("..")) {
            return Err(format!("{system:?} is not the path of a system such as /redfish/v1/Systems/1"));
        }
        let at = HostPort::parse(at, port)?;
        let (host, system) = (at.host, system.to_owned());
        let (trust, cipher) = (TlsTrust::FirstContact, DEFAULT_CIPHER);
        let mut endpoint = Self { protocol, host, port: at.port, trust, system, cipher };
        for (key, value) in options {
            endpoint.set(key, value)?;
        }
        Ok(endpoint)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let tls = matches!(self.protocol, BmcProtocol::Redfish | BmcProtocol::Any);
        match (key, value.split_once(':')) {
            ("tls", None) if tls && value == "insecure" => self.trust = TlsTrust::Insecure,
            ("tls", Some(("ca", name))) if tls && !name.is_empty() => self.trust = TlsTrust::Ca(name.to_owned()),
            ("tls", Some(("pin", hex))) if tls => {
                let hex = hex.to_ascii_lowercase().replace(':', "");
                if hex.len() != 64 || !hex.chars().all(|c| c.is_ascii_hexdigit()) {
                    return Err("tls=pin: wants a SHA-256 fingerprint of 64 hex digits".to_owned());
                }
                self.trust = TlsTrust::Pinned(hex);
            }
            ("tls", _) if tls => return Err(format!("tls={value} is unknown; use insecure, ca:NAME or pin:SHA256")),
            ("cipher", None) if self.protocol == BmcProtocol::Ipmi => {
                let known = value.parse().ok().filter(|c| CIPHERS.contains(c));
                self.cipher = known.ok_or_else(|| format!("cipher={value} is not offered; use 17 or 3"))?;
            }
            (other, _) => return Err(format!("the option {other:?} is unknown here")),
        }
        Ok(())
    }

    pub fn at(&self) -> HostPort {
        HostPort { host: self.host.clone(), port: self.port }
    }
}

impl SshEndpoint {
    pub fn parse(text: &str) -> Result<Self, String> {
        let Parts { scheme, rest, options } = split(text)?;
        if !matches!(scheme, "" | "ssh") {
            return Err(format!("{scheme:?} is not known; use ssh:// or leave it out"));
        }
        let mut endpoint = Self { at: HostPort::parse(rest, SSH_PORT)?, jump: None };
        for (key, value) in options {
            match key {
                "jump" => endpoint.jump = Some(HostPort::parse(value, SSH_PORT)?),
                other => return Err(format!("the option {other:?} is unknown here; only jump is")),
            }
        }
        Ok(endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bmc(text: &str) -> BmcEndpoint {
        BmcEndpoint::parse(text).expect(text)
    }

    #[test]
    fn bmc_endpoints_as_people_write_them() {
        let bare = bmc("10.20.30.41");
        assert_eq!((bare.protocol, bare.at().to_string().as_str()), (BmcProtocol::Any, "10.20.30.41:443"));
        assert_eq!(bare.trust, TlsTrust::FirstContact);
        assert_eq!(bmc("https://bmc-1.example?tls=insecure").trust, TlsTrust::Insecure);
        assert_eq!(bmc("https://bmc-1?tls=ca:fleet").trust, TlsTrust::Ca("fleet".into()));
        let pin = format!("https://bmc-1?tls=pin:{}", "AB:".repeat(31) + "AB");
        assert_eq!(bmc(&pin).trust, TlsTrust::Pinned("ab".repeat(32)));
        let second = bmc("http://[fd00::1]:8000/redfish/v1/Systems/2/");
        assert_eq!((second.system.as_str(), second.port), ("/redfish/v1/Systems/2", 8000));
        assert_eq!(second.at().to_string(), "[fd00::1]:8000");
        let ipmi = bmc("ipmi://10.0.0.9?cipher=3");
        assert_eq!((ipmi.protocol, ipmi.port, ipmi.cipher), (BmcProtocol::Ipmi, 623, 3));
        for bad in [
            "",
            "ftp://x",
            "https://admin:secret@10.0.0.1",
            "https://x:0",
            "https://x:70000",
            "https://x/etc/passwd",
            "https://x/redfish/../y",
            "https://x?tls=maybe",
            "https://x?tls=pin:12",
            "https://x?tls",
            "http://x?tls=insecure",
            "ipmi://x?cipher=0",
            "https://x y",
            "-oProxyCommand=x",
        ] {
            assert!(BmcEndpoint::parse(bad).is_err(), "{bad:?}");
        }
        assert!(BmcEndpoint::parse("https://admin:pw123@x").is_err_and(|e| !e.contains("pw123")));
    }

    #[test]
    fn ssh_endpoints_as_people_write_them() {
        let plain = SshEndpoint::parse("10.20.30.40:22").expect("valid");
        assert_eq!((plain.at.port, plain.jump), (22, None));
        let jump = SshEndpoint::parse("ssh://node-1?jump=bastion:2222").expect("valid");
        assert_eq!(jump.jump.map(|j| j.to_string()), Some("bastion:2222".into()));
        for bad in ["", "telnet://x", "x:y", "root@x", "ssh://x?via=y", "-x"] {
            assert!(SshEndpoint::parse(bad).is_err(), "{bad:?}");
        }
    }
}
