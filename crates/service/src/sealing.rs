//! How a credential is sealed: with a key of its own, which is sealed with the server's. So the server's key can be
//! replaced without touching what was sealed, and a row tells by the id of its key which one opens it.
//!
//! AES-256-GCM twice, by the same ring that TLS is made of. Name, kind and version go in as associated data: a row
//! that was put in the place of another, or of its own past, does not open.
//!
//! ```text
//! 1 | nonce (12) | the row's key, sealed (32 + 16) | nonce (12) | content, sealed (n + 16)
//! ```

use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use domain::credential::CredentialRecord;
use domain::{Error, Secret};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use zeroize::Zeroizing;

const KEY_LEN: usize = 32;
const TAG_LEN: usize = 16;
const WRAPPED_LEN: usize = KEY_LEN + TAG_LEN;
/// Of a sealed text before its content.
const HEAD_LEN: usize = 1 + NONCE_LEN + WRAPPED_LEN;
const FORM: u8 = 1;
/// Of a key's id, in hex: enough to tell the few keys of a site apart.
const ID_DIGITS: usize = 12;

const WANTED: &str = "a key is 32 random bytes in base64 or hex; make one with: openssl rand -base64 32";

/// What a sealed text is about: it opens as nothing else.
pub(crate) struct About<'a> {
    pub name: &'a str,
    pub kind: &'a str,
    pub version: u64,
}

impl<'a> About<'a> {
    pub fn of(record: &'a CredentialRecord) -> Self {
        Self { name: &record.name, kind: record.kind.as_str(), version: record.version }
    }

    /// Each part behind its length, so that they cannot run together.
    fn bytes(&self, part: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for text in ["millwright credential", part, self.name, self.kind] {
            bytes.extend((text.len() as u64).to_be_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes.extend(self.version.to_be_bytes());
        bytes
    }
}

/// It does not open: another key, another row, or changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Spoilt;

/// The server's key.
pub struct SecretKey {
    id: String,
    seals: LessSafeKey,
    veils: hmac::Key,
}

impl SecretKey {
    /// What is said when it is none tells nothing of the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err(format!("is empty; {WANTED}"));
        }
        let bytes = Zeroizing::new(from_hex(text).or_else(|| from_base64(text)).unwrap_or_default());
        match <[u8; KEY_LEN]>::try_from(bytes.as_slice()) {
            Ok(bytes) => Self::new(&Zeroizing::new(bytes)).map_err(|e| e.message),
            Err(_) => Err(format!("is not a key: {WANTED}")),
        }
    }

    /// A fresh one, and its text.
    pub fn generate() -> Result<(Self, Secret), Error> {
        let bytes: Zeroizing<[u8; KEY_LEN]> = Zeroizing::new(random()?);
        let text = Secret::new(base64::engine::general_purpose::STANDARD.encode(bytes.as_slice()));
        Ok((Self::new(&bytes)?, text))
    }

    fn new(bytes: &[u8; KEY_LEN]) -> Result<Self, Error> {
        // one for each purpose, from the one that is kept
        let root = hmac::Key::new(hmac::HMAC_SHA256, bytes);
        let derive = |purpose: &str| hmac::sign(&root, purpose.as_bytes());
        let id = derive("millwright key id").as_ref().iter().map(|b| format!("{b:02x}")).collect::<String>();
        Ok(Self {
            id: id[..ID_DIGITS].to_owned(),
            seals: cipher(derive("millwright sealing").as_ref())?,
            veils: hmac::Key::new(hmac::HMAC_SHA256, derive("millwright veiling").as_ref()),
        })
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn seal(&self, about: &About<'_>, content: &[u8]) -> Result<Vec<u8>, Error> {
        let row_key: Zeroizing<[u8; KEY_LEN]> = Zeroizing::new(random()?);
        let mut sealed = vec![FORM];
        sealed.extend(encrypt(&self.seals, &about.bytes("key"), row_key.as_slice())?);
        sealed.extend(encrypt(&cipher(row_key.as_slice())?, &about.bytes("content"), content)?);
        Ok(sealed)
    }

    pub(crate) fn open(&self, about: &About<'_>, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, Spoilt> {
        let (row_key, content) = self.row_key(about, sealed)?;
        decrypt(&cipher(&row_key).map_err(|_| Spoilt)?, &about.bytes("content"), content)
    }

    /// The same content, under another key of the server's. It is looked at first: what is spoilt stays as it is.
    pub(crate) fn reseal(&self, under: &SecretKey, about: &About<'_>, sealed: &[u8]) -> Result<Vec<u8>, Spoilt> {
        self.open(about, sealed)?;
        let (row_key, content) = self.row_key(about, sealed)?;
        let mut resealed = vec![FORM];
        resealed.extend(encrypt(&under.seals, &about.bytes("key"), &row_key).map_err(|_| Spoilt)?);
        resealed.extend(content);
        Ok(resealed)
    }

    /// The row's own key, and what is sealed with it.
    fn row_key<'a>(&self, about: &About<'_>, sealed: &'a [u8]) -> Result<(Zeroizing<Vec<u8>>, &'a [u8]), Spoilt> {
        let (head, content) = sealed.split_at_checked(HEAD_LEN).ok_or(Spoilt)?;
        match head.split_first() {
            Some((&FORM, wrapped)) => Ok((decrypt(&self.seals, &about.bytes("key"), wrapped)?, content)),
            Some(_) | None => Err(Spoilt),
        }
    }

