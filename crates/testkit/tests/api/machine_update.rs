//! Updating spec and labels: whole, by mask, and guarded by the version.

use crate::fixture::{Api, map, on_both, sim_machine};
use crate::refusal::{refused, refused_field};
use prost_reflect::prost_types::FieldMask;
use proto::baremetal::v1 as pb;
use tonic::{Code, Status};

async fn update(api: &Api, machine: pb::Machine, mask: Option<&[&str]>) -> Result<pb::Machine, Status> {
    let update_mask = mask.map(|paths| FieldMask { paths: paths.iter().map(|p| (*p).to_owned()).collect() });
    let request = pb::UpdateMachineRequest { machine: Some(machine), update_mask };
    Ok(api.machines().update_machine(request).await?.into_inner())
}

/// A machine with something in every part.
async fn registered(api: &Api) -> pb::Machine {
    let mut machine = sim_machine("m-1", &[("env", "prod"), ("team", "a")]);
    let spec = machine.spec.as_mut().expect("a spec");
    spec.rack = "r1".into();
    spec.location = "zrh".into();
    api.register(machine).await
}

fn change(spec: pb::MachineSpec, labels: &[(&str, &str)]) -> pb::Machine {
    pb::Machine { machine_id: "m-1".into(), spec: Some(spec), labels: map(labels), ..Default::default() }
}

// G-15-09, CONTRACT: without a mask spec and labels are replaced whole
#[tokio::test]
async fn without_a_mask_spec_and_labels_are_replaced_whole() {
    let api = Api::new().await;
    let before = registered(&api).await;
    let spec = pb::MachineSpec { rack: "r2".into(), ..Default::default() };
    let after = update(&api, change(spec.clone(), &[("env", "test")]), None).await.expect("updates");
    assert_eq!((after.spec.as_ref(), &after.labels), (Some(&spec), &map(&[("env", "test")])));
    assert_eq!(after.status, before.status);
    assert_eq!(after.version, before.version + 1);
    assert_eq!(api.machine("m-1").await, after);
}

// CONTRACT: UpdateMachineRequest.update_mask
#[tokio::test]
async fn a_mask_changes_only_what_it_names() {
    let api = Api::new().await;
    let before = registered(&api).await;
    let sent = change(pb::MachineSpec { rack: "r9".into(), ..Default::default() }, &[("env", "test")]);
    let after = update(&api, sent.clone(), Some(&["spec.rack"])).await.expect("updates");
    let mut expected = before.spec.clone().expect("a spec");
    expected.rack = "r9".into();
    assert_eq!((after.spec, after.labels), (Some(expected), before.labels));
    let whole = update(&api, sent.clone(), Some(&["labels"])).await.expect("updates");
    assert_eq!(whole.labels, sent.labels);
    let whole = update(&api, sent.clone(), Some(&["spec"])).await.expect("updates");
    assert_eq!(whole.spec, sent.spec);
}

// as above, for every field of the spec
#[tokio::test]
async fn a_mask_can_name_every_field_of_the_spec() {
    let api = Api::new().await;
    registered(&api).await;
    let pool = prost_reflect::DescriptorPool::decode(proto::DESCRIPTORS).expect("descriptors");
    let spec = pool.get_message_by_name("baremetal.v1.MachineSpec").expect("the spec");
    for field in spec.fields() {
        let path = format!("spec.{}", field.name());
        let after = update(&api, change(pb::MachineSpec::default(), &[]), Some(&[&path])).await;
        after.unwrap_or_else(|e| panic!("{path}: {e}"));
    }
    assert_eq!(api.machine("m-1").await.spec, Some(pb::MachineSpec::default()));
}

