//! A server for agents, played: an authority of its own, enrolment, sessions, and whatever a test wants it to say. Over
//! TCP for real processes, or in memory, so that a test can hold the clock. It knows nothing of the agent's code but the
//! wire; what an agent has done is judged by what arrives here and by files on disk.
#![allow(dead_code, unused_imports, reason = "each target uses its part")]

mod authority;
mod line;
mod played;

pub use authority::{Authority, DAY, NOW, public_key};
pub use played::{played, task};

use agent::bundle::{Bundle, Server};
use agent::connection::dial::{Dial, Line};
use domain::{Secret, Timestamp};
use proto::agent::v1::agent_service_server::{AgentService, AgentServiceServer};
use proto::agent::v1::from_agent::Message;
use proto::agent::v1::to_agent::Message as Word;
use proto::agent::v1::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

pub const NODE: &str = "node-1";
pub const TOKEN: &str = "canary-token-7f3a";
/// For real time, on a busy machine; with a held clock this is over in no time.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the server has seen, in order.
#[derive(Debug)]
pub enum Seen {
    Dialed(Instant),
    /// By which key.
    Enroll(String),
    Renew {
        expired: bool,
    },
    Said(Box<Message>),
}

pub struct Behaviour {
    pub epoch: u64,
    pub session: u64,
    pub heartbeat: u32,
    pub lease: u32,
    pub life: Duration,
    pub inventory_wanted: bool,
    /// Enrolments that are carried out, and whose answers are lost.
    pub lost_answers: u32,
    /// Connections that are refused as unauthenticated, whatever they bring.
    pub unauthenticated: u32,
    /// Said instead of the welcome.
    pub instead: Option<Word>,
    pub reachable: bool,
    /// Which key a token belongs to.
    pub tokens: HashMap<String, Option<String>>,
    /// Looked at when a token arrives.
    pub on_token: Option<Box<dyn Fn() + Send>>,
    /// The agent's, as it was signed last.
    pub certificate: Vec<u8>,
    say: Option<mpsc::Sender<Result<ToAgent, Status>>>,
    cut: CancellationToken,
}

pub struct StandIn {
    pub authority: Arc<Authority>,
    behaviour: Arc<Mutex<Behaviour>>,
    seen: mpsc::UnboundedReceiver<Seen>,
    tell: mpsc::UnboundedSender<Seen>,
    lines: mpsc::UnboundedSender<Box<dyn Line>>,
    began: Instant,
}

impl StandIn {
    pub fn start() -> Self {
        Self::named("millwright")
    }

    /// With another name in its certificate.
    pub fn named(name: &str) -> Self {
        let authority = Arc::new(Authority::new());
        let behaviour = Arc::new(Mutex::new(Behaviour {
            epoch: 1,
            session: 100,
            heartbeat: 15,
            lease: 60,
            life: Duration::from_secs(DAY),
            inventory_wanted: false,
            lost_answers: 0,
            unauthenticated: 0,
            instead: None,
            reachable: true,
            tokens: HashMap::from([(TOKEN.to_owned(), None)]),
            on_token: None,
            certificate: Vec::new(),
            say: None,
            cut: CancellationToken::new(),
        }));
        let (tell, seen) = mpsc::unbounded_channel();
        let (lines, incoming) = mpsc::unbounded_channel();
        let began = Instant::now();
        let service = Service { authority: authority.clone(), behaviour: behaviour.clone(), tell: tell.clone(), began };
        let secured = line::accept(incoming, authority.tls(name), behaviour.clone());
        let serve = tonic::transport::Server::builder()
            .add_service(
                AgentServiceServer::new(service)
                    .max_decoding_message_size(16 << 20)
                    .max_encoding_message_size(64 << 20),
            )
            .serve_with_incoming(secured);
        tokio::spawn(async move { serve.await.expect("serving") });
        Self { authority, behaviour, seen, tell, lines, began }
    }

