//! What the engine shows of itself: measurements of claims and stages, what executions wait for, and the
//! spans that log lines and traces of a worker belong to.

use crate::engine::Engine;
use domain::metric::{self, StageOutcome};
use domain::stage::{FailureClass, Next, Outcome, Position};
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use std::time::Duration;
use store::execution::Execution;
use store::{Open, WAIT_PREFIX};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// What an execution waits for while all automation is stopped.
pub(crate) const BRAKE: &str = "the brake to be released (millwright unfreeze)";
/// … until it may try again,
pub(crate) const BACKOFF: &str = "the pause before attempt";
/// … until its rack may be touched again,
pub(crate) const RACK_CAP: &str = "room under the cap of";
/// … after this server has let go of it,
pub(crate) const NEXT_SERVER: &str = "the next server to take over";
pub(crate) const LOST_CALL: &str = "the last call of a lost holder to have ended";
/// … when it is canceled, or has failed, and cannot be stopped,
pub(crate) const LATE_EFFECT: &str = "the effect of what was accepted and cannot be stopped";
/// … when this binary does not understand it.
pub(crate) const UNKNOWN: &str = "a server that can go on with it, or an operator (millwright engine terminate)";

/// One of [`metric::WAITS_FOR`].
fn kind_of_wait(open: &Open, frozen: bool) -> &'static str {
    if open.running {
        return "working";
    }
    let begins = |text: &str| text.get(..WAIT_PREFIX).is_some_and(|start| open.waiting_for.starts_with(start));
    if begins(UNKNOWN) {
        "operator"
    } else if frozen && (open.due || begins(BRAKE)) {
        "brake"
    } else if open.due {
        "worker"
    } else if begins(BACKOFF) {
        "backoff"
    } else if begins(RACK_CAP) {
        "rack_cap"
    } else if begins(NEXT_SERVER) || begins(LOST_CALL) {
        "hand_over"
    } else {
        "machine"
    }
}

impl Engine {
    /// Says how this server's workers and lease stand.
    pub fn tell(&self) {
        metrics::gauge!(metric::WORKERS_BUSY.name).set(self.busy() as f64);
        metrics::gauge!(metric::WORKERS_LIMIT.name).set(self.workers() as f64);
        metrics::gauge!(metric::LEASE_REMAINING.name).set(self.lease_remaining().as_secs_f64());
    }
}

/// Says what the executions that have not ended wait for.
pub fn tell_open(open: &[Open], frozen: bool) {
    for waits_for in metric::WAITS_FOR {
        let of_kind = open.iter().filter(|o| kind_of_wait(o, frozen) == waits_for);
        let count: u64 = of_kind.map(|o| o.count).sum();
        metrics::gauge!(metric::EXECUTIONS_OPEN.name, "waits_for" => waits_for).set(count as f64);
    }
}

/// Makes what has not happened yet visible as zero.
pub fn tell_zeros() {
    for counter in [metric::LEASE_LOSSES, metric::LEASE_TAKEOVERS, metric::FENCED_WRITES] {
        metrics::counter!(counter.name).increment(0);
    }
}

pub(crate) fn fenced() {
    metrics::counter!(metric::FENCED_WRITES.name).increment(1);
}

pub(crate) fn lease_lost() {
    metrics::counter!(metric::LEASE_LOSSES.name).increment(1);
}

pub(crate) fn rival_declared_dead() {
    metrics::counter!(metric::LEASE_TAKEOVERS.name).increment(1);
}

/// A claim's latency is that of each execution it took.
pub(crate) fn claimed(executions: &[Execution]) {
    for e in executions {
        metrics::histogram!(metric::CLAIM_LATENCY.name).record(e.updated_at.since(e.wake_at));
    }
}

/// An attempt at a stage, or at taking one back, that has come to its end.
pub(crate) struct Attempted {
    pub kind: &'static str,
    pub took: Duration,
    pub outcome: StageOutcome,
    pub class: Option<FailureClass>,
}

