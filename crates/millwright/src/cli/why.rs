//! `millwright why ID`: the answer first, then what it rests on, then what can be done.

use super::ClientOptions;
use super::connect::{call, connect};
use super::exit::CliError;
use super::output::{self, Screen};
use super::sheet::Sheet;
use super::text::{clean, now, relative, rfc3339, span};
use clap::Args;
use jiff::{SignedDuration, Timestamp};
use proto::baremetal::v1::{Action, Explanation};
use proto::millwright::v1::ExplainRequest;

#[derive(Args)]
#[command(after_help = "Examples:
  millwright why m-1                   a machine: who holds it, what is wrong with it, where it may go
  millwright why run_0198c5…           a run: what it waits for, next try, attempts and time left
  millwright why gpu-7                 a node, by its id or name; also a job or a task by its id
  millwright why m-1 -o json | jq -r '.actions[] | select(.allowed) | .command'

Takes the id of a machine, a run, an execution, a plan, a token, a boot node (or its MAC address), a node
(or its name), a job, a task or a finding.")]
pub struct WhyArgs {
    /// The id of anything
    #[arg(value_name = "ID")]
    id: String,
}

pub async fn execute(args: WhyArgs, options: &ClientOptions) -> Result<(), CliError> {
    let mut explain = connect(options).await?.explain;
    let explanation = call(explain.explain(ExplainRequest { id: args.id })).await?;
    output::one(options.output, &explanation, &explanation.id, |e| sheet(e, Screen::stdout(), now()))
}

fn sheet(e: &Explanation, screen: Screen, now: Timestamp) -> Vec<String> {
    let mut lines = vec![answer(e)];
    let mut facts = Sheet::new(screen, now);
    facts
        .row("Waits for", &e.waiting_for)
        .row("Since", &aged(e.since.as_ref(), now))
        .row("Last seen", &seen(e, now))
        .row("Expected", &e.expected)
        .row("Next try", &aged(e.next_try.as_ref(), now))
        .row("Attempt", &attempt(e))
        .row("Deadline", &deadline(e, now))
        .row("Held by", &e.held_by)
        .gap()
        .row("Desired", &e.desired)
        .row("Observed", &e.observed)
        .row("Execution", &e.execution)
        .state("Projected", if e.projected.is_empty() { &e.state } else { &e.projected })
        .gap()
        .rows("Problems", e.problems.iter().cloned());
    let facts = facts.lines();
    if !facts.is_empty() {
        lines.push(String::new());
        lines.extend(facts);
    }
    lines.extend(ways(&e.actions));
    lines
}

/// What can be done and how, and what cannot and why not; what has the same reason stands together.
fn ways(actions: &[Action]) -> Vec<String> {
    let mut lines = Vec::new();
    let can: Vec<&Action> = actions.iter().filter(|action| action.allowed).collect();
    let width = can.iter().map(|action| clean(&action.name).chars().count()).max().unwrap_or(0);
    if !can.is_empty() {
        lines.extend([String::new(), "You can".to_owned()]);
        let row = |a: &&Action| format!("  {:width$}  {}", clean(&a.name), clean(&a.command)).trim_end().to_owned();
        lines.extend(can.iter().map(row));
    }
    let mut cannot: Vec<(String, Vec<String>)> = Vec::new();
    for action in actions.iter().filter(|action| !action.allowed) {
        let (name, why) = (clean(&action.name), clean(&action.why_not));
        match cannot.iter_mut().find(|(reason, _)| *reason == why) {
            Some((_, names)) => names.push(name),
            None => cannot.push((why, vec![name])),
        }
    }
    if !cannot.is_empty() {
        lines.extend([String::new(), "You cannot".to_owned()]);
        for (why, names) in cannot {
            lines.extend([format!("  {}", names.join(", ")), format!("    {why}").trim_end().to_owned()]);
        }
    }
    lines
}

/// The whole answer in one sentence; put together here when the server gave none.
fn answer(e: &Explanation) -> String {
    if !e.summary.is_empty() {
        return clean(&e.summary);
    }
    let what = format!("{} {} is {}", e.kind, e.id, e.state);
    clean(&match (e.at_rest, e.waiting_for.as_str()) {
        (true, _) => format!("{what}, and nothing is pending"),
        (false, "") => what,
        (false, waits) => format!("{what}: waits for {waits}"),
    })
}

/// The age first: it is what is asked for; the time beside it, for the logs.
fn aged(at: Option<&prost_types::Timestamp>, now: Timestamp) -> String {
    at.map(|_| format!("{} ({})", relative(at, now), rfc3339(at))).unwrap_or_default()
}

fn seen(e: &Explanation, now: Timestamp) -> String {
    match (e.last_seen.as_str(), aged(e.last_seen_at.as_ref(), now)) {
        ("", when) => when,
        (what, when) if when.is_empty() => what.to_owned(),
        // told with its time already
        (what, _) if what.contains(rfc3339(e.last_seen_at.as_ref()).trim_end_matches('Z')) => {
            format!("{what} ({})", relative(e.last_seen_at.as_ref(), now))
        }
        (what, when) => format!("{what}, {when}"),
    }
}

