//! A server with something in it, reached through both doors.

use crate::client::{Answer, Http};
use crate::fixture::{Api, start};
use crate::raw;
use api::ServerOptions;
use prost_reflect::MethodDescriptor;
use prost_reflect::prost::Message as _;
use serde_json::{Value, json};
use testkit::fleet::{Database, Fleet, quick};
use testkit::server::TestServer;
use tonic::Status;
use tonic_types::StatusExt as _;

pub struct World {
    pub api: Api,
    pub http: Http,
}

impl World {
    pub async fn new() -> Self {
        let api = Api::new().await;
        let http = Http { url: api.server.url.clone(), token: api.server.token.clone() };
        Self { api, http }
    }

    /// With two machines, of which the first has a run behind it, and the id of that run.
    pub async fn lived_in() -> (Self, String) {
        let world = Self::new().await;
        world.api.sim("m-1", &[("env", "prod")]).await;
        world.api.sim("m-2", &[]).await;
        let run = world.api.carry_out(start("m-1", "REBOOT", "req-1")).await;
        (world, run.run_id)
    }
}

/// A server with bounds of its own.
pub async fn serving(options: ServerOptions) -> (Http, TestServer) {
    let fleet = tokio::task::spawn_blocking(|| Fleet::new(Database::Sqlite, 1)).await.expect("a fleet");
    let server = TestServer::start_serving(fleet, quick("test"), options).await;
    (Http { url: server.url.clone(), token: server.token.clone() }, server)
}

/// What came of a call, in terms that both doors share.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The answer, or all answers of a stream, and how each was spelt.
    Done(Vec<Value>, Vec<String>),
    Refused {
        code: String,
        reason: String,
        message: String,
        details: Value,
        allowed: Value,
    },
}

/// gRPC's name of a code, as the contract spells it.
fn spelt(code: tonic::Code) -> String {
    let name = format!("{code:?}");
    let parts =
        name.char_indices().map(|(i, c)| if i > 0 && c.is_uppercase() { format!("_{c}") } else { c.to_string() });
    parts.collect::<String>().to_uppercase()
}

fn refusal(status: &Status) -> Outcome {
    let code = spelt(status.code());
    let info = status.get_error_details().error_info().cloned();
    let (reason, mut metadata) = info.map_or_else(|| (code.clone(), Default::default()), |i| (i.reason, i.metadata));
    let allowed = metadata.remove("allowed").unwrap_or_default();
    let allowed: Vec<&str> = allowed.split(',').filter(|a| !a.is_empty()).collect();
    Outcome::Refused {
        code,
        reason,
        message: status.message().to_owned(),
        details: json!(metadata),
        allowed: json!(allowed),
    }
}

impl World {
    /// A call by its descriptor through the gRPC door, its message given as JSON.
    pub async fn by_grpc(&self, rpc: &MethodDescriptor, message: &Value, token: &str) -> Outcome {
        let message = api::json::read(&rpc.input(), message.clone()).expect("a message").encode_to_vec();
        let path = format!("/{}/{}", rpc.parent_service().full_name(), rpc.name());
        let mut answers =
            match raw::call(raw::channel(&self.http.url).await, &path, raw::with_token(token, message)).await {
                Ok(answers) => answers,
                Err(status) => return refusal(&status),
            };
        let (mut values, mut texts) = (Vec::new(), Vec::new());
        loop {
            match answers.message().await {
                Ok(None) => return Outcome::Done(values, texts),
                Ok(Some(bytes)) => {
                    let dynamic = api::json::decode(rpc.output(), &bytes).expect("decodes");
                    let text = serde_json::to_string(&api::json::Json(&dynamic)).expect("JSON");
                    values.push(serde_json::from_str(&text).expect("JSON"));
                    texts.push(text);
                }
                Err(status) => return refusal(&status),
            }
        }
    }

    /// The same through the REST door.
    pub async fn by_rest(&self, method: &str, path: &str, body: Option<&Value>, token: &str) -> Outcome {
        let authorization = format!("Bearer {token}");
        let headers = [("Authorization", authorization.as_str()), ("Content-Type", "application/json")];
        let body = body.map(Value::to_string).unwrap_or_default();
        outcome(&self.http.send(method, path, &headers, body.as_bytes()).await)
    }
}

fn outcome(answer: &Answer) -> Outcome {
    if answer.head.header("content-type") == Some("text/event-stream") {
        let text = answer.text();
        let blocks = text.strip_suffix("event: end\ndata: {}\n\n").unwrap_or_else(|| panic!("no end: {text}"));
        let texts: Vec<String> = blocks.lines().filter_map(|l| l.strip_prefix("data: ")).map(str::to_owned).collect();
        let values = texts.iter().map(|t| serde_json::from_str(t).expect("JSON")).collect();
        return Outcome::Done(values, texts);
    }
    if answer.status() == 200 {
        return Outcome::Done(vec![answer.json()], vec![answer.text()]);
    }
    let error = answer.json()["error"].clone();
    let text = |name: &str| error[name].as_str().unwrap_or_else(|| panic!("{name}: {error}")).to_owned();
    assert_eq!(u64::from(answer.status()), documented(&text("code")), "{error}");
    Outcome::Refused {
        code: text("code"),
        reason: text("reason"),
        message: text("message"),
        details: error["details"].clone(),
        allowed: error["allowed"].clone(),
    }
}

/// CONTRACT's table.
fn documented(code: &str) -> u64 {
    match code {
        "INVALID_ARGUMENT" | "OUT_OF_RANGE" => 400,
        "UNAUTHENTICATED" => 401,
        "PERMISSION_DENIED" => 403,
        "NOT_FOUND" => 404,
        "FAILED_PRECONDITION" | "ALREADY_EXISTS" | "ABORTED" => 409,
        "RESOURCE_EXHAUSTED" => 429,
        "UNAVAILABLE" => 503,
        "DEADLINE_EXCEEDED" => 504,
        "UNIMPLEMENTED" => 501,
        "INTERNAL" => 500,
        other => panic!("{other} is in no table"),
    }
}
