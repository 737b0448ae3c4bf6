//! NVIDIA GPUs on the PCI bus, by the kernel's word: what is there even when the driver is not. A GPU that the driver
//! does not show is no "no GPU".

use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Read;
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnBus {
    /// As the kernel spells it: `0000:1b:00.0`.
    pub address: String,
    /// `nvidia`, or another that has taken it: `vfio-pci`, `nouveau`.
    pub driver: Option<String>,
}

/// More than any machine has.
const MOST_DEVICES: usize = 65_536;

/// Display and 3D controllers of NVIDIA's below a root folder, in the order of their addresses.
pub fn on_bus(root: &Path) -> Vec<OnBus> {
    let Ok(devices) = fs::read_dir(root.join("sys/bus/pci/devices")) else { return Vec::new() };
    let mut found: Vec<OnBus> = devices
        .take(MOST_DEVICES)
        .flatten()
        .filter(|device| {
            let path = device.path();
            // 0x03…: display controllers, of which 0x0302… are those without a display
            starts_with(&path.join("vendor"), "0x10de") && starts_with(&path.join("class"), "0x03")
        })
        .filter_map(|device| {
            let driver = fs::read_link(device.path().join("driver")).ok();
            let driver = driver.and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned()));
            Some(OnBus { address: device.file_name().to_str()?.to_owned(), driver })
        })
        .collect();
    found.sort_by(|a, b| a.address.cmp(&b.address));
    found
}

/// A bus address as the kernel spells it; NVML has eight digits of domain, CUDA may have capitals.
pub fn address(spelt: &str) -> String {
    let lower = spelt.trim().to_ascii_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() > 4 => {
            let zeros = domain.len() - 4;
            match domain.split_at_checked(zeros) {
                Some((head, tail)) if head.bytes().all(|b| b == b'0') => format!("{tail}:{rest}"),
                _ => lower,
            }
        }
        _ => lower,
    }
}

fn starts_with(file: &Path, prefix: &str) -> bool {
    let mut head = Vec::new();
    fs::File::open(file).is_ok_and(|f| f.take(16).read_to_end(&mut head).is_ok()) && head.starts_with(prefix.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_an_address_is_one() {
        assert_eq!(address("00000000:1B:00.0"), "0000:1b:00.0");
        assert_eq!(address("0000:1b:00.0"), "0000:1b:00.0");
        assert_eq!(address("00010000:1b:00.0"), "00010000:1b:00.0", "a domain of five digits is none of four");
    }

    #[test]
    fn gpus_are_found_whoever_drives_them_and_nothing_else_is() {
        let root = tempfile::tempdir().unwrap();
        let devices = root.path().join("sys/bus/pci/devices");
        let plant = |name: &str, vendor: &str, class: &str, driver: Option<&str>| {
            let dir = devices.join(name);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("vendor"), vendor).unwrap();
            fs::write(dir.join("class"), class).unwrap();
            if let Some(driver) = driver {
                std::os::unix::fs::symlink(format!("../../../bus/pci/drivers/{driver}"), dir.join("driver")).unwrap();
            }
        };
        plant("0000:9b:00.0", "0x10de\n", "0x030200\n", Some("nvidia"));
        plant("0000:1b:00.0", "0x10de\n", "0x030000\n", Some("vfio-pci"));
        plant("0000:2b:00.0", "0x10de\n", "0x030200\n", None);
        plant("0000:03:00.0", "0x1a03\n", "0x030000\n", Some("ast"));
        plant("0000:04:00.0", "0x10de\n", "0x068000\n", Some("nvidia-nvswitch"));
        fs::create_dir_all(devices.join("0000:05:00.0")).unwrap();
        std::os::unix::fs::symlink("loop", devices.join("loop")).unwrap();
        let found: Vec<_> = on_bus(root.path()).into_iter().map(|gpu| (gpu.address, gpu.driver)).collect();
        let of = |address: &str, driver: Option<&str>| (address.to_owned(), driver.map(str::to_owned));
        assert_eq!(
            found,
            [of("0000:1b:00.0", Some("vfio-pci")), of("0000:2b:00.0", None), of("0000:9b:00.0", Some("nvidia"))]
        );
        assert_eq!(on_bus(&root.path().join("missing")), []);
    }
}
