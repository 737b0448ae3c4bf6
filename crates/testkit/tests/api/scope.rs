//! A customer's token sees and touches that customer's machines and runs. What is not its own is not
//! there: in no answer, list, watch, event or count, and not after a machine has changed hands.

use crate::callers::{Caller, caller, hand_over, handing_over, keyed, machine_of};
use crate::fixture::{Api, join, map, on_both, reboot, ssh, start, start_plan, step, within};
use crate::raw;
use crate::refusal::refused;
use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::FieldMask;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase;
use proto::millwright::v1 as mw;
use std::collections::BTreeSet;
use tonic::{Code, Status, Streaming};

const ROLES: [&str; 3] = ["viewer", "operator", "admin"];

/// A refusal to its last byte, with the thing's name taken out.
fn bytes_of(status: &Status, id: &str) -> (Code, String, Vec<u8>, Vec<String>) {
    let text = |bytes: &[u8]| bytes.iter().map(|b| char::from(*b)).collect::<String>();
    let details = text(status.details()).replace(id, "ID").into_bytes();
    let mut names: Vec<String> = status.metadata().keys().map(|k| format!("{k:?}")).collect();
    names.sort();
    (status.code(), status.message().replace(id, "ID"), details, names)
}

/// The same length and shape as the id, and nobody's.
fn nobodys(id: &str) -> String {
    let (head, last) = id.split_at(id.len() - 4);
    format!("{head}{}", if last == "0000" { "0001" } else { "0000" })
}

fn calls_about(id: &str) -> Vec<(&'static str, Vec<u8>)> {
    let id = || id.to_owned();
    let machine = pb::Machine { machine_id: id(), labels: map(&[("a", "b")]), ..Default::default() };
    let mask = FieldMask { paths: vec!["labels.a".into()] };
    vec![
        ("baremetal.v1.MachineService/GetMachine", pb::GetMachineRequest { machine_id: id() }.encode_to_vec()),
        (
            "baremetal.v1.MachineService/UpdateMachine",
            pb::UpdateMachineRequest { machine: Some(machine), update_mask: Some(mask) }.encode_to_vec(),
        ),
        ("baremetal.v1.MachineService/ExplainMachine", pb::ExplainMachineRequest { machine_id: id() }.encode_to_vec()),
        ("baremetal.v1.RunService/StartRun", start(&id(), "REBOOT", "r9").encode_to_vec()),
        ("baremetal.v1.RunService/GetRun", pb::GetRunRequest { run_id: id() }.encode_to_vec()),
        ("baremetal.v1.RunService/CancelRun", pb::CancelRunRequest { run_id: id() }.encode_to_vec()),
        (
            "baremetal.v1.RunService/WatchRuns",
            pb::WatchRunsRequest { filter: format!("run_id={}", id()), after_sequence: None }.encode_to_vec(),
        ),
        (
            "baremetal.v1.RunService/StreamRunLogs",
            pb::StreamRunLogsRequest { run_id: id(), after_sequence: 1, no_follow: false }.encode_to_vec(),
        ),
        ("baremetal.v1.RunService/ExplainRun", pb::ExplainRunRequest { run_id: id() }.encode_to_vec()),
        ("millwright.v1.ExplainService/Explain", mw::ExplainRequest { id: id() }.encode_to_vec()),
    ]
}

// existence hidden; a foreign one answers byte for byte like a missing one
on_both!(what_is_foreign_answers_byte_for_byte_like_what_is_missing, |api| async move {
    api.register(machine_of("globex", "globex-0042", &[])).await;
    let ended = api.carry_out(start("globex-0042", "UPGRADE", "r1")).await.run_id;
    let execution = api.execution(&ended).await.0.execution_id;
    let token = caller(&api, "somebody", "viewer", "globex").await.token.token_id;
    api.register(machine_of("globex", "globex-0043", &[("sim.fault.reboot", "hang")])).await;
    let held = api.start(start("globex-0043", "REBOOT", "r1")).await.run_id;
    let channel = raw::channel(&api.server.url).await;
    for role in ROLES {
        let acme = caller(&api, role, role, "acme").await;
        for id in ["globex-0042", "globex-0043", &ended, &held, &execution, &token] {
            let missing = nobodys(id);
            for ((call, foreign), (_, nobodys)) in calls_about(id).into_iter().zip(calls_about(&missing)) {
                let answer = async |body: Vec<u8>| {
                    raw::call_once(channel.clone(), &format!("/{call}"), raw::with_token(&acme.secret, body)).await
                };
                let (foreign, missing_one) = (answer(foreign).await, answer(nobodys).await);
                let foreign = foreign.expect_err("is not served");
                let missing_one = missing_one.expect_err("is not there");
                assert_eq!(bytes_of(&foreign, id), bytes_of(&missing_one, &missing), "{call} of {id} as {role}");
            }
        }
    }
    assert!(!crate::fixture::is_terminal(&api.run(&held).await), "and nothing was done to it");
});

