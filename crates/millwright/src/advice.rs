//! Advice that can be followed: whatever the product tells somebody to type is a command of this program, by the parser of
//! this program. Walks `why` over every state that a boot node, its order and a finding can be in, and every command
//! that stands quoted in a source; nodes, jobs and tasks are walked in `advice_nodes`. Compiled for tests only.
#![allow(clippy::expect_used, clippy::panic)] // for tests only

use crate::Arguments;
use clap::Parser as _;
use clap::error::ErrorKind;
use domain::boot_node::{BootNode, BootState};
use domain::finding::{Finding, FindingKind, FindingState};
use domain::install_order::{Closing, InstallOrder, OrderState, OrderTask};
use domain::lifecycle::State as _;
use domain::{BootNodeId, FindingId, MacAddress, MachineId, OrderId, RunId, Timestamp};
use service::explain::{BootNodeFacts, Explanation, of_finding};
use service::{Call, Freeze};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

pub(crate) const NOW: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);
const SILENT_AFTER: Duration = Duration::from_secs(77);

pub(crate) fn ago(seconds: u64) -> Timestamp {
    NOW.minus(Duration::from_secs(seconds))
}

/// Every shape that an order can have; none is the first.
fn orders() -> Vec<Option<InstallOrder>> {
    let mut all = vec![None];
    for task in OrderTask::ALL {
        for run in [None, Some((RunId::from_text("run_1"), "install".to_owned()))] {
            let open = InstallOrder {
                id: OrderId::from_text("ord_1"),
                node_id: BootNodeId::from_text("btn_1"),
                task,
                state: OrderState::Open,
                version: 1,
                workflow_id: "w".into(),
                image: String::new(),
                user_data_ref: String::new(),
                opened_by: "ann".into(),
                run,
                operation: String::new(),
                opened_at: ago(9_000),
                attempt: 2,
                offered_at: None,
                started_at: None,
                last_report_at: Some(ago(30)),
                progress: None,
                log_tail: String::new(),
                evidence: String::new(),
                closed: None,
                disk_boot_at: None,
            };
            let offered = InstallOrder { offered_at: Some(ago(20)), ..open.clone() };
            let begun = InstallOrder {
                started_at: Some(ago(15)),
                last_report_at: Some(ago(10)),
                progress: Some(40),
                ..offered.clone()
            };
            let closed = |why| InstallOrder { state: OrderState::Closed, closed: Some((ago(5), why)), ..begun.clone() };
            all.extend(Closing::ALL.map(|why| Some(closed(why))));
            all.extend([Some(open), Some(offered), Some(begun)]);
        }
    }
    all
}

fn findings() -> Vec<Finding> {
    let of = |kind: FindingKind, state: FindingState| Finding {
        id: FindingId::from_text("fnd_1"),
        kind,
        state,
        version: 1,
        subject: "btn_1".into(),
        message: "something is wrong".into(),
        first_seen: ago(60),
        last_seen: ago(1),
        handled_by: String::new(),
        comment: String::new(),
    };
    FindingKind::ALL.into_iter().flat_map(|kind| FindingState::ALL.iter().map(move |state| of(kind, *state))).collect()
}

fn every_node() -> Vec<BootNodeFacts> {
    let mut all = Vec::new();
    for state in BootState::ALL {
        for order in orders() {
            for (assigned, proposed, frozen, failed) in (0..16).map(|i| (i & 1 > 0, i & 2 > 0, i & 4 > 0, i & 8 > 0)) {
                let workflow_id = if assigned { "w" } else { "" };
                let (id, mac) = (BootNodeId::from_text("btn_1"), MacAddress::from_text("52:54:00:4d:59:01"));
                let node = BootNode {
                    state: *state,
                    workflow_id: workflow_id.into(),
                    failed_workflow_id: if failed { workflow_id.into() } else { String::new() },
                    install_attempts: if failed { 3 } else { 0 },
                    last_install_error: failed.then(|| "no disk".to_owned()),
                    state_changed_at: ago(100),
                    proposed_machine_id: proposed.then(|| MachineId::from_text("rack-1")),
                    last_seen: Some(ago(50)),
                    order: order.clone(),
                    ..BootNode::new(id, mac, ago(200))
                };
                all.push(BootNodeFacts {
                    node,
                    machine: None,
                    enrolled: None,
                    findings: if failed { findings() } else { Vec::new() },
                    frozen: frozen.then(|| Freeze { by: "ann".into(), reason: "power work".into(), since: ago(60) }),
                    thawed: None,
                    silent_after: SILENT_AFTER,
                    now: NOW,
                });
            }
        }
    }
    all
}

