//! Work on one machine's controller, and on its node: done, not done twice, refused where it must be, and always
//! told within bounds how it stands.

use crate::callers::{Caller, keyed, root};
use crate::fixture::{Api, ByHand, brisk, cluster_machine, map, on_both, sim_machine, start, within};
use crate::raw::{self, Signed};
use crate::refusal::{refused, refused_field};
use async_trait::async_trait;
use domain::hardware::{BootOverride, Description, PowerAction};
use domain::machine::{Labels, MachineSpec};
use domain::{ExecutionId, MachineId};
use futures::future::join_all;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase;
use proto::millwright::v1 as mw;
use proto::millwright::v1::hardware_service_client::HardwareServiceClient;
use provider::{
    Ack, Bmc, BmcState, ClusterControl as _, Discovered, Management, Operation, PowerState, Provider, ProviderResult,
    Providers, Target,
};
use service::{CallerLimits, Service};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use testkit::fleet::{Database, Fleet, eventually};
use tonic::{Code, Status};

/// Lets the simulated cluster of [`cluster_machine`] have this machine as a node.
pub async fn put_into_cluster(api: &Api, id: &str) {
    let labels = Labels::from([("sim.latency_ms".to_owned(), "0".to_owned())]);
    let target = Target {
        machine_id: MachineId::from_text(id),
        labels,
        spec: MachineSpec::default(),
        notes: provider::Notes::default(),
        by: provider::By::System,
    };
    let (execution, stage) = (ExecutionId::from_text("exe_test"), "join".to_owned());
    let op = Operation { execution, stage, attempt: 1, fence: String::new() };
    assert!(api.server.fleet.sim.join(&target, "cluster-a", &op).await.is_ok(), "{id} joins");
}

fn power(id: &str, action: &str) -> mw::SetPowerRequest {
    mw::SetPowerRequest { machine_id: id.into(), action: action.into(), reason: "a test".into() }
}

fn inspect(id: &str) -> mw::InspectMachineRequest {
    mw::InspectMachineRequest { machine_id: id.into() }
}

async fn powered(who: &Caller, id: &str) -> String {
    who.hardware().inspect_machine(inspect(id)).await.expect("answers").into_inner().power
}

/// The outcomes on record for a machine's power, oldest first.
async fn recorded(who: &Caller, id: &str) -> Vec<(String, String)> {
    let filter = format!("target={id} AND call=\"millwright.v1.HardwareService/SetPower\"");
    let mut entries = who.entries(&filter).await;
    entries.reverse();
    entries.into_iter().map(|e| (e.outcome, e.reason)).collect()
}

fn told(outcomes: &[(String, String)]) -> Vec<(&str, &str)> {
    outcomes.iter().map(|(outcome, reason)| (outcome.as_str(), reason.as_str())).collect()
}

on_both!(power_is_switched_and_what_is_so_already_is_left, |api| async move {
    let who = root(&api).await;
    api.sim("m-1", &[]).await;
    assert_eq!(powered(&who, "m-1").await, "on");
    for (action, state, effects) in [
        ("on", "done", &[][..]),
        ("graceful-off", "done", &["power_off"]),
        ("force-off", "done", &["power_off"]),
        ("on", "accepted", &["power_off", "reset", "booted"]),
        ("force-restart", "accepted", &["power_off", "reset", "booted", "reset", "booted"]),
    ] {
        let done = who.hardware().set_power(power("m-1", action)).await.expect(action).into_inner();
        assert_eq!((done.state.as_str(), done.what.as_str()), (state, format!("power {action}").as_str()));
        assert_eq!(api.effect_kinds("m-1"), effects, "{action}");
    }
    refused(who.hardware().set_power(power("nobody", "on")).await, Code::NotFound, "MACHINE_NOT_FOUND");
    refused_field(who.hardware().set_power(power("m-1", "kick")).await, "action").says("graceful-off");
    assert_eq!(told(&recorded(&who, "m-1").await)[..2], [("begun", ""), ("done", "")]);
});

