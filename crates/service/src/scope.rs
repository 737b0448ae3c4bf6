//! Which machines a stream may speak of: all, or those of one customer. A customer's are looked up when
//! they are first met, and anew every while, since a machine can change hands.

use crate::Call;
use domain::{Error, MachineId};
use std::collections::HashMap;
use std::time::Duration;
use store::{Store, Tx, TxResult, machine};
use tokio::time::Instant;

/// Machines whose owner a stream remembers; beyond that it asks again.
const REMEMBERED_MAX: usize = 10_000;
/// How long an owner is believed.
const BELIEVED: Duration = Duration::from_secs(1);

pub(crate) struct InScope {
    /// The one customer; empty: every machine is in scope.
    customer_id: String,
    known: HashMap<MachineId, (bool, Instant)>,
}

impl InScope {
    pub fn new(call: &Call) -> Self {
        Self { customer_id: call.by.customer_id.clone(), known: HashMap::new() }
    }

    pub fn has(&self, id: &MachineId) -> bool {
        self.customer_id.is_empty() || self.known.get(id).is_some_and(|k| k.0)
    }

    fn unknown<'a>(&mut self, ids: impl Iterator<Item = &'a MachineId>) -> Vec<MachineId> {
        if self.customer_id.is_empty() {
            return Vec::new();
        }
        if self.known.len() > REMEMBERED_MAX {
            self.known.clear();
        }
        self.known.retain(|_, (_, at)| at.elapsed() < BELIEVED);
        let mut ids: Vec<MachineId> = ids.filter(|id| !self.known.contains_key(id)).cloned().collect();
        ids.sort();
        ids.dedup();
        ids
    }

    /// Looks up the machines that are to be spoken of.
    pub fn learn<'a>(&mut self, tx: &mut Tx<'_>, ids: impl Iterator<Item = &'a MachineId>) -> TxResult<()> {
        let ids = self.unknown(ids);
        self.remember(owned(tx, &self.customer_id, ids)?);
        Ok(())
    }

    /// The same, outside a transaction.
    pub async fn look<'a>(&mut self, store: &Store, ids: impl Iterator<Item = &'a MachineId>) -> Result<(), Error> {
        let ids = self.unknown(ids);
        if !ids.is_empty() {
            let customer = self.customer_id.clone();
            self.remember(store.read(move |tx| owned(tx, &customer, ids)).await?);
        }
        Ok(())
    }

    fn remember(&mut self, owned: Vec<(MachineId, bool)>) {
        let now = Instant::now();
        self.known.extend(owned.into_iter().map(|(id, own)| (id, (own, now))));
    }
}

fn owned(tx: &mut Tx<'_>, customer: &str, ids: Vec<MachineId>) -> TxResult<Vec<(MachineId, bool)>> {
    let mut owned = Vec::with_capacity(ids.len());
    for id in ids {
        let own = machine::get(tx, &id)?.is_some_and(|m| m.spec.customer_id == customer);
        owned.push((id, own));
    }
    Ok(owned)
}
