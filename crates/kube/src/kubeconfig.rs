//! A kubeconfig, read as far as we can keep what it says: where the server is, whom to trust there, and who we are.
//! What we cannot do (programs that fetch a token, proxies, acting as somebody else) is refused by name; a setting
//! that is passed over in silence would be somebody else's cluster, or somebody else's rights.
//!
//! No message here quotes a value: most of them are secrets.

use base64::Engine as _;
use domain::stage::FailureClass;
use domain::{Reason, Secret};
use http::Uri;
use provider::{ProviderError, ProviderResult};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use serde::Deserialize;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Far above any certificate, key or token.
const FILE_MAX: u64 = 1 << 20;
const DEFAULT_PORT: u16 = 443;

/// The server of a cluster and our way in.
pub(crate) struct Access {
    /// As the kubeconfig spells it, without a slash at its end.
    pub url: String,
    pub host: String,
    pub port: u16,
    /// What stands before every path, mostly nothing.
    pub base: String,
    server_name: ServerName<'static>,
    trust: Trust,
    identity: Option<(Source, Source)>,
    token: Option<Source>,
    /// Made once, unless files are in it: those may be replaced while we run.
    tls: OnceLock<Arc<ClientConfig>>,
}

enum Trust {
    /// The authorities that this host trusts.
    System,
    Given(Source),
    /// Asked for by name: `insecure-skip-tls-verify`.
    Anybody,
}

enum Source {
    Here(Secret),
    /// Read at each call, so that a renewed one is taken.
    File(PathBuf),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Kubeconfig {
    current_context: Option<String>,
    clusters: Option<Vec<NamedCluster>>,
    contexts: Option<Vec<NamedContext>>,
    users: Option<Vec<NamedUser>>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: Option<String>,
    cluster: Option<ClusterEntry>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct ClusterEntry {
    server: Option<String>,
    certificate_authority: Option<String>,
    certificate_authority_data: Option<String>,
    insecure_skip_tls_verify: Option<bool>,
    tls_server_name: Option<String>,
    proxy_url: Option<String>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: Option<String>,
    context: Option<Context>,
}

#[derive(Deserialize)]
struct Context {
    cluster: Option<String>,
    user: Option<String>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: Option<String>,
    user: Option<User>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<String>,
    client_certificate: Option<String>,
    client_certificate_data: Option<String>,
    client_key: Option<String>,
    client_key_data: Option<String>,
    username: Option<String>,
    exec: Option<serde_yaml_ng::Value>,
    auth_provider: Option<serde_yaml_ng::Value>,
    #[serde(rename = "as")]
    acts_as: Option<serde_yaml_ng::Value>,
}

/// What a kubeconfig says about the first cluster in it, as in the `cluster-info` that kubeadm publishes.
pub(crate) struct Published {
    pub server: String,
    pub authority: Vec<u8>,
}

impl Access {
    pub fn parse(cluster: &str, kubeconfig: &Secret) -> ProviderResult<Self> {
        let access = Self::read(kubeconfig.reveal()).map_err(|why| bad(cluster, &why))?;
        if !access.has_files() && !matches!(access.trust, Trust::System) {
            access.tls(cluster)?;
        }
        Ok(access)
    }

    fn read(text: &str) -> Result<Self, String> {
        let all = parse(text)?;
        let contexts = all.contexts.unwrap_or_default();
        let current = all.current_context.filter(|name| !name.is_empty());
        let context = match (&current, contexts.len()) {
            (Some(name), _) => contexts.into_iter().find(|c| c.name.as_ref() == Some(name)),
            (None, 1) => contexts.into_iter().next(),
            (None, _) => return Err("has no current-context; set one with 'kubectl config use-context'".to_owned()),
        };
        let context = context.and_then(|c| c.context).ok_or("has no context of the name in current-context")?;
        let cluster = all.clusters.unwrap_or_default().into_iter().find(|c| c.name == context.cluster);
        let cluster = cluster.and_then(|c| c.cluster).ok_or("has no cluster of the name in its context")?;
        let user = all.users.unwrap_or_default().into_iter().find(|u| u.name == context.user);
        let user = user.and_then(|u| u.user).ok_or("has no user of the name in its context")?;
        Self::from_entries(cluster, user)
    }

    fn from_entries(cluster: ClusterEntry, user: User) -> Result<Self, String> {
        let unsupported = [
            (user.exec.is_some(), "runs a program to log in (exec); make a service account's token for Millwright"),
            (user.auth_provider.is_some(), "uses an auth-provider; make a service account's token for Millwright"),
            (user.username.is_some(), "uses a user name and password, which API servers take no more"),
            (user.acts_as.is_some(), "acts as somebody else (as); give Millwright an identity of its own"),
            (cluster.proxy_url.is_some(), "goes through a proxy (proxy-url), which is not supported"),
        ];
        if let Some((_, why)) = unsupported.into_iter().find(|(set, _)| *set) {
            return Err(why.to_owned());
        }
        let server = cluster.server.ok_or("names no server")?;
        let (host, port, base) = address(&server)?;
        let server_name = cluster.tls_server_name.unwrap_or_else(|| host.clone());
        let server_name = ServerName::try_from(server_name).map_err(|_| "has a server with no valid host name")?;
        let trust = match source(cluster.certificate_authority, cluster.certificate_authority_data)? {
            _ if cluster.insecure_skip_tls_verify == Some(true) => Trust::Anybody,
            Some(given) => Trust::Given(given),
            None => Trust::System,
        };
        let identity = match (
            source(user.client_certificate, user.client_certificate_data)?,
            source(user.client_key, user.client_key_data)?,
        ) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err("has a client certificate without its key, or a key without its certificate".to_owned()),
        };
        let token = match (user.token.filter(|t| !t.is_empty()), user.token_file) {
            (Some(token), _) => Some(Source::Here(Secret::new(token))),
            (None, Some(path)) => Some(Source::File(absolute(path)?)),
            (None, None) => None,
        };
        if identity.is_none() && token.is_none() {
            return Err("has a user with neither a token nor a client certificate".to_owned());
        }
        let url = server.trim_end_matches('/').to_owned();
        Ok(Self { url, host, port, base, server_name, trust, identity, token, tls: OnceLock::new() })
    }

    pub fn server_name(&self) -> ServerName<'static> {
        self.server_name.clone()
    }