// CONTRACT: label keys have dots ("sim.latency_ms"); a key that is absent is removed
#[tokio::test]
async fn a_mask_sets_and_removes_single_labels_also_with_dots() {
    let api = Api::new().await;
    registered(&api).await;
    let sent = change(pb::MachineSpec::default(), &[("sim.latency_ms", "7"), ("new.label", "x")]);
    let mask = ["labels.sim.latency_ms", "labels.new.label", "labels.team"];
    let after = update(&api, sent, Some(&mask)).await.expect("updates");
    assert_eq!(after.labels, map(&[("env", "prod"), ("sim.latency_ms", "7"), ("new.label", "x")]));
    assert_eq!(api.machine_ids("labels.new.label=x").await, ["m-1"], "the filter sees it too");
    assert_eq!(api.machine_ids("labels:team").await, Vec::<String>::new());
}

// G-15-09, G-15-10
#[tokio::test]
async fn a_mask_cannot_name_status_or_what_is_not_there() {
    let api = Api::new().await;
    let before = registered(&api).await;
    for path in ["status", "status.phase", "machine_id", "version", "spec.colour", "", "spec.", "Spec"] {
        let sent = change(pb::MachineSpec { rack: "r9".into(), ..Default::default() }, &[]);
        refused_field(update(&api, sent, Some(&["spec.rack", path])).await, "update_mask");
    }
    assert_eq!(api.machine("m-1").await, before);
}

// CONTRACT: a non-zero Machine.version that does not match is ABORTED
#[tokio::test]
async fn a_version_that_does_not_match_is_aborted() {
    let api = Api::new().await;
    let before = registered(&api).await;
    let stale = pb::Machine { version: before.version + 5, ..change(pb::MachineSpec::default(), &[]) };
    let refusal = refused(update(&api, stale.clone(), None).await, Code::Aborted, "VERSION_MISMATCH");
    assert_eq!(refusal.details["version"], before.version.to_string());
    refused(api.try_register(stale).await, Code::Aborted, "VERSION_MISMATCH");
    assert_eq!(api.machine("m-1").await, before);
    let fresh = pb::Machine { version: before.version, ..change(pb::MachineSpec::default(), &[]) };
    update(&api, fresh, None).await.expect("the version matches");
}

// the point of versions: of two that read the same, one wins
on_both!(of_ten_updates_of_one_version_one_wins, |api| async move {
    let before = registered(&api).await;
    let api = &api;
    let updates = (0..10).map(|i| {
        let sent = change(pb::MachineSpec::default(), &[("writer", &i.to_string())]);
        update(api, pb::Machine { version: before.version, ..sent }, Some(&["labels.writer"]))
    });
    let (won, lost): (Vec<_>, Vec<_>) = futures::future::join_all(updates).await.into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 9));
    lost.into_iter().for_each(|l| drop(refused(l, Code::Aborted, "VERSION_MISMATCH")));
    assert_eq!(won.into_iter().next().and_then(Result::ok), Some(api.machine("m-1").await));
});

// G-21-01; CONTRACT: malformed fields
#[tokio::test]
async fn bad_updates_are_refused_and_change_nothing() {
    let api = Api::new().await;
    let before = registered(&api).await;
    let unknown = pb::Machine { machine_id: "m-404".into(), ..Default::default() };
    refused(update(&api, unknown, None).await, Code::NotFound, "MACHINE_NOT_FOUND").says("m-404");
    refused_field(update(&api, pb::Machine::default(), None).await, "machine.machine_id");
    let mut machines = api.machines();
    refused_field(machines.update_machine(pb::UpdateMachineRequest::default()).await, "machine");
    let bad = pb::MachineSpec { mac_addresses: vec!["nonsense".into()], ..Default::default() };
    refused_field(update(&api, change(bad, &[]), None).await, "spec.mac_addresses[0]");
    let long = "v".repeat(300);
    let bad = change(pb::MachineSpec::default(), &[("env", &long)]);
    refused_field(update(&api, bad, Some(&["labels.env"])).await, "labels.env");
    assert_eq!(api.machine("m-1").await, before);
}
