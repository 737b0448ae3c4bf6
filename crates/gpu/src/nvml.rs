//! NVML: which GPUs there are and how they are. What a GPU does not tell is `None`, never zero.

use crate::library::{Status, calls, text};
use crate::pci;
use serde::{Deserialize, Serialize};
use std::ffi::c_void;
use std::sync::Mutex;

/// What the driver says of its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gpus {
    /// The driver's version.
    pub driver: Option<String>,
    pub gpus: Vec<Gpu>,
    /// Why nothing is known, where that is so.
    pub note: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    pub index: u32,
    pub uuid: Option<String>,
    pub name: Option<String>,
    pub memory_bytes: Option<u64>,
    pub serial_number: Option<String>,
    /// As the kernel spells it: `0000:1b:00.0`.
    pub pci_bus_id: Option<String>,
    /// Cut into instances, which only those see who are given one.
    pub mig: Option<bool>,
    pub health: Health,
    /// The driver lists it, but cannot talk to it.
    pub fault: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// Over its life.
    pub ecc_corrected: Option<u64>,
    pub ecc_uncorrected: Option<u64>,
    /// Since the driver was loaded or the GPU was reset: what those who compute on it now have met.
    pub ecc_uncorrected_since_reset: Option<u64>,
    pub remapped_rows_corrected: Option<u32>,
    pub remapped_rows_uncorrected: Option<u32>,
    /// A row waits for a reset to be remapped.
    pub remapping_pending: Option<bool>,
    /// No spare row was left: the GPU wants to be replaced.
    pub remapping_failed: Option<bool>,
    pub temperature_c: Option<u32>,
    /// By processes; without what the driver keeps for itself, where it tells them apart.
    pub memory_used_bytes: Option<u64>,
    pub memory_reserved_bytes: Option<u64>,
    /// Who computes or draws on it, in ascending order.
    pub processes: Option<Vec<u32>>,
}

type Device = *mut c_void;

#[repr(C)]
struct MemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

#[repr(C)]
#[derive(Default)]
struct MemoryV1 {
    total: u64,
    free: u64,
    used: u64,
}

#[repr(C)]
struct PciInfo {
    legacy: [u8; 16],
    domain: u32,
    bus: u32,
    device: u32,
    device_id: u32,
    subsystem_id: u32,
    bus_id: [u8; 32],
}

/// One driver of the 535 series writes 32 bytes for each under the newer name of the call: room for both.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Process {
    pid: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

calls! { Calls, "libnvidia-ml.so.1",
    needed {
        init = "nvmlInit_v2" ();
        driver_version = "nvmlSystemGetDriverVersion" (*mut u8, u32);
        count = "nvmlDeviceGetCount_v2" (*mut u32);
        device = "nvmlDeviceGetHandleByIndex_v2" (u32, *mut Device);
        uuid = "nvmlDeviceGetUUID" (Device, *mut u8, u32);
        name = "nvmlDeviceGetName" (Device, *mut u8, u32);
        serial = "nvmlDeviceGetSerial" (Device, *mut u8, u32);
        pci = "nvmlDeviceGetPciInfo_v3" (Device, *mut PciInfo);
        memory = "nvmlDeviceGetMemoryInfo" (Device, *mut MemoryV1);
        temperature = "nvmlDeviceGetTemperature" (Device, u32, *mut u32);
        ecc = "nvmlDeviceGetTotalEccErrors" (Device, u32, u32, *mut u64);
    }
    wanted {
        memory_v2 = "nvmlDeviceGetMemoryInfo_v2" (Device, *mut MemoryV2);
        mig = "nvmlDeviceGetMigMode" (Device, *mut u32, *mut u32);
        remapped = "nvmlDeviceGetRemappedRows" (Device, *mut u32, *mut u32, *mut u32, *mut u32);
        computing = "nvmlDeviceGetComputeRunningProcesses_v2" (Device, *mut u32, *mut Process);
        computing_v3 = "nvmlDeviceGetComputeRunningProcesses_v3" (Device, *mut u32, *mut Process);
        drawing = "nvmlDeviceGetGraphicsRunningProcesses_v2" (Device, *mut u32, *mut Process);
        drawing_v3 = "nvmlDeviceGetGraphicsRunningProcesses_v3" (Device, *mut u32, *mut Process);
    }
}