on_both!(a_repeated_request_is_not_done_twice, |api| async move {
    let who = root(&api).await;
    api.sim("m-1", &[]).await;
    let cycle = || keyed(power("m-1", "cycle"), "k1");
    let first = who.hardware().set_power(cycle()).await.expect("cycles").into_inner();
    let again = who.hardware().set_power(cycle()).await.expect("is answered").into_inner();
    assert_eq!(first, again);
    assert_eq!(api.count_effects("m-1", "reset"), 1);
    // ten at once: one does it, and the others are told the same or that it is under way
    let ten = join_all((0..10).map(|_| {
        let who = who.clone();
        async move { who.hardware().set_power(keyed(power("m-1", "cycle"), "k2")).await }
    }));
    for answer in ten.await {
        if let Err(status) = answer {
            refused::<()>(Err(status), Code::Unavailable, "OUTCOME_UNKNOWN").says("repeat the request");
        }
    }
    assert_eq!(api.count_effects("m-1", "reset"), 2);
    let settled = who.hardware().set_power(keyed(power("m-1", "cycle"), "k2")).await.expect("is known").into_inner();
    assert_eq!(settled, first);
});

// sent, and no answer: it may have been done, so it is not done again under the same key
on_both!(a_lost_answer_is_told_and_not_repeated, |api| async move {
    let who = root(&api).await;
    api.sim("m-1", &[("sim.fault.reboot", "drop:1")]).await;
    let cycle = || keyed(power("m-1", "cycle"), "k1");
    refused(who.hardware().set_power(cycle()).await, Code::Unavailable, "PROVIDER_SILENT").says("may have been done");
    refused(who.hardware().set_power(cycle()).await, Code::Unavailable, "PROVIDER_SILENT").says("not repeated");
    assert_eq!(api.count_effects("m-1", "reset"), 1);
    assert_eq!(told(&recorded(&who, "m-1").await), [("begun", ""), ("refused", "PROVIDER_SILENT")]);
    who.hardware().set_power(keyed(power("m-1", "cycle"), "k2")).await.expect("with a new key");
    assert_eq!(api.count_effects("m-1", "reset"), 2);
});

// a controller that said no did nothing: the same request may be made again
#[tokio::test]
async fn what_was_refused_may_be_asked_again_with_its_key() {
    let api = Api::new().await;
    let who = root(&api).await;
    api.sim("m-1", &[("sim.fault.reboot", "fail:1")]).await;
    let cycle = || keyed(power("m-1", "cycle"), "k1");
    refused(who.hardware().set_power(cycle()).await, Code::FailedPrecondition, "PROVIDER_REFUSED");
    who.hardware().set_power(cycle()).await.expect("works the second time");
    let outcomes = recorded(&who, "m-1").await;
    assert_eq!(told(&outcomes), [("begun", ""), ("refused", "PROVIDER_REFUSED"), ("begun", ""), ("done", "")]);
}

#[tokio::test]
async fn a_dead_controller_keeps_nobody_waiting() {
    let api = Api::new().await;
    let who = root(&api).await;
    api.sim("m-1", &[("sim.fault.inspect", "hang")]).await;
    api.sim("m-2", &[("sim.fault.reboot", "hang")]).await;
    let silent = within("an inspection ends", who.hardware().inspect_machine(inspect("m-1"))).await;
    refused(silent, Code::Unavailable, "UNREACHABLE").says("m-1");
    // nothing was sent yet: that is known, and told apart from what was sent
    let refusal = within("a change ends", who.hardware().set_power(power("m-1", "cycle"))).await;
    refused(refusal, Code::Unavailable, "UNREACHABLE").says("no answer within");
    let refusal = within("a change ends", who.hardware().set_power(power("m-2", "cycle"))).await;
    refused(refusal, Code::Unavailable, "PROVIDER_SILENT").says("no answer within");
    assert_eq!(told(&recorded(&who, "m-1").await), [("begun", ""), ("refused", "UNREACHABLE")]);
    assert_eq!(api.count_effects("m-1", "reset"), 0);
}

