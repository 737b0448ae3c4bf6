//! An agent's stream: its words are taken one after the other, and what there is for it is sent as soon as it is there.
//! It ends when the agent leaves, floods, falls silent or does not read, when its identity is good no longer, and when
//! the server stops; and it says why.

use super::allowance::Allowance;
use super::convert;
use super::grpc::{Incomings, Unread};
use super::handler::PLAIN_MAX;
use super::line::Line;
use domain::limits::REQUEST_ID_MAX;
use domain::task::LEASE;
use domain::{Error, Reason, TaskId};
use proto::agent::v1 as pb;
use proto::agent::v1::from_agent::Message as Heard;
use proto::agent::v1::to_agent::Message as Word;
use service::Service;
use service::agents::{AgentPeer, AgentSession, Farewell, ForAgent, Hello, Kept};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// For the first word, and for the confirmation after the welcome.
const WORD_WITHIN: Duration = Duration::from_secs(10);
const MESSAGES_PER_SECOND: u32 = 50;
const MESSAGES_AT_ONCE: u32 = 500;
/// Of what tasks print; faster than that it is not read.
const OUTPUT_PER_SECOND: u32 = 2 * 1024 * 1024;
const OUTPUT_AT_ONCE: u32 = 4 * 1024 * 1024;
/// Tasks that one word may name.
const RUNNING_MAX: usize = 64;
const FLOOD_RETRY_SECONDS: u32 = 60;
const TROUBLE_RETRY_SECONDS: u32 = 5;

type Out = mpsc::Sender<Box<pb::ToAgent>>;

/// How a stream ends: with a word, or without.
enum End {
    Farewell(Farewell),
    Silent,
}

impl From<Farewell> for End {
    fn from(farewell: Farewell) -> Self {
        End::Farewell(farewell)
    }
}

/// What could not be decided: the agent keeps what it has, and comes again.
fn trouble(e: &Error) -> End {
    tracing::warn!(error = %e, "an agent's word could not be taken");
    Farewell::retry("the server could not take this; come again", TROUBLE_RETRY_SECONDS).into()
}

fn unexpected(what: &str) -> End {
    Farewell::retry(what, FLOOD_RETRY_SECONDS).into()
}

pub(super) async fn run(service: Service, line: Arc<Line>, peer: AgentPeer, words: Incomings, out: Out) {
    let node = peer.node_id.clone();
    let mut stream = Stream { service, words, out, end: line.end.clone() };
    let end = stream.begin(&peer).await;
    if let End::Farewell(farewell) = end {
        tracing::debug!(%node, reason = farewell.reason, "an agent's stream ends: {}", farewell.message);
        let Farewell { reason, message, retry_after_seconds } = farewell;
        let away = pb::GoAway { reason: reason.to_owned(), message, retry_after_seconds };
        // one that does not read is cut off without it
        drop(stream.out.try_send(Box::new(pb::ToAgent { message: Some(Word::GoAway(away)) })));
    }
    drop(stream);
    line.end.cancel();
}

struct Stream {
    service: Service,
    words: Incomings,
    out: Out,
    /// The connection has ended.
    end: tokio_util::sync::CancellationToken,
}

impl Stream {
    fn say(&self, word: Word) -> Result<(), End> {
        // full: it does not read
        self.out.try_send(Box::new(pb::ToAgent { message: Some(word) })).map_err(|_| End::Silent)
    }

    /// The next word, in time.
    async fn next(&mut self, within: Duration) -> Result<Heard, End> {
        match tokio::time::timeout(within, self.words.next()).await {
            Ok(Ok(Some(pb::FromAgent { message: Some(word) }))) => Ok(word),
            Ok(Ok(Some(pb::FromAgent { message: None }))) => Err(unexpected("an empty message")),
            Ok(Ok(None)) => Err(End::Silent),
            Ok(Err(why)) => Err(unreadable(why)),
            Err(_) => Err(Farewell::retry("nothing was heard in time", 1).into()),
        }
    }

    async fn begin(&mut self, peer: &AgentPeer) -> End {
        let ended = match Box::pin(self.welcome(peer)).await {
            Ok((mut session, hello)) => self.attend(&mut session, hello).await,
            Err(end) => Err(end),
        };
        ended.err().unwrap_or(End::Silent)
    }

