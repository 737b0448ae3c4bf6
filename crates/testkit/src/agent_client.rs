//! An agent as its server sees it: keys, certificates and words, and nothing of a machine. It does what it is told,
//! also what no agent should do. Light enough that thousands fit into one process: no threads, and no waiting but for
//! the wire.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use domain::Timestamp;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::agent::v1 as pb;
use proto::agent::v1::agent_service_client::AgentServiceClient;
use proto::agent::v1::from_agent::Message as Says;
use proto::agent::v1::to_agent::Message as Word;
use rcgen::{CertificateParams, KeyPair, SigningKey as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, RootCertStore};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::{Status, Streaming};

/// A bound on every wait, far above what any of them takes.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// What may be on its way to the server.
const UNSENT_MAX: usize = 64;
pub const WINDOW: u32 = 64 * 1024;

pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

struct Told(Clock);

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a clock")
    }
}

impl TimeProvider for Told {
    fn current_time(&self) -> Option<UnixTime> {
        let micros = u64::try_from((self.0)().micros()).unwrap_or(0);
        Some(UnixTime::since_unix_epoch(Duration::from_micros(micros)))
    }
}

/// Where the server is, and how to know it.
#[derive(Clone)]
pub struct Dialer {
    pub address: SocketAddr,
    /// The authority's certificate.
    pub authority: Vec<u8>,
    pub clock: Clock,
    /// How much the server may send before this end has read it.
    pub window: u32,
}

/// One connection, as tonic wants it.
#[derive(Clone)]
pub struct Wire(http2::SendRequest<tonic::body::Body>);

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<hyper::body::Incoming>, hyper::Error>> + Send>>;

impl tonic::codegen::Service<http::Request<tonic::body::Body>> for Wire {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Answer;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

pub type Client = AgentServiceClient<Wire>;

impl Dialer {
    fn config(&self, identity: Option<(Vec<CertificateDer<'static>>, &KeyPair)>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(self.authority.clone())).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_details(provider, Arc::new(Told(self.clock.clone())))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
                builder.with_client_auth_cert(chain, key).expect("a pair")
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        config
    }

    async fn shake_hands(&self, config: ClientConfig) -> Result<TlsStream<TcpStream>, String> {
        let socket = TcpStream::connect(self.address).await.map_err(|e| e.to_string())?;
        drop(socket.set_nodelay(true));
        let name = ServerName::try_from("millwright").expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, socket).await.map_err(|e| e.to_string())
    }

    async fn dial(&self, config: ClientConfig) -> Result<Client, String> {
        let stream = self.shake_hands(config).await?;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .initial_stream_window_size(self.window)
            .initial_connection_window_size(WINDOW)
            .max_send_buf_size(16 * 1024);
        let (wire, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
        // ends with the connection
        tokio::spawn(async move { drop(connection.await) });
        let origin = "https://millwright".parse().expect("a URL");
        Ok(AgentServiceClient::with_origin(Wire(wire), origin))
    }

    /// As somebody without a certificate.
    pub async fn stranger(&self) -> Result<Client, String> {
        self.dial(self.config(None)).await
    }

    /// With any certificate, in DER, and any key.
    pub async fn showing(&self, chain: &[Vec<u8>], key: &KeyPair) -> Result<Client, String> {
        self.dial(self.config(Some((certificates(chain), key)))).await
    }

    /// The same, for whoever does not want to speak as agents do.
    pub async fn encrypted(&self, chain: &[Vec<u8>], key: &KeyPair) -> Result<TlsStream<TcpStream>, String> {
        self.shake_hands(self.config(Some((certificates(chain), key)))).await
    }
}

fn certificates(chain: &[Vec<u8>]) -> Vec<CertificateDer<'static>> {
    chain.iter().map(|der| CertificateDer::from(der.clone())).collect()
}

pub fn request(key: &KeyPair) -> Vec<u8> {
    CertificateParams::default().serialize_request(key).expect("a request").der().to_vec()
}

/// An enrolled agent: all that a real one has on its disk.
pub struct Agent {
    pub node_id: String,
    pub key: KeyPair,
    pub certificate: pb::Certificate,
    pub epoch: u64,
    pub session: u64,
}

impl Agent {
    /// With a fresh key.
    pub async fn enrol(dialer: &Dialer, token: &str) -> Result<Self, Status> {
        Self::enrol_as(dialer, token, facts()).await
    }

