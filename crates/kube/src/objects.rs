//! The few fields that are read of Kubernetes' objects. All may be missing, and what is not read may be anything:
//! servers of many versions answer.

use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// Go writes an empty list or map as `null`.
fn nothing<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

#[derive(Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
pub(crate) struct List<T> {
    #[serde(default)]
    pub metadata: ListMeta,
    #[serde(default = "Vec::new", deserialize_with = "nothing")]
    pub items: Vec<T>,
}

#[derive(Deserialize, Default)]
pub(crate) struct ListMeta {
    /// Where to go on reading; empty: that was all.
    #[serde(default, rename = "continue")]
    pub next: String,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Meta {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub deletion_timestamp: Option<String>,
    #[serde(deserialize_with = "nothing")]
    pub annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "nothing")]
    pub owner_references: Vec<Owner>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Owner {
    pub kind: String,
    pub controller: Option<bool>,
}

#[derive(Deserialize)]
pub(crate) struct NodeObject {
    pub metadata: Meta,
    #[serde(default)]
    pub spec: NodeSpec,
    #[serde(default)]
    pub status: NodeStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct NodeSpec {
    pub unschedulable: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct NodeStatus {
    #[serde(deserialize_with = "nothing")]
    pub conditions: Vec<Condition>,
    pub node_info: NodeInfo,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct NodeInfo {
    #[serde(rename = "systemUUID")]
    pub system_uuid: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub reason: String,
    pub message: String,
}

#[derive(Deserialize)]
pub(crate) struct Pod {
    pub metadata: Meta,
    #[serde(default)]
    pub spec: PodSpec,
    #[serde(default)]
    pub status: PodStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct PodSpec {
    #[serde(deserialize_with = "nothing")]
    pub volumes: Vec<Volume>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Volume {
    pub empty_dir: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct PodStatus {
    pub phase: String,
}

/// A bootstrap token's Secret, as far as it says when it ends.
#[derive(Deserialize)]
pub(crate) struct TokenObject {
    pub metadata: Meta,
    #[serde(default, deserialize_with = "nothing")]
    pub data: TokenData,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct TokenData {
    pub expiration: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct ConfigMap {
    #[serde(deserialize_with = "nothing")]
    pub data: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Version {
    pub git_version: String,
}

/// What `/api/v1` says it has.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Resources {
    #[serde(deserialize_with = "nothing")]
    pub resources: Vec<Resource>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Resource {
    pub name: String,
    pub group: String,
    pub version: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct AccessReview {
    pub status: AccessStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct AccessStatus {
    pub allowed: bool,
}

/// What comes instead of an object when it is a no.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Status {
    pub message: String,
    #[serde(deserialize_with = "nothing")]
    pub details: StatusDetails,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct StatusDetails {
    #[serde(deserialize_with = "nothing")]
    pub causes: Vec<Cause>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Cause {
    pub reason: String,
    pub message: String,
}

impl Status {
    /// Which disruption budget stands in the way, in the server's words.
    pub fn budget(&self) -> Option<&str> {
        let cause = self.details.causes.iter().find(|cause| cause.reason == "DisruptionBudget")?;
        Some(if cause.message.is_empty() { &self.message } else { &cause.message })
    }
}
