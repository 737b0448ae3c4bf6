//! Confirms that the machine is registered in its cluster and ready. Only looks.

use super::stage::{At, Stage, missing};
use async_trait::async_trait;
use engine::{Acted, Look, Seen};
use provider::Membership;

pub(super) struct Verify {
    pub cluster_ref: String,
}

#[async_trait]
impl Stage for Verify {
    async fn look(&self, at: &At<'_>) -> Look {
        let Some(cluster) = at.access.provider.cluster() else { return Seen::Failed(missing("cluster")).into() };
        let cluster_ref = &self.cluster_ref;
        match cluster.membership(at.target(), cluster_ref).await {
            Ok(Membership::Ready) => Seen::Done(format!("ready in {cluster_ref}")).into(),
            Ok(Membership::NotReady(why)) => at.waiting(format!("readiness in {cluster_ref}: {why}")).into(),
            Ok(Membership::NotFound) => at.waiting(format!("the machine to register in {cluster_ref}")).into(),
            Err(e) => at.unseen(e).into(),
        }
    }

    async fn act(&self, _: &At<'_>) -> Acted {
        Acted::Yes
    }
}
