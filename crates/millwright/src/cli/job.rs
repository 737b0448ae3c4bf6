//! `millwright job …`: staged operations on nodes, and what can be done about them.

use super::connect::{call, connect};
use super::exit::CliError;
use super::job_look;
use super::job_watch;
use super::node_act::{BulkArgs, not_confirmed, print_results};
use super::output::{self, Screen};
use super::text::{clean, now};
use super::{ClientOptions, ListArgs};
use clap::{Args, Subcommand};
use domain::job_action::JobAction;
use proto::millwright::v1::{ActOnJobRequest, ActOnJobsRequest, GetJobRequest, ListJobsRequest};

#[derive(Subcommand)]
pub enum JobCommand {
    /// List jobs of all kinds, the newest first
    #[command(after_help = "Examples:
  millwright job list
  millwright job list --filter 'status=failed_retryable OR status=failed_manual_intervention'
  millwright job list --filter 'kind=decommission AND created_at>\"2026-11-01T00:00:00Z\"' -o wide

Filters: id, kind, mode, node_id, status, stage, failure_class, failure_code, requested_by, attempt, created_at,
updated_at, finished_at. Numbers and times also by <, <=, > and >=.")]
    List(ListArgs),
    /// Show one job: its stages, what it waits for, what can be done about it
    #[command(after_help = "Examples:
  millwright job show job_0198c5…
  millwright job show job_0198c5… -o json | jq .clean_record")]
    Show {
        /// The job's id
        #[arg(value_name = "JOB")]
        job: String,
    },
    /// Follow a job with its stages, until it has ended
    #[command(after_help = "Examples:
  millwright job watch job_0198c5…
  millwright job watch job_0198c5… -o json

Ends with the job, or on Ctrl-C, which leaves the job alone. The exit code is 1 unless it ends as completed or reconciled.")]
    Watch {
        /// The job's id
        #[arg(value_name = "JOB")]
        job: String,
    },
    /// Try the stage that failed once more
    #[command(
        name = "retry_stage",
        visible_alias = "retry-stage",
        after_help = "Examples:
  millwright job retry_stage job_0198c5…
  millwright job retry_stage --filter 'failure_class=transient' --yes"
    )]
    RetryStage(ActArgs),
    /// Go on from the last safe stage
    #[command(
        after_help = "Examples:\n  millwright job resume job_0198c5…\n  millwright job resume job_0198c5… --dry-run"
    )]
    Resume(ActArgs),
    /// Begin again from the top; what is true already is adopted, not done again
    #[command(after_help = "Example:\n  millwright job rerun job_0198c5…")]
    Rerun(ActArgs),
    /// Take back what was done, then begin anew
    #[command(
        name = "restart_clean",
        visible_alias = "restart-clean",
        after_help = "Example:\n  millwright job restart_clean job_0198c5… --reason 'wrong machine at first'"
    )]
    RestartClean(ReasonedActArgs),
    /// Call it off; what was done is taken back where that is possible
    #[command(
        after_help = "Examples:\n  millwright job cancel job_0198c5…\n  millwright job cancel --filter 'status=pending' --yes"
    )]
    Cancel(ActArgs),
    /// Say that the stage in hand is done: on your word, which is put on record
    #[command(
        name = "adopt_observed_state",
        visible_alias = "adopt-observed-state",
        after_help = "Example:\n  millwright job adopt_observed_state job_0198c5… --reason 'drained by hand, nothing runs there'"
    )]
    AdoptObservedState(ReasonedActArgs),
    /// Stop it until somebody has looked
    #[command(
        name = "mark_manual_intervention_required",
        visible_alias = "mark-manual-intervention-required",
        after_help = "Example:\n  millwright job mark_manual_intervention_required job_0198c5… --reason 'do not touch, see ticket'"
    )]
    MarkManualInterventionRequired(ReasonedActArgs),
    /// Compare engine, task and node with it now, and put right what differs
    #[command(after_help = "Example:\n  millwright job reconcile job_0198c5…")]
    Reconcile(ActArgs),
    /// Quarantine its node; what is under way stands still
    #[command(after_help = "Example:\n  millwright job quarantine job_0198c5… --reason 'smells of smoke'")]
    Quarantine(ReasonedActArgs),
}

