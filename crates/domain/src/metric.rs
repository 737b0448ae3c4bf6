//! The catalogue of what the server measures: one entry for each metric, with its name, kind, labels and
//! help. Code, dashboard, alerts and the tests that compare them all read this list. Labels have closed
//! sets of values: never a machine, a run, a token, or any other name that a user chose.

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Observations, counted below each of these bounds.
    Histogram(&'static [f64]),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

/// From a quick answer to a slow one.
const ANSWERS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// From at once to somebody should look.
const WAITS: &[f64] = &[0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 1800.0];
/// A boot order takes moments, an installation an hour.
const STAGES: &[f64] = &[0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 2400.0, 3600.0, 7200.0];
const COMMITS: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 8.0];
const BATCHES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

macro_rules! catalogue {
    ($($name:ident = $text:literal, $kind:expr, [$($label:literal),*], $help:literal;)+) => {
        $(pub const $name: Metric =
            Metric { name: concat!("millwright_", $text), kind: $kind, labels: &[$($label),*], help: $help };)+

        pub const ALL: &[Metric] = &[$($name),+];
    };
}

use Kind::{Counter, Gauge, Histogram};

catalogue! {
    // the fleet
    MACHINES = "machines", Gauge, ["phase"],
        "Machines by phase";
    RUNS_ACTIVE = "runs_active", Gauge, ["phase"],
        "Runs that have not ended, by phase";
    TRANSITIONS = "transitions_total", Counter, ["lifecycle", "from", "to"],
        "Committed moves of machines, runs and steps along the edges of their lifecycles";
    FROZEN = "frozen", Gauge, [],
        "1 while an operator has stopped all automation";
    ENDPOINTS_RESTING = "endpoints_resting", Gauge, [],
        "BMCs and hosts that this server leaves alone for a while because they did not answer";

    // the engine
    QUEUE_DEPTH = "queue_depth", Gauge, [],
        "Executions that are due and wait for a free worker; counted up to 10000";
    QUEUE_OLDEST = "queue_oldest_seconds", Gauge, [],
        "How long the longest due execution has been waiting for a worker";
    EXECUTIONS_OPEN = "executions_open", Gauge, ["waits_for"],
        "Executions that have not ended, by what they wait for; the first 50000 are counted";
    CLAIM_LATENCY = "claim_latency_seconds", Histogram(WAITS), [],
        "From the moment an execution is due until a worker has it";
    WORKERS_BUSY = "workers_busy", Gauge, [],
        "Workers of this server that have an execution in hand";
    WORKERS_LIMIT = "workers_limit", Gauge, [],
        "Executions this server works on at the same time, at most";
    STAGE_SECONDS = "stage_seconds", Histogram(STAGES), ["kind", "outcome"],
        "How long attempts at stages took, by kind of step and what came of them; waits and freezes between attempts not counted";
    STAGE_FAILURES = "stage_failures_total", Counter, ["kind", "class"],
        "Attempts at stages that failed, by kind of step and class of failure";
    LEASE_LOSSES = "lease_losses_total", Counter, [],
        "Times that this server lost its session lease and others took over its work";
    LEASE_TAKEOVERS = "lease_takeovers_total", Counter, [],
        "Sessions of other servers that this one has declared dead";
    LEASE_REMAINING = "lease_remaining_seconds", Gauge, [],
        "How long this server's session lease is sure to hold; 0 without one";
    FENCED_WRITES = "fenced_writes_total", Counter, [],
        "Writes of workers that were refused because another holder had taken over";

    // the store
    COMMIT_BATCH = "commit_batch_size", Histogram(BATCHES), [],
        "Changes committed together";
    COMMIT_SECONDS = "commit_seconds", Histogram(COMMITS), [],
        "How long a batch of changes took from its first statement until it was durable";
    COMMIT_FAILURES = "commit_failures_total", Counter, ["reason"],
        "Batches that were not committed; those with reason conflict were run again";
    STORE_QUEUE = "store_queue_length", Gauge, ["lane"],
        "Closures that wait for a thread of the store";
    STORE_REFUSED = "store_refused_total", Counter, ["lane"],
        "Closures refused because their queue, or their caller's share of it, was full";
    STORE_UP = "store_up", Gauge, [],
        "1 if the database answered when these numbers were gathered";
    LOG_HEAD = "log_head", Gauge, [],
        "The last sequence of the log of transitions";
    FEED_LAG = "feed_lag", Gauge, [],
        "Sequences between the log's head and what watchers of this server can see";

    // the doors
    REQUESTS = "requests_total", Counter, ["call", "door", "code"],
        "Calls by name, door and outcome";
    REQUEST_SECONDS = "request_seconds", Histogram(ANSWERS), ["call", "door"],
        "How long calls took; of streams, how long until the first answer";
    STREAMS_OPEN = "streams_open", Gauge, ["call", "door"],
        "Streams that are being followed";
    CONNECTIONS_OPEN = "connections_open", Gauge, [],
        "Connections to this server";
    CONNECTIONS_LIMIT = "connections_limit", Gauge, [],
        "Connections this server accepts at the same time, at most";
    HANDSHAKE_FAILURES = "tls_handshake_failures_total", Counter, [],
        "Connections that ended before their TLS handshake had";
    TLS_RELOADS = "tls_reloads_total", Counter, ["outcome"],
        "Times that changed certificate files were read; after one that failed the old pair stays in use";
    TLS_EXPIRY = "tls_certificate_expiry_timestamp_seconds", Gauge, [],
        "When the certificate in use ends, as Unix time; absent without TLS";

    // network boot
    BOOT_DECISIONS = "boot_decisions_total", Counter, ["served"],
        "Machines that asked what to boot, by what they were served";
    BOOT_REPORTS = "boot_reports_total", Counter, ["said", "outcome"],
        "Reports of installers and discovery boots, by what they said and what came of it";
    NETBOOT = "netboot_total", Counter, ["what"],
        "DHCP and TFTP on the provisioning network: what was heard and what was done";
    IMAGE_READERS = "image_readers", Gauge, [],
        "Machines that are reading an image now";

    // agents
    AGENTS_CONNECTED = "agents_connected", Gauge, [],
        "Agents whose stream this server has";
    AGENT_HEARTBEATS = "agent_heartbeats_total", Counter, [],
        "Heartbeats of agents that this server has heard";
    AGENT_ENROLMENTS = "agent_enrolments_total", Counter, ["outcome"],
        "Agents that asked for an identity, by what came of it";
    AGENT_TASKS = "agent_tasks_total", Counter, ["outcome"],
        "Tasks that were handed to agents, and what agents said of them";
    AGENT_REFUSALS = "agent_refusals_total", Counter, ["why"],
        "Connections and calls at the agents' port that were refused for their certificate, or for want of room";

    // the process
    BUILD_INFO = "build_info", Gauge, ["version"],
        "1, with the version of this server";
    START_TIME = "start_time_seconds", Gauge, [],
        "When this server was started, as Unix time";
    MEMORY = "resident_memory_bytes", Gauge, [],
        "Memory of this process";
    FILES_OPEN = "open_files", Gauge, [],
        "File descriptors that this process has open";
}

