//! With which certificates an agent comes in, and with which it does not.

use crate::fixture::{connected, enrolled, on_both, reason, reason_of_end, refusals};
use domain::agent::IdentityState;
use domain::node::AgentMode;
use domain::{NodeId, Timestamp};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use service::agents::AgentKey;
use std::time::Duration;
use store::agent;
use testkit::agent_client::{Agent, Conversation, request};
use testkit::agent_site::AgentSite;
use tonic::{Code, Status};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A certificate of the true authority, for anything.
async fn forged(site: &AgentSite, node: &str, key: &KeyPair, from: Timestamp, life: Duration) -> Vec<Vec<u8>> {
    let authority = site.service.agent_authority().await.expect("an authority");
    let key = AgentKey::of_request(&request(key)).expect("a key");
    authority.certify(&NodeId::from_text(node), &key, from, life).expect("a certificate").chain
}

/// A certificate as ours, of another authority.
fn foreign(agent: &Agent, own_authority: bool) -> Vec<Vec<u8>> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, agent.node_id.clone());
    let uri = format!("millwright:node/{}", agent.node_id);
    params.subject_alt_names = vec![SanType::URI(uri.as_str().try_into().expect("ASCII"))];
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    if !own_authority {
        return vec![params.self_signed(&agent.key).expect("a certificate").der().to_vec()];
    }
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "Millwright agent authority");
    let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate().expect("a key")).expect("an authority");
    vec![params.signed_by(&agent.key, &issuer).expect("a certificate").der().to_vec()]
}

async fn try_connect(site: &AgentSite, chain: &[Vec<u8>], agent: &Agent) -> Result<Conversation, Status> {
    let client = site.dialer.showing(chain, &agent.key).await.map_err(Status::unavailable)?;
    let mut stream = Conversation::over(client).await?;
    stream.say(agent.hello(site.now())).await;
    match stream.next().await? {
        Some(proto::agent::v1::to_agent::Message::Welcome(_)) => Ok(stream),
        other => Err(Status::aborted(format!("{other:?}"))),
    }
}

async fn try_renew(site: &AgentSite, chain: &[Vec<u8>], agent: &Agent) -> Result<(), Status> {
    let mut client = site.dialer.showing(chain, &agent.key).await.map_err(Status::unavailable)?;
    client.renew(proto::agent::v1::RenewRequest { csr_der: request(&agent.key) }).await.map(drop)
}

/// Nothing at all is done for it, and that is on record.
async fn shut_out(site: &AgentSite, what: &str, chain: &[Vec<u8>], agent: &Agent, part: &str) {
    let before = refusals(site).await.len();
    assert!(try_connect(site, chain, agent).await.is_err(), "{what} connects");
    assert!(try_renew(site, chain, agent).await.is_err(), "{what} renews");
    let all = testkit::fleet::eventually("it is on record", || async {
        let all = refusals(site).await;
        (all.len() > before + 1).then_some(all)
    })
    .await;
    assert!(all.iter().any(|e| e.message.contains(part)), "{what}: {all:?}");
}

on_both!(certificates_of_others_are_refused, |site| async move {
    let (node, agent) = enrolled(&site, "gpu-1").await;
    let before = site.identity(&node).await;
    shut_out(&site, "another authority's", &foreign(&agent, true), &agent, "not of our authority").await;
    shut_out(&site, "a self-signed one", &foreign(&agent, false), &agent, "not of our authority").await;
    let pair = site.service.agent_authority().await.expect("there").server_pair(site.now()).expect("a pair");
    let key = KeyPair::try_from(pair.key.as_slice()).expect("a key");
    let server = Agent { key, ..agent.copy() };
    shut_out(&site, "the server's own", std::slice::from_ref(&pair.certificate), &server, "not for a client").await;
    assert_eq!(site.identity(&node).await, before);
});

on_both!(one_that_ended_long_ago_or_begins_later_is_refused, |site| async move {
    let (_, agent) = enrolled(&site, "gpu-1").await;
    let long_ago = forged(&site, &agent.node_id, &agent.key, site.now().minus(40 * DAY), DAY).await;
    shut_out(&site, "one that ended long ago", &long_ago, &agent, "too long ago").await;
    let later = forged(&site, &agent.node_id, &agent.key, site.now().plus(DAY), DAY).await;
    shut_out(&site, "one that begins tomorrow", &later, &agent, "not valid yet").await;
});

on_both!(one_that_ended_in_an_outage_is_good_for_its_renewal_only, |site| async move {
    let (node, mut agent) = enrolled(&site, "gpu-1").await;
    site.fleet.pass(DAY + Duration::from_secs(10 * 3600));
    let status = agent.connect(&site.dialer).await.err().expect("it has ended");
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unauthenticated, "AGENT_CERTIFICATE_REFUSED"));
    agent.renew(&site.dialer).await.expect("by proof of its key");
    assert_eq!(site.identity(&node).await.certificate_until.micros() / 1_000_000, {
        agent.certificate.not_after.as_ref().expect("an end").seconds
    });
    agent.connect(&site.dialer).await.expect("connects");
    // another server's clock is a little ahead
    let ahead = forged(&site, &agent.node_id, &agent.key, site.now().plus(Duration::from_secs(400)), DAY).await;
    let status = try_connect(&site, &ahead, &agent).await.err().expect("not yet");
    assert!(status.message().contains("begins only"), "{status:?}");
    try_renew(&site, &ahead, &agent).await.expect("renews");
});

