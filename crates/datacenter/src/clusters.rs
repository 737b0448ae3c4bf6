//! The clusters, by name: each is a kubeconfig in the keyring. Joining them, and what they say of a machine.

use crate::datacenter::{Datacenter, Inner};
use crate::host::last_words;
use crate::lane::For;
use async_trait::async_trait;
use domain::credential::Credential;
use domain::limits::short;
use domain::stage::FailureClass;
use domain::{Reason, Secret};
use kube::{Cluster, Evict, NodeOf};
use provider::{
    Ack, ClusterCheck, ClusterControl, Drain, DrainPass, EvictOptions, ExecState, Joining, Membership, Operation,
    ProviderError, ProviderResult, Target,
};
use std::sync::Arc;
use std::time::Duration;

impl Inner {
    pub async fn cluster(&self, name: &str) -> ProviderResult<Arc<Cluster>> {
        let kubeconfig = match self.keyring.credential(name).await {
            Ok(Credential::Kubeconfig(kubeconfig)) => kubeconfig,
            Ok(other) => {
                return Err(no_cluster(name, &format!("the credential of that name is of kind {}", other.kind())));
            }
            Err(e) if matches!(e.reason(), Reason::CredentialNotFound | Reason::CredentialMissing) => {
                return Err(no_cluster(name, "it is not configured"));
            }
            Err(e) => return Err(e),
        };
        if let Some(cluster) = self.clusters.get(&name.to_owned(), &kubeconfig) {
            return Ok(cluster);
        }
        let cluster = Arc::new(Cluster::new(name, &kubeconfig, self.options.call_timeout)?);
        Ok(self.clusters.put(&name.to_owned(), kubeconfig, cluster))
    }

    /// A token that has served lets nobody in any more. If that fails it ends by itself in minutes.
    async fn forget_token(&self, target: &Target, cluster_ref: &str) {
        let Some(token) = self.tokens.get(&target.machine_id, &cluster_ref.to_owned()) else { return };
        let Ok(cluster) = self.cluster(cluster_ref).await else { return };
        // behind a call that has had most of its time
        let forgotten = tokio::time::timeout(self.options.call_timeout / 5, cluster.forget_join(&token)).await;
        if matches!(forgotten, Ok(Ok(_))) {
            self.tokens.forget(&target.machine_id);
        }
    }
}

fn no_cluster(name: &str, why: &str) -> ProviderError {
    let message =
        format!("there is no cluster {name:?}: {why}; add it with 'millwright cluster add {name} --kubeconfig FILE'");
    ProviderError::because(Reason::ClusterMissing, FailureClass::NeedsOperator, message)
}

/// What the cluster was made from.
pub(crate) type MadeFrom = Secret;

#[async_trait]
impl ClusterControl for Datacenter {
    /// The host runs `kubeadm` by itself, with a token that goes by its standard input and is good for minutes.
    async fn join(&self, target: &Target, cluster_ref: &str, op: &Operation) -> ProviderResult<Ack> {
        let inner = &self.inner;
        inner.reading(target, For::Work).await?;
        let cluster = inner.cluster(cluster_ref).await?;
        let (reached, key) = (inner.host(target, For::Work).await?, op.key());
        let before = inner.on_host(&reached, For::Work, reached.host.poll(&key, 0)).await?;
        if before.state != ExecState::NeverStarted {
            // it has its token; a second one would be good for nothing
            return Ok(Ack::Accepted);
        }
        let material = cluster.mint_join(inner.options.join_ttl).await?;
        let node = NodeOf::machine(target);
        let script = kube::join_script(&material, node.names.first().map(String::as_str));
        inner.tokens.put(&target.machine_id, cluster_ref.to_owned(), material.token_id.clone());
        let started = reached.host.start(&script.command, &key, Some(&script.stdin));
        let answer = inner.on_host(&reached, For::Work, started).await;
        if matches!(answer, Err(ProviderError::Refused { .. })) {
            inner.forget_token(target, cluster_ref).await;
        }
        answer
    }

    async fn joining(&self, target: &Target, op: &Operation) -> ProviderResult<Joining> {
        let reached = self.inner.host(target, For::Work).await?;
        let progress = self.inner.on_host(&reached, For::Work, reached.host.poll(&op.key(), 0)).await?;
        Ok(match progress.state {
            ExecState::NeverStarted | ExecState::Exited(0) => Joining::Unknown,
            ExecState::Running => Joining::Running,
            ExecState::Exited(status) => {
                let said = last_words(&progress);
                Joining::Failed(short(&format!("kubeadm join ended with exit status {status}: {said}")))
            }
        })
    }

    async fn membership(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Membership> {
        let seen = self.inner.cluster(cluster_ref).await?.membership(&NodeOf::machine(target)).await?;
        if seen != Membership::NotFound {
            self.inner.forget_token(target, cluster_ref).await;
        }
        Ok(seen)
    }

    async fn drain_state(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Drain> {
        self.inner.cluster(cluster_ref).await?.drain_state(&NodeOf::machine(target)).await
    }

    async fn watch_membership(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Membership> {
        self.inner.cluster(cluster_ref).await?.watch_membership(&NodeOf::machine(target)).await
    }

    async fn watch_drain(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Drain> {
        self.inner.cluster(cluster_ref).await?.watch_drain(&NodeOf::machine(target)).await
    }

    async fn check(&self, cluster_ref: &str) -> ProviderResult<ClusterCheck> {
        let seen = self.inner.cluster(cluster_ref).await?.check().await?;
        let count = |nodes| u32::try_from(nodes).unwrap_or(u32::MAX);
        let grant = |right: &String| format!("the kubeconfig may not {right}; grant it there");
        Ok(ClusterCheck {
            endpoint: seen.endpoint,
            version: seen.version,
            nodes: count(seen.nodes_total),
            ready_nodes: count(seen.nodes_ready),
            problems: seen.missing.iter().map(grant).collect(),
        })
    }

    async fn cordon(&self, target: &Target, cluster_ref: &str, on: bool) -> ProviderResult<Ack> {
        self.inner.cluster(cluster_ref).await?.cordon(&NodeOf::machine(target), on).await
    }

    async fn evict_pass(
        &self,
        target: &Target,
        cluster_ref: &str,
        options: &EvictOptions,
    ) -> ProviderResult<DrainPass> {
        let (cluster, node) = (self.inner.cluster(cluster_ref).await?, NodeOf::machine(target));
        let leave = Evict {
            force: options.unmanaged,
            lose_empty_dir: options.local_data,
            grace: options.grace_seconds.map(|seconds| Duration::from_secs(seconds.into())),
        };
        let pass = cluster.evict_pass(&node, &leave).await?;
        let ending = pass.ending.iter().chain(&pass.evicted).map(|pod| (pod.clone(), "it is ending".to_owned()));
        let kept = pass.left.into_iter().map(|left| (left.pod, left.why));
        Ok(DrainPass { left: ending.chain(kept).collect(), evicted: pass.evicted.clone() })
    }

    async fn delete_node(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Ack> {
        self.inner.cluster(cluster_ref).await?.delete_node(&NodeOf::machine(target)).await
    }
}
