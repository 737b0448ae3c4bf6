//! What a simulated command prints. Nothing is stored: any part of it can be made again from the command,
//! so that megabytes of output cost no memory.

use provider::{Chunk, Stream};

/// What one poll hands out at most.
pub(crate) const PAGE_MAX: usize = 64 * 1024;

/// What decides about the output of one command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Printout {
    pub command: String,
    pub args: Vec<String>,
    /// Instead of plausible lines, this many bytes of numbered ones.
    pub output_bytes: Option<u64>,
    pub exit_code: i32,
}

enum Piece {
    Text(Stream, String),
    /// `line 1\nline 2\n…`, cut after so many bytes.
    Numbered(u64),
}

impl Piece {
    fn len(&self) -> u64 {
        match self {
            Piece::Text(_, text) => text.len() as u64,
            Piece::Numbered(bytes) => *bytes,
        }
    }

    fn part(&self, from: u64, to: u64) -> Chunk {
        match self {
            Piece::Text(stream, text) => {
                let data = text.bytes().take(index(to)).skip(index(from)).collect();
                Chunk { stream: *stream, data }
            }
            Piece::Numbered(_) => Chunk { stream: Stream::Stdout, data: numbered(from, index(to - from)) },
        }
    }
}

/// Offsets here never exceed the output bound, which fits.
fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

impl Printout {
    /// A page of output from `offset` on, where to go on, and whether that is the end. Offsets count the
    /// bytes of both streams in the order they were printed.
    pub(crate) fn page(&self, killed: bool, offset: u64) -> (Vec<Chunk>, u64, bool) {
        let pieces = if killed { self.killed_pieces() } else { self.pieces() };
        let total: u64 = pieces.iter().map(Piece::len).sum();
        let end = total.min(offset.saturating_add(PAGE_MAX as u64));
        let (mut chunks, mut start) = (Vec::new(), 0);
        for piece in &pieces {
            let (from, to) = (offset.max(start), end.min(start + piece.len()));
            if from < to {
                chunks.push(piece.part(from - start, to - start));
            }
            start += piece.len();
        }
        (chunks, offset.max(end), end == total)
    }

    fn pieces(&self) -> Vec<Piece> {
        let warning = Piece::Text(Stream::Stderr, "warning: simulated\n".into());
        if let Some(bytes) = self.output_bytes {
            return vec![warning, Piece::Numbered(bytes)];
        }
        let last = if self.exit_code == 0 {
            Piece::Text(Stream::Stdout, self.result())
        } else {
            Piece::Text(Stream::Stderr, format!("error: simulated failure of {}\n", self.command))
        };
        vec![Piece::Text(Stream::Stdout, self.trace()), warning, last]
    }

    fn killed_pieces(&self) -> Vec<Piece> {
        vec![Piece::Text(Stream::Stdout, self.trace()), Piece::Text(Stream::Stderr, "Killed\n".into())]
    }

    /// The commands as a shell with `-x` would show them.
    fn trace(&self) -> String {
        match self.args.as_slice() {
            [flag, script, ..] if self.command == "sh" && flag == "-c" => {
                script.lines().filter(|line| !line.trim().is_empty()).map(|line| format!("+ {line}\n")).collect()
            }
            [] => format!("+ {}\n", self.command),
            args => format!("+ {} {}\n", self.command, args.join(" ")),
        }
    }

    fn result(&self) -> String {
        if self.command == "echo" { format!("{}\n", self.args.join(" ")) } else { "ok\n".into() }
    }
}

/// `length` bytes of the endless text `line 1\nline 2\n…`, from byte `from` on.
fn numbered(from: u64, length: usize) -> Vec<u8> {
    // Skip whole blocks of numbers with equally many digits instead of printing from the start.
    let (mut first, mut digits, mut rest) = (1u64, 1u64, from);
    let line_length = |digits: u64| "line \n".len() as u64 + digits;
    while digits < 18 && rest >= 9 * first * line_length(digits) {
        rest -= 9 * first * line_length(digits);
        first *= 10;
        digits += 1;
    }
    let mut number = first + rest / line_length(digits);
    let skip = index(rest % line_length(digits));
    let mut data = Vec::with_capacity(length + skip + 32);
    while data.len() < length + skip {
        data.extend_from_slice(format!("line {number}\n").as_bytes());
        number += 1;
    }
    data.truncate(length + skip);
    data.drain(..skip);
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printout(command: &str, args: &[&str]) -> Printout {
        let args = args.iter().map(|a| (*a).to_owned()).collect();
        Printout { command: command.into(), args, output_bytes: None, exit_code: 0 }
    }

    fn shown(printout: &Printout) -> String {
        let (chunks, _, all) = printout.page(false, 0);
        assert!(all);
        chunks.iter().map(|c| format!("{}|{}", c.stream.as_str(), String::from_utf8_lossy(&c.data))).collect()
    }

    #[test]
    fn commands_print_plausible_lines_in_order() {
        assert_eq!(shown(&printout("uptime", &["-p"])), "stdout|+ uptime -p\nstderr|warning: simulated\nstdout|ok\n");
        assert_eq!(shown(&printout("echo", &["a", "b"])), "stdout|+ echo a b\nstderr|warning: simulated\nstdout|a b\n");
        assert_eq!(
            shown(&printout("sh", &["-c", "one\n\ntwo 2"])),
            "stdout|+ one\n+ two 2\nstderr|warning: simulated\nstdout|ok\n"
        );
        let failed = Printout { exit_code: 1, ..printout("false", &[]) };
        assert_eq!(
            shown(&failed),
            "stdout|+ false\nstderr|warning: simulated\nstderr|error: simulated failure of false\n"
        );
    }

    #[test]
    fn any_part_of_numbered_output_equals_that_part_of_the_whole() {
        let whole: String = (1..=12_000).map(|i| format!("line {i}\n")).collect();
        for (from, length) in
            [(0, 5), (0, 70_000), (3, 10), (62, 3), (63, 9), (64, 1), (783, 800), (9_782, 5_000), (99_881, 64)]
        {
            let expected = &whole.as_bytes()[index(from)..index(from) + length];
            assert_eq!(numbered(from, length), expected, "{from}+{length}");
        }
    }

    #[test]
    fn pages_join_to_the_whole_and_reading_past_the_end_is_empty() {
        let big = Printout { output_bytes: Some(150_000), ..printout("x", &[]) };
        let (mut offset, mut pages, mut data) = (0, 0, Vec::new());
        loop {
            let (chunks, next, all) = big.page(false, offset);
            let size: usize = chunks.iter().map(|c| c.data.len()).sum();
            assert!(size <= PAGE_MAX && next == offset + size as u64);
            data.extend(chunks.into_iter().flat_map(|c| c.data));
            (offset, pages) = (next, pages + 1);
            if all {
                break;
            }
        }
        assert_eq!((pages, data.len()), (3, 150_000 + "warning: simulated\n".len()));
        assert!(data.starts_with(b"warning: simulated\nline 1\nline 2\n"));
        assert_eq!(big.page(false, offset), (vec![], offset, true));
        assert_eq!(big.page(false, u64::MAX), (vec![], u64::MAX, true));
    }
}
