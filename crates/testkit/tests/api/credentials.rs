//! Credentials over the wire: what goes in never comes out, is on record without what it holds, and is not taken from
//! under the machines that name it.

use crate::callers::{Caller, caller, keyed, root};
use crate::fixture::{Api, on_both, sim_machine};
use crate::refusal::{refused, refused_field};
use proto::baremetal::v1 as pb;
use proto::millwright::v1 as mw;
use tonic::Code;

const KEY: &str = "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2hunter2\n-----END OPENSSH PRIVATE KEY-----\n";
const KUBECONFIG: &str =
    "clusters: [{name: c, cluster: {server: 'https://c:6443'}}]\nusers: [{name: u, user: {token: hunter2hunter2}}]\n";

pub fn bmc(name: &str, password: &str) -> mw::SetCredentialRequest {
    mw::SetCredentialRequest {
        name: name.into(),
        kind: "bmc".into(),
        username: "admin".into(),
        password: password.into(),
        ..Default::default()
    }
}

fn of_every_kind() -> Vec<mw::SetCredentialRequest> {
    let of = |name: &str, kind: &str| mw::SetCredentialRequest {
        name: name.into(),
        kind: kind.into(),
        ..Default::default()
    };
    let ca = testkit::tls::Authority::default().pair().cert;
    vec![
        bmc("a-bmc", "hunter2hunter2"),
        mw::SetCredentialRequest {
            username: "root".into(),
            private_key: KEY.into(),
            passphrase: "hunter2hunter2".into(),
            ..of("b-ssh", "ssh")
        },
        mw::SetCredentialRequest { kubeconfig: KUBECONFIG.into(), ..of("c-kube", "kubeconfig") },
        mw::SetCredentialRequest { certificates: ca, ..of("d-ca", "ca") },
        mw::SetCredentialRequest { user_data: "#cloud-config\n# hunter2\n".into(), ..of("e-data", "user-data") },
        mw::SetCredentialRequest { api_key: "a:b:hunter2hunter2".into(), ..of("f-maas", "maas") },
    ]
}

async fn list(who: &Caller, filter: &str) -> Vec<mw::Credential> {
    let request = mw::ListCredentialsRequest { filter: filter.into(), ..Default::default() };
    who.credentials().list_credentials(request).await.expect("lists").into_inner().credentials
}

fn delete(name: &str, force: bool) -> mw::DeleteCredentialRequest {
    mw::DeleteCredentialRequest { name: name.into(), force }
}

/// Registers a machine that names these.
async fn naming(root: &Caller, id: &str, names: &str) -> Result<pb::Machine, tonic::Status> {
    let mut machine = sim_machine(id, &[]);
    machine.spec.get_or_insert_default().credentials_ref = names.into();
    let request = pb::RegisterMachineRequest { machine: Some(machine) };
    Ok(root.machines().register_machine(request).await?.into_inner())
}

on_both!(every_kind_is_set_and_listed_and_on_record_without_what_it_holds, |api| async move {
    let root = root(&api).await;
    for request in of_every_kind() {
        let name = request.name.clone();
        let set = root.credentials().set_credential(request.clone()).await.expect("is set").into_inner();
        assert_eq!((set.name.as_str(), set.version, set.state.as_str()), (name.as_str(), 1, "present"));
        assert_eq!((set.created_by.as_str(), set.machines), (root.token.name.as_str(), 0));
        let again = root.credentials().set_credential(request).await.expect("again").into_inner();
        assert_eq!(again, set, "the same once more changes nothing");
    }
    let listed = list(&root, "").await;
    assert_eq!(
        listed.iter().map(|c| c.kind.as_str()).collect::<Vec<_>>(),
        ["bmc", "ssh", "kubeconfig", "ca", "user-data", "maas"]
    );
    assert_eq!(list(&root, "kind=ssh").await.len(), 1);
    let changed = root.credentials().set_credential(bmc("a-bmc", "another")).await.expect("changed").into_inner();
    assert_eq!((changed.version, changed.created_at), (2, listed[0].created_at));
    root.credentials().delete_credential(delete("d-ca", false)).await.expect("deleted");
    let again = root.credentials().delete_credential(delete("d-ca", false)).await.expect("again").into_inner();
    assert_eq!(again.state, "deleted");
    refused(root.credentials().delete_credential(delete("none", false)).await, Code::NotFound, "CREDENTIAL_NOT_FOUND");
    assert_eq!(list(&root, "").await.len(), 5);
    // on record, and the record is clean
    let audit = root.entries("call=millwright.v1.CredentialService/SetCredential AND outcome=done").await;
    assert_eq!(audit.iter().filter(|e| e.target == "a-bmc").count(), 3);
    let log = api.server.fleet.store.read(|tx| store::log_after(tx, 0, 1000)).await.expect("the log");
    let moves: Vec<&str> = log.iter().filter(|r| r.entity_id == "a-bmc").map(|r| r.trigger.as_str()).collect();
    assert_eq!(moves, ["created", "changed"]);
    assert!(!format!("{audit:?}{log:?}").contains("hunter2"));
});

