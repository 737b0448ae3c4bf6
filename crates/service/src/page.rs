//! Keyset paging: a token says after which key to go on, and for which question it was given.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::{Error, Reason, limits};
use sha2::{Digest, Sha256};

/// What a list call asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageRequest {
    pub filter: String,
    /// 0 means the default.
    pub page_size: i32,
    pub page_token: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Empty on the last page.
    pub next_page_token: String,
}

const CHECK_BYTES: usize = 8;
const TOKEN_MAX: usize = 512;

impl PageRequest {
    pub(crate) fn size(&self) -> Result<usize, Error> {
        match usize::try_from(self.page_size) {
            Ok(0) => Ok(limits::PAGE_SIZE_DEFAULT),
            Ok(n) if n <= limits::PAGE_SIZE_MAX => Ok(n),
            Ok(_) | Err(_) => {
                Err(Error::field("page_size", format!("{} is outside 0 to {}", self.page_size, limits::PAGE_SIZE_MAX)))
            }
        }
    }

    /// The key to go on from; empty at the beginning.
    pub(crate) fn cursor(&self, list: &str) -> Result<String, Error> {
        if self.page_token.is_empty() {
            return Ok(String::new());
        }
        let bad = || {
            Error::new(
                Reason::InvalidPageToken,
                "page_token: not a token of this list and filter; use next_page_token as it was given, with the same filter",
            )
            .with("field", "page_token")
        };
        if self.page_token.len() > TOKEN_MAX {
            return Err(bad());
        }
        let bytes = URL_SAFE_NO_PAD.decode(&self.page_token).map_err(|_| bad())?;
        let (check, key) = bytes.split_at_checked(CHECK_BYTES).ok_or_else(bad)?;
        let key = std::str::from_utf8(key).map_err(|_| bad())?;
        if check == self.check(list, key) { Ok(key.to_owned()) } else { Err(bad()) }
    }

    /// Ties a token to its list and filter, and catches a damaged one. Not a secret.
    fn check(&self, list: &str, key: &str) -> [u8; CHECK_BYTES] {
        let mut hash = Sha256::new();
        for part in [list, &self.filter, key] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        let mut check = [0; CHECK_BYTES];
        check.copy_from_slice(&hash.finalize()[..CHECK_BYTES]);
        check
    }

    /// A page out of up to one item more than asked for.
    pub(crate) fn page<T>(&self, list: &str, mut items: Vec<T>, size: usize, key: impl Fn(&T) -> String) -> Page<T> {
        let more = items.len() > size;
        items.truncate(size);
        let next_page_token = match items.last() {
            Some(last) if more => {
                let key = key(last);
                let mut bytes = self.check(list, &key).to_vec();
                bytes.extend(key.as_bytes());
                URL_SAFE_NO_PAD.encode(bytes)
            }
            Some(_) | None => String::new(),
        };
        Page { items, next_page_token }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_on_where_it_was_given_and_nowhere_else() {
        let request = PageRequest { filter: "phase=READY".into(), ..PageRequest::default() };
        let page = request.page("machines", vec!["a", "b", "c"], 2, |s| (*s).to_owned());
        assert_eq!(page.items, ["a", "b"]);
        let next = PageRequest { page_token: page.next_page_token.clone(), ..request.clone() };
        assert_eq!(next.cursor("machines"), Ok("b".to_owned()));
        assert!(next.cursor("runs").is_err(), "another list");
        let other = PageRequest { filter: String::new(), ..next.clone() };
        assert!(other.cursor("machines").is_err(), "another filter");
        for bad in ["x", "!!!!", "AAAAAAAAAAAAAAAA", &"A".repeat(10_000)] {
            let r = PageRequest { page_token: bad.into(), ..request.clone() };
            assert_eq!(r.cursor("machines").map_err(|e| e.reason), Err(Reason::InvalidPageToken), "{bad}");
        }
        assert_eq!(request.page("machines", vec!["a"], 2, |s| (*s).to_owned()).next_page_token, "", "the last page");
    }

    #[test]
    fn sizes_are_bounded() {
        let size = |page_size| PageRequest { page_size, ..PageRequest::default() }.size();
        assert_eq!((size(0), size(1000)), (Ok(100), Ok(1000)));
        assert!(size(-1).is_err() && size(1001).is_err());
    }
}
