//! What StartRun refuses: with the reason, and with nothing left behind.

use crate::fixture::{Api, ByHand, map, sim_machine, ssh, start, start_plan, step};
use crate::refusal::{Refusal, refused, refused_field};
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase;
use provider::{BootControl, Inspect, PowerControl, Provider, Providers};
use std::sync::Arc;
use testkit::fleet::{Database, Fleet, quick};
use tonic::{Code, Status};

/// G-21-10: a rejected request leaves no run and does not touch the machine.
async fn leaves_nothing(api: &Api, request: pb::StartRunRequest) -> Status {
    let id = request.machine_id.clone();
    let before = api.machine(&id).await;
    let status = api.try_start(request).await.expect_err("is refused");
    assert_eq!(api.list_runs("").await, Vec::<pb::Run>::new());
    assert_eq!(api.machine(&id).await, before);
    assert_eq!(api.effects(&id).len(), 0, "the provider was not asked");
    status
}

async fn refused_run(api: &Api, request: pb::StartRunRequest, code: Code, reason: &str) -> Refusal {
    refused(Err::<(), _>(leaves_nothing(api, request).await), code, reason)
}

// G-17-11, G-12-01
#[tokio::test]
async fn missing_fields_are_named() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    let field = |status| refused_field(Err::<(), _>(status), "request_id");
    field(leaves_nothing(&api, start("m-1", "REPAVE", "")).await);
    field(leaves_nothing(&api, start("m-1", "REPAVE", &"r".repeat(129))).await);
    field(leaves_nothing(&api, start("m-1", "REPAVE", "a\nb")).await);
    let neither = leaves_nothing(&api, start("m-1", "", "r1")).await;
    refused_field(Err::<(), _>(neither), "type").says("plan_id");
}

// G-17-03; CONTRACT: an unknown run type is INVALID_ARGUMENT
#[tokio::test]
async fn an_unknown_type_is_refused_and_the_known_are_listed() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    for bad in ["DANCE", "repave", "REPAVE ", "JOIN;"] {
        let refusal = refused_run(&api, start("m-1", bad, "r1"), Code::InvalidArgument, "UNKNOWN_RUN_TYPE").await;
        assert_eq!(refusal.allowed(), ["REPAVE", "RMA", "REBOOT", "UPGRADE", "NET_RECONFIG"]);
        assert_eq!(refusal.field, "type");
    }
}

// G-21-03
#[tokio::test]
async fn an_unknown_plan_is_not_found() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    refused_run(&api, start_plan("m-1", "p-404", "r1"), Code::NotFound, "PLAN_NOT_FOUND").await.says("p-404");
    let both = pb::StartRunRequest { plan_id: "p-404".into(), ..start("m-1", "REPAVE", "r1") };
    refused_run(&api, both, Code::NotFound, "PLAN_NOT_FOUND").await;
}

// G-6-07, G-6-09
#[tokio::test]
async fn a_retired_machine_runs_nothing() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    api.set_phase("m-1", Phase::Retired).await;
    for kind in ["REPAVE", "RMA", "REBOOT", "UPGRADE", "NET_RECONFIG"] {
        let request = start("m-1", kind, kind);
        refused_run(&api, request, Code::FailedPrecondition, "PHASE_FORBIDS_RUN").await.says("RETIRED");
    }
}

// T-32, DESIGN section 7: from any phase but RETIRED and RMA (RMA type excepted)
#[tokio::test]
async fn a_machine_in_rma_runs_only_rma() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    api.set_phase("m-1", Phase::Rma).await;
    for kind in ["REPAVE", "REBOOT", "UPGRADE", "NET_RECONFIG"] {
        let request = start("m-1", kind, kind);
        refused_run(&api, request, Code::FailedPrecondition, "PHASE_FORBIDS_RUN").await.says("RMA");
    }
    let run = api.carry_out(start("m-1", "RMA", "rma")).await;
    assert_eq!(run.phase(), pb::run::Phase::Succeeded);
    assert_eq!(api.phase("m-1").await, Phase::Rma);
}

