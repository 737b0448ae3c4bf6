//! Images, in processes of their own: what a kill leaves of the store, and what readers get over HTTP, as `curl`,
//! `sha256sum` and plain sockets see it. (The parts by themselves are tested in `crates/boot`.)
//!
//! | variable | |
//! |---|---|
//! | `MILLWRIGHT_IMAGES_KILLS=N` | how often who adds images is killed in each test (12) |
//! | `MILLWRIGHT_IMAGES_READERS=N` | slow readers at the same time (200) |
//!
//! A full and a read-only disk are made with `mount` in a namespace: that needs root.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test throughout")]

mod adding;
mod child;
mod hostile;
mod kinds;
mod parts;
mod slow;
mod unnamed;
