//! How inputs are changed: bytes and bits, pieces and lines, words that mean something, numbers at the edge,
//! texts that are hard to read, and nesting without end.

use super::LENGTH_MAX;
use domain::stage::mix;

/// Numbers from a seed.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Below `end`; 0 when there is nothing below it.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.number() >> 1).unwrap_or(0).checked_rem(end).unwrap_or(0)
    }

    pub fn of<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        list.get(self.below(list.len()))
    }

    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        let span = if self.below(4) == 0 { length } else { 16 };
        start..(start + self.below(span + 1)).min(length)
    }
}

const EDGES: &[&str] = &[
    "0",
    "-1",
    "1",
    "-0",
    "127",
    "128",
    "255",
    "256",
    "32767",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "-2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e999",
    "-1e999",
    "1e-999",
    "0.1",
    "NaN",
    "Infinity",
    "0x10",
    "1_000",
    "00",
    "true",
    "false",
    "null",
    "",
];

const ODD: &[&[u8]] = &[
    b"\0",
    b"\xff",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    "\u{202e}".as_bytes(),
    "é".as_bytes(),
    "e\u{301}".as_bytes(),
    "\u{1f600}".as_bytes(),
    "\u{2028}".as_bytes(),
    "\u{fffd}".as_bytes(),
    b"\r\n",
    b"\r",
    b"\t",
    b"%00",
    b"%zz",
    b"%2F",
    b"%",
    b"\\u0000",
    b"\\ud800",
    b"\\",
    b"\"",
    b"'",
    b"`",
    b"$1",
    b"; DROP TABLE machines",
    b"../..",
    b"//",
    b"#",
    b"&",
    b"=",
    b",",
    b":",
    b" ",
];

const PAIRS: &[(&[u8], &[u8])] = &[
    (b"(", b")"),
    (b"[", b"]"),
    (b"{", b"}"),
    (b"{\"a\":", b"}"),
    (b"- ", b""),
    (b"a:\n ", b""),
    (b"NOT ", b""),
    (b"-", b""),
    (b"a.", b""),
];

/// One more input out of what is there.
pub(super) fn mutated(rng: &mut Rng, pool: &[Vec<u8>], words: &[String]) -> Vec<u8> {
    let mut input = rng.of(pool).cloned().unwrap_or_default();
    for _ in 0..=rng.below(5) {
        change(rng, &mut input, pool, words);
    }
    input.truncate(LENGTH_MAX);
    input
}

fn change(rng: &mut Rng, input: &mut Vec<u8>, pool: &[Vec<u8>], words: &[String]) {
    let at = rng.below(input.len() + 1);
    match rng.below(16) {
        0 => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << rng.below(8);
            }
        }
        1 => {
            let random = rng.number().to_le_bytes();
            let count = 1 + rng.below(8);
            put(input, at..at, &random[..count]);
        }
        2 => drop(input.drain(rng.range(input.len()))),
        3 => {
            let piece = input[rng.range(input.len())].to_vec();
            put(input, at..at, &piece);
        }
        4 => {
            // the head of this one, the tail of another
            let other = rng.of(pool).cloned().unwrap_or_default();
            input.truncate(at);
            input.extend(&other[rng.below(other.len() + 1)..]);
        }
        5 | 6 => {
            let word = rng.of(words).cloned().unwrap_or_default();
            put(input, at..at, word.as_bytes());
        }
        7 | 8 => {
            let word = rng.of(words).cloned().unwrap_or_default();
            let token = token_at(input, at);
            put(input, token, word.as_bytes());
        }
        9 => {
            let edge = rng.of(EDGES).copied().unwrap_or_default();
            let token = token_at(input, at);
            put(input, token, edge.as_bytes());
        }
        10 => {
            let odd = rng.of(ODD).copied().unwrap_or_default();
            put(input, at..at, odd);
        }
        11 => input.truncate(at),
        12 => {
            // the same again and again; seldom very often
            let piece = input[rng.range(input.len())].to_vec();
            let most = if rng.below(8) == 0 { LENGTH_MAX } else { 64 };
            let times = rng.below(most / piece.len().max(1) + 1);
            put(input, at..at, &piece.repeat(times));
        }
        13 => {
            let (open, close) = rng.of(PAIRS).copied().unwrap_or_default();
            let depth = if rng.below(4) == 0 { rng.below(8_000) } else { rng.below(140) };
            let middle = input.split_off(at);
            input.extend(open.repeat(depth));
            input.extend(middle);
            if rng.below(2) == 0 {
                input.extend(close.repeat(depth));
            }
        }
        14 => lines(rng, input),
        _ => {
            // a token of another input in the place of one of this
            let other = rng.of(pool).cloned().unwrap_or_default();
            let from = token_at(&other, rng.below(other.len() + 1));
            let to = token_at(input, at);
            put(input, to, &other[from]);
        }
    }
    input.truncate(2 * LENGTH_MAX);
}

fn put(input: &mut Vec<u8>, range: std::ops::Range<usize>, with: &[u8]) {
    drop(input.splice(range, with.iter().copied()));
}

/// The word, number or quoted text around a place.
fn token_at(input: &[u8], at: usize) -> std::ops::Range<usize> {
    let inside = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    let start = input[..at.min(input.len())].iter().rposition(|b| !inside(b)).map_or(0, |i| i + 1);
    let end = input[start..].iter().position(|b| !inside(b)).map_or(input.len(), |i| start + i);
    start..end
}

/// Leaves out, doubles or moves a line.
fn lines(rng: &mut Rng, input: &mut Vec<u8>) {
    let mut lines: Vec<Vec<u8>> = input.split(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
    let line = lines.remove(rng.below(lines.len()));
    match rng.below(3) {
        0 => {}
        1 => {
            let at = rng.below(lines.len() + 1);
            lines.insert(at, line);
        }
        _ => {
            for _ in 0..2 {
                let at = rng.below(lines.len() + 1);
                lines.insert(at, line.clone());
            }
        }
    }
    *input = lines.join(&b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_inputs_and_they_are_bounded() {
        let pool = vec![b"phase=READY AND x=1".to_vec(), b"a\nb\nc".to_vec(), Vec::new()];
        let words = ["NOT".to_owned()];
        let take = |seed| {
            let mut rng = Rng::new(seed);
            (0..2_000).map(|_| mutated(&mut rng, &pool, &words)).collect::<Vec<_>>()
        };
        let (one, again, other) = (take(1), take(1), take(2));
        assert!(one == again && one != other);
        assert!(one.iter().all(|input| input.len() <= LENGTH_MAX));
        let different: std::collections::HashSet<&Vec<u8>> = one.iter().collect();
        assert!(different.len() > 1_200, "{}", different.len());
    }
}
