//! Why, for every state there is: the answers are pure functions of their facts, so every combination is
//! walked, also those that no test could provoke. An empty answer to what is not at rest fails.

use domain::condition::{Condition, ConditionType};
use domain::lifecycle::{Deadline, Owner, State as _};
use domain::look::{Hardware, Look, Member, Workload, observe};
use domain::machine::{ActiveRun, Labels, Machine, MachineSpec, Phase};
use domain::plan::{BootMode, RebootMode, RmaAction, Step, StepKind};
use domain::run::{Run, RunError, RunPhase, RunType};
use domain::stage::{Ending, Position};
use domain::step::StepStatus;
use domain::{Error, ExecutionId, MachineId, Reason, RunId, SessionId, Timestamp};
use service::explain::{Explanation, MachineFacts, RunFacts};
use service::{Call, Execution, Freeze};
use std::collections::BTreeMap;
use std::time::Duration;
use store::execution::{CancelRequest, Fence, Status};

const NOW: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

fn ago(seconds: u64) -> Timestamp {
    NOW.minus(Duration::from_secs(seconds))
}

fn in_time(seconds: u64) -> Timestamp {
    NOW.plus(Duration::from_secs(seconds))
}

/// Every kind of step; a new one does not compile until it is here.
fn step_kinds() -> Vec<StepKind> {
    let mut kinds = vec![
        StepKind::Ssh { command: "uptime".into(), args: vec![], environment: BTreeMap::new() },
        StepKind::Reboot { mode: RebootMode::Bmc },
        StepKind::Netboot { mode: BootMode::Pxe, persistent: false },
        StepKind::Repave { image: "ubuntu".into(), user_data_ref: String::new() },
        StepKind::Join { cluster_ref: "prod".into() },
        StepKind::Verify { cluster_ref: "prod".into() },
        StepKind::Net { parameters: BTreeMap::new() },
    ];
    kinds.extend(RmaAction::ALL.iter().map(|action| StepKind::Rma { action: *action, reason: String::new() }));
    for kind in &kinds {
        match kind {
            StepKind::Ssh { .. }
            | StepKind::Reboot { .. }
            | StepKind::Netboot { .. }
            | StepKind::Repave { .. }
            | StepKind::Join { .. }
            | StepKind::Verify { .. }
            | StepKind::Net { .. }
            | StepKind::Rma { .. } => {}
        }
    }
    kinds
}

fn positions() -> Vec<Position> {
    let mut all = vec![Position::Start];
    for attempt in [1, 3] {
        all.push(Position::Stage { index: 0, attempt });
        for ending in [Ending::Done, Ending::Failed, Ending::Canceled] {
            all.push(Position::Undo { index: 0, attempt, ending });
        }
    }
    all
}

fn freeze() -> Freeze {
    Freeze { by: "ann".into(), reason: "power work".into(), since: ago(60) }
}

fn machine(phase: Phase) -> Machine {
    Machine {
        id: MachineId::from_text("m-1"),
        labels: Labels::new(),
        spec: MachineSpec { provider: "sim".into(), ..MachineSpec::default() },
        phase,
        phase_set_by: Owner::Operator,
        phase_set_at: ago(3600),
        previous_phase: None,
        active_run: None,
        conditions: vec![],
        observation: None,
        version: 1,
        created_at: ago(7200),
        updated_at: ago(3600),
    }
}

fn execution(status: Status, position: Position, waiting_for: &str, wake_at: Timestamp, cancel: bool) -> Execution {
    Execution {
        id: ExecutionId::from_text("exe_1"),
        workflow: "run".into(),
        workflow_version: 1,
        subject: "run_1".into(),
        machine_id: MachineId::from_text("m-1"),
        status,
        position,
        stage: if position == Position::Start { String::new() } else { "one".into() },
        settle: Duration::ZERO,
        facts: String::new(),
        failure: String::new(),
        waiting_for: waiting_for.into(),
        wake_at,
        deadline: in_time(300),
        holder: (status == Status::Running).then(|| SessionId::from_text("ses_1")),
        fence: Fence { epoch: 1, counter: 1 },
        cancel: cancel.then(|| CancelRequest { by: "ann".into(), reason: String::new() }),
        entries: 1,
        created_at: ago(100),
        updated_at: ago(10),
    }
}

fn run(phase: RunPhase, typed: bool) -> Run {
    let mut step = StepStatus::waiting("one");
    if phase != RunPhase::Pending {
        step.started_at = Some(ago(50));
    }
    Run {
        customer_id: String::new(),
        id: RunId::from_text("run_1"),
        machine_id: MachineId::from_text("m-1"),
        request_id: "r1".into(),
        run_type: typed.then_some(RunType::Reboot),
        plan_id: "default-reboot".into(),
        phase,
        steps: vec![step],
        current_step: if phase == RunPhase::Running { "one".into() } else { String::new() },
        parameters: BTreeMap::from([("mode".into(), "it's \"odd\"".into())]),
        error: (phase == RunPhase::Failed).then(|| RunError {
            code: "STEP_FAILED".into(),
            class: "transient".into(),
            message: "no answer".into(),
            retryable: true,
        }),
        created_at: ago(100),
        started_at: (phase != RunPhase::Pending).then(|| ago(90)),
        finished_at: phase.is_terminal().then(|| ago(5)),
        version: 3,
    }
}

