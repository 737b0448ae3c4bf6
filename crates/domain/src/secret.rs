//! A text that is used and never shown. The one wrapper of every password, key and token we keep for others.

use std::fmt;
use zeroize::Zeroizing;

/// Wiped from memory when dropped; `Debug` tells nothing, and there is no `Display`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// The text itself. Whoever calls this sends it to where it belongs, and nowhere else.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text with this secret blotted out, for what others print (an error of a remote program).
    pub fn blot(&self, text: &str) -> String {
        if self.0.is_empty() { text.to_owned() } else { text.replace(self.reveal(), "(a secret)") }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(a secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret:?} {:?}", Some(&secret)), "(a secret) Some((a secret))");
        assert_eq!(secret.blot("password hunter2 refused"), "password (a secret) refused");
        assert_eq!(Secret::default().blot("as it was"), "as it was");
        assert_eq!(secret.reveal(), "hunter2");
    }
}
