//! Clients as there are in life, each with work of its own: some start runs and follow them, some move a
//! machine by hand, one makes tokens and takes them back. All of them repeat what was not answered, and
//! write down what was.

use crate::dice::Dice;
use crate::ledger::{Ledger, ToldMachine};
use crate::site::Crowd;
use crate::wire::{Wire, keyed};
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_service_client::MachineServiceClient;
use proto::baremetal::v1::machine_status::Phase;
use proto::baremetal::v1::plan_service_client::PlanServiceClient;
use proto::baremetal::v1::run_service_client::RunServiceClient;
use proto::baremetal::v1::step::Kind;
use proto::millwright::v1 as mw;
use proto::millwright::v1::token_service_client::TokenServiceClient;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The plan of every run here: each kind of act that shows when it is done twice.
pub const PLAN: &str = "tour";
/// A parameter of its first step, which the fleet writes down: by it an effect is known as its request's.
pub const TAG: &str = "request";
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What all clients share.
pub struct Load {
    pub ledger: Ledger,
    /// No new work is begun; what is under way is seen to its end.
    pub enough: CancellationToken,
}

impl Load {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { ledger: Ledger::default(), enough: CancellationToken::new() })
    }
}

pub async fn make_plan(wire: &Wire) {
    let step = |name: &str, kind| pb::Step { name: name.into(), kind: Some(kind), ..pb::Step::default() };
    let command = pb::SshCommand { command: "true".into(), ..pb::SshCommand::default() };
    let repave = pb::RepaveImage { image: "image".into(), ..pb::RepaveImage::default() };
    let steps = vec![
        step("tag", Kind::Net(pb::NetReconfig::default())),
        step("command", Kind::Ssh(command)),
        step("netboot", Kind::Netboot(pb::SetNetboot { mode: "PXE".into(), persistent: false })),
        step("repave", Kind::Repave(repave)),
        step("reboot", Kind::Reboot(pb::Reboot { mode: "bmc".into() })),
    ];
    let plan = pb::Plan { plan_id: PLAN.into(), display_name: "Everything once".into(), steps };
    let made = wire.ask("CreatePlan", |d| {
        let request = pb::CreatePlanRequest { plan: Some(plan.clone()) };
        async move { PlanServiceClient::new(d).create_plan(keyed(request, "the-plan")).await }
    });
    made.await.expect("a plan");
}

async fn register(wire: &Wire, id: &str, provider: &str, labels: &[(&str, String)]) -> pb::Machine {
    let machine = pb::Machine {
        machine_id: id.into(),
        labels: labels.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect(),
        spec: Some(pb::MachineSpec { provider: provider.into(), ..pb::MachineSpec::default() }),
        ..pb::Machine::default()
    };
    let registered = wire.ask("RegisterMachine", |d| {
        let request = pb::RegisterMachineRequest { machine: Some(machine.clone()) };
        let key = format!("register {id}");
        async move { MachineServiceClient::new(d).register_machine(keyed(request, &key)).await }
    });
    registered.await.unwrap_or_else(|e| panic!("registering {id}: {e:?}"))
}

pub async fn start_run(wire: &Wire, machine: &str, request_id: &str) -> pb::Run {
    let run = wire.ask("StartRun", |d| {
        let request = pb::StartRunRequest {
            request_id: request_id.to_owned(),
            machine_id: machine.to_owned(),
            plan_id: PLAN.into(),
            parameters: BTreeMap::from([(TAG.to_owned(), request_id.to_owned())]),
            ..pb::StartRunRequest::default()
        };
        async move { RunServiceClient::new(d).start_run(request).await }
    });
    run.await.unwrap_or_else(|e| panic!("starting {request_id}: {e:?}"))
}

/// Registers a simulated machine that behaves as its labels say.
pub async fn register_simulated(wire: &Wire, machine: &str, labels: &[(&str, String)]) {
    register(wire, machine, "sim", labels).await;
}

