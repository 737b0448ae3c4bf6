//! The record of who asked for what: one entry for each change and each refusal, none for what was rolled
//! back, and no way to fill the disk by being refused.

use crate::asks::{Asks, FOREIGN, OWN, every_call};
use crate::callers::{Caller, caller, root};
use crate::fixture::{Api, on_both, start};
use crate::raw;
use crate::refusal::refused;
use futures::stream::{self, StreamExt as _};
use prost_reflect::prost::bytes::Bytes;
use proto::baremetal::v1 as pb;
use proto::millwright::v1 as mw;
use service::access_table::{Effect, RULES, rule_of};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

async fn send(channel: &Channel, who: &Caller, call: &str, body: Vec<u8>, id: &str) -> Result<Option<Bytes>, Status> {
    let mut request = raw::with_token(&who.secret, body);
    request.metadata_mut().insert("x-request-id", id.parse().expect("a header"));
    raw::call_once(channel.clone(), &format!("/{call}"), request).await
}

async fn entries_of(root: &Caller, id: &str) -> Vec<mw::AuditEntry> {
    root.entries(&format!("request_id=\"{id}\"")).await
}

// each mutation leaves exactly one entry, with who, what, on what, and the request's id; reads none
on_both!(every_change_leaves_one_entry_and_a_read_none, |api| async move {
    let (asks, root) = (Asks::new(&api).await, root(&api).await);
    let admin = caller(&api, "the-admin", "admin", "").await;
    let channel = raw::channel(&api.server.url).await;
    for (call, _) in every_call() {
        let (ask, id) = (asks.of(&call, OWN).await, format!("done/{call}"));
        send(&channel, &admin, &call, ask.body, &id).await.unwrap_or_else(|e| panic!("{call}: {e:?}"));
        let entries = entries_of(&root, &id).await;
        if rule_of(&call).is_some_and(|rule| rule.effect == Effect::Reads) {
            assert_eq!(entries, [], "{call} only reads");
            continue;
        }
        // what is done outside the database is on record before, too
        let outside = call.contains(".HardwareService/") || call.contains(".ClusterService/");
        let (before, entries): (Vec<_>, Vec<_>) = entries.into_iter().partition(|e| e.outcome == "begun");
        assert_eq!(before.len(), usize::from(outside), "{call}: {before:?}");
        let [entry] = entries.as_slice() else { panic!("{call} left {entries:?}") };
        assert_eq!(
            (entry.outcome.as_str(), entry.actor.as_str(), entry.role.as_str(), entry.call.as_str(), entry.count),
            ("done", "the-admin", "admin", call.as_str(), 1)
        );
        assert_eq!(entry.token_id, admin.token.token_id);
        assert!(!entry.target.is_empty() && entry.at.is_some(), "{entry:?}");
        assert_eq!((entry.code.as_str(), entry.reason.as_str()), ("", ""));
        if call.ends_with("/Freeze") {
            api.unfreeze().await;
        }
    }
});

// each refusal of a known caller leaves one entry with its code and reason; permission refusals of
// reads too
on_both!(every_refusal_leaves_one_entry, |api| async move {
    let (asks, root) = (Asks::new(&api).await, root(&api).await);
    let channel = raw::channel(&api.server.url).await;
    for (role, customer) in [("viewer", ""), ("operator", ""), ("viewer", OWN), ("admin", OWN)] {
        // each with a share of its own, so that none is only sampled
        let who = caller(&api, "a-caller", role, customer).await;
        for rule in RULES {
            let (ask, id) = (asks.of(rule.call, FOREIGN).await, format!("{role}/{customer}/{}", rule.call));
            let answer = send(&channel, &who, rule.call, ask.body, &id).await;
            let entries = entries_of(&root, &id).await;
            let Err(status) = answer else {
                assert!(entries.iter().all(|e| e.outcome != "refused"), "{entries:?}");
                continue;
            };
            let refusal = crate::refusal::Refusal::of(&status);
            if rule.effect == Effect::Reads && refusal.code == Code::NotFound {
                assert_eq!(entries, [], "{id}: to look for what is not there is no offence");
                continue;
            }
            let [entry] = entries.as_slice() else { panic!("{id} left {entries:?}") };
            assert_eq!((entry.outcome.as_str(), entry.reason.as_str()), ("refused", refusal.reason.as_str()), "{id}");
            let code = match refusal.code {
                Code::PermissionDenied => "PERMISSION_DENIED",
                Code::NotFound => "NOT_FOUND",
                code => panic!("{id}: {code:?}"),
            };
            assert_eq!((entry.code.as_str(), entry.count, entry.role.as_str()), (code, 1, role), "{id}");
            assert_eq!(entry.token_id, who.token.token_id);
            assert!(!entry.message.is_empty());
        }
        api.unfreeze().await;
    }
});

