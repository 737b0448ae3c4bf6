//! Pins: what a machine is recognized by at its endpoints, remembered at the first contact.

use crate::endpoint::{BmcEndpoint, SshEndpoint};
use crate::lifecycle::{Deadline, Edge, Guard, Owner, State};
use crate::machine::MachineSpec;

/// What a machine is recognized by at its endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pin {
    BmcCertificate,
    SshHostKey,
    /// Of the host on the way to it.
    JumpHostKey,
    /// Not a face but a memory: the installation that was begun last, so that what comes up can be told from
    /// what was there.
    Installation,
}

impl Pin {
    pub const ALL: [Pin; 4] = [Pin::BmcCertificate, Pin::SshHostKey, Pin::JumpHostKey, Pin::Installation];

    pub const fn as_str(self) -> &'static str {
        match self {
            Pin::BmcCertificate => "bmc-certificate",
            Pin::SshHostKey => "ssh-host-key",
            Pin::JumpHostKey => "jump-host-key",
            Pin::Installation => "installation",
        }
    }

    /// Whether what this pin says was learned where the machine is no longer reached.
    pub fn moved(self, from: &MachineSpec, to: &MachineSpec) -> bool {
        let bmc = |spec: &MachineSpec| BmcEndpoint::parse(&spec.bmc_endpoint).map(|e| (e.at(), e.trust));
        let ssh = |spec: &MachineSpec| SshEndpoint::parse(&spec.ssh_endpoint);
        match self {
            Pin::BmcCertificate => bmc(from) != bmc(to),
            Pin::SshHostKey | Pin::JumpHostKey => ssh(from) != ssh(to),
            Pin::Installation => false,
        }
    }
}

/// Whether something is pinned for a machine at an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PinState {
    Pinned,
    Forgotten,
}

/// Seen at the first contact.
pub const PINNED: &str = "pinned";
/// Another certificate or key is expected now, or another endpoint: by an operator's word, or because a run has
/// reinstalled it.
pub const FORGOTTEN: &str = "forgotten";

const fn edge(from: Option<PinState>, to: PinState, trigger: &'static str, owner: Owner) -> Edge<PinState> {
    Edge { from, to, trigger, owner, guard: Guard::None }
}

static EDGES: &[Edge<PinState>] = &[
    edge(None, PinState::Pinned, PINNED, Owner::Reconciler),
    edge(None, PinState::Pinned, PINNED, Owner::Executor),
    edge(Some(PinState::Forgotten), PinState::Pinned, PINNED, Owner::Reconciler),
    edge(Some(PinState::Forgotten), PinState::Pinned, PINNED, Owner::Executor),
    edge(Some(PinState::Forgotten), PinState::Pinned, PINNED, Owner::Operator),
    edge(Some(PinState::Pinned), PinState::Forgotten, FORGOTTEN, Owner::Operator),
    edge(Some(PinState::Pinned), PinState::Forgotten, FORGOTTEN, Owner::Executor),
    edge(Some(PinState::Pinned), PinState::Forgotten, FORGOTTEN, Owner::Reconciler),
];

impl State for PinState {
    const ENTITY: &'static str = "pin";
    const ALL: &'static [Self] = &[PinState::Pinned, PinState::Forgotten];

    fn as_str(self) -> &'static str {
        match self {
            PinState::Pinned => "pinned",
            PinState::Forgotten => "forgotten",
        }
    }

    fn edges() -> &'static [Edge<Self>] {
        EDGES
    }

    fn deadline(self) -> Deadline {
        match self {
            PinState::Pinned | PinState::Forgotten => Deadline::AtRest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_goes_with_the_endpoint_it_was_learned_at() {
        let spec = |bmc: &str, ssh: &str| MachineSpec {
            bmc_endpoint: bmc.into(),
            ssh_endpoint: ssh.into(),
            ..MachineSpec::default()
        };
        let moved = |from: &MachineSpec, to: &MachineSpec| Pin::ALL.map(|p| p.moved(from, to));
        assert_eq!(moved(&spec("a", "b"), &spec("a", "b")), [false; 4]);
        assert_eq!(
            moved(&spec("https://a", "b"), &spec("https://a:443", "ssh://b:22")),
            [false; 4],
            "another spelling"
        );
        assert_eq!(moved(&spec("a", "b"), &spec("c", "b")), [true, false, false, false]);
        assert_eq!(moved(&spec("a", "b"), &spec("a", "c")), [false, true, true, false]);
    }
}
