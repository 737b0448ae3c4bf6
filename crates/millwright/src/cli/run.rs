//! `millwright run …`: starting, looking, cancelling. Watching, logs and waiting are in `run_watch`.

use super::connect::{call, connect};
use super::dry_run::DryRun;
use super::exit::{CliError, Exit};
use super::output::{self, Column, Listed, Screen, note};
use super::progress::{is_terminal, mark, phase_word, run_took};
use super::run_look;
use super::run_watch::{self, LogsArgs, WaitArgs, WatchArgs};
use super::sheet::Sheet;
use super::text::{dated, now, pairs, parse_pair, possible, relative, rfc3339, took};
use super::{ClientOptions, ListArgs};
use clap::{Args, Subcommand};
use domain::run::RunType;
use proto::baremetal::v1::step_status::State;
use proto::baremetal::v1::{CancelRunRequest, GetRunRequest, ListRunsRequest, Run, StartRunRequest, StepStatus};

#[derive(Subcommand)]
pub enum RunCommand {
    /// Start a run on a machine
    #[command(after_help = "Examples:
  millwright run start m-1 --type REPAVE --wait
  millwright run start m-1 --type REPAVE --plan repave-ubuntu-v1 --param image=ubuntu-24.04
  millwright run start m-1 --type REBOOT --request-id ticket-4711      (safe to repeat)
  millwright run start m-1 --type REPAVE --dry-run                     (would it start, and do what?)

--dry-run looks at the machine and the plan, prints the request and starts nothing; it ends as the start would,
as far as a look can tell. With --wait the exit code is 0 only if the run SUCCEEDED.")]
    Start(StartArgs),
    /// List runs, newest first
    #[command(after_help = "Examples:
  millwright run list --filter 'phase=RUNNING'
  millwright run list --filter 'machine_id=m-1' --limit 5")]
    List(ListArgs),
    /// Show one run with its steps
    #[command(
        after_help = "Examples:\n  millwright run show run_0198c5…\n  millwright run show run_0198c5… -o json | jq .steps"
    )]
    Show {
        /// The run's id
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Cancel an active run
    #[command(after_help = "Examples:
  millwright run cancel run_0198c5…
  millwright run list --filter 'phase=PENDING' -o name | xargs -n1 millwright run cancel

The step in hand is stopped, and what can be taken back is taken back.")]
    Cancel {
        /// The run's id
        #[arg(value_name = "ID")]
        id: String,
        /// Print what would be sent, and send nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Follow one run to its end, or all of them
    #[command(after_help = "Examples:
  millwright run watch run_0198c5…
  millwright run watch --filter 'machine_id=m-1'
  millwright run watch --after 4711 -o json       (every event since, one JSON object per line)

Ends with 0 once the run has ended, however it ended; `run wait` tells by its exit code.")]
    Watch(WatchArgs),
    /// Print what a run's steps printed: their stdout to stdout, their stderr to stderr
    #[command(after_help = "Examples:
  millwright run logs run_0198c5… -f
  millwright run logs run_0198c5… --step repave 2>/dev/null")]
    Logs(LogsArgs),
    /// Wait until a run has ended, or has come as far as you say
    #[command(after_help = "Examples:
  millwright run wait run_0198c5… --timeout 30m && echo done
  millwright run wait run_0198c5… --for terminal
  millwright run wait run_0198c5… --for step=repave
  millwright run wait run_0198c5… --for step=repave:RUNNING --timeout 5m

Ends with 0 once the goal is reached, with 1 if the run ended otherwise or the time was up.
A step named without a state must have SUCCEEDED.")]
    Wait(WaitArgs),
}

#[derive(Args)]
pub struct StartArgs {
    /// The machine's id
    #[arg(value_name = "MACHINE")]
    machine: String,
    /// What kind of run; its default plan is taken unless --plan names one
    #[arg(long = "type", value_name = "TYPE", value_parser = type_parser(), ignore_case = true)]
    kind: Option<String>,
    /// A plan instead of the type's default one
    #[arg(long, value_name = "PLAN", default_value = "", hide_default_value = true)]
    plan: String,
    /// A parameter for the plan's steps; may be repeated
    #[arg(long = "param", value_name = "KEY=VALUE", value_parser = parse_pair)]
    parameters: Vec<(String, String)>,
    /// Names this request, so that repeating it starts nothing twice [default: a random one]
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    /// An administrator's reason to run although a guard says no; kept in the log
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    override_reason: String,
    /// Follow the run and end with its result
    #[arg(long)]
    wait: bool,
    /// Look, print what would be sent, and start nothing
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
}

fn type_parser() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(RunType::ALL.map(|kind| possible(kind.as_str())))
}

