//! The connection is reset at every statement of a transaction, before the server hears it and after it has
//! answered; once, and again on the second try.

use crate::fixture::{Bench, REPAVE, Told, each_once, from_environment, steady, told};
use proto::baremetal::v1::GetMachineRequest;
use proto::baremetal::v1::machine_status::Phase;
use testkit::fault_proxy::{Act, Moment};
use testkit::fleet::eventually;

const ACTS: [Act; 2] = [Act::CutBefore, Act::LoseAnswer];
const NEVER: Moment = Moment::Write(usize::MAX);

/// How often each answer was given.
#[derive(Default)]
struct Tally {
    points: usize,
    done: usize,
    not_done: usize,
    unknown: usize,
}

impl Tally {
    fn count<T>(&mut self, told: &Told<T>, what: &str) {
        self.points += 1;
        match told {
            Told::Done(_) => self.done += 1,
            Told::NotDone => self.not_done += 1,
            Told::Unknown => self.unknown += 1,
            Told::Full => panic!("{what}: nothing is full"),
        }
    }

    /// All kinds of answers were given; how often each.
    fn check(&self) -> String {
        let all_kinds = self.done > 0 && self.not_done > 0 && self.unknown > 0;
        assert!(all_kinds, "resets that lead to only one kind of answer reach only part of a transaction");
        let Self { points, done, not_done, unknown } = self;
        format!("{points} resets; {done} calls done all the same, {not_done} refused, {unknown} unknown")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_at_any_statement_of_set_phase_loses_and_doubles_nothing() {
    let bench = Bench::without_engine().await;
    bench.register("m-1", &[]).await;
    let mut to = [Phase::Ready, Phase::Maintenance].into_iter().cycle();
    // the first use prepares, the second shows what a move is made of
    let mut statements = 0;
    for n in 0..2 {
        bench.proxy.arm(NEVER, Act::CutBefore, 1);
        let moved = bench.set_phase("m-1", to.next().expect("endless"), &format!("before-{n}")).await;
        assert!(matches!(moved, Told::Done(_)), "{moved:?}");
        statements = bench.proxy.disarm().writes;
    }
    assert!(statements >= 5, "BEGIN, at least a read, a write, the log and COMMIT; not {statements}");
    let mut tally = Tally::default();
    for act in ACTS {
        for times in [1, 2] {
            for nth in 1.. {
                let key = format!("{act:?} at {nth} of {statements}, {times} times");
                let phase = to.next().expect("endless");
                let before = bench.witness.machine("m-1").await;
                let after = (before.0 + 1, before.1 + 1, before.2 + 1);
                bench.proxy.arm(Moment::Write(nth), act, times);
                let answer = bench.set_phase("m-1", phase, &key).await;
                if bench.proxy.disarm().hits == 0 {
                    // past the last statement: a new connection has one more, to prepare the log's
                    assert!(nth > statements, "{key}: was never done");
                    assert!(matches!(answer, Told::Done(_)), "{key}: {answer:?}");
                    break;
                }
                tally.count(&answer, &key);
                let there = bench.witness.machine("m-1").await;
                match answer {
                    Told::Done(_) => assert_eq!(there, after, "{key}: was acknowledged"),
                    Told::NotDone => assert_eq!(there, before, "{key}: \"nothing was changed\""),
                    Told::Unknown => assert!(there == before || there == after, "{key}: {before:?} to {there:?}"),
                    Told::Full => panic!("{key}: nothing is full"),
                }
                let again = bench.set_phase("m-1", phase, &key).await;
                assert!(matches!(again, Told::Done(_)), "{key}: repeated, {again:?}");
                assert_eq!(bench.witness.machine("m-1").await, after, "{key}: repeated, and done once");
            }
        }
    }
    bench.witness.check_log().await;
    println!("SetPhase: {}", tally.check());
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_at_any_statement_of_start_run_starts_one_run_or_none() {
    let bench = Bench::without_engine().await;
    let mut statements = 0;
    for n in 0..2 {
        let id = format!("before-{n}");
        bench.register(&id, &[]).await;
        bench.proxy.arm(NEVER, Act::CutBefore, 1);
        let started = bench.start(&id, "REPAVE", "r").await;
        assert!(matches!(started, Told::Done(_)), "{started:?}");
        statements = bench.proxy.disarm().writes;
    }
    assert!(statements >= 8, "{statements}");
    let mut tally = Tally::default();
    for (act, times) in [(Act::CutBefore, 1), (Act::LoseAnswer, 2)] {
        for nth in 1.. {
            let what = format!("{act:?} at {nth} of {statements}, {times} times");
            let id = format!("m-{act:?}-{times}-{nth}");
            bench.register(&id, &[]).await;
            bench.proxy.arm(Moment::Write(nth), act, times);
            let answer = bench.start(&id, "REPAVE", "r").await;
            if bench.proxy.disarm().hits == 0 {
                assert!(nth > statements, "{what}: was never done");
                assert!(matches!(answer, Told::Done(_)), "{what}: {answer:?}");
                break;
            }
            tally.count(&answer, &what);
            let there = bench.witness.runs(&id).await;
            match &answer {
                Told::Done(run) => assert_eq!(there, [(run.run_id.clone(), "PENDING".to_owned())], "{what}"),
                Told::NotDone => assert_eq!(there, [], "{what}: \"nothing was changed\""),
                Told::Unknown => assert!(there.len() <= 1, "{what}: {there:?}"),
                Told::Full => panic!("{what}: nothing is full"),
            }
            let Told::Done(again) = bench.start(&id, "REPAVE", "r").await else { panic!("{what}: repeated") };
            if let Told::Done(run) = &answer {
                assert_eq!(run.run_id, again.run_id, "{what}");
            }
            assert_eq!(bench.witness.runs(&id).await, [(again.run_id, "PENDING".to_owned())], "{what}");
            let executions = bench.witness.count("executions WHERE machine_id = $1", &id).await;
            assert_eq!(executions, 1, "{what}: a run has one execution");
        }
    }
    bench.witness.check_log().await;
    println!("StartRun: {}", tally.check());
    bench.end().await;
}

// that a connection broke since its last use says nothing about the database: the read is made again, once
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_survives_one_reset_and_tells_of_two() {
    const TRIES: usize = 20;
    let bench = Bench::without_engine().await;
    bench.register("m-1", &[]).await;
    let read = |act: Act, times: usize| {
        let (mut machines, proxy) = (bench.machines(), &bench.proxy);
        async move {
            proxy.arm(Moment::Read(1), act, times);
            let answer = machines.get_machine(GetMachineRequest { machine_id: "m-1".into() }).await;
            (told(answer, &format!("{act:?}, {times} times")), proxy.disarm().hits)
        }
    };
    for act in ACTS {
        // some hit those who follow the log, which read, too; none may show
        let mut hits = 0;
        for _ in 0..TRIES {
            let (answer, hit) = read(act, 1).await;
            assert!(matches!(answer, Told::Done(_)), "{act:?}: {answer:?}");
            hits += hit;
        }
        assert!(hits >= TRIES / 2, "{act:?}: was done only {hits} times");
        eventually("a read is hit twice in a row", || async {
            matches!(read(act, 2).await, (Told::NotDone, 2)).then_some(())
        })
        .await;
    }
    bench.end().await;
}

/// One REPAVE with one fault, from its request to its end. Answers how many statements and commits of
/// writing it saw after the fault, or in all when there was none.
pub async fn repave(bench: &Bench, id: &str, moment: Moment, act: Act, what: &str) -> testkit::fault_proxy::Seen {
    bench.register(id, &[]).await;
    bench.proxy.arm(moment, act, 1);
    let run = eventually(what, || async {
        match bench.start(id, "REPAVE", "r").await {
            Told::Done(run) => Some(run.run_id),
            Told::NotDone | Told::Unknown => None,
            Told::Full => panic!("{what}: nothing is full"),
        }
    })
    .await;
    let phase = eventually(what, || async {
        let runs = bench.witness.runs(id).await;
        assert_eq!(runs.len(), 1, "{what}: {runs:?}");
        runs.into_iter().find(|r| r.0 == run && !matches!(r.1.as_str(), "PENDING" | "RUNNING")).map(|r| r.1)
    })
    .await;
    let seen = bench.proxy.disarm();
    assert_eq!(phase, "SUCCEEDED", "{what}");
    each_once(&bench.server.fleet, id, &REPAVE, what);
    let held = bench.witness.count("machines WHERE machine_id = $1 AND active_run_id IS NOT NULL", id).await;
    assert_eq!(held, 0, "{what}: the machine is let go");
    let id = domain::RunId::from_text(run);
    let folds = eventually("the fold", || async {
        let id = id.clone();
        bench.server.fleet.store.snapshot(move |tx| store::run::check_fold(tx, &id)).await.ok()
    });
    assert_eq!(folds.await, Ok(()), "{what}: the row is what its log says");
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repave_survives_a_reset_at_its_statements() {
    let bench = Bench::new(steady()).await;
    repave(&bench, "warm", NEVER, Act::CutBefore, "no fault").await;
    let statements = repave(&bench, "clean", NEVER, Act::CutBefore, "no fault").await.writes;
    assert!(statements >= 60, "a REPAVE of five steps in {statements} statements");
    let stride = from_environment("MILLWRIGHT_FAULT_STRIDE", 11);
    let mut points = 0;
    for (n, act) in ACTS.into_iter().enumerate() {
        // the two ways take turns, so that together they are twice as dense
        for nth in (1 + n * (stride / 2)..=statements).step_by(stride) {
            let what = format!("{act:?} at {nth} of {statements}");
            let seen = repave(&bench, &format!("m-{act:?}-{nth}"), Moment::Write(nth), act, &what).await;
            assert_eq!(seen.hits, 1, "{what}: was never done");
            points += 1;
        }
    }
    bench.witness.check_log().await;
    println!("REPAVE: {points} resets at {statements} statements");
    bench.end().await;
}
