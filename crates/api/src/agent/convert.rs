//! Between the agents' wire and the use cases. What an agent tells of its machine becomes JSON, with bounds on every
//! text and every list.

use domain::limits::{NAME_MAX, TEXT_MAX};
use domain::task::{Task, TaskFence};
use domain::{Error, TaskId, Timestamp};
use prost::Message as _;
use proto::agent::v1 as pb;
use serde_json::{Value, json};
use service::agents::{AgentCertificate, Facts, Heartbeat, OutputPiece, Refusal, Said, one_line};
use std::time::Duration;

/// Of each kind of part that a machine may have.
const PARTS_MAX: usize = 256;
const PROBES_MAX: usize = 64;
/// For a task to get there, beside the time that it takes.
const ON_THE_WAY: Duration = Duration::from_secs(300);

pub(super) fn facts(facts: pb::Facts) -> Facts {
    let pb::Facts { system_uuid, serial_number, mac_addresses, vendor, model, hostname, boot_id } = facts;
    Facts { system_uuid, serial_number, mac_addresses, vendor, model, hostname, boot_id }
}

pub(super) fn certificate(certificate: AgentCertificate) -> pb::Certificate {
    pb::Certificate {
        chain_der: certificate.chain,
        authorities_der: certificate.authorities,
        not_before: Some(crate::convert::timestamp(certificate.not_before)),
        not_after: Some(crate::convert::timestamp(certificate.not_after)),
    }
}

/// A clock may show anything.
pub(super) fn time(at: Option<prost_types::Timestamp>) -> Option<Timestamp> {
    at.map(|at| {
        let micros = at.seconds.saturating_mul(1_000_000).saturating_add(i64::from(at.nanos) / 1000);
        Timestamp::from_micros(micros)
    })
}

pub(super) fn fence(fence: pb::Fence) -> TaskFence {
    TaskFence { epoch: fence.epoch, counter: fence.counter }
}

pub(super) fn fence_to_wire(fence: TaskFence) -> pb::Fence {
    pb::Fence { epoch: fence.epoch, counter: fence.counter }
}

/// The order, with what this dispatch adds to it.
pub(super) fn task(task: &Task, now: Timestamp) -> Result<pb::Task, Error> {
    let order = pb::Task::decode(task.order.as_slice())
        .map_err(|e| Error::internal(format!("the order of task {} does not read: {e}", task.id)))?;
    let seconds = u32::try_from(task.kind.timeout().as_secs()).unwrap_or(u32::MAX);
    let timeout_seconds = if order.timeout_seconds == 0 { seconds } else { order.timeout_seconds };
    let by = now.plus(Duration::from_secs(timeout_seconds.into())).plus(ON_THE_WAY);
    Ok(pb::Task {
        task_id: task.id.to_string(),
        fence: Some(fence_to_wire(task.fence)),
        deadline: order.deadline.or_else(|| Some(crate::convert::timestamp(by))),
        timeout_seconds,
        ..order
    })
}

pub(super) fn said(result: pb::TaskResult) -> Said {
    Said {
        task: result.task_id,
        fence: result.fence.map(fence).unwrap_or_default(),
        ok: result.ok,
        code: result.code,
        failure_class: result.failure_class,
        message: result.message,
        detail: result.detail_json,
        signature: result.signature,
        started_at: time(result.started_at),
        finished_at: time(result.finished_at),
    }
}

pub(super) fn refusal(refusal: pb::TaskRefusal) -> Refusal {
    let seen = refusal.highest_seen.map(|seen| format!(" (highest seen: {})", fence(seen))).unwrap_or_default();
    Refusal {
        task: refusal.task_id,
        fence: refusal.fence.map(fence).unwrap_or_default(),
        code: refusal.code,
        message: format!("{}{seen}", one_line(&refusal.message, TEXT_MAX)),
    }
}

pub(super) fn output(output: pb::TaskOutput) -> OutputPiece {
    OutputPiece {
        task: TaskId::from_text(output.task_id),
        fence: output.fence.map(fence).unwrap_or_default(),
        offset: output.offset,
        stream: if output.stream == "stderr" { "stderr" } else { "stdout" },
        data: output.data,
    }
}

/// A short word, whatever an agent makes of it.
pub(super) fn digest(text: &str) -> String {
    one_line(text, TEXT_MAX.min(128))
}

pub(super) fn heartbeat(beat: pb::Heartbeat, digest: &str) -> Heartbeat {
    Heartbeat {
        clock: time(beat.clock),
        inventory_digest: digest.to_owned(),
        inventory: beat.inventory.map(|inventory| self::inventory(inventory).to_string()),
        health: beat.health.as_ref().map(|of| (health(of, true).to_string(), health(of, false).to_string())),
    }
}

