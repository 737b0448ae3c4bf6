//! The numbers of the document (G-15 to G-18) and of CONTRACT's additions, written out: whatever the
//! golden file says, these are contract.

use prost_reflect::{DescriptorPool, Kind, MessageDescriptor};

fn pool() -> DescriptorPool {
    DescriptorPool::decode(proto::DESCRIPTORS).expect("descriptors")
}

fn message(name: &str) -> MessageDescriptor {
    pool().get_message_by_name(&format!("baremetal.v1.{name}")).unwrap_or_else(|| panic!("{name} is missing"))
}

/// `"name 1, other 2"` must be fields of the message.
fn fields(name: &str, expected: &str) {
    let message = message(name);
    for pair in expected.split(", ") {
        let (field, number) = pair.rsplit_once(' ').expect("a name and a number");
        let found = message.get_field_by_name(field).unwrap_or_else(|| panic!("{name}.{field} is missing"));
        assert_eq!(found.number().to_string(), number, "{name}.{field}");
    }
}

/// These are all the values of the enum.
fn values(name: &str, expected: &str) {
    let all = pool().get_enum_by_name(&format!("baremetal.v1.{name}")).unwrap_or_else(|| panic!("{name} is missing"));
    let found: Vec<String> = all.values().map(|v| format!("{} {}", v.name(), v.number())).collect();
    assert_eq!(found.join(", "), expected, "{name}");
}

fn kind_of(message_name: &str, field: &str) -> Kind {
    message(message_name).get_field_by_name(field).expect("a field").kind()
}

// G-15-02 to G-15-08
#[test]
fn the_requests_about_machines_have_the_documents_numbers() {
    fields("RegisterMachineRequest", "machine 1");
    fields("GetMachineRequest", "machine_id 1");
    fields("ListMachinesRequest", "filter 1, page_size 2, page_token 3");
    fields("ListMachinesResponse", "machines 1, next_page_token 2");
    fields("UpdateMachineRequest", "machine 1");
}

// G-16-01 to G-16-03
#[test]
fn the_requests_about_plans_have_the_documents_numbers() {
    fields("GetPlanRequest", "plan_id 1");
    fields("ListPlansResponse", "plans 1");
    assert_eq!(message("ListPlansRequest").fields().len(), 0, "takes an empty request");
}

// G-17-02, G-17-05 to G-17-10
#[test]
fn the_requests_about_runs_have_the_documents_numbers() {
    fields("StartRunRequest", "request_id 1, machine_id 2, type 3, plan_id 4");
    fields("GetRunRequest", "run_id 1");
    fields("ListRunsRequest", "filter 1");
    fields("ListRunsResponse", "runs 1");
    fields("CancelRunRequest", "run_id 1");
    fields("WatchRunsRequest", "filter 1");
    fields("StreamRunLogsRequest", "run_id 1");
}

// G-18-01 to G-18-05
#[test]
fn a_machine_has_the_documents_numbers() {
    fields("Machine", "machine_id 1, labels 2, spec 3, status 4");
    fields("MachineSpec", "ssh_endpoint 1, bmc_endpoint 2, target_cluster_ref 3, mac_addresses 4");
    fields("MachineStatus", "phase 1, conditions 2, active_run_id 3");
    values(
        "MachineStatus.Phase",
        "PHASE_UNSPECIFIED 0, FACTORY_READY 1, READY 2, PROVISIONING 3, IN_SERVICE 4, MAINTENANCE 5, RMA 6, RETIRED 7",
    );
    fields("Condition", "type 1, status 2, reason 3, last_transition 4");
    assert!(message("Machine").get_field_by_name("labels").is_some_and(|f| f.is_map()));
    assert!(message("MachineSpec").get_field_by_name("mac_addresses").is_some_and(|f| f.is_list()));
    assert_eq!(kind_of("Condition", "status"), Kind::Bool);
}

// G-18-06 to G-18-08, T-40
#[test]
fn a_plan_has_the_documents_numbers() {
    fields("Plan", "plan_id 1, display_name 2, steps 3");
    fields("Step", "name 1, timeout_seconds 2, max_retries 3");
    fields("Step", "ssh 10, reboot 11, netboot 12, repave 13, join 14, verify 15, net 16, rma 17");
    let step = message("Step");
    let oneof = step.oneofs().find(|o| !o.is_synthetic()).expect("a oneof");
    assert_eq!((oneof.name(), oneof.fields().len()), ("kind", 8));
    for name in ["timeout_seconds", "max_retries"] {
        let field = step.get_field_by_name(name).expect("a field");
        assert!(field.supports_presence(), "CONTRACT: {name} is optional");
        assert_eq!(field.kind(), Kind::Int32);
    }
}

