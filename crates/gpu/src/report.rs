//! What a scrub did, and what of it counts as done: judged here, from figures alone.

use crate::nvml::Gpu;
use crate::scrub::Options;
use serde::{Deserialize, Serialize};

/// Every GPU of the machine, overwritten or not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub driver: Option<String>,
    pub gpus: Vec<GpuReport>,
    pub seconds: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuReport {
    pub index: Option<u32>,
    pub uuid: Option<String>,
    pub name: Option<String>,
    pub pci_bus_id: Option<String>,
    pub total_bytes: u64,
    /// Kept by the driver for itself.
    pub reserved_bytes: u64,
    /// Used by others before anything was done, and by which processes.
    pub held_bytes: u64,
    pub holders: Vec<u32>,
    /// How much of it was taken, and how often all of it was overwritten and read back.
    pub overwritten_bytes: u64,
    pub verified_bytes: u64,
    pub passes: u32,
    /// Words of 8 bytes that did not hold what was written, over all passes.
    pub mismatches: u64,
    pub first_mismatch: Option<String>,
    /// Of the total.
    pub covered_share: f64,
    pub seconds: f64,
    /// Of the GPU's own clock, while it wrote and while it read.
    pub write_seconds: f64,
    pub read_seconds: f64,
    pub bytes_per_second: f64,
    /// What its memory can move at most by its clock and bus, and how much of that was reached.
    pub peak_bytes_per_second: Option<u64>,
    pub bandwidth_share: Option<f64>,
    pub failure: Option<Failure>,
}

/// Why a GPU does not count as overwritten.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// Stable: GPU_IN_USE, GPU_MIG, GPU_MISMATCH, GPU_NOT_COVERED, GPU_NOT_DRIVEN, GPU_STUCK, GPU_ERROR.
    pub code: String,
    pub message: String,
}

impl Failure {
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into() }
    }
}

#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// Neither the driver nor the PCI bus has one: there is nothing to overwrite.
    #[error("there is no NVIDIA GPU: {0}")]
    NoGpu(String),
    /// There are GPUs, and nothing to reach them by.
    #[error("{gpus} NVIDIA GPU(s) on the PCI bus, but they cannot be reached: {why}")]
    NoDriver { gpus: usize, why: String },
    #[error("{}", failures(.0))]
    NotClean(Box<Report>),
    #[error("stopped before it was done: the memory counts as not overwritten")]
    Canceled,
    /// The process apart ended without an answer.
    #[error("{0}")]
    Broken(String),
}

impl Error {
    /// Stable. Of several GPUs the first that failed.
    pub fn code(&self) -> &str {
        match self {
            Self::NoGpu(_) => "NO_GPU",
            Self::NoDriver { .. } => "GPU_NOT_DRIVEN",
            Self::NotClean(report) => {
                report.gpus.iter().find_map(|gpu| gpu.failure.as_ref()).map_or("GPU_ERROR", |failure| &failure.code)
            }
            Self::Canceled => "CANCELED",
            Self::Broken(_) => "GPU_ERROR",
        }
    }
}

fn failures(report: &Report) -> String {
    let failed = report.gpus.iter().filter_map(|gpu| Some((gpu, gpu.failure.as_ref()?)));
    let told: Vec<String> = failed.map(|(gpu, failure)| format!("{}: {}", gpu.called(), failure.message)).collect();
    told.join("; ")
}

impl Report {
    /// Every GPU was overwritten and read back. None at all is not every one.
    pub fn clean(&self) -> bool {
        !self.gpus.is_empty() && self.gpus.iter().all(|gpu| gpu.failure.is_none())
    }
}

impl GpuReport {
    pub fn of(gpu: &Gpu) -> Self {
        Self {
            index: Some(gpu.index),
            uuid: gpu.uuid.clone(),
            name: gpu.name.clone(),
            pci_bus_id: gpu.pci_bus_id.clone(),
            total_bytes: gpu.memory_bytes.unwrap_or_default(),
            reserved_bytes: gpu.health.memory_reserved_bytes.unwrap_or_default(),
            held_bytes: gpu.health.memory_used_bytes.unwrap_or_default(),
            holders: gpu.health.processes.clone().unwrap_or_default(),
            ..Self::default()
        }
    }

    pub fn called(&self) -> String {
        match (self.index, &self.pci_bus_id) {
            (Some(index), _) => format!("GPU {index}"),
            (None, Some(address)) => format!("GPU at {address}"),
            (None, None) => "a GPU".to_owned(),
        }
    }

    /// Fills in what follows from the rest.
    pub fn sum_up(&mut self) {
        self.covered_share = match self.total_bytes {
            0 => 0.0,
            total => self.overwritten_bytes as f64 / total as f64,
        };
        let on_gpu = self.write_seconds + self.read_seconds;
        let moved = self.overwritten_bytes as f64 * 2.0 * f64::from(self.passes);
        self.bytes_per_second = if on_gpu > 0.0 { moved / on_gpu } else { 0.0 };
        self.bandwidth_share = self.peak_bytes_per_second.map(|peak| self.bytes_per_second / peak as f64);
    }

