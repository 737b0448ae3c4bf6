//! Boot nodes for the section that measures network boot: as many as there are machines, each linked to one, brought
//! by the store's own transitions to where fleets are: most installed long ago, some verified by nobody yet, some
//! about to be installed. What a machine says of itself when it boots is what is stored of it.

use crate::Outcome;
use crate::ground::{Ground, Kind, id};
use domain::boot_node::{BOOTED, BootNode, BootState, Claims, SET_STATE};
use domain::boot_workflow::BootWorkflow;
use domain::install_order::{InstallOrder, OrderTask};
use domain::install_report::Said;
use domain::{BootNodeId, FindingId, MacAddress, MachineId, OrderId, Timestamp};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use store::install_order::{self, NewOrder};
use store::{Ambient, Caller, Cause, Options, Store, SystemAmbient, Tx, TxResult, boot_node, boot_workflow};
use tokio::time::Instant;
use workflow::install::{self, Told};

const WORKFLOW: &str = "bench";
/// Brought by one closure, which may run two thousand statements.
const TOGETHER: usize = 64;
/// Of so many one waits for its installer, and two were not verified yet.
const EACH: usize = 10;
/// Since when nobody has heard of them.
const LONG: Duration = Duration::from_secs(3600);
/// What an installer says in the course of an installation.
const LINES: usize = 20;

/// Where the node of that number is brought to.
pub fn state(n: usize) -> BootState {
    match n % EACH {
        0 => BootState::Pending,
        1 | 2 => BootState::Installed,
        _ => BootState::Active,
    }
}

pub fn mac(n: usize) -> String {
    format!("02:00:00:{:02x}:{:02x}:{:02x}", n >> 16 & 0xff, n >> 8 & 0xff, n & 0xff)
}

fn claims(n: usize) -> Claims {
    Claims {
        hostname: format!("bench-{n:06}"),
        ip_address: format!("10.{}.{}.{}", n >> 16 & 0xff, n >> 8 & 0xff, n & 0xff),
        vendor: "Bench".to_owned(),
        model: "B-1000".to_owned(),
        serial_number: format!("BENCH{n:06}"),
        system_uuid: format!("6d696c6c-7772-4967-8000-{n:012x}"),
        arch: "x86_64".to_owned(),
        boot_mode: "bios".to_owned(),
    }
}

/// What iPXE asks with.
pub fn question(n: usize) -> String {
    let c = claims(n);
    format!(
        "/api/v1/boot?mac={}&uuid={}&serial={}&vendor={}&product={}&arch={}&platform=pcbios",
        mac(n),
        c.system_uuid,
        c.serial_number,
        c.vendor,
        c.model,
        c.arch
    )
}

/// As a discovery boot reports it.
fn inventory(n: usize) -> String {
    let disk = |name: &str| json!({ "name": name, "model": "BENCH NVMe", "serial": format!("D{n:06}{name}"), "bytes": 1_920_383_410_176_u64, "rotational": false, "removable": false });
    let card = |k: usize| json!({ "name": format!("eno{k}"), "mac": mac(n), "driver": "mlx5_core", "link": true, "speed": 25_000 });
    json!({
        "dmi": { "vendor": "Bench", "model": "B-1000", "serial": format!("BENCH{n:06}"), "bios": "2.4.1", "board": "B1" },
        "cpus": 64, "memory_bytes": 549_755_813_888_u64, "arch": "x86_64",
        "disks": [disk("nvme0n1"), disk("nvme1n1")], "nics": [card(1), card(2)], "gpus": [],
    })
    .to_string()
}

fn told(said: Said, finding: &FindingId) -> Told {
    let lines = match said {
        Said::Complete => (0..LINES).map(|n| format!("step {n}: written, read back and compared")).collect(),
        Said::Started | Said::Progress | Said::Failed => Vec::new(),
    };
    let (error, evidence) = (String::new(), String::new());
    Told { said: Some(said), progress: None, error, lines, evidence, finding: finding.clone(), promote: false }
}

