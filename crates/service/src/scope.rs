//! Which machines a stream may speak of: all, or those of one customer. Owners are looked up for each
//! batch, since a machine can change hands while a stream is open.

use crate::Call;
use domain::{Error, MachineId};
use std::collections::BTreeSet;
use std::sync::Arc;
use store::{Store, Tx, machine};

/// The machines of one batch that the caller may hear of.
pub(crate) enum InScope {
    All,
    Only(BTreeSet<MachineId>),
}

impl InScope {
    pub fn has(&self, id: &MachineId) -> bool {
        match self {
            InScope::All => true,
            InScope::Only(own) => own.contains(id),
        }
    }

    /// Of these machines, the caller's own.
    pub async fn of(store: &Store, call: &Arc<Call>, ids: BTreeSet<MachineId>) -> Result<Self, Error> {
        if !call.by.is_scoped() {
            return Ok(InScope::All);
        }
        let call = call.clone();
        let own = move |tx: &mut Tx<'_>| {
            let mut own = BTreeSet::new();
            for id in ids {
                if machine::get(tx, &id)?.is_some_and(|m| call.sees(&m)) {
                    own.insert(id);
                }
            }
            Ok(InScope::Only(own))
        };
        store.read(own).await
    }
}
