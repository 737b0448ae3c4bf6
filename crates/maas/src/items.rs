//! A JSON list, one entry at a time: a list of all machines has tens of megabytes, of which little is kept, so never
//! more than one entry of it is held.

use crate::sunk::Sink;
use serde::de::DeserializeOwned;

/// No entry is as large, nor as deep.
const ENTRY_MAX: usize = 16 * 1024 * 1024;
const DEPTH_MAX: usize = 64;

/// Entries of type `T`, of which `keep` makes what is kept.
pub struct Items<T, U, F> {
    pub kept: Vec<U>,
    keep: F,
    bytes_max: usize,
    items_max: usize,
    bytes: usize,
    entry: Vec<u8>,
    at: At,
    of: std::marker::PhantomData<fn() -> T>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Start,
    /// Where an entry may begin; `first`: or the list end.
    Before {
        first: bool,
    },
    In {
        depth: usize,
        text: bool,
        escaped: bool,
    },
    /// Behind an entry.
    Behind,
    End,
}

impl<T: DeserializeOwned, U: Send, F: FnMut(T) -> Result<U, String> + Send> Items<T, U, F> {
    pub fn of(bytes_max: usize, items_max: usize, keep: F) -> Self {
        let of = std::marker::PhantomData;
        Self { kept: Vec::new(), keep, bytes_max, items_max, bytes: 0, entry: Vec::new(), at: At::Start, of }
    }

    fn byte(&mut self, byte: u8) -> Result<(), String> {
        let blank = byte.is_ascii_whitespace();
        self.at = match self.at {
            At::Start if byte == b'[' => At::Before { first: true },
            At::Before { first: true } if byte == b']' => At::End,
            At::Before { .. } if byte == b'{' => {
                self.entry.push(byte);
                At::In { depth: 1, text: false, escaped: false }
            }
            At::In { depth, text, escaped } => {
                self.entry.push(byte);
                if self.entry.len() > ENTRY_MAX {
                    return Err(format!("an entry of it is larger than {ENTRY_MAX} bytes"));
                }
                return self.inside(depth, text, escaped, byte);
            }
            At::Behind if byte == b',' => At::Before { first: false },
            At::Behind if byte == b']' => At::End,
            at if blank => at,
            At::Start | At::Before { .. } | At::Behind | At::End => {
                return Err("it is not a list of objects".to_owned());
            }
        };
        Ok(())
    }

    fn inside(&mut self, depth: usize, text: bool, escaped: bool, byte: u8) -> Result<(), String> {
        let depth = match byte {
            b'{' | b'[' if !text => depth + 1,
            b'}' | b']' if !text => depth - 1,
            _ => depth,
        };
        if depth > DEPTH_MAX {
            return Err(format!("it is nested more than {DEPTH_MAX} deep"));
        }
        let quote = byte == b'"' && !escaped;
        self.at = At::In { depth, text: text ^ quote, escaped: text && byte == b'\\' && !escaped };
        if depth == 0 {
            self.at = At::Behind;
            self.entry_ends()?;
        }
        Ok(())
    }

    fn entry_ends(&mut self) -> Result<(), String> {
        if self.kept.len() >= self.items_max {
            return Err(format!("it has more than {} entries", self.items_max));
        }
        let read: T = serde_json::from_slice(&self.entry).map_err(|e| not_as_expected(&e))?;
        self.kept.push((self.keep)(read)?);
        self.entry.clear();
        Ok(())
    }
}

/// Where it went wrong; not what stands there.
pub fn not_as_expected(e: &serde_json::Error) -> String {
    let what = match e.classify() {
        serde_json::error::Category::Data => "not of the kind that was expected",
        serde_json::error::Category::Syntax | serde_json::error::Category::Eof | serde_json::error::Category::Io => {
            "no JSON"
        }
    };
    format!("it is {what}, at line {}, column {}", e.line(), e.column())
}

impl<T: DeserializeOwned, U: Send, F: FnMut(T) -> Result<U, String> + Send> Sink for Items<T, U, F> {
    fn begin(&mut self) {
        self.kept.clear();
        self.entry.clear();
        (self.bytes, self.at) = (0, At::Start);
    }

    fn take(&mut self, piece: &[u8]) -> Result<(), String> {
        self.bytes += piece.len();
        if self.bytes > self.bytes_max {
            return Err(format!("it is larger than {} bytes", self.bytes_max));
        }
        piece.iter().try_for_each(|byte| self.byte(*byte))
    }

    fn end(&mut self) -> Result<(), String> {
        if self.at == At::End { Ok(()) } else { Err("it broke off".to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn read(text: &str, piece: usize) -> Result<Vec<Value>, String> {
        let mut items = Items::of(10_000, 100, |value: Value| Ok::<_, String>(value));
        items.begin();
        for piece in text.as_bytes().chunks(piece) {
            items.take(piece)?;
        }
        items.end().map(|()| items.kept)
    }

    /// serde_json itself says what is right.
    #[test]
    fn a_list_is_read_as_the_whole_of_it_would_be_in_pieces_of_any_size() {
        for text in [
            "[]",
            " [ ] ",
            r#"[{"a": "}]\"{", "b": [1, {"c": []}]}, {} ,{"d":"\\"}]"#,
            "[{\"a\": \"é\u{202e}\"}]\n",
            "[{}",
            "[{},]",
            "[1]",
            "{}",
            "[{}] x",
            "[{}{}]",
            "[,{}]",
            "",
            "null",
            "<html>",
            r#"[{"a": tru}]"#,
        ] {
            let whole = serde_json::from_str::<Vec<serde_json::Map<String, Value>>>(text);
            for piece in [1, 2, 3, 1000] {
                let pieces = read(text, piece);
                assert_eq!(pieces.is_ok(), whole.is_ok(), "{text} by {piece}: {pieces:?}");
                if let (Ok(pieces), Ok(whole)) = (pieces, &whole) {
                    assert_eq!(pieces, whole.iter().cloned().map(Value::Object).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn what_is_too_deep_too_long_or_too_many_is_refused() {
        let deep = format!("[{{\"a\": {}", "[".repeat(100));
        assert!(read(&deep, 7).is_err_and(|e| e.contains("deep")));
        let many = format!("[{}]", vec!["{}"; 101].join(","));
        assert!(read(&many, 7).is_err_and(|e| e.contains("entries")));
        let long = format!("[{{\"a\": \"{}\"}}]", "x".repeat(10_000));
        assert!(read(&long, 7).is_err_and(|e| e.contains("bytes")));
    }
}
