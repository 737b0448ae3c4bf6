//! TLS on the client's side: whom to trust, and what to say when a handshake fails.
//!
//! A failed handshake has few causes and each has its own next step, so each is told apart: not trusted,
//! expired, made for another name, an authority's own, or one side speaks TLS and the other does not.

use super::connect::innermost;
use super::exit::CliError;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, InvalidMessage};
use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

/// For a look at who is there after a failure.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Makes `ring` the process's cryptography. Called once, first of all.
pub fn install() {
    // an error means that it is installed already
    drop(rustls::crypto::ring::default_provider().install_default());
}

pub fn is_wanted(server: &str) -> bool {
    server.starts_with("https://")
}

/// The endpoint, encrypted: trusting the system's authorities and those of the file.
pub fn encrypted(endpoint: &Endpoint, server: &str, ca_file: Option<&Path>) -> Result<Endpoint, CliError> {
    let wrong = |e: tonic::transport::Error| {
        CliError::usage(format!("preparing TLS for {server}: {}", innermost(&e)))
            .hint("where the system has no authorities of its own, name one by --ca-file FILE")
    };
    let Some(path) = ca_file else {
        return endpoint.clone().tls_config(ClientTlsConfig::new().with_enabled_roots()).map_err(wrong);
    };
    let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authorities(path)?));
    // a system without any authorities is no reason to refuse the one that was named
    let with_system = endpoint.clone().tls_config(config.clone().with_enabled_roots());
    with_system.or_else(|_| endpoint.clone().tls_config(config)).map_err(wrong)
}

/// The text of a file that holds at least one certificate.
pub fn authorities(path: &Path) -> Result<Vec<u8>, CliError> {
    let wrong = |why: &dyn std::fmt::Display| {
        CliError::usage(format!("the authority's file {}: {why}", path.display()))
            .hint("it must hold certificates in PEM, from -----BEGIN CERTIFICATE-----")
    };
    let pem = std::fs::read(path).map_err(|e| wrong(&e))?;
    let found: Vec<_> =
        CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().map_err(|e| wrong(&api::pem_problem(&e)))?;
    if found.is_empty() { Err(wrong(&"there is no certificate in it")) } else { Ok(pem) }
}

/// The TLS failure inside an error, if there is one.
fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        // what an io::Error wraps is not its source
        if let Some(inner) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref)
            && let Some(found) = cause(inner)
        {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// What a failed connection means, when it failed at TLS.
pub fn refusal(server: &str, error: &(dyn Error + 'static)) -> Option<CliError> {
    if !is_wanted(server) {
        return None;
    }
    match cause(error) {
        Some(cause) => Some(explain(server, cause)),
        None if speaks_plain(server) => Some(speaks_no_tls(server)),
        None => None,
    }
}

fn speaks_no_tls(server: &str) -> CliError {
    CliError::unreachable(format!("the server at {server} does not speak TLS"))
        .hint(format!("use {}", server.replacen("https://", "http://", 1)))
}

fn explain(server: &str, cause: &rustls::Error) -> CliError {
    let failed = |what: String| CliError::unreachable(format!("cannot trust {server}: {what}"));
    let certificate = match cause {
        rustls::Error::InvalidCertificate(certificate) => certificate,
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => return speaks_no_tls(server),
        other => {
            let error = CliError::unreachable(format!("the TLS handshake with {server} failed: {other}"));
            return error.hint("millwright doctor looks at both sides");
        }
    };
    let name = host(server);
    match certificate {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            failed(format!("its certificate has expired{}", since(certificate)))
                .hint("renew the server's certificate (tls.cert); if it is good, look at this machine's clock")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            failed("its certificate is not valid yet".to_owned())
                .hint("compare the clocks of this machine and the server")
        }
        CertificateError::NotValidForName => failed(format!("its certificate is not for the name {name}"))
            .hint("use the name in the certificate as --server, or make a certificate with this name"),
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names: Vec<String> = presented.iter().map(|name| plain_name(name)).collect();
            failed(format!("its certificate is not for the name {name}"))
                .allowing(names)
                .hint("use one of the allowed names as --server, or make a certificate with this name")
        }
        other if is_authoritys_own(other) => failed(
            "its certificate is an authority's own (CA:TRUE), which may sign others but not speak for a server"
                .to_owned(),
        )
        .hint(format!("{AUTHORITYS_OWN_HINT}; then name that file by --ca-file")),
        CertificateError::Revoked => failed("its certificate was revoked".to_owned()).hint("ask who runs the server"),
        other => failed(format!("its certificate comes from an authority that is not known here ({other})")).hint(
            "if it is your own authority, name it by --ca-file FILE, MILLWRIGHT_CA_FILE or `millwright context set`",
        ),
    }
}

