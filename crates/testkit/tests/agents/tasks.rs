//! Tasks: handed out once under a fence, sent again as they are, ended by a signed word, and by nothing else.

use crate::fixture::{connected, enrolled, on_both, reason_of_end, refusals};
use domain::task::{LEASE, LEASE_EXPIRED, REQUEUED, TaskStatus, WITHDRAWN, signed_text};
use proto::agent::v1 as pb;
use proto::agent::v1::from_agent::Message as Says;
use proto::agent::v1::to_agent::Message as Word;
use std::time::Duration;
use store::{Cause, switch, task_output};
use testkit::agent_client::Conversation;
use testkit::fleet::eventually;

async fn answered(stream: &mut Conversation, result: pb::TaskResult) -> (bool, String) {
    stream.say(Says::Result(result)).await;
    let stored = stream.stored().await;
    (stored.applied, stored.reason)
}

fn not_applied(why: &str) -> (bool, String) {
    (false, why.to_owned())
}

/// By another program, as docs/nodes.md has it.
fn openssl_verifies(public: &[u8], text: &str, signature: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes) in [("key.der", public), ("text", text.as_bytes()), ("signature", signature)] {
        std::fs::write(folder.path().join(name), bytes).expect("is written");
    }
    let verified = std::process::Command::new("openssl")
        .args(["dgst", "-sha256", "-verify", "key.der", "-keyform", "DER", "-signature", "signature", "text"])
        .current_dir(folder.path())
        .output()
        .expect("openssl runs; where it is missing: apt-get install openssl");
    assert!(verified.status.success(), "{verified:?}");
}

