//! Who becomes a node's agent: the first key that comes with its token, and no other.

use crate::fixture::{connected, enrolled, on_both, reason, reason_of_end, refusals};
use domain::agent::IdentityState;
use domain::node::{AgentMode, DRAIN, DRAINED, Node, NodeStatus, REMOVE, REMOVED};
use domain::task::TaskStatus;
use domain::{NodeId, Timestamp};
use rcgen::KeyPair;
use std::time::Duration;
use store::{Cause, agent, node};
use testkit::agent_client::Agent;
use testkit::agent_site::{AgentSite, TOKEN_LIFE};
use testkit::fleet::eventually;
use tonic::Code;

fn same(key: &KeyPair) -> KeyPair {
    KeyPair::try_from(key.serialize_der()).expect("a key")
}

async fn refused(site: &AgentSite, token: &str, part: &str) {
    let Err(status) = Agent::enrol(&site.dialer, token).await else { panic!("it was let in: {part}") };
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unauthenticated, "BOOTSTRAP_TOKEN_INVALID"));
    assert!(status.message().contains(part), "{status:?}");
}

on_both!(an_agent_enrols_and_the_onboarding_of_its_node_begins_with_it, |site| async move {
    let (node, token) = site.awaited_node("gpu-1").await;
    let agent = Agent::enrol(&site.dialer, &token).await.expect("enrols");
    assert_eq!(agent.node_id, node.as_str());
    let row = site.node_row(&node).await;
    assert_eq!(row.status, NodeStatus::Enrolling);
    assert!(row.active_job.is_some(), "its onboarding has it");
    let identity = site.identity(&node).await;
    assert_eq!((identity.state, identity.session), (IdentityState::Good, agent.session));
    let told: serde_json::Value = serde_json::from_str(&identity.inventory).expect("JSON");
    assert_eq!(told["facts"]["serial_number"], "SN-1");
    assert_eq!(told["facts"]["system_uuid"], "4c4c4544-0042-3510-8052-b4c04f4e3232");
    // once more, and nothing more happens
    let again = Agent::enrol_with(&site.dialer, &token, same(&agent.key)).await.expect("again");
    assert_eq!((again.session, again.epoch), (agent.session, agent.epoch));
    assert_eq!(site.node_row(&node).await.active_job, row.active_job);
});

on_both!(a_token_is_the_first_keys_alone, |site| async move {
    let (node, token) = site.node("gpu-1").await;
    let first = Agent::enrol(&site.dialer, &token).await.expect("enrols");
    let before = site.identity(&node).await;
    refused(&site, &token, "another key").await;
    assert_eq!(site.identity(&node).await, before);
    assert!(refusals(&site).await.iter().any(|e| e.reason == "BOOTSTRAP_TOKEN_INVALID" && e.target == node.as_str()));
    let mut first = first;
    first.connect(&site.dialer).await.expect("and the first is not disturbed");
});

on_both!(of_many_at_once_one_key_wins, |site| async move {
    let (node, token) = site.node("gpu-1").await;
    let tries = (0..8).map(|_| Agent::enrol(&site.dialer, &token));
    let all = futures::future::join_all(tries).await;
    let won: Vec<Agent> = all.into_iter().filter_map(Result::ok).collect();
    assert_eq!(won.len(), 1);
    let mut winner = won.into_iter().next().expect("one");
    winner.connect(&site.dialer).await.expect("connects");
    assert_eq!(site.identity(&node).await.session, winner.session);
});

on_both!(the_same_key_may_retry_for_half_an_hour, |site| async move {
    let (_, token) = site.node("gpu-1").await;
    let first = Agent::enrol(&site.dialer, &token).await.expect("enrols");
    site.fleet.pass(Duration::from_secs(29 * 60));
    let again = Agent::enrol_with(&site.dialer, &token, same(&first.key)).await.expect("its answer may have been lost");
    assert_eq!(again.session, first.session);
    site.fleet.pass(Duration::from_secs(2 * 60));
    let late = Agent::enrol_with(&site.dialer, &token, same(&first.key)).await.err().expect("too late");
    assert!(late.message().contains("too long ago"), "{late:?}");
});

