//! Every call but health and reflection names its caller.

use crate::error::to_status;
use service::{Principal, Service};
use std::sync::Arc;
use tonic::{Request, Status};

pub(crate) async fn caller<T>(service: &Service, request: &Request<T>) -> Result<Arc<Principal>, Status> {
    let header = match request.metadata().get("authorization") {
        None => None,
        // not text: malformed, which the access check says
        Some(value) => Some(value.to_str().unwrap_or("")),
    };
    service.access().authenticate(header).await.map_err(to_status)
}