// what the request itself is refused for is on record too, with what it was about
on_both!(a_request_that_makes_no_sense_is_on_record, |api| async move {
    let root = root(&api).await;
    api.sim("m-1", &[]).await;
    refused(api.try_start(start("m-404", "REBOOT", "r1")).await, Code::NotFound, "MACHINE_NOT_FOUND");
    refused(api.try_start(start("m-1", "DANCE", "r1")).await, Code::InvalidArgument, "UNKNOWN_RUN_TYPE");
    let to = pb::SetPhaseRequest { machine_id: "m-1".into(), phase: 3, reason: String::new() };
    let forbidden = api.machines().set_phase(to).await.expect_err("is refused");
    let channel = raw::channel(&api.server.url).await;
    let path = "baremetal.v1.MachineService/RegisterMachine";
    send(&channel, &root, path, vec![0xff; 64], "no protobuf").await.expect_err("is refused");
    let entries = root.entries("outcome=refused").await;
    let reasons: Vec<(&str, &str)> = entries.iter().rev().map(|e| (e.reason.as_str(), e.target.as_str())).collect();
    let forbidden = crate::refusal::Refusal::of(&forbidden).reason;
    assert_eq!(
        reasons,
        [("MACHINE_NOT_FOUND", "m-404"), ("UNKNOWN_RUN_TYPE", "m-1"), (&forbidden, "m-1"), ("INVALID_FIELD", "")]
    );
    // and the change that was rolled back has no entry that says it was done
    assert_eq!(root.entries("call=baremetal.v1.RunService/StartRun AND outcome=done").await, []);
});

// what a caller sends to be found by is bounded, whoever it is
#[tokio::test]
async fn a_request_id_of_any_length_is_kept_short() {
    let api = Api::new().await;
    let root = root(&api).await;
    let long = "r".repeat(5_000);
    let channel = raw::channel(&api.server.url).await;
    let mut stranger = Request::new(Bytes::new());
    stranger.metadata_mut().insert("x-request-id", long.parse().expect("a header"));
    raw::call_once(channel.clone(), "/baremetal.v1.RunService/StartRun", stranger).await.expect_err("is refused");
    send(&channel, &root, "baremetal.v1.RunService/StartRun", vec![], &long).await.expect_err("is refused");
    // through the other door it is a path that says what was asked for
    raw::http_head(&api.server.url, &format!("/api/v1/{long}"), "").await;
    let entries = root.entries("outcome=refused").await;
    assert_eq!(entries.len(), 3);
    assert!(entries.iter().all(|e| e.call.len() <= 128), "{entries:?}");
    // what is no fit name for a request is not kept: it gets a fresh one, which its answer tells
    assert!(entries.iter().all(|e| e.request_id.len() == 32 && !e.request_id.contains("rr")), "{entries:?}");
}

/// How many entries may be made in the time that has passed, of those that a sampler lets through.
fn at_most(burst: i64, per_second: i64, micros: i64) -> usize {
    usize::try_from(burst + per_second * (micros / 1_000_000 + 2)).expect("small")
}