// G-18-09 to G-18-12
#[test]
fn a_run_has_the_documents_numbers() {
    fields("Run", "run_id 1, machine_id 2, request_id 3, type 4, plan_id 5, phase 6, steps 7, current_step 8");
    fields("Run", "created_at 9, started_at 10, finished_at 11");
    values("Run.Phase", "PHASE_UNSPECIFIED 0, PENDING 1, RUNNING 2, SUCCEEDED 3, FAILED 4, CANCELED 5");
    fields("StepStatus", "name 1, state 2, retry_count 3, started_at 4, finished_at 5, message 6");
    values("StepStatus.State", "STATE_UNSPECIFIED 0, WAITING 1, RUNNING 2, SUCCEEDED 3, FAILED 4");
}

// G-18-13, G-18-14, G-19-04
#[test]
fn events_and_logs_have_the_documents_numbers() {
    fields("RunEvent", "ts 1, snapshot 2, message 3");
    fields("LogChunk", "ts 1, run_id 2, stream 3, data 4");
    assert_eq!(kind_of("LogChunk", "data"), Kind::Bytes);
    for (message, field) in
        [("RunEvent", "ts"), ("LogChunk", "ts"), ("Run", "created_at"), ("Condition", "last_transition")]
    {
        let Kind::Message(kind) = kind_of(message, field) else { panic!("{message}.{field} is no message") };
        assert_eq!(kind.full_name(), "google.protobuf.Timestamp");
    }
}

// CONTRACT "Additions, with their numbers"
#[test]
fn the_additions_have_the_contracts_numbers() {
    fields(
        "MachineSpec",
        "provider 5, location 6, rack 7, serial_number 8, customer_id 9, system_uuid 10, credentials_ref 11",
    );
    fields("MachineStatus", "effective_state 4, last_seen 5, phase_set_by 6, desired 7, observed 8, execution 9");
    fields("Machine", "version 5");
    fields("Condition", "message 5, observed_at 6, stale 7");
    fields("UpdateMachineRequest", "update_mask 2");
    fields("StartRunRequest", "parameters 5, override_reason 6");
    fields("Run", "parameters 12, error 13, why 14, version 15");
    fields("RunError", "code 1, class 2, message 3, retryable 4");
    fields("ListRunsRequest", "page_size 2, page_token 3");
    fields("ListRunsResponse", "next_page_token 2");
    fields("WatchRunsRequest", "after_sequence 2");
    fields("RunEvent", "sequence 4");
    fields("StreamRunLogsRequest", "after_sequence 2, no_follow 3");
    fields("LogChunk", "sequence 5, step 6");
    for (message, field) in [
        ("WatchRunsRequest", "after_sequence"),
        ("RunEvent", "sequence"),
        ("StreamRunLogsRequest", "after_sequence"),
        ("LogChunk", "sequence"),
    ] {
        assert_eq!(kind_of(message, field), Kind::Uint64, "sequences are uint64: {message}.{field}");
    }
}

// CONTRACT "Step payloads"; G-18-16
#[test]
fn the_step_payloads_have_the_contracts_fields() {
    for (name, expected) in [
        ("SshCommand", "command args environment"),
        ("Reboot", "mode"),
        ("SetNetboot", "mode persistent"),
        ("RepaveImage", "image user_data_ref"),
        ("KubeadmJoin", "cluster_ref"),
        ("VerifyInCluster", "cluster_ref"),
        ("NetReconfig", "parameters"),
        ("RmaAction", "action reason"),
    ] {
        let message = message(name);
        for field in expected.split(' ') {
            assert!(message.get_field_by_name(field).is_some(), "{name}.{field}");
        }
    }
}

// G-14-01, the document's services, and CONTRACT's additional RPCs
#[test]
fn the_services_have_the_documents_calls() {
    let pool = pool();
    for (service, expected) in [
        ("MachineService", "RegisterMachine GetMachine ListMachines UpdateMachine SetPhase"),
        ("PlanService", "GetPlan ListPlans CreatePlan"),
        ("RunService", "StartRun GetRun ListRuns CancelRun WatchRuns StreamRunLogs"),
    ] {
        let found = pool.get_service_by_name(&format!("baremetal.v1.{service}")).expect(service);
        for name in expected.split(' ') {
            let method = found.methods().find(|m| m.name() == name).unwrap_or_else(|| panic!("{name} is missing"));
            assert_eq!(method.is_server_streaming(), matches!(name, "WatchRuns" | "StreamRunLogs"), "{name}");
            assert!(!method.is_client_streaming(), "{name}");
        }
    }
    let output = |service: &str, method: &str| {
        let service = pool.get_service_by_name(&format!("baremetal.v1.{service}")).expect("a service");
        let method = service.methods().find(|m| m.name() == method).expect("a method");
        method.output().name().to_owned()
    };
    assert_eq!(output("MachineService", "RegisterMachine"), "Machine");
    assert_eq!(output("RunService", "StartRun"), "Run");
    assert_eq!(output("RunService", "CancelRun"), "Run");
    assert_eq!(output("RunService", "WatchRuns"), "RunEvent");
    assert_eq!(output("RunService", "StreamRunLogs"), "LogChunk");
}