    pub fn set(&self) -> MutexGuard<'_, Behaviour> {
        self.behaviour.lock().expect("not poisoned")
    }

    /// What time it is here.
    pub fn now(&self) -> Timestamp {
        now(self.began)
    }

    /// Lines in memory.
    pub fn dial(&self) -> Dial {
        let (behaviour, lines, tell) = (self.behaviour.clone(), self.lines.clone(), self.tell.clone());
        Arc::new(move |_| {
            let (behaviour, lines, tell) = (behaviour.clone(), lines.clone(), tell.clone());
            Box::pin(async move {
                drop(tell.send(Seen::Dialed(Instant::now())));
                if !behaviour.lock().expect("not poisoned").reachable {
                    return Err(std::io::ErrorKind::ConnectionRefused.into());
                }
                let (here, there) = tokio::io::duplex(64 * 1024);
                lines.send(Box::new(there)).map_err(|_| std::io::Error::other("nobody serves"))?;
                Ok(Box::new(here) as Box<dyn Line>)
            })
        })
    }

    /// Lines over TCP; the address to dial.
    pub async fn listen(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let lines = self.lines.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                drop(lines.send(Box::new(socket)));
            }
        });
        format!("https://{address}")
    }

    pub fn bundle(&self) -> Bundle {
        Bundle {
            server: Server::parse("https://server.example:7701").expect("an address"),
            token: Secret::new(TOKEN),
            authority_pem: self.authority.pem(),
            node_id: NODE.to_owned(),
        }
    }

    pub fn bundle_json(&self, server: &str) -> String {
        serde_json::json!({
            "server": server, "token": TOKEN, "authority_pem": self.authority.pem(), "node_id": NODE,
            "expires_at": "2031-01-01T00:00:00Z",
        })
        .to_string()
    }

    /// To the agent that is connected.
    pub async fn say(&self, word: Word) {
        let say = self.set().say.clone().expect("an agent is connected");
        say.send(Ok(ToAgent { message: Some(word) })).await.expect("it listens");
    }

    /// Every connection breaks.
    pub fn cut(&self) {
        let mut behaviour = self.set();
        std::mem::take(&mut behaviour.cut).cancel();
        behaviour.say = None;
    }

    /// The next of what is seen that the test is about; everything before it is passed over.
    pub async fn until<T>(&mut self, what: &str, mut pick: impl FnMut(Seen) -> Option<T>) -> T {
        let look = async {
            loop {
                let seen = self.seen.recv().await.expect("the server lives");
                if let Some(found) = pick(seen) {
                    return found;
                }
            }
        };
        // a held clock runs ahead of what happens: there the bound is one of days
        let patience = if held() { Duration::from_secs(40 * DAY) } else { PATIENCE };
        tokio::time::timeout(patience, look).await.unwrap_or_else(|_| panic!("never seen: {what}"))
    }

    /// What was seen up to now.
    pub fn so_far(&mut self) -> Vec<Seen> {
        std::iter::from_fn(|| self.seen.try_recv().ok()).collect()
    }

    pub async fn confirmed(&mut self) -> u64 {
        self.until("a confirmation", |seen| match seen {
            Seen::Said(said) => match *said {
                Message::Confirm(confirm) => Some(confirm.session),
                _ => None,
            },
            _ => None,
        })
        .await
    }

    pub async fn result(&mut self) -> TaskResult {
        self.until("a result", |seen| match seen {
            Seen::Said(said) => match *said {
                Message::Result(result) => Some(result),
                _ => None,
            },
            _ => None,
        })
        .await
    }

    pub async fn refusal(&mut self) -> TaskRefusal {
        self.until("a refusal", |seen| match seen {
            Seen::Said(said) => match *said {
                Message::Refusal(refusal) => Some(refusal),
                _ => None,
            },
            _ => None,
        })
        .await
    }

    pub async fn heartbeat(&mut self) -> Heartbeat {
        self.until("a heartbeat", |seen| match seen {
            Seen::Said(said) => match *said {
                Message::Heartbeat(heartbeat) => Some(heartbeat),
                _ => None,
            },
            _ => None,
        })
        .await
    }

    pub async fn stored(&self, task_id: &str) {
        self.say(Word::ResultStored(ResultStored {
            task_id: task_id.to_owned(),
            applied: true,
            reason: String::new(),
        }))
        .await;
    }
}

