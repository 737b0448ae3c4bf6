//! What a host needs to join: a bootstrap token that lives for minutes, the endpoint, the hash of the cluster's
//! authority; and the script that uses them. The token travels on the script's standard input and in a file only
//! root can read, never in an argument.

use crate::cluster::Cluster;
use crate::kubeconfig::{address, published};
use crate::objects::{ConfigMap, TokenObject};
use crate::rest::{Ask, Session};
use base64::Engine as _;
use domain::stage::FailureClass;
use domain::{Reason, Secret, Timestamp};
use http::{Method, StatusCode};
use provider::{Ack, Command, ProviderError, ProviderResult};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;
use x509_parser::prelude::{FromDer as _, X509Certificate};

const TOKENS: &str = "/api/v1/namespaces/kube-system/secrets";
const CLUSTER_INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
/// By this label we know the tokens that are ours to remove.
const OURS: (&str, &str) = ("app.kubernetes.io/managed-by", "millwright");
/// The group whose members kubeadm's clusters let join.
const GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
/// Long enough for a join with clocks a little apart, short enough to be worthless soon.
const TTL: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(24 * 3600));
/// Expired tokens of ours that one minting looks at, and removes.
const LOOKED_AT_MAX: usize = 1_000;
const REMOVED_MAX: usize = 50;
/// A new name is taken once in two billion times; three in a row is something else.
const NAMES_TRIED: usize = 3;

/// What a host joins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinMaterial {
    /// Host and port.
    pub endpoint: String,
    pub token: Secret,
    /// The part of the token that is no secret, and names it.
    pub token_id: String,
    /// `sha256:` and the hash of the authority's public key.
    pub ca_hash: String,
    pub expires_at: Timestamp,
}

/// How a host joins: run the command there, with this on its standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinScript {
    pub command: Command,
    pub stdin: Secret,
}

impl Cluster {
    /// Makes a bootstrap token that ends by itself (after a minute at least, a day at most), and removes those of
    /// ours that have ended.
    pub async fn mint_join(&self, ttl: Duration) -> ProviderResult<JoinMaterial> {
        let mut session = self.session().await?;
        let (endpoint, ca_hash) = self.joinable(&mut session).await?;
        // by the clock that will judge it
        let now = session.server_time()?;
        let expires_at = now.plus(ttl.clamp(TTL.0, TTL.1));
        let (token_id, token) = self.create_token(&mut session, expires_at).await?;
        // a token that stays a little longer is not worth failing for
        if let Err(e) = remove_expired(&mut session, now).await {
            tracing::warn!(cluster = self.name(), error = %e, "expired bootstrap tokens were not removed");
        }
        Ok(JoinMaterial { endpoint, token, token_id, ca_hash, expires_at })
    }

    /// Removes a token before its time, once it has served. Gone already is done.
    pub async fn forget_join(&self, token_id: &str) -> ProviderResult<Ack> {
        if !is_token_id(token_id) {
            let message = format!("{token_id:?} is not the id of a bootstrap token");
            return Err(ProviderError::refused(FailureClass::InvalidInput, message));
        }
        let mut session = self.session().await?;
        remove(&mut session, &format!("bootstrap-token-{token_id}")).await
    }

    /// What kubeadm publishes for hosts that join; where it has not, what we reach the server by ourselves.
    async fn joinable(&self, session: &mut Session<'_>) -> ProviderResult<(String, String)> {
        let info = match session.read::<ConfigMap>(&Ask::get(CLUSTER_INFO, "get configmaps in kube-public")).await {
            Ok(info) => info.and_then(|info| published(info.data.get("kubeconfig")?)),
            Err(ProviderError::Refused {
                class: FailureClass::NeedsOperator,
                reason: Reason::ProviderRefused,
                message,
            }) => {
                tracing::info!(cluster = self.name(), message, "cluster-info cannot be read; the kubeconfig serves");
                None
            }
            Err(e) => return Err(e),
        };
        let (server, authority) = match info {
            Some(info) => (info.server, Some(info.authority)),
            None => (self.server().to_owned(), self.access().authority(self.name())?),
        };
        let authority = authority.ok_or_else(|| {
            let message = format!(
                "nobody can join {}: neither its cluster-info nor the kubeconfig has the certificate of its authority",
                self.what()
            );
            ProviderError::refused(FailureClass::NeedsOperator, message)
        })?;
        let (host, port, _) = address(&server)
            .map_err(|_| ProviderError::bad_answer(self.what(), "its cluster-info names no https server"))?;
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let hash = key_hash(&authority)
            .ok_or_else(|| ProviderError::bad_answer(self.what(), "its authority's certificate cannot be read"))?;
        Ok((format!("{host}:{port}"), hash))
    }

