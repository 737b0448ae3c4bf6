//! The server's certificate and key: readable, a pair, and still good for a while.

use super::configuration::TlsFiles;
use super::report::Report;
use crate::cli::{AUTHORITYS_OWN_HINT, now};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

const AREA: &str = "TLS";
/// Less than this is left: time to renew.
const SOON_DAYS: i64 = 14;

pub fn check(report: &mut Report, files: &TlsFiles) {
    let (cert, key) = match (&files.cert, &files.key) {
        (None, None) => return report.skipped(AREA, "not set up: tls.cert and tls.key are empty"),
        (Some(cert), Some(key)) => (cert, key),
        (Some(_), None) => return report.failed(AREA, "tls.cert is set and tls.key is not", "set both, or none"),
        (None, Some(_)) => return report.failed(AREA, "tls.key is set and tls.cert is not", "set both, or none"),
    };
    let certificates = match certificates(cert) {
        Ok(certificates) => certificates,
        Err(e) => return report.failed(AREA, e, "tls.cert must hold certificates in PEM, the server's own first"),
    };
    let private = match PrivateKeyDer::from_pem_file(key) {
        Ok(private) => private,
        Err(e) => {
            let what = format!("{}: {}", key.display(), api::pem_problem(&e));
            return report.failed(AREA, what, "tls.key must hold one private key in PEM");
        }
    };
    key_mode(report, key);
    let pair = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(certificates.clone(), private);
    match pair {
        Ok(_) => report.fine(AREA, format!("{} and {} are a pair", cert.display(), key.display())),
        Err(e) => {
            let what = format!("{} and {} do not fit together: {e}", cert.display(), key.display());
            report.failed(AREA, what, "use the key that the certificate was made with");
        }
    }
    if let Some(first) = certificates.first() {
        validity(report, cert, first, now().as_second());
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<_, _>>)
        .map_err(|e| failed(&api::pem_problem(&e)))?;
    if found.is_empty() { Err(failed(&"there is no certificate in it")) } else { Ok(found) }
}

fn key_mode(report: &mut Report, path: &Path) {
    if let Ok(known) = std::fs::metadata(path)
        && known.permissions().mode() & 0o007 != 0
    {
        let mode = known.permissions().mode() & 0o777;
        let what = format!("{}: everybody can read the key (mode {mode:03o})", path.display());
        report.failed(AREA, what, format!("chmod 600 {}; if others were here, make a new one", path.display()));
    }
}

fn validity(report: &mut Report, path: &Path, certificate: &CertificateDer<'_>, now: i64) {
    const AREA: &str = "certificate";
    let name = path.display();
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
        return report.failed(AREA, format!("{name}: cannot be read as X.509"), "make another");
    };
    let validity = parsed.validity();
    let (from, to) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    let until = jiff::Timestamp::from_second(to).map(|at| at.to_string()).unwrap_or_default();
    let days = (to - now) / 86_400;
    match () {
        () if now < from => report.failed(AREA, format!("{name}: is not valid yet"), "look at the clock"),
        () if now >= to => report.failed(AREA, format!("{name}: has expired on {until}"), "renew it"),
        () if days < SOON_DAYS => {
            report.doubtful(AREA, format!("{name}: expires in {days} days, on {until}"), "renew it soon");
        }
        () => report.fine(AREA, format!("{name}: for {}; good until {until}", names(&parsed))),
    }
    if parsed.basic_constraints().ok().flatten().is_some_and(|found| found.value.ca) {
        let what = format!("{name}: is an authority's own (CA:TRUE), and clients refuse it as a server's");
        report.doubtful(AREA, what, AUTHORITYS_OWN_HINT);
    }
}

