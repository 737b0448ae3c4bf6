//! Following one run: a block that is redrawn in place on a terminal, one line per event elsewhere.

use super::connect::{Clients, call};
use super::exit::{CliError, Exit};
use super::output::{Screen, env_number, note, painted};
use super::text::{clean, now, precise, span, took};
use super::watch::{Heard, Resuming, RunEvents};
use jiff::Timestamp;
use proto::baremetal::v1::run::Phase;
use proto::baremetal::v1::step_status::State;
use proto::baremetal::v1::{GetRunRequest, Run, RunEvent, StepStatus};
use std::io::Write as _;
use std::time::Duration;

/// How often the clocks in the block move on.
pub const TICK: Duration = Duration::from_millis(500);
/// The height of a terminal that does not tell.
const DEFAULT_HEIGHT: usize = 24;
/// Lines of the block that are not steps, and one for the prompt.
const HEIGHT_KEPT: usize = 6;

/// Shows a run until it has ended, and answers with it as it ended.
///
/// Writes to stdout. A broken connection is mended by sequence, within bounds. Being dropped leaves the
/// terminal as it should be: no mode stays set and the cursor stands below the block.
pub async fn follow_run(clients: &Clients, run_id: &str) -> Result<Run, CliError> {
    let screen = Screen::stdout();
    let view = if screen.live { View::Live(Block::new(screen)) } else { View::Lines };
    follow(clients, run_id, None, view).await
}

/// Where what is heard goes.
pub enum View<'a> {
    /// Redrawn in place.
    Live(Block),
    /// One line per event.
    Lines,
    /// Nothing until the end.
    Quiet,
    /// Nothing, until this is so or the run has ended.
    Until(&'a dyn Fn(&Run) -> bool),
    /// Each event as the caller prints it.
    Events(&'a mut dyn FnMut(&RunEvent) -> Result<(), CliError>),
}

/// Follows a run to its end.
pub async fn follow(clients: &Clients, run_id: &str, after: Option<u64>, mut view: View<'_>) -> Result<Run, CliError> {
    // asked first, so that an unknown run is told as such
    let mut run = get(clients, run_id).await?;
    if view.is_reached(&run) || (is_terminal(&run) && matches!(view, View::Live(_) | View::Quiet | View::Until(_))) {
        view.last(&run)?;
        return Ok(run);
    }
    let source = RunEvents { client: clients.runs.clone(), filter: format!("run_id={}", run.run_id) };
    let mut watch = Resuming::new(source, after);
    let mut tick = tokio::time::interval(TICK);
    loop {
        let heard = {
            let next = watch.next();
            tokio::pin!(next);
            loop {
                tokio::select! {
                    heard = &mut next => break heard?,
                    _ = tick.tick() => view.draw(&run)?,
                }
            }
        };
        match heard {
            Heard::Item(event) => {
                view.event(&event)?;
                if let Some(snapshot) = event.snapshot {
                    run = snapshot;
                }
                if is_terminal(&run) || view.is_reached(&run) {
                    view.last(&run)?;
                    return Ok(run);
                }
                view.draw(&run)?;
            }
            Heard::Lost(text) => view.lost(&run, &text)?,
            Heard::End => {
                // with `after` behind the last event there was nothing to hear
                if let Some(run) = ended(clients, run_id).await? {
                    view.last(&run)?;
                    return Ok(run);
                }
                if let Heard::Lost(text) = watch.again("the server ended the stream early")? {
                    view.lost(&run, &text)?;
                }
            }
        }
    }
}

/// The run, if it has ended. A server that cannot tell just now has not said that it has.
pub async fn ended(clients: &Clients, run_id: &str) -> Result<Option<Run>, CliError> {
    match get(clients, run_id).await {
        Ok(run) => Ok(Some(run).filter(is_terminal)),
        Err(error) if error.exit() == Exit::Unreachable => Ok(None),
        Err(error) => Err(error),
    }
}

pub async fn get(clients: &Clients, run_id: &str) -> Result<Run, CliError> {
    call(clients.runs.clone().get_run(GetRunRequest { run_id: run_id.to_owned() })).await
}

impl View<'_> {
    fn event(&mut self, event: &RunEvent) -> Result<(), CliError> {
        match self {
            View::Live(block) => {
                block.note.clear();
                Ok(())
            }
            View::Lines => print_line(event),
            View::Events(print) => print(event),
            View::Quiet | View::Until(_) => Ok(()),
        }
    }

    fn is_reached(&self, run: &Run) -> bool {
        match self {
            View::Until(goal) => goal(run),
            View::Live(_) | View::Lines | View::Quiet | View::Events(_) => false,
        }
    }

    fn draw(&mut self, run: &Run) -> Result<(), CliError> {
        match self {
            View::Live(block) => block.draw(run),
            View::Lines | View::Quiet | View::Until(_) | View::Events(_) => Ok(()),
        }
    }

    fn lost(&mut self, run: &Run, text: &str) -> Result<(), CliError> {
        match self {
            View::Live(block) => {
                text.clone_into(&mut block.note);
                block.draw(run)
            }
            View::Lines | View::Quiet | View::Until(_) | View::Events(_) => {
                note(text);
                Ok(())
            }
        }
    }

    fn last(&mut self, run: &Run) -> Result<(), CliError> {
        match self {
            View::Live(block) => block.last(run),
            View::Lines | View::Quiet | View::Until(_) | View::Events(_) => Ok(()),
        }
    }
}

