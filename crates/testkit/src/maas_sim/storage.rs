//! Disks, partitions and the layouts that are laid on them.

use super::machine::Machine;
use super::request::{Answer, Call, JSON, Outcome, REQUIRED, not_one_of};
use super::status;
use super::world::World;
use serde_json::{Value, json};

/// Partitions begin and end on multiples of this.
const ALIGNMENT: u64 = 4 * 1024 * 1024;

#[derive(Clone, Debug)]
pub(super) struct Partition {
    pub id: u64,
    pub number: u64,
    pub size: u64,
    pub bootable: bool,
    /// Empty: none on it.
    pub fstype: &'static str,
    pub label: &'static str,
    pub mount: String,
}

#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub id: u64,
    pub name: String,
    pub model: String,
    pub serial: String,
    pub size: u64,
    pub tags: Vec<String>,
    pub id_path: String,
    pub partitions: Vec<Partition>,
    /// A file system on the whole of it, and where it is mounted.
    pub filesystem: Option<(String, String)>,
    /// A volume group takes it all.
    pub in_group: bool,
}

/// A logical volume or the like, with a file system.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub id: u64,
    pub name: String,
    pub size: u64,
    pub mount: String,
}

impl Disk {
    fn whole(&self) -> u64 {
        (self.size / ALIGNMENT * ALIGNMENT).saturating_sub(ALIGNMENT)
    }

    pub fn clear(&mut self) {
        self.partitions.clear();
        self.filesystem = None;
        self.in_group = false;
    }

    fn json(&self, system_id: &str) -> Value {
        let uri = format!("/MAAS/api/2.0/nodes/{system_id}/blockdevices/{}/", self.id);
        let partitions: Vec<Value> = self.partitions.iter().map(|p| self.partition_json(p, system_id, &uri)).collect();
        let used: u64 = self.partitions.iter().map(|p| p.size).sum();
        let taken = !self.partitions.is_empty() || self.filesystem.is_some() || self.in_group;
        let used_size = match (taken, self.partitions.is_empty()) {
            (false, _) => 0,
            (true, true) => self.size,
            (true, false) => used + ALIGNMENT + ALIGNMENT / 2,
        };
        let used_for = match (&self.filesystem, self.partitions.len()) {
            (Some((fstype, mount)), _) => format!("{fstype} formatted filesystem mounted at {mount}"),
            (None, 0) if self.in_group => "LVM volume for vgroot".to_owned(),
            (None, 0) => "Unused".to_owned(),
            (None, 1) => "GPT partitioned with 1 partition".to_owned(),
            (None, n) => format!("GPT partitioned with {n} partitions"),
        };
        let filesystem = self.filesystem.as_ref().map(|(fstype, mount)| filesystem(fstype, "root", mount, self.id));
        json!({
            "available_size": if taken { 0 } else { self.whole() }, "block_size": 512, "filesystem": filesystem,
            "firmware_version": null, "id": self.id, "id_path": self.id_path, "model": self.model, "name": self.name,
            "numa_node": 0, "partition_table_type": (!self.partitions.is_empty()).then_some("GPT"),
            "partitions": partitions, "path": format!("/dev/disk/by-dname/{}", self.name), "resource_uri": uri,
            "serial": self.serial, "size": self.size, "storage_pool": null, "system_id": system_id, "tags": self.tags,
            "type": "physical", "used_for": used_for, "used_size": used_size, "uuid": null,
        })
    }

    fn partition_json(&self, p: &Partition, system_id: &str, uri: &str) -> Value {
        let used_for = match (p.fstype, p.mount.as_str()) {
            ("", _) => "Unused".to_owned(),
            (fstype, "") => format!("Unmounted {fstype} formatted filesystem"),
            (fstype, mount) => format!("{fstype} formatted filesystem mounted at {mount}"),
        };
        json!({
            "bootable": p.bootable, "device_id": self.id,
            "filesystem": (!p.fstype.is_empty()).then(|| filesystem(p.fstype, p.label, &p.mount, p.id)), "id": p.id,
            "path": format!("/dev/disk/by-dname/{}-part{}", self.name, p.number),
            "resource_uri": format!("{uri}partition/{}", p.id), "size": p.size, "system_id": system_id, "tags": [],
            "type": "partition", "used_for": used_for, "uuid": uuid(p.id, 1),
        })
    }
}

