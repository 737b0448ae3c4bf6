//! Following one job: a block with its stages that is redrawn in place on a terminal, a line for each change elsewhere.

use super::ClientOptions;
use super::connect::connect;
use super::exit::CliError;
use super::follow::{Followed, View, follow};
use super::job_look::{kind, stage_lines};
use super::output::{Screen, painted};
use super::text::{clean, took};
use jiff::Timestamp;
use proto::millwright::v1::{GetJobRequest, Job};

pub async fn watch(job: &str, options: &ClientOptions) -> Result<(), CliError> {
    let client = connect(options).await?.jobs;
    let open = async || Ok(client.clone().watch_job(GetJobRequest { id: job.to_owned() }).await?.into_inner());
    let ended = tokio::select! {
        ended = follow(open, View::stdout(options.output), is_terminal) => ended?,
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

impl Followed for Job {
    fn id(&self) -> &str {
        &self.id
    }

    /// Status, stage and what it waits for, on one line.
    fn line(&self) -> String {
        let mut text = format!("{}  {}  {}  attempt {}", self.id, self.status, self.stage, self.attempt);
        if let Some(task) = self.task.as_ref().filter(|_| !is_terminal(self)) {
            text.push_str(&format!("  {} {}", task.kind, task.status));
        }
        if self.failure_class != "none" && !self.failure_class.is_empty() {
            text.push_str(&format!("  {} ({})", self.failure_code, self.failure_class));
        }
        if self.recommended_action != "wait" && self.recommended_action != "none" && !self.recommended_action.is_empty()
        {
            text.push_str(&format!("  next: {}", self.recommended_action));
        }
        clean(&text)
    }

    /// The block's lines.
    fn frame(&self, screen: Screen, now: Timestamp) -> Vec<String> {
        let status = clean(&self.status);
        let age = took(self.created_at.as_ref(), self.finished_at.as_ref(), now).unwrap_or_default();
        let mut lines = vec![format!(
            "{}  {}  {}  attempt {}  {age}",
            clean(&self.id),
            clean(&kind(self)),
            painted(&status, &status, screen.colour),
            self.attempt
        )];
        lines.extend(stage_lines(self, screen, now));
        if !self.waiting_for.is_empty() {
            lines.push(format!("  waits for {}", clean(&self.waiting_for)));
        }
        if !self.failure_message.is_empty() {
            lines.push(format!("  {}: {}", clean(&self.failure_code), clean(&self.failure_message)));
        }
        lines.into_iter().map(|line| line.trim_end().to_owned()).collect()
    }
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
        assert_eq!(job.line(), "job_1  running  drain_node  attempt 2  node.drain dispatched");
        assert_eq!(
            job.frame(Screen::PLAIN, Timestamp::UNIX_EPOCH),
            [
                "job_1  drain  running  attempt 2",
                "  ok       disable_node  cordoned",
                "  running  drain_node    2 processes \u{fffd}[2J",
                "  waits for the agent",
            ]
        );
    }
}