    /// Equal for equal requests, and of no use to whoever would guess what is in them: a plain hash of a password
    /// can be compared with the hashes of a word list.
    pub(crate) fn veil(&self, request: &[u8]) -> Vec<u8> {
        hmac::sign(&self.veils, request).as_ref().to_vec()
    }
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "key {}", self.id)
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let hex = text.len() == 2 * KEY_LEN && text.bytes().all(|b| b.is_ascii_hexdigit());
    if !hex {
        return None;
    }
    (0..KEY_LEN).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()).collect()
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let alphabet = if text.contains(['-', '_']) { &URL_SAFE } else { &STANDARD };
    GeneralPurpose::new(alphabet, config).decode(text).ok()
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0u8; N];
    getrandom::fill(&mut bytes).map_err(|e| Error::internal(format!("the system gave no randomness: {e}")))?;
    Ok(bytes)
}

fn cipher(key: &[u8]) -> Result<LessSafeKey, Error> {
    let key = UnboundKey::new(&AES_256_GCM, key).map_err(|_| Error::internal("a key of the wrong length"))?;
    Ok(LessSafeKey::new(key))
}

/// A fresh nonce each time: keys are used for few texts, far from where random nonces would meet.
fn encrypt(key: &LessSafeKey, about: &[u8], plain: &[u8]) -> Result<Vec<u8>, Error> {
    let nonce: [u8; NONCE_LEN] = random()?;
    let mut text = plain.to_vec();
    key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(about), &mut text)
        .map_err(|_| Error::internal("sealing failed"))?;
    Ok([nonce.as_slice(), &text].concat())
}

fn decrypt(key: &LessSafeKey, about: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, Spoilt> {
    let (nonce, text) = sealed.split_at_checked(NONCE_LEN).ok_or(Spoilt)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| Spoilt)?;
    let mut text = Zeroizing::new(text.to_vec());
    let plain = key.open_in_place(nonce, Aad::from(about), &mut text).map_err(|_| Spoilt)?.len();
    text.truncate(plain);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOUT: About<'static> = About { name: "rack-12", kind: "bmc", version: 3 };

    fn key() -> SecretKey {
        SecretKey::generate().expect("randomness").0
    }

    #[test]
    fn what_was_sealed_opens_with_its_key_and_as_itself_only() {
        let (mine, other) = (key(), key());
        let sealed = mine.seal(&ABOUT, b"hunter2").expect("seals");
        assert_eq!(mine.open(&ABOUT, &sealed).expect("opens").as_slice(), b"hunter2");
        assert_eq!(other.open(&ABOUT, &sealed), Err(Spoilt));
        for about in [
            About { name: "rack-13", ..ABOUT },
            About { kind: "ssh", ..ABOUT },
            About { version: 2, ..ABOUT },
            About { name: "rack-12b", kind: "mc", ..ABOUT },
        ] {
            assert_eq!(mine.open(&about, &sealed), Err(Spoilt), "{} {} {}", about.name, about.kind, about.version);
        }
        assert_ne!(mine.seal(&ABOUT, b"hunter2").expect("seals"), sealed, "twice the same looks different");
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let mine = key();
        let sealed = mine.seal(&ABOUT, b"x").expect("seals");
        for i in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[i] ^= 1;
            assert_eq!(mine.open(&ABOUT, &changed), Err(Spoilt), "byte {i}");
            assert_eq!(mine.open(&ABOUT, &sealed[..i]), Err(Spoilt), "cut at {i}");
        }
    }

    #[test]
    fn another_key_takes_over_without_a_new_row_key() {
        let (old, new) = (key(), key());
        let sealed = old.seal(&ABOUT, b"hunter2").expect("seals");
        let resealed = old.reseal(&new, &ABOUT, &sealed).expect("opens");
        assert_eq!(resealed[HEAD_LEN..], sealed[HEAD_LEN..], "the content was not touched");
        assert_eq!(new.open(&ABOUT, &resealed).expect("opens").as_slice(), b"hunter2");
        assert_eq!(old.open(&ABOUT, &resealed), Err(Spoilt));
        assert_eq!(new.reseal(&old, &ABOUT, &sealed), Err(Spoilt));
    }

    #[test]
    fn a_key_is_read_in_each_form_and_known_by_its_id() {
        let (made, text) = SecretKey::generate().expect("randomness");
        let bytes = from_base64(text.reveal()).expect("base64");
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let url = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&bytes);
        for form in [text.reveal().to_owned(), hex.to_uppercase(), url, format!("  {}\n", text.reveal())] {
            assert_eq!(SecretKey::parse(&form).expect("a key").id(), made.id());
        }
        assert_eq!((made.id().len(), format!("{made:?}")), (ID_DIGITS, format!("key {}", made.id())));
        for bad in ["", "hunter2hunter2", &hex[2..], &"x".repeat(64)] {
            let error = SecretKey::parse(bad).expect_err(bad);
            assert!(error.contains("openssl rand") && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_veiled_request_is_equal_for_equal_requests_under_one_key() {
        let (mine, other) = (key(), key());
        assert_eq!(mine.veil(b"a"), mine.veil(b"a"));
        assert_ne!(mine.veil(b"a"), mine.veil(b"b"));
        assert_ne!(mine.veil(b"a"), other.veil(b"a"));
    }
}
