//! Coming to a machine and leaving it.

use crate::host::Host;
use std::path::Path;

/// A service of this machine, that enrols with the bundle when it first starts.
pub fn install(_host: &Host, _bundle: &Path) -> Result<(), String> {
    Err("this agent was built without its installation; copy it to /usr/local/bin and run `millwright-agent enroll`, then \
         `millwright-agent run`"
        .to_owned())
}

/// Everything of the agent's, itself last.
pub fn remove_everything(_host: &Host) -> Result<(), String> {
    Err("this agent was built without its removal; remove /var/lib/millwright-agent and the program by hand".to_owned())
}
