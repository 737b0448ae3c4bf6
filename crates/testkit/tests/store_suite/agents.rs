//! Agents: one key for one node, sessions that are confirmed by their number, heartbeats by the many, tokens of which one
//! is good and one key's alone, an authority that is founded once.

use crate::fixture::{TestStore, on_every_store};
use crate::nodes;
use domain::NodeId;
use domain::agent::{AgentIdentity, BootstrapToken, IdentityState};
use domain::node::{Node, NodeStatus};
use std::time::Duration;
use store::{Ambient as _, agent, node};

fn identity(node: &NodeId, key: &str) -> AgentIdentity {
    let now = domain::Timestamp::from_micros(1_767_225_600_000_000);
    AgentIdentity {
        node_id: node.clone(),
        key_sha256: key.to_owned(),
        key_spki: vec![0, 1, 255],
        state: IdentityState::Good,
        state_reason: String::new(),
        epoch: 3,
        session: 7,
        confirmed: false,
        enrolled_at: now,
        token_id: String::new(),
        certificate_until: now.plus(Duration::from_secs(60)),
        agent_version: "1.2.3".to_owned(),
        boot_id: "boot".to_owned(),
        beats: 0,
        last_beat: None,
        skew_ms: 0,
        inventory: String::new(),
        inventory_digest: String::new(),
        health: String::new(),
    }
}

async fn enrolled(store: &TestStore, name: &str, key: &str) -> NodeId {
    let node = nodes::insert(store, name).await.id;
    let row = identity(&node, key);
    store.put(node.as_str(), move |tx| agent::enrol(tx, &row)).await.expect("enrols");
    node
}

async fn get(store: &TestStore, node: &NodeId) -> AgentIdentity {
    let node = node.clone();
    store.read(move |tx| tx.point(&agent::by_node(&node))).await.expect("reads").expect("is there")
}

/// The node in a status, past the lifecycle: only the rows matter here.
async fn in_status(store: &TestStore, id: &NodeId, status: NodeStatus) {
    let id = id.clone();
    let save = move |tx: &mut store::Tx<'_>| {
        let there = node::get_for_update(tx, &id)?.expect("is there");
        let now = tx.now();
        node::save(tx, &Node { status, status_changed_at: now, ..there })
    };
    store.put("status", save).await.expect("saves");
}

/// Heard by the connection that is the last one.
async fn beats(store: &TestStore, node: &NodeId, beats: u32) {
    let session = get(store, node).await.session;
    beats_by(store, node, session, beats).await;
}

async fn beats_by(store: &TestStore, node: &NodeId, session: u64, beats: u32) {
    let beat = agent::Beat { node_id: node.clone(), session, at: store.clock.now(), beats, skew_ms: -40 };
    store.put("beats", move |tx| agent::heard(tx, std::slice::from_ref(&beat))).await.expect("is heard");
}

on_every_store!(a_key_is_one_nodes_and_the_last_one_counts, |store| async {
    let node = enrolled(&store, "alpha", "key-1").await;
    assert_eq!(get(&store, &node).await, identity(&node, "key-1"));
    let other = nodes::insert(&store, "beta").await.id;
    let stolen = identity(&other, "key-1");
    assert!(store.put("x", move |tx| agent::enrol(tx, &stolen)).await.is_err(), "a key is one node's");
    let again = identity(&node, "key-2");
    store.put("x", move |tx| agent::enrol(tx, &again)).await.expect("another key of its own");
    let found = store
        .read(|tx| Ok((tx.point(&agent::by_key("key-1"))?, tx.point(&agent::by_key("key-2"))?)))
        .await
        .expect("reads");
    assert_eq!((found.0, found.1.map(|a| a.node_id)), (None, Some(node)));
});

