//! The keys a server has: the one it seals with, and earlier ones that still open. A server without one runs; only
//! what needs it is refused, and says what to do.

use crate::sealing::SecretKey;
use domain::{Error, Reason, Secret};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Puts the text of a fresh key where the next start finds it. On disk when it answers.
pub type Keep = Box<dyn Fn(&Secret) -> Result<(), String> + Send + Sync>;

enum Current {
    Given(Arc<SecretKey>),
    /// Why there is none, and what to do.
    Missing(String),
    /// Made when something is first to be sealed, for a server that has its database for itself.
    AtFirstUse(Keep),
}

pub struct SecretKeys {
    current: Mutex<Current>,
    previous: Vec<Arc<SecretKey>>,
}

impl SecretKeys {
    fn new(current: Current) -> Self {
        Self { current: Mutex::new(current), previous: Vec::new() }
    }

    pub fn given(key: SecretKey) -> Self {
        Self::new(Current::Given(Arc::new(key)))
    }

    /// `why` also says what to do.
    pub fn missing(why: impl Into<String>) -> Self {
        Self::new(Current::Missing(why.into()))
    }

    pub fn made_at_first_use(keep: Keep) -> Self {
        Self::new(Current::AtFirstUse(keep))
    }

    /// Keys that only open, until everything is sealed under the current one.
    #[must_use]
    pub fn with_previous(mut self, keys: Vec<SecretKey>) -> Self {
        self.previous = keys.into_iter().map(Arc::new).collect();
        self
    }

    /// The key to seal with.
    pub(crate) fn current(&self) -> Result<Arc<SecretKey>, Error> {
        match &*self.current.lock().unwrap_or_else(PoisonError::into_inner) {
            Current::Given(key) => Ok(key.clone()),
            Current::Missing(why) => Err(unavailable(why.clone())),
            Current::AtFirstUse(_) => Err(unavailable("no key was made yet; set a credential first".to_owned())),
        }
    }

    pub(crate) fn is_made_at_first_use(&self) -> bool {
        matches!(&*self.current.lock().unwrap_or_else(PoisonError::into_inner), Current::AtFirstUse(_))
    }

    /// The key to seal with, made if this is its first use. `stored` are the keys that credentials are sealed under:
    /// a lost one is not replaced in silence. Blocks.
    pub(crate) fn current_or_made(&self, stored: &BTreeMap<String, u64>) -> Result<Arc<SecretKey>, Error> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let Current::AtFirstUse(keep) = &*current else {
            drop(current);
            return self.current();
        };
        if let Some(lost) = stored.keys().find(|id| !self.previous.iter().any(|key| key.id() == id.as_str())) {
            return Err(unavailable(format!(
                "credentials are sealed under key {lost}, which is not here any more; put secrets.key back into the data folder, or name that key in secrets.previous_key_files"
            ))
            .with("key_id", lost));
        }
        let (key, text) = SecretKey::generate()?;
        keep(&text).map_err(|e| unavailable(format!("the fresh key could not be kept: {e}")))?;
        tracing::info!(key_id = key.id(), "made a key for credentials");
        let key = Arc::new(key);
        *current = Current::Given(key.clone());
        Ok(key)
    }

    /// The key of that id, if we have it.
    pub(crate) fn known(&self, id: &str) -> Option<Arc<SecretKey>> {
        let current = self.current().ok().filter(|key| key.id() == id);
        current.or_else(|| self.previous.iter().find(|key| key.id() == id).cloned())
    }

    /// The ids of the keys that we have, the current one first.
    pub fn ids(&self) -> Vec<String> {
        let current = self.current().ok();
        current.iter().chain(&self.previous).map(|key| key.id().to_owned()).collect()
    }

    /// Why there is no key to seal with, where that is so.
    pub fn problem(&self) -> Option<String> {
        match &*self.current.lock().unwrap_or_else(PoisonError::into_inner) {
            Current::Missing(why) => Some(why.clone()),
            Current::Given(_) | Current::AtFirstUse(_) => None,
        }
    }
}

pub(crate) fn unavailable(message: String) -> Error {
    Error::new(Reason::SecretKeyUnavailable, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_key_is_made_once_and_a_lost_one_is_not_replaced() {
        let made = Arc::new(AtomicUsize::new(0));
        let count = made.clone();
        let keep: Keep = Box::new(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        let keys = SecretKeys::made_at_first_use(keep);
        assert!(keys.ids().is_empty() && keys.problem().is_none() && keys.is_made_at_first_use());
        let lost = keys.current_or_made(&[("abc".to_owned(), 1)].into()).expect_err("lost");
        assert_eq!((lost.reason, lost.message.contains("key abc")), (Reason::SecretKeyUnavailable, true));
        let first = keys.current_or_made(&BTreeMap::new()).expect("made");
        let again = keys.current_or_made(&[("abc".to_owned(), 1)].into()).expect("there");
        assert_eq!((first.id(), made.load(Ordering::Relaxed)), (again.id(), 1));
        assert_eq!(keys.ids(), [first.id()]);
    }

    #[test]
    fn a_fresh_key_that_cannot_be_kept_is_not_used() {
        let keys = SecretKeys::made_at_first_use(Box::new(|_| Err("the disk is full".to_owned())));
        let error = keys.current_or_made(&BTreeMap::new()).expect_err("not kept");
        assert!(error.message.contains("the disk is full"), "{error}");
        assert!(keys.current().is_err());
    }

    #[test]
    fn earlier_keys_open_and_do_not_seal() {
        let key = || SecretKey::generate().expect("randomness").0;
        let (new, old) = (key(), key());
        let (new_id, old_id) = (new.id().to_owned(), old.id().to_owned());
        let keys = SecretKeys::given(new).with_previous(vec![old]);
        assert_eq!(keys.current().expect("there").id(), new_id);
        assert!(keys.known(&old_id).is_some() && keys.known("abc").is_none());
        assert_eq!(keys.ids(), [new_id, old_id]);
        let none = SecretKeys::missing("set secrets.key_file");
        assert!(none.current().is_err_and(|e| e.message == "set secrets.key_file"));
    }
}