on_both!(unknown_expired_and_withdrawn_tokens_are_refused, |site| async move {
    let (node, old) = site.node("gpu-1").await;
    refused(&site, "mwb_never", "not known here").await;
    refused(&site, "", "not known here").await;
    refused(&site, &"x".repeat(100_000), "not known here").await;
    let token = site.token(&node).await;
    refused(&site, &old, "withdrawn").await;
    site.fleet.pass(TOKEN_LIFE);
    refused(&site, &token, "expired").await;
});

on_both!(a_key_is_one_nodes_for_ever, |site| async move {
    let (_, first) = enrolled(&site, "gpu-1").await;
    let (other, token) = site.node("gpu-2").await;
    let stolen = Agent::enrol_with(&site.dialer, &token, same(&first.key)).await.err().expect("refused");
    assert!(stolen.message().contains("another node's"), "{stolen:?}");
    // and the token is still good for a key of its own
    let second = Agent::enrol(&site.dialer, &token).await.expect("enrols");
    assert_eq!(second.node_id, other.as_str());
});

on_both!(a_node_in_service_keeps_its_key_until_somebody_asks_for_another, |site| async move {
    let (node, mut old, mut stream) = connected(&site, "gpu-1").await;
    let token = site.token(&node).await;
    refused(&site, &token, "nobody asked").await;
    site.wish(&node, AgentMode::Rebootstrap).await;
    // the old one may come and go until then, which fulfils nothing
    let mut again = old.connect(&site.dialer).await.expect("the old key is good until then");
    assert_eq!(reason_of_end(&mut stream).await, "RETRY");
    eventually("the session is confirmed", || async { site.identity(&node).await.confirmed.then_some(()) }).await;
    assert_eq!(site.node_row(&node).await.agent_mode, AgentMode::Rebootstrap);
    let mut new = Agent::enrol(&site.dialer, &token).await.expect("enrols");
    assert_eq!(reason_of_end(&mut again).await, "REVOKED");
    assert_eq!(old.connect(&site.dialer).await.err().expect("cut off").message(), "REVOKED");
    let _stays = new.connect(&site.dialer).await.expect("connects");
    eventually("the wish is fulfilled", || async {
        (site.node_row(&node).await.agent_mode == AgentMode::Keep).then_some(())
    })
    .await;
});

on_both!(another_key_is_never_given_what_the_one_before_it_was_at, |site| async move {
    let (node, _old, mut stream) = connected(&site, "gpu-1").await;
    let id = site.order(&node, "once").await;
    let order = stream.task().await;
    site.wish(&node, AgentMode::Rebootstrap).await;
    let token = site.token(&node).await;
    let new = Agent::enrol(&site.dialer, &token).await.expect("enrols");
    let withdrawn = site.task(&id).await;
    assert_eq!(withdrawn.status, TaskStatus::Expired);
    assert!(withdrawn.expired_because.contains("another key"), "{}", withdrawn.expired_because);
    let next = site.order(&node, "next").await;
    // its answer was lost: the same key asks again, and nothing is taken from it
    let mut new = Agent::enrol_with(&site.dialer, &token, same(&new.key)).await.expect("again");
    assert_eq!(site.task(&next).await.status, TaskStatus::Queued);
    let mut stream = new.connect(&site.dialer).await.expect("connects");
    let given = stream.task().await;
    assert_eq!(given.task_id, next.as_str(), "not the one that the other was at");
    assert!(given.fence.expect("a fence").counter > order.fence.expect("a fence").counter);
    let late = site.task(&id).await;
    assert_eq!(late, withdrawn, "and it stays so");
});

