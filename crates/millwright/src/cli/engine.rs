//! `millwright engine …`: the executions below the runs.

use super::connect::{call, connect};
use super::dry_run::DryRun;
use super::exit::CliError;
use super::output::{self, Column, Listed, Screen, note};
use super::sheet::Sheet;
use super::text::{clean, dated, now, precise, relative, rfc3339};
use super::{ClientOptions, ListArgs};
use clap::Subcommand;
use proto::millwright::v1::{
    CancelExecutionRequest, DescribeExecutionRequest, DescribeExecutionResponse, Execution, GetFreezeRequest,
    JournalEntry, ListExecutionsRequest, TerminateExecutionRequest,
};

#[derive(Subcommand)]
pub enum EngineCommand {
    /// List executions, newest first
    #[command(after_help = "Examples:
  millwright engine list --filter 'status=waiting'
  millwright engine list --filter 'machine_id=m-1' -o wide")]
    List(ListArgs),
    /// Show one execution with its journal
    #[command(
        after_help = "Examples:\n  millwright engine describe run_0198c5…\n  millwright engine describe exe_0198c5… -o json | jq -r '.journal[].entry'"
    )]
    Describe {
        /// The execution's id, or its run's
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Ask an execution to stop; what can be undone is undone
    #[command(after_help = "Example:\n  millwright engine cancel exe_0198c5… --reason 'wrong image'")]
    Cancel {
        /// The execution's id, or its run's
        #[arg(value_name = "ID")]
        id: String,
        /// Why; kept in the log
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        reason: String,
        /// Print what would be sent, and send nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// End an execution at once and undo nothing; for when cancel cannot finish
    #[command(after_help = "Example:\n  millwright engine terminate exe_0198c5… --reason 'the BMC is gone for good'")]
    Terminate {
        /// The execution's id, or its run's
        #[arg(value_name = "ID")]
        id: String,
        /// Why; kept in the log
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// Print what would be sent, and send nothing
        #[arg(long)]
        dry_run: bool,
    },
}

pub async fn execute(command: EngineCommand, options: &ClientOptions) -> Result<(), CliError> {
    match command {
        EngineCommand::List(args) => list(args, options).await,
        EngineCommand::Describe { id } => {
            let mut engine = connect(options).await?.engine;
            let request = DescribeExecutionRequest { execution_id: id };
            let described = call(engine.describe_execution(request)).await?;
            let id = described.execution.as_ref().map(|e| e.execution_id.clone()).unwrap_or_default();
            output::one(options.output, &described, &id, |d| sheet(d, Screen::stdout(), now()))
        }
        EngineCommand::Cancel { id, reason, dry_run } => {
            let request = CancelExecutionRequest { execution_id: id, reason };
            if dry_run {
                let call = "millwright.v1.EngineService/CancelExecution";
                return DryRun::new(call, &request.execution_id, &request)?.print(options.output);
            }
            let mut engine = connect(options).await?.engine;
            done(options, &call(engine.cancel_execution(request)).await?)
        }
        EngineCommand::Terminate { id, reason, dry_run } => {
            let request = TerminateExecutionRequest { execution_id: id, reason };
            if dry_run {
                let call = "millwright.v1.EngineService/TerminateExecution";
                return DryRun::new(call, &request.execution_id, &request)?.print(options.output);
            }
            let mut engine = connect(options).await?.engine;
            done(options, &call(engine.terminate_execution(request)).await?)
        }
    }
}

async fn list(args: ListArgs, options: &ClientOptions) -> Result<(), CliError> {
    let engine = connect(options).await?.engine;
    output::list(options.output, &args.filter, args.limit, async |page_size, page_token| {
        let request = ListExecutionsRequest { filter: args.filter.clone(), page_size, page_token };
        let page = call(engine.clone().list_executions(request)).await?;
        Ok((page.executions, page.next_page_token))
    })
    .await?;
    if options.output.is_for_people() {
        // the one thing that makes every row stand still; the list is good without it
        let state = call(engine.clone().get_freeze(GetFreezeRequest {})).await;
        if let Ok(state) = state
            && state.frozen
        {
            note(&super::freeze::sentence(&state, now()));
        }
    }
    Ok(())
}

fn done(options: &ClientOptions, execution: &Execution) -> Result<(), CliError> {
    output::one(options.output, execution, &execution.execution_id, |e| {
        vec![format!("{} is {} (run {}, machine {})", e.execution_id, e.status, e.subject, e.machine_id)]
    })
}

static COLUMNS: [Column<Execution>; 16] = [
    Column::new("EXECUTION", |e: &Execution, _| e.execution_id.clone()),
    Column::new("MACHINE", |e: &Execution, _| e.machine_id.clone()),
    Column::new("STATUS", |e: &Execution, _| e.status.clone()).state(),
    Column::new("STAGE", |e: &Execution, _| e.stage.clone()),
    Column::new("TRY", |e: &Execution, _| e.attempt.to_string()),
    Column::new("UPDATED", |e: &Execution, now| relative(e.updated_at.as_ref(), now)).narrow(),
    Column::new("RUN", |e: &Execution, _| e.subject.clone()).wide(),
    Column::new("WORKFLOW", |e: &Execution, _| format!("{}@{}", e.workflow, e.workflow_version)).wide(),
    Column::new("UPDATED", |e: &Execution, _| rfc3339(e.updated_at.as_ref())).wide(),
    Column::new("CREATED", |e: &Execution, _| rfc3339(e.created_at.as_ref())).wide(),
    Column::new("WAKES", |e: &Execution, _| rfc3339(e.wake_at.as_ref())).wide(),
    Column::new("DEADLINE", |e: &Execution, _| rfc3339(e.deadline.as_ref())).wide(),
    Column::new("HOLDER", |e: &Execution, _| e.holder.clone()).wide(),
    Column::new("FENCE", |e: &Execution, _| e.fence.clone()).wide(),
    Column::new("CANCEL BY", |e: &Execution, _| e.cancel_requested_by.clone()).wide(),
    Column::new("WAITING FOR", |e: &Execution, _| e.waiting_for.clone()).flex(),
];

static JOURNAL: [Column<JournalEntry>; 5] = [
    Column::new("#", |j: &JournalEntry, _| j.number.to_string()),
    Column::new("AT", |j: &JournalEntry, _| precise(j.at.as_ref())),
    Column::new("FENCE", |j: &JournalEntry, _| j.fence.clone()),
    Column::new("ENTRY", |j: &JournalEntry, _| j.entry.clone()),
    Column::new("DETAIL", |j: &JournalEntry, _| detail(&j.detail_json)),
];

/// A detail that says nothing is not shown.
fn detail(json: &str) -> String {
    if matches!(json.trim(), "{}" | "null") { String::new() } else { clean(json) }
}

impl Listed for Execution {
    type Message = Self;
    const PLURAL: &'static str = "executions";
    const PAGED: bool = true;

    fn columns() -> &'static [Column<Self>] {
        &COLUMNS
    }

    fn id(&self) -> &str {
        &self.execution_id
    }

    fn message(&self) -> &Self {
        self
    }
}

