//! A host: what can be asked of it. Keeps one connection for a while, since those who ask once mostly ask again.

use crate::answer::{self, Answer, HostIdentity};
use crate::client::{self, Client, Heard, Lost};
use crate::peer::{Jump, Peer};
use crate::reach::{stopover, within};
use crate::script::{self, Script};
use domain::credential::SshLogin;
use domain::endpoint::HostPort;
use domain::secret::Secret;
use domain::stage::FailureClass;
use provider::{Ack, Command, ExecProgress, ProviderError, ProviderResult};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// Of what one answer holds: a page of output and its index fit well.
const ANSWER_MAX_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// To be connected and logged in; for a jump host, too.
    pub connect: Duration,
    /// Of one call, with the connecting. `kill` needs up to 11 seconds for processes that do not want to end.
    pub call: Duration,
    /// How long a connection that nobody uses is kept.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { connect: seconds(15), call: seconds(30), idle: seconds(30) }
    }
}

/// Cheap to make and to clone; clones share the connection.
#[derive(Clone)]
pub struct Host(Arc<Inner>);

struct Inner {
    peer: Peer,
    jump: Option<Peer>,
    timeouts: Timeouts,
    kept: tokio::sync::Mutex<Option<Arc<Kept>>>,
}

struct Kept {
    client: Client,
    broken: AtomicBool,
    used: Mutex<Instant>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Host").field(&self.0.peer.what).finish()
    }
}

impl Host {
    /// `host_key` is the pinned one, as OpenSSH writes it: `SHA256:…`.
    pub fn new(
        at: HostPort,
        login: SshLogin,
        credential_name: &str,
        host_key: String,
        jump: Option<Jump>,
        timeouts: Timeouts,
    ) -> Self {
        let peer = Peer::host(at, login, credential_name, host_key, jump.as_ref());
        Self(Arc::new(Inner { peer, jump: jump.as_ref().map(Peer::jump), timeouts, kept: Default::default() }))
    }

    /// Starts a command in the background of the host, recorded under the key. The same key is never started twice.
    /// A command that begins with `#!` is a script. The input is what the command reads, and then its end.
    pub async fn start(&self, command: &Command, key: &str, input: Option<&Secret>) -> ProviderResult<Ack> {
        let said = self.ask(&script::start(command, key, input)?).await?;
        match said.answer()?.head {
            "started" | "again" => Ok(Ack::Accepted),
            "cancelled" => Err(ProviderError::refused(
                FailureClass::Conflict,
                format!("{} was told to kill this command before it came to start it", self.0.peer.what),
            )),
            _ => Err(said.nonsense()),
        }
    }

    /// How a command goes, with what it printed past `offset`, in order: at most a page of it. An offset is one that
    /// a poll has told, or 0.
    pub async fn poll(&self, key: &str, offset: u64) -> ProviderResult<ExecProgress> {
        let said = self.ask(&script::poll(key, offset)?).await?;
        answer::progress(&said.answer()?, offset).ok_or_else(|| said.nonsense())
    }

    /// Ends everything in the command's session: asks, then kills, then looks that nothing is left. What has ended
    /// or was never started is done, and is not started later.
    pub async fn kill(&self, key: &str) -> ProviderResult<Ack> {
        let said = self.ask(&script::kill(key)?).await?;
        match said.answer()?.head {
            "killed" | "gone" | "never" => Ok(Ack::Done),
            _ => Err(said.nonsense()),
        }
    }

    /// Who it says it is, in one call.
    pub async fn identity(&self) -> ProviderResult<HostIdentity> {
        let said = self.ask(&script::identity()).await?;
        answer::identity(&said.answer()?).ok_or_else(|| said.nonsense())
    }

    /// Asks the system to reboot. Accepted: it was told to, and no more; that it did is seen by the boot id.
    pub async fn reboot(&self) -> ProviderResult<Ack> {
        let mut heard = Heard::default();
        let asked = self.call(&script::reboot(), &mut heard).await;
        let Some(Answer { head: "going", body }) = Answer::find(&heard.stdout) else {
            asked?;
            let said = Said { what: &self.0.peer.what, heard };
            return Err(said.answer().err().unwrap_or_else(|| said.nonsense()));
        };
        // the script says a second time only what went wrong
        match Answer::find(body).and_then(|second| second.refusal(&self.0.peer.what)) {
            Some(no) => Err(no),
            None => Ok(Ack::Accepted),
        }
    }

