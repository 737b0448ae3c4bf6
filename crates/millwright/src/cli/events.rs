//! `millwright events`: the one stream of everything, and the part of it that one noun's `watch` shows.

use super::ClientOptions;
use super::connect::{Clients, connect};
use super::exit::CliError;
use super::output::{self, Screen, painted};
use super::text::{clean, cut, precise};
use super::watch::{Events, Resuming, tail};
use clap::Args;
use proto::millwright::v1::Event;

#[derive(Args)]
#[command(after_help = "Examples:
  millwright events                                    what happens from now on, until Ctrl-C
  millwright events --filter 'kind=run AND to=FAILED'
  millwright events --after 4711 -o json               every event since, one JSON object per line
  millwright events --no-follow --filter 'subject=m-1' all that is stored about m-1

A broken connection is mended by itself, from the last event heard. Filters: kind, id, subject, to, trigger,
actor. Each line: sequence, time, what, from and to, the trigger and who pulled it.")]
pub struct EventsArgs {
    /// Only what matches
    #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true)]
    filter: String,
    #[command(flatten)]
    from: FromArgs,
}

// Where to begin, and whether to end.
#[derive(Args)]
pub struct FromArgs {
    /// First every event after this sequence, then what comes
    #[arg(long, value_name = "SEQUENCE")]
    after: Option<u64>,
    /// End after what is stored now; without --after, from the beginning
    #[arg(long)]
    no_follow: bool,
}

pub async fn execute(args: EventsArgs, options: &ClientOptions) -> Result<(), CliError> {
    let clients = connect(options).await?;
    follow(&clients, args.filter, &args.from, options).await
}

/// Prints events that match, one line each.
pub async fn follow(
    clients: &Clients,
    filter: String,
    from: &FromArgs,
    options: &ClientOptions,
) -> Result<(), CliError> {
    let after = from.after.or(from.no_follow.then_some(0));
    let source = Events { client: clients.events.clone(), filter, follow: !from.no_follow };
    let screen = Screen::stdout();
    let format = options.output;
    tail(Resuming::new(source, after), from.no_follow, |event| {
        output::streamed(format, event, &event.id, |event| line(event, screen))
    })
    .await
}

/// A filter for one thing, and what else was asked for.
pub fn both(own: &str, asked: &str) -> String {
    match (own, asked.trim()) {
        (own, "") => own.to_owned(),
        ("", _) => asked.to_owned(),
        (own, _) => format!("{own} AND ({asked})"),
    }
}

/// One event on one line, cut where the terminal ends.
fn line(event: &Event, screen: Screen) -> String {
    let head = format!("{:>7}  {}  ", event.sequence, precise(event.at.as_ref()));
    let about = match event.subject.as_str() {
        // ids of parts begin with the id of the whole
        subject if event.id.starts_with(subject) => format!("{} {}", event.kind, event.id),
        subject => format!("{} {} of {subject}", event.kind, event.id),
    };
    let from = if event.from.is_empty() { String::new() } else { format!("{} → ", event.from) };
    let before = clean(&format!("{about}  {from}"));
    let before = if from.is_empty() { format!("{before}  ") } else { format!("{before} ") };
    let to = clean(&event.to);
    let mut cause = format!("  {}", event.trigger);
    let who = if event.actor.is_empty() { &event.owner } else { &event.actor };
    if !who.is_empty() {
        cause.push_str(&format!(" by {who}"));
    }
    if !event.comment.is_empty() {
        cause.push_str(&format!(": {}", event.comment));
    }
    let cause = clean(&cause);
    let used = head.chars().count() + before.chars().count() + to.chars().count();
    // what happened is never cut; why may be
    let cause = match screen.width {
        Some(width) => cut(&cause, width.saturating_sub(used).max(12)),
        None => cause,
    };
    format!("{head}{before}{}{cause}", painted(&to, &to, screen.colour)).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(from: &str, to: &str, comment: &str) -> Event {
        Event {
            sequence: 42,
            at: Some(prost_types::Timestamp { seconds: 1, nanos: 0 }),
            kind: "machine".to_owned(),
            id: "m-1".to_owned(),
            subject: "m-1".to_owned(),
            from: from.to_owned(),
            to: to.to_owned(),
            trigger: "set_phase".to_owned(),
            owner: "operator".to_owned(),
            actor: "ann".to_owned(),
            comment: comment.to_owned(),
            metadata: None,
        }
    }

    #[test]
    fn an_event_is_one_line() {
        assert_eq!(
            line(&event("READY", "MAINTENANCE", "fan\nbroken"), Screen::PLAIN),
            "     42  1970-01-01T00:00:01.000Z  machine m-1  READY → MAINTENANCE  set_phase by ann: fan broken"
        );
        let mut part = event("False", "True", "");
        (part.kind, part.id) = ("condition".to_owned(), "m-1/Reachable".to_owned());
        assert!(line(&part, Screen::PLAIN).contains("  condition m-1/Reachable  False → True  "));
        let mut step = event("", "WAITING", "");
        (step.kind, step.id, step.actor) = ("step".to_owned(), "repave".to_owned(), String::new());
        assert_eq!(
            line(&step, Screen::PLAIN),
            "     42  1970-01-01T00:00:01.000Z  step repave of m-1  WAITING  set_phase by operator"
        );
    }

    #[test]
    fn a_line_fits_the_terminal_and_keeps_what_happened() {
        let narrow = Screen { width: Some(100), colour: true, live: true };
        let line = line(&event("READY", "FAILED", &"long ".repeat(50)), narrow);
        assert!(line.contains("READY → \u{1b}[31mFAILED\u{1b}[0m"), "{line}");
        assert_eq!(line.chars().count(), 100 + "\u{1b}[31m\u{1b}[0m".chars().count());
    }

    #[test]
    fn filters_are_joined() {
        assert_eq!(both("kind=machine", " "), "kind=machine");
        assert_eq!(both("kind=machine", "to=RMA OR to=READY"), "kind=machine AND (to=RMA OR to=READY)");
    }
}
