//! The lease protocol of the engine as a model, checked to exhaustion.
//!
//! Processes share a store of linearizable transactions and drive machines that know no fences:
//!
//! * A process opens a *session* at start; the same transaction marks dead what its instance left live.
//! * It renews by `renewals += 1 where id = me and state = live`; no row changed means lost, and it stops. A device
//!   call may begin only while the last successful renewal *began* less than `lease - call_timeout` ago.
//! * A taker judges a foreign session by its own clock: it remembers `(session, renewals)`, stamped once the read has
//!   returned, and when the counter has not moved for `lease` it marks the session dead by compare-and-swap.
//! * A claim takes an execution that is unheld or whose holder is not live: `holder = me, fence += 1`.
//! * Every write checks `not ended and fence = mine and holder = me and my session is live` in its own transaction.
//! * Work is intent (write), probe, act (device call), result (write). Whoever finds an intent without a result probes
//!   before acting, and adopts the effect of this attempt if the machine already shows it.
//! * Who claims from a *dead* session, however it died, leaves a stage in hand that is not repeatable alone until no
//!   call of the dead can land any more. This *settling* lasts until more than `call_timeout` has passed since the
//!   claim, or `lease + call_timeout` since the last renewal observed. Until then the claimant does not probe, act on,
//!   end or hand over the execution. (The engine may look earlier and adopt an effect that it sees; it concludes
//!   nothing from seeing none. And it settles for every stage, repeatable or not.)
//! * A cancel ends an execution at once if nothing has been entered; otherwise its holder ends it, between calls.
//! * A termination by an operator ends an execution at once and raises its fence: `status = terminated, fence += 1,
//!   holder = none`. Its holder learns of it at its next write; a call that was in the air, or one that it begins
//!   before that write, may still land. Once at most, as ever: the operator has ended it without its code.
//! * A hand-over is one transaction, between calls: `holder = none`, session released. The next claimant may act at
//!   once.
//!
//! How it is modelled: time is a global tick which moves every age. Ages saturate where the protocol no longer tells
//! them apart, so the space is finite without a bound on time; it is bounded by the number of sessions ever opened, of
//! executions and of attempts. A pause (SIGSTOP) is a process that is not scheduled: any number of ticks may pass
//! between any two steps of a process, while a call it has sent lands or expires within its time-out. The counter of
//! renewals is only ever compared with an earlier reading of itself, so a renewal drops the readings that others hold
//! of it. Processes and executions are interchangeable and numbered by first use.
//!
//! Clocks run at one rate, except where a size says how often that of a process may be late or early (`drift`).
//!
//! What is assumed: clocks go on while their process is stopped, a machine never acts on a call
//! later than `call_timeout` after it was sent, and at most one process of an instance is alive.

#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test throughout")]

mod model;
mod properties;
mod size;
mod state;

use properties::*;
use size::*;
use state::*;
use stateright::{Checker, HasDiscoveries, Model};
use std::collections::BTreeSet;

/// Visits every reachable state and asserts every property.
///
/// The checker stops early only once it has a discovery for each property; as no invariant may have one, done means
/// exhausted.
fn exhaust(name: &str, model: Lease) {
    let checker = model.checker().threads(2).spawn_dfs().join();
    println!("{name}: exhausted {} states", checker.unique_state_count());
    assert!(checker.is_done(), "{name}: the state space was not exhausted");
    checker.assert_properties();
}

/// Asserts that the checker finds a counterexample to `property`.
fn refute(name: &str, model: Lease, property: &'static str) {
    let wanted = HasDiscoveries::AllOf(BTreeSet::from([property]));
    let checker = model.checker().finish_when(wanted).spawn_bfs().join();
    let states = checker.unique_state_count();
    let Some(path) = checker.discovery(property) else {
        panic!("{name}: no counterexample to \"{property}\" in {states} states");
    };
    println!("{name}: \"{property}\" refuted after {states} states by {:?}", path.into_actions());
}

fn refute_defect(size: Lease, defects: &'static [Defect], property: &'static str) {
    refute(&format!("{defects:?}"), Lease { defects, ..size }, property);
}

/// Sizes for what needs no cancel, with and without a restart.
const ONE_RESTART: Lease = Lease { cancels: false, reaches: &[], ..BASE };
const NO_RESTART: Lease = Lease { sessions: 2, ..ONE_RESTART };

