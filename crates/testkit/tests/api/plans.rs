//! Plans: built in, created, never changed; what cannot run is refused by field.

use crate::fixture::{Api, netboot, on_both, reboot, repave, ssh, start_plan, step};
use crate::raw;
use crate::refusal::{refused, refused_field};
use prost_reflect::prost::Message as _;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::step::Kind;
use std::collections::BTreeMap;
use tonic::{Code, Status};

async fn get(api: &Api, id: &str) -> Result<pb::Plan, Status> {
    Ok(api.plans().get_plan(pb::GetPlanRequest { plan_id: id.into() }).await?.into_inner())
}

async fn list(api: &Api) -> Vec<pb::Plan> {
    api.plans().list_plans(pb::ListPlansRequest {}).await.expect("lists").into_inner().plans
}

fn plan(steps: Vec<pb::Step>) -> pb::Plan {
    pb::Plan { plan_id: "p-1".into(), display_name: "a plan".into(), steps }
}

fn kinds(plan: &pb::Plan) -> Vec<&'static str> {
    let kind = |s: &pb::Step| match s.kind.as_ref().expect("a kind") {
        Kind::Ssh(_) => "ssh",
        Kind::Reboot(_) => "reboot",
        Kind::Netboot(_) => "netboot",
        Kind::Repave(_) => "repave",
        Kind::Join(_) => "join",
        Kind::Verify(_) => "verify",
        Kind::Net(_) => "net",
        Kind::Rma(_) => "rma",
    };
    plan.steps.iter().map(kind).collect()
}

// G-3-16, G-16-02, CONTRACT "Default plans"
#[tokio::test]
async fn the_built_in_plans_are_those_of_the_contract() {
    let api = Api::new().await;
    let plans = list(&api).await;
    let ids: Vec<&str> = plans.iter().map(|p| p.plan_id.as_str()).collect();
    let expected = [
        ("default-net-reconfig", vec!["net"]),
        ("default-reboot", vec!["reboot"]),
        ("default-repave", vec!["netboot", "repave", "reboot"]),
        ("default-repave-join", vec!["netboot", "repave", "reboot", "join", "verify"]),
        ("default-rma", vec!["rma", "rma", "rma"]),
        ("default-upgrade", vec!["ssh", "ssh", "reboot", "ssh", "verify"]),
    ];
    assert_eq!(ids, expected.each_ref().map(|(id, _)| *id));
    for (id, steps) in expected {
        let plan = get(&api, id).await.expect(id);
        assert_eq!(kinds(&plan), steps, "{id}");
        assert!(!plan.display_name.is_empty(), "{id}");
        assert!(plans.contains(&plan));
    }
    let rma = get(&api, "default-rma").await.expect("the plan");
    let actions = rma.steps.iter().map(|s| match s.kind.as_ref() {
        Some(Kind::Rma(r)) => r.action.as_str(),
        other => panic!("{other:?}"),
    });
    assert_eq!(actions.collect::<Vec<_>>(), ["drain-check", "shutdown", "return"]);
}

// G-3-01, G-16-01, G-16-02: created plans are read back as sent, every kind of step
#[tokio::test]
async fn a_created_plan_round_trips_with_every_kind_of_step() {
    let api = Api::new().await;
    let environment = BTreeMap::from([("LANG".to_owned(), "C".to_owned())]);
    let sent = plan(vec![
        step(
            "a",
            Kind::Ssh(pb::SshCommand { command: "sh".into(), args: vec!["-c".into(), "a\nb".into()], environment }),
        ),
        step("b", Kind::Reboot(pb::Reboot { mode: "force".into() })),
        step("c", Kind::Netboot(pb::SetNetboot { mode: "HTTP".into(), persistent: true })),
        step("d", Kind::Repave(pb::RepaveImage { image: "i".into(), user_data_ref: "u".into() })),
        step("e", Kind::Join(pb::KubeadmJoin { cluster_ref: "c".into() })),
        step("f", Kind::Verify(pb::VerifyInCluster { cluster_ref: "c".into() })),
        step("g", Kind::Net(pb::NetReconfig { parameters: BTreeMap::from([("mtu".into(), "9000".into())]) })),
        step("h", Kind::Rma(pb::RmaAction { action: "return".into(), reason: "disk".into() })),
    ]);
    assert_eq!(api.try_create_plan(sent.clone()).await.expect("is created"), sent);
    assert_eq!(get(&api, "p-1").await.expect("is there"), sent);
    assert!(list(&api).await.contains(&sent));
}

