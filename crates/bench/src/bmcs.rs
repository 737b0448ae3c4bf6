//! The BMCs that a server is measured against: responders of ours on loopback, in a thread of their own, each BMC
//! at an address of its own (127.1.x.y). Some of them can be made to go dark, in three ways: nobody listens any
//! more, the kernel drops what comes, or it is taken and never answered.

use crate::Outcome;
use crate::client::{Tally, drive};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use testkit::http_faults::Fault;
use testkit::redfish_responder::{Options, Responder};
use testkit::tls::Pair;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::Instant;

/// What a system call of a moment may take on a busy machine.
const SOON: Duration = Duration::from_secs(10);
/// A connection that is not there by then was dropped: on loopback it takes microseconds.
const DROPPED_AFTER: Duration = Duration::from_millis(300);
/// A queue for none holds one or two all the same.
const QUEUED_MAX: usize = 16;

/// What becomes of a BMC that goes dark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Lives,
    /// Its port is closed.
    Refuses,
    /// No connection is made: every SYN is dropped.
    Drops,
    /// Connections are made and questions taken, and never answered.
    Hangs,
}

const DARK: [Fate; 3] = [Fate::Refuses, Fate::Drops, Fate::Hangs];

struct Group {
    fate: Fate,
    responder: Option<Responder>,
    endpoints: Vec<String>,
    port: u16,
}

pub struct Bmcs {
    groups: Vec<Group>,
    black_hole: Option<BlackHole>,
    /// Its thread answers, and nobody here waits for it.
    runtime: Option<Runtime>,
}

impl Bmcs {
    /// So many, of which `dark` can go dark.
    pub async fn start(count: usize, dark: usize, tls: Option<Pair>) -> Outcome<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let tls = tls.map(Arc::new);
        let mut bmcs = Self { groups: Vec::new(), black_hole: None, runtime: None };
        let shares = DARK.iter().enumerate().map(|(n, fate)| (*fate, dark / 3 + usize::from(n < dark % 3)));
        for (fate, systems) in std::iter::once((Fate::Lives, count - dark)).chain(shares) {
            if systems == 0 {
                continue;
            }
            let (options, tls) = (Options { systems, own_addresses: true, ..Options::default() }, tls.clone());
            let started = runtime
                .spawn(async move { Responder::start_with(options, tls.as_deref().map(|pair| (pair, false))).await });
            let responder = started.await?;
            let endpoints = (1..=systems).map(|n| responder.endpoint(n)).collect();
            let port = responder.port(1);
            bmcs.groups.push(Group { fate, responder: Some(responder), endpoints, port });
        }
        bmcs.runtime = Some(runtime);
        Ok(bmcs)
    }

    /// All of them, those that can go dark among the others as they would be in a fleet.
    pub fn endpoints(&self) -> Vec<String> {
        let placed = |group: &Group| {
            let every = group.endpoints.len() as f64;
            let spread = |(n, endpoint): (usize, &String)| ((n as f64 + 0.5) / every, endpoint.clone());
            group.endpoints.iter().enumerate().map(spread).collect::<Vec<_>>()
        };
        let mut all: Vec<(f64, String)> = self.groups.iter().flat_map(placed).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all.into_iter().map(|(_, endpoint)| endpoint).collect()
    }

    /// Those that never go dark.
    pub fn living(&self) -> Outcome<&Responder> {
        let lives = self.groups.iter().find(|group| group.fate == Fate::Lives);
        lives.and_then(|group| group.responder.as_ref()).ok_or_else(|| "no BMC lives".into())
    }

    /// How many never go dark.
    pub fn alive(&self) -> usize {
        self.groups.iter().filter(|group| group.fate == Fate::Lives).map(|group| group.endpoints.len()).sum()
    }

    /// Questions to all of them so far.
    pub fn questions(&self) -> u64 {
        self.groups.iter().filter_map(|group| group.responder.as_ref()).map(Responder::questions).sum()
    }

    pub async fn go_dark(&mut self) -> Outcome<()> {
        for group in &mut self.groups {
            match group.fate {
                Fate::Lives => {}
                Fate::Refuses => group.responder = None,
                Fate::Drops => {
                    group.responder = None;
                    self.black_hole = Some(BlackHole::at(group.port).await?);
                }
                Fate::Hangs => {
                    if let Some(responder) = &group.responder {
                        responder.faults.arm("", "", Fault::Hold, usize::MAX);
                    }
                }
            }
        }
        Ok(())
    }

    /// What the least that one could do makes of the living ones: a connection and one GET of a system over it, by
    /// so many callers side by side.
    pub async fn bare(&self, callers: usize, span: Duration) -> Outcome<Tally> {
        let living = self.living()?;
        let token = living.tokens().pop().ok_or("nobody has logged in")?;
        let port = living.port(1);
        let ask = |number: usize| {
            let host = host_of(&living.endpoint(number));
            let question = format!(
                "GET /redfish/v1/Systems/{number} HTTP/1.1\r\nHost: {host}:{port}\r\nX-Auth-Token: {token}\r\nConnection: close\r\n\r\n"
            );
            (host, question)
        };
        let questions: Arc<[(String, String)]> = (1..=self.alive()).map(ask).collect();
        drive(callers, span, |caller| {
            let (questions, mut next) = (questions.clone(), caller);
            move || {
                let (questions, number) = (questions.clone(), next % questions.len());
                next += callers;
                async move { get(&questions[number].0, port, &questions[number].1).await }
            }
        })
        .await
    }
}

