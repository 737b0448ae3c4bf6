//! What counts as running on a node, and one pass of evictions: whatever may go now is asked to go, and what stays
//! is told with the reason. The caller repeats it until nothing is left or its own deadline is reached; budgets are
//! the server's to keep, and it keeps them between passes.

use crate::cluster::Cluster;
use crate::node::NodeOf;
use crate::objects::{Pod, Resources};
use crate::rest::{Ask, Session, encoded};
use http::{Method, StatusCode};
use provider::{Drain, ProviderError, ProviderResult};
use std::time::Duration;
use tokio::time::Instant;

/// Ten times what Kubernetes puts on a node.
const PODS_MAX: usize = 2_000;
/// How many are named in a message.
const NAMED: usize = 5;
/// A pass ends this long before its deadline, so that it can say what it did.
const MARGIN: Duration = Duration::from_secs(2);

/// How far an eviction may go. By default: only what will be made again elsewhere, and loses nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evict {
    /// Also pods that no controller makes again.
    pub force: bool,
    /// Also pods whose data in an `emptyDir` is lost with them.
    pub lose_empty_dir: bool,
    /// How long each has to end. `None`: as long as it asks for.
    pub grace: Option<Duration>,
}

/// What one pass did. Pods are named `namespace/name`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainPass {
    /// Asked to go, and the cluster agreed.
    pub evicted: Vec<String>,
    /// Were on their way out already.
    pub ending: Vec<String>,
    pub left: Vec<Left>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    pub pod: String,
    pub kept: Kept,
    /// In words.
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// A disruption budget stands in the way; it may not the next time.
    Budget,
    /// Only with [`Evict::force`].
    Unmanaged,
    /// Only with [`Evict::lose_empty_dir`].
    EmptyDir,
    /// It was refused, or could not be asked.
    Failed,
}

impl Pod {
    fn name(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    fn controller(&self) -> Option<&str> {
        let controls = self.metadata.owner_references.iter().find(|owner| owner.controller == Some(true));
        controls.map(|owner| owner.kind.as_str())
    }

    /// It belongs to the node (a DaemonSet's, or a static pod's image here), or has ended.
    fn does_not_count(&self) -> bool {
        let ended = matches!(self.status.phase.as_str(), "Succeeded" | "Failed");
        let is_static = self.metadata.annotations.contains_key("kubernetes.io/config.mirror");
        ended || is_static || self.controller() == Some("DaemonSet")
    }

    fn why_not(&self, leave: &Evict) -> Option<(Kept, String)> {
        if self.controller().is_none() && !leave.force {
            return Some((Kept::Unmanaged, "no controller would make it again; only by force".to_owned()));
        }
        if self.spec.volumes.iter().any(|volume| volume.empty_dir.is_some()) && !leave.lose_empty_dir {
            return Some((Kept::EmptyDir, "its data in an emptyDir would be lost; only when told so".to_owned()));
        }
        None
    }
}

/// The pods of a node that count.
pub(crate) async fn pods(session: &mut Session<'_>, node: &str) -> ProviderResult<Vec<Pod>> {
    let query = format!("&fieldSelector={}", encoded(&format!("spec.nodeName={node}")));
    let mut pods: Vec<Pod> = session.list("/api/v1/pods", &query, "list pods", PODS_MAX, |pod: Pod| pod).await?;
    pods.retain(|pod| !pod.does_not_count());
    Ok(pods)
}

/// Of a node that is cordoned.
pub(crate) fn state(pods: &[Pod]) -> Drain {
    if pods.is_empty() {
        return Drain::Drained;
    }
    let mut names: Vec<String> = pods.iter().take(NAMED).map(Pod::name).collect();
    if pods.len() > NAMED {
        names.push("…".to_owned());
    }
    let plural = if pods.len() == 1 { "pod" } else { "pods" };
    Drain::InUse(format!("cordoned, {} {plural}: {}", pods.len(), names.join(", ")))
}

impl Cluster {
    /// One pass over a node, which is cordoned first: what leaves it would come back. Safe to repeat: a pod that is
    /// gone or going is not asked again.
    pub async fn evict_pass(&self, who: &NodeOf, leave: &Evict) -> ProviderResult<DrainPass> {
        let until = self.until();
        let Some(node) = self.found(who, until).await? else { return Err(self.no_node(who)) };
        if !node.cordoned {
            self.mark(who, &node, true, until).await?;
        }
        let mut session = self.session_until(until).await?;
        let pods = pods(&mut session, &node.name).await?;
        let mut pass = DrainPass::default();
        let mut form = None;
        for pod in pods {
            let name = pod.name();
            if pod.metadata.deletion_timestamp.is_some() {
                pass.ending.push(name);
                continue;
            }
            if let Some((kept, why)) = pod.why_not(leave) {
                pass.left.push(Left { pod: name, kept, why });
                continue;
            }
            if Instant::now() + MARGIN >= session.deadline() {
                let why = "the pass had no time left for it".to_owned();
                pass.left.push(Left { pod: name, kept: Kept::Failed, why });
                continue;
            }
            let version = match &form {
                Some(version) => version,
                None => form.insert(self.eviction_version(&mut session).await?),
            };
            match evict(&mut session, &pod, version, leave).await {
                Ok(None) => pass.evicted.push(name),
                Ok(Some((kept, why))) => pass.left.push(Left { pod: name, kept, why }),
                // nothing was done yet that would have to be told
                Err(refused @ ProviderError::Refused { .. }) if pass.evicted.is_empty() => return Err(refused),
                Err(e) => pass.left.push(Left { pod: name, kept: Kept::Failed, why: e.to_string() }),
            }
        }
        Ok(pass)
    }

