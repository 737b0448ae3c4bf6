//! What a machine that boots from the network is served: a pure function of what is known of it. When in doubt it is
//! its own disk; an installer is only served for an open order, which an approval, a reset or a run has opened.

use crate::boot_node::{BootNode, BootState, MAX_LOOKS};
use crate::boot_workflow::BootWorkflow;
use crate::install_order::OrderTask;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Serve {
    /// Nothing of ours: the firmware goes on to its disk.
    LocalDisk { why: String },
    /// A look at what it is made of, without a token and without touching a disk.
    Discover,
    /// What the open order asks for; the attempt that the token is made for.
    Installer { task: OrderTask, attempt: u32 },
    /// The attempt that had begun has ended with this boot: it is counted, and then decided again.
    AttemptLost,
    /// The script asks again after a while, and at last goes on to the disk.
    Wait { why: String },
    /// The reason on the machine's own console; asks again after a while.
    Error { why: String },
}

/// What the service is set up to do for machines that nobody has approved.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup {
    /// There is a kernel and an initrd for a discovery boot.
    pub can_discover: bool,
    /// Unapproved machines ask again, rather than boot their disks.
    pub strangers_wait: bool,
}

/// `workflow` is that of the open order, if it is there.
pub fn decide(node: &BootNode, workflow: Option<&BootWorkflow>, setup: Setup) -> Serve {
    let disk = |why: &str| Serve::LocalDisk { why: why.to_owned() };
    match node.state {
        BootState::Discovered if setup.can_discover && node.inventory.is_empty() && node.looks < MAX_LOOKS => {
            Serve::Discover
        }
        BootState::Discovered if setup.strangers_wait => {
            Serve::Wait { why: "it waits for somebody to approve it".to_owned() }
        }
        BootState::Discovered => disk("nobody has approved it yet"),
        BootState::Pending | BootState::Installing | BootState::Deprovisioning => ordered(node, workflow),
        BootState::InstallFailed => {
            let error = node.last_install_error.as_deref().unwrap_or("its installation was canceled");
            match &node.last_install_error {
                Some(_) => Serve::Error { why: format!("installation failed: {error}; an operator must reset it") },
                None => disk(error),
            }
        }
        BootState::Installed | BootState::Active | BootState::Migrating => disk("it is installed"),
        BootState::Reprovision => disk("it is marked for a new installation, which nobody has ordered yet"),
        BootState::Retired => disk("it is retired"),
    }
}

/// What a freeze leaves of a decision: no installer and no eraser is handed out, and no attempt is counted as lost.
/// The machine waits, and its console says for whom.
pub fn held_back(serve: Serve, frozen_by: &str, reason: &str) -> Serve {
    match serve {
        Serve::Installer { .. } | Serve::AttemptLost => {
            Serve::Wait { why: format!("all automation is frozen by {frozen_by}: {reason}") }
        }
        Serve::LocalDisk { .. } | Serve::Discover | Serve::Wait { .. } | Serve::Error { .. } => serve,
    }
}

