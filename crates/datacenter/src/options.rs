//! The bounds of everything that is asked of real machines, by name.

use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Options {
    /// Of one call to a BMC or host, everything in it together. Below the engine's own.
    pub call_timeout: Duration,
    /// Of a walk over everything that a BMC has.
    pub walk_timeout: Duration,
    /// Of the first word of a BMC or host: what does not answer by then is away.
    pub connect_timeout: Duration,
    /// Calls at the same time, over the whole fleet: for runs and people, and as many again for sweeps.
    pub redfish_calls: usize,
    /// Each of these is a process.
    pub ipmi_calls: usize,
    pub ssh_calls: usize,
    /// Connections to one jump host at a time. OpenSSH turns strangers away from the tenth on.
    pub jump_connections: usize,
    /// Calls that wait for their turn at one BMC or host.
    pub queue: usize,
    /// So many silences in a row, and it is left alone for a while.
    pub silences: u32,
    /// How long at first; doubled with every probe in vain, up to `rest_max`.
    pub rest: Duration,
    pub rest_max: Duration,
    /// The same for the system on a machine: it goes down whenever the machine is rebooted, and whoever waits for it to
    /// come back must not be told for minutes that it has not.
    pub host_rest: Duration,
    pub host_rest_max: Duration,
    /// How long a sweep makes do with what an earlier login on the host has shown.
    pub host_reading: Duration,
    /// A controller that nobody has asked for so long is forgotten, and its session closed: its machine is gone, or
    /// another server looks after it.
    pub forget_after: Duration,
    /// How long join material is good for.
    pub join_ttl: Duration,
    pub images: BTreeMap<String, Image>,
}

/// How long a connection by way of a jump host is kept when nobody uses it.
const JUMP_IDLE: Duration = Duration::from_secs(1);

/// How an image gets onto a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// An installer that the BMC presents as a CD: it installs without questions, and the system it leaves
    /// behind has `/etc/millwright-image` with the image's name in it.
    Media { url: String },
    /// A script that runs on the host as it is, over SSH, and leaves the same file.
    Script { text: String },
}

impl Options {
    /// Parts of a call that are shorter than the call: the adapter itself says what became of it.
    pub(crate) fn redfish_timeouts(&self) -> redfish::Timeouts {
        redfish::Timeouts {
            connect: self.connect_timeout,
            request: self.call_timeout * 2 / 3,
            task: self.call_timeout / 3,
            describe: self.walk_timeout * 9 / 10,
            ..redfish::Timeouts::default()
        }
    }

    pub(crate) fn ssh_timeouts(&self, by_a_jump_host: bool) -> ssh::Timeouts {
        let timeouts =
            ssh::Timeouts { connect: self.connect_timeout, call: self.call_timeout, ..ssh::Timeouts::default() };
        // an idle connection has a place there that others wait for
        if by_a_jump_host { ssh::Timeouts { idle: JUMP_IDLE, ..timeouts } } else { timeouts }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            call_timeout: Duration::from_secs(8),
            walk_timeout: Duration::from_secs(25),
            connect_timeout: Duration::from_secs(3),
            redfish_calls: 256,
            ipmi_calls: 16,
            ssh_calls: 128,
            jump_connections: 8,
            queue: 16,
            silences: 3,
            rest: Duration::from_secs(30),
            rest_max: Duration::from_secs(300),
            host_rest: Duration::from_secs(5),
            host_rest_max: Duration::from_secs(30),
            host_reading: Duration::from_secs(600),
            forget_after: Duration::from_secs(15 * 60),
            join_ttl: Duration::from_secs(15 * 60),
            images: BTreeMap::new(),
        }
    }
}
