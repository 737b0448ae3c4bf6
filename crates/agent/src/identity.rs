//! Who this agent is: its key, which never leaves the machine, the certificate that the server gave it for that key, and
//! the session that tells it from a copy. All in one file, so that no crash leaves half an identity.

use crate::bundle::Server;
use crate::clock::from_wire;
use crate::folder::Folder;
use base64::Engine as _;
use domain::{Secret, Timestamp};
use proto::agent::v1::Certificate;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

pub const FILE: &str = "identity.json";
/// A chain longer than this is none of ours.
const CERTIFICATES_MAX: usize = 16;

/// A P-256 key, made here.
#[derive(Clone)]
pub struct Key {
    pem: Secret,
    pair: Arc<rcgen::KeyPair>,
    signer: Arc<EcdsaKeyPair>,
}

impl Key {
    pub fn generate() -> Result<Self, String> {
        let pair = rcgen::KeyPair::generate().map_err(|e| format!("making a key: {e}"))?;
        Self::from_pem(Secret::new(pair.serialize_pem()))
    }

    pub fn from_pem(pem: Secret) -> Result<Self, String> {
        // what is wrong with a key is told without a byte of it
        let wrong = |_| "the agent's key does not read; enrol again: millwright node rebootstrap NODE".to_owned();
        let pair = rcgen::KeyPair::from_pem(pem.reveal()).map_err(wrong)?;
        let random = ring::rand::SystemRandom::new();
        let signer = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pair.serialized_der(), &random)
            .map_err(|_| {
                "the agent's key is not a P-256 key; enrol again: millwright node rebootstrap NODE".to_owned()
            })?;
        Ok(Self { pem, pair: Arc::new(pair), signer: Arc::new(signer) })
    }

    pub fn pem(&self) -> &Secret {
        &self.pem
    }

    /// A certificate request. It names nobody: the server knows who it is.
    pub fn request(&self) -> Result<Vec<u8>, String> {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        let request =
            params.serialize_request(&*self.pair).map_err(|e| format!("making a certificate request: {e}"))?;
        Ok(request.der().to_vec())
    }

    /// ECDSA over SHA-256, as ASN.1.
    pub fn sign(&self, text: &[u8]) -> Result<Vec<u8>, String> {
        let random = ring::rand::SystemRandom::new();
        let signature = self.signer.sign(&random, text).map_err(|_| "signing: no randomness".to_owned())?;
        Ok(signature.as_ref().to_vec())
    }

    /// SHA-256 of the public key as certificates have it: how the server knows it.
    pub fn fingerprint(&self) -> String {
        let public = rcgen::PublicKeyData::subject_public_key_info(&*self.pair);
        Sha256::digest(public).iter().map(|b| format!("{b:02x}")).collect()
    }

    pub fn for_tls(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.pair.serialized_der().to_vec()))
    }
}

#[derive(Clone)]
pub struct Identity {
    pub node_id: String,
    pub server: Server,
    pub key: Key,
    pub certificate: Held,
    pub epoch: u64,
    pub session: u64,
    /// The latest that the server's clock is known to have said.
    pub server_clock: Timestamp,
}

/// The certificate in use, and whom to trust as a server.
#[derive(Clone)]
pub struct Held {
    pub chain_pem: String,
    pub authorities_pem: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    /// Half of its life is over then, by the server's clock.
    pub renew_after: Timestamp,
}

impl Held {
    /// What the server sent, if it can be used. `now` is the server's clock where it is known: half of what is left of
    /// the certificate then, however far back it was dated.
    pub fn take(sent: Certificate, trusted_pem: &str, now: Option<Timestamp>) -> Result<Self, String> {
        let (Some(from), Some(until)) = (&sent.not_before, &sent.not_after) else {
            return Err("the server sent a certificate without its validity".to_owned());
        };
        let (not_before, not_after) = (from_wire(from), from_wire(until));
        if not_after <= not_before || sent.chain_der.is_empty() {
            return Err("the server sent a certificate that is never valid, or none".to_owned());
        }
        if sent.chain_der.len() > CERTIFICATES_MAX || sent.authorities_der.len() > CERTIFICATES_MAX {
            return Err(format!("the server sent more than {CERTIFICATES_MAX} certificates"));
        }
        let authorities_pem = if sent.authorities_der.is_empty() {
            trusted_pem.to_owned()
        } else {
            sent.authorities_der.iter().map(|der| pem(der)).collect()
        };
        let received = now.unwrap_or(not_before).max(not_before);
        let renew_after = received.plus(not_after.since(received) / 2);
        let chain_pem = sent.chain_der.iter().map(|der| pem(der)).collect();
        Ok(Self { chain_pem, authorities_pem, not_before, not_after, renew_after })
    }
}

pub fn certificates(pem: &str, whose: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match read {
        Ok(some) if !some.is_empty() && some.len() <= CERTIFICATES_MAX => Ok(some),
        _ => Err(format!("{whose} does not read as one or more certificates in PEM")),
    }
}