/// What stands in single quotes or backquotes and begins with our name.
fn quoted(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for quote in ['\'', '`'] {
        let opening = format!("{quote}millwright ");
        let mut rest = text;
        while let Some((_, after)) = rest.split_once(&opening) {
            let Some((inside, after)) = after.split_once(quote) else { break };
            found.push(format!("millwright {inside}"));
            rest = after;
        }
    }
    found
}

/// Whether a person who types this is understood.
fn parses(command: &str) -> Result<(), clap::Error> {
    Arguments::try_parse_from(command.split_whitespace()).map(drop)
}

/// Parsing takes its time, and much is said again and again.
#[derive(Default)]
pub(crate) struct Known(BTreeSet<String>);

impl Known {
    fn check(&mut self, command: &str) -> Result<(), String> {
        if !self.0.contains(command) {
            parses(command).map_err(|e| format!("{command:?}: {e}"))?;
            self.0.insert(command.to_owned());
        }
        Ok(())
    }
}

pub(crate) fn check(e: &Explanation, known: &mut Known, of: &dyn std::fmt::Debug) {
    let say = |what: &str| format!("{what}: {e:#?}\nof {of:?}");
    assert!(!e.id.is_empty() && !e.kind.is_empty() && !e.state.is_empty(), "{}", say("no name or state"));
    assert!(e.summary.contains(&e.id), "{}", say("the summary does not speak of it"));
    assert!(e.since.is_some() && !e.projected.is_empty(), "{}", say("since when, and as what?"));
    if !e.at_rest {
        for (what, text) in [("waits", &e.waiting_for), ("expects", &e.expected), ("saw", &e.last_seen)] {
            assert!(!text.is_empty(), "{}", say(what));
        }
        assert!(!e.desired.is_empty(), "{}", say("nothing is wanted of it"));
        assert!(e.actions.iter().any(|a| a.allowed), "{}", say("no way out"));
    }
    for action in &e.actions {
        assert!(!action.name.is_empty(), "{}", say("an action without a name"));
        assert_eq!(action.allowed, action.why_not.is_empty(), "{}", say("not allowed, and no word why"));
        if let Err(why) = known.check(&action.command) {
            panic!("{}", say(&why));
        }
    }
    let said = [&e.summary, &e.waiting_for, &e.expected, &e.last_seen, &e.desired, &e.observed];
    for text in said.into_iter().chain(&e.problems).chain(e.actions.iter().map(|a| &a.why_not)) {
        for command in quoted(text) {
            assert_eq!(known.check(&command), Ok(()), "{}", say("advice that cannot be followed"));
        }
    }
    assert_eq!(e.seconds_left.is_some(), e.deadline.is_some(), "{}", say("time left"));
}

#[test]
fn every_state_of_a_boot_node_is_explained_by_commands_that_there_are() {
    let (admin, mut known) = (Call::system(), Known::default());
    let mut walked = 0;
    for facts in every_node() {
        let e = facts.explain(&admin);
        check(&e, &mut known, &facts);
        walked += 1;
        let (node, order) = (&facts.node, facts.node.open_order());
        let rests = matches!(node.state, BootState::Active | BootState::Retired);
        assert_eq!(e.at_rest, rests, "{e:#?}");
        let allowed = |part: &str| e.actions.iter().any(|a| a.name.contains(part) && a.allowed);
        assert_eq!(allowed("retire it"), node.state != BootState::Retired, "{e:#?}");
        // the time of the present attempt, as this server counts; none while nothing is counted
        match order.filter(|_| facts.frozen.is_none()) {
            Some(order) if order.started_at.is_some() => assert_eq!(e.deadline, Some(ago(10).plus(SILENT_AFTER))),
            Some(order) if order.offered_at.is_some() => assert_eq!(e.deadline, Some(ago(20).plus(SILENT_AFTER))),
            Some(_) => assert!(e.deadline.is_some_and(|at| at > NOW), "the attempt has just become due: {e:#?}"),
            None => assert_eq!(e.deadline, None),
        }
        let ordered = matches!(node.state, BootState::Pending | BootState::Installing | BootState::Deprovisioning);
        match order.filter(|_| ordered) {
            // what a person has ordered ends by retiring it, and why says so; what a run has, with the run
            Some(order) if order.run.is_none() => assert!(allowed("nothing else calls its order off"), "{e:#?}"),
            Some(_) => assert!(allowed("cancel its run"), "{e:#?}"),
            None => {}
        }
        assert_eq!(facts.frozen.is_some() && order.is_some(), allowed("unfreeze"), "{e:#?}");
    }
    assert!(walked > 4_000, "walked {walked}");
}

