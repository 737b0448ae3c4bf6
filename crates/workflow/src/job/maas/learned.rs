//! What a job on a MAAS is told at its beginning, and what its stages learn on the way: kept with the job, so that every
//! attempt and every server goes on from the same.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which machine is meant, and how it is to be made. No secrets: those are named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MaasWish {
    pub site: String,
    /// Empty: the site's first.
    pub profile: String,
    pub macs: Vec<String>,
    pub serial_number: String,
    pub system_uuid: String,
    /// Where it is in MAAS already.
    pub system_id: String,
    /// Empty: MAAS makes one up.
    pub hostname: String,
    pub power: Option<PowerWish>,
}

/// How MAAS is to drive the machine's power.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PowerWish {
    pub kind: String,
    pub address: String,
    /// The credential with its user and password; empty: it needs none.
    pub credentials_ref: String,
    /// What else MAAS is to be told of it, by MAAS's names.
    pub parameters: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Learned {
    pub system_id: String,
    /// The record upstream is this job's own work.
    pub created: bool,
    /// Its commissioning was asked for by this job.
    pub commissioned: bool,
    /// The attempt in which MAAS has said that its disks are laid out as the profile says; between two of them somebody may
    /// have had it commissioned, which lays out MAAS's own.
    pub laid_in: u32,
    /// MAAS was told what was wished of a record that was there before.
    pub told: bool,
    /// When something was last sent that makes a record or a deployment: until it is seen, or long past, it may still come.
    pub sent_at_us: Option<i64>,
    /// Our mark was seen on what was last ordered: whoever releases it takes that away.
    pub marked: bool,
    pub profile: String,
    /// Ours there: whatever another one owns is left alone.
    pub account: String,
    /// Bundles made so far: each deployment carries one of its own.
    pub bundles: u32,
    /// The newest of them, by the hash that is stored of it.
    pub token: String,
    /// The one that the last deployment was ordered with; the machine runs, or was to run, what this job gave it.
    pub ordered: String,
    /// Events up to this one are from before that.
    pub event_mark: i64,
    /// What the last deployment failed of.
    pub cause: String,
    /// Deployments that were tried again because of it.
    pub recoveries: u32,
    /// When MAAS said that it was deployed, its hardware had last been told of then.
    pub synced_at: String,
    /// Where the machine is reached.
    pub address: String,
    /// This job has asked for the release that erases.
    pub erases: bool,
    /// Somebody has said that the machine is to be taken as it is found.
    pub adopted_by: String,
    /// Runs that installed the machine, or were to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<String>,
}

impl Learned {
    pub fn read(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// For a job that begins anew, with everything taken back. Bundles go on being counted: none is made twice.
    pub fn anew(text: &str) -> String {
        let Self { bundles, runs, .. } = Self::read(text);
        Self { bundles, runs, ..Self::default() }.text()
    }

    /// Of another record, or one that was removed: what was true of the one before is not of this one.
    pub fn of_record(self, system_id: &str, created: bool) -> Self {
        if self.system_id == system_id {
            return Self { created: self.created || created, ..self };
        }
        let Self { profile, account, bundles, .. } = self;
        Self { system_id: system_id.to_owned(), created, profile, account, bundles, ..Self::default() }
    }

    /// Whether the newest bundle is the one that the last deployment was ordered with.
    pub fn is_ordered(&self) -> bool {
        !self.ordered.is_empty() && self.ordered == self.token
    }

    /// Whether what runs there, or is being put there, is this job's.
    pub fn is_ours(&self) -> bool {
        !self.ordered.is_empty() || !self.adopted_by.is_empty()
    }
}
