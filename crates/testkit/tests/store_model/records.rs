//! Operations on the smaller records: the audit, remembered keys, observations, sweeps, revoked tokens.

use crate::{World, known, machine_id, say};
use domain::TokenId;
use domain::condition::{Condition, ConditionType};
use domain::filter::Filter;
use domain::observation::{Freshness, Lane, Observation, Observed};
use proptest::prelude::*;
use std::time::Duration;
use store::{Ambient as _, Cause, Tx, TxResult, audit, idempotency, observation, sweep, token};

#[derive(Clone, Copy, Debug)]
pub enum Keep {
    Audit { refused: bool },
    Remember { scope: u8, key: u8 },
    Forget { scope: u8, minutes: u8 },
    Observe { machine: u8, up: bool, slow: bool },
    Sweep { slow: bool, sweeper: u8, behind: bool },
    Beat { slow: bool, behind: bool },
    Finish { slow: bool, behind: bool, complete: bool },
    Revoke { token: u8 },
}

pub fn keep() -> impl Strategy<Value = Keep> {
    let (n, yes) = (any::<u8>, any::<bool>);
    prop_oneof![
        yes().prop_map(|refused| Keep::Audit { refused }),
        (n(), n()).prop_map(|(scope, key)| Keep::Remember { scope, key }),
        (n(), n()).prop_map(|(scope, minutes)| Keep::Forget { scope, minutes }),
        (n(), yes(), yes()).prop_map(|(machine, up, slow)| Keep::Observe { machine, up, slow }),
        (yes(), n(), yes()).prop_map(|(slow, sweeper, behind)| Keep::Sweep { slow, sweeper, behind }),
        (yes(), yes()).prop_map(|(slow, behind)| Keep::Beat { slow, behind }),
        (yes(), yes(), yes()).prop_map(|(slow, behind, complete)| Keep::Finish { slow, behind, complete }),
        n().prop_map(|token| Keep::Revoke { token }),
    ]
}

pub fn lane(slow: bool) -> Lane {
    if slow { Lane::Slow } else { Lane::Quick }
}

pub fn scope(n: u8) -> String {
    format!("scope/{}", n % 2)
}

pub fn key(n: u8) -> String {
    format!("key {}", n % 5)
}

/// The present round of a lane, or the one before it.
fn round(tx: &mut Tx<'_>, slow: bool, behind: bool) -> TxResult<u64> {
    let now = sweep::get(tx, lane(slow))?.map_or(0, |s| s.round);
    Ok(now.saturating_sub(u64::from(behind)))
}

impl World {
    pub async fn apply_to_records(&self, keep: Keep) -> String {
        match keep {
            Keep::Audit { refused } => {
                let code = if refused { "NOT_FOUND" } else { "" }.to_owned();
                let entry = audit::Entry { actor: "ü".into(), call: "model".into(), code, ..audit::Entry::default() };
                let put = self.put(move |tx| {
                    audit::insert(tx, &entry);
                    Ok(())
                });
                say(put.await)
            }
            Keep::Remember { scope: s, key: k } => {
                let remember = move |tx: &mut Tx<'_>| match idempotency::find(tx, &scope(s), &key(k))? {
                    Some(known) => Ok(known.answer),
                    None => idempotency::remember(tx, &scope(s), &key(k), "print", "made").map(|()| String::new()),
                };
                say(self.put(remember).await)
            }
            Keep::Forget { scope: s, minutes } => {
                let forget = move |tx: &mut Tx<'_>| {
                    let old = tx.now().minus(Duration::from_secs(60 * u64::from(minutes)));
                    idempotency::forget(tx, &scope(s), old)
                };
                say(self.put(forget).await)
            }
            Keep::Observe { machine, up, slow } => {
                let (id, at) = (machine_id(machine), self.clock.now());
                let observe = move |tx: &mut Tx<'_>| {
                    let there = known(tx, &id)?;
                    let seen = |kind| Observed { condition: Condition::new(kind, up, "Model", at), confirmed: true };
                    let new = Observation {
                        version: there.observation.as_ref().map_or(1, |o| o.version + 1),
                        lane: lane(slow),
                        source: "model".into(),
                        conditions: vec![seen(ConditionType::Reachable), seen(ConditionType::BmcReachable)],
                        facts: "on".into(),
                        trouble: None,
                        last_seen: up.then_some(at),
                        observed_at: at,
                        fresh: Freshness::of_look(at),
                    };
                    observation::record(tx, &there, &new, "model")
                };
                say(self.put(observe).await)
            }
            Keep::Sweep { slow, sweeper, behind } => {
                let (name, stale) = (format!("i{}", sweeper % 2), Duration::from_secs(90));
                let claim = move |tx: &mut Tx<'_>| {
                    let after = round(tx, slow, behind)?;
                    sweep::claim(tx, lane(slow), after, &name, stale)
                };
                say(self.put(claim).await)
            }
            Keep::Beat { slow, behind } => {
                let beat = move |tx: &mut Tx<'_>| {
                    let round = round(tx, slow, behind)?;
                    sweep::beat(tx, lane(slow), round)
                };
                say(self.put(beat).await)
            }
            Keep::Finish { slow, behind, complete } => {
                let finish = move |tx: &mut Tx<'_>| {
                    let round = round(tx, slow, behind)?;
                    sweep::finish(tx, lane(slow), round, complete)
                };
                say(self.put(finish).await)
            }
            Keep::Revoke { token: n } => {
                let revoke = move |tx: &mut Tx<'_>| {
                    let id = tx.point(&token::by_hash(&format!("h{}", n % 4)))?.map(|t| t.id);
                    let id = id.unwrap_or_else(|| TokenId::from_text("tok_none"));
                    token::revoke(tx, &id, &Cause::operator("model", domain::token::REVOKED, ""))
                };
                say(self.put(revoke).await)
            }
        }
    }
}

/// What can be read of them, in words.
pub fn contents(tx: &mut Tx<'_>) -> TxResult<Vec<String>> {
    let mut all = Vec::new();
    for entry in audit::list(tx, &Filter::Everything, None, 1000)? {
        // numbers may have gaps: what was rolled back has used some up
        all.push(format!("{:?}", audit::Entry { number: 0, ..entry }));
    }
    for lane in Lane::ALL {
        all.push(format!("{:?}", sweep::get(tx, lane)?));
    }
    Ok(all)
}
