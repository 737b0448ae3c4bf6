//! One connection from its first word to its last: hello, welcome, confirm; then heartbeats, tasks and a fresh certificate
//! in time.

use super::dial::{self, Client};
use super::renewal::{self, Schedule};
use super::survey::Survey;
use super::{CLONED, is_final, reason, told};
use crate::clock::{from_wire, jitter, to_wire};
use crate::identity::{Held, Identity};
use crate::runner::{Command, Handle, Link};
use crate::setting::Setting;
use futures::future::{BoxFuture, OptionFuture};
use proto::agent::v1::from_agent::Message;
use proto::agent::v1::to_agent::Message as Word;
use proto::agent::v1::{Confirm, FromAgent, GoAway, Heartbeat, Hello, ToAgent, Welcome};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

/// For the server to answer, and to take what it is sent.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Messages on their way; what is more waits where it is bounded, too.
const CONTROL_MAX: usize = 64;
const BULK_MAX: usize = 4;
const HEARTBEAT_DEFAULT: u32 = 15;
const HEARTBEAT_MAX: u32 = 3600;
const LEASE_DEFAULT: u32 = 60;

/// Why a connection is over.
#[derive(Debug)]
pub enum Ended {
    /// It never got as far as the welcome.
    Failed(String),
    /// It did, and is over.
    Lost(String),
    /// `halt`: its tasks must end, too.
    SentAway {
        message: String,
        after: Duration,
        halt: bool,
    },
    /// The certificate was not taken, and there is a fresh one to come back with.
    Renewed,
    /// It was renewed in time: a connection does not outlive the certificate that it was made with.
    Refreshed,
    Banished {
        reason: String,
        message: String,
    },
}

pub struct Session {
    setting: Setting,
    identity: Identity,
    runner: Handle,
    survey: Survey,
}

/// The stream, both ways.
struct Stream {
    client: Client,
    words: Streaming<ToAgent>,
    control: mpsc::Sender<FromAgent>,
    bulk: mpsc::Sender<FromAgent>,
}

/// Whether the server hears: every heartbeat asks to be answered, and one that answers and then no longer does is gone,
/// whatever the network says.
#[derive(Default)]
struct Echo {
    asked: u64,
    answered: u64,
    since: Option<Instant>,
}

impl Echo {
    fn ask(&mut self) -> u64 {
        self.asked += 1;
        self.since.get_or_insert_with(Instant::now);
        self.asked
    }

    fn hear(&mut self, echo: u64) {
        self.answered = self.answered.max(echo.min(self.asked));
        if self.answered == self.asked {
            self.since = None;
        }
    }

    fn is_lost(&self, patience: Duration) -> bool {
        self.answered > 0 && self.since.is_some_and(|since| since.elapsed() > patience)
    }
}

type Renewing = BoxFuture<'static, Result<Held, Status>>;

impl Session {
    pub fn new(setting: Setting, identity: Identity, runner: Handle, survey: Survey) -> Self {
        Self { setting, identity, runner, survey }
    }

    /// Connects, and stays as long as it can. What was `renewed` just now is used, whatever a clock says of it.
    pub async fn once(&mut self, renewed: bool) -> Ended {
        let client = match self.dial().await {
            Ok(client) => client,
            Err(why) => return Ended::Failed(why),
        };
        if !renewed && renewal::is_over(&self.identity.certificate, &self.setting.clock) {
            tracing::info!(until = %self.identity.certificate.not_after, "the certificate has ended: asking for a fresh one");
            return self.renew_now(client).await;
        }
        let mut stream = match self.open(client.clone()).await {
            Ok(stream) => stream,
            Err(status) => return self.refused(status, client).await,
        };
        let welcome = match self.welcome(&mut stream).await {
            Ok(welcome) => welcome,
            Err(ended) => return ended,
        };
        let broken = CancellationToken::new();
        let lease = if welcome.task_lease_seconds == 0 { LEASE_DEFAULT } else { welcome.task_lease_seconds };
        let link = Link {
            control: stream.control.clone(),
            bulk: stream.bulk.clone(),
            lease: Duration::from_secs(lease.into()),
            broken: broken.clone(),
        };
        self.runner.tell(Command::Attach(link)).await;
        self.converse(stream, &welcome, broken).await
    }

