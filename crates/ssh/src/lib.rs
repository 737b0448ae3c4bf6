//! SSH: commands on a host that survive us, and proof that it has booted.
//!
//! Nothing is installed on a host. A call sends a script of plain `sh` to a shell on the host's side and reads its
//! answer; a command is started by such a script in a session of its own, recorded in files under its key, and found
//! again by that key from anywhere. `docs/hardware.md` tells what is promised and what is not.

mod answer;
mod client;
mod host;
mod peer;
mod reach;
mod script;

pub use answer::HostIdentity;
pub use host::{Host, Timeouts};
pub use peer::{Jump, Places};
pub use reach::{answers, answers_by_way_of, host_key_of};
pub use script::{INTERRUPTED_STATUS, RECORDED_MAX_BYTES};
