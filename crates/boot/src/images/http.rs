//! Images over HTTP: `/images/sha256/HEX` and `/images/NAME`, whole or in part, for as many readers as there is room
//! for. No token is asked for: machines that boot have none, and what they get they verify by its digest.
//!
//! A path is compared as it was sent. No name needs an escape, so nothing is unescaped, and what is not exactly a
//! digest or a name is not there.

use super::range::{Verdict, judge};
use super::stream::{Stream, Streams};
use super::{Digest, Image, ImageName, Names, Part, Store};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::any;
use http::header::{
    ACCEPT_RANGES, ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_RANGE, CONTENT_TYPE, ETAG,
    RETRY_AFTER,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, response};
use std::fmt::Display;
use std::sync::Arc;

const PATH: &str = "/images/";
const BY_DIGEST: &str = "sha256/";
/// What a digest means never changes; what a name means does.
const FOR_EVER: &str = "public, max-age=31536000, immutable";
const ASK_AGAIN: &str = "no-cache";
/// Seconds after which a place may be free.
const LATER: &str = "10";

/// The bounds, by name.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Readers at the same time; more are told to come later.
    pub streams_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { streams_max: 1024 }
    }
}

/// What a path asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wanted {
    Digest(Digest),
    Name(ImageName),
}

fn wanted(path: &str) -> Option<Wanted> {
    let rest = path.strip_prefix(PATH)?;
    match rest.strip_prefix(BY_DIGEST) {
        Some(digest) => digest.parse().ok().map(Wanted::Digest),
        None => rest.parse().ok().map(Wanted::Name),
    }
}

/// Images, served.
pub struct Images {
    store: Arc<Store>,
    names: Arc<dyn Names>,
    streams: Arc<Streams>,
}

impl Images {
    pub fn new(store: Arc<Store>, names: Arc<dyn Names>, options: Options) -> Self {
        Self { store, names, streams: Arc::new(Streams::new(options.streams_max)) }
    }

    /// Everything below `/images/`.
    pub fn router(self: Arc<Self>) -> Router {
        let answer = |State(images): State<Arc<Images>>, request: Request| async move {
            let (request, _body) = request.into_parts();
            images.answer(&request.method, request.uri.path(), &request.headers).await
        };
        Router::new().route("/images/{*image}", any(answer)).with_state(self)
    }

    /// Readers at this moment.
    pub fn streams(&self) -> usize {
        self.streams.open()
    }

    /// The answer to one request, whatever it asks for.
    pub async fn answer(&self, method: &Method, path: &str, headers: &HeaderMap) -> Response {
        let is_get = match *method {
            Method::GET => true,
            Method::HEAD => false,
            _ => {
                let answer = Response::builder().header(ALLOW, "GET, HEAD");
                return say(answer, StatusCode::METHOD_NOT_ALLOWED, "images are read, by GET or HEAD");
            }
        };
        let (image, by_name) = match self.find(path).await {
            Ok(found) => found,
            Err(refusal) => return *refusal,
        };
        let (digest, length) = (*image.digest(), image.bytes());
        let tag = format!("\"{digest}\"");
        let verdict = judge(headers, is_get, &tag, length);
        let mut answer = Response::builder().header(ETAG, tag).header(ACCEPT_RANGES, "bytes");
        let keep = if by_name { ASK_AGAIN } else { FOR_EVER };
        if by_name {
            answer = answer.header(CONTENT_LOCATION, format!("{PATH}{BY_DIGEST}{digest}"));
        }
        let (status, first, end) = match verdict {
            Verdict::NotModified => {
                let answer = answer.status(StatusCode::NOT_MODIFIED).header(CACHE_CONTROL, keep);
                return finish(answer.header(CONTENT_LENGTH, length), Body::empty());
            }
            Verdict::Failed => {
                return say(answer, StatusCode::PRECONDITION_FAILED, format!("the image here is {digest}"));
            }
            Verdict::Send(Part::Beyond) => {
                let answer = answer.header(CONTENT_RANGE, format!("bytes */{length}"));
                return say(answer, StatusCode::RANGE_NOT_SATISFIABLE, format!("the image has {length} bytes"));
            }
            Verdict::Send(Part::Whole) => (StatusCode::OK, 0, length),
            Verdict::Send(Part::Only { first, last }) => {
                answer = answer.header(CONTENT_RANGE, format!("bytes {first}-{last}/{length}"));
                (StatusCode::PARTIAL_CONTENT, first, last + 1)
            }
        };
        let body = if is_get {
            let Some(place) = self.streams.place() else {
                let answer = Response::builder().header(RETRY_AFTER, LATER);
                return say(answer, StatusCode::SERVICE_UNAVAILABLE, "as many read images as may; come again");
            };
            Body::new(Stream::new(image, first, end, place))
        } else {
            Body::empty()
        };
        // of a refusal nothing is kept
        let answer = answer.status(status).header(CACHE_CONTROL, keep).header(CONTENT_LENGTH, end - first);
        finish(answer.header(CONTENT_TYPE, "application/octet-stream"), body)
    }

