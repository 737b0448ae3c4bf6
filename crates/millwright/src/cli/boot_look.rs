//! How boot nodes are shown: in lists, on a sheet, in one line; and what a look tells about a move's chances.

use super::ClientOptions;
use super::dry_run::DryRun;
use super::exit::CliError;
use super::output::{self, Column, Listed, Screen};
use super::sheet::Sheet;
use super::text::{clean, dated, relative, rfc3339, show_pairs};
use domain::boot_node::{BootState, SET_STATE};
use domain::lifecycle::{Owner, State as _, Verdict, allowed_next, judge as verdict};
use jiff::Timestamp;
use proto::millwright::v1::{BootNode, BootNodeMove, BootNodeResult, InstallOrder, SetBootNodeStateRequest};
use std::collections::BTreeMap;

/// Lines of the installer on a sheet.
const LINES: usize = 12;
/// Of a progress bar.
const WIDTH: usize = 30;

/// A change was made: one line for people, the node for scripts.
pub fn done(options: &ClientOptions, node: &BootNode, what: &str) -> Result<(), CliError> {
    output::one(options.output, node, &node.id, |node| vec![line(node, what)])
}

pub fn line(node: &BootNode, what: &str) -> String {
    let with = node.workflow_id.as_ref().map(|id| format!(", workflow {id}")).unwrap_or_default();
    clean(&format!("{} ({}) {what}: {}{with}", node.id, node.mac_address, node.state))
}

/// `[#########---------------------]  30%`
pub fn bar(percent: i32) -> String {
    let percent = usize::try_from(percent.clamp(0, 100)).unwrap_or(0);
    let full = WIDTH * percent / 100;
    format!("[{}{}] {percent:3}%", "#".repeat(full), "-".repeat(WIDTH - full))
}

/// The order that waits or is under way.
pub fn open_order(node: &BootNode) -> Option<&InstallOrder> {
    node.order.as_ref().filter(|order| order.state == "open")
}

fn optional(text: Option<&String>) -> String {
    text.cloned().unwrap_or_default()
}

fn progress(node: &BootNode) -> String {
    node.install_progress.map(|percent| format!("{percent}%")).unwrap_or_default()
}

static COLUMNS: [Column<BootNode>; 22] = [
    Column::new("NODE", |n: &BootNode, _| n.id.clone()),
    Column::new("MAC", |n: &BootNode, _| n.mac_address.clone()),
    Column::new("STATE", |n: &BootNode, _| n.state.clone()).state(),
    Column::new("PROGRESS", |n: &BootNode, _| progress(n)),
    Column::new("WORKFLOW", |n: &BootNode, _| optional(n.workflow_id.as_ref())),
    Column::new("MACHINE", |n: &BootNode, _| machine(n)),
    Column::new("HOSTNAME", |n: &BootNode, _| n.hostname.clone()).flex(),
    Column::new("SEEN", |n: &BootNode, now| relative(n.last_seen.as_ref(), now)).narrow(),
    Column::new("FAILED", |n: &BootNode, _| n.install_attempts.to_string()).wide(),
    Column::new("GROUP", |n: &BootNode, _| n.group.clone()).wide(),
    Column::new("ADDRESS", |n: &BootNode, _| n.ip_address.clone()).wide(),
    Column::new("VENDOR", |n: &BootNode, _| n.vendor.clone()).wide(),
    Column::new("MODEL", |n: &BootNode, _| n.model.clone()).wide(),
    Column::new("SERIAL", |n: &BootNode, _| n.serial_number.clone()).wide(),
    Column::new("SYSTEM UUID", |n: &BootNode, _| n.system_uuid.clone()).wide(),
    Column::new("ARCH", |n: &BootNode, _| n.arch.clone()).wide(),
    Column::new("SINCE", |n: &BootNode, _| rfc3339(n.state_changed_at.as_ref())).wide(),
    Column::new("SEEN", |n: &BootNode, _| rfc3339(n.last_seen.as_ref())).wide(),
    Column::new("ORDER", |n: &BootNode, _| n.order.as_ref().map(|o| o.task.clone()).unwrap_or_default()).wide(),
    Column::new("VERSION", |n: &BootNode, _| n.version.to_string()).wide(),
    Column::new("ERROR", |n: &BootNode, _| optional(n.last_install_error.as_ref())).flex().narrow(),
    Column::new("ERROR", |n: &BootNode, _| optional(n.last_install_error.as_ref())).wide(),
];

/// The machine that it is, or may be.
fn machine(node: &BootNode) -> String {
    match (&node.machine_id, &node.proposed_machine_id) {
        (Some(id), _) => id.clone(),
        (None, Some(id)) => format!("{id}?"),
        (None, None) => String::new(),
    }
}

