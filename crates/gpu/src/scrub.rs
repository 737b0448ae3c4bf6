//! Overwriting: all free memory of every GPU is taken at once, written with what its addresses say, read back, written
//! with the complement, read back, and in the end filled with zeros and read back. So every bit has been both, nothing
//! is counted twice, and what is read back cannot be a leftover.

use crate::cuda::{Context, Cuda, Pattern, Stretch, Wait};
use crate::nvml::{Gpu, Nvml};
use crate::report::{Error, Failure, GpuReport, Report, in_use};
use crate::{kernels, pci, timing};
use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Left alone on each GPU, for the driver.
    pub reserve_bytes: u64,
    /// Of what is there beside that and the driver's own; less is a failure. The rest is what overwriting needs itself.
    pub minimum_share: f64,
    /// For trials of the read-back itself.
    pub tamper: Option<Tamper>,
}

impl Default for Options {
    fn default() -> Self {
        Self { reserve_bytes: 16 << 20, minimum_share: 0.97, tamper: None }
    }
}

/// One bit is flipped after a pass was written and before it is read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tamper {
    /// From 0.
    pub pass: usize,
    /// Of all that is overwritten, in thousandths: 0 is the first word, 1000 the last.
    pub place: u64,
}

/// Where it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    pub gpu: u32,
    /// One line.
    pub message: String,
}

/// `keep` and `flip` of each: see `kernels`. Zeros last: that is what the next one finds.
const PASSES: [(u64, u64, &str); 3] =
    [(u64::MAX, 0, "a pattern"), (u64::MAX, u64::MAX, "its complement"), (0, 0, "zeros")];

const NOBODYS: u64 = 64 << 20;

/// What the driver gives memory out by.
const GRAIN: u64 = 2 << 20;

/// Overwrites and reads back the free memory of every GPU of this machine. Ends soon after `cancel` is set.
pub fn scrub(options: &Options, progress: &mut dyn FnMut(Progress), cancel: &AtomicBool) -> Result<Report, Error> {
    let begun = timing::now();
    let on_bus = pci::on_bus(Path::new("/"));
    let unreachable = |why: String| match on_bus.len() {
        0 => Error::NoGpu(why),
        gpus => Error::NoDriver { gpus, why },
    };
    let nvml = Nvml::open().map_err(unreachable)?;
    let seen = nvml.look();
    if seen.gpus.is_empty() {
        return Err(unreachable(seen.note.unwrap_or_else(|| "the NVIDIA driver has none".to_owned())));
    }
    let cuda = Cuda::open().map_err(|why| Error::NoDriver { gpus: seen.gpus.len(), why })?;
    let mut gpus = Vec::new();
    for gpu in &seen.gpus {
        gpus.push(one(options, &nvml, &cuda, gpu, progress, cancel));
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Canceled);
        }
    }
    // what the driver does not show may have been another's, through a virtual machine
    let hidden = on_bus.iter().filter(|on| !seen.gpus.iter().any(|gpu| gpu.pci_bus_id.as_ref() == Some(&on.address)));
    gpus.extend(hidden.map(|on| {
        let by = on.driver.as_deref().unwrap_or("nobody");
        GpuReport {
            pci_bus_id: Some(on.address.clone()),
            failure: Some(Failure::new("GPU_NOT_DRIVEN", format!("not under NVIDIA's driver, but under {by}"))),
            ..GpuReport::default()
        }
    }));
    let report = Report { driver: seen.driver, gpus, seconds: begun.elapsed().as_secs_f64() };
    if report.clean() { Ok(report) } else { Err(Error::NotClean(Box::new(report))) }
}

