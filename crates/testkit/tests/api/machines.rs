//! Registering and reading machines.

use crate::fixture::{Api, is_terminal, map, on_both, reboot, repave, sim_machine, start, start_plan, step};
use crate::refusal::{refused, refused_field};
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase;
use tonic::Code;

fn full_spec() -> pb::MachineSpec {
    pb::MachineSpec {
        ssh_endpoint: "10.0.0.1:22".into(),
        bmc_endpoint: "10.0.1.1".into(),
        target_cluster_ref: "cluster-a".into(),
        mac_addresses: vec!["aa:bb:cc:dd:ee:01".into(), "aa:bb:cc:dd:ee:02".into()],
        provider: "sim".into(),
        location: "zürich-1".into(),
        rack: "r7".into(),
        serial_number: "SN-1".into(),
        customer_id: "customer-1".into(),
        system_uuid: "4d570000-0000-4000-8000-5254004d5800".into(),
        credentials_ref: "r7,fleet".into(),
    }
}

// G-15-01, G-15-03
#[tokio::test]
async fn registering_without_an_id_generates_one() {
    let api = Api::new().await;
    let one = api.register(pb::Machine::default()).await;
    let two = api.register(pb::Machine::default()).await;
    assert!(one.machine_id.starts_with("mch_") && one.machine_id.len() == 36, "{}", one.machine_id);
    assert!(one.machine_id < two.machine_id, "ids sort by time");
    assert_eq!(api.machine(&one.machine_id).await, one);
}

// G-2-01, G-15-01, G-15-04
#[tokio::test]
async fn registering_with_an_own_id_keeps_it() {
    let api = Api::new().await;
    for id in ["m-1", "A.b_c-9", &"x".repeat(63)] {
        let machine = api.register(pb::Machine { machine_id: id.into(), ..Default::default() }).await;
        assert_eq!(machine.machine_id, id);
        assert_eq!(api.machine(id).await, machine);
    }
}

// G-6-10, G-2-05, T-14
#[tokio::test]
async fn a_new_machine_is_factory_ready_and_held_by_nobody() {
    let api = Api::new().await;
    let machine = api.register(sim_machine("m-1", &[])).await;
    let status = machine.status.expect("a status");
    assert_eq!((status.phase(), status.effective_state()), (Phase::FactoryReady, Phase::FactoryReady));
    assert_eq!((status.active_run_id.as_str(), status.phase_set_by.as_str()), ("", "operator"));
    assert!(status.conditions.iter().all(|c| !c.status));
    assert_eq!(machine.version, 1);
}

// G-2-03, G-2-04, G-2-06, G-2-07, T-41
#[tokio::test]
async fn every_field_of_the_spec_round_trips() {
    let api = Api::new().await;
    for name in ["r7", "fleet"] {
        let root = crate::callers::root(&api).await;
        root.credentials().set_credential(crate::credentials::bmc(name, "x")).await.expect("is set");
    }
    let labels = map(&[("env", "prod"), ("sim.latency_ms", "0"), ("näme", "wert \"1\"")]);
    let sent =
        pb::Machine { machine_id: "m-1".into(), labels: labels.clone(), spec: Some(full_spec()), ..Default::default() };
    let machine = api.register(sent).await;
    assert_eq!((machine.spec, machine.labels), (Some(full_spec()), labels));
}

// G-2-04
#[tokio::test]
async fn identifiers_are_kept_in_one_spelling() {
    let api = Api::new().await;
    let spec = pb::MachineSpec {
        mac_addresses: vec!["AA-BB-CC-DD-EE-FF".into(), "aabb.ccdd.eeff".into(), "aabbccddee00".into()],
        system_uuid: "4D5700000000400080005254004D5800".into(),
        ..Default::default()
    };
    let machine = api.register(pb::Machine { spec: Some(spec), ..Default::default() }).await;
    let spec = machine.spec.expect("a spec");
    assert_eq!(spec.mac_addresses, ["aa:bb:cc:dd:ee:ff", "aa:bb:cc:dd:ee:00"]);
    assert_eq!(spec.system_uuid, "4d570000-0000-4000-8000-5254004d5800");
}

