//! One port: gRPC with reflection and health, the same calls as REST, and the plain HTTP pages beside them,
//! over TLS where there is a certificate.

use crate::audit::Audit;
use crate::boot::Boot;
use crate::cluster::Clusters;
use crate::credential::Credentials;
use crate::engine::Engines;
use crate::error::to_status;
use crate::event::Events;
use crate::executor::AtOnce;
use crate::explain::Explain;
use crate::finding::Findings;
use crate::gate::gate;
use crate::hardware::Hardware;
use crate::image::Images;
use crate::job::Jobs;
use crate::machine::Machines;
use crate::metrics::{self as page, Render};
use crate::node::Nodes;
use crate::opening::Opening;
use crate::outbox::Outbox;
use crate::plan::Plans;
use crate::refused::in_our_terms;
use crate::rest::{self, RestOptions};
use crate::run::Runs;
use crate::sight::{Calls, Connected, identify, measure};
use crate::site::Sites;
use crate::task::Tasks;
use crate::tls::Tls;
use crate::token::Tokens;
use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{Next, from_fn, from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::get;
use domain::{Error, Reason, metric};
use futures::FutureExt as _;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use proto::baremetal::v1 as pb;
use proto::millwright::v1 as mw;
use service::Service;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::codegen::Service as _;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// The server's bounds, by name.
#[derive(Clone)]
pub struct ServerOptions {
    pub connections_max: usize,
    /// Calls and streams at the same time on one connection.
    pub streams_per_connection: u32,
    /// Of one message.
    pub message_bytes_max: usize,
    /// How long a connection may take to say what it speaks, and then the headers of each HTTP/1 request.
    pub headers_within: Duration,
    /// How long the body of a REST request may take to arrive.
    pub body_within: Duration,
    /// Between signs of life on a quiet stream of server-sent events.
    pub heartbeat: Duration,
    /// How long calls in flight may take to finish at a stop.
    pub finish_within: Duration,
    /// None: everything crosses the network unencrypted.
    pub tls: Option<Arc<Tls>>,
    /// What `/metrics` shows.
    pub metrics: Option<Render>,
    /// Without a token.
    pub metrics_public: bool,
    /// Paths beside the calls, with doors of their own.
    pub beside: Router,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            connections_max: 4096,
            streams_per_connection: 1024,
            message_bytes_max: 4 * 1024 * 1024,
            headers_within: Duration::from_secs(10),
            body_within: Duration::from_secs(20),
            heartbeat: Duration::from_secs(15),
            finish_within: Duration::from_secs(10),
            tls: None,
            metrics: None,
            metrics_public: false,
            beside: Router::new(),
        }
    }
}

/// One that does not finish its TLS handshake holds a connection no longer than this.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// At a stop, for connections that have said nothing yet.
const FIRST_REQUEST_WITHIN: Duration = Duration::from_millis(500);
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