#[test]
fn every_finding_is_explained_by_commands_that_there_are() {
    let (admin, mut known) = (Call::system(), Known::default());
    for finding in findings() {
        let e = of_finding(&admin, &finding);
        assert_eq!(e.at_rest, finding.state == FindingState::Resolved, "{e:#?}");
        check(&e, &mut known, &finding);
        for command in quoted(finding.kind.next_action()) {
            assert_eq!(known.check(&command), Ok(()));
        }
    }
    let with_commands = |kind: &FindingKind| !quoted(kind.next_action()).is_empty();
    let without = [FindingKind::NotBooted, FindingKind::ClockSkew];
    for kind in FindingKind::ALL {
        assert_eq!(
            with_commands(&kind),
            !without.contains(&kind),
            "{kind:?}: power and clocks need no command of ours"
        );
    }
}

/// Every source of the product.
fn sources(folder: &Path, into: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            sources(&entry, into);
        } else if entry.extension().is_some_and(|end| end == "rs") {
            into.push((entry.display().to_string(), std::fs::read_to_string(&entry).expect("a source")));
        }
    }
}

/// What stands in the place of a value in a text.
const VALUE: &str = "value";

/// A text as it is when it is shown: lines joined, and a word in the place of each value.
fn shown(source: &str) -> String {
    let mut text = String::new();
    for line in source.lines().map(str::trim_start).filter(|line| !line.starts_with("//")) {
        match line.strip_suffix('\\') {
            Some(goes_on) => text.push_str(goes_on),
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    let mut plain = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once('{') {
        plain.push_str(before);
        match after.split_once('}') {
            Some((value, after)) if value.len() < 20 && !value.contains(['\n', ' ']) => {
                plain.push_str(VALUE);
                rest = after;
            }
            Some(_) | None => {
                plain.push('{');
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    plain
}

/// A command named without its arguments, as in "make one with 'millwright image add'"; or a value that the parser would
/// have to know, in whose place we have put a word.
fn only_named(command: &str, e: &clap::Error) -> bool {
    let (kind, words) = (e.kind(), command.split_whitespace().count());
    (kind == ErrorKind::MissingRequiredArgument && words <= 3)
        || (kind == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand && words <= 2)
        || (kind == ErrorKind::InvalidValue && e.to_string().contains(&format!("'{VALUE}'")))
}

#[test]
fn every_command_that_is_quoted_in_a_source_is_one() {
    let mut all = Vec::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder of crates");
    for entry in std::fs::read_dir(crates).expect("a folder").map(|entry| entry.expect("an entry")) {
        // what is only for tests and benchmarks tells nobody anything
        if !["testkit", "bench"].iter().any(|name| entry.file_name() == *name) {
            sources(&entry.path().join("src"), &mut all);
        }
    }
    let (mut seen, mut wrong) = (0, Vec::new());
    for (path, source) in all.iter().filter(|(path, _)| !path.ends_with("advice.rs")) {
        for command in quoted(&shown(source)) {
            seen += 1;
            match parses(&command) {
                Ok(()) => {}
                Err(e) if only_named(&command, &e) => {}
                Err(e) => wrong.push(format!("{path}: {command:?}: {e}")),
            }
        }
    }
    assert!(seen > 30, "found only {seen}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
