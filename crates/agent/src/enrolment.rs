//! From a one-time token to an identity. The key is on disk before the token is sent: when an answer is lost, the same
//! key asks again, and the server knows it.

use crate::bundle::{self, Bundle};
use crate::connection::dial::{self, NoWay};
use crate::folder::Folder;
use crate::identity::{Held, Identity, Key};
use crate::inventory;
use crate::setting::Setting;
use domain::{Secret, Timestamp};
use proto::agent::v1::EnrollRequest;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::time::Duration;
use tokio::time::timeout;
use tonic::Code;

/// The key that asks, until it has its certificate.
const PENDING: &str = "enrolment.json";
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Why there is no identity yet.
#[derive(Debug)]
pub enum Refused {
    /// Trying again with this bundle does not help.
    Final(String),
    /// Whoever answers is not the server.
    Untrusted(String),
    /// Trying again may help, with the same key.
    Later(String),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Final(why) | Self::Untrusted(why) | Self::Later(why) => f.write_str(why),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Pending {
    /// Which token the key is for; not the token.
    token_sha256: String,
    key_pem: String,
}

/// One try. The identity is on disk when this returns well.
pub async fn enrol(setting: &Setting, bundle: &Bundle) -> Result<Identity, Refused> {
    let folder = &setting.folder;
    let key = key_for(folder, bundle).map_err(Refused::Final)?;
    if let Some(known) = already(folder, &key) {
        return Ok(known);
    }
    let tls = dial::tls(&bundle.authority_pem, "authority_pem", None, &setting.clock).map_err(Refused::Final)?;
    let mut client = dial::connect(&setting.dial, &bundle.server, tls).await.map_err(|e| match e {
        NoWay::Unreachable(why) => Refused::Later(why),
        NoWay::Untrusted(why) => Refused::Untrusted(why),
    })?;
    let host = setting.host.clone();
    let facts = tokio::task::spawn_blocking(move || inventory::facts(&host)).await.unwrap_or_default();
    let request = EnrollRequest {
        token: bundle.token.reveal().to_owned(),
        csr_der: key.request().map_err(Refused::Final)?,
        facts: Some(facts),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let answer = timeout(ANSWER_WITHIN, client.enroll(request)).await;
    let answer = answer
        .map_err(|_| Refused::Later(format!("{} did not answer within {ANSWER_WITHIN:?}", bundle.server)))?
        .map_err(|status| refused(bundle, &status))?
        .into_inner();
    let sent = answer.certificate.ok_or_else(|| Refused::Later("the server's answer has no certificate".to_owned()))?;
    let certificate = Held::take(sent, &bundle.authority_pem, None).map_err(Refused::Later)?;
    let identity = Identity {
        node_id: answer.node_id,
        server: bundle.server.clone(),
        key,
        server_clock: Timestamp::default(),
        certificate,
        epoch: answer.epoch,
        session: answer.session,
    };
    // used only if it can be
    dial::tls(&identity.certificate.authorities_pem, "the server's authorities", Some(&identity), &setting.clock)
        .map_err(Refused::Later)?;
    identity.save(folder).map_err(Refused::Later)?;
    tracing::info!(node = %identity.node_id, server = %identity.server, "enrolled");
    Ok(identity)
}

/// The token is of no more use, and goes.
pub fn tidy(folder: &Folder) {
    for name in [bundle::FILE, PENDING] {
        if let Err(e) = folder.remove(name) {
            tracing::warn!("what enrolment has left behind stays: {e}; remove it by hand");
        }
    }
}

/// The key that asked before with this token, or a new one; on disk either way.
fn key_for(folder: &Folder, bundle: &Bundle) -> Result<Key, String> {
    let token_sha256: String =
        Sha256::digest(bundle.token.reveal().as_bytes()).iter().map(|b| format!("{b:02x}")).collect();
    let earlier = folder.read(PENDING)?.and_then(|content| serde_json::from_slice::<Pending>(&content).ok());
    if let Some(earlier) = earlier.filter(|earlier| earlier.token_sha256 == token_sha256)
        && let Ok(key) = Key::from_pem(Secret::new(earlier.key_pem))
    {
        return Ok(key);
    }
    let key = Key::generate()?;
    let pending = Pending { token_sha256, key_pem: key.pem().reveal().to_owned() };
    let content = serde_json::to_vec(&pending).map_err(|e| format!("writing down a new key: {e}"))?;
    folder.write(PENDING, &content)?;
    Ok(key)
}

/// An agent that ended between its identity and its tidying has enrolled.
fn already(folder: &Folder, key: &Key) -> Option<Identity> {
    let known = Identity::load(folder).ok().flatten()?;
    (known.key.fingerprint() == key.fingerprint()).then_some(known)
}

fn refused(bundle: &Bundle, status: &tonic::Status) -> Refused {
    let node = if bundle.node_id.is_empty() { "NODE" } else { &bundle.node_id };
    // a server that quotes what it was sent is not passed on
    let said = bundle.token.blot(status.message());
    match status.code() {
        Code::Unauthenticated
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::Unimplemented => Refused::Final(format!(
            "{} refuses to enrol this machine: {said}; a token is good for one key and for a limited time: ask for a new \
             bundle (millwright node rebootstrap {node}) and enrol with that",
            bundle.server
        )),
        code => Refused::Later(format!("{} could not enrol this machine: {said} ({code:?})", bundle.server)),
    }
}
