//! The CUDA driver, as far as overwriting memory goes: one GPU at a time, its memory, two kernels. What is taken is given
//! back when it goes out of scope.

use crate::library::{Status, calls, text};
use crate::{kernels, pci, timing};
use std::ffi::{c_char, c_void};
use std::time::Duration;

type Handle = *mut c_void;

calls! { Calls, "libcuda.so.1",
    needed {
        init = "cuInit" (u32);
        count = "cuDeviceGetCount" (*mut i32);
        device = "cuDeviceGet" (*mut i32, i32);
        bus_id = "cuDeviceGetPCIBusId" (*mut u8, i32, i32);
        attribute = "cuDeviceGetAttribute" (*mut i32, i32, i32);
        retain = "cuDevicePrimaryCtxRetain" (*mut Handle, i32);
        release = "cuDevicePrimaryCtxRelease_v2" (i32);
        set_current = "cuCtxSetCurrent" (Handle);
        memory = "cuMemGetInfo_v2" (*mut usize, *mut usize);
        allocate = "cuMemAlloc_v2" (*mut u64, usize);
        free = "cuMemFree_v2" (u64);
        to_device = "cuMemcpyHtoD_v2" (u64, *const c_void, usize);
        to_host = "cuMemcpyDtoH_v2" (*mut c_void, u64, usize);
        module = "cuModuleLoadData" (*mut Handle, *const c_void);
        unload = "cuModuleUnload" (Handle);
        function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
        launch = "cuLaunchKernel" (
            Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut *mut c_void, *mut *mut c_void
        );
        event = "cuEventCreate" (*mut Handle, u32);
        record = "cuEventRecord" (Handle, Handle);
        query = "cuEventQuery" (Handle);
        elapsed = "cuEventElapsedTime" (*mut f32, Handle, Handle);
        destroy = "cuEventDestroy_v2" (Handle);
        error_name = "cuGetErrorName" (Status, *mut *const c_char);
    }
    wanted {
        limit = "cuCtxSetLimit" (i32, usize);
    }
}

const OUT_OF_MEMORY: Status = 2;
const NO_DEVICE: Status = 100;
const NOT_READY: Status = 600;

pub struct Cuda(Calls);

impl Cuda {
    pub fn open() -> Result<Self, String> {
        let cuda = Self(Calls::load()?);
        // SAFETY: no flags are defined; may be called more than once.
        match unsafe { (cuda.0.init)(0) } {
            0 | NO_DEVICE => Ok(cuda),
            status => Err(cuda.meaning("cuInit", status)),
        }
    }

    /// The GPU at a bus address, if CUDA has it.
    pub fn at(&self, address: &str) -> Option<i32> {
        let mut count = 0;
        // SAFETY: the pointer is to a live integer.
        let status = unsafe { (self.0.count)(&raw mut count) };
        (0..if status == 0 { count } else { 0 }).find_map(|ordinal| {
            let (mut device, mut id) = (0, [0; 32]);
            // SAFETY: the ordinal is below the count, the pointer to a live integer.
            let known = unsafe { (self.0.device)(&raw mut device, ordinal) } == 0
                // SAFETY: at most as many bytes are written as are said to be there.
                && unsafe { (self.0.bus_id)(id.as_mut_ptr(), 32, device) } == 0;
            (known && text(&id).is_some_and(|id| pci::address(&id) == address)).then_some(device)
        })
    }

    fn attribute(&self, device: i32, which: i32) -> Option<u64> {
        let mut value = 0;
        // SAFETY: the pointer is to a live integer, and an unknown attribute is an error, not more.
        let status = unsafe { (self.0.attribute)(&raw mut value, which, device) };
        (status == 0).then_some(value).and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0)
    }

    fn check(&self, what: &str, status: Status) -> Result<(), String> {
        if status == 0 { Ok(()) } else { Err(self.meaning(what, status)) }
    }

    fn meaning(&self, what: &str, status: Status) -> String {
        let mut name = std::ptr::null();
        // SAFETY: the pointer is to a live pointer, which is set to a string of the library's own, or to null.
        let known = unsafe { (self.0.error_name)(status, &raw mut name) } == 0 && !name.is_null();
        // SAFETY: not null, ends with a zero, and lives as long as the library, which is never unloaded.
        let name = known.then(|| unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned());
        format!("{what}: {}", name.unwrap_or_else(|| format!("CUDA error {status}")))
    }
}

/// A GPU in use by this process and thread. One at a time: the driver has one current in a thread.
pub struct Context<'a> {
    cuda: &'a Cuda,
    device: i32,
    module: Handle,
    fill: Handle,
    verify: Handle,
    out: u64,
    blocks: u32,
}

/// A stretch of its memory.
#[derive(Clone, Copy)]
pub struct Stretch {
    pub base: u64,
    pub bytes: u64,
}

