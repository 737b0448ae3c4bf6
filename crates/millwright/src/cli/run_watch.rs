//! `millwright run watch|logs|wait`, and the end of `run start --wait`.

use super::ClientOptions;
use super::connect::{Clients, call, connect};
use super::exit::CliError;
use super::json;
use super::output::{Format, note, one, streamed};
use super::progress::{self, View, ended, follow, follow_run, phase_word, run_took, say};
use super::run::show;
use super::text::{clean, now, parse_duration};
use super::wait_for::{self, Goal};
use super::watch::{Heard, Resuming, RunEvents, RunLogs, tail};
use clap::Args;
use proto::baremetal::v1::run::Phase;
use proto::baremetal::v1::{GetRunRequest, LogChunk, Run, RunEvent};
use std::io::Write as _;
use std::time::Duration;

#[derive(Args)]
pub struct WatchArgs {
    /// The run's id; all runs when left out
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// Only runs that match; by run_id, machine_id, type or request_id
    #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true, conflicts_with = "id")]
    filter: String,
    /// First every event after this sequence, then what comes
    #[arg(long, value_name = "SEQUENCE")]
    after: Option<u64>,
}

#[derive(Args)]
pub struct LogsArgs {
    /// The run's id
    #[arg(value_name = "ID")]
    id: String,
    /// Go on until the run has ended
    #[arg(short, long)]
    follow: bool,
    /// Only what came after this sequence
    #[arg(long, value_name = "SEQUENCE")]
    after: Option<u64>,
    /// Only the output of this step
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
}

#[derive(Args)]
pub struct WaitArgs {
    /// The run's id
    #[arg(value_name = "ID")]
    id: String,
    /// SUCCEEDED, FAILED, CANCELED, RUNNING, terminal (any end), or step=NAME[:STATE]
    #[arg(long = "for", value_name = "GOAL", default_value = "SUCCEEDED", value_parser = wait_for::parse)]
    goal: Goal,
    /// How long at most, e.g. 90s, 10m, 2h [default: as long as it takes]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
}

pub async fn watch(args: WatchArgs, options: &ClientOptions) -> Result<(), CliError> {
    let clients = connect(options).await?;
    let format = options.output;
    let Some(id) = args.id else {
        return watch_all(&clients, args.filter, args.after, format).await;
    };
    if format.is_for_people() && args.after.is_none() {
        follow_run(&clients, &id).await?;
    } else {
        let mut print = |event: &RunEvent| print_event(event, format);
        follow(&clients, &id, args.after, View::Events(&mut print)).await?;
    }
    Ok(())
}

/// One line per event of all runs, until the reader has enough.
async fn watch_all(clients: &Clients, filter: String, after: Option<u64>, format: Format) -> Result<(), CliError> {
    let source = RunEvents { client: clients.runs.clone(), filter };
    tail(Resuming::new(source, after), false, |event| print_event(event, format)).await
}

fn print_event(event: &RunEvent, format: Format) -> Result<(), CliError> {
    let run = event.snapshot.as_ref().map(|run| run.run_id.as_str()).unwrap_or_default();
    streamed(format, event, run, progress::line)
}

pub async fn logs(args: LogsArgs, options: &ClientOptions) -> Result<(), CliError> {
    let clients = connect(options).await?;
    let source = RunLogs { client: clients.runs.clone(), run_id: args.id.clone(), follow: args.follow };
    let mut tail = Resuming::new(source, args.after);
    loop {
        match tail.next().await? {
            Heard::Item(chunk) => {
                if args.step.as_ref().is_none_or(|step| *step == chunk.step) {
                    print_chunk(&chunk, options.output)?;
                }
            }
            Heard::Lost(text) => note(&text),
            Heard::End => {
                if !args.follow {
                    return Ok(());
                }
                // A server that goes down may end a stream in order; only a run that has ended is an end.
                if ended(&clients, &args.id).await?.is_some() {
                    return Ok(());
                }
                if let Heard::Lost(text) = tail.again("the server ended the stream early")? {
                    note(&text);
                }
            }
        }
    }
}

