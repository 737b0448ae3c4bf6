//! Fifty agents as fifty processes, over mutual TLS: enrolled by the bundles of the command line, seen, and one of them
//! through a whole life: drained, used again, drained, removed, and its machine enrolled anew.

use crate::agents_site::{Machine, Site, eventually, said};
use crate::fleet::{list, text};
use crate::process::Process;
use serde_json::Value;
use std::process::Command;

const FLEET: usize = 50;

#[test]
fn fifty_are_enrolled_and_one_goes_through_a_whole_life() {
    let site = Site::new();
    let server = site.start();
    let names: Vec<String> = (0..FLEET).map(|n| format!("gpu-{n:02}")).collect();
    let mut fleet: Vec<(Machine, Process)> = names
        .iter()
        .map(|name| {
            let machine = site.machine(name);
            machine.give(&site.create(&server, name));
            let agent = machine.run();
            (machine, agent)
        })
        .collect();
    let nodes = eventually("all are active", || {
        let nodes = list(&server.get("nodes?view=all&page_size=200"), "nodes");
        nodes.iter().all(|node| node["status"] == "active").then_some(nodes)
    });
    assert_eq!(nodes.len(), FLEET);
    // each is on a machine of its own, with a certificate of its own
    for of in ["id", "machine_id", "name"] {
        let mut all: Vec<&str> = nodes.iter().map(|node| text(node, of)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), FLEET, "{of}");
    }
    for (name, (machine, _)) in names.iter().zip(&fleet) {
        assert!(!machine.state.join("bundle.json").exists(), "{name}: the token is used up");
        certified(machine, text(node_of(&nodes, name), "id"));
    }
    seen_by_people(&site, &server, &names, &nodes);

    let (machine, agent) = fleet.swap_remove(7);
    whole_life(&site, &server, "gpu-07", machine, agent);
    // nobody else was disturbed
    for (machine, agent) in &mut fleet {
        assert!(!agent.is_over(), "{}", machine.root.display());
    }
    let nodes = list(&server.get("nodes?page_size=200"), "nodes");
    assert!(nodes.len() == FLEET && nodes.iter().all(|node| node["status"] == "active"), "{nodes:#?}");
    assert_eq!(list(&server.json(&["finding", "list"]), "findings").len(), 0, "nothing is out of order");
    server.terminate().with(0);
}

fn node_of<'a>(nodes: &'a [Value], name: &str) -> &'a Value {
    nodes.iter().find(|node| node["name"] == name).expect("it is listed")
}

/// What it holds, by the word of a program that is none of ours.
fn certified(machine: &Machine, node: &str) {
    let kept: Value = serde_json::from_slice(&std::fs::read(machine.state.join("identity.json")).expect("an identity"))
        .expect("JSON");
    let (certificate, authority) = (machine.state.join("certificate.pem"), machine.state.join("authority.pem"));
    std::fs::write(&certificate, text(&kept, "certificate_pem")).expect("written");
    std::fs::write(&authority, text(&kept, "authorities_pem")).expect("written");
    let openssl = || Command::new("openssl");
    let names = said(
        openssl()
            .args(["x509", "-noout", "-subject", "-ext", "subjectAltName,extendedKeyUsage", "-in"])
            .arg(&certificate),
    );
    for part in [node, &format!("URI:millwright:node/{node}"), "TLS Web Client Authentication"] {
        assert!(names.contains(part), "{part}: {names}");
    }
    said(openssl().args(["verify", "-purpose", "sslclient", "-CAfile"]).arg(&authority).arg(&certificate));
    for file in [certificate, authority] {
        std::fs::remove_file(file).expect("removed");
    }
}

fn seen_by_people(site: &Site, server: &crate::server::Client, names: &[String], nodes: &[Value]) {
    let listed = server.ok(&["node", "list"]);
    assert!(names.iter().all(|name| listed.contains(name.as_str())), "{listed}");
    assert_eq!(server.ok(&["node", "list", "--view", "in_progress", "-o", "name"]), "");
    let shown = server.ok(&["node", "show", "gpu-03"]);
    for part in ["gpu-03", "active", "good", text(node_of(nodes, "gpu-03"), "machine_id")] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let whole = server.json(&["node", "show", "gpu-03"]);
    assert_eq!(text(&whole["agent"]["inventory"]["facts"], "serial_number"), "SN-gpu-03", "{whole:#}");
    let why = server.ok(&["why", "gpu-03"]);
    assert!(why.contains("is active") && why.contains("millwright node drain"), "{why}");
    // a second agent on the same state is told who is there
    let machine = site.machine("gpu-03");
    machine.do_(&["run"]).with(1).saying("in use by process");
}

fn whole_life(site: &Site, server: &crate::server::Client, name: &str, machine: Machine, mut agent: Process) {
    let before = server.node(name);
    let (id, on) = (text(&before, "id").to_owned(), text(&before, "machine_id").to_owned());
    let key = text(&machine.identity(), "key_sha256").to_owned();
    // out of use, and back, as who it was
    server.ok(&["node", "drain", name, "--reason", "to be moved"]);
    let retired = server.node_is(name, "retired");
    assert_eq!(retired["schedulable"], false, "{retired:#}");
    server.run(&["node", "drain", name, "--dry-run"]).with(0);
    server.ok(&["node", "reactivate", name]);
    let back = server.node_is(name, "active");
    assert_eq!((text(&back, "id"), text(&machine.identity(), "key_sha256")), (id.as_str(), key.as_str()));
    assert!(!agent.is_over(), "the agent was there all the time");

    server.ok(&["node", "drain", name]);
    server.node_is(name, "retired");
    let copy = machine.copied_to(&site.path("kept"));
    server.ok(&["node", "remove", name]);
    let gone = server.node_is(&id, "deleted");
    assert_eq!(text(&gone["agent"], "identity"), "revoked", "{gone:#}");
    assert_eq!(agent.end().with(0).code, Some(0), "it ends by itself");
    assert!(!machine.state.exists(), "nothing of it is left");
    // that identity does not come back, whoever kept a copy of it
    copy.do_(&["run"]).with(3).saying("millwright node create");

    // the same machine, as another node
    machine.give(&site.create(server, name));
    agent = machine.run();
    let anew = server.node_is(name, "active");
    assert_ne!(text(&anew, "id"), id);
    assert_eq!(text(&anew, "machine_id"), on, "linked to the same machine");
    assert_ne!(text(&machine.identity(), "key_sha256"), key);
    let archived = server.json(&["node", "list", "--view", "archive"]);
    assert_eq!(list(&archived, "nodes").iter().map(|n| text(n, "id")).collect::<Vec<_>>(), [id.as_str()]);
    assert!(!agent.is_over());
}
