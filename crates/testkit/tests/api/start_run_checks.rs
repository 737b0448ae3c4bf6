//! The order of StartRun's checks: fields, existence, replay, active run, phase, plan, provider. Each
//! test breaks two rules at once and sees which one speaks.

use crate::fixture::{Api, map, on_both, start, start_plan};
use crate::refusal::{refused, refused_field};
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase;
use tonic::Code;

// G-17-11: a request that makes no sense is refused before anything is looked up
#[tokio::test]
async fn malformed_fields_come_before_existence() {
    let api = Api::new().await;
    refused_field(api.try_start(start("m-404", "REPAVE", "")).await, "request_id");
    refused_field(api.try_start(start("", "REPAVE", "r1")).await, "machine_id");
    refused_field(api.try_start(start("m-404", "", "r1")).await, "type");
    refused(api.try_start(start("m-404", "DANCE", "r1")).await, Code::InvalidArgument, "UNKNOWN_RUN_TYPE");
}

// DESIGN section 7: existence first, whatever the request id was used for elsewhere
on_both!(existence_comes_before_replay, |api| async move {
    api.sim("m-1", &[]).await;
    api.carry_out(start("m-1", "REBOOT", "req-1")).await;
    refused(api.try_start(start("m-404", "REBOOT", "req-1")).await, Code::NotFound, "MACHINE_NOT_FOUND");
    refused(api.try_start(start_plan("m-404", "p-404", "req-2")).await, Code::NotFound, "MACHINE_NOT_FOUND");
});

// G-21-08
on_both!(replay_comes_before_the_active_run, |api| async move {
    api.sim("m-1", &[("sim.fault.net", "hang")]).await;
    let first = api.carry_out(start("m-1", "REBOOT", "req-1")).await;
    let request = pb::StartRunRequest { parameters: map(&[("mtu", "9000")]), ..start("m-1", "NET_RECONFIG", "req-2") };
    let active = api.start(request).await;
    assert_eq!(api.start(start("m-1", "REBOOT", "req-1")).await, first, "an old request, while another run is active");
    let reused = api.try_start(start("m-1", "REPAVE", "req-1")).await;
    refused(reused, Code::AlreadyExists, "REQUEST_ID_REUSED");
    let refusal = refused(api.try_start(start("m-1", "REBOOT", "req-3")).await, Code::FailedPrecondition, "ACTIVE_RUN");
    assert_eq!(refusal.details["run_id"], active.run_id);
});

// DESIGN section 7
on_both!(the_active_run_comes_before_the_plan, |api| async move {
    api.sim("m-1", &[("sim.fault.reboot", "hang")]).await;
    api.start(start("m-1", "REBOOT", "req-1")).await;
    let unknown = api.try_start(start_plan("m-1", "p-404", "req-2")).await;
    refused(unknown, Code::FailedPrecondition, "ACTIVE_RUN");
});

// a machine that may not run anything says so, whatever the plan
#[tokio::test]
async fn the_phase_comes_before_the_plan() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    api.set_phase("m-1", Phase::Retired).await;
    let refusal = api.try_start(start_plan("m-1", "p-404", "req-1")).await;
    refused(refusal, Code::FailedPrecondition, "PHASE_FORBIDS_RUN");
}

// a plan that is not there cannot be judged against a provider
#[tokio::test]
async fn the_plan_comes_before_the_provider() {
    let api = Api::new().await;
    api.register(pb::Machine { machine_id: "m-1".into(), ..Default::default() }).await;
    refused(api.try_start(start_plan("m-1", "p-404", "req-1")).await, Code::NotFound, "PLAN_NOT_FOUND");
    refused(api.try_start(start("m-1", "REBOOT", "req-2")).await, Code::FailedPrecondition, "PROVIDER_UNKNOWN");
}
