//! The REST door: every call of the descriptors in JSON, at the path that its `google.api.http` option
//! names. Nothing is decided here. A request becomes the call's message, the call is made in this process
//! through the gRPC router, and its answer, or its error, becomes JSON.

mod body;
mod call;
mod error;
mod openapi;
mod patch;
mod request;
mod route;
mod stream;
mod text;
mod tree;

use crate::error::to_status;
use crate::gate::{authenticate, refused_before};
use crate::json::{Json, decode, pool};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use body::Bounds;
use domain::{Error, Reason};
pub(crate) use error::response as error_response;

/// An error as REST tells it, for the few paths beside the calls.
pub fn rest_error(e: domain::Error) -> axum::response::Response {
    error_response(&crate::error::to_status(e))
}
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
pub use openapi::openapi;
use prost::Message as _;
use request::Brought;
use route::{Route, Takes};
use service::{Principal, Service};
use std::sync::Arc;
use std::time::Duration;
use stream::Messages;
use tonic::Status;
use tree::{Found, Tree};

const OPENAPI: &str = "/api/v1/openapi.json";
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The door's bounds.
#[derive(Clone, Debug)]
pub(crate) struct RestOptions {
    pub body_bytes_max: usize,
    /// How long a body may take to arrive.
    pub body_within: Duration,
    /// Between signs of life on a quiet stream.
    pub heartbeat: Duration,
}

/// What stands at a path.
enum Target {
    Call(Arc<Route>),
    OpenApi,
}

struct Rest {
    service: Service,
    grpc: Router,
    tree: Tree<Target>,
    openapi: Bytes,
    options: RestOptions,
}

/// Everything below `/api/v1`. Fails where a call has no path, or one that we do not understand.
pub(crate) fn router(service: Service, grpc: Router, options: RestOptions) -> Result<Router, Error> {
    let wrong = |problem: String| Error::internal(format!("making the REST paths: {problem}"));
    let mut tree = Tree::default();
    for route in route::all(pool()?).map_err(wrong)? {
        let (method, segments) = (route.method.clone(), route.segments.clone());
        let name = route.rpc.full_name().to_owned();
        tree.insert(method, &segments, Target::Call(Arc::new(route))).map_err(|e| wrong(format!("{name}: {e}")))?;
    }
    let segments = tree::parse(OPENAPI).map_err(wrong)?;
    tree.insert(Method::GET, &segments, Target::OpenApi).map_err(wrong)?;
    let openapi = Bytes::from(openapi()?);
    let rest = Arc::new(Rest { service, grpc, tree, openapi, options });
    let all = axum::routing::any(answer).with_state(rest);
    Ok(Router::new().route("/api/v1", all.clone()).route("/api/v1/", all.clone()).route("/api/v1/{*path}", all))
}

async fn answer(State(rest): State<Arc<Rest>>, request: axum::extract::Request) -> Response {
    let (parts, body) = request.into_parts();
    let head = parts.method == Method::HEAD;
    let response = rest.handle(parts, body).await.unwrap_or_else(|status| error::response(&status));
    if head { without_body(response) } else { response }
}

impl Rest {
    async fn handle(&self, mut parts: Parts, body: Body) -> Result<Response, Status> {
        // before anything is read or told
        let by = authenticate(&self.service, &parts.headers, parts.uri.path()).await.map_err(to_status)?;
        parts.extensions.insert(by.clone());
        let path = text::segments(parts.uri.path()).map_err(to_status)?;
        let head = parts.method == Method::HEAD;
        let method = if head { Method::GET } else { parts.method.clone() };
        match self.tree.find(&method, &path) {
            // what has no end has no length to tell
            Found::Target(Target::Call(route), _) if head && route.streams() => Ok(refused(&parts, &[Method::GET])),
            Found::Target(Target::Call(route), captured) => {
                // a caller may have said HEAD: the call does not care
                parts.method = method;
                match self.message(route, &captured, &by, &parts, body).await {
                    Ok(message) => self.call(route, parts, message).await,
                    Err(e) => {
                        refused_before(&self.service, by, route.rule, &parts, &e).await;
                        Err(to_status(e))
                    }
                }
            }
            Found::Target(Target::OpenApi, _) => Ok(json(StatusCode::OK, self.openapi.clone())),
            Found::Others(methods) if parts.method == Method::OPTIONS => Ok(options(&methods)),
            Found::Others(methods) => Ok(refused(&parts, &methods)),
            Found::Nothing => {
                let problem = format!("nothing stands at {}; {OPENAPI} lists every path", parts.uri.path());
                Err(to_status(Error::new(Reason::NoSuchPath, problem)))
            }
        }
    }

