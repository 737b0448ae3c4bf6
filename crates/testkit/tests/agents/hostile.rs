//! Agents that mean harm, or have gone wrong: they are contained, put on record, and nobody else notices.

use crate::fixture::{connected, fleet, on_both, reason_of_end, refusals};
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::agent::v1 as pb;
use proto::agent::v1::from_agent::Message as Says;
use proto::agent::v1::to_agent::Message as Word;
use service::agents::AgentSetup;
use std::time::Duration;
use store::task_output;
use testkit::agent_client::{Agent, Dialer};
use testkit::agent_site::AgentSite;
use testkit::fleet::{Database, eventually};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

/// Another agent is served as if nothing were.
async fn undisturbed(site: &AgentSite, name: &str) {
    let (node, agent, mut stream) = connected(site, name).await;
    stream.beat(site.now(), &[]).await;
    site.order(&node, &format!("for {name}")).await;
    let order = stream.task().await;
    stream.say(Says::Result(agent.result(&order, true, ""))).await;
    assert!(stream.stored().await.applied);
}

fn large_beat(bytes: usize) -> Says {
    let inventory = pb::Inventory { os: "x".repeat(bytes), ..pb::Inventory::default() };
    Says::Heartbeat(pb::Heartbeat { inventory: Some(inventory), ..pb::Heartbeat::default() })
}

on_both!(oversized_messages_end_the_stream, |site| async move {
    let (node, _agent, mut stream) = connected(&site, "bad").await;
    // as large as an inventory may be: kept, and cut
    stream.say(large_beat(1000 * 1000)).await;
    eventually("it is kept", || async { site.identity(&node).await.inventory.contains("xxx").then_some(()) }).await;
    assert!(site.identity(&node).await.inventory.len() < 4096);
    stream.say(large_beat(2 * 1024 * 1024)).await;
    assert_eq!(reason_of_end(&mut stream).await, "RETRY");
    let (_, _agent, mut stream) = connected(&site, "bad-2").await;
    let output = pb::TaskOutput { data: vec![0; 600 * 1024], ..pb::TaskOutput::default() };
    stream.say(Says::Output(output)).await;
    assert_eq!(reason_of_end(&mut stream).await, "RETRY");
    undisturbed(&site, "good").await;
});

