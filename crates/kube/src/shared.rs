//! One reading for everybody who asks at the same time: however many machines are looked at, their cluster is
//! listed once. Who asks for fresh news gets a reading that began after the question; who watches takes one that
//! began a moment before it.

use provider::{ProviderError, ProviderResult};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

pub(crate) struct Shared<T> {
    /// Held while reading: the others wait here for the same answer.
    last: Mutex<Option<Reading<T>>>,
}

struct Reading<T> {
    begun: Instant,
    /// A failure is shared too: a dead cluster must not be waited for by each machine in turn.
    read: ProviderResult<Arc<T>>,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self { last: Mutex::new(None) }
    }
}

impl<T> Shared<T> {
    /// The last reading, if it began no longer than `age` before now, else a new one.
    pub async fn get(
        &self,
        age: Duration,
        deadline: Instant,
        read: impl AsyncFnOnce() -> ProviderResult<T>,
    ) -> ProviderResult<Arc<T>> {
        let asked = Instant::now();
        let late = |_| ProviderError::transient("the cluster is being read, and that took too long to wait for");
        let mut last = timeout_at(deadline, self.last.lock()).await.map_err(late)?;
        if let Some(reading) = last.as_ref().filter(|reading| reading.begun + age >= asked) {
            return reading.read.clone();
        }
        let begun = Instant::now();
        let read = read().await.map(Arc::new);
        *last = Some(Reading { begun, read: read.clone() });
        read
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test throughout")]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const AGE: Duration = Duration::from_secs(5);

    async fn ask(shared: &Shared<usize>, age: Duration, count: &AtomicUsize) -> ProviderResult<usize> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let read = async || {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(count.fetch_add(1, Ordering::Relaxed) + 1)
        };
        shared.get(age, deadline, read).await.map(|n| *n)
    }

    fn paused(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(test);
    }

    #[test]
    fn watchers_share_what_is_young_and_read_anew_what_is_old() {
        paused(async {
            let (shared, count) = (Shared::default(), AtomicUsize::new(0));
            let (a, b) = tokio::join!(ask(&shared, AGE, &count), ask(&shared, AGE, &count));
            assert_eq!((a, b), (Ok(1), Ok(1)));
            tokio::time::advance(Duration::from_secs(3)).await;
            assert_eq!(ask(&shared, AGE, &count).await, Ok(1));
            tokio::time::advance(Duration::from_secs(3)).await;
            assert_eq!(ask(&shared, AGE, &count).await, Ok(2));
        });
    }

    #[test]
    fn fresh_is_begun_after_the_question_and_shared_by_those_who_waited() {
        paused(async {
            let (shared, count) = (Shared::default(), AtomicUsize::new(0));
            let early = ask(&shared, Duration::ZERO, &count);
            let late = async {
                // while the first is being read
                tokio::time::sleep(Duration::from_millis(500)).await;
                tokio::join!(ask(&shared, Duration::ZERO, &count), ask(&shared, Duration::ZERO, &count))
            };
            let (early, late) = tokio::join!(early, late);
            assert_eq!((early, late), (Ok(1), (Ok(2), Ok(2))));
        });
    }

    #[test]
    fn a_failure_is_shared_and_one_who_gives_up_holds_up_nobody() {
        paused(async {
            let (shared, count) = (Shared::<usize>::default(), AtomicUsize::new(0));
            let deadline = Instant::now() + Duration::from_secs(60);
            let failing = shared.get(AGE, deadline, async || Err(ProviderError::transient("away"))).await;
            assert!(failing.is_err());
            assert_eq!(ask(&shared, AGE, &count).await, Err(ProviderError::transient("away")));
            tokio::time::advance(Duration::from_millis(1)).await;
            let given_up = tokio::time::timeout(Duration::from_millis(10), ask(&shared, Duration::ZERO, &count)).await;
            assert!(given_up.is_err());
            tokio::time::advance(AGE).await;
            assert_eq!(ask(&shared, Duration::ZERO, &count).await, Ok(1));
        });
    }
}