pub fn phase_word(run: &Run) -> &'static str {
    Phase::try_from(run.phase).map_or("UNKNOWN", |phase| phase.as_str_name())
}

pub fn is_terminal(run: &Run) -> bool {
    matches!(Phase::try_from(run.phase), Ok(Phase::Succeeded | Phase::Failed | Phase::Canceled))
}

/// One event on one line: time, run, phase, message.
pub fn line(event: &RunEvent) -> String {
    let (run, phase) = match &event.snapshot {
        Some(run) => (run.run_id.as_str(), phase_word(run)),
        None => ("-", "-"),
    };
    let step = event.snapshot.as_ref().map(|run| run.current_step.as_str()).unwrap_or_default();
    let message = if event.message.is_empty() { step } else { event.message.as_str() };
    let line = format!("{}  {}  {phase:9}  {}", precise(event.ts.as_ref()), clean(run), clean(message));
    line.trim_end().to_owned()
}

pub fn print_line(event: &RunEvent) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", line(event))?;
    Ok(out.flush()?)
}

/// A few lines on a terminal that are written over again and again.
pub struct Block {
    screen: Screen,
    steps_max: usize,
    drawn: Redrawn,
    /// What is wrong with the connection, until something is heard again.
    note: String,
}

impl Block {
    pub fn new(screen: Screen) -> Self {
        let asked = terminal_size::terminal_size().map(|(_, height)| usize::from(height.0));
        let height = env_number("LINES").or(asked).unwrap_or(DEFAULT_HEIGHT);
        Self {
            screen,
            steps_max: height.saturating_sub(HEIGHT_KEPT).max(3),
            drawn: Redrawn::default(),
            note: String::new(),
        }
    }

    fn draw(&mut self, run: &Run) -> Result<(), CliError> {
        let mut lines = frame(run, self.steps_max, self.screen.colour, now());
        if !self.note.is_empty() {
            lines.push(format!("  {}", clean(&self.note)));
        }
        self.drawn.draw(lines)
    }

    /// The run as it ended, with all its steps and nothing cut.
    fn last(&mut self, run: &Run) -> Result<(), CliError> {
        let lines = frame(run, usize::MAX, self.screen.colour, now());
        self.drawn.last(&lines)
    }
}

/// Lines that are written in the place of those before.
#[derive(Default)]
pub struct Redrawn(Vec<String>);