/// Sends bytes as the body of a call, whatever they are.
async fn raw(dialer: &Dialer, agent: &Agent, path: &str, body: Vec<u8>) {
    let stream = dialer.encrypted(&agent.certificate.chain_der, &agent.key).await.expect("shakes hands");
    let (mut wire, connection) =
        http2::handshake::<_, _, Full<Bytes>>(TokioExecutor::new(), TokioIo::new(stream)).await.expect("speaks");
    let driving = tokio::spawn(async move { drop(connection.await) });
    let request = http::Request::post(format!("https://millwright{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(Bytes::from(body)))
        .expect("a request");
    if let Ok(answer) = wire.send_request(request).await {
        use http_body_util::BodyExt as _;
        drop(tokio::time::timeout(Duration::from_secs(30), answer.into_body().collect()).await.expect("it ends"));
    }
    drop(wire);
    driving.await.expect("ends");
}

on_both!(bytes_that_are_no_messages_harm_nobody, |site| async move {
    let (node, _) = site.node("bad").await;
    let token = site.token(&node).await;
    let agent = Agent::enrol(&site.dialer, &token).await.expect("enrols");
    let frame = |length: u32, body: &[u8]| [&[0][..], &length.to_be_bytes(), body].concat();
    let bodies = [
        Vec::new(),
        vec![0xff; 64 * 1024],
        frame(u32::MAX, b"x"),
        frame(5, &[0xff; 5]),
        frame(0, b""),
        // compressed, which nobody agreed to
        [&[1][..], &4_u32.to_be_bytes(), b"abcd"].concat(),
        // a length that never comes
        frame(1000, b"only this"),
        // nested deeper than anybody reads
        frame(600, &[0x0a; 600]),
    ];
    for body in bodies {
        for call in ["Connect", "Renew", "Enroll", "Nothing"] {
            raw(&site.dialer, &agent, &format!("/millwright.agent.v1.AgentService/{call}"), body.clone()).await;
        }
        raw(&site.dialer, &agent, "/elsewhere", body).await;
    }
    assert_eq!(site.identity(&node).await.state, domain::agent::IdentityState::Good);
    undisturbed(&site, "good").await;
});

on_both!(a_flood_of_messages_is_sent_away_and_on_record, |site| async move {
    let (node, agent, mut stream) = connected(&site, "bad").await;
    let flood = tokio::spawn(async move {
        for _ in 0..5000 {
            stream.beat(domain::Timestamp::from_micros(0), &[]).await;
        }
        stream.ended().await
    });
    let away = flood.await.expect("ends").expect("a word");
    assert!(away.reason == "RETRY" && away.retry_after_seconds >= 30, "{away:?}");
    let entries = refusals(&site).await;
    assert_eq!(entries.iter().filter(|e| e.reason == "RATE_LIMITED" && e.target == node.as_str()).count(), 1);
    undisturbed(&site, "good").await;
    let mut agent = agent;
    agent.connect(&site.dialer).await.expect("it may come back and behave");
});

on_both!(a_flood_of_output_is_bounded, |site| async move {
    let (node, agent, mut stream) = connected(&site, "bad").await;
    let id = site.order(&node, "prints").await;
    let order = stream.task().await;
    let mut offset = 0;
    for _ in 0..40 {
        let data = vec![b'x'; 128 * 1024];
        let length = data.len() as u64;
        let (task_id, fence) = (order.task_id.clone(), order.fence);
        stream.say(Says::Output(pb::TaskOutput { task_id, fence, offset, data, ..Default::default() })).await;
        offset += length;
    }
    undisturbed(&site, "good").await;
    stream.say(Says::Result(agent.result(&order, true, ""))).await;
    assert!(stream.stored().await.applied);
    assert_eq!(site.task(&id).await.output_bytes, offset, "what was not kept is known");
    let pieces = site.fleet.store.read(move |tx| task_output::list(tx, &id, 0, 1000)).await.expect("reads");
    assert_eq!(pieces.iter().map(|p| p.data.len()).sum::<usize>(), domain::task::OUTPUT_MAX);
});

on_both!(one_that_does_not_read_is_cut_off, |site| async move {
    let (_, token) = site.node("bad").await;
    let mut agent = Agent::enrol(&site.dialer, &token).await.expect("enrols");
    // enough for a welcome, and for little else
    let narrow = Dialer { window: 256, ..site.dialer.clone() };
    let mut stream = agent.connect(&narrow).await.expect("connects");
    let unknown = pb::Task { task_id: "tsk_none".to_owned(), ..pb::Task::default() };
    for _ in 0..400 {
        stream.say(Says::Result(agent.result(&unknown, true, ""))).await;
    }
    stream.cut_off().await;
    assert!(stream.ended().await.is_none(), "there was no room for a goodbye");
    undisturbed(&site, "good").await;
});

async fn narrow_site(options: api::AgentOptions) -> AgentSite {
    AgentSite::start_with(fleet(Database::Sqlite).await, AgentSetup::default(), options).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_say_nothing_are_closed() {
    let site = narrow_site(api::AgentOptions {
        handshake_within: Duration::from_millis(300),
        stream_within: Duration::from_millis(300),
        ..api::AgentOptions::default()
    })
    .await;
    let mut silent = TcpStream::connect(site.dialer.address).await.expect("connects");
    let mut rest = Vec::new();
    drop(tokio::time::timeout(Duration::from_secs(60), silent.read_to_end(&mut rest)).await.expect("closed"));
    // shaken hands, and then nothing
    let (_, token) = site.node("bad").await;
    let agent = Agent::enrol(&site.dialer, &token).await.expect("enrols");
    let mut idle = site.dialer.encrypted(&agent.certificate.chain_der, &agent.key).await.expect("shakes hands");
    drop(tokio::time::timeout(Duration::from_secs(60), idle.read_to_end(&mut rest)).await.expect("closed"));
    // with a stream it may stay
    let (node, _agent, mut stream) = connected(&site, "good").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let task = site.order(&node, "still there").await;
    assert_eq!(stream.task().await.task_id, task.as_str());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_is_room_for_so_many_and_places_come_free() {
    let site = narrow_site(api::AgentOptions { connections_max: 2, ..api::AgentOptions::default() }).await;
    let mut held = Vec::new();
    for name in ["a", "b"] {
        let (_, token) = site.node(name).await;
        // the connections before it go, and are waited for
        let mut agent =
            eventually("there is room to enrol", || async { Agent::enrol(&site.dialer, &token).await.ok() }).await;
        held.push(eventually_connected(&site, &mut agent).await);
    }
    assert!(site.dialer.stranger().await.is_err(), "there is no room for a third");
    held.pop();
    eventually("its place comes free", || async { site.dialer.stranger().await.ok() }).await;
    held.first().expect("one").beat(site.now(), &[]).await;
}

async fn eventually_connected(site: &AgentSite, agent: &mut Agent) -> testkit::agent_client::Conversation {
    for _ in 0..600 {
        if let Ok(stream) = agent.connect(&site.dialer).await {
            return stream;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it was never let in");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_agent_has_so_many_connections_and_others_have_theirs() {
    let site = narrow_site(api::AgentOptions { connections_per_node: 2, ..api::AgentOptions::default() }).await;
    let (_, agent, stream) = connected(&site, "greedy").await;
    let (chain, key) = (&agent.certificate.chain_der, &agent.key);
    let second = site.dialer.encrypted(chain, key).await.expect("a second one");
    // a third shakes hands, and is closed
    let mut third = site.dialer.encrypted(chain, key).await.expect("shakes hands");
    let mut rest = Vec::new();
    drop(tokio::time::timeout(Duration::from_secs(60), third.read_to_end(&mut rest)).await.expect("closed"));
    undisturbed(&site, "good").await;
    drop((stream, second));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_do_not_take_the_place_of_agents() {
    let site = narrow_site(api::AgentOptions { strangers_max: 2, ..api::AgentOptions::default() }).await;
    let (_, mut agent, mut stream) = connected(&site, "good").await;
    let mut strangers = Vec::new();
    eventually("both places of strangers are taken", || async { TcpStream::connect(site.dialer.address).await.ok() })
        .await;
    for _ in 0..2 {
        strangers.push(eventually("a stranger's place", || async { site.dialer.stranger().await.ok() }).await);
    }
    assert!(site.dialer.stranger().await.is_err());
    // who is in stays in
    stream.beat(site.now(), &[]).await;
    drop(strangers);
    eventually("it can come again", || async { site.dialer.stranger().await.ok() }).await;
    agent.connect(&site.dialer).await.expect("connects");
    assert!(matches!(stream.next().await, Ok(Some(Word::GoAway(_)))));
}
