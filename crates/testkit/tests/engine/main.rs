//! The engine against its promises: waits that hold no worker, budgets, hand-over, takeover, fences.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod guards;
mod parts;

use domain::ExecutionId;
use domain::run::RunPhase;
use engine::EngineOptions;
use provider::{
    Ack, Command, Exec, ExecProgress, Operation, Provider, ProviderError, ProviderResult, Providers, Target,
};
use service::{RunView, Service};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use store::execution::{self, NewExecution};
use store::{Caller, session};
use testkit::fleet::{Database, Fleet, admin, eventually, labelled, machine, quick, start};

async fn until_ended(service: &Service, run: &str) -> RunView {
    eventually("the run ends", || async {
        let view = service.get_run(&admin(), run).await.expect("reads");
        view.run.phase.is_terminal().then_some(view)
    })
    .await
}

async fn until_running(service: &Service, run: &str, step: &str) {
    eventually("the step runs", || async {
        let view = service.get_run(&admin(), run).await.expect("reads");
        (view.run.phase == RunPhase::Running && view.run.current_step == step).then_some(())
    })
    .await;
}

/// Forty runs wait for hours at once, with two workers: a wait holds none.
#[tokio::test(start_paused = true)]
async fn waiting_runs_hold_no_worker() {
    let fleet = Fleet::new(Database::Memory, 1);
    let engine = fleet.engine(EngineOptions { workers: 2, ..quick("one") }, None);
    let service = fleet.service(&engine).await;
    let mut runs = Vec::new();
    for n in 0..40 {
        let id = format!("m-{n}");
        service.register_machine(&admin(), labelled(&id, &[("sim.latency_ms", "600000")])).await.expect("registers");
        let plan = domain::plan::Plan {
            id: "slow".into(),
            display_name: String::new(),
            steps: vec![domain::plan::Step {
                name: "repave".into(),
                timeout_seconds: Some(3600),
                max_retries: None,
                kind: domain::plan::StepKind::Repave { image: "i".into(), user_data_ref: String::new() },
            }],
        };
        service.create_plan(&admin(), plan, "api").await.expect("creates");
        let mut request = start(&id, "", "r");
        request.plan_id = "slow".into();
        runs.push(service.start_run(&admin(), request).await.expect("starts").run.id.to_string());
    }
    engine.start().await.expect("starts");
    // one after the other they would take 40 times ten minutes; this is the virtual clock
    tokio::time::sleep(Duration::from_secs(3600)).await;
    for run in &runs {
        assert_eq!(service.get_run(&admin(), run).await.expect("reads").run.phase, RunPhase::Succeeded);
    }
}

/// One row for each change of each state, and no more: the run, its five steps, its machine.
#[tokio::test(start_paused = true)]
async fn a_five_step_repave_leaves_fifteen_log_rows() {
    let fleet = Fleet::new(Database::Memory, 1);
    let engine = fleet.engine(quick("one"), None);
    let service = fleet.service(&engine).await;
    let mut member = machine("m-1");
    "prod".clone_into(&mut member.spec.target_cluster_ref);
    service.register_machine(&admin(), member).await.expect("registers");
    engine.start().await.expect("starts");
    let before = fleet.store.read(store::log_range).await.expect("reads").head;
    let run = service.start_run(&admin(), start("m-1", "REPAVE", "r")).await.expect("starts").run;
    assert_eq!(run.steps.len(), 5);
    assert_eq!(until_ended(&service, run.id.as_str()).await.run.phase, RunPhase::Succeeded);
    let after = fleet.store.read(store::log_range).await.expect("reads").head;
    assert_eq!(after - before, 15);
}

/// A retired machine is gone: its hardware can be registered anew under another id.
#[tokio::test(start_paused = true)]
async fn a_retired_machine_frees_its_identity() {
    let fleet = Fleet::new(Database::Memory, 1);
    let service = fleet.service(&fleet.engine(quick("one"), None)).await;
    let with_serial = |id: &str| {
        let mut new = machine(id);
        "SN-1".clone_into(&mut new.spec.serial_number);
        new
    };
    service.register_machine(&admin(), with_serial("m-1")).await.expect("registers");
    let taken = service.register_machine(&admin(), with_serial("m-2")).await.expect_err("taken");
    assert_eq!(taken.reason, domain::Reason::IdentityTaken);
    service.set_phase(&admin(), "m-1", domain::machine::Phase::Retired, "").await.expect("retires");
    service.register_machine(&admin(), with_serial("m-2")).await.expect("registers anew");
}