#[tokio::test]
async fn what_a_run_holds_is_not_changed_by_hand() {
    let api = Api::new().await;
    let who = root(&api).await;
    api.sim("m-1", &[("sim.fault.reboot", "hang")]).await;
    let run = api.start(start("m-1", "REBOOT", "r1")).await.run_id;
    let refusal =
        refused(who.hardware().set_power(power("m-1", "force-off")).await, Code::FailedPrecondition, "ACTIVE_RUN");
    assert_eq!((refusal.details["run_id"].as_str(), refusal.allowed()), (run.as_str(), vec!["wait", "cancel"]));
    let rotate = mw::RotateBmcPasswordRequest { machine_id: "m-1".into(), reason: String::new() };
    refused(who.hardware().rotate_bmc_password(rotate).await, Code::FailedPrecondition, "ACTIVE_RUN");
    // to look at it, and to find it, is what one wants then
    who.hardware().inspect_machine(inspect("m-1")).await.expect("is looked at");
    let lamp = mw::IdentifyMachineRequest { machine_id: "m-1".into(), on: true };
    who.hardware().identify_machine(lamp).await.expect("is found");
    assert_eq!(told(&recorded(&who, "m-1").await), [("refused", "ACTIVE_RUN")], "it never began");
    assert_eq!(api.count_effects("m-1", "power_off"), 0);
}

#[tokio::test]
async fn a_retired_machine_is_not_talked_to() {
    let api = Api::new().await;
    let who = root(&api).await;
    api.sim("m-1", &[]).await;
    api.set_phase("m-1", Phase::Retired).await;
    refused(who.hardware().inspect_machine(inspect("m-1")).await, Code::FailedPrecondition, "MACHINE_RETIRED");
    refused(who.hardware().set_power(power("m-1", "on")).await, Code::FailedPrecondition, "MACHINE_RETIRED");
    assert_eq!(api.effects("m-1"), []);
}

// a freeze stops automation, not people
#[tokio::test]
async fn people_work_on_while_automation_is_frozen() {
    let api = Api::new().await;
    let who = root(&api).await;
    api.sim("m-1", &[]).await;
    api.freeze().await;
    who.hardware().set_power(power("m-1", "force-off")).await.expect("is switched off");
    assert_eq!(powered(&who, "m-1").await, "off");
}

#[tokio::test]
async fn a_machine_is_looked_at_after_it_was_changed() {
    let api = Api::new().await;
    let who = root(&api).await;
    api.sim("m-1", &[]).await;
    let mut worth_a_look = api.server.fleet.store.signals().machines();
    who.hardware().set_power(power("m-1", "force-off")).await.expect("is switched off");
    let id = within("a look is asked for", worth_a_look.recv()).await.expect("told");
    assert_eq!(id.as_str(), "m-1");
}

// the caller hangs up half-way: the controller was told, so it is told all, and it is on record
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_act_is_ended_and_recorded_when_its_caller_is_gone() {
    let api = Api::with(Database::Sqlite, crate::fixture::patient()).await;
    let who = root(&api).await;
    api.sim("m-1", &[("sim.fault.reboot", "slow:600")]).await;
    let mut client = who.hardware();
    let asking = tokio::spawn(async move { client.set_power(keyed(power("m-1", "cycle"), "k1")).await });
    eventually("it begins", || async { (!recorded(&who, "m-1").await.is_empty()).then_some(()) }).await;
    asking.abort();
    let outcomes = eventually("it ends", || async { Some(recorded(&who, "m-1").await).filter(|o| o.len() == 2) }).await;
    assert_eq!(told(&outcomes), [("begun", ""), ("done", "")]);
    who.hardware().set_power(keyed(power("m-1", "cycle"), "k1")).await.expect("tells that it was done");
    assert_eq!(api.count_effects("m-1", "reset"), 1);
}

