//! How nodes are shown: in lists, on a sheet, in one line; and what became of each of several.

use super::output::{Column, Listed, Screen};
use super::sheet::Sheet;
use super::text::{clean, dated, relative, rfc3339};
use jiff::Timestamp;
use proto::millwright::v1::{ActionResult, Node, NodeAgent, NodeRecord};

fn optional(text: Option<&String>) -> String {
    text.cloned().unwrap_or_default()
}

fn heartbeat(node: &Node) -> Option<&prost_types::Timestamp> {
    node.agent.as_ref().and_then(|a| a.last_heartbeat.as_ref())
}

fn schedulable(node: &Node) -> String {
    if node.schedulable { "yes".to_owned() } else { "no".to_owned() }
}

fn identity(node: &Node) -> String {
    node.agent.as_ref().map(|a| a.identity.clone()).filter(|text| !text.is_empty()).unwrap_or_else(|| "none".to_owned())
}

fn agent_version(node: &Node) -> String {
    node.agent.as_ref().map(|a| a.version.clone()).unwrap_or_default()
}

static COLUMNS: [Column<Node>; 18] = [
    Column::new("NODE", |n: &Node, _| n.id.clone()),
    Column::new("NAME", |n: &Node, _| n.name.clone()).flex(),
    Column::new("STATUS", |n: &Node, _| n.status.clone()).state(),
    Column::new("SCHEDULABLE", |n: &Node, _| schedulable(n)),
    Column::new("MACHINE", |n: &Node, _| optional(n.machine_id.as_ref())),
    Column::new("HEARTBEAT", |n: &Node, now| relative(heartbeat(n), now)).narrow(),
    Column::new("SINCE", |n: &Node, now| relative(n.status_changed_at.as_ref(), now)).narrow(),
    Column::new("CORDONED BY", |n: &Node, _| n.cordoned_by.clone()).wide(),
    Column::new("JOB", |n: &Node, _| optional(n.active_job_id.as_ref())).wide(),
    Column::new("AGENT", |n: &Node, _| identity(n)).wide(),
    Column::new("VERSION", |n: &Node, _| agent_version(n)).wide(),
    Column::new("MODE", |n: &Node, _| n.agent_mode.clone()).wide(),
    Column::new("HEARTBEAT", |n: &Node, _| rfc3339(heartbeat(n))).wide(),
    Column::new("SINCE", |n: &Node, _| rfc3339(n.status_changed_at.as_ref())).wide(),
    Column::new("BOOT NODE", |n: &Node, _| optional(n.boot_node_id.as_ref())).wide(),
    Column::new("CREATED", |n: &Node, _| rfc3339(n.created_at.as_ref())).wide(),
    Column::new("BY", |n: &Node, _| n.created_by.clone()).wide(),
    Column::new("NOT SCHEDULABLE", |n: &Node, _| n.unschedulable_because.clone()).wide(),
];

impl Listed for Node {
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

/// A row of a history, with its number as its name.
pub struct Record {
    row: NodeRecord,
    sequence: String,
}

impl Record {
    pub fn new(row: NodeRecord) -> Self {
        Self { sequence: row.sequence.to_string(), row }
    }
}

static RECORDS: [Column<Record>; 10] = [
    Column::new("AT", |r: &Record, now| relative(r.row.at.as_ref(), now)).narrow(),
    Column::new("SEQUENCE", |r: &Record, _| r.sequence.clone()).wide(),
    Column::new("AT", |r: &Record, _| rfc3339(r.row.at.as_ref())).wide(),
    Column::new("OF", |r: &Record, _| r.row.entity_kind.clone()),
    Column::new("ID", |r: &Record, _| r.row.entity_id.clone()).wide(),
    Column::new("FROM", |r: &Record, _| r.row.from.clone()),
    Column::new("TO", |r: &Record, _| r.row.to.clone()).state(),
    Column::new("BY", |r: &Record, _| r.row.trigger.clone()),
    Column::new("ACTOR", |r: &Record, _| format!("{} ({})", r.row.actor, r.row.owner)),
    Column::new("COMMENT", |r: &Record, _| r.row.comment.clone()).flex(),
];

impl Listed for Record {
    type Message = NodeRecord;
    const PLURAL: &'static str = "data";
    const PAGED: bool = false;

    fn columns() -> &'static [Column<Self>] {
        &RECORDS
    }

    fn id(&self) -> &str {
        &self.sequence
    }

    fn message(&self) -> &NodeRecord {
        &self.row
    }
}

/// In one word.
fn became(r: &ActionResult) -> &'static str {
    match (r.tried, r.ok) {
        (false, _) => "untried",
        (true, true) => "ok",
        (true, false) => "refused",
    }
}

static RESULTS: [Column<ActionResult>; 4] = [
    Column::new("ID", |r: &ActionResult, _| r.id.clone()),
    Column::new("RESULT", |r: &ActionResult, _| became(r).to_owned()).state(),
    Column::new("REASON", |r: &ActionResult, _| r.reason.clone()),
    Column::new("MESSAGE", |r: &ActionResult, _| if r.ok { r.effect.clone() } else { r.message.clone() }).flex(),
];

