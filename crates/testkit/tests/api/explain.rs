//! Why, over the wire: caught while it waits, for every kind of step and fault; and what it calls allowed is
//! allowed, what it does not is refused, for each kind of caller.

use crate::callers::{Caller, caller, machine_of, root};
use crate::fixture::{
    Api, brisk, cluster_machine, is_terminal, join, map, netboot, on_both, reboot, repave, ssh, start, start_plan, step,
};
use crate::refusal::{Refusal, refused};
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase;
use proto::baremetal::v1::step::Kind;
use proto::millwright::v1 as mw;
use testkit::fleet::{Database, eventually};
use tonic::{Code, Status};

impl Caller {
    async fn why(&self, id: &str) -> Result<pb::Explanation, Status> {
        Ok(self.explain().explain(mw::ExplainRequest { id: id.into() }).await?.into_inner())
    }

    async fn why_run(&self, id: &str) -> pb::Explanation {
        let request = pb::ExplainRunRequest { run_id: id.into() };
        self.runs().explain_run(request).await.expect("is explained").into_inner()
    }

    async fn why_machine(&self, id: &str) -> pb::Explanation {
        let request = pb::ExplainMachineRequest { machine_id: id.into() };
        self.machines().explain_machine(request).await.expect("is explained").into_inner()
    }

    /// Does what a command would do.
    async fn perform(&self, command: &str) -> Result<(), Status> {
        let words: Vec<&str> = command.split(' ').collect();
        let option =
            |name: &str| words.iter().position(|w| *w == name).map(|i| words[i + 1].to_owned()).unwrap_or_default();
        match words.as_slice() {
            ["millwright", "run", "cancel", id] => {
                self.runs().cancel_run(pb::CancelRunRequest { run_id: (*id).into() }).await.map(drop)
            }
            ["millwright", "engine", "terminate", id, ..] => {
                let request = mw::TerminateExecutionRequest { execution_id: (*id).into(), reason: "a test".into() };
                self.engines().terminate_execution(request).await.map(drop)
            }
            ["millwright", "run", "start", machine, ..] => {
                let request = pb::StartRunRequest {
                    request_id: uuid::Uuid::now_v7().to_string(),
                    machine_id: (*machine).into(),
                    r#type: option("--type"),
                    plan_id: option("--plan"),
                    ..Default::default()
                };
                self.runs().start_run(request).await.map(drop)
            }
            ["millwright", "machine", "phase", id, phase] => {
                let phase = Phase::from_str_name(phase).expect("a phase");
                let request =
                    pb::SetPhaseRequest { machine_id: (*id).into(), phase: phase.into(), reason: "a test".into() };
                self.machines().set_phase(request).await.map(drop)
            }
            ["millwright", "token", "revoke", id] => self.revoke(id).await.map(drop),
            ["millwright", "unfreeze"] => self.engines().unfreeze(mw::UnfreezeRequest {}).await.map(drop),
            _ => panic!("what is {command:?}?"),
        }
    }
}

fn verify(cluster: &str) -> Kind {
    Kind::Verify(pb::VerifyInCluster { cluster_ref: cluster.into() })
}

fn net() -> Kind {
    Kind::Net(pb::NetReconfig { parameters: map(&[("mtu", "9000")]) })
}

fn rma() -> Kind {
    Kind::Rma(pb::RmaAction { action: "return".into(), reason: "broken".into() })
}

/// Every kind of step, by the name that fault rules use.
fn kinds() -> Vec<(&'static str, Kind)> {
    vec![
        ("ssh", ssh("uptime", &[])),
        ("reboot", reboot()),
        ("netboot", netboot()),
        ("repave", repave("ubuntu-24.04")),
        ("join", join("cluster-a")),
        ("verify", verify("cluster-a")),
        ("net", net()),
        ("rma", rma()),
    ]
}

