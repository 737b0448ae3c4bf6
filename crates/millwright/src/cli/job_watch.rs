//! Following one job: a block with its stages that is redrawn in place on a terminal, a line for each change elsewhere.

use super::ClientOptions;
use super::connect::{Clients, Door, connect};
use super::exit::CliError;
use super::job_look::stage_lines;
use super::output::{Format, Screen, note, painted, streamed};
use super::progress::{Redrawn, TICK};
use super::text::{clean, now, precise, took};
use super::watch::{Heard, Resuming, Source};
use jiff::Timestamp;
use proto::millwright::v1::job_service_client::JobServiceClient;
use proto::millwright::v1::{GetJobRequest, Job};
use tonic::{Status, Streaming};

/// The changes of one job. What it is now comes first, however often it is asked.
struct Changes {
    client: JobServiceClient<Door>,
    id: String,
}

impl Source for Changes {
    type Item = Job;
    type Stream = Streaming<Job>;
    const RESTARTS: bool = true;

    async fn open(&mut self, _: Option<u64>) -> Result<Self::Stream, Status> {
        Ok(self.client.watch_job(GetJobRequest { id: self.id.clone() }).await?.into_inner())
    }

    fn sequence(_: &Job) -> u64 {
        0
    }
}

/// Where what is heard goes.
enum View {
    Live {
        block: Redrawn,
        screen: Screen,
        /// What is wrong with the connection, until something is heard again.
        trouble: Option<String>,
    },
    Lines(Format),
}

pub async fn watch(job: &str, options: &ClientOptions) -> Result<(), CliError> {
    let clients = connect(options).await?;
    let screen = Screen::stdout();
    let view = if options.output.is_for_people() && screen.live {
        View::Live { block: Redrawn::default(), screen, trouble: None }
    } else {
        View::Lines(options.output)
    };
    let ended = tokio::select! {
        ended = follow(&clients, job, view) => ended?,
        _ = tokio::signal::ctrl_c() => {
            return Err(CliError::interrupted(format!("\n{job} goes on without you")).hint(format!("millwright job watch {job}")));
        }
    };
    match ended.status.as_str() {
        "completed" | "reconciled" => Ok(()),
        status => Err(CliError::failed(format!("{} has ended as {status}", ended.id)).because("JOB_NOT_COMPLETED")),
    }
}

fn is_terminal(job: &Job) -> bool {
    matches!(job.status.as_str(), "completed" | "cancelled" | "reconciled")
}

async fn follow(clients: &Clients, job: &str, mut view: View) -> Result<Job, CliError> {
    let mut changes = Resuming::new(Changes { client: clients.jobs.clone(), id: job.to_owned() }, None);
    let mut tick = tokio::time::interval(TICK);
    let mut last: Option<Job> = None;
    loop {
        let heard = {
            let next = changes.next();
            tokio::pin!(next);
            loop {
                tokio::select! {
                    heard = &mut next => break heard?,
                    _ = tick.tick() => {
                        if let Some(job) = &last {
                            view.draw(job)?;
                        }
                    }
                }
            }
        };
        match heard {
            Heard::Item(job) => {
                view.told(&job, last.as_ref())?;
                if is_terminal(&job) {
                    view.last(&job)?;
                    return Ok(job);
                }
                last = Some(job);
            }
            Heard::Lost(text) => view.lost(text),
            Heard::End => {
                if let Heard::Lost(text) = changes.again("the server ended the stream early")? {
                    view.lost(text);
                }
            }
        }
    }
}

