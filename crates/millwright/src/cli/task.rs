//! `millwright task …`: orders to nodes' agents, and what they print.

use super::connect::{Clients, Door, call, connect};
use super::dry_run::DryRun;
use super::exit::CliError;
use super::output::{self, Column, Format, Listed, Screen, note};
use super::sheet::Sheet;
use super::text::{clean, dated, now, relative, rfc3339};
use super::watch::{Heard, Resuming, Source};
use super::{ClientOptions, ListArgs, json};
use clap::Subcommand;
use jiff::Timestamp;
use proto::millwright::v1::task_service_client::TaskServiceClient;
use proto::millwright::v1::{
    CancelTaskRequest, GetTaskRequest, ListTasksRequest, StreamTaskOutputRequest, Task, TaskPiece,
};
use std::io::Write as _;
use tonic::{Status, Streaming};

#[derive(Subcommand)]
pub enum TaskCommand {
    /// List tasks, the newest first
    #[command(after_help = "Examples:
  millwright task list
  millwright task list --filter 'status=dispatched'
  millwright task list --filter 'kind=\"host.exec\" AND ordered_by=\"ann\"' -o wide

Filters: id, node_id, job_id, stage, kind, status, ordered_by, queued_at, dispatched_at.")]
    List(ListArgs),
    /// Show one task, with its result
    #[command(
        after_help = "Examples:\n  millwright task show tsk_0198c5…\n  millwright task show tsk_0198c5… -o json | jq .result.detail"
    )]
    Show {
        /// The task's id
        #[arg(value_name = "TASK")]
        task: String,
    },
    /// What a task prints
    #[command(after_help = "Examples:
  millwright task output tsk_0198c5…
  millwright task output tsk_0198c5… -f

What it prints on stderr goes to stderr. A broken connection is mended by itself.")]
    Output {
        /// The task's id
        #[arg(value_name = "TASK")]
        task: String,
        /// Go on until the task has ended
        #[arg(short, long)]
        follow: bool,
        /// Only what comes after so many bytes
        #[arg(long, value_name = "BYTES")]
        after: Option<u64>,
    },
    /// Take a task back that was ordered by hand
    #[command(after_help = "Example:\n  millwright task cancel tsk_0198c5… --reason 'wrong node'")]
    Cancel {
        /// The task's id
        #[arg(value_name = "TASK")]
        task: String,
        /// Why; kept in the history
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        reason: String,
        /// Print what would be sent, and send nothing
        #[arg(long)]
        dry_run: bool,
    },
}

pub async fn execute(command: TaskCommand, options: &ClientOptions) -> Result<(), CliError> {
    match command {
        TaskCommand::List(args) => {
            let tasks = connect(options).await?.tasks;
            output::list(options.output, &args.filter, args.limit, async |page_size, page_token| {
                let request = ListTasksRequest { filter: args.filter.clone(), page_size, page_token };
                let page = call(tasks.clone().list_tasks(request)).await?;
                Ok((page.tasks, page.next_page_token))
            })
            .await
        }
        TaskCommand::Show { task } => {
            let task = get(&connect(options).await?, &task).await?;
            output::one(options.output, &task, &task.id, |task| sheet(task, Screen::stdout(), now()))
        }
        TaskCommand::Output { task, follow, after } => {
            let clients = connect(options).await?;
            printed(&clients, &task, follow, after, options.output).await
        }
        TaskCommand::Cancel { task, reason, dry_run } => {
            let request = CancelTaskRequest { id: task, reason };
            if dry_run {
                return DryRun::new("millwright.v1.TaskService/CancelTask", &request.id, &request)?
                    .print(options.output);
            }
            let mut tasks = connect(options).await?.tasks;
            let task = call(tasks.cancel_task(request)).await?;
            output::one(options.output, &task, &task.id, |t| {
                vec![clean(&format!("{} ({}) is {}: {}", t.id, t.kind, t.status, t.expired_because))]
            })
        }
    }
}

async fn get(clients: &Clients, task: &str) -> Result<Task, CliError> {
    call(clients.tasks.clone().get_task(GetTaskRequest { id: task.to_owned() })).await
}

fn is_live(task: &Task) -> bool {
    matches!(task.status.as_str(), "queued" | "dispatched")
}

/// What a task prints, from any byte on.
struct Output {
    client: TaskServiceClient<Door>,
    id: String,
    follow: bool,
}

impl Source for Output {
    type Item = TaskPiece;
    type Stream = Streaming<TaskPiece>;
    const RESTARTS: bool = false;

    async fn open(&mut self, after: Option<u64>) -> Result<Self::Stream, Status> {
        let request =
            StreamTaskOutputRequest { id: self.id.clone(), after_offset: after.unwrap_or(0), no_follow: !self.follow };
        Ok(self.client.stream_task_output(request).await?.into_inner())
    }

    fn sequence(piece: &TaskPiece) -> u64 {
        piece.offset
    }
}

async fn printed(
    clients: &Clients,
    task: &str,
    follow: bool,
    after: Option<u64>,
    format: Format,
) -> Result<(), CliError> {
    let source = Output { client: clients.tasks.clone(), id: task.to_owned(), follow };
    let mut pieces = Resuming::new(source, after);
    loop {
        match pieces.next().await? {
            Heard::Item(piece) => print_piece(&piece, format)?,
            Heard::Lost(text) => note(&text),
            Heard::End => {
                // a server that goes down may end a stream in order; only a task that has ended is an end
                if !follow || !is_live(&get(clients, task).await?) {
                    return Ok(());
                }
                if let Heard::Lost(text) = pieces.again("the server ended the stream early")? {
                    note(&text);
                }
            }
        }
    }
}

