//! Reboots the machine, with proof: the boot id seen before the act has changed, and the machine answers. Where
//! nobody could tell the boot id before, another one proves nothing, and something else must: that it was seen without
//! power since, or that its controller tells of another reset.

use super::stage::{At, Stage, acted, missing};
use async_trait::async_trait;
use domain::plan::RebootMode;
use engine::{Acted, Look, Seen};
use provider::{Inspection, PowerState};
use serde::{Deserialize, Serialize};

pub(super) struct Reboot {
    pub mode: RebootMode,
}

/// What was seen before the act, stored so that a crash after it can tell whether the reboot happened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Before {
    /// Empty: nobody could tell.
    boot_id: String,
    reachable: bool,
    attempt: u32,
    #[serde(default)]
    last_reset: String,
    /// It was seen without power.
    #[serde(default)]
    off: bool,
}

impl Before {
    fn of(seen: &Inspection, attempt: u32) -> Self {
        Self {
            boot_id: seen.boot_id.clone(),
            reachable: seen.reachable,
            attempt,
            last_reset: seen.last_reset.clone(),
            off: seen.power == PowerState::Off,
        }
    }

    /// What shows that it has booted since, in words.
    fn proof(&self, seen: &Inspection) -> Option<String> {
        // a machine that does not answer does not tell its boot id either
        if seen.boot_id.is_empty() {
            return None;
        }
        if !self.boot_id.is_empty() {
            let other = seen.boot_id != self.boot_id;
            return other.then(|| format!("boot id {} is now {}", self.boot_id, seen.boot_id));
        }
        if self.off && seen.power == PowerState::On {
            return Some(format!("it was without power, and has boot id {} now", seen.boot_id));
        }
        let reset = !self.last_reset.is_empty() && !seen.last_reset.is_empty() && seen.last_reset != self.last_reset;
        reset.then(|| {
            format!("last reset {} is now {}, with boot id {}", self.last_reset, seen.last_reset, seen.boot_id)
        })
    }
}

fn stored(before: &Before, seen: Seen) -> Look {
    Look { seen, output: Vec::new(), facts: Some(serde_json::json!(before)) }
}

#[async_trait]
impl Stage for Reboot {
    async fn look(&self, at: &At<'_>) -> Look {
        let seen = match at.inspect().await {
            Ok(seen) => seen,
            Err(seen) => return seen.into(),
        };
        let before: Option<Before> = serde_json::from_value(at.cx.facts.clone()).ok();
        if let Some(proof) = before.as_ref().and_then(|before| before.proof(&seen)) {
            if seen.power == PowerState::On && (seen.reachable || !seen.host_asked) {
                return Seen::Done(format!("rebooted: {proof}")).into();
            }
            return at.waiting("the machine to answer after its reboot").into();
        }
        let Some(before) = before.filter(|before| before.attempt == at.cx.attempt) else {
            // a boot since the first attempt still counts, so what was known then is kept
            let earlier: Before = serde_json::from_value(at.cx.facts.clone()).unwrap_or_default();
            let mut before = Before::of(&seen, at.cx.attempt);
            if !earlier.boot_id.is_empty() {
                before.boot_id = earlier.boot_id;
            }
            return stored(&before, Seen::Clear);
        };
        let acted = at.cx.may_have_acted;
        // it tells by now what it could not tell at the first look: good, as long as nothing was ordered
        if !acted && before.boot_id.is_empty() && !seen.boot_id.is_empty() {
            return stored(&Before::of(&seen, at.cx.attempt), Seen::Clear);
        }
        if before.boot_id.is_empty() && !before.off && seen.power == PowerState::Off {
            return stored(&Before { off: true, ..before }, if acted { at.waiting(OFF) } else { Seen::Clear });
        }
        // it answered before this attempt and does not now: it may well be on its way down or up
        if before.reachable && !seen.reachable {
            return at.waiting("the machine, which has gone quiet, to come back").into();
        }
        if acted && before.boot_id.is_empty() && !seen.boot_id.is_empty() {
            return at.waiting(UNPROVEN).into();
        }
        Seen::Clear.into()
    }

    async fn act(&self, at: &At<'_>) -> Acted {
        match at.access.provider.power() {
            Some(power) => acted(power.reset(at.target(), self.mode, &at.op).await),
            None => Acted::No(missing("power")),
        }
    }
}

const OFF: &str = "the machine, which is without power, to boot";
const UNPROVEN: &str = "proof of its reboot: it answers, but nobody could tell its boot id before the order, it was not \
    seen without power, and its controller tells of no other reset, so this may be the boot from before";

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(boot_id: &str, power: PowerState, last_reset: &str) -> Inspection {
        Inspection {
            serial_number: String::new(),
            system_uuid: String::new(),
            power,
            reachable: !boot_id.is_empty(),
            host_asked: true,
            boot_id: boot_id.into(),
            last_reset: last_reset.into(),
            boot_override: None,
            installed: None,
            disk_read: false,
            installing: None,
            install_note: String::new(),
            failed_install: None,
        }
    }

    #[test]
    fn another_boot_id_proves_a_boot_only_where_one_was_known() {
        let (on, off) = (PowerState::On, PowerState::Off);
        let proven = |before: Inspection, after: Inspection| Before::of(&before, 1).proof(&after).is_some();
        assert!(proven(seen("a", on, ""), seen("b", on, "")));
        assert!(!proven(seen("a", on, "1"), seen("a", on, "2")), "the system's word counts, not its controller's");
        assert!(!proven(seen("", on, ""), seen("b", on, "")), "it may be the boot from before");
        assert!(!proven(seen("", on, "1"), seen("b", on, "1")));
        assert!(!proven(seen("", on, "1"), seen("b", on, "")), "that it tells no longer says nothing");
        assert!(!proven(seen("", on, ""), seen("b", on, "1")));
        assert!(proven(seen("", on, "1"), seen("b", on, "2")));
        assert!(proven(seen("", off, ""), seen("b", on, "")), "what was off and is on has booted");
        assert!(!proven(seen("", off, ""), seen("", on, "")), "and answers");
    }
}
