//! Small texts: times and durations for people, `key=value` pairs, and output made safe for a terminal.

use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;

/// What stands where there is nothing.
pub const NONE: &str = "-";

/// The present. Everything below takes it as an argument.
pub fn now() -> Timestamp {
    Timestamp::now()
}

pub fn moment(wire: Option<&prost_types::Timestamp>) -> Option<Timestamp> {
    wire.and_then(|t| Timestamp::new(t.seconds, t.nanos).ok())
}

/// RFC 3339 to the second, or `-`.
pub fn rfc3339(wire: Option<&prost_types::Timestamp>) -> String {
    moment(wire).map_or_else(|| NONE.to_owned(), |at| format!("{at:.0}"))
}

/// RFC 3339 to the millisecond, or `-`.
pub fn precise(wire: Option<&prost_types::Timestamp>) -> String {
    moment(wire).map_or_else(|| NONE.to_owned(), |at| format!("{at:.3}"))
}

/// `3m ago`, `in 20s`, `now`, or `-`.
pub fn relative(wire: Option<&prost_types::Timestamp>, now: Timestamp) -> String {
    let Some(at) = moment(wire) else { return NONE.to_owned() };
    let seconds = now.duration_since(at).as_secs();
    let coarse = match seconds.unsigned_abs() {
        0 => return "now".to_owned(),
        s @ 1..60 => format!("{s}s"),
        s @ 60..3_600 => format!("{}m", s / 60),
        s @ 3_600..172_800 => format!("{}h", s / 3_600),
        s => format!("{}d", s / 86_400),
    };
    if seconds > 0 { format!("{coarse} ago") } else { format!("in {coarse}") }
}

/// RFC 3339 with the age beside it, for sheets. Empty when there is no time.
pub fn dated(wire: Option<&prost_types::Timestamp>, now: Timestamp) -> String {
    if moment(wire).is_none() {
        return String::new();
    }
    format!("{} ({})", rfc3339(wire), relative(wire, now))
}

/// `430ms`, `3.2s`, `4m05s`, `2h03m`, `3d04h`. What seems to last less than nothing (clocks differ) is `0ms`.
pub fn span(duration: SignedDuration) -> String {
    let millis = duration.as_millis().max(0);
    let seconds = millis / 1000;
    match seconds {
        0 => format!("{millis}ms"),
        1..60 => format!("{seconds}.{}s", millis % 1000 / 100),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// How long something took, or has taken so far; empty before it began.
pub fn took(
    from: Option<&prost_types::Timestamp>,
    to: Option<&prost_types::Timestamp>,
    now: Timestamp,
) -> Option<String> {
    let from = moment(from)?;
    Some(span(moment(to).unwrap_or(now).duration_since(from)))
}

/// A duration as typed: `30s`, `10m`, `1h30m`.
pub fn parse_duration(text: &str) -> Result<std::time::Duration, String> {
    let wrong = || format!("{text:?} is not a duration; write it like 30s, 10m or 1h30m");
    let duration: SignedDuration = text.trim().parse().map_err(|_| wrong())?;
    std::time::Duration::try_from(duration).map_err(|_| wrong())
}

/// A word of the API that may be typed with `-` for `_`.
pub fn possible(word: &'static str) -> clap::builder::PossibleValue {
    let value = clap::builder::PossibleValue::new(word);
    if word.contains('_') { value.alias(word.replace('_', "-")) } else { value }
}

/// `KEY=VALUE`; the value may be empty and may hold further `=`.
pub fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not KEY=VALUE")),
    }
}

/// Pairs as a map; a key given twice with different values is a slip of the hand, not a choice.
pub fn pairs(list: &[(String, String)]) -> Result<BTreeMap<String, String>, String> {
    let mut map = BTreeMap::new();
    for (key, value) in list {
        match map.insert(key.clone(), value.clone()) {
            Some(before) if before != *value => return Err(format!("{key} is given as {before:?} and as {value:?}")),
            _ => {}
        }
    }
    Ok(map)
}

pub fn show_pairs(map: &BTreeMap<String, String>) -> String {
    map.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// The text, or `-` when there is none.
pub fn or_none(text: &str) -> String {
    if text.is_empty() { NONE.to_owned() } else { text.to_owned() }
}

/// One line that cannot move the cursor: what machines say is not trusted with the operator's terminal.
pub fn clean(text: &str) -> String {
    let safe = |c: char| match c {
        '\n' | '\r' | '\t' => ' ',
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.trim_end().chars().map(safe).collect()
}

/// At most `width` characters, the last of them `…` when something was cut.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(seconds: i64) -> prost_types::Timestamp {
        prost_types::Timestamp { seconds, nanos: 0 }
    }

    #[test]
    fn ages_are_coarse_and_look_both_ways() {
        let now = Timestamp::from_second(1_000_000).expect("in range");
        for (before, text) in [
            (0, "now"),
            (12, "12s ago"),
            (185, "3m ago"),
            (7_300, "2h ago"),
            (400_000, "4d ago"),
            (-20, "in 20s"),
            (-90, "in 1m"),
        ] {
            assert_eq!(relative(Some(&wire(1_000_000 - before)), now), text);
        }
        assert_eq!(relative(None, now), "-");
    }

    #[test]
    fn spans_keep_two_units() {
        for (millis, text) in [
            (-5, "0ms"),
            (430, "430ms"),
            (3_290, "3.2s"),
            (59_999, "59.9s"),
            (245_000, "4m05s"),
            (7_380_000, "2h03m"),
            (273_600_000, "3d04h"),
        ] {
            assert_eq!(span(SignedDuration::from_millis(millis)), text);
        }
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, seconds) in [("30s", 30), ("10m", 600), ("1h30m", 5_400), (" 2h ", 7_200)] {
            assert_eq!(parse_duration(text).map(|d| d.as_secs()), Ok(seconds));
        }
        for bad in ["", "10", "soon", "-5s"] {
            assert!(parse_duration(bad).is_err_and(|e| e.contains("10m")), "{bad:?}");
        }
    }

    #[test]
    fn labels_are_key_and_value() {
        assert_eq!(parse_pair("env=prod"), Ok(("env".to_owned(), "prod".to_owned())));
        assert_eq!(parse_pair("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(parse_pair("sim.fault.repave=fail:2").map(|p| p.1), Ok("fail:2".to_owned()));
        assert_eq!(parse_pair("empty="), Ok(("empty".to_owned(), String::new())));
        for bad in ["", "novalue", "=v", " =v"] {
            assert!(parse_pair(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_key_given_twice_must_agree() {
        let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        assert_eq!(pairs(&[pair("a", "1"), pair("a", "1")]).map(|m| m.len()), Ok(1));
        assert!(pairs(&[pair("a", "1"), pair("a", "2")]).is_err_and(|e| e.contains("a is given")));
    }

    #[test]
    fn what_machines_say_cannot_move_the_cursor() {
        assert_eq!(clean("a\nb\tc\u{1b}[2J\u{202e}d\n"), "a b c\u{fffd}[2J\u{fffd}d");
    }

    #[test]
    fn cutting_counts_characters_and_marks_the_cut() {
        assert_eq!(cut("größer", 6), "größer");
        assert_eq!(cut("größeres", 6), "größe…");
    }
}