pub async fn execute(command: RunCommand, options: &ClientOptions) -> Result<(), CliError> {
    match command {
        RunCommand::Start(args) => start(args, options).await,
        RunCommand::List(args) => list(args, options).await,
        RunCommand::Show { id } => {
            let mut runs = connect(options).await?.runs;
            show(options, &call(runs.get_run(GetRunRequest { run_id: id })).await?)
        }
        RunCommand::Cancel { id, dry_run } => {
            let request = CancelRunRequest { run_id: id };
            if dry_run {
                let trial = DryRun::new("baremetal.v1.RunService/CancelRun", &request.run_id, &request)?;
                return trial.print(options.output);
            }
            let mut runs = connect(options).await?.runs;
            let run = call(runs.cancel_run(request)).await?;
            output::one(options.output, &run, &run.run_id, |run| {
                let still = if is_terminal(run) { "" } else { "; it stops as soon as the step in hand lets go" };
                vec![format!("{} {}{still}", run.run_id, phase_word(run))]
            })
        }
        RunCommand::Watch(args) => run_watch::watch(args, options).await,
        RunCommand::Logs(args) => run_watch::logs(args, options).await,
        RunCommand::Wait(args) => run_watch::wait(args, options).await,
    }
}

impl StartArgs {
    fn request(self) -> Result<StartRunRequest, CliError> {
        if self.kind.is_none() && self.plan.is_empty() {
            return Err(CliError::usage("say what to run: --type TYPE, or --plan PLAN")
                .allowing(RunType::ALL.map(RunType::as_str))
                .hint(format!("millwright run start {} --type REBOOT; plans: millwright plan list", self.machine)));
        }
        let parameters = pairs(&self.parameters).map_err(|e| CliError::usage(format!("--param: {e}")))?;
        Ok(StartRunRequest {
            request_id: self.request_id.unwrap_or_else(|| uuid::Uuid::now_v7().to_string()),
            machine_id: self.machine,
            r#type: self.kind.unwrap_or_default().trim().to_ascii_uppercase().replace('-', "_"),
            plan_id: self.plan,
            parameters,
            override_reason: self.override_reason,
        })
    }
}