/// Hand-over (T-13): nothing is canceled, the next engine goes on where this one stopped.
#[tokio::test(start_paused = true)]
async fn a_stop_hands_over_and_cancels_nothing() {
    let fleet = Fleet::new(Database::Memory, 1);
    let first = fleet.engine(quick("one"), None);
    let service = fleet.service(&first).await;
    service.register_machine(&admin(), labelled("m-1", &[("sim.latency_ms", "5000")])).await.expect("registers");
    let run = service.start_run(&admin(), start("m-1", "REPAVE", "r")).await.expect("starts").run.id.to_string();
    first.start().await.expect("starts");
    until_running(&service, &run, "repave").await;
    first.stop().await;
    let stopped = service.get_run(&admin(), &run).await.expect("reads");
    assert_eq!(stopped.run.phase, RunPhase::Running, "left as it was");
    let sessions = fleet.store.read(session::live).await.expect("reads");
    assert!(sessions.is_empty(), "the lease was given back: {sessions:?}");
    let second = fleet.engine(quick("two"), None);
    second.start().await.expect("starts");
    assert_eq!(until_ended(&service, &run).await.run.phase, RunPhase::Succeeded);
    let resets = fleet.sim.effects().expect("reads").iter().filter(|e| e.kind == "reset").count();
    assert_eq!(resets, 1);
}

/// The document's literal behaviour, as an option (T-13, G-20-19).
#[tokio::test(start_paused = true)]
async fn a_stop_can_cancel_all_active_runs_instead() {
    let fleet = Fleet::new(Database::Memory, 1);
    let engine = fleet.engine(quick("one"), None);
    let service = fleet.service(&engine).await;
    let mut runs = Vec::new();
    for id in ["m-1", "m-2"] {
        service.register_machine(&admin(), labelled(id, &[("sim.latency_ms", "60000")])).await.expect("registers");
        runs.push(service.start_run(&admin(), start(id, "REPAVE", "r")).await.expect("starts").run.id.to_string());
    }
    engine.start().await.expect("starts");
    until_running(&service, &runs[0], "set-netboot").await;
    engine
        .cancel_all(workflow::RUN_WORKFLOW, "system", "server_shutdown", Duration::from_secs(600))
        .await
        .expect("cancels");
    for run in &runs {
        let ended = service.get_run(&admin(), run).await.expect("reads").run;
        assert_eq!(ended.phase, RunPhase::Canceled);
        assert!(ended.error.expect("says why").message.contains("server_shutdown"));
    }
}

/// A boot override that a failed run leaves behind would boot the machine into an installer by surprise.
#[tokio::test(start_paused = true)]
async fn a_failed_run_takes_back_what_it_can() {
    let fleet = Fleet::new(Database::Memory, 1);
    let engine = fleet.engine(quick("one"), None);
    let service = fleet.service(&engine).await;
    service.register_machine(&admin(), labelled("m-1", &[("sim.fault.repave", "fail")])).await.expect("registers");
    engine.start().await.expect("starts");
    let run = service.start_run(&admin(), start("m-1", "REPAVE", "r")).await.expect("starts").run.id.to_string();
    assert_eq!(until_ended(&service, &run).await.run.phase, RunPhase::Failed);
    let kinds: Vec<String> = fleet.sim.effects().expect("reads").into_iter().map(|e| e.kind).collect();
    assert_eq!(kinds.iter().filter(|k| *k == "clear_netboot").count(), 1, "{kinds:?}");
}