    fn has_files(&self) -> bool {
        let file = |source: &Source| matches!(source, Source::File(_));
        let given = matches!(&self.trust, Trust::Given(source) if file(source));
        given || self.identity.as_ref().is_some_and(|(certificate, key)| file(certificate) || file(key))
    }

    /// The bearer token, if this is how we say who we are.
    pub fn token(&self, cluster: &str) -> ProviderResult<Option<Secret>> {
        let Some(source) = &self.token else { return Ok(None) };
        let text = source.read("the token's file").map_err(|why| bad(cluster, &why))?;
        Ok(Some(Secret::new(text.reveal().trim())))
    }

    pub fn tls(&self, cluster: &str) -> ProviderResult<Arc<ClientConfig>> {
        if let Some(made) = self.tls.get() {
            return Ok(made.clone());
        }
        let made = Arc::new(self.make_tls().map_err(|why| bad(cluster, &why))?);
        if !self.has_files() {
            drop(self.tls.set(made.clone()));
        }
        Ok(made)
    }

    fn make_tls(&self) -> Result<ClientConfig, String> {
        let crypto = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(crypto.clone())
            .with_safe_default_protocol_versions()
            .map_err(|_| "cannot be used: no TLS version is enabled")?;
        let builder = match &self.trust {
            Trust::Anybody => builder.dangerous().with_custom_certificate_verifier(Arc::new(Unchecked(crypto))),
            Trust::System => builder.with_root_certificates(system_roots()?),
            Trust::Given(_) => {
                let mut roots = RootCertStore::empty();
                for certificate in self.authorities()? {
                    roots.add(certificate).map_err(|_| "has a certificate-authority that is no certificate")?;
                }
                builder.with_root_certificates(roots)
            }
        };
        let Some((certificate, key)) = &self.identity else { return Ok(builder.with_no_client_auth()) };
        let certificate = certificate.read("the client certificate's file")?;
        let chain = certificates(&certificate).ok_or("has a client-certificate that is no PEM certificate")?;
        let key = key.read("the client key's file")?;
        let key = PrivateKeyDer::from_pem_slice(key.reveal().as_bytes())
            .map_err(|_| "has a client-key that is no PEM private key")?;
        builder.with_client_auth_cert(chain, key).map_err(|_| {
            "has a client-certificate and client-key that do not belong together, or of a kind not supported".to_owned()
        })
    }

    fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        match &self.trust {
            Trust::Given(source) => {
                let pem = source.read("the certificate authority's file")?;
                certificates(&pem).ok_or_else(|| "has a certificate-authority that is no PEM certificate".to_owned())
            }
            Trust::System | Trust::Anybody => Ok(Vec::new()),
        }
    }

    /// The first of the authorities that the kubeconfig gives, in DER.
    pub fn authority(&self, cluster: &str) -> ProviderResult<Option<Vec<u8>>> {
        let all = self.authorities().map_err(|why| bad(cluster, &why))?;
        Ok(all.into_iter().next().map(|der| der.to_vec()))
    }
}

impl Source {
    fn read(&self, what: &str) -> Result<Secret, String> {
        match self {
            Source::Here(text) => Ok(text.clone()),
            Source::File(path) => {
                let failed = |why: String| format!("names {what} {}, which cannot be read: {why}", path.display());
                let file = std::fs::File::open(path).map_err(|e| failed(e.to_string()))?;
                let mut text = String::new();
                let read = file.take(FILE_MAX + 1).read_to_string(&mut text).map_err(|e| failed(e.to_string()))?;
                if read as u64 > FILE_MAX {
                    return Err(failed(format!("it has more than {FILE_MAX} bytes")));
                }
                Ok(Secret::new(text))
            }
        }
    }
}

/// What kubeadm publishes for hosts that want to join.
pub(crate) fn published(kubeconfig: &str) -> Option<Published> {
    let first = parse(kubeconfig).ok()?.clusters?.into_iter().next()?.cluster?;
    let pem = base64::engine::general_purpose::STANDARD.decode(first.certificate_authority_data?.trim()).ok()?;
    let authority = CertificateDer::from_pem_slice(&pem).ok()?.to_vec();
    Some(Published { server: first.server?, authority })
}

/// Host, port and what stands before every path.
pub(crate) fn address(server: &str) -> Result<(String, u16, String), String> {
    let uri: Uri = server.parse().map_err(|_| "has a server that is no address")?;
    if uri.scheme_str() != Some("https") {
        return Err("has a server whose address does not begin with https://".to_owned());
    }
    if uri.authority().is_some_and(|a| a.as_str().contains('@')) {
        return Err("has a user name in its server's address".to_owned());
    }
    let host = uri.host().filter(|host| !host.is_empty()).ok_or("has a server with no host name")?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    Ok((host, uri.port_u16().unwrap_or(DEFAULT_PORT), uri.path().trim_end_matches('/').to_owned()))
}

fn parse(text: &str) -> Result<Kubeconfig, String> {
    serde_yaml_ng::from_str(text).map_err(|e| match e.location() {
        // the error itself may quote what stands there
        Some(at) => format!("is no kubeconfig: it cannot be read at line {}, column {}", at.line(), at.column()),
        None => "is no kubeconfig".to_owned(),
    })
}

/// The data in base64 wins over the file, as kubectl has it.
fn source(file: Option<String>, data: Option<String>) -> Result<Option<Source>, String> {
    let (file, data) = (file.filter(|f| !f.is_empty()), data.filter(|d| !d.is_empty()));
    match (data, file) {
        (Some(data), _) => {
            let bytes = base64::engine::general_purpose::STANDARD.decode(data.trim()).ok();
            let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
            let text = text.ok_or("has a field ending in -data that is not PEM in base64")?;
            Ok(Some(Source::Here(Secret::new(text))))
        }
        (None, Some(path)) => Ok(Some(Source::File(absolute(path)?))),
        (None, None) => Ok(None),
    }
}

