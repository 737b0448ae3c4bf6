//! Heartbeats: noted in memory, written for many together a moment later. Inventory and health are written when they
//! are news. What a crash loses is that moment.

use super::sessions::{skew_found, together};
use super::{AgentSession, caller};
use crate::Service;
use domain::agent::AgentIdentity;
use domain::{Error, FindingId, NodeId, Timestamp, metric};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use store::agent::{self, Beat};
use tokio::sync::Notify;

/// From the first that is noted until they are written.
const WRITTEN_AFTER: Duration = Duration::from_secs(2);
/// By one statement.
const TOGETHER: usize = 1000;
/// Beyond that one is not noted, and is heard when it beats again.
const NOTED_MAX: usize = 100_000;
/// An inventory, or health that has changed, is written no more often; what is missed is asked for, or told again.
const NEWS_EVERY: Duration = Duration::from_secs(5);
/// An inventory that does not come is asked for no more often.
const ASKED_EVERY: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Beats {
    /// In the order of ids: servers that share a database lock rows in the same order.
    noted: Mutex<BTreeMap<NodeId, Beat>>,
    some: Notify,
}

impl Beats {
    fn note(&self, beat: Beat) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.len() >= NOTED_MAX {
            return;
        }
        // an older connection that is not ended yet
        if noted.get(&beat.node_id).is_some_and(|there| there.session > beat.session) {
            return;
        }
        let first = noted.is_empty();
        noted.insert(beat.node_id.clone(), beat);
        drop(noted);
        if first {
            self.some.notify_one();
        }
    }

    fn take(&self) -> Vec<Beat> {
        let noted = std::mem::take(&mut *self.noted.lock().unwrap_or_else(PoisonError::into_inner));
        noted.into_values().collect()
    }
}

/// What is remembered of a session's heartbeats.
pub(super) struct Pulse {
    beats: u32,
    last: Option<Timestamp>,
    skewed: bool,
    /// Of the inventory that is stored, in the agent's own words.
    digest: String,
    inventory: News,
    health: News,
    /// When it was last asked for its inventory.
    asked: Option<Timestamp>,
}

/// What was stored last, and when.
#[derive(Default)]
struct News {
    known: Option<[u8; 32]>,
    at: Option<Timestamp>,
}

impl News {
    /// Whether this is something else, and it is time to write it.
    fn is_due(&self, about: &str, now: Timestamp) -> Option<[u8; 32]> {
        let hash: [u8; 32] = Sha256::digest(about.as_bytes()).into();
        let recent = self.at.is_some_and(|at| now.since(at) < NEWS_EVERY);
        (self.known != Some(hash) && !recent).then_some(hash)
    }

    fn stored(&mut self, hash: [u8; 32], now: Timestamp) {
        *self = Self { known: Some(hash), at: Some(now) };
    }
}

impl Pulse {
    pub fn of(there: &AgentIdentity, skewed: bool) -> Self {
        Self {
            beats: there.beats,
            last: there.last_beat,
            skewed,
            digest: there.inventory_digest.clone(),
            inventory: News::default(),
            health: News::default(),
            asked: None,
        }
    }
}

/// One heartbeat; its documents as JSON.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat {
    pub clock: Option<Timestamp>,
    pub inventory_digest: String,
    pub inventory: Option<String>,
    /// What is stored, and the part of it whose change is news.
    pub health: Option<(String, String)>,
}

impl AgentSession {
    /// Whether an inventory of it is known.
    pub fn inventory_known(&self) -> bool {
        !self.pulse.digest.is_empty()
    }

    /// Whether the agent should be asked for its inventory now: it has another one than we.
    pub fn asks_for_inventory(&mut self, digest: &str, now: Timestamp) -> bool {
        let recent = self.pulse.asked.is_some_and(|at| now.since(at) < ASKED_EVERY);
        let wanted = !digest.is_empty() && digest != self.pulse.digest && !recent;
        if wanted {
            self.pulse.asked = Some(now);
        }
        wanted
    }
}

impl Service {
    /// Its clock minus ours, in milliseconds.
    pub(super) fn skew_of(&self, clock: Option<Timestamp>) -> i64 {
        clock.map_or(0, |clock| clock.micros().saturating_sub(self.now().micros()) / 1000)
    }

    /// Why a clock is too far off, if it is.
    pub(super) fn skewed(&self, skew_ms: i64) -> Option<String> {
        let seconds = skew_ms.unsigned_abs() / 1000;
        let ahead = if skew_ms > 0 { "ahead" } else { "behind" };
        (seconds > self.agent_setup().max_skew.as_secs()).then(|| format!("its clock is {seconds} s {ahead}"))
    }