#[test]
fn two_processes_one_restart() {
    exhaust("two processes, one restart", BASE);
}

#[test]
fn three_processes() {
    let reaches = &[TAKEOVER_AFTER_CRASH, TAKEOVER_OF_PAUSED, STALE_WRITE_REFUSED, ADOPTED_BY_PROBE, HAND_OVER];
    let model = Lease { processes: 3, sessions: 3, lease: 2, watch_holders_only: true, reaches, ..NO_RESTART };
    exhaust("three processes", model);
}

#[test]
fn two_executions() {
    let reaches = &[TAKEOVER_OF_PAUSED, ADOPTED_BY_PROBE, HAND_OVER];
    exhaust("two executions", Lease { executions: 2, lease: 2, reaches, ..NO_RESTART });
}

#[test]
fn two_attempts() {
    let reaches = &[RESTART_RECLAIM, ADOPTED_BY_PROBE, STALE_WRITE_REFUSED];
    exhaust("two attempts", Lease { attempts: 2, reaches, ..ONE_RESTART });
}

#[test]
fn renewals_in_three_steps() {
    let reaches = &[TAKEOVER_OF_PAUSED, ADOPTED_BY_PROBE, STALE_WRITE_REFUSED];
    exhaust("renewals in three steps", Lease { split_renewal: true, reaches, ..NO_RESTART });
}

#[test]
fn long_calls() {
    let reaches = &[RESTART_RECLAIM, TAKEOVER_AFTER_CRASH, ADOPTED_BY_PROBE];
    exhaust("long calls", Lease { call_timeout: 2, reaches, ..ONE_RESTART });
}

/// A repeatable stage is taken over without settling, and may then well take effect twice.
#[test]
fn repeatable_stage() {
    let reaches = &[REPEATED, RESTART_RECLAIM, TAKEOVER_OF_PAUSED];
    exhaust("repeatable stage", Lease { repeatable: true, reaches, ..ONE_RESTART });
}

/// An operator ends executions at any moment, whoever holds them, beside restarts and takeovers.
#[test]
fn terminations() {
    let reaches = &[EFFECT_AFTER_TERMINATION, TAKEOVER_OF_PAUSED, STALE_WRITE_REFUSED];
    exhaust("terminations", Lease { terminates: true, reaches, ..ONE_RESTART });
}

/// A termination without a write guard is seen: the holder would go on as if nothing had happened.
#[test]
fn a_termination_that_is_not_checked_is_seen() {
    let size = Lease { terminates: true, ..NO_RESTART };
    refute_defect(size, &[Defect::NoFenceCheck, Defect::NoTerminalCheck], ENDS_ONCE);
}

/// A clock that is late or early by a tick in every lease and call does no harm, because a claimant settles for a
/// little longer than a call can take; without that it would. Half or double speed is too much.
#[test]
fn clocks_that_drift() {
    let reaches = &[TAKEOVER_OF_PAUSED, ADOPTED_BY_PROBE, STALE_WRITE_REFUSED];
    let drifting = Lease { drift: Some(LEASE + CALL_TIMEOUT), ..NO_RESTART };
    exhaust("clocks that drift", Lease { settle_margin: 1, reaches, ..drifting });
    // one process and its restart show what goes wrong otherwise
    let restarted = Lease { processes: 1, ..drifting };
    refute("clocks that drift, no margin", restarted, ONE_EFFECT);
    refute("clocks at half or double speed", Lease { drift: Some(1), settle_margin: 1, ..restarted }, ONE_EFFECT);
}

/// Tens of millions of states: only with `MILLWRIGHT_LEASE_MODEL=large`, and then better with `--release`.
#[test]
fn larger_sizes() {
    if std::env::var("MILLWRIGHT_LEASE_MODEL").is_ok_and(|size| size != "large") {
        panic!("MILLWRIGHT_LEASE_MODEL: the only size that can be asked for is \"large\"");
    }
    if std::env::var_os("MILLWRIGHT_LEASE_MODEL").is_none() {
        // a little beyond the others, so that this test, too, checks something by default
        return exhaust(
            "two restarts of one process",
            Lease { processes: 1, sessions: 3, reaches: &[RESTART_RECLAIM], ..BASE },
        );
    }
    let base = Lease { reaches: &[RESTART_RECLAIM], ..BASE };
    exhaust("two restarts", Lease { sessions: 4, ..base });
    exhaust("renewals in three steps, one restart", Lease { split_renewal: true, ..base });
    let narrow = Lease { lease: 2, cancels: false, watch_holders_only: true, ..base };
    exhaust("two executions, one restart", Lease { executions: 2, ..narrow });
    exhaust("three processes, one restart", Lease { processes: 3, sessions: 4, ..narrow });
}