    async fn dial(&self) -> Result<Client, String> {
        let identity = &self.identity;
        let trusted = &identity.certificate.authorities_pem;
        let tls = dial::tls(trusted, "the server's authorities", Some(identity), &self.setting.clock)?;
        dial::connect(&self.setting.dial, &identity.server, tls).await.map_err(|e| e.to_string())
    }

    async fn open(&mut self, mut client: Client) -> Result<Stream, Status> {
        let (control, mut controls) = mpsc::channel(CONTROL_MAX);
        let (bulk, mut bulks) = mpsc::channel(BULK_MAX);
        let here = self.runner.here.borrow().clone();
        let hello = Hello {
            epoch: self.identity.epoch,
            session: self.identity.session,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            facts: Some(self.survey.facts().await),
            clock: Some(to_wire(self.setting.clock.wall())),
            running: here.running.into_iter().chain(here.ended).collect(),
        };
        let mut hello = Some(FromAgent { message: Some(Message::Hello(hello)) });
        // heartbeats overtake output, and the stream ends when both are let go
        let words = futures::stream::poll_fn(move |context| {
            if let Some(hello) = hello.take() {
                return Poll::Ready(Some(hello));
            }
            let first = controls.poll_recv(context);
            if let Poll::Ready(Some(_)) = first {
                return first;
            }
            match bulks.poll_recv(context) {
                Poll::Ready(None) => first,
                second => second,
            }
        });
        let answer = timeout(ANSWER_WITHIN, client.connect(words)).await;
        let answer = answer.map_err(|_| Status::unavailable(format!("no answer within {ANSWER_WITHIN:?}")))??;
        Ok(Stream { client, words: answer.into_inner(), control, bulk })
    }

    /// A connection that was not taken: perhaps a fresh certificate is all that is missing.
    async fn refused(&mut self, status: Status, client: Client) -> Ended {
        let reason = reason(&status);
        if is_final(&reason) {
            return Ended::Banished { reason, message: status.message().to_owned() };
        }
        if status.code() == Code::Unauthenticated {
            tracing::warn!("the server does not take the certificate ({}): asking for a fresh one", told(&status));
            return self.renew_now(client).await;
        }
        let why = told(&status);
        // a certificate that is beyond renewal is refused before anything can be said
        let alerts = ["CertificateExpired", "CertificateRevoked", "CertificateUnknown", "BadCertificate", "UnknownCA"];
        if alerts.iter().any(|alert| why.contains(alert)) {
            let node = &self.identity.node_id;
            return Ended::Failed(format!(
                "{why}; ask for a new bundle (millwright node rebootstrap {node}) and enrol again"
            ));
        }
        Ended::Failed(why)
    }

    async fn renew_now(&mut self, client: Client) -> Ended {
        let renewed = renewal::ask(client, self.identity.clone(), self.setting.clock.clone()).await;
        match renewed {
            Ok(held) => match self.take(held) {
                Ok(()) => Ended::Renewed,
                Err(why) => Ended::Failed(why),
            },
            Err(status) if is_final(&reason(&status)) => {
                Ended::Banished { reason: reason(&status), message: status.message().to_owned() }
            }
            Err(status) => Ended::Failed(format!(
                "the certificate is not renewed: {}; if this stays so, ask for a new bundle (millwright node rebootstrap {}) \
                 and enrol again",
                told(&status),
                self.identity.node_id
            )),
        }
    }

