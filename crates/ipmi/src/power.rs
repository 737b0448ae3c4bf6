//! The six power actions in IPMI's words.

use domain::hardware::PowerAction;
use provider::PowerState;

/// Chassis Control: network function and command.
pub(crate) const NETFN: u8 = 0x00;
pub(crate) const COMMAND: u8 = 0x02;

/// What a power action comes to for a machine whose power stands so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    AlreadySo,
    Send(u8),
    /// IPMI cannot ask a system to restart: its reset asks nobody.
    NotOffered,
    /// There is nothing to restart.
    IsOff,
}

pub(crate) const fn order(action: PowerAction, power: PowerState) -> Order {
    match (action, power) {
        (PowerAction::GracefulRestart, _) => Order::NotOffered,
        (PowerAction::On, PowerState::On) | (PowerAction::GracefulOff | PowerAction::ForceOff, PowerState::Off) => {
            Order::AlreadySo
        }
        (PowerAction::ForceRestart | PowerAction::Cycle, PowerState::Off) => Order::IsOff,
        (PowerAction::ForceOff, PowerState::On) => Order::Send(0),
        (PowerAction::On, PowerState::Off) => Order::Send(1),
        (PowerAction::Cycle, PowerState::On) => Order::Send(2),
        (PowerAction::ForceRestart, PowerState::On) => Order::Send(3),
        (PowerAction::GracefulOff, PowerState::On) => Order::Send(5),
    }
}

/// How the power stands when it is done; `None` where that shows nothing.
pub(crate) const fn proven_by(action: PowerAction) -> Option<PowerState> {
    match action {
        PowerAction::On => Some(PowerState::On),
        PowerAction::GracefulOff | PowerAction::ForceOff => Some(PowerState::Off),
        PowerAction::GracefulRestart | PowerAction::ForceRestart | PowerAction::Cycle => None,
    }
}