type Running = unsafe extern "C" fn(Device, *mut u32, *mut Process) -> Status;

/// NVML, initialised. It stays so until the process ends.
pub struct Nvml(Calls);

/// One for the process: initialising costs more than asking.
static OPEN: Mutex<Option<Nvml>> = Mutex::new(None);

/// Everything there is to know of the GPUs, read anew.
pub fn probe() -> Gpus {
    let mut open = OPEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if open.is_none() {
        match Nvml::open() {
            Ok(nvml) => *open = Some(nvml),
            Err(why) => return Gpus { note: Some(why), ..Gpus::default() },
        }
    }
    open.as_ref().map(Nvml::look).unwrap_or_default()
}

impl Nvml {
    pub fn open() -> Result<Self, String> {
        let calls = Calls::load()?;
        // SAFETY: takes nothing; may be called more than once.
        match unsafe { (calls.init)() } {
            0 => Ok(Self(calls)),
            status => Err(format!("the NVIDIA driver does not answer: {}", meaning(status))),
        }
    }

    pub fn look(&self) -> Gpus {
        let mut version = [0; 96];
        // SAFETY: the driver writes at most as many bytes as it is told there are.
        let driver = told(unsafe { (self.0.driver_version)(version.as_mut_ptr(), 96) }, || text(&version)).flatten();
        let mut count = 0;
        // SAFETY: the pointer is to a live integer of the type that the header says.
        let status = unsafe { (self.0.count)(&raw mut count) };
        if status != 0 {
            let note = format!("the NVIDIA driver cannot count its GPUs: {}", meaning(status));
            return Gpus { driver, note: Some(note), gpus: Vec::new() };
        }
        let note = (count == 0).then(|| "the NVIDIA driver has no GPU".to_owned());
        Gpus { driver, gpus: (0..count.min(1024)).map(|index| self.gpu(index)).collect(), note }
    }

    fn gpu(&self, index: u32) -> Gpu {
        let mut device = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle, which the driver fills in.
        let status = unsafe { (self.0.device)(index, &raw mut device) };
        if status != 0 {
            return Gpu { index, fault: Some(meaning(status)), ..Gpu::default() };
        }
        let string = |call: unsafe extern "C" fn(Device, *mut u8, u32) -> Status| {
            let mut buffer = [0; 96];
            // SAFETY: the handle is the one just given out; at most as many bytes are written as are said to be there.
            told(unsafe { call(device, buffer.as_mut_ptr(), 96) }, || text(&buffer)).flatten()
        };
        let memory = self.memory(device);
        Gpu {
            index,
            uuid: string(self.0.uuid),
            name: string(self.0.name),
            memory_bytes: memory.as_ref().map(|memory| memory.total),
            serial_number: string(self.0.serial),
            pci_bus_id: self.address(device),
            mig: self.mig(device),
            health: self.health(device, memory.as_ref()),
            fault: None,
        }
    }

    fn address(&self, device: Device) -> Option<String> {
        let mut info =
            PciInfo { legacy: [0; 16], domain: 0, bus: 0, device: 0, device_id: 0, subsystem_id: 0, bus_id: [0; 32] };
        // SAFETY: a struct of the size and layout that version 3 of the call fills in.
        told(unsafe { (self.0.pci)(device, &raw mut info) }, || text(&info.bus_id).map(|id| pci::address(&id)))
            .flatten()
    }

    fn mig(&self, device: Device) -> Option<bool> {
        let (mut current, mut pending) = (0, 0);
        // SAFETY: both pointers are to live integers.
        let status = unsafe { (self.0.mig?)(device, &raw mut current, &raw mut pending) };
        told(status, || current != 0)
    }

    fn memory(&self, device: Device) -> Option<MemoryV2> {
        let mut memory = MemoryV2 { version: 0, total: 0, reserved: 0, free: 0, used: 0 };
        // the header's way to say which layout the caller has
        memory.version = u32::try_from(size_of::<MemoryV2>()).unwrap_or_default() | (2 << 24);
        if let Some(call) = self.0.memory_v2 {
            // SAFETY: a live struct that carries its own size and version.
            if unsafe { call(device, &raw mut memory) } == 0 {
                return Some(memory);
            }
        }
        let mut old = MemoryV1::default();
        // SAFETY: a live struct of the layout that the first version of the call fills in.
        told(unsafe { (self.0.memory)(device, &raw mut old) }, || MemoryV2 {
            version: 1,
            total: old.total,
            reserved: 0,
            free: old.free,
            used: old.used,
        })
    }

