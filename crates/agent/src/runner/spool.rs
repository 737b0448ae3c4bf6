//! What a task has printed and the server has not stored yet: the last mebibyte of it. What is printed faster than it
//! can be sent pushes out the oldest; how much is missing is told with what follows it.

use std::collections::VecDeque;

/// Also the bound on one message of output.
pub const CHUNK_MAX: usize = 32 * 1024;
/// Of output in memory, with what its book-keeping takes.
pub const KEPT_MAX: usize = 1024 * 1024;
/// What a piece takes beside its bytes.
const PIECE: usize = 64;

#[derive(Debug, Default)]
pub struct Spool {
    pieces: VecDeque<Piece>,
    size: usize,
    /// Of the next byte to be printed.
    end: u64,
    /// Everything before it is on the way on this connection.
    sent: u64,
    /// Everything before it is durable on the server.
    stored: u64,
}

#[derive(Debug)]
struct Piece {
    offset: u64,
    stream: &'static str,
    data: Vec<u8>,
}

/// The next to be sent.
#[derive(Debug, PartialEq)]
pub struct Chunk {
    pub offset: u64,
    pub stream: &'static str,
    pub data: Vec<u8>,
    pub dropped: u64,
}

impl Spool {
    pub fn push(&mut self, stream: &'static str, data: &[u8]) {
        for part in data.chunks(CHUNK_MAX) {
            match self.pieces.back_mut() {
                // small prints share a piece, as long as it was not sent
                Some(last)
                    if last.stream == stream
                        && last.offset >= self.sent
                        && last.data.len() + part.len() <= CHUNK_MAX =>
                {
                    last.data.extend_from_slice(part);
                }
                _ => {
                    self.pieces.push_back(Piece { offset: self.end, stream, data: part.to_vec() });
                    self.size += PIECE;
                }
            }
            self.size += part.len();
            self.end += part.len() as u64;
            while self.size > KEPT_MAX {
                self.drop_first();
            }
        }
    }

    fn drop_first(&mut self) {
        if let Some(piece) = self.pieces.pop_front() {
            self.size -= PIECE + piece.data.len();
        }
    }

    /// Whether something is left to send on this connection.
    pub fn waits(&self) -> bool {
        self.pieces.back().is_some_and(|last| last.offset + last.data.len() as u64 > self.sent)
    }

    /// Taken as sent with this.
    pub fn take(&mut self) -> Option<Chunk> {
        let piece = self.pieces.iter().find(|p| p.offset >= self.sent)?;
        let dropped = piece.offset - self.sent;
        self.sent = piece.offset + piece.data.len() as u64;
        Some(Chunk { offset: piece.offset, stream: piece.stream, data: piece.data.clone(), dropped })
    }

    /// The server has everything before `offset`.
    pub fn stored(&mut self, offset: u64) {
        self.stored = self.stored.max(offset.min(self.end));
        while self.pieces.front().is_some_and(|p| p.offset + p.data.len() as u64 <= self.stored) {
            self.drop_first();
        }
    }

    /// Another connection: what the server has not stored goes again.
    pub fn rewind(&mut self) {
        // a piece goes whole: the server drops what it has of it
        let first = self.pieces.front().map_or(self.end, |p| p.offset);
        self.sent = if first < self.stored { first } else { self.stored };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(spool: &mut Spool) -> Vec<Chunk> {
        std::iter::from_fn(|| spool.take()).collect()
    }

    #[test]
    fn small_prints_share_a_message_and_streams_do_not() {
        let mut spool = Spool::default();
        for (stream, text) in [("stdout", "a"), ("stdout", "b"), ("stderr", "c"), ("stdout", "d")] {
            spool.push(stream, text.as_bytes());
        }
        let sent: Vec<_> = all(&mut spool).into_iter().map(|c| (c.offset, c.stream, c.data)).collect();
        let expected = [(0, "stdout", b"ab".to_vec()), (2, "stderr", b"c".to_vec()), (3, "stdout", b"d".to_vec())];
        assert_eq!(sent, expected);
        assert!(!spool.waits() && spool.take().is_none());
        spool.push("stdout", b"e");
        assert_eq!(spool.take().map(|c| (c.offset, c.data)), Some((4, b"e".to_vec())));
    }

    #[test]
    fn a_flood_is_bounded_and_says_how_much_is_missing() {
        let mut spool = Spool::default();
        for _ in 0..100 {
            spool.push("stdout", &[b'x'; 100_000]);
        }
        assert!(spool.size <= KEPT_MAX);
        let sent = all(&mut spool);
        assert!(sent.iter().all(|c| c.data.len() <= CHUNK_MAX));
        let kept: u64 = sent.iter().map(|c| c.data.len() as u64).sum();
        let dropped: u64 = sent.iter().map(|c| c.dropped).sum();
        assert_eq!(kept + dropped, 10_000_000);
        assert!(kept > 900_000 && sent[0].dropped == dropped && sent[0].offset == dropped);
    }

    #[test]
    fn single_letters_on_both_streams_do_not_grow_beyond_the_bound_either() {
        let mut spool = Spool::default();
        for n in 0..200_000 {
            spool.push(if n % 2 == 0 { "stdout" } else { "stderr" }, b"x");
        }
        assert!(spool.size <= KEPT_MAX && spool.pieces.len() <= KEPT_MAX / PIECE);
        assert_eq!(all(&mut spool).iter().map(|c| c.dropped + c.data.len() as u64).sum::<u64>(), 200_000);
    }

    #[test]
    fn after_a_reconnect_what_was_not_stored_goes_again_and_nothing_else() {
        let mut spool = Spool::default();
        for byte in [b'a', b'b', b'c'] {
            spool.push("stdout", &[byte; CHUNK_MAX]);
        }
        let chunk = CHUNK_MAX as u64;
        assert_eq!(all(&mut spool).len(), 3);
        spool.stored(chunk);
        spool.rewind();
        assert_eq!(
            all(&mut spool).iter().map(|c| (c.offset, c.dropped)).collect::<Vec<_>>(),
            [(chunk, 0), (2 * chunk, 0)]
        );
        // in the middle of a piece: the piece goes again, and the server drops its beginning
        spool.stored(chunk + 10);
        spool.rewind();
        assert_eq!(all(&mut spool).first().map(|c| (c.offset, c.dropped)), Some((chunk, 0)));
        spool.stored(u64::MAX);
        spool.rewind();
        assert!(all(&mut spool).is_empty() && spool.size == 0);
        spool.push("stdout", b"more");
        assert_eq!(spool.take().map(|c| (c.offset, c.dropped)), Some((3 * chunk, 0)));
    }

    #[test]
    fn what_was_lost_while_away_is_counted_from_what_the_server_has() {
        let mut spool = Spool::default();
        spool.push("stdout", &[b'a'; 1000]);
        assert_eq!(all(&mut spool).len(), 1);
        spool.stored(1000);
        for _ in 0..40 {
            spool.push("stdout", &[b'b'; CHUNK_MAX]);
        }
        spool.rewind();
        let sent = all(&mut spool);
        assert!(sent[0].dropped > 0);
        assert_eq!(sent[0].offset, 1000 + sent[0].dropped);
    }
}