    /// The image, and whether it was asked for by a name; or the refusal.
    async fn find(&self, path: &str) -> Result<(Image, bool), Box<Response>> {
        let refuse = |status, message: &dyn Display| Box::new(say(Response::builder(), status, message));
        let digest = match wanted(path) {
            None => {
                let rule = "images are at /images/sha256/ and 64 hexadecimal digits in lower case, or at /images/ and \
                            a name of 1 to 63 of a-z A-Z 0-9 . _ -";
                return Err(refuse(StatusCode::NOT_FOUND, &rule));
            }
            Some(Wanted::Digest(digest)) => (digest, false),
            Some(Wanted::Name(name)) => match self.names.digest_of(&name).await {
                Ok(Some(digest)) => (digest, true),
                Ok(None) => return Err(refuse(StatusCode::NOT_FOUND, &format!("no image is called {name}"))),
                Err(e) => {
                    tracing::warn!(error = %e, %name, "looking up an image's name");
                    return Err(refuse(StatusCode::SERVICE_UNAVAILABLE, &"names cannot be looked up now"));
                }
            },
        };
        let (digest, by_name) = digest;
        let store = self.store.clone();
        // a disk that sleeps must not hold up other connections
        match tokio::task::spawn_blocking(move || store.image(&digest)).await {
            Ok(Ok(Some(image))) => Ok((image, by_name)),
            Ok(Ok(None)) => Err(refuse(StatusCode::NOT_FOUND, &format!("the image {digest} is not stored here"))),
            Ok(Err(e)) => {
                tracing::error!(error = %e, "an image cannot be opened");
                let message = format!("the image {digest} cannot be opened; the server's log says why");
                Err(refuse(StatusCode::INTERNAL_SERVER_ERROR, &message))
            }
            Err(_) => Err(refuse(StatusCode::SERVICE_UNAVAILABLE, &"the server stops")),
        }
    }
}

/// An answer in words.
fn say(answer: response::Builder, status: StatusCode, message: impl Display) -> Response {
    let answer = answer.status(status).header(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    finish(
        answer.header(HeaderName::from_static("x-content-type-options"), "nosniff"),
        Body::from(format!("{message}\n")),
    )
}

fn finish(answer: response::Builder, body: Body) -> Response {
    // all headers are ours and well formed
    answer.body(body).unwrap_or_else(|_| {
        let mut failed = Response::new(Body::empty());
        *failed.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        failed
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_digest_or_a_name_and_nothing_else() {
        let digest = "ab".repeat(32);
        assert_eq!(wanted(&format!("/images/sha256/{digest}")), digest.parse().ok().map(Wanted::Digest));
        assert_eq!(wanted("/images/ubuntu.raw"), "ubuntu.raw".parse().ok().map(Wanted::Name));
        assert_eq!(wanted("/images/sha256"), "sha256".parse().ok().map(Wanted::Name));
        for nothing in [
            "/images",
            "/images/",
            "/images/..",
            "/images/.",
            "/images//ubuntu.raw",
            "/images/ubuntu.raw/",
            "/images/%75buntu.raw",
            "/images/..%2fetc%2fpasswd",
            "/images/sha256/",
            "/images/sha256/..",
            "/images/sha256/../../etc/passwd",
            "/images/sha256/.adding-0000000000000000",
            "/Images/ubuntu.raw",
            "images/ubuntu.raw",
            "*",
            &format!("/images/sha256/{digest}/"),
            &format!("/images/sha256/{}", digest.to_uppercase()),
            &format!("/images/sha256%2f{digest}"),
            &format!("/images/./sha256/{digest}"),
        ] {
            assert_eq!(wanted(nothing), None, "{nothing}");
        }
    }
}