#[tokio::test]
async fn the_parts_of_a_controller_do_what_they_say() {
    let api = Api::new().await;
    let who = root(&api).await;
    let mut machine = sim_machine("m-1", &[]);
    machine.spec.as_mut().expect("a spec").mac_addresses = vec!["aa:bb:cc:dd:ee:01".into()];
    api.register(machine).await;
    let id = || "m-1".to_owned();
    let mut hardware = who.hardware();
    let described = hardware.inspect_machine(inspect("m-1")).await.expect("tells").into_inner();
    assert_eq!(described.nics.iter().map(|n| n.mac_address.as_str()).collect::<Vec<_>>(), ["aa:bb:cc:dd:ee:01"]);
    assert!(!described.cpus.is_empty() && described.memory_mib > 0 && !described.serial_number.is_empty());

    let url = "https://images.example/rescue.iso".to_owned();
    let insert = mw::InsertMediaRequest { machine_id: id(), url: url.clone(), reason: String::new() };
    hardware.insert_media(insert).await.expect("is in");
    assert_eq!(
        hardware.get_media(mw::GetMediaRequest { machine_id: id() }).await.expect("tells").into_inner().url,
        url
    );
    hardware.eject_media(mw::EjectMediaRequest { machine_id: id() }).await.expect("is out");
    let media = hardware.get_media(mw::GetMediaRequest { machine_id: id() }).await.expect("tells").into_inner();
    assert_eq!(media.url, "");
    let with_password =
        mw::InsertMediaRequest { machine_id: id(), url: "http://u:p@h/x".into(), reason: String::new() };
    refused_field(hardware.insert_media(with_password).await, "url");

    // settings wait for a boot
    let attributes = map(&[("SecureBoot", "Enabled")]);
    let set = mw::SetBiosRequest { machine_id: id(), attributes: attributes.clone(), reason: String::new() };
    hardware.set_bios(set).await.expect("is set");
    let bios = |b: mw::Bios| (b.current["SecureBoot"].clone(), b.pending);
    let get = || mw::GetBiosRequest { machine_id: id() };
    let before = hardware.get_bios(get()).await.expect("tells").into_inner();
    assert_eq!(bios(before), ("Disabled".into(), attributes));
    hardware.set_power(power("m-1", "force-restart")).await.expect("restarts");
    let after = hardware.get_bios(get()).await.expect("tells").into_inner();
    assert_eq!(bios(after), ("Enabled".into(), map(&[])));

    let update = mw::UpdateFirmwareRequest { machine_id: id(), image_url: url, ..Default::default() };
    let begun = hardware.update_firmware(update).await.expect("begins").into_inner();
    assert_eq!((begun.state.as_str(), begun.task.is_empty()), ("accepted", false));
    let task = mw::GetHardwareTaskRequest { machine_id: id(), task: begun.task };
    let ended = hardware.get_hardware_task(task).await.expect("tells").into_inner();
    assert_eq!((ended.state.as_str(), ended.percent), ("done", Some(100)));
    let log = hardware.list_hardware_events(mw::ListHardwareEventsRequest { machine_id: id(), limit: 1 }).await;
    let newest = log.expect("tells").into_inner().events;
    assert_eq!(newest.iter().map(|e| e.message.as_str()).collect::<Vec<_>>(), ["Firmware update ended"]);
    // what a query may hold is not put on record, nor is what attributes are set to
    let said: Vec<String> = who.entries("target=m-1").await.into_iter().map(|e| e.message).collect();
    assert!(said.iter().any(|m| m == "set BIOS SecureBoot"), "{said:?}");
}

// an attribute may be a password: what is kept of the request tells nothing of it
on_both!(what_bios_attributes_are_set_to_cannot_be_guessed_from_what_is_kept, |api| async move {
    let who = root(&api).await;
    api.sim("m-1", &[]).await;
    let set = |value: &str| {
        let attributes = map(&[("SecureBoot", value)]);
        mw::SetBiosRequest { machine_id: "m-1".into(), attributes, reason: "a test".into() }
    };
    let first = who.hardware().set_bios(keyed(set("0000"), "k1")).await.expect("is set").into_inner();
    let again = who.hardware().set_bios(keyed(set("0000"), "k1")).await.expect("is answered").into_inner();
    assert_eq!(first, again);
    refused(who.hardware().set_bios(keyed(set("2222"), "k1")).await, Code::AlreadyExists, "IDEMPOTENCY_KEY_REUSED");
    let scope = format!("call/{}", who.token.token_id);
    let kept = api.server.fleet.store.read(move |tx| store::idempotency::find(tx, &scope, "k1")).await;
    let kept = kept.expect("reads").expect("is kept");
    // all that somebody with the database could hash, for every password of four digits
    use prost_reflect::prost::Message as _;
    let call = "millwright.v1.HardwareService/SetBios";
    for n in 0..10_000 {
        let guess = set(&format!("{n:04}")).encode_to_vec();
        assert_ne!(store::idempotency::fingerprint([call.as_bytes(), &guess]), kept.fingerprint);
    }
});