/// Starts one run after the other on a machine of its own, and now and then thinks better of it.
pub async fn runner(load: Arc<Load>, wire: Wire, mut dice: Dice, machine: String, crowd: Crowd) {
    let latency = (20 + dice.up_to(60)).to_string();
    let labels = [("sim.latency_ms", latency), ("sim.fault.ssh", format!("slow:{}", crowd.command_ms))];
    register_simulated(&wire, &machine, &labels).await;
    for round in 0.. {
        if load.enough.is_cancelled() {
            return;
        }
        let request_id = format!("{machine}-{round}");
        let run = start_run(&wire, &machine, &request_id).await;
        load.ledger.told_run(&request_id, &run);
        // in looks; most are let be
        let mut cancel_in = dice.percent(crowd.cancel_percent).then(|| dice.up_to(8));
        loop {
            if load.ledger.book().runs[&request_id].ended_at.is_some() {
                break;
            }
            if cancel_in.is_none() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            match &mut cancel_in {
                Some(0) => {
                    cancel_in = None;
                    cancel(&load, &wire, &request_id, &run.run_id).await;
                }
                Some(looks) => {
                    *looks -= 1;
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                None => {}
            }
            load.ledger.told_run(&request_id, &get_run(&wire, &run.run_id).await);
        }
    }
}

pub async fn get_run(wire: &Wire, run_id: &str) -> pb::Run {
    let run = wire.ask("GetRun", |d| {
        let request = pb::GetRunRequest { run_id: run_id.to_owned() };
        async move { RunServiceClient::new(d).get_run(request).await }
    });
    run.await.unwrap_or_else(|e| panic!("a run that was answered for is lost: {e:?}"))
}

async fn cancel(load: &Load, wire: &Wire, request_id: &str, run_id: &str) {
    load.ledger.asks_to_cancel(request_id);
    let canceled = wire.ask("CancelRun", |d| {
        let request = pb::CancelRunRequest { run_id: run_id.to_owned() };
        async move { RunServiceClient::new(d).cancel_run(request).await }
    });
    match canceled.await {
        Ok(run) => load.ledger.told_run(request_id, &run),
        Err(e) => assert_eq!(e.reason, "RUN_ALREADY_ENDED", "{e:?}"),
    }
}

/// Moves a machine to and fro, and counts on one of its labels, checking its version. Nobody else changes
/// it, so that every change raises the version by exactly one, however often it had to be asked for.
pub async fn mover(load: Arc<Load>, wire: Wire, machine: String) {
    // without a provider, so that nobody looks at it and moves it
    let mut version = register(&wire, &machine, "", &[]).await.version;
    let (mut phase, mut count) = (Phase::FactoryReady, String::new());
    for n in 1u64.. {
        if load.enough.is_cancelled() {
            return;
        }
        let key = format!("{machine} {n}");
        let changed = if n.is_multiple_of(3) {
            count = n.to_string();
            let asked = pb::Machine {
                machine_id: machine.clone(),
                labels: BTreeMap::from([("count".to_owned(), count.clone())]),
                version,
                ..pb::Machine::default()
            };
            let mask = prost_types::FieldMask { paths: vec!["labels.count".to_owned()] };
            wire.ask("UpdateMachine", |d| {
                let request =
                    pb::UpdateMachineRequest { machine: Some(asked.clone()), update_mask: Some(mask.clone()) };
                let request = keyed(request, &key);
                async move { MachineServiceClient::new(d).update_machine(request).await }
            })
            .await
        } else {
            phase = if phase == Phase::Ready { Phase::Maintenance } else { Phase::Ready };
            wire.ask("SetPhase", |d| {
                let request =
                    pb::SetPhaseRequest { machine_id: machine.clone(), phase: phase.into(), reason: key.clone() };
                let request = keyed(request, &key);
                async move { MachineServiceClient::new(d).set_phase(request).await }
            })
            .await
        };
        let changed = changed.unwrap_or_else(|e| panic!("{key}: {e:?}"));
        version += 1;
        assert_eq!(changed.version, version, "{key} was made once: {changed:?}");
        load.ledger.told_machine(&machine, ToldMachine { version, phase: phase.into(), count: count.clone() });
        tokio::time::sleep(LOOK_EVERY / 3).await;
    }
}

/// Makes tokens, and takes every other one back.
pub async fn token_maker(load: Arc<Load>, wire: Wire) {
    for n in 0u64.. {
        if load.enough.is_cancelled() {
            return;
        }
        let made = wire.ask("CreateToken", |d| {
            let request =
                mw::CreateTokenRequest { name: format!("t-{n}"), role: "viewer".into(), ..Default::default() };
            let request = keyed(request, &format!("token {n}"));
            async move { TokenServiceClient::new(d).create_token(request).await }
        });
        let made = made.await.unwrap_or_else(|e| panic!("making token {n}: {e:?}"));
        // a secret whose answer was lost is shown to nobody again
        if !made.secret.is_empty() {
            let at = load.ledger.told_token(made.secret);
            if n.is_multiple_of(2) {
                load.ledger.asks_to_revoke(at);
                let token_id = made.token.map(|t| t.token_id).unwrap_or_default();
                let revoked = wire.ask("RevokeToken", |d| {
                    let request = keyed(mw::RevokeTokenRequest { token_id: token_id.clone() }, &format!("back {n}"));
                    async move { TokenServiceClient::new(d).revoke_token(request).await }
                });
                revoked.await.unwrap_or_else(|e| panic!("revoking token {n}: {e:?}"));
                load.ledger.told_revoked(at);
            }
        }
        tokio::time::sleep(LOOK_EVERY * 3).await;
    }
}
