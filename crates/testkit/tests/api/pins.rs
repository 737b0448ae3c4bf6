//! Pins and endpoints: an admin who moves a machine to another endpoint has what was learned at the old one forgotten,
//! in the same transaction, and everybody can see since when what was trusted.

use crate::callers::{Caller, caller, root};
use crate::fixture::{on_both, sim_machine, start};
use crate::refusal::refused;
use domain::{MachineId, RunId};
use prost_reflect::prost_types::FieldMask;
use proto::baremetal::v1 as pb;
use provider::{Because, By, Keyring as _, Pin, Swap};
use tonic::Code;

async fn moved(who: &Caller, field: &str, to: &str) -> Result<pb::Machine, tonic::Status> {
    let mut spec = pb::MachineSpec::default();
    match field {
        "spec.bmc_endpoint" => spec.bmc_endpoint = to.into(),
        _ => spec.ssh_endpoint = to.into(),
    }
    let machine = pb::Machine { machine_id: "m-1".into(), spec: Some(spec), ..Default::default() };
    let update_mask = Some(FieldMask { paths: vec![field.into()] });
    let request = pb::UpdateMachineRequest { machine: Some(machine), update_mask };
    Ok(who.machines().update_machine(request).await?.into_inner())
}

on_both!(another_endpoint_forgets_what_was_pinned_at_the_old_one, |api| async move {
    let root = root(&api).await;
    let mut machine = sim_machine("m-1", &[]);
    let spec = machine.spec.get_or_insert_default();
    (spec.bmc_endpoint, spec.ssh_endpoint) = ("bmc-1".into(), "host-1:22".into());
    let registered = api.register(machine).await;
    let keyring = api.server.service.vault();
    let id = MachineId::from_text("m-1");
    let pinned = async || {
        let mut all = Vec::new();
        for (pin, endpoint) in
            [(Pin::BmcCertificate, "bmc-1:443"), (Pin::SshHostKey, "host-1:22"), (Pin::JumpHostKey, "j:22")]
        {
            all.push(keyring.pinned(&id, pin, endpoint).await.expect("reads").is_some());
        }
        all
    };
    let pin_all = async || {
        for (pin, endpoint) in
            [(Pin::BmcCertificate, "bmc-1:443"), (Pin::SshHostKey, "host-1:22"), (Pin::JumpHostKey, "j:22")]
        {
            assert_eq!(keyring.pin(&id, pin, endpoint, "aa").await.as_deref(), Ok("aa"));
            assert_eq!(keyring.pin(&id, pin, endpoint, "bb").await.as_deref(), Ok("aa"), "the first one counts");
        }
    };
    pin_all().await;
    assert_eq!(api.machine("m-1").await.version, registered.version, "to be recognized raises nobody's version");
    let operator = caller(&api, "op", "operator", "").await;
    refused(moved(&operator, "spec.bmc_endpoint", "evil").await, Code::PermissionDenied, "ROLE_TOO_LOW");
    refused(moved(&operator, "spec.ssh_endpoint", "evil").await, Code::PermissionDenied, "ROLE_TOO_LOW");
    assert_eq!(pinned().await, [true, true, true]);
    moved(&root, "spec.ssh_endpoint", "ssh://host-1").await.expect("spelt in another way");
    assert_eq!(pinned().await, [true, true, true], "the same place, nothing forgotten");
    moved(&root, "spec.bmc_endpoint", "bmc-1").await.expect("as it is");
    assert_eq!(pinned().await, [true, true, true], "no change, nothing forgotten");
    moved(&root, "spec.bmc_endpoint", "bmc-2").await.expect("moved");
    assert_eq!(pinned().await, [false, true, true]);
    moved(&root, "spec.ssh_endpoint", "host-2:22").await.expect("moved");
    assert_eq!(pinned().await, [false, false, false]);
    pin_all().await;
    keyring.unpin(&id, Pin::SshHostKey, "reinstalled").await.expect("forgotten");
    assert_eq!(pinned().await, [true, false, true]);
    // whoever is behind it is named
    let (alice, run) = (By::Person("alice".into()), By::Run(RunId::from_text("run_7")));
    let both = [Pin::BmcCertificate, Pin::JumpHostKey];
    keyring.forget(&id, &both, Because { by: &alice, why: "replaced" }).await.expect("forgotten");
    for (read, value) in [(None, "one"), (Some("one"), "two")] {
        let because = Because { by: &run, why: "installs" };
        assert_eq!(keyring.repin(&id, Pin::Installation, "", read, value, because).await, Ok(Swap::Kept));
    }
    let log = api.server.fleet.store.read(|tx| store::log_after(tx, 0, 1000)).await.expect("the log");
    let pins: Vec<_> = log.iter().filter(|r| r.entity_kind == "pin" && r.subject == "m-1").collect();
    assert_eq!(pins.len(), 3 + 3 + 3 + 1 + 2 + 3);
    let forgotten: Vec<(&str, &str)> =
        pins.iter().filter(|r| r.to_state == "forgotten").map(|r| (r.actor.as_str(), r.comment.as_str())).collect();
    let by_change = (root.token.name.as_str(), "its endpoint was changed");
    let (by_alice, by_run) = (("alice", "replaced"), ("executor", "run run_7: installs"));
    let by_itself = ("system", "reinstalled");
    assert_eq!(forgotten, [by_change, by_change, by_change, by_itself, by_alice, by_alice, by_run]);
    let last: Vec<&str> = pins.iter().rev().filter(|r| r.to_state == "pinned").map(|r| r.comment.as_str()).collect();
    assert_eq!(last[..2], [by_run.1, by_run.1]);
    let missing = keyring.pin(&MachineId::from_text("m-9"), Pin::SshHostKey, "h:22", "x").await;
    assert_eq!(missing.map_err(|e| e.reason()), Err(domain::Reason::MachineNotFound));
});

// a run must end on the machine that it began on
on_both!(what_a_run_works_on_is_not_moved_under_it, |api| async move {
    api.sim("m-1", &[("sim.fault.reboot", "hang")]).await;
    let run = api.start(start("m-1", "REBOOT", "r1")).await;
    let root = root(&api).await;
    for field in ["spec.bmc_endpoint", "spec.ssh_endpoint"] {
        refused(moved(&root, field, "elsewhere").await, Code::FailedPrecondition, "ACTIVE_RUN");
    }
    api.try_cancel(&run.run_id).await.expect("cancels");
    moved(&root, "spec.ssh_endpoint", "elsewhere").await.expect("free again");
});
