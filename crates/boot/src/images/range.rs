//! Which bytes a request asks for (RFC 9110, sections 13 and 14), as pure functions of its headers. One range is
//! served; whoever asks for several is given the whole, as the standard allows.

use http::header::{HeaderMap, HeaderName, IF_MATCH, IF_NONE_MATCH, IF_RANGE, RANGE};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Whole,
    /// From and including the first, to and including the last.
    Only {
        first: u64,
        last: u64,
    },
    /// Asked for and not there.
    Beyond,
}

/// What a `Range` header means for so many bytes. One that cannot be read is as good as none.
pub fn part(header: &[u8], length: u64) -> Part {
    let Some(asked) = std::str::from_utf8(header).ok().and_then(bytes_range) else { return Part::Whole };
    let (first, last) = match asked {
        Asked::Between(first, last) => (first, last.unwrap_or(u64::MAX).min(length.saturating_sub(1))),
        Asked::Last(0) => return Part::Beyond,
        Asked::Last(count) => (length.saturating_sub(count), length.saturating_sub(1)),
    };
    if first < length { Part::Only { first, last } } else { Part::Beyond }
}

enum Asked {
    Between(u64, Option<u64>),
    /// So many from the end.
    Last(u64),
}

fn bytes_range(text: &str) -> Option<Asked> {
    let (unit, set) = text.split_once('=')?;
    if !unit.trim_matches(BLANK).eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, last) = set.trim_matches(BLANK).split_once('-')?;
    match (first, last) {
        ("", count) => number(count).map(Asked::Last),
        (first, "") => number(first).map(|first| Asked::Between(first, None)),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(Asked::Between(first, Some(last)))
        }
    }
}

const BLANK: [char; 2] = [' ', '\t'];

/// Digits alone; what is larger than any image is as good as the largest number.
fn number(digits: &str) -> Option<u64> {
    if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    Some(digits.parse().unwrap_or(u64::MAX))
}

/// What the conditions of a request come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The client has it already.
    NotModified,
    /// It wanted something else than what is there.
    Failed,
    Send(Part),
}

/// Conditions first, in the order of RFC 9110, section 13.2.2; then the range, which only a GET has.
pub(super) fn judge(headers: &HeaderMap, is_get: bool, tag: &str, length: u64) -> Verdict {
    if headers.contains_key(IF_MATCH) && !named(headers, IF_MATCH, |one| one == tag) {
        return Verdict::Failed;
    }
    if named(headers, IF_NONE_MATCH, |one| one.strip_prefix("W/").unwrap_or(one) == tag) {
        return Verdict::NotModified;
    }
    let mut ranges = headers.get_all(RANGE).iter();
    let asked = match (ranges.next(), ranges.next()) {
        (Some(one), None) if is_get => one,
        _ => return Verdict::Send(Part::Whole),
    };
    // of a date nothing is known here, and a weak tag says nothing about bytes
    let same = headers.get(IF_RANGE).is_none_or(|value| value.as_bytes() == tag.as_bytes());
    Verdict::Send(if same { part(asked.as_bytes(), length) } else { Part::Whole })
}