fn uuid(id: u64, kind: u64) -> String {
    format!("5ca1ab1e-{kind:04x}-4000-8000-{id:012x}")
}

fn filesystem(fstype: &str, label: &str, mount: &str, id: u64) -> Value {
    json!({"fstype": fstype, "label": label, "mount_options": null, "mount_point": mount, "uuid": uuid(id, 2)})
}

impl Volume {
    fn json(&self, system_id: &str) -> Value {
        let fs = (!self.mount.is_empty()).then(|| filesystem("ext4", "root", &self.mount, self.id));
        json!({
            "available_size": 0, "block_size": 4096, "filesystem": fs, "firmware_version": null, "id": self.id,
            "id_path": null, "model": null, "name": self.name, "numa_node": null, "partition_table_type": null,
            "partitions": [], "path": format!("/dev/disk/by-dname/{}", self.name),
            "resource_uri": format!("/MAAS/api/2.0/nodes/{system_id}/blockdevices/{}/", self.id), "serial": null,
            "size": self.size, "storage_pool": null, "system_id": system_id, "tags": [], "type": "virtual",
            "used_for": format!("ext4 formatted filesystem mounted at {}", self.mount), "used_size": self.size,
            "uuid": uuid(self.id, 3),
        })
    }
}

impl Machine {
    pub(super) fn disk_texts(&self) -> Vec<String> {
        self.disks.iter().map(|d| d.json(&self.system_id).to_string()).collect()
    }

    pub(super) fn volume_texts(&self) -> Vec<String> {
        self.volumes.iter().map(|v| v.json(&self.system_id).to_string()).collect()
    }

    /// What is mounted at `/` is on the disk that is booted from.
    pub(super) fn boots_from_root(&self) -> bool {
        let Some(disk) = self.disks.iter().find(|disk| Some(disk.id) == self.boot_disk) else { return false };
        let root = disk.partitions.iter().any(|p| p.mount == "/")
            || disk.filesystem.as_ref().is_some_and(|(_, mount)| mount == "/");
        root || (!disk.partitions.is_empty() && self.volumes.iter().any(|v| v.mount == "/"))
    }

    /// Something is mounted at `/`.
    pub(super) fn has_root(&self) -> bool {
        let on_disk = |d: &Disk| {
            d.partitions.iter().any(|p| p.mount == "/") || d.filesystem.as_ref().is_some_and(|(_, mount)| mount == "/")
        };
        self.disks.iter().any(on_disk) || self.volumes.iter().any(|v| v.mount == "/")
    }
}

/// `10G`, `500M`, bytes, or `20%` of the whole.
fn size(text: &str, whole: u64) -> Option<u64> {
    let scaled = |digits: &str, by: f64| digits.parse::<f64>().ok().map(|n| (n * by) as u64);
    match text.char_indices().last()? {
        (at, '%') => scaled(&text[..at], whole as f64 / 100.0),
        (at, 'K' | 'k') => scaled(&text[..at], 1e3),
        (at, 'M' | 'm') => scaled(&text[..at], 1e6),
        (at, 'G' | 'g') => scaled(&text[..at], 1e9),
        (at, 'T' | 't') => scaled(&text[..at], 1e12),
        _ => text.parse().ok(),
    }
}

const LAYOUTS: [&str; 7] = ["blank", "bcache", "lvm", "flat", "custom", "vmfs7", "vmfs6"];

