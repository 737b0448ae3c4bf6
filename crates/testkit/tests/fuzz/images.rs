//! Requests for images: path, range and conditions as they come. Whatever they are, the answer is what the standard
//! says by a reckoning of its own here, and its bytes are those of the image.

use boot::images::{Digest, Images, NamesInMemory, Options, Store};
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, HeaderName, IF_MATCH, IF_NONE_MATCH, IF_RANGE, RANGE};
use http::{HeaderValue, Method};
use http_body_util::BodyExt as _;
use std::sync::Arc;
use testkit::fuzz::Fuzz;

const LENGTH: u64 = 1000;
const FIELDS: [HeaderName; 4] = [RANGE, IF_RANGE, IF_NONE_MATCH, IF_MATCH];

/// The first and last byte that a range names; `None`: it names none, or cannot be read. Written for numbers that do
/// not overflow.
fn named(range: &str) -> Option<(u128, u128)> {
    let numbers = range.strip_prefix("bytes=")?;
    let number = |text: &str| {
        let digits = !text.is_empty() && text.len() < 30 && text.chars().all(|c| c.is_ascii_digit());
        digits.then(|| text.parse::<u128>().ok()).flatten()
    };
    let (length, (first, last)) = (u128::from(LENGTH), numbers.split_once('-')?);
    let (first, last) = match (first, last) {
        ("", count) => (length - number(count)?.min(length), length - 1),
        (first, "") => (number(first)?, length - 1),
        (first, last) if number(first)? > number(last)? => return None,
        (first, last) => (number(first)?, number(last)?.min(length - 1)),
    };
    (first < length && first <= last).then_some((first, last))
}

/// What a range looks like from afar: its letters and digits all look alike.
fn outline(range: &[u8]) -> String {
    let kinds = range.iter().map(|c| match c {
        b'0'..=b'9' => '#',
        b'-' | b'=' | b',' => char::from(*c),
        _ => 'a',
    });
    let mut outline: Vec<char> = kinds.collect();
    outline.dedup();
    outline.into_iter().take(6).collect()
}

#[test]
fn images() {
    let content: Vec<u8> = (0..LENGTH).map(|n| (n % 251) as u8).collect();
    let probe = tempfile::tempdir().expect("a folder");
    let digest = Store::open(probe.path(), u64::MAX).expect("opened").add(content.as_slice(), None).expect("added").0;
    let path = format!("/images/sha256/{digest}");
    let seeds = [
        format!("GET\n{path}\n"),
        format!("GET\n{path}\nbytes=0-9\n"),
        format!("GET\n/images/name\nbytes=-9\n\"{digest}\"\n"),
        format!("GET\n{path}\nbytes=5-\n\"other\"\n"),
        format!("GET\n{path}\n\n\n\"{digest}\"\n"),
        format!("GET\n{path}\n\n\nW/\"{digest}\", \"b\"\n\n"),
        format!("GET\n{path}\nbytes=1-2\n\n\n\"a\", \"{digest}\"\n"),
        "HEAD\n/images/name\nbytes=1000-".to_owned(),
        "GET\n/images/..%2f..%2fetc%2fpasswd\n".to_owned(),
        "GET\n/images/sha256/../../secret\n".to_owned(),
        "POST\n/images/name\n".to_owned(),
    ];
    let words = [
        "bytes=",
        "-",
        "0-0",
        "999",
        "1000",
        "99999999999999999999",
        ",",
        "*",
        "W/",
        "\"",
        "/images/",
        "sha256/",
        "..",
        "%2f",
        "name",
        "secret",
    ];
    Fuzz::new("images", module_path!()).seeds(seeds).words(words).inputs(6_000).run(|| {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("secret"), b"secret").expect("written");
        let store = Store::open(folder.path(), u64::MAX).expect("opened");
        store.add(content.as_slice(), None).expect("added");
        let names = NamesInMemory::default();
        names.set("name".parse().expect("a name"), digest);
        let images = Images::new(Arc::new(store), Arc::new(names), Options { streams_max: 1 });
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        move |input| {
            // as long as anything is asked for
            let _there = folder.path();
            let Ok(text) = std::str::from_utf8(input) else { return Ok("no text".to_owned()) };
            let mut lines = text.split('\n');
            let method = lines.next().and_then(|m| Method::from_bytes(m.as_bytes()).ok()).unwrap_or(Method::GET);
            let path = lines.next().unwrap_or_default();
            let mut headers = HeaderMap::new();
            for (field, line) in FIELDS.into_iter().zip(lines) {
                if let Some(value) = HeaderValue::from_str(line).ok().filter(|value| !value.is_empty()) {
                    headers.insert(field, value);
                }
            }
            let (status, head, body) = runtime.block_on(async {
                let (head, body) = images.answer(&method, path, &headers).await.into_parts();
                let body = body.collect().await.map_err(|e| format!("a body breaks off: {e}"))?.to_bytes();
                Ok::<_, String>((head.status.as_u16(), head.headers, body))
            })?;
            judge(&method, path, &headers, &digest, &content, status, &head, &body)?;
            if images.streams() > 0 {
                return Err("a place is not given back".to_owned());
            }
            let method = if [Method::GET, Method::HEAD].contains(&method) { method.as_str() } else { "other" };
            let fields: Vec<&str> =
                FIELDS.iter().filter(|f| headers.contains_key(*f)).map(HeaderName::as_str).collect();
            let range = headers.get(RANGE).map_or(&[][..], |value| value.as_bytes());
            Ok(format!("{method} {status} {fields:?} {}", outline(range)))
        }
    });
}

