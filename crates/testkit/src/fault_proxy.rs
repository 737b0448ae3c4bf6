//! Stands between a store and its PostgreSQL and fails at moments that a test has named. It understands just
//! enough of the wire protocol to know them: where a statement begins and ends, which of them belong to a
//! transaction that writes, and which is the COMMIT. What it has done is counted, so that a test can tell a
//! moment that was survived from one that never came.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio_postgres::Config;
use tokio_postgres::config::Host;
use tokio_util::sync::CancellationToken;

/// The `n`th of its kind since [`FaultProxy::arm`], from 1. To prepare a statement is part of none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A statement of a transaction that writes, its BEGIN and COMMIT included.
    Write(usize),
    /// A COMMIT of such a transaction.
    Commit(usize),
    /// A statement that reads, in a transaction for reading or in none.
    Read(usize),
    /// The first command of a new connection, once it is let in.
    Greeting(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The connection is reset, and the server never hears the statement.
    CutBefore,
    /// The server does it and answers; the answer is lost and the connection reset.
    LoseAnswer,
    /// The server itself fails it with this SQLSTATE.
    Raise(&'static str),
    /// The server ends the session, as an administrator would (57P01).
    Terminate,
    /// From here on nothing passes on any connection, and no reset tells of it: [`Weather::Silent`].
    FallSilent,
}

/// What it is like between here and the server, until told otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    Clear,
    /// Connections are taken, and nothing passes. Who was in the middle of something is reset when it ends.
    Silent,
    /// Every connection is reset, new ones too.
    Refusing,
    /// New connections are refused by the server with this SQLSTATE; the others live on.
    Full(&'static str),
}

#[derive(Clone, Copy, Debug)]
struct Armed {
    moment: Moment,
    act: Act,
    times: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub writes: usize,
    pub commits: usize,
    pub reads: usize,
    pub greetings: usize,
    /// How often the armed fault was done.
    pub hits: usize,
}

#[derive(Default)]
struct State {
    armed: Option<Armed>,
    seen: Seen,
}

struct Shared {
    target: Target,
    state: Mutex<State>,
    weather: watch::Sender<Weather>,
    /// Raised to reset every connection there is.
    resets: watch::Sender<u64>,
}

#[derive(Clone)]
enum Target {
    Unix(PathBuf),
    Tcp(String),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Dropped: listens no more, and resets what it has.
pub struct FaultProxy {
    config: Config,
    shared: Arc<Shared>,
    closed: CancellationToken,
}

impl FaultProxy {
    /// In front of the first server of a configuration, on the runtime this is called in.
    pub async fn before(server: &Config) -> Self {
        let port = server.get_ports().first().copied().unwrap_or(5432);
        let target = match server.get_hosts().first().expect("a host") {
            Host::Unix(folder) => Target::Unix(folder.join(format!(".s.PGSQL.{port}"))),
            Host::Tcp(name) => Target::Tcp(format!("{name}:{port}")),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut config = Config::new();
        config.host("127.0.0.1").port(listener.local_addr().expect("an address").port());
        config.user(server.get_user().expect("a user")).dbname(server.get_dbname().expect("a database"));
        let (weather, resets) = (watch::channel(Weather::Clear).0, watch::channel(0).0);
        let shared = Shared { target, state: Mutex::default(), weather, resets };
        let (shared, closed) = (Arc::new(shared), CancellationToken::new());
        tokio::spawn(listen(listener, shared.clone(), closed.clone()));
        Self { config, shared, closed }
    }

    /// How to reach the server through this.
    pub fn config(&self) -> Config {
        self.config.clone()
    }

    /// Does this at that moment, counted from now, `times` times: after each the count begins anew.
    pub fn arm(&self, moment: Moment, act: Act, times: usize) {
        *self.state() = State { armed: Some(Armed { moment, act, times }), seen: Seen::default() };
    }

    /// Nothing more happens. Answers what was seen since it was armed.
    pub fn disarm(&self) -> Seen {
        std::mem::take(&mut *self.state()).seen
    }

    pub fn seen(&self) -> Seen {
        self.state().seen
    }

    pub fn weather(&self, weather: Weather) {
        self.shared.weather.send_replace(weather);
    }

    /// Resets every connection there is now. Whoever comes next has to connect anew.
    pub fn reset_all(&self) {
        self.shared.resets.send_modify(|n| *n += 1);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a statement, and says what is to be done to it.
    fn judge(&self, statement: &Statement) -> Option<Act> {
        let mut state = self.state();
        let State { armed, seen } = &mut *state;
        let mut now = Vec::with_capacity(2);
        match statement {
            Statement::Write { commit } => {
                seen.writes += 1;
                now.push(Moment::Write(seen.writes));
                if *commit {
                    seen.commits += 1;
                    now.push(Moment::Commit(seen.commits));
                }
            }
            Statement::Read => {
                seen.reads += 1;
                now.push(Moment::Read(seen.reads));
            }
            Statement::Greeting => {
                seen.greetings += 1;
                now.push(Moment::Greeting(seen.greetings));
            }
            Statement::Other => {}
        }
        let due = armed.as_mut().filter(|armed| now.contains(&armed.moment))?;
        let act = due.act;
        due.times -= 1;
        if due.times == 0 {
            *armed = None;
        }
        *seen = Seen { hits: seen.hits + 1, ..Seen::default() };
        drop(state);
        if act == Act::FallSilent {
            self.weather.send_replace(Weather::Silent);
        }
        Some(act)
    }
}

async fn listen(listener: TcpListener, shared: Arc<Shared>, closed: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = closed.cancelled() => return,
        };
        let Ok((client, _)) = accepted else { continue };
        let (shared, closed) = (shared.clone(), closed.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = serve(client, &shared) => {}
                () = closed.cancelled() => {}
            }
        });
    }
}

