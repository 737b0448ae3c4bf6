//! A site: one MAAS, how it is reached, how it is watched, and the profiles that its machines are made to.

use crate::lifecycle::{Deadline, Edge, Guard, Owner, State};
use crate::time::Timestamp;
use crate::words::words;
use std::time::Duration;

/// Whether a site is there. One that was removed keeps its row and its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SiteState {
    Present,
    Removed,
}

pub const CREATED: &str = "created";
pub const CHANGED: &str = "changed";
pub const REMOVED: &str = "removed";

static EDGES: &[Edge<SiteState>] = &[
    edge(None, SiteState::Present, CREATED),
    edge(Some(SiteState::Present), SiteState::Present, CHANGED),
    edge(Some(SiteState::Present), SiteState::Removed, REMOVED),
    edge(Some(SiteState::Removed), SiteState::Present, CREATED),
];

const fn edge(from: Option<SiteState>, to: SiteState, trigger: &'static str) -> Edge<SiteState> {
    Edge { from, to, trigger, owner: Owner::Operator, guard: Guard::None }
}

impl State for SiteState {
    const ENTITY: &'static str = "site";
    const ALL: &'static [Self] = &[SiteState::Present, SiteState::Removed];

    fn as_str(self) -> &'static str {
        match self {
            SiteState::Present => "present",
            SiteState::Removed => "removed",
        }
    }

    fn edges() -> &'static [Edge<Self>] {
        EDGES
    }

    fn deadline(self) -> Deadline {
        match self {
            SiteState::Present | SiteState::Removed => Deadline::AtRest,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    pub name: String,
    pub state: SiteState,
    pub version: u64,
    /// Up to and with `/MAAS`, without a slash at the end.
    pub url: String,
    /// What signs its certificate, in PEM; empty: what the system trusts.
    pub ca_pem: String,
    /// The credential that holds its API key.
    pub credentials_ref: String,
    pub policy: SitePolicy,
    /// At least one; the first is the one that is meant where none is named.
    pub profiles: Vec<Profile>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

words!(
/// What is done to the disks of a machine that is given back.
Erase {
    None = "none",
    /// The beginning and end of each disk.
    Quick = "quick",
    /// By the disk's own means.
    Secure = "secure",
    /// Every byte.
    Full = "full",
});

/// What is the same for all machines of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SitePolicy {
    /// Between two looks at what moves.
    pub poll: Duration,
    /// Between two lists of everything.
    pub list: Duration,
    /// Calls at a time. More wait, so that a slow MAAS is not buried.
    pub calls_max: u32,
    pub erase: Erase,
    /// Keep the record of a machine that is given back; otherwise it is removed there, too.
    pub keep_record: bool,
    /// How often a deployment whose datasource failed is tried again.
    pub datasource_retries: u32,
    /// Have the deployed system report its hardware, and wait until it has done so of its own accord.
    pub hardware_sync: bool,
    /// So many intervals without a word, one after the other, are a failure.
    pub sync_intervals: u32,
}

impl Default for SitePolicy {
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(10),
            list: Duration::from_secs(15 * 60),
            calls_max: 8,
            erase: Erase::Quick,
            keep_record: true,
            datasource_retries: 2,
            hardware_sync: true,
            sync_intervals: 3,
        }
    }
}

words!(
    /// How a root file system is laid out by MAAS.
    Layout { Flat = "flat", Lvm = "lvm", Bcache = "bcache" });

words!(
    /// How an interface gets its address.
    LinkMode { Auto = "auto", Dhcp = "dhcp", LinkUp = "link_up" });

/// Which disk is booted from. All that are said must hold; nothing said: MAAS's own choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskRule {
    /// Part of the model's name, such as `BOSS`; upper and lower case are the same.
    pub model: String,
    /// A tag that commissioning gives.
    pub tag: String,
    pub min_bytes: u64,
    pub max_bytes: u64,
}

impl DiskRule {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Interfaces for the fabric between GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoceNetwork {
    /// Which interfaces: their name, `*` for any rest.
    pub interface: String,
    /// As MAAS names it: a number, `cidr:10.0.0.0/24` or `name:…`.
    pub subnet: String,
    pub mode: LinkMode,
    pub mtu: u32,
}

/// What machines of one sort are made to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    pub name: String,
    /// Such as `amd64/generic`.
    pub architecture: String,
    /// Such as `noble`; empty: MAAS's default.
    pub series: String,
    /// Empty: MAAS's default.
    pub kernel: String,
    pub layout: Layout,
    /// Empty: all that is there.
    pub root_size: String,
    pub boot_disk: DiskRule,
    /// Of the interface that is booted from; empty: where commissioning has seen it.
    pub pxe_subnet: String,
    pub roce: Vec<RoceNetwork>,
    /// With `{{ … }}` for what is filled in; empty: the product's own.
    pub cloud_init: String,
    /// Where deployed machines get the agent, and what it must be.
    pub agent_url: String,
    pub agent_sha256: String,
    pub tags: Vec<String>,
    pub pool: String,
    pub zone: String,
    /// Beside MAAS's own, by name or tag.
    pub testing_scripts: Vec<String>,
}

/// Profiles of one site.
pub const PROFILES_MAX: usize = 64;

impl Site {
    /// The profile of this name; without a name, the first.
    pub fn profile(&self, name: &str) -> Option<&Profile> {
        match name {
            "" => self.profiles.first(),
            name => self.profiles.iter().find(|profile| profile.name == name),
        }
    }
}
