//! Walks at random: whatever is asked of it in whatever order, the simulator stays true to itself. Longer walks:
//! `MAAS_SIM_STEPS`; another one: `MAAS_SIM_SEED`.

use crate::caller::{Caller, now};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use testkit::maas_sim::log::Kind;
use testkit::maas_sim::{BmcMood, MaasSim, Options, Pace, Racked, Trouble, status};

const MACHINES: usize = 4;

/// From where to where a machine may go: what is known of MAAS allows, and where that says nothing, what we chose. It
/// was written beside the simulator and by the same hand: it finds slips, and does not prove that MAAS does the same.
const EDGES: &[(&[u8], &[u8])] = &[
    (&[0, 2, 4, 8], &[1]),
    (&[1], &[0, 2, 4, 21]),
    (&[4], &[10, 8, 17, 21]),
    (&[10], &[9, 4, 8, 12, 14, 17, 21]),
    (&[9], &[6, 11, 10, 12, 14, 8]),
    (&[6], &[12, 14, 8, 17, 21]),
    (&[11], &[12, 14, 8, 17, 21]),
    // a BMC that refuses puts it back where it was
    (&[12], &[4, 13, 6, 8, 9, 10, 11, 15]),
    (&[13], &[12, 14, 8, 17]),
    (&[14], &[12, 15, 8]),
    (&[15], &[12, 14, 8, 17, 21]),
    (&[8], &[4, 6, 12, 14, 17, 21]),
    (&[17], &[16, 18]),
    (&[16], &[19]),
    (&[18], &[17]),
    (&[19], &[2, 4, 6, 8, 10, 11, 13, 15, 18, 22]),
    (&[21], &[22, 2, 4, 6, 8, 10, 11, 15]),
    (&[22], &[4, 6, 17, 21]),
    (&[2], &[17, 21]),
    // its owner may call it broken wherever it is
    (&[1, 2, 12, 14, 16, 17, 18, 19, 21, 22], &[8]),
];

const OPS: &[(&str, &[(&str, &str)])] = &[
    ("commission", &[("testing_scripts", "none")]),
    ("commission", &[]),
    ("test", &[]),
    ("deploy", &[("distro_series", "noble"), ("enable_hw_sync", "true")]),
    ("deploy", &[("ephemeral_deploy", "true")]),
    ("release", &[]),
    ("release", &[("erase", "true")]),
    ("abort", &[]),
    ("power_on", &[]),
    ("power_off", &[]),
    ("rescue_mode", &[]),
    ("exit_rescue_mode", &[]),
    ("lock", &[]),
    ("unlock", &[]),
    ("mark_broken", &[]),
    ("mark_fixed", &[]),
    ("override_failed_testing", &[]),
    ("set_storage_layout", &[("storage_layout", "lvm")]),
    ("mount_special", &[("fstype", "tmpfs"), ("mount_point", "/scratch")]),
    ("set_workload_annotations", &[("mw", "1")]),
    ("nosuch", &[]),
];

const TROUBLES: &[Trouble] = &[
    Trouble::CommissioningFails,
    Trouble::CommissioningHangs,
    Trouble::TestsFail,
    Trouble::CurtinFails,
    Trouble::NoDatasource,
    Trouble::DeployHangs,
    Trouble::CloudInitFails,
    Trouble::EraseFails,
    Trouble::EraseHangs,
    Trouble::ReleaseHangs,
    Trouble::SyncLosesLinks,
];

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("fits") % sides
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(otherwise)
}

fn mac(number: usize) -> String {
    format!("52:54:00:00:01:{number:02x}")
}

