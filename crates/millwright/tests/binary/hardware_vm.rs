//! A machine that really boots, by the command line: QEMU behind a Redfish service that nobody here wrote. It boots the
//! medium that we put in, again when it is power-cycled, and no more once that is taken out.

use crate::fleet::{list, text};
use crate::process::until;
use crate::server::Home;
use testkit::canary::plant;
use testkit::redfish_vm::{self, RedfishVm};

#[test]
fn a_virtual_machine_boots_the_medium_that_was_put_in() {
    let (home, password) = (Home::new(), plant("bmc"));
    let vm = RedfishVm::start(&password);
    let server = home.launch("data").start();
    let file = home.file("vm.key", &password).display().to_string();
    server.ok(&["credential", "set", "vm", "--kind", "bmc", "--username", "admin", "--password-file", &file]);
    server.ok(&["machine", "register", "vm-1", "--bmc", &vm.endpoint(), "--credentials", "vm", "--discover"]);
    let spec = server.json(&["machine", "show", "vm-1"])["spec"].clone();
    assert_eq!(text(&spec, "system_uuid"), redfish_vm::UUID);
    assert_eq!(list(&spec, "mac_addresses"), [redfish_vm::MAC]);

    let medium = redfish_vm::medium();
    server.ok(&["machine", "media", "vm-1", "insert", &medium]);
    server.ok(&["machine", "boot", "vm-1", "cd"]);
    server.ok(&["machine", "power", "vm-1", "on"]);
    until("it has booted from the medium", || (vm.boots().len() == 1).then_some(()));
    assert_eq!(text(&server.json(&["machine", "inspect", "vm-1"]), "power"), "on");
    server.ok(&["machine", "power", "vm-1", "restart", "--force"]);
    let boots = until("it has booted again", || Some(vm.boots()).filter(|boots| boots.len() == 2));
    assert_ne!(boots[0], boots[1], "another boot, by the kernel's own word");

    server.ok(&["machine", "power", "vm-1", "off", "--force"]);
    until("it is off", || (text(&server.json(&["machine", "inspect", "vm-1"]), "power") == "off").then_some(()));
    server.ok(&["machine", "media", "vm-1", "eject"]);
    assert_eq!(server.ok(&["machine", "media", "vm-1"]), "nothing is in\n");
    server.ok(&["machine", "boot", "vm-1", "disk"]);
    server.ok(&["machine", "power", "vm-1", "on"]);
    until("it is on", || (text(&server.json(&["machine", "inspect", "vm-1"]), "power") == "on").then_some(()));
    assert_eq!(vm.boots().len(), 2, "the medium is out");
    server.terminate().with(0);
}