    /// The same, of a machine of its own.
    pub async fn enrol_as(dialer: &Dialer, token: &str, facts: pb::Facts) -> Result<Self, Status> {
        Self::ask(dialer, token, KeyPair::generate().expect("a key"), facts).await
    }

    pub async fn enrol_with(dialer: &Dialer, token: &str, key: KeyPair) -> Result<Self, Status> {
        Self::ask(dialer, token, key, facts()).await
    }

    async fn ask(dialer: &Dialer, token: &str, key: KeyPair, facts: pb::Facts) -> Result<Self, Status> {
        let mut client = dialer.stranger().await.map_err(Status::unavailable)?;
        let asked = pb::EnrollRequest {
            token: token.to_owned(),
            csr_der: request(&key),
            facts: Some(facts),
            agent_version: "0.1.0".to_owned(),
        };
        let pb::EnrollResponse { node_id, certificate, session, epoch } = client.enroll(asked).await?.into_inner();
        Ok(Self { node_id, key, certificate: certificate.expect("a certificate"), epoch, session })
    }

    /// The same agent, once more: as a copied disk has it.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self {
            node_id: self.node_id.clone(),
            key: KeyPair::try_from(self.key.serialize_der()).expect("a key"),
            certificate: self.certificate.clone(),
            ..*self
        }
    }

    pub async fn dial(&self, dialer: &Dialer) -> Result<Client, Status> {
        dialer.showing(&self.certificate.chain_der, &self.key).await.map_err(Status::unavailable)
    }

    /// A fresh certificate, by the old one.
    pub async fn renew(&mut self, dialer: &Dialer) -> Result<(), Status> {
        let asked = pb::RenewRequest { csr_der: request(&self.key) };
        let answer = self.dial(dialer).await?.renew(asked).await?.into_inner();
        self.certificate = answer.certificate.expect("a certificate");
        Ok(())
    }

    /// A stream on which nothing was said.
    pub async fn open(&self, dialer: &Dialer) -> Result<Conversation, Status> {
        Conversation::over(self.dial(dialer).await?).await
    }

    pub fn hello(&self, clock: Timestamp) -> Says {
        Says::Hello(pb::Hello {
            epoch: self.epoch,
            session: self.session,
            agent_version: "0.1.0".to_owned(),
            facts: Some(facts()),
            clock: Some(wire_time(clock)),
            running: Vec::new(),
        })
    }

    /// Opens a stream, says hello, writes the welcome down and confirms it.
    pub async fn connect(&mut self, dialer: &Dialer) -> Result<Conversation, Status> {
        let mut stream = self.open(dialer).await?;
        stream.say(self.hello((dialer.clock)())).await;
        match stream.next().await? {
            Some(Word::Welcome(welcome)) => {
                (self.epoch, self.session) = (welcome.epoch, welcome.session);
                stream.say(Says::Confirm(pb::Confirm { session: welcome.session })).await;
                Ok(stream)
            }
            Some(Word::GoAway(away)) => Err(Status::aborted(away.reason)),
            other => Err(Status::internal(format!("no welcome: {other:?}"))),
        }
    }

    /// A result as this agent signs it.
    pub fn result(&self, task: &pb::Task, ok: bool, detail: &str) -> pb::TaskResult {
        let fence = task.fence.unwrap_or_default();
        let text =
            format!("millwright task result v1\n{}\n{}.{}\n{ok}\n{detail}", task.task_id, fence.epoch, fence.counter);
        pb::TaskResult {
            task_id: task.task_id.clone(),
            fence: Some(fence),
            ok,
            code: if ok { String::new() } else { "NOT_CLEAN".to_owned() },
            failure_class: "hardware".to_owned(),
            message: "as it went".to_owned(),
            detail_json: detail.to_owned(),
            signature: self.key.sign(text.as_bytes()).expect("a signature"),
            started_at: None,
            finished_at: None,
        }
    }
}

pub fn facts() -> pb::Facts {
    pb::Facts {
        system_uuid: "4C4C4544-0042-3510-8052-B4C04F4E3232".to_owned(),
        serial_number: "SN-1".to_owned(),
        mac_addresses: vec!["02:00:00:00:00:01".to_owned()],
        boot_id: "boot-1".to_owned(),
        ..pb::Facts::default()
    }
}

