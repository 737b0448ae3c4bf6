//! An install order: one wish to install, or to erase, a boot node. Opened by an approval, a reset or a run; closed by
//! success, by the last failure that is allowed, or by whoever takes it back. Only an open order makes the boot
//! service serve an installer.

use crate::boot_node::BOOTS_WITHIN;
use crate::id::{BootNodeId, OrderId, RunId};
use crate::lifecycle::{Deadline, Edge, Guard, Owner, State};
use crate::time::Timestamp;
use std::fmt;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OrderState {
    Open,
    Closed,
}

pub const OPENED: &str = "opened";
pub const CLOSED: &str = "closed";

const fn open(owner: Owner) -> Edge<OrderState> {
    Edge { from: None, to: OrderState::Open, trigger: OPENED, owner, guard: Guard::None }
}

const fn close(owner: Owner) -> Edge<OrderState> {
    Edge { from: Some(OrderState::Open), to: OrderState::Closed, trigger: CLOSED, owner, guard: Guard::None }
}

static EDGES: &[Edge<OrderState>] = &[
    open(Owner::Operator),
    open(Owner::Executor),
    close(Owner::Node),
    close(Owner::Operator),
    close(Owner::Executor),
    close(Owner::Reconciler),
];

impl State for OrderState {
    const ENTITY: &'static str = "install_order";
    const ALL: &'static [Self] = &[OrderState::Open, OrderState::Closed];

    fn as_str(self) -> &'static str {
        match self {
            OrderState::Open => "open",
            OrderState::Closed => "closed",
        }
    }

    fn edges() -> &'static [Edge<Self>] {
        EDGES
    }

    fn deadline(self) -> Deadline {
        match self {
            // what the node's own state says
            OrderState::Open => Deadline::FindingAfter(BOOTS_WITHIN),
            OrderState::Closed => Deadline::AtRest,
        }
    }
}

/// What is to be done to the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OrderTask {
    Install,
    Erase,
}

impl OrderTask {
    pub const ALL: [OrderTask; 2] = [OrderTask::Install, OrderTask::Erase];

    pub const fn as_str(self) -> &'static str {
        match self {
            OrderTask::Install => "install",
            OrderTask::Erase => "erase",
        }
    }
}

impl fmt::Display for OrderTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why an order was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Closing {
    Done,
    /// The last attempt that is allowed has failed.
    Failed,
    Canceled,
    /// Its node was retired.
    Retired,
}

impl Closing {
    pub const ALL: [Closing; 4] = [Closing::Done, Closing::Failed, Closing::Canceled, Closing::Retired];

    pub const fn as_str(self) -> &'static str {
        match self {
            Closing::Done => "done",
            Closing::Failed => "failed",
            Closing::Canceled => "canceled",
            Closing::Retired => "retired",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallOrder {
    pub id: OrderId,
    pub node_id: BootNodeId,
    pub task: OrderTask,
    pub state: OrderState,
    pub version: u64,
    pub workflow_id: String,
    /// In the place of the workflow's own, where a run names one.
    pub image: String,
    /// The credential that holds the cloud-init data; empty: none.
    pub user_data_ref: String,
    pub opened_by: String,
    /// The run that follows it, and the step in whose log the installer's lines belong.
    pub run: Option<(RunId, String)>,
    /// Of the attempt of that step; empty: no run has opened it.
    pub operation: String,
    pub opened_at: Timestamp,
    /// The attempt that is being made, or is made at the next boot; from 1.
    pub attempt: u32,
    /// When the installer of this attempt was first handed out.
    pub offered_at: Option<Timestamp>,
    /// When this attempt said that it began.
    pub started_at: Option<Timestamp>,
    pub last_report_at: Option<Timestamp>,
    /// Percent.
    pub progress: Option<u8>,
    /// The installer's own last lines.
    pub log_tail: String,
    /// What an erasure proves itself by, as JSON.
    pub evidence: String,
    pub closed: Option<(Timestamp, Closing)>,
    /// When it first asked what to boot after it was installed, and was sent to its disk.
    pub disk_boot_at: Option<Timestamp>,
}

impl InstallOrder {
    pub fn is_open(&self) -> bool {
        match self.state {
            OrderState::Open => true,
            OrderState::Closed => false,
        }
    }

    /// The image or workflow that it was asked for by.
    pub fn names(&self) -> &str {
        if self.image.is_empty() { &self.workflow_id } else { &self.image }
    }

    /// By when something must be heard of the present attempt, or be noticed: its installer's next word once it was
    /// handed out, its boot before that. What a freeze has held up counts from the end of that.
    pub fn due(&self, silent_after: Duration, thawed: Option<Timestamp>) -> Timestamp {
        let later = |at: Timestamp| thawed.map_or(at, |thawed| at.max(thawed));
        match self.heard_at().or(self.offered_at) {
            Some(heard) => later(heard).plus(silent_after),
            // the failure of the attempt before it is the last thing that was reported
            None => later(self.last_report_at.unwrap_or(self.opened_at)).plus(BOOTS_WITHIN),
        }
    }

    /// When the attempt under way was last heard of.
    pub fn heard_at(&self) -> Option<Timestamp> {
        self.started_at.map(|started| self.last_report_at.unwrap_or(started).max(started))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn what_is_due_is_due_of_the_present_attempt() {
        let (at, silent) = (|s: i64| Timestamp::from_micros(s * 1_000_000), Duration::from_secs(60));
        let order = InstallOrder { opened_at: at(0), ..testing::order(OrderTask::Install, 1, false) };
        assert_eq!(order.due(silent, None), at(0).plus(BOOTS_WITHIN));
        let offered = InstallOrder { offered_at: Some(at(100)), ..order.clone() };
        assert_eq!(offered.due(silent, None), at(160));
        let begun = InstallOrder { started_at: Some(at(110)), last_report_at: Some(at(120)), ..offered };
        assert_eq!(begun.due(silent, None), at(180));
        // the first attempt took hours; the second has as long to boot as the first had
        let second = InstallOrder { attempt: 2, last_report_at: Some(at(9_000)), ..order };
        assert_eq!(second.due(silent, None), at(9_000).plus(BOOTS_WITHIN));
        assert_eq!(begun.due(silent, Some(at(10_000))), at(10_060), "a freeze is nobody's silence");
        assert_eq!(begun.due(silent, Some(at(5))), at(180), "one that is long over changes nothing");
    }
}
