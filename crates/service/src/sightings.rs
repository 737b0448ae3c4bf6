//! Sightings of boot nodes: one was heard of just now, and has nothing new to say. A fleet that comes back from a power
//! cut asks what to boot all at once, and no machine is to wait until that is written: it is noted here, and written for
//! many together a moment later. What a crash loses is that moment.

use crate::Service;
use domain::BootNodeId;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use store::{Caller, boot_node};
use tokio::sync::Notify;

/// From the first that is noted until they are written.
const WRITTEN_AFTER: Duration = Duration::from_secs(1);
/// By one statement.
const TOGETHER: usize = 1000;
/// Beyond that one is not noted, and is seen when it asks again.
const NOTED_MAX: usize = 100_000;

#[derive(Default)]
pub(crate) struct Sightings {
    /// In the order of ids: servers that share a database lock rows in the same order.
    noted: Mutex<BTreeSet<BootNodeId>>,
    some: Notify,
}

impl Sightings {
    pub fn note(&self, id: &BootNodeId) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.len() >= NOTED_MAX {
            return;
        }
        let first = noted.is_empty();
        noted.insert(id.clone());
        drop(noted);
        if first {
            self.some.notify_one();
        }
    }

    fn take(&self) -> Vec<BootNodeId> {
        let noted = std::mem::take(&mut *self.noted.lock().unwrap_or_else(PoisonError::into_inner));
        noted.into_iter().collect()
    }
}

impl Service {
    /// Writes down what is noted, until the server stops.
    pub(crate) async fn write_sightings(self) {
        loop {
            let (some, closing) = (&self.inner.sightings.some, &self.inner.closing);
            tokio::select! {
                biased;
                () = closing.cancelled() => break,
                () = some.notified() => {}
            }
            tokio::select! {
                biased;
                () = closing.cancelled() => break,
                () = tokio::time::sleep(WRITTEN_AFTER) => {}
            }
            self.write_noted().await;
        }
        self.write_noted().await;
    }

    async fn write_noted(&self) {
        for ids in self.inner.sightings.take().chunks(TOGETHER) {
            let ids = ids.to_vec();
            let (by, key) = (Caller::new("sightings"), ids.first().map(ToString::to_string).unwrap_or_default());
            if let Err(e) = self.store().write(&by, &key, move |tx| boot_node::seen(tx, &ids)).await {
                // they are noted again when they ask again
                tracing::warn!(error = %e, "when boot nodes were last seen could not be written");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_noted_twice_is_written_once_and_there_is_a_bound() {
        let sightings = Sightings::default();
        let id = |n: usize| BootNodeId::from_text(format!("btn_{n:032x}"));
        sightings.note(&id(2));
        sightings.note(&id(1));
        sightings.note(&id(2));
        assert_eq!(sightings.take(), [id(1), id(2)]);
        (0..=NOTED_MAX).for_each(|n| sightings.note(&id(n)));
        assert_eq!((sightings.take().len(), sightings.take().len()), (NOTED_MAX, 0));
    }
}
