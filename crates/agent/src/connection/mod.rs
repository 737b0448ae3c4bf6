//! Keeps the agent connected to its server: again and again, patiently, until it is told to stop or told that it is no
//! longer wanted.

mod backoff;
pub mod dial;
mod renewal;
mod session;
mod survey;
pub mod trust;

use crate::identity::Identity;
use crate::journal::Journal;
use crate::runner::{self, Uninstall};
use crate::setting::Setting;
use backoff::Backoff;
use session::{Ended, Session};
use std::time::Duration;
use survey::Survey;
use tokio_util::sync::CancellationToken;
use tonic_types::StatusExt as _;

/// Why the agent does not go on.
#[derive(Clone, Debug, PartialEq)]
pub enum Departure {
    /// Told to stop; it comes back.
    Stopped,
    /// Its uninstallation is stored on the server: nothing is left but to remove itself.
    Uninstalled,
    /// The server does not want this identity any more.
    Banished { reason: String, message: String },
}

/// Reasons that no waiting mends.
const FINAL: [&str; 2] = ["REVOKED", "DELETED"];
/// Its identity was seen twice: nothing is done under it, and it asks again until somebody has said who goes on.
const CLONED: &str = "CLONED";

/// Runs until one of the departures. Tasks have ended when it returns.
pub async fn run(setting: Setting, identity: Identity, stop: CancellationToken) -> Result<Departure, String> {
    setting.clock.remember(identity.server_clock);
    let journal = Journal::open(setting.folder.path(), &identity.node_id)?;
    let runner = runner::start(setting.clone(), identity.key.clone(), journal);
    let departure = tokio::select! {
        departure = keep(&setting, identity, &runner) => departure,
        () = runner.departed.cancelled() => Departure::Uninstalled,
        () = stop.cancelled() => Departure::Stopped,
    };
    runner.stop().await;
    Ok(match departure {
        Departure::Banished { reason, .. } if is_farewell(&reason, runner.here.borrow().uninstall) => {
            tracing::info!(%reason, "the server has let go of a node whose agent it had uninstalled");
            Departure::Uninstalled
        }
        other => other,
    })
}

/// Whether being unwanted is the answer to an uninstallation: that its result was stored may never have been heard, and
/// the server knows nobody of this name any more who could ask. A removal that was withdrawn is no reason to go, unless
/// the node is gone for good.
fn is_farewell(reason: &str, uninstall: Uninstall) -> bool {
    match reason {
        "DELETED" => uninstall != Uninstall::None,
        "REVOKED" => uninstall == Uninstall::Done,
        _ => false,
    }
}

async fn keep(setting: &Setting, identity: Identity, runner: &runner::Handle) -> Departure {
    let mut backoff = Backoff::default();
    let survey = Survey::new(setting.host.clone(), setting.folder.path().to_owned());
    let mut session = Session::new(setting.clone(), identity, runner.clone(), survey);
    // a certificate that is refused, or seems to have ended, is renewed at once, but not over and over
    let mut renewed = false;
    loop {
        let ended = session.once(renewed).await;
        runner.tell(runner::Command::Detach).await;
        let wait = match ended {
            Ended::Banished { reason, message } => return Departure::Banished { reason, message },
            Ended::Lost(why) => {
                renewed = false;
                let wait = backoff.lost();
                tracing::warn!(wait = ?rounded(wait), "the connection is lost: {why}");
                wait
            }
            Ended::SentAway { message, after, halt } => {
                renewed = false;
                if halt {
                    tracing::error!(
                        "the server has stopped this agent: {message}; its tasks end, and it asks again later"
                    );
                    runner.tell(runner::Command::EndAll(message.clone())).await;
                }
                let wait = if after.is_zero() { backoff.lost() } else { backoff.told(after) };
                tracing::info!(wait = ?rounded(wait), "the server sends the agent away for a while: {message}");
                wait
            }
            Ended::Refreshed => {
                renewed = false;
                continue;
            }
            Ended::Renewed if !renewed => {
                renewed = true;
                continue;
            }
            Ended::Renewed => {
                let wait = backoff.failed();
                tracing::error!(
                    wait = ?rounded(wait),
                    "the server refuses the certificate that it has just given out; its log says why"
                );
                wait
            }
            Ended::Failed(why) => {
                let wait = backoff.failed();
                tracing::warn!(wait = ?rounded(wait), "no connection: {why}");
                wait
            }
        };
        tokio::time::sleep(wait).await;
    }
}

fn rounded(wait: Duration) -> Duration {
    Duration::from_millis(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX))
}

/// The stable reason of a refusal, where the server gives one.
fn reason(status: &tonic::Status) -> String {
    status.get_details_error_info().map(|info| info.reason).unwrap_or_default()
}

/// Whether a reason ends this identity.
fn is_final(reason: &str) -> bool {
    FINAL.contains(&reason)
}

/// A refusal in one line.
fn told(status: &tonic::Status) -> String {
    let (code, message) = (status.code(), status.message());
    let reason = reason(status);
    let cause = std::error::Error::source(status).map(dial::chain).filter(|cause| !message.contains(cause.as_str()));
    let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
    if reason.is_empty() { format!("{message} ({code:?}){cause}") } else { format!("{message} ({reason}){cause}") }
}