impl Listed for BootNode {
    type Message = Self;
    const PLURAL: &'static str = "nodes";
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

static MOVES: [Column<BootNodeMove>; 8] = [
    Column::new("AT", |m: &BootNodeMove, now| relative(m.created_at.as_ref(), now)).narrow(),
    Column::new("AT", |m: &BootNodeMove, _| rfc3339(m.created_at.as_ref())).wide(),
    Column::new("FROM", |m: &BootNodeMove, _| m.from_state.clone()),
    Column::new("TO", |m: &BootNodeMove, _| m.to_state.clone()).state(),
    Column::new("BY", |m: &BootNodeMove, _| m.triggered_by.clone()),
    Column::new("USER", |m: &BootNodeMove, _| optional(m.user_id.as_ref())),
    Column::new("WITH", metadata).flex(),
    Column::new("COMMENT", |m: &BootNodeMove, _| optional(m.comment.as_ref())).flex(),
];

fn metadata(row: &BootNodeMove, _: Timestamp) -> String {
    use prost_types::value::Kind;
    let shown = |kind: &Option<Kind>| match kind {
        Some(Kind::StringValue(text)) => text.clone(),
        Some(Kind::NumberValue(number)) => number.to_string(),
        Some(Kind::BoolValue(yes)) => yes.to_string(),
        Some(Kind::NullValue(_) | Kind::StructValue(_) | Kind::ListValue(_)) | None => "…".to_owned(),
    };
    let fields = row.metadata.iter().flat_map(|data| &data.fields);
    show_pairs(&fields.map(|(name, value)| (name.clone(), shown(&value.kind))).collect::<BTreeMap<_, _>>())
}

impl Listed for BootNodeMove {
    type Message = Self;
    const PLURAL: &'static str = "data";
    const PAGED: bool = false;

    fn columns() -> &'static [Column<Self>] {
        &MOVES
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn message(&self) -> &Self {
        self
    }
}

static RESULTS: [Column<BootNodeResult>; 5] = [
    Column::new("NODE", |r: &BootNodeResult, _| r.id.clone()),
    Column::new("RESULT", |r: &BootNodeResult, _| if r.ok { "ok" } else { "refused" }.to_owned()).state(),
    Column::new("STATE", |r: &BootNodeResult, _| r.state.clone()).state(),
    Column::new("REASON", |r: &BootNodeResult, _| r.reason.clone()),
    Column::new("MESSAGE", |r: &BootNodeResult, _| r.message.clone()).flex(),
];

impl Listed for BootNodeResult {
    type Message = Self;
    const PLURAL: &'static str = "results";
    const PAGED: bool = false;