impl World {
    pub(super) fn set_storage_layout(&mut self, call: &Call, key: u64) -> Outcome {
        if !call.admin {
            return Err(Answer::forbidden());
        }
        self.editable(call, key)?;
        let machine = &self.machines[&key];
        if machine.status != status::READY {
            return Err(Answer::text(409, "Cannot change the storage layout on a machine that is not Ready."));
        }
        let Some(layout) = call.get("storage_layout").filter(|l| !l.is_empty()) else {
            return Err(Answer::field("storage_layout", REQUIRED));
        };
        if !LAYOUTS.contains(&layout) {
            return Err(Answer::field("storage_layout", not_one_of(layout, "storage_layout", &LAYOUTS)));
        }
        if machine.boot_disk.is_none() {
            return Err(Answer::text(400, "Machine is missing a boot disk; no storage layout can be applied."));
        }
        let mut target = machine.boot_disk;
        if let Some(device) = call.get("root_device").filter(|d| !d.is_empty()) {
            target = device.parse().ok().filter(|id| machine.disks.iter().any(|d| d.id == *id));
            if target.is_none() {
                let ids: Vec<String> = machine.disks.iter().map(|d| d.id.to_string()).collect();
                let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                return Err(Answer::field("root_device", not_one_of(device, "root_device", &ids)));
            }
        }
        let failed = |why: &str| Answer::text(400, format!("Failed to configure storage layout '{layout}': {why}"));
        if layout == "bcache" && machine.disks.len() < 2 {
            return Err(failed("Node doesn't have an available cache device to setup bcache."));
        }
        if layout == "custom" {
            return Err(failed("No custom storage layout configuration found"));
        }
        let layout = layout.to_owned();
        let sizes = [call.get("boot_size"), call.get("root_size")].map(|s| s.unwrap_or_default().to_owned());
        self.lay_out(key, &layout, target, &sizes)?;
        self.changed(call, key, "storage");
        self.whole(key)
    }

    /// Replaces everything.
    pub(super) fn lay_out(
        &mut self,
        key: u64,
        layout: &str,
        target: Option<u64>,
        [boot_size, root_size]: &[String; 2],
    ) -> Result<(), Answer> {
        let mut ids = self.partition_ids;
        let mut volume_ids = self.disk_ids;
        let machine = self.touch(key);
        let Some(at) = machine.disks.iter().position(|d| Some(d.id) == target) else { return Ok(()) };
        let whole = machine.disks[at].whole();
        let of = |text: &str, field: &str| match text {
            "" => Ok(None),
            text => size(text, whole).map(Some).ok_or_else(|| Answer::field(field, "Invalid size.")),
        };
        let boot = of(boot_size, "boot_size")?.map(|s| s / ALIGNMENT * ALIGNMENT).filter(|s| *s > 0);
        let root = of(root_size, "root_size")?.map(|s| s / ALIGNMENT * ALIGNMENT);
        let room = whole.saturating_sub(boot.unwrap_or(0));
        if root.is_some_and(|root| root > room) {
            return Err(Answer::field("root_size", "Size is too large. Maximum size is less than that."));
        }
        machine.disks.iter_mut().for_each(Disk::clear);
        machine.volumes.clear();
        let mut partition = |size, bootable, fstype, label, mount: &str, number| {
            ids += 1;
            Partition { id: ids, number, size, bootable, fstype, label, mount: mount.to_owned() }
        };
        let disk = &mut machine.disks[at];
        let (mut number, mut volume) = (2, None);
        if let Some(boot) = boot.filter(|_| matches!(layout, "flat" | "lvm" | "bcache")) {
            disk.partitions.push(partition(boot, true, "ext4", "boot", "/boot", number));
            number += 1;
        }
        match layout {
            "flat" => disk.partitions.push(partition(root.unwrap_or(room), false, "ext4", "root", "/", number)),
            "lvm" | "bcache" => {
                disk.partitions.push(partition(room, false, "", "", "", number));
                let name = if layout == "lvm" { "vgroot-lvroot" } else { "bcache0" };
                volume_ids += 1;
                let size = root.unwrap_or(room);
                volume = Some(Volume { id: volume_ids, name: name.to_owned(), size, mount: "/".to_owned() });
            }
            "vmfs6" | "vmfs7" => {
                for number in 1..=4 {
                    disk.partitions.push(partition(1024 * ALIGNMENT, false, "", "", "", number));
                }
            }
            _ => {}
        }
        machine.volumes.extend(volume);
        self.partition_ids = ids;
        self.disk_ids = volume_ids;
        Ok(())
    }