/// What every 16 bytes are to hold: see `kernels`.
#[derive(Clone, Copy)]
pub struct Pattern {
    pub seed: u64,
    pub keep: u64,
    pub flip: u64,
}

/// What the GPU says it has read.
pub struct Read {
    pub bytes: u64,
    pub wrong_words: u64,
    pub first_wrong: Option<u64>,
}

#[derive(Debug)]
pub enum Wait {
    Failed(String),
    /// The GPU does not end what it was given. Nothing of it can be given back: that would wait, too.
    Stuck,
}

impl<'a> Context<'a> {
    pub fn new(cuda: &'a Cuda, device: i32) -> Result<Self, String> {
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle, the device one that CUDA has named.
        cuda.check("cuDevicePrimaryCtxRetain", unsafe { (cuda.0.retain)(&raw mut context, device) })?;
        // from here on dropping gives back
        let null = std::ptr::null_mut();
        let mut this = Self { cuda, device, module: null, fill: null, verify: null, out: 0, blocks: 0 };
        // SAFETY: the handle is the one just given out.
        cuda.check("cuCtxSetCurrent", unsafe { (cuda.0.set_current)(context) })?;
        this.be_small();
        let ptx = kernels::PTX.as_ptr().cast();
        // SAFETY: text that ends with a zero; the pointer is to a live handle.
        cuda.check("cuModuleLoadData", unsafe { (cuda.0.module)(&raw mut this.module, ptx) })?;
        this.fill = this.function(kernels::FILL)?;
        this.verify = this.function(kernels::VERIFY)?;
        this.out = this.allocate(24)?.ok_or("there is no memory for the counters")?.base;
        const MULTIPROCESSORS: i32 = 16;
        let multiprocessors = cuda.attribute(device, MULTIPROCESSORS).unwrap_or(16);
        this.blocks = u32::try_from(multiprocessors).unwrap_or(16).saturating_mul(16);
        Ok(this)
    }

    /// Gives back what the driver keeps for kernels that need a stack, a heap or want to print: ours need none, and what
    /// the driver keeps cannot be overwritten. Where it does not oblige, less is covered, which is judged later.
    fn be_small(&self) {
        const LIMITS: [i32; 3] = [0, 1, 2];
        for which in self.cuda.0.limit.into_iter().flat_map(|call| LIMITS.map(|which| (call, which))) {
            // SAFETY: a context is current; a limit that is too small for the driver is raised to what it needs.
            unsafe { which.0(which.1, 16) };
        }
    }

    fn function(&self, name: &str) -> Result<Handle, String> {
        let mut function = std::ptr::null_mut();
        let zero_ended = std::ffi::CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: a module that is loaded, a name that ends with a zero, a live handle.
        let status = unsafe { (self.cuda.0.function)(&raw mut function, self.module, zero_ended.as_ptr()) };
        self.cuda.check("cuModuleGetFunction", status).map(|()| function)
    }

    /// Bytes a second that the memory can move at most: two transfers a cycle over the whole bus.
    pub fn peak(&self) -> Option<u64> {
        const CLOCK_KHZ: i32 = 36;
        const BUS_BITS: i32 = 37;
        let clock = self.cuda.attribute(self.device, CLOCK_KHZ)?;
        Some(clock * 1000 * 2 * self.cuda.attribute(self.device, BUS_BITS)? / 8)
    }