/// Whether one of the tags in a header is it, or the header is `*`. Our tags hold no comma.
fn named(headers: &HeaderMap, header: HeaderName, is_it: impl Fn(&str) -> bool) -> bool {
    let values = headers.get_all(header);
    let mut tags = values.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    tags.any(|one| {
        let one = one.trim_matches(BLANK);
        one == "*" || is_it(one)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn only(first: u64, last: u64) -> Part {
        Part::Only { first, last }
    }

    #[test]
    fn ranges_as_the_standard_has_them() {
        let cases = [
            ("bytes=0-0", only(0, 0)),
            ("bytes=0-9", only(0, 9)),
            ("bytes=3-", only(3, 9)),
            ("bytes=3-500", only(3, 9)),
            ("bytes=9-9", only(9, 9)),
            ("bytes=-3", only(7, 9)),
            ("bytes=-10", only(0, 9)),
            ("bytes=-500", only(0, 9)),
            ("Bytes= 2-4 ", only(2, 4)),
            ("bytes=0-99999999999999999999999", only(0, 9)),
            ("bytes=-99999999999999999999999", only(0, 9)),
            ("bytes=10-", Part::Beyond),
            ("bytes=10-11", Part::Beyond),
            ("bytes=99999999999999999999999-", Part::Beyond),
            ("bytes=-0", Part::Beyond),
            ("bytes=4-2", Part::Whole),
            ("bytes=0-1,3-4", Part::Whole),
            ("bytes=-", Part::Whole),
            ("bytes=", Part::Whole),
            ("bytes", Part::Whole),
            ("", Part::Whole),
            ("bytes=+1-2", Part::Whole),
            ("bytes=1--2", Part::Whole),
            ("bytes=0x1-2", Part::Whole),
            ("bytes=1 - 2", Part::Whole),
            ("lines=1-2", Part::Whole),
        ];
        for (header, part_of_ten) in cases {
            assert_eq!(part(header.as_bytes(), 10), part_of_ten, "{header}");
        }
        assert_eq!(part(b"bytes=0-", 0), Part::Beyond);
        assert_eq!(part(b"bytes=-1", 0), Part::Beyond);
        assert_eq!(part(b"bytes=\xff-", 10), Part::Whole);
    }

    proptest! {
        /// Counted one by one instead of computed.
        #[test]
        fn a_range_is_the_bytes_it_names(first in 0u64..40, last in 0u64..40, length in 0u64..30) {
            let there: Vec<u64> = (0..length).filter(|n| (first..=last).contains(n)).collect();
            let expected = match (first <= last, there.first(), there.last()) {
                (false, _, _) => Part::Whole,
                (true, Some(first), Some(last)) => only(*first, *last),
                (true, _, _) => Part::Beyond,
            };
            prop_assert_eq!(part(format!("bytes={first}-{last}").as_bytes(), length), expected);
            let tail: Vec<u64> = (0..length).rev().take(usize::try_from(last).expect("small")).collect();
            let expected = tail.last().zip(tail.first()).map_or(Part::Beyond, |(first, last)| only(*first, *last));
            prop_assert_eq!(part(format!("bytes=-{last}").as_bytes(), length), expected);
        }
    }

    #[test]
    fn conditions_come_before_ranges() {
        let tag = "\"abc\"";
        let judged = |fields: &[(HeaderName, &'static str)], is_get| {
            let headers: HeaderMap = fields.iter().map(|(n, v)| (n.clone(), HeaderValue::from_static(v))).collect();
            judge(&headers, is_get, tag, 10)
        };
        let send = Verdict::Send(only(1, 2));
        let whole = Verdict::Send(Part::Whole);
        let range = (RANGE, "bytes=1-2");
        assert_eq!(judged(&[], true), whole);
        assert_eq!(judged(std::slice::from_ref(&range), true), send);
        assert_eq!(judged(std::slice::from_ref(&range), false), whole, "a HEAD has no range");
        assert_eq!(judged(&[range.clone(), (IF_RANGE, "\"abc\"")], true), send);
        for other in ["\"abd\"", "W/\"abc\"", "Tue, 15 Nov 1994 12:45:26 GMT", "abc"] {
            assert_eq!(judged(&[range.clone(), (IF_RANGE, other)], true), whole, "{other}");
        }
        for same in ["\"abc\"", "W/\"abc\"", "*", "\"x\", \"abc\"", "\"x\" ,W/\"abc\""] {
            assert_eq!(judged(&[range.clone(), (IF_NONE_MATCH, same)], true), Verdict::NotModified, "{same}");
        }
        assert_eq!(judged(&[range.clone(), (IF_NONE_MATCH, "\"x\"")], true), send);
        assert_eq!(judged(&[range.clone(), (IF_MATCH, "\"x\", \"abc\"")], true), send);
        assert_eq!(judged(&[range.clone(), (IF_MATCH, "*")], true), send);
        assert_eq!(judged(&[range, (IF_MATCH, "W/\"abc\"")], true), Verdict::Failed);
        let mut both = HeaderMap::new();
        both.append(RANGE, HeaderValue::from_static("bytes=0-1"));
        both.append(RANGE, HeaderValue::from_static("bytes=3-4"));
        assert_eq!(judge(&both, true, tag, 10), whole);
    }
}
