//! Runs a command on the host. Started in its background, then followed: what it prints goes to the
//! run's log in order, up to a cap, with a marker where it was cut.

use super::stage::{At, Stage, acted, missing, settled};
use async_trait::async_trait;
use domain::limits::STEP_LOG_MAX_BYTES;
use domain::stage::FailureClass;
use engine::{Aborted, Acted, Failure, Look, Seen};
use provider::{Chunk, Command, ExecState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) struct Ssh {
    command: Command,
}

impl Ssh {
    pub fn new(command: String, args: Vec<String>, environment: BTreeMap<String, String>) -> Self {
        Self { command: Command { command, args, environment } }
    }
}

/// How far the output has been stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Progress {
    attempt: u32,
    offset: u64,
    /// Of the step, over all attempts.
    stored: usize,
    cut: bool,
}

#[async_trait]
impl Stage for Ssh {
    async fn look(&self, at: &At<'_>) -> Look {
        let Some(exec) = at.access.provider.exec() else { return Seen::Failed(missing("exec")).into() };
        let mut progress: Progress = serde_json::from_value(at.cx.facts.clone()).unwrap_or_default();
        if progress.attempt != at.cx.attempt {
            progress = Progress { attempt: at.cx.attempt, offset: 0, ..progress };
        }
        let news = match exec.poll(at.target(), &at.op, progress.offset).await {
            Ok(news) => news,
            Err(e) => return at.unseen(e).into(),
        };
        let seen = match news.state {
            ExecState::NeverStarted => return Seen::Clear.into(),
            ExecState::Running => {
                let on = "the command to end".to_owned();
                // more output may be waiting already
                let look_again = if news.output.is_empty() { at.cx.look_again() } else { Duration::from_millis(1) };
                Seen::Waiting { on, look_again }
            }
            ExecState::Exited(0) => Seen::Done("exit status 0".to_owned()),
            ExecState::Exited(status) => Seen::Failed(Failure::new(
                "COMMAND_FAILED",
                FailureClass::Transient,
                format!("exit status {status}; see the step's log"),
            )),
        };
        let output = progress.take(news.output);
        progress.offset = news.offset;
        // past the cap nothing is kept, but how far it was read is
        Look { seen, facts: (!output.is_empty() || progress.cut).then(|| serde_json::json!(progress)), output }
    }

    async fn act(&self, at: &At<'_>) -> Acted {
        match at.access.provider.exec() {
            Some(exec) => acted(exec.start(at.target(), &self.command, &at.op).await),
            None => Acted::No(missing("exec")),
        }
    }

    async fn abort(&self, at: &At<'_>) -> Result<Aborted, Failure> {
        let exec = at.access.provider.exec().ok_or_else(|| missing("exec"))?;
        settled(exec.kill(at.target(), &at.op).await).map(|()| Aborted::Stopped)
    }
}

impl Progress {
    /// What of the news is to be stored: up to the cap, then the marker, then nothing.
    fn take(&mut self, news: Vec<Chunk>) -> Vec<(&'static str, Vec<u8>)> {
        let mut output = Vec::new();
        for chunk in news {
            if self.cut {
                break;
            }
            let room = STEP_LOG_MAX_BYTES - self.stored.min(STEP_LOG_MAX_BYTES);
            let mut data = chunk.data;
            self.cut = data.len() > room;
            data.truncate(room);
            self.stored += data.len();
            if !data.is_empty() {
                output.push((chunk.stream.as_str(), data));
            }
            if self.cut {
                let marker =
                    format!("\n[millwright: the output of this step is cut here, after {STEP_LOG_MAX_BYTES} bytes]\n");
                output.push(("stderr", marker.into_bytes()));
            }
        }
        output
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use provider::Stream;

    #[test]
    fn output_is_cut_once_with_a_marker() {
        let chunk = |n: usize| Chunk { stream: Stream::Stdout, data: vec![b'x'; n] };
        let mut progress = Progress::default();
        let first = progress.take(vec![chunk(STEP_LOG_MAX_BYTES - 1), chunk(5), chunk(5)]);
        let sizes: Vec<usize> = first.iter().map(|c| c.1.len()).collect();
        assert_eq!(&sizes[..2], [STEP_LOG_MAX_BYTES - 1, 1]);
        assert_eq!((first.len(), first[2].0), (3, "stderr"));
        assert!(progress.take(vec![chunk(5)]).is_empty(), "nothing more after the marker");
    }
}
