//! Which machine is meant: by what it has, never by its name, and only if it is one.

use crate::world::{ID, MAC, World, machine, op, set, target};
use domain::Reason;
use domain::maas::{DEPLOYED, READY};
use domain::machine::MachineSpec;
use domain::plan::{BootMode, RebootMode, StepKind};
use provider::{BootControl as _, ImageControl as _, Inspect, PowerControl as _, PowerState, Provider as _, Target};

fn by(change: impl FnOnce(&mut MachineSpec)) -> Target {
    let mut target = target();
    change(&mut target.spec);
    target
}

#[tokio::test]
async fn a_machine_is_found_by_its_macs_its_serial_number_or_its_uuid() {
    let world = World::with_one(DEPLOYED);
    world.state().machines.push(machine("other1", "52:54:00:00:00:01"));
    {
        let mut state = world.state();
        let other = &mut state.machines[1];
        set(other, READY);
        (other.serial, other.hardware_uuid) = ("SN-2".into(), String::new());
    }
    let spellings: [fn(&mut MachineSpec); 4] = [
        |_| (),
        |spec| spec.mac_addresses = vec!["52-54-00-83-8E-9E".into()],
        |spec| (spec.mac_addresses, spec.system_uuid) = (Vec::new(), String::new()),
        |spec| (spec.mac_addresses, spec.serial_number) = (Vec::new(), String::new()),
    ];
    for spelling in spellings {
        let seen = Inspect::inspect(&world.provider(), &by(spelling)).await.expect("found");
        assert_eq!((seen.serial_number.as_str(), seen.power), ("SN-1", PowerState::On));
    }
}

#[tokio::test]
async fn two_that_may_be_it_are_none_and_neither_is_touched() {
    let world = World::with_one(DEPLOYED);
    let provider = world.provider();
    Inspect::inspect(&provider, &target()).await.expect("found");
    // somebody else's create won the race, later
    world.state().machines.push(machine("late01", MAC));
    let no = provider.install(&target(), "noble", "", &op(1)).await.expect_err("two");
    assert_eq!(no.reason(), Reason::WrongMachine, "{no}");
    assert!(no.to_string().contains(ID) && no.to_string().contains("late01"), "{no}");
    assert!(provider.reset(&target(), RebootMode::Force, &op(1)).await.is_err());
    assert!(provider.power_off(&target(), &op(1)).await.is_err());
    assert!(world.told().is_empty());
}

type Change = fn(&World);

#[tokio::test]
async fn another_machine_a_strange_one_and_somebody_elses_are_left_alone() {
    let changes: [(&str, Change); 6] = [
        ("another serial number", |world| world.state().machines[0].serial = "SN-9".into()),
        ("another UUID", |world| {
            world.state().machines[0].hardware_uuid = "11111111-2222-3333-4444-555555555555".into()
        }),
        ("no word of who it is", |world| {
            let mut state = world.state();
            (state.machines[0].serial, state.machines[0].hardware_uuid) = (String::new(), String::new());
        }),
        ("somebody else's", |world| world.state().machines[0].owner = "eve".into()),
        ("locked", |world| world.state().machines[0].locked = true),
        ("not there", |world| world.state().machines.clear()),
    ];
    for (name, change) in changes {
        let world = World::with_one(DEPLOYED);
        change(&world);
        let provider = world.provider();
        for no in [
            provider.install(&target(), "noble", "", &op(1)).await,
            provider.reset(&target(), RebootMode::Force, &op(1)).await,
            provider.power_off(&target(), &op(1)).await,
        ] {
            let no = no.expect_err(name);
            assert!(no.to_string().contains("oslo"), "{name}: {no}");
        }
        assert!(world.told().is_empty(), "{name}: {:?}", world.told());
    }
}

/// One that was replaced upstream is found anew; one that is remembered is not looked for again.
#[tokio::test]
async fn an_id_is_remembered_and_recognized() {
    let world = World::with_one(DEPLOYED);
    let provider = world.provider();
    let no_macs = by(|spec| spec.mac_addresses.clear());
    for _ in 0..5 {
        provider.watch(&no_macs).await.expect("found");
    }
    // one list, one reading of what it named, then one reading each
    assert_eq!(world.state().reads, 6);
    world.state().machines[0].system_id = "new001".into();
    let seen = provider.watch(&target()).await.expect("found anew");
    assert!(seen.boot_id.starts_with("new001"));
}

#[tokio::test]
async fn what_maas_cannot_do_is_said_before_it_is_tried() {
    let world = World::with_one(DEPLOYED);
    let provider = world.provider();
    let inband = provider.reset(&target(), RebootMode::Inband, &op(1)).await.expect_err("no way in");
    assert_eq!(inband.reason(), Reason::CapabilityMissing);
    for (mode, persistent) in [(BootMode::Disk, false), (BootMode::Cd, false), (BootMode::Pxe, true)] {
        let no = provider.set_boot(&target(), mode, persistent, &op(1)).await.expect_err("not MAAS's");
        assert_eq!(no.reason(), Reason::CapabilityMissing);
        assert!(provider.lacks(&target().spec, &StepKind::Netboot { mode, persistent }).is_some());
    }
    let pxe = StepKind::Netboot { mode: BootMode::Pxe, persistent: false };
    assert!(provider.lacks(&target().spec, &pxe).is_none());
    assert!(provider.lacks(&MachineSpec::default(), &pxe).is_some());
    assert!(provider.lacks(&target().spec, &StepKind::Reboot { mode: RebootMode::Inband }).is_some());
    // every boot of it begins on the network
    let seen = Inspect::inspect(&provider, &target()).await.expect("found").boot_override.expect("one");
    assert_eq!((seen.mode, seen.persistent), (BootMode::Pxe, false));
    assert!(provider.exec().is_none() && provider.cluster().is_none() && provider.rma().is_none());
    assert!(world.told().is_empty());
}
