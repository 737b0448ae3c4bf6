//! Values that several tests of this crate begin with.

use crate::boot_node::{BootNode, BootState, Claims};
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
    BootNode {
        id: BootNodeId::from_text("btn_1"),
        mac: MacAddress::from_text("52:54:00:4d:59:01"),
        state,
        version: 1,
        workflow_id: "w".into(),
        failed_workflow_id: String::new(),
        group: String::new(),
        claims: Claims::default(),
        inventory: String::new(),
        looks: 0,
        install_attempts: 0,
        last_install_error: None,
        state_changed_at: THEN,
        machine_id: None,
        proposed_machine_id: None,
        created_at: THEN,
        last_seen: None,
        order: None,
    }
}
