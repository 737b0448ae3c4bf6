//! Secrets that are planted and must be found nowhere: tokens as the product makes them, canaries in the place of
//! passwords, private keys; in the clear and in the forms in which they slip out (base64, hex, percent-encoded,
//! UTF-16, a list of numbers, cut short).
//!
//! The search is `grep`'s, so that it is fast enough for everything the suite writes: every [`scratch::Watched`]
//! folder is searched before it is removed, with all that is in it: databases and their logs, backups, worlds, and
//! what each process said. Files whose purpose is to hold a secret are known by their names ([`HOLD_SECRETS`]).
//!
//! [`scratch::Watched`]: crate::scratch::Watched
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be searched is a failed test

use std::path::Path;
use std::process::Command;

/// How the names of files end that hold a secret on purpose. Those of the tests' own making are among them:
/// configurations with a mistake in them, and what a command shows once because it was asked to.
pub const HOLD_SECRETS: [&str; 6] = [".token", ".token.new", "contexts.toml", ".toml", ".key", ".shown"];

/// What canaries begin with; no other word does.
const CANARY: &str = "cnry_";
const TOKEN: &str = "mwt_";
/// Of a token behind its beginning: all but a little. Less would be found where the part that is shown stands in a
/// row beside other words; what was cut more is found by [`secrets`].
const TOKEN_AT_LEAST: usize = 40;
/// Of everything else.
const CUT: usize = 12;

/// A secret of that kind, unlike any other.
pub fn plant(kind: &str) -> String {
    format!("{CANARY}{kind}{}", uuid::Uuid::now_v7().simple())
}

/// A token that no server knows.
pub fn foreign_token() -> String {
    service::new_secret().expect("randomness")
}

/// What was searched, and what was found.
#[derive(Debug, Default)]
pub struct Searched {
    pub files: usize,
    pub bytes: u64,
    /// File, and what is in it.
    pub found: Vec<(String, String)>,
}

/// Searches everything below a folder.
pub fn search(folder: &Path) -> Searched {
    let mut searched = Searched::default();
    let mut holders = Vec::new();
    walk(folder, &mut |path, bytes| {
        searched.files += 1;
        searched.bytes += bytes;
        if holds_secrets(path) {
            holders.push(path.to_owned());
        }
    });
    let out = Command::new("grep")
        .env("LC_ALL", "C")
        .args(["-r", "-a", "-o", "-H", "-P", "-e", &pattern(&secrets(&holders))])
        .arg("--")
        .arg(folder)
        .output()
        .expect("grep is there (apt-get install grep)");
    // 1: nothing was found
    assert!(matches!(out.status.code(), Some(0 | 1)), "grep: {}", String::from_utf8_lossy(&out.stderr));
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let (file, what) = line.split_once(':').unwrap_or((line, ""));
        if !holds_secrets(Path::new(file)) {
            searched.found.push((file.to_owned(), what.chars().take(40).collect()));
        }
    }
    searched
}

/// Fails when a secret is anywhere below a folder.
#[track_caller]
pub fn assert_none(folder: &Path) -> Searched {
    let searched = search(folder);
    let some: Vec<_> = searched.found.iter().take(5).collect();
    assert!(some.is_empty(), "secrets stand where they must not: {} times, such as {some:#?}", searched.found.len());
    searched
}

fn walk(folder: &Path, each: &mut impl FnMut(&Path, u64)) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&entry.path(), each),
            Ok(kind) if kind.is_file() => each(&entry.path(), entry.metadata().map_or(0, |m| m.len())),
            _ => {}
        }
    }
}

fn holds_secrets(path: &Path) -> bool {
    HOLD_SECRETS.iter().any(|ending| path.to_string_lossy().ends_with(ending))
}

/// What the files hold that hold secrets: the middle of each token, the lines of each key. So a secret is found
/// also where its beginning was cut off.
fn secrets(holders: &[std::path::PathBuf]) -> Vec<String> {
    let mut found = Vec::new();
    let by_itself = |path: &&std::path::PathBuf| path.extension().is_some_and(|e| e == "token" || e == "key");
    for text in holders.iter().filter(by_itself).filter_map(|path| std::fs::read_to_string(path).ok()) {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '/');
        for word in text.split(|c: char| !plain(c)) {
            let body = word.strip_prefix(TOKEN).unwrap_or(word);
            if body.len() >= 40 && !found.iter().any(|f| body.contains(f)) {
                found.push(body[12..32].to_owned());
            }
        }
    }
    found
}

/// One pattern for everything.
fn pattern(secrets: &[String]) -> String {
    let mut any = vec![
        // PKCS#8 of the keys that tests make: in PEM, and the bytes themselves
        "MIGHAgEAMBMGByqGSM49[A-Za-z0-9+/]{12}".to_owned(),
        r"\x30\x81\x87\x02\x01\x00\x30\x13\x06\x07\x2a\x86\x48".to_owned(),
        format!("{}[0-9, ]{{12}}", numbers("-----BEGIN PRIVATE")),
    ];
    for needle in [TOKEN, CANARY] {
        let tail = |alphabet: &str| format!("{alphabet}{{{CUT}}}");
        let clear = if needle == TOKEN { TOKEN_AT_LEAST } else { CUT };
        any.push(format!("{needle}[A-Za-z0-9_-]{{{clear}}}"));
        any.push(format!("{}{}", needle.replace('_', "%5[Ff]"), tail("[A-Za-z0-9_%-]")));
        any.push(format!("(?i:{}){}", hex(needle), tail("[0-9a-fA-F]")));
        any.push(format!("{}, {}", numbers(needle), tail("[0-9, ]")));
        any.push(format!("{}{}", wide(needle), tail(r"(?:[A-Za-z0-9_-]\x00)")));
        any.extend(base64(needle).into_iter().map(|form| format!("{form}{}", tail("[A-Za-z0-9+/_-]"))));
    }
    any.extend(secrets.iter().map(|secret| format!(r"\Q{secret}\E")));
    any.join("|")
}

