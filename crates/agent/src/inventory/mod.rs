//! What the machine is made of and how it is, for heartbeats.

use crate::host::Host;
use proto::agent::v1::{Facts, Health, Inventory};

/// Who the hardware says it is.
pub fn facts(_host: &Host) -> Facts {
    Facts::default()
}

/// Everything, read anew.
pub fn inventory(_host: &Host) -> Inventory {
    Inventory::default()
}

/// How it is now.
pub fn health(_host: &Host) -> Health {
    Health::default()
}
