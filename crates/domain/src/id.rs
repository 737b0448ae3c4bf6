//! Typed, sortable ids: a prefix that names the noun, then 32 hex digits of a UUIDv7.

use crate::error::{Error, Reason};
use std::fmt;
use uuid::Uuid;

/// Prefixes that only the server hands out.
const PREFIXES: [&str; 11] = ["mch_", "run_", "exe_", "ses_", "tok_", "job_", "nod_", "btn_", "ord_", "fnd_", "tsk_"];

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            pub fn generate(uuid: Uuid) -> Self {
                Self(format!(concat!($prefix, "{}"), uuid.simple()))
            }

            /// Takes a text that is already known to be such an id: from a row, or to look one up.
            pub fn from_text(text: impl Into<String>) -> Self {
                Self(text.into())
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }

            pub fn into_text(self) -> String {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id_type!(
    /// A machine: ours (`mch_…`) or the caller's own name for it.
    MachineId, "mch_");
id_type!(RunId, "run_");
id_type!(ExecutionId, "exe_");
id_type!(
    /// One life of one server process.
    SessionId, "ses_");
id_type!(TokenId, "tok_");
id_type!(
    /// A boot node: hardware as the network-boot service knows it.
    BootNodeId, "btn_");
id_type!(
    /// An install order.
    OrderId, "ord_");
id_type!(FindingId, "fnd_");
id_type!(
    /// A node: one enrolment of a machine.
    NodeId, "nod_");
id_type!(JobId, "job_");
id_type!(
    /// One order to a node's agent.
    TaskId, "tsk_");

impl MachineId {
    /// A machine id chosen by the caller.
    pub fn parse(text: &str) -> Result<Self, Error> {
        check_name("machine_id", text)?;
        match PREFIXES.iter().find(|p| text.starts_with(**p)) {
            Some(prefix) => Err(Error::field(
                "machine_id",
                format!("{text:?} begins with {prefix:?}, which is kept for ids the server generates"),
            )),
            None => Ok(Self(text.to_owned())),
        }
    }
}

/// What a system can be called: 1 to 63 letters, digits and hyphens, these not at an end.
pub fn is_hostname(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with('-') && !name.ends_with('-')
}

/// Names that callers choose: 1 to 63 of `a-z A-Z 0-9 . _ -`.
pub fn check_name(field: &str, text: &str) -> Result<(), Error> {
    let ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if text.is_empty() {
        return Err(Error::field(field, "must not be empty"));
    }
    if text.len() > crate::limits::NAME_MAX {
        return Err(Error::field(
            field,
            format!("has {} characters, at most {} are allowed", text.len(), crate::limits::NAME_MAX),
        ));
    }
    match text.chars().find(|c| !ok(*c)) {
        Some(bad) => Err(Error::new(
            Reason::InvalidField,
            format!("{field}: {bad:?} is not allowed; use letters, digits, '.', '_' and '-'"),
        )
        .with("field", field)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_ids_fit_in_36_characters() {
        let id = MachineId::generate(Uuid::from_u128(7));
        assert_eq!(id.as_str(), "mch_00000000000000000000000000000007");
        assert_eq!(id.as_str().len(), 36);
    }

    #[test]
    fn callers_ids_are_bounded_and_never_look_like_ours() {
        assert!(MachineId::parse("m-123").is_ok());
        assert!(MachineId::parse(&"a".repeat(63)).is_ok());
        for bad in ["", "a b", "ü", "run_1", "mch_x", &"a".repeat(64)] {
            assert_eq!(MachineId::parse(bad).map_err(|e| e.reason), Err(Reason::InvalidField), "{bad:?}");
        }
    }
}
