//! NVIDIA GPUs through their driver, loaded at run time: what they are, how they are, and their memory overwritten and
//! read back. Without the driver everything here says so. The only crate with unsafe code: calls into the driver.
//!
//! `probe` and `scrub` load the vendor's libraries into the calling process, which is never rid of them again: a
//! long-lived one asks `apart` instead, a child of its own program.

pub mod apart;
mod cuda;
mod kernels;
mod library;
mod nvml;
pub mod pci;
mod report;
mod scrub;
mod timing;

pub use nvml::{Gpu, Gpus, Health, probe};
pub use report::{Error, Failure, GpuReport, Report};
pub use scrub::{Options, Progress, Tamper, scrub};
