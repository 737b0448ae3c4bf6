//! Installing by network boot, as adapters see it: somebody else keeps the orders, serves the installer and hears its
//! reports. An adapter has the machine boot from the network, and proves that it came up from its disk.

use crate::{Operation, ProviderResult, Target};
use async_trait::async_trait;
use domain::MachineId;

/// The last wish to install a machine, and how it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetbootOrder {
    /// [`Operation::key`] of the act that opened it; empty: a person did.
    pub operation: String,
    /// As it was asked for: a workflow's id, or an image's name.
    pub image: String,
    /// For whoever meets it without having opened it: whose it is, and what ends it.
    pub whose: String,
    pub standing: Standing,
}

/// Attempts count from 1; several of them are made within one order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The machine has not asked for the installer of this attempt.
    Ordered {
        attempt: u32,
    },
    /// It was given the installer, which has not said anything.
    Booting {
        attempt: u32,
    },
    Installing {
        attempt: u32,
        percent: Option<u8>,
    },
    /// The installer says that it is done. `disk_booted`: the machine has asked since, and was sent to its disk.
    Written {
        disk_booted: bool,
    },
    /// That, and somebody has said or proven that it came up.
    Installed,
    /// As often as is allowed; why the last time.
    Failed {
        why: String,
    },
    CalledOff,
}

/// Whether a machine can be installed in this way, and with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer {
    /// In words.
    Yes(String),
    No(String),
}

/// Every call looks first: to ask for the same again changes nothing.
#[async_trait]
pub trait Netboot: Send + Sync {
    /// Whether this image can be written to this machine by network boot.
    async fn offer(&self, machine: &MachineId, image: &str) -> ProviderResult<Offer>;

    /// Opens an order on behalf of `target.by`. From now on the machine is served the installer when it asks.
    async fn order(
        &self,
        target: &Target,
        image: &str,
        user_data_ref: &str,
        op: &Operation,
    ) -> ProviderResult<NetbootOrder>;

    /// `None`: nothing was ever ordered for it.
    async fn state(&self, machine: &MachineId) -> ProviderResult<Option<NetbootOrder>>;

    /// Closes the order of this operation, if it is open. From now on the machine boots from its disk.
    async fn call_off(&self, machine: &MachineId, operation: &str, why: &str) -> ProviderResult<()>;

    /// What the order of this operation has written was seen to come up from the disk.
    async fn proven(&self, machine: &MachineId, operation: &str, how: &str) -> ProviderResult<()>;
}
