//! One line of the journal: as the world reads it ([`Record`]), and as auditors do ([`Effect`]).

use crate::change::Change;
use serde::{Deserialize, Serialize};

/// Something that happened in the simulated world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// Its place in the journal, from 1.
    pub number: u64,
    /// When it happened. What ended unobserved carries the time it ended, not the time it was noticed.
    pub at_micros: i64,
    pub machine: String,
    /// The key of the operation behind it; empty for what nobody asked for.
    pub operation: String,
    /// The fence that operation came with. Recorded, never judged: judging is the auditor's.
    pub fence: String,
    /// `created`, `fault`, `netboot`, `clear_netboot`, `reset`, `booted`, `power_off`, `power_lost`,
    /// `repave_started`, `repaved`, `repave_aborted`, `exec_started`, `exec_finished`, `exec_killed`,
    /// `join_started`, `joined`, `net_applied`, `return_opened`, `lamp`, `media_inserted`, `media_ejected`,
    /// `bios_set`, `update_started`, `updated`, `password_rotated`, `repinned`, `cordoned`, `node_deleted` or
    /// `deferred`.
    pub kind: String,
    #[serde(default)]
    pub detail: serde_json::Value,
}

/// The same line with its change typed. Both spellings of one JSON object; a test keeps them equal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub number: u64,
    pub at_micros: i64,
    pub machine: String,
    pub operation: String,
    pub fence: String,
    #[serde(flatten)]
    pub change: Change,
}
