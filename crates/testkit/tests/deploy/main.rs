//! What is shipped for operators, compared with what the server really does: metrics, dashboard, alerts.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod page;
mod rules;
mod scrape;
