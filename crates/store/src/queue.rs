//! The queue in front of a writer: bounded as a whole and for each caller, so that one client cannot
//! fill it for the others.

use crate::sight;
use domain::{Error, Reason};
use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Closures waiting in front of one writer.
pub(crate) const QUEUE_MAX: usize = 8192;
/// Of those, at most so many of one caller.
pub(crate) const CALLER_MAX: usize = 2048;

pub(crate) struct Queue<J> {
    inner: Mutex<Inner<J>>,
    filled: Condvar,
    /// What it is measured by.
    lane: &'static str,
}

struct Inner<J> {
    waiting: VecDeque<(String, J)>,
    by_caller: HashMap<String, usize>,
    closed: bool,
}

impl<J> Queue<J> {
    pub fn new(lane: &'static str) -> Self {
        let inner = Inner { waiting: VecDeque::new(), by_caller: HashMap::new(), closed: false };
        Self { inner: Mutex::new(inner), filled: Condvar::new(), lane }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<J>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    pub fn push(&self, caller: &str, job: J) -> Result<(), Error> {
        self.admit(caller, job).inspect_err(|e| {
            if e.reason == Reason::QueueFull {
                sight::refused(self.lane);
            }
        })
    }

    fn admit(&self, caller: &str, job: J) -> Result<(), Error> {
        let mut inner = self.lock();
        if inner.closed {
            return Err(Error::new(Reason::ShuttingDown, "the server is shutting down; try again in a moment"));
        }
        if inner.waiting.len() >= QUEUE_MAX {
            return Err(full(format!("{QUEUE_MAX} changes are waiting already")));
        }
        match inner.by_caller.get_mut(caller) {
            Some(n) if *n >= CALLER_MAX => {
                return Err(full(format!("{CALLER_MAX} of your changes are waiting already")));
            }
            Some(n) => *n += 1,
            None => {
                inner.by_caller.insert(caller.to_owned(), 1);
            }
        }
        inner.waiting.push_back((caller.to_owned(), job));
        drop(inner);
        self.filled.notify_one();
        Ok(())
    }

    /// Waits for work and takes up to `max` of it. `None`: closed and empty.
    pub fn take(&self, max: usize) -> Option<Vec<J>> {
        let mut inner = self.lock();
        loop {
            if !inner.waiting.is_empty() {
                let n = inner.waiting.len().min(max);
                let taken: Vec<(String, J)> = inner.waiting.drain(..n).collect();
                let mut jobs = Vec::with_capacity(n);
                for (caller, job) in taken {
                    if let Some(count) = inner.by_caller.get_mut(&caller) {
                        *count -= 1;
                        if *count == 0 {
                            inner.by_caller.remove(&caller);
                        }
                    }
                    jobs.push(job);
                }
                return Some(jobs);
            }
            if inner.closed {
                return None;
            }
            inner = self.filled.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Nobody will ever take what waits: those who wait for it are told so by its going.
    pub fn abandon(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        let waiting = std::mem::take(&mut inner.waiting);
        drop(inner);
        drop(waiting);
    }

    /// No more work is accepted; what waits is still done.
    pub fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
    }
}

fn full(what: String) -> Error {
    Error::new(Reason::QueueFull, format!("{what}; slow down and try again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_cannot_fill_the_queue_for_others() {
        let queue = Queue::new("writes");
        for i in 0..CALLER_MAX {
            queue.push("greedy", i).expect("within the caller's share");
        }
        assert_eq!(queue.push("greedy", 0).map_err(|e| e.reason), Err(Reason::QueueFull));
        queue.push("modest", 1).expect("others still get in");
        assert_eq!(queue.take(10).map(|v| v.len()), Some(10));
        queue.push("greedy", 0).expect("room again");
        for caller in 0.. {
            let Err(e) = (0..CALLER_MAX).try_for_each(|i| queue.push(&format!("c{caller}"), i)) else { continue };
            assert_eq!(e.reason, Reason::QueueFull);
            break;
        }
        queue.close();
        assert_eq!(queue.push("late", 1).map_err(|e| e.reason), Err(Reason::ShuttingDown));
        while queue.take(1000).is_some() {}
    }
}