fn print_piece(piece: &TaskPiece, format: Format) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    match format {
        Format::Json => writeln!(out, "{}", json::shown(piece)?.line()?)?,
        Format::Yaml => write!(out, "---\n{}", json::shown(piece)?.yaml()?)?,
        Format::Table | Format::Wide | Format::Name => {
            if piece.stream == "stderr" {
                let mut err = std::io::stderr().lock();
                err.write_all(&piece.data)?;
                return Ok(err.flush()?);
            }
            out.write_all(&piece.data)?;
        }
    }
    Ok(out.flush()?)
}

/// Follows a task that was just ordered, and ends as it does. Ctrl-C leaves it alone.
pub async fn to_the_end(clients: &Clients, id: &str, options: &ClientOptions) -> Result<(), CliError> {
    // beside a document nothing but that stands on stdout
    let following = async {
        if options.output.is_for_people() {
            return printed(clients, id, true, None, options.output).await;
        }
        let source = Output { client: clients.tasks.clone(), id: id.to_owned(), follow: true };
        let mut pieces = Resuming::new(source, None);
        while pieces.next().await? != Heard::End || is_live(&get(clients, id).await?) {}
        Ok(())
    };
    tokio::select! {
        ended = following => ended.map_err(CliError::outcome_unknown)?,
        _ = tokio::signal::ctrl_c() => {
            return Err(CliError::interrupted(format!("\n{id} goes on without you"))
                .hint(format!("millwright task output {id} -f, or: millwright task cancel {id}")));
        }
    }
    let task = get(clients, id).await.map_err(CliError::outcome_unknown)?;
    output::one(options.output, &task, &task.id, |t| vec![clean(&end(t))]).map_err(CliError::outcome_unknown)?;
    if task.status == "done" {
        return Ok(());
    }
    Err(CliError::failed(end(&task)).because("TASK_FAILED").hint(format!("millwright task show {id}")))
}

fn end(t: &Task) -> String {
    let why = match &t.result {
        Some(r) if !r.ok => format!(": {} ({}): {}", r.code, r.failure_class, r.message),
        Some(_) => String::new(),
        None if !t.expired_because.is_empty() => format!(": {}", t.expired_because),
        None => String::new(),
    };
    format!("{} ({}) is {}{why}", t.id, t.kind, t.status)
}

fn outcome(t: &Task) -> String {
    match &t.result {
        Some(r) if r.ok => "ok".to_owned(),
        Some(r) => format!("{}: {}", r.code, r.message),
        None => t.expired_because.clone(),
    }
}

static COLUMNS: [Column<Task>; 15] = [
    Column::new("TASK", |t: &Task, _| t.id.clone()),
    Column::new("KIND", |t: &Task, _| t.kind.clone()),
    Column::new("NODE", |t: &Task, _| t.node_id.clone()),
    Column::new("STATUS", |t: &Task, _| t.status.clone()).state(),
    Column::new("JOB", |t: &Task, _| t.job_id.clone()),
    Column::new("QUEUED", |t: &Task, now| relative(t.queued_at.as_ref(), now)).narrow(),
    Column::new("STAGE", |t: &Task, _| t.stage.clone()).wide(),
    Column::new("FENCE", |t: &Task, _| t.fence.clone()).wide(),
    Column::new("REQUEUES", |t: &Task, _| t.requeues.to_string()).wide(),
    Column::new("QUEUED", |t: &Task, _| rfc3339(t.queued_at.as_ref())).wide(),
    Column::new("DISPATCHED", |t: &Task, _| rfc3339(t.dispatched_at.as_ref())).wide(),
    Column::new("LEASE UNTIL", |t: &Task, _| rfc3339(t.lease_until.as_ref())).wide(),
    Column::new("ORDERED BY", |t: &Task, _| t.ordered_by.clone()).wide(),
    Column::new("RESULT", |t: &Task, _| outcome(t)).flex().narrow(),
    Column::new("RESULT", |t: &Task, _| outcome(t)).wide(),
];

impl Listed for Task {
    type Message = Self;
    const PLURAL: &'static str = "tasks";
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

fn sheet(t: &Task, screen: Screen, now: Timestamp) -> Vec<String> {
    let mut sheet = Sheet::new(screen, now);
    let job = if t.job_id.is_empty() { String::new() } else { format!("{} ({})", t.job_id, t.stage) };
    sheet
        .row("Task", &t.id)
        .row("Kind", &t.kind)
        .row("Node", &t.node_id)
        .row("Job", &job)
        .state("Status", &t.status)
        .row("Because", &t.expired_because)
        .row("Fence", &t.fence)
        .row("Requeued", &if t.requeues == 0 { String::new() } else { format!("{} times", t.requeues) })
        .row("Ordered by", &t.ordered_by)
        .row("Queued", &dated(t.queued_at.as_ref(), now))
        .row("Take by", &dated(t.take_by.as_ref(), now))
        .row("Dispatched", &dated(t.dispatched_at.as_ref(), now))
        .row("Lease until", &dated(t.lease_until.as_ref(), now))
        .row("Output", &format!("{} bytes", t.output_bytes));
    if let Some(r) = &t.result {
        sheet
            .gap()
            .row("Result", if r.ok { "ok" } else { &r.code })
            .row("Failure class", if r.ok { "" } else { &r.failure_class })
            .row("Message", &r.message)
            .row("Began", &dated(r.started_at.as_ref(), now))
            .row("Ended", &dated(r.finished_at.as_ref(), now))
            .row(
                "Signed",
                &if r.signature.is_empty() {
                    "no".to_owned()
                } else {
                    format!("{} bytes, by its agent's key", r.signature.len())
                },
            );
        if r.detail.is_some() {
            sheet.row("Detail", "-o json shows it");
        }
    }
    sheet.row("Version", &t.version.to_string());
    sheet.lines()
}
