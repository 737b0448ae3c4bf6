//! What the machine is made of and how it is, for heartbeats. Everything is read below the host's root folder, so much
//! of each file and no more.

mod disks;
mod gpus;
mod nics;
mod probes;
mod read;
mod system;

use crate::host::Host;
use prost::Message as _;
use proto::agent::v1::{Facts, Health, Inventory};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::path::Path;

/// Where the agent keeps its state unless it is told otherwise.
const STATE: &str = "/var/lib/millwright-agent";

/// Who the hardware says it is.
pub fn facts(host: &Host) -> Facts {
    system::facts(host)
}

/// Changes with every boot, and with nothing else.
pub fn boot_id(host: &Host) -> String {
    system::boot_id(host)
}

/// Everything, read anew; GPUs as they were last heard of, a minute ago or so.
pub fn inventory(host: &Host) -> Inventory {
    let cpus = system::cpus(host);
    let seen = gpus::seen(host);
    Inventory {
        facts: Some(facts(host)),
        os: system::os(host),
        kernel: system::kernel(host),
        architecture: system::architecture(host),
        cpu_sockets: cpus.sockets,
        cpu_cores: cpus.cores,
        cpu_threads: cpus.threads,
        cpu_model: cpus.model,
        memory_bytes: system::memory_bytes(host),
        disks: disks::disks(host),
        nics: nics::nics(host),
        gpus: seen.gpus.gpus.iter().map(gpus::inventory).collect(),
        gpu_driver: seen.gpus.driver.clone().unwrap_or_default(),
        gpu_note: gpus::note(&seen),
    }
}

/// How it is now. The first call waits for the GPUs, where there are any; no other does.
pub fn health(host: &Host) -> Health {
    health_of(host, &host.path(STATE))
}

/// GPUs that were seen are remembered over restarts from here on.
pub fn remember_in(host: &Host, state: &Path) {
    if host.is_real() {
        gpus::keep_in(state);
    }
}

/// What was remembered belongs to the machine as it was: with a new baseline it begins anew.
pub use gpus::FILE as REMEMBERED;

/// What is said of every probe while nobody can look.
pub use probes::unknown;

/// The same of an agent whose state is kept elsewhere.
pub fn health_of(host: &Host, state: &Path) -> Health {
    let seen = gpus::seen(host);
    Health { gpus: seen.gpus.gpus.iter().map(gpus::health).collect(), probes: probes::probes(host, state, &seen) }
}

/// One name for equal inventories: SHA-256, in hexadecimal, without what changes though nothing was changed.
pub fn digest(inventory: &Inventory) -> String {
    let mut lasting = inventory.clone();
    if let Some(facts) = &mut lasting.facts {
        facts.boot_id.clear();
    }
    for nic in &mut lasting.nics {
        (nic.up, nic.speed_mbps) = (false, 0);
    }
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(lasting.encode_to_vec()) {
        // writing into a string cannot fail
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

#[cfg(test)]
mod tests;
