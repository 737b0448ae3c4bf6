//! Who a piece of simulated hardware says it is.

use provider::{ProviderError, Target};
use sha2::{Digest, Sha256};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub serial_number: String,
    pub system_uuid: String,
}

impl Identity {
    /// What the spec says, and where it says nothing, something stable made of the machine's id.
    pub(crate) fn of(target: &Target) -> Self {
        let mut identity = Self::made_of(target.machine_id.as_str());
        if !target.spec.serial_number.is_empty() {
            target.spec.serial_number.clone_into(&mut identity.serial_number);
        }
        if !target.spec.system_uuid.is_empty() {
            target.spec.system_uuid.clone_into(&mut identity.system_uuid);
        }
        identity
    }

    /// The machine that answers where another one was expected.
    pub(crate) fn of_another(target: &Target) -> Self {
        Self::made_of(&format!("not {}", target.machine_id))
    }

    pub(crate) fn made_of(text: &str) -> Self {
        let digest = Sha256::digest(text.as_bytes());
        let hex: String = digest.iter().take(20).map(|byte| format!("{byte:02x}")).collect();
        // version 8 (made by a rule of one's own), variant 10
        let uuid = format!("{}-{}-8{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..32]);
        Self { serial_number: format!("SIM{}", hex[32..].to_uppercase()), system_uuid: uuid }
    }
}

pub(crate) fn wrong_machine(target: &Target) -> ProviderError {
    let (expected, found) = (Identity::of(target), Identity::of_another(target));
    ProviderError::wrong_machine(format!(
        "the wrong machine answers for {}: expected serial {} and UUID {}, found serial {} and UUID {}",
        target.machine_id, expected.serial_number, expected.system_uuid, found.serial_number, found.system_uuid
    ))
}
