//! A watcher follows the log from its beginning through whichever server answers, and goes on from the last
//! sequence it saw. In the end it must have seen every row once, in order.

use crate::world::World;
use futures::StreamExt as _;
use service::Call;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::LogRow;

/// Silence after which another server is asked.
const PATIENCE: Duration = Duration::from_secs(12);

#[derive(Default)]
pub struct Seen(Mutex<Vec<Arc<LogRow>>>);

impl Seen {
    pub fn rows(&self) -> Vec<Arc<LogRow>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn last(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last().map_or(0, |row| row.sequence)
    }

    fn push(&self, row: Arc<LogRow>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(row);
    }
}

pub async fn follow(world: Arc<World>, seen: Arc<Seen>) {
    loop {
        let Some(service) = world.any_service() else {
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        };
        let after = seen.last();
        let opened = tokio::time::timeout(PATIENCE, service.watch_events(&Call::system(), "", Some(after), true)).await;
        if let Ok(Ok(rows)) = opened {
            if after > 0 {
                world.nature.count("watcher: resumed");
            }
            let mut rows = pin!(rows);
            while let Ok(Some(Ok(row))) = tokio::time::timeout(PATIENCE, rows.next()).await {
                seen.push(row);
            }
        }
        tokio::time::sleep(world.nature.millis(10, 500)).await;
    }
}