    fn take(&mut self, held: Held) -> Result<(), String> {
        let renewed = Identity { certificate: held, ..self.identity.clone() };
        renewed.save(&self.setting.folder)?;
        tracing::info!(until = %renewed.certificate.not_after, "a fresh certificate is in use");
        self.identity = renewed;
        Ok(())
    }

    /// The server's first word: written down, then confirmed.
    async fn welcome(&mut self, stream: &mut Stream) -> Result<Welcome, Ended> {
        let first = match timeout(ANSWER_WITHIN, stream.words.message()).await {
            Err(_) => return Err(Ended::Failed(format!("no welcome within {ANSWER_WITHIN:?}"))),
            Ok(Err(status)) => return Err(self.refused(status, stream.client.clone()).await),
            Ok(Ok(word)) => word.and_then(|word| word.message),
        };
        let welcome = match first {
            Some(Word::Welcome(welcome)) => welcome,
            Some(Word::GoAway(away)) => return Err(sent_away(away)),
            Some(_) => return Err(Ended::Failed("the server's first word is not a welcome".to_owned())),
            None => return Err(Ended::Failed("the server ended the connection without a word".to_owned())),
        };
        if welcome.epoch < self.identity.epoch {
            return Err(Ended::Failed(format!(
                "the server is of epoch {}, and this agent has seen {}: it is an old copy, or was restored without `millwright \
                 restore`, which raises the epoch; nothing is taken from it",
                welcome.epoch, self.identity.epoch
            )));
        }
        if let Some(clock) = &welcome.clock {
            self.setting.clock.hear(from_wire(clock));
            self.identity.server_clock = self.identity.server_clock.max(from_wire(clock));
        }
        if welcome.epoch > self.identity.epoch {
            tracing::info!(from = self.identity.epoch, to = welcome.epoch, "the server begins a new epoch");
        }
        (self.identity.epoch, self.identity.session) = (welcome.epoch, welcome.session);
        self.identity.save(&self.setting.folder).map_err(Ended::Failed)?;
        let confirm = Message::Confirm(Confirm { session: welcome.session });
        send(&stream.control, confirm).await.map_err(Ended::Lost)?;
        tracing::info!(server = %self.identity.server, node = %self.identity.node_id, "connected");
        Ok(welcome)
    }

    async fn converse(&mut self, mut stream: Stream, welcome: &Welcome, broken: CancellationToken) -> Ended {
        let seconds = match welcome.heartbeat_seconds {
            0 => HEARTBEAT_DEFAULT,
            some => some.min(HEARTBEAT_MAX),
        };
        let every = Duration::from_secs(seconds.into());
        if welcome.inventory_wanted {
            self.survey.want();
        }
        let mut beat_at = Instant::now();
        let mut echo = Echo::default();
        let mut schedule = Schedule::new(&self.identity.certificate, &self.setting.clock);
        let mut renewing: OptionFuture<Renewing> = None.into();
        let mut is_renewing = false;
        loop {
            tokio::select! {
                word = stream.words.message() => match word {
                    Ok(Some(ToAgent { message: Some(Word::HeartbeatSeen(seen)) })) => echo.hear(seen.echo),
                    Ok(Some(ToAgent { message: Some(word) })) => {
                        if let Some(ended) = self.hear(word, &mut beat_at).await {
                            return ended;
                        }
                    }
                    // from a newer server
                    Ok(Some(ToAgent { message: None })) => {}
                    Ok(None) => return Ended::Lost("the server ended the connection".to_owned()),
                    Err(status) if is_final(&reason(&status)) => {
                        return Ended::Banished { reason: reason(&status), message: status.message().to_owned() };
                    }
                    Err(status) => return Ended::Lost(told(&status)),
                },
                // what a look has found is told at once
                () = self.survey.looked() => beat_at = Instant::now(),
                () = tokio::time::sleep_until(beat_at) => {
                    if echo.is_lost(every * 2) {
                        return Ended::Lost("the server does not answer heartbeats any more".to_owned());
                    }
                    let beat = Heartbeat { echo: echo.ask(), ..self.heartbeat() };
                    if let Err(why) = send(&stream.control, Message::Heartbeat(beat)).await {
                        return Ended::Lost(why);
                    }
                    // a tenth around the interval, so that nobody keeps step
                    beat_at = Instant::now() + every.mul_f64(0.9) + jitter(every / 5);
                }
                () = tokio::time::sleep_until(schedule.at), if !is_renewing => {
                    let (client, identity) = (stream.client.clone(), self.identity.clone());
                    let renewal: Renewing = Box::pin(renewal::ask(client, identity, self.setting.clock.clone()));
                    renewing = Some(renewal).into();
                    is_renewing = true;
                }
                Some(renewed) = &mut renewing, if is_renewing => {
                    is_renewing = false;
                    renewing = None.into();
                    if let Some(ended) = self.renewed(renewed, &mut schedule) {
                        return ended;
                    }
                }
                () = broken.cancelled() => return Ended::Lost("the server does not read what it is sent".to_owned()),
            }
        }
    }

