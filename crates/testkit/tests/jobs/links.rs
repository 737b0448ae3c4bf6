//! Which machine a node is: by strong identifiers, never by a guess. A conflict is a finding and for a person, and joins
//! nothing together.

use crate::audit::audit;
use crate::world::{Play, World, hardware};
use domain::MachineId;
use domain::finding::FindingKind;
use domain::job::{Job, JobStatus};
use domain::job_action::JobAction;
use domain::job_stage::{Ground, JobKind, JobStage, Mode};
use domain::machine::{Labels, Machine, MachineSpec, REGISTERED};
use domain::node::{Node, NodeStatus};
use domain::stage::FailureClass;
use engine::Engine;
use store::{Cause, agent, finding, machine};
use testkit::fleet::Database;

async fn machine_of(world: &World, id: &str, serial: &str, uuid: &str, mac: &str) -> MachineId {
    let machine = MachineId::from_text(id);
    let spec = MachineSpec {
        serial_number: serial.to_owned(),
        system_uuid: uuid.to_owned(),
        mac_addresses: if mac.is_empty() { vec![] } else { vec![mac.to_owned()] },
        provider: "sim".to_owned(),
        ..MachineSpec::default()
    };
    let row = machine.clone();
    let register = move |tx: &mut store::Tx<'_>| {
        machine::insert(tx, &row, &spec, &Labels::new(), &Cause::operator("tester", REGISTERED, "")).map(drop)
    };
    world.write(id, register).await.expect("registers");
    machine
}

async fn machines(world: &World) -> Vec<Machine> {
    world.read(|tx| machine::list(tx, &machine::FILTER.parse("")?, "", 100)).await
}

async fn engine(world: &World) -> Engine {
    let engine = world.engine(None);
    engine.start().await.expect("starts");
    engine
}

/// An onboarding of a node whose agent tells this of its hardware.
async fn onboarded<'a>(world: &'a World, serial: &str, uuid: &str, macs: &[&str]) -> (Play<'a>, Node, Job) {
    let play =
        Play::start(world, JobKind::Onboarding(Ground::Bundle), &format!("onboarding of {serial:?} {uuid:?}")).await;
    play.agent.enrol(serial, uuid, macs).await;
    let (node, job) = play.rests().await;
    (play, node, job)
}

async fn conflicts(world: &World, node: &Node) -> usize {
    let id = node.id.to_string();
    let found = world.read(move |tx| finding::unresolved(tx, &id)).await;
    found.iter().filter(|f| f.kind == FindingKind::NodeIdentityConflict).count()
}

async fn stands_in_conflict(world: &World, play: &Play<'_>, node: &Node, job: &Job) {
    assert_eq!((job.status, job.stage), (JobStatus::FailedManualIntervention, Some(JobStage::LinkMachine)));
    assert_eq!(job.failure.as_ref().map(|f| f.class), Some(FailureClass::Conflict));
    assert_eq!(node.machine_id, None, "never joined");
    assert_eq!(conflicts(world, node).await, 1);
    audit(play).await;
}

