//! What people do with a machine's node in its cluster. The cluster is the machine's own
//! (`spec.target_cluster_ref`), reached through the machine's provider.

use crate::act::{Acted, Asked, HardwareChange, Outcome, answer, done};
use crate::hardware::Held;
use crate::machines::required;
use crate::{Call, Service};
use domain::machine::Machine;
use domain::{Error, Reason};
use futures::future::BoxFuture;
use provider::{
    ClusterCheck, ClusterControl, DrainPass, EvictOptions, Provider, ProviderError, ProviderResult, Target,
};
use std::sync::Arc;

/// How pods are asked to leave.
pub type Evict = EvictOptions;
/// What one pass came to.
pub type Drained = DrainPass;

impl Outcome for DrainPass {
    /// Who was asked to leave is asked again, which does no harm.
    const REPEATABLE: bool = true;
}

fn cluster_of<'a>(
    provider: &'a dyn Provider,
    machine: &'a Machine,
) -> Result<(&'a dyn ClusterControl, &'a str), Error> {
    let reference = machine.spec.target_cluster_ref.as_str();
    if reference.is_empty() {
        return Err(Error::new(
            Reason::ClusterMissing,
            format!("machine {} names no cluster (spec.target_cluster_ref)", machine.id),
        ));
    }
    let name = machine.spec.provider_name(&machine.labels);
    let lacks = || ProviderError::capability_missing(&format!("provider {name:?}"), "clusters");
    Ok((provider.cluster().ok_or_else(lacks)?, reference))
}

type Order<'a, T> = BoxFuture<'a, ProviderResult<T>>;

impl Service {
    pub async fn check_cluster(&self, cluster_ref: &str, provider: &str) -> Result<ClusterCheck, Error> {
        let cluster_ref = required("cluster_ref", cluster_ref)?;
        let (_, found) = self.inner.providers.choose(provider, "clusters", |p| p.cluster().is_some())?;
        let lacks = || ProviderError::capability_missing(&format!("provider {provider:?}"), "clusters");
        let cluster = found.cluster().ok_or_else(lacks)?;
        answer(&format!("cluster {cluster_ref:?}"), self.act_within(), cluster.check(&cluster_ref)).await
    }

    pub async fn cordon_machine(
        &self,
        call: &Arc<Call>,
        id: &str,
        on: bool,
        reason: &str,
    ) -> Result<HardwareChange, Error> {
        let asked = Asked::new(if on { "cordon" } else { "uncordon" }, reason)?;
        let what = asked.what.clone();
        let acted = self
            .in_cluster(call, id, asked, move |cluster, target, name| {
                Box::pin(async move { cluster.cordon(target, name, on).await.map(Acted::from) })
            })
            .await?;
        Ok(HardwareChange { machine_id: id.to_owned(), what, acted })
    }

    /// One pass over the node's pods.
    pub async fn drain_machine(
        &self,
        call: &Arc<Call>,
        id: &str,
        options: Evict,
        reason: &str,
    ) -> Result<Drained, Error> {
        self.in_cluster(call, id, Asked::new("drain", reason)?, move |cluster, target, name| {
            Box::pin(async move { cluster.evict_pass(target, name, &options).await })
        })
        .await
    }

    pub async fn delete_cluster_node(&self, call: &Arc<Call>, id: &str) -> Result<HardwareChange, Error> {
        let asked = Asked::new("delete the node", "")?;
        let what = asked.what.clone();
        let acted = self
            .in_cluster(call, id, asked, |cluster, target, name| {
                Box::pin(async move { cluster.delete_node(target, name).await.map(Acted::from) })
            })
            .await?;
        Ok(HardwareChange { machine_id: id.to_owned(), what, acted })
    }

    async fn in_cluster<T: Outcome>(
        &self,
        call: &Arc<Call>,
        id: &str,
        asked: Asked,
        order: impl for<'a> FnOnce(&'a dyn ClusterControl, &'a Target, &'a str) -> Order<'a, T> + Send + 'static,
    ) -> Result<T, Error> {
        let (service, what) = (self.clone(), asked.what.clone());
        self.free_machine(call, id, asked, Held::Refuses, move |machine, _| async move {
            let provider = service.inner.providers.get(machine.spec.provider_name(&machine.labels))?;
            let (cluster, name) = cluster_of(provider.as_ref(), &machine)?;
            let target = Target::of(&machine);
            done(&format!("{what} of {}", machine.id), service.act_within(), order(cluster, &target, name)).await
        })
        .await
    }
}
