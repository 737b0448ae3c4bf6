//! An install order: one wish to install, or to erase, a boot node. Opened by an approval, a reset or a run; closed by
//! success, by the last failure that is allowed, or by whoever takes it back. Only an open order makes the boot
//! service serve an installer.

use crate::id::{BootNodeId, OrderId, RunId};
use crate::lifecycle::{Deadline, Edge, Guard, Owner, State};
use crate::time::Timestamp;
use std::fmt;

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
            OrderState::Open => Deadline::FindingAfter(crate::boot_node::BOOTS_WITHIN),
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

    /// When the attempt under way was last heard of.
    pub fn heard_at(&self) -> Option<Timestamp> {
        self.started_at.map(|started| self.last_report_at.unwrap_or(started).max(started))
    }
}
