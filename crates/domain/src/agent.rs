//! A node's agent as the server knows it: by its key, by the number of its last connection, by its heartbeats. Whether
//! it is the one, a copy of it, or gone is decided here.

use crate::id::NodeId;
use crate::node::{AgentMode, NodeStatus};
use crate::time::Timestamp;
use std::fmt;
use std::time::Duration;

/// Whether an identity may still come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IdentityState {
    Good,
    /// Seen twice: both are stopped until somebody repairs it.
    Suspended,
    /// Taken back for good: its node was removed, or has another key.
    Revoked,
}

impl IdentityState {
    pub const ALL: [IdentityState; 3] = [IdentityState::Good, IdentityState::Suspended, IdentityState::Revoked];

    pub const fn as_str(self) -> &'static str {
        match self {
            IdentityState::Good => "good",
            IdentityState::Suspended => "suspended",
            IdentityState::Revoked => "revoked",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

impl fmt::Display for IdentityState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What is known of a node's agent. Only its own words and the server's certificates change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentIdentity {
    pub node_id: NodeId,
    /// SHA-256 of its public key, in hex.
    pub key_sha256: String,
    /// That key itself (SPKI, DER), for what it signs.
    pub key_spki: Vec<u8>,
    pub state: IdentityState,
    pub state_reason: String,
    /// The store's epoch when its last connection began.
    pub epoch: u64,
    pub session: u64,
    /// The agent has it on its disk.
    pub confirmed: bool,
    pub enrolled_at: Timestamp,
    /// The bootstrap token that it came with last, by its hash; empty: it enrolled before that was kept.
    pub token_id: String,
    pub certificate_until: Timestamp,
    pub agent_version: String,
    pub boot_id: String,
    /// Heartbeats without a gap, up to the last one.
    pub beats: u32,
    pub last_beat: Option<Timestamp>,
    /// Its clock minus ours, at the last word.
    pub skew_ms: i64,
    /// As the wire has it, as JSON.
    pub inventory: String,
    pub inventory_digest: String,
    pub health: String,
}

/// What comes of a first word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// It gets this number.
    Welcome {
        session: u64,
    },
    /// The number was passed on already: somebody else is this agent, too.
    Copy,
    /// Its identity is stopped.
    Stopped,
    Revoked,
}

impl AgentIdentity {
    /// `said` is the number that it comes with; `epoch` the store's own.
    pub fn greet(&self, said: u64, epoch: u64, mode: AgentMode) -> Greeting {
        match self.state {
            IdentityState::Revoked => return Greeting::Revoked,
            IdentityState::Suspended if mode != AgentMode::Repair => return Greeting::Stopped,
            // somebody says that the next one is the one
            IdentityState::Suspended => return Greeting::Welcome { session: self.session.max(said) + 1 },
            IdentityState::Good => {}
        }
        // restored from a backup since: what we know of it is old
        let restored = self.epoch < epoch;
        let current = said == self.session;
        // our last answer may never have reached its disk
        let unheard = !self.confirmed && said + 1 == self.session;
        if restored || current || unheard {
            return Greeting::Welcome { session: self.session.max(said) + 1 };
        }
        Greeting::Copy
    }

    /// Whether its certificate is renewed. One that was stopped for long has outlived its own, and could not come to be
    /// greeted otherwise when somebody repairs it.
    pub fn may_renew(&self, mode: AgentMode) -> bool {
        match self.state {
            IdentityState::Good => true,
            IdentityState::Suspended => mode == AgentMode::Repair,
            IdentityState::Revoked => false,
        }
    }
}

/// When a node counts as gone, and as back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatPolicy {
    pub interval: Duration,
    /// Without a word for so long it is offline.
    pub lost_after: Duration,
    /// So many without a gap, and it is back.
    pub back_after: u32,
}

impl Default for HeartbeatPolicy {
    fn default() -> Self {
        Self { interval: Duration::from_secs(15), lost_after: Duration::from_secs(60), back_after: 3 }
    }
}

impl HeartbeatPolicy {
    /// Whether a beat that long after the last one goes on with its row.
    pub fn is_gapless(&self, since_last: Duration) -> bool {
        since_last <= self.interval * 2
    }