/// An execution that nobody understands stays aside, says why, and stops no other.
#[tokio::test(start_paused = true)]
async fn one_bad_execution_does_not_stop_the_others() {
    let fleet = Fleet::new(Database::Memory, 1);
    let engine = fleet.engine(quick("one"), None);
    let service = fleet.service(&engine).await;
    service.register_machine(&admin(), machine("m-1")).await.expect("registers");
    let bad = ExecutionId::from_text("exe_bad");
    let (row, machine_id) = (bad.clone(), domain::MachineId::from_text("m-1"));
    fleet
        .store
        .write(&Caller::engine(), "m-1", move |tx| {
            execution::insert(
                tx,
                &NewExecution {
                    id: &row,
                    workflow: "from-the-future",
                    workflow_version: 9,
                    subject: "run_x",
                    machine_id: &machine_id,
                    start_within: Duration::from_secs(60),
                },
            )
        })
        .await
        .expect("inserts");
    engine.start().await.expect("starts");
    let run = service.start_run(&admin(), start("m-1", "REBOOT", "r")).await.expect("starts").run.id.to_string();
    assert_eq!(until_ended(&service, &run).await.run.phase, RunPhase::Succeeded);
    let aside = service.describe_execution("exe_bad").await.expect("reads").execution;
    assert!(aside.waiting_for.contains("from-the-future"), "{}", aside.waiting_for);
}

/// The provider is taken away in the middle of a run: the run says so, and can be canceled.
#[tokio::test(start_paused = true)]
async fn a_run_whose_provider_is_gone_says_so_and_can_be_canceled() {
    let fleet = Fleet::new(Database::Memory, 1);
    let engine = fleet.engine(quick("one"), None);
    let service = fleet.service(&engine).await;
    service
        .register_machine(&admin(), labelled("m-1", &[("sim.fault.repave", "slow:600000")]))
        .await
        .expect("registers");
    engine.start().await.expect("starts");
    let run = service.start_run(&admin(), start("m-1", "REPAVE", "r")).await.expect("starts").run.id.to_string();
    until_running(&service, &run, "repave").await;
    let mut moved = machine("m-1");
    "gone".clone_into(&mut moved.spec.provider);
    service.register_machine(&admin(), moved).await.expect("registers again");
    let why = eventually("it says why", || async {
        let why = service.get_run(&admin(), &run).await.expect("reads").why;
        why.contains("gone").then_some(why)
    })
    .await;
    assert!(why.contains("engine terminate"), "{why}");
    let ended = service.cancel_run(&admin(), &run).await.expect("cancels").run;
    assert_eq!(ended.phase, RunPhase::Canceled);
}

/// A newer server has migrated the database: this one claims no more, and gives back what it held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_schema_moves_an_older_server_stops_claiming() {
    let fleet = Fleet::new(Database::Sqlite, 1);
    let engine = fleet.engine(quick("one"), None);
    let service = fleet.service(&engine).await;
    service.register_machine(&admin(), machine("m-1")).await.expect("registers");
    engine.start().await.expect("starts");
    let file = rusqlite::Connection::open(fleet.database_file().expect("a file")).expect("opens");
    file.busy_timeout(Duration::from_secs(30)).expect("waits for its turn");
    file.execute("INSERT INTO schema_migrations(version, applied_at) VALUES (999, 0)", []).expect("migrates");
    eventually("the session is given back", || async {
        fleet.store.read(session::live).await.expect("reads").is_empty().then_some(())
    })
    .await;
    let run = service.start_run(&admin(), start("m-1", "REBOOT", "r")).await.expect("still serves").run.id.to_string();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(service.get_run(&admin(), &run).await.expect("reads").run.phase, RunPhase::Pending, "nobody claims it");
    engine.stop().await;
    fleet.store.close();
}

