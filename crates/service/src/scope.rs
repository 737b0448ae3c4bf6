//! Which machines a stream may speak of: all, or those of one customer. A customer's are looked up anew
//! each time, after what is to be said of them was read, since a machine can change hands: so nothing
//! that happens to one after that is said to the customer who had it before.

use crate::Call;
use domain::{Error, MachineId};
use std::collections::HashSet;
use store::{Store, Tx, TxResult, machine};

pub(crate) struct InScope {
    /// The one customer; empty: every machine is in scope.
    customer_id: String,
    own: HashSet<MachineId>,
}

impl InScope {
    pub fn new(call: &Call) -> Self {
        Self { customer_id: call.by.customer_id.clone(), own: HashSet::new() }
    }

    /// Of the machines that were looked up last.
    pub fn has(&self, id: &MachineId) -> bool {
        self.customer_id.is_empty() || self.own.contains(id)
    }

    /// Looks up the machines that are to be spoken of.
    pub fn learn<'a>(&mut self, tx: &mut Tx<'_>, ids: impl Iterator<Item = &'a MachineId>) -> TxResult<()> {
        if !self.customer_id.is_empty() {
            self.own = owned(tx, &self.customer_id, ids.cloned().collect())?;
        }
        Ok(())
    }

    /// The same, outside a transaction.
    pub async fn look<'a>(&mut self, store: &Store, ids: impl Iterator<Item = &'a MachineId>) -> Result<(), Error> {
        if self.customer_id.is_empty() {
            return Ok(());
        }
        let ids: HashSet<MachineId> = ids.cloned().collect();
        self.own.clear();
        if !ids.is_empty() {
            let customer = self.customer_id.clone();
            self.own = store.read(move |tx| owned(tx, &customer, ids)).await?;
        }
        Ok(())
    }
}

fn owned(tx: &mut Tx<'_>, customer: &str, ids: HashSet<MachineId>) -> TxResult<HashSet<MachineId>> {
    let mut owned = HashSet::with_capacity(ids.len());
    for id in ids {
        if machine::get(tx, &id)?.is_some_and(|m| m.spec.customer_id == customer) {
            owned.insert(id);
        }
    }
    Ok(owned)
}