#[tokio::test]
async fn what_is_discovered_can_be_registered_and_is_the_same_machine() {
    let api = Api::new().await;
    let who = root(&api).await;
    let at = |host: &str| mw::DiscoverHardwareRequest { bmc_endpoint: host.into(), ..Default::default() };
    let found = who.hardware().discover_hardware(at("10.0.0.9")).await.expect("finds").into_inner();
    let (seen, mut machine) = (found.description.expect("a description"), found.machine.expect("a machine"));
    let spec = machine.spec.as_mut().expect("a spec");
    assert_eq!((spec.serial_number.as_str(), spec.bmc_endpoint.as_str()), (seen.serial_number.as_str(), "10.0.0.9"));
    assert_eq!(spec.mac_addresses.len(), seen.nics.len());
    spec.provider = "sim".into();
    machine.machine_id = "m-9".into();
    api.register(machine).await;
    let inspected = who.hardware().inspect_machine(inspect("m-9")).await.expect("tells").into_inner();
    assert_eq!((inspected.serial_number, inspected.nics), (seen.serial_number, seen.nics));
    refused(who.hardware().discover_hardware(at("bmc.invalid")).await, Code::Unavailable, "UNREACHABLE");
    refused_field(who.hardware().discover_hardware(at("")).await, "bmc_endpoint");
}

#[tokio::test]
async fn a_node_is_cordoned_drained_pass_by_pass_and_deleted() {
    let api = Api::new().await;
    let who = root(&api).await;
    api.register(cluster_machine("m-1", &[("sim.fault.rma", "fail:1")])).await;
    put_into_cluster(&api, "m-1").await;
    let check = mw::CheckClusterRequest { cluster_ref: "cluster-a".into(), ..Default::default() };
    let health = who.clusters().check_cluster(check.clone()).await.expect("answers").into_inner();
    assert_eq!((health.nodes, health.ready_nodes, health.problems), (1, 1, vec![]));
    let drain = || mw::DrainMachineRequest { machine_id: "m-1".into(), ..Default::default() };
    let pass = who.clusters().drain_machine(drain()).await.expect("a pass").into_inner();
    assert!(!pass.drained && pass.left[0].why.contains("budget"), "{pass:?}");
    let pass = who.clusters().drain_machine(drain()).await.expect("a pass").into_inner();
    assert!(pass.drained && pass.left.is_empty(), "{pass:?}");
    assert_eq!(api.count_effects("m-1", "cordoned"), 1, "once is enough");
    let uncordon = mw::CordonMachineRequest { machine_id: "m-1".into(), on: false, reason: String::new() };
    who.clusters().cordon_machine(uncordon.clone()).await.expect("is let back");
    let delete = || mw::DeleteClusterNodeRequest { machine_id: "m-1".into() };
    who.clusters().delete_cluster_node(delete()).await.expect("is gone");
    who.clusters().delete_cluster_node(delete()).await.expect("is gone already");
    assert_eq!(api.count_effects("m-1", "node_deleted"), 1);
    assert_eq!(who.clusters().check_cluster(check).await.expect("answers").into_inner().nodes, 0);
    refused(who.clusters().cordon_machine(uncordon).await, Code::FailedPrecondition, "PROVIDER_REFUSED")
        .says("no node");
    api.sim("m-2", &[]).await;
    let none = mw::DrainMachineRequest { machine_id: "m-2".into(), ..Default::default() };
    refused(who.clusters().drain_machine(none).await, Code::FailedPrecondition, "CLUSTER_MISSING");
}

#[tokio::test]
async fn where_another_machine_answers_nothing_is_done_and_both_are_named() {
    let api = Api::new().await;
    let who = root(&api).await;
    api.sim("m-1", &[("sim.fault.inspect", "wrong-machine")]).await;
    let refusal =
        refused(who.hardware().set_power(power("m-1", "cycle")).await, Code::FailedPrecondition, "WRONG_MACHINE");
    assert!(refusal.message.contains("expected serial") && refusal.message.contains("found serial"), "{refusal:?}");
    assert_eq!(api.count_effects("m-1", "reset"), 0);
}