/// What one is brought with: a closure of the store may run twice.
struct New {
    n: usize,
    id: BootNodeId,
    order: OrderId,
    finding: FindingId,
}

fn bring(tx: &mut Tx<'_>, new: &New) -> TxResult<()> {
    let now: Timestamp = tx.now();
    let mac = MacAddress::from_text(mac(new.n));
    let fresh = BootNode {
        workflow_id: WORKFLOW.to_owned(),
        claims: claims(new.n),
        machine_id: Some(MachineId::from_text(id(new.n))),
        last_seen: Some(now.minus(LONG)),
        ..BootNode::new(new.id.clone(), mac.clone(), now)
    };
    let found = boot_node::insert(tx, &fresh, &Cause::node(mac.as_str(), BOOTED, ""))?;
    let by = Cause::operator("bench", SET_STATE, "");
    let approved = BootNode { state: BootState::Pending, inventory: inventory(new.n), ..found.clone() };
    let approved = boot_node::move_to(tx, &found, &approved, &json!({}), &by, |_| Ok(()))?;
    let order = NewOrder {
        id: new.order.clone(),
        task: OrderTask::Install,
        workflow_id: WORKFLOW.to_owned(),
        image: String::new(),
        user_data_ref: String::new(),
        run: None,
        operation: String::new(),
    };
    let ordered = install::order(tx, &approved, &order, &by)?;
    let to = state(new.n);
    if to == BootState::Pending {
        // it was given its installer before, and came to nothing with it
        return match &ordered.order {
            Some(order) => install_order::save(tx, &InstallOrder { offered_at: Some(now), ..order.clone() }),
            None => Ok(()),
        };
    }
    let (begun, _) = install::report(tx, &ordered, 1, &told(Said::Started, &new.finding))?;
    let (installed, _) = install::report(tx, &begun, 1, &told(Said::Complete, &new.finding))?;
    // it has come up from its disk since
    if let Some(order) = &installed.order {
        install_order::save(tx, &InstallOrder { disk_boot_at: Some(now), ..order.clone() })?;
    }
    if to == BootState::Active {
        let active = BootNode { state: to, ..installed.clone() };
        boot_node::move_to(tx, &installed, &active, &json!({}), &by, |_| Ok(()))?;
    }
    Ok(())
}

/// Brings one for each machine of a ground whose server is stopped.
pub async fn bring_all(ground: &Ground) -> Outcome<()> {
    if ground.kind != Kind::Sqlite {
        return Err("they are brought into a file, and carried over from there".into());
    }
    let begun = Instant::now();
    let ambient = Arc::new(SystemAmbient::new());
    let store = Store::open(&Options::Sqlite(ground.database_file()), ambient.clone())?;
    let by = Caller::new("bench");
    let workflow = BootWorkflow {
        id: WORKFLOW.to_owned(),
        name: WORKFLOW.to_owned(),
        kernel: "installer/vmlinuz".to_owned(),
        initrd: "installer/initrd.gz".to_owned(),
        cmdline: "console=ttyS0 quiet".to_owned(),
        image: "bench.raw".to_owned(),
        arch: "x86_64".to_owned(),
        disk: "auto".to_owned(),
        created_by: "bench".to_owned(),
        ..BootWorkflow::default()
    };
    store.write(&by, WORKFLOW, move |tx| boot_workflow::insert(tx, &workflow)).await?;
    for first in (0..ground.machines).step_by(TOGETHER) {
        let numbers = first..ground.machines.min(first + TOGETHER);
        let new = numbers.map(|n| New {
            n,
            id: BootNodeId::generate(ambient.uuid()),
            order: OrderId::generate(ambient.uuid()),
            finding: FindingId::generate(ambient.uuid()),
        });
        let new: Vec<New> = new.collect();
        store.write(&by, WORKFLOW, move |tx| new.iter().try_for_each(|new| bring(tx, new))).await?;
    }
    tokio::task::spawn_blocking(move || store.close()).await?;
    println!("    {} boot nodes brought in {:.1} s", ground.machines, begun.elapsed().as_secs_f64());
    Ok(())
}
