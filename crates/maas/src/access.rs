//! Where a site is, whom it must prove to be, and how we log in there: OAuth 1.0 PLAINTEXT, as MAAS has it.

use domain::stage::FailureClass;
use domain::{Reason, Secret};
use http::HeaderValue;
use http::Uri;
use provider::{MaasAccess, ProviderError, ProviderResult};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// A site's address, taken apart.
pub struct Address {
    pub host: String,
    pub port: u16,
    /// `host:port`, as a header wants it.
    pub authority: String,
    /// Up to and with `/MAAS`.
    pub base: String,
    pub tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

/// What our login is made of.
pub struct Key {
    consumer: Secret,
    token: Secret,
    secret: Secret,
}

fn wrong(site: &str, what: &str) -> ProviderError {
    let message = format!("site {site:?} cannot be asked: {what}; set it right with 'millwright site edit'");
    ProviderError::because(Reason::InvalidField, FailureClass::NeedsOperator, message)
}

impl Address {
    pub fn of(access: &MaasAccess) -> ProviderResult<Self> {
        let bad = |why: &str| wrong(&access.site, &format!("its url {why}"));
        let uri: Uri = access.url.parse().map_err(|_| bad("is not a URL such as https://maas.example:5443/MAAS"))?;
        let authority = uri.authority().ok_or_else(|| bad("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong(&access.site, "its url must not hold a user or a password"));
        }
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad("begins with neither https:// nor http://")),
        };
        if uri.query().is_some() {
            return Err(bad("has a query"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let tls = match tls {
            false => None,
            true => {
                let name = ServerName::try_from(host.clone()).map_err(|_| bad("names a host that is none"))?;
                Some((trust(access)?, name))
            }
        };
        let base = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { host, port, authority: authority.as_str().to_owned(), base, tls })
    }
}

fn trust(access: &MaasAccess) -> ProviderResult<Arc<ClientConfig>> {
    let bad = |why: &str| wrong(&access.site, &format!("its CA {why}"));
    let mut roots = RootCertStore::empty();
    if access.ca_pem.trim().is_empty() {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    for certificate in CertificateDer::pem_slice_iter(access.ca_pem.as_bytes()) {
        let certificate = certificate.map_err(|e| bad(&format!("is not PEM: {e}")))?;
        roots.add(certificate).map_err(|e| bad(&format!("cannot be used: {e}")))?;
    }
    if roots.is_empty() {
        return Err(bad("is missing, and this host trusts none itself"));
    }
    static CRYPTOGRAPHY: OnceLock<Arc<rustls::crypto::CryptoProvider>> = OnceLock::new();
    let provider = CRYPTOGRAPHY.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider())).clone();
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| bad(&e.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

impl Key {
    /// Without a key MAAS takes us for a machine that introduces itself: one that is not whole is never used.
    pub fn of(access: &MaasAccess) -> ProviderResult<Self> {
        let parts: Vec<&str> = access.key.reveal().trim().split(':').collect();
        let sound = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_graphic());
        match parts.as_slice() {
            [consumer, token, secret] if parts.iter().all(|part| sound(part)) => {
                Ok(Self { consumer: Secret::new(*consumer), token: Secret::new(*token), secret: Secret::new(*secret) })
            }
            _ => {
                let message = format!(
                    "the API key of site {:?} is not of the form CONSUMER:TOKEN:SECRET; copy it from MAAS (the user's \
                     preferences, API keys) and store it with 'millwright credential set NAME --kind maas'",
                    access.site
                );
                Err(ProviderError::credential_missing(message))
            }
        }
    }

    /// Good for one request: MAAS takes no nonce twice, and no time that is five minutes old.
    pub fn header(&self) -> ProviderResult<HeaderValue> {
        let mut nonce = [0_u8; 16];
        getrandom::fill(&mut nonce)
            .map_err(|e| ProviderError::transient(format!("no randomness is to be had: {e}")))?;
        let nonce: String = nonce.iter().map(|byte| format!("{byte:02x}")).collect();
        let now = unix_seconds();
        let text = format!(
            "OAuth oauth_version=\"1.0\", oauth_signature_method=\"PLAINTEXT\", oauth_consumer_key=\"{}\", \
             oauth_token=\"{}\", oauth_signature=\"%26{}\", oauth_nonce=\"{nonce}\", oauth_timestamp=\"{now}\"",
            encoded(self.consumer.reveal()),
            encoded(self.token.reveal()),
            encoded(self.secret.reveal()),
        );
        let mut header = HeaderValue::try_from(text)
            .map_err(|_| ProviderError::credential_missing("the API key has characters that no API key has"))?;
        header.set_sensitive(true);
        Ok(header)
    }

    /// Without the key, should it be in there.
    pub fn blot(&self, text: &str) -> String {
        self.consumer.blot(&self.token.blot(&self.secret.blot(text)))
    }
}

/// Of this host's clock.
#[allow(clippy::disallowed_methods, reason = "MAAS compares it with its own clock; nothing of ours hangs on it")]
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// As a part of a path, a query or a form.
pub fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Names and values, as `application/x-www-form-urlencoded` and queries have them.
pub fn pairs<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let pair = |(name, value)| format!("{}={}", encoded(name), encoded(value));
    fields.into_iter().map(pair).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test throughout")]
mod tests {
    use super::*;

    fn access(url: &str, key: &str) -> MaasAccess {
        MaasAccess { site: "oslo".into(), url: url.into(), ca_pem: String::new(), key: Secret::new(key), calls_max: 1 }
    }

    #[test]
    fn an_address_is_taken_apart_and_a_bad_one_refused() {
        let at = Address::of(&access("http://maas.example:5240/MAAS", "")).expect("an address");
        assert_eq!((at.host.as_str(), at.port, at.base.as_str()), ("maas.example", 5240, "/MAAS"));
        let at = Address::of(&access("http://[fd00::1]/MAAS/", "")).expect("an address");
        assert_eq!((at.host.as_str(), at.port, at.base.as_str()), ("fd00::1", 80, "/MAAS"));
        for bad in
            ["", "maas.example", "ftp://maas.example/MAAS", "http://u:geheim@h/MAAS", "http://h/MAAS?x=1", "http://"]
        {
            let no = Address::of(&access(bad, "")).map(|_| ()).expect_err(bad);
            assert!(no.to_string().contains("oslo") && !no.to_string().contains("geheim"), "{no}");
        }
    }

    #[test]
    fn a_key_that_is_not_whole_is_never_used_and_never_shown() {
        for bad in ["", "a:b", "a:b:", ":b:c", "a:b:c:d", "a:b:c d", "geheim"] {
            let no = Key::of(&access("http://h/MAAS", bad)).map(|_| ()).expect_err(bad);
            assert_eq!(no.reason(), Reason::CredentialMissing);
            assert!(!no.to_string().contains("geheim"), "{no}");
        }
        let key = Key::of(&access("http://h/MAAS", "cons:tok:s&ecret\n")).expect("a key");
        let header = key.header().expect("a header");
        assert!(header.is_sensitive() && header.to_str().expect("text").contains("oauth_signature=\"%26s%26ecret\""));
        assert_eq!(key.blot("&s&ecret of tok"), "&(a secret) of (a secret)");
    }

    #[test]
    fn fields_are_encoded() {
        assert_eq!(pairs([("a b", "c&d=é"), ("mac", "52:54")]), "a%20b=c%26d%3D%C3%A9&mac=52%3A54");
    }
}