/// A provider that does not look whom it talks to.
#[derive(Default)]
struct Careless {
    switched: AtomicUsize,
    asked_by: std::sync::Mutex<Option<provider::By>>,
}

struct Stranger<'a>(&'a Careless);

#[async_trait]
impl Bmc for Stranger<'_> {
    fn name(&self) -> &str {
        "the BMC at 10.0.0.1"
    }

    async fn state(&self) -> ProviderResult<BmcState> {
        Ok(BmcState {
            serial_number: "FOUND-1".into(),
            system_uuid: String::new(),
            power: PowerState::On,
            boot: None,
            health: None,
            last_reset: String::new(),
        })
    }

    async fn describe(&self) -> ProviderResult<Description> {
        Ok(Description::default())
    }

    async fn power(&self, _: PowerAction) -> ProviderResult<Ack> {
        self.0.switched.fetch_add(1, Ordering::Relaxed);
        Ok(Ack::Done)
    }

    async fn set_boot(&self, _: Option<BootOverride>) -> ProviderResult<Ack> {
        Err(self.lacks("boot"))
    }
}

#[async_trait]
impl Management for Careless {
    async fn bmc(&self, _: &Target) -> ProviderResult<(Box<dyn Bmc + '_>, BmcState)> {
        Ok((Box::new(Stranger(self)), Stranger(self).state().await?))
    }

    async fn discover(&self, _: &MachineSpec) -> ProviderResult<Discovered> {
        Err(Stranger(self).lacks("discovery"))
    }

    async fn rotate_password(&self, _: &Target) -> ProviderResult<Ack> {
        Err(Stranger(self).lacks("accounts"))
    }

    async fn repin(&self, target: &Target) -> ProviderResult<Ack> {
        *self.asked_by.lock().expect("not poisoned") = Some(target.by.clone());
        Err(Stranger(self).lacks("pins"))
    }
}

impl Provider for Careless {
    fn management(&self) -> Option<&dyn Management> {
        Some(self)
    }
}

// whatever a provider forgets: the service itself asks who it is before anything is changed
#[tokio::test]
async fn no_provider_can_forget_to_ask_who_it_is() {
    let fleet = tokio::task::spawn_blocking(|| Fleet::new(Database::Sqlite, 1)).await.expect("a fleet");
    let careless = Arc::new(Careless::default());
    let providers = Providers::default().with("sim", careless.clone());
    let engine = fleet.engine_with(brisk(), providers.clone(), None);
    let service = Service::new(fleet.store.clone(), engine, providers, CallerLimits::default()).await.expect("starts");
    let server = ByHand::serve(service).await;
    let machine = |id: &str, serial: &str| {
        let mut machine = sim_machine(id, &[]);
        machine.spec.as_mut().expect("a spec").serial_number = serial.into();
        pb::RegisterMachineRequest { machine: Some(machine) }
    };
    server.machines().await.register_machine(machine("m-1", "EXPECTED-1")).await.expect("registers");
    server.machines().await.register_machine(machine("m-2", "found-1")).await.expect("registers");
    let mut hardware =
        HardwareServiceClient::with_interceptor(raw::channel(&server.url).await, Signed(server.token.clone()));
    let answer: Result<_, Status> = hardware.set_power(power("m-1", "cycle")).await;
    refused(answer, Code::FailedPrecondition, "WRONG_MACHINE").says("FOUND-1").says("EXPECTED-1");
    assert_eq!(careless.switched.load(Ordering::Relaxed), 0);
    hardware.set_power(power("m-2", "cycle")).await.expect("is the one");
    assert_eq!(careless.switched.load(Ordering::Relaxed), 1);
    // and what it lacks is told by name
    let repin = mw::RepinMachineRequest { machine_id: "m-2".into(), reason: String::new() };
    refused(hardware.repin_machine(repin).await, Code::FailedPrecondition, "CAPABILITY_MISSING").says("pins");
    let by = careless.asked_by.lock().expect("not poisoned").take();
    assert!(matches!(&by, Some(provider::By::Person(name)) if !name.is_empty()), "{by:?}");
}