// G-15-10, G-15-11
#[tokio::test]
async fn a_status_sent_by_a_client_is_ignored() {
    let api = Api::new().await;
    let status = pb::MachineStatus {
        phase: Phase::InService.into(),
        conditions: vec![pb::Condition { r#type: "Reachable".into(), status: true, ..Default::default() }],
        active_run_id: "run_x".into(),
        phase_set_by: "executor".into(),
        ..Default::default()
    };
    let mut sent = sim_machine("m-1", &[]);
    sent.status = Some(status.clone());
    let first = api.register(sent.clone()).await.status.expect("a status");
    assert_eq!((first.phase(), first.active_run_id.as_str()), (Phase::FactoryReady, ""));
    assert!(first.conditions.iter().all(|c| !c.status), "{:?}", first.conditions);
    let again = api.register(sent.clone()).await;
    let update = pb::UpdateMachineRequest { machine: Some(sent), update_mask: None };
    let updated = api.machines().update_machine(update).await.expect("updates").into_inner();
    for machine in [again, updated] {
        assert_eq!(machine.status, Some(first.clone()));
    }
}

// G-15-01, G-15-11: the document's "or updates an existing one"
#[tokio::test]
async fn registering_again_updates_spec_and_labels_and_keeps_the_status() {
    let api = Api::new().await;
    api.sim("m-1", &[("env", "test")]).await;
    let before = api.set_phase("m-1", Phase::Ready).await;
    let mut sent = sim_machine("m-1", &[("env", "prod")]);
    sent.spec.as_mut().expect("a spec").rack = "r1".into();
    let again = api.register(sent.clone()).await;
    assert_eq!((again.spec, again.labels), (sent.spec.clone(), sent.labels.clone()));
    assert_eq!(again.status, before.status);
    assert!(again.version > before.version);
    assert_eq!(api.register(sent).await.version, again.version, "the same again changes nothing");
}

// G-15-11, G-5-01
on_both!(registering_again_while_a_run_is_active_keeps_the_run, |api| async move {
    api.sim("m-1", &[("sim.fault.repave", "hang")]).await;
    let run = api.start(start("m-1", "REPAVE", "r1")).await;
    api.at_step(&run.run_id, "repave").await;
    let before = api.status("m-1").await;
    let again = api.sim("m-1", &[("sim.fault.repave", "hang"), ("env", "prod")]).await;
    assert_eq!(again.labels.get("env").map(String::as_str), Some("prod"));
    assert_eq!(again.status, Some(before));
    assert_eq!(again.status.expect("a status").active_run_id, run.run_id);
    let canceled = api.try_cancel(&run.run_id).await.expect("cancels");
    assert!(is_terminal(&canceled));
});

// UpdateMachine and re-registration racing with runs never lose the active run, phase or conditions
on_both!(updates_that_race_with_runs_lose_nothing, |api| async move {
    api.sim("m-1", &[("sim.fault.reboot", "fail:2")]).await;
    let mut failing = step("reboot", reboot());
    failing.max_retries = Some(1);
    api.create_plan("p", vec![step("repave", repave("i-1")), failing]).await;
    let run = api.start(start_plan("m-1", "p", "r1")).await;
    let mut rounds = 0;
    while !is_terminal(&api.run(&run.run_id).await) {
        rounds += 1;
        assert!(rounds < 20_000, "the run never ends: {:?}", api.run(&run.run_id).await);
        let note = rounds.to_string();
        let again = api.register(sim_machine("m-1", &[("sim.fault.reboot", "fail:2"), ("registered", &note)]));
        let update = pb::UpdateMachineRequest {
            machine: Some(pb::Machine {
                machine_id: "m-1".into(),
                labels: map(&[("updated", &note)]),
                ..Default::default()
            }),
            update_mask: Some(prost_reflect::prost_types::FieldMask { paths: vec!["labels.updated".into()] }),
        };
        let mut machines = api.machines();
        let (_, updated) = tokio::join!(again, machines.update_machine(update));
        updated.expect("an update without a version never conflicts");
    }
    let ended = api.ended(&run.run_id).await;
    assert_eq!(ended.phase(), pb::run::Phase::Failed, "two failures use up one retry: {ended:?}");
    let machine = api.machine("m-1").await;
    assert_eq!(machine.labels["registered"], rounds.to_string());
    let status = machine.status.expect("a status");
    assert_eq!((status.phase(), status.active_run_id.as_str()), (Phase::Maintenance, ""));
    assert!(api.needs_intervention("m-1").await);
});

// G-15-04, G-21-01
#[tokio::test]
async fn an_unknown_machine_is_not_found_and_named() {
    let api = Api::new().await;
    let refusal = refused(api.try_machine("m-404").await, Code::NotFound, "MACHINE_NOT_FOUND").says("m-404");
    assert_eq!(refusal.details["machine_id"], "m-404");
    refused_field(api.try_machine("").await, "machine_id");
}

// DESIGN section 7 "ids"; CONTRACT: a malformed field is INVALID_ARGUMENT
#[tokio::test]
async fn bad_ids_are_refused_by_field_and_nothing_is_stored() {
    let api = Api::new().await;
    for bad in ["a b", "ü", "a/b", "run_1", "exe_1", "tok_x", " ", "a\nb", &"a".repeat(64)] {
        let machine = pb::Machine { machine_id: bad.into(), ..Default::default() };
        refused_field(api.try_register(machine).await, "machine_id");
    }
    let ours = pb::Machine { machine_id: "mch_unknown".into(), ..Default::default() };
    api.try_register(ours).await.expect_err("an id of ours that was never given");
    let mut machines = api.machines();
    refused_field(machines.register_machine(pb::RegisterMachineRequest { machine: None }).await, "machine");
    assert_eq!(api.machine_ids("").await, Vec::<String>::new());
}

// DESIGN section 7 "limits": every bound has a clear error at it
#[tokio::test]
async fn bad_labels_are_refused_by_field_and_nothing_is_stored() {
    let api = Api::new().await;
    let long = "v".repeat(257);
    let long_key = "k".repeat(129);
    for (key, value, field) in [
        ("", "v", "labels"),
        (long_key.as_str(), "v", "labels (key)"),
        ("k\n", "v", "labels (key)"),
        ("k", long.as_str(), "labels.k"),
        ("k", "a\u{1b}[31m", "labels.k"),
    ] {
        let machine = pb::Machine { machine_id: "m-1".into(), labels: map(&[(key, value)]), ..Default::default() };
        refused_field(api.try_register(machine).await, field);
    }
    let many = (0..65).map(|i| (format!("k{i}"), "v".to_owned())).collect();
    let machine = pb::Machine { machine_id: "m-1".into(), labels: many, ..Default::default() };
    refused_field(api.try_register(machine).await, "labels").says("64");
    assert_eq!(api.machine_ids("").await, Vec::<String>::new());
}

// as above
#[tokio::test]
async fn bad_spec_fields_are_refused_by_field_and_nothing_is_stored() {
    let api = Api::new().await;
    let with = |change: &dyn Fn(&mut pb::MachineSpec)| {
        let mut spec = pb::MachineSpec::default();
        change(&mut spec);
        pb::Machine { machine_id: "m-1".into(), spec: Some(spec), ..Default::default() }
    };
    for mac in ["aa:bb", "zz:bb:cc:dd:ee:ff", "aa:bb:cc:dd:ee:ff:00", ""] {
        let machine = with(&|s| s.mac_addresses = vec!["aa:bb:cc:dd:ee:ff".into(), mac.into()]);
        refused_field(api.try_register(machine).await, "spec.mac_addresses[1]");
    }
    let many: Vec<String> = (0..65).map(|i| format!("aa:bb:cc:dd:ee:{i:02x}")).collect();
    refused_field(api.try_register(with(&|s| s.mac_addresses.clone_from(&many))).await, "spec.mac_addresses");
    refused_field(api.try_register(with(&|s| s.system_uuid = "not one".into())).await, "spec.system_uuid");
    refused_field(api.try_register(with(&|s| s.provider = "my provider".into())).await, "spec.provider");
    refused_field(api.try_register(with(&|s| s.rack = "r".repeat(513))).await, "spec.rack");
    refused_field(api.try_register(with(&|s| s.serial_number = "a\0b".into())).await, "spec.serial_number");
    assert_eq!(api.machine_ids("").await, Vec::<String>::new());
}
