//! Whether a controller is there at all, asked with a few bytes of our own: no login, no child process. A dead
//! address costs one socket and one short wait.

use domain::endpoint::HostPort;
use provider::{ProviderError, ProviderResult};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

/// Get Channel Authentication Capabilities, asked outside of any session: an RMCP header, an empty session header,
/// and the message. Every controller answers it, for it is how a session begins.
const QUESTION: [u8; 23] = [
    0x06, 0x00, 0xff, 0x07, // RMCP 1.0, no acknowledgement, class IPMI
    0x00, 0, 0, 0, 0, 0, 0, 0, 0, 9, // no authentication, sequence 0, session 0, nine bytes follow
    0x20, 0x18, 0xc8, 0x81, 0x00, 0x38, 0x8e, 0x04, 0xb5,
];
/// Datagrams get lost: the question is asked this often in the time there is.
const ASKED: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Answers,
    /// Nothing came back in time.
    Silent,
    /// The host is there and says that nobody listens at the port.
    Refused,
}

/// Whether a controller answers there. An error where the question could not even be put: the name is not known,
/// or there is no way to it.
pub async fn is_there(at: &HostPort, within: Duration) -> ProviderResult<bool> {
    Ok(look(&format!("the BMC at {at} (IPMI)"), at, within).await? == Presence::Answers)
}

pub(crate) async fn look(name: &str, at: &HostPort, within: Duration) -> ProviderResult<Presence> {
    let deadline = Instant::now() + within;
    let asked = async {
        let to = resolve(at).await?;
        ask(to, deadline, within / ASKED).await
    };
    match timeout_at(deadline, asked).await {
        Err(_) => Ok(Presence::Silent),
        Ok(Ok(presence)) => Ok(presence),
        Ok(Err(e)) => Err(ProviderError::unreachable(name, &e.to_string())),
    }
}

async fn resolve(at: &HostPort) -> io::Result<SocketAddr> {
    let mut all = tokio::net::lookup_host((at.host.as_str(), at.port)).await?;
    all.next().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "its name has no address"))
}

async fn ask(to: SocketAddr, deadline: Instant, pause: Duration) -> io::Result<Presence> {
    let any =
        if to.is_ipv4() { SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)) } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(any).await?;
    // connected: only then is the host's "nobody listens" told to us, and strangers' datagrams are not
    socket.connect(to).await?;
    let mut answer = [0; 512];
    while Instant::now() < deadline {
        match socket.send(&QUESTION).await {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => return Ok(Presence::Refused),
            sent => sent?,
        };
        let until = deadline.min(Instant::now() + pause);
        while let Ok(received) = timeout_at(until, socket.recv(&mut answer)).await {
            match received {
                Ok(length) if is_rmcp(answer.get(..length).unwrap_or_default()) => return Ok(Presence::Answers),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => return Ok(Presence::Refused),
                Err(e) => return Err(e),
            }
        }
    }
    Ok(Presence::Silent)
}

/// An RMCP datagram of the class IPMI (or ASF, as some answer first).
fn is_rmcp(datagram: &[u8]) -> bool {
    matches!(datagram, [0x06, _, _, class, ..] if matches!(class & 0x1f, 6 | 7))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_is_well_formed() {
        let message = &QUESTION[14..];
        assert_eq!(usize::from(QUESTION[13]), message.len());
        let sum = |bytes: &[u8]| bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        assert_eq!((sum(&message[..3]), sum(&message[3..])), (0, 0), "both checksums");
    }

    #[test]
    fn only_rmcp_counts_as_an_answer() {
        assert!(is_rmcp(&QUESTION));
        for other in [&b""[..], b"\x06\x00", b"HTTP/1.1 400", b"\x06\x00\xff\x00", b"\x05\x00\xff\x07"] {
            assert!(!is_rmcp(other), "{other:?}");
        }
    }
}
