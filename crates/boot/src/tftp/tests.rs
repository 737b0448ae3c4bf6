//! Transfers over real sockets on loopback, with a client written for each fault.

use super::packet::{Refusal, data};
use super::*;
use crate::counts::{Count, Counts};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// A bound, never a verdict.
const PATIENCE: Duration = Duration::from_secs(60);

/// Files that are nowhere but here.
struct Shelf;

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

#[async_trait]
impl Files for Shelf {
    async fn open(&self, name: &str) -> io::Result<Option<Open>> {
        let length = match name {
            "short" => 10,
            "even" => 1024,
            "long" => 5000,
            "sub/long" => 5000,
            "broken" => return Err(io::Error::other("the disk is gone")),
            // it says more than it has
            "cut" => return Ok(Some(Open { size: 5000, bytes: Box::new(io::Cursor::new(content(600))) })),
            _ => return Ok(None),
        };
        Ok(Some(Open { size: length as u64, bytes: Box::new(io::Cursor::new(content(length))) }))
    }
}

struct Service {
    at: SocketAddr,
    counts: Arc<Counts>,
    stop: CancellationToken,
    _task: JoinHandle<()>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn service(limits: Limits) -> Service {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
    let (at, counts, stop) =
        (socket.local_addr().expect("bound"), Arc::new(Counts::default()), CancellationToken::new());
    let own = || {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
        socket.set_nonblocking(true)?;
        UdpSocket::from_std(socket)
    };
    let tftp = Tftp::new(Arc::new(Shelf), Box::new(own), counts.clone(), limits);
    let told = stop.clone();
    let task = tokio::spawn(async move { tftp.serve(&socket, &told).await });
    Service { at, counts, stop, _task: task }
}

fn quick() -> Limits {
    Limits { pause: Duration::from_millis(50), ..Limits::default() }
}

/// Sends nothing again by itself, so that what comes again is the service's doing.
fn patient() -> Limits {
    Limits { pause: Duration::from_secs(600), ..Limits::default() }
}

struct Client {
    socket: UdpSocket,
    /// The other end, once it has answered.
    peer: SocketAddr,
}

impl Client {
    async fn asks(service: &Service, request: &[u8]) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let client = Self { socket, peer: service.at };
        client.send(request).await;
        client
    }

    async fn send(&self, bytes: &[u8]) {
        self.socket.send_to(bytes, self.peer).await.expect("sent");
    }

    async fn hears(&mut self) -> Vec<u8> {
        let mut buffer = vec![0; 2048];
        let came = timeout(PATIENCE, self.socket.recv_from(&mut buffer)).await.expect("an answer");
        let (length, from) = came.expect("received");
        self.peer = from;
        buffer.truncate(length);
        buffer
    }

    async fn ack(&self, number: u16) {
        self.send(&[&[0, 4][..], &number.to_be_bytes()].concat()).await;
    }