fn filled(e: &pb::Explanation) {
    let say = |what: &str| format!("{what}: {e:#?}");
    assert!(!e.at_rest, "{}", say("at rest"));
    for (what, text) in [
        ("summary", &e.summary),
        ("waiting_for", &e.waiting_for),
        ("last_seen", &e.last_seen),
        ("expected", &e.expected),
        ("held_by", &e.held_by),
        ("desired", &e.desired),
        ("observed", &e.observed),
        ("execution", &e.execution),
        ("projected", &e.projected),
    ] {
        assert!(!text.is_empty(), "{}", say(&format!("no {what}")));
    }
    assert!(e.since.is_some() && e.deadline.is_some() && e.seconds_left.is_some(), "{}", say("no times"));
    assert!(e.attempt.is_some() && e.attempts_left.is_some(), "{}", say("no attempts"));
    assert!(e.actions.iter().any(|a| a.allowed), "{}", say("no way out"));
    for a in &e.actions {
        assert_eq!(a.allowed, a.why_not.is_empty(), "{}", say("why not?"));
        assert!(a.command.starts_with("millwright "), "{}", say("no command"));
    }
}

/// The parts that a moment later are still the same.
fn lasting(e: &pb::Explanation) -> impl PartialEq + std::fmt::Debug + use<> {
    let actions: Vec<(String, bool)> = e.actions.iter().map(|a| (a.name.clone(), a.allowed)).collect();
    (e.state.clone(), e.waiting_for.clone(), e.expected.clone(), e.attempt, e.attempts_left, e.deadline, actions)
}

/// An explanation of the run while it waits, with those of its machine and its execution at the same moment.
async fn caught(root: &Caller, run: &pb::Run) -> Option<pb::Explanation> {
    eventually(&format!("{} on {} to wait or end", run.run_id, run.machine_id), || async {
        let of_run = root.why_run(&run.run_id).await;
        if of_run.at_rest {
            return Some(None);
        }
        if of_run.attempt.is_none() || of_run.execution.contains("running") && of_run.waiting_for.contains("a worker") {
            return None;
        }
        let by_id = root.why(&run.run_id).await.expect("is explained");
        let execution = of_run.execution.split(' ').nth(1).expect("its id").to_owned();
        let of_execution = root.why(&execution).await.expect("is explained");
        let of_machine = root.why_machine(&run.machine_id).await;
        let machine_by_id = root.why(&run.machine_id).await.expect("is explained");
        let after = root.why_run(&run.run_id).await;
        // it went on in between: look again
        if lasting(&of_run) != lasting(&after) || of_run.execution != after.execution {
            return None;
        }
        assert_eq!(lasting(&by_id), lasting(&of_run));
        assert_eq!((of_execution.kind.as_str(), &of_execution.waiting_for), ("execution", &of_run.waiting_for));
        assert_eq!(lasting(&machine_by_id), lasting(&of_machine));
        let shared = |e: &pb::Explanation| {
            (e.waiting_for.clone(), e.expected.clone(), e.attempt, e.attempts_left, e.deadline, e.since)
        };
        assert_eq!(shared(&of_machine), shared(&of_run));
        assert_eq!(of_machine.held_by, format!("run {}", run.run_id));
        filled(&of_machine);
        Some(Some(after))
    })
    .await
}

/// Of each kind so many are caught, in so many rounds at the most.
const CAUGHT_MIN: usize = 3;
const ROUNDS_MAX: usize = 4;

// for every kind of step and fault the run is caught while it waits; run, machine, execution and the
// question by id agree; what is allowed is, what is not is refused; a viewer may do nothing, and is told why
async fn every_wait(api: Api) {
    let (root, viewer) = (root(&api).await, caller(&api, "viewer", "viewer", "").await);
    for (name, kind) in kinds() {
        api.create_plan(&format!("only-{name}"), vec![step("one", kind.clone())]).await;
    }
    let mut outcomes: Vec<(&str, &str, bool)> = Vec::new();
    // on a busy machine a step may be over before it is looked at: then it is made once more
    for round in 0..ROUNDS_MAX {
        let mut cases = Vec::new();
        for (name, _) in kinds() {
            if outcomes.iter().filter(|o| o.0 == name && o.2).count() >= CAUGHT_MIN {
                continue;
            }
            for fault in ["fail", "hang", "slow:60000", "forget", "lie", "drop"] {
                let id = format!("m-{name}-{}-{round}", fault.split(':').next().unwrap_or_default());
                api.register(cluster_machine(&id, &[(&format!("sim.fault.{name}"), fault)])).await;
                let run = api.start(start_plan(&id, &format!("only-{name}"), "r1")).await;
                cases.push((name, fault, run));
            }
        }
        let waits = cases.iter().map(|(name, fault, run)| {
            let (root, viewer, api) = (&root, &viewer, &api);
            async move {
                let Some(e) = caught(root, run).await else { return (*name, *fault, false) };
                filled(&e);
                let asleep = e.execution.contains("waiting") || e.execution.contains("ready");
                assert_eq!(e.next_try.is_some(), asleep, "{e:?}");
                let of_viewer = viewer.why_run(&run.run_id).await;
                assert!(of_viewer.actions.iter().all(|a| !a.allowed && !a.why_not.is_empty()), "{of_viewer:?}");
                let role = of_viewer.actions.iter().filter(|a| a.why_not.contains("needs the role"));
                assert!(of_viewer.at_rest || role.count() >= 2, "{of_viewer:?}");
                try_actions(root, api, run, &e).await;
                (*name, *fault, true)
            }
        });
        outcomes.extend(futures::future::join_all(waits).await);
    }
    for (name, _) in kinds() {
        let caught = outcomes.iter().filter(|o| o.0 == name && o.2).count();
        assert!(caught >= CAUGHT_MIN, "steps of kind {name} were caught {caught} times: {outcomes:?}");
    }
}