    pub(super) fn block_devices(&self, key: u64) -> Outcome {
        let machine = &self.machines[&key];
        let all: Vec<String> = machine.disk_texts().into_iter().chain(machine.volume_texts()).collect();
        Ok(Answer::new(200, JSON, format!("[{}]", all.join(", "))))
    }

    pub(super) fn block_device(&mut self, call: &Call, key: u64, id: &str) -> Outcome {
        let machine = &self.machines[&key];
        let Some(at) = machine.disks.iter().position(|d| d.id.to_string() == id || d.name == id) else {
            let volume = machine.volumes.iter().find(|v| v.id.to_string() == id);
            return volume.map(|v| Answer::json(&v.json(&machine.system_id))).ok_or(Answer::missing("BlockDevice"));
        };
        if call.method != "GET" {
            self.editable(call, key)?;
            if !status::may_edit_storage(self.machines[&key].status) {
                return Err(Answer::text(
                    409,
                    "Cannot update block device because the machine is not Ready or Allocated.",
                ));
            }
            if self.machines[&key].status == status::READY && !call.admin {
                return Err(Answer::forbidden());
            }
            let given = |name: &str| call.get(name).unwrap_or_default().to_owned();
            let (fstype, mount, tag) = (given("fstype"), given("mount_point"), given("tag"));
            let machine = self.touch(key);
            let disk = &mut machine.disks[at];
            match call.op() {
                Some("set_boot_disk") => {
                    machine.boot_disk = Some(disk.id);
                    self.changed(call, key, "its boot disk");
                    return Ok(Answer::bare(200, "OK"));
                }
                Some("format") => disk.filesystem = Some((fstype, String::new())),
                Some("mount") => match &mut disk.filesystem {
                    Some((_, at)) => *at = mount,
                    None => return Err(Answer::text(400, "Block device is not formatted with a filesystem.")),
                },
                Some("unmount" | "unformat") => disk.filesystem = None,
                Some("add_tag") => disk.tags.push(tag),
                Some("remove_tag") => disk.tags.retain(|t| *t != tag),
                _ => {}
            }
            self.changed(call, key, "storage");
        }
        let machine = &self.machines[&key];
        Ok(Answer::json(&machine.disks[at].json(&machine.system_id)))
    }

    pub(super) fn mount_special(&mut self, call: &Call, key: u64) -> Outcome {
        self.editable(call, key)?;
        let machine = &self.machines[&key];
        if !status::may_edit_storage(machine.status) {
            return Err(Answer::text(
                409,
                "Cannot mount the filesystem because the machine is not Allocated or Ready.",
            ));
        }
        let mount = call.get("mount_point").unwrap_or_default().to_owned();
        let fstype = call.get("fstype").unwrap_or_default().to_owned();
        if mount.is_empty() {
            return Err(Answer::field("mount_point", REQUIRED));
        }
        let machine = self.touch(key);
        machine.specials.retain(|(_, at)| *at != mount);
        if call.op() == Some("mount_special") {
            if !["tmpfs", "ramfs"].contains(&fstype.as_str()) {
                return Err(Answer::field("fstype", not_one_of(&fstype, "fstype", &["tmpfs", "ramfs"])));
            }
            self.touch(key).specials.push((fstype, mount));
        }
        self.changed(call, key, "storage");
        self.whole(key)
    }
}