/// The window which no lease over machines without fences closes: the process is stopped between checking its lease
/// and sending the call, for as long as it takes another to take over, probe and act.
///
/// In practice only a pause of more than `call_timeout` in this one place does harm (see
/// [`late_send_within_the_margin`]), probing before repeating adopts whatever late call has landed by then, and both
/// calls stand in the journal.
#[test]
fn late_send_is_seen() {
    let model = Lease { late_send: ANY_PAUSE, ..NO_RESTART };
    refute("late send", model, ONE_EFFECT);
    refute("late send", model, NO_CALL_AFTER_END);
}

/// The protocol has a margin of `call_timeout`, which absorbs late sends up to that length.
#[test]
fn late_send_within_the_margin() {
    exhaust("late send within the margin", Lease { late_send: Some(CALL_TIMEOUT), ..ONE_RESTART });
    let beyond = Lease { late_send: Some(CALL_TIMEOUT + 1), ..NO_RESTART };
    refute("late send beyond the margin", beyond, ONE_EFFECT);
}

/// The holder that stops calling at `lease - call_timeout` and the claimant that settles after an observed death cover
/// each other: each alone is enough while clocks run at one rate, and having both is the margin.
#[test]
fn either_margin_is_enough() {
    use Defect::{CallUntilLeaseEnds, NoSettlingAfterObservation};
    exhaust("no margin of the holder", Lease { defects: &[CallUntilLeaseEnds], ..ONE_RESTART });
    exhaust("no margin of the claimant", Lease { defects: &[NoSettlingAfterObservation], ..ONE_RESTART });
    refute_defect(NO_RESTART, &[CallUntilLeaseEnds, NoSettlingAfterObservation], ONE_EFFECT);
}

#[test]
fn defects_of_the_write_guard_are_seen() {
    refute_defect(NO_RESTART, &[Defect::NoFenceCheck], ONE_WRITER_PER_FENCE);
    refute_defect(NO_RESTART, &[Defect::NoSessionCheck], NO_WRITE_OF_ENDED_SESSION);
    refute_defect(Lease { cancels: true, ..NO_RESTART }, &[Defect::NoTerminalCheck], ENDS_ONCE);
}

#[test]
fn defects_of_settling_are_seen() {
    refute_defect(ONE_RESTART, &[Defect::NoSettling], ONE_EFFECT);
    refute_defect(ONE_RESTART, &[Defect::NoSettlingAfterRestart], ONE_EFFECT);
    refute_defect(ONE_RESTART, &[Defect::ProbeBeforeSettling], ONE_EFFECT);
    refute_defect(ONE_RESTART, &[Defect::ReleaseBeforeSettling], ONE_EFFECT);
    refute_defect(Lease { cancels: true, ..ONE_RESTART }, &[Defect::CancelBeforeSettling], NO_EFFECT_AFTER_END);
}

#[test]
fn acting_without_probing_is_seen() {
    refute_defect(NO_RESTART, &[Defect::NoProbe], ONE_EFFECT);
}

#[test]
fn defects_of_the_lease_are_seen() {
    refute_defect(NO_RESTART, &[Defect::RenewalIgnoresState], ONE_EFFECT);
    refute_defect(NO_RESTART, &[Defect::RenewalIgnoresState], NO_CALL_AFTER_END);
    refute_defect(NO_RESTART, &[Defect::MarkIgnoresCounter], ONE_EFFECT);
    refute_defect(NO_RESTART, &[Defect::MarkAtOnce], ONE_EFFECT);
    let short = Lease { lease: 2, ..NO_RESTART };
    refute_defect(short, &[Defect::StampBeforeRead], ONE_EFFECT);
    refute_defect(Lease { split_renewal: true, ..short }, &[Defect::LeaseFromAnswer], ONE_EFFECT);
}
