//! How the work of one request is begun: at once, where its connection stands. Most calls are done in one go,
//! and a task of their own, woken and waking, would cost more than they do; their answers leave together. What
//! has to wait goes on as a task.

use futures::FutureExt as _;
use hyper::rt::Executor;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Waker};

#[derive(Clone, Copy)]
pub(crate) struct AtOnce;

impl<F> Executor<F> for AtOnce
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, work: F) {
        // what panics takes its own request along, and not the connection
        let mut work = Box::pin(AssertUnwindSafe(work).catch_unwind());
        // nobody is woken by this: what is not done is looked at again, as a task
        let mut nobody = Context::from_waker(Waker::noop());
        if Pin::new(&mut work).poll(&mut nobody).is_pending() {
            tokio::spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::sync::Notify;

    #[tokio::test]
    async fn what_waits_goes_on_and_what_panics_ends_alone() {
        let (count, go) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
        let done = count.clone();
        AtOnce.execute(async move {
            done.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(count.load(Ordering::SeqCst), 1, "done before anybody waits");
        let (done, wait, ended) = (count.clone(), go.clone(), Arc::new(Notify::new()));
        let end = ended.clone();
        AtOnce.execute(async move {
            wait.notified().await;
            done.fetch_add(1, Ordering::SeqCst);
            end.notify_one();
        });
        assert_eq!(count.load(Ordering::SeqCst), 1);
        go.notify_one();
        ended.notified().await;
        assert_eq!(count.load(Ordering::SeqCst), 2);
        #[allow(clippy::panic, reason = "the subject")]
        AtOnce.execute(async { panic!("a handler's defect") });
    }
}
