//! What runs leave behind: every type with its default plan, the machine's phase, NeedsIntervention.

use crate::fixture::{Api, cluster_machine, map, reboot, repave, sim_machine, start, start_plan, states, step};
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase;
use proto::baremetal::v1::run::Phase as RunPhase;
use proto::baremetal::v1::step::Kind;
use proto::baremetal::v1::step_status::State;

fn request(id: &str, kind: &str) -> pb::StartRunRequest {
    let parameters = if kind == "NET_RECONFIG" { map(&[("mtu", "9000")]) } else { map(&[]) };
    pb::StartRunRequest { parameters, ..start(id, kind, kind) }
}

async fn succeeds(api: &Api, id: &str, kind: &str) -> pb::Run {
    let run = api.carry_out(request(id, kind)).await;
    assert_eq!(run.phase(), RunPhase::Succeeded, "{kind} on {id}: {run:?}");
    assert!(states(&run).iter().all(|s| *s == State::Succeeded), "{run:?}");
    assert!(run.error.is_none() && run.current_step.is_empty() && run.why.is_empty(), "{run:?}");
    let status = api.status(id).await;
    assert_eq!((status.active_run_id.as_str(), status.phase_set_by.as_str()), ("", "executor"));
    run
}

fn plan_and_steps(run: &pb::Run) -> (&str, Vec<&str>) {
    (run.plan_id.as_str(), run.steps.iter().map(|s| s.name.as_str()).collect())
}