/// Leads a node to where it is on its way out.
async fn retire(site: &AgentSite, id: &NodeId, last: NodeStatus) {
    let way = [
        (NodeStatus::Draining, Cause::operator("tester", DRAIN, "")),
        (NodeStatus::Retired, Cause::executor("tester", DRAINED, "")),
        (NodeStatus::Removing, Cause::executor("tester", REMOVE, "")),
        (NodeStatus::Deleted, Cause::executor("tester", REMOVED, "")),
    ];
    for (status, cause) in way {
        let id = id.clone();
        site.write(id.clone().as_str(), move |tx| {
            let there = node::get_for_update(tx, &id)?.expect("a node");
            let after = Node { status, ..there.clone() };
            node::move_to(tx, &there, &after, &serde_json::json!({}), &cause, |_| Ok(())).map(drop)
        })
        .await;
        if status == last {
            return;
        }
    }
}

on_both!(nodes_that_are_gone_never_get_an_agent, |site| async move {
    for (name, status) in [("a", NodeStatus::Retired), ("b", NodeStatus::Removing), ("c", NodeStatus::Deleted)] {
        let (node, mut agent, mut stream) = connected(&site, name).await;
        retire(&site, &node, status).await;
        let id = node.clone();
        site.write(node.as_str(), move |tx| agent::set_state(tx, &id, IdentityState::Revoked, "it was removed")).await;
        assert_eq!(reason_of_end(&mut stream).await, "REVOKED", "{name}");
        let token = site.token(&node).await;
        let Err(status) = Agent::enrol(&site.dialer, &token).await else { panic!("{name} was let in") };
        assert_eq!(status.code(), Code::Unauthenticated);
        assert!(agent.connect(&site.dialer).await.is_err(), "{name}");
        assert!(agent.renew(&site.dialer).await.is_err(), "{name}");
    }
});

on_both!(what_was_taken_back_comes_back_with_another_key_and_only_when_somebody_asks, |site| async move {
    let (node, old, mut stream) = connected(&site, "gpu-1").await;
    let id = node.clone();
    site.write(node.as_str(), move |tx| agent::set_state(tx, &id, IdentityState::Revoked, "its disk was stolen")).await;
    assert_eq!(reason_of_end(&mut stream).await, "REVOKED");
    let token = site.token(&node).await;
    refused(&site, &token, "taken back").await;
    site.wish(&node, AgentMode::Rebootstrap).await;
    // never the key that was taken back
    let Err(status) = Agent::enrol_with(&site.dialer, &token, same(&old.key)).await else { panic!("it was let in") };
    assert_eq!(status.code(), Code::Unauthenticated);
    let mut new = Agent::enrol(&site.dialer, &token).await.expect("another one is wanted");
    let _stays = new.connect(&site.dialer).await.expect("connects");
    assert_eq!(site.identity(&node).await.state, IdentityState::Good);
});

on_both!(requests_that_do_not_prove_their_key_are_refused, |site| async move {
    let (_, token) = site.node("gpu-1").await;
    let (mine, theirs) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
    let (mut stolen, own) = (testkit::agent_client::request(&theirs), testkit::agent_client::request(&mine));
    // another's request with the signature of one's own
    let tail = stolen.len() - 60;
    stolen[tail..].copy_from_slice(&own[own.len() - 60..]);
    for csr in [stolen, Vec::new(), vec![0x30; 64], vec![0; 100_000]] {
        let mut client = site.dialer.stranger().await.expect("connects");
        let asked = proto::agent::v1::EnrollRequest { token: token.clone(), csr_der: csr, ..Default::default() };
        let status = client.enroll(asked).await.expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    }
    Agent::enrol(&site.dialer, &token).await.expect("none of that has used the token up");
});

on_both!(a_bundle_has_all_that_an_agent_needs, |site| async move {
    let (node, token) = site.node("gpu-1").await;
    let until = Timestamp::from_micros(1_800_000_000_000_000);
    let text = site.service.agent_bundle(&node, &domain::Secret::new(token.clone()), until).await.expect("a bundle");
    let bundle: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(bundle["server"], format!("https://{}", site.dialer.address));
    assert_eq!((bundle["node_id"].as_str(), bundle["token"].as_str()), (Some(node.as_str()), Some(token.as_str())));
    assert_eq!(bundle["expires_at"], until.to_string());
    let pem = bundle["authority_pem"].as_str().expect("text");
    assert_eq!(testkit::agent_client::der_of(pem), Some(site.dialer.authority.clone()));
});
