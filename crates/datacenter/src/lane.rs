//! The way to one BMC or host: one call at a time, a bounded queue, and a breaker. And the fleet's own bound,
//! so that no number of slow ones takes the whole process.

use crate::options::Options;
use domain::Reason;
use domain::stage::FailureClass;
use provider::{Breaker, ProviderError, ProviderResult, jitter};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// For whom a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// An observer that asks everybody: while a controller rests it is told again what the last call was, so
    /// that nothing seems to change.
    Sweep,
    /// A run or a person: told that it rests, since when and until when.
    Work,
}

/// All lanes of one protocol.
pub(crate) struct Lanes {
    options: Options,
    /// How long one is left alone, at first and at most.
    rest: (Duration, Duration),
    lanes: Mutex<HashMap<String, Arc<Lane>>>,
    work: Semaphore,
    sweep: Semaphore,
}

pub(crate) struct Lane {
    /// What it leads to, in words.
    name: String,
    turn: Semaphore,
    waiting: AtomicUsize,
    queue: usize,
    breaker: Mutex<Breaker>,
}

/// Beyond so many, lanes that nobody uses are forgotten, and what their breakers knew.
const LANES_MAX: usize = 50_000;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lanes {
    /// To controllers.
    pub fn new(options: &Options, calls: usize) -> Self {
        Self::resting_for(options, calls, (options.rest, options.rest_max))
    }

    /// To the systems on machines.
    pub fn to_hosts(options: &Options) -> Self {
        Self::resting_for(options, options.ssh_calls, (options.host_rest, options.host_rest_max))
    }

    fn resting_for(options: &Options, calls: usize, rest: (Duration, Duration)) -> Self {
        Self {
            options: options.clone(),
            rest,
            lanes: Mutex::default(),
            work: Semaphore::new(calls),
            sweep: Semaphore::new(calls),
        }
    }

    /// The lane to this address.
    pub fn to(&self, address: &str) -> Arc<Lane> {
        let mut lanes = lock(&self.lanes);
        if let Some(lane) = lanes.get(address) {
            return lane.clone();
        }
        if lanes.len() >= LANES_MAX {
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
        }
        let o = &self.options;
        let lane = Arc::new(Lane {
            name: address.to_owned(),
            turn: Semaphore::new(1),
            waiting: AtomicUsize::new(0),
            queue: o.queue,
            breaker: Mutex::new(Breaker::new(o.silences, self.rest.0, self.rest.1)),
        });
        lanes.insert(address.to_owned(), lane.clone());
        lane
    }

    /// How many are left alone now.
    pub fn resting(&self) -> usize {
        lock(&self.lanes).values().filter(|lane| lock(&lane.breaker).is_resting()).count()
    }

    /// Makes a call in its turn, and ends it after `limit` from then. The turn and a place in the fleet's own bound are
    /// waited for as long at most: who could not be asked in that time has not been silent.
    pub async fn call<T>(
        &self,
        lane: &Lane,
        whom: For,
        limit: Duration,
        call: impl Future<Output = ProviderResult<T>>,
    ) -> ProviderResult<T> {
        let place = lane.queue_up()?;
        let until = Instant::now() + limit;
        let turn = tokio::time::timeout_at(until, lane.turn.acquire()).await;
        let _turn = turn.ok().and_then(Result::ok).ok_or_else(|| lane.busy("one call at a time"))?;
        drop(place);
        // judged in its turn: those before may have found out
        lane.may_call(whom, |_| ())?;
        let fleet = match whom {
            For::Sweep => &self.sweep,
            For::Work => &self.work,
        };
        let permit = tokio::time::timeout_at(until, fleet.acquire()).await;
        let all = "all the calls are under way that the whole fleet may have at a time";
        let _permit = permit.ok().and_then(Result::ok).ok_or_else(|| lane.busy(all))?;
        lane.may_call(whom, Breaker::calls)?;
        let patience = self.options.connect_timeout;
        let mut outcome = Outcome { lane, told: false, begun: Instant::now(), patience };
        let answer = tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
            let message = format!("{} did not answer within {} s", lane.name, limit.as_secs_f32());
            Err(ProviderError::unknown(message))
        });
        outcome.tell(&answer);
        answer
    }
}