    async fn welcome(&mut self, peer: &AgentPeer) -> Result<(AgentSession, Vec<pb::RunningTask>), End> {
        let Heard::Hello(hello) = self.next(WORD_WITHIN).await? else {
            return Err(unexpected("the first word must be a hello"));
        };
        let facts = hello.facts.unwrap_or_default();
        let said = Hello {
            epoch: hello.epoch,
            session: hello.session,
            agent_version: hello.agent_version,
            boot_id: facts.boot_id,
            clock: convert::time(hello.clock),
        };
        let greeted = self.service.greet_agent(peer, said).await.map_err(|e| trouble(&e))?;
        let session = greeted?;
        let setup = self.service.agent_setup();
        self.say(Word::Welcome(pb::Welcome {
            epoch: session.epoch,
            session: session.session,
            heartbeat_seconds: u32::try_from(setup.heartbeat.interval.as_secs()).unwrap_or(u32::MAX),
            task_lease_seconds: u32::try_from(LEASE.as_secs()).unwrap_or(u32::MAX),
            clock: Some(crate::convert::timestamp(self.service.now())),
            inventory_wanted: !session.inventory_known(),
        }))?;
        Ok((session, hello.running))
    }

    async fn confirmed(&mut self, session: &mut AgentSession, running: Vec<pb::RunningTask>) -> Result<(), End> {
        match self.next(WORD_WITHIN).await? {
            Heard::Confirm(confirm) if confirm.session == session.session => {}
            _ => return Err(unexpected("the welcome must be confirmed first")),
        }
        if !self.service.confirm_agent(session).await.map_err(|e| trouble(&e))? {
            return Err(Farewell::retry("a newer connection of this agent has begun", TROUBLE_RETRY_SECONDS).into());
        }
        self.look(session).await?;
        let running = running.into_iter().map(|task| (task.task_id, task.fence)).collect();
        self.at(session, running).await
    }

    async fn attend(&mut self, session: &mut AgentSession, running: Vec<pb::RunningTask>) -> Result<(), End> {
        let mut changed = self.service.store().signals().node(&session.node_id);
        Box::pin(self.confirmed(session, running)).await?;
        let mut allowances = Allowances::new();
        let silence = self.service.agent_setup().heartbeat.lost_after;
        let mut heard = Instant::now();
        let closing = self.service.clone();
        let end = self.end.clone();
        loop {
            tokio::select! {
                biased;
                () = closing.closes() => return Err(Farewell::shutting_down(&session.node_id).into()),
                () = end.cancelled() => return Err(End::Silent),
                () = changed.grew() => Box::pin(self.look(session)).await?,
                word = self.words.next() => {
                    let word = match word {
                        Ok(Some(pb::FromAgent { message: Some(word) })) => word,
                        // of a newer agent
                        Ok(Some(pb::FromAgent { message: None })) => continue,
                        Ok(None) => return Err(End::Silent),
                        Err(why) => return Err(unreadable(why)),
                    };
                    heard = Instant::now();
                    // what it takes to deal with a word is let go with it: most of the time there is none
                    Box::pin(self.hear(session, word, &mut allowances)).await?;
                }
                () = tokio::time::sleep_until(heard + silence) => {
                    return Err(Farewell::retry("nothing was heard for too long", 1).into());
                }
            }
        }
    }

    /// Whether it may stay, and what there is for it.
    async fn look(&self, session: &mut AgentSession) -> Result<(), End> {
        match self.service.agent_must_go(session).await {
            Ok(Some(farewell)) => return Err(farewell.into()),
            Ok(None) => {}
            // nobody can say that it must not: the next heartbeat looks again
            Err(e) => tracing::warn!(error = %e, node = %session.node_id, "looking whether an agent may stay"),
        }
        match self.service.for_agent(session).await {
            Ok(told) => self.tell(told),
            Err(e) => {
                tracing::warn!(error = %e, node = %session.node_id, "looking for an agent's tasks");
                Ok(())
            }
        }
    }

    fn tell(&self, told: Vec<ForAgent>) -> Result<(), End> {
        for one in told {
            match one {
                ForAgent::Task(task) => match convert::task(&task, self.service.now()) {
                    Ok(task) => self.say(Word::Task(task))?,
                    Err(e) => tracing::error!(error = %e, task = %task.id, "an order does not read"),
                },
                ForAgent::Cancel { task, fence, reason } => {
                    let fence = Some(convert::fence_to_wire(fence));
                    self.say(Word::Cancel(pb::Cancel { task_id: task.into_text(), fence, reason }))?;
                }
            }
        }
        Ok(())
    }

    async fn hear(&self, session: &mut AgentSession, word: Heard, allowed: &mut Allowances) -> Result<(), End> {
        if allowed.messages.take(1).is_err() {
            return Err(self.flood(session).await);
        }
        match word {
            Heard::Heartbeat(beat) => self.beat(session, beat).await,
            Heard::Renewal(renewal) => self.at(session, vec![(renewal.task_id, renewal.fence)]).await,
            Heard::Output(output) => self.output(session, output, allowed).await,
            Heard::Result(result) => self.result(session, result).await,
            Heard::Refusal(refusal) => {
                let kept = self.service.agent_refuses(session, convert::refusal(refusal)).await;
                kept.map_err(|e| trouble(&e))?.ok();
                self.next_task(session).await
            }
            Heard::Hello(_) | Heard::Confirm(_) => Err(unexpected("a hello or a confirmation comes once")),
        }
    }