    fn renewed(&mut self, renewed: Result<Held, Status>, schedule: &mut Schedule) -> Option<Ended> {
        let why = match renewed {
            Ok(held) => match self.take(held) {
                Ok(()) => return Some(Ended::Refreshed),
                Err(why) => why,
            },
            Err(status) if is_final(&reason(&status)) => {
                return Some(Ended::Banished { reason: reason(&status), message: status.message().to_owned() });
            }
            Err(status) => told(&status),
        };
        schedule.failed();
        tracing::warn!(until = %self.identity.certificate.not_after, "the certificate is not renewed yet: {why}");
        None
    }

    async fn hear(&mut self, word: Word, beat_at: &mut Instant) -> Option<Ended> {
        let command = match word {
            Word::Task(task) => Command::Task(Box::new(task)),
            Word::Cancel(cancel) => Command::Cancel(cancel),
            Word::ResultStored(stored) => Command::ResultStored(stored),
            Word::OutputStored(stored) => Command::OutputStored(stored),
            Word::InventoryWanted(_) => {
                self.survey.want();
                // soon, and at most once a second however often it is asked for
                *beat_at = (*beat_at).min(Instant::now() + Duration::from_secs(1));
                return None;
            }
            Word::GoAway(away) => return Some(sent_away(away)),
            // counted where heartbeats are
            Word::HeartbeatSeen(_) => return None,
            Word::Welcome(_) => return Some(Ended::Lost("the server said its welcome twice".to_owned())),
        };
        self.runner.tell(command).await;
        None
    }

    fn heartbeat(&mut self) -> Heartbeat {
        let news = self.survey.news();
        let running_tasks = self.runner.here.borrow().running.iter().map(|task| task.task_id.clone()).collect();
        Heartbeat {
            clock: Some(to_wire(self.setting.clock.wall())),
            inventory_digest: news.digest,
            inventory: news.inventory,
            health: news.health,
            running_tasks,
            echo: 0,
        }
    }
}

async fn send(control: &mpsc::Sender<FromAgent>, message: Message) -> Result<(), String> {
    match timeout(ANSWER_WITHIN, control.send(FromAgent { message: Some(message) })).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err("the connection has ended".to_owned()),
        Err(_) => Err(format!("the server has taken nothing for {ANSWER_WITHIN:?}")),
    }
}

fn sent_away(away: GoAway) -> Ended {
    let retries = matches!(away.reason.as_str(), "RETRY" | "SHUTTING_DOWN");
    if away.retry_after_seconds == 0 && !retries {
        return Ended::Banished { reason: away.reason, message: away.message };
    }
    let halt = away.reason == CLONED || is_final(&away.reason);
    let message = if away.message.is_empty() { away.reason } else { format!("{} ({})", away.message, away.reason) };
    Ended::SentAway { message, after: Duration::from_secs(away.retry_after_seconds.into()), halt }
}
