//! Bodies: bounded before they are kept, in bytes and in time, and JSON in UTF-8 or nothing.

use super::text::header;
use axum::body::{Body, BodyDataStream, HttpBody as _};
use domain::{Error, Reason};
use futures::StreamExt as _;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// How much of a refused body is read and thrown away, so that the answer reaches a client that only
/// listens once it has sent everything, and the connection can be used again. Beyond it, it is closed.
const LINGER_BYTES: usize = 16 * 1024 * 1024;
const LINGER: Duration = Duration::from_secs(2);

/// Room made before anything has arrived.
const FIRST_BYTES: usize = 64 * 1024;

pub(crate) struct Bounds {
    pub bytes: usize,
    pub within: Duration,
}

/// The whole body, once it is there.
pub(crate) async fn whole(headers: &HeaderMap, body: Body, bounds: &Bounds) -> Result<Vec<u8>, Error> {
    let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut data = body.into_data_stream();
    if declared > bounds.bytes {
        // one that asks first will not send it
        if !headers.contains_key(EXPECT) {
            discard(&mut data).await;
        }
        return Err(too_large(bounds.bytes));
    }
    let deadline = Instant::now() + bounds.within;
    // what is promised is not yet sent
    let mut bytes = Vec::with_capacity(declared.min(FIRST_BYTES));
    loop {
        match timeout_at(deadline, data.next()).await {
            Ok(None) => return Ok(bytes),
            Ok(Some(Ok(chunk))) if bytes.len() + chunk.len() <= bounds.bytes => bytes.extend_from_slice(&chunk),
            Ok(Some(Ok(_))) => {
                drop(bytes);
                discard(&mut data).await;
                return Err(too_large(bounds.bytes));
            }
            Ok(Some(Err(e))) => return Err(Error::field("body", format!("broke off or does not read: {e}"))),
            Err(_) => {
                let message =
                    format!("the body did not arrive within {} s; send it again", bounds.within.as_secs_f32());
                return Err(Error::new(Reason::DeadlineExceeded, message));
            }
        }
    }
}

/// For calls that take none: something that was sent and would be passed over is an error.
pub(crate) async fn none(body: Body, within: Duration) -> Result<(), Error> {
    if body.is_end_stream() {
        return Ok(());
    }
    match whole(&HeaderMap::new(), body, &Bounds { bytes: 0, within }).await {
        Err(e) if e.reason == Reason::LimitReached => {
            Err(Error::field("body", "this call takes none; send its fields in the query"))
        }
        other => other.map(drop),
    }
}

fn too_large(max: usize) -> Error {
    Error::new(Reason::LimitReached, format!("the body is too large: at most {max} bytes are taken"))
        .with("field", "body")
        .with("max", max.to_string())
}

async fn discard(data: &mut BodyDataStream) {
    let reading = async {
        let mut left = LINGER_BYTES;
        while let Some(Ok(chunk)) = data.next().await {
            left = left.saturating_sub(chunk.len());
            if left == 0 {
                return;
            }
        }
    };
    // too slow to be waited for: it is cut off instead
    timeout(LINGER, reading).await.unwrap_or(());
}

/// JSON in UTF-8, or no word about it.
pub(crate) fn check_type(headers: &HeaderMap) -> Result<(), Error> {
    if headers.get(CONTENT_ENCODING).is_some_and(|v| v.as_bytes() != b"identity") {
        return Err(Error::field("content-encoding", "bodies are taken as they are, not compressed"));
    }
    if !headers.contains_key(CONTENT_TYPE) {
        return Ok(());
    }
    let text = header(headers, &CONTENT_TYPE).unwrap_or("?");
    let mut parts = text.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default().to_ascii_lowercase();
    // what `curl -d` and others say when nobody told them; harmless while a caller proves itself by a header
    // that no browser adds on its own
    let untold = media == "application/x-www-form-urlencoded";
    if media != "application/json" && !untold && !(media.starts_with("application/") && media.ends_with("+json")) {
        let message = format!("{text:?} is not taken; send 'Content-Type: application/json'");
        return Err(Error::field("content-type", message));
    }
    let charset = parts.find_map(|p| p.split_once('=').filter(|(name, _)| name.eq_ignore_ascii_case("charset")));
    match charset.map(|(_, value)| value.trim_matches('"')) {
        Some(charset) if !charset.eq_ignore_ascii_case("utf-8") && !charset.eq_ignore_ascii_case("utf8") => {
            Err(Error::field("content-type", format!("the charset {charset:?} is not taken; send UTF-8")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;

    fn bounds(bytes: usize) -> Bounds {
        Bounds { bytes, within: Duration::from_secs(20) }
    }

    fn chunks(chunks: Vec<&'static str>) -> Body {
        Body::from_stream(stream::iter(chunks.into_iter().map(Ok::<_, std::io::Error>)))
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_are_bounded_in_bytes_and_time() {
        let headers = HeaderMap::new();
        assert_eq!(whole(&headers, chunks(vec!["ab", "cd"]), &bounds(4)).await.expect("fits"), b"abcd");
        for body in [chunks(vec!["ab", "cd", "e"]), Body::from("abcde")] {
            let error = whole(&headers, body, &bounds(4)).await.expect_err("too large");
            assert_eq!(error.reason, Reason::LimitReached);
        }
        let silent = Body::from_stream(stream::pending::<Result<&str, std::io::Error>>());
        let error = whole(&headers, silent, &bounds(4)).await.expect_err("too slow");
        assert_eq!(error.reason, Reason::DeadlineExceeded);
        // neither without end nor without hurry is one waited for
        let endless = Body::from_stream(stream::repeat_with(|| Ok::<_, std::io::Error>("x".repeat(65_536))));
        let error = whole(&headers, endless, &bounds(4)).await.expect_err("too large");
        assert_eq!(error.reason, Reason::LimitReached);
    }

    #[tokio::test]
    async fn calls_without_a_body_refuse_one() {
        let within = Duration::from_secs(1);
        for body in [Body::empty(), Body::from(""), chunks(vec![]), chunks(vec![""])] {
            none(body, within).await.expect("nothing was sent");
        }
        assert_eq!(none(Body::from("{}"), within).await.expect_err("refused").reason, Reason::InvalidField);
    }

    #[test]
    fn types_are_json_in_utf_8() {
        let check = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, text.parse().expect("a header"));
            check_type(&headers).is_ok()
        };
        for good in [
            "application/json",
            "Application/JSON; charset=UTF-8",
            "application/json;charset=\"utf-8\"",
            "application/merge-patch+json",
        ] {
            assert!(check(good), "{good}");
        }
        for bad in ["text/plain", "application/grpc", "application/json; charset=utf-16", "json", ""] {
            assert!(!check(bad), "{bad}");
        }
        assert!(check_type(&HeaderMap::new()).is_ok());
    }
}