fn one(
    options: &Options,
    nvml: &Nvml,
    cuda: &Cuda,
    gpu: &Gpu,
    progress: &mut dyn FnMut(Progress),
    cancel: &AtomicBool,
) -> GpuReport {
    let begun = timing::now();
    let mut report = GpuReport::of(gpu);
    let failure = match ready(gpu, cuda) {
        Err(failure) => Some(failure),
        Ok(device) => overwrite(options, cuda, device, &mut report, progress, cancel).err(),
    };
    report.seconds = begun.elapsed().as_secs_f64();
    report.sum_up();
    report.failure = failure.or_else(|| {
        // our own use has ended: whoever is there now has come meanwhile
        let now = nvml.look();
        let same = now.gpus.iter().find(|other| other.pci_bus_id == gpu.pci_bus_id);
        report.judge(options, same.and_then(|gpu| gpu.health.processes.as_deref()))
    });
    let message = match &report.failure {
        Some(failure) => failure.message.clone(),
        None => format!("{} bytes overwritten and read back", report.overwritten_bytes),
    };
    progress(Progress { gpu: gpu.index, message });
    report
}

fn ready(gpu: &Gpu, cuda: &Cuda) -> Result<i32, Failure> {
    may_begin(gpu)?;
    let address = gpu.pci_bus_id.as_deref().unwrap_or_default();
    cuda.at(address).ok_or_else(|| Failure::new("GPU_ERROR", "CUDA does not show it"))
}

/// What stands against beginning: nothing has been touched then.
fn may_begin(gpu: &Gpu) -> Result<(), Failure> {
    if let Some(fault) = &gpu.fault {
        return Err(Failure::new("GPU_ERROR", fault));
    }
    if gpu.mig == Some(true) {
        let message = "cut into instances (MIG), whose memory is not covered: disable MIG and try again";
        return Err(Failure::new("GPU_MIG", message));
    }
    if gpu.memory_bytes.is_none() {
        return Err(Failure::new("GPU_ERROR", "the driver does not tell how much memory it has"));
    }
    match gpu.health.processes.as_deref() {
        None => return Err(Failure::new("GPU_IN_USE", "the driver does not tell who uses it")),
        Some([]) => {}
        Some(holders) => return Err(in_use(holders, "end them and try again; nothing was overwritten")),
    }
    // an idle driver uses a few MiB; only where it tells its own from others' is the figure anybody's
    let held = gpu.health.memory_reserved_bytes.and(gpu.health.memory_used_bytes).unwrap_or_default();
    if held > NOBODYS {
        let message = format!("{} MiB are held by somebody whom the driver does not name", held >> 20);
        return Err(Failure::new("GPU_IN_USE", message));
    }
    Ok(())
}

fn overwrite(
    options: &Options,
    cuda: &Cuda,
    device: i32,
    report: &mut GpuReport,
    progress: &mut dyn FnMut(Progress),
    cancel: &AtomicBool,
) -> Result<(), Failure> {
    let failed = |why: String| Failure::new("GPU_ERROR", why);
    let context = Context::new(cuda, device).map_err(failed)?;
    report.peak_bytes_per_second = context.peak();
    let taken = take(&context, options.reserve_bytes).map_err(failed)?;
    report.overwritten_bytes = taken.iter().map(|stretch| stretch.bytes).sum();
    let result = passes(options, &context, &taken, report, progress, cancel);
    match result {
        Err(Wait::Stuck) => {
            // giving back would wait for it, for ever
            std::mem::forget(context);
            Err(Failure::new("GPU_STUCK", "it does not end what it was given: reset it, or reboot"))
        }
        Err(Wait::Failed(why)) => Err(failed(why)),
        Ok(()) => Ok(()),
    }
}

/// Everything that is free but the reserve, in stretches as large as the driver gives.
fn take(context: &Context<'_>, reserve: u64) -> Result<Vec<Stretch>, String> {
    let mut taken = Vec::new();
    let mut size = u64::MAX;
    loop {
        size = size.min(context.free_bytes()?.saturating_sub(reserve)) / GRAIN * GRAIN;
        if size == 0 {
            return Ok(taken);
        }
        match context.allocate(size)? {
            Some(stretch) => taken.push(stretch),
            None => size /= 2,
        }
    }
}

