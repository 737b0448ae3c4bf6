//! A key makes a change repeatable: the same request again has no second effect and is answered about
//! the same thing; with another request the key is refused. For every change of the API.

use crate::asks::{Asks, OWN, every_call};
use crate::callers::{Caller, caller, caller_at, keyed, root};
use crate::fixture::{Api, on_both, sim_machine, start};
use crate::raw;
use crate::refusal::{refused, refused_field};
use crate::two_servers::Two;
use futures::future::join_all;
use prost_reflect::prost::bytes::Bytes;
use prost_reflect::{DynamicMessage, MethodDescriptor, Value};
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase;
use proto::millwright::v1 as mw;
use service::access_table::{Effect, rule_of};
use std::collections::BTreeSet;
use tonic::metadata::{AsciiMetadataValue, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

fn every_change() -> Vec<(String, MethodDescriptor)> {
    let changes = |call: &str| rule_of(call).is_some_and(|rule| rule.effect == Effect::Changes);
    every_call().into_iter().filter(|(call, _)| changes(call)).collect()
}

/// Sends a request with a key and a request id.
async fn send(channel: Channel, who: &Caller, call: &str, body: &[u8], key: &str, id: &str) -> Result<Bytes, Status> {
    let mut request = raw::with_token(&who.secret, body.to_vec());
    request.metadata_mut().insert("x-idempotency-key", key.parse().expect("a header"));
    request.metadata_mut().insert("x-request-id", id.parse().expect("a header"));
    Ok(raw::call_once(channel, &format!("/{call}"), request).await?.expect("one answer"))
}

/// What an answer is about: its first field, which is an id, or holds what has one.
fn about(method: &MethodDescriptor, answer: Bytes) -> Value {
    let mut message = DynamicMessage::decode(method.output(), answer).expect("reads");
    loop {
        let first = message.get_field_by_number(1).expect("a first field").into_owned();
        match first {
            Value::Message(inner) => message = inner,
            value => return value,
        }
    }
}

async fn head(api: &Api) -> u64 {
    api.server.fleet.store.read(store::log_range).await.expect("reads").head
}

// every mutation accepts a key: one effect, an answer about the same thing; with another body it is
// refused and nothing is changed; another caller's key is another key
on_both!(every_change_can_be_repeated_by_its_key, |api| async move {
    let (asks, root) = (Asks::new(&api).await, root(&api).await);
    let second = caller(&api, "second", "admin", "").await;
    let channel = raw::channel(&api.server.url).await;
    let changes = every_change();
    assert!(changes.len() >= 12, "{changes:?}");
    for (call, method) in changes {
        let ask = asks.of(&call, OWN).await;
        let (key, id) = (format!("key of {call}"), format!("1/{call}"));
        let first = send(channel.clone(), &root, &call, &ask.body, &key, &id).await;
        let first = about(&method, first.unwrap_or_else(|e| panic!("{call}: {e:?}")));
        let again = send(channel.clone(), &root, &call, &ask.body, &key, &id).await;
        let again = about(&method, again.unwrap_or_else(|e| panic!("{call} again: {e:?}")));
        assert_eq!(first, again, "{call} is answered about the same thing");
        let done = root.entries(&format!("request_id=\"{id}\" AND outcome=done")).await;
        assert_eq!(done.len(), 1, "{call} was done once: {done:?}");
        if ask.other != ask.body {
            // runs go on by themselves: only what this call does may not be there
            let id = format!("2/{call}");
            let other = send(channel.clone(), &root, &call, &ask.other, &key, &id).await;
            let refusal = refused(other, Code::AlreadyExists, "IDEMPOTENCY_KEY_REUSED").says("use a new key");
            assert!(refusal.message.contains(&key));
            let entries = root.entries(&format!("request_id=\"{id}\"")).await;
            assert_eq!(entries.len(), 1, "{entries:?}");
            assert_eq!((entries[0].outcome.as_str(), entries[0].code.as_str()), ("refused", "ALREADY_EXISTS"));
        }
        let id = format!("3/{call}");
        let theirs = send(channel.clone(), &second, &call, &ask.other, &key, &id).await;
        theirs.unwrap_or_else(|e| panic!("{call} by another caller: {e:?}"));
        assert_eq!(root.entries(&format!("request_id=\"{id}\" AND outcome=done")).await.len(), 1, "{call}");
        if call.ends_with("/Freeze") {
            api.unfreeze().await;
        }
    }
});

// what the other request would have done is not done
#[tokio::test]
async fn a_reused_key_changes_nothing() {
    let api = Api::new().await;
    let register = |id: &str| keyed(pb::RegisterMachineRequest { machine: Some(sim_machine(id, &[])) }, "k1");
    api.machines().register_machine(register("m-1")).await.expect("registers");
    let (before, machine) = (head(&api).await, api.machine("m-1").await);
    let other = api.machines().register_machine(register("m-2")).await;
    assert_eq!(refused(other, Code::AlreadyExists, "IDEMPOTENCY_KEY_REUSED").details["answer"], "m-1");
    // nor by another call
    let to = pb::SetPhaseRequest { machine_id: "m-1".into(), phase: Phase::Ready.into(), reason: String::new() };
    let other = api.machines().set_phase(keyed(to, "k1")).await;
    refused(other, Code::AlreadyExists, "IDEMPOTENCY_KEY_REUSED");
    assert_eq!((head(&api).await, api.machine("m-1").await), (before, machine));
    assert_eq!(api.machine_ids("").await, ["m-1"]);
}

/// Ten of the same at once, to these servers in turn.
async fn ten<T, F>(servers: &[Caller], send: impl Fn(Caller) -> F) -> Vec<T>
where
    F: Future<Output = Result<T, Status>>,
{
    let calls = (0..10).map(|i| send(servers[i % servers.len()].clone()));
    join_all(calls).await.into_iter().map(|answer| answer.expect("is answered")).collect()
}

async fn ten_of_each(servers: &[Caller]) {
    let one = |ids: BTreeSet<String>| assert_eq!(ids.len(), 1, "{ids:?}");
    let machine = pb::Machine { machine_id: String::new(), ..sim_machine("", &[("sim.fault.reboot", "hang")]) };
    let registered = ten(servers, |who| {
        let request = keyed(pb::RegisterMachineRequest { machine: Some(machine.clone()) }, "k-machine");
        async move { who.machines().register_machine(request).await }
    });
    let ids: BTreeSet<String> = registered.await.into_iter().map(|m| m.into_inner().machine_id).collect();
    let machine_id = ids.first().expect("one").clone();
    one(ids);
    assert_eq!(servers[0].machine_ids("").await, std::slice::from_ref(&machine_id));
    let created = ten(servers, |who| {
        let request = mw::CreateTokenRequest { name: "ci".into(), role: "viewer".into(), ..Default::default() };
        async move { who.tokens().create_token(keyed(request, "k-token")).await }
    });
    let created: Vec<mw::CreateTokenResponse> = created.await.into_iter().map(tonic::Response::into_inner).collect();
    one(created.iter().map(|c| c.token.as_ref().expect("a token").token_id.clone()).collect());
    assert_eq!(created.iter().filter(|c| !c.secret.is_empty()).count(), 1, "the secret is shown once");
    assert_eq!(created.iter().filter(|c| c.reason == "SECRET_ALREADY_SHOWN").count(), 9);
    // the key alone makes them one: each has a request_id of its own
    let started = ten(servers, |who| {
        let request = keyed(start(&machine_id, "REBOOT", "r1"), "k-run");
        async move { who.runs().start_run(request).await }
    });
    one(started.await.into_iter().map(|r| r.into_inner().run_id).collect());
    let audited = servers[0].entries("outcome=done").await;
    let keyed = ["RegisterMachine", "CreateToken", "StartRun"];
    for call in keyed {
        let done = audited.iter().filter(|e| e.call.ends_with(call)).count();
        assert_eq!(done, 1, "{call} was done {done} times");
    }
}

// concurrent requests with one key have one effect
on_both!(ten_at_once_with_one_key_have_one_effect, |api| async move {
    ten_of_each(&[root(&api).await]).await;
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_at_once_with_one_key_through_two_servers_have_one_effect() {
    let two = Two::start().await;
    // the same token at both
    let secret = &two.servers[0].token;
    ten_of_each(&[caller_at(&two.servers[0].url, secret).await, caller_at(&two.servers[1].url, secret).await]).await;
}

// a request that was refused may be sent again, or another one in its place
on_both!(a_refused_request_is_not_remembered, |api| async move {
    api.sim("m-1", &[("sim.fault.reboot", "hang")]).await;
    let run = api.start(start("m-1", "REBOOT", "r1")).await.run_id;
    let send = async |request| api.runs().start_run(keyed(request, "k1")).await;
    refused(send(start("m-1", "NET_RECONFIG", "r2")).await, Code::FailedPrecondition, "ACTIVE_RUN");
    refused(send(start("m-404", "NET_RECONFIG", "r2")).await, Code::NotFound, "MACHINE_NOT_FOUND");
    let root = root(&api).await;
    assert_eq!(root.entries("call=baremetal.v1.RunService/StartRun AND outcome=done").await.len(), 1);
    api.try_cancel(&run).await.expect("cancels");
    api.ended(&run).await;
    let started = send(start("m-1", "NET_RECONFIG", "r2")).await.expect("starts").into_inner();
    assert_eq!(send(start("m-1", "NET_RECONFIG", "r2")).await.expect("again").into_inner().run_id, started.run_id);
});

// a key is printable ASCII, and short
#[tokio::test]
async fn a_bad_key_is_refused_and_nothing_is_done() {
    let api = Api::new().await;
    let text = |t: &str| t.parse::<AsciiMetadataValue>().expect("a header");
    let bytes = |b: &[u8]| MetadataValue::try_from(b).expect("bytes are allowed in a header");
    let bad = [text(""), text(&"k".repeat(129)), bytes(b"a\tb"), bytes("kéy".as_bytes()), bytes(b"\xff\xfe")];
    let count = bad.len();
    for key in bad {
        let mut request = Request::new(pb::RegisterMachineRequest { machine: Some(sim_machine("m-1", &[])) });
        request.metadata_mut().insert("x-idempotency-key", key.clone());
        refused_field(api.machines().register_machine(request).await, "x-idempotency-key").says("printable ASCII");
        // what is read twice is read twice
        let mut request = Request::new(pb::ListMachinesRequest::default());
        request.metadata_mut().insert("x-idempotency-key", key);
        api.machines().list_machines(request).await.expect("a read needs no key");
    }
    assert_eq!(api.machine_ids("").await, Vec::<String>::new());
    assert_eq!(root(&api).await.entries("outcome=refused").await.len(), count, "and each is on record");
    for good in ["k", &"k".repeat(128), "with spaces and ~!@#$%^&*()"] {
        let request = pb::RegisterMachineRequest { machine: Some(sim_machine("m-1", &[])) };
        // another key, the same request: done again, which changes nothing
        api.machines().register_machine(keyed(request, good)).await.expect("registers");
    }
}

// a crash between the three is not possible: whoever reads at any moment finds all of them or none
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_change_and_record_are_committed_together() {
    let api = Api::new().await;
    let file = api.server.fleet.database_file().expect("a file");
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stop = done.clone();
    let looking = tokio::task::spawn_blocking(move || {
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
        let mut reader = rusqlite::Connection::open_with_flags(file, flags).expect("opens");
        let mut seen = BTreeSet::new();
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            let tx = reader.transaction().expect("begins");
            let count = |sql: &str| tx.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("counts");
            let machines = count("SELECT COUNT(*) FROM machines");
            let keys = count("SELECT COUNT(*) FROM idempotency WHERE scope LIKE 'call/%'");
            let log = count("SELECT COUNT(*) FROM transitions WHERE entity_kind = 'machine'");
            let audit = count("SELECT COUNT(*) FROM audit WHERE outcome = 'done'");
            assert_eq!((machines, machines, machines), (keys, log, audit));
            seen.insert(machines);
        }
        seen.len()
    });
    for batch in 0..20 {
        let calls = (0..8).map(|i| {
            let id = format!("m-{batch}-{i}");
            let request = pb::RegisterMachineRequest { machine: Some(sim_machine(&id, &[])) };
            let mut machines = api.machines();
            async move { machines.register_machine(keyed(request, &id)).await }
        });
        join_all(calls).await.into_iter().for_each(|r| drop(r.expect("registers")));
    }
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    let moments = looking.await.expect("they were together at every moment");
    assert!(moments > 3, "looked at {moments} moments");
}
