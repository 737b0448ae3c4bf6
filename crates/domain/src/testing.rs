//! Values that several tests of this crate begin with.

use crate::boot_node::{BootNode, BootState};
use crate::id::{BootNodeId, OrderId};
use crate::install_order::{InstallOrder, OrderState, OrderTask};
use crate::mac::MacAddress;
use crate::time::Timestamp;

const THEN: Timestamp = Timestamp::from_micros(1);

pub(crate) fn order(task: OrderTask, attempt: u32, started: bool) -> InstallOrder {
    InstallOrder {
        id: OrderId::from_text("ord_1"),
        node_id: BootNodeId::from_text("btn_1"),
        task,
        state: OrderState::Open,
        version: 1,
        workflow_id: "w".into(),
        image: String::new(),
        user_data_ref: String::new(),
        opened_by: "root".into(),
        run: None,
        operation: String::new(),
        opened_at: THEN,
        attempt,
        offered_at: None,
        started_at: started.then_some(THEN),
        last_report_at: None,
        progress: None,
        log_tail: String::new(),
        evidence: String::new(),
        closed: None,
        disk_boot_at: None,
    }
}

pub(crate) fn node(state: BootState) -> BootNode {
    let (id, mac) = (BootNodeId::from_text("btn_1"), MacAddress::from_text("52:54:00:4d:59:01"));
    BootNode { state, workflow_id: "w".into(), ..BootNode::new(id, mac, THEN) }
}
