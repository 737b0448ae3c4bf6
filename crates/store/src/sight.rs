//! What the store tells the metrics: counted when it is committed, not when it is tried.

use crate::db::NewLogRow;
use crate::error::{DbError, DbFailure, Failure};
use crate::store::Store;
use domain::boot_node::BootState;
use domain::lifecycle::State as _;
use domain::metric;
use std::time::Duration;

/// A move into being has no state before it.
const NEW: &str = "new";

pub(crate) fn committed(changes: usize, log: &[NewLogRow], took: Duration) {
    metrics::histogram!(metric::COMMIT_BATCH.name).record(changes as f64);
    metrics::histogram!(metric::COMMIT_SECONDS.name).record(took);
    for row in log {
        let from = if row.from_state.is_empty() { NEW } else { row.from_state };
        moved(row.entity_kind, from, row.to_state).increment(1);
        if row.entity_kind == BootState::ENTITY {
            told(row);
        }
    }
}

/// Each move of a boot node, in the program's own log as well: this is where all of them come by, whoever made them.
fn told(row: &NewLogRow) {
    let NewLogRow { entity_id, from_state, to_state, trigger, owner, actor, comment, .. } = row;
    tracing::info!(node = %entity_id, from = %from_state, to = %to_state, %trigger, by = %owner, %actor, comment = ?comment, "a boot node moved");
}

fn moved(lifecycle: &'static str, from: &'static str, to: &'static str) -> metrics::Counter {
    metrics::counter!(metric::TRANSITIONS.name, "lifecycle" => lifecycle, "from" => from, "to" => to)
}

pub(crate) fn not_committed(failure: &Failure) {
    let reason = match failure {
        Failure::Lost(_) | Failure::Db(DbFailure(DbError::Conflict(_))) => "conflict",
        Failure::Db(DbFailure(DbError::Full(_))) => "full",
        Failure::Db(DbFailure(DbError::Away(_) | DbError::Timeout(_))) => "away",
        Failure::Db(DbFailure(DbError::CommitUnknown(_))) => "unknown",
        Failure::Refused(_) | Failure::Fenced(_) | Failure::Db(DbFailure(DbError::Defect(_))) => "defect",
    };
    metrics::counter!(metric::COMMIT_FAILURES.name, "reason" => reason).increment(1);
}

pub(crate) fn refused(lane: &'static str) {
    metrics::counter!(metric::STORE_REFUSED.name, "lane" => lane).increment(1);
}

impl Store {
    /// Says how much waits in front of the store's threads.
    pub fn tell_queues(&self) {
        for (lane, waiting) in metric::LANES.into_iter().zip(self.waiting()) {
            metrics::gauge!(metric::STORE_QUEUE.name, "lane" => lane).set(waiting as f64);
        }
    }
}

/// Makes what has not happened yet visible as zero, so that its first time is seen as a change.
pub fn tell_zeros() {
    fn edges<S: domain::lifecycle::State>() {
        for edge in S::edges() {
            moved(S::ENTITY, edge.from.map_or(NEW, S::as_str), edge.to.as_str()).increment(0);
        }
    }
    edges::<domain::machine::Phase>();
    edges::<domain::run::RunPhase>();
    edges::<domain::step::StepState>();
    edges::<domain::token::TokenState>();
    edges::<domain::condition::ConditionStatus>();
    edges::<domain::credential::CredentialState>();
    edges::<domain::pin::PinState>();
    edges::<domain::boot_node::BootState>();
    edges::<domain::install_order::OrderState>();
    edges::<domain::image::ImageState>();
    edges::<domain::site::SiteState>();
    edges::<domain::finding::FindingState>();
    edges::<domain::node::NodeStatus>();
    edges::<domain::job::JobStatus>();
    edges::<domain::task::TaskStatus>();
    for reason in ["conflict", "full", "away", "unknown", "defect"] {
        metrics::counter!(metric::COMMIT_FAILURES.name, "reason" => reason).increment(0);
    }
    for lane in metric::LANES {
        metrics::counter!(metric::STORE_REFUSED.name, "lane" => lane).increment(0);
    }
}
