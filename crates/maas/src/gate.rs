//! The way to one site: so many calls at a time, a bounded wait for a turn, and a breaker. It is the site's own, so that
//! whoever is slow or down holds up nobody else.

use crate::options::Options;
use domain::Reason;
use domain::stage::FailureClass;
use provider::{Breaker, ProviderError, ProviderResult, jitter};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

pub struct Gate {
    name: String,
    calls: usize,
    turns: Arc<Semaphore>,
    waiting: AtomicUsize,
    queue: usize,
    turn: Duration,
    /// Who gives up sooner says nothing about the other side.
    patience: Duration,
    breaker: Mutex<Breaker>,
}

/// One of the site's so many calls at a time, until it is dropped.
pub type Turn = OwnedSemaphorePermit;

/// A call that may be made. What it comes to is told to the breaker; whoever just drops it has given up.
pub struct Pass<'a> {
    gate: &'a Gate,
    /// `None`: whoever calls has one.
    _turn: Option<Turn>,
    /// While the site was left alone: this call finds out whether it answers again.
    probe: bool,
    begun: Instant,
    told: bool,
    /// Its silence may be another's.
    slow: bool,
}

/// One that waits for its turn, until it is dropped.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Gate {
    pub fn new(name: &str, calls: u32, options: &Options) -> Self {
        let calls = usize::try_from(calls).unwrap_or(1).clamp(1, 256);
        Self {
            name: name.to_owned(),
            calls,
            turns: Arc::new(Semaphore::new(calls)),
            waiting: AtomicUsize::new(0),
            queue: options.queue,
            turn: options.turn,
            patience: options.connect,
            breaker: Mutex::new(Breaker::new(options.silences, options.rest, options.rest_max)),
        }
    }

    /// `slow`: MAAS asks somebody else for the answer, whose silence is not its own. `in_turn`: whoever calls has a turn.
    pub async fn pass(&self, slow: bool, in_turn: bool) -> ProviderResult<Pass<'_>> {
        // nobody waits for a turn at one that is left alone
        self.rests()?;
        let turn = match in_turn {
            true => None,
            false => Some(self.turn(self.turn).await?),
        };
        // those before may have found out
        self.rests()?;
        let probe = self.breaker().calls();
        Ok(Pass { gate: self, _turn: turn, probe, begun: Instant::now(), told: false, slow })
    }

    /// Waits for a turn, as long as others may wait beside it and no longer than this.
    pub async fn turn(&self, within: Duration) -> ProviderResult<Turn> {
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _place = Place(&self.waiting);
        if before >= self.queue {
            return Err(self.busy(&format!("{} calls at a time, and {before} wait", self.calls)));
        }
        let turn = tokio::time::timeout(within, self.turns.clone().acquire_owned()).await.ok().and_then(Result::ok);
        turn.ok_or_else(|| self.busy(&format!("{} calls at a time", self.calls)))
    }

    pub fn is_resting(&self) -> bool {
        self.breaker().is_resting()
    }

    fn rests(&self) -> ProviderResult<()> {
        let Some((last, left)) = self.breaker().rests(Instant::now()) else { return Ok(()) };
        let message = format!(
            "{} has not answered for a while and is left alone: it is tried again in {} s; the last call failed: {last}",
            self.name,
            left.as_secs() + 1
        );
        Err(ProviderError::because(Reason::CircuitOpen, FailureClass::DependencyDown, message))
    }

    fn busy(&self, why: &str) -> ProviderError {
        let message =
            format!("{} was not asked, others have its turn ({why}); try again when they are done", self.name);
        ProviderError::because(Reason::EndpointBusy, FailureClass::Transient, message)
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass<'_> {
    /// Something came back, whatever it was.
    pub fn heard(mut self) {
        self.told = true;
        self.gate.breaker().heard();
    }

    pub fn silent(mut self, why: &ProviderError) {
        self.told = true;
        self.is_silent(why);
    }

    /// That calls which were under way are silent too is nothing new.
    fn is_silent(&self, why: &ProviderError) {
        let mut breaker = self.gate.breaker();
        if self.slow {
            if self.probe {
                breaker.given_up();
            }
        } else if self.probe || !breaker.is_resting() {
            breaker.silent(why.clone(), Instant::now(), jitter());
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.told {
            return;
        }
        if self.begun.elapsed() >= self.gate.patience {
            let message = format!("{} did not answer before whoever asked gave up", self.gate.name);
            self.is_silent(&ProviderError::because(Reason::Unreachable, FailureClass::DependencyDown, message));
        } else if self.probe {
            self.gate.breaker().given_up();
        }
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test throughout")]
mod tests {
    use super::*;

    fn gate(change: impl FnOnce(&mut Options)) -> Gate {
        let mut options = Options { silences: 2, queue: 1, ..Options::default() };
        change(&mut options);
        Gate::new("the MAAS of site oslo", 2, &options)
    }

    fn away() -> ProviderError {
        ProviderError::because(Reason::Unreachable, FailureClass::DependencyDown, "no route")
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_at_a_time_and_a_bounded_wait() {
        let gate = gate(|_| ());
        let (one, _two) = (gate.pass(false, false).await.expect("free"), gate.pass(false, false).await.expect("free"));
        let (waited, turned_away) = tokio::join!(gate.pass(false, false), gate.pass(false, false));
        for no in [waited, turned_away] {
            assert_eq!(no.map(|_| ()).expect_err("full").reason(), Reason::EndpointBusy);
        }
        drop(one);
        assert!(gate.pass(false, false).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_silent_is_left_alone_and_then_asked_by_one() {
        let gate = gate(|_| ());
        let (one, two) = (gate.pass(false, false).await.expect("free"), gate.pass(false, false).await.expect("free"));
        one.silent(&away());
        assert!(!gate.is_resting());
        two.silent(&away());
        let no = gate.pass(false, false).await.map(|_| ()).expect_err("it rests");
        assert_eq!(no.reason(), Reason::CircuitOpen);
        assert!(matches!(no, ProviderError::Refused { class: FailureClass::DependencyDown, .. }));
        assert!(no.to_string().contains("tried again in") && no.to_string().contains("no route"), "{no}");
        tokio::time::advance(Duration::from_secs(15)).await;
        let probe = gate.pass(false, false).await.expect("the probe");
        assert!(gate.pass(false, false).await.is_err(), "only one");
        probe.heard();
        assert!(gate.pass(false, false).await.is_ok() && !gate.is_resting());
    }

    /// All that are under way when a site goes silent find out at about the same time.
    #[tokio::test(start_paused = true)]
    async fn the_silence_of_those_under_way_counts_once() {
        let gate = gate(|o| o.silences = 1);
        let (one, two) = (gate.pass(false, false).await.expect("free"), gate.pass(false, false).await.expect("free"));
        one.silent(&away());
        two.silent(&away());
        tokio::time::advance(Options::default().rest.mul_f64(1.25)).await;
        assert!(gate.pass(false, false).await.is_ok(), "the rest was not made longer");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_bmc_is_no_silence_of_its_site_and_a_late_giving_up_is() {
        let gate = gate(|o| o.silences = 1);
        gate.pass(true, false).await.expect("free").silent(&away());
        drop(gate.pass(false, false).await.expect("free"));
        assert!(!gate.is_resting());
        let late = gate.pass(false, false).await.expect("free");
        tokio::time::advance(Options::default().connect).await;
        drop(late);
        assert!(gate.is_resting());
    }
}