    /// Which form of eviction this server takes: `policy/v1` since 1.22, `policy/v1beta1` before. Asked each time,
    /// since clusters are upgraded.
    async fn eviction_version(&self, session: &mut Session<'_>) -> ProviderResult<String> {
        let known: Option<Resources> = session.read(&Ask::get("/api/v1", "get /api/v1")).await?;
        let evictions = known.unwrap_or_default().resources.into_iter().find(|r| r.name == "pods/eviction");
        match evictions {
            Some(form) => Ok(format!("{}/{}", form.group, form.version)),
            None => Err(ProviderError::capability_missing(self.what(), "evictions")),
        }
    }
}

/// `None`: it goes, or is gone.
async fn evict(
    session: &mut Session<'_>,
    pod: &Pod,
    version: &str,
    leave: &Evict,
) -> ProviderResult<Option<(Kept, String)>> {
    let meta = &pod.metadata;
    // the uid makes it this very pod: a namesake that was made elsewhere meanwhile stays
    let mut options = serde_json::json!({ "preconditions": { "uid": meta.uid } });
    if let Some(grace) = leave.grace {
        options["gracePeriodSeconds"] = grace.as_secs().into();
    }
    let eviction = serde_json::json!({
        "apiVersion": version, "kind": "Eviction", "deleteOptions": options,
        "metadata": { "name": meta.name, "namespace": meta.namespace },
    });
    let path = format!("/api/v1/namespaces/{}/pods/{}/eviction", encoded(&meta.namespace), encoded(&meta.name));
    let ask = Ask::json(Method::POST, path, &eviction, "create pods/eviction");
    let answer = session.ask(&ask).await?;
    match answer.status {
        _ if answer.is_yes() => Ok(None),
        StatusCode::NOT_FOUND => Ok(None),
        StatusCode::TOO_MANY_REQUESTS => {
            let said = answer.says();
            Ok(Some((Kept::Budget, said.budget().unwrap_or(&said.message).to_owned())))
        }
        _ => Ok(Some((Kept::Failed, session.quote(&answer)))),
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test throughout")]
mod tests {
    use super::*;

    fn pod(name: &str, more: serde_json::Value) -> Pod {
        let mut whole = serde_json::json!({ "metadata": { "name": name, "namespace": "shop" } });
        for (key, value) in more.as_object().expect("an object") {
            match (whole.get_mut(key), value) {
                (Some(there), serde_json::Value::Object(value)) => {
                    there.as_object_mut().expect("an object").extend(value.clone());
                }
                _ => whole[key] = value.clone(),
            }
        }
        serde_json::from_value(whole).expect("a pod")
    }

    fn owned(kind: &str) -> serde_json::Value {
        serde_json::json!({ "metadata": { "ownerReferences": [{ "kind": kind, "controller": true }] } })
    }

    #[test]
    fn what_belongs_to_the_node_or_has_ended_does_not_count() {
        let mirror = serde_json::json!({ "metadata": { "annotations": { "kubernetes.io/config.mirror": "x" } } });
        for (more, counts) in [
            (owned("DaemonSet"), false),
            (owned("ReplicaSet"), true),
            (mirror, false),
            (serde_json::json!({ "status": { "phase": "Succeeded" } }), false),
            (serde_json::json!({ "status": { "phase": "Failed" } }), false),
            (serde_json::json!({ "status": { "phase": "Running" } }), true),
            (serde_json::json!({ "status": { "phase": "Unknown" } }), true),
            (serde_json::json!({ "metadata": { "ownerReferences": [{ "kind": "DaemonSet" }] } }), true),
        ] {
            assert_eq!(!pod("a", more.clone()).does_not_count(), counts, "{more}");
        }
    }

    #[test]
    fn what_would_be_lost_goes_only_when_told_so() {
        let with_data = serde_json::json!({ "spec": { "volumes": [{ "name": "v", "emptyDir": {} }] },
            "metadata": { "ownerReferences": [{ "kind": "ReplicaSet", "controller": true }] } });
        let kept = |pod: &Pod, leave: &Evict| pod.why_not(leave).map(|(kept, _)| kept);
        let (plain, all) = (Evict::default(), Evict { force: true, lose_empty_dir: true, grace: None });
        assert_eq!(kept(&pod("a", owned("ReplicaSet")), &plain), None);
        assert_eq!(kept(&pod("a", serde_json::json!({})), &plain), Some(Kept::Unmanaged));
        assert_eq!(kept(&pod("a", with_data.clone()), &plain), Some(Kept::EmptyDir));
        assert_eq!(kept(&pod("a", with_data), &all), None);
        assert_eq!(kept(&pod("a", serde_json::json!({})), &all), None);
    }

    #[test]
    fn what_is_in_use_is_named_and_the_list_is_short() {
        let pods: Vec<Pod> = (0..7).map(|i| pod(&format!("p{i}"), serde_json::json!({}))).collect();
        assert_eq!(state(&[]), Drain::Drained);
        assert_eq!(state(&pods[..1]), Drain::InUse("cordoned, 1 pod: shop/p0".to_owned()));
        let all = "cordoned, 7 pods: shop/p0, shop/p1, shop/p2, shop/p3, shop/p4, …";
        assert_eq!(state(&pods), Drain::InUse(all.to_owned()));
    }
}
