//! How many files, and so connections, this process may have open. Systems give a process few at first, for the sake of
//! old programs, and let it take more: a server takes what it may have.

use crate::config::Config;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// For callers, the database and everything else but machines.
const OTHERS: u64 = 1024;
/// A child is spoken to by three pipes.
const PER_CHILD: u64 = 6;

/// What a fleet can come to need by the bounds of its configuration: for work, as much again for sweeps, and for agents.
pub fn wanted(config: &Config) -> u64 {
    let d = &config.datacenter;
    let count = |calls: usize| u64::try_from(calls).unwrap_or(u64::MAX);
    // an answered connection is kept for a moment, while the next is made elsewhere
    let connections = count(d.redfish_calls).saturating_add(count(d.ssh_calls)).saturating_mul(2);
    let children = count(d.ipmi_calls).saturating_mul(PER_CHILD);
    let agents = if config.agents.enabled { count(config.agents.connections) } else { 0 };
    connections.saturating_add(children).saturating_mul(2).saturating_add(agents).saturating_add(OTHERS)
}

/// The most that this process may take.
pub fn most() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Takes as many as it may have, and says so.
pub fn raise(config: &Config) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    if let Err(e) = raised {
        tracing::warn!(error = %e, "raising the number of files that may be open");
    }
    let now = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let (before, wanted) = (current.unwrap_or(u64::MAX), wanted(config));
    if (config.datacenter.enabled || config.agents.enabled) && now < wanted {
        tracing::warn!(
            before,
            now,
            wanted,
            "few files may be open for the calls and agents that are configured; raise LimitNOFILE"
        );
    } else {
        tracing::info!(before, now, "files that may be open");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel tells it: the soft limit and the hard one.
    fn limits() -> (String, String) {
        let all = std::fs::read_to_string("/proc/self/limits").expect("limits");
        let line = all.lines().find(|line| line.starts_with("Max open files")).expect("a line");
        let mut words = line["Max open files".len()..].split_whitespace().map(str::to_owned);
        (words.next().expect("soft"), words.next().expect("hard"))
    }

    #[test]
    fn a_server_takes_all_that_it_may_have() {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        // low, and still enough for the other tests
        let low = maximum.map_or(1024, |most| most.saturating_sub(1).min(1024));
        setrlimit(Resource::Nofile, Rlimit { current: Some(low), maximum }).expect("lowered");
        assert_eq!(limits().0, low.to_string());
        raise(&Config::default());
        let (soft, hard) = limits();
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("as it was");
        assert_eq!(soft, hard);
    }

    #[test]
    fn more_calls_want_more_files() {
        let mut config = Config::default();
        let few = wanted(&config);
        config.datacenter.redfish_calls *= 2;
        assert!(few > OTHERS && wanted(&config) > few);
    }
}