/// What to do about a server's certificate that is an authority's own.
pub const AUTHORITYS_OWN_HINT: &str = "have the server's certificate signed by that authority, or make one for a trial with \
     `openssl req -x509 … -addext basicConstraints=critical,CA:FALSE`";

/// `openssl req -x509` makes such a one when nothing else is said. The verifier has no name of its own for it.
fn is_authoritys_own(error: &CertificateError) -> bool {
    matches!(error, CertificateError::Other(_)) && format!("{error:?}").contains("CaUsedAsEndEntity")
}

/// `DnsName("x")` as the certificate's reader spells it.
fn plain_name(name: &str) -> String {
    name.split('"').nth(1).unwrap_or(name).to_owned()
}

fn since(certificate: &CertificateError) -> String {
    match certificate {
        CertificateError::ExpiredContext { not_after, .. } => {
            let at = i64::try_from(not_after.as_secs()).ok().and_then(|s| jiff::Timestamp::from_second(s).ok());
            at.map(|at| format!(", on {at}")).unwrap_or_default()
        }
        _ => String::new(),
    }
}

fn host(server: &str) -> &str {
    let authority = server.split("://").nth(1).unwrap_or(server);
    let authority = authority.split('/').next().unwrap_or(authority);
    match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    }
}

fn dial(server: &str) -> std::io::Result<TcpStream> {
    let authority = server.split("://").nth(1).unwrap_or(server);
    let with_port = match authority.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => authority.to_owned(),
        _ => format!("{authority}:{}", if is_wanted(server) { 443 } else { 80 }),
    };
    let address = with_port.to_socket_addrs()?.next().ok_or(std::io::ErrorKind::AddrNotAvailable)?;
    let stream = TcpStream::connect_timeout(&address, PROBE_TIMEOUT)?;
    stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
    stream.set_write_timeout(Some(PROBE_TIMEOUT))?;
    Ok(stream)
}

/// Whether HTTP/2 is spoken there without TLS.
fn speaks_plain(server: &str) -> bool {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    const SETTINGS: u8 = 4;
    let ask = || -> std::io::Result<bool> {
        let mut stream = dial(server)?;
        stream.write_all(PREFACE)?;
        let mut frame = [0; 9];
        stream.read_exact(&mut frame)?;
        Ok(frame[3] == SETTINGS)
    };
    ask().unwrap_or(false)
}

/// Whether TLS is spoken there. Nobody is trusted for it: a certificate that is not believed tells as much.
pub fn speaks_tls(server: &str) -> bool {
    let ask = || -> Option<bool> {
        let config = rustls::ClientConfig::builder()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let name = ServerName::try_from(host(server).to_owned()).ok()?;
        let mut connection = rustls::ClientConnection::new(Arc::new(config), name).ok()?;
        let mut stream = dial(server).ok()?;
        match connection.complete_io(&mut stream) {
            Ok(_) => Some(true),
            Err(e) => cause(&e)
                .map(|cause| matches!(cause, rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_))),
        }
    };
    ask().unwrap_or(false)
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