/// A relative path means another file on every host and in every working directory.
fn absolute(path: String) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    let relative = || "names a file by a relative path; put its content in with 'kubectl config view --raw --flatten'";
    if path.is_absolute() { Ok(path) } else { Err(relative().to_owned()) }
}

fn certificates(pem: &Secret) -> Option<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.reveal().as_bytes()).collect();
    all.ok().filter(|all| !all.is_empty())
}

fn system_roots() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err("names no certificate-authority, and this host trusts none itself".to_owned());
    }
    Ok(roots)
}

fn bad(cluster: &str, why: &str) -> ProviderError {
    let message = format!(
        "the kubeconfig of cluster {cluster:?} {why}; set the right one with 'millwright credential set {cluster} --kind kubeconfig'"
    );
    ProviderError::because(Reason::CredentialMissing, FailureClass::NeedsOperator, message)
}

/// Takes whatever certificate is shown, as the kubeconfig asks. The handshake's signatures are still checked.
#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test throughout")]
mod tests {
    use super::*;

    fn with(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        )
    }

    fn refusal(text: &str) -> String {
        let refused = Access::parse("prod", &Secret::new(text)).err().expect("refused");
        assert_eq!(refused.reason(), Reason::CredentialMissing);
        refused.to_string()
    }

    #[test]
    fn what_cannot_be_kept_is_refused_by_name_and_nothing_is_quoted() {
        let server = "server: 'https://10.0.0.1:6443'";
        let cases = [
            ("not: [valid", "line 2"),
            ("[]", "is no kubeconfig"),
            ("current-context: hunter2-canary", "has no context"),
            (&with("server: 'http://10.0.0.1'", "token: hunter2-canary"), "https://"),
            (&with("server: 'https://hunter2-canary@10.0.0.1'", "token: x"), "user name in its server"),
            (&with(server, "exec: {command: hunter2-canary}"), "exec"),
            (&with(server, "auth-provider: {name: hunter2-canary}"), "auth-provider"),
            (&with(server, "username: a, password: hunter2-canary"), "password"),
            (&with(server, "token: hunter2-canary, as: root"), "acts as"),
            (&with(&format!("{server}, proxy-url: 'http://hunter2-canary'"), "token: x"), "proxy"),
            (&with(server, "client-certificate-data: aHVudGVyMi1jYW5hcnk="), "without its key"),
            (&with(server, "client-key-data: hunter2-canary, client-certificate-data: '*'"), "base64"),
            (&with(server, "tokenFile: relative/path"), "relative"),
            (&with(server, ""), "neither a token"),
            (&with(&format!("{server}, certificate-authority-data: aHVudGVyMi1jYW5hcnk="), "token: x"), "no PEM"),
            (&with(server, "token: [hunter2-canary]"), "line"),
        ];
        for (text, expected) in cases {
            let message = refusal(text);
            assert!(message.contains(expected), "{message}");
            assert!(!message.contains("hunter2"), "{message}");
            assert!(message.contains("\"prod\"") && message.contains("credential set"), "{message}");
        }
    }

    #[test]
    fn an_address_is_taken_apart() {
        assert_eq!(address("https://k:6443/"), Ok(("k".to_owned(), 6443, String::new())));
        assert_eq!(address("https://[fd00::1]"), Ok(("fd00::1".to_owned(), 443, String::new())));
        assert_eq!(address("https://rancher/k8s/c1/"), Ok(("rancher".to_owned(), 443, "/k8s/c1".to_owned())));
    }

    #[test]
    fn a_token_is_read_from_its_file_each_time() {
        let file = std::env::temp_dir().join(format!("millwright-kube-{}", std::process::id()));
        let user = format!("tokenFile: {}", file.display());
        let text = with("server: 'https://k', insecure-skip-tls-verify: true", &user);
        let access = Access::parse("prod", &Secret::new(text)).expect("a kubeconfig");
        assert!(access.token("prod").is_err_and(|e| e.to_string().contains("cannot be read")));
        for token in ["one", "two"] {
            std::fs::write(&file, format!("{token}\n")).expect("written");
            assert_eq!(access.token("prod"), Ok(Some(Secret::new(token))));
        }
        std::fs::remove_file(&file).expect("removed");
    }
}