on_every_store!(sessions_are_confirmed_by_their_number_and_states_are_kept, |store| async {
    let node = enrolled(&store, "alpha", "key").await;
    for (session, is_last) in [(6, false), (7, true), (8, false)] {
        let of = node.clone();
        let confirmed = store.put("x", move |tx| agent::confirm(tx, &of, session)).await.expect("answers");
        assert_eq!(confirmed, is_last, "{session}");
    }
    assert!(get(&store, &node).await.confirmed);
    let of = node.clone();
    store
        .put("x", move |tx| {
            agent::set_state(tx, &of, IdentityState::Suspended, "seen twice")?;
            agent::set_inventory(tx, &of, 7, "{\"facts\":{}}", "digest")?;
            agent::set_health(tx, &of, 7, "{\"probes\":[]}")?;
            agent::certified(tx, &of, domain::Timestamp::from_micros(77))
        })
        .await
        .expect("writes");
    let there = get(&store, &node).await;
    assert_eq!((there.state, there.state_reason.as_str()), (IdentityState::Suspended, "seen twice"));
    assert_eq!((there.inventory_digest.as_str(), there.certificate_until.micros()), ("digest", 77));
    // a stopped identity is not heard of
    beats(&store, &node, 5).await;
    assert_eq!(get(&store, &node).await.last_beat, None);
    let next = AgentIdentity { session: 8, epoch: 4, skew_ms: -5, ..there };
    store.put("x", move |tx| agent::begin_session(tx, &next)).await.expect("begins");
    let there = get(&store, &node).await;
    assert_eq!((there.state, there.session, there.confirmed, there.skew_ms), (IdentityState::Good, 8, false, -5));
});

on_every_store!(what_an_older_connection_has_noted_is_nothing, |store| async {
    let node = enrolled(&store, "alpha", "key").await;
    for older in [6, 8] {
        beats_by(&store, &node, older, 9).await;
        assert_eq!((get(&store, &node).await.last_beat, get(&store, &node).await.beats), (None, 0), "{older}");
    }
    beats_by(&store, &node, 7, 9).await;
    assert_eq!(get(&store, &node).await.beats, 9);
    // nor is anything of another key's: neither its heartbeats nor how it was
    let of = node.clone();
    store
        .put("x", move |tx| {
            agent::set_inventory(tx, &of, 7, "{}", "digest")?;
            agent::set_health(tx, &of, 7, "{\"probes\":[{\"name\":\"gpu_present\",\"ok\":false}]}")
        })
        .await
        .expect("writes");
    let other = AgentIdentity { session: 8, ..identity(&node, "key-2") };
    store.put("x", move |tx| agent::enrol(tx, &other)).await.expect("another key");
    beats_by(&store, &node, 7, 10).await;
    let there = get(&store, &node).await;
    assert_eq!((there.beats, there.last_beat, there.health.as_str()), (0, None, ""));
    assert_eq!(there.inventory_digest, "digest", "the hardware is the same");
});

on_every_store!(what_an_older_connection_tells_late_does_not_cover_what_a_newer_one_told, |store| async {
    let node = enrolled(&store, "alpha", "key").await;
    let told = |session: u64, what: &'static str| {
        let of = node.clone();
        store.put("x", move |tx| {
            agent::set_inventory(tx, &of, session, what, what)?;
            agent::set_health(tx, &of, session, what)
        })
    };
    told(7, "first").await.expect("writes");
    let next = AgentIdentity { session: 8, ..get(&store, &node).await };
    store.put("x", move |tx| agent::begin_session(tx, &next)).await.expect("begins");
    told(7, "late").await.expect("is no error");
    let there = get(&store, &node).await;
    assert_eq!([there.inventory, there.inventory_digest, there.health], ["first"; 3]);
    told(8, "newer").await.expect("writes");
    told(7, "late").await.expect("is no error");
    let there = get(&store, &node).await;
    assert_eq!([there.inventory, there.inventory_digest, there.health], ["newer"; 3]);
});

on_every_store!(many_are_heard_at_once_and_the_silent_are_found, |store| async {
    let mut all = Vec::new();
    for n in 0..5 {
        let node = enrolled(&store, &format!("node {n}"), &format!("key {n}")).await;
        in_status(&store, &node, NodeStatus::Active).await;
        all.push(node);
    }
    store.clock.skip(Duration::from_secs(100));
    let now = store.clock.now();
    let heard: Vec<_> = all[..3]
        .iter()
        .map(|node| agent::Beat { node_id: node.clone(), session: 7, at: now, beats: 4, skew_ms: -40 })
        .collect();
    store.put("beats", move |tx| agent::heard(tx, &heard)).await.expect("are heard");
    let there = get(&store, &all[0]).await;
    assert_eq!((there.beats, there.last_beat, there.skew_ms), (4, Some(now), -40));
    let before = now.minus(Duration::from_secs(60));
    let lost = store.read(move |tx| agent::lost(tx, "", before, 10)).await.expect("reads");
    assert_eq!(lost, all[3..]);
    let page = all[3].to_string();
    let rest = store.read(move |tx| agent::lost(tx, &page, before, 10)).await.expect("reads");
    assert_eq!(rest, all[4..]);
    let listed = store.read(|tx| agent::after(tx, "", 10)).await.expect("lists");
    assert_eq!(listed.into_iter().map(|a| a.node_id).collect::<Vec<_>>(), all);
});

