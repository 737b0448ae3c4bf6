//! No call without a known token. The calls are taken from the descriptors, so that a new one without
//! a check fails here.

use crate::fixture::Api;
use crate::raw;
use crate::refusal::refused;
use prost_reflect::DescriptorPool;
use prost_reflect::prost::bytes::Bytes;
use tonic::metadata::{AsciiMetadataValue, MetadataValue};
use tonic::{Code, Request};

/// Every RPC of every service of ours, as a path.
fn every_rpc() -> Vec<String> {
    let pool = DescriptorPool::decode(proto::DESCRIPTORS).expect("descriptors");
    let paths = |s: prost_reflect::ServiceDescriptor| {
        let methods: Vec<String> = s.methods().map(|m| format!("/{}/{}", s.full_name(), m.name())).collect();
        methods
    };
    pool.services().flat_map(paths).collect()
}

fn with_header(value: Option<AsciiMetadataValue>) -> Request<Bytes> {
    let mut request = Request::new(Bytes::new());
    if let Some(value) = value {
        request.metadata_mut().insert("authorization", value);
    }
    request
}

// CONTRACT: no or bad token UNAUTHENTICATED, on every RPC; T-41
#[tokio::test]
async fn no_rpc_answers_without_a_known_token() {
    let api = Api::new().await;
    let rpcs = every_rpc();
    assert!(rpcs.len() >= 21, "{rpcs:?}");
    let text = |t: &str| Some(t.parse::<AsciiMetadataValue>().expect("a header"));
    let not_text = MetadataValue::try_from(&b"Bearer \xff\xfe"[..]).expect("bytes are allowed in a header");
    let cases = [
        ("no header", None, "TOKEN_MISSING"),
        ("empty", text(""), "TOKEN_INVALID"),
        ("another scheme", text("Basic YWRtaW46YWRtaW4="), "TOKEN_INVALID"),
        ("no secret", text("Bearer "), "TOKEN_INVALID"),
        ("the bare secret", text(&api.server.token), "TOKEN_INVALID"),
        ("unknown", text("Bearer mwt_unknown"), "TOKEN_INVALID"),
        ("almost", text(&format!("Bearer {}x", api.server.token)), "TOKEN_INVALID"),
        ("huge", text(&format!("Bearer {}", "x".repeat(5000))), "TOKEN_INVALID"),
        ("not text", Some(not_text), "TOKEN_INVALID"),
    ];
    let channel = raw::channel(&api.server.url).await;
    for rpc in &rpcs {
        for (case, header, reason) in &cases {
            let answer = raw::call_once(channel.clone(), rpc, with_header(header.clone())).await;
            let refusal = refused(answer, Code::Unauthenticated, reason);
            assert!(!refusal.message.contains(&api.server.token), "{rpc} with {case} tells the secret");
        }
    }
    assert_eq!(api.machine_ids("").await, Vec::<String>::new(), "and nothing was done");
    let frozen = api.engines().get_freeze(proto::millwright::v1::GetFreezeRequest {}).await.expect("reads");
    assert!(!frozen.into_inner().frozen);
}

// and with one, every RPC is there: none is left unimplemented
#[tokio::test]
async fn every_rpc_answers_with_a_known_token() {
    let api = Api::new().await;
    let channel = raw::channel(&api.server.url).await;
    for rpc in every_rpc() {
        let request = raw::with_token(&api.server.token, Bytes::new());
        // a watch has nothing to say yet; that it began is the answer
        if let Err(status) = raw::call(channel.clone(), &rpc, request).await.map(drop) {
            assert_eq!(status.code(), Code::InvalidArgument, "{rpc} with an empty request: {status:?}");
        }
    }
}

// the scheme is spelt in either case
#[tokio::test]
async fn the_scheme_is_known_in_both_spellings() {
    let api = Api::new().await;
    let channel = raw::channel(&api.server.url).await;
    for scheme in ["Bearer", "bearer"] {
        let header = format!("{scheme} {}", api.server.token).parse().expect("a header");
        let answer = raw::call_once(channel.clone(), "/baremetal.v1.PlanService/ListPlans", with_header(Some(header)));
        assert!(answer.await.is_ok_and(|a| a.is_some()), "{scheme}");
    }
}

// who is not known learns nothing about what is there
#[tokio::test]
async fn a_stranger_cannot_tell_what_exists() {
    let api = Api::new().await;
    api.sim("m-1", &[]).await;
    let stranger = api.server.door_with(Some("mwt_stranger")).await;
    let mut machines = proto::baremetal::v1::machine_service_client::MachineServiceClient::new(stranger);
    let mut messages = Vec::new();
    for id in ["m-1", "m-404"] {
        let request = proto::baremetal::v1::GetMachineRequest { machine_id: id.into() };
        let refusal = refused(machines.get_machine(request).await, Code::Unauthenticated, "TOKEN_INVALID");
        messages.push(refusal.message);
    }
    assert_eq!(messages[0], messages[1]);
}