async fn serve(client: TcpStream, shared: &Shared) {
    drop(client.set_nodelay(true));
    let mut resets = shared.resets.subscribe();
    let mut weather = shared.weather.subscribe();
    let at_first = *weather.borrow_and_update();
    let (from_client, mut to_client) = client.into_split();
    let mut upward = Frames::new(from_client);
    match at_first {
        Weather::Clear => {}
        Weather::Silent => {
            drop(weather.wait_for(|now| *now != Weather::Silent).await);
            return reset(&to_client);
        }
        Weather::Refusing => return reset(&to_client),
        Weather::Full(code) => {
            // a server reads who it is before it says no
            drop(upward.untyped().await);
            drop(to_client.write_all(&fatal(code)).await);
            drop(to_client.shutdown().await);
            return;
        }
    }
    let Some(server) = shared.target.connect().await else { return reset(&to_client) };
    let (from_server, to_server) = tokio::io::split(server);
    let link = Link::default();
    let ended = tokio::select! {
        ended = upwards(&mut upward, to_server, shared, &link) => ended,
        ended = downwards(Frames::new(from_server), &mut to_client, shared, &link) => ended,
        _ = resets.changed() => Ended::Cut,
        _ = weather.wait_for(|now| *now == Weather::Refusing) => Ended::Cut,
    };
    match ended {
        Ended::Closed => drop(to_client.shutdown().await),
        Ended::Cut => reset(&to_client),
    }
}

/// As when the peer's host has no such connection: at once, with nothing delivered any more.
fn reset(client: &OwnedWriteHalf) {
    drop(client.as_ref().set_zero_linger());
}

impl Target {
    async fn connect(&self) -> Option<Box<dyn Stream>> {
        match self {
            Target::Unix(path) => UnixStream::connect(path).await.ok().map(|s| Box::new(s) as Box<dyn Stream>),
            Target::Tcp(address) => TcpStream::connect(address).await.ok().map(|s| Box::new(s) as Box<dyn Stream>),
        }
    }
}

enum Ended {
    Closed,
    Cut,
}

/// What the two directions of one connection tell each other: for every answer that is due, whether it is to
/// be lost.
#[derive(Default)]
struct Link {
    due: Mutex<VecDeque<bool>>,
}

