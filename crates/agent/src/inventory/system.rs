//! The machine as a whole: who it says it is, its processors, its memory, its operating system.

use super::{nics, read};
use crate::host::Host;
use domain::identity::{tells, uuid_tells};
use proto::agent::v1::Facts;
use std::collections::BTreeSet;

pub fn facts(host: &Host) -> Facts {
    let dmi = |name: &str| read::value(&host.path("/sys/class/dmi/id").join(name));
    // what a maker has left blank must not pass for a name that two machines share
    let told = |value: String| if tells(&value) { value } else { String::new() };
    let uuid = dmi("product_uuid").to_ascii_lowercase();
    Facts {
        system_uuid: if uuid_tells(&uuid) { uuid } else { String::new() },
        serial_number: told(dmi("product_serial")),
        mac_addresses: nics::macs(host),
        vendor: told(dmi("sys_vendor")),
        model: told(dmi("product_name")),
        hostname: first_of(host, &["/proc/sys/kernel/hostname", "/etc/hostname"]),
        boot_id: boot_id(host),
    }
}

pub fn boot_id(host: &Host) -> String {
    read::value(&host.path("/proc/sys/kernel/random/boot_id")).to_ascii_lowercase()
}

fn first_of(host: &Host, paths: &[&str]) -> String {
    paths.iter().map(|path| read::value(&host.path(path))).find(|value| !value.is_empty()).unwrap_or_default()
}

pub fn kernel(host: &Host) -> String {
    read::value(&host.path("/proc/sys/kernel/osrelease"))
}

pub fn architecture(host: &Host) -> String {
    // only newer kernels have the file
    let told = read::value(&host.path("/proc/sys/kernel/arch"));
    if told.is_empty() { read::clean(&rustix::system::uname().machine().to_string_lossy()) } else { told }
}

/// The name of the operating system, as it wants to be shown.
pub fn os(host: &Host) -> String {
    let of = |path: &str| {
        let lines = read::lines(&host.path(path));
        let named = |key: &str| lines.lines().find_map(|line| line.trim().strip_prefix(key)).map(unquoted);
        named("PRETTY_NAME=").or_else(|| named("NAME=")).filter(|name| !name.is_empty())
    };
    of("/etc/os-release").or_else(|| of("/usr/lib/os-release")).unwrap_or_default()
}

/// A value as a shell would read it.
fn unquoted(value: &str) -> String {
    let value = value.trim();
    let bare =
        ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote)).unwrap_or(value);
    let mut chars = bare.chars();
    let mut plain = String::new();
    while let Some(c) = chars.next() {
        plain.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    read::clean(&plain)
}

pub fn memory_bytes(host: &Host) -> u64 {
    meminfo(&read::lines(&host.path("/proc/meminfo")), "MemTotal").unwrap_or_default()
}

/// A line of `/proc/meminfo`, in bytes.
pub fn meminfo(lines: &str, key: &str) -> Option<u64> {
    let rest = lines.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    rest.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Cpus {
    pub sockets: u32,
    pub cores: u32,
    pub threads: u32,
    pub model: String,
}

pub fn cpus(host: &Host) -> Cpus {
    // every processor has its paragraph: the first has the name, and the kernel makes no more than is read
    let first = read::bytes(&host.path("/proc/cpuinfo"), 8192).unwrap_or_default();
    let first = String::from_utf8_lossy(&first).into_owned();
    let field = |key: &str| {
        let fields = first.lines().filter_map(|line| line.split_once(':'));
        fields.into_iter().find(|(name, _)| name.trim() == key).map(|(_, value)| read::clean(value))
    };
    let model = ["model name", "cpu model", "Processor", "Hardware"].into_iter().find_map(field).unwrap_or_default();
    let folder = host.path("/sys/devices/system/cpu");
    let (mut sockets, mut cores, mut threads) = (BTreeSet::new(), BTreeSet::new(), 0);
    for name in read::names(&folder) {
        let number = name.strip_prefix("cpu").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
        let topology = folder.join(&name).join("topology");
        // one that is switched off has no place
        if let (true, Some(socket)) = (number, read::number::<i64>(&topology.join("physical_package_id"))) {
            threads += 1;
            // threads of one core name the same siblings
            let siblings =
                [read::value(&topology.join("core_cpus_list")), read::value(&topology.join("thread_siblings_list"))];
            cores.insert(siblings.into_iter().find(|list| !list.is_empty()).unwrap_or(name));
            sockets.insert(socket);
        }
    }
    if threads == 0 {
        let all = read::bytes(&host.path("/proc/cpuinfo"), 4 << 20).unwrap_or_default();
        threads = all.split(|b| *b == b'\n').filter(|line| line.starts_with(b"processor")).count();
    }
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Cpus { sockets: count(sockets.len()), cores: count(cores.len()), threads: count(threads), model }
}
