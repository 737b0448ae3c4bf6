//! Discovery boots are counted when they are handed out, not when they report: one whose report never comes (no driver
//! for its card, no address) must leave the machine to its disk after a few boots.

use crate::Service;
use domain::{BootNodeId, Error};
use store::{Caller, boot_node};

impl Service {
    /// A discovery boot is about to be handed out.
    pub async fn look_offered(&self, node: &BootNodeId) -> Result<(), Error> {
        let id = node.clone();
        self.store().write(&Caller::new("machines"), node.as_str(), move |tx| boot_node::looked(tx, &id)).await
    }
}
