//! A collector of traces in this process: takes what is sent to it by OTLP over gRPC, and keeps it.
#![allow(clippy::expect_used)] // for tests only

use crate::tls::Pair;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value;
use opentelemetry_proto::tonic::trace::v1::Span;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

#[derive(Clone, Default)]
pub struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let spans = request.into_inner().resource_spans.into_iter().flat_map(|r| r.scope_spans).flat_map(|s| s.spans);
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Listens, and says where.
    pub async fn start() -> (Self, String) {
        Self::serve(Server::builder(), "http").await
    }

    /// The same, encrypted.
    pub async fn start_encrypted(pair: &Pair) -> (Self, String) {
        let tls = ServerTlsConfig::new().identity(Identity::from_pem(&pair.cert, &pair.key));
        Self::serve(Server::builder().tls_config(tls).expect("TLS"), "https").await
    }

    async fn serve(mut server: Server, scheme: &str) -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("{scheme}://localhost:{}", listener.local_addr().expect("an address").port());
        let collector = Self::default();
        let service = TraceServiceServer::new(collector.clone());
        let incoming = futures::stream::unfold(listener, |listener| async move {
            let accepted = listener.accept().await.map(|(socket, _)| socket);
            Some((accepted, listener))
        });
        tokio::spawn(server.add_service(service).serve_with_incoming(incoming));
        (collector, url)
    }

    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// An attribute of a span, as text.
pub fn attribute(span: &Span, name: &str) -> Option<String> {
    let value = span.attributes.iter().find(|a| a.key == name)?.value.clone()?.value?;
    match value {
        any_value::Value::StringValue(text) => Some(text),
        any_value::Value::IntValue(n) => Some(n.to_string()),
        other => Some(format!("{other:?}")),
    }
}