async fn world(api: &Api) -> (Vec<String>, Vec<String>) {
    let (mut machines, mut runs) = (Vec::new(), Vec::new());
    for i in 0..6 {
        let customer = if i % 2 == 0 { "acme" } else { "globex" };
        let machine = api.register(machine_of(customer, &format!("m-{i}"), &[("sim.fault.reboot", "hang")])).await;
        let ended = api.carry_out(start(&machine.machine_id, "NET_RECONFIG", "ended")).await.run_id;
        let active = api.start(start(&machine.machine_id, "REBOOT", "active")).await.run_id;
        if customer == "acme" {
            machines.push(machine.machine_id);
            runs.extend([ended, active]);
        }
    }
    runs.sort();
    (machines, runs)
}

// lists, watches, events and counts never show foreign ones; foreign ids in filters reveal nothing
on_both!(lists_watches_and_events_hold_only_what_is_the_customers, |api| async move {
    let (machines, runs) = world(&api).await;
    let acme = caller(&api, "acme-viewer", "viewer", "acme").await;
    assert_eq!(acme.machine_ids("").await, machines);
    let mut listed = acme.run_ids("").await;
    listed.sort();
    assert_eq!(listed, runs);
    for filter in ["machine_id=m-1", "customer_id=globex", "customer_id=\"\""] {
        assert_eq!(acme.machine_ids(filter).await, Vec::<String>::new(), "{filter}");
        assert_eq!(acme.run_ids(filter).await, Vec::<String>::new(), "{filter}");
    }
    // pages hold only own ones, and go on to the end of them
    let (mut paged, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = pb::ListMachinesRequest { filter: String::new(), page_size: 1, page_token };
        let page = acme.machines().list_machines(request).await.expect("lists").into_inner();
        paged.extend(page.machines.into_iter().map(|m| m.machine_id));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(paged, machines);
    // the present snapshots are those of own active runs
    let mut watch = watch_runs(&acme, "", None).await;
    let mut present = BTreeSet::new();
    for _ in 0..3 {
        present.insert(next(&mut watch).await.machine_id);
    }
    assert_eq!(present, machines.iter().cloned().collect());
    // and what is replayed or follows is own as well: another customer's run comes in between
    let mut replay = watch_runs(&acme, "", Some(0)).await;
    api.register(machine_of("globex", "m-late-other", &[])).await;
    api.carry_out(start("m-late-other", "NET_RECONFIG", "r1")).await;
    api.register(machine_of("acme", "m-late", &[])).await;
    let late = api.carry_out(start("m-late", "NET_RECONFIG", "r1")).await;
    for stream in [&mut watch, &mut replay] {
        loop {
            let run = next(stream).await;
            assert!(runs.contains(&run.run_id) || run.run_id == late.run_id, "{run:?}");
            if run.run_id == late.run_id && crate::fixture::is_terminal(&run) {
                break;
            }
        }
    }
    let events = acme.all_events("").await;
    let own: BTreeSet<String> = machines.iter().chain(&runs).chain([&late.run_id]).cloned().collect();
    assert!(events.iter().all(|e| own.contains(&e.subject) || e.subject == "m-late"), "{events:?}");
    assert!(events.iter().all(|e| e.kind != "token"));
    for filter in ["id=m-1", "subject=m-1", "kind=token", "actor=globex"] {
        assert_eq!(acme.all_events(filter).await, [], "{filter}");
    }
});

async fn watch_runs(who: &Caller, filter: &str, after: Option<u64>) -> Streaming<pb::RunEvent> {
    let request = pb::WatchRunsRequest { filter: filter.into(), after_sequence: after };
    who.runs().watch_runs(request).await.expect("begins").into_inner()
}

async fn next(stream: &mut Streaming<pb::RunEvent>) -> pb::Run {
    let event = within("one more event", stream.message()).await.expect("no error").expect("one more event");
    event.snapshot.expect("a snapshot")
}

// also when a machine changes hands; whoever had it learns nothing that happens to it after that
on_both!(a_machine_that_changed_hands_is_the_new_owners_at_once, |api| async move {
    for id in ["m-1", "m-2"] {
        api.register(machine_of("acme", id, &[])).await;
    }
    let acme = caller(&api, "acme-operator", "operator", "acme").await;
    let globex = caller(&api, "globex-operator", "operator", "globex").await;
    let mut runs = watch_runs(&acme, "", Some(0)).await;
    let mut new_owner = watch_runs(&globex, "", Some(0)).await;
    let request = mw::WatchEventsRequest { after: Some(0), ..Default::default() };
    let mut events = acme.events().watch_events(request).await.expect("begins").into_inner();
    for round in 0..5 {
        // the streams have just met the machine as acme's
        let own = api.carry_out(start("m-1", "NET_RECONFIG", &format!("own-{round}"))).await;
        loop {
            let run = next(&mut runs).await;
            if run.run_id == own.run_id && crate::fixture::is_terminal(&run) {
                break;
            }
        }
        hand_over(&api, "m-1", "globex").await;
        let theirs = api.carry_out(start("m-1", "NET_RECONFIG", &format!("theirs-{round}"))).await;
        refused(acme.machine("m-1").await, Code::NotFound, "MACHINE_NOT_FOUND");
        let mark = api.carry_out(start("m-2", "NET_RECONFIG", &format!("mark-{round}"))).await;
        loop {
            let run = next(&mut runs).await;
            assert_ne!(run.run_id, theirs.run_id, "acme is told of a run on what is not its own any more");
            if run.run_id == mark.run_id && crate::fixture::is_terminal(&run) {
                break;
            }
        }
        loop {
            let event = within("an event", events.message()).await.expect("no error").expect("an event");
            assert_ne!(event.subject, theirs.run_id);
            if event.subject == mark.run_id && event.kind == "run" && event.to == "SUCCEEDED" {
                break;
            }
        }
        while next(&mut new_owner).await.run_id != theirs.run_id {}
        hand_over(&api, "m-1", "acme").await;
    }
});

// what a run still does on a machine is not for its next owner to see, nor to suffer
on_both!(a_machine_at_work_does_not_change_hands, |api| async move {
    api.register(machine_of("acme", "m-1", &[("sim.fault.reboot", "hang")])).await;
    let run = api.start(start("m-1", "REBOOT", "r1")).await.run_id;
    let moved = api.machines().update_machine(handing_over("m-1", "globex")).await;
    let refusal = refused(moved, Code::FailedPrecondition, "ACTIVE_RUN");
    assert_eq!(refusal.details["run_id"], run);
    let cancel = pb::CancelRunRequest { run_id: run.clone() };
    api.runs().cancel_run(cancel).await.expect("is asked to stop");
    api.ended(&run).await;
    hand_over(&api, "m-1", "globex").await;
});

// what has happened stays the customer's whose it was then
on_both!(what_has_happened_stays_whose_it_was, |api| async move {
    api.register(machine_of("acme", "m-1", &[])).await;
    let acme = caller(&api, "acme-viewer", "viewer", "acme").await;
    let globex = caller(&api, "globex-viewer", "viewer", "globex").await;
    let old = api.carry_out(start("m-1", "NET_RECONFIG", "r1")).await.run_id;
    let before = acme.all_events("").await;
    hand_over(&api, "m-1", "globex").await;
    assert_eq!(globex.all_events("").await, [], "nothing of it happened under the new owner");
    let get = |run: &str| pb::GetRunRequest { run_id: run.into() };
    refused(globex.runs().get_run(get(&old)).await, Code::NotFound, "RUN_NOT_FOUND");
    let operator = caller(&api, "globex-operator", "operator", "globex").await;
    let again = operator.runs().start_run(start("m-1", "NET_RECONFIG", "r1")).await;
    let refusal = refused(again, Code::AlreadyExists, "REQUEST_ID_REUSED").says("before it was yours");
    assert!(!refusal.message.contains(&old) && !refusal.details.contains_key("run_id"), "{refusal:?}");
    let new = api.carry_out(start("m-1", "NET_RECONFIG", "r2")).await.run_id;
    assert_eq!(acme.all_events("").await, before, "nor does the old one learn what happens now");
    acme.runs().get_run(get(&old)).await.expect("its own run is still its own");
    refused(acme.runs().get_run(get(&new)).await, Code::NotFound, "RUN_NOT_FOUND");
    for (who, run) in [(&acme, &old), (&globex, &new)] {
        let listed = who.runs().list_runs(pb::ListRunsRequest::default()).await.expect("lists").into_inner().runs;
        assert_eq!(listed.iter().map(|r| &r.run_id).collect::<Vec<_>>(), [run]);
        let request = pb::StreamRunLogsRequest { run_id: run.clone(), no_follow: true, ..Default::default() };
        who.runs().stream_run_logs(request).await.expect("its own log");
    }
});

// what a request did before the machine changed hands is not told afterwards, to whoever knows its key
on_both!(a_key_opens_nothing_that_changed_hands, |api| async move {
    api.register(machine_of("acme", "m-1", &[])).await;
    let acme = caller(&api, "acme-operator", "operator", "acme").await;
    let update = || pb::UpdateMachineRequest {
        machine: Some(pb::Machine {
            machine_id: "m-1".into(),
            labels: map(&[("colour", "red")]),
            ..Default::default()
        }),
        update_mask: Some(FieldMask { paths: vec!["labels.colour".into()] }),
    };
    acme.machines().update_machine(keyed(update(), "k1")).await.expect("updates");
    let run = acme.runs().start_run(keyed(start("m-1", "REBOOT", "r1"), "k2")).await.expect("starts").into_inner();
    api.ended(&run.run_id).await;
    hand_over(&api, "m-1", "globex").await;
    let again = acme.machines().update_machine(keyed(update(), "k1")).await;
    refused(again, Code::NotFound, "MACHINE_NOT_FOUND");
    let again = acme.runs().start_run(keyed(start("m-1", "REBOOT", "r1"), "k2")).await.expect("its own run");
    assert_eq!(again.into_inner().run_id, run.run_id);
    let new = acme.runs().start_run(keyed(start("m-1", "REBOOT", "r2"), "k3")).await;
    refused(new, Code::NotFound, "MACHINE_NOT_FOUND");
});

fn with(mut request: pb::StartRunRequest, name: &str, value: &str) -> pb::StartRunRequest {
    request.parameters.insert(name.into(), value.into());
    request
}

fn update(id: &str, path: &str, change: impl Fn(&mut pb::Machine)) -> pb::UpdateMachineRequest {
    let mut machine =
        pb::Machine { machine_id: id.into(), spec: Some(pb::MachineSpec::default()), ..Default::default() };
    change(&mut machine);
    pb::UpdateMachineRequest { machine: Some(machine), update_mask: Some(FieldMask { paths: vec![path.into()] }) }
}

// what a customer may not do, whatever its role
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_for_a_customer_is_refused_to_all_its_roles() {
    let api = Api::new().await;
    let mut machine = machine_of("acme", "m-1", &[]);
    machine.spec.as_mut().expect("a spec").target_cluster_ref = "acme-cluster".into();
    let before = api.register(machine).await;
    api.create_plan("command", vec![step("one", ssh("uptime", &[]))]).await;
    api.create_plan("theirs", vec![step("one", join("globex-cluster"))]).await;
    for role in ["operator", "admin"] {
        let acme = caller(&api, role, role, "acme").await;
        let mut overriding = start("m-1", "REBOOT", "r1");
        overriding.override_reason = "because".into();
        for (what, request) in [
            ("command", with(start_plan("m-1", "command", "r1"), "command", "rm")),
            ("cluster", with(start("m-1", "REPAVE", "r1"), "cluster_ref", "globex-cluster")),
            ("a plan's cluster", start_plan("m-1", "theirs", "r1")),
            ("user data", with(start("m-1", "REPAVE", "r1"), "user_data_ref", "secret/globex")),
            ("RMA", start("m-1", "RMA", "r1")),
            ("RMA by its plan", start_plan("m-1", "default-rma", "r1")),
            ("override", overriding),
        ] {
            let status = acme.start(request).await.expect_err(what);
            assert_eq!(status.code(), Code::PermissionDenied, "{what} as {role}: {status:?}");
        }
        for (path, change) in [
            ("spec", (|_| {}) as fn(&mut pb::Machine)),
            ("spec.rack", |m| spec(m).rack = "r9".into()),
            ("spec.ssh_endpoint", |m| spec(m).ssh_endpoint = "evil:22".into()),
            ("spec.bmc_endpoint", |m| spec(m).bmc_endpoint = "https://evil".into()),
            ("spec.credentials_ref", |m| spec(m).credentials_ref = "root".into()),
            ("spec.customer_id", |m| spec(m).customer_id = "globex".into()),
            ("spec.provider", |m| spec(m).provider = "other".into()),
            ("spec.target_cluster_ref", |m| spec(m).target_cluster_ref = "globex-cluster".into()),
            ("labels.node", |m| drop(m.labels.insert("node".into(), "globex-1".into()))),
        ] {
            let status = acme.machines().update_machine(update("m-1", path, change)).await.expect_err(path);
            assert_eq!(status.code(), Code::PermissionDenied, "{path} as {role}: {status:?}");
        }
        let register = pb::RegisterMachineRequest { machine: Some(machine_of("acme", "m-9", &[])) };
        refused(acme.machines().register_machine(register).await, Code::PermissionDenied, "OUT_OF_SCOPE");
        let to = pb::SetPhaseRequest { machine_id: "m-1".into(), phase: Phase::Ready.into(), reason: String::new() };
        refused(acme.machines().set_phase(to).await, Code::PermissionDenied, "OUT_OF_SCOPE");
    }
    assert_eq!(api.machine("m-1").await, before, "nothing was changed");
    assert_eq!(api.list_runs("").await, [], "and nothing was started");
    // and the same things may be asked for by whom they are for
    let acme = caller(&api, "own", "operator", "acme").await;
    let label = update("m-1", "labels.colour", |m| drop(m.labels.insert("colour".into(), "red".into())));
    acme.machines().update_machine(label).await.expect("labels are the customer's");
    acme.start(with(start("m-1", "REBOOT", "r2"), "mode", "force")).await.expect("starts");
}

fn spec(machine: &mut pb::Machine) -> &mut pb::MachineSpec {
    machine.spec.get_or_insert_default()
}

// the provider's label decides who drives a machine, where its spec does not say
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_customer_does_not_move_a_machine_to_another_provider_by_its_label() {
    let api = Api::new().await;
    let mut machine = machine_of("acme", "m-1", &[("provider", "sim")]);
    spec(&mut machine).provider = String::new();
    api.register(machine).await;
    let acme = caller(&api, "acme-admin", "admin", "acme").await;
    for path in ["labels.provider", "labels"] {
        let other = update("m-1", path, |m| drop(m.labels.insert("provider".into(), "other".into())));
        refused(acme.machines().update_machine(other).await, Code::PermissionDenied, "OUT_OF_SCOPE");
        let none = update("m-1", path, |_| {});
        refused(acme.machines().update_machine(none).await, Code::PermissionDenied, "OUT_OF_SCOPE");
    }
    let kept = update("m-1", "labels", |m| m.labels = map(&[("provider", "sim"), ("colour", "red")]));
    acme.machines().update_machine(kept).await.expect("the same provider");
}

// what needs an administrator
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_an_administrator_may_ask_is_refused_to_an_operator() {
    let api = Api::new().await;
    let operator = caller(&api, "operator", "operator", "").await;
    let before = api.register(machine_of("", "m-1", &[])).await;
    api.create_plan("command", vec![step("one", ssh("uptime", &[])), step("two", reboot())]).await;
    let mut overriding = start("m-1", "REBOOT", "r1");
    overriding.override_reason = "because".into();
    for request in [
        overriding,
        with(start_plan("m-1", "command", "r1"), "command", "rm"),
        with(start("m-1", "UPGRADE", "r1"), "command", "rm"),
    ] {
        refused(operator.start(request).await, Code::PermissionDenied, "ROLE_TOO_LOW");
    }
    for (path, change) in [
        ("spec.bmc_endpoint", (|m| spec(m).bmc_endpoint = "https://evil".into()) as fn(&mut pb::Machine)),
        ("spec.credentials_ref", |m| spec(m).credentials_ref = "root".into()),
        ("spec", |m| spec(m).bmc_endpoint = "https://evil".into()),
    ] {
        let answer = operator.machines().update_machine(update("m-1", path, change)).await;
        refused(answer, Code::PermissionDenied, "ROLE_TOO_LOW");
    }
    // to register it again is a change as well
    let mut again = machine_of("", "m-1", &[]);
    spec(&mut again).bmc_endpoint = "https://evil".into();
    let answer = operator.machines().register_machine(pb::RegisterMachineRequest { machine: Some(again) }).await;
    refused(answer, Code::PermissionDenied, "ROLE_TOO_LOW");
    assert_eq!(api.machine("m-1").await, before);
    assert_eq!(api.list_runs("").await, []);
    api.start(with(start_plan("m-1", "command", "r1"), "command", "id")).await;
}