    async fn create_token(&self, session: &mut Session<'_>, expires_at: Timestamp) -> ProviderResult<(String, Secret)> {
        for _ in 0..NAMES_TRIED {
            let (id, secret) = (random(6)?, random(16)?);
            let ask = Ask::json(
                Method::POST,
                TOKENS,
                &token_object(&id, &secret, expires_at),
                "create secrets in kube-system",
            );
            let answer = session.ask(&ask).await?;
            match answer.status {
                StatusCode::CONFLICT => {}
                _ if answer.is_yes() => {
                    let token = Secret::new(format!("{}.{}", id.reveal(), secret.reveal()));
                    return Ok((id.reveal().to_owned(), token));
                }
                _ => return Err(session.refused(&ask, &answer)),
            }
        }
        let why = format!("it says that {NAMES_TRIED} random names were taken");
        Err(ProviderError::bad_answer(self.what(), &why))
    }
}

fn token_object(id: &Secret, secret: &Secret, expires_at: Timestamp) -> serde_json::Value {
    let data = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    serde_json::json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {
            "name": format!("bootstrap-token-{}", id.reveal()), "namespace": "kube-system", "labels": { OURS.0: OURS.1 },
        },
        "data": {
            "token-id": data(id.reveal()), "token-secret": data(secret.reveal()),
            "expiration": data(&expires_at.to_string()), "auth-extra-groups": data(GROUP),
            "usage-bootstrap-authentication": data("true"), "usage-bootstrap-signing": data("true"),
            "description": data("minted by Millwright to join one machine"),
        },
    })
}

async fn remove_expired(session: &mut Session<'_>, now: Timestamp) -> ProviderResult<()> {
    let query = format!("&labelSelector={}%3D{}", crate::rest::encoded(OURS.0), OURS.1);
    let expired = |token: TokenObject| (ends(&token.data.expiration), token.metadata.name);
    let all = session.list(TOKENS, &query, "list secrets in kube-system", LOOKED_AT_MAX, expired).await?;
    let over =
        all.into_iter().filter(|(end, name)| name.starts_with("bootstrap-token-") && end.is_some_and(|end| end <= now));
    for (_, name) in over.take(REMOVED_MAX) {
        let _: Ack = remove(session, &name).await?;
    }
    Ok(())
}

/// When a token ends, by what stands in its object.
fn ends(expiration: &str) -> Option<Timestamp> {
    let text = base64::engine::general_purpose::STANDARD.decode(expiration).ok()?;
    let end: jiff::Timestamp = std::str::from_utf8(&text).ok()?.parse().ok()?;
    Some(Timestamp::from_micros(end.as_microsecond()))
}

async fn remove(session: &mut Session<'_>, name: &str) -> ProviderResult<Ack> {
    let ask = Ask {
        method: Method::DELETE,
        path: format!("{TOKENS}/{}", crate::rest::encoded(name)),
        body: None,
        doing: "delete secrets in kube-system",
    };
    let answer = session.ask(&ask).await?;
    if answer.is_yes() || answer.status == StatusCode::NOT_FOUND {
        return Ok(Ack::Done);
    }
    Err(session.refused(&ask, &answer))
}