/// Facts about a run in every state that its execution can be in.
fn every_run(kind: &StepKind) -> Vec<RunFacts> {
    let mut all = Vec::new();
    for phase in RunPhase::ALL.iter().copied() {
        for (cancel, frozen, waiting_for) in
            (0..8).map(|i| (i & 1 > 0, i & 2 > 0, if i & 4 > 0 { "a cluster" } else { "" }))
        {
            let mut executions = vec![None];
            for status in Status::ALL {
                for position in positions() {
                    for wake_at in [ago(5), in_time(5)] {
                        executions.push(Some(execution(status, position, waiting_for, wake_at, cancel)));
                    }
                }
            }
            for execution in executions {
                let run = run(phase, cancel);
                let mut held = machine(if phase.is_terminal() { Phase::Maintenance } else { Phase::Provisioning });
                held.active_run = (!phase.is_terminal()).then(|| ActiveRun {
                    id: run.id.clone(),
                    phase,
                    run_type: run.type_text().to_owned(),
                    current_step: run.current_step.clone(),
                });
                let step = Step { name: "one".into(), timeout_seconds: None, max_retries: None, kind: kind.clone() };
                all.push(RunFacts {
                    run,
                    steps: vec![step],
                    execution,
                    machine: Some(held),
                    frozen: frozen.then(freeze),
                    now: NOW,
                });
            }
        }
    }
    all
}

/// The verbs of the command line, as its sources declare them.
struct Verbs(BTreeMap<String, String>);

impl Verbs {
    fn read() -> Self {
        let folder = testkit::golden::root().join("crates/millwright/src/cli");
        let read = |name: &str| std::fs::read_to_string(folder.join(format!("{name}.rs"))).expect("a source");
        let nouns = ["run", "machine", "engine", "plan", "token", "mod"];
        Self(nouns.into_iter().map(|noun| (noun.to_owned(), read(noun))).collect())
    }

    fn know(&self, command: &str) -> bool {
        let words: Vec<&str> = command.split(' ').collect();
        let declares = |noun: &str, verb: &str| {
            let variant: String = verb[..1].to_uppercase() + &verb[1..];
            let text = &self.0[noun];
            [" {", "(", ","].iter().any(|end| text.contains(&format!("\n    {variant}{end}")))
        };
        match words.as_slice() {
            ["millwright", "unfreeze"] => declares("mod", "unfreeze"),
            ["millwright", noun, verb, ..] => self.0.contains_key(*noun) && declares(noun, verb),
            _ => false,
        }
    }
}

/// What must be in any answer.
fn check(e: &Explanation, verbs: &Verbs, facts: &dyn std::fmt::Debug) {
    let say = |what: &str| format!("{what}: {e:#?}\nof {facts:?}");
    assert!(!e.id.is_empty() && !e.kind.is_empty() && !e.state.is_empty(), "{}", say("no name or state"));
    assert!(!e.projected.is_empty(), "{}", say("no projected state"));
    assert!(e.summary.contains(&e.id), "{}", say("the summary does not speak of it"));
    assert!(e.since.is_some(), "{}", say("since when?"));
    if !e.at_rest {
        assert!(!e.waiting_for.is_empty(), "{}", say("waits for nothing"));
        assert!(!e.expected.is_empty(), "{}", say("expects nothing"));
        assert!(!e.last_seen.is_empty(), "{}", say("last seen?"));
        assert!(!e.desired.is_empty(), "{}", say("nothing is wanted of it"));
    }
    for action in &e.actions {
        assert!(!action.name.is_empty(), "{}", say("an action without a name"));
        assert!(verbs.know(&action.command), "{}", say(&format!("no such command: {}", action.command)));
        assert_eq!(action.allowed, action.why_not.is_empty(), "{}", say("not allowed, and no word why"));
    }
    assert_eq!(e.seconds_left.is_some(), e.deadline.is_some() && e.kind != "token", "{}", say("time left"));
}