// G-3-13, G-17-03, T-45, DESIGN section 7 "phase after a run"
#[tokio::test]
async fn every_type_succeeds_without_a_cluster() {
    let api = Api::new().await;
    for (kind, plan, steps, phase) in [
        ("REPAVE", "default-repave", vec!["set-netboot", "repave", "reboot"], Phase::Ready),
        ("RMA", "default-rma", vec!["drain-check", "shutdown", "return"], Phase::Rma),
        ("REBOOT", "default-reboot", vec!["reboot"], Phase::FactoryReady),
        ("UPGRADE", "default-upgrade", vec!["upgrade", "restart"], Phase::FactoryReady),
        ("NET_RECONFIG", "default-net-reconfig", vec!["net-reconfig"], Phase::FactoryReady),
    ] {
        api.register(sim_machine(kind, &[])).await;
        let run = succeeds(&api, kind, kind).await;
        assert_eq!((run.r#type.as_str(), plan_and_steps(&run)), (kind, (plan, steps)));
        assert_eq!(api.phase(kind).await, phase, "{kind}");
    }
}

// as above; the cluster chooses default-repave-join, and fills in the cluster steps
#[tokio::test]
async fn every_type_succeeds_with_a_cluster() {
    let api = Api::new().await;
    for (kind, plan, steps, phase) in [
        (
            "REPAVE",
            "default-repave-join",
            vec!["set-netboot", "repave", "reboot", "join-cluster", "verify"],
            Phase::InService,
        ),
        ("REBOOT", "default-reboot", vec!["reboot"], Phase::InService),
        ("UPGRADE", "default-upgrade", vec!["drain", "upgrade", "restart", "uncordon", "verify"], Phase::InService),
        ("NET_RECONFIG", "default-net-reconfig", vec!["net-reconfig"], Phase::InService),
        ("RMA", "default-rma", vec!["drain-check", "shutdown", "return"], Phase::Rma),
    ] {
        api.register(cluster_machine(kind, &[])).await;
        if kind != "REPAVE" {
            api.carry_out(start(kind, "REPAVE", "first")).await;
        }
        let run = succeeds(&api, kind, kind).await;
        assert_eq!((run.r#type.as_str(), plan_and_steps(&run)), (kind, (plan, steps)));
        assert_eq!(api.phase(kind).await, phase, "{kind}");
    }
}

// the world agrees with what the runs say
#[tokio::test]
async fn what_a_run_reports_has_happened() {
    let api = Api::new().await;
    api.register(cluster_machine("m-1", &[])).await;
    succeeds(&api, "m-1", "REPAVE").await;
    let kinds = api.effect_kinds("m-1");
    assert_eq!(kinds, ["netboot", "repave_started", "repaved", "reset", "booted", "join_started", "joined"]);
    succeeds(&api, "m-1", "RMA").await;
    assert_eq!(api.effect_kinds("m-1")[kinds.len()..], ["power_off", "return_opened"]);
}

// DESIGN section 7: a run that neither repaves nor joins gives the machine back as it was
#[tokio::test]
async fn a_reboot_gives_the_machine_back_in_the_phase_it_was() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    for (i, phase) in [Phase::FactoryReady, Phase::Ready, Phase::Maintenance].into_iter().enumerate() {
        if i > 0 {
            api.set_phase("m-1", phase).await;
        }
        let run = api.carry_out(start("m-1", "REBOOT", &format!("r{i}"))).await;
        assert_eq!((run.phase(), api.phase("m-1").await), (RunPhase::Succeeded, phase));
    }
}

// DESIGN section 7: by the steps that ran, not by the type
#[tokio::test]
async fn a_plan_that_joins_puts_the_machine_in_service() {
    let api = Api::new().await;
    let join = Kind::Join(pb::KubeadmJoin { cluster_ref: "cluster-x".into() });
    api.create_plan("join-only", vec![step("join", join)]).await;
    api.create_plan("repave-only", vec![step("repave", repave("i-1"))]).await;
    api.sim("m-1", &[]).await;
    let run = api.carry_out(start_plan("m-1", "join-only", "r1")).await;
    assert_eq!((run.phase(), api.phase("m-1").await), (RunPhase::Succeeded, Phase::InService));
    let run = api.carry_out(start_plan("m-1", "repave-only", "r2")).await;
    assert_eq!((run.phase(), api.phase("m-1").await), (RunPhase::Succeeded, Phase::Ready));
}

// G-17-04: plan_id overrides the default plan of the type
#[tokio::test]
async fn a_named_plan_overrides_the_default_of_the_type() {
    let api = Api::new().await;
    api.create_plan("my-repave", vec![step("only", repave("mine"))]).await;
    api.sim("m-1", &[]).await;
    let run = api.carry_out(pb::StartRunRequest { plan_id: "my-repave".into(), ..start("m-1", "REPAVE", "r1") }).await;
    assert_eq!((run.r#type.as_str(), plan_and_steps(&run)), ("REPAVE", ("my-repave", vec!["only"])));
}

// G-6-03, T-09, G-8-02: PROVISIONING while it runs
#[tokio::test]
async fn a_machine_is_provisioning_while_its_run_runs() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.reboot", "hang")]).await;
    let run = api.start(start("m-1", "REBOOT", "r1")).await;
    let running = api.at_step(&run.run_id, "reboot").await;
    let status = api.status("m-1").await;
    assert_eq!((status.phase(), status.effective_state()), (Phase::Provisioning, Phase::Provisioning));
    assert_eq!(status.active_run_id, run.run_id);
    assert!(status.execution.contains(&run.run_id) && status.desired.contains("REBOOT"), "{status:?}");
    assert!(!running.why.is_empty(), "an active run says what it waits for");
}

// G-21-04, G-21-05, G-21-11, T-05
#[tokio::test]
async fn a_failed_run_leaves_maintenance_and_needs_intervention() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.reboot", "wrong-machine")]).await;
    api.set_phase("m-1", Phase::Ready).await;
    let run = api.carry_out(start("m-1", "REBOOT", "r1")).await;
    assert_eq!(run.phase(), RunPhase::Failed);
    let error = run.error.expect("an error");
    assert!(!error.code.is_empty() && !error.message.is_empty() && error.class == "conflict", "{error:?}");
    assert!(!error.retryable, "the same again cannot help: {error:?}");
    let status = api.status("m-1").await;
    assert_eq!((status.phase(), status.effective_state()), (Phase::Maintenance, Phase::Maintenance));
    let condition = api.condition("m-1", "NeedsIntervention").await.expect("a condition");
    assert!(condition.status && !condition.reason.is_empty() && !condition.message.is_empty(), "{condition:?}");
    assert!(condition.last_transition.is_some());
}

// G-21-11: the next successful run clears it
#[tokio::test]
async fn the_next_success_clears_needs_intervention() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.reboot", "wrong-machine")]).await;
    api.carry_out(start("m-1", "REBOOT", "r1")).await;
    assert!(api.needs_intervention("m-1").await);
    api.sim("m-1", &[]).await;
    assert!(api.needs_intervention("m-1").await, "registering again does not clear it");
    let run = api.carry_out(start("m-1", "REBOOT", "r2")).await;
    assert_eq!(run.phase(), RunPhase::Succeeded);
    let condition = api.condition("m-1", "NeedsIntervention").await.expect("kept, with its end");
    assert!(!condition.status && !condition.reason.is_empty());
}

// G-21-06, G-21-07, G-21-11: cancel is a normal act
#[tokio::test]
async fn a_canceled_run_leaves_maintenance_without_needs_intervention() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.reboot", "hang")]).await;
    let run = api.start(start("m-1", "REBOOT", "r1")).await;
    api.at_step(&run.run_id, "reboot").await;
    assert_eq!(api.try_cancel(&run.run_id).await.expect("cancels").phase(), RunPhase::Canceled);
    let status = api.status("m-1").await;
    assert_eq!((status.phase(), status.active_run_id.as_str()), (Phase::Maintenance, ""));
    assert!(!api.needs_intervention("m-1").await);
}

// G-21-11: a cancel does not hide that an earlier failure was never looked at
#[tokio::test]
async fn a_cancel_keeps_an_earlier_needs_intervention() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.reboot", "wrong-machine")]).await;
    api.carry_out(start("m-1", "REBOOT", "r1")).await;
    api.sim("m-1", &[("sim.fault.reboot", "hang")]).await;
    let run = api.start(start("m-1", "REBOOT", "r2")).await;
    api.at_step(&run.run_id, "reboot").await;
    api.try_cancel(&run.run_id).await.expect("cancels");
    assert!(api.needs_intervention("m-1").await);
}

