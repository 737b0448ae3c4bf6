//! Readers that are slow, many, or have stopped reading: memory stays, the others are served, and who takes nothing
//! loses its place.

use crate::child::{PATIENCE, Server, content, is_played, number, one_image, this_test, wait_until};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

const READERS: &str = "MILLWRIGHT_IMAGES_READERS";
/// What all readers together may add: the pieces that they share, and a connection for each.
const GROWTH_MAX: u64 = (8 << 20) + 200 * (64 << 10);

/// One who has asked for the whole image.
struct Reader {
    socket: TcpStream,
    read: usize,
}

impl Reader {
    /// Answers the status too.
    fn asks(server: &Server, path: &str) -> (u16, String, Self) {
        let mut socket = TcpStream::connect(&server.address).expect("connects");
        socket.set_read_timeout(Some(PATIENCE)).expect("set");
        write!(socket, "GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").expect("sent");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).expect("a head");
            head.extend(byte);
        }
        let head = String::from_utf8(head).expect("text");
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        (status, head, Self { socket, read: 0 })
    }

    fn reads(&mut self, count: usize, bytes: &[u8]) {
        let mut got = vec![0; count.min(bytes.len() - self.read)];
        self.socket.read_exact(&mut got).expect("more");
        assert!(got == bytes[self.read..self.read + got.len()], "at {}", self.read);
        self.read += got.len();
    }
}

/// What the kernel says of a process, in bytes.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a status");
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// Clock ticks of a process so far.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    fields[11].parse::<u64>().expect("a number") + fields[12].parse::<u64>().expect("a number")
}

/// All that can be sent without anybody reading has been sent.
fn wait_for_rest(pid: u32) {
    let (mut quiet, mut before) = (0, ticks(pid));
    wait_until("a server at rest", || {
        std::thread::park_timeout(Duration::from_millis(50));
        let now = ticks(pid);
        quiet = if now == before { quiet + 1 } else { 0 };
        before = now;
        quiet >= 5
    });
}

#[test]
fn many_slow_readers_hold_little_memory_and_get_their_bytes() {
    if is_played() {
        return;
    }
    let readers = number(READERS, 200);
    let bytes = content(24 << 20);
    let (folder, path) = one_image(&bytes);
    let server = Server::bounded(this_test!(), folder.path(), readers, PATIENCE);
    let pid = server.played.pid();
    let (status, _, mut first) = Reader::asks(&server, &path);
    assert_eq!(status, 200);
    first.reads(bytes.len(), &bytes);
    drop(first);
    wait_for_rest(pid);
    let before = resident(pid);
    let mut slow: Vec<Reader> = (0..readers).map(|_| Reader::asks(&server, &path)).map(|(_, _, r)| r).collect();
    let mut most = 0;
    for round in 0..4 {
        for reader in &mut slow {
            reader.reads(1000 * (round + 1), &bytes);
        }
        wait_for_rest(pid);
        most = most.max(resident(pid));
    }
    let grown = most.saturating_sub(before);
    println!("{} KiB with one reader, {} KiB more with {readers} that are slow", before >> 10, grown >> 10);
    assert!(grown <= GROWTH_MAX.max(readers as u64 * (64 << 10)), "grown by {} KiB", grown >> 10);
    // one more is told to come later, and does
    let (status, head, _) = Reader::asks(&server, &path);
    assert!(status == 503 && head.to_ascii_lowercase().contains("retry-after: "), "{head}");
    for mut reader in slow.drain(..10) {
        reader.reads(bytes.len(), &bytes);
    }
    let mut late = None;
    wait_until("a place", || {
        let (status, _, reader) = Reader::asks(&server, &path);
        late = Some(reader);
        status == 200
    });
    late.expect("a reader").reads(bytes.len(), &bytes);
    assert!(resident(pid) <= before + GROWTH_MAX.max(readers as u64 * (64 << 10)));
}

#[test]
fn who_stops_reading_loses_its_place() {
    if is_played() {
        return;
    }
    let bytes = content(24 << 20);
    let (folder, path) = one_image(&bytes);
    let server = Server::bounded(this_test!(), folder.path(), 1, Duration::from_millis(200));
    let (status, _, mut stopped) = Reader::asks(&server, &path);
    assert_eq!(status, 200);
    stopped.reads(1000, &bytes);
    let mut next = None;
    wait_until("its place", || {
        let (status, _, reader) = Reader::asks(&server, &path);
        next = Some(reader);
        status == 200
    });
    next.expect("a reader").reads(bytes.len(), &bytes);
    // what was on its way still comes, and then its connection breaks
    let mut rest = Vec::new();
    drop(stopped.socket.read_to_end(&mut rest));
    assert!(rest.len() < bytes.len() - 1000, "not all of it: {}", rest.len());
}
