//! Connections: numbered, one at a time for each agent, and what becomes of a copy.

use crate::fixture::{connected, enrolled, finding, on_both, reason_of_end, refusals};
use domain::agent::IdentityState;
use domain::finding::FindingKind;
use domain::node::AgentMode;
use domain::task::TaskStatus;
use proto::agent::v1 as pb;
use proto::agent::v1::from_agent::Message as Says;
use proto::agent::v1::to_agent::Message as Word;
use std::time::Duration;
use testkit::agent_site::AgentSite;
use testkit::fleet::eventually;

on_both!(a_copied_identity_is_noticed_and_both_stop_until_it_is_repaired, |site| async move {
    let (node, mut original) = enrolled(&site, "gpu-1").await;
    let mut copy = original.copy();
    let mut stream = original.connect(&site.dialer).await.expect("the first to come");
    eventually("it is confirmed", || async { site.identity(&node).await.confirmed.then_some(()) }).await;
    assert_eq!(copy.connect(&site.dialer).await.err().expect("a copy").message(), "CLONED");
    assert_eq!(reason_of_end(&mut stream).await, "CLONED", "the other one stops, too");
    assert_eq!(site.identity(&node).await.state, IdentityState::Suspended);
    assert!(finding(&site, &node, FindingKind::AgentCloned).await.is_some());
    assert!(refusals(&site).await.iter().any(|e| e.message.contains("two places")));
    assert_eq!(original.connect(&site.dialer).await.err().expect("stopped").message(), "CLONED");
    assert_eq!(copy.connect(&site.dialer).await.err().expect("stopped").message(), "CLONED");
    site.wish(&node, AgentMode::Repair).await;
    let mut stream = original.connect(&site.dialer).await.expect("the next one to come is the one");
    eventually("the repair is done", || async {
        (site.node_row(&node).await.agent_mode == AgentMode::Keep).then_some(())
    })
    .await;
    assert_eq!(site.identity(&node).await.state, IdentityState::Good);
    assert!(finding(&site, &node, FindingKind::AgentCloned).await.is_none(), "resolved");
    // the copy is still there, and still one
    assert_eq!(copy.connect(&site.dialer).await.err().expect("a copy").message(), "CLONED");
    assert_eq!(reason_of_end(&mut stream).await, "CLONED");
});

on_both!(what_a_copied_identity_was_at_is_withdrawn, |site| async move {
    let (node, mut original) = enrolled(&site, "gpu-1").await;
    let mut copy = original.copy();
    let mut stream = original.connect(&site.dialer).await.expect("the first to come");
    let id = site.order(&node, "once").await;
    stream.task().await;
    assert_eq!(copy.connect(&site.dialer).await.err().expect("a copy").message(), "CLONED");
    let there = site.task(&id).await;
    assert_eq!(there.status, TaskStatus::Expired);
    assert!(there.expired_because.contains("seen twice"), "{}", there.expired_because);
});

on_both!(a_welcome_that_was_lost_does_not_make_a_copy, |site| async move {
    let (node, mut agent) = enrolled(&site, "gpu-1").await;
    for _ in 0..3 {
        // said hello, and never learnt what came of it
        let mut stream = agent.open(&site.dialer).await.expect("opens");
        stream.say(agent.hello(site.now())).await;
        assert!(matches!(stream.next().await, Ok(Some(Word::Welcome(_)))));
        drop(stream);
        let before = agent.session;
        let _stays = agent.connect(&site.dialer).await.expect("it is the same one");
        assert!(agent.session > before);
        eventually("it is confirmed", || async { site.identity(&node).await.confirmed.then_some(()) }).await;
    }
});

on_both!(a_newer_connection_ends_the_older_one, |site| async move {
    let (node, mut agent, mut old) = connected(&site, "gpu-1").await;
    let mut new = agent.connect(&site.dialer).await.expect("connects");
    let away = old.ended().await.expect("a word");
    assert!(away.reason == "RETRY" && away.retry_after_seconds > 0, "{away:?}");
    let task = site.order(&node, "for the new one").await;
    assert_eq!(new.task().await.task_id, task.as_str());
});