// what is wrong is told by its field and is not quoted, neither in the answer nor in the audit
#[tokio::test]
async fn what_cannot_be_one_is_refused_and_not_quoted() {
    let api = Api::new().await;
    let root = root(&api).await;
    let of = |kind: &str| mw::SetCredentialRequest { kind: kind.into(), ..bmc("x", "") };
    for (request, field) in [
        (bmc("", "hunter2"), "name"),
        (bmc("a b", "hunter2"), "name"),
        (mw::SetCredentialRequest { kind: "telnet".into(), ..bmc("x", "hunter2") }, "kind"),
        (bmc("x", ""), "password"),
        (bmc("x", &"hunter2".repeat(1000)), "password"),
        (mw::SetCredentialRequest { private_key: "hunter2".into(), ..of("ssh") }, "private_key"),
        (mw::SetCredentialRequest { password: "hunter2".into(), ..of("ssh") }, "password"),
        (
            mw::SetCredentialRequest { username: String::new(), kubeconfig: "hunter2: [".into(), ..of("kubeconfig") },
            "kubeconfig",
        ),
        (
            mw::SetCredentialRequest { username: String::new(), certificates: "hunter2".into(), ..of("ca") },
            "certificates",
        ),
        (
            mw::SetCredentialRequest {
                username: String::new(),
                user_data: "hunter2".repeat(10_000),
                ..of("user-data")
            },
            "user_data",
        ),
    ] {
        let refusal = refused_field(root.credentials().set_credential(request).await, field);
        assert!(!refusal.message.contains("hunter2"), "{refusal:?}");
    }
    root.credentials().set_credential(bmc("x", "hunter2")).await.expect("is set");
    let other = mw::SetCredentialRequest { private_key: KEY.into(), ..of("ssh") };
    refused_field(root.credentials().set_credential(other).await, "kind").says("of kind bmc");
    let audit = root.entries("outcome=refused").await;
    assert!(audit.len() >= 10 && !format!("{audit:?}").contains("hunter2"));
}

on_both!(one_that_machines_name_is_not_taken_from_them, |api| async move {
    let root = root(&api).await;
    let unknown = naming(&root, "m-1", "rack-1").await;
    refused(unknown, Code::NotFound, "CREDENTIAL_NOT_FOUND").says("rack-1");
    refused_field(naming(&root, "m-1", "rack 1").await, "spec.credentials_ref");
    for name in ["rack-1", "fleet"] {
        root.credentials().set_credential(bmc(name, "x")).await.expect("is set");
    }
    naming(&root, "m-1", "rack-1,fleet").await.expect("registers");
    naming(&root, "m-2", "fleet").await.expect("registers");
    let machines: Vec<u64> = list(&root, "").await.iter().map(|c| c.machines).collect();
    assert_eq!(machines, [2, 1]);
    let refusal = refused(
        root.credentials().delete_credential(delete("fleet", false)).await,
        Code::FailedPrecondition,
        "CREDENTIAL_IN_USE",
    );
    assert_eq!(refusal.details.get("machines").map(String::as_str), Some("2"));
    root.credentials().delete_credential(delete("fleet", true)).await.expect("forced");
    // the machine goes on, and may be changed, but names nothing new that is not there
    naming(&root, "m-1", "rack-1,fleet").await.expect("as it was");
    naming(&root, "m-1", "fleet").await.expect("less than it was");
    refused(naming(&root, "m-1", "fleet,none").await, Code::NotFound, "CREDENTIAL_NOT_FOUND");
    naming(&root, "m-1", "").await.expect("none at all");
    root.credentials().delete_credential(delete("rack-1", false)).await.expect("nobody names it now");
});

// a repeated request is answered, another one with its key is noticed, and what is kept of it tells nothing
on_both!(a_request_with_a_key_is_done_once_and_its_secret_cannot_be_guessed_from_what_is_kept, |api| async move {
    let root = root(&api).await;
    let send = async |password: &str| root.credentials().set_credential(keyed(bmc("rack-1", password), "k1")).await;
    let first = send("0000").await.expect("is set").into_inner();
    root.credentials().set_credential(bmc("rack-1", "1111")).await.expect("changed since");
    let again = send("0000").await.expect("is answered").into_inner();
    assert_eq!((first.version, again.version), (1, 2), "and not done again");
    refused(send("2222").await, Code::AlreadyExists, "IDEMPOTENCY_KEY_REUSED");
    let scope = format!("call/{}", root.token.token_id);
    let kept = api.server.fleet.store.read(move |tx| store::idempotency::find(tx, &scope, "k1")).await;
    let kept = kept.expect("reads").expect("is kept");
    assert_eq!(kept.answer, "rack-1");
    // all that somebody with the database could hash, for every password of four digits
    use prost_reflect::prost::Message as _;
    let call = "millwright.v1.CredentialService/SetCredential";
    for n in 0..10_000 {
        let guess = bmc("rack-1", &format!("{n:04}")).encode_to_vec();
        assert_ne!(store::idempotency::fingerprint([call.as_bytes(), &guess]), kept.fingerprint);
    }
});

// events of credentials are for those who may list them
#[tokio::test]
async fn events_of_credentials_are_for_operators() {
    let api = Api::new().await;
    let root = root(&api).await;
    root.credentials().set_credential(bmc("rack-1", "x")).await.expect("is set");
    for (role, count) in [("viewer", 0), ("operator", 1)] {
        let who = caller(&api, role, role, "").await;
        let request = mw::WatchEventsRequest { filter: "kind=credential".into(), after: Some(0), no_follow: true };
        let mut events = who.events().watch_events(request).await.expect("begins").into_inner();
        let mut seen = 0;
        while let Some(event) = events.message().await.expect("goes on") {
            assert_eq!((event.kind.as_str(), event.id.as_str()), ("credential", "rack-1"));
            seen += 1;
        }
        assert_eq!(seen, count, "{role}");
    }
}
