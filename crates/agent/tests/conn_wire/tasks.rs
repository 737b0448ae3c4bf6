//! Tasks: each at most once, told until it is stored, under the newest fence; output that is bounded.

use crate::Bench;
use crate::stand_in::{Seen, public_key, task};
use agent::connection::Departure;
use agent::task::{Context, Hold};
use proto::agent::v1::from_agent::Message;
use proto::agent::v1::task::Kind;
use proto::agent::v1::to_agent::Message as Word;
use proto::agent::v1::{
    Cancel, Fence, GoAway, HostExec, NodeUninstall, OutputStored, ResultStored, Task, TaskOutput, TaskResult,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

fn fence(counter: u64) -> Option<Fence> {
    Some(Fence { epoch: 1, counter })
}

/// As the agreement has it, and not as the agent's code does.
fn is_signed(bench: &Bench, result: &TaskResult) -> bool {
    let fence = result.fence.expect("a fence");
    let text = format!(
        "millwright task result v1\n{}\n{}.{}\n{}\n{}",
        result.task_id, fence.epoch, fence.counter, result.ok, result.detail_json
    );
    let key = public_key(&bench.server.set().certificate);
    let key = ring::signature::UnparsedPublicKey::new(&ring::signature::ECDSA_P256_SHA256_ASN1, key);
    key.verify(text.as_bytes(), &result.signature).is_ok()
}

async fn begun(bench: &Bench, times: usize) {
    while bench.carried_out() < times {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_task_returns_its_stored_result_and_is_carried_out_once() {
    let (mut bench, running) = Bench::connected().await;
    let ledger = bench.ledger();
    bench.server.say(Word::Task(task("t-1", 1, &[&ledger, "end"]))).await;
    let first = bench.server.result().await;
    assert!(first.ok && first.fence == fence(1) && is_signed(&bench, &first), "{first:?}");
    // once more under the same fence, then under a newer one
    for counter in [1, 2] {
        bench.server.say(Word::Task(task("t-1", counter, &[&ledger, "end"]))).await;
        let again = bench.server.result().await;
        assert!(is_signed(&bench, &again));
        assert_eq!(
            (again.fence, again.started_at, &again.detail_json),
            (fence(counter), first.started_at, &first.detail_json)
        );
    }
    // also over a restart, without being asked
    running.dies().await;
    let running = bench.run();
    let again = bench.server.result().await;
    assert_eq!((again.fence, again.ok), (fence(2), true));
    bench.server.stored("t-1").await;
    bench.server.say(Word::Task(task("t-1", 2, &[&ledger, "end"]))).await;
    assert_eq!(bench.server.refusal().await.code, "OLD_FENCE", "it has ended under that fence");
    assert_eq!(bench.carried_out(), 1);
    assert_eq!(std::fs::read_dir(bench.state("tasks")).expect("listed").count(), 0, "and is forgotten");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_old_fence_is_refused_also_by_an_agent_that_was_started_anew() {
    let (mut bench, running) = Bench::connected().await;
    let ledger = bench.ledger();
    bench.server.say(Word::Task(task("t-1", 10, &[&ledger, "end"]))).await;
    bench.server.result().await;
    bench.server.stored("t-1").await;
    running.dies().await;
    let running = bench.run();
    bench.server.confirmed().await;
    for counter in [3, 9, 10] {
        bench.server.say(Word::Task(task("t-2", counter, &[&ledger, "end"]))).await;
        let refusal = bench.server.refusal().await;
        assert_eq!(
            (refusal.code.as_str(), refusal.highest_seen, refusal.fence),
            ("OLD_FENCE", fence(10), fence(counter))
        );
    }
    let mut epoch = task("t-2", 1, &[&ledger, "end"]);
    epoch.fence = Some(Fence { epoch: 2, counter: 1 });
    bench.server.say(Word::Task(epoch)).await;
    assert!(bench.server.result().await.ok, "a new epoch counts from one");
    assert_eq!(bench.carried_out(), 2);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_runs_takes_over_a_newer_fence() {
    let (mut bench, running) = Bench::connected().await;
    let ledger = bench.ledger();
    bench.server.say(Word::Task(task("t-1", 1, &[&ledger, "until"]))).await;
    begun(&bench, 1).await;
    bench.server.say(Word::Task(task("t-1", 5, &[&ledger, "until"]))).await;
    let renewal = bench
        .server
        .until("a renewal of its lease", |seen| match seen {
            Seen::Said(said) => match *said {
                Message::Renewal(renewal) if renewal.fence == fence(5) => Some(renewal),
                _ => None,
            },
            _ => None,
        })
        .await;
    assert_eq!(renewal.task_id, "t-1");
    std::fs::write(format!("{ledger}.go"), "").expect("written");
    let result = bench.server.result().await;
    assert!(result.ok && result.fence == fence(5) && is_signed(&bench, &result));
    assert_eq!(bench.carried_out(), 1);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_result_that_crosses_a_newer_dispatch_is_told_again_and_not_done_again() {
    for reason in ["OLD_FENCE", "EXPIRED"] {
        told_again_and_not_done_again(reason).await;
    }
}

async fn told_again_and_not_done_again(reason: &str) {
    let (mut bench, running) = Bench::connected().await;
    let ledger = bench.ledger();
    bench.server.say(Word::Task(task("t-1", 1, &[&ledger, "end"]))).await;
    bench.server.result().await;
    let old = ResultStored { task_id: "t-1".to_owned(), applied: false, reason: reason.to_owned() };
    bench.server.say(Word::ResultStored(old)).await;
    bench.server.so_far();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let results = |seen: &Seen| matches!(seen, Seen::Said(said) if matches!(**said, Message::Result(_)));
    assert!(!bench.server.so_far().iter().any(results), "nobody wants it under the old fence");
    running.dies().await;
    let running = bench.run();
    bench.server.confirmed().await;
    bench.server.say(Word::Task(task("t-1", 2, &[&ledger, "end"]))).await;
    let result = bench.server.result().await;
    assert!(result.ok && result.fence == fence(2));
    assert_eq!(bench.carried_out(), 1, "{reason}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_result_that_nobody_will_ask_for_again_is_forgotten() {
    for reason in ["ALREADY_ENDED", "NOT_YOURS"] {
        let (mut bench, running) = Bench::connected().await;
        let ledger = bench.ledger();
        bench.server.say(Word::Task(task("t-1", 1, &[&ledger, "end"]))).await;
        bench.server.result().await;
        let over = ResultStored { task_id: "t-1".to_owned(), applied: false, reason: reason.to_owned() };
        bench.server.say(Word::ResultStored(over)).await;
        while bench.state("tasks/t-1.json").exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_begun_when_the_agent_died_is_told_as_interrupted_and_not_begun_again() {
    let (mut bench, running) = Bench::connected().await;
    let ledger = bench.ledger();
    bench.server.say(Word::Task(task("t-1", 1, &[&ledger, "hold"]))).await;
    begun(&bench, 1).await;
    bench.server.say(Word::Task(task("t-2", 2, &[&ledger, "end"]))).await;
    bench.server.heartbeat().await;
    while !bench.state("tasks/t-2.json").exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // as stopping leaves it: what was begun has no result
    running.stop().await;
    bench.server.so_far();
    let running = bench.run();
    let (first, second) = (bench.server.result().await, bench.server.result().await);
    for (result, id, began) in [(&first, "t-1", true), (&second, "t-2", false)] {
        assert_eq!((result.task_id.as_str(), result.code.as_str()), (id, "INTERRUPTED"), "{result:?}");
        assert_eq!(result.failure_class, "transient");
        assert!(result.detail_json.contains(&format!("\"began\":{began}")) && is_signed(&bench, result));
    }
    bench.server.say(Word::Task(task("t-1", 3, &[&ledger, "hold"]))).await;
    let again = bench.server.result().await;
    assert_eq!((again.code.as_str(), again.fence), ("INTERRUPTED", fence(3)));
    assert_eq!(bench.carried_out(), 1);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_can_be_what_a_task_was_about() {
    let (mut bench, running) = Bench::connected().await;
    let ledger = bench.ledger();
    bench.server.say(Word::Task(task("t-1", 1, &[&ledger, "hold"]))).await;
    begun(&bench, 1).await;
    running.stop().await;
    bench.setting.after_restart = std::sync::Arc::new(|kind, _| {
        assert!(matches!(kind, Kind::HostExec(HostExec { args, .. }) if args[1] == "hold"), "{kind:?}");
        Some(Ok(agent::task::Done { message: "another boot id".to_owned(), detail: serde_json::json!({"boot": 2}) }))
    });
    let running = bench.run();
    let result = bench.server.result().await;
    assert!(result.ok && result.detail_json == "{\"boot\":2}", "{result:?}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn tasks_are_canceled_and_end_when_their_time_is_up() {
    let (mut bench, running) = Bench::connected().await;
    let ledger = bench.ledger();
    let cancel =
        |id: &str, counter| Cancel { task_id: id.to_owned(), fence: fence(counter), reason: "asked to".to_owned() };
    bench.server.say(Word::Task(task("t-1", 1, &[&ledger, "hold"]))).await;
    bench.server.say(Word::Task(task("t-2", 2, &[&ledger, "hold"]))).await;
    begun(&bench, 1).await;
    bench.server.say(Word::Cancel(cancel("t-1", 0))).await; // of an older dispatch
    bench.server.say(Word::Cancel(cancel("t-2", 2))).await;
    let waiting = bench.server.result().await;
    assert_eq!((waiting.task_id.as_str(), waiting.code.as_str()), ("t-2", "CANCELED"));
    bench.server.say(Word::Cancel(cancel("t-1", 1))).await;
    let held = bench.server.result().await;
    assert_eq!((held.task_id.as_str(), held.code.as_str()), ("t-1", "CANCELED"));
    assert!(held.message.contains("asked to") && held.detail_json.contains("held"), "{held:?}");
    for id in ["t-1", "t-2"] {
        bench.server.stored(id).await;
    }
    for (counter, what) in [(3, "hold"), (4, "stubborn")] {
        let mut timed = task(&format!("t-{counter}"), counter, &[&ledger, what]);
        timed.timeout_seconds = 90;
        let began = Instant::now();
        bench.server.say(Word::Task(timed)).await;
        let result = bench.server.result().await;
        assert_eq!((result.code.as_str(), result.failure_class.as_str()), ("TIMED_OUT", "transient"), "{result:?}");
        assert!((90..=121).contains(&began.elapsed().as_secs()), "{what}: {:?}", began.elapsed());
        bench.server.stored(&result.task_id).await;
    }
    bench.server.say(Word::Task(task("t-5", 5, &[&ledger, "fault"]))).await;
    let fault = bench.server.result().await;
    assert_eq!((fault.code.as_str(), fault.failure_class.as_str()), ("AGENT_FAULT", "needs_operator"));
    let mut late = task("t-6", 6, &[&ledger, "end"]);
    late.deadline = Some(agent::clock::to_wire(bench.server.now().minus(Duration::from_secs(5))));
    bench.server.say(Word::Task(late)).await;
    assert_eq!(bench.server.result().await.code, "DEADLINE");
    assert_eq!(bench.carried_out(), 4);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_begins_beside_work_that_an_ended_task_has_left_behind() {
    let mut bench = Bench::held();
    bench.enrol().await;
    // what a thread would hold that waits for the kernel, in the test's own hands
    let left: Arc<Mutex<Option<Hold>>> = Arc::default();
    let (plays, into) = (bench.setting.execute.clone(), left.clone());
    bench.setting.execute = Arc::new(move |kind, context: Context| {
        if matches!(&kind, Kind::HostExec(HostExec { args, .. }) if args[1] == "stubborn") {
            *into.lock().expect("no panic") = Some(context.hold.clone());
        }
        plays(kind, context)
    });
    let running = bench.run();
    bench.server.confirmed().await;
    let ledger = bench.ledger();
    let stubborn = |id: &str, counter| Task { timeout_seconds: 90, ..task(id, counter, &[&ledger, "stubborn"]) };
    bench.server.say(Word::Task(stubborn("t-1", 1))).await;
    bench.server.say(Word::Task(task("t-2", 2, &[&ledger, "end"]))).await;
    assert_eq!(bench.server.result().await.code, "TIMED_OUT");
    bench.server.stored("t-1").await;
    bench.server.heartbeat().await;
    assert_eq!(bench.carried_out(), 1, "the next one waits");
    left.lock().expect("no panic").take();
    let next = bench.server.result().await;
    assert!(next.ok && next.task_id == "t-2", "{next:?}");
    bench.server.stored("t-2").await;
    // one that hangs for good: who waits is told, and so is who comes
    bench.server.say(Word::Task(stubborn("t-3", 3))).await;
    bench.server.say(Word::Task(task("t-4", 4, &[&ledger, "end"]))).await;
    assert_eq!(bench.server.result().await.code, "TIMED_OUT");
    bench.server.stored("t-3").await;
    let waited = bench.server.result().await;
    assert_eq!((waited.task_id.as_str(), waited.code.as_str()), ("t-4", "BUSY"), "{waited:?}");
    assert!(waited.message.contains("t-3") && waited.detail_json.contains("\"began\":false"), "{waited:?}");
    bench.server.stored("t-4").await;
    bench.server.say(Word::Task(task("t-5", 5, &[&ledger, "end"]))).await;
    assert_eq!(bench.server.refusal().await.code, "BUSY");
    assert_eq!(bench.carried_out(), 3);
    left.lock().expect("no panic").take();
    bench.server.heartbeat().await;
    bench.server.say(Word::Task(task("t-5", 6, &[&ledger, "end"]))).await;
    assert!(bench.server.result().await.ok);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn leases_are_renewed_every_third_of_them() {
    let (mut bench, running) = Bench::connected().await;
    let ledger = bench.ledger();
    bench.server.say(Word::Task(task("t-1", 1, &[&ledger, "hold"]))).await;
    let mut last = Instant::now();
    for n in 0..20 {
        bench
            .server
            .until("a renewal", |seen| match seen {
                Seen::Said(said) => match *said {
                    Message::Renewal(renewal) => Some(renewal),
                    Message::Heartbeat(beat) => {
                        assert!(n == 0 || beat.running_tasks == ["t-1"], "{:?}", beat.running_tasks);
                        None
                    }
                    _ => None,
                },
                _ => None,
            })
            .await;
        assert!(last.elapsed() <= Duration::from_secs(21), "{:?}", last.elapsed());
        last = Instant::now();
    }
    running.stop().await;
}

fn outputs(seen: Vec<Seen>) -> Vec<TaskOutput> {
    let output = |seen| match seen {
        Seen::Said(said) => match *said {
            Message::Output(output) => Some(output),
            _ => None,
        },
        _ => None,
    };
    seen.into_iter().filter_map(output).collect()
}

async fn outputs_before_the_result(bench: &mut Bench) -> Vec<TaskOutput> {
    let mut seen = Vec::new();
    bench
        .server
        .until("the result", |one| match one {
            Seen::Said(said) if matches!(*said, Message::Result(_)) => Some(()),
            other => {
                seen.push(other);
                None
            }
        })
        .await;
    outputs(seen)
}

#[tokio::test(start_paused = true)]
async fn output_comes_before_the_result_and_again_after_a_cut_from_what_was_stored() {
    let (mut bench, running) = Bench::connected().await;
    let ledger = bench.ledger();
    let letters: Vec<String> = ["a", "b", "c"].iter().map(|l| l.repeat(32 * 1024 - 1)).collect();
    bench.server.say(Word::Task(task("t-1", 1, &[&ledger, "print", &letters[0], &letters[1], &letters[2]]))).await;
    let first = outputs_before_the_result(&mut bench).await;
    assert!(first.iter().all(|o| o.data.len() <= 32 * 1024 && o.dropped == 0 && o.fence == fence(1)));
    let text: Vec<u8> = first.iter().flat_map(|o| o.data.clone()).collect();
    assert_eq!(text, format!("{}\n{}\n{}\n", letters[0], letters[1], letters[2]).into_bytes());
    bench.server.say(Word::OutputStored(OutputStored { task_id: "t-1".to_owned(), offset: 32 * 1024 })).await;
    bench.server.heartbeat().await;
    bench.server.cut();
    bench.server.confirmed().await;
    let again = outputs_before_the_result(&mut bench).await;
    assert_eq!(again.first().map(|o| (o.offset, o.dropped)), Some((32 * 1024, 0)));
    assert_eq!(again.iter().map(|o| o.data.len()).sum::<usize>(), 64 * 1024);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_flood_while_the_server_is_away_is_bounded_and_counted() {
    let (mut bench, running) = Bench::connected().await;
    let ledger = bench.ledger();
    bench.server.say(Word::Task(task("t-1", 1, &[&ledger, "until"]))).await;
    bench.server.say(Word::Task(task("t-2", 2, &[&ledger, "flood", "20"]))).await;
    begun(&bench, 1).await;
    while !bench.state("tasks/t-2.json").exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bench.server.set().reachable = false;
    bench.server.cut();
    std::fs::write(format!("{ledger}.go"), "").expect("written");
    begun(&bench, 2).await;
    let ended = |text: String| text.contains("ended");
    while !std::fs::read_to_string(bench.state("tasks/t-2.json")).is_ok_and(ended) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bench.server.so_far();
    bench.server.set().reachable = true;
    let mut seen = Vec::new();
    bench
        .server
        .until("the result of the flood", |one| match one {
            Seen::Said(said) if matches!(&*said, Message::Result(result) if result.task_id == "t-2") => Some(()),
            other => {
                seen.push(other);
                None
            }
        })
        .await;
    let sent = outputs(seen);
    let (kept, dropped) =
        (sent.iter().map(|o| o.data.len() as u64).sum::<u64>(), sent.iter().map(|o| o.dropped).sum::<u64>());
    assert_eq!(kept + dropped, 20 << 20, "every byte is sent or counted");
    assert!(kept <= 1 << 20 && kept > 900 << 10, "{kept}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_sends_without_end_is_told_that_the_agent_is_busy() {
    let (mut bench, running) = Bench::connected().await;
    let ledger = bench.ledger();
    for n in 1..=300 {
        bench.server.say(Word::Task(task(&format!("t-{n}"), n, &[&ledger, "hold"]))).await;
    }
    let mut codes = Vec::new();
    while codes.len() < 296 {
        codes.push(bench.server.refusal().await.code);
    }
    assert!(codes.iter().all(|code| code == "BUSY"), "{codes:?}");
    assert_eq!(std::fs::read_dir(bench.state("tasks")).expect("listed").count(), 4);
    assert_eq!(bench.carried_out(), 1);
    // and it is no worse for it
    assert_eq!(bench.server.heartbeat().await.running_tasks, ["t-1", "t-2", "t-3", "t-4"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn results_that_nobody_stores_end_in_a_refusal_and_not_in_a_full_disk() {
    let (mut bench, running) = Bench::connected().await;
    let ledger = bench.ledger();
    for n in 1..=64 {
        bench.server.say(Word::Task(task(&format!("t-{n}"), n, &[&ledger, "end"]))).await;
        let id = format!("t-{n}");
        while bench.server.result().await.task_id != id {}
    }
    bench.server.say(Word::Task(task("t-65", 65, &[&ledger, "end"]))).await;
    assert_eq!(bench.server.refusal().await.code, "BUSY");
    bench.server.stored("t-1").await;
    bench.server.say(Word::Task(task("t-65", 66, &[&ledger, "end"]))).await;
    while bench.server.result().await.task_id != "t-65" {}
    assert_eq!(bench.carried_out(), 65);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_written_down_is_not_carried_out() {
    let (mut bench, running) = Bench::connected().await;
    let ledger = bench.ledger();
    std::fs::remove_dir(bench.state("tasks")).expect("empty");
    std::fs::write(bench.state("tasks"), "in the way").expect("written");
    bench.server.say(Word::Task(task("t-1", 1, &[&ledger, "end"]))).await;
    let refusal = bench.server.refusal().await;
    assert!(refusal.code == "BUSY" && refusal.message.contains("written down"), "{refusal:?}");
    std::fs::remove_file(bench.state("tasks")).expect("removed");
    std::fs::create_dir(bench.state("tasks")).expect("out of the way");
    std::fs::remove_file(bench.state("fence.json")).expect("removed");
    std::fs::create_dir(bench.state("fence.json")).expect("in the way");
    bench.server.say(Word::Task(task("t-2", 2, &[&ledger, "end"]))).await;
    let refusal = bench.server.refusal().await;
    assert!(refusal.code == "BUSY" && refusal.message.contains("written down"), "{refusal:?}");
    assert_eq!(bench.carried_out(), 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_uninstallation_ends_the_agent_once_its_result_is_stored_and_not_before() {
    let (mut bench, running) = Bench::connected().await;
    let kind = Some(Kind::NodeUninstall(NodeUninstall {}));
    bench.server.say(Word::Task(Task { kind, ..task("t-1", 1, &[]) })).await;
    assert!(bench.server.result().await.ok);
    for _ in 0..4 {
        bench.server.heartbeat().await;
    }
    bench.server.stored("t-1").await;
    assert_eq!(running.departure().await, Departure::Uninstalled);
    // it died before it was gone: it goes on with going
    assert_eq!(bench.run().departure().await, Departure::Uninstalled);
}

#[tokio::test(start_paused = true)]
async fn an_uninstallation_whose_acknowledgement_is_lost_ends_with_the_node() {
    let away = |reason: &str| GoAway { reason: reason.to_owned(), message: String::new(), retry_after_seconds: 0 };
    let kind = || Some(Kind::NodeUninstall(NodeUninstall {}));
    for (reason, uninstalled) in [("REVOKED", true), ("DELETED", true), ("CLONED", false)] {
        let (mut bench, running) = Bench::connected().await;
        bench.server.say(Word::Task(Task { kind: kind(), ..task("t-1", 1, &[]) })).await;
        assert!(bench.server.result().await.ok);
        // also by one that has died since, and is told instead of being welcomed
        if reason == "DELETED" {
            running.dies().await;
            bench.server.set().instead = Some(Word::GoAway(away(reason)));
            assert_eq!(bench.run().departure().await, Departure::Uninstalled);
            continue;
        }
        bench.server.say(Word::GoAway(away(reason))).await;
        let departure = running.departure().await;
        assert_eq!(departure == Departure::Uninstalled, uninstalled, "{reason}: {departure:?}");
    }
    // withdrawn by the server: whoever is revoked after that has not been uninstalled, and who is deleted has
    for (reason, uninstalled) in [("REVOKED", false), ("DELETED", true)] {
        let (mut bench, running) = Bench::connected().await;
        bench.server.say(Word::Task(Task { kind: kind(), ..task("t-1", 1, &[]) })).await;
        assert!(bench.server.result().await.ok);
        let expired = ResultStored { task_id: "t-1".to_owned(), applied: false, reason: "EXPIRED".to_owned() };
        bench.server.say(Word::ResultStored(expired)).await;
        bench.server.say(Word::GoAway(away(reason))).await;
        let departure = running.departure().await;
        assert_eq!(departure == Departure::Uninstalled, uninstalled, "{reason}: {departure:?}");
    }
    // and a task that is none of the kind changes nothing
    let (mut bench, running) = Bench::connected().await;
    let ledger = bench.ledger();
    bench.server.say(Word::Task(task("t-1", 1, &[&ledger, "end"]))).await;
    assert!(bench.server.result().await.ok);
    bench.server.say(Word::GoAway(away("REVOKED"))).await;
    assert!(matches!(running.departure().await, Departure::Banished { .. }));
}

#[tokio::test(start_paused = true)]
async fn ids_and_kinds_that_make_no_sense_are_refused() {
    let (mut bench, running) = Bench::connected().await;
    let none = Task { kind: None, ..task("t-1", 1, &[]) };
    let path = task("../../identity", 2, &[]);
    let unfenced = Task { fence: None, ..task("t-3", 3, &[]) };
    for (task, code) in [(none, "UNKNOWN_TASK"), (path, "INVALID"), (unfenced, "INVALID")] {
        bench.server.say(Word::Task(task)).await;
        assert_eq!(bench.server.refusal().await.code, code);
    }
    running.stop().await;
}