// Found on a Friday, repaired on a Monday: its certificate has ended meanwhile, and must not keep it out for ever.
on_both!(a_copied_identity_that_is_repaired_late_comes_back_with_the_key_it_has, |site| async move {
    let (node, mut agent, mut stream) = connected(&site, "gpu-1").await;
    let id = node.clone();
    site.write(node.as_str(), move |tx| agent::set_state(tx, &id, IdentityState::Suspended, "seen twice")).await;
    assert_eq!(reason_of_end(&mut stream).await, "CLONED");
    site.fleet.pass(DAY * 3);
    for _ in 0..2 {
        let status = agent.connect(&site.dialer).await.err().expect("it has ended");
        assert_eq!(reason(&status), "AGENT_CERTIFICATE_REFUSED");
        let status = agent.renew(&site.dialer).await.expect_err("it is stopped");
        assert_eq!(reason(&status), "AGENT_CERTIFICATE_REFUSED", "which is tried again");
    }
    site.wish(&node, AgentMode::Repair).await;
    agent.renew(&site.dialer).await.expect("somebody said that it goes on");
    assert_eq!(site.identity(&node).await.state, IdentityState::Suspended, "not by that alone");
    agent.connect(&site.dialer).await.expect("connects");
    assert_eq!(site.identity(&node).await.state, IdentityState::Good);
});

on_both!(a_name_counts_only_with_its_key, |site| async move {
    let (_, agent) = enrolled(&site, "gpu-1").await;
    let (victim, _other, mut stream) = connected(&site, "gpu-2").await;
    let as_victim = forged(&site, victim.as_str(), &agent.key, site.now(), DAY).await;
    let status = try_renew(&site, &as_victim, &agent).await.expect_err("refused");
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unauthenticated, "REVOKED"));
    assert!(try_connect(&site, &as_victim, &agent).await.is_err());
    for nobody in ["nod_nobody", ""] {
        let chain = forged(&site, nobody, &agent.key, site.now(), DAY).await;
        let status = try_renew(&site, &chain, &agent).await.expect_err("refused");
        assert_eq!((status.code(), reason(&status).as_str()), (Code::Unauthenticated, "AGENT_CERTIFICATE_REFUSED"));
        assert!(try_connect(&site, &chain, &agent).await.is_err());
    }
    // the one whose name was used notices nothing
    stream.beat(site.now(), &[]).await;
    let task = site.order(&victim, "still there").await;
    assert_eq!(stream.task().await.task_id, task.as_str());
});

on_both!(without_a_certificate_one_can_only_enrol, |site| async move {
    let (_, agent) = enrolled(&site, "gpu-1").await;
    let mut client = site.dialer.stranger().await.expect("connects");
    let asked = proto::agent::v1::RenewRequest { csr_der: request(&agent.key) };
    let status = client.renew(asked).await.expect_err("refused");
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unauthenticated, "AGENT_CERTIFICATE_REFUSED"));
    let status = Conversation::over(client).await.err().expect("refused");
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(refusals(&site).await.iter().any(|e| e.message.contains("no certificate was shown")));
});

on_both!(what_was_taken_back_or_stopped_is_not_renewed, |site| async move {
    for (name, state) in [("gpu-1", IdentityState::Suspended), ("gpu-2", IdentityState::Revoked)] {
        let (node, mut agent) = enrolled(&site, name).await;
        let until = site.identity(&node).await.certificate_until;
        let id = node.clone();
        site.write(node.as_str(), move |tx| agent::set_state(tx, &id, state, "for a test")).await;
        site.fleet.pass(Duration::from_secs(60));
        assert_eq!(agent.renew(&site.dialer).await.expect_err("refused").code(), Code::Unauthenticated);
        assert_eq!(site.identity(&node).await.certificate_until, until);
    }
});

on_both!(a_certificate_is_renewed_for_the_same_key_only, |site| async move {
    let (_, agent) = enrolled(&site, "gpu-1").await;
    let other = KeyPair::generate().expect("a key");
    let mut client = agent.dial(&site.dialer).await.expect("connects");
    let asked = proto::agent::v1::RenewRequest { csr_der: request(&other) };
    assert_eq!(client.renew(asked).await.expect_err("refused").code(), Code::InvalidArgument);
});

on_both!(a_stream_does_not_outlive_its_certificate, |site| async move {
    let (_, mut agent, mut stream) = connected(&site, "gpu-1").await;
    // renewed in time, it goes on
    site.fleet.pass(DAY / 2);
    agent.renew(&site.dialer).await.expect("renews");
    site.fleet.pass(DAY * 3 / 4);
    stream.beat(site.now(), &[]).await;
    let task = site.order(&NodeId::from_text(agent.node_id.clone()), "still there").await;
    assert_eq!(stream.task().await.task_id, task.as_str());
    site.fleet.pass(DAY);
    stream.beat(site.now(), &[]).await;
    let away = stream.ended().await.expect("a word");
    assert!(away.reason == "RETRY" && away.message.contains("certificate has ended"), "{away:?}");
});