fn passes(
    options: &Options,
    context: &Context<'_>,
    taken: &[Stretch],
    report: &mut GpuReport,
    progress: &mut dyn FnMut(Progress),
    cancel: &AtomicBool,
) -> Result<(), Wait> {
    // random keys of the standard library: nothing here is secret, it is only never the same twice
    let seed = std::collections::hash_map::RandomState::new().build_hasher().finish();
    let mut verified = report.overwritten_bytes;
    for (pass, (keep, flip, what)) in PASSES.into_iter().enumerate() {
        if cancel.load(Ordering::Relaxed) {
            return Ok(());
        }
        let message = format!("pass {} of {}: {} bytes of {what}", pass + 1, PASSES.len(), report.overwritten_bytes);
        progress(Progress { gpu: report.index.unwrap_or_default(), message });
        let pattern = Pattern { seed, keep, flip };
        report.write_seconds += context.fill(taken, pattern)?;
        if let Some(tamper) = options.tamper.filter(|tamper| tamper.pass == pass) {
            spoil(context, taken, tamper.place).map_err(Wait::Failed)?;
        }
        let (read, seconds) = context.verify(taken, pattern)?;
        report.read_seconds += seconds;
        report.passes += 1;
        verified = verified.min(read.bytes);
        report.mismatches += read.wrong_words;
        if let (Some(address), None) = (read.first_wrong, &report.first_mismatch) {
            report.first_mismatch = Some(place(context, pass, address, pattern).map_err(Wait::Failed)?);
        }
    }
    report.verified_bytes = verified;
    Ok(())
}

/// What was read where, for whoever has to judge the GPU.
fn place(context: &Context<'_>, pass: usize, address: u64, of: Pattern) -> Result<String, String> {
    let [lo, hi] = context.get(address)?;
    let [want_lo, want_hi] = kernels::expected(address, of.seed, of.keep, of.flip);
    let pass = pass + 1;
    Ok(format!("pass {pass} at {address:#x}: {lo:016x} {hi:016x} instead of {want_lo:016x} {want_hi:016x}"))
}

fn spoil(context: &Context<'_>, taken: &[Stretch], thousandths: u64) -> Result<(), String> {
    let words = taken.iter().map(|stretch| stretch.bytes).sum::<u64>() / 8;
    let mut skip = words.saturating_sub(1) / 1000 * thousandths.min(1000);
    if thousandths >= 1000 {
        skip = words.saturating_sub(1);
    }
    for stretch in taken {
        if skip < stretch.bytes / 8 {
            let address = stretch.base + 8 * skip;
            let [word] = context.get(address)?;
            return context.put(address, &[word ^ (1 << 40)]);
        }
        skip -= stretch.bytes / 8;
    }
    Err("nothing was taken".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::Health;

    fn idle() -> Gpu {
        let health = Health {
            memory_used_bytes: Some(4 << 20),
            memory_reserved_bytes: Some(600 << 20),
            processes: Some(Vec::new()),
            ..Health::default()
        };
        Gpu { memory_bytes: Some(80 << 30), mig: Some(false), health, ..Gpu::default() }
    }

    fn code(change: impl FnOnce(&mut Gpu)) -> String {
        let mut gpu = idle();
        change(&mut gpu);
        may_begin(&gpu).map_or_else(|failure| failure.code, |()| "may begin".to_owned())
    }

    #[test]
    fn only_a_whole_idle_gpu_that_tells_is_begun_with() {
        assert_eq!(code(|_| ()), "may begin");
        assert_eq!(code(|gpu| gpu.mig = None), "may begin", "older ones have no such mode");
        assert_eq!(code(|gpu| gpu.mig = Some(true)), "GPU_MIG");
        assert_eq!(code(|gpu| gpu.health.processes = Some(vec![7])), "GPU_IN_USE");
        assert_eq!(code(|gpu| gpu.health.processes = None), "GPU_IN_USE");
        assert_eq!(code(|gpu| gpu.health.memory_used_bytes = Some(1 << 30)), "GPU_IN_USE");
        assert_eq!(code(|gpu| gpu.memory_bytes = None), "GPU_ERROR");
        assert_eq!(code(|gpu| gpu.fault = Some("lost".to_owned())), "GPU_ERROR");
    }
}