    /// The call's message, out of path, query and body. Nothing is read for those who may not call at all.
    async fn message(
        &self,
        route: &Route,
        captured: &[&str],
        by: &Principal,
        parts: &Parts,
        body: Body,
    ) -> Result<Vec<u8>, Error> {
        by.may(route.rule)?;
        let body = self.body(route, &parts.headers, body).await?;
        let last_event = text::header(&parts.headers, &LAST_EVENT_ID);
        let brought = Brought { captured, query: parts.uri.query(), body: &body, last_event };
        Ok(request::message(route, &brought)?.encode_to_vec())
    }

    async fn call(&self, route: &Arc<Route>, parts: Parts, message: Vec<u8>) -> Result<Response, Status> {
        let plain = route.raw.is_some() && text::wants_plain_text(&parts.headers);
        let request = call::request(parts, message);
        if !route.streams() {
            let (metadata, message, _) = call::unary(&self.grpc, route.grpc.clone(), request).await?.into_parts();
            let mut response = shown(route, &message).map_err(to_status)?;
            call::carry_back(&metadata, response.headers_mut());
            return Ok(response);
        }
        let (metadata, stream, _) = call::streaming(&self.grpc, route.grpc.clone(), request).await?.into_parts();
        let messages = Messages::begin(route.clone(), stream, self.options.heartbeat).await?;
        let mut response = if plain { messages.plain_text() } else { messages.events() };
        call::carry_back(&metadata, response.headers_mut());
        Ok(response)
    }

    async fn body(&self, route: &Route, headers: &HeaderMap, body: Body) -> Result<Vec<u8>, Error> {
        let within = self.options.body_within;
        if route.takes == Takes::Nothing {
            return body::none(body, within).await.map(|()| Vec::new());
        }
        let body = body::whole(headers, body, &Bounds { bytes: self.options.body_bytes_max, within }).await?;
        if !body.is_empty() {
            body::check_type(headers)?;
        }
        Ok(body)
    }
}

/// A message as the answer.
fn shown(route: &Route, message: &[u8]) -> Result<Response, Error> {
    let dynamic = decode(route.output.clone(), message)?;
    let mut text = Vec::with_capacity(message.len() * 2 + 128);
    serde_json::to_writer(&mut text, &Json(&dynamic))
        .map_err(|e| Error::internal(format!("writing a {}: {e}", route.output.full_name())))?;
    Ok(json(StatusCode::OK, text))
}

/// Something stands there, but not for this method.
fn refused(parts: &Parts, methods: &[Method]) -> Response {
    let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
    let problem = format!("{} is not for {}; use {}", parts.uri.path(), parts.method, names.join(" or "));
    let error = Error::new(Reason::MethodNotAllowed, problem).allowing(methods);
    let mut response = error::response(&to_status(error));
    allow(response.headers_mut(), methods);
    response
}

fn options(methods: &[Method]) -> Response {
    let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
    let mut response = json(StatusCode::OK, serde_json::json!({ "allowed": names }).to_string());
    allow(response.headers_mut(), methods);
    response
}

fn allow(headers: &mut HeaderMap, methods: &[Method]) {
    let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
    if let Ok(value) = HeaderValue::from_str(&names.join(", ")) {
        headers.insert(ALLOW, value);
    }
}

/// What every answer says.
fn common(headers: &mut HeaderMap) {
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

fn json(status: StatusCode, text: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Body::from(text.into()));
    *response.status_mut() = status;
    common(response.headers_mut());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The answer to HEAD: what a GET would have said about its body.
fn without_body(mut response: Response) -> Response {
    use axum::body::HttpBody as _;
    if let Some(length) = response.body().size_hint().exact() {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    *response.body_mut() = Body::empty();
    response
}
