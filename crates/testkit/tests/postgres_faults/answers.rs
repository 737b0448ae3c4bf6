//! What the server says when it cannot: full, out of something, read-only, ending. Each SQLSTATE is raised by
//! the server itself, at the first statement of a change, at its last and at its COMMIT.

use crate::fixture::{Bench, Told, blocking, stock};
use proto::baremetal::v1::machine_status::Phase;
use testkit::fault_proxy::{Act, Moment, Weather};
use testkit::fleet::eventually;

const FULL: &str = "53100";
/// Out of memory, too many connections, a limit reached, an I/O error, a system error, canceled, read-only, starting
/// up, connection failure.
const AWAY: [&str; 9] = ["53200", "53300", "53400", "58030", "58000", "57014", "25006", "57P03", "08006"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_fails_a_statement_is_told_of_and_tried_again() {
    let bench = Bench::without_engine().await;
    bench.register("m-1", &[]).await;
    let mut to = [Phase::Ready, Phase::Maintenance].into_iter().cycle();
    bench.set_phase("m-1", to.next().expect("endless"), "warm").await;
    bench.proxy.arm(Moment::Write(usize::MAX), Act::CutBefore, 1);
    bench.set_phase("m-1", to.next().expect("endless"), "clean").await;
    let statements = bench.proxy.disarm().writes;
    let raised = std::iter::once(FULL).chain(AWAY).map(Act::Raise).chain([Act::Terminate]);
    let mut points = 0;
    for act in raised {
        for nth in [1, 2, statements - 1, statements] {
            let key = format!("{act:?} at {nth} of {statements}");
            let phase = to.next().expect("endless");
            let before = bench.witness.machine("m-1").await;
            let after = (before.0 + 1, before.1 + 1, before.2 + 1);
            // also on the second try, where there is one
            bench.proxy.arm(Moment::Write(nth), act, 2);
            let answer = bench.set_phase("m-1", phase, &key).await;
            assert!(bench.proxy.disarm().hits > 0, "{key}: was never done");
            points += 1;
            match (act, &answer) {
                (Act::Raise(FULL), Told::Full) | (_, Told::NotDone) => {}
                // the COMMIT was on its way
                (_, Told::Unknown) if nth > 2 && act != Act::Raise(FULL) => {}
                _ => panic!("{key}: {answer:?}"),
            }
            assert_eq!(bench.witness.machine("m-1").await, before, "{key}: nothing was changed");
            let again = bench.set_phase("m-1", phase, &key).await;
            assert!(matches!(again, Told::Done(_)), "{key}: repeated, {again:?}");
            assert_eq!(bench.witness.machine("m-1").await, after, "{key}: repeated, and done once");
        }
    }
    bench.witness.check_log().await;
    println!("SQLSTATEs: {points} points");
    bench.end().await;
}

// the first statement travels with BEGIN; when the server fails that one, the other is on its way
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_that_the_server_fails_lets_nothing_through() {
    let bench = Bench::without_engine().await;
    for code in std::iter::once(FULL).chain(AWAY) {
        // a change that begins with a write; the statement is known, so that it travels along
        let put = |name: &'static str| {
            let store = bench.server.fleet.store.clone();
            let put = move |tx: &mut store::Tx<'_>| {
                store::idempotency::remember(tx, "begin", &format!("{code}-{name}"), "", "")
            };
            async move { store.write(&store::Caller::new("tester"), "key", put).await.map_err(|e| e.reason) }
        };
        eventually("writes to work", || async { put("before").await.ok() }).await;
        bench.proxy.arm(Moment::Write(1), Act::Raise(code), 1);
        let answer = put("during").await.expect_err("there was no transaction");
        assert_eq!(bench.proxy.disarm().hits, 1, "{code}: was never done");
        let full = if code == FULL { domain::Reason::StorageFull } else { domain::Reason::StoreUnavailable };
        assert_eq!(answer, full, "{code}");
        let there = bench
            .witness
            .count("idempotency WHERE scope = 'begin' AND request_key = $1", &format!("{code}-during"))
            .await;
        assert_eq!(there, 0, "{code}: \"nothing was changed\"");
    }
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_the_server_fails_is_told_of() {
    let bench = Bench::without_engine().await;
    bench.register("m-1", &[]).await;
    for act in AWAY.map(Act::Raise).into_iter().chain([Act::Terminate]) {
        let what = format!("{act:?}");
        // the log is followed by reads as well: until it has hit one of this call's
        eventually(&what, || async {
            bench.proxy.arm(Moment::Read(1), act, 1);
            let request = proto::baremetal::v1::GetMachineRequest { machine_id: "m-1".into() };
            let answer = crate::fixture::told(bench.machines().get_machine(request).await, &what);
            bench.proxy.disarm();
            matches!(answer, Told::NotDone).then_some(())
        })
        .await;
        bench.until_reads_work("m-1").await;
    }
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lets_nobody_in_is_away_until_it_does() {
    let bench = Bench::without_engine().await;
    bench.register("m-1", &[]).await;
    for (n, weather) in [Weather::Refusing, Weather::Full("53300"), Weather::Full("57P03")].into_iter().enumerate() {
        let key = format!("{n}");
        let phase = [Phase::Ready, Phase::Maintenance][n % 2];
        let before = bench.witness.machine("m-1").await;
        // what is connected is cut off first
        bench.proxy.weather(weather);
        bench.proxy.reset_all();
        let answer = bench.set_phase("m-1", phase, &key).await;
        assert!(matches!(answer, Told::NotDone), "{weather:?}: {answer:?}");
        assert_eq!(bench.witness.machine("m-1").await, before, "{weather:?}: nothing was changed");
        bench.proxy.weather(Weather::Clear);
        eventually("writes to work again", || async {
            matches!(bench.set_phase("m-1", phase, &key).await, Told::Done(_)).then_some(())
        })
        .await;
        assert_eq!(bench.witness.machine("m-1").await.0, before.0 + 1, "{weather:?}: done once");
    }
    bench.end().await;
}

// the same without a proxy: a role that may have so many connections
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_connections_are_said_at_the_start() {
    let database = blocking(|| stock().database()).await;
    let name = database.get_dbname().expect("a name").to_owned();
    blocking(move || {
        stock().execute(&format!("CREATE ROLE few LOGIN CONNECTION LIMIT 0; ALTER DATABASE {name} OWNER TO few"));
    })
    .await;
    let mut few = database.clone();
    few.user("few");
    let options = store::Options::Postgres(Box::new(few));
    let opened = blocking(move || {
        store::Store::open(&options, std::sync::Arc::new(store::SystemAmbient::new())).map(drop).expect_err("no room")
    })
    .await;
    assert_eq!(opened.reason, domain::Reason::StoreUnavailable);
    assert!(opened.message.contains("53300"), "{opened}");
}