impl View {
    fn told(&mut self, job: &Job, before: Option<&Job>) -> Result<(), CliError> {
        match self {
            View::Live { trouble, .. } => {
                *trouble = None;
                self.draw(job)
            }
            View::Lines(format) if !format.is_for_people() => streamed(*format, job, &job.id, line),
            // that it is looked at again is no news to a person
            View::Lines(_) if before.is_some_and(|before| line(before) == line(job)) => Ok(()),
            View::Lines(format) => {
                let at = jiff::Timestamp::now();
                let at = prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() };
                streamed(*format, job, &job.id, |job| format!("{}  {}", precise(Some(&at)), line(job)))
            }
        }
    }

    fn draw(&mut self, job: &Job) -> Result<(), CliError> {
        match self {
            View::Live { block, screen, trouble } => {
                let mut lines = frame(job, *screen, now());
                lines.extend(trouble.iter().map(|text| format!("  {}", clean(text))));
                block.draw(lines)
            }
            View::Lines(_) => Ok(()),
        }
    }

    fn lost(&mut self, text: String) {
        match self {
            View::Live { trouble, .. } => *trouble = Some(text),
            View::Lines(_) => note(&text),
        }
    }

    fn last(&mut self, job: &Job) -> Result<(), CliError> {
        match self {
            View::Live { block, screen, .. } => block.last(&frame(job, *screen, now())),
            View::Lines(_) => Ok(()),
        }
    }
}

/// Status, stage and what it waits for, on one line.
fn line(job: &Job) -> String {
    let mut text = format!("{}  {}  {}  attempt {}", job.id, job.status, job.stage, job.attempt);
    if let Some(task) = job.task.as_ref().filter(|_| !is_terminal(job)) {
        text.push_str(&format!("  {} {}", task.kind, task.status));
    }
    if job.failure_class != "none" && !job.failure_class.is_empty() {
        text.push_str(&format!("  {} ({})", job.failure_code, job.failure_class));
    }
    if job.recommended_action != "wait" && job.recommended_action != "none" && !job.recommended_action.is_empty() {
        text.push_str(&format!("  next: {}", job.recommended_action));
    }
    clean(&text)
}

/// The block's lines.
fn frame(job: &Job, screen: Screen, now: Timestamp) -> Vec<String> {
    let status = clean(&job.status);
    let age = took(job.created_at.as_ref(), job.finished_at.as_ref(), now).unwrap_or_default();
    let mode = if job.mode.is_empty() { String::new() } else { format!(" ({})", job.mode) };
    let mut lines = vec![format!(
        "{}  {}{}  {}  attempt {}  {age}",
        clean(&job.id),
        clean(&job.kind),
        clean(&mode),
        painted(&status, &status, screen.colour),
        job.attempt
    )];
    lines.extend(stage_lines(job, screen, now));
    if !job.waiting_for.is_empty() {
        lines.push(format!("  waits for {}", clean(&job.waiting_for)));
    }
    if !job.failure_message.is_empty() {
        lines.push(format!("  {}: {}", clean(&job.failure_code), clean(&job.failure_message)));
    }
    lines.into_iter().map(|line| line.trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::millwright::v1::{JobStage, Task};

    #[test]
    fn a_job_is_a_line_and_a_block_with_its_stages() {
        let stage = |name: &str, state: &str, message: &str| JobStage {
            name: name.into(),
            state: state.into(),
            message: message.into(),
            ..JobStage::default()
        };
        let job = Job {
            id: "job_1".into(),
            kind: "drain".into(),
            status: "running".into(),
            stage: "drain_node".into(),
            attempt: 2,
            failure_class: "none".into(),
            recommended_action: "wait".into(),
            waiting_for: "the agent".into(),
            stages: vec![
                stage("disable_node", "done", "cordoned"),
                stage("drain_node", "running", "2 processes \u{1b}[2J"),
            ],
            task: Some(Task { kind: "node.drain".into(), status: "dispatched".into(), ..Task::default() }),
            ..Job::default()
        };
        assert_eq!(line(&job), "job_1  running  drain_node  attempt 2  node.drain dispatched");
        assert_eq!(
            frame(&job, Screen::PLAIN, Timestamp::UNIX_EPOCH),
            [
                "job_1  drain  running  attempt 2",
                "  ok       disable_node  cordoned",
                "  running  drain_node    2 processes \u{fffd}[2J",
                "  waits for the agent",
            ]
        );
    }
}
