//! Keys and certificates of agents, as they are read: a P-256 key by its request, a node by its certificate. What is
//! not exactly as we make it is not taken.

use crate::access;
use domain::{Error, NodeId, Timestamp};
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use sha2::{Digest as _, Sha256};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::GeneralName;
use x509_parser::oid_registry::OID_SIG_ECDSA_WITH_SHA256;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// A public key of P-256 in DER, up to its point.
const P256_SPKI: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const POINT_LEN: usize = 65;
/// Larger than any request or certificate of an agent.
const DER_MAX: usize = 8 * 1024;
const URI_PREFIX: &str = "millwright:node/";

pub(crate) fn uri_of(node: &NodeId) -> String {
    format!("{URI_PREFIX}{node}")
}

/// An agent's public key.
#[derive(Clone, PartialEq, Eq)]
pub struct AgentKey {
    spki: Vec<u8>,
}

impl AgentKey {
    fn new(spki: &[u8]) -> Option<Self> {
        let point = spki.strip_prefix(&P256_SPKI)?;
        (point.len() == POINT_LEN && point[0] == 4).then(|| Self { spki: spki.to_vec() })
    }

    /// The key of a request that proves to have been signed with it.
    pub fn of_request(der: &[u8]) -> Result<Self, Error> {
        let bad = |why: &str| Error::field("csr_der", format!("{why}; send a PKCS #10 request of a P-256 key"));
        if der.len() > DER_MAX {
            return Err(bad("is too large"));
        }
        let (rest, request) = X509CertificationRequest::from_der(der).map_err(|_| bad("does not read"))?;
        let info = &request.certification_request_info;
        let key = Self::new(info.subject_pki.raw).ok_or_else(|| bad("is not of a P-256 key"))?;
        let (how, signature) = (&request.signature_algorithm, &request.signature_value);
        let ours = how.algorithm == OID_SIG_ECDSA_WITH_SHA256 && how.parameters.is_none() && signature.unused_bits == 0;
        let proven = ours && key.has_signed(info.raw, &signature.data);
        if !rest.is_empty() || !proven { Err(bad("is not signed with its own key")) } else { Ok(key) }
    }

    /// As it was stored.
    pub(crate) fn stored(spki: &[u8]) -> Option<Self> {
        Self::new(spki)
    }

    pub(crate) fn point(&self) -> &[u8] {
        &self.spki[P256_SPKI.len()..]
    }

    pub(crate) fn spki(&self) -> &[u8] {
        &self.spki
    }

    /// What it is known by.
    pub(crate) fn sha256(&self) -> String {
        access::hex(&Sha256::digest(&self.spki).into())
    }

    pub(crate) fn has_signed(&self, text: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, self.point()).verify(text, signature).is_ok()
    }
}

/// Whom a certificate is for. That our authority has signed it was seen in the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPeer {
    pub node_id: NodeId,
    pub key_sha256: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

/// Why a certificate says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    Malformed,
    /// Of something, but not of a node.
    WrongName,
}

/// From and until.
pub fn validity(der: &[u8]) -> Option<(Timestamp, Timestamp)> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let at = |time: x509_parser::time::ASN1Time| Timestamp::from_micros(time.timestamp().saturating_mul(1_000_000));
    let validity = certificate.validity();
    Some((at(validity.not_before), at(validity.not_after)))
}

impl AgentPeer {
    pub fn read(der: &[u8]) -> Result<Self, Unreadable> {
        let (not_before, not_after) = validity(der).filter(|_| der.len() <= DER_MAX).ok_or(Unreadable::Malformed)?;
        let (_, certificate) = X509Certificate::from_der(der).map_err(|_| Unreadable::Malformed)?;
        let key = AgentKey::new(certificate.public_key().raw).ok_or(Unreadable::Malformed)?;
        let names = certificate.subject_alternative_name().map_err(|_| Unreadable::Malformed)?;
        let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
        let [GeneralName::URI(uri)] = names else { return Err(Unreadable::WrongName) };
        let id = uri.strip_prefix(URI_PREFIX).filter(|id| !id.is_empty()).ok_or(Unreadable::WrongName)?;
        let mut common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
        if common.next() != Some(id) {
            return Err(Unreadable::WrongName);
        }
        Ok(Self { node_id: NodeId::from_text(id), key_sha256: key.sha256(), not_before, not_after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P384_SHA384, PublicKeyData as _};

    fn request(key: &KeyPair) -> Vec<u8> {
        CertificateParams::default().serialize_request(key).expect("a request").der().to_vec()
    }

    #[test]
    fn a_changed_request_never_gives_another_key() {
        let key = KeyPair::generate().expect("a key");
        let der = request(&key);
        let read = AgentKey::of_request(&der).expect("reads");
        assert_eq!(read.spki(), key.subject_public_key_info());
        assert_eq!(read.sha256().len(), 64);
        for at in 0..der.len() {
            let mut changed = der.clone();
            changed[at] ^= 1;
            // the reader is lenient about a tag or two outside of what is signed
            assert!(AgentKey::of_request(&changed).map_or(true, |key| key == read), "byte {at}");
            assert!(AgentKey::of_request(&der[..at]).is_err(), "cut at {at}");
        }
        let longer = [der.as_slice(), b"x"].concat();
        assert!(AgentKey::of_request(&longer).is_err());
        let other = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).expect("a key");
        assert!(AgentKey::of_request(&request(&other)).is_err(), "another curve");
    }
}