fn hex(text: &str) -> String {
    text.bytes().map(|b| format!("{b:02x}")).collect()
}

fn numbers(text: &str) -> String {
    text.bytes().map(|b| b.to_string()).collect::<Vec<_>>().join(", ")
}

fn wide(text: &str) -> String {
    text.chars().map(|c| format!(r"{c}\x00")).collect()
}

/// The characters that do not depend on what stands before or behind, for each of the three places in a group.
fn base64(text: &str) -> Vec<String> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let forms = (0..3).map(|before| {
        let bytes: Vec<u8> = std::iter::repeat_n(0, before).chain(text.bytes()).collect();
        let bits: Vec<bool> = bytes.iter().flat_map(|b| (0..8).rev().map(move |i| b >> i & 1 == 1)).collect();
        let six = bits.chunks_exact(6).map(|six| six.iter().fold(0, |n, bit| n << 1 | usize::from(*bit)));
        let whole: Vec<u8> = six.map(|n| ALPHABET[n]).collect();
        // those with a bit of what stands before are left out
        String::from_utf8_lossy(&whole[(before * 8).div_ceil(6)..]).replace('+', "[+-]").replace('/', "[/_]")
    });
    forms.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_in(name: &str, bytes: &[u8]) -> bool {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("deep")).expect("made");
        std::fs::write(folder.path().join("deep").join(name), bytes).expect("written");
        let searched = search(folder.path());
        assert_eq!((searched.files, searched.bytes), (1, bytes.len() as u64));
        !searched.found.is_empty()
    }

    /// As an encoder that knows nothing of secrets would write it.
    fn encoded(secret: &str, before: usize) -> String {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let bytes: Vec<u8> = std::iter::repeat_n(b'x', before).chain(secret.bytes()).collect();
        let groups = bytes.chunks_exact(3).map(|g| u32::from_be_bytes([0, g[0], g[1], g[2]]) as usize);
        groups.flat_map(|n| [n >> 18, n >> 12 & 63, n >> 6 & 63, n & 63].map(|i| ALPHABET[i] as char)).collect()
    }

    // a search that finds nothing proves nothing unless it could have
    #[test]
    fn a_secret_is_found_in_every_form() {
        for secret in [foreign_token(), plant("password")] {
            let utf16: Vec<u8> = secret.encode_utf16().flat_map(u16::to_le_bytes).collect();
            let forms: Vec<(&str, Vec<u8>)> = vec![
                ("clear", format!("authorization: Bearer {secret}\n").into_bytes()),
                ("json", format!("{{\"token\":\"{secret}\"}}").into_bytes()),
                ("database", [&[0, 0xff, 0x80][..], secret.as_bytes(), &[0, 1]].concat()),
                ("cut", secret.as_bytes()[..secret.len() - 3].to_vec()),
                ("percent", secret.replace('_', "%5F").into_bytes()),
                ("hex", hex(&secret).into_bytes()),
                ("HEX", hex(&secret).to_uppercase().into_bytes()),
                ("numbers", format!("{:?}", secret.as_bytes()).into_bytes()),
                ("utf16", utf16),
                ("base64", encoded(&secret, 0).into_bytes()),
                ("base64 1", encoded(&secret, 1).into_bytes()),
                ("base64 2", encoded(&secret, 2).into_bytes()),
            ];
            for (name, bytes) in forms {
                assert!(found_in(name, &bytes), "{secret} is not found as {name}");
            }
        }
        let key = crate::tls::Authority::default().pair().key;
        assert!(found_in("key", key.as_bytes()) && found_in("one line", key.replace('\n', "").as_bytes()));
        assert!(found_in("numbers", format!("{:?}", key.as_bytes()).as_bytes()));
        let der: Vec<u8> = rcgen::KeyPair::generate().expect("a key").serialize_der();
        assert!(found_in("bytes", &der));
    }

    #[test]
    fn what_is_no_secret_is_not_found() {
        let shown = &foreign_token()[..8];
        let cert = crate::tls::Authority::default().pair().cert;
        for harmless in [
            "mwt_wrong",
            "mwt_hunter2",
            "prefix mwt_abcd… of a token",
            "mwt_abcdadminadminsystem",
            shown,
            &cert,
            "cnry",
            "",
        ] {
            assert!(!found_in("log", harmless.as_bytes()), "{harmless}");
        }
        assert!(!found_in("admin.token", foreign_token().as_bytes()), "its purpose is to hold one");
    }

    #[test]
    fn the_rest_of_a_known_token_is_found_without_its_beginning() {
        let folder = tempfile::tempdir().expect("a folder");
        let token = foreign_token();
        std::fs::write(folder.path().join("admin.token"), &token).expect("written");
        std::fs::write(folder.path().join("log"), &token[10..]).expect("written");
        assert_eq!(search(folder.path()).found.len(), 1);
    }
}
