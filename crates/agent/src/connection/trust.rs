//! Who is believed to be the server: whoever holds a certificate for the fixed name [`NAME`] from the pinned authority,
//! at whatever address.
//!
//! Time is judged with care, because the machine's clock may be wrong and the agent must come back all the same. The
//! server's identity comes from the authority's key alone; a certificate's end only bounds what a stolen server key is
//! worth. Hence:
//! - Once the server has told its clock over a verified connection, that clock is used, carried on by the monotonic
//!   one, whatever the machine's clock does.
//! - Before, it is the machine's clock, but never earlier than what a server has said before the last restart.
//! - "Not valid yet" is no reason to refuse: the authority has signed it, so that time has come, and it is our clock that
//!   is behind (1970, on a board without a battery).
//! - A certificate that has ended by at most [`SLACK`], by a clock that nobody has proven, and not before the last word
//!   of the server: our clock may be ahead, and it is let through. One that ended before that is refused.

use crate::clock::Clock;
use domain::Timestamp;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::sync::Arc;
use std::time::Duration;

/// The name in every server's certificate.
pub const NAME: &str = "millwright";
/// How far ahead an unproven clock may be.
const SLACK: Duration = Duration::from_secs(2 * 24 * 3600);
/// A chain has few certificates, and each moves the time at most once.
const TRIES: usize = 8;

#[derive(Debug)]
pub struct PinnedServer {
    chain: Arc<WebPkiServerVerifier>,
    clock: ClockOf,
}

struct ClockOf(Clock);

impl std::fmt::Debug for ClockOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0.estimate())
    }
}

impl PinnedServer {
    pub fn new(authorities: Vec<CertificateDer<'static>>, clock: Clock) -> Result<Arc<Self>, String> {
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority).map_err(|e| format!("the server's authority cannot be used: {e}"))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|e| format!("the server's authority cannot be used: {e}"))?;
        Ok(Arc::new(Self { chain, clock: ClockOf(clock) }))
    }
}

impl ServerCertVerifier for PinnedServer {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        _machines_clock: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let known = self.clock.0.estimate();
        let mut at = seconds(known.now);
        for _ in 0..TRIES {
            let judged = self.chain.verify_server_cert(certificate, intermediates, name, ocsp, at);
            let Err(Error::InvalidCertificate(why)) = &judged else { return judged };
            at = match why {
                CertificateError::NotValidYetContext { not_before, .. } => *not_before,
                CertificateError::ExpiredContext { not_after, .. }
                    if !known.proven
                        && *not_after >= seconds(known.at_least)
                        && at.as_secs().saturating_sub(not_after.as_secs()) <= SLACK.as_secs() =>
                {
                    *not_after
                }
                _ => return judged,
            };
        }
        Err(Error::InvalidCertificate(CertificateError::Expired))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

fn seconds(at: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_micros(u64::try_from(at.micros()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3600;
    /// When the pretended server's certificate begins; it lives for ninety days.
    const FROM: i64 = 1_800_000_000;

    struct World {
        authority: rcgen::Certificate,
        certificate: CertificateDer<'static>,
    }

    fn world(name: &str) -> World {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).expect("an authority");
        let issuer = rcgen::Issuer::from_params(&params, &key);
        let mut server = rcgen::CertificateParams::new([name.to_owned()]).expect("a name");
        server.not_before = (std::time::UNIX_EPOCH + Duration::from_secs(FROM as u64)).into();
        server.not_after = (std::time::UNIX_EPOCH + Duration::from_secs((FROM + 90 * DAY) as u64)).into();
        server.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
        let own = rcgen::KeyPair::generate().expect("a key");
        let certificate = server.signed_by(&own, &issuer).expect("signed").der().clone();
        World { authority, certificate }
    }

    fn judge(world: &World, trusted: &World, clock: Clock) -> Result<(), Error> {
        let pinned = PinnedServer::new(vec![trusted.authority.der().clone()], clock).expect("a verifier");
        let name = ServerName::try_from(NAME).expect("a name");
        pinned.verify_server_cert(&world.certificate, &[], &name, &[], UnixTime::since_unix_epoch(Duration::ZERO))?;
        Ok(())
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn clock(seconds: i64) -> Clock {
        Clock::new(Arc::new(move || at(seconds)))
    }

    #[test]
    fn a_wrong_clock_does_not_keep_the_agent_from_its_server() {
        let world = world(NAME);
        for seconds in [0, FROM - DAY, FROM, FROM + 45 * DAY, FROM + 90 * DAY, FROM + 91 * DAY, FROM + 92 * DAY] {
            judge(&world, &world, clock(seconds)).unwrap_or_else(|e| panic!("{seconds}: {e}"));
        }
        for seconds in [FROM + 92 * DAY + 1, FROM + 4000 * DAY] {
            let refused = judge(&world, &world, clock(seconds)).expect_err("long over");
            assert!(matches!(refused, Error::InvalidCertificate(CertificateError::ExpiredContext { .. })), "{refused}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_certificate_that_ended_before_the_servers_last_word_is_refused_whatever_the_clock_says() {
        let world = world(NAME);
        let over = FROM + 90 * DAY + 10;
        let behind = clock(0);
        behind.remember(at(over));
        judge(&world, &world, behind).expect_err("remembered over a restart");
        let proven = clock(FROM + DAY);
        proven.hear(at(over));
        judge(&world, &world, proven).expect_err("the server's clock counts, without slack");
        let later = clock(FROM + DAY);
        later.hear(at(over - 20));
        judge(&world, &world, later.clone()).expect("not yet");
        tokio::time::advance(Duration::from_secs(30)).await;
        judge(&world, &world, later).expect_err("and it goes on by itself");
    }

    #[test]
    fn another_authority_or_another_name_is_refused_at_any_time() {
        let (world, stranger, misnamed) = (world(NAME), self::world(NAME), self::world("example.org"));
        for seconds in [0, FROM + DAY] {
            let refused = judge(&stranger, &world, clock(seconds)).expect_err("not ours");
            // both authorities have the same name, and not the same key
            assert!(matches!(refused, Error::InvalidCertificate(CertificateError::BadSignature)), "{refused}");
            let refused = judge(&misnamed, &misnamed, clock(seconds)).expect_err("another name");
            assert!(
                matches!(refused, Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. })),
                "{refused}"
            );
        }
    }
}
