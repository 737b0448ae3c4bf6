//! Power: read from the BMC before and after, and a cycle that proves itself.

use crate::world::{World, op, set, target};
use domain::Reason;
use domain::maas::{ALLOCATED, DEPLOYED, DEPLOYING, READY};
use domain::plan::RebootMode;
use provider::{Ack, Inspect as _, PowerControl as _, PowerState, ProviderError};

#[tokio::test]
async fn a_cycle_is_off_then_on_and_then_proven() {
    let world = World::with_one(DEPLOYED);
    let provider = world.provider();
    let before = provider.inspect(&target()).await.expect("seen");
    assert!(!before.boot_id.is_empty() && !before.host_asked);
    assert_eq!(provider.reset(&target(), RebootMode::Bmc, &op(1)).await, Ok(Ack::Accepted));
    assert_eq!(world.told(), ["off 4g4aaq", "on 4g4aaq", "annotate 4g4aaq millwright-boot"]);
    // by another server
    let after = world.provider().inspect(&target()).await.expect("seen");
    assert_ne!(after.boot_id, before.boot_id);
    assert_eq!(after.power, PowerState::On);
    // one that is off already is only switched on
    world.state().machines[0].power_state = "off".into();
    assert_eq!(provider.reset(&target(), RebootMode::Force, &op(2)).await, Ok(Ack::Accepted));
    assert_eq!(world.told()[3..], ["on 4g4aaq", "annotate 4g4aaq millwright-boot"]);
}

/// To one that is allocated, power would mean: deploy.
#[tokio::test]
async fn only_what_is_deployed_is_rebooted() {
    for status in 0..23 {
        let world = World::with_one(DEPLOYED);
        set(&mut world.state().machines[0], status);
        let done = world.provider().reset(&target(), RebootMode::Force, &op(1)).await;
        assert_eq!(done.is_ok(), status == DEPLOYED, "{status}: {done:?}");
        if let Err(no) = done {
            assert_eq!((no.reason(), world.told().len()), (Reason::WrongState, 0), "{no}");
        }
    }
}

#[tokio::test]
async fn a_cycle_that_is_half_done_is_unknown_and_proves_nothing() {
    let world = World::with_one(DEPLOYED);
    let provider = world.provider();
    let before = provider.inspect(&target()).await.expect("seen").boot_id;
    world.state().refuses = Some(ProviderError::transient("not off"));
    let no = provider.reset(&target(), RebootMode::Force, &op(1)).await.expect_err("refused");
    assert!(matches!(no, ProviderError::Refused { .. }), "nothing was changed: {no}");
    // first that to off, then that to on
    for more in [0, 1] {
        world.state().machines[0].power_state = "on".into();
        let number = world.told().len() + more;
        world.state().loses = Some((number, true));
        let no = provider.reset(&target(), RebootMode::Force, &op(1)).await.expect_err("lost");
        assert!(matches!(no, ProviderError::Unknown { .. }), "{no}");
        world.state().machines[0].power_state = "on".into();
        assert_eq!(provider.inspect(&target()).await.expect("seen").boot_id, before);
    }
}

#[tokio::test]
async fn what_is_off_stays_off_and_what_maas_is_at_is_left_to_it() {
    for (status, told) in [(DEPLOYED, 1), (READY, 0), (ALLOCATED, 1)] {
        let world = World::with_one(status);
        let done = world.provider().power_off(&target(), &op(1)).await.expect("allowed");
        assert_eq!((world.told().len(), done), (told, if told == 0 { Ack::Done } else { Ack::Accepted }));
    }
    let world = World::with_one(DEPLOYING);
    assert!(world.provider().power_off(&target(), &op(1)).await.is_err());
    assert!(world.told().is_empty());
}

#[tokio::test]
async fn a_power_state_that_nobody_knows_is_not_made_up() {
    let world = World::with_one(DEPLOYED);
    for state in ["unknown", "error", "", "perhaps"] {
        world.state().machines[0].power_state = state.into();
        let provider = world.provider();
        assert!(provider.inspect(&target()).await.is_err() && provider.watch(&target()).await.is_err());
        assert!(provider.reset(&target(), RebootMode::Force, &op(1)).await.is_err());
        assert!(provider.power_off(&target(), &op(1)).await.is_err());
    }
    assert!(world.told().is_empty());
}
