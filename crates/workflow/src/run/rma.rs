//! The steps of a return to the vendor: nothing runs on it, it is off, the return is open.

use super::stage::{At, Stage, acted, missing};
use async_trait::async_trait;
use domain::plan::RmaAction;
use domain::stage::FailureClass;
use engine::{Acted, Failure, Look, Seen};
use provider::{Drain, PowerState};

pub(super) struct Rma {
    pub action: RmaAction,
    pub reason: String,
}

#[async_trait]
impl Stage for Rma {
    async fn look(&self, at: &At<'_>) -> Look {
        match self.action {
            RmaAction::DrainCheck => drain_check(at).await,
            RmaAction::Shutdown => match at.inspect().await {
                Ok(seen) if seen.power == PowerState::Off => Seen::Done("powered off".to_owned()),
                Ok(_) => Seen::Clear,
                Err(seen) => seen,
            },
            RmaAction::Return => is_open(at).await,
        }
        .into()
    }

    async fn act(&self, at: &At<'_>) -> Acted {
        let provider = &at.access.provider;
        match self.action {
            RmaAction::DrainCheck => Acted::Yes,
            RmaAction::Shutdown => match provider.power() {
                Some(power) => acted(power.power_off(at.target(), &at.op).await),
                None => Acted::No(missing("power")),
            },
            RmaAction::Return => match provider.rma() {
                Some(rma) => acted(rma.open_return(at.target(), &self.reason, &at.op).await),
                None => Acted::No(missing("rma")),
            },
        }
    }
}

async fn drain_check(at: &At<'_>) -> Seen {
    let cluster_ref = &at.target().spec.target_cluster_ref;
    if cluster_ref.is_empty() {
        return Seen::Done("not assigned to a cluster".to_owned());
    }
    let Some(cluster) = at.access.provider.cluster() else { return Seen::Failed(missing("cluster")) };
    match cluster.drain_state(at.target(), cluster_ref).await {
        Ok(Drain::Drained) => Seen::Done(format!("nothing runs on it in {cluster_ref}")),
        Ok(Drain::InUse(what)) => Seen::Failed(Failure::new(
            "NOT_DRAINED",
            FailureClass::NeedsOperator,
            format!("still in use in {cluster_ref}: {what}; drain it, then start the run again"),
        )),
        Err(e) => at.unseen(e),
    }
}

async fn is_open(at: &At<'_>) -> Seen {
    let Some(rma) = at.access.provider.rma() else { return Seen::Failed(missing("rma")) };
    match rma.open_return_of(at.target()).await {
        Ok(Some(operation)) if at.is_ours(&operation) => Seen::Done("the return is open".to_owned()),
        Ok(Some(operation)) => Seen::Done(format!("a return was open already, by {operation}")),
        Ok(None) => Seen::Clear,
        Err(e) => at.unseen(e),
    }
}
