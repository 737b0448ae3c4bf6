//! What ties a simulated process to the world outside it. Whatever a process does to the database or to a
//! device passes here, so that one that is stopped does nothing, and one that was killed nothing ever again.

use crate::nature::Nature;
use futures::future::BoxFuture;
use std::sync::{Arc, Mutex, PoisonError};
use store::{Fate, Way};
use tokio::sync::Notify;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Runs,
    /// As by SIGSTOP.
    Stopped,
    Dead,
}

/// Wakes those who wait in the order in which they came, which a watch channel does not.
struct Gate {
    life: Mutex<Life>,
    changed: Notify,
}

pub struct Link {
    gate: Arc<Gate>,
    pub nature: Arc<Nature>,
}

impl Link {
    pub fn new(nature: Arc<Nature>) -> Arc<Self> {
        Arc::new(Self { gate: Arc::new(Gate { life: Mutex::new(Life::Runs), changed: Notify::new() }), nature })
    }

    /// The dead stay dead.
    pub fn set(&self, life: Life) {
        let mut now = self.gate.life.lock().unwrap_or_else(PoisonError::into_inner);
        if *now != Life::Dead {
            *now = life;
        }
        drop(now);
        self.gate.changed.notify_waiters();
    }

    /// Resolves when the process runs; never, once it is dead.
    pub async fn pass(&self) {
        self.gate.pass().await;
    }
}

impl Gate {
    async fn pass(&self) {
        loop {
            let changed = self.changed.notified();
            let now = *self.life.lock().unwrap_or_else(PoisonError::into_inner);
            match now {
                Life::Runs => return,
                Life::Stopped => changed.await,
                Life::Dead => std::future::pending().await,
            }
        }
    }
}

impl Way for Link {
    fn there(&self, writes: bool) -> BoxFuture<'static, Fate> {
        let (gate, nature) = (self.gate.clone(), self.nature.clone());
        Box::pin(async move {
            if writes {
                tokio::time::sleep(nature.millis(0, 3)).await;
            } else {
                tokio::task::yield_now().await;
            }
            let fate = if nature.store_fails() { draw(&nature, writes).await } else { Fate::Through };
            gate.pass().await;
            fate
        })
    }

    fn back(&self) -> BoxFuture<'static, ()> {
        let (gate, nature) = (self.gate.clone(), self.nature.clone());
        Box::pin(async move {
            if nature.chance(30) {
                tokio::time::sleep(nature.millis(1, 40)).await;
            }
            gate.pass().await;
        })
    }
}

async fn draw(nature: &Nature, writes: bool) -> Fate {
    if nature.chance(150) {
        nature.count("store: slow");
        tokio::time::sleep(nature.millis(100, 4_000)).await;
        return Fate::Through;
    }
    if !writes {
        nature.count("store: away");
        return Fate::Away { after: 0 };
    }
    let (what, fate) = match nature.below(6) {
        0 => ("store: connection closed", Fate::Broken),
        1 => ("store: away", Fate::Away { after: u32::try_from(nature.below(15)).unwrap_or(0) }),
        2 => ("store: full", Fate::Full),
        3 => ("store: conflict", Fate::Conflict),
        4 => ("store: commit lost", Fate::CommitLost),
        _ => ("store: answer lost", Fate::AnswerLost),
    };
    nature.count(what);
    fate
}
