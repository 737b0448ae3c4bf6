//! What else answers on the one port: reflection, the standard health service, plain HTTP health pages.

use crate::fixture::Api;
use crate::raw;
use prost_reflect::prost::{self, Message as _};
use prost_reflect::prost_types::FileDescriptorProto;
use prost_reflect::{DescriptorPool, prost::bytes::Bytes};
use testkit::fleet::eventually;
use tonic::{Code, Request, Status};

/// `grpc.health.v1.HealthCheckRequest` and its answer, as far as they are used here.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheck {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Health {
    #[prost(int32, tag = "1")]
    status: i32,
}

const SERVING: i32 = 1;

/// `grpc.reflection.v1.ServerReflectionRequest` and its answer, as far as they are used here.
#[derive(Clone, PartialEq, prost::Message)]
struct Ask {
    #[prost(string, optional, tag = "4")]
    file_containing_symbol: Option<String>,
    #[prost(string, optional, tag = "7")]
    list_services: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Told {
    #[prost(message, optional, tag = "4")]
    files: Option<Files>,
    #[prost(message, optional, tag = "6")]
    services: Option<Services>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Files {
    #[prost(bytes = "vec", repeated, tag = "1")]
    file_descriptor_proto: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Services {
    #[prost(message, repeated, tag = "1")]
    service: Vec<Service>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Service {
    #[prost(string, tag = "1")]
    name: String,
}

const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

async fn reflect(api: &Api, ask: Ask) -> Told {
    let channel = raw::channel(&api.server.url).await;
    let request = raw::with_token(&api.server.token, ask.encode_to_vec());
    let answer = raw::call_once(channel, REFLECTION, request).await.expect("reflects").expect("an answer");
    Told::decode(answer).expect("a reflection answer")
}

/// What reflection tells a caller with this token: a door behind the gate that is no call of ours.
pub async fn reflection_for(api: &Api, token: &str) -> Result<Option<Bytes>, Status> {
    let ask = Ask { list_services: Some(String::new()), ..Default::default() };
    let channel = raw::channel(&api.server.url).await;
    raw::call_once(channel, REFLECTION, raw::with_token(token, ask.encode_to_vec())).await
}

/// The services of our own files.
fn ours() -> Vec<String> {
    let pool = DescriptorPool::decode(proto::DESCRIPTORS).expect("descriptors");
    pool.services().map(|s| s.full_name().to_owned()).collect()
}

// CONTRACT "One port": authentication everywhere but health
#[tokio::test]
async fn reflection_asks_for_a_token() {
    let api = Api::new().await;
    let refused = reflection_for(&api, "mwt_wrong").await.expect_err("is refused");
    assert_eq!(refused.code(), Code::Unauthenticated);
}

// CONTRACT "One port": gRPC with reflection
#[tokio::test]
async fn reflection_lists_every_service() {
    let api = Api::new().await;
    let told = reflect(&api, Ask { list_services: Some(String::new()), ..Default::default() }).await;
    let names: Vec<String> = told.services.expect("a list").service.into_iter().map(|s| s.name).collect();
    for name in ours().into_iter().chain(["grpc.health.v1.Health".to_owned()]) {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
}

// and describes them as they are
#[tokio::test]
async fn reflection_describes_the_messages() {
    let api = Api::new().await;
    for symbol in ["baremetal.v1.RunService", "baremetal.v1.Machine", "millwright.v1.EngineService"] {
        let told = reflect(&api, Ask { file_containing_symbol: Some(symbol.into()), ..Default::default() }).await;
        let files = told.files.expect("a file").file_descriptor_proto;
        let packages: Vec<String> = files
            .iter()
            .map(|f| FileDescriptorProto::decode(f.as_slice()).expect("a descriptor").package().to_owned())
            .collect();
        assert!(packages.iter().any(|p| symbol.starts_with(p.as_str())), "{symbol}: {packages:?}");
    }
}

// CONTRACT "One port": the standard health service, without a token
#[tokio::test]
async fn the_health_service_says_serving_for_every_service() {
    let api = Api::new().await;
    let channel = raw::channel(&api.server.url).await;
    for service in ours().into_iter().chain([String::new()]) {
        let body = Bytes::from(HealthCheck { service: service.clone() }.encode_to_vec());
        let health = eventually(&format!("{service:?} to serve"), || {
            let request = Request::new(body.clone());
            let channel = channel.clone();
            async move { raw::call_once(channel, "/grpc.health.v1.Health/Check", request).await.ok().flatten() }
        })
        .await;
        assert_eq!(Health::decode(health).expect("a health answer").status, SERVING, "{service:?}");
    }
    let body = HealthCheck { service: "no.such.Service".into() }.encode_to_vec();
    let unknown = raw::call_once(channel, "/grpc.health.v1.Health/Check", Request::new(body.into())).await;
    assert_eq!(unknown.expect_err("is refused").code(), Code::NotFound);
}

// CONTRACT "One port": /healthz and /readyz, without a token
#[tokio::test]
async fn healthz_and_readyz_answer() {
    let api = Api::new().await;
    assert_eq!(raw::http_get(&api.server.url, "/healthz").await, (200, "ok\n".to_owned()));
    assert_eq!(raw::http_get(&api.server.url, "/readyz").await.0, 200);
    api.freeze().await;
    assert_eq!(raw::http_get(&api.server.url, "/readyz").await.0, 200, "a frozen server is ready all the same");
}
