//! What a report does: a pure function of the node's state, its order and what was said.
//!
//! | said | in | does |
//! |---|---|---|
//! | `started` | `pending` | `installing`; the counter begins anew |
//! | `started` | `installing`, the next attempt | that attempt has begun; the counter stays |
//! | `progress` | `installing` | is kept; no move |
//! | `complete` | `installing` | `installed`; the counter begins anew |
//! | `failed` | `installing` | one more failed attempt; the third: `install_failed` |
//! | anything else | | nothing, and says why |
//!
//! An erasure is reported in the same words while `deprovisioning`; it moves no state by itself.

use crate::boot_node::{BootState, MAX_INSTALL_ATTEMPTS};
use crate::error::Error;
use crate::install_order::{InstallOrder, OrderTask};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Started,
    Progress,
    Complete,
    Failed,
}

impl Said {
    pub const ALL: [Said; 4] = [Said::Started, Said::Progress, Said::Complete, Said::Failed];

    pub const fn as_str(self) -> &'static str {
        match self {
            Said::Started => "started",
            Said::Progress => "progress",
            Said::Complete => "complete",
            Said::Failed => "failed",
        }
    }

    pub fn parse(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|said| said.as_str() == text).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().map(|said| said.as_str()).collect();
            Error::field("installation_status", format!("{text:?} is unknown; use one of {}", known.join(", ")))
                .allowing(known)
        })
    }
}

/// Why a report changed nothing. The names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// It carried no token: facts only.
    NoToken,
    /// It says nothing about an installation.
    NoStatus,
    /// Nothing is to be installed any more.
    OrderClosed,
    /// The attempt that its token was made for has ended.
    AttemptEnded,
    Duplicate,
    /// Less than what was reported before.
    OutOfOrder,
    /// What it says does not fit the state.
    Mismatch,
}

impl Ignored {
    pub const fn as_str(self) -> &'static str {
        match self {
            Ignored::NoToken => "NO_TOKEN",
            Ignored::NoStatus => "NO_STATUS",
            Ignored::OrderClosed => "ORDER_CLOSED",
            Ignored::AttemptEnded => "ATTEMPT_ENDED",
            Ignored::Duplicate => "DUPLICATE",
            Ignored::OutOfOrder => "OUT_OF_ORDER",
            Ignored::Mismatch => "MISMATCH",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The first attempt has begun.
    Begins,
    /// One after a failure has begun.
    BeginsAgain,
    Progresses(u8),
    Completes,
    /// So many attempts have failed by now.
    Fails(u32),
    Nothing(Ignored),
}

/// Whether so many failures are as many as are allowed.
pub const fn is_spent(failures: u32) -> bool {
    failures >= MAX_INSTALL_ATTEMPTS
}

/// `attempt` is what the report's token was made for.
pub fn effect(
    state: BootState,
    failures: u32,
    order: Option<&InstallOrder>,
    attempt: u32,
    said: Said,
    progress: Option<u8>,
) -> Effect {
    let Some(order) = order.filter(|order| order.is_open()) else { return Effect::Nothing(Ignored::OrderClosed) };
    if attempt != order.attempt {
        return Effect::Nothing(Ignored::AttemptEnded);
    }
    let under_way = match (order.task, state) {
        (OrderTask::Install, BootState::Installing) | (OrderTask::Erase, BootState::Deprovisioning) => true,
        (OrderTask::Install, BootState::Pending) => false,
        (
            OrderTask::Install | OrderTask::Erase,
            BootState::Discovered
            | BootState::Pending
            | BootState::Installing
            | BootState::InstallFailed
            | BootState::Installed
            | BootState::Active
            | BootState::Reprovision
            | BootState::Deprovisioning
            | BootState::Migrating
            | BootState::Retired,
        ) => return Effect::Nothing(Ignored::Mismatch),
    };
    match (said, under_way) {
        (Said::Started, false) => Effect::Begins,
        (Said::Started, true) if order.started_at.is_some() => Effect::Nothing(Ignored::Duplicate),
        (Said::Started, true) => Effect::BeginsAgain,
        (Said::Progress, true) => match progress {
            Some(percent) if order.progress.is_some_and(|known| percent < known) => {
                Effect::Nothing(Ignored::OutOfOrder)
            }
            Some(percent) => Effect::Progresses(percent),
            None => Effect::Progresses(order.progress.unwrap_or(0)),
        },
        (Said::Complete, true) => Effect::Completes,
        (Said::Failed, true) => Effect::Fails(failures + 1),
        (Said::Progress | Said::Complete | Said::Failed, false) => Effect::Nothing(Ignored::Mismatch),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install_order::OrderState;
    use crate::lifecycle::State as _;
    use crate::testing::order;

    fn of(state: BootState, order: Option<&InstallOrder>, attempt: u32, said: Said) -> Effect {
        effect(state, 1, order, attempt, said, Some(40))
    }

    #[test]
    fn the_table_holds_in_every_state() {
        let fresh = order(OrderTask::Install, 1, false);
        let begun = order(OrderTask::Install, 1, true);
        for state in BootState::ALL {
            for said in Said::ALL {
                let wanted = match (said, state) {
                    (Said::Started, BootState::Pending) => Effect::Begins,
                    (Said::Started, BootState::Installing) => Effect::Nothing(Ignored::Duplicate),
                    (Said::Progress, BootState::Installing) => Effect::Progresses(40),
                    (Said::Complete, BootState::Installing) => Effect::Completes,
                    (Said::Failed, BootState::Installing) => Effect::Fails(2),
                    _ => Effect::Nothing(Ignored::Mismatch),
                };
                assert_eq!(of(*state, Some(&begun), 1, said), wanted, "{said:?} in {state}");
                assert_eq!(of(*state, None, 1, said), Effect::Nothing(Ignored::OrderClosed));
                assert_eq!(of(*state, Some(&begun), 2, said), Effect::Nothing(Ignored::AttemptEnded));
                let closed = InstallOrder { state: OrderState::Closed, ..begun.clone() };
                assert_eq!(of(*state, Some(&closed), 1, said), Effect::Nothing(Ignored::OrderClosed));
            }
        }
        assert_eq!(of(BootState::Installing, Some(&fresh), 1, Said::Started), Effect::BeginsAgain);
    }

    #[test]
    fn an_erasure_is_reported_in_the_same_words() {
        let begun = order(OrderTask::Erase, 2, true);
        let of = |state, said| of(state, Some(&begun), 2, said);
        assert_eq!(of(BootState::Deprovisioning, Said::Complete), Effect::Completes);
        assert_eq!(of(BootState::Deprovisioning, Said::Failed), Effect::Fails(2));
        assert_eq!(of(BootState::Installing, Said::Complete), Effect::Nothing(Ignored::Mismatch));
    }

    #[test]
    fn progress_does_not_go_back() {
        let known = InstallOrder { progress: Some(60), ..order(OrderTask::Install, 1, true) };
        let said = |percent| effect(BootState::Installing, 0, Some(&known), 1, Said::Progress, percent);
        assert_eq!(said(Some(59)), Effect::Nothing(Ignored::OutOfOrder));
        assert_eq!((said(Some(60)), said(None)), (Effect::Progresses(60), Effect::Progresses(60)));
    }

    #[test]
    fn the_third_failure_is_the_last() {
        assert_eq!([1, 2, 3, 4].map(is_spent), [false, false, true, true]);
    }
}