async fn start(args: StartArgs, options: &ClientOptions) -> Result<(), CliError> {
    let (wait, dry_run) = (args.wait, args.dry_run);
    let request = args.request()?;
    let clients = connect(options).await?;
    if dry_run {
        return run_look::look(&clients, &request, options.output).await;
    }
    let request_id = request.request_id.clone();
    let run = call(clients.runs.clone().start_run(request)).await.map_err(|e| match e.exit() {
        Exit::Unreachable => e.hint(format!("repeat it with --request-id {request_id}: it will not start twice")),
        _ => e,
    })?;
    if wait {
        return run_watch::to_the_end(&clients, &run, options).await;
    }
    output::one(options.output, &run, &run.run_id, |run| {
        vec![format!("{} {}: {} on {}, plan {}", run.run_id, phase_word(run), run.r#type, run.machine_id, run.plan_id)]
    })?;
    if options.output.is_for_people() && Screen::stdout().is_terminal() && !is_terminal(&run) {
        note(&format!("follow it with: millwright run watch {}", run.run_id));
    }
    Ok(())
}

async fn list(args: ListArgs, options: &ClientOptions) -> Result<(), CliError> {
    let runs = connect(options).await?.runs;
    output::list(options.output, &args.filter, args.limit, async |page_size, page_token| {
        let request = ListRunsRequest { filter: args.filter.clone(), page_size, page_token };
        let page = call(runs.clone().list_runs(request)).await?;
        Ok((page.runs, page.next_page_token))
    })
    .await
}

pub fn show(options: &ClientOptions, run: &Run) -> Result<(), CliError> {
    output::one(options.output, run, &run.run_id, |run| sheet(run, Screen::stdout(), now()))
}

/// `2/5 repave-os`: how far it is, and where.
fn progress(run: &Run) -> String {
    let done = run.steps.iter().filter(|s| s.state == i32::from(State::Succeeded)).count();
    let at = if is_terminal(run) { "" } else { run.current_step.as_str() };
    format!("{done}/{} {at}", run.steps.len()).trim_end().to_owned()
}

/// Why it stands where it stands.
fn reason(run: &Run) -> String {
    match &run.error {
        // a cancel says so itself
        Some(error) if error.code == "CANCELED" => error.message.clone(),
        Some(error) => format!("{}: {}", error.code, error.message),
        None if is_terminal(run) => String::new(),
        None => run.why.clone(),
    }
}

static COLUMNS: [Column<Run>; 15] = [
    Column::new("RUN", |r: &Run, _| r.run_id.clone()),
    Column::new("MACHINE", |r: &Run, _| r.machine_id.clone()),
    Column::new("TYPE", |r: &Run, _| r.r#type.clone()),
    Column::new("PHASE", |r: &Run, _| phase_word(r).to_owned()).state(),
    Column::new("STEPS", |r: &Run, _| progress(r)),
    Column::new("CREATED", |r: &Run, now| relative(r.created_at.as_ref(), now)).narrow(),
    Column::new("TOOK", |r: &Run, now| run_took(r, now)),
    Column::new("PLAN", |r: &Run, _| r.plan_id.clone()).wide(),
    Column::new("REQUEST", |r: &Run, _| r.request_id.clone()).wide(),
    Column::new("CREATED", |r: &Run, _| rfc3339(r.created_at.as_ref())).wide(),
    Column::new("STARTED", |r: &Run, _| rfc3339(r.started_at.as_ref())).wide(),
    Column::new("FINISHED", |r: &Run, _| rfc3339(r.finished_at.as_ref())).wide(),
    Column::new("VERSION", |r: &Run, _| r.version.to_string()).wide(),
    Column::new("WHY", |r: &Run, _| reason(r)).flex().narrow(),
    Column::new("WHY", |r: &Run, _| reason(r)).wide(),
];

static STEPS: [Column<StepStatus>; 6] = [
    Column::new("STEP", |s: &StepStatus, _| s.name.clone()),
    Column::new("STATE", |s: &StepStatus, _| format!("{} {}", mark(s), step_word(s))).state(),
    Column::new("STARTED", |s: &StepStatus, _| rfc3339(s.started_at.as_ref())),
    Column::new("TOOK", |s: &StepStatus, now| {
        took(s.started_at.as_ref(), s.finished_at.as_ref(), now).unwrap_or_default()
    }),
    Column::new("RETRIES", |s: &StepStatus, _| s.retry_count.to_string()),
    Column::new("MESSAGE", |s: &StepStatus, _| s.message.clone()),
];

fn step_word(step: &StepStatus) -> &'static str {
    State::try_from(step.state).map_or("UNKNOWN", |state| state.as_str_name())
}

impl Listed for Run {
    type Message = Self;
    const PLURAL: &'static str = "runs";
    const PAGED: bool = true;

    fn columns() -> &'static [Column<Self>] {
        &COLUMNS
    }

    fn id(&self) -> &str {
        &self.run_id
    }

    fn message(&self) -> &Self {
        self
    }
}

fn sheet(run: &Run, screen: Screen, now: jiff::Timestamp) -> Vec<String> {
    let mut sheet = Sheet::new(screen, now);
    sheet
        .row("Run", &run.run_id)
        .row("Machine", &run.machine_id)
        .row("Type", &run.r#type)
        .row("Plan", &run.plan_id)
        .state("Phase", phase_word(run))
        .row("Desired", &run.desired)
        .row("Observed", &run.observed)
        .row("Execution", &run.execution);
    if let Some(error) = &run.error {
        let again = if error.retryable { "starting it again may help" } else { "starting it again will not help" };
        let told =
            |parts: [&str; 2], between| parts.into_iter().filter(|p| !p.is_empty()).collect::<Vec<_>>().join(between);
        sheet.row("Error", &told([&error.code, &error.message], ": "));
        // not every error has a class
        let heading = if error.class.is_empty() { "Again" } else { "Class" };
        sheet.row(heading, &told([&error.class, again], "; "));
    } else if !is_terminal(run) {
        sheet.row("Step", &run.current_step).row("Waits for", &run.why);
    }
    sheet
        .row("Request", &run.request_id)
        .rows("Parameters", run.parameters.iter().map(|(key, value)| format!("{key}={value}")))
        .row("Created", &dated(run.created_at.as_ref(), now))
        .row("Started", &dated(run.started_at.as_ref(), now))
        .row("Finished", &dated(run.finished_at.as_ref(), now))
        .row("Took", &run_took(run, now))
        .row("Version", &run.version.to_string())
        .table("Steps", &STEPS, &run.steps);
    sheet.lines()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use proto::baremetal::v1::RunError;
    use proto::baremetal::v1::run::Phase;

    #[derive(Parser)]
    struct Start {
        #[command(flatten)]
        args: StartArgs,
    }

    fn request(words: &[&str]) -> StartRunRequest {
        let words = ["start", "m-1"].iter().chain(words);
        Start::try_parse_from(words).expect("sound").args.request().expect("a request")
    }

    #[test]
    fn a_request_without_an_id_gets_one_of_its_own() {
        let (one, two) = (request(&["--type", "REBOOT"]), request(&["--type", "REBOOT"]));
        assert_eq!(one.request_id.len(), 36);
        assert_ne!(one.request_id, two.request_id);
        assert_eq!(request(&["--type", "REBOOT", "--request-id", "r"]).request_id, "r");
    }

    #[test]
    fn a_start_of_nothing_names_what_could_be_started() {
        let args = Start::try_parse_from(["start", "m-1"]).expect("the grammar lets it pass").args;
        let error = args.request().expect_err("nothing to run");
        assert_eq!(error.exit().code(), 2);
        assert!(format!("{error:?}").contains("NET_RECONFIG"), "{error:?}");
        let wrong = Start::try_parse_from(["start", "m-1", "--type", "DANCE"]).map(|_| ()).expect_err("unknown");
        assert!(wrong.to_string().contains("REPAVE"), "{wrong}");
    }

    #[test]
    fn types_and_parameters_are_taken_as_typed() {
        let request = request(&["--type", "net-reconfig", "--param", "image=a=b"]);
        assert_eq!(request.r#type, "NET_RECONFIG");
        assert_eq!(request.parameters["image"], "a=b");
    }

    #[test]
    fn a_failed_run_tells_whether_another_try_may_help() {
        let (code, class) = ("STEP_TIMED_OUT".to_owned(), "timeout".to_owned());
        let error = RunError { code, class, message: "late".to_owned(), retryable: true };
        let run = Run { run_id: "run_1".to_owned(), phase: Phase::Failed.into(), error: Some(error), ..Run::default() };
        let lines = sheet(&run, Screen::PLAIN, jiff::Timestamp::UNIX_EPOCH).join("\n");
        assert!(lines.contains("STEP_TIMED_OUT: late") && lines.contains("may help"), "{lines}");
        assert_eq!(reason(&run), "STEP_TIMED_OUT: late");
        // one without a class tells the rest
        let error = RunError { code: "CANCELED".to_owned(), retryable: true, ..RunError::default() };
        let run = Run { error: Some(error), ..run };
        let lines = sheet(&run, Screen::PLAIN, jiff::Timestamp::UNIX_EPOCH).join("\n");
        let without = |line: &str| line.ends_with("CANCELED") || line.ends_with("  starting it again may help");
        assert_eq!(lines.lines().filter(|line| without(line)).count(), 2, "{lines}");
        assert!(!lines.contains("Class") && !lines.contains("; "), "{lines}");
    }
}
