//! Calls into a stage's code: bounded in time, and a panic in one stops nobody else.

use super::Worker;
use crate::workflow::Failure;
use domain::stage::FailureClass;
use futures::FutureExt as _;
use std::future::Future;
use std::panic::AssertUnwindSafe;

pub(super) const TIMED_OUT: &str = "CALL_TIMED_OUT";

impl Worker<'_> {
    /// A call that only looks: given up when somebody cancels. `None`: it was.
    pub(super) async fn interruptible<T>(&self, call: impl Future<Output = T>) -> Option<Result<T, Failure>> {
        tokio::select! {
            biased;
            result = self.bounded(call) => Some(result),
            () = self.cancel.cancelled() => None,
        }
    }

    /// A call into a stage's code: bounded in time, and a panic in it stops nobody else.
    pub(super) async fn bounded<T>(&self, call: impl Future<Output = T>) -> Result<T, Failure> {
        let limit = self.core.options.call_timeout;
        let ended = tokio::select! {
            // the clock first: a process that was stopped in the middle of a call does not go on with it
            biased;
            () = tokio::time::sleep(limit) => None,
            ended = AssertUnwindSafe(call).catch_unwind() => Some(ended),
        };
        match ended {
            Some(Ok(value)) => Ok(value),
            Some(Err(_)) => Err(Failure::new(
                "STAGE_PANICKED",
                FailureClass::NeedsOperator,
                "a defect in the stage's code; the server's log has the details",
            )),
            None => Err(Failure::new(
                TIMED_OUT,
                FailureClass::Transient,
                format!("the provider did not answer within {} s", limit.as_secs()),
            )),
        }
    }
}
