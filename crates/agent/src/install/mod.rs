//! The agent on its machine: what is its own, how it gets there, and how it goes without leaving anything behind.

mod put;
mod remove;
mod unit;

pub use put::{Installed, Options, install};
pub use remove::{MARKER, UNINSTALLED, is_begun, is_unfinished, remove_everything, remove_step_by_step};

use crate::host::{Host, shown};
use std::path::{Path, PathBuf};

pub const BINARY: &str = "/usr/bin/millwright-agent";
pub const SETTINGS: &str = "/etc/millwright-agent";
/// Digests of the scripts that the site allows; written by the site alone.
pub const ALLOWED_SCRIPTS: &str = "/etc/millwright-agent/allowed-scripts";
pub const STATE: &str = "/var/lib/millwright-agent";
/// Where scripts run: others must be able to enter, so not below the state.
pub const EXEC: &str = "/var/lib/millwright-agent-exec";
pub const LOGS: &str = "/var/log/millwright-agent";
pub const RUN: &str = "/run/millwright-agent";
pub const UNIT: &str = "/etc/systemd/system/millwright-agent.service";
/// What makes the unit start with the machine.
pub const WANTED: &str = "/etc/systemd/system/multi-user.target.wants/millwright-agent.service";
/// What a package of ours may have brought.
pub const SNIPPETS: [&str; 4] = [
    "/usr/lib/sysusers.d/millwright-agent.conf",
    "/usr/lib/tmpfiles.d/millwright-agent.conf",
    "/etc/sysusers.d/millwright-agent.conf",
    "/etc/tmpfiles.d/millwright-agent.conf",
];
/// A user of ours, where a package made one.
pub const USER: &str = "millwright-agent";
/// The bundle in the state folder.
pub const BUNDLE: &str = "bundle.json";
/// In the environment of an agent that the unit has started.
pub const STARTED_BY_UNIT: &str = "MILLWRIGHT_AGENT_UNIT";

/// Whether it is the agent's own among things that are looked at for leftovers.
pub fn is_own(path: &Path) -> bool {
    [UNIT, WANTED].iter().any(|own| path == Path::new(own))
}

/// Everything of the agent's that is there, as the machine calls it.
pub fn belongings(host: &Host, state: &Path) -> Vec<String> {
    let fixed = [UNIT, WANTED, BINARY, SETTINGS, LOGS, RUN, EXEC].into_iter().chain(SNIPPETS).map(PathBuf::from);
    let mut there: Vec<PathBuf> = fixed.filter(|path| host.at(path).symlink_metadata().is_ok()).collect();
    if state.exists() {
        there.push(host.machine_path(state));
    }
    there.iter().map(|path| shown(path)).collect()
}
