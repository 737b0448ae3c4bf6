//! What an effect does to the world. Whatever replay needs is in here, with the time at which work
//! begun now will end, so that it ends on time even if another process has to notice.

use domain::plan::BootMode;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "detail", rename_all = "snake_case")]
pub(crate) enum Change {
    Created {
        serial_number: String,
        system_uuid: String,
    },
    /// A fault rule struck a call.
    Fault {
        step: String,
        rule: String,
    },
    Netboot {
        #[serde(with = "boot_mode")]
        mode: BootMode,
        persistent: bool,
    },
    ClearNetboot {},
    Reset {
        mode: String,
        due_micros: i64,
    },
    Booted {},
    PowerOff {},
    PowerLost {},
    RepaveStarted {
        image: String,
        user_data_ref: String,
        due_micros: i64,
    },
    Repaved {},
    RepaveAborted {},
    ExecStarted {
        command: String,
        args: Vec<String>,
        /// Names only: values may be secrets.
        environment: Vec<String>,
        output_bytes: Option<u64>,
        exit_code: i32,
        due_micros: i64,
    },
    ExecFinished {
        exit_code: i32,
    },
    ExecKilled {
        exit_code: i32,
    },
    JoinStarted {
        cluster: String,
        due_micros: i64,
    },
    Joined {
        cluster: String,
    },
    NetApplied {
        parameters: BTreeMap<String, String>,
    },
    ReturnOpened {
        reason: String,
    },
    Lamp {
        on: bool,
    },
    MediaInserted {
        url: String,
    },
    MediaEjected {},
    BiosSet {
        attributes: BTreeMap<String, String>,
    },
    UpdateStarted {
        task: String,
        image: String,
        due_micros: i64,
    },
    Updated {},
    PasswordRotated {},
    Repinned {},
    Cordoned {
        on: bool,
    },
    NodeDeleted {},
    /// Said to be done, but to be done only later.
    Deferred {
        due_micros: i64,
        change: Box<Change>,
    },
}

impl Change {
    /// The same, ending at `due`. Changes that take no time stay as they are.
    #[must_use]
    pub(crate) fn ending(mut self, due: i64) -> Self {
        match &mut self {
            Change::Reset { due_micros, .. }
            | Change::RepaveStarted { due_micros, .. }
            | Change::ExecStarted { due_micros, .. }
            | Change::JoinStarted { due_micros, .. }
            | Change::UpdateStarted { due_micros, .. }
            | Change::Deferred { due_micros, .. } => *due_micros = due,
            Change::Created { .. }
            | Change::Fault { .. }
            | Change::Netboot { .. }
            | Change::ClearNetboot {}
            | Change::Booted {}
            | Change::PowerOff {}
            | Change::PowerLost {}
            | Change::Repaved {}
            | Change::RepaveAborted {}
            | Change::ExecFinished { .. }
            | Change::ExecKilled { .. }
            | Change::Joined { .. }
            | Change::NetApplied { .. }
            | Change::ReturnOpened { .. }
            | Change::Lamp { .. }
            | Change::MediaInserted { .. }
            | Change::MediaEjected {}
            | Change::BiosSet { .. }
            | Change::Updated {}
            | Change::PasswordRotated {}
            | Change::Repinned {}
            | Change::Cordoned { .. }
            | Change::NodeDeleted {} => {}
        }
        self
    }

    /// The same command, with another end.
    #[must_use]
    pub(crate) fn exiting(mut self, code: i32) -> Self {
        if let Change::ExecStarted { exit_code, .. } = &mut self {
            *exit_code = code;
        }
        self
    }
}

/// The domain's words have one spelling; the journal uses it.
mod boot_mode {
    use domain::plan::BootMode;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(mode: &BootMode, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(mode.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BootMode, D::Error> {
        let text = String::deserialize(deserializer)?;
        BootMode::parse("mode", &text).map_err(|e| D::Error::custom(e.message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::{Effect, Record};

    #[test]
    fn a_record_and_an_effect_are_two_views_of_one_line() {
        let netboot = Change::Netboot { mode: BootMode::Pxe, persistent: true };
        for (change, kind) in [
            (netboot.clone(), "netboot"),
            (Change::ClearNetboot {}, "clear_netboot"),
            (Change::Deferred { due_micros: 9, change: Box::new(netboot) }, "deferred"),
            (Change::RepaveAborted {}, "repave_aborted"),
        ] {
            let record = Record {
                number: 3,
                at_micros: -7,
                machine: "m".into(),
                operation: "e.s.1".into(),
                fence: "4".into(),
                change,
            };
            let line = serde_json::to_string(&record).unwrap();
            let effect: Effect = serde_json::from_str(&line).unwrap();
            assert_eq!(effect.kind, kind);
            let again: Record = serde_json::from_str(&serde_json::to_string(&effect).unwrap()).unwrap();
            assert_eq!(again, record);
        }
    }

    #[test]
    fn an_unknown_word_is_no_change() {
        assert!(serde_json::from_str::<Change>(r#"{"kind":"exploded","detail":{}}"#).is_err());
        let bad = r#"{"kind":"netboot","detail":{"mode":"FLOPPY","persistent":false}}"#;
        assert!(serde_json::from_str::<Change>(bad).is_err());
    }
}
