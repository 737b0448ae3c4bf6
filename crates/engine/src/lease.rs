//! The session lease: renewed from a monotonic clock, lost when a renewal finds it gone, and the watch
//! over rivals: a session whose counter stands still for its whole lease is declared dead.

use crate::options::EngineOptions;
use crate::sight;
use domain::{Error, SessionId};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use store::session::{self, LiveSession, Renewal};
use store::{Caller, Store};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) struct Lease {
    pub id: SessionId,
    lease: Duration,
    /// When the last renewal that succeeded was begun.
    renewed: Mutex<Instant>,
    /// Ends everything done under this session.
    pub lost: CancellationToken,
}

impl Lease {
    pub async fn open(store: &Store, options: &EngineOptions, lost: CancellationToken) -> Result<Self, Error> {
        let id = SessionId::generate(store.ambient().uuid());
        let begun = Instant::now();
        let (row, instance) = (id.clone(), options.instance_id.clone());
        let (lease, longest_call) = (options.lease, options.call_timeout);
        store
            .write(&Caller::engine(), "sessions", move |tx| session::open(tx, &row, &instance, lease, longest_call))
            .await?;
        Ok(Self { id, lease: options.lease, renewed: Mutex::new(begun), lost })
    }

    /// How long the lease is certain to hold, by our own clock.
    pub fn remaining(&self) -> Duration {
        let renewed = *self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        self.lease.saturating_sub(renewed.elapsed())
    }

    async fn renew(&self, store: &Store) -> Result<Renewal, Error> {
        let begun = Instant::now();
        let id = self.id.clone();
        let renewal = store.write(&Caller::engine(), "sessions", move |tx| session::renew(tx, &id)).await?;
        if renewal != Renewal::Lost {
            *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = begun;
        }
        Ok(renewal)
    }

    /// Renews until the session is lost. `schema_moved` is told when a newer server has migrated.
    pub async fn keep(&self, store: &Store, schema_moved: &CancellationToken) {
        let mut rivals = Rivals::default();
        loop {
            tokio::select! {
                biased;
                () = self.lost.cancelled() => return,
                () = tokio::time::sleep(self.lease / 4) => {}
            }
            match self.renew(store).await {
                Ok(Renewal::Renewed) => {}
                Ok(Renewal::Lost) => {
                    sight::lease_lost();
                    tracing::error!(session = %self.id, "the session lease was lost: others have taken over its work");
                    self.lost.cancel();
                    return;
                }
                Ok(Renewal::SchemaMoved(version)) => {
                    if !schema_moved.is_cancelled() {
                        tracing::warn!(
                            version,
                            "a newer server has migrated the database: this one claims no more work"
                        );
                        schema_moved.cancel();
                    }
                }
                // nobody can have declared us dead without the database either; the clock decides meanwhile
                Err(e) => tracing::warn!(error = %e, "renewing the session lease"),
            }
            if store.is_shared()
                && let Err(e) = rivals.watch(store, &self.id).await
            {
                tracing::warn!(error = %e, "watching the other servers' sessions");
            }
        }
    }
}

/// What we have seen of the other sessions, by our own clock.
#[derive(Default)]
struct Rivals {
    seen: HashMap<SessionId, (u64, Instant)>,
}

impl Rivals {
    async fn watch(&mut self, store: &Store, own: &SessionId) -> Result<(), Error> {
        let live = store.read(session::live).await?;
        self.seen.retain(|id, _| live.iter().any(|s| s.id == *id));
        for rival in live.into_iter().filter(|s| s.id != *own) {
            if let Some(still_for) = self.standing_still(&rival)
                && still_for >= rival.lease
            {
                self.declare_dead(store, rival, still_for).await?;
            }
        }
        Ok(())
    }

    fn standing_still(&mut self, rival: &LiveSession) -> Option<Duration> {
        let entry = self.seen.entry(rival.id.clone()).or_insert((rival.renewals, Instant::now()));
        if entry.0 != rival.renewals {
            *entry = (rival.renewals, Instant::now());
            return None;
        }
        Some(entry.1.elapsed())
    }

    async fn declare_dead(&self, store: &Store, rival: LiveSession, still_for: Duration) -> Result<(), Error> {
        let because = format!("no renewal seen for {} s", still_for.as_secs());
        let session = rival.clone();
        let dead =
            store.write(&Caller::engine(), "sessions", move |tx| session::declare_dead(tx, &session, &because)).await?;
        if dead {
            sight::rival_declared_dead();
            tracing::warn!(session = %rival.id, "a server has stopped renewing its lease: its work is taken over");
        }
        Ok(())
    }
}