impl Listed for ActionResult {
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

/// Status, stage and what comes next, on one line.
pub fn line(node: &Node) -> String {
    let mut text = format!("{} ({})  {}", node.id, node.name, node.status);
    if node.cordoned {
        text.push_str(", cordoned");
    }
    if let Some(l) = node.lifecycle.as_ref().filter(|l| !l.job_id.is_empty() && node.active_job_id.is_some()) {
        text.push_str(&format!("  {} {} at {}", l.kind, l.workflow_state, l.current_stage));
    }
    if let Some(agent) = node.agent.as_ref().filter(|a| !a.identity.is_empty()) {
        let heard = if agent.connected { "connected" } else { "silent" };
        text.push_str(&format!("  agent {}, {heard}", agent.identity));
    }
    clean(&text)
}

pub fn sheet(node: &Node, screen: Screen, now: Timestamp) -> Vec<String> {
    let mut sheet = Sheet::new(screen, now);
    let placed = if node.schedulable { "yes".to_owned() } else { format!("no: {}", node.unschedulable_because) };
    let cordon = match (node.cordoned, node.cordon_reason.as_str()) {
        (false, _) => String::new(),
        (true, "") => format!("by {}", node.cordoned_by),
        (true, why) => format!("by {}: {why}", node.cordoned_by),
    };
    sheet
        .row("Node", &node.id)
        .row("Name", &node.name)
        .state("Status", &node.status)
        .row("Because", &node.status_reason)
        .row("Since", &dated(node.status_changed_at.as_ref(), now))
        .row("Schedulable", &placed)
        .row("Cordoned", &cordon)
        .row("Machine", &optional(node.machine_id.as_ref()))
        .row("Boot node", &optional(node.boot_node_id.as_ref()))
        .row("MAAS", &node.maas.as_ref().map(|maas| maas.says.clone()).unwrap_or_default())
        .row("Reached at", &node.management_ip);
    if let Some(l) = &node.lifecycle {
        sheet
            .gap()
            .row("Job", &if l.job_id.is_empty() { String::new() } else { format!("{} ({})", l.job_id, l.kind) })
            .state("Workflow state", &l.workflow_state)
            .row("Current stage", &l.current_stage)
            .row("Attempt count", &l.attempt_count.to_string())
            .row("Failure class", &l.failure_class)
            .row("Last observed", &l.last_observed_state)
            .row("Next action", &l.recommended_next_action)
            .row("Message", &l.message);
    }
    sheet.gap();
    if let Some(a) = node.agent.as_ref().filter(|a| !a.identity.is_empty()) {
        agent(&mut sheet, a, now);
    }
    if node.agent_mode != "keep" {
        sheet.row("Wished for", &node.agent_mode);
    }
    sheet
        .row("Bundle until", &dated(node.bundle_expires_at.as_ref(), now))
        .gap()
        .row("Created", &format!("{} by {}", dated(node.created_at.as_ref(), now), node.created_by))
        .row("Version", &node.version.to_string());
    sheet.lines()
}

fn agent(sheet: &mut Sheet, a: &NodeAgent, now: Timestamp) {
    let because = if a.identity_reason.is_empty() { String::new() } else { format!(": {}", a.identity_reason) };
    sheet
        .row("Agent", &a.version)
        .row("Identity", &format!("{}{because}", a.identity))
        .row("Heartbeat", &dated(a.last_heartbeat.as_ref(), now))
        .row("Without a gap", &a.heartbeats.to_string())
        .row("Clock skew", &format!("{} ms", a.clock_skew_ms))
        .row("Certificate", &dated(a.certificate_until.as_ref(), now))
        .row("Enrolled", &dated(a.enrolled_at.as_ref(), now))
        .row("Boot id", &a.boot_id);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::millwright::v1::Lifecycle;

    #[test]
    fn a_sheet_has_the_six_fields_of_the_lifecycle() {
        let lifecycle = Lifecycle {
            job_id: "job_1".into(),
            kind: "drain".into(),
            workflow_state: "failed_retryable".into(),
            current_stage: "drain_node".into(),
            attempt_count: 2,
            failure_class: "transient".into(),
            last_observed_state: "agent: last heard 3 s before".into(),
            recommended_next_action: "retry_stage".into(),
            message: "no answer".into(),
        };
        let node = Node { id: "nod_1".into(), lifecycle: Some(lifecycle), ..Node::default() };
        let text = sheet(&node, Screen::PLAIN, Timestamp::UNIX_EPOCH).join("\n");
        for (label, value) in [
            ("Workflow state", "failed_retryable"),
            ("Current stage", "drain_node"),
            ("Attempt count", "2"),
            ("Failure class", "transient"),
            ("Last observed", "agent: last heard 3 s before"),
            ("Next action", "retry_stage"),
        ] {
            let is = |line: &str| line.starts_with(label) && line.ends_with(value);
            assert!(text.lines().any(is), "{label}: {text}");
        }
    }

    #[test]
    fn what_was_not_tried_is_neither_done_nor_refused() {
        let result = |tried, ok| ActionResult { tried, ok, ..ActionResult::default() };
        assert_eq!(
            [result(true, true), result(true, false), result(false, false)].map(|r| became(&r)),
            ["ok", "refused", "untried"]
        );
    }
}