fn router(
    service: &Service,
    options: &ServerOptions,
    stop: &CancellationToken,
) -> Result<Router, Box<dyn std::error::Error + Send + Sync>> {
    let max = options.message_bytes_max;
    let (health, health_service) = tonic_health::server::health_reporter();
    let mut routes = Routes::builder();
    // the whole, and each with the same bound, known to the health service by its name
    let mut names = vec![""];
    macro_rules! serve {
        ($server:ty, $handler:ident) => {{
            let handler = $handler(service.clone());
            routes.add_service(<$server>::new(handler).max_decoding_message_size(max));
            names.push(<$server as NamedService>::NAME);
        }};
    }
    serve!(pb::machine_service_server::MachineServiceServer<Machines>, Machines);
    serve!(pb::plan_service_server::PlanServiceServer<Plans>, Plans);
    serve!(pb::run_service_server::RunServiceServer<Runs>, Runs);
    serve!(mw::engine_service_server::EngineServiceServer<Engines>, Engines);
    serve!(mw::token_service_server::TokenServiceServer<Tokens>, Tokens);
    serve!(mw::credential_service_server::CredentialServiceServer<Credentials>, Credentials);
    serve!(mw::event_service_server::EventServiceServer<Events>, Events);
    serve!(mw::audit_service_server::AuditServiceServer<Audit>, Audit);
    serve!(mw::explain_service_server::ExplainServiceServer<Explain>, Explain);
    serve!(mw::hardware_service_server::HardwareServiceServer<Hardware>, Hardware);
    serve!(mw::cluster_service_server::ClusterServiceServer<Clusters>, Clusters);
    serve!(mw::boot_service_server::BootServiceServer<Boot>, Boot);
    serve!(mw::image_service_server::ImageServiceServer<Images>, Images);
    serve!(mw::finding_service_server::FindingServiceServer<Findings>, Findings);
    serve!(mw::node_service_server::NodeServiceServer<Nodes>, Nodes);
    serve!(mw::job_service_server::JobServiceServer<Jobs>, Jobs);
    serve!(mw::task_service_server::TaskServiceServer<Tasks>, Tasks);
    serve!(mw::site_service_server::SiteServiceServer<Sites>, Sites);
    tokio::spawn(tell_health(health, names, service.refusing(), stop.clone()));
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;
    routes.add_service(health_service).add_service(reflection);
    let grpc = routes.routes().prepare().into_axum_router();
    let calls = Calls::new(&[
        proto::DESCRIPTORS,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
    ])?;
    let grpc = grpc
        .layer(map_response(in_our_terms))
        .layer(from_fn_with_state(service.clone(), gate))
        .layer(from_fn_with_state(calls, measure));
    let bounds = RestOptions { body_bytes_max: max, body_within: options.body_within, heartbeat: options.heartbeat };
    let rest = rest::router(service.clone(), grpc.clone(), bounds)?;
    let ready = service.clone();
    // a path beside the calls may share its name with one: what it does not take is the call's
    let others = rest.clone();
    let beside = options.beside.clone().method_not_allowed_fallback(move |request: Request| {
        let mut others = others.clone();
        async move { others.call(request).await }
    });
    Ok(Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || readyz(ready.clone())))
        .merge(page::route(service, options))
        .merge(beside)
        .merge(rest)
        .fallback_service(grpc.layer(from_fn(only_grpc)))
        // the outermost: whatever answers, the answer has the request's id
        .layer(from_fn(identify)))
}

/// Says that all is well, then that no more calls are taken, and in the end lets those go who still watch.
async fn tell_health(
    health: HealthReporter,
    names: Vec<&'static str>,
    refusing: CancellationToken,
    stop: CancellationToken,
) {
    for name in &names {
        health.set_service_status(*name, ServingStatus::Serving).await;
    }
    refusing.cancelled().await;
    for name in &names {
        health.set_service_status(*name, ServingStatus::NotServing).await;
    }
    stop.cancelled().await;
    // without this, one who watches would be a call in flight that never ends
    let mut health = health;
    for name in &names {
        health.clear_service_status(name).await;
    }
}

/// Whoever does not speak gRPC and asks for a page that is not there is told so in plain HTTP: an empty 200
/// would make a probe of the wrong path believe that all is well.
async fn only_grpc(request: Request, next: Next) -> Response {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if kind.starts_with("application/grpc") {
        return next.run(request).await;
    }
    let problem =
        format!("nothing stands at {}; REST is below /api/v1, gRPC needs its content-type", request.uri().path());
    rest::error_response(&to_status(Error::new(Reason::NoSuchPath, problem)))
}

/// Ready is: calls are taken, and the database answers.
async fn readyz(service: Service) -> (StatusCode, String) {
    let ready = match service.takes_calls() {
        Ok(()) => service.frozen().await.map(drop),
        Err(e) => Err(e),
    };
    match ready {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(e) => (StatusCode::SERVICE_UNAVAILABLE, format!("{e}\n")),
    }
}