    async fn ask(&self, script: &Script) -> ProviderResult<Said<'_>> {
        let mut heard = Heard::default();
        self.call(script, &mut heard).await?;
        Ok(Said { what: &self.0.peer.what, heard })
    }

    /// One call under its deadline. What was sent and not answered is unknown, and what was not sent is not.
    async fn call(&self, script: &Script, heard: &mut Heard) -> ProviderResult<()> {
        let (what, deadline) = (&self.0.peer.what, self.0.timeouts.call);
        match tokio::time::timeout(deadline, self.call_twice(script, heard)).await {
            Ok(done) => done,
            Err(_) if heard.sent => {
                Err(ProviderError::unknown(format!("{what} did not answer within {} ms", deadline.as_millis())))
            }
            Err(_) => Err(ProviderError::unreachable(what, &format!("no answer within {} ms", deadline.as_millis()))),
        }
    }

    /// A connection that was kept may have died meanwhile. If it has, and nothing was sent, a new one is made.
    async fn call_twice(&self, script: &Script, heard: &mut Heard) -> ProviderResult<()> {
        let what = &self.0.peer.what;
        let (mut kept, fresh) = self.0.connected().await?;
        let mut use_ = Use::of(&kept);
        let opened = if fresh {
            kept.client.shell().await
        } else {
            let patience = self.0.timeouts.call / 3;
            let opened = tokio::time::timeout(patience, kept.client.shell()).await;
            match opened.unwrap_or_else(|_| Err(Lost("no answer".to_owned()))) {
                Ok(shell) => Ok(shell),
                Err(_) => {
                    drop(use_);
                    kept = self.0.connected().await?.0;
                    use_ = Use::of(&kept);
                    kept.client.shell().await
                }
            }
        };
        let shell = opened.map_err(|Lost(why)| ProviderError::unreachable(what, &why))?;
        match shell.run(script, ANSWER_MAX_BYTES, heard).await {
            Ok(()) => {
                use_.well();
                Ok(())
            }
            Err(Lost(why)) => Err(ProviderError::unknown(format!("{what}: {why}"))),
        }
    }
}

impl Inner {
    /// The connection that is kept, or a new one; and whether it is new.
    async fn connected(self: &Arc<Self>) -> ProviderResult<(Arc<Kept>, bool)> {
        let mut slot = self.kept.lock().await;
        if let Some(kept) = slot.as_ref().filter(|kept| kept.usable()) {
            return Ok((Arc::clone(kept), false));
        }
        *slot = None;
        let within_each = self.timeouts.connect;
        let via = match &self.jump {
            None => None,
            Some(jump) => Some(stopover(jump, within_each).await?),
        };
        let client = within(&self.peer.what, within_each, client::connect(&self.peer, via)).await?;
        tracing::debug!(host = %self.peer.what, "connected by SSH");
        let kept = Arc::new(Kept { client, broken: AtomicBool::new(false), used: Mutex::new(Instant::now()) });
        *slot = Some(Arc::clone(&kept));
        tokio::spawn(let_go(Arc::downgrade(self), Arc::downgrade(&kept), self.timeouts.idle));
        Ok((kept, true))
    }
}

/// Ends a connection that nobody has used for a while, or that is of no more use.
async fn let_go(host: Weak<Inner>, kept: Weak<Kept>, idle: Duration) {
    loop {
        tokio::time::sleep(idle.max(Duration::from_millis(10))).await;
        let Some(host) = host.upgrade() else { return };
        let mut slot = host.kept.lock().await;
        match slot.as_ref() {
            Some(current) if Weak::ptr_eq(&Arc::downgrade(current), &kept) => {
                // nobody takes it out of the slot meanwhile
                let in_use = Arc::strong_count(current) > 1;
                if !in_use && (!current.usable() || current.idle_for() >= idle) {
                    *slot = None;
                    return;
                }
            }
            _ => return,
        }
    }
}

impl Kept {
    fn usable(&self) -> bool {
        !self.broken.load(Ordering::Relaxed) && !self.client.is_closed()
    }

    fn idle_for(&self) -> Duration {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// A call under way. Given up in the middle, by a deadline or by whoever waited for it, it leaves a channel behind
/// that nobody reads: then nobody else shall use this connection, and it ends with its last call.
struct Use<'a>(&'a Kept, bool);

impl<'a> Use<'a> {
    fn of(kept: &'a Kept) -> Self {
        Self(kept, false)
    }

    fn well(mut self) {
        self.1 = true;
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.broken.store(true, Ordering::Relaxed);
        }
        *self.0.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// An answer that was heard to its end.
struct Said<'a> {
    what: &'a str,
    heard: Heard,
}

impl Said<'_> {
    fn answer(&self) -> ProviderResult<Answer<'_>> {
        answer::understood(self.what, &self.heard.stdout, &self.heard.stderr)
    }

    fn nonsense(&self) -> ProviderError {
        ProviderError::bad_answer(self.what, "the script's answer is not one that it gives")
    }
}