/// What an attempt has under way is stopped when its time is up: two attempts never run beside each other.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_timed_out_is_stopped_before_the_next() {
    let fleet = Fleet::new(Database::Memory, 1);
    let engine = fleet.engine(quick("one"), None);
    let service = fleet.service(&engine).await;
    service.register_machine(&admin(), labelled("m-1", &[("sim.fault.ssh", "slow:600000")])).await.expect("registers");
    let plan = domain::plan::Plan {
        id: "slow".into(),
        display_name: String::new(),
        steps: vec![domain::plan::Step {
            name: "run".into(),
            timeout_seconds: Some(5),
            max_retries: Some(1),
            kind: domain::plan::StepKind::Ssh {
                command: "sleep".into(),
                args: vec![],
                environment: Default::default(),
            },
        }],
    };
    service.create_plan(&admin(), plan, "api").await.expect("creates");
    engine.start().await.expect("starts");
    let mut request = start("m-1", "", "r");
    request.plan_id = "slow".into();
    let run = service.start_run(&admin(), request).await.expect("starts").run.id.to_string();
    let ended = until_ended(&service, &run).await.run;
    assert_eq!(ended.error.expect("failed").code, "STEP_TIMED_OUT");
    let kinds: Vec<String> = fleet.sim.effects().expect("reads").into_iter().map(|e| e.kind).collect();
    let of_commands: Vec<&str> = kinds.iter().map(String::as_str).filter(|k| k.starts_with("exec")).collect();
    assert_eq!(of_commands, ["exec_started", "exec_killed", "exec_started", "exec_killed"]);
}

/// A claim whose answer was lost, or a worker that died: the execution is held and nobody works on it.
#[tokio::test(start_paused = true)]
async fn what_is_held_here_and_worked_on_by_nobody_is_taken_up() {
    let fleet = Fleet::new(Database::Memory, 1);
    let engine = fleet.engine(quick("one"), None);
    let service = fleet.service(&engine).await;
    service.register_machine(&admin(), machine("m-1")).await.expect("registers");
    service.freeze(&admin(), "so that the engine does not claim it").await.expect("freezes");
    let run = service.start_run(&admin(), start("m-1", "REBOOT", "r")).await.expect("starts").run.id.to_string();
    engine.start().await.expect("starts");
    // the claim that the engine never heard of
    let claimed = fleet
        .store
        .write(&Caller::engine(), "claims", |tx| {
            let session = session::live(tx)?.pop().expect("a session");
            Ok(execution::claim(tx, &session.id, 1)?.len())
        })
        .await
        .expect("claims");
    assert_eq!(claimed, 1);
    service.unfreeze(&admin()).await.expect("unfreezes");
    assert_eq!(until_ended(&service, &run).await.run.phase, RunPhase::Succeeded);
}

/// A freeze is not the step's fault: its time does not run out meanwhile.
#[tokio::test(start_paused = true)]
async fn a_freeze_does_not_use_up_a_steps_time() {
    let fleet = Fleet::new(Database::Memory, 1);
    let engine = fleet.engine(quick("one"), None);
    let service = fleet.service(&engine).await;
    service.register_machine(&admin(), labelled("m-1", &[("sim.fault.reboot", "fail:1")])).await.expect("registers");
    engine.start().await.expect("starts");
    let run = service.start_run(&admin(), start("m-1", "REBOOT", "r")).await.expect("starts").run.id.to_string();
    eventually("the first attempt failed", || async {
        let steps = service.get_run(&admin(), &run).await.expect("reads").run.steps;
        (steps[0].retry_count == 1).then_some(())
    })
    .await;
    service.freeze(&admin(), "power work").await.expect("freezes");
    tokio::time::sleep(Duration::from_secs(1800)).await;
    service.unfreeze(&admin()).await.expect("unfreezes");
    assert_eq!(until_ended(&service, &run).await.run.phase, RunPhase::Succeeded);
}

