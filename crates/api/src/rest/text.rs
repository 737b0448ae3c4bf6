//! Paths and queries as texts: percent-encoding, pairs, and the words of some headers.

use domain::Error;
use http::HeaderMap;
use http::header::{ACCEPT, HeaderName};

/// The segments of a path, decoded one by one: an encoded slash is part of a name.
pub(crate) fn segments(path: &str) -> Result<Vec<String>, Error> {
    path.strip_prefix('/').unwrap_or(path).split('/').map(|s| decoded(s, false, "path")).collect()
}

/// The names and values of a query, decoded.
pub(crate) fn pairs(query: &str) -> Result<Vec<(String, String)>, Error> {
    let pair = |text: &str| {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let name = decoded(name, true, "query")?;
        let value = decoded(value, true, &name)?;
        Ok((name, value))
    };
    query.split('&').filter(|text| !text.is_empty()).map(pair).collect()
}

fn decoded(text: &str, plus_is_space: bool, field: &str) -> Result<String, Error> {
    let is_plain = |c: char| c != '%' && (c != '+' || !plus_is_space);
    if text.chars().all(is_plain) {
        return Ok(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => match (rest.next().and_then(hex), rest.next().and_then(hex)) {
                (Some(high), Some(low)) => high * 16 + low,
                _ => return Err(Error::field(field, "a % must be followed by two hexadecimal digits")),
            },
            b'+' if plus_is_space => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).map_err(|_| Error::field(field, "is not UTF-8 once it is decoded"))
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|d| u8::try_from(d).ok())
}

/// A header as text; one that is not text counts as absent.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Whether the caller asks for plain text rather than for events.
pub(crate) fn wants_plain_text(headers: &HeaderMap) -> bool {
    let (mut plain, mut events) = (0.0, 0.0);
    let values = headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok());
    for range in values.flat_map(|v| v.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let weight = parts.find_map(|p| p.strip_prefix("q=")).map_or(1.0, |q| q.parse().unwrap_or(0.0));
        if media.eq_ignore_ascii_case("text/plain") {
            plain = weight;
        } else if media.eq_ignore_ascii_case("text/event-stream") {
            events = weight;
        }
    }
    plain > events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_decoded_after_the_path_is_cut() {
        assert_eq!(segments("/api/v1/machines/a%2Fb%20c").expect("reads"), ["api", "v1", "machines", "a/b c"]);
        assert_eq!(segments("/runs%3Awatch/+").expect("reads"), ["runs:watch", "+"]);
        assert_eq!(segments("/a//").expect("reads"), ["a", "", ""]);
        for bad in ["/%", "/%4", "/%zz", "/%+4", "/%ff", "/%c3%28"] {
            assert!(segments(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn queries_are_pairs() {
        let read = |q| pairs(q).expect("reads");
        assert_eq!(read("a=1&b=x+y%2B&c&&a=2=3"), [("a", "1"), ("b", "x y+"), ("c", ""), ("a", "2=3")].map(own));
        assert!(read("").is_empty());
        assert!(pairs("filter=%").expect_err("is refused").message.starts_with("filter: "));
    }

    fn own(pair: (&str, &str)) -> (String, String) {
        (pair.0.to_owned(), pair.1.to_owned())
    }

    #[test]
    fn plain_text_is_sent_only_when_asked_for() {
        let wants = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().expect("a header"));
            wants_plain_text(&headers)
        };
        assert!(wants("text/plain") && wants("TEXT/plain; charset=utf-8") && wants("text/plain, */*;q=0.1"));
        assert!(!wants("*/*") && !wants("text/event-stream, text/plain;q=0.5") && !wants("text/plain;q=0"));
        assert!(!wants_plain_text(&HeaderMap::new()));
    }
}
