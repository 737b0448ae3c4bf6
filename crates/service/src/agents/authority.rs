//! Who signs for agents: an authority of our own, founded when the first bundle is made, its key sealed like any other
//! secret. It makes the agents' certificates, and the one by which agents know the server.

use super::AgentKey;
use crate::Service;
use crate::sealing::{About, SecretKey};
use crate::secret_keys::unavailable;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use domain::{Error, NodeId, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber, SignatureAlgorithm,
};
use std::sync::Arc;
use std::time::Duration;
use store::{Caller, agent};
use zeroize::Zeroizing;

const DAY: Duration = Duration::from_secs(24 * 3600);
const AUTHORITY_LIFE: Duration = Duration::from_secs(3653 * 24 * 3600);
const SERVER_LIFE: Duration = Duration::from_secs(90 * 24 * 3600);
/// The name that agents know the server by, whatever address they dial.
pub const SERVER_NAME: &str = "millwright";
/// Other servers' clocks may be a little behind.
const AGENT_BACKDATED: Duration = Duration::from_secs(300);
/// What its key is sealed as: it opens as nothing else.
const ABOUT: About<'static> = About { name: "signing key", kind: "agent authority", version: 1 };

/// A certificate as an agent gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentCertificate {
    /// Its own first.
    pub chain: Vec<Vec<u8>>,
    /// Whom to trust as a server.
    pub authorities: Vec<Vec<u8>>,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

/// What the server shows to agents; in memory only.
pub struct ServerPair {
    pub certificate: Vec<u8>,
    /// PKCS #8.
    pub key: Zeroizing<Vec<u8>>,
    /// To be replaced from then on.
    pub renew_at: Timestamp,
}

pub struct Authority {
    certificate: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

impl PublicKeyData for AgentKey {
    fn der_bytes(&self) -> &[u8] {
        self.point()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

fn failed(e: rcgen::Error) -> Error {
    Error::internal(format!("making a certificate: {e}"))
}

fn authority_params() -> CertificateParams {
    let mut params = named("Millwright agent authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// From and until, and a number that no other has.
fn during(params: &mut CertificateParams, from: Timestamp, until: Timestamp) -> Result<(), Error> {
    let at = |t: Timestamp| {
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(t.micros() / 1_000_000).unwrap_or(0))
    };
    (params.not_before, params.not_after) = (at(from), at(until));
    let mut serial = [0u8; 16];
    getrandom::fill(&mut serial).map_err(|e| Error::internal(format!("the system gave no randomness: {e}")))?;
    // a positive number
    serial[0] &= 0x7f;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(())
}

impl Authority {
    /// A new one, and its key in PKCS #8.
    fn found(now: Timestamp) -> Result<(Self, Zeroizing<Vec<u8>>), Error> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        let bytes = Zeroizing::new(key.serialize_der());
        let mut params = authority_params();
        during(&mut params, now.minus(DAY), now.plus(AUTHORITY_LIFE))?;
        let certificate = params.self_signed(&key).map_err(failed)?.der().to_vec();
        Ok((Self { certificate, issuer: Issuer::new(params, key) }, bytes))
    }

    fn open(certificate: Vec<u8>, key: &[u8]) -> Result<Self, Error> {
        let key = KeyPair::try_from(key).map_err(failed)?;
        Ok(Self { certificate, issuer: Issuer::new(authority_params(), key) })
    }

    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    pub fn pem(&self) -> String {
        let text = STANDARD.encode(&self.certificate);
        let lines: Vec<&str> = (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]).collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    }

    /// A certificate for a node's key.
    pub fn certify(
        &self,
        node: &NodeId,
        key: &AgentKey,
        now: Timestamp,
        life: Duration,
    ) -> Result<AgentCertificate, Error> {
        let mut params = named(node.as_str());
        let uri = super::uri_of(node).as_str().try_into().map_err(failed)?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let (not_before, not_after) = (now.minus(AGENT_BACKDATED), now.plus(life));
        during(&mut params, not_before, not_after)?;
        let own = params.signed_by(key, &self.issuer).map_err(failed)?;
        let authorities = vec![self.certificate.clone()];
        Ok(AgentCertificate { chain: vec![own.der().to_vec()], authorities, not_before, not_after })
    }

    /// A fresh pair for the server itself. Agents whose clock is a day behind take it, too.
    pub fn server_pair(&self, now: Timestamp) -> Result<ServerPair, Error> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        let mut params = named(SERVER_NAME);
        params.subject_alt_names = vec![SanType::DnsName(SERVER_NAME.try_into().map_err(failed)?)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        during(&mut params, now.minus(DAY), now.plus(SERVER_LIFE))?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?.der().to_vec();
        Ok(ServerPair { certificate, key: Zeroizing::new(key.serialize_der()), renew_at: now.plus(SERVER_LIFE / 2) })
    }
}

impl Service {
    /// Who signs for agents; founded, where nobody has done so.
    pub async fn agent_authority(&self) -> Result<Arc<Authority>, Error> {
        let found = || async {
            if let Some(there) = self.store().read(agent::authority).await? {
                return self.opened_authority(there);
            }
            let key = self.vault().key().await?;
            let (authority, bytes) = Authority::found(self.now())?;
            let sealed = key.seal(&ABOUT, &bytes)?;
            let new = agent::Authority { certificate: authority.certificate, sealed, key_id: key.id().to_owned() };
            let there = self
                .store()
                .write(&Caller::new("agents"), "agent authority", move |tx| agent::found_authority(tx, &new))
                .await?;
            self.opened_authority(there)
        };
        self.inner.agents.authority.get_or_try_init(found).await.cloned()
    }

    /// The same, unless there is none: then no agent can be there either.
    pub async fn founded_agent_authority(&self) -> Result<Option<Arc<Authority>>, Error> {
        if let Some(there) = self.inner.agents.authority.get() {
            return Ok(Some(there.clone()));
        }
        match self.store().read(agent::authority).await? {
            Some(_) => self.agent_authority().await.map(Some),
            None => Ok(None),
        }
    }

    fn opened_authority(&self, there: agent::Authority) -> Result<Arc<Authority>, Error> {
        let key = self.vault().keys().known(&there.key_id).ok_or_else(|| {
            let message = format!(
                "the agents' authority is sealed under key {}, which is not configured; name that key in secrets.key_file or secrets.previous_key_files and restart",
                there.key_id
            );
            unavailable(message).with("key_id", &there.key_id)
        })?;
        let spoilt = |_| {
            Error::internal(
                "the agents' authority does not open with its key: its row was changed or damaged; restore it from a backup",
            )
        };
        let bytes = key.open(&ABOUT, &there.sealed).map_err(spoilt)?;
        Authority::open(there.certificate, &bytes).map(Arc::new)
    }

    /// The authority's key under the current key, too: how many rows that are, none or one.
    pub(crate) async fn reseal_agent_authority(&self, key: &Arc<SecretKey>) -> Result<u64, Error> {
        let (service, key) = (self.clone(), key.clone());
        self.store()
            .write(&Caller::new("agents"), "agent authority", move |tx| {
                let Some(there) = agent::authority(tx)?.filter(|there| there.key_id != key.id()) else { return Ok(0) };
                let old = service.vault().keys().known(&there.key_id);
                match old.and_then(|old| old.reseal(&key, &ABOUT, &there.sealed).ok()) {
                    Some(sealed) => agent::reseal_authority(tx, &sealed, key.id()).map(|()| 1),
                    None => {
                        tracing::warn!(
                            key_id = there.key_id,
                            "the agents' authority does not open, and stays as it is"
                        );
                        Ok(0)
                    }
                }
            })
            .await
    }
}