/// Whether the test holds the clock.
fn held() -> bool {
    HELD.with(std::cell::Cell::get)
}

thread_local! {
    static HELD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// For tests with a held clock, first thing.
pub fn hold() {
    HELD.with(|h| h.set(true));
}

fn now(began: Instant) -> Timestamp {
    Timestamp::from_micros(NOW * 1_000_000).plus(began.elapsed())
}

struct Service {
    authority: Arc<Authority>,
    behaviour: Arc<Mutex<Behaviour>>,
    tell: mpsc::UnboundedSender<Seen>,
    began: Instant,
}

impl Service {
    fn set(&self) -> MutexGuard<'_, Behaviour> {
        self.behaviour.lock().expect("not poisoned")
    }

    fn certificate(&self, csr: &[u8], life: Duration) -> (Certificate, String) {
        self.authority.sign(csr, NODE, now(self.began), life)
    }
}

#[tonic::async_trait]
impl AgentService for Service {
    type ConnectStream = ReceiverStream<Result<ToAgent, Status>>;

    async fn enroll(&self, request: Request<EnrollRequest>) -> Result<Response<EnrollResponse>, Status> {
        let asked = request.into_inner();
        let mut set = self.set();
        if let Some(look) = &set.on_token {
            look();
        }
        let (certificate, key) = self.certificate(&asked.csr_der, set.life);
        set.certificate.clone_from(&certificate.chain_der[0]);
        drop(self.tell.send(Seen::Enroll(key.clone())));
        match set.tokens.get_mut(&asked.token) {
            None => return Err(Status::unauthenticated(format!("the token {} is not known", asked.token))),
            Some(bound) => match bound {
                Some(other) if *other != key => {
                    return Err(Status::failed_precondition("the token was used by another key"));
                }
                _ => *bound = Some(key),
            },
        }
        if set.lost_answers > 0 {
            set.lost_answers -= 1;
            return Err(Status::unavailable("the answer is lost"));
        }
        let (session, epoch) = (set.session, set.epoch);
        Ok(Response::new(EnrollResponse { node_id: NODE.to_owned(), certificate: Some(certificate), session, epoch }))
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<RenewResponse>, Status> {
        let peer = line::peer(&request)?;
        let expired = authority::ends(&peer) <= now(self.began);
        let life = self.set().life;
        let (certificate, _) = self.certificate(&request.into_inner().csr_der, life);
        drop(self.tell.send(Seen::Renew { expired }));
        Ok(Response::new(RenewResponse { certificate: Some(certificate) }))
    }

    async fn connect(&self, request: Request<Streaming<FromAgent>>) -> Result<Response<Self::ConnectStream>, Status> {
        let peer = line::peer(&request)?;
        if authority::ends(&peer) <= now(self.began) {
            return Err(Status::unauthenticated("the certificate has expired"));
        }
        let (say, words) = mpsc::channel(64);
        {
            let mut set = self.set();
            if set.unauthenticated > 0 {
                set.unauthenticated -= 1;
                return Err(Status::unauthenticated("not this one"));
            }
            set.say = Some(say.clone());
        }
        let (tell, behaviour, began) = (self.tell.clone(), self.behaviour.clone(), self.began);
        let mut inbound = request.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(FromAgent { message: Some(message) })) = inbound.message().await {
                if matches!(message, Message::Hello(_)) {
                    let first = welcome(&behaviour, began);
                    drop(say.send(Ok(ToAgent { message: Some(first) })).await);
                }
                drop(tell.send(Seen::Said(Box::new(message))));
            }
        });
        Ok(Response::new(ReceiverStream::new(words)))
    }
}

fn welcome(behaviour: &Mutex<Behaviour>, began: Instant) -> Word {
    let mut set = behaviour.lock().expect("not poisoned");
    if let Some(instead) = set.instead.take() {
        return instead;
    }
    set.session += 1;
    Word::Welcome(Welcome {
        epoch: set.epoch,
        session: set.session,
        heartbeat_seconds: set.heartbeat,
        task_lease_seconds: set.lease,
        clock: Some(agent::clock::to_wire(now(began))),
        inventory_wanted: set.inventory_wanted,
    })
}