// T-40, G-3-06, G-3-07: unset and zero are told apart
#[tokio::test]
async fn unset_and_explicit_zero_stay_apart() {
    let api = Api::new().await;
    let mut steps = vec![step("unset", reboot()), step("zero", reboot()), step("set", reboot())];
    (steps[1].timeout_seconds, steps[1].max_retries) = (Some(0), Some(0));
    (steps[2].timeout_seconds, steps[2].max_retries) = (Some(60), Some(2));
    let sent = plan(steps);
    api.try_create_plan(sent.clone()).await.expect("is created");
    let read = get(&api, "p-1").await.expect("is there");
    assert_eq!(read, sent);
    let presence = |s: &pb::Step| (s.timeout_seconds, s.max_retries);
    assert_eq!(
        read.steps.iter().map(presence).collect::<Vec<_>>(),
        [(None, None), (Some(0), Some(0)), (Some(60), Some(2))]
    );
}

// G-3-08, G-3-11, DESIGN "limits"
#[tokio::test]
async fn plans_that_cannot_run_are_refused_by_field_and_not_stored() {
    let api = Api::new().await;
    let with = |change: &dyn Fn(&mut pb::Step)| {
        let mut changed = step("b", reboot());
        change(&mut changed);
        plan(vec![step("a", reboot()), changed])
    };
    let many = (0..65).map(|i| step(&format!("s{i}"), reboot())).collect();
    let long = "x".repeat(70_000);
    for (bad, field) in [
        (plan(vec![]), "steps"),
        (plan(many), "steps"),
        (with(&|s| s.name = "a".into()), "steps[1].name"),
        (with(&|s| s.name = String::new()), "steps[1].name"),
        (with(&|s| s.name = "a b".into()), "steps[1].name"),
        (with(&|s| s.name = "n".repeat(64)), "steps[1].name"),
        (with(&|s| s.timeout_seconds = Some(-1)), "steps[1].timeout_seconds"),
        (with(&|s| s.timeout_seconds = Some(86_401)), "steps[1].timeout_seconds"),
        (with(&|s| s.max_retries = Some(-1)), "steps[1].max_retries"),
        (with(&|s| s.max_retries = Some(21)), "steps[1].max_retries"),
        (with(&|s| s.kind = None), "steps[1].kind"),
        (with(&|s| s.kind = Some(ssh("", &[]))), "steps[1]"),
        (with(&|s| s.kind = Some(ssh(&long, &[]))), "steps"),
        (with(&|s| s.kind = Some(repave(""))), "steps[1]"),
        (with(&|s| s.kind = Some(Kind::Reboot(pb::Reboot { mode: "kick".into() }))), "steps[1].reboot.mode"),
        (
            with(&|s| s.kind = Some(Kind::Netboot(pb::SetNetboot { mode: "FLOPPY".into(), persistent: false }))),
            "steps[1].netboot.mode",
        ),
        (
            with(&|s| s.kind = Some(Kind::Rma(pb::RmaAction { action: "burn".into(), reason: String::new() }))),
            "steps[1].rma.action",
        ),
        (pb::Plan { plan_id: String::new(), ..plan(vec![step("a", reboot())]) }, "plan_id"),
        (pb::Plan { plan_id: "p 1".into(), ..plan(vec![step("a", reboot())]) }, "plan_id"),
        (pb::Plan { display_name: "d".repeat(600), ..plan(vec![step("a", reboot())]) }, "display_name"),
    ] {
        refused_field(api.try_create_plan(bad).await, field);
    }
    refused_field(api.plans().create_plan(pb::CreatePlanRequest { plan: None }).await, "plan");
    assert_eq!(list(&api).await.len(), 6, "only the built-in ones are there");
}

