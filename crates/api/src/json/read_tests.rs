//! What is accepted as JSON, and how everything else is told.

use super::super::descriptor;
use super::*;
use domain::Reason;
use proto::baremetal::v1 as pb;
use serde_json::json;

fn of(name: &str, value: Json) -> Result<DynamicMessage, Error> {
    read(&descriptor(name).expect("known"), value)
}

fn machine(value: Json) -> pb::Machine {
    of("baremetal.v1.Machine", value).expect("reads").transcode_to().expect("a machine")
}

fn wrong(name: &str, value: Json) -> String {
    let error = of(name, value).expect_err("does not fit");
    assert_eq!(error.reason, Reason::InvalidField);
    error.message
}

#[test]
fn names_may_be_the_protos_or_in_camel_case() {
    let expected = machine(json!({"machine_id": "m", "spec": {"bmc_endpoint": "b"}}));
    assert_eq!(machine(json!({"machineId": "m", "spec": {"bmcEndpoint": "b"}})), expected);
    let both = wrong("baremetal.v1.Machine", json!({"machineId": "m", "machine_id": "m"}));
    assert!(both.contains("stands twice"), "{both}");
}

#[test]
fn null_is_absent() {
    let all =
        json!({"machine_id": null, "labels": null, "spec": {"mac_addresses": null, "rack": null}, "status": null});
    let read = machine(all);
    assert_eq!(read, pb::Machine { spec: Some(pb::MachineSpec::default()), ..Default::default() });
}

#[test]
fn numbers_may_be_texts_and_whole_ones_may_be_spelt_otherwise() {
    for version in [json!(9), json!("9"), json!(9.0), json!(0.9e1)] {
        assert_eq!(machine(json!({"version": version})).version, 9);
    }
    assert_eq!(machine(json!({"version": "18446744073709551615"})).version, u64::MAX);
    for version in [json!(-1), json!(1.5), json!("x"), json!(""), json!(" 9"), json!(1e20), json!(true), json!([])] {
        let told = wrong("baremetal.v1.Machine", json!({"version": version}));
        assert!(told.starts_with("version: expected a whole number from 0 to 18446744073709551615, found "), "{told}");
    }
    let told = wrong("baremetal.v1.Step", json!({"timeout_seconds": 3_000_000_000u64}));
    assert_eq!(told, "timeout_seconds: expected a whole number from -2147483648 to 2147483647, found 3000000000");
}

#[test]
fn enums_are_names_or_numbers() {
    let phase = |value: Json| of("baremetal.v1.SetPhaseRequest", json!({"phase": value}));
    for value in [json!("READY"), json!(2)] {
        let read: pb::SetPhaseRequest = phase(value).expect("reads").transcode_to().expect("a request");
        assert_eq!(read.phase(), pb::machine_status::Phase::Ready);
    }
    // an open enum: the handler judges it
    phase(json!(99)).expect("reads");
    for value in [json!("ready"), json!(""), json!(1.5), json!({})] {
        let error = phase(value).expect_err("unknown");
        assert!(error.message.starts_with("phase: expected one of PHASE_UNSPECIFIED, FACTORY_READY"), "{error}");
        assert_eq!(error.allowed.len(), 8);
    }
}

#[test]
fn bytes_are_base64_in_either_alphabet() {
    for text in ["//4A", "__4A", "//4="] {
        of("baremetal.v1.LogChunk", json!({"data": text})).expect(text);
    }
    for value in [json!("?"), json!("a"), json!(5)] {
        assert!(wrong("baremetal.v1.LogChunk", json!({"data": value})).starts_with("data: expected bytes in base64"));
    }
}

#[test]
fn what_does_not_fit_is_named_by_its_path() {
    let told = |value| wrong("baremetal.v1.Machine", value);
    assert_eq!(
        told(json!({"spec": {"mac_addresses": ["a", "b", 5]}})),
        "spec.mac_addresses[2]: expected a text, found 5"
    );
    assert_eq!(told(json!({"spec": []})), "spec: expected an object, found a list");
    assert_eq!(told(json!({"spec": {"mac_addresses": "a"}})), "spec.mac_addresses: expected a list, found \"a\"");
    assert_eq!(told(json!({"spec": {"mac_addresses": [null]}})), "spec.mac_addresses[0]: expected a text, found null");
    assert_eq!(told(json!({"labels": {"a": 1}})), "labels.a: expected a text, found 1");
    assert_eq!(told(json!({"labels": {"a": null}})), "labels.a: expected a text, found null");
    assert_eq!(told(json!("m-1")), "body: expected an object, found \"m-1\"");
    assert_eq!(told(json!(null)), "body: expected an object, found null");
    let long = told(json!({"spec": "x".repeat(1000)}));
    assert!(long.len() < 200, "{long}");
}

#[test]
fn unknown_fields_are_refused_with_the_known_ones() {
    let error = of("baremetal.v1.Machine", json!({"spec": {"colour": "red"}})).expect_err("unknown");
    assert!(error.message.starts_with("spec.colour: unknown field; known are: ssh_endpoint, bmc_endpoint"), "{error}");
    assert!(error.allowed.contains(&"mac_addresses".to_owned()));
    assert_eq!(error.details.get("field").map(String::as_str), Some("spec.colour"));
}

#[test]
fn of_a_choice_at_most_one_is_possible() {
    let told = wrong("baremetal.v1.Plan", json!({"steps": [{"reboot": {}, "netboot": {}}]}));
    assert_eq!(told, "steps[0]: has both netboot and reboot, at most one is possible");
    of("baremetal.v1.Plan", json!({"steps": [{"reboot": {}, "netboot": null}]})).expect("null is absent");
}

#[test]
fn times_and_masks_have_forms_of_their_own() {
    of("baremetal.v1.Run", json!({"created_at": "2026-01-29T15:10:00.5+02:00"})).expect("a time");
    for value in [json!("yesterday"), json!(5), json!({}), json!("2026-13-01T00:00:00Z")] {
        let told = wrong("baremetal.v1.Run", json!({"created_at": value}));
        assert!(told.starts_with("created_at: expected a time such as"), "{told}");
    }
    let read = of("baremetal.v1.UpdateMachineRequest", json!({"update_mask": "spec.rack,labels.Env_X"}));
    let read: pb::UpdateMachineRequest = read.expect("reads").transcode_to().expect("a request");
    assert_eq!(read.update_mask.expect("a mask").paths, ["spec.rack", "labels.Env_X"]);
}

#[test]
fn a_secret_that_does_not_fit_is_not_told() {
    for field in ["password", "private_key", "privateKey", "passphrase", "kubeconfig"] {
        for value in [json!(4711), json!(true), json!(["hunter2"])] {
            let problem = wrong("millwright.v1.SetCredentialRequest", json!({ field: value }));
            assert!(problem.contains("found something else") && !problem.contains("4711"), "{problem}");
        }
    }
    assert!(wrong("millwright.v1.SetCredentialRequest", json!({"username": 4711})).contains("found 4711"));
}