/// One that waits for its turn, until it is dropped.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lane {
    fn busy(&self, why: &str) -> ProviderError {
        let message =
            format!("{} was not asked, others have its turn ({why}); try again when they are done", self.name);
        ProviderError::because(Reason::EndpointBusy, FailureClass::Transient, message)
    }

    fn queue_up(&self) -> ProviderResult<Place<'_>> {
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let place = Place(&self.waiting);
        if before >= self.queue {
            return Err(self.busy(&format!("one call at a time, and {before} wait")));
        }
        Ok(place)
    }

    /// `go` is done to a breaker that lets the call pass.
    fn may_call<T>(&self, whom: For, go: impl FnOnce(&mut Breaker) -> T) -> ProviderResult<T> {
        let mut breaker = lock(&self.breaker);
        match (breaker.rests(Instant::now()), whom) {
            (None, _) => Ok(go(&mut breaker)),
            (Some((last, _)), For::Sweep) => Err(last),
            (Some((last, left)), For::Work) => {
                let message = format!(
                    "{} has not answered for a while and is left alone for {} s more; the last call failed: {last}",
                    self.name,
                    left.as_secs() + 1
                );
                Err(ProviderError::because(Reason::CircuitOpen, FailureClass::Transient, message))
            }
        }
    }
}

/// Tells the breaker how a call ended, also if whoever made it has given up.
struct Outcome<'a> {
    lane: &'a Lane,
    told: bool,
    begun: Instant,
    /// Who gives up sooner says nothing about the other side: nobody can tell whether it would have answered.
    patience: Duration,
}

impl Outcome<'_> {
    fn tell<T>(&mut self, answer: &ProviderResult<T>) {
        self.told = true;
        lock(&self.lane.breaker).ended(answer, Instant::now(), jitter());
    }
}

