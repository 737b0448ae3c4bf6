//! The bounds of everything that is asked of a site, by name.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// A connection, its TLS handshake included.
    pub connect: Duration,
    /// A question about a few things, with all its repetitions.
    pub read: Duration,
    /// The list of all machines.
    pub list: Duration,
    /// A change. MAAS may drive a BMC before it answers.
    pub change: Duration,
    /// Asking a BMC. MAAS itself gives it a minute.
    pub power_now: Duration,
    /// A call's turn among those of its site.
    pub turn: Duration,
    /// Calls that wait for their turn.
    pub queue: usize,
    /// An unused connection is closed after this.
    pub idle: Duration,
    /// How often a read is repeated that failed for a reason that may pass, and the pause before that.
    pub repeats: u32,
    pub pause: Duration,
    /// So many silences in a row, and the site is left alone for a while: at first, and at most.
    pub silences: u32,
    pub rest: Duration,
    pub rest_max: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            connect: seconds(5),
            read: seconds(20),
            list: seconds(120),
            change: seconds(75),
            power_now: seconds(70),
            turn: seconds(30),
            queue: 1_000,
            idle: seconds(10),
            repeats: 2,
            pause: Duration::from_millis(300),
            silences: 3,
            rest: seconds(10),
            rest_max: seconds(120),
        }
    }
}