#[tokio::test(start_paused = true)]
async fn unknown_hardware_is_written_down_and_known_hardware_is_found() {
    let world = World::new(Database::Memory);
    let engine = engine(&world).await;
    let new = hardware(700);
    let (_, node, job) = onboarded(&world, &new.serial, &new.uuid, &[&new.mac]).await;
    assert_eq!((job.status, node.status), (JobStatus::Completed, NodeStatus::Active));
    let made = machines(&world).await;
    assert_eq!(made.len(), 1);
    assert_eq!(node.machine_id.as_ref(), Some(&made[0].id));
    assert_eq!((&made[0].spec.serial_number, &made[0].spec.system_uuid), (&new.serial, &new.uuid));
    // by each of its identifiers alone, the UUID in either byte order
    for (at, known) in [hardware(701), hardware(702), hardware(703)].into_iter().enumerate() {
        let id = machine_of(&world, &format!("m-{at}"), &known.serial, &known.uuid, &known.mac).await;
        let swapped = domain::identity::swapped_uuid(&known.uuid).expect("a UUID");
        let (_, node, _) = match at {
            0 => onboarded(&world, &known.serial, "", &[]).await,
            1 => onboarded(&world, "", &swapped, &[]).await,
            _ => onboarded(&world, "", "", &[&known.mac]).await,
        };
        assert_eq!(node.machine_id, Some(id));
    }
    assert_eq!(machines(&world).await.len(), 4, "none was made twice");
    engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn identifiers_of_two_machines_are_a_finding_until_they_are_sorted_out() {
    let world = World::new(Database::Memory);
    let engine = engine(&world).await;
    let (a, b) = (hardware(800), hardware(801));
    let of_a = machine_of(&world, "m-a", &a.serial, &a.uuid, &a.mac).await;
    machine_of(&world, "m-b", &b.serial, &b.uuid, &b.mac).await;
    let before = machines(&world).await;
    let (play, node, job) = onboarded(&world, &a.serial, "", &[&b.mac]).await;
    stands_in_conflict(&world, &play, &node, &job).await;
    assert_eq!(machines(&world).await, before, "nothing of either was touched");
    // the card went back to where it belongs
    let (id, told) = (play.node.clone(), serde_json::json!({"facts": {"serial_number": a.serial}}).to_string());
    world.write(play.node.as_str(), move |tx| agent::set_inventory(tx, &id, 1, &told, "other")).await.expect("tells");
    play.act(JobAction::RetryStage).await.expect("is allowed");
    let (node, job) = play.rests().await;
    assert_eq!((job.status, node.machine_id.clone()), (JobStatus::Completed, Some(of_a)));
    assert_eq!(conflicts(&world, &node).await, 0, "settled");
    audit(&play).await;
    engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_contradiction_or_a_machine_that_is_taken_joins_nothing() {
    let world = World::new(Database::Memory);
    let engine = engine(&world).await;
    let known = hardware(900);
    machine_of(&world, "m-1", &known.serial, &known.uuid, &known.mac).await;
    let (play, node, job) = onboarded(&world, &known.serial, &hardware(901).uuid, &[]).await;
    stands_in_conflict(&world, &play, &node, &job).await;
    let (_, first, _) = onboarded(&world, &known.serial, &known.uuid, &[]).await;
    assert_eq!(first.machine_id, Some(MachineId::from_text("m-1")));
    let (play, second, job) = onboarded(&world, &known.serial, &known.uuid, &[]).await;
    stands_in_conflict(&world, &play, &second, &job).await;
    engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn hardware_that_tells_nothing_is_for_a_person() {
    let world = World::new(Database::Memory);
    let engine = engine(&world).await;
    let (play, node, job) = onboarded(&world, "To Be Filled By O.E.M.", "", &[]).await;
    assert_eq!((job.status, node.machine_id.clone()), (JobStatus::FailedManualIntervention, None));
    assert_eq!(machines(&world).await, [], "no machine is made up");
    play.act(JobAction::Cancel).await.expect("is allowed");
    let (node, job) = play.rests().await;
    assert_eq!((job.status, node.status), (JobStatus::Cancelled, NodeStatus::Quarantined));
    audit(&play).await;
    engine.stop().await;
}

/// A stage that only looks adopts what it finds: whoever has asked for that is on record with it, and the job says by how
/// it ends that it was put right from outside.
#[tokio::test(start_paused = true)]
async fn an_onboarding_that_was_put_right_and_adopted_is_reconciled() {
    let world = World::new(Database::Memory);
    let engine = engine(&world).await;
    for (number, last, ends_as) in [
        (1100, JobAction::AdoptObservedState, JobStatus::Reconciled),
        // an adoption that came to nothing before it does not count
        (1101, JobAction::RetryStage, JobStatus::Completed),
    ] {
        let (play, _, job) = onboarded(&world, "", "", &[]).await;
        assert_eq!((job.status, job.stage), (JobStatus::FailedManualIntervention, Some(JobStage::LinkMachine)));
        play.act(JobAction::AdoptObservedState).await.expect("is allowed");
        let (_, job) = play.rests().await;
        assert_eq!(job.status, JobStatus::FailedManualIntervention, "there is nothing to be seen yet");
        let (id, serial) = (play.node.clone(), hardware(number).serial);
        let told = serde_json::json!({"facts": {"serial_number": serial}}).to_string();
        world.write(play.node.as_str(), move |tx| agent::set_inventory(tx, &id, 1, &told, "new")).await.expect("tells");
        play.act(last).await.expect("is allowed");
        let (node, job) = play.rests().await;
        assert_eq!((job.status, node.status), (ends_as, NodeStatus::Active), "{last}: {job:#?}");
        let adopted: Vec<_> = job.done.iter().filter(|d| !d.adopted_by.is_empty()).map(|d| d.stage).collect();
        let expected: &[JobStage] = if ends_as == JobStatus::Reconciled { &[JobStage::LinkMachine] } else { &[] };
        assert_eq!(adopted, expected, "{last}");
        audit(&play).await;
    }
    engine.stop().await;
}

/// After a removal the same hardware is another node on the same machine; the old identity is revoked for good.
#[tokio::test(start_paused = true)]
async fn enrolled_again_after_removal_it_is_a_new_node_of_the_same_machine() {
    let world = World::new(Database::Memory);
    let engine = engine(&world).await;
    let hardware = hardware(1000);
    let (play, first, _) = onboarded(&world, &hardware.serial, &hardware.uuid, &[&hardware.mac]).await;
    let begun =
        world.begin(&first.id, JobKind::Decommission(Mode::FullDecommission(Ground::Bundle))).await.expect("begins");
    let removal = Play { kind: begun.kind, job: begun.id, ..play };
    let (gone, _) = removal.rests().await;
    assert_eq!(gone.status, NodeStatus::Deleted);
    audit(&removal).await;
    let of = gone.id.clone();
    let identity = world.read(move |tx| tx.point(&agent::by_node(&of))).await.expect("its identity");
    assert_eq!(identity.state, domain::agent::IdentityState::Revoked);
    let (_, second, job) = onboarded(&world, &hardware.serial, &hardware.uuid, &[&hardware.mac]).await;
    assert_eq!(job.status, JobStatus::Completed);
    assert_eq!((second.id == first.id, second.machine_id == first.machine_id), (false, true));
    engine.stop().await;
}
