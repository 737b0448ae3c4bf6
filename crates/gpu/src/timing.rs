//! The one place that reads the clock and sleeps: what is waited for here is hardware and a child process, neither of
//! which a test's clock can hold.

use std::time::{Duration, Instant};

#[allow(clippy::disallowed_methods, reason = "measures hardware; no decision but a limit hangs on it")]
pub fn now() -> Instant {
    Instant::now()
}

#[allow(clippy::disallowed_methods, reason = "the driver offers nothing to wait on that also ends")]
pub fn nap() {
    std::thread::sleep(Duration::from_micros(300));
}