fn print_chunk(chunk: &LogChunk, format: Format) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    match format {
        Format::Json => writeln!(out, "{}", json::shown(chunk)?.line()?)?,
        Format::Yaml => write!(out, "---\n{}", json::shown(chunk)?.yaml()?)?,
        Format::Table | Format::Wide | Format::Name => {
            if chunk.stream == "stderr" {
                let mut err = std::io::stderr().lock();
                err.write_all(&chunk.data)?;
                return Ok(err.flush()?);
            }
            out.write_all(&chunk.data)?;
        }
    }
    Ok(out.flush()?)
}

pub async fn wait(args: WaitArgs, options: &ClientOptions) -> Result<(), CliError> {
    let clients = connect(options).await?;
    let goal = &args.goal;
    goal.check(&progress::get(&clients, &args.id).await?)?;
    let reached = |run: &Run| goal.is_reached(run);
    let following = follow(&clients, &args.id, None, View::Until(&reached));
    let run = match args.timeout {
        None => following.await?,
        Some(limit) => match tokio::time::timeout(limit, following).await {
            Ok(run) => run?,
            Err(_) => return Err(time_is_up(&clients, &args.id, limit).await),
        },
    };
    if goal.is_an_end() {
        print_end(&run, options).map_err(CliError::outcome_unknown)?;
    } else if goal.is_reached(&run) {
        one(options.output, &run, &run.run_id, |run| vec![format!("{} {}", run.run_id, phase_word(run))])
            .map_err(CliError::outcome_unknown)?;
    }
    if goal.is_reached(&run) { Ok(()) } else { Err(goal.missed(&run)) }
}

/// What the run was doing when the time was up.
async fn time_is_up(clients: &Clients, id: &str, limit: Duration) -> CliError {
    let stands = match call(clients.runs.clone().get_run(GetRunRequest { run_id: id.to_owned() })).await {
        Ok(run) if run.why.is_empty() => format!("{id} is {}", phase_word(&run)),
        Ok(run) => format!("{id} is {}: {}", phase_word(&run), clean(&run.why)),
        Err(_) => format!("{id} has not ended"),
    };
    CliError::failed(format!("{stands}, after waiting {}", say(limit)))
        .because("WAIT_TIMED_OUT")
        .hint(format!("it goes on; ask: millwright why {id}"))
}

/// Follows a run that was just started and ends with its result. Ctrl-C leaves the run alone.
pub async fn to_the_end(clients: &Clients, run: &Run, options: &ClientOptions) -> Result<(), CliError> {
    let id = run.run_id.as_str();
    let following = async {
        match options.output {
            Format::Table | Format::Wide => follow_run(clients, id).await,
            Format::Json | Format::Yaml | Format::Name => follow(clients, id, None, View::Quiet).await,
        }
    };
    let run = tokio::select! {
        run = following => run.map_err(CliError::outcome_unknown)?,
        _ = tokio::signal::ctrl_c() => {
            return Err(CliError::interrupted(format!("\n{id} goes on without you"))
                .hint(format!("millwright run watch {id}, or: millwright run cancel {id}")));
        }
    };
    if !options.output.is_for_people() {
        print_end(&run, options).map_err(CliError::outcome_unknown)?;
    }
    let goal = Goal::Phase(Phase::Succeeded);
    if goal.is_reached(&run) { Ok(()) } else { Err(goal.missed(&run)) }
}

/// The run as it ended: a line for people, the run for scripts.
fn print_end(run: &Run, options: &ClientOptions) -> Result<(), CliError> {
    match options.output {
        Format::Table => one(Format::Table, run, &run.run_id, |run| {
            let after = match run_took(run, now()) {
                took if took.is_empty() => String::new(),
                took => format!(" after {took}"),
            };
            vec![format!("{} {}{after}", run.run_id, phase_word(run))]
        }),
        Format::Wide | Format::Json | Format::Yaml | Format::Name => show(options, run),
    }
}