    fn columns() -> &'static [Column<Self>] {
        &RESULTS
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn message(&self) -> &Self {
        self
    }
}

/// The installer's last lines.
pub fn last_lines(order: &InstallOrder, most: usize) -> Vec<String> {
    let lines: Vec<&str> = order.log_tail.lines().collect();
    lines.iter().skip(lines.len().saturating_sub(most)).map(|line| clean(line)).collect()
}

pub fn sheet(node: &BootNode, screen: Screen, now: Timestamp) -> Vec<String> {
    let mut sheet = Sheet::new(screen, now);
    let proposed = node.proposed_machine_id.as_ref().map(|id| format!("{id} (approve with --link to confirm)"));
    sheet
        .row("Boot node", &node.id)
        .row("MAC", &node.mac_address)
        .state("State", &node.state)
        .row("Since", &dated(node.state_changed_at.as_ref(), now))
        .row("Workflow", &optional(node.workflow_id.as_ref()))
        .row("Machine", &optional(node.machine_id.as_ref()))
        .row("May be", &proposed.unwrap_or_default())
        .row("Group", &node.group);
    if node.install_attempts > 0 {
        sheet.row("Failed", &format!("{} attempts", node.install_attempts));
    }
    sheet
        .row("Last error", &optional(node.last_install_error.as_ref()))
        .gap()
        .row("Hostname", &node.hostname)
        .row("Address", &node.ip_address)
        .row("Vendor", &node.vendor)
        .row("Model", &node.model)
        .row("Serial", &node.serial_number)
        .row("System UUID", &node.system_uuid)
        .row("Arch", &node.arch)
        .row("First seen", &dated(node.created_at.as_ref(), now))
        .row("Last seen", &dated(node.last_seen.as_ref(), now));
    if let Some(order) = &node.order {
        sheet
            .gap()
            .row("Order", &format!("{} ({})", order.task, order.id))
            .state("Is", &order.state)
            .row("Because", &order.closed_because)
            .row("Opened", &format!("{} by {}", dated(order.opened_at.as_ref(), now), order.opened_by))
            .row("Run", &order.run_id)
            .row("Image", &order.image)
            .row("Attempt", &order.attempt.to_string())
            .row("Handed out", &dated(order.offered_at.as_ref(), now))
            .row("Began", &dated(order.started_at.as_ref(), now))
            .row("Reported", &dated(order.last_report_at.as_ref(), now))
            .row("Closed", &dated(order.closed_at.as_ref(), now));
        if let Some(percent) = node.install_progress.filter(|_| order.state == "open") {
            sheet.row("Progress", &bar(percent));
        }
        sheet.rows("Lines", last_lines(order, LINES));
    }
    sheet.row("Version", &node.version.to_string());
    sheet.lines()
}

/// What the lifecycle says of a move. Whether a machine is in use, only the server knows.
pub fn judge(trial: &mut DryRun, node: &BootNode, wish: &SetBootNodeStateRequest) {
    let (Some(from), Some(to)) = (BootState::parse(&node.state), BootState::parse(&wish.state)) else { return };
    let next: Vec<&str> = allowed_next(Some(from), Owner::Operator).into_iter().map(BootState::as_str).collect();
    match verdict(Some(from), to, SET_STATE, Owner::Operator) {
        _ if from == to && open_order(node).is_none() && to == BootState::Pending => {
            trial.fine(format!("it is {from}, and no order is open"));
        }
        _ if from == to => trial.fine(format!("it is {from} already")),
        Verdict::Allowed(_) => trial.fine(format!("it is {from}, from where {to} is allowed")),
        Verdict::NotYours(_) | Verdict::Illegal => {
            let why = format!("it is {from}, and from there {to} is not yours to say");
            trial.obstacle(CliError::refused(why).because("ILLEGAL_TRANSITION").allowing(&next));
        }
    }
    if to == BootState::Pending && node.workflow_id.is_none() {
        trial.obstacle(CliError::refused("nothing says what it is to be installed with").because("WORKFLOW_MISSING"));
    }
    if to == BootState::Pending && from == BootState::InstallFailed && !wish.force {
        trial.obstacle(CliError::refused("it has failed for good; `retry` resets it").because("FORCE_NEEDED"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(state: &str) -> BootNode {
        BootNode { id: "btn_1".into(), mac_address: "52:54:00:00:00:01".into(), state: state.into(), ..<_>::default() }
    }

    #[test]
    fn a_bar_is_as_long_as_it_is_done() {
        assert_eq!(bar(0), format!("[{}]   0%", "-".repeat(30)));
        assert_eq!(bar(50), format!("[{}{}]  50%", "#".repeat(15), "-".repeat(15)));
        assert_eq!(bar(250), format!("[{}] 100%", "#".repeat(30)));
        assert_eq!(bar(-1), bar(0));
    }

    #[test]
    fn a_sheet_has_the_order_its_progress_and_its_last_lines() {
        let order = InstallOrder {
            id: "ord_1".into(),
            task: "install".into(),
            state: "open".into(),
            attempt: 2,
            log_tail: (0..40).map(|n| format!("line {n}\n")).collect(),
            ..InstallOrder::default()
        };
        let node = BootNode { order: Some(order), install_progress: Some(40), ..node("installing") };
        let text = sheet(&node, Screen::PLAIN, Timestamp::UNIX_EPOCH).join("\n");
        assert!(text.contains("[############------------------]  40%"), "{text}");
        assert!(text.contains("line 39") && !text.contains("line 27"), "{text}");
        assert!(sheet(&BootNode::default(), Screen::PLAIN, Timestamp::UNIX_EPOCH).len() < 6);
    }

    #[test]
    fn a_look_tells_what_would_be_refused() {
        let verdict = |node: &BootNode, state: &str, force: bool| {
            let wish = SetBootNodeStateRequest { id: "btn_1".into(), state: state.into(), force, ..<_>::default() };
            let mut trial = DryRun::new("x", "btn_1", &wish).expect("shown");
            judge(&mut trial, node, &wish);
            trial.verdict().map(super::super::exit::Exit::code)
        };
        let with = |state: &str| BootNode { workflow_id: Some("w".into()), ..node(state) };
        assert_eq!(verdict(&with("discovered"), "pending", false), None);
        assert_eq!(verdict(&node("discovered"), "pending", false), Some(4), "no workflow");
        assert_eq!(verdict(&with("install_failed"), "pending", false), Some(4));
        assert_eq!(verdict(&with("install_failed"), "pending", true), None);
        assert_eq!(verdict(&with("discovered"), "active", false), Some(4));
        assert_eq!(verdict(&with("active"), "deprovisioning", false), None);
    }
}