    /// A heartbeat. Writes nothing by itself but news.
    pub async fn agent_beats(&self, session: &mut AgentSession, beat: Heartbeat) -> Result<(), Error> {
        metrics::counter!(metric::AGENT_HEARTBEATS.name).increment(1);
        let (now, policy) = (self.now(), &self.agent_setup().heartbeat);
        let pulse = &mut session.pulse;
        let skew_ms = self.skew_of(beat.clock);
        pulse.beats = match pulse.last.map(|last| now.since(last)) {
            // to beat faster proves nothing
            Some(since) if since < policy.interval / 2 => pulse.beats.max(1),
            Some(since) if policy.is_gapless(since) => pulse.beats.saturating_add(1),
            Some(_) | None => 1,
        };
        pulse.last = Some(now);
        let noted =
            Beat { node_id: session.node_id.clone(), session: session.session, at: now, beats: pulse.beats, skew_ms };
        self.inner.agents.beats.note(noted);
        let skewed = self.skewed(skew_ms);
        if beat.clock.is_some() && skewed.is_some() != pulse.skewed {
            let (id, finding) = (session.node_id.clone(), FindingId::generate(self.store().ambient().uuid()));
            let flipped = skewed.is_some();
            self.store()
                .write(&caller(&session.node_id), session.node_id.as_str(), move |tx| {
                    skew_found(tx, &id, skewed.as_deref(), &finding)
                })
                .await?;
            session.pulse.skewed = flipped;
        }
        if let Some(inventory) = beat.inventory {
            self.keep_inventory(session, inventory, beat.inventory_digest).await?;
        }
        match beat.health {
            Some((health, news)) => self.keep_health(session, health, &news).await,
            None => Ok(()),
        }
    }

    async fn keep_inventory(&self, session: &mut AgentSession, text: String, digest: String) -> Result<(), Error> {
        let Some(hash) = session.pulse.inventory.is_due(&text, self.now()) else { return Ok(()) };
        let (id, number, words) = (session.node_id.clone(), session.session, digest.clone());
        self.store()
            .write(&caller(&session.node_id), session.node_id.as_str(), move |tx| {
                agent::set_inventory(tx, &id, number, &text, &words)
            })
            .await?;
        session.pulse.inventory.stored(hash, self.now());
        session.pulse.digest = digest;
        Ok(())
    }

    async fn keep_health(&self, session: &mut AgentSession, text: String, news: &str) -> Result<(), Error> {
        let Some(hash) = session.pulse.health.is_due(news, self.now()) else { return Ok(()) };
        let (id, number) = (session.node_id.clone(), session.session);
        self.store()
            .write(&caller(&session.node_id), session.node_id.as_str(), move |tx| {
                agent::set_health(tx, &id, number, &text)
            })
            .await?;
        session.pulse.health.stored(hash, self.now());
        Ok(())
    }

    /// Writes down what is noted, until the server stops.
    pub(super) async fn write_beats(&self) {
        loop {
            let (some, closing) = (&self.inner.agents.beats.some, &self.inner.closing);
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
            self.write_noted_beats().await;
        }
        self.write_noted_beats().await;
    }

    async fn write_noted_beats(&self) {
        for beats in self.inner.agents.beats.take().chunks(TOGETHER) {
            let beats = beats.to_vec();
            if let Err(e) = self.store().write(&together(), "heartbeats", move |tx| agent::heard(tx, &beats)).await {
                // they are noted again when they beat again
                tracing::warn!(error = %e, "heartbeats could not be written");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_one_that_beats_twice_the_last_is_written_and_there_is_a_bound() {
        let beats = Beats::default();
        let beat = |n: usize, at: i64| Beat {
            node_id: NodeId::from_text(format!("nod_{n:032x}")),
            session: 1,
            at: Timestamp::from_micros(at),
            beats: 1,
            skew_ms: 0,
        };
        beats.note(beat(2, 1));
        beats.note(beat(1, 1));
        beats.note(beat(2, 5));
        let newer = Beat { session: 2, ..beat(2, 7) };
        beats.note(newer.clone());
        beats.note(beat(2, 9));
        assert_eq!(beats.take(), [beat(1, 1), newer], "and of two connections the newer one's");
        (0..=NOTED_MAX).for_each(|n| beats.note(beat(n, 1)));
        assert_eq!((beats.take().len(), beats.take().len()), (NOTED_MAX, 0));
    }

    #[test]
    fn news_is_written_when_it_is_news_and_not_too_often() {
        let mut news = News::default();
        let (now, later) = (Timestamp::from_micros(0), Timestamp::from_micros(0).plus(NEWS_EVERY));
        let first = news.is_due("a", now).expect("never written");
        news.stored(first, now);
        assert!(news.is_due("b", now).is_none(), "not yet");
        assert!(news.is_due("a", later).is_none(), "no news");
        assert!(news.is_due("b", later).is_some());
    }
}
