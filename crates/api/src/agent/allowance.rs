//! What one agent may send in a while: a bucket that fills by itself.

use std::time::Duration;
use tokio::time::Instant;

pub(super) struct Allowance {
    per_second: f64,
    size: f64,
    level: f64,
    at: Instant,
}

impl Allowance {
    pub fn new(per_second: u32, at_once: u32) -> Self {
        let size = f64::from(at_once.max(1));
        Self { per_second: f64::from(per_second.max(1)), size, level: size, at: Instant::now() }
    }

    /// Takes so much, or says how long it would have to wait.
    pub fn take(&mut self, amount: u32) -> Result<(), Duration> {
        let now = Instant::now();
        self.level = (self.level + now.duration_since(self.at).as_secs_f64() * self.per_second).min(self.size);
        self.at = now;
        let amount = f64::from(amount).min(self.size);
        if self.level < amount {
            return Err(Duration::from_secs_f64((amount - self.level) / self.per_second));
        }
        self.level -= amount;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_runs_dry_and_fills_again() {
        let mut allowance = Allowance::new(10, 20);
        assert!((0..20).all(|_| allowance.take(1).is_ok()));
        assert_eq!(allowance.take(1), Err(Duration::from_millis(100)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!((0..10).all(|_| allowance.take(1).is_ok()) && allowance.take(1).is_err());
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(allowance.take(1000).is_ok(), "never more than there ever is");
    }
}