    pub fn is_steady(&self, beats: u32, last: Option<Timestamp>, now: Timestamp) -> bool {
        beats >= self.back_after && last.is_some_and(|last| now.since(last) < self.lost_after)
    }

    /// The status that a node's heartbeats call for, if it is another one. Nothing but `active` and `offline` follows from
    /// them.
    pub fn calls_for(
        &self,
        status: NodeStatus,
        beats: u32,
        last: Option<Timestamp>,
        since: Timestamp,
        now: Timestamp,
    ) -> Option<NodeStatus> {
        match status {
            NodeStatus::Active => {
                let silent = now.since(last.unwrap_or(since).max(since)) >= self.lost_after;
                silent.then_some(NodeStatus::Offline)
            }
            // what was heard before it went offline proves nothing: the row of beats must have gone on that long since
            NodeStatus::Offline => {
                let fresh = last.is_some_and(|last| last.since(since) >= self.interval * self.back_after);
                (fresh && self.is_steady(beats, last, now)).then_some(NodeStatus::Active)
            }
            NodeStatus::BootstrapIssued
            | NodeStatus::Enrolling
            | NodeStatus::Quarantined
            | NodeStatus::Draining
            | NodeStatus::Retired
            | NodeStatus::Removing
            | NodeStatus::Deleted => None,
        }
    }
}

/// How long a bundle is good.
pub const BUNDLE_LIFE: Duration = Duration::from_secs(24 * 3600);
/// How long the first key that used a token may use it again: its answer may have been lost.
pub const SAME_KEY_MAY_RETRY: Duration = Duration::from_secs(30 * 60);
/// Of an agent's certificate.
pub const CERTIFICATE_LIFE: Duration = Duration::from_secs(24 * 3600);
/// How long after its end a certificate is still good for its own renewal: an outage must not cost an identity.
pub const RENEW_GRACE: Duration = Duration::from_secs(30 * 24 * 3600);

/// A one-time token, by its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootstrapToken {
    pub hash: String,
    pub node_id: NodeId,
    pub expires_at: Timestamp,
    pub issued_by: String,
    pub issued_at: Timestamp,
    /// The first key that came with it.
    pub key_sha256: Option<String>,
    pub bound_at: Option<Timestamp>,
    pub withdrawn: bool,
}

/// Why a token is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRefusal {
    Expired,
    Withdrawn,
    /// Another key was first.
    UsedByAnother,
    /// The same key, too late.
    Spent,
}

