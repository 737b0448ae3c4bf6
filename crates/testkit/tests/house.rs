//! House rules, kept by machine: the layers, the size and head of files, what must not be in the tree.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use testkit::golden::root;

const EVERYTHING: &[&str] = &[
    "domain",
    "proto",
    "store",
    "provider",
    "engine",
    "workflow",
    "reconcile",
    "service",
    "api",
    "sim",
    "redfish",
    "ipmi",
    "ssh",
    "kube",
    "maas",
    "datacenter",
    "boot",
];

/// From the bottom up: a crate uses only crates above it in this list, and of those only the ones named.
/// (`docs/architecture.md` says why.)
const LAYERS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("proto", &[]),
    ("store", &["domain"]),
    ("provider", &["domain"]),
    ("engine", &["domain", "store"]),
    ("workflow", &["domain", "proto", "store", "provider", "engine"]),
    ("reconcile", &["domain", "store", "provider", "workflow"]),
    ("service", &["domain", "proto", "store", "provider", "engine", "workflow"]),
    ("api", &["domain", "proto", "service"]),
    ("sim", &["domain", "provider"]),
    ("redfish", &["domain", "provider"]),
    ("ipmi", &["domain", "provider"]),
    ("ssh", &["domain", "provider"]),
    ("kube", &["domain", "provider"]),
    ("maas", &["domain", "provider"]),
    ("datacenter", &["domain", "provider", "redfish", "ipmi", "ssh", "kube"]),
    ("boot", &["domain", "service", "api"]),
    ("gpu", &[]),
    ("agent", &["domain", "proto", "gpu"]),
    ("millwright", EVERYTHING),
    ("testkit", EVERYTHING),
    (
        "bench",
        &[
            "domain",
            "proto",
            "store",
            "provider",
            "workflow",
            "reconcile",
            "api",
            "sim",
            "datacenter",
            "boot",
            "testkit",
        ],
    ),
];

fn manifest(name: &str) -> String {
    std::fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).expect("a manifest")
}

/// Our own crates that a manifest depends on, build and test dependencies apart.
fn own_dependencies(name: &str) -> BTreeSet<String> {
    let text = manifest(name);
    let section = text.split("[dependencies]").nth(1).expect("dependencies").split("\n[").next().expect("a section");
    let known: BTreeSet<&str> = LAYERS.iter().map(|l| l.0).collect();
    section
        .lines()
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|dependency| known.contains(dependency))
        .map(str::to_owned)
        .collect()
}

#[test]
fn crates_keep_to_their_layers() {
    let folders: BTreeSet<String> = std::fs::read_dir(root().join("crates"))
        .expect("crates")
        .map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    let listed: BTreeSet<String> = LAYERS.iter().map(|l| l.0.to_owned()).collect();
    assert_eq!(folders, listed, "every crate has its place in the list");
    for (name, allowed) in LAYERS {
        let allowed: BTreeSet<String> = allowed.iter().map(|s| (*s).to_owned()).collect();
        let extra: Vec<String> = own_dependencies(name).difference(&allowed).cloned().collect();
        assert!(extra.is_empty(), "{name} must not depend on {extra:?}");
    }
}

/// The locked packages and what each depends on.
fn lock_graph() -> BTreeMap<String, Vec<String>> {
    let text = std::fs::read_to_string(root().join("Cargo.lock")).expect("Cargo.lock");
    let mut graph: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in text.split("[[package]]").skip(1) {
        let quoted =
            |line: &str| line.split('"').nth(1).unwrap_or_default().split(' ').next().unwrap_or_default().to_owned();
        let name = package.lines().find(|l| l.starts_with("name")).map(quoted).expect("a name");
        let dependencies = package.lines().filter(|l| l.starts_with(" \"")).map(quoted);
        graph.entry(name).or_default().extend(dependencies);
    }
    graph
}

/// T-03: the API and the engine never open SSH, nor talk to hardware: they have nothing to do it with.
#[test]
fn doors_and_engine_have_no_adapter_in_their_tree() {
    let graph = lock_graph();
    for start in ["millwright-engine", "millwright-reconcile", "millwright-service", "millwright-api"] {
        let mut seen = BTreeSet::new();
        let mut queue = VecDeque::from([start.to_owned()]);
        while let Some(name) = queue.pop_front() {
            if seen.insert(name.clone()) {
                queue.extend(graph.get(&name).cloned().unwrap_or_default());
            }
        }
        assert!(seen.len() > 20, "{start} is in the lock file");
        let bad: Vec<&String> = seen
            .iter()
            .filter(|n| {
                ["ssh", "redfish", "ipmi", "kube", "millwright-maas", "millwright-sim", "millwright-boot"]
                    .iter()
                    .any(|word| n.contains(word))
            })
            .collect();
        assert!(bad.is_empty(), "{start} reaches {bad:?}");
    }
}

fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("target") {
            files(&path, ending, found);
        } else if path.extension().is_some_and(|e| e == ending) {
            found.push(path);
        }
    }
}

fn rust_files() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    files(&root().join("crates"), "rs", &mut found);
    assert!(found.len() > 50, "found the sources");
    found.into_iter().map(|p| (p.clone(), std::fs::read_to_string(&p).expect("reads"))).collect()
}

#[test]
fn every_file_says_what_lives_there_and_stays_small() {
    for (path, text) in rust_files() {
        let name = path.strip_prefix(root()).expect("below the root").display().to_string();
        assert!(text.starts_with("//!"), "{name} opens with a //! line that says what lives there and why");
        let lines = text.lines().count();
        assert!(lines <= 700, "{name} has {lines} lines: it wants to be two");
    }
}

/// Nobody needs to read a `_ =>` arm over a state, and nothing unfinished is shipped.
#[test]
fn nothing_unfinished_is_in_the_sources() {
    let marks = [concat!("to", "do!("), concat!("unimple", "mented!("), concat!("db", "g!("), concat!("#[ig", "nore]")];
    for (path, text) in rust_files() {
        for mark in marks {
            assert!(!text.contains(mark), "{} holds {mark}", path.display());
        }
    }
}

#[test]
fn states_move_only_through_the_transition_primitive() {
    for (path, text) in rust_files() {
        let name = path.strip_prefix(root()).expect("below the root").display().to_string();
        for (statement, home) in [
            ("UPDATE machines SET", "store/src/machine.rs"),
            ("UPDATE runs SET", "store/src/run.rs"),
            ("UPDATE observations SET", "store/src/observation.rs"),
        ] {
            // a migration may fill a column that is new; the naive pool is what the store is measured against
            let allowed = [home, "tests/house.rs", "store/src/schema.rs", "bench/src/naive.rs"]
                .iter()
                .any(|home| name.ends_with(home));
            assert!(allowed || !text.contains(statement), "{name} writes {statement} by itself");
        }
    }
}

/// Every dependency's licence is one that `deny.toml` allows.
#[test]
fn licences_are_those_that_we_allow() {
    let output = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let deny = std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
    let list = deny.split("allow = [").nth(1).and_then(|s| s.split(']').next()).expect("a list");
    let allowed: BTreeSet<&str> = list.split('"').skip(1).step_by(2).collect();
    let packages = metadata["packages"].as_array().expect("packages");
    assert!(packages.len() > 100, "found the dependencies");
    for package in packages {
        let licence = package["license"].as_str().unwrap_or("none");
        let text = licence.replace(['(', ')'], "").replace('/', " OR ");
        // every part of an AND, any part of an OR
        let fine = text.split(" AND ").all(|all| all.split(" OR ").any(|one| allowed.contains(one.trim())));
        assert!(fine, "{} is under {licence}", package["name"]);
    }
}

/// The list of planted faults does not rot: each still fits the tree and names tests that are there.
/// (`scripts/planted` shows that those find it.)
#[test]
fn every_planted_fault_still_applies() {
    let mut faults = Vec::new();
    files(&root().join("crates/testkit/planted"), "patch", &mut faults);
    assert!(faults.len() >= 12, "found the faults");
    let sources = rust_files();
    for fault in faults {
        let name = fault.file_name().expect("a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&fault).expect("reads");
        let (head, changes) = text.split_once("\n--- a/").expect("a head and a unified diff");
        let field = |key: &str| {
            let value = head.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
            value.unwrap_or_else(|| panic!("{name} has no line {key}:")).to_owned()
        };
        ["Breaks", "Because", "Test"].into_iter().map(field).for_each(drop);
        for test in field("Found-by").split_whitespace() {
            let (function, by_macro) = (format!("fn {test}("), format!("!({test},"));
            let there = sources.iter().any(|(_, source)| source.contains(&function) || source.contains(&by_macro));
            assert!(there, "{name} is to be found by {test}, which is not there");
        }
        for change in changes.split("\n--- a/") {
            let path = change.lines().next().expect("a file");
            let source = std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{name}: {path}: {e}"));
            for hunk in change.split("\n@@ ").skip(1) {
                let old = hunk.lines().skip(1).filter(|line| !line.starts_with('+'));
                let old: String = old.flat_map(|line| [line.get(1..).unwrap_or_default(), "\n"]).collect();
                assert!(source.contains(&old), "{name} no longer applies to {path}: write it anew, or remove it");
            }
        }
    }
}