on_every_store!(those_that_are_back_steady_or_unwell_are_found, |store| async {
    let offline = enrolled(&store, "offline", "key 1").await;
    let blocked = enrolled(&store, "blocked", "key 2").await;
    let unwell = enrolled(&store, "unwell", "key 3").await;
    in_status(&store, &offline, NodeStatus::Offline).await;
    in_status(&store, &blocked, NodeStatus::Quarantined).await;
    in_status(&store, &unwell, NodeStatus::Active).await;
    let of = unwell.clone();
    let health = serde_json::json!({"probes": [{"name": "gpu_present", "ok": false}]}).to_string();
    store.put("x", move |tx| agent::set_health(tx, &of, 7, &health)).await.expect("writes");
    let since = store.clock.now().minus(Duration::from_secs(60));
    store.clock.skip(Duration::from_secs(30));
    for node in [&offline, &blocked, &unwell] {
        beats(&store, node, 2).await;
    }
    let found = |beats: u32| {
        store.read(move |tx| {
            let back = agent::back(tx, "", since, beats, 10)?;
            Ok((back, agent::steady_in_quarantine(tx, "", since, beats, 10)?, agent::unwell(tx, "", 10)?))
        })
    };
    assert_eq!(found(3).await.expect("reads"), (vec![], vec![], vec![unwell.clone()]));
    assert_eq!(found(2).await.expect("reads"), (vec![offline], vec![blocked], vec![unwell]));
});

on_every_store!(one_token_is_good_and_the_first_key_has_it, |store| async {
    let node = nodes::insert(&store, "alpha").await.id;
    let now = store.clock.now();
    let token = |hash: &str| BootstrapToken {
        hash: hash.to_owned(),
        node_id: node.clone(),
        expires_at: now.plus(Duration::from_secs(60)),
        issued_by: "alice".to_owned(),
        issued_at: now,
        key_sha256: None,
        bound_at: None,
        withdrawn: false,
    };
    for hash in ["one", "two"] {
        let issued = token(hash);
        store.put("x", move |tx| agent::issue(tx, &issued)).await.expect("issues");
    }
    let old = store.read(|tx| tx.point(&agent::token("one"))).await.expect("reads").expect("is there");
    assert!(old.withdrawn, "a new one takes its place");
    for (key, first) in [("key", true), ("other", false), ("key", false)] {
        assert_eq!(store.put("x", move |tx| agent::bind(tx, "two", key)).await.expect("answers"), first, "{key}");
    }
    let there = store.read(|tx| tx.point(&agent::token("two"))).await.expect("reads").expect("is there");
    assert_eq!((there.key_sha256.as_deref(), there.withdrawn, there.bound_at.is_some()), (Some("key"), false, true));
    let of = node.clone();
    assert_eq!(store.read(move |tx| agent::tokens_of(tx, &of)).await.expect("reads").len(), 2);
    let of = node.clone();
    store.put("x", move |tx| agent::forget_tokens(tx, &of)).await.expect("forgets");
    assert_eq!(store.read(move |tx| agent::tokens_of(tx, &node)).await.expect("reads"), []);
});

on_every_store!(the_authority_is_founded_once, |store| async {
    let authority = |word: &str| agent::Authority {
        certificate: word.as_bytes().to_vec(),
        sealed: vec![0, 255],
        key_id: "k1".to_owned(),
    };
    assert_eq!(store.read(agent::authority).await.expect("reads"), None);
    let (first, second) = (authority("first"), authority("second"));
    let founded = store.put("x", move |tx| agent::found_authority(tx, &first)).await.expect("founds");
    let taken = store.put("x", move |tx| agent::found_authority(tx, &second)).await.expect("takes what is there");
    assert_eq!(founded, taken);
    store.put("x", |tx| agent::reseal_authority(tx, &[9], "k2")).await.expect("seals again");
    let there = store.read(agent::authority).await.expect("reads").expect("is there");
    assert_eq!(
        (there.certificate.as_slice(), there.sealed.as_slice(), there.key_id.as_str()),
        (&b"first"[..], &[9][..], "k2")
    );
});
