//! Work on one machine's hardware and on its node, as an operator types it.

use crate::fleet::{list, text};
use crate::server::Home;

#[test]
fn one_machine_is_looked_at_switched_and_set() {
    let home = Home::new();
    let server = home.launch("data").with(&["--sim", "0"]).start();
    server.register("m-1", &["sim.latency_ms=0"]);
    let sheet = server.ok(&["machine", "inspect", "m-1"]);
    assert!(sheet.starts_with("Machine      m-1\n") && sheet.contains("\nNetwork\n"), "{sheet}");
    assert!(server.ok(&["machine", "inspect", "m-1", "-o", "wide"]).contains("\nDrives\n"));
    let found = server.json(&["machine", "inspect", "m-1"]);
    assert_eq!((text(&found, "power"), text(&found, "source")), ("on", "sim"));
    assert_eq!(server.ok(&["machine", "inspect", "m-1", "-o", "name"]), "m-1\n");

    assert_eq!(server.ok(&["machine", "power", "m-1", "off"]), "m-1 power graceful-off: done\n");
    assert_eq!(text(&server.json(&["machine", "inspect", "m-1"]), "power"), "off");
    let change = server.json(&["machine", "power", "m-1", "on", "--reason", "back again"]);
    assert_eq!((text(&change, "what"), text(&change, "state")), ("power on", "accepted"));
    let log = list(&server.json(&["machine", "bmc-log", "m-1", "--limit", "2"]), "events");
    assert_eq!(log.iter().map(|e| text(e, "message")).collect::<Vec<_>>(), ["System booted", "System reset (on)"]);

    assert_eq!(server.ok(&["machine", "boot", "m-1", "PXE"]), "m-1 boot PXE once: done\n");
    assert!(server.ok(&["machine", "inspect", "m-1"]).contains("PXE at the next boot"));
    server.ok(&["machine", "media", "m-1", "insert", "https://images.example/a.iso"]);
    assert_eq!(server.ok(&["machine", "media", "m-1"]), "https://images.example/a.iso\n");
    server.ok(&["machine", "media", "m-1", "eject"]);
    assert_eq!(server.ok(&["machine", "media", "m-1"]), "nothing is in\n");
    server.ok(&["machine", "bios", "m-1", "set", "SecureBoot=Enabled"]);
    assert!(server.ok(&["machine", "bios", "m-1"]).contains("with the next boot: SecureBoot=Enabled"));
    assert!(server.ok(&["machine", "sensors", "m-1"]).starts_with("SENSOR"));
    assert!(server.ok(&["machine", "console-info", "m-1"]).contains("sim://m-1/console"));
    assert_eq!(server.ok(&["machine", "identify", "m-1", "--off"]), "m-1 identify off: done\n");
    let update = server.json(&["machine", "firmware", "m-1", "update", "https://images.example/bios.bin"]);
    assert_eq!((text(&update, "state"), text(&update, "task")), ("done", "update-1"));
    assert!(server.ok(&["machine", "firmware", "m-1"]).contains("2.1"), "the BIOS is a newer one");
    server.ok(&["machine", "rotate-password", "m-1"]);
    server.ok(&["machine", "repin", "m-1"]);
    let audit = server.json(&["audit", "--filter", "target=m-1 AND outcome=begun", "--all"]);
    assert!(list(&audit, "entries").len() >= 8, "{audit:#}");
}

#[test]
fn what_cannot_be_done_by_hand_says_what_can() {
    let home = Home::new();
    let server = home.launch("data").with(&["--sim", "0"]).start();
    server.register("m-1", &["sim.latency_ms=0", "sim.fault.reboot=hang"]);
    let run = server.start("m-1", "REBOOT");
    server.run(&["machine", "power", "m-1", "off"]).with(4).saying("ACTIVE_RUN").saying(&run);
    server.register("m-2", &["sim.fault.inspect=wrong-machine"]);
    server.run(&["machine", "power", "m-2", "cycle"]).with(4).saying("WRONG_MACHINE").saying("found serial");
    server.register("m-3", &["sim.fault.inspect=fail"]);
    server.run(&["machine", "inspect", "m-3"]).with(6).saying("UNREACHABLE");
    server.run(&["machine", "power", "nobody", "on"]).with(3).saying("MACHINE_NOT_FOUND");
    server.run(&["machine", "media", "m-1", "insert"]).with(2).saying("URL");
    server.run(&["machine", "bios", "m-1", "set"]).with(2).saying("KEY=VALUE");
    for words in [
        &["machine", "power", "m-1", "cycle"][..],
        &["machine", "boot", "m-1", "disk"],
        &["machine", "identify", "m-1"],
        &["machine", "media", "m-1", "eject"],
        &["machine", "bios", "m-1", "set", "A=b"],
        &["machine", "firmware", "m-1", "update", "https://h/x"],
        &["machine", "rotate-password", "m-1"],
        &["machine", "repin", "m-1"],
        &["cluster", "cordon", "m-1"],
        &["cluster", "uncordon", "m-1"],
        &["cluster", "drain", "m-1"],
        &["cluster", "delete-node", "m-1"],
    ] {
        let told = server.ok(&[words, &["--dry-run"]].concat());
        assert!(told.contains("would call millwright.v1.") && told.contains("machine_id: m-1"), "{told}");
    }
}

