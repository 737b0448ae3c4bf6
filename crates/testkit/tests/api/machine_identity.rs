//! MACs, serial numbers and system UUIDs belong to one machine each.

use crate::fixture::{Api, on_both};
use crate::refusal::refused;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase;
use tonic::Code;

const MAC: &str = "aa:bb:cc:dd:ee:ff";
const SERIAL: &str = "SN-7";
const UUID: &str = "4d570000-0000-4000-8000-5254004d5800";

fn machine(id: &str, spec: pb::MachineSpec) -> pb::Machine {
    pb::Machine { machine_id: id.into(), spec: Some(spec), ..Default::default() }
}

fn with_mac(mac: &str) -> pb::MachineSpec {
    pb::MachineSpec { mac_addresses: vec![mac.into()], ..Default::default() }
}

fn holder_of_all() -> pb::Machine {
    let spec = pb::MachineSpec { serial_number: SERIAL.into(), system_uuid: UUID.into(), ..with_mac(MAC) };
    machine("m-holder", spec)
}

// CONTRACT: a MAC, serial or system UUID that another machine holds: ALREADY_EXISTS naming it
#[tokio::test]
async fn an_identifier_of_another_machine_is_refused_and_names_the_holder() {
    let api = Api::new().await;
    api.register(holder_of_all()).await;
    let specs = [
        with_mac("AA-BB-CC-DD-EE-FF"),
        pb::MachineSpec { serial_number: SERIAL.into(), ..Default::default() },
        pb::MachineSpec { system_uuid: UUID.to_uppercase(), ..Default::default() },
    ];
    for spec in specs {
        let refusal = refused(api.try_register(machine("m-2", spec)).await, Code::AlreadyExists, "IDENTITY_TAKEN");
        assert_eq!(refusal.says("m-holder").details["machine_id"], "m-holder");
    }
    assert_eq!(api.machine_ids("").await, ["m-holder"], "nothing of it was stored");
}

// as above, by an update
#[tokio::test]
async fn an_update_cannot_take_an_identifier_either() {
    let api = Api::new().await;
    api.register(holder_of_all()).await;
    let before = api.register(machine("m-2", with_mac("aa:bb:cc:00:00:02"))).await;
    let update = pb::UpdateMachineRequest { machine: Some(machine("m-2", with_mac(MAC))), update_mask: None };
    refused(api.machines().update_machine(update).await, Code::AlreadyExists, "IDENTITY_TAKEN").says("m-holder");
    assert_eq!(api.machine("m-2").await, before);
}

// an identifier that was given up is free, and one's own is no conflict
#[tokio::test]
async fn an_identifier_that_was_given_up_can_be_taken() {
    let api = Api::new().await;
    api.register(holder_of_all()).await;
    api.register(holder_of_all()).await;
    api.register(machine("m-holder", with_mac("aa:bb:cc:00:00:01"))).await;
    api.register(machine("m-2", with_mac(MAC))).await;
    api.try_register(holder_of_all()).await.expect_err("now it is the other's");
}

// DESIGN section 7: RETIRED has no exit (register anew)
#[tokio::test]
async fn the_hardware_of_a_retired_machine_can_be_registered_anew() {
    let api = Api::new().await;
    api.register(holder_of_all()).await;
    api.set_phase("m-holder", Phase::Rma).await;
    api.try_set_phase("m-holder", Phase::InService).await.expect_err("no such edge");
    let anew = pb::Machine { machine_id: "m-anew".into(), ..holder_of_all() };
    refused(api.try_register(anew.clone()).await, Code::AlreadyExists, "IDENTITY_TAKEN").says("m-holder");
    api.set_phase("m-holder", Phase::Retired).await;
    api.register(anew).await;
    assert_eq!(api.machine("m-holder").await.spec, holder_of_all().spec, "its record stays as it was");
    api.register(holder_of_all()).await;
    assert_eq!(api.machine_ids("").await, ["m-anew", "m-holder"], "and registering it again takes nothing back");
    let third = pb::Machine { machine_id: "m-3".into(), ..holder_of_all() };
    refused(api.try_register(third).await, Code::AlreadyExists, "IDENTITY_TAKEN").says("m-anew");
}

// the same rule when ten ask at once
on_both!(ten_machines_that_claim_one_mac_at_once_have_one_winner, |api| async move {
    let api = &api;
    let claims = (0..10).map(|i| api.try_register(machine(&format!("m-{i}"), with_mac(MAC))));
    let (won, lost): (Vec<_>, Vec<_>) = futures::future::join_all(claims).await.into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 9));
    let winner = won.into_iter().next().and_then(Result::ok).expect("one").machine_id;
    for refusal in lost {
        let refusal = refused(refusal, Code::AlreadyExists, "IDENTITY_TAKEN");
        assert_eq!(refusal.details["machine_id"], winner);
    }
    assert_eq!(api.machine_ids("").await, [winner]);
});
