//! How jobs are shown: in lists, on a sheet, and their stages as a block.

use super::output::{Column, Listed, Screen, painted};
use super::sheet::Sheet;
use super::text::{clean, dated, relative, rfc3339};
use jiff::Timestamp;
use proto::millwright::v1::{Job, JobActionOffer, JobStage};

/// With its mode, and what it stands on where that is not a bundle.
pub fn kind(job: &Job) -> String {
    let ground = if job.ground == "bundle" { "" } else { job.ground.as_str() };
    let more: Vec<&str> = [job.mode.as_str(), ground].into_iter().filter(|text| !text.is_empty()).collect();
    if more.is_empty() { job.kind.clone() } else { format!("{} ({})", job.kind, more.join(", ")) }
}

static COLUMNS: [Column<Job>; 18] = [
    Column::new("JOB", |j: &Job, _| j.id.clone()),
    Column::new("KIND", |j: &Job, _| kind(j)),
    Column::new("NODE", |j: &Job, _| j.node_id.clone()),
    Column::new("STATUS", |j: &Job, _| j.status.clone()).state(),
    Column::new("STAGE", |j: &Job, _| j.stage.clone()),
    Column::new("ATTEMPT", |j: &Job, _| j.attempt.to_string()),
    Column::new("FAILURE", |j: &Job, _| j.failure_class.clone()),
    Column::new("NEXT", |j: &Job, _| j.recommended_action.clone()),
    Column::new("AGE", |j: &Job, now| relative(j.created_at.as_ref(), now)).narrow(),
    Column::new("OBSERVED", |j: &Job, _| j.last_observed_state.clone()).wide(),
    Column::new("WAITS FOR", |j: &Job, _| j.waiting_for.clone()).flex().narrow(),
    Column::new("WAITS FOR", |j: &Job, _| j.waiting_for.clone()).wide(),
    Column::new("CODE", |j: &Job, _| j.failure_code.clone()).wide(),
    Column::new("REQUESTED BY", |j: &Job, _| j.requested_by.clone()).wide(),
    Column::new("EXECUTION", |j: &Job, _| j.execution_id.clone()).wide(),
    Column::new("CREATED", |j: &Job, _| rfc3339(j.created_at.as_ref())).wide(),
    Column::new("UPDATED", |j: &Job, _| rfc3339(j.updated_at.as_ref())).wide(),
    Column::new("FINISHED", |j: &Job, _| rfc3339(j.finished_at.as_ref())).wide(),
];

impl Listed for Job {
    type Message = Self;
    const PLURAL: &'static str = "jobs";
    const PAGED: bool = true;

    fn columns() -> &'static [Column<Self>] {
        &COLUMNS
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn message(&self) -> &Self {
        self
    }
}

static OFFERS: [Column<JobActionOffer>; 3] = [
    Column::new("ACTION", |o: &JobActionOffer, _| o.action.clone()),
    Column::new("OFFERED", |o: &JobActionOffer, _| if o.allowed { "yes" } else { "no" }.to_owned()),
    Column::new(
        "WHAT HAPPENS, OR WHY NOT",
        |o: &JobActionOffer, _| {
            if o.allowed { o.effect.clone() } else { o.not_because.clone() }
        },
    ),
];

fn mark(stage: &JobStage) -> &'static str {
    match stage.state.as_str() {
        "done" => "ok",
        "adopted" => "adopted",
        "running" => "running",
        "failed" => "FAILED",
        _ => "waiting",
    }
}

/// One line for each stage.
pub fn stage_lines(job: &Job, screen: Screen, now: Timestamp) -> Vec<String> {
    let width = job.stages.iter().map(|s| s.name.len()).max().unwrap_or(0);
    job.stages
        .iter()
        .map(|s| {
            let word = mark(s);
            let fill = " ".repeat(8usize.saturating_sub(word.len()));
            let at = s.finished_at.as_ref().map(|at| format!("{}  ", relative(Some(at), now))).unwrap_or_default();
            let text = format!(
                "  {}{fill} {:width$}  {at}{}",
                painted(word, word, screen.colour),
                clean(&s.name),
                clean(&s.message)
            );
            text.trim_end().to_owned()
        })
        .collect()
}

pub fn sheet(job: &Job, screen: Screen, now: Timestamp) -> Vec<String> {
    let mut sheet = Sheet::new(screen, now);
    let next = match job.recommended_because.as_str() {
        "" => job.recommended_action.clone(),
        why => format!("{} ({why})", job.recommended_action),
    };
    sheet
        .row("Job", &job.id)
        .row("Kind", &kind(job))
        .row("Node", &job.node_id)
        .state("Status", &job.status)
        .row("Stage", &job.stage)
        .row("Attempt", &format!("{} ({})", job.attempt, job.purpose))
        .row("Failure class", &job.failure_class)
        .row(
            "Failure",
            &if job.failure_code.is_empty() {
                String::new()
            } else {
                format!("{}: {}", job.failure_code, job.failure_message)
            },
        )
        .row("Last observed", &job.last_observed_state)
        .row("Next action", &next)
        .row("Waits for", &job.waiting_for)
        .row("Next try", &dated(job.next_try.as_ref(), now));
    if let Some(task) = &job.task {
        sheet.row("Task", &format!("{} ({}) is {}", task.id, task.kind, task.status));
    }
    sheet
        .gap()
        .row("Requested by", &job.requested_by)
        .row("Because", &job.reason)
        .row("Created", &dated(job.created_at.as_ref(), now))
        .row("Updated", &dated(job.updated_at.as_ref(), now))
        .row("Finished", &dated(job.finished_at.as_ref(), now))
        .row("Execution", &job.execution_id)
        .row("Version", &job.version.to_string());
    if let Some(record) = &job.clean_record {
        sheet.row("Clean record", &format!("{} entries; -o json shows them", record.fields.len()));
    }
    sheet.table("Actions", &OFFERS, &job.actions);
    let mut lines = sheet.lines();
    let below = lines.iter().position(|line| line == "Actions").map_or(lines.len(), |at| at.saturating_sub(1));
    let mut stages = vec![String::new(), "Stages".to_owned()];
    stages.extend(stage_lines(job, screen, now));
    lines.splice(below..below, stages);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sheet_has_the_stages_and_every_action_with_its_reason() {
        let stage =
            |name: &str, state: &str| JobStage { name: name.into(), state: state.into(), ..JobStage::default() };
        let offer = |action: &str, allowed: bool| JobActionOffer {
            action: action.into(),
            allowed,
            effect: if allowed { "it goes on".into() } else { String::new() },
            not_because: if allowed { String::new() } else { "it has ended".into() },
        };
        let job = Job {
            id: "job_1".into(),
            kind: "drain".into(),
            stages: vec![stage("disable_node", "done"), stage("drain_node", "failed")],
            actions: vec![offer("resume", true), offer("cancel", false)],
            ..Job::default()
        };
        let lines = sheet(&job, Screen::PLAIN, Timestamp::UNIX_EPOCH);
        let at = |text: &str| {
            lines.iter().position(|line| line.contains(text)).unwrap_or_else(|| panic!("{text}: {lines:#?}"))
        };
        assert!(at("Stages") < at("ok       disable_node") && at("FAILED   drain_node") < at("Actions"), "{lines:#?}");
        assert!(
            lines[at("resume")].contains("it goes on") && lines[at("cancel")].contains("it has ended"),
            "{lines:#?}"
        );
    }
}