/// Values of `waits_for`.
pub const WAITS_FOR: [&str; 8] =
    ["working", "worker", "machine", "backoff", "rack_cap", "brake", "hand_over", "operator"];

/// Values of `lane`.
pub const LANES: [&str; 3] = ["writes", "reads", "engine_reads"];

/// Values of `served`.
pub const SERVED: [&str; 6] = ["disk", "discover", "installer", "wait", "error", "refused"];

/// Values of `said`, and of `outcome`.
pub const SAID: [&str; 5] = ["facts", "started", "progress", "complete", "failed"];
pub const REPORTED: [&str; 3] = ["applied", "ignored", "refused"];

/// Values of `what`.
pub const HEARD_AND_DONE: [&str; 20] = [
    "dhcp_received",
    "dhcp_offers",
    "dhcp_acks",
    "dhcp_naks",
    "dhcp_ended",
    "dhcp_malformed",
    "dhcp_too_many",
    "dhcp_not_for_us",
    "dhcp_nothing_to_give",
    "dhcp_not_kept",
    "tftp_received",
    "tftp_malformed",
    "tftp_refused",
    "tftp_too_many",
    "tftp_begun",
    "tftp_done",
    "tftp_broken",
    "tftp_resent",
    "tftp_strangers",
    "send_failures",
];

/// Values of `outcome` of enrolments.
pub const ENROLLED: [&str; 4] = ["enrolled", "again", "refused", "failed"];

/// Values of `outcome` of agents' tasks.
pub const TASKED: [&str; 7] = ["dispatched", "sent_again", "canceled", "done", "failed", "refused", "not_applied"];

/// Values of `why`.
pub const TURNED_AWAY: [&str; 12] = [
    "missing",
    "foreign",
    "expired",
    "not_yet_valid",
    "wrong_purpose",
    "wrong_name",
    "malformed",
    "unknown",
    "revoked",
    "suspended",
    "flood",
    "no_room",
];

/// What came of an attempt at a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageOutcome {
    Done,
    /// Failed, and tried again.
    Retried,
    /// Failed for good.
    Failed,
    Canceled,
    /// Taken back.
    Undone,
    /// Could not be taken back this time.
    UndoFailed,
}

impl StageOutcome {
    pub const fn as_str(self) -> &'static str {
        match self {
            StageOutcome::Done => "done",
            StageOutcome::Retried => "retried",
            StageOutcome::Failed => "failed",
            StageOutcome::Canceled => "canceled",
            StageOutcome::Undone => "undone",
            StageOutcome::UndoFailed => "undo_failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_follow_the_customs_of_prometheus() {
        let mut seen = HashSet::new();
        for metric in ALL {
            assert!(seen.insert(metric.name), "{} stands twice", metric.name);
            let plain = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(metric.name.chars().all(plain) && metric.name.starts_with("millwright_"), "{}", metric.name);
            assert!(metric.labels.iter().all(|l| l.chars().all(plain)), "{:?}", metric.labels);
            assert!(metric.help.len() > 10 && !metric.help.ends_with('.'), "{}", metric.help);
            let counted = metric.name.ends_with("_total");
            assert_eq!(counted, metric.kind == Counter, "{}: counters, and nothing else, end in _total", metric.name);
            if let Histogram(bounds) = metric.kind {
                assert!(bounds.is_sorted() && !bounds.is_empty(), "{}", metric.name);
            }
        }
    }

    /// Numbers, not names, belong to machines, runs and callers.
    #[test]
    fn no_label_grows_with_the_fleet() {
        for metric in ALL {
            for label in metric.labels {
                let bad = ["machine", "run", "execution", "token", "caller", "user", "plan", "rack", "step", "session"];
                assert!(!bad.contains(label), "{} by {label} grows without bound", metric.name);
            }
        }
    }
}