async fn walk(pace: Pace, seed: u64, steps: u64) {
    let sim = MaasSim::start(Options { pace, time: Arc::new(now), ..Options::default() }).await;
    let mut dice = Dice(seed);
    for number in 0..MACHINES {
        sim.rack(Racked::new(&mac(number), &format!("192.0.2.{number}")));
    }
    let caller = Caller::new(&sim);
    for step in 0..steps {
        let number = dice.roll(MACHINES);
        let mac = mac(number);
        let Some(machine) = sim.with_mac(&mac).pop() else {
            assert_eq!(caller.create(&mac, &format!("192.0.2.{number}")).await.status, 200);
            continue;
        };
        let id = machine.system_id;
        let status_before = machine.status;
        match dice.roll(20) {
            0 => sim.trouble(&mac, TROUBLES[dice.roll(TROUBLES.len())], 1),
            1 => sim.bmc(&mac, [BmcMood::Dead, BmcMood::Refuses][dice.roll(2)]),
            2 | 3 => sim.bmc(&mac, BmcMood::Fine),
            4 => sim.advance(Duration::from_secs([60, 600, 7200][dice.roll(3)])),
            5 | 9 | 10 => sim.finish(&id),
            6 => drop(sim.step(&id)),
            7 if dice.roll(6) == 0 => drop(caller.ask("DELETE", &format!("machines/{id}/"), &[]).await),
            8 => {
                let nic = sim.json(&id).expect("a machine")["interface_set"][0]["id"].to_string();
                let form = [("mode", "AUTO"), ("subnet", "1"), ("force", "true")];
                caller.ask("POST", &format!("nodes/{id}/interfaces/{nic}/?op=link_subnet"), &form).await;
            }
            _ => {
                let (op, form) = OPS[dice.roll(OPS.len())];
                let answer = caller.op(&id, op, form).await;
                assert!([200, 400, 403, 409, 500, 503].contains(&answer.status), "{step}: {op}: {}", answer.status);
                // no refusal names no reason, but for those that are not told any
                assert!(answer.status == 403 || !answer.body.is_empty(), "{step}: {op} of {status_before}");
            }
        }
        if step % 10 == 0 {
            check(&sim, &caller, step).await;
        }
    }
    edges(&sim.log());
    let statuses: BTreeSet<u8> =
        sim.log().iter().filter_map(|e| if let Kind::Status { to, .. } = e.kind { Some(to) } else { None }).collect();
    if pace == Pace::Manual && steps >= 1000 {
        assert!(statuses.len() >= 15, "the walk has been about everywhere: {statuses:?}");
    }
}

async fn check(sim: &MaasSim, caller: &Caller<'_>, step: u64) {
    let list = caller.get("machines/").await;
    let mut addresses = BTreeSet::new();
    for shown in list.as_array().expect("a list") {
        let id = shown["system_id"].as_str().expect("an id");
        assert_eq!(Some(shown), sim.json(id).as_ref(), "{step}: what is shown is what is");
        for address in shown["ip_addresses"].as_array().expect("addresses") {
            // leases apart, which are given out in turn
            let last: u8 = address.as_str().and_then(|a| a.rsplit('.').next()?.parse().ok()).expect("an address");
            if !(100..200).contains(&last) {
                assert!(addresses.insert(address.to_string()), "{step}: {address} is there twice");
            }
        }
        let status = shown["status"].as_u64().expect("a status");
        let owned = !shown["owner"].is_null();
        let must = [6, 9, 10, 11, 12, 14].contains(&status);
        assert!(owned || !must, "{step}: {id} is {} and nobody's", shown["status_name"]);
        assert!(status != u64::from(status::READY) || !owned, "{step}: {id} is Ready and {}'s", shown["owner"]);
        assert_eq!(shown["boot_disk"].is_null(), shown["physicalblockdevice_set"] == Value::Array(Vec::new()));
    }
}

fn edges(sim_log: &[testkit::maas_sim::log::Entry]) {
    for entry in sim_log {
        if let Kind::Status { from, to, .. } = &entry.kind {
            let known = EDGES.iter().any(|(froms, tos)| froms.contains(from) && tos.contains(to));
            assert!(known, "{}: from {} to {}", entry.number, status::name(*from), status::name(*to));
        }
    }
}

#[tokio::test]
async fn it_stays_true_to_itself_whatever_is_asked() {
    let (seed, steps) = (number("MAAS_SIM_SEED", 1), number("MAAS_SIM_STEPS", 1200));
    walk(Pace::Manual, seed, steps).await;
    walk(Pace::Instant, seed + 1, steps / 2).await;
}