/// Serves until `stop`, then lets calls in flight finish (bounded).
pub async fn serve(
    listener: TcpListener,
    service: Service,
    options: ServerOptions,
    stop: CancellationToken,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let router = router(&service, &options, &stop)?;
    let connections = TaskTracker::new();
    let room = Arc::new(Semaphore::new(options.connections_max));
    metrics::gauge!(metric::CONNECTIONS_LIMIT.name).set(options.connections_max as f64);
    metrics::counter!(metric::HANDSHAKE_FAILURES.name).increment(0);
    if let Some(tls) = &options.tls {
        let ambient = service.store().ambient().clone();
        tokio::spawn(tls.clone().follow(move || ambient.now(), stop.clone()));
    }
    let mut http = Builder::new(AtOnce);
    http.http1().timer(TokioTimer::new()).header_read_timeout(options.headers_within);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(options.streams_per_connection)
        .keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    let attending =
        Attending { http, router, tls: options.tls.clone(), within: options.headers_within, stop: stop.clone() };
    loop {
        let permit = tokio::select! {
            permit = room.clone().acquire_owned() => permit?,
            () = stop.cancelled() => break,
        };
        let socket = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => socket,
                Err(e) => {
                    // out of file descriptors, or a client that left at once: go on
                    tracing::warn!(error = %e, "accepting a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = stop.cancelled() => break,
        };
        connections.spawn(attending.one(socket, permit));
    }
    // who is in the queue already has been told that somebody listens: to close now would reset it, with its request
    // perhaps on the way
    while let Ok(permit) = room.clone().try_acquire_owned()
        && let Some(Ok((socket, _))) = listener.accept().now_or_never()
    {
        connections.spawn(attending.one(socket, permit));
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(options.finish_within, connections.wait()).await.is_err() {
        tracing::warn!("some calls were still in flight when the server stopped");
    }
    Ok(())
}

/// What every connection is served with.
#[derive(Clone)]
struct Attending {
    http: Builder<AtOnce>,
    router: Router,
    tls: Option<Arc<Tls>>,
    within: Duration,
    stop: CancellationToken,
}

impl Attending {
    fn one(&self, socket: TcpStream, permit: OwnedSemaphorePermit) -> impl Future<Output = ()> + Send + use<> {
        // small answers go out at once
        drop(socket.set_nodelay(true));
        let Self { http, router, tls, within, stop } = self.clone();
        async move {
            let connected = Connected::new();
            match tls {
                None => attend(&http, Opening::new(socket, within), router, &stop).await,
                Some(tls) => match shake_hands(&tls, socket, &stop).await {
                    Some(stream) => attend(&http, Opening::new(stream, within), router, &stop).await,
                    None => metrics::counter!(metric::HANDSHAKE_FAILURES.name).increment(1),
                },
            }
            drop((connected, permit));
        }
    }
}

/// The encrypted stream; `None`: the client did not get that far.
async fn shake_hands(tls: &Tls, socket: TcpStream, stop: &CancellationToken) -> Option<TlsStream<TcpStream>> {
    let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.acceptor().accept(socket));
    let shaken = tokio::select! {
        shaken = shaken => shaken,
        () = stop.cancelled() => return None,
    };
    match shaken {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(e)) => {
            tracing::debug!(error = %e, "a TLS handshake failed");
            None
        }
        Err(_) => {
            tracing::debug!("a TLS handshake was not finished in time");
            None
        }
    }
}

/// Serves one connection to its end.
async fn attend<I>(
    http: &Builder<AtOnce>,
    (io, clear): (Opening<I>, CancellationToken),
    router: Router,
    stop: &CancellationToken,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // outside of TLS, so that one record, too, holds many answers
    let outbox = Outbox::new(io);
    let connection = http.serve_connection(TokioIo::new(outbox.clone()), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = outbox.carry(connection.as_mut()) => return log_end(ended),
        () = stop.cancelled() => {}
    }
    // one that has just come has its first request on the way: it is told no, and not cut off
    tokio::select! {
        ended = outbox.carry(connection.as_mut()) => return log_end(ended),
        () = clear.cancelled() => {}
        () = tokio::time::sleep(FIRST_REQUEST_WITHIN) => {}
    }
    connection.as_mut().graceful_shutdown();
    log_end(outbox.carry(connection).await);
}

fn log_end(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(e) = ended {
        tracing::debug!(error = %e, "a connection ended");
    }
}
