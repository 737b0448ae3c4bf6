//! A number that only grows, and those who wait for it to. They are woken in the order in which they began
//! to wait: a watch channel wakes its receivers in a random one, and a simulation could not be repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

#[derive(Default)]
struct Inner {
    value: AtomicU64,
    grew: Notify,
}

#[derive(Clone, Default)]
pub(crate) struct Rising {
    inner: Arc<Inner>,
}

impl Rising {
    pub fn new(value: u64) -> Self {
        let rising = Self::default();
        rising.inner.value.store(value, Ordering::Release);
        rising
    }

    pub fn raise_to(&self, value: u64) {
        self.inner.value.fetch_max(value, Ordering::AcqRel);
        self.inner.grew.notify_waiters();
    }

    pub fn raise(&self) {
        self.inner.value.fetch_add(1, Ordering::AcqRel);
        self.inner.grew.notify_waiters();
    }

    /// One who has seen it as it is now.
    pub fn follow(&self) -> Follower {
        let seen = self.inner.value.load(Ordering::Acquire);
        Follower { rising: self.clone(), seen }
    }

    pub fn followers(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }
}

/// Waits for the number to grow beyond what it has seen.
pub struct Follower {
    rising: Rising,
    seen: u64,
}

impl Follower {
    /// The number as it is, which then counts as seen.
    pub fn look(&mut self) -> u64 {
        self.seen = self.rising.inner.value.load(Ordering::Acquire);
        self.seen
    }

    /// Whether it has grown beyond what was seen.
    pub fn has_grown(&self) -> bool {
        self.rising.inner.value.load(Ordering::Acquire) != self.seen
    }

    /// Resolves when it has grown, which then counts as seen.
    pub async fn grew(&mut self) {
        loop {
            let mut waiting = std::pin::pin!(self.rising.inner.grew.notified());
            // before the look: what grows in between is not missed
            waiting.as_mut().enable();
            let now = self.rising.inner.value.load(Ordering::Acquire);
            if now != self.seen {
                self.seen = now;
                return;
            }
            waiting.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_are_woken_in_the_order_in_which_they_came() {
        let (rising, woken) = (Rising::new(7), Arc::new(Mutex::new(Vec::new())));
        let tasks: Vec<_> = (0..40)
            .map(|n| {
                let (mut follower, woken) = (rising.follow(), woken.clone());
                tokio::spawn(async move {
                    follower.grew().await;
                    woken.lock().unwrap().push((n, follower.look()));
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(rising.followers(), 40);
        rising.raise_to(9);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*woken.lock().unwrap(), (0..40).map(|n| (n, 9)).collect::<Vec<_>>());
        assert_eq!(rising.followers(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_grew_before_the_wait_is_not_missed() {
        let rising = Rising::default();
        let mut follower = rising.follow();
        rising.raise();
        follower.grew().await;
        let nothing = tokio::time::timeout(Duration::from_secs(1), follower.grew()).await;
        assert!(nothing.is_err(), "it has not grown since");
    }
}
