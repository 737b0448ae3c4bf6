//! Certificates and keys as files: whatever is in them, the server says which file is at fault, and never what is
//! in the key. The pairs to begin with are made anew for each run, so that no key lies in the repository.

use crate::wire::shape;
use domain::Timestamp;
use testkit::fuzz::Fuzz;
use testkit::tls::Authority;

const NOW: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);
const BETWEEN: &str = "\n=== key ===\n";

#[test]
fn pem() {
    let (pair, other) = (Authority::default().pair(), Authority::default().pair());
    let both = |cert: &str, key: &str| format!("{cert}{BETWEEN}{key}");
    let seeds = [
        both(&pair.cert, &pair.key),
        both(&pair.cert, &other.key),
        both(&pair.key, &pair.cert),
        both(&pair.cert, &pair.key.replace('\n', "")),
        String::new(),
    ];
    let words = [
        "-----BEGIN CERTIFICATE-----",
        "-----END CERTIFICATE-----",
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----",
        "-----BEGIN EC PRIVATE KEY-----",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----",
        "-----END PRIVATE KEY-----",
        BETWEEN,
        "MII",
        "AAAA",
        "====",
        "\n",
    ];
    Fuzz::new("pem", module_path!()).seeds(seeds).words(words).inputs(2_500).run(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let (cert, key) = (folder.path().join("c.pem"), folder.path().join("k.pem"));
        move |input| {
            let at = input.windows(BETWEEN.len()).position(|w| w == BETWEEN.as_bytes()).unwrap_or(input.len());
            let private = input.get(at + BETWEEN.len()..).unwrap_or_default();
            std::fs::write(&cert, &input[..at]).expect("written");
            std::fs::write(&key, private).expect("written");
            match api::Tls::load(&cert, &key, NOW) {
                Ok(_) => Ok("a pair".to_owned()),
                Err(e) if !e.contains("tls.cert") && !e.contains("tls.key") => Err(format!("names no file: {e}")),
                Err(e) if e.len() > 4_000 => Err(format!("too many words: {}", e.len())),
                Err(e) => {
                    let text = String::from_utf8_lossy(private);
                    let told = |line: &&str| line.len() >= 24 && !line.starts_with('-') && e.contains(*line);
                    // as a library would print them that knows nothing of secrets
                    let as_numbers = private.windows(8).any(|w| e.contains(format!("{w:?}").trim_matches(['[', ']'])));
                    match text.lines().find(told) {
                        Some(line) => Err(format!("tells a line of the key: {line}")),
                        None if as_numbers => Err(format!("tells bytes of the key: {e}")),
                        None => Ok(shape(&e.replace(&folder.path().display().to_string(), ""))),
                    }
                }
            }
        }
    });
}
