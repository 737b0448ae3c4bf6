//! Images on their way in and out: `PUT /api/v1/images/NAME` adds bytes under a name, and bytes that no name means any
//! more are removed, a day later: a machine that was ordered to write them may be in the middle of that, and comes back
//! for the rest by their digest.
//!
//! Bytes are in the store before a name means them. Whoever removes bytes does it while nobody is between the two, be it
//! in another server on the same folder.

use super::{Digest, Naming, Store, StoreError};
use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::put;
use bytes::BytesMut;
use domain::{Error, Reason};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use service::access_table::PUT_IMAGE;
use service::{Call, ImageBytes, NewImage, Service};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

/// Images that are added at the same time; each writes to the same disk.
const UPLOADS_MAX: usize = 8;
/// One who sends nothing for so long has gone.
const SENDS_WITHIN: Duration = Duration::from_secs(60);
/// Pieces between the network and the disk, and how large each is.
const PIECES: usize = 4;
const PIECE: usize = 1 << 20;

/// Bytes are kept for so long after their last name has gone. No installation takes that long.
const KEPT_UNNAMED: Duration = Duration::from_secs(24 * 3600);
/// Between two looks for such.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);

pub struct Keeper {
    store: Arc<Store>,
    room: Semaphore,
}

impl Keeper {
    pub fn new(store: Arc<Store>) -> Self {
        Self { store, room: Semaphore::new(UPLOADS_MAX) }
    }

    pub fn router(self: Arc<Self>, service: Service) -> Router {
        Router::new().route("/api/v1/images/{name}", put(add)).with_state((self, service))
    }

    async fn add(&self, service: &Service, call: &Arc<Call>, asked: Asked) -> Result<domain::image::Image, Error> {
        let Asked { name, expected, length, body } = asked;
        domain::id::check_name("name", &name)?;
        if length.is_some_and(|length| length > self.store.bytes_max()) {
            return Err(refusal(&StoreError::TooLarge { max: self.store.bytes_max() }));
        }
        let _place = self.room.try_acquire().map_err(|_| {
            let message = format!("{UPLOADS_MAX} images are being added at this moment; wait a little and repeat");
            Error::new(Reason::LimitReached, message)
        })?;
        let before = match service.get_image(&name).await {
            Ok(image) => Some(image.sha256),
            Err(e) if e.reason == Reason::ImageNotFound => None,
            Err(e) => return Err(e),
        };
        let (digest, bytes, naming) = self.write(body, expected).await?;
        let store = self.store.clone();
        let told = blocking(move || store.stored(&digest)).await?;
        let kind = told.map(|stored| stored.kind.to_string()).unwrap_or_default();
        // a token may have been taken back while the bytes came
        call.not_revoked()?;
        let named = service.name_image(call, NewImage { name, sha256: digest.to_string(), bytes, kind }).await;
        match &named {
            Ok(image) => {
                let store = self.store.clone();
                if let Err(e) = blocking(move || store.unmark(&digest)).await {
                    tracing::warn!(error = %e, sha256 = image.sha256, "an image's bytes stay marked as unnamed");
                }
                if let Some(before) = before.filter(|before| *before != image.sha256) {
                    self.unnamed(service, &before).await;
                }
            }
            Err(_) => self.unnamed(service, &digest.to_string()).await,
        }
        drop(naming);
        named
    }

    /// Looks for bytes to remove, until `stop`.
    pub async fn keep(self: Arc<Self>, service: Service, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                swept = self.sweep(&service) => {
                    if let Err(e) = swept {
                        tracing::warn!(error = %e, "removing images that no name means");
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(SWEEP_EVERY) => {}
            }
        }
    }

    /// Removes the bytes that no name has meant for long enough. Those that somebody is adding just now wait for the
    /// next time.
    pub async fn sweep(&self, service: &Service) -> Result<(), Error> {
        let store = self.store.clone();
        for (digest, since) in blocking(move || store.unnamed()).await? {
            if service.now().since(since) < KEPT_UNNAMED {
                continue;
            }
            let store = self.store.clone();
            let Some(_alone) = blocking(move || store.alone()).await? else { return Ok(()) };
            let store = self.store.clone();
            if service.is_named(&digest.to_string()).await? {
                blocking(move || store.unmark(&digest)).await?;
            } else {
                blocking(move || store.remove(&digest)).await?;
                tracing::info!(sha256 = %digest, "an image's bytes are removed: no name has meant them for a day");
            }
        }
        Ok(())
    }