fn text(text: &str) -> String {
    one_line(text, TEXT_MAX)
}

fn inventory(inventory: pb::Inventory) -> Value {
    let disks = inventory.disks.iter().take(PARTS_MAX).map(|disk| {
        json!({
            "name": text(&disk.name), "model": text(&disk.model), "serial_number": text(&disk.serial_number),
            "bytes": disk.bytes, "rotational": disk.rotational,
        })
    });
    let nics = inventory.nics.iter().take(PARTS_MAX).map(|nic| {
        json!({
            "name": text(&nic.name), "mac_address": text(&nic.mac_address), "speed_mbps": nic.speed_mbps, "up": nic.up,
            "driver": text(&nic.driver),
        })
    });
    let gpus = inventory.gpus.iter().take(PARTS_MAX).map(|gpu| {
        json!({
            "index": gpu.index, "uuid": text(&gpu.uuid), "name": text(&gpu.name), "memory_bytes": gpu.memory_bytes,
            "serial_number": text(&gpu.serial_number), "pci_bus_id": text(&gpu.pci_bus_id), "mig": gpu.mig,
        })
    });
    json!({
        "facts": facts(inventory.facts.unwrap_or_default()).kept(),
        "os": text(&inventory.os),
        "kernel": text(&inventory.kernel),
        "architecture": text(&inventory.architecture),
        "cpu_sockets": inventory.cpu_sockets,
        "cpu_cores": inventory.cpu_cores,
        "cpu_threads": inventory.cpu_threads,
        "cpu_model": text(&inventory.cpu_model),
        "memory_bytes": inventory.memory_bytes,
        "disks": disks.collect::<Vec<_>>(),
        "nics": nics.collect::<Vec<_>>(),
        "gpus": gpus.collect::<Vec<_>>(),
        "gpu_driver": text(&inventory.gpu_driver),
        "gpu_note": text(&inventory.gpu_note),
    })
}

/// Without what always changes, it tells whether there is news.
fn health(health: &pb::Health, whole: bool) -> Value {
    let gpus = health.gpus.iter().take(PARTS_MAX).map(|gpu| {
        let mut told = json!({
            "index": gpu.index,
            "ecc_corrected": gpu.ecc_corrected,
            "ecc_uncorrected": gpu.ecc_uncorrected,
            "remapped_rows_corrected": gpu.remapped_rows_corrected,
            "remapped_rows_uncorrected": gpu.remapped_rows_uncorrected,
            "remapping_pending": gpu.remapping_pending,
            "remapping_failed": gpu.remapping_failed,
            "processes": gpu.processes,
        });
        if whole {
            told["temperature_c"] = json!(gpu.temperature_c);
            told["memory_used_bytes"] = json!(gpu.memory_used_bytes);
        }
        told
    });
    let probes = health.probes.iter().take(PROBES_MAX).map(|probe| {
        let mut told = json!({ "name": one_line(&probe.name, NAME_MAX), "ok": probe.ok });
        if whole {
            told["message"] = json!(text(&probe.message));
        }
        told
    });
    json!({ "gpus": gpus.collect::<Vec<_>>(), "probes": probes.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_is_no_news_and_an_error_of_memory_is() {
        let gpu = |heat, errors| pb::GpuHealth {
            temperature_c: Some(heat),
            memory_used_bytes: Some(u64::from(heat)),
            ecc_uncorrected: Some(errors),
            ..pb::GpuHealth::default()
        };
        let told = |heat, errors, whole| health(&pb::Health { gpus: vec![gpu(heat, errors)], probes: vec![] }, whole);
        assert_eq!(told(40, 0, false), told(80, 0, false));
        assert_ne!(told(40, 0, true), told(80, 0, true));
        assert_ne!(told(40, 0, false), told(40, 1, false));
    }

    #[test]
    fn an_inventory_of_any_size_is_kept_small() {
        let disk = pb::Disk { name: "\u{7}x".repeat(10_000), ..pb::Disk::default() };
        let large = pb::Inventory { disks: vec![disk; 10_000], ..pb::Inventory::default() };
        let kept = inventory(large);
        assert_eq!(kept["disks"].as_array().map(Vec::len), Some(PARTS_MAX));
        assert!(kept.to_string().len() < 1024 * 1024 && !kept.to_string().contains("\\u0007"));
    }

    #[test]
    fn clocks_that_show_anything_are_read() {
        for (seconds, nanos) in [(i64::MAX, i32::MAX), (i64::MIN, i32::MIN), (0, 0)] {
            assert!(time(Some(prost_types::Timestamp { seconds, nanos })).is_some());
        }
    }
}
