//! NVIDIA GPUs through their driver, loaded at run time: what they are, how they are, and their memory overwritten and
//! read back. Without the driver everything here says so. The only crate with unsafe code: calls into the driver.