    /// As the bytes come: what does not arrive whole leaves nothing. With them comes the right to name them.
    async fn write(&self, mut body: Body, expected: Option<Digest>) -> Result<(Digest, u64, Naming), Error> {
        let (pieces, mut come) = mpsc::channel::<io::Result<Bytes>>(PIECES);
        let store = self.store.clone();
        let writing = tokio::task::spawn_blocking(move || {
            let mut adding = store.adding()?;
            while let Some(piece) = come.blocking_recv() {
                adding.write(&piece.map_err(StoreError::Source)?)?;
            }
            let naming = store.naming()?;
            adding.finish(expected).map(|(digest, bytes)| (digest, bytes, naming))
        });
        let mut gathered = BytesMut::new();
        loop {
            let come = match tokio::time::timeout(SENDS_WITHIN, body.frame()).await {
                Ok(None) => break,
                Ok(Some(Ok(frame))) => Ok(frame.into_data().unwrap_or_default()),
                Ok(Some(Err(e))) => Err(io::Error::other(e)),
                Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "nothing came for a minute")),
            };
            let broken = come.is_err();
            let full = match come {
                Ok(come) => {
                    gathered.extend_from_slice(&come);
                    // handing over costs two threads a turn: not for every few bytes
                    (gathered.len() >= PIECE).then(|| Ok(gathered.split().freeze()))
                }
                Err(e) => Some(Err(e)),
            };
            // the other side has ended: it says why
            if let Some(piece) = full
                && (pieces.send(piece).await.is_err() || broken)
            {
                break;
            }
        }
        if !gathered.is_empty() {
            drop(pieces.send(Ok(gathered.freeze())).await);
        }
        drop(pieces);
        match writing.await {
            Ok(added) => added.map_err(|e| refusal(&e)),
            Err(_) => Err(Error::new(Reason::ShuttingDown, "the server stops")),
        }
    }
}

#[async_trait]
impl ImageBytes for Keeper {
    async fn unnamed(&self, service: &Service, sha256: &str) {
        let Ok(digest) = sha256.parse::<Digest>() else { return };
        // where that is not known they are marked, too: it is asked again before they are removed
        if service.is_named(sha256).await.is_ok_and(|named| named) {
            return;
        }
        let store = self.store.clone();
        if let Err(e) = blocking(move || store.mark_unnamed(&digest)).await {
            tracing::warn!(error = %e, sha256, "an image's bytes are left, though no name means them");
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|e| refusal(&e)),
        Err(_) => Err(Error::new(Reason::ShuttingDown, "the server stops")),
    }
}

fn refusal(e: &StoreError) -> Error {
    match e {
        StoreError::Mismatch { .. } => Error::field("sha256", e.to_string()),
        StoreError::TooLarge { .. } => {
            Error::new(Reason::LimitReached, format!("{e}; netboot.image_bytes_max sets that"))
        }
        StoreError::Source(_) => Error::field("body", e.to_string()),
        StoreError::Disk { reason, .. } if reason.kind() == io::ErrorKind::StorageFull => {
            Error::new(Reason::StorageFull, e.to_string())
        }
        StoreError::Disk { .. } => Error::internal(e.to_string()),
    }
}

/// What is to be added.
struct Asked {
    name: String,
    expected: Option<Digest>,
    length: Option<u64>,
    body: Body,
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or(""))
}

async fn add(
    State((keeper, service)): State<(Arc<Keeper>, Service)>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let request_id = parts.extensions.get::<api::RequestId>().map(|id| id.as_str().to_owned()).unwrap_or_default();
    if let Err(e) = service.takes_calls() {
        return api::rest_error(e);
    }
    let by = match service.access().authenticate(text(&parts.headers, AUTHORIZATION.as_str())).await {
        Ok(by) => by,
        Err(e) => {
            service.audit_stranger(PUT_IMAGE.call, &request_id, &e).await;
            return api::rest_error(e);
        }
    };
    let call = Arc::new(Call::new(by, PUT_IMAGE.call, request_id, None));
    call.about(&name);
    let added = async {
        call.by.may(&PUT_IMAGE)?;
        let expected = expected(query.as_deref())?;
        let length = text(&parts.headers, CONTENT_LENGTH.as_str()).and_then(|length| length.parse().ok());
        keeper.add(&service, &call, Asked { name, expected, length, body }).await
    };
    match added.await {
        Ok(image) => {
            let answer = serde_json::json!({
                "name": image.name,
                "sha256": image.sha256,
                "bytes": image.bytes.to_string(),
                "kind": image.kind,
                "added_at": image.added_at.to_string(),
                "added_by": image.added_by,
            });
            (StatusCode::OK, [(CONTENT_TYPE, "application/json")], answer.to_string()).into_response()
        }
        Err(e) => {
            service.audit_refusal(&call, &PUT_IMAGE, &e).await;
            api::rest_error(e)
        }
    }
}

/// `sha256=HEX`, and nothing else.
fn expected(query: Option<&str>) -> Result<Option<Digest>, Error> {
    let mut found = None;
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sha256", digest)) => {
                let digest = digest.to_ascii_lowercase().parse().map_err(|e| Error::field("sha256", format!("{e}")))?;
                found = Some(digest);
            }
            _ => return Err(Error::field("query", "only sha256=HEX is known here")),
        }
    }
    Ok(found)
}
