//! What is kept of heartbeats, inventories and health.

use crate::fixture::{connected, on_both};
use proto::agent::v1 as pb;
use proto::agent::v1::from_agent::Message as Says;
use proto::agent::v1::to_agent::Message as Word;
use std::time::Duration;
use testkit::agent_client::wire_time;
use testkit::fleet::eventually;

const BEAT: Duration = Duration::from_secs(15);

on_both!(beats_are_counted_as_long_as_there_is_no_gap, |site| async move {
    let (node, _agent, stream) = connected(&site, "gpu-1").await;
    let counted = |n: u32| {
        let (site, node) = (&site, &node);
        async move {
            eventually(&format!("beat {n} is written"), || async {
                let there = site.identity(node).await;
                (there.beats == n).then_some(there.last_beat).flatten()
            })
            .await
        }
    };
    stream.beat(site.now(), &[]).await;
    counted(1).await;
    for n in 2..=3 {
        site.fleet.pass(BEAT);
        stream.beat(site.now(), &[]).await;
        counted(n).await;
    }
    // to beat faster proves nothing
    for _ in 0..20 {
        stream.beat(site.now(), &[]).await;
    }
    site.fleet.pass(BEAT);
    stream.beat(site.now(), &[]).await;
    let last = counted(4).await;
    site.fleet.pass(4 * BEAT);
    stream.beat(site.now(), &[]).await;
    assert!(counted(1).await > last, "it begins anew");
});

fn beat(at: domain::Timestamp, digest: &str, inventory: Option<pb::Inventory>, health: Option<pb::Health>) -> Says {
    let (clock, inventory_digest) = (Some(wire_time(at)), digest.to_owned());
    Says::Heartbeat(pb::Heartbeat { clock, inventory_digest, inventory, health, ..pb::Heartbeat::default() })
}

on_both!(an_inventory_is_asked_for_when_it_is_another, |site| async move {
    let (node, mut agent, mut stream) = connected(&site, "gpu-1").await;
    let inventory = pb::Inventory {
        facts: Some(testkit::agent_client::facts()),
        cpu_model: "a CPU\u{1b}[31m".to_owned(),
        gpus: vec![pb::Gpu { uuid: "GPU-1".to_owned(), ..pb::Gpu::default() }],
        ..pb::Inventory::default()
    };
    stream.say(beat(site.now(), "d1", Some(inventory.clone()), None)).await;
    let kept = eventually("it is kept", || async {
        let there = site.identity(&node).await;
        (there.inventory_digest == "d1").then_some(there.inventory)
    })
    .await;
    let kept: serde_json::Value = serde_json::from_str(&kept).expect("JSON");
    assert_eq!((kept["gpus"][0]["uuid"].as_str(), kept["cpu_model"].as_str()), (Some("GPU-1"), Some("a CPU [31m")));
    stream.say(beat(site.now(), "d2", None, None)).await;
    loop {
        match stream.next().await.expect("goes on") {
            Some(Word::InventoryWanted(_)) => break,
            Some(_) => {}
            None => panic!("it ended"),
        }
    }
    // known: not wanted at the next connection
    drop(stream);
    let stream = agent.open(&site.dialer).await.expect("opens");
    stream.say(agent.hello(site.now())).await;
    let mut stream = stream;
    let Ok(Some(Word::Welcome(welcome))) = stream.next().await else { panic!("not welcome") };
    assert!(!welcome.inventory_wanted);
    agent.session = welcome.session;
});

on_both!(health_is_written_when_it_is_news, |site| async move {
    let (node, _agent, stream) = connected(&site, "gpu-1").await;
    let health = |heat: u32, ok: bool| pb::Health {
        gpus: vec![pb::GpuHealth { temperature_c: Some(heat), ..pb::GpuHealth::default() }],
        probes: vec![pb::Probe { name: "disk_space".to_owned(), ok, message: "as it is".to_owned() }],
    };
    stream.say(beat(site.now(), "", None, Some(health(40, true)))).await;
    let first = eventually("it is kept", || async {
        let there = site.identity(&node).await.health;
        (!there.is_empty()).then_some(there)
    })
    .await;
    let told: serde_json::Value = serde_json::from_str(&first).expect("JSON");
    assert_eq!((told["gpus"][0]["temperature_c"].as_u64(), told["probes"][0]["ok"].as_bool()), (Some(40), Some(true)));
    // heat alone is no news; a probe that fails is, once the last writing is a while ago
    site.fleet.pass(BEAT);
    stream.say(beat(site.now(), "", None, Some(health(80, true)))).await;
    site.fleet.pass(BEAT);
    stream.say(beat(site.now(), "", None, Some(health(90, false)))).await;
    let failing = eventually("a failing probe is news", || async {
        let there = site.identity(&node).await.health;
        assert!(!there.contains("80"), "{there}");
        (there != first).then_some(there)
    })
    .await;
    assert!(failing.contains("disk_space"));
});

on_both!(one_that_asks_whether_it_is_heard_is_answered, |site| async move {
    let (_node, _agent, mut stream) = connected(&site, "gpu-1").await;
    for echo in [1, 2, u64::MAX] {
        stream.beat_asking(site.now(), echo).await;
        let answer = stream.next().await.expect("goes on");
        assert_eq!(answer, Some(Word::HeartbeatSeen(pb::HeartbeatSeen { echo })));
    }
});