/// The lease is lost behind the engine's back: its writes are refused, it begins a new session, and the
/// run goes on under a higher fence without doing anything twice.
#[tokio::test(start_paused = true)]
async fn a_lost_lease_stops_the_old_session_and_a_new_one_goes_on() {
    let fleet = Fleet::new(Database::Memory, 1);
    let engine = fleet.engine(quick("one"), None);
    let service = fleet.service(&engine).await;
    service.register_machine(&admin(), labelled("m-1", &[("sim.latency_ms", "3000")])).await.expect("registers");
    engine.start().await.expect("starts");
    let run = service.start_run(&admin(), start("m-1", "REPAVE", "r")).await.expect("starts").run.id.to_string();
    until_running(&service, &run, "repave").await;
    let before = service.describe_execution(&run).await.expect("reads").execution.fence;
    fleet
        .store
        .write(&Caller::engine(), "sessions", |tx| {
            for session in session::live(tx)? {
                assert!(session::declare_dead(tx, &session, "a test")?);
            }
            Ok(())
        })
        .await
        .expect("declares dead");
    assert_eq!(until_ended(&service, &run).await.run.phase, RunPhase::Succeeded);
    let after = service.describe_execution(&run).await.expect("reads").execution.fence;
    assert!(after > before, "{after} after {before}");
    for kind in ["repave_started", "reset"] {
        let count = fleet.sim.effects().expect("reads").iter().filter(|e| e.kind == kind).count();
        assert_eq!(count, 1, "{kind}");
    }
}

/// Two servers on one PostgreSQL share the work; one dies, the other takes over when the lease has passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_share_the_work_and_one_takes_over() {
    let fleet = Fleet::new(Database::Postgres, 1);
    let (one, two) = (fleet.engine(quick("one"), None), fleet.engine(quick("two"), None));
    let service = fleet.service(&one).await;
    let mut runs = Vec::new();
    for n in 0..20 {
        let id = format!("m-{n}");
        service.register_machine(&admin(), labelled(&id, &[("sim.latency_ms", "400")])).await.expect("registers");
        runs.push(service.start_run(&admin(), start(&id, "REPAVE", "r")).await.expect("starts").run.id.to_string());
    }
    one.start().await.expect("starts");
    two.start().await.expect("starts");
    until_running(&service, &runs[0], "repave").await;
    one.kill();
    for run in &runs {
        let ended = until_ended(&service, run).await;
        assert_eq!(ended.run.phase, RunPhase::Succeeded, "{:?}", ended.run.error);
    }
    let effects = fleet.sim.effects().expect("reads");
    for kind in ["repave_started", "reset"] {
        assert_eq!(effects.iter().filter(|e| e.kind == kind).count(), 20, "{kind}");
    }
    two.stop().await;
    fleet.store.close();
}

/// How a host keeps silent after its command was started.
#[derive(Clone, Copy, PartialEq)]
enum Silence {
    /// So many polls are never answered.
    Polls(usize),
    /// No poll is answered until somebody kills the command.
    UntilKilled,
    /// The server dies in the start, and so many polls of the next one are refused.
    AfterACrash(usize),
}

/// The simulated fleet's commands, with a host that does not always answer.
struct SilentHost {
    sim: std::sync::Arc<sim::SimFleet>,
    silence: Silence,
    started: AtomicBool,
    killed: AtomicBool,
    polls: AtomicUsize,
    engine: OnceLock<engine::Engine>,
}

impl Provider for SilentHost {
    fn exec(&self) -> Option<&dyn Exec> {
        Some(self)
    }
}

#[async_trait::async_trait]
impl Exec for SilentHost {
    async fn start(&self, target: &Target, command: &Command, op: &Operation) -> ProviderResult<Ack> {
        let answer = self.sim.start(target, command, op).await;
        if !self.started.swap(true, Ordering::SeqCst) && matches!(self.silence, Silence::AfterACrash(_)) {
            self.engine.get().expect("set").kill();
            std::future::pending::<()>().await;
        }
        answer
    }

    async fn poll(&self, target: &Target, op: &Operation, offset: u64) -> ProviderResult<ExecProgress> {
        if self.started.load(Ordering::SeqCst) && !self.killed.load(Ordering::SeqCst) {
            let polls = self.polls.fetch_add(1, Ordering::SeqCst);
            match self.silence {
                Silence::UntilKilled => std::future::pending().await,
                Silence::Polls(most) if polls < most => std::future::pending().await,
                Silence::AfterACrash(most) if polls < most => return Err(ProviderError::transient("no route")),
                Silence::Polls(_) | Silence::AfterACrash(_) => {}
            }
        }
        self.sim.poll(target, op, offset).await
    }

    async fn kill(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        self.killed.store(true, Ordering::SeqCst);
        self.sim.kill(target, op).await
    }
}

