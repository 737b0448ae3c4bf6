//! Packets vanish and no reset tells of it. Every wait has a bound: the store gives up by itself, long before
//! the door would, and says what it knows.

use crate::fixture::{Bench, Told};
use proto::baremetal::v1::machine_status::Phase;
use testkit::fault_proxy::{Act, Moment, Weather};
use testkit::fleet::eventually;

async fn falls_silent(moment: Moment) {
    let bench = Bench::without_engine().await;
    bench.register("m-1", &[]).await;
    let before = bench.witness.machine("m-1").await;
    if matches!(moment, Moment::Greeting(_)) {
        bench.proxy.arm(moment, Act::FallSilent, 1);
        bench.proxy.reset_all();
    } else {
        bench.proxy.arm(moment, Act::FallSilent, 1);
    }
    let answer = bench.set_phase("m-1", Phase::Ready, "silence").await;
    assert_eq!(bench.proxy.seen().hits, 1, "{moment:?}: never came");
    match moment {
        Moment::Commit(_) => assert!(matches!(answer, Told::Unknown), "{moment:?}: {answer:?}"),
        Moment::Write(_) | Moment::Read(_) | Moment::Greeting(_) => {
            assert!(matches!(answer, Told::NotDone), "{moment:?}: {answer:?}");
        }
    }
    if matches!(moment, Moment::Read(_)) {
        // and so for everybody who comes, as long as it lasts
        let other = bench.set_phase("m-1", Phase::Ready, "another").await;
        assert!(matches!(other, Told::NotDone), "{moment:?}: {other:?}");
    }
    bench.proxy.weather(Weather::Clear);
    eventually("writes to work again", || async {
        matches!(bench.set_phase("m-1", Phase::Ready, "silence").await, Told::Done(_)).then_some(())
    })
    .await;
    assert_eq!(bench.witness.machine("m-1").await, (before.0 + 1, before.1 + 1, before.2 + 1), "{moment:?}");
    bench.until_reads_work("m-1").await;
    bench.witness.check_log().await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_has_a_bound_wherever_it_falls() {
    let moments = [Moment::Greeting(1), Moment::Read(1), Moment::Write(1), Moment::Write(2), Moment::Commit(1)];
    futures::future::join_all(moments.map(falls_silent)).await;
}