fn is_token_id(text: &str) -> bool {
    text.len() == 6 && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// Letters and digits as in bootstrap tokens, each as likely as any other.
fn random(length: usize) -> ProviderResult<Secret> {
    const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut text = String::with_capacity(length);
    while text.len() < length {
        let mut byte = [0];
        getrandom::fill(&mut byte).map_err(|e| {
            ProviderError::refused(FailureClass::DependencyDown, format!("this host gives no random numbers: {e}"))
        })?;
        // the largest multiple of 36 below 256
        let fair = byte.first().copied().filter(|byte| *byte < 252);
        text.extend(fair.and_then(|byte| ALPHABET.get(usize::from(byte % 36))).copied().map(char::from));
    }
    Ok(Secret::new(text))
}

/// As kubeadm pins an authority: by the SHA-256 of its public key with the algorithm's name.
fn key_hash(der: &[u8]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let mut text = "sha256:".to_owned();
    for byte in Sha256::digest(certificate.public_key().raw) {
        write!(text, "{byte:02x}").ok()?;
    }
    Some(text)
}

/// `@` marks the places that are filled in, `"` and all.
const SCRIPT: &str = r#"main() {
    set -eu
    umask 077
    as_root=
    [ "$(id -u)" = 0 ] || as_root='sudo -n'
    # memory rather than disk, where there is such a place
    for place in /run /dev/shm "${TMPDIR:-/tmp}"; do
        [ -d "$place" ] && [ -w "$place" ] && break
    done
    folder=$(mktemp -d "$place/millwright-join.XXXXXX")
    trap 'rm -rf "$folder"' EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    version=$(kubeadm version -o short)
    minor=${version#v1.}
    minor=${minor%%.*}
    case $minor in '' | *[!0-9]*) echo "kubeadm has the version $version, which is not understood" >&2; exit 1 ;; esac
    form=v1beta4
    [ "$minor" -ge 31 ] || form=v1beta3
    [ "$minor" -ge 22 ] || form=v1beta2
    cat >"$folder/join.yaml" <<END
apiVersion: kubeadm.k8s.io/$form
kind: JoinConfiguration
discovery:
  bootstrapToken:
    apiServerEndpoint: @endpoint
    token: @token
    caCertHashes:
    - @hash
@registration
END
    # not the standard input that this script comes from
    $as_root kubeadm join --config "$folder/join.yaml" </dev/null
}
main
"#;

/// The script that joins a host to the cluster by its kubeadm (1.15 or later), as root or by `sudo`. The file with
/// the token is readable to its owner alone, and removed however the script ends, short of a kill or a power cut;
/// then the token's short life, and [`Cluster::forget_join`], are what is left.
pub fn join_script(material: &JoinMaterial, node_name: Option<&str>) -> JoinScript {
    let registration = node_name.map(|name| format!("nodeRegistration:\n  name: {}", quoted(name)));
    let script = SCRIPT
        .replace("@endpoint", &quoted(&material.endpoint))
        .replace("@hash", &quoted(&material.ca_hash))
        .replace("@registration", &registration.unwrap_or_default())
        .replace("@token", &quoted(material.token.reveal()));
    let command = Command { command: "sh".to_owned(), args: vec!["-s".to_owned()], environment: BTreeMap::new() };
    JoinScript { command, stdin: Secret::new(script) }
}

/// As YAML, inside a shell's here-document: everything else than these is left out, and a name that needs it is
/// refused by kubeadm.
fn quoted(text: &str) -> String {
    let plain = |c: &char| c.is_ascii_alphanumeric() || "-._:[]".contains(*c);
    format!("\"{}\"", text.chars().filter(plain).collect::<String>())
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test throughout")]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_the_form_that_clusters_take() {
        let id = random(6).expect("random");
        assert!(is_token_id(id.reveal()));
        assert_ne!(id, random(6).expect("random"));
        let bad = ["", "abcde", "ABCDEF", "abcdefg", "../abc", "abc/de"];
        assert!(bad.iter().all(|id| !is_token_id(id)));
    }

    #[test]
    fn an_end_is_read_as_clusters_write_it() {
        let of = |text: &str| ends(&base64::engine::general_purpose::STANDARD.encode(text));
        assert_eq!(of("1970-01-01T00:00:01Z"), Some(Timestamp::from_micros(1_000_000)));
        assert_eq!(of("1970-01-01T01:00:01.5+01:00"), Some(Timestamp::from_micros(1_500_000)));
        assert_eq!(of("soon"), None);
        assert_eq!(ends("*"), None);
    }

    #[test]
    fn nothing_in_the_material_can_break_out_of_the_script() {
        let material = JoinMaterial {
            endpoint: "k\"\nEND\nreboot #$(reboot)`reboot`:6443".to_owned(),
            token: Secret::new("abcdef.0123456789abcdef"),
            token_id: "abcdef".to_owned(),
            ca_hash: "sha256:00".to_owned(),
            expires_at: Timestamp::default(),
        };
        let script = join_script(&material, Some("n\n$x"));
        let text = script.stdin.reveal();
        assert!(text.contains("apiServerEndpoint: \"kENDrebootrebootreboot:6443\"\n"), "{text}");
        assert!(text.contains("  name: \"nx\"\n") && text.contains("token: \"abcdef.0123456789abcdef\"\n"), "{text}");
        assert!(!format!("{script:?} {material:?}").contains("0123456789abcdef"));
        assert!(!format!("{:?}", script.command).contains("abcdef"));
    }
}