/// Which jobs.
#[derive(Args)]
pub struct Targets {
    /// The job's id
    #[arg(value_name = "JOB", required_unless_present = "filter", conflicts_with = "filter")]
    job: Option<String>,
    #[command(flatten)]
    bulk: BulkArgs,
    /// Ask the server what would happen, and do nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
pub struct ActArgs {
    #[command(flatten)]
    targets: Targets,
    /// Why; kept in the history
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
}

#[derive(Args)]
pub struct ReasonedActArgs {
    #[command(flatten)]
    targets: Targets,
    /// Why; kept in the history
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

pub async fn execute(command: JobCommand, options: &ClientOptions) -> Result<(), CliError> {
    let plain = async |action, args: ActArgs| act(action, args.targets, args.reason, options).await;
    let reasoned = async |action, args: ReasonedActArgs| act(action, args.targets, args.reason, options).await;
    match command {
        JobCommand::List(args) => {
            let jobs = connect(options).await?.jobs;
            output::list(options.output, &args.filter, args.limit, async |page_size, page_token| {
                let request = ListJobsRequest { filter: args.filter.clone(), page_size, page_token };
                let page = call(jobs.clone().list_jobs(request)).await?;
                Ok((page.jobs, page.next_page_token))
            })
            .await
        }
        JobCommand::Show { job } => {
            let mut jobs = connect(options).await?.jobs;
            let job = call(jobs.get_job(GetJobRequest { id: job })).await?;
            output::one(options.output, &job, &job.id, |job| job_look::sheet(job, Screen::stdout(), now()))
        }
        JobCommand::Watch { job } => job_watch::watch(&job, options).await,
        JobCommand::RetryStage(args) => plain(JobAction::RetryStage, args).await,
        JobCommand::Resume(args) => plain(JobAction::Resume, args).await,
        JobCommand::Rerun(args) => plain(JobAction::Rerun, args).await,
        JobCommand::RestartClean(args) => reasoned(JobAction::RestartClean, args).await,
        JobCommand::Cancel(args) => plain(JobAction::Cancel, args).await,
        JobCommand::AdoptObservedState(args) => reasoned(JobAction::AdoptObservedState, args).await,
        JobCommand::MarkManualInterventionRequired(args) => {
            reasoned(JobAction::MarkManualInterventionRequired, args).await
        }
        JobCommand::Reconcile(args) => plain(JobAction::Reconcile, args).await,
        JobCommand::Quarantine(args) => reasoned(JobAction::Quarantine, args).await,
    }
}

async fn act(action: JobAction, targets: Targets, reason: String, options: &ClientOptions) -> Result<(), CliError> {
    let Targets { job, bulk, dry_run } = targets;
    let mut jobs = connect(options).await?.jobs;
    let name = action.as_str().to_owned();
    let Some(id) = job else {
        let request = ActOnJobsRequest {
            filter: bulk.filter.unwrap_or_default(),
            action: name,
            reason,
            dry_run: !bulk.yes,
            concurrency: bulk.concurrency.unwrap_or(0),
            stop_on_failure: bulk.stop_on_failure,
        };
        let answer = call(jobs.act_on_jobs(request)).await?;
        let count = answer.results.len();
        if bulk.yes || dry_run {
            return print_results(answer.results, options).await;
        }
        let mut rows = Some(answer.results);
        output::list(options.output, "", None, async |_, _| Ok((rows.take().unwrap_or_default(), String::new())))
            .await?;
        return Err(not_confirmed(count));
    };
    let done = call(jobs.act_on_job(ActOnJobRequest { id, action: name, reason, dry_run })).await?;
    let id = done.job.as_ref().map(|job| job.id.clone()).unwrap_or_default();
    output::one(options.output, &done, &id, |done| {
        let job = done.job.clone().unwrap_or_default();
        let word = if done.done { action.to_string() } else { format!("dry run of {action}: nothing was done") };
        vec![
            clean(&format!("{} ({}) {word}: {}", job.id, job.kind, done.effect)),
            clean(&format!("it is {} at {}", job.status, job.stage)),
        ]
    })
}