/// Of the `number`th of many machines.
pub fn facts_of(number: usize) -> pb::Facts {
    let card = |byte: usize| (number >> (8 * byte)) & 0xff;
    pb::Facts {
        system_uuid: format!("4c4c4544-0042-3510-8052-{number:012x}"),
        serial_number: format!("SN-{number:06}"),
        mac_addresses: vec![format!("02:00:00:{:02x}:{:02x}:{:02x}", card(2), card(1), card(0))],
        ..facts()
    }
}

/// The first certificate of a text in PEM.
pub fn der_of(pem: &str) -> Option<Vec<u8>> {
    use rustls::pki_types::pem::PemObject as _;
    CertificateDer::from_pem_slice(pem.as_bytes()).ok().map(|der| der.to_vec())
}

pub fn wire_time(at: Timestamp) -> prost_types::Timestamp {
    let micros = at.micros();
    prost_types::Timestamp {
        seconds: micros.div_euclid(1_000_000),
        nanos: i32::try_from(micros.rem_euclid(1_000_000) * 1000).unwrap_or(0),
    }
}

/// As an agent of which nothing bad is to be told.
pub fn well() -> pb::Health {
    let probe = pb::Probe { name: "disk_space".to_owned(), ok: true, message: String::new() };
    pb::Health { probes: vec![probe], ..pb::Health::default() }
}

/// An open stream.
pub struct Conversation {
    out: mpsc::Sender<Box<pb::FromAgent>>,
    words: Streaming<pb::ToAgent>,
}

impl Conversation {
    pub async fn over(mut client: Client) -> Result<Self, Status> {
        let (out, mut unsent) = mpsc::channel::<Box<pb::FromAgent>>(UNSENT_MAX);
        let words =
            futures::stream::poll_fn(move |context| unsent.poll_recv(context).map(|word| word.map(|word| *word)));
        let words = client.connect(words).await?;
        Ok(Self { out, words: words.into_inner() })
    }

    /// Puts a word on its way. What is said after the end is lost.
    pub async fn say(&self, word: Says) {
        drop(self.out.send(Box::new(pb::FromAgent { message: Some(word) })).await);
    }

    /// Waits until nothing that is said goes out any more, without reading a word.
    pub async fn cut_off(&self) {
        tokio::time::timeout(PATIENCE, self.out.closed()).await.expect("the stream goes on");
    }

    /// The server's next word, whenever it comes; `None`: the stream has ended.
    pub async fn word(&mut self) -> Result<Option<Word>, Status> {
        Ok(self.words.message().await?.and_then(|word| word.message))
    }

    /// The same, within a bound.
    pub async fn next(&mut self) -> Result<Option<Word>, Status> {
        let next = tokio::time::timeout(PATIENCE, self.word()).await;
        next.map_err(|_| Status::deadline_exceeded("the server says nothing"))?
    }

    /// A heartbeat that wants to be answered.
    pub async fn beat_asking(&self, clock: Timestamp, echo: u64) {
        let health = Some(well());
        let beat = pb::Heartbeat { clock: Some(wire_time(clock)), echo, health, ..pb::Heartbeat::default() };
        self.say(Says::Heartbeat(beat)).await;
    }

    pub async fn beat(&self, clock: Timestamp, running: &[String]) {
        let beat = pb::Heartbeat {
            clock: Some(wire_time(clock)),
            running_tasks: running.to_vec(),
            health: Some(well()),
            ..pb::Heartbeat::default()
        };
        self.say(Says::Heartbeat(beat)).await;
    }

    /// The next task; whatever else is said before is dropped.
    pub async fn task(&mut self) -> pb::Task {
        loop {
            match self.next().await.expect("the stream goes on") {
                Some(Word::Task(task)) => return task,
                Some(Word::GoAway(away)) => panic!("sent away: {away:?}"),
                Some(_) => {}
                None => panic!("the stream ended before there was a task"),
            }
        }
    }

    /// Waits for what became of a result.
    pub async fn stored(&mut self) -> pb::ResultStored {
        loop {
            match self.next().await.expect("the stream goes on") {
                Some(Word::ResultStored(stored)) => return stored,
                Some(Word::GoAway(away)) => panic!("sent away: {away:?}"),
                Some(_) => {}
                None => panic!("the stream ended before the result was answered"),
            }
        }
    }

    /// Reads until the stream ends; answers why, as far as that was said.
    pub async fn ended(&mut self) -> Option<pb::GoAway> {
        let mut said = None;
        loop {
            match self.next().await {
                Ok(Some(Word::GoAway(away))) => said = Some(away),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return said,
            }
        }
    }
}
