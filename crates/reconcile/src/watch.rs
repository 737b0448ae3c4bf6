//! When a sweep is due. Of several servers each watches the lane's row by its own monotonic clock, never
//! comparing wall clocks, and the one whose time comes first claims the next round.

use std::time::Duration;
use store::sweep::Sweep;
use tokio::time::Instant;

/// What was seen of a lane, and since when.
#[derive(Default)]
pub(crate) struct Watch {
    round: Option<(u64, Instant)>,
    beats: Option<(u64, Instant)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Claim the round after this one.
    Now {
        after: u64,
    },
    In(Duration),
}

pub(crate) struct Periods {
    pub period: Duration,
    pub take_over_after: Duration,
}

impl Watch {
    /// We have begun a round ourselves.
    pub fn began(&mut self, round: u64, at: Instant) {
        (self.round, self.beats) = (Some((round, at)), Some((0, at)));
    }

    /// `alone`: no other process can be sweeping, so what is not ours was left by one that is gone.
    pub fn judge(&mut self, row: Option<&Sweep>, sweeper: &str, alone: bool, now: Instant, p: &Periods) -> Due {
        let Some(row) = row else { return Due::Now { after: 0 } };
        let first = self.round.is_none();
        if self.round.is_none_or(|(round, _)| round != row.round) {
            (self.round, self.beats) = (Some((row.round, now)), None);
        }
        if self.beats.is_none_or(|(beats, _)| beats != row.beats) {
            self.beats = Some((row.beats, now));
        }
        // at a start nobody knows how long ago it was, and our own last life is over
        if first && (alone || row.sweeper == sweeper) {
            return Due::Now { after: row.round };
        }
        // who asks is not sweeping: a round of ours that never ended was cut short
        let over = row.finished_at.is_some() || alone || row.sweeper == sweeper;
        let (since, wait) = if over { (self.round, p.period) } else { (self.beats, p.take_over_after) };
        let passed = since.map_or(Duration::ZERO, |(_, since)| now.duration_since(since));
        match wait.checked_sub(passed).filter(|left| !left.is_zero()) {
            None => Due::Now { after: row.round },
            Some(left) => Due::In(left),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::Timestamp;

    const P: Periods = Periods { period: Duration::from_secs(30), take_over_after: Duration::from_secs(110) };

    fn row(round: u64, beats: u64, finished: bool) -> Sweep {
        let started_at = Timestamp::from_micros(5);
        let finished_at = finished.then_some(started_at);
        Sweep { round, beats, sweeper: "a".into(), started_at, finished_at, swept_at: finished_at }
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn the_first_sweep_of_all_is_due_at_once() {
        let now = Instant::now();
        assert_eq!(Watch::default().judge(None, "a", false, now, &P), Due::Now { after: 0 });
    }

    #[test]
    fn what_our_own_last_life_left_is_ours() {
        let now = Instant::now();
        assert_eq!(Watch::default().judge(Some(&row(7, 1, false)), "a", false, now, &P), Due::Now { after: 7 });
        assert_eq!(Watch::default().judge(Some(&row(7, 1, false)), "b", true, now, &P), Due::Now { after: 7 });
    }

    #[test]
    fn another_servers_sweep_is_waited_for_and_taken_over_when_it_shows_no_life() {
        let (mut watch, t) = (Watch::default(), Instant::now());
        let mut look = |row: &Sweep, at: u64| watch.judge(Some(row), "b", false, t + seconds(at), &P);
        assert_eq!(look(&row(1, 0, true), 0), Due::In(seconds(30)));
        assert_eq!(look(&row(2, 0, false), 10), Due::In(seconds(110)), "under way");
        assert_eq!(look(&row(2, 0, false), 60), Due::In(seconds(60)));
        assert_eq!(look(&row(2, 1, false), 70), Due::In(seconds(110)), "it lives");
        assert_eq!(look(&row(2, 1, true), 80), Due::Now { after: 2 }, "ended, and a period has passed since it began");
        assert_eq!(look(&row(3, 0, false), 90), Due::In(seconds(110)));
        assert_eq!(look(&row(3, 0, false), 200), Due::Now { after: 3 }, "dead");
    }

    #[test]
    fn our_own_period_runs_from_start_to_start() {
        let (mut watch, t) = (Watch::default(), Instant::now());
        watch.began(4, t);
        assert_eq!(watch.judge(Some(&row(4, 0, true)), "a", true, t + seconds(12), &P), Due::In(seconds(18)));
        assert_eq!(watch.judge(Some(&row(4, 0, true)), "a", true, t + seconds(45), &P), Due::Now { after: 4 });
        assert_eq!(
            watch.judge(Some(&row(4, 1, false)), "a", false, t + seconds(45), &P),
            Due::Now { after: 4 },
            "cut short"
        );
    }
}
