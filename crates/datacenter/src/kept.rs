//! A bounded memory of things that cost to make, each good as long as what it was made from is the same.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

pub(crate) struct Kept<K, From, V> {
    most: usize,
    all: Mutex<HashMap<K, (From, V)>>,
}

impl<K: Hash + Eq + Clone, From: PartialEq, V: Clone> Kept<K, From, V> {
    pub fn new(most: usize) -> Self {
        Self { most, all: Mutex::default() }
    }

    /// The one that was made from the same, if it is still there.
    pub fn get(&self, key: &K, from: &From) -> Option<V> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(key).filter(|(was, _)| was == from).map(|(_, value)| value.clone())
    }

    pub fn put(&self, key: &K, from: From, value: V) -> V {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= self.most && !all.contains_key(key) {
            // which one goes matters little: it is made again when it is needed
            if let Some(some) = all.keys().next().cloned() {
                all.remove(&some);
            }
        }
        all.insert(key.clone(), (from, value.clone()));
        value
    }

    pub fn forget(&self, key: &K) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_was_made_from_decides_and_the_number_is_bounded() {
        let kept: Kept<&str, u32, String> = Kept::new(2);
        kept.put(&"a", 1, "first".into());
        assert_eq!(kept.get(&"a", &1), Some("first".to_owned()));
        assert_eq!(kept.get(&"a", &2), None, "made from something else");
        kept.put(&"b", 1, "second".into());
        kept.put(&"c", 1, "third".into());
        assert_eq!(["a", "b", "c"].iter().filter(|k| kept.get(k, &1).is_some()).count(), 2);
        assert!(kept.get(&"c", &1).is_some(), "the newest is there");
        kept.forget(&"c");
        assert!(kept.get(&"c", &1).is_none());
    }
}