    fn health(&self, device: Device, memory: Option<&MemoryV2>) -> Health {
        let ecc = |uncorrected: bool, life: bool| {
            let mut errors = 0;
            // SAFETY: the pointer is to a live integer; the other two are values of the header's enumerations.
            let status = unsafe { (self.0.ecc)(device, uncorrected.into(), life.into(), &raw mut errors) };
            told(status, || errors)
        };
        let mut celsius = 0;
        // SAFETY: the pointer is to a live integer; 0 is the sensor on the chip, the only one there is.
        let status = unsafe { (self.0.temperature)(device, 0, &raw mut celsius) };
        let temperature_c = told(status, || celsius);
        let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
        let rows = self.0.remapped.is_some_and(|call| {
            // SAFETY: all four pointers are to live integers.
            unsafe { call(device, &raw mut corrected, &raw mut uncorrected, &raw mut pending, &raw mut failed) == 0 }
        });
        Health {
            ecc_corrected: ecc(false, true),
            ecc_uncorrected: ecc(true, true),
            ecc_uncorrected_since_reset: ecc(true, false),
            remapped_rows_corrected: rows.then_some(corrected),
            remapped_rows_uncorrected: rows.then_some(uncorrected),
            remapping_pending: rows.then_some(pending != 0),
            remapping_failed: rows.then_some(failed != 0),
            temperature_c,
            memory_used_bytes: memory.map(|memory| memory.used),
            memory_reserved_bytes: memory.filter(|memory| memory.version != 1).map(|memory| memory.reserved),
            processes: self.processes(device),
        }
    }

    /// The same layout under both names of a call; under the newer one a driver of the 535 series has another.
    fn processes(&self, device: Device) -> Option<Vec<u32>> {
        let computing = running(self.0.computing.or(self.0.computing_v3)?, device)?;
        let drawing = self.0.drawing.or(self.0.drawing_v3).and_then(|call| running(call, device)).unwrap_or_default();
        let mut all: Vec<u32> = computing.into_iter().chain(drawing).collect();
        all.sort_unstable();
        all.dedup();
        Some(all)
    }
}

fn running(call: Running, device: Device) -> Option<Vec<u32>> {
    const INSUFFICIENT_SIZE: Status = 7;
    let mut room: u32 = 64;
    // more may have come between two calls: a few tries
    for _ in 0..4 {
        let mut count = room;
        // a third more than is said: see `Process`
        let mut found = vec![Process::default(); (room + room / 3 + 1) as usize];
        // SAFETY: the buffer holds at least `count` entries, and is larger than any driver's layout of that many.
        match unsafe { call(device, &raw mut count, found.as_mut_ptr()) } {
            0 => return Some(found.iter().take(count.min(room) as usize).map(|process| process.pid).collect()),
            INSUFFICIENT_SIZE => room = count.max(room).min(65_536) * 2,
            _ => return None,
        }
    }
    None
}

fn told<T>(status: Status, value: impl FnOnce() -> T) -> Option<T> {
    (status == 0).then(value)
}

fn meaning(status: Status) -> String {
    let known = match status {
        4 => "no permission",
        9 => "its kernel module is not loaded",
        15 => "the GPU is lost: it has fallen off the bus",
        16 => "the GPU must be reset",
        18 => "the library and the kernel module are of two versions",
        _ => return format!("NVML error {status}"),
    };
    format!("{known} (NVML error {status})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layouts_are_those_of_the_header() {
        assert_eq!(size_of::<MemoryV2>(), 40);
        assert_eq!(size_of::<MemoryV1>(), 24);
        assert_eq!(size_of::<PciInfo>(), 68);
        assert_eq!(size_of::<Process>(), 24);
    }

    #[test]
    fn nothing_known_has_a_reason_and_only_that() {
        let gpus = probe();
        assert_eq!(gpus.gpus.is_empty(), gpus.note.is_some(), "{gpus:?}");
        assert_eq!(gpus.driver, probe().driver, "asked again, it says the same");
    }
}