impl Attempted {
    /// `None`: nothing was attempted yet.
    pub fn of(kind: &'static str, took: Duration, from: Position, came: Outcome, next: &Next) -> Option<Self> {
        let again = matches!(next, Next::Retry(_));
        let outcome = match (from, came) {
            (Position::Start, _) => return None,
            (Position::Stage { .. }, Outcome::Done) => StageOutcome::Done,
            (Position::Stage { .. }, Outcome::Failed(_)) if again => StageOutcome::Retried,
            (Position::Stage { .. }, Outcome::Failed(_)) => StageOutcome::Failed,
            (Position::Stage { .. }, Outcome::Canceled) => StageOutcome::Canceled,
            (Position::Undo { .. }, Outcome::Done | Outcome::Canceled) => StageOutcome::Undone,
            (Position::Undo { .. }, Outcome::Failed(_)) => StageOutcome::UndoFailed,
        };
        let class = match came {
            Outcome::Failed(class) => Some(class),
            Outcome::Done | Outcome::Canceled => None,
        };
        Some(Self { kind, took, outcome, class })
    }

    pub fn tell(&self, step: &str, message: &str) {
        let (kind, outcome, seconds) = (self.kind, self.outcome.as_str(), self.took.as_secs_f64());
        match self.class {
            None => tracing::debug!(step, kind, outcome, seconds, "an attempt has ended"),
            Some(class) => {
                tracing::info!(step, kind, outcome, seconds, class = %class, why = message, "an attempt failed")
            }
        }
        metrics::histogram!(metric::STAGE_SECONDS.name, "kind" => kind, "outcome" => outcome).record(self.took);
        if let Some(class) = self.class {
            metrics::counter!(metric::STAGE_FAILURES.name, "kind" => kind, "class" => class.as_str()).increment(1);
        }
    }
}

/// The span of one worker's time with an execution. Whichever server has it, and however often it is
/// claimed, its spans are of one trace: the one whose id is the execution's own.
pub(crate) fn execution_span(e: &Execution) -> Span {
    let span = tracing::error_span!(
        "execution",
        execution_id = %e.id,
        run_id = %e.subject,
        machine_id = %e.machine_id,
        fence = %e.fence,
    );
    if let Some(parent) = trace_of(e.id.as_str()) {
        // nobody collects traces: nothing to set
        drop(span.set_parent(opentelemetry::Context::new().with_remote_span_context(parent)));
    }
    span
}

pub(crate) fn stage_span(step: &str, kind: &'static str, attempt: u32) -> Span {
    tracing::error_span!("stage", step, kind, attempt)
}

/// The trace of an execution: its id has as many bits as a trace's.
fn trace_of(id: &str) -> Option<SpanContext> {
    let hex = id.rsplit('_').next().unwrap_or(id);
    let trace = TraceId::from_hex(hex).ok()?;
    let (_, low) = hex.split_at_checked(16)?;
    let span = SpanId::from_hex(low).ok()?;
    Some(SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::NONE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(waiting_for: &str, due: bool) -> Open {
        Open { running: false, due, waiting_for: waiting_for.chars().take(WAIT_PREFIX).collect(), count: 1 }
    }

    #[test]
    fn waits_are_told_apart_by_how_they_begin() {
        for (text, kind) in [
            (BRAKE, "machine"),
            (BACKOFF, "backoff"),
            (RACK_CAP, "rack_cap"),
            (NEXT_SERVER, "hand_over"),
            (LOST_CALL, "hand_over"),
            (UNKNOWN, "operator"),
            ("the machine to answer: timeout", "machine"),
            ("", "machine"),
        ] {
            assert_eq!(kind_of_wait(&open(text, false), false), kind, "{text}");
            assert!(metric::WAITS_FOR.contains(&kind));
        }
        assert_eq!(kind_of_wait(&open("a free worker", true), false), "worker");
        assert_eq!(kind_of_wait(&open("a free worker", true), true), "brake", "nothing is claimed meanwhile");
        assert_eq!(kind_of_wait(&Open { running: true, ..open("", true) }, true), "working");
    }

    #[test]
    fn an_executions_trace_is_its_own_id() {
        let trace = trace_of("exe_0199f0c2a3b87c4d9e8f001122334455").expect("an id");
        assert_eq!(trace.trace_id().to_string(), "0199f0c2a3b87c4d9e8f001122334455");
        assert!(trace.is_sampled() && trace.is_remote());
        assert!(trace_of("exe_short").is_none());
    }
}