    pub fn free_bytes(&self) -> Result<u64, String> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are to live integers.
        self.cuda.check("cuMemGetInfo", unsafe { (self.cuda.0.memory)(&raw mut free, &raw mut total) })?;
        Ok(free as u64)
    }

    /// `None` where there is not as much. Given back with the context.
    pub fn allocate(&self, bytes: u64) -> Result<Option<Stretch>, String> {
        let mut base = 0;
        let size = usize::try_from(bytes).map_err(|error| error.to_string())?;
        // SAFETY: the pointer is to a live integer.
        match unsafe { (self.cuda.0.allocate)(&raw mut base, size) } {
            0 => Ok(Some(Stretch { base, bytes })),
            OUT_OF_MEMORY => Ok(None),
            status => Err(self.cuda.meaning("cuMemAlloc", status)),
        }
    }

    /// Overwrites all of it; seconds on the GPU's own clock.
    pub fn fill(&self, stretches: &[Stretch], pattern: Pattern) -> Result<f64, Wait> {
        self.timed(|| stretches.iter().try_for_each(|stretch| self.launch(self.fill, *stretch, pattern)))
    }

    /// Reads all of it on the GPU; what it found, and seconds on its own clock.
    pub fn verify(&self, stretches: &[Stretch], pattern: Pattern) -> Result<(Read, f64), Wait> {
        self.put(self.out, &[0, 0, u64::MAX]).map_err(Wait::Failed)?;
        let seconds =
            self.timed(|| stretches.iter().try_for_each(|stretch| self.launch(self.verify, *stretch, pattern)))?;
        let [vectors, wrong_words, first] = self.get(self.out).map_err(Wait::Failed)?;
        let first_wrong = (wrong_words > 0).then_some(first);
        Ok((Read { bytes: vectors.saturating_mul(16), wrong_words, first_wrong }, seconds))
    }

    fn launch(&self, kernel: Handle, stretch: Stretch, pattern: Pattern) -> Result<(), String> {
        // `fill` takes the first five of them
        let mut values = [stretch.base, stretch.bytes, pattern.seed, pattern.keep, pattern.flip, self.out];
        let mut pointers = values.each_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>());
        let none = std::ptr::null_mut();
        // SAFETY: as many pointers to live values of 8 bytes as the kernel has parameters, read before the call returns;
        // the kernel touches nothing outside the stretch, which is allocated, and the counters.
        let status = unsafe {
            let (grid, block) = (self.blocks, kernels::THREADS);
            (self.cuda.0.launch)(kernel, grid, 1, 1, block, 1, 1, 0, none, pointers.as_mut_ptr(), none.cast())
        };
        self.cuda.check("cuLaunchKernel", status)
    }

    /// Waits with a limit: a GPU that has died never answers.
    fn timed(&self, work: impl FnOnce() -> Result<(), String>) -> Result<f64, Wait> {
        const LIMIT: Duration = Duration::from_secs(60);
        let (before, after) = (self.event().map_err(Wait::Failed)?, self.event().map_err(Wait::Failed)?);
        self.record(&before).and_then(|()| work()).and_then(|()| self.record(&after)).map_err(Wait::Failed)?;
        let begun = timing::now();
        loop {
            // SAFETY: an event that is alive and was recorded.
            match unsafe { (self.cuda.0.query)(after.0) } {
                0 => break,
                NOT_READY if begun.elapsed() > LIMIT => return Err(Wait::Stuck),
                NOT_READY => timing::nap(),
                status => return Err(Wait::Failed(self.cuda.meaning("the GPU stopped at its work", status))),
            }
        }
        let mut milliseconds = 0.0;
        // SAFETY: both events are alive and have happened; the pointer is to a live number.
        let status = unsafe { (self.cuda.0.elapsed)(&raw mut milliseconds, before.0, after.0) };
        self.cuda.check("cuEventElapsedTime", status).map_err(Wait::Failed)?;
        Ok(f64::from(milliseconds) / 1000.0)
    }

    fn event(&self) -> Result<Event<'_>, String> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle; no flags.
        let status = unsafe { (self.cuda.0.event)(&raw mut event, 0) };
        self.cuda.check("cuEventCreate", status).map(|()| Event(event, self.cuda))
    }

    fn record(&self, event: &Event<'_>) -> Result<(), String> {
        // SAFETY: an event that is alive, on the default stream.
        self.cuda.check("cuEventRecord", unsafe { (self.cuda.0.record)(event.0, std::ptr::null_mut()) })
    }

    /// Words at an address of allocated memory.
    pub fn get<const N: usize>(&self, address: u64) -> Result<[u64; N], String> {
        let mut words = [0u64; N];
        // SAFETY: as many bytes as the array has; that the address is none of ours is an error of the driver, not more.
        let status = unsafe { (self.cuda.0.to_host)(words.as_mut_ptr().cast(), address, 8 * N) };
        self.cuda.check("cuMemcpyDtoH", status).map(|()| words)
    }

    pub fn put<const N: usize>(&self, address: u64, words: &[u64; N]) -> Result<(), String> {
        // SAFETY: as many bytes as the array has, from memory that outlives the call.
        let status = unsafe { (self.cuda.0.to_device)(address, words.as_ptr().cast(), 8 * N) };
        self.cuda.check("cuMemcpyHtoD", status)
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        // SAFETY: what was taken in `new`, once, and nothing of it is used any more. With the context goes all memory
        // that was allocated in it. There is nobody to tell of an error.
        unsafe {
            if !self.module.is_null() {
                (self.cuda.0.unload)(self.module);
            }
            if self.out != 0 {
                (self.cuda.0.free)(self.out);
            }
            (self.cuda.0.set_current)(std::ptr::null_mut());
            (self.cuda.0.release)(self.device);
        }
    }
}

struct Event<'a>(Handle, &'a Cuda);

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // SAFETY: created once, and not used any more; the driver keeps it until it has happened.
        unsafe { (self.1.0.destroy)(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_is_not_here_is_an_error_and_no_panic() {
        if let Err(why) = Cuda::open() {
            assert!(why.contains("libcuda.so.1") || why.contains("cuInit"), "{why}");
        }
    }
}
