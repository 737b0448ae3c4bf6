//! Whoever places things on nodes, played: it is asked to release them, and remembers who asked why.

use async_trait::async_trait;
use domain::{Error, NodeId};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use workflow::job::Allocations;

#[derive(Default)]
pub struct Placed {
    on: Mutex<BTreeMap<String, String>>,
    released: Mutex<Vec<String>>,
}

impl Placed {
    pub fn place(&self, node: &str, what: Option<&str>) {
        let mut on = self.on.lock().unwrap_or_else(PoisonError::into_inner);
        match what {
            Some(what) => on.insert(node.to_owned(), what.to_owned()),
            None => on.remove(node),
        };
    }

    /// What was, and for which reason.
    pub fn released(&self) -> Vec<String> {
        self.released.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl Allocations for Placed {
    async fn on(&self, node: &NodeId) -> Result<Vec<String>, Error> {
        let on = self.on.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(on.get(node.as_str()).cloned().into_iter().collect())
    }

    async fn release(&self, node: &NodeId, reason: &str) -> Result<(), Error> {
        let what = self.on.lock().unwrap_or_else(PoisonError::into_inner).remove(node.as_str());
        let told = what.map(|what| format!("{what}: {reason}"));
        self.released.lock().unwrap_or_else(PoisonError::into_inner).extend(told);
        Ok(())
    }
}