#[test]
fn a_machine_is_registered_by_what_its_hardware_says() {
    let home = Home::new();
    let server = home.launch("data").with(&["--sim", "0"]).start();
    // real machines could be meant as well: it is asked for, not guessed
    let unsaid = ["machine", "register", "m-1", "--bmc", "10.0.0.41", "--discover"];
    server.run(&unsaid).with(2).saying("name one of").saying("datacenter");
    let discover = [&unsaid[..], &["--provider", "sim"]].concat();
    let trial = server.run(&[&discover[..], &["--dry-run"]].concat()).with(0);
    assert!(trial.err.contains("found at 10.0.0.41") && trial.out.contains("serial_number: SIM"), "{trial:?}");
    assert!(server.machines().is_empty(), "a trial registers nothing");
    server.ok(&discover);
    let spec = server.json(&["machine", "show", "m-1"])["spec"].clone();
    let found = server.json(&["machine", "inspect", "m-1"]);
    assert_eq!(text(&spec, "serial_number"), text(&found, "serial_number"));
    assert_eq!((text(&spec, "provider"), list(&spec, "mac_addresses").len()), ("sim", 2));
    let wrong =
        ["machine", "register", "m-2", "--bmc", "10.0.0.42", "--serial", "OTHER", "--discover", "--provider", "sim"];
    server.run(&wrong).with(4).saying("WRONG_MACHINE").saying("OTHER");
    let nobody = ["machine", "register", "m-2", "--bmc", "bmc.invalid", "--discover", "--provider", "sim"];
    server.run(&nobody).with(6).saying("UNREACHABLE");
}

#[test]
fn a_node_is_drained_until_nothing_is_left_or_the_time_is_over() {
    let home = Home::new();
    let server = home.launch("data").with(&["--sim", "0"]).start();
    let register = |id: &str, label: &str| {
        let words = ["machine", "register", id, "--provider", "sim", "--cluster", "c1", "--label", label];
        server.ok(&[&words[..], &["--label", "sim.latency_ms=0"]].concat());
        let plan = format!("plan_id: join-{id}\nsteps:\n- {{name: join, join: {{cluster_ref: c1}}}}\n");
        let file = home.file(&format!("{id}.yaml"), &plan).display().to_string();
        server.ok(&["plan", "create", "-f", &file]);
        server.ok(&["run", "start", id, "--plan", &format!("join-{id}"), "--wait"]);
    };
    register("m-1", "sim.fault.rma=fail:1");
    register("m-2", "sim.fault.rma=fail");
    assert!(server.ok(&["cluster", "check", "c1", "--provider", "sim"]).contains("2 ready of 2"));
    let drained = server.run(&["cluster", "drain", "m-1"]).with(0);
    assert!(drained.err.contains("still there: default/simulated") && drained.out == "m-1 is drained\n", "{drained:?}");
    let ended = server.run(&["cluster", "drain", "m-2", "--timeout", "1ms"]).with(1);
    assert!(ended.err.contains("budget") && ended.err.contains("cluster uncordon m-2"), "{ended:?}");
    assert_eq!(server.ok(&["cluster", "uncordon", "m-2"]), "m-2 uncordon: done\n");
    assert_eq!(server.ok(&["cluster", "delete-node", "m-2"]), "m-2 delete the node: done\n");
    assert!(server.ok(&["cluster", "check", "c1", "--provider", "sim"]).contains("1 ready of 1"));
}
