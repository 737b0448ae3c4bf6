//! What a person does to a machine and a run that begins meanwhile: one of them has the machine, the other is told who,
//! and nobody has it for longer than it takes.

use crate::callers::root;
use crate::fixture::{Api, cluster_machine, patient, start, within};
use crate::hardware::put_into_cluster;
use crate::refusal::refused;
use domain::MachineId;
use futures::future::join_all;
use proto::millwright::v1 as mw;
use std::time::Duration;
use store::{Caller, hold};
use testkit::fleet::{Database, eventually};
use tonic::Code;

fn power(id: &str, action: &str) -> mw::SetPowerRequest {
    mw::SetPowerRequest { machine_id: id.into(), action: action.into(), reason: "a test".into() }
}

async fn held_by(api: &Api, id: &str) -> Option<String> {
    let key = MachineId::from_text(id);
    let hold = api.server.fleet.store.read(move |tx| hold::of(tx, &key)).await.expect("reads");
    hold.map(|hold| hold.what)
}

// the controller is at it, and has not answered yet: whoever comes now would meet it half-way
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_run_begins_while_somebody_does_something_to_the_machine() {
    for database in [Database::Sqlite, Database::Postgres] {
        let api = Api::with(database, patient()).await;
        let who = root(&api).await;
        api.sim("m-1", &[("sim.fault.reboot", "slow:2000")]).await;
        let mut client = who.hardware();
        let asking = tokio::spawn(async move { client.set_power(power("m-1", "cycle")).await });
        eventually("it has begun", || async { held_by(&api, "m-1").await }).await;
        let refusal = refused(api.try_start(start("m-1", "REBOOT", "r1")).await, Code::Aborted, "MACHINE_HELD");
        assert!(refusal.message.contains("power cycle") && refusal.message.contains("try again"), "{refusal:?}");
        assert_eq!((refusal.details["held_by"].as_str(), refusal.allowed()), (who.token.name.as_str(), vec!["wait"]));
        refused(who.hardware().set_power(power("m-1", "force-off")).await, Code::Aborted, "MACHINE_HELD");
        // that is what somebody who asks why is told
        let why = who.explain().explain(mw::ExplainRequest { id: "m-1".into() }).await.expect("tells").into_inner();
        assert!(why.held_by.contains(&who.token.name) && why.held_by.contains("power cycle"), "{}", why.held_by);
        let reboot = why.actions.iter().find(|a| a.name == "start REBOOT").expect("an action");
        assert!(!reboot.allowed && reboot.why_not.contains("held by"), "{reboot:?}");
        // to find the machine is harmless
        let lamp = mw::IdentifyMachineRequest { machine_id: "m-1".into(), on: true };
        who.hardware().identify_machine(lamp).await.expect("is found");
        within("it ends", asking).await.expect("no panic").expect("cycles");
        assert_eq!(held_by(&api, "m-1").await, None, "and nothing is held when it is answered");
        assert_eq!(api.count_effects("m-1", "reset"), 1);
        let run = api.start(start("m-1", "REBOOT", "r1")).await;
        assert_eq!(api.status("m-1").await.active_run_id, run.run_id);
    }
}

// what is done in its cluster, too, and also what is refused or not answered gives the machine back
#[tokio::test]
async fn whatever_becomes_of_an_act_the_machine_is_free_again() {
    let api = Api::new().await;
    let who = root(&api).await;
    api.register(cluster_machine("m-1", &[])).await;
    put_into_cluster(&api, "m-1").await;
    let drain = mw::DrainMachineRequest { machine_id: "m-1".into(), ..Default::default() };
    who.clusters().drain_machine(drain).await.expect("a pass");
    api.sim("m-2", &[("sim.fault.reboot", "fail:1")]).await;
    refused(who.hardware().set_power(power("m-2", "cycle")).await, Code::FailedPrecondition, "PROVIDER_REFUSED");
    api.sim("m-3", &[("sim.fault.reboot", "drop:1")]).await;
    refused(who.hardware().set_power(power("m-3", "cycle")).await, Code::Unavailable, "PROVIDER_SILENT");
    for id in ["m-1", "m-2", "m-3"] {
        assert_eq!(held_by(&api, id).await, None, "{id}");
    }
}

// the server that took it is gone
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_nobody_gives_up_ends_by_itself() {
    for database in [Database::Sqlite, Database::Postgres] {
        let api = Api::with(database, patient()).await;
        api.sim("m-1", &[]).await;
        let left = |tx: &mut store::Tx<'_>| {
            let lasts = Duration::from_secs(5);
            hold::take(tx, &MachineId::from_text("m-1"), "act-of-a-dead-server", "power cycle", "alice", lasts)
        };
        api.server.fleet.store.write(&Caller::new("test"), "m-1", left).await.expect("held");
        refused(api.try_start(start("m-1", "REBOOT", "r1")).await, Code::Aborted, "MACHINE_HELD").says("alice");
        let run = eventually("it is free", || async { api.try_start(start("m-1", "REBOOT", "r1")).await.ok() }).await;
        assert_eq!(api.status("m-1").await.active_run_id, run.run_id);
    }
}

// begun in the same moment, by many: never both
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_run_and_an_act_that_begin_at_once_one_is_told_of_the_other() {
    for database in [Database::Sqlite, Database::Postgres] {
        let api = Api::with(database, patient()).await;
        let who = root(&api).await;
        let ids: Vec<String> = (0..12).map(|n| format!("m-{n}")).collect();
        for id in &ids {
            // whoever is first is at it for so long that the other one meets it
            api.sim(id, &[("sim.fault.reboot", "slow:1500")]).await;
        }
        let race = |id: &String| {
            let (api, who, id) = (&api, who.clone(), id.clone());
            async move {
                let mut hardware = who.hardware();
                tokio::join!(hardware.set_power(power(&id, "cycle")), api.try_start(start(&id, "REBOOT", "r")))
            }
        };
        for (id, (act, run)) in ids.iter().zip(join_all(ids.iter().map(race)).await) {
            match (act, run) {
                (Ok(_), Err(no)) => drop(refused::<()>(Err(no), Code::Aborted, "MACHINE_HELD")),
                (Err(no), Ok(_)) => drop(refused::<()>(Err(no), Code::FailedPrecondition, "ACTIVE_RUN")),
                other => panic!("{id}: {other:?}"),
            }
        }
    }
}