impl Redrawn {
    pub fn draw(&mut self, lines: Vec<String>) -> Result<(), CliError> {
        if lines == self.0 {
            return Ok(());
        }
        // Written at once: no flicker, and a Ctrl-C cannot fall between the two line-wrap switches.
        // With wrapping off a long line is clipped by the terminal, so the count of lines stays true.
        let text = format!("\x1b[?7l{}{}\x1b[?7h", self.over(), join(&lines));
        self.0 = lines;
        write_out(&text)
    }

    /// Lines that stay, and are not cut.
    pub fn last(&mut self, lines: &[String]) -> Result<(), CliError> {
        let text = format!("{}{}", self.over(), join(lines));
        self.0.clear();
        write_out(&text)
    }

    /// Moves to where the block begins.
    fn over(&self) -> String {
        match self.0.len() {
            0 => String::new(),
            n => format!("\x1b[{n}A\r"),
        }
    }
}

/// Each line wipes what stood there, the last one what stood below.
fn join(lines: &[String]) -> String {
    let mut text: String = lines.iter().map(|line| format!("{line}\x1b[K\n")).collect();
    text.push_str("\x1b[J");
    text
}

fn write_out(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

pub fn mark(step: &StepStatus) -> &'static str {
    match State::try_from(step.state) {
        Ok(State::Succeeded) => "✓",
        Ok(State::Running) => "●",
        Ok(State::Failed) => "✗",
        Ok(State::Waiting | State::Unspecified) | Err(_) => "·",
    }
}