fn ordered(node: &BootNode, workflow: Option<&BootWorkflow>) -> Serve {
    let Some(order) = node.open_order() else {
        return Serve::LocalDisk { why: "no order is open for it".to_owned() };
    };
    let task = match (order.task, node.state) {
        (OrderTask::Install, BootState::Pending | BootState::Installing)
        | (OrderTask::Erase, BootState::Deprovisioning) => order.task,
        (OrderTask::Install | OrderTask::Erase, _) => {
            return Serve::LocalDisk { why: format!("its order is to {}, and it is {}", order.task, node.state) };
        }
    };
    if order.started_at.is_some() {
        return Serve::AttemptLost;
    }
    match (task, workflow) {
        (OrderTask::Erase, _) => Serve::Installer { task, attempt: order.attempt },
        (OrderTask::Install, None) => {
            Serve::Error { why: format!("its workflow {:?} is not there", order.workflow_id) }
        }
        (OrderTask::Install, Some(workflow)) => match workflow.unfit_for(&node.claims.arch, &node.claims.boot_mode) {
            Some(why) => Serve::Error { why },
            None => Serve::Installer { task, attempt: order.attempt },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install_order::{InstallOrder, OrderState};
    use crate::lifecycle::State as _;
    use crate::testing::{node, order};

    fn workflow() -> BootWorkflow {
        BootWorkflow { id: "w".into(), kernel: "vmlinuz".into(), arch: "x86_64".into(), ..BootWorkflow::default() }
    }

    fn of(state: BootState, order: Option<InstallOrder>) -> Serve {
        decide(&BootNode { order, ..node(state) }, Some(&workflow()), Setup::default())
    }

    #[test]
    fn without_an_open_order_no_state_gets_an_installer() {
        let closed = |task| InstallOrder { state: OrderState::Closed, ..order(task, 1, false) };
        for state in BootState::ALL {
            for none in [None, Some(closed(OrderTask::Install)), Some(closed(OrderTask::Erase))] {
                let served = of(*state, none);
                assert!(matches!(served, Serve::LocalDisk { .. }), "{state}: {served:?}");
            }
        }
    }

    #[test]
    fn an_open_order_counts_only_in_its_states() {
        for state in BootState::ALL {
            let install = of(*state, Some(order(OrderTask::Install, 2, false)));
            let wanted = matches!(state, BootState::Pending | BootState::Installing);
            assert_eq!(
                install == Serve::Installer { task: OrderTask::Install, attempt: 2 },
                wanted,
                "{state}: {install:?}"
            );
            let erase = of(*state, Some(order(OrderTask::Erase, 1, false)));
            let wanted = *state == BootState::Deprovisioning;
            assert_eq!(erase == Serve::Installer { task: OrderTask::Erase, attempt: 1 }, wanted, "{state}: {erase:?}");
        }
    }

    #[test]
    fn a_boot_in_the_middle_of_an_attempt_has_ended_it() {
        assert_eq!(of(BootState::Installing, Some(order(OrderTask::Install, 1, true))), Serve::AttemptLost);
        assert_eq!(of(BootState::Deprovisioning, Some(order(OrderTask::Erase, 1, true))), Serve::AttemptLost);
    }

    /// A machine of this architecture that boots so, and is to be installed.
    fn on(arch: &str, boot_mode: &str, workflow: Option<&BootWorkflow>) -> Serve {
        let mut node = BootNode { order: Some(order(OrderTask::Install, 1, false)), ..node(BootState::Pending) };
        (node.claims.arch, node.claims.boot_mode) = (arch.to_owned(), boot_mode.to_owned());
        decide(&node, workflow, Setup::default())
    }

    #[test]
    fn a_workflow_is_served_to_machines_that_can_boot_it() {
        let any = BootWorkflow { arch: String::new(), ..workflow() };
        let uefi = BootWorkflow { boot_mode: "uefi".into(), ..workflow() };
        let bios = BootWorkflow { boot_mode: "bios".into(), ..workflow() };
        let arm = BootWorkflow { arch: "arm64".into(), ..workflow() };
        for (arch, boot_mode, workflow, refused) in [
            ("x86_64", "bios", workflow(), None),
            // iPXE for BIOS calls every machine so
            ("i386", "bios", workflow(), None),
            ("i386", "bios", arm.clone(), Some("arm64, and this machine is i386")),
            ("x86_64", "uefi", arm, Some("arm64, and this machine is x86_64")),
            ("arm64", "uefi", any, None),
            ("x86_64", "uefi", uefi.clone(), None),
            ("i386", "bios", uefi.clone(), Some("uefi, and this machine boots by bios")),
            ("x86_64", "uefi", bios.clone(), Some("bios, and this machine boots by uefi")),
            ("x86_64", "", uefi, None),
            ("i386", "bios", bios, None),
        ] {
            match (on(arch, boot_mode, Some(&workflow)), refused) {
                (Serve::Installer { .. }, None) => {}
                (Serve::Error { why }, Some(wanted)) if why.ends_with(wanted) => {}
                (other, _) => panic!("{arch} {boot_mode} {workflow:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_freeze_holds_back_what_would_write_to_a_disk_and_nothing_else() {
        for state in BootState::ALL {
            for (task, started) in [(OrderTask::Install, false), (OrderTask::Install, true), (OrderTask::Erase, false)]
            {
                let decided = of(*state, Some(order(task, 1, started)));
                let held = held_back(decided.clone(), "ann", "power work");
                match decided {
                    Serve::Installer { .. } | Serve::AttemptLost => assert!(
                        matches!(&held, Serve::Wait { why } if why.contains("ann") && why.contains("power work")),
                        "{state}: {held:?}"
                    ),
                    Serve::LocalDisk { .. } | Serve::Discover | Serve::Wait { .. } | Serve::Error { .. } => {
                        assert_eq!(held, decided, "{state}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_served_is_said_on_the_console() {
        let with = |arch: &str, workflow: Option<&BootWorkflow>| on(arch, "", workflow);
        assert!(matches!(with("arm64", Some(&workflow())), Serve::Error { why } if why.contains("arm64")));
        assert!(matches!(with("x86_64", None), Serve::Error { why } if why.contains("not there")));
        assert!(matches!(with("", Some(&workflow())), Serve::Installer { .. }));
        let failed = BootNode { last_install_error: Some("no disk".into()), ..node(BootState::InstallFailed) };
        assert!(matches!(decide(&failed, None, Setup::default()), Serve::Error { why } if why.contains("no disk")));
    }

    #[test]
    fn strangers_are_looked_at_wait_or_boot_their_disks_as_it_is_set_up() {
        let stranger = node(BootState::Discovered);
        let serve = |can_discover, strangers_wait| decide(&stranger, None, Setup { can_discover, strangers_wait });
        assert_eq!(serve(true, true), Serve::Discover);
        assert!(matches!(serve(false, true), Serve::Wait { .. }));
        assert!(matches!(serve(false, false), Serve::LocalDisk { .. }));
        let known = BootNode { inventory: "{}".into(), ..stranger.clone() };
        let setup = Setup { can_discover: true, strangers_wait: true };
        assert!(matches!(decide(&known, None, setup), Serve::Wait { .. }), "looked at once");
    }

    #[test]
    fn a_look_that_brings_nothing_is_not_tried_for_ever() {
        let setup = Setup { can_discover: true, strangers_wait: false };
        let looked = |looks| decide(&BootNode { looks, ..node(BootState::Discovered) }, None, setup);
        assert_eq!([looked(0), looked(2)], [Serve::Discover, Serve::Discover]);
        assert!(matches!(looked(3), Serve::LocalDisk { .. }));
    }
}