impl Drop for Bmcs {
    fn drop(&mut self) {
        self.groups.clear();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn host_of(endpoint: &str) -> String {
    let host = endpoint.split("://").nth(1).and_then(|rest| rest.split(':').next());
    host.unwrap_or_default().to_owned()
}

async fn get(host: &str, port: u16, question: &str) -> Result<(), String> {
    let talk = async {
        let mut socket = TcpStream::connect((host, port)).await?;
        socket.set_nodelay(true)?;
        socket.write_all(question.as_bytes()).await?;
        let mut answer = Vec::with_capacity(4096);
        socket.read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(SOON, talk).await.map_err(|_| "no answer")?.map_err(|e| e.to_string())?;
    if answer.starts_with(b"HTTP/1.1 200") { Ok(()) } else { Err(format!("{:.100}", String::from_utf8_lossy(&answer))) }
}

/// A port at which no connection is made: its queue is full and nobody takes from it, so that the kernel drops
/// every SYN.
struct BlackHole {
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl BlackHole {
    async fn at(port: u16) -> Outcome<Self> {
        let begun = Instant::now();
        let listener = loop {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseaddr(true)?;
            let bound = socket.bind((Ipv4Addr::UNSPECIFIED, port).into()).and_then(|()| socket.listen(0));
            match bound {
                Ok(listener) => break listener,
                // whoever listened there is about to go
                Err(_) if begun.elapsed() < SOON => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(e) => return Err(e.into()),
            }
        };
        let port = listener.local_addr()?.port();
        let mut queued = Vec::new();
        while queued.len() < QUEUED_MAX {
            match tokio::time::timeout(DROPPED_AFTER, TcpStream::connect((Ipv4Addr::LOCALHOST, port))).await {
                Ok(made) => queued.push(made?),
                Err(_) => return Ok(Self { _listener: listener, _queued: queued }),
            }
        }
        Err("a full queue still takes connections".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(endpoint: &str) -> &str {
        endpoint.split("://").nth(1).expect("a scheme")
    }

    async fn answers(endpoint: &str) -> Result<(), String> {
        let question = "GET /redfish/v1/ HTTP/1.1\r\nHost: bmc\r\nConnection: close\r\n\r\n";
        let (host, port) = address(endpoint).split_once(':').expect("a port");
        let asked = get(host, port.parse().expect("a number"), question);
        tokio::time::timeout(Duration::from_millis(500), asked).await.unwrap_or_else(|_| Err("silence".to_owned()))
    }

    #[tokio::test]
    async fn each_goes_dark_in_its_way_and_the_others_answer() {
        let mut bmcs = Bmcs::start(9, 3, None).await.expect("started");
        let all = bmcs.endpoints();
        let different: std::collections::HashSet<&String> = all.iter().collect();
        assert_eq!((all.len(), different.len(), bmcs.alive()), (9, 9, 6), "{all:?}");
        for endpoint in &all {
            assert_eq!(answers(endpoint).await, Ok(()), "{endpoint}");
        }
        bmcs.go_dark().await.expect("dark");
        let mut ends = Vec::new();
        for group in &bmcs.groups {
            for endpoint in &group.endpoints {
                let made = tokio::time::timeout(DROPPED_AFTER, TcpStream::connect(address(endpoint))).await;
                let end = match made {
                    Err(_) => Fate::Drops,
                    Ok(Err(e)) if e.kind() == std::io::ErrorKind::ConnectionRefused => Fate::Refuses,
                    Ok(Err(e)) => panic!("{endpoint}: {e}"),
                    Ok(Ok(_)) if answers(endpoint).await == Ok(()) => Fate::Lives,
                    Ok(Ok(_)) => Fate::Hangs,
                };
                assert_eq!(end, group.fate, "{endpoint}");
                ends.push(end);
            }
        }
        assert!(DARK.iter().all(|fate| ends.contains(fate)), "{ends:?}");
    }
}