impl Drop for Outcome<'_> {
    fn drop(&mut self) {
        if self.told {
            return;
        }
        let now = Instant::now();
        if now.duration_since(self.begun) < self.patience {
            lock(&self.lane.breaker).given_up();
        } else {
            let last = ProviderError::unreachable(&self.lane.name, "whoever asked gave up before it answered");
            lock(&self.lane.breaker).silent(last, now, jitter());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(8);

    fn lanes(change: impl FnOnce(&mut Options)) -> Arc<Lanes> {
        let mut options = Options { silences: 1, queue: 2, ..Options::default() };
        change(&mut options);
        Arc::new(Lanes::new(&options, options.redfish_calls))
    }

    #[tokio::test(start_paused = true)]
    async fn one_call_at_a_time_and_a_bounded_queue() {
        let lanes = lanes(|_| ());
        let busy = Arc::new(AtomicUsize::new(0));
        let ask = || {
            let (lanes, busy) = (lanes.clone(), busy.clone());
            tokio::spawn(async move {
                let lane = lanes.to("bmc-1");
                let call = async {
                    assert_eq!(busy.fetch_add(1, Ordering::SeqCst), 0, "alone");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    busy.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                };
                lanes.call(&lane, For::Work, LIMIT, call).await
            })
        };
        let mut asked = Vec::new();
        for _ in 0..5 {
            asked.push(ask());
            tokio::task::yield_now().await;
        }
        let mut answers = Vec::new();
        for one in asked {
            answers.push(one.await.expect("no panic").map_err(|e| e.reason()));
        }
        // one at work, two in the queue
        assert_eq!(answers[..3], [Ok(()), Ok(()), Ok(())]);
        assert_eq!(answers[3..], [Err(Reason::EndpointBusy), Err(Reason::EndpointBusy)]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_rests_is_told_apart_for_work_and_repeated_for_sweeps() {
        let lanes = lanes(|_| ());
        let lane = lanes.to("bmc-1");
        let away = || async { Err::<(), _>(ProviderError::unreachable("bmc-1", "no route")) };
        let first = lanes.call(&lane, For::Sweep, LIMIT, away()).await.expect_err("away");
        let again = lanes.call(&lane, For::Sweep, LIMIT, async { Ok(()) }).await.expect_err("not asked");
        assert_eq!(first, again, "nothing seems to change");
        let work = lanes.call(&lane, For::Work, LIMIT, async { Ok(()) }).await.expect_err("not asked");
        assert_eq!(work.reason(), Reason::CircuitOpen);
        assert!(work.to_string().contains("no route"), "{work}");
        assert_eq!(lanes.resting(), 1);
        // its neighbour is asked
        assert_eq!(lanes.call(&lanes.to("bmc-2"), For::Work, LIMIT, async { Ok(7) }).await, Ok(7));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(lanes.call(&lane, For::Work, LIMIT, async { Ok(7) }).await, Ok(7), "the probe");
        assert_eq!(lanes.resting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_hangs_ends_and_one_that_is_given_up_late_counts() {
        let lanes = lanes(|o| o.silences = 2);
        let lane = lanes.to("bmc-1");
        let hang = || std::future::pending::<ProviderResult<()>>();
        let hung = lanes.call(&lane, For::Work, LIMIT, hang()).await.expect_err("hangs");
        assert!(matches!(hung, ProviderError::Unknown { .. }));
        for (after, resting) in [(1, 0), (1, 0), (4, 1)] {
            let impatient = Duration::from_secs(after);
            let given_up = tokio::time::timeout(impatient, lanes.call(&lane, For::Work, LIMIT, hang())).await;
            assert!(given_up.is_err());
            assert_eq!(lanes.resting(), resting, "given up after {after} s");
        }
        // a probe that is given up leaves the way free for the next
        tokio::time::advance(Duration::from_secs(60)).await;
        let impatient = Duration::from_secs(1);
        let probe = tokio::time::timeout(impatient, lanes.call(&lane, For::Work, LIMIT, hang())).await;
        assert!(probe.is_err());
        assert_eq!(lanes.call(&lane, For::Work, LIMIT, async { Ok(7) }).await, Ok(7), "the next probe");
        assert_eq!(lanes.resting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn sweeps_do_not_take_the_places_of_work() {
        let options = Options::default();
        let lanes = Arc::new(Lanes::new(&options, 1));
        let slow = lanes.clone();
        let sweep = tokio::spawn(async move {
            let lane = slow.to("bmc-1");
            slow.call(&lane, For::Sweep, LIMIT, std::future::pending::<ProviderResult<()>>()).await
        });
        tokio::task::yield_now().await;
        assert_eq!(lanes.call(&lanes.to("bmc-2"), For::Work, LIMIT, async { Ok(1) }).await, Ok(1));
        sweep.abort();
    }

    /// Slow ones elsewhere have all the places: that says nothing about this one.
    #[tokio::test(start_paused = true)]
    async fn a_fleet_that_is_at_its_bound_is_told_and_is_nobodys_silence() {
        let options = Options { silences: 1, ..Options::default() };
        for whom in [For::Sweep, For::Work] {
            let lanes = Arc::new(Lanes::new(&options, 1));
            let slow = lanes.clone();
            let long = LIMIT * 10;
            let holds = tokio::spawn(async move {
                let lane = slow.to("bmc-1");
                slow.call(&lane, whom, long, std::future::pending::<ProviderResult<()>>()).await
            });
            tokio::task::yield_now().await;
            let asked = AtomicUsize::new(0);
            let call = async {
                asked.fetch_add(1, Ordering::SeqCst);
                Ok(())
            };
            let busy = lanes.call(&lanes.to("bmc-2"), whom, LIMIT, call).await.expect_err("no place");
            assert_eq!((busy.reason(), asked.load(Ordering::SeqCst)), (Reason::EndpointBusy, 0), "{busy}");
            assert!(busy.to_string().contains("try again"), "{busy}");
            assert_eq!(lanes.resting(), 0);
            holds.abort();
            let _ = holds.await;
            assert_eq!(lanes.call(&lanes.to("bmc-2"), whom, LIMIT, async { Ok(1) }).await, Ok(1));
        }
    }

    /// A call that could not be made, for want of a way there, has told nothing about who is at its end.
    #[tokio::test(start_paused = true)]
    async fn who_was_not_asked_is_neither_silent_nor_heard() {
        let lanes = lanes(|o| o.silences = 2);
        let lane = lanes.to("host-1");
        let away = || async { Err::<(), _>(ProviderError::unreachable("host-1", "no route")) };
        let no_way =
            || async { Err::<(), _>(ProviderError::because(Reason::EndpointBusy, FailureClass::Transient, "busy")) };
        for call in [1, 2] {
            assert!(lanes.call(&lane, For::Work, LIMIT, away()).await.is_err());
            assert_eq!(lanes.resting(), usize::from(call == 2), "the silences are counted past it");
            if call == 1 {
                assert!(lanes.call(&lane, For::Work, LIMIT, no_way()).await.is_err());
            }
        }
    }
}