#[allow(clippy::too_many_arguments, reason = "a question and its answer")]
fn judge(
    method: &Method,
    path: &str,
    asked: &HeaderMap,
    digest: &Digest,
    content: &[u8],
    status: u16,
    head: &HeaderMap,
    body: &[u8],
) -> Result<(), String> {
    let field = |headers: &HeaderMap, name| {
        headers.get(name).map(|v: &HeaderValue| String::from_utf8_lossy(v.as_bytes()).into_owned())
    };
    let expect = |wanted: u16| if status == wanted { Ok(()) } else { Err(format!("{status} instead of {wanted}")) };
    if *method != Method::GET && *method != Method::HEAD {
        return expect(405);
    }
    if path != "/images/name" && path != format!("/images/sha256/{digest}") {
        return expect(404);
    }
    let tag = format!("\"{digest}\"");
    match (status, *method == Method::HEAD) {
        // who has conditions is judged by whether its header has the tag at all
        (304, _) => match field(asked, IF_NONE_MATCH) {
            Some(tags) if tags.contains(&tag) || tags.contains('*') => Ok(()),
            other => Err(format!("not modified for {other:?}")),
        },
        (412, _) if asked.contains_key(IF_MATCH) => Ok(()),
        (200, true) if body.is_empty() && field(head, CONTENT_LENGTH) == Some(LENGTH.to_string()) => Ok(()),
        (200, false) => {
            if body != content {
                return Err(format!("{} bytes instead of all", body.len()));
            }
            match (field(asked, RANGE).as_deref().and_then(named), field(asked, IF_RANGE)) {
                (Some(range), None) => Err(format!("the whole, and {range:?} was asked for")),
                (Some(range), Some(same)) if same == tag => Err(format!("the whole, and {range:?} was asked for")),
                _ => Ok(()),
            }
        }
        (206, false) => {
            let sent = field(head, CONTENT_RANGE).unwrap_or_default();
            let numbers =
                sent.strip_prefix("bytes ").and_then(|s| s.strip_suffix("/1000")).and_then(|s| s.split_once('-'));
            let Some((Ok(first), Ok(last))) = numbers.map(|(a, b)| (a.parse::<usize>(), b.parse::<usize>())) else {
                return Err(format!("Content-Range: {sent}"));
            };
            if content.get(first..=last) != Some(body) {
                return Err(format!("{sent} with {} bytes, which are others", body.len()));
            }
            let range = field(asked, RANGE).unwrap_or_default();
            // blanks and capitals are let pass, and what has no end ends with the image
            let plain = range.to_ascii_lowercase().replace([' ', '\t'], "");
            match named(&plain) {
                Some(wanted) if wanted == (first as u128, last as u128) => Ok(()),
                None if plain.len() > 30 => Ok(()),
                other => Err(format!("{range:?} is {other:?}, and {sent} was sent")),
            }
        }
        (416, false) => {
            let range = field(asked, RANGE).unwrap_or_default();
            if named(&range).is_some() || body.len() as u64 >= LENGTH {
                Err(format!("refused: {range:?}"))
            } else {
                Ok(())
            }
        }
        _ => Err(format!("{method} answered by {status}")),
    }
}
