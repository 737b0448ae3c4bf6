//! Following one boot node: as it is, then each change and each step of its progress. Progress is a live signal: what
//! nobody was there to see is not told again.

use crate::{Call, Service};
use domain::Error;
use domain::boot_node::{BootNode, BootState};
use futures::stream::{BoxStream, StreamExt as _};
use std::sync::Arc;
use std::time::Duration;
use store::boot_node;

/// What another server has written is found by looking.
const LOOK_EVERY: Duration = Duration::from_secs(2);

impl Service {
    pub async fn watch_boot_node(
        &self,
        call: &Arc<Call>,
        id: &str,
    ) -> Result<BoxStream<'static, Result<BootNode, Error>>, Error> {
        let first = self.get_boot_node(id).await?;
        let follower = self.store().signals().boot_node(&first.id);
        let (service, call) = (self.clone(), call.clone());
        let state = (service, call, follower, Some(first.clone()), first);
        let stream = futures::stream::try_unfold(state, |(service, call, mut follower, next, mut last)| async move {
            if let Some(node) = next {
                return Ok(Some((node, (service, call, follower, None, last))));
            }
            // nothing comes after that
            if last.state == BootState::Retired {
                return Ok(None);
            }
            loop {
                call.still_good(service.now())?;
                tokio::select! {
                    biased;
                    why = service.over(&call) => return Err(why),
                    () = follower.grew() => {}
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                }
                let found = service.store().point(boot_node::by_id(&last.id)).await?;
                let node = found.ok_or_else(|| crate::boot_nodes::not_found(last.id.as_str()))?;
                if node != last {
                    last = node.clone();
                    return Ok(Some((node, (service, call, follower, None, last))));
                }
            }
        });
        Ok(stream.boxed())
    }
}