async fn raise_epoch(site: &AgentSite) {
    const SQL: &str = "UPDATE meta SET value = CAST(CAST(value AS INTEGER) + 1 AS TEXT) WHERE name = 'epoch'";
    match (site.fleet.database_file(), site.fleet.postgres()) {
        (Some(file), _) => {
            let raised = tokio::task::spawn_blocking(move || {
                let connection = rusqlite::Connection::open(file).expect("opens");
                connection.busy_timeout(Duration::from_secs(10)).expect("patience");
                connection.execute(SQL, []).expect("raised")
            });
            assert_eq!(raised.await.expect("ends"), 1);
        }
        (None, Some(config)) => {
            let (client, connection) = config.connect(tokio_postgres::NoTls).await.expect("connects");
            let driving = tokio::spawn(async move { drop(connection.await) });
            assert_eq!(client.execute(SQL, &[]).await.expect("raised"), 1);
            drop(client);
            driving.await.expect("ends");
        }
        (None, None) => panic!("neither database"),
    }
}

on_both!(after_a_restored_backup_the_epoch_rises_and_agents_follow, |site| async move {
    let (node, mut agent, stream) = connected(&site, "gpu-1").await;
    let before = agent.epoch;
    drop(stream);
    // what the agent has come to since the backup is not in it
    agent.session += 90;
    raise_epoch(&site).await;
    let seen = agent.session;
    let mut stream = agent.connect(&site.dialer).await.expect("its number is taken, and raised");
    assert_eq!((agent.epoch, agent.session > seen), (before + 1, true));
    let task = site.order(&node, "in the new epoch").await;
    let order = stream.task().await;
    assert_eq!((order.task_id.as_str(), order.fence.map(|f| f.epoch)), (task.as_str(), Some(before + 1)));
});

on_both!(who_does_not_keep_to_the_order_of_words_is_sent_away, |site| async move {
    let (_, agent) = enrolled(&site, "gpu-1").await;
    let mut stream = agent.open(&site.dialer).await.expect("opens");
    stream.beat(site.now(), &[]).await;
    assert_eq!(reason_of_end(&mut stream).await, "RETRY", "the first word is a hello");
    let (_, _, mut stream) = connected(&site, "gpu-2").await;
    stream.say(Says::Confirm(pb::Confirm { session: 1 })).await;
    assert_eq!(reason_of_end(&mut stream).await, "RETRY", "a confirmation comes once");
    let mut stream = agent.open(&site.dialer).await.expect("opens");
    stream.say(agent.hello(site.now())).await;
    assert!(matches!(stream.next().await, Ok(Some(Word::Welcome(_)))));
    stream.say(Says::Confirm(pb::Confirm { session: 99 })).await;
    assert_eq!(reason_of_end(&mut stream).await, "RETRY", "another number");
    let strange = testkit::agent_client::Agent { session: u64::MAX, ..agent.copy() };
    let mut stream = strange.open(&site.dialer).await.expect("opens");
    stream.say(strange.hello(site.now())).await;
    assert_eq!(reason_of_end(&mut stream).await, "RETRY", "a number that was never given out");
    assert_eq!(site.identity(&domain::NodeId::from_text(agent.node_id)).await.state, IdentityState::Good);
});

on_both!(a_clock_that_is_off_is_a_finding_until_it_is_right_again, |site| async move {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let (node, mut agent) = enrolled(&site, "gpu-1").await;
    let mut stream = agent.open(&site.dialer).await.expect("opens");
    stream.say(agent.hello(site.now().plus(DAY))).await;
    let Ok(Some(Word::Welcome(welcome))) = stream.next().await else { panic!("not welcome") };
    agent.session = welcome.session;
    stream.say(Says::Confirm(pb::Confirm { session: welcome.session })).await;
    let found = finding(&site, &node, FindingKind::ClockSkew).await.expect("a day is too much");
    assert!(found.message.contains("ahead"), "{}", found.message);
    stream.beat(site.now(), &[]).await;
    eventually("it is right again", || async {
        finding(&site, &node, FindingKind::ClockSkew).await.is_none().then_some(())
    })
    .await;
    stream.beat(site.now().minus(DAY), &[]).await;
    eventually("it is behind", || async { finding(&site, &node, FindingKind::ClockSkew).await }).await;
});

on_both!(a_server_that_stops_says_so_and_spreads_those_who_come_back, |site| async move {
    let (_, mut agent, mut stream) = connected(&site, "gpu-1").await;
    let dialer = site.dialer.clone();
    let stopping = tokio::spawn(site.stop());
    let away = stream.ended().await.expect("a word");
    assert_eq!(away.reason, "SHUTTING_DOWN");
    assert!((1..=20).contains(&away.retry_after_seconds), "{away:?}");
    let fleet = stopping.await.expect("stops");
    assert!(agent.connect(&dialer).await.is_err());
    // its identity is as good with the next server
    let next = AgentSite::start(fleet).await;
    agent.connect(&next.dialer).await.expect("connects");
});