/// Starts a run of one command on a new machine.
async fn start_command(service: &Service) -> String {
    service.register_machine(&admin(), machine("m-1")).await.expect("registers");
    let kind = domain::plan::StepKind::Ssh { command: "echo".into(), args: vec![], environment: Default::default() };
    let step = domain::plan::Step { name: "run".into(), timeout_seconds: Some(20), max_retries: Some(2), kind };
    let plan = domain::plan::Plan { id: "command".into(), display_name: String::new(), steps: vec![step] };
    service.create_plan(&admin(), plan, "api").await.expect("creates");
    let mut request = start("m-1", "", "r");
    request.plan_id = "command".into();
    service.start_run(&admin(), request).await.expect("starts").run.id.to_string()
}

/// Runs one command on a host that keeps silent; answers how often it was started.
async fn starts_of_a_command(silence: Silence) -> usize {
    let fleet = Fleet::new(Database::Memory, 1);
    let host = std::sync::Arc::new(SilentHost {
        sim: fleet.sim.clone(),
        silence,
        started: AtomicBool::new(false),
        killed: AtomicBool::new(false),
        polls: AtomicUsize::new(0),
        engine: OnceLock::new(),
    });
    let engine = || fleet.engine_with(quick("one"), Providers::default().with("sim", host.clone()), None);
    let first = engine();
    host.engine.set(first.clone()).ok().expect("set once");
    let service = fleet.service(&first).await;
    first.start().await.expect("starts");
    let run = start_command(&service).await;
    if matches!(silence, Silence::AfterACrash(_)) {
        eventually("the crash", || async { host.started.load(Ordering::SeqCst).then_some(()) }).await;
        engine().start().await.expect("starts again");
    }
    let ended = until_ended(&service, &run).await.run;
    assert_eq!(ended.phase, RunPhase::Succeeded, "{:?}", ended.error);
    fleet.sim.effects().expect("reads").iter().filter(|e| e.kind == "exec_started").count()
}

/// A look without an answer says nothing about the command, which must not be run a second time for it.
#[tokio::test(start_paused = true)]
async fn silence_after_the_act_is_waited_out() {
    assert_eq!(starts_of_a_command(Silence::Polls(3)).await, 1);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_saw_end_is_looked_at_once_more_before_it_is_done_again() {
    assert_eq!(starts_of_a_command(Silence::UntilKilled).await, 1);
}

#[tokio::test(start_paused = true)]
async fn silence_after_a_takeover_is_waited_out() {
    assert_eq!(starts_of_a_command(Silence::AfterACrash(2)).await, 1);
}

/// That a machine is off which was off before is no sign that an installation has failed: a second one would be
/// begun beside the first, which the machine may only be slow to begin.
#[tokio::test(start_paused = true)]
async fn a_machine_that_was_off_is_not_taken_for_one_that_lost_power() {
    let fleet = Fleet::new(Database::Memory, 1);
    let engine = fleet.engine(quick("one"), None);
    let service = fleet.service(&engine).await;
    let late = labelled("m-1", &[("sim.fault.repave", "lie:1")]);
    let target = Target {
        machine_id: domain::MachineId::from_text("m-1"),
        labels: late.labels.clone(),
        spec: late.spec.clone(),
        notes: provider::Notes::default(),
        by: provider::By::System,
    };
    service.register_machine(&admin(), late).await.expect("registers");
    let somebody =
        Operation { execution: ExecutionId::from_text("x"), stage: "s".into(), attempt: 1, fence: "0.0".into() };
    let off = provider::PowerControl::power_off(fleet.sim.as_ref(), &target, &somebody).await;
    assert_eq!(off, Ok(Ack::Done));
    engine.start().await.expect("starts");
    let run = service.start_run(&admin(), start("m-1", "REPAVE", "r")).await.expect("starts").run.id.to_string();
    assert_eq!(until_ended(&service, &run).await.run.phase, RunPhase::Succeeded);
    let begun = fleet.sim.effects().expect("reads").iter().filter(|e| e.kind == "repave_started").count();
    assert_eq!(begun, 1);
}