// T-32: allowed from MAINTENANCE, whether drained or not
#[tokio::test]
async fn a_machine_in_maintenance_may_be_repaved() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    api.set_phase("m-1", Phase::Ready).await;
    api.set_phase("m-1", Phase::Maintenance).await;
    let request = pb::StartRunRequest { override_reason: "said so".into(), ..start("m-1", "REPAVE", "r1") };
    assert_eq!(api.carry_out(request).await.phase(), pb::run::Phase::Succeeded);
    assert_eq!(api.phase("m-1").await, Phase::Ready);
}

// G-11-01, G-21-10
#[tokio::test]
async fn a_machine_without_a_known_provider_is_refused() {
    let api = Api::new().await;
    api.register(pb::Machine { machine_id: "none".into(), ..Default::default() }).await;
    let mut other = sim_machine("other", &[]);
    other.spec.as_mut().expect("a spec").provider = "dc-9".into();
    api.register(other).await;
    let refusal = refused_run(&api, start("none", "REBOOT", "r"), Code::FailedPrecondition, "PROVIDER_UNKNOWN").await;
    assert_eq!(refusal.says("spec.provider").allowed(), ["sim"]);
    refused_run(&api, start("other", "REBOOT", "r"), Code::FailedPrecondition, "PROVIDER_UNKNOWN").await.says("dc-9");
}

// T-41, CONTRACT "Providers": label `provider` is read when the field is empty
#[tokio::test]
async fn the_provider_may_stand_in_a_label() {
    let api = Api::new().await;
    let labels = map(&[("provider", "sim"), ("sim.latency_ms", "0")]);
    api.register(pb::Machine { machine_id: "m-1".into(), labels, ..Default::default() }).await;
    assert_eq!(api.carry_out(start("m-1", "REBOOT", "r1")).await.phase(), pb::run::Phase::Succeeded);
    let mut both = sim_machine("m-2", &[("provider", "sim")]);
    both.spec.as_mut().expect("a spec").provider = "dc-9".into();
    api.register(both).await;
    let refusal = api.try_start(start("m-2", "REBOOT", "r1")).await;
    refused(refusal, Code::FailedPrecondition, "PROVIDER_UNKNOWN").says("dc-9");
}

/// The simulated fleet, seen through a controller that can only power and boot.
struct Narrow(Arc<sim::SimFleet>);

impl Provider for Narrow {
    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self.0.as_ref())
    }
    fn power(&self) -> Option<&dyn PowerControl> {
        Some(self.0.as_ref())
    }
    fn boot(&self) -> Option<&dyn BootControl> {
        Some(self.0.as_ref())
    }
}

// G-10-08: a step whose capability the provider lacks is refused before execution, clearly
#[tokio::test]
async fn a_capability_that_the_provider_lacks_is_refused_before_anything_begins() {
    let fleet = Fleet::new(Database::Sqlite, 1);
    let providers = Providers::default().with("narrow", Arc::new(Narrow(fleet.sim.clone())));
    let engine = fleet.engine_with(quick("test"), providers.clone(), None);
    let service =
        service::Service::new(fleet.store.clone(), engine.clone(), providers, service::CallerLimits::default())
            .await
            .expect("a service");
    engine.start().await.expect("the engine starts");
    let server = ByHand::serve(service).await;
    let (mut machines, mut runs) = (server.machines().await, server.runs().await);
    let mut machine = sim_machine("m-1", &[]);
    machine.spec.as_mut().expect("a spec").provider = "narrow".into();
    let request = pb::RegisterMachineRequest { machine: Some(machine) };
    let before = machines.register_machine(request).await.expect("registers").into_inner();
    for (kind, capability) in
        [("REPAVE", "image"), ("RMA", "cluster"), ("UPGRADE", "exec"), ("NET_RECONFIG", "network")]
    {
        let refusal =
            refused(runs.start_run(start("m-1", kind, kind)).await, Code::FailedPrecondition, "CAPABILITY_MISSING");
        assert_eq!(refusal.says("narrow").details["capability"], capability, "{kind}");
    }
    let get = pb::GetMachineRequest { machine_id: "m-1".into() };
    assert_eq!(machines.get_machine(get).await.expect("is there").into_inner(), before);
    let listed = runs.list_runs(pb::ListRunsRequest::default()).await.expect("lists").into_inner();
    assert_eq!(listed.runs, vec![], "no run was stored");
    assert_eq!(fleet.sim.effects().expect("a journal"), vec![]);
    runs.start_run(start("m-1", "REBOOT", "possible")).await.expect("what it can do, it does");
}