/// What is not allowed is refused, and each way out leads out.
async fn try_actions(root: &Caller, api: &Api, run: &pb::Run, e: &pb::Explanation) {
    let of_machine = root.why_machine(&run.machine_id).await;
    for action in e.actions.iter().chain(&of_machine.actions).filter(|a| !a.allowed) {
        let status = root.perform(&action.command).await;
        if is_terminal(&api.run(&run.run_id).await) {
            return;
        }
        let refusal = Refusal::of(&status.expect_err(&action.command));
        assert_eq!(refusal.code, Code::FailedPrecondition, "{}: {refusal:?}", action.command);
    }
    // one of the ways out on each, so that all are tried
    let allowed: Vec<&pb::Action> = e.actions.iter().filter(|a| a.allowed).collect();
    let way = allowed[run.machine_id.len() % allowed.len()];
    match root.perform(&way.command).await {
        Ok(()) => {}
        Err(status) => assert!(is_terminal(&api.run(&run.run_id).await), "{}: {status:?}", way.command),
    }
    let ended = api.ended(&run.run_id).await;
    let e = root.why_run(&ended.run_id).await;
    assert!(e.at_rest && !e.summary.is_empty() && e.since.is_some(), "{e:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_wait_of_every_kind_of_step_is_explained() {
    every_wait(Api::with(Database::Sqlite, brisk()).await).await;
}

/// A machine in this phase, of the customer acme.
async fn machine_in(api: &Api, id: &str, phase: Phase) {
    let faults: &[(&str, &str)] = if phase == Phase::Maintenance { &[("sim.fault.net", "fail")] } else { &[] };
    let mut machine = machine_of("acme", id, faults);
    if phase == Phase::InService {
        machine.spec.as_mut().expect("a spec").target_cluster_ref = "cluster-a".into();
    }
    api.register(machine).await;
    match phase {
        Phase::FactoryReady => {}
        Phase::InService => drop(api.carry_out(start(id, "REPAVE", "joins")).await),
        Phase::Maintenance => {
            // as a failed run leaves it: somebody must look
            let step = pb::Step { max_retries: Some(0), ..step("one", net()) };
            let plan = pb::Plan { plan_id: "fails".into(), display_name: String::new(), steps: vec![step] };
            api.try_create_plan(plan).await.expect("a plan");
            api.carry_out(start_plan(id, "fails", "fails")).await;
        }
        Phase::Ready | Phase::Rma => drop(api.set_phase(id, phase).await),
        Phase::Retired => {
            api.set_phase(id, Phase::Ready).await;
            api.set_phase(id, phase).await;
        }
        Phase::Provisioning | Phase::Unspecified => panic!("nobody can put a machine there"),
    }
    assert_eq!(api.phase(id).await, phase);
}

const AT_REST: [Phase; 6] =
    [Phase::FactoryReady, Phase::Ready, Phase::InService, Phase::Maintenance, Phase::Rma, Phase::Retired];

// what is called allowed for a machine that nothing holds is allowed, and the rest is refused: each tried on a
// machine of its own, by an administrator, an operator, a viewer and a customer's operator
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_actions_of_a_machine_are_what_the_server_allows() {
    let api = Api::new().await;
    let callers = [
        root(&api).await,
        caller(&api, "operator", "operator", "").await,
        caller(&api, "viewer", "viewer", "").await,
        caller(&api, "acme-operator", "operator", "acme").await,
        caller(&api, "acme-admin", "admin", "acme").await,
    ];
    // made once, by whoever comes first
    machine_in(&api, "m-first", Phase::Maintenance).await;
    let pairs = AT_REST.iter().flat_map(|phase| callers.iter().map(move |who| (*phase, who)));
    futures::future::join_all(pairs.map(|(phase, who)| try_machine(&api, phase, who))).await;
}

async fn try_machine(api: &Api, phase: Phase, who: &Caller) {
    let named = |i: usize| format!("m-{}-{}-{i}", phase.as_str_name().to_lowercase(), who.token.name);
    machine_in(api, &named(0), phase).await;
    let e = who.why_machine(&named(0)).await;
    assert_eq!(e.projected, phase.as_str_name(), "{e:?}");
    assert!(!e.summary.is_empty() && e.since.is_some() && !e.expected.is_empty(), "{e:?}");
    assert_eq!(e.at_rest, phase != Phase::Maintenance, "a failed run needs somebody: {e:?}");
    for (i, action) in e.actions.iter().enumerate() {
        let id = named(i + 1);
        machine_in(api, &id, phase).await;
        let done = who.perform(&action.command.replace(&named(0), &id)).await;
        match (action.allowed, done) {
            (true, Ok(())) => {}
            // only the cluster itself knows
            (true, Err(status)) if Refusal::of(&status).reason == "NOT_CONFIRMED" => {}
            (true, Err(status)) => panic!("{}: {status:?}", action.command),
            (false, Ok(())) => panic!("{} was done, but {}", action.command, action.why_not),
            (false, Err(status)) => {
                let code = Refusal::of(&status).code;
                assert!([Code::FailedPrecondition, Code::PermissionDenied].contains(&code), "{status:?}");
            }
        }
    }
}

// a brake that is pulled is the reason for everything that waits
on_both!(what_is_frozen_waits_for_somebody_to_unfreeze, |api| async move {
    let root = root(&api).await;
    api.sim("m-1", &[]).await;
    api.freeze().await;
    let run = api.start(start("m-1", "REBOOT", "r1")).await;
    for e in [root.why_run(&run.run_id).await, root.why_machine("m-1").await] {
        assert!(e.waiting_for.contains("unfreeze") && e.problems.iter().any(|p| p.contains("frozen")), "{e:?}");
        assert!(e.next_try.is_none() && e.deadline.is_some(), "{e:?}");
        let unfreeze = e.actions.iter().find(|a| a.name == "unfreeze").expect("the way out");
        assert!(unfreeze.allowed && unfreeze.command == "millwright unfreeze");
    }
    root.perform("millwright unfreeze").await.expect("unfreezes");
    api.ended(&run.run_id).await;
});

// anything that has an id
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_tokens_and_what_is_not_there_are_explained_too() {
    let api = Api::new().await;
    let root = root(&api).await;
    let plan = root.why("default-reboot").await.expect("is explained");
    assert!(plan.at_rest && plan.kind == "plan" && !plan.summary.is_empty());
    let short = caller(&api, "short", "viewer", "").await;
    let token = root.why(&short.token.token_id).await.expect("is explained");
    assert_eq!((token.kind.as_str(), token.state.as_str()), ("token", "active"));
    let revoke = token.actions.iter().find(|a| a.allowed).expect("it can be revoked");
    root.perform(&revoke.command).await.expect("revokes");
    let token = root.why(&short.token.token_id).await.expect("is explained");
    assert_eq!(token.state, "revoked");
    assert!(token.actions.iter().all(|a| !a.allowed && !a.why_not.is_empty()));
    let operator = caller(&api, "operator", "operator", "").await;
    refused(operator.why(&short.token.token_id).await, Code::NotFound, "ID_NOT_FOUND");
    refused(root.why("m-404").await, Code::NotFound, "ID_NOT_FOUND").says("m-404");
    assert_eq!(root.why("").await.expect_err("is refused").code(), Code::InvalidArgument);
    refused(
        operator.plans().get_plan(pb::GetPlanRequest { plan_id: "x".into() }).await,
        Code::NotFound,
        "PLAN_NOT_FOUND",
    );
}