    async fn flood(&self, session: &AgentSession) -> End {
        let message = format!("more than {MESSAGES_PER_SECOND} messages a second");
        let error = Error::new(Reason::RateLimited, message.clone());
        self.service.turned_away("flood", "AgentService/Connect", Some(&session.node_id), &error).await;
        Farewell::retry(message, FLOOD_RETRY_SECONDS).into()
    }

    async fn beat(&self, session: &mut AgentSession, beat: pb::Heartbeat) -> Result<(), End> {
        let running: Vec<_> = beat.running_tasks.iter().map(|id| (id.clone(), None)).collect();
        let digest = convert::digest(&beat.inventory_digest);
        let (has_inventory, echo) = (beat.inventory.is_some(), beat.echo);
        // what could not be written is told again, or asked for
        if let Err(e) = self.service.agent_beats(session, convert::heartbeat(beat, &digest)).await {
            tracing::warn!(error = %e, node = %session.node_id, "what an agent tells of itself");
        }
        if echo != 0 {
            self.say(Word::HeartbeatSeen(pb::HeartbeatSeen { echo }))?;
        }
        if !has_inventory && session.asks_for_inventory(&digest, self.service.now()) {
            self.say(Word::InventoryWanted(pb::InventoryWanted {}))?;
        }
        match self.service.outlived_its_certificate(session).await {
            Ok(true) => return Err(Farewell::retry("the certificate has ended; renew it", 1).into()),
            Ok(false) => {}
            Err(e) => tracing::warn!(error = %e, "looking until when a certificate is good"),
        }
        self.at(session, running).await?;
        self.next_task(session).await
    }

    /// Looks where there is an occasion to.
    async fn next_task(&self, session: &mut AgentSession) -> Result<(), End> {
        if session.looks_again() { self.look(session).await } else { Ok(()) }
    }

    async fn at(&self, session: &mut AgentSession, tasks: Vec<(String, Option<pb::Fence>)>) -> Result<(), End> {
        if tasks.is_empty() {
            return Ok(());
        }
        let known = tasks.into_iter().filter(|(id, _)| id.len() <= REQUEST_ID_MAX).take(RUNNING_MAX);
        let tasks: Vec<_> = known.map(|(id, fence)| (TaskId::from_text(id), fence.map(convert::fence))).collect();
        match self.service.agent_is_at(session, &tasks).await {
            Ok(told) => self.tell(told),
            Err(e) => {
                tracing::warn!(error = %e, node = %session.node_id, "renewing the lease of a task");
                Ok(())
            }
        }
    }

    async fn output(
        &self,
        session: &AgentSession,
        output: pb::TaskOutput,
        allowed: &mut Allowances,
    ) -> Result<(), End> {
        if output.data.len() > PLAIN_MAX || output.task_id.len() > REQUEST_ID_MAX {
            return Err(unexpected("a message is too large"));
        }
        // faster than that it is not read, and so the agent has to wait
        while let Err(wait) = allowed.output.take(u32::try_from(output.data.len()).unwrap_or(u32::MAX)) {
            tokio::time::sleep(wait.min(Duration::from_secs(1))).await;
        }
        let piece = convert::output(output);
        let task_id = piece.task.to_string();
        match self.service.agent_prints(session, piece).await.map_err(|e| trouble(&e))? {
            Some(offset) => self.say(Word::OutputStored(pb::OutputStored { task_id, offset })),
            // of a task that it is not at: nobody waits for it
            None => Ok(()),
        }
    }

    async fn result(&self, session: &mut AgentSession, result: pb::TaskResult) -> Result<(), End> {
        if result.task_id.len() > REQUEST_ID_MAX || result.message.len() > PLAIN_MAX {
            return Err(unexpected("a message is too large"));
        }
        let task_id = result.task_id.clone();
        let kept: Kept = self.service.agent_has_done(session, convert::said(result)).await.map_err(|e| trouble(&e))?;
        let (applied, reason) = (kept.is_ok(), kept.err().unwrap_or_default().to_owned());
        self.say(Word::ResultStored(pb::ResultStored { task_id, applied, reason }))?;
        self.next_task(session).await
    }
}

/// What one agent may send.
struct Allowances {
    messages: Allowance,
    output: Allowance,
}

impl Allowances {
    fn new() -> Self {
        Self {
            messages: Allowance::new(MESSAGES_PER_SECOND, MESSAGES_AT_ONCE),
            output: Allowance::new(OUTPUT_PER_SECOND, OUTPUT_AT_ONCE),
        }
    }
}

/// A word that does not read, or a connection that broke.
fn unreadable(why: Unread) -> End {
    match why {
        Unread::TooLarge => unexpected("a message is too large"),
        Unread::Malformed => unexpected("a message does not read"),
        Unread::Broken => End::Silent,
    }
}
