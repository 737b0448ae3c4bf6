//! Whether a cluster's kubeconfig lets us do all that is offered here. Asked before it matters.

use crate::cluster::Cluster;
use crate::objects::{AccessReview, Version};
use crate::rest::Ask;
use domain::stage::FailureClass;
use http::Method;
use provider::{ProviderError, ProviderResult};
use std::time::Duration;

/// What a cluster is like, seen with the rights we have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterCheck {
    /// Of the API server, like `v1.31.2`.
    pub version: String,
    /// Its address.
    pub endpoint: String,
    pub nodes_ready: usize,
    pub nodes_total: usize,
    /// Rights that are needed and not given, like `create pods/eviction`. Without `list nodes` the nodes are not
    /// counted.
    pub missing: Vec<String>,
}

struct Right {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    namespace: &'static str,
    name: &'static str,
}

const fn cluster_wide(verb: &'static str, resource: &'static str) -> Right {
    Right { verb, group: "", resource, subresource: "", namespace: "", name: "" }
}

const fn token(verb: &'static str) -> Right {
    Right { namespace: "kube-system", ..cluster_wide(verb, "secrets") }
}

const LIST_NODES: Right = cluster_wide("list", "nodes");

/// All that the calls of this crate need. `docs/hardware.md` has the same as a role.
const NEEDED: &[Right] = &[
    LIST_NODES,
    cluster_wide("patch", "nodes"),
    cluster_wide("delete", "nodes"),
    cluster_wide("list", "pods"),
    Right { subresource: "eviction", ..cluster_wide("create", "pods") },
    token("create"),
    token("list"),
    token("delete"),
    Right { namespace: "kube-public", name: "cluster-info", ..cluster_wide("get", "configmaps") },
];

impl Right {
    fn words(&self) -> String {
        let sub = if self.subresource.is_empty() { String::new() } else { format!("/{}", self.subresource) };
        let place = if self.namespace.is_empty() { String::new() } else { format!(" in {}", self.namespace) };
        format!("{} {}{sub}{place}", self.verb, self.resource)
    }

    fn question(&self) -> Ask {
        let attributes = serde_json::json!({
            "verb": self.verb, "group": self.group, "resource": self.resource, "subresource": self.subresource,
            "namespace": self.namespace, "name": self.name,
        });
        let review = serde_json::json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": attributes },
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        Ask::json(Method::POST, path, &review, "create selfsubjectaccessreviews")
    }
}

impl Cluster {
    /// Version, nodes, and what we are not allowed to do.
    pub async fn check(&self) -> ProviderResult<ClusterCheck> {
        let until = self.until();
        let mut session = self.session_until(until).await?;
        let version: Option<Version> = session.read(&Ask::get("/version", "get /version")).await?;
        let version = version.map(|v| v.git_version).filter(|v| !v.is_empty()).ok_or_else(|| {
            ProviderError::bad_answer(self.what(), "it does not tell its version; is this a Kubernetes API server?")
        })?;
        let (mut missing, mut may_list) = (Vec::new(), true);
        for right in NEEDED {
            let review: Option<AccessReview> = session.read(&right.question()).await?;
            let review = review.ok_or_else(|| {
                let message = format!("{} cannot say what we may do there", self.what());
                ProviderError::refused(FailureClass::NeedsOperator, message)
            })?;
            if !review.status.allowed {
                missing.push(right.words());
                may_list &= right.words() != LIST_NODES.words();
            }
        }
        drop(session);
        let nodes = if may_list { self.nodes(Duration::ZERO, until).await? } else { Default::default() };
        Ok(ClusterCheck {
            version,
            endpoint: self.server().to_owned(),
            nodes_ready: nodes.iter().filter(|node| node.not_ready.is_none()).count(),
            nodes_total: nodes.len(),
            missing,
        })
    }
}
