//! The clusters, by name: each is a kubeconfig in the keyring.

use crate::datacenter::Inner;
use domain::credential::Credential;
use domain::stage::FailureClass;
use domain::{Reason, Secret};
use kube::Cluster;
use provider::{ProviderError, ProviderResult};
use std::sync::Arc;

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
        let cluster = Arc::new(Cluster::new(name, &kubeconfig)?);
        Ok(self.clusters.put(&name.to_owned(), kubeconfig, cluster))
    }
}

fn no_cluster(name: &str, why: &str) -> ProviderError {
    let message =
        format!("there is no cluster {name:?}: {why}; add it with 'millwright cluster add {name} --kubeconfig FILE'");
    ProviderError::because(Reason::ClusterMissing, FailureClass::NeedsOperator, message)
}

/// What the cluster was made from.
pub(crate) type MadeFrom = Secret;
