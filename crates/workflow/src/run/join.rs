//! Joins the machine to a cluster. Registered is joined; whether it is healthy is the next step's business.

use super::stage::{At, Stage, acted, missing};
use async_trait::async_trait;
use domain::stage::FailureClass;
use engine::{Acted, Failure, Look, Seen};
use provider::{Joining, Membership};

pub(super) struct Join {
    pub cluster_ref: String,
}

#[async_trait]
impl Stage for Join {
    async fn look(&self, at: &At<'_>) -> Look {
        let Some(cluster) = at.access.provider.cluster() else { return Seen::Failed(missing("cluster")).into() };
        match cluster.membership(at.target(), &self.cluster_ref).await {
            Ok(Membership::Ready) => Seen::Done(format!("member of {}", self.cluster_ref)).into(),
            Ok(Membership::NotReady(why)) => {
                Seen::Done(format!("member of {}, not ready yet: {why}", self.cluster_ref)).into()
            }
            Ok(Membership::NotFound) if at.cx.may_have_acted => match cluster.joining(at.target(), &at.op).await {
                Ok(Joining::Running) => at.waiting(format!("the machine to join {}", self.cluster_ref)).into(),
                Ok(Joining::Failed(why)) => {
                    Seen::Failed(Failure::new("JOIN_FAILED", FailureClass::Transient, why)).into()
                }
                // the cluster may hear of it yet
                Ok(Joining::Unknown) => Seen::Clear.into(),
                Err(e) => at.unseen(e).into(),
            },
            Ok(Membership::NotFound) => Seen::Clear.into(),
            Err(e) => at.unseen(e).into(),
        }
    }

    async fn act(&self, at: &At<'_>) -> Acted {
        match at.access.provider.cluster() {
            Some(cluster) => acted(cluster.join(at.target(), &self.cluster_ref, &at.op).await),
            None => Acted::No(missing("cluster")),
        }
    }
}
