//! What must always hold, and what must be reachable for that to mean anything.

use crate::size::Lease;
use crate::state::*;
use stateright::Property;

pub type Rule = Property<Lease>;

pub const ONE_WRITER_PER_FENCE: &str = "one writer per fence, and accepted fences never decrease";
pub const ONE_EFFECT: &str = "a stage that is not repeatable takes effect at most once, over all its attempts";
pub const ENDS_ONCE: &str = "an execution ends once and never changes after that";
pub const NO_CALL_AFTER_END: &str = "no call of an execution that its holder has ended begins";
pub const NO_EFFECT_AFTER_END: &str = "no call of a stage that is not repeatable lands after its holder has ended it";
pub const NO_WRITE_OF_ENDED_SESSION: &str = "no write of a dead or released session is accepted";

pub fn safety() -> Vec<Rule> {
    vec![
        Rule::always(ONE_WRITER_PER_FENCE, |_, s| !s.violations.foreign_or_decreasing_fence),
        Rule::always(ONE_EFFECT, |m, s| {
            m.repeatable || s.effects.iter().all(|attempts| attempts.iter().sum::<u8>() < MANY)
        }),
        Rule::always(ENDS_ONCE, |_, s| !s.violations.terminal_changed),
        Rule::always(NO_CALL_AFTER_END, |_, s| !s.violations.call_begun_after_end),
        Rule::always(NO_EFFECT_AFTER_END, |m, s| m.repeatable || !s.violations.effect_after_end),
        Rule::always(NO_WRITE_OF_ENDED_SESSION, |_, s| !s.violations.write_of_ended_session),
    ]
}

pub const TAKEOVER_AFTER_CRASH: &str = "takeover after a crash";
pub const TAKEOVER_OF_PAUSED: &str = "takeover of a process that is only paused";
pub const RESTART_RECLAIM: &str = "reclaim after a restart";
pub const CANCEL_BEFORE_START: &str = "cancel before anything is entered";
pub const CANCEL_DURING_CALL: &str = "cancel requested while a call is on its way";
pub const CANCEL_BY_HOLDER: &str = "cancel ended by a holder";
pub const RESULT_BEATS_CANCEL: &str = "a result is written although a cancel was requested";
pub const CANCEL_AFTER_EFFECT: &str = "canceled although the effect had landed";
pub const STALE_WRITE_REFUSED: &str = "a stale write is refused";
pub const ADOPTED_BY_PROBE: &str = "an effect is adopted by probing";
pub const HAND_OVER: &str = "hand-over of a held execution";
pub const CLAIM_AFTER_HAND_OVER: &str = "claim after a hand-over";
pub const EFFECT_AFTER_TERMINATION: &str = "a call takes effect after its execution was terminated";
pub const REPEATED: &str = "a repeatable stage takes effect twice";

pub const EVERYTHING: &[&str] = &[
    TAKEOVER_AFTER_CRASH,
    TAKEOVER_OF_PAUSED,
    RESTART_RECLAIM,
    CANCEL_BEFORE_START,
    CANCEL_DURING_CALL,
    CANCEL_BY_HOLDER,
    RESULT_BEATS_CANCEL,
    CANCEL_AFTER_EFFECT,
    STALE_WRITE_REFUSED,
    ADOPTED_BY_PROBE,
    HAND_OVER,
    CLAIM_AFTER_HAND_OVER,
];

pub fn reachability() -> Vec<Rule> {
    vec![
        Rule::sometimes(TAKEOVER_AFTER_CRASH, |_, s| s.event == Some(Event::TakeoverAfterCrash)),
        Rule::sometimes(TAKEOVER_OF_PAUSED, |_, s| s.event == Some(Event::TakeoverOfPaused)),
        Rule::sometimes(RESTART_RECLAIM, |_, s| s.event == Some(Event::RestartReclaim)),
        Rule::sometimes(CANCEL_BEFORE_START, |_, s| s.event == Some(Event::CancelBeforeStart)),
        Rule::sometimes(CANCEL_DURING_CALL, |_, s| s.event == Some(Event::CancelDuringCall)),
        Rule::sometimes(CANCEL_BY_HOLDER, |_, s| s.event == Some(Event::CancelByHolder)),
        Rule::sometimes(RESULT_BEATS_CANCEL, |_, s| s.event == Some(Event::ResultBeatsCancel)),
        Rule::sometimes(CANCEL_AFTER_EFFECT, |_, s| s.event == Some(Event::CancelAfterEffect)),
        Rule::sometimes(STALE_WRITE_REFUSED, |_, s| s.event == Some(Event::StaleWriteRefused)),
        Rule::sometimes(ADOPTED_BY_PROBE, |_, s| s.event == Some(Event::AdoptedByProbe)),
        Rule::sometimes(HAND_OVER, |_, s| s.event == Some(Event::HandOver)),
        Rule::sometimes(CLAIM_AFTER_HAND_OVER, |_, s| s.event == Some(Event::ClaimAfterHandOver)),
        Rule::sometimes(EFFECT_AFTER_TERMINATION, |_, s| s.event == Some(Event::EffectAfterTermination)),
        Rule::sometimes(REPEATED, |_, s| s.effects.iter().flatten().any(|&effects| effects >= MANY)),
    ]
}
