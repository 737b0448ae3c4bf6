//! Reboots the machine, with proof: the boot id seen before the act has changed, and the machine answers.

use super::stage::{At, Stage, acted, missing};
use async_trait::async_trait;
use domain::plan::RebootMode;
use engine::{Acted, Look, Seen};
use provider::PowerState;

pub(super) struct Reboot {
    pub mode: RebootMode,
}

#[async_trait]
impl Stage for Reboot {
    async fn look(&self, at: &At<'_>) -> Look {
        let seen = match at.inspect().await {
            Ok(seen) => seen,
            Err(seen) => return seen.into(),
        };
        let Some(before) = at.cx.facts.get("boot_id").and_then(|v| v.as_str()) else {
            // stored before the act, so that a crash after it can tell whether the reboot happened
            return Look {
                seen: Seen::Clear,
                output: Vec::new(),
                facts: Some(serde_json::json!({"boot_id": seen.boot_id})),
            };
        };
        if seen.boot_id == before {
            return Seen::Clear.into();
        }
        if seen.power == PowerState::On && seen.reachable {
            return Seen::Done(format!("rebooted: boot id {before} is now {}", seen.boot_id)).into();
        }
        at.waiting("the machine to answer after its reboot").into()
    }

    async fn act(&self, at: &At<'_>) -> Acted {
        match at.access.provider.power() {
            Some(power) => acted(power.reset(at.target(), self.mode, &at.op).await),
            None => Acted::No(missing("power")),
        }
    }
}
