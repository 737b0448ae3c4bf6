//! The wire as a golden text: it changes only on purpose, and only by adding.
//!
//! `UPDATE_GOLDEN=1 cargo test -p millwright-testkit --test api descriptor` writes the text anew, unless
//! something would be gone from it: that is a breaking change, and takes a hand on the file.

use prost_reflect::{
    Cardinality, DescriptorPool, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor, MethodDescriptor,
};
use std::collections::BTreeSet;
use std::fmt::Write as _;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/descriptor.txt");
const PACKAGES: [&str; 2] = ["baremetal.v1", "millwright.v1"];

fn kind(kind: &Kind) -> String {
    match kind {
        Kind::Message(m) => m.full_name().to_owned(),
        Kind::Enum(e) => e.full_name().to_owned(),
        scalar => format!("{scalar:?}").to_lowercase(),
    }
}

fn field(f: &FieldDescriptor) -> String {
    let kind = match f.kind() {
        Kind::Message(entry) if entry.is_map_entry() => {
            let (key, value) = (entry.map_entry_key_field(), entry.map_entry_value_field());
            format!("map<{}, {}>", kind(&key.kind()), kind(&value.kind()))
        }
        other => kind(&other),
    };
    let label = match (f.cardinality(), f.containing_oneof()) {
        (Cardinality::Repeated, _) if f.is_map() => String::new(),
        (Cardinality::Repeated, _) => "repeated ".to_owned(),
        (Cardinality::Required, _) => "required ".to_owned(),
        (Cardinality::Optional, Some(oneof)) if oneof.is_synthetic() => "optional ".to_owned(),
        (Cardinality::Optional, Some(oneof)) => format!("oneof {} ", oneof.name()),
        (Cardinality::Optional, None) => String::new(),
    };
    format!("field {} = {}: {label}{kind}", f.full_name(), f.number())
}

fn enumeration(e: &EnumDescriptor, lines: &mut Vec<String>) {
    lines.push(format!("enum {}", e.full_name()));
    lines.extend(e.values().map(|v| format!("value {}.{} = {}", e.full_name(), v.name(), v.number())));
}

fn message(m: &MessageDescriptor, lines: &mut Vec<String>) {
    lines.push(format!("message {}", m.full_name()));
    lines.extend(m.fields().map(|f| field(&f)));
    m.child_enums().for_each(|e| enumeration(&e, lines));
    m.child_messages().filter(|c| !c.is_map_entry()).for_each(|c| message(&c, lines));
}

fn rpc(m: &MethodDescriptor) -> String {
    let stream = |on: bool| if on { "stream " } else { "" };
    let (from, to) = (stream(m.is_client_streaming()), stream(m.is_server_streaming()));
    format!("rpc {}({from}{}) returns ({to}{})", m.full_name(), m.input().full_name(), m.output().full_name())
}

/// One line for each thing that a client can depend on.
fn rendered() -> String {
    let pool = DescriptorPool::decode(proto::DESCRIPTORS).expect("descriptors");
    let mut lines = Vec::new();
    for file in pool.files().filter(|f| PACKAGES.contains(&f.package_name())) {
        lines.push(format!("file {} package {} {:?}", file.name(), file.package_name(), file.syntax()).to_lowercase());
        for service in file.services() {
            lines.push(format!("service {}", service.full_name()));
            lines.extend(service.methods().map(|m| rpc(&m)));
        }
        file.messages().for_each(|m| message(&m, &mut lines));
        file.enums().for_each(|e| enumeration(&e, &mut lines));
    }
    lines.join("\n") + "\n"
}

/// What stood in the old text and is not in the new one. Adding is fine.
fn broken(old: &str, new: &str) -> Vec<String> {
    let new: BTreeSet<&str> = new.lines().collect();
    old.lines().filter(|line| !new.contains(line)).map(ToOwned::to_owned).collect()
}

fn golden() -> String {
    std::fs::read_to_string(GOLDEN).unwrap_or_default()
}

fn check_compatible(old: &str, new: &str) {
    let gone = broken(old, new);
    assert!(gone.is_empty(), "the wire is broken for those who use:\n{}", gone.join("\n"));
}

// a golden descriptor
#[test]
fn the_descriptor_is_the_golden_one() {
    let (old, new) = (golden(), rendered());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        check_compatible(&old, &new);
        std::fs::write(GOLDEN, &new).expect("the golden file is written");
        return;
    }
    let mut added = String::new();
    broken(&new, &old).iter().for_each(|line| writeln!(added, "+ {line}").expect("a string"));
    assert!(added.is_empty(), "the wire has grown; if that is meant, run with UPDATE_GOLDEN=1:\n{added}");
    assert_eq!(old, new, "the golden file differs");
}

// a check against wire-breaking changes
#[test]
fn nothing_that_clients_depend_on_is_gone() {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return; // checked where it is written
    }
    let old = golden();
    assert!(old.lines().count() > 200, "the golden file is missing or empty: {GOLDEN}");
    check_compatible(&old, &rendered());
}

// the check itself: what breaks is found, what is added is not
#[test]
fn the_check_finds_every_kind_of_break() {
    let now = rendered();
    let changes = [
        ("field baremetal.v1.Run.phase = 6:", "field baremetal.v1.Run.phase = 16:"),
        ("field baremetal.v1.Run.current_step = 8: string", "field baremetal.v1.Run.current_step = 8: bytes"),
        ("field baremetal.v1.Machine.machine_id = 1", "field baremetal.v1.Machine.id = 1"),
        ("= 4: repeated string", "= 4: string"),
        (": optional int32", ": int32"),
        (": oneof kind baremetal.v1.Reboot", ": baremetal.v1.Reboot"),
        ("value baremetal.v1.Run.Phase.CANCELED = 5", "value baremetal.v1.Run.Phase.CANCELLED = 5"),
        ("rpc baremetal.v1.RunService.CancelRun(", "rpc baremetal.v1.RunService.StopRun("),
        ("returns (stream baremetal.v1.RunEvent)", "returns (baremetal.v1.RunEvent)"),
        ("service millwright.v1.EngineService\n", ""),
    ];
    for (from, to) in changes {
        assert!(now.contains(from), "{from}");
        assert!(!broken(&now, &now.replace(from, to)).is_empty(), "{from} to {to}");
    }
    let more = format!("{now}field baremetal.v1.Run.colour = 99: string\n");
    assert_eq!(broken(&now, &more), Vec::<String>::new());
}
