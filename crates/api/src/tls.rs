//! TLS of the server: a certificate and its key from files, looked at again every few seconds, so that a
//! renewed pair is in use without a restart and a broken one changes nothing.

use domain::{Timestamp, metric};
use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Larger than any chain or key.
const FILE_MAX: u64 = 1024 * 1024;

/// The pair in use, and where it came from.
pub struct Tls {
    files: Files,
    /// What the files held at first.
    first: Pair,
    config: RwLock<Arc<ServerConfig>>,
}

#[derive(Clone)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
}

/// What the files hold.
#[derive(Clone, PartialEq, Eq)]
struct Pair {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl Tls {
    /// Reads the pair, or says which file is at fault and why.
    pub fn load(cert: &Path, key: &Path, now: Timestamp) -> Result<Arc<Self>, String> {
        let files = Files { cert: cert.to_owned(), key: key.to_owned() };
        let first = files.read()?;
        let (config, expiry) = files.configure(&first, now)?;
        tell_expiry(expiry);
        for outcome in ["ok", "failed"] {
            metrics::counter!(metric::TLS_RELOADS.name, "outcome" => outcome).increment(0);
        }
        Ok(Arc::new(Self { files, first, config: RwLock::new(config) }))
    }

    /// For the next connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Follows the files until told to stop.
    pub(crate) async fn follow(self: Arc<Self>, now: impl Fn() -> Timestamp, stop: CancellationToken) {
        let mut judged = Ok(self.first.clone());
        // a pair is often replaced one file after the other: it is judged bad only if it stays so
        let mut doubtful = None;
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = stop.cancelled() => return,
            }
            let found = self.look().await;
            if found == judged {
                doubtful = None;
                continue;
            }
            let taken = found.clone().and_then(|pair| self.files.configure(&pair, now()));
            match taken {
                Ok((config, expiry)) => {
                    *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
                    tell_expiry(expiry);
                    reloaded("ok");
                    tracing::info!(cert = %self.files.cert.display(), until = %expiry, "a new certificate is in use");
                    (judged, doubtful) = (found, None);
                }
                Err(_) if doubtful.as_ref() != Some(&found) => doubtful = Some(found),
                Err(e) => {
                    reloaded("failed");
                    tracing::error!(
                        error = %e,
                        "the new certificate cannot be used: the old one stays in use; put a matching pair of PEM files in place"
                    );
                    (judged, doubtful) = (found, None);
                }
            }
        }
    }

    async fn look(&self) -> Result<Pair, String> {
        let files = self.files.clone();
        tokio::task::spawn_blocking(move || files.read()).await.unwrap_or_else(|e| Err(format!("reading: {e}")))
    }
}

fn reloaded(outcome: &'static str) {
    metrics::counter!(metric::TLS_RELOADS.name, "outcome" => outcome).increment(1);
}

fn tell_expiry(expiry: Timestamp) {
    metrics::gauge!(metric::TLS_EXPIRY.name).set(expiry.micros() as f64 / 1e6);
}

impl Files {
    fn read(&self) -> Result<Pair, String> {
        let read = |name: &str, path: &Path| {
            let failed = |e: &dyn std::fmt::Display| format!("{name} {}: {e}", path.display());
            let size = std::fs::metadata(path).map_err(|e| failed(&e))?.len();
            if size > FILE_MAX {
                return Err(failed(&"too large for a PEM file"));
            }
            std::fs::read(path).map_err(|e| failed(&e))
        };
        Ok(Pair { cert: read("tls.cert", &self.cert)?, key: read("tls.key", &self.key)? })
    }

    /// A configuration with this pair, and when its certificate ends.
    fn configure(&self, pair: &Pair, now: Timestamp) -> Result<(Arc<ServerConfig>, Timestamp), String> {
        let in_cert = |e: &dyn std::fmt::Display| format!("tls.cert {}: {e}", self.cert.display());
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&pair.cert)
            .collect::<Result<_, _>>()
            .map_err(|e| in_cert(&pem_problem(&e)))?;
        let first = chain.first().ok_or_else(|| in_cert(&"holds no certificate; a PEM file is expected"))?;
        let expiry = validity(first, now).map_err(|e| in_cert(&e))?;
        let key = PrivateKeyDer::from_pem_slice(&pair.key).map_err(|e| {
            format!("tls.key {}: {}; a private key in PEM is expected", self.key.display(), pem_problem(&e))
        })?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|e| in_cert(&e))?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|e| {
                let (cert, key) = (self.cert.display(), self.key.display());
                format!("tls.cert {cert} and tls.key {key} cannot be used together: {e}")
            })?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok((Arc::new(config), expiry))
    }
}

/// What is wrong with a PEM file, without a byte of it: the library's own words quote the line at fault, and a key
/// that has lost its line breaks is one line.
pub fn pem_problem(e: &pem::Error) -> String {
    match e {
        pem::Error::MissingSectionEnd { .. } => "a section has no END line".to_owned(),
        pem::Error::IllegalSectionStart { .. } => {
            "a BEGIN line does not read; each of BEGIN, content and END needs lines of its own".to_owned()
        }
        pem::Error::Base64Decode(_) => "what stands between BEGIN and END is not base64".to_owned(),
        pem::Error::Io(e) => e.to_string(),
        pem::Error::NoItemsFound => "nothing of that kind is in it".to_owned(),
        pem::Error::SectionTooLarge => "a section is too large".to_owned(),
        _ => "it does not read as PEM".to_owned(),
    }
}

/// When the certificate ends, unless it has.
fn validity(certificate: &CertificateDer<'_>, now: Timestamp) -> Result<Timestamp, String> {
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|e| format!("the first certificate does not read: {e}"))?;
    let at = |time: x509_parser::time::ASN1Time| Timestamp::from_micros(time.timestamp().saturating_mul(1_000_000));
    let (from, until) = (at(parsed.validity().not_before), at(parsed.validity().not_after));
    if until <= now {
        return Err(format!("the certificate has expired on {until}; renew it"));
    }
    if from > now {
        tracing::warn!(%from, "the certificate is not valid yet: clients will refuse it, or a clock is wrong");
    }
    Ok(until)
}
