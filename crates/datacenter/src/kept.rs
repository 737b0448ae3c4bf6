//! A bounded memory of things that cost to make, each good as long as what it was made from is the same.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

pub(crate) struct Kept<K, From, V> {
    most: usize,
    all: Mutex<All<K, From, V>>,
}

struct All<K, From, V> {
    entries: HashMap<K, Entry<From, V>>,
    /// When the unused were last looked for.
    tidied: Instant,
}

struct Entry<From, V> {
    from: From,
    value: V,
    used: Instant,
}

impl<K: Hash + Eq + Clone, From: PartialEq, V: Clone> Kept<K, From, V> {
    pub fn new(most: usize) -> Self {
        Self { most, all: Mutex::new(All { entries: HashMap::new(), tidied: Instant::now() }) }
    }

    fn all(&self) -> MutexGuard<'_, All<K, From, V>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one that was made from the same, if it is still there.
    pub fn get(&self, key: &K, from: &From) -> Option<V> {
        let mut all = self.all();
        let entry = all.entries.get_mut(key).filter(|entry| entry.from == *from)?;
        entry.used = Instant::now();
        Some(entry.value.clone())
    }

    pub fn put(&self, key: &K, from: From, value: V) -> V {
        let entries = &mut self.all().entries;
        if entries.len() >= self.most && !entries.contains_key(key) {
            // which one goes matters little: it is made again when it is needed
            if let Some(some) = entries.keys().next().cloned() {
                entries.remove(&some);
            }
        }
        entries.insert(key.clone(), Entry { from, value: value.clone(), used: Instant::now() });
        value
    }

    pub fn forget(&self, key: &K) {
        self.all().entries.remove(key);
    }

    /// Forgets those that nobody has asked for so long. Cheap to call often: it looks now and then.
    pub fn forget_unused(&self, so_long: Duration) {
        let mut all = self.all();
        if all.tidied.elapsed() < so_long / 4 {
            return;
        }
        all.tidied = Instant::now();
        all.entries.retain(|_, entry| entry.used.elapsed() < so_long);
    }

    pub fn take_all(&self) -> Vec<V> {
        std::mem::take(&mut self.all().entries).into_values().map(|entry| entry.value).collect()
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

    #[tokio::test(start_paused = true)]
    async fn what_nobody_asks_for_is_forgotten() {
        let kept: Kept<&str, u32, String> = Kept::new(9);
        let so_long = Duration::from_secs(60);
        kept.put(&"used", 1, "first".into());
        kept.put(&"unused", 1, "second".into());
        for _ in 0..4 {
            tokio::time::advance(Duration::from_secs(20)).await;
            assert!(kept.get(&"used", &1).is_some());
            kept.forget_unused(so_long);
        }
        assert!(kept.get(&"unused", &1).is_none());
        assert_eq!(kept.take_all(), ["first"]);
        assert!(kept.get(&"used", &1).is_none());
    }
}