impl Link {
    fn due(&self) -> MutexGuard<'_, VecDeque<bool>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits out a silence that begins before this can be passed on. `false`: there was one.
async fn may_pass(shared: &Shared) -> bool {
    let mut weather = shared.weather.subscribe();
    let silent = *weather.borrow_and_update() == Weather::Silent;
    if silent {
        drop(weather.wait_for(|now| *now != Weather::Silent).await);
    }
    !silent
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Statement {
    Write {
        commit: bool,
    },
    Read,
    Greeting,
    /// The answer to it is awaited, and that is all.
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Transaction {
    None,
    Reading,
    Writing,
}

async fn upwards(
    client: &mut Frames<OwnedReadHalf>,
    mut server: WriteHalf<Box<dyn Stream>>,
    shared: &Shared,
    link: &Link,
) -> Ended {
    let Some(startup) = client.untyped().await else { return Ended::Closed };
    link.due().push_back(false);
    if server.write_all(&startup).await.is_err() {
        return Ended::Closed;
    }
    let mut transaction = Transaction::None;
    // a statement of the extended protocol: what came before its Sync, and whether it is executed
    let (mut parts, mut executed) = (Vec::new(), false);
    // what follows on a connection that is about to end was sent before anybody knew: it counts for nothing
    let mut doomed = false;
    while let Some(frame) = client.next().await {
        let statement = match frame.first() {
            Some(b'P' | b'B' | b'D' | b'C' | b'H') => None,
            Some(b'E') => {
                executed = true;
                None
            }
            Some(b'Q') => Some(of_query(&frame, &mut transaction)),
            Some(b'S') => Some(match (executed, transaction) {
                (false, _) => Statement::Other,
                (true, Transaction::Writing) => Statement::Write { commit: false },
                (true, Transaction::Reading | Transaction::None) => Statement::Read,
            }),
            // a password, the end
            _ => {
                if !may_pass(shared).await || server.write_all(&frame).await.is_err() {
                    return Ended::Cut;
                }
                continue;
            }
        };
        parts.extend_from_slice(&frame);
        let Some(statement) = statement else { continue };
        executed = false;
        let mut whole = std::mem::take(&mut parts);
        let act = if doomed { None } else { shared.judge(&statement) };
        doomed |= matches!(act, Some(Act::LoseAnswer | Act::Terminate));
        match act {
            Some(Act::CutBefore) => return Ended::Cut,
            Some(Act::Raise(code)) => whole = query(&raise(code)),
            Some(Act::Terminate) => whole = query("SELECT pg_terminate_backend(pg_backend_pid())"),
            Some(Act::LoseAnswer | Act::FallSilent) | None => {}
        }
        link.due().push_back(act == Some(Act::LoseAnswer));
        if !may_pass(shared).await || server.write_all(&whole).await.is_err() {
            return Ended::Cut;
        }
    }
    Ended::Closed
}

fn of_query(frame: &[u8], transaction: &mut Transaction) -> Statement {
    let text = String::from_utf8_lossy(frame.get(5..).unwrap_or_default());
    let text = text.trim_end_matches('\0');
    if text.starts_with("BEGIN READ WRITE") {
        *transaction = Transaction::Writing;
    } else if text.starts_with("BEGIN") {
        *transaction = Transaction::Reading;
    }
    let (commit, over) = (text.ends_with("COMMIT"), *transaction);
    if commit || text == "ROLLBACK" {
        *transaction = Transaction::None;
    }
    match over {
        // to clean up after a failure is not part of what was being done
        Transaction::Writing | Transaction::None if text == "ROLLBACK" => Statement::Other,
        Transaction::Writing => Statement::Write { commit },
        Transaction::Reading => Statement::Read,
        Transaction::None => Statement::Greeting,
    }
}

async fn downwards(
    mut server: Frames<ReadHalf<Box<dyn Stream>>>,
    client: &mut OwnedWriteHalf,
    shared: &Shared,
    link: &Link,
) -> Ended {
    while let Some(frame) = server.next().await {
        let answered = frame.first() == Some(&b'Z');
        let lost = link.due().front().copied().unwrap_or(false);
        if lost && answered {
            return Ended::Cut;
        }
        if !lost && (!may_pass(shared).await || client.write_all(&frame).await.is_err()) {
            return Ended::Cut;
        }
        if answered {
            link.due().pop_front();
        }
    }
    Ended::Closed
}

/// Messages, whole, as they come from one side.
struct Frames<R> {
    from: R,
}

/// Above anything the store sends in one piece.
const FRAME_MAX: usize = 64 << 20;

impl<R: AsyncRead + Unpin> Frames<R> {
    fn new(from: R) -> Self {
        Self { from }
    }

    /// The first message of a connection has no type.
    async fn untyped(&mut self) -> Option<Vec<u8>> {
        self.rest(Vec::new()).await
    }

    async fn next(&mut self) -> Option<Vec<u8>> {
        let kind = self.from.read_u8().await.ok()?;
        self.rest(vec![kind]).await
    }

    async fn rest(&mut self, mut frame: Vec<u8>) -> Option<Vec<u8>> {
        let length = self.from.read_u32().await.ok()?;
        frame.extend_from_slice(&length.to_be_bytes());
        let body = usize::try_from(length).ok()?.checked_sub(4).filter(|n| *n <= FRAME_MAX)?;
        let head = frame.len();
        frame.resize(head + body, 0);
        self.from.read_exact(frame.get_mut(head..)?).await.ok()?;
        Some(frame)
    }
}

fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).expect("small");
    let mut frame = vec![kind];
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(body);
    frame
}

fn query(sql: &str) -> Vec<u8> {
    framed(b'Q', format!("{sql}\0").as_bytes())
}

/// So that the server itself fails, and its transaction with it.
fn raise(code: &str) -> String {
    format!("DO $$ BEGIN RAISE EXCEPTION 'made to fail' USING ERRCODE = '{code}'; END $$")
}

/// What a server says to a connection that it does not take.
fn fatal(code: &str) -> Vec<u8> {
    framed(b'E', format!("SFATAL\0VFATAL\0C{code}\0Mmade to refuse\0\0").as_bytes())
}