fn sheet(described: &DescribeExecutionResponse, screen: Screen, now: jiff::Timestamp) -> Vec<String> {
    let mut sheet = Sheet::new(screen, now);
    if let Some(execution) = &described.execution {
        sheet
            .row("Execution", &execution.execution_id)
            .row("Run", &execution.subject)
            .row("Machine", &execution.machine_id)
            .row("Workflow", &format!("{} version {}", execution.workflow, execution.workflow_version))
            .state("Status", &execution.status)
            .row("Stage", &execution.stage)
            .row("Attempt", &execution.attempt.to_string())
            .row("Waiting for", &execution.waiting_for)
            .row("Wakes", &dated(execution.wake_at.as_ref(), now))
            .row("Deadline", &dated(execution.deadline.as_ref(), now))
            .row("Holder", &execution.holder)
            .row("Fence", &execution.fence)
            .row("Cancel asked", &execution.cancel_requested_by)
            .row("Created", &dated(execution.created_at.as_ref(), now))
            .row("Updated", &dated(execution.updated_at.as_ref(), now));
    }
    sheet.table("Journal", &JOURNAL, &described.journal);
    sheet.lines()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_shows_the_journal_below_the_facts() {
        let execution =
            Execution { execution_id: "exe_1".to_owned(), workflow: "run".to_owned(), ..Default::default() };
        let entry = JournalEntry {
            number: 1,
            entry: "entered".to_owned(),
            detail_json: "{}".to_owned(),
            ..JournalEntry::default()
        };
        let described = DescribeExecutionResponse { execution: Some(execution), journal: vec![entry] };
        let lines = sheet(&described, Screen::PLAIN, jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(lines[0], "Execution  exe_1");
        assert_eq!(lines.last().map(String::as_str), Some("  1  -   -      entered  -"));
    }
}
