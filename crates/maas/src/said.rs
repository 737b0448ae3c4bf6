//! What a MAAS says, made fit for a message of ours: short, in one line, without anything that moves a terminal, and
//! never a page or a secret.

use serde_json::Value;

/// Of what is said about a no.
const SAID_MAX: usize = 300;

/// One line of so many characters at most: others may have written it, and people read it.
pub fn clean(text: &str, most: usize) -> String {
    let mut line = String::with_capacity(text.len().min(most * 4));
    let (mut count, mut gap) = (0, false);
    for c in text.chars() {
        if c.is_control() || c.is_whitespace() {
            gap = !line.is_empty();
        } else if !moves(c) {
            if count >= most {
                line.push('…');
                break;
            }
            if gap {
                line.push(' ');
                gap = false;
            }
            line.push(c);
            count += 1;
        }
    }
    line
}

/// As `clean`, with its lines: the last of them that fit.
pub fn clean_lines(text: &str, most_bytes: usize) -> String {
    let kept = |c: &char| (!c.is_control() || *c == '\n' || *c == '\t') && !moves(*c);
    let text: String = text.chars().filter(kept).collect();
    let from = text.len().saturating_sub(most_bytes);
    let from = (from..=text.len()).find(|i| text.is_char_boundary(*i)).unwrap_or(text.len());
    text.get(from..).unwrap_or_default().to_owned()
}

/// Characters that are not seen and turn what is around them.
fn moves(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// What the body of a no says: fields with their complaints, or a text. Empty: nothing that a person could use.
pub fn no(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    if text.starts_with('<') {
        return String::new();
    }
    let said = match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(fields)) => {
            let complaints = fields.iter().map(|(field, value)| match field.as_str() {
                "__all__" => words(value),
                field => format!("{field}: {}", words(value)),
            });
            complaints.collect::<Vec<_>>().join("; ")
        }
        Ok(value) => words(&value),
        Err(_) => text.to_owned(),
    };
    clean(&said, SAID_MAX)
}

fn words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().take(8).map(words).collect::<Vec<_>>().join(" "),
        Value::Null => String::new(),
        Value::Object(_) => "(more)".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// Whether the complaint is about this field and says this.
pub fn complains(body: &[u8], field: &str, words_in_it: &str) -> bool {
    let fields: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    fields.get(field).is_some_and(|value| words(value).contains(words_in_it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_one_short_line_without_tricks() {
        assert_eq!(clean("  a\u{1b}[31mb\r\n\tc\u{202e}d  ", 50), "a [31mb cd");
        assert_eq!(clean("abcdef", 3), "abc…");
        assert_eq!(clean_lines("a\u{7}\nbcd", 3), "bcd");
        assert_eq!(clean_lines("ééé", 3), "é");
    }

    #[test]
    fn complaints_are_read_and_pages_are_not() {
        assert_eq!(
            no(br#"{"__all__": ["Not now."], "zone": ["No such zone.", "Pick one."]}"#),
            "Not now.; zone: No such zone. Pick one."
        );
        assert_eq!(no(b"<html>secret page</html>"), "");
        assert_eq!(no(b"Can't deploy\n"), "Can't deploy");
        assert_eq!(no(&[0xff, 0xfe]), "\u{fffd}\u{fffd}");
        assert!(complains(
            br#"{"mac_addresses": ["MAC address x already in use on y."]}"#,
            "mac_addresses",
            "already in use"
        ));
    }
}
