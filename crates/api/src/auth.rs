//! Every call but the health check names its caller.

use crate::error::to_status;
use axum::body::Body;
use axum::extract::State;
use axum::middleware::Next;
use axum::response::Response;
use service::{Principal, Service};
use std::sync::Arc;
use tonic::{Request, Status};

/// Services of others' making, which do not ask for the caller themselves.
const FOREIGN: &str = "/grpc.reflection.";

/// Asks for it on their behalf.
pub(crate) async fn on_behalf(State(service): State<Service>, request: axum::extract::Request, next: Next) -> Response {
    if request.uri().path().starts_with(FOREIGN) {
        let header = request.headers().get("authorization").map(|value| value.to_str().unwrap_or(""));
        if let Err(e) = service.access().authenticate(header).await {
            return to_status(e).into_http::<Body>();
        }
    }
    next.run(request).await
}

pub(crate) async fn caller<T>(service: &Service, request: &Request<T>) -> Result<Arc<Principal>, Status> {
    let header = match request.metadata().get("authorization") {
        None => None,
        // not text: malformed, which the access check says
        Some(value) => Some(value.to_str().unwrap_or("")),
    };
    service.access().authenticate(header).await.map_err(to_status)
}