on_both!(a_task_is_handed_out_at_once_and_ends_by_its_agents_word, |site| async move {
    let (node, agent, mut stream) = connected(&site, "gpu-1").await;
    let first = site.order(&node, "first").await;
    let order = stream.task().await;
    assert_eq!(order.task_id, first.as_str());
    assert!(matches!(order.kind, Some(pb::task::Kind::NodeValidateClean(_))), "{order:?}");
    assert!(order.timeout_seconds > 0 && order.deadline.is_some());
    let result = agent.result(&order, true, "{\"found\":[]}");
    assert_eq!(answered(&mut stream, result.clone()).await, (true, String::new()));
    let done = site.task(&first).await;
    assert_eq!(done.status, TaskStatus::Done);
    let kept = done.result.expect("a result");
    assert_eq!((kept.ok, kept.detail.as_str(), &kept.signature), (true, "{\"found\":[]}", &result.signature));
    // with the key that has signed it: the node's may be another one by the time that somebody asks
    let public = rcgen::PublicKeyData::subject_public_key_info(&agent.key);
    assert_eq!(kept.signed_by, public.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let text = signed_text(first.as_str(), done.fence, kept.ok, &kept.detail);
    openssl_verifies(&public, &text, &kept.signature);
    // again: as before
    assert_eq!(answered(&mut stream, result).await, (true, String::new()));
    // and otherwise: no
    assert_eq!(answered(&mut stream, agent.result(&order, false, "{}")).await, not_applied("ALREADY_ENDED"));
    assert_eq!(site.task(&first).await.status, TaskStatus::Done);
    let second = site.order(&node, "second").await;
    let order = stream.task().await;
    assert_eq!(order.task_id, second.as_str());
    assert_eq!(answered(&mut stream, agent.result(&order, false, "")).await, (true, String::new()));
    let failed = site.task(&second).await;
    let result = failed.result.expect("a result");
    assert_eq!((failed.status, result.code.as_str()), (TaskStatus::Failed, "NOT_CLEAN"));
    assert_eq!(result.class, domain::stage::FailureClass::Hardware);
});

on_both!(what_was_handed_out_is_sent_again_as_it_is, |site| async move {
    let (node, mut agent) = enrolled(&site, "gpu-1").await;
    let id = site.order(&node, "waits for its agent").await;
    // not to one that has not confirmed
    let mut quiet = agent.open(&site.dialer).await.expect("opens");
    quiet.say(agent.hello(site.now())).await;
    assert!(matches!(quiet.next().await, Ok(Some(Word::Welcome(_)))));
    assert_eq!(site.task(&id).await.status, TaskStatus::Queued);
    let mut stream = agent.connect(&site.dialer).await.expect("connects");
    let first = stream.task().await;
    drop(stream);
    let mut stream = agent.connect(&site.dialer).await.expect("connects");
    let again = stream.task().await;
    assert_eq!((&first.task_id, first.fence), (&again.task_id, again.fence));
    assert_eq!(answered(&mut stream, agent.result(&again, true, "")).await, (true, String::new()));
    // one that ends while nobody is connected is not sent any more
    drop(stream);
    let mut stream = agent.connect(&site.dialer).await.expect("connects");
    let next = site.order(&node, "next").await;
    assert_eq!(stream.task().await.task_id, next.as_str());
});

on_both!(an_old_fence_is_refused_and_the_new_one_counts, |site| async move {
    let (node, agent, mut stream) = connected(&site, "gpu-1").await;
    let id = site.order(&node, "once").await;
    let first = stream.task().await;
    site.move_task(&id, Cause::reconciler("tester", LEASE_EXPIRED, ""), |task| {
        task.status = TaskStatus::Expired;
        task.lease_until = None;
    })
    .await;
    // not over: an agent that forgot its result now would have nothing to say when the task comes again
    assert_eq!(answered(&mut stream, agent.result(&first, true, "")).await, not_applied("EXPIRED"));
    site.move_task(&id, Cause::executor("tester", REQUEUED, ""), |task| {
        task.status = TaskStatus::Queued;
        task.requeues += 1;
    })
    .await;
    let second = stream.task().await;
    let (old, new) = (first.fence.expect("a fence"), second.fence.expect("a fence"));
    assert_eq!(first.task_id, second.task_id);
    assert!(new.counter > old.counter);
    assert_eq!(answered(&mut stream, agent.result(&first, true, "")).await, not_applied("OLD_FENCE"));
    assert_eq!(site.task(&id).await.status, TaskStatus::Dispatched);
    assert_eq!(answered(&mut stream, agent.result(&second, true, "")).await, (true, String::new()));
    assert_eq!(site.task(&id).await.status, TaskStatus::Done, "what was kept is taken under the new fence");
    assert!(refusals(&site).await.iter().any(|e| e.message.contains("OLD_FENCE") && e.target == node.as_str()));
});

on_both!(nobody_ends_the_task_of_another, |site| async move {
    let (victim, owner, mut theirs) = connected(&site, "gpu-1").await;
    let (_, agent, mut stream) = connected(&site, "gpu-2").await;
    let id = site.order(&victim, "not yours").await;
    let order = theirs.task().await;
    assert_eq!(answered(&mut stream, agent.result(&order, true, "")).await, not_applied("NOT_YOURS"));
    let unknown = pb::Task { task_id: "tsk_nobody".to_owned(), ..order.clone() };
    assert_eq!(answered(&mut stream, agent.result(&unknown, true, "")).await, not_applied("NOT_YOURS"));
    // nor does another key by the owner's stream
    assert_eq!(answered(&mut theirs, agent.result(&order, true, "")).await, not_applied("BAD_SIGNATURE"));
    let refusal = pb::TaskRefusal { task_id: order.task_id.clone(), fence: order.fence, ..Default::default() };
    stream.say(Says::Refusal(refusal)).await;
    let output = pb::TaskOutput {
        task_id: order.task_id.clone(),
        fence: order.fence,
        data: b"not mine".to_vec(),
        ..pb::TaskOutput::default()
    };
    stream.say(Says::Output(output)).await;
    // answered in order: what came before has been dealt with
    assert_eq!(answered(&mut stream, agent.result(&unknown, true, "")).await, not_applied("NOT_YOURS"));
    let there = site.task(&id).await;
    assert_eq!((there.status, there.output_bytes), (TaskStatus::Dispatched, 0));
    assert_eq!(answered(&mut theirs, owner.result(&order, true, "")).await, (true, String::new()));
    assert!(refusals(&site).await.iter().any(|e| e.message.contains("NOT_YOURS")));
});

on_both!(a_result_that_was_changed_on_its_way_is_refused, |site| async move {
    let (node, agent, mut stream) = connected(&site, "gpu-1").await;
    let id = site.order(&node, "once").await;
    let order = stream.task().await;
    let good = agent.result(&order, false, "{\"found\":[\"a\"]}");
    let fence = order.fence.expect("a fence");
    let changed = [
        pb::TaskResult { ok: true, ..good.clone() },
        pb::TaskResult { detail_json: "{\"found\":[]}".to_owned(), ..good.clone() },
        pb::TaskResult { signature: Vec::new(), ..good.clone() },
        pb::TaskResult { fence: Some(pb::Fence { counter: fence.counter + 1, ..fence }), ..good.clone() },
    ];
    for result in changed {
        assert_eq!(answered(&mut stream, result).await, not_applied("BAD_SIGNATURE"));
    }
    for detail in ["{", "{\"a\":1}x", &format!("\"{}\"", "x".repeat(256 * 1024))] {
        assert_eq!(answered(&mut stream, agent.result(&order, true, detail)).await, not_applied("INVALID"));
    }
    assert_eq!(site.task(&id).await.status, TaskStatus::Dispatched);
    assert_eq!(answered(&mut stream, good).await, (true, String::new()));
});

on_both!(a_withdrawn_task_is_called_off, |site| async move {
    let (node, agent, mut stream) = connected(&site, "gpu-1").await;
    let withdraw = |id: domain::TaskId| {
        let site = &site;
        async move {
            site.move_task(&id, Cause::operator("tester", WITHDRAWN, ""), |task| {
                task.status = TaskStatus::Expired;
                task.lease_until = None;
                task.expired_because = "nobody wants it any more".to_owned();
            })
            .await;
        }
    };
    let id = site.order(&node, "once").await;
    let order = stream.task().await;
    withdraw(id.clone()).await;
    let cancel = loop {
        match stream.next().await.expect("goes on") {
            Some(Word::Cancel(cancel)) => break cancel,
            Some(_) => {}
            None => panic!("it ended"),
        }
    };
    assert_eq!((cancel.task_id.as_str(), cancel.fence), (id.as_str(), order.fence));
    assert_eq!(cancel.reason, "nobody wants it any more");
    assert_eq!(answered(&mut stream, agent.result(&order, false, "")).await, not_applied("EXPIRED"));
    // one that has stopped as it was told may forget it, and carries it out anew if it is asked to
    let stopped = pb::TaskResult { code: "CANCELED".to_owned(), ..agent.result(&order, false, "") };
    assert_eq!(answered(&mut stream, stopped).await, not_applied("ALREADY_ENDED"));
    // withdrawn while the agent was away: it is told when it says what it is at
    let id = site.order(&node, "again").await;
    stream.task().await;
    drop(stream);
    withdraw(id.clone()).await;
    let mut agent = agent;
    let mut stream = agent.connect(&site.dialer).await.expect("connects");
    stream.beat(site.now(), &[id.to_string()]).await;
    loop {
        match stream.next().await.expect("goes on") {
            Some(Word::Cancel(cancel)) => break assert_eq!(cancel.task_id, id.as_str()),
            Some(_) => {}
            None => panic!("it ended"),
        }
    }
});

on_both!(what_an_agent_does_not_carry_out_has_failed, |site| async move {
    let (node, _agent, mut stream) = connected(&site, "gpu-1").await;
    let id = site.order(&node, "once").await;
    let order = stream.task().await;
    stream
        .say(Says::Refusal(pb::TaskRefusal {
            task_id: order.task_id,
            fence: order.fence,
            code: "BUSY".to_owned(),
            message: "at\nsomething else".to_owned(),
            highest_seen: None,
        }))
        .await;
    let failed = eventually("it has failed", || async {
        let there = site.task(&id).await;
        (there.status == TaskStatus::Failed).then_some(there)
    })
    .await;
    let result = failed.result.expect("why");
    assert_eq!((result.code.as_str(), result.message.as_str()), ("BUSY", "at something else"));
    assert_eq!(result.class, domain::stage::FailureClass::Transient);
});

on_both!(a_lease_is_renewed_by_the_agents_own_words, |site| async move {
    let (node, mut agent, mut stream) = connected(&site, "gpu-1").await;
    let id = site.order(&node, "once").await;
    let order = stream.task().await;
    let first = site.task(&id).await.lease_until.expect("a lease");
    drop(stream);
    // a while later, by another connection
    site.fleet.pass(LEASE / 2);
    let mut stream = agent.connect(&site.dialer).await.expect("connects");
    stream.task().await;
    stream.beat(site.now(), &[id.to_string()]).await;
    let after = eventually("a heartbeat renews it", || async {
        site.task(&id).await.lease_until.filter(|until| *until > first)
    })
    .await;
    assert!(after.since(first) > LEASE / 3);
    // under another fence it is nobody's
    let fence = order.fence.expect("a fence");
    let old = pb::TaskRenewal {
        task_id: order.task_id.clone(),
        fence: Some(pb::Fence { counter: fence.counter.saturating_sub(1), ..fence }),
    };
    site.fleet.pass(LEASE / 2);
    stream.say(Says::Renewal(old)).await;
    // answered in order: what came before has been dealt with
    let unknown = pb::Task { task_id: "tsk_none".to_owned(), ..order.clone() };
    assert_eq!(answered(&mut stream, agent.result(&unknown, true, "")).await, not_applied("NOT_YOURS"));
    assert_eq!(site.task(&id).await.lease_until, Some(after));
    let own = pb::TaskRenewal { task_id: order.task_id, fence: order.fence };
    stream.say(Says::Renewal(own)).await;
    eventually("its own word renews it", || async { site.task(&id).await.lease_until.filter(|until| *until > after) })
        .await;
});

on_both!(output_is_kept_once_in_its_place, |site| async move {
    let (node, agent, mut stream) = connected(&site, "gpu-1").await;
    let id = site.order(&node, "once").await;
    let order = stream.task().await;
    let piece = |offset: u64, text: &str, stream: &str| {
        Says::Output(pb::TaskOutput {
            task_id: order.task_id.clone(),
            fence: order.fence,
            offset,
            stream: stream.to_owned(),
            data: text.as_bytes().to_vec(),
            dropped: 0,
        })
    };
    let said = [(0, "hello ", "stdout"), (0, "hello ", "stdout"), (3, "lo world\n", "stderr"), (40, "later", "stdout")];
    let mut stored = Vec::new();
    for (offset, text, of) in said {
        stream.say(piece(offset, text, of)).await;
        loop {
            match stream.next().await.expect("goes on") {
                Some(Word::OutputStored(up_to)) => break stored.push(up_to.offset),
                Some(_) => {}
                None => panic!("it ended"),
            }
        }
    }
    assert_eq!(stored, [6, 6, 12, 45]);
    // further than anything prints: not taken, and nothing breaks
    stream.say(piece(u64::MAX - 2, "x", "stdout")).await;
    assert_eq!(answered(&mut stream, agent.result(&order, true, "")).await, (true, String::new()));
    let pieces = site.fleet.store.read(move |tx| task_output::list(tx, &id, 0, 100)).await.expect("reads");
    let kept: Vec<(u64, &str, &[u8])> = pieces.iter().map(|p| (p.start_at, p.stream.as_str(), &p.data[..])).collect();
    assert_eq!(kept, [(0, "stdout", &b"hello "[..]), (6, "stderr", &b"world\n"[..]), (40, "stdout", &b"later"[..])]);
});

on_both!(nothing_is_handed_out_while_all_automation_is_stopped, |site| async move {
    let (node, _agent, mut stream) = connected(&site, "gpu-1").await;
    site.write("switch", |tx| switch::freeze(tx, "tester", "for a test")).await;
    let id = site.order(&node, "once").await;
    for _ in 0..3 {
        stream.beat(site.now(), &[]).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(site.task(&id).await.status, TaskStatus::Queued);
    site.write("switch", switch::unfreeze).await;
    stream.beat(site.now(), &[]).await;
    assert_eq!(stream.task().await.task_id, id.as_str());
});

on_both!(a_cut_off_stream_takes_no_more_results, |site| async move {
    let (node, agent, mut stream) = connected(&site, "gpu-1").await;
    let id = site.order(&node, "once").await;
    let order = stream.task().await;
    let of = node.clone();
    let revoked = domain::agent::IdentityState::Revoked;
    site.write(node.as_str(), move |tx| store::agent::set_state(tx, &of, revoked, "for a test")).await;
    assert_eq!(reason_of_end(&mut stream).await, "REVOKED");
    stream.say(Says::Result(agent.result(&order, true, ""))).await;
    assert_eq!(site.task(&id).await.status, TaskStatus::Dispatched);
});