fn pem(der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

#[derive(Serialize, Deserialize)]
struct File {
    node_id: String,
    server: String,
    epoch: u64,
    session: u64,
    not_before: String,
    not_after: String,
    renew_after: String,
    server_clock: String,
    certificate_pem: String,
    authorities_pem: String,
    key_pem: String,
}

impl Identity {
    pub fn save(&self, folder: &Folder) -> Result<(), String> {
        let held = &self.certificate;
        let file = File {
            node_id: self.node_id.clone(),
            server: self.server.to_string(),
            epoch: self.epoch,
            session: self.session,
            not_before: held.not_before.to_string(),
            not_after: held.not_after.to_string(),
            renew_after: held.renew_after.to_string(),
            server_clock: self.server_clock.to_string(),
            certificate_pem: held.chain_pem.clone(),
            authorities_pem: held.authorities_pem.clone(),
            key_pem: self.key.pem().reveal().to_owned(),
        };
        let content = serde_json::to_vec_pretty(&file).map_err(|e| format!("writing down who this agent is: {e}"))?;
        folder.write(FILE, &content)
    }

    /// Nothing if it has not enrolled yet.
    pub fn load(folder: &Folder) -> Result<Option<Self>, String> {
        let Some(content) = folder.read(FILE)? else { return Ok(None) };
        let wrong = |what: &str| {
            format!(
                "{}: {what}; it cannot be mended by hand: ask for a new bundle (millwright node rebootstrap NODE) and enrol again",
                folder.path().join(FILE).display()
            )
        };
        // told by its place: the reader's own words may quote the key
        let file: File = serde_json::from_slice(&content)
            .map_err(|e| wrong(&format!("does not read at line {}, column {}", e.line(), e.column())))?;
        let time = |text: &str| Timestamp::parse(text).ok_or_else(|| wrong(&format!("{text:?} is no time")));
        let key = Key::from_pem(Secret::new(file.key_pem)).map_err(|e| wrong(&e))?;
        certificates(&file.certificate_pem, "certificate_pem").map_err(|e| wrong(&e))?;
        certificates(&file.authorities_pem, "authorities_pem").map_err(|e| wrong(&e))?;
        Ok(Some(Self {
            node_id: file.node_id,
            server: Server::parse(&file.server).map_err(|e| wrong(&e))?,
            key,
            certificate: Held {
                not_before: time(&file.not_before)?,
                not_after: time(&file.not_after)?,
                renew_after: time(&file.renew_after)?,
                chain_pem: file.certificate_pem,
                authorities_pem: file.authorities_pem,
            },
            epoch: file.epoch,
            session: file.session,
            server_clock: time(&file.server_clock)?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::to_wire;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn sent(from: i64, until: i64) -> Certificate {
        Certificate {
            chain_der: vec![vec![1, 2, 3]],
            authorities_der: Vec::new(),
            not_before: Some(to_wire(at(from))),
            not_after: Some(to_wire(at(until))),
        }
    }

    #[test]
    fn half_of_what_is_left_is_half_life_however_far_back_it_was_dated() {
        let renewed = |now| Held::take(sent(1000, 2000), "trusted", now).expect("usable").renew_after;
        assert_eq!(renewed(None), at(1500));
        assert_eq!(renewed(Some(at(1000))), at(1500));
        assert_eq!(renewed(Some(at(1800))), at(1900));
        assert_eq!(renewed(Some(at(10))), at(1500), "a server that is behind its own certificates");
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        assert!(Held::take(sent(2000, 1000), "", None).is_err());
        assert!(Held::take(Certificate { chain_der: Vec::new(), ..sent(1, 2) }, "", None).is_err());
        assert!(Held::take(Certificate { not_after: None, ..sent(1, 2) }, "", None).is_err());
        let endless = Certificate { authorities_der: vec![vec![1]; CERTIFICATES_MAX + 1], ..sent(1, 2) };
        assert!(Held::take(endless, "", None).is_err());
        assert_eq!(Held::take(sent(1, 2), "trusted", None).expect("usable").authorities_pem, "trusted");
    }

    #[test]
    fn a_key_comes_back_and_its_signatures_hold() {
        let key = Key::generate().expect("made");
        let again = Key::from_pem(key.pem().clone()).expect("read");
        assert_eq!(key.fingerprint(), again.fingerprint());
        let signature = again.sign(b"a text").expect("signed");
        let public = ring::signature::UnparsedPublicKey::new(
            &ring::signature::ECDSA_P256_SHA256_ASN1,
            key.pair.public_key_raw(),
        );
        public.verify(b"a text", &signature).expect("its own");
        public.verify(b"another", &signature).expect_err("not its own");
        let refused = Key::from_pem(Secret::new("-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n"));
        assert!(!refused.err().expect("refused").contains("hunter2"));
    }
}