/// The block's lines: the run, its steps, and what it waits for or died of.
fn frame(run: &Run, steps_max: usize, colour: bool, now: Timestamp) -> Vec<String> {
    let phase = phase_word(run);
    let began = run.started_at.as_ref().or(run.created_at.as_ref());
    let age = took(began, run.finished_at.as_ref(), now).unwrap_or_default();
    let head = format!("{}  {} on {}", clean(&run.run_id), clean(&run.r#type), clean(&run.machine_id));
    let mut lines = vec![format!("{head}  {}  {age}", painted(phase, phase, colour)).trim_end().to_owned()];
    let width = run.steps.iter().map(|step| clean(&step.name).chars().count()).max().unwrap_or(0);
    let (before, shown, after) = window(&run.steps, steps_max);
    if before > 0 {
        lines.push(format!("  {} {before} steps before", painted("✓", "✓", colour)));
    }
    lines.extend(shown.iter().map(|step| step_line(step, width, colour, now)));
    if after > 0 {
        lines.push(format!("  {} {after} more steps", painted("·", "·", colour)));
    }
    match &run.error {
        Some(error) => lines.push(format!("  {}: {}", clean(&error.code), clean(&error.message))),
        None if !is_terminal(run) && !run.why.is_empty() => lines.push(format!("  waits: {}", clean(&run.why))),
        None => {}
    }
    lines
}

/// Which steps are shown where not all fit: those around the one in hand.
fn window(steps: &[StepStatus], max: usize) -> (usize, &[StepStatus], usize) {
    if steps.len() <= max {
        return (0, steps, 0);
    }
    let done = steps.iter().take_while(|s| s.state == i32::from(State::Succeeded)).count();
    let first = done.saturating_sub(1).min(steps.len() - max);
    (first, &steps[first..first + max], steps.len() - first - max)
}

fn step_line(step: &StepStatus, width: usize, colour: bool, now: Timestamp) -> String {
    let mark = painted(mark(step), mark(step), colour);
    let age = took(step.started_at.as_ref(), step.finished_at.as_ref(), now).unwrap_or_default();
    let retries = match step.retry_count {
        i32::MIN..=0 => String::new(),
        1 => "  1 retry".to_owned(),
        n => format!("  {n} retries"),
    };
    let message = if step.message.is_empty() { String::new() } else { format!("  {}", clean(&step.message)) };
    format!("  {mark} {:width$}  {age:>6}{retries}{message}", clean(&step.name)).trim_end().to_owned()
}

/// A run's whole duration, for people.
pub fn run_took(run: &Run, now: Timestamp) -> String {
    took(run.started_at.as_ref(), run.finished_at.as_ref(), now).unwrap_or_default()
}

/// A duration that a person gave, said back.
pub fn say(duration: Duration) -> String {
    span(jiff::SignedDuration::try_from(duration).unwrap_or(jiff::SignedDuration::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::baremetal::v1::RunError;

    fn at(seconds: i64) -> Option<prost_types::Timestamp> {
        Some(prost_types::Timestamp { seconds, nanos: 0 })
    }

    fn step(name: &str, state: State, retry_count: i32, message: &str) -> StepStatus {
        let begun = !matches!(state, State::Waiting);
        let over = matches!(state, State::Succeeded | State::Failed);
        StepStatus {
            name: name.to_owned(),
            state: state.into(),
            retry_count,
            started_at: begun.then(|| at(100)).flatten(),
            finished_at: over.then(|| at(104)).flatten(),
            message: message.to_owned(),
        }
    }

    fn run(phase: Phase, steps: Vec<StepStatus>) -> Run {
        Run {
            run_id: "run_1".to_owned(),
            machine_id: "m-1".to_owned(),
            r#type: "REPAVE".to_owned(),
            phase: phase.into(),
            steps,
            created_at: at(98),
            started_at: at(99),
            ..Default::default()
        }
    }

    fn now() -> Timestamp {
        Timestamp::from_second(110).expect("in range")
    }

    #[test]
    fn a_running_run_shows_every_step_and_what_it_waits_for() {
        let steps = vec![
            step("netboot", State::Succeeded, 0, ""),
            step("repave", State::Running, 1, "writing\nimage"),
            step("reboot", State::Waiting, 0, ""),
        ];
        let mut run = run(Phase::Running, steps);
        run.why = "the installer".to_owned();
        assert_eq!(
            frame(&run, 20, false, now()),
            [
                "run_1  REPAVE on m-1  RUNNING  11.0s",
                "  ✓ netboot    4.0s",
                "  ● repave    10.0s  1 retry  writing image",
                "  · reboot",
                "  waits: the installer",
            ]
        );
    }

    #[test]
    fn a_failed_run_says_what_it_died_of() {
        let mut run = run(Phase::Failed, vec![step("repave", State::Failed, 2, "no image")]);
        run.finished_at = at(104);
        let (code, message) = ("STEP_FAILED".to_owned(), "no image".to_owned());
        run.error = Some(RunError { code, message, ..Default::default() });
        let lines = frame(&run, 20, true, now());
        assert_eq!(lines[0], "run_1  REPAVE on m-1  \u{1b}[31mFAILED\u{1b}[0m  5.0s");
        assert_eq!(lines[2], "  STEP_FAILED: no image");
    }

    #[test]
    fn a_long_run_shows_the_steps_around_the_one_in_hand() {
        let states = |n: usize| if n < 20 { State::Succeeded } else { State::Waiting };
        let steps: Vec<_> = (0..40).map(|n| step(&format!("s{n}"), states(n), 0, "")).collect();
        let (before, shown, after) = window(&steps, 10);
        assert_eq!((before, shown[0].name.as_str(), shown.len(), after), (19, "s19", 10, 11));
        let (before, shown, after) = window(&steps[..8], 10);
        assert_eq!((before, shown.len(), after), (0, 8, 0));
        assert_eq!(frame(&run(Phase::Running, steps), 10, false, now()).len(), 13);
    }

    #[test]
    fn an_event_is_one_line() {
        let snapshot = Some(run(Phase::Running, Vec::new()));
        let event = RunEvent { ts: at(1), snapshot, message: "step\nrepave".to_owned(), sequence: 3 };
        assert_eq!(line(&event), "1970-01-01T00:00:01.000Z  run_1  RUNNING    step repave");
    }

    #[test]
    fn a_block_is_written_over_in_one_piece() {
        assert_eq!(Redrawn::default().over(), "");
        assert_eq!(Redrawn(vec!["a".to_owned(), "b".to_owned()]).over(), "\x1b[2A\r");
        assert_eq!(join(&["x".to_owned()]), "x\x1b[K\n\x1b[J");
    }
}