    /// What speaks against it, the gravest first. `came` are those who use it at the end; `None` where the driver does
    /// not tell.
    pub fn judge(&self, options: &Options, came: Option<&[u32]>) -> Option<Failure> {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        if self.mismatches > 0 {
            let place = self.first_mismatch.as_deref().unwrap_or("an unknown place");
            let message = format!("{} words read back wrong, the first: {place}; replace the GPU", self.mismatches);
            return Some(Failure::new("GPU_MISMATCH", message));
        }
        if self.verified_bytes != self.overwritten_bytes {
            let message = format!("{} bytes overwritten, {} read back", self.overwritten_bytes, self.verified_bytes);
            return Some(Failure::new("GPU_NOT_COVERED", message));
        }
        let Some(came) = came else {
            return Some(Failure::new("GPU_IN_USE", "the driver does not tell who uses it"));
        };
        if !came.is_empty() {
            return Some(in_use(came, "came while it was overwritten; end them and try again"));
        }
        // what is left is the context that the overwriting itself needs
        let there = self.total_bytes.saturating_sub(self.reserved_bytes).saturating_sub(options.reserve_bytes);
        if self.overwritten_bytes == 0 || (self.overwritten_bytes as f64) < there as f64 * options.minimum_share {
            let (covered, there) = (gib(self.overwritten_bytes), gib(there));
            let message = format!("only {covered:.2} of {there:.2} GiB could be overwritten: somebody holds the rest");
            return Some(Failure::new("GPU_NOT_COVERED", message));
        }
        None
    }
}

pub fn in_use(holders: &[u32], what: &str) -> Failure {
    let some: Vec<String> = holders.iter().take(8).map(u32::to_string).collect();
    let more = if holders.len() > 8 { " and more" } else { "" };
    Failure::new("GPU_IN_USE", format!("{} process(es) on it, {}{more}: {what}", holders.len(), some.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> GpuReport {
        let mut report = GpuReport {
            index: Some(0),
            total_bytes: 1100,
            reserved_bytes: 95,
            overwritten_bytes: 990,
            verified_bytes: 990,
            passes: 3,
            write_seconds: 1.0,
            read_seconds: 1.0,
            peak_bytes_per_second: Some(3300),
            ..GpuReport::default()
        };
        report.sum_up();
        report
    }

    fn code(report: &GpuReport, came: Option<&[u32]>) -> String {
        let options = Options { reserve_bytes: 5, minimum_share: 0.98, tamper: None };
        report.judge(&options, came).map_or_else(|| "clean".to_owned(), |failure| failure.code)
    }

    #[test]
    fn only_what_was_covered_read_back_right_and_left_alone_is_clean() {
        assert_eq!(code(&whole(), Some(&[])), "clean");
        assert_eq!(code(&GpuReport { mismatches: 1, ..whole() }, Some(&[])), "GPU_MISMATCH");
        assert_eq!(code(&GpuReport { verified_bytes: 989, ..whole() }, Some(&[])), "GPU_NOT_COVERED");
        assert_eq!(code(&whole(), Some(&[41])), "GPU_IN_USE");
        assert_eq!(code(&whole(), None), "GPU_IN_USE", "silence is no proof");
        let mut held = GpuReport { overwritten_bytes: 979, verified_bytes: 979, ..whole() };
        held.sum_up();
        assert_eq!(code(&held, Some(&[])), "GPU_NOT_COVERED");
        let mut none = GpuReport { overwritten_bytes: 0, verified_bytes: 0, ..whole() };
        none.sum_up();
        let lax = Options { minimum_share: 0.0, ..Options::default() };
        assert_eq!(none.judge(&lax, Some(&[])).map(|failure| failure.code).as_deref(), Some("GPU_NOT_COVERED"));
    }

    #[test]
    fn shares_follow_from_the_figures() {
        let report = whole();
        assert!((report.covered_share - 0.9).abs() < 1e-9);
        assert!((report.bytes_per_second - 2970.0).abs() < 1e-9, "three passes, each written and read");
        assert!(report.bandwidth_share.is_some_and(|share| (share - 0.9).abs() < 1e-9));
        let mut untold = GpuReport::default();
        untold.sum_up();
        assert_eq!((untold.covered_share, untold.bytes_per_second, untold.bandwidth_share), (0.0, 0.0, None));
    }

    #[test]
    fn no_gpu_at_all_is_not_clean() {
        assert!(!Report::default().clean());
        assert!(Report { gpus: vec![whole()], ..Report::default() }.clean());
        let failed = GpuReport { failure: Some(Failure::new("GPU_MIG", "cut up")), ..whole() };
        let report = Report { gpus: vec![whole(), failed], ..Report::default() };
        assert!(!report.clean());
        let error = Error::NotClean(Box::new(report));
        assert_eq!((error.code(), error.to_string().as_str()), ("GPU_MIG", "GPU 0: cut up"));
    }
}