// G-3-10: a kind that this server does not know arrives as a step without any
#[tokio::test]
async fn an_unknown_kind_of_step_on_the_wire_is_refused() {
    let api = Api::new().await;
    let known = plan(vec![step("a", reboot()), pb::Step { name: "b".into(), ..Default::default() }]);
    let mut body = pb::CreatePlanRequest { plan: Some(known.clone()) }.encode_to_vec();
    let unknown = {
        // the second step gets field 18, a message this server has never heard of
        let mut strange = pb::Step { name: "b".into(), ..Default::default() }.encode_to_vec();
        strange.extend([0x92, 0x01, 0x02, 0x0a, 0x00]);
        let mut plan = pb::Plan { steps: vec![known.steps[0].clone()], ..known }.encode_to_vec();
        plan.push(0x1a);
        plan.push(u8::try_from(strange.len()).expect("short"));
        plan.extend(strange);
        let mut request = vec![0x0a, u8::try_from(plan.len()).expect("short")];
        request.extend(plan);
        request
    };
    for body in [std::mem::take(&mut body), unknown] {
        let channel = raw::channel(&api.server.url).await;
        let request = raw::with_token(&api.server.token, body);
        let answer = raw::call_once(channel, "/baremetal.v1.PlanService/CreatePlan", request).await;
        let refusal = refused(answer, Code::InvalidArgument, "INVALID_PLAN").says("netboot, repave");
        assert_eq!(refusal.field, "steps[1].kind");
    }
    refused(get(&api, "p-1").await, Code::NotFound, "PLAN_NOT_FOUND");
}

// CONTRACT: a plan is immutable; G-3-14, G-3-15
#[tokio::test]
async fn the_same_plan_again_is_fine_and_another_body_is_not() {
    let api = Api::new().await;
    let sent = plan(vec![step("a", reboot())]);
    api.try_create_plan(sent.clone()).await.expect("is created");
    assert_eq!(api.try_create_plan(sent.clone()).await.expect("no change"), sent);
    let renamed = pb::Plan { display_name: "another name".into(), ..sent.clone() };
    let mut retried = sent.clone();
    retried.steps[0].max_retries = Some(2);
    for other in [renamed, retried, plan(vec![step("a", netboot())])] {
        let refusal = refused(api.try_create_plan(other).await, Code::AlreadyExists, "PLAN_EXISTS").says("p-1");
        assert_eq!(refusal.details["plan_id"], "p-1");
    }
    assert_eq!(get(&api, "p-1").await.expect("as it was"), sent);
}

// the built-in ones are as immutable
#[tokio::test]
async fn a_built_in_plan_cannot_be_replaced() {
    let api = Api::new().await;
    let there = get(&api, "default-reboot").await.expect("built in");
    api.try_create_plan(there.clone()).await.expect("the same body");
    let other = pb::Plan { steps: vec![step("reboot", netboot())], ..there.clone() };
    refused(api.try_create_plan(other).await, Code::AlreadyExists, "PLAN_EXISTS");
    assert_eq!(get(&api, "default-reboot").await.expect("built in"), there);
}

// of ten bodies for one id, one is the plan
on_both!(ten_bodies_for_one_plan_id_have_one_winner, |api| async move {
    let api = &api;
    let bodies = (0..10).map(|i| api.try_create_plan(plan(vec![step(&format!("s{i}"), reboot())])));
    let (won, lost): (Vec<_>, Vec<_>) = futures::future::join_all(bodies).await.into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 9));
    lost.into_iter().for_each(|l| drop(refused(l, Code::AlreadyExists, "PLAN_EXISTS")));
    assert_eq!(won.into_iter().next().and_then(Result::ok), get(api, "p-1").await.ok());
});

// G-21-03
#[tokio::test]
async fn an_unknown_plan_is_not_found_and_named() {
    let api = Api::new().await;
    let refusal = refused(get(&api, "p-404").await, Code::NotFound, "PLAN_NOT_FOUND").says("p-404");
    assert_eq!(refusal.details["plan_id"], "p-404");
    refused_field(get(&api, "").await, "plan_id");
}

// G-3-14: what a run carries out is what the plan said when it was requested
#[tokio::test]
async fn a_run_names_its_plan_and_its_steps() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    api.create_plan("two-steps", vec![step("first", netboot()), step("second", reboot())]).await;
    let run = api.carry_out(start_plan("m-1", "two-steps", "r1")).await;
    assert_eq!((run.plan_id.as_str(), run.r#type.as_str()), ("two-steps", ""));
    assert_eq!(run.steps.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["first", "second"]);
}