fn names(certificate: &X509Certificate<'_>) -> String {
    let shown = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match <[u8; 4]>::try_from(*bytes) {
            Ok(four) => Some(std::net::Ipv4Addr::from(four).to_string()),
            Err(_) => <[u8; 16]>::try_from(*bytes).ok().map(|all| std::net::Ipv6Addr::from(all).to_string()),
        },
        _ => None,
    };
    let extension = certificate.subject_alternative_name().ok().flatten();
    let names: Vec<String> =
        extension.map(|e| e.value.general_names.iter().filter_map(shown).collect()).unwrap_or_default();
    if names.is_empty() { "no name at all".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use std::path::PathBuf;

    struct Pair {
        folder: tempfile::TempDir,
    }

    impl Pair {
        fn new() -> Self {
            crate::cli::install_cryptography();
            Self { folder: tempfile::tempdir().expect("a folder") }
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("set");
            path
        }

        fn make(&self, until: (i32, u8, u8)) -> TlsFiles {
            self.make_as(until, IsCa::ExplicitNoCa)
        }

        fn make_as(&self, until: (i32, u8, u8), is_ca: IsCa) -> TlsFiles {
            let names = vec!["mw.example".to_owned(), "127.0.0.1".to_owned()];
            let mut params = CertificateParams::new(names).expect("names");
            params.is_ca = is_ca;
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(until.0, until.1, until.2);
            let key = KeyPair::generate().expect("a key");
            let certificate = params.self_signed(&key).expect("a certificate");
            let cert = Some(self.write("cert.pem", &certificate.pem()));
            TlsFiles { cert, key: Some(self.write("key.pem", &key.serialize_pem())) }
        }
    }

    fn lines(files: &TlsFiles) -> String {
        let mut report = Report::new();
        check(&mut report, files);
        report.lines(false).join("\n")
    }

    #[test]
    fn a_good_pair_is_told_with_its_names_and_its_end() {
        let pair = Pair::new();
        let told = lines(&pair.make((2090, 1, 1)));
        assert!(told.contains("are a pair") && told.contains("mw.example, 127.0.0.1; good until 2090-01-01"), "{told}");
        assert!(!told.contains("FAIL") && !told.contains("warn"), "{told}");
    }

    #[test]
    fn an_authoritys_own_certificate_is_a_warning() {
        let told = lines(&Pair::new().make_as((2090, 1, 1), IsCa::Ca(BasicConstraints::Unconstrained)));
        assert!(told.contains("warn  certificate") && told.contains("CA:TRUE"), "{told}");
        assert!(told.contains("-addext basicConstraints=critical,CA:FALSE"), "{told}");
    }

    #[test]
    fn each_thing_that_is_wrong_is_told() {
        let pair = Pair::new();
        let expired = lines(&pair.make((2021, 1, 1)));
        assert!(expired.contains("FAIL  certificate") && expired.contains("expired on 2021-01-01"), "{expired}");
        let mut files = pair.make((2090, 1, 1));
        let other = pair.write("other.pem", &KeyPair::generate().expect("a key").serialize_pem());
        files.key = Some(other.clone());
        assert!(lines(&files).contains("do not fit together"), "{}", lines(&files));
        std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o644)).expect("set");
        assert!(lines(&files).contains("everybody can read the key (mode 644); chmod 600"), "{}", lines(&files));
        files.key = Some(PathBuf::from("/nowhere.pem"));
        assert!(lines(&files).contains("FAIL  TLS  /nowhere.pem"), "{}", lines(&files));
        files.key = None;
        assert!(lines(&files).contains("set both, or none"));
        files.cert = None;
        assert!(lines(&files).starts_with("skip"));
    }

    #[test]
    fn a_certificate_that_ends_soon_is_a_warning() {
        let pair = Pair::new();
        let files = pair.make((2090, 1, 20));
        let first = certificates(files.cert.as_deref().expect("named")).expect("read").remove(0);
        let at = |text: &str| text.parse::<jiff::Timestamp>().expect("a time").as_second();
        let mut report = Report::new();
        validity(&mut report, Path::new("c"), &first, at("2090-01-10T00:00:00Z"));
        validity(&mut report, Path::new("c"), &first, at("2019-01-10T00:00:00Z"));
        let told = report.lines(false);
        assert!(told[0].starts_with("warn") && told[0].contains("in 10 days"), "{told:?}");
        assert!(told[1].starts_with("FAIL") && told[1].contains("not valid yet"), "{told:?}");
    }
}
