//! Something that happens right after a counted journal entry of one engine's life.

use engine::{Engine, JournalObserver};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio_util::sync::CancellationToken;

pub struct Strike {
    /// Counted from 1; 0: never.
    at: usize,
    /// Instead of a count: when an execution has ended.
    at_end: bool,
    kills: bool,
    engine: OnceLock<Engine>,
    seen: Mutex<Vec<String>>,
    pub struck: CancellationToken,
}

impl Strike {
    pub fn new(at: usize, kills: bool) -> Arc<Self> {
        let (engine, seen, struck) = (OnceLock::new(), Mutex::default(), CancellationToken::new());
        Arc::new(Self { at, at_end: false, kills, engine, seen, struck })
    }

    /// Kills when the first execution has ended.
    pub fn at_end() -> Arc<Self> {
        let (engine, seen, struck) = (OnceLock::new(), Mutex::default(), CancellationToken::new());
        Arc::new(Self { at: 0, at_end: true, kills: true, engine, seen, struck })
    }

    pub fn observer(self: &Arc<Self>) -> JournalObserver {
        let strike = self.clone();
        Arc::new(move |_, entry| {
            let count = {
                let mut seen = strike.seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.push(entry.to_owned());
                seen.len()
            };
            if count == strike.at || strike.at_end && entry == "ended" {
                if strike.kills {
                    strike.engine.get().expect("an engine").kill();
                }
                strike.struck.cancel();
            }
        })
    }

    pub fn watch(&self, engine: &Engine) {
        assert!(self.engine.set(engine.clone()).is_ok(), "for one life");
    }

    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