// CONTRACT: parameters override same-named payload fields; a name that no step has is refused
#[tokio::test]
async fn an_unknown_parameter_is_refused() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    let with = |name: &str, value: &str| pb::StartRunRequest {
        parameters: map(&[(name, value)]),
        ..start("m-1", "REPAVE", "r1")
    };
    let refusal = leaves_nothing(&api, with("imgae", "x")).await;
    refused_field(Err::<(), _>(refusal), "parameters.imgae").says("default-repave");
    let refusal = leaves_nothing(&api, with("persistent", "perhaps")).await;
    refused_field(Err::<(), _>(refusal), "parameters.persistent");
    let refusal = leaves_nothing(&api, with("image", "")).await;
    assert_eq!(refusal.code(), Code::InvalidArgument);
    let refusal = leaves_nothing(&api, with("image", &"x".repeat(9000))).await;
    refused_field(Err::<(), _>(refusal), "parameters.image");
    let many = (0..65).map(|i| (format!("p{i}"), String::new())).collect();
    let refusal = leaves_nothing(&api, pb::StartRunRequest { parameters: many, ..start("m-1", "REPAVE", "r1") }).await;
    refused_field(Err::<(), _>(refusal), "parameters");
}

// a plan that needs a cluster, on a machine that has none
#[tokio::test]
async fn a_step_without_a_cluster_is_refused() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    let request = start_plan("m-1", "default-repave-join", "r1");
    let refusal = refused_run(&api, request, Code::FailedPrecondition, "CLUSTER_MISSING").await;
    refusal.says("target_cluster_ref");
}

// CONTRACT: parameters override same-named payload fields
#[tokio::test]
async fn parameters_override_payload_fields() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    let parameters = map(&[("image", "debian-13"), ("user_data_ref", "ud-1"), ("cluster_ref", "cluster-p")]);
    let run = api.carry_out(pb::StartRunRequest { parameters, ..start("m-1", "REPAVE", "r1") }).await;
    assert_eq!((run.phase(), run.plan_id.as_str()), (pb::run::Phase::Succeeded, "default-repave-join"));
    let detail = |kind: &str| api.effects("m-1").into_iter().find(|e| e.kind == kind).expect(kind).detail;
    assert_eq!(detail("repave_started")["image"], "debian-13");
    assert_eq!(detail("repave_started")["user_data_ref"], "ud-1");
    assert_eq!(detail("joined")["cluster"], "cluster-p");
    api.create_plan("say", vec![step("say", ssh("true", &["x"]))]).await;
    let other = pb::StartRunRequest { parameters: map(&[("command", "echo")]), ..start_plan("m-1", "say", "r2") };
    api.carry_out(other).await;
    assert_eq!(detail("exec_started")["command"], "echo");
    let net = pb::StartRunRequest { parameters: map(&[("mtu", "9000")]), ..start("m-1", "NET_RECONFIG", "r3") };
    api.carry_out(net).await;
    assert_eq!(detail("net_applied")["parameters"]["mtu"], "9000");
}