// "why" is always filled for what is not at rest: every phase of a run, every status and position of
// its execution, every kind of step, asked to cancel or not, frozen or not
#[test]
fn every_state_of_a_run_is_explained() {
    let (admin, verbs) = (Call::system(), Verbs::read());
    let mut walked = 0;
    for kind in step_kinds() {
        for facts in every_run(&kind) {
            let e = facts.explain(&admin);
            check(&e, &verbs, &facts);
            walked += 1;
            let allowed = |name: &str| e.actions.iter().any(|a| a.name == name && a.allowed);
            if facts.run.phase.is_terminal() {
                assert!(e.at_rest && !allowed("cancel") && !allowed("terminate"), "{e:?}");
                assert!(allowed("start again"), "{e:?}");
                continue;
            }
            assert!(!e.at_rest && allowed("terminate"), "a way out of {facts:?}");
            assert_eq!(facts.frozen.is_some(), allowed("unfreeze") && e.problems.iter().any(|p| p.contains("frozen")));
            let Some(execution) = &facts.execution else {
                assert!(!e.problems.is_empty(), "{e:?}");
                continue;
            };
            assert!(e.deadline.is_some() && e.seconds_left == Some(300) && !e.held_by.is_empty(), "{e:?}");
            assert!(e.last_seen_at.is_some() && !e.execution.is_empty(), "{e:?}");
            let sleeps = matches!(execution.status, Status::Ready | Status::Waiting);
            assert_eq!(e.next_try.is_some(), sleeps && facts.frozen.is_none(), "{e:?}");
            assert!(e.next_try.is_none_or(|at| at >= NOW));
            let at_work = execution.position != Position::Start;
            assert_eq!((e.attempt.is_some(), e.attempts_left.is_some()), (at_work, at_work), "{e:?}");
            let open = execution.cancel.is_none() && !execution.status.is_terminal();
            assert_eq!(allowed("cancel"), open, "{e:?}");
        }
    }
    assert!(walked > 40_000, "walked {walked}");
}

/// A BMC that does not answer: something was seen, and not everything.
fn look() -> Look {
    Look {
        at: ago(30),
        source: "sim".into(),
        hardware: Hardware::no_answer("no answer within 10 s"),
        member: Member::NoClusterRef,
        workload: Workload::NotAsked("no cluster".into()),
    }
}

fn every_machine() -> Vec<MachineFacts> {
    let kind = StepKind::Reboot { mode: RebootMode::Bmc };
    let runs: Vec<Option<RunFacts>> =
        std::iter::once(None).chain(every_run(&kind).into_iter().step_by(37).map(Some)).collect();
    let mut all = Vec::new();
    for phase in Phase::ALL.iter().copied() {
        for (needs, known, cluster, seen) in (0..16).map(|i| (i & 1 > 0, i & 2 > 0, i & 4 > 0, i & 8 > 0)) {
            for run in runs.iter().filter(|r| r.as_ref().is_none_or(|r| !r.run.phase.is_terminal())) {
                let mut m = machine(phase);
                m.active_run = run.as_ref().and_then(|r| r.machine.as_ref()).and_then(|m| m.active_run.clone());
                m.observation = seen.then(|| observe(&m, &look()));
                if cluster {
                    "prod".clone_into(&mut m.spec.target_cluster_ref);
                }
                if needs {
                    m.conditions.push(Condition::new(ConditionType::NeedsIntervention, true, "StepFailed", ago(20)));
                }
                let provider =
                    if known { Ok(()) } else { Err(Error::new(Reason::ProviderUnknown, "no such provider")) };
                let frozen = run.as_ref().map_or(needs, |r| r.frozen.is_some()).then(freeze);
                all.push(MachineFacts {
                    machine: m,
                    run: run.clone(),
                    provider,
                    unable: vec![],
                    frozen,
                    hold: None,
                    boot_node: None,
                    now: NOW,
                });
            }
        }
    }
    all
}

// and every phase of a machine, with and without a run, with its provider known or not, frozen, in need of
// somebody, with a cluster or without
#[test]
fn every_state_of_a_machine_is_explained() {
    let (admin, verbs) = (Call::system(), Verbs::read());
    let mut walked = 0;
    for facts in every_machine() {
        let e = facts.explain(&admin);
        check(&e, &verbs, &facts);
        walked += 1;
        let m = &facts.machine;
        let needs = m.condition(ConditionType::NeedsIntervention);
        let rests = facts.run.is_none() && m.phase.deadline() == Deadline::AtRest && !needs;
        assert_eq!(e.at_rest, rests, "{e:?}");
        let ways = e.actions.iter().filter(|a| a.allowed && a.name != "unfreeze").count();
        assert!(ways > 0 || (m.phase == Phase::Retired && facts.run.is_none()), "no way out: {e:?}");
        if let Some(run) = &facts.run {
            let of_run = run.explain(&admin);
            assert!(e.held_by.contains(run.run.id.as_str()) && e.summary.contains(&of_run.summary), "{e:?}");
            assert_eq!(
                (&e.waiting_for, &e.expected, e.next_try, e.attempt, e.attempts_left, e.deadline),
                (
                    &of_run.waiting_for,
                    &of_run.expected,
                    of_run.next_try,
                    of_run.attempt,
                    of_run.attempts_left,
                    of_run.deadline
                )
            );
            assert!(e.actions.iter().filter(|a| a.name.starts_with("start ")).all(|a| !a.allowed), "{e:?}");
        } else if needs {
            assert!(e.problems.iter().any(|p| p.contains("NeedsIntervention")), "{e:?}");
            assert!(e.waiting_for.contains("a person") && e.waiting_for.contains("StepFailed"), "{e:?}");
        }
        assert_eq!(facts.provider.is_err(), e.problems.iter().any(|p| p.contains("no such provider")), "{e:?}");
        assert_eq!(facts.frozen.is_some(), e.problems.iter().any(|p| p.contains("frozen")), "{e:?}");
    }
    assert!(walked > 5_000, "walked {walked}");
}
