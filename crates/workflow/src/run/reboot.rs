//! Reboots the machine, with proof: the boot id seen before the act has changed, and the machine answers.

use super::stage::{At, Stage, acted, missing};
use async_trait::async_trait;
use domain::plan::RebootMode;
use engine::{Acted, Look, Seen};
use provider::PowerState;
use serde::{Deserialize, Serialize};

pub(super) struct Reboot {
    pub mode: RebootMode,
}

/// What was seen before the act, stored so that a crash after it can tell whether the reboot happened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Before {
    boot_id: String,
    reachable: bool,
    attempt: u32,
}

#[async_trait]
impl Stage for Reboot {
    async fn look(&self, at: &At<'_>) -> Look {
        let seen = match at.inspect().await {
            Ok(seen) => seen,
            Err(seen) => return seen.into(),
        };
        let before: Option<Before> = serde_json::from_value(at.cx.facts.clone()).ok();
        match before {
            // a machine that does not answer does not tell its boot id either
            Some(before) if !seen.boot_id.is_empty() && seen.boot_id != before.boot_id => {
                if seen.power == PowerState::On && (seen.reachable || !seen.host_asked) {
                    return Seen::Done(format!("rebooted: boot id {} is now {}", before.boot_id, seen.boot_id)).into();
                }
                at.waiting("the machine to answer after its reboot").into()
            }
            // it answered before this attempt and does not now: it may well be on its way down or up
            Some(before) if before.attempt == at.cx.attempt && before.reachable && !seen.reachable => {
                at.waiting("the machine, which has gone quiet, to come back").into()
            }
            Some(before) if before.attempt == at.cx.attempt => Seen::Clear.into(),
            earlier => {
                // a boot since the first attempt still counts, so its boot id is kept
                let known = earlier.map(|b| b.boot_id).filter(|id| !id.is_empty());
                let boot_id = known.unwrap_or(seen.boot_id);
                let before = Before { boot_id, reachable: seen.reachable, attempt: at.cx.attempt };
                Look { seen: Seen::Clear, output: Vec::new(), facts: Some(serde_json::json!(before)) }
            }
        }
    }

    async fn act(&self, at: &At<'_>) -> Acted {
        match at.access.provider.power() {
            Some(power) => acted(power.reset(at.target(), self.mode, &at.op).await),
            None => Acted::No(missing("power")),
        }
    }
}