fn attempt(e: &Explanation) -> String {
    let left = |n: i32| if n == 1 { "1 more is left".to_owned() } else { format!("{n} more are left") };
    match (e.attempt, e.attempts_left) {
        (None, None) => String::new(),
        (Some(n), None) => n.to_string(),
        (None, Some(more)) => left(more),
        (Some(n), Some(0)) => format!("{n}, the last one"),
        (Some(n), Some(more)) => format!("{n}; {}", left(more)),
    }
}

fn deadline(e: &Explanation, now: Timestamp) -> String {
    let left = match e.seconds_left {
        Some(seconds) if seconds > 0 => format!("{} left", span(SignedDuration::from_secs(seconds))),
        Some(_) => "the time is up".to_owned(),
        None => return aged(e.deadline.as_ref(), now),
    };
    match rfc3339(e.deadline.as_ref()) {
        at if e.deadline.is_some() => format!("{left} ({at})"),
        _ => left,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Option<prost_types::Timestamp> {
        Some(prost_types::Timestamp { seconds, nanos: 0 })
    }

    fn action(name: &str, allowed: bool, text: &str) -> Action {
        let (why_not, command) = if allowed { ("", text) } else { (text, "") };
        let owned = str::to_owned;
        Action { name: owned(name), allowed, why_not: owned(why_not), command: owned(command) }
    }

    #[test]
    fn everything_that_is_known_is_told_the_answer_first() {
        let owned = str::to_owned;
        let explanation = Explanation {
            id: owned("run_1"),
            kind: owned("run"),
            state: owned("RUNNING"),
            summary: owned("run_1 waits for the installer on m-1, for 3m; it looks again in 12s"),
            waiting_for: owned("the installer"),
            since: at(820),
            last_seen: owned("power on, says the BMC"),
            last_seen_at: at(995),
            expected: owned("a report from the installer"),
            next_try: at(1012),
            attempt: Some(2),
            attempts_left: Some(1),
            deadline: at(1420),
            seconds_left: Some(420),
            held_by: owned("session ses_1"),
            actions: vec![
                action("cancel", true, "millwright run cancel run_1"),
                action("start", false, "run_1 is active on m-1"),
                action("retire", false, "run_1 is active on m-1"),
            ],
            desired: owned("repaved"),
            observed: owned("powered on"),
            execution: owned("step repave, attempt 2"),
            projected: owned("RUNNING"),
            problems: vec![owned("BMC slow")],
            at_rest: false,
        };
        let lines = sheet(&explanation, Screen::PLAIN, Timestamp::from_second(1000).expect("in range"));
        assert_eq!(
            lines,
            [
                "run_1 waits for the installer on m-1, for 3m; it looks again in 12s",
                "",
                "Waits for  the installer",
                "Since      3m ago (1970-01-01T00:13:40Z)",
                "Last seen  power on, says the BMC, 5s ago (1970-01-01T00:16:35Z)",
                "Expected   a report from the installer",
                "Next try   in 12s (1970-01-01T00:16:52Z)",
                "Attempt    2; 1 more is left",
                "Deadline   7m00s left (1970-01-01T00:23:40Z)",
                "Held by    session ses_1",
                "",
                "Desired    repaved",
                "Observed   powered on",
                "Execution  step repave, attempt 2",
                "Projected  RUNNING",
                "",
                "Problems   BMC slow",
                "",
                "You can",
                "  cancel  millwright run cancel run_1",
                "",
                "You cannot",
                "  start, retire",
                "    run_1 is active on m-1",
            ]
        );
    }

    #[test]
    fn what_is_at_rest_says_so_and_nothing_more() {
        let (id, kind, state) = ("p".to_owned(), "plan".to_owned(), "STORED".to_owned());
        let explanation = Explanation { id, kind, state, at_rest: true, ..Explanation::default() };
        let lines = sheet(&explanation, Screen::PLAIN, Timestamp::UNIX_EPOCH);
        assert_eq!(lines, ["plan p is STORED, and nothing is pending", "", "Projected  STORED"]);
    }

    #[test]
    fn a_time_that_was_told_is_not_told_twice() {
        let last_seen = "power on; bmc, 1970-01-01T00:00:05.123Z".to_owned();
        let told = Explanation { last_seen, last_seen_at: at(5), ..Explanation::default() };
        let now = Timestamp::from_second(9).expect("in range");
        assert_eq!(seen(&told, now), "power on; bmc, 1970-01-01T00:00:05.123Z (4s ago)");
    }

    #[test]
    fn what_is_over_is_told_as_over() {
        let late =
            Explanation { attempt: Some(3), attempts_left: Some(0), seconds_left: Some(-4), ..Explanation::default() };
        assert_eq!(
            (attempt(&late), deadline(&late, Timestamp::UNIX_EPOCH)),
            ("3, the last one".to_owned(), "the time is up".to_owned())
        );
    }
}