// G-3-05, G-9-09: later steps do not run after a failure
#[tokio::test]
async fn later_steps_do_not_run_after_a_failure() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.repave", "fail")]).await;
    let mut failing = step("second", repave("i-1"));
    failing.max_retries = Some(0);
    api.create_plan("p", vec![step("first", reboot()), failing, step("third", reboot()), step("fourth", reboot())])
        .await;
    let run = api.carry_out(start_plan("m-1", "p", "r1")).await;
    assert_eq!(run.phase(), RunPhase::Failed);
    assert_eq!(states(&run), [State::Succeeded, State::Failed, State::Waiting, State::Waiting]);
    assert_eq!(run.current_step, "second");
    assert!(run.steps[2].started_at.is_none() && run.steps[1].finished_at.is_some());
    assert!(!run.steps[1].message.is_empty());
    assert_eq!(api.count_effects("m-1", "reset"), 1, "only the first step's");
}

// DESIGN section 4: a failed run takes back what can be taken back
#[tokio::test]
async fn a_failed_repave_leaves_no_boot_override() {
    let api = Api::new().await;
    api.sim("m-1", &[("sim.fault.repave", "fail")]).await;
    let mut failing = step("repave", repave("i-1"));
    failing.max_retries = Some(0);
    api.create_plan("p", vec![step("netboot", crate::fixture::netboot()), failing]).await;
    assert_eq!(api.carry_out(start_plan("m-1", "p", "r1")).await.phase(), RunPhase::Failed);
    assert_eq!(api.effect_kinds("m-1"), ["netboot", "fault", "clear_netboot"]);
}