// strangers are sampled, with a count, and cannot grow the table
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_strangers_leave_a_few_entries() {
    const STRANGERS: u64 = 10_000;
    let api = Api::new().await;
    let root = root(&api).await;
    let began = api.server.service.now();
    let channel = raw::channel(&api.server.url).await;
    let call = |i: u64| {
        let request = raw::with_token(&format!("mwt_{i}"), Bytes::new());
        raw::call_once(channel.clone(), "/millwright.v1.TokenService/CreateToken", request)
    };
    let refusals = stream::iter(0..STRANGERS).map(call).buffer_unordered(128);
    let others: Vec<_> = refusals
        .filter(|r| {
            let unknown = r.as_ref().is_err_and(|status| status.code() == Code::Unauthenticated);
            async move { !unknown }
        })
        .collect()
        .await;
    assert!(others.is_empty(), "{} were told something else, the first {:?}", others.len(), others[0]);
    let passed = api.server.service.now().since(began).as_micros();
    let entries = root.entries("outcome=refused").await;
    let most = at_most(20, 1, i64::try_from(passed).expect("small"));
    assert!((1..=most).contains(&entries.len()), "{} entries, at most {most}", entries.len());
    assert!(entries.iter().all(|e| e.actor.is_empty() && e.token_id.is_empty() && e.reason == "TOKEN_INVALID"));
    let counted: u64 = entries.iter().map(|e| e.count).sum();
    assert!(counted <= STRANGERS && counted >= entries.len() as u64, "{counted}");
    // one of a known caller is not lost among them
    refused(root.revoke("tok_404").await, Code::NotFound, "TOKEN_NOT_FOUND");
    assert_eq!(root.entries("actor=tester AND outcome=refused").await.len(), 1);
}

// and so is a flood of refusals by a known caller, which takes nothing from the others
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_refusals_is_sampled_for_each_caller() {
    const CALLS: u64 = 2_000;
    let api = Api::new().await;
    let root = root(&api).await;
    let (loud, quiet) = (caller(&api, "loud", "viewer", "").await, caller(&api, "quiet", "viewer", "").await);
    let began = api.server.service.now();
    let channel = raw::channel(&api.server.url).await;
    let call = |_| {
        let request = raw::with_token(&loud.secret, Bytes::new());
        raw::call_once(channel.clone(), "/millwright.v1.EngineService/Freeze", request)
    };
    let refused_calls = stream::iter(0..CALLS).map(call).buffer_unordered(64);
    assert!(refused_calls.all(|r| async move { r.is_err() }).await);
    let passed = api.server.service.now().since(began).as_micros();
    let entries = root.entries("actor=loud").await;
    let most = at_most(100, 10, i64::try_from(passed).expect("small"));
    assert!((1..=most).contains(&entries.len()), "{} entries, at most {most}", entries.len());
    let counted: u64 = entries.iter().map(|e| e.count).sum();
    assert!(counted <= CALLS && counted >= entries.len() as u64, "{counted}");
    quiet.engines().freeze(mw::FreezeRequest { reason: "me too".into() }).await.expect_err("is refused");
    assert_eq!(root.entries("actor=quiet").await.len(), 1);
}

// paging and filters, as with every list
on_both!(entries_are_paged_and_filtered_newest_first, |api| async move {
    let root = root(&api).await;
    for i in 0..7 {
        api.sim(&format!("m-{i}"), &[]).await;
    }
    refused(root.revoke("tok_404").await, Code::NotFound, "TOKEN_NOT_FOUND");
    let (mut paged, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = mw::ListAuditRequest { filter: String::new(), page_size: 3, page_token };
        let page = root.audit().list_audit(request).await.expect("lists").into_inner();
        assert!(page.entries.len() <= 3);
        paged.extend(page.entries);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(paged, root.entries("").await);
    assert!(paged.windows(2).all(|w| w[0].number > w[1].number), "newest first, none twice");
    assert_eq!(paged.len(), 8);
    let count = async |filter: &str| root.entries(filter).await.len();
    assert_eq!(count("target=m-3").await, 1);
    assert_eq!(count("outcome=done AND actor=tester").await, 7);
    assert_eq!(count("call=millwright.v1.TokenService/RevokeToken AND code=NOT_FOUND").await, 1);
    assert_eq!(count(&format!("token_id={}", root.token.token_id)).await, 8);
    for bad in ["colour=red", "outcome=maybe", "actor"] {
        let request = mw::ListAuditRequest { filter: bad.into(), ..Default::default() };
        refused(root.audit().list_audit(request).await, Code::InvalidArgument, "INVALID_FILTER");
    }
    let request = mw::ListAuditRequest { page_token: "nonsense".into(), ..Default::default() };
    refused(root.audit().list_audit(request).await, Code::InvalidArgument, "INVALID_PAGE_TOKEN");
    let request = mw::ListAuditRequest { page_size: 1001, ..Default::default() };
    assert_eq!(root.audit().list_audit(request).await.expect_err("is refused").code(), Code::InvalidArgument);
});