    /// The rest of the file, one block after the other.
    async fn rest(&mut self, mut number: u16, block: usize) -> Vec<u8> {
        let mut file = Vec::new();
        loop {
            let packet = self.hears().await;
            let (head, bytes) = packet.split_at(4);
            if head != [&[0, 3][..], &number.to_be_bytes()].concat() {
                continue;
            }
            file.extend(bytes);
            self.ack(number).await;
            if bytes.len() < block {
                return file;
            }
            number = number.wrapping_add(1);
        }
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test]
async fn files_come_whole_whatever_their_length() {
    let service = service(quick()).await;
    for (name, length) in [("short", 10), ("even", 1024), ("long", 5000), ("/sub/long", 5000)] {
        let mut client = Client::asks(&service, &[b"\0\x01", name.as_bytes(), b"\0octet\0"].concat()).await;
        assert_eq!(client.rest(1, 512).await, content(length), "{name}");
    }
    until("all are done", || service.counts.of(Count::TftpDone) == 4).await;
}

#[tokio::test]
async fn what_is_agreed_is_said_first_and_then_done() {
    let service = service(quick()).await;
    let mut client = Client::asks(&service, b"\0\x01long\0octet\0tsize\x000\0blksize\x001000\0").await;
    assert_eq!(client.hears().await, b"\0\x06blksize\x001000\0tsize\x005000\0");
    client.ack(0).await;
    assert_eq!(client.rest(1, 1000).await, content(5000));
}

#[tokio::test]
async fn a_window_is_sent_at_once_and_again_from_where_it_was_lost() {
    let service = service(patient()).await;
    let mut client = Client::asks(&service, b"\0\x01long\0octet\0windowsize\x004\0").await;
    assert_eq!(client.hears().await, b"\0\x06windowsize\x004\0");
    client.ack(0).await;
    for number in 1..=4_u16 {
        let start = usize::from(number - 1) * 512;
        assert_eq!(client.hears().await, data(number, &content(5000)[start..start + 512]));
    }
    // the third was lost
    client.ack(2).await;
    for number in 3..=6_u16 {
        assert_eq!(client.hears().await[..4], [0, 3, 0, number as u8]);
    }
    client.ack(6).await;
    for number in 7..=10_u16 {
        assert_eq!(client.hears().await[..4], [0, 3, 0, number as u8]);
    }
    client.ack(10).await;
    until("it is done", || service.counts.of(Count::TftpDone) == 1).await;
    assert_eq!(service.counts.of(Count::TftpResent), 0);
}

#[tokio::test]
async fn what_is_lost_is_sent_again_a_few_times_and_then_no_more() {
    let service = service(quick()).await;
    let mut client = Client::asks(&service, b"\0\x01long\0octet\0").await;
    let first = client.hears().await;
    assert_eq!(client.hears().await, first, "again, unasked");
    client.ack(1).await;
    // from here on there is silence
    let mut seen = 0;
    loop {
        let packet = client.hears().await;
        match packet[..4] {
            [0, 3, 0, 1] => {}
            [0, 3, 0, 2] => seen += 1,
            [0, 5, 0, 0] => break,
            _ => panic!("{packet:?}"),
        }
    }
    assert_eq!(seen, 6, "as often as the limits say");
    until("it is given up", || service.counts.of(Count::TftpBroken) == 1).await;
}

#[tokio::test]
async fn a_double_acknowledgement_is_not_doubled() {
    let service = service(patient()).await;
    let mut client = Client::asks(&service, b"\0\x01long\0octet\0").await;
    assert_eq!(client.hears().await[..4], [0, 3, 0, 1]);
    for _ in 0..3 {
        client.ack(1).await;
    }
    client.send(b"\0\x04").await;
    client.ack(77).await;
    // had any of those been answered, block 2 would come twice
    let mut numbers = vec![client.hears().await[3]];
    client.ack(2).await;
    numbers.push(client.hears().await[3]);
    assert_eq!(numbers, [2, 3]);
    assert_eq!(service.counts.of(Count::TftpMalformed), 1);
}

#[tokio::test]
async fn a_stranger_is_told_so_and_the_transfer_goes_on() {
    let service = service(patient()).await;
    let mut client = Client::asks(&service, b"\0\x01long\0octet\0").await;
    let first = client.hears().await;
    assert_eq!(first[..4], [0, 3, 0, 1]);
    let mut stranger = Client { socket: UdpSocket::bind("127.0.0.1:0").await.expect("a port"), peer: client.peer };
    stranger.ack(1).await;
    assert_eq!(stranger.hears().await, Refusal::Stranger.bytes("not your transfer"));
    // an error of a stranger does not end it either
    stranger.send(b"\0\x05\0\0gone\0").await;
    assert_eq!(stranger.hears().await[..4], [0, 5, 0, 5]);
    client.ack(1).await;
    assert_eq!(client.rest(2, 512).await, content(5000)[512..]);
}

#[tokio::test]
async fn the_same_request_again_begins_nothing_and_another_begins_anew() {
    let service = service(patient()).await;
    let mut client = Client::asks(&service, b"\0\x01long\0octet\0").await;
    let first_peer = {
        client.hears().await;
        client.peer
    };
    // a double that was late on its way
    client.socket.send_to(b"\0\x01long\0octet\0", service.at).await.expect("sent");
    until("it was heard", || service.counts.of(Count::TftpReceived) == 2).await;
    client.ack(1).await;
    assert_eq!((client.hears().await[..4].to_vec(), client.peer), (vec![0, 3, 0, 2], first_peer));
    assert_eq!(service.counts.of(Count::TftpBegun), 1);
    // firmware that uses one port for one file after the other
    client.socket.send_to(b"\0\x01short\0octet\0", service.at).await.expect("sent");
    assert_eq!(client.hears().await, data(1, &content(10)));
    assert_ne!(client.peer, first_peer);
    client.ack(1).await;
    until("the second is done", || service.counts.of(Count::TftpDone) == 1).await;
    until("the first was ended", || service.counts.of(Count::TftpBroken) == 1).await;
    // it started again after it had acknowledged: the same request is a new one
    let mut again = Client::asks(&service, b"\0\x01long\0octet\0").await;
    again.hears().await;
    again.ack(1).await;
    assert_eq!(again.hears().await[..4], [0, 3, 0, 2]);
    again.socket.send_to(b"\0\x01long\0octet\0", service.at).await.expect("sent");
    assert_eq!(again.hears().await[..4], [0, 3, 0, 1]);
}

#[tokio::test]
async fn a_client_that_only_wanted_the_length_ends_it() {
    let service = service(patient()).await;
    let mut client = Client::asks(&service, b"\0\x01long\0octet\0tsize\x000\0").await;
    assert_eq!(client.hears().await, b"\0\x06tsize\x005000\0");
    client.send(b"\0\x05\0\x08User aborted the transfer\0").await;
    until("it has ended", || service.counts.of(Count::TftpBroken) == 1).await;
}

#[tokio::test]
async fn what_is_not_served_is_refused_and_what_is_nonsense_is_not_heard() {
    let service = service(quick()).await;
    for (request, refusal) in [
        (&b"\0\x01nothing\0octet\0"[..], Refusal::NotFound.bytes("no such file")),
        (b"\0\x01../../etc/passwd\0octet\0", Refusal::NotFound.bytes("no such file")),
        (b"\0\x02long\0octet\0", Refusal::NoWriting.bytes("files are only read")),
        (b"\0\x01long\0netascii\0", Refusal::BadMode.bytes("octet mode only")),
        (b"\0\x01broken\0octet\0", Refusal::Failed.bytes("the file cannot be read")),
    ] {
        let mut client = Client::asks(&service, request).await;
        assert_eq!(client.hears().await, refusal, "{}", request.escape_ascii());
    }
    // nonsense, then something that is answered: nothing came before that answer
    let mut client = Client::asks(&service, b"\0\x01long").await;
    client.send(&[0; 600]).await;
    client.send(b"\0\x04\0\x01").await;
    client.send(b"\0\x01nothing\0octet\0").await;
    assert_eq!(client.hears().await, Refusal::NotFound.bytes("no such file"));
    assert_eq!(service.counts.of(Count::TftpMalformed), 3);
    assert_eq!(service.counts.of(Count::TftpRefused), 5);
}

#[tokio::test]
async fn a_file_that_is_shorter_than_it_says_is_an_error_and_no_short_file() {
    let service = service(quick()).await;
    let mut client = Client::asks(&service, b"\0\x01cut\0octet\0").await;
    assert_eq!(client.hears().await[..4], [0, 3, 0, 1]);
    client.ack(1).await;
    assert_eq!(client.hears().await, Refusal::Failed.bytes("the file cannot be read"));
}

#[tokio::test]
async fn transfers_are_bounded_for_one_and_for_all_and_places_come_back() {
    let service = service(Limits { of_one: 2, ..patient() }).await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = Client::asks(&service, b"\0\x01long\0octet\0").await;
        client.hears().await;
        clients.push(client);
    }
    let busy = Refusal::Failed.bytes("busy, try again");
    assert_eq!(Client::asks(&service, b"\0\x01long\0octet\0").await.hears().await, busy);
    assert_eq!(service.counts.of(Count::TftpTooMany), 1);
    clients[0].send(b"\0\x05\0\0enough\0").await;
    until("it has ended", || service.counts.of(Count::TftpBroken) == 1).await;
    // the count is a moment ahead of the place
    let begun = async {
        while Client::asks(&service, b"\0\x01short\0octet\0").await.hears().await == busy {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, begun).await.expect("a place is free again");

    let few = self::service(Limits { transfers: 1, ..patient() }).await;
    let mut first = Client::asks(&few, b"\0\x01long\0octet\0").await;
    first.hears().await;
    assert_eq!(Client::asks(&few, b"\0\x01long\0octet\0").await.hears().await, busy);
}

#[tokio::test]
async fn a_transfer_has_an_end_even_if_its_client_is_busy_for_ever() {
    let service = service(Limits { whole: Duration::from_millis(200), ..patient() }).await;
    let mut client = Client::asks(&service, b"\0\x01long\0octet\0").await;
    client.hears().await;
    assert_eq!(client.hears().await, Refusal::Failed.bytes("given up"));
    until("it is counted", || service.counts.of(Count::TftpBroken) == 1).await;
}
