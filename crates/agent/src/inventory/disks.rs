//! Disks that one could pull out: nothing that the kernel makes of others, of memory or of files.

use super::read;
use crate::host::Host;
use domain::identity::tells;
use proto::agent::v1::Disk;
use std::path::Path;

pub fn disks(host: &Host) -> Vec<Disk> {
    let folder = host.path("/sys/block");
    let disks = read::names(&folder).into_iter().filter(|name| !MADE.iter().any(|made| name.starts_with(made)));
    disks.filter_map(|name| disk(&folder.join(&name), name)).collect()
}

/// Made by the kernel, or a drive whose medium comes and goes.
const MADE: &[&str] = &["loop", "ram", "dm-", "zram", "md", "sr", "fd", "nbd", "rbd", "drbd", "bcache", "zd"];

fn disk(at: &Path, name: String) -> Option<Disk> {
    let bytes = read::number::<u64>(&at.join("size"))?.checked_mul(512)?;
    // a path of a disk that is shown under another name; a card's boot sectors; a reader without a card
    let hidden = read::value(&at.join("hidden")) == "1" || name.contains("boot") || name.contains("rpmb");
    if bytes == 0 || hidden || !at.join("device").exists() {
        return None;
    }
    let serials = [read::value(&at.join("device/serial")), read::value(&at.join("serial")), vpd(at)];
    let serial_number = serials.into_iter().find(|serial| tells(serial)).unwrap_or_default();
    let rotational = read::value(&at.join("queue/rotational")) == "1";
    Some(Disk { name, model: read::value(&at.join("device/model")), serial_number, bytes, rotational })
}

/// The serial number page of a SCSI disk: four bytes of head, the last two its length.
fn vpd(at: &Path) -> String {
    let page = read::bytes(&at.join("device/vpd_pg80"), 260).unwrap_or_default();
    match page.as_slice() {
        [_, 0x80, high, low, rest @ ..] => {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            read::clean(&String::from_utf8_lossy(rest.get(..length).unwrap_or(rest)))
        }
        _ => String::new(),
    }
}