impl BootstrapToken {
    pub fn judge(&self, key_sha256: &str, now: Timestamp) -> Result<(), TokenRefusal> {
        if self.withdrawn {
            return Err(TokenRefusal::Withdrawn);
        }
        match (&self.key_sha256, self.bound_at) {
            (Some(bound), _) if bound != key_sha256 => Err(TokenRefusal::UsedByAnother),
            (Some(_), Some(at)) if now.since(at) <= SAME_KEY_MAY_RETRY => Ok(()),
            (Some(_), _) => Err(TokenRefusal::Spent),
            (None, _) if now >= self.expires_at => Err(TokenRefusal::Expired),
            (None, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(session: u64, confirmed: bool) -> AgentIdentity {
        AgentIdentity {
            node_id: NodeId::from_text("nod_1"),
            key_sha256: "k".into(),
            key_spki: Vec::new(),
            state: IdentityState::Good,
            state_reason: String::new(),
            epoch: 1,
            session,
            confirmed,
            enrolled_at: Timestamp::from_micros(0),
            token_id: String::new(),
            certificate_until: Timestamp::from_micros(0),
            agent_version: String::new(),
            boot_id: String::new(),
            beats: 0,
            last_beat: None,
            skew_ms: 0,
            inventory: String::new(),
            inventory_digest: String::new(),
            health: String::new(),
        }
    }

    #[test]
    fn a_copy_is_noticed_whichever_comes_first() {
        let keep = AgentMode::Keep;
        // the original has 5 on its disk, and its copy too
        let there = identity(5, true);
        assert_eq!(there.greet(5, 1, keep), Greeting::Welcome { session: 6 });
        let after_one = identity(6, true);
        assert_eq!(after_one.greet(5, 1, keep), Greeting::Copy, "the other one comes");
        let lost_answer = identity(6, false);
        assert_eq!(lost_answer.greet(5, 1, keep), Greeting::Welcome { session: 7 });
        assert_eq!(lost_answer.greet(6, 1, keep), Greeting::Welcome { session: 7 });
        assert_eq!(lost_answer.greet(4, 1, keep), Greeting::Copy);
    }

    #[test]
    fn after_a_restored_backup_every_number_is_taken_and_raised() {
        let old = identity(5, true);
        assert_eq!(old.greet(90, 2, AgentMode::Keep), Greeting::Welcome { session: 91 });
    }

    #[test]
    fn what_is_stopped_comes_back_only_when_somebody_says_so() {
        let stopped = AgentIdentity { state: IdentityState::Suspended, ..identity(5, true) };
        assert_eq!(stopped.greet(5, 1, AgentMode::Keep), Greeting::Stopped);
        assert_eq!(stopped.greet(5, 1, AgentMode::Repair), Greeting::Welcome { session: 6 });
        let revoked = AgentIdentity { state: IdentityState::Revoked, ..identity(5, true) };
        assert_eq!(revoked.greet(5, 9, AgentMode::Repair), Greeting::Revoked);
        for mode in AgentMode::ALL {
            assert!(identity(5, true).may_renew(mode) && !revoked.may_renew(mode), "{mode:?}");
            assert_eq!(stopped.may_renew(mode), mode == AgentMode::Repair, "{mode:?}");
        }
    }

    #[test]
    fn heartbeats_move_nothing_but_active_and_offline() {
        let policy = HeartbeatPolicy::default();
        let at = |s: i64| Timestamp::from_micros(s * 1_000_000);
        let now = at(1000);
        use crate::lifecycle::State as _;
        for status in NodeStatus::ALL {
            let lost = policy.calls_for(*status, 0, Some(at(100)), at(0), now);
            let back = policy.calls_for(*status, 3, Some(at(995)), at(0), now);
            assert_eq!(lost, (*status == NodeStatus::Active).then_some(NodeStatus::Offline), "{status}");
            assert_eq!(back, (*status == NodeStatus::Offline).then_some(NodeStatus::Active), "{status}");
        }
        let offline = NodeStatus::Offline;
        assert_eq!(policy.calls_for(offline, 2, Some(at(995)), at(0), now), None, "two beats are not several");
        assert_eq!(policy.calls_for(offline, 9, Some(at(995)), at(996), now), None, "it was sent offline since");
        assert_eq!(policy.calls_for(offline, 9, Some(at(995)), at(951), now), None, "of nine beats two came since");
        assert_eq!(policy.calls_for(offline, 9, Some(at(995)), at(950), now), Some(NodeStatus::Active));
        let active = NodeStatus::Active;
        assert_eq!(policy.calls_for(active, 1, Some(at(100)), at(960), now), None, "it has just become active");
    }

    #[test]
    fn a_token_is_the_first_keys_alone() {
        let at = |s: i64| Timestamp::from_micros(s * 1_000_000);
        let token = BootstrapToken {
            hash: "h".into(),
            node_id: NodeId::from_text("nod_1"),
            expires_at: at(100),
            issued_by: "root".into(),
            issued_at: at(0),
            key_sha256: None,
            bound_at: None,
            withdrawn: false,
        };
        assert_eq!(token.judge("k", at(99)), Ok(()));
        assert_eq!(token.judge("k", at(100)), Err(TokenRefusal::Expired));
        let bound = BootstrapToken { key_sha256: Some("k".into()), bound_at: Some(at(99)), ..token.clone() };
        assert_eq!(bound.judge("k", at(99 + 1800)), Ok(()), "its answer may have been lost");
        assert_eq!(bound.judge("k", at(99 + 1801)), Err(TokenRefusal::Spent));
        assert_eq!(bound.judge("other", at(99)), Err(TokenRefusal::UsedByAnother));
        let withdrawn = BootstrapToken { withdrawn: true, ..token };
        assert_eq!(withdrawn.judge("k", at(1)), Err(TokenRefusal::Withdrawn));
    }
}
