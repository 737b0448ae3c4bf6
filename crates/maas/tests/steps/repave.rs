//! Repaving: released with the disks erased, deployed, and seen to be ours; part by part, by whichever server.

use crate::world::{World, op, set, target};
use domain::Reason;
use domain::maas::{
    ALLOCATED, DEPLOYED, DEPLOYING, DISK_ERASING, FAILED_DEPLOYMENT, FAILED_DISK_ERASING, READY, RELEASING,
    RELEASING_FAILED,
};
use domain::stage::FailureClass;
use maas::MaasProvider;
use provider::{Ack, ImageControl as _, Inspect as _, NextPart, Operation, ProviderError};

/// What a step's look comes to, as the step has it.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    Due,
    Waits,
    Done,
    Failed(FailureClass),
    Other,
}

async fn look(provider: &MaasProvider, op: &Operation) -> Look {
    match provider.next_part(&target(), op).await.expect("seen") {
        NextPart::Due => return Look::Due,
        NextPart::Waits(_) => return Look::Waits,
        NextPart::None => {}
    }
    let seen = provider.inspect(&target()).await.expect("seen");
    if let Some(failed) = seen.failed_install.filter(|failed| failed.operation == op.key()) {
        return Look::Failed(failed.class);
    }
    match seen.installed.filter(|installed| installed.operation == op.key()) {
        Some(installed) if installed.image == "noble" && seen.installing.is_none() => Look::Done,
        _ => Look::Other,
    }
}

async fn act(provider: &MaasProvider, op: &Operation) -> Result<Ack, ProviderError> {
    provider.install(&target(), "noble", "cloud", op).await
}

const RELEASE: &str = "release 4g4aaq erase=secure";
const DEPLOY: &str = "deploy 4g4aaq noble data=#cloud-config sync=true";
const MARK: &str = "annotate 4g4aaq millwright-image,millwright-operation";

#[tokio::test]
async fn what_is_deployed_is_released_erased_and_deployed_anew() {
    let world = World::with_one(DEPLOYED);
    // each look and act by another server: nothing hangs on a memory
    let op = op(1);
    assert_eq!(look(&world.provider(), &op).await, Look::Other, "nothing of it is to be seen");
    assert_eq!(act(&world.provider(), &op).await, Ok(Ack::Accepted));
    assert_eq!(look(&world.provider(), &op).await, Look::Waits);
    let seen = world.provider().inspect(&target()).await.expect("seen");
    assert_eq!(seen.installing.map(|i| i.operation), Some(op.key()), "whoever else comes sees whose it is");
    assert_eq!(act(&world.provider(), &op).await, Ok(Ack::Accepted), "told again, it is not done again");
    assert_eq!(world.told(), [RELEASE]);
    world.set(READY);
    assert_eq!(look(&world.provider(), &op).await, Look::Due);
    assert_eq!(act(&world.provider(), &op).await, Ok(Ack::Accepted));
    assert_eq!(look(&world.provider(), &op).await, Look::Waits);
    world.set(DEPLOYED);
    assert_eq!(look(&world.provider(), &op).await, Look::Done);
    assert_eq!(look(&world.provider(), &op).await, Look::Done);
    assert_eq!(world.told(), [RELEASE, DEPLOY, MARK]);
    // weeks later somebody deploys it by hand: that is not ours, and nothing is under way
    world.state().machines[0].annotations.clear();
    let seen = world.provider().inspect(&target()).await.expect("seen");
    assert_eq!(seen.installed.map(|i| (i.image, i.operation)), Some(("ubuntu/noble".into(), String::new())));
    assert_eq!((seen.installing, seen.failed_install), (None, None));
}

#[tokio::test]
async fn what_is_free_is_deployed_at_once() {
    let world = World::with_one(READY);
    assert_eq!(act(&world.provider(), &op(1)).await, Ok(Ack::Accepted));
    assert_eq!(world.told(), [DEPLOY, MARK]);
}

/// Each answer is lost once, with and without the thing done; the end is the same, and nothing is done that was.
#[tokio::test(start_paused = true)]
async fn whatever_answer_is_lost_it_comes_to_the_same_end() {
    for (lost, made) in [(0, true), (0, false), (1, true), (1, false), (2, true), (2, false)] {
        let world = World::with_one(DEPLOYED);
        world.state().loses = Some((lost, made));
        let (provider, op) = (world.provider(), op(1));
        let mut acts = 1;
        let mut acted = act(&provider, &op).await;
        let mut looks = 0;
        let end = loop {
            looks += 1;
            assert!(looks < 60, "{lost} {made}: {:?}", world.told());
            match look(&provider, &op).await {
                Look::Due => {
                    acts += 1;
                    acted = act(&provider, &op).await;
                }
                // MAAS goes on meanwhile
                Look::Waits if world.machine().status == DISK_ERASING => world.set(READY),
                Look::Waits if world.machine().status == DEPLOYING && looks % 2 == 0 => {
                    set(&mut world.state().machines[0], DEPLOYED);
                }
                Look::Waits => tokio::time::advance(std::time::Duration::from_secs(2)).await,
                end => break end,
            }
        };
        assert_eq!(end, Look::Done, "{lost} {made} after {acted:?}: {:?}", world.told());
        assert!(acts <= 3, "{lost} {made}: {acts} acts");
        let told = world.told();
        let count = |what: &str| told.iter().filter(|told| *told == what).count();
        let again = |number| usize::from(lost == number && !made);
        assert_eq!((count(RELEASE), count(DEPLOY)), (1 + again(0), 1 + again(1)), "{lost} {made}: {told:?}");
    }
}

#[tokio::test]
async fn what_fails_upstream_fails_with_its_class_and_the_next_attempt_begins_from_there() {
    let all = [
        (RELEASING_FAILED, false, FailureClass::Transient),
        (FAILED_DISK_ERASING, false, FailureClass::Hardware),
        (FAILED_DEPLOYMENT, true, FailureClass::Transient),
        // somebody took it back
        (READY, true, FailureClass::Conflict),
        (ALLOCATED, true, FailureClass::Conflict),
    ];
    for (status, deploying, class) in all {
        let world = World::with_one(if deploying { READY } else { DEPLOYED });
        let provider = world.provider();
        let first = op(1);
        let _ = act(&provider, &first).await.expect("begun");
        world.set(status);
        assert_eq!(look(&provider, &first).await, Look::Failed(class), "{status}");
        let told = world.told().len();
        assert_eq!(provider.abort_install(&target(), &first).await, Ok(Ack::Done));
        assert_eq!(world.told().len(), told, "there is nothing to stop");
        let second = op(2);
        assert_eq!(look(&provider, &second).await, Look::Other, "{status}");
        let _ = act(&provider, &second).await.expect("begun anew");
        let expected = if status == READY { DEPLOY } else { RELEASE };
        assert_eq!(world.told()[told], expected, "{status}");
    }
}

#[tokio::test]
async fn what_is_given_up_is_stopped_and_nothing_follows_it() {
    let world = World::with_one(READY);
    let provider = world.provider();
    let _ = act(&provider, &op(1)).await.expect("begun");
    assert_eq!(provider.abort_install(&target(), &op(1)).await, Ok(Ack::Done));
    assert_eq!(world.told()[2..], ["abort 4g4aaq"]);
    assert_eq!(world.machine().status, ALLOCATED);
    assert_eq!(provider.next_part(&target(), &op(1)).await, Ok(NextPart::None));
    // an erasure is let go on to its end
    let world = World::with_one(DEPLOYED);
    let provider = world.provider();
    let _ = act(&provider, &op(1)).await.expect("begun");
    assert_eq!(provider.abort_install(&target(), &op(1)).await, Ok(Ack::Done));
    world.set(READY);
    assert_eq!(provider.next_part(&target(), &op(1)).await, Ok(NextPart::None));
    assert_eq!(world.told(), [RELEASE]);
}

#[tokio::test]
async fn what_others_are_at_or_have_put_aside_is_not_repaved() {
    for status in 0..23 {
        let world = World::with_one(DEPLOYED);
        set(&mut world.state().machines[0], status);
        let done = act(&world.provider(), &op(1)).await;
        let free = [DEPLOYED, ALLOCATED, FAILED_DEPLOYMENT, RELEASING_FAILED, FAILED_DISK_ERASING, READY];
        assert_eq!(done.is_ok(), free.contains(&status), "{status}: {done:?}");
        if let Err(no) = done {
            assert_eq!((no.reason(), world.told().len()), (Reason::WrongState, 0), "{status}: {no}");
        }
    }
    // another run's installation is seen for what it is while MAAS is at it
    let world = World::with_one(DEPLOYED);
    let _ = act(&world.provider(), &op(1)).await.expect("begun");
    let other = Operation { stage: "other".into(), ..op(1) };
    assert_eq!(world.provider().next_part(&target(), &other).await, Ok(NextPart::None));
    assert!(world.provider().inspect(&target()).await.expect("seen").installing.is_some());
    assert!(act(&world.provider(), &other).await.is_err());
    assert_eq!(world.told(), [RELEASE]);
    set(&mut world.state().machines[0], RELEASING);
    assert!(act(&world.provider(), &other).await.is_err());
}

/// Before anything is lost that it would replace.
#[tokio::test]
async fn an_image_or_user_data_that_is_not_there_is_found_out_first() {
    let world = World::with_one(DEPLOYED);
    let provider = world.provider();
    for (image, data) in [("gentoo", ""), ("", ""), ("no ble", ""), ("noble", "a-ca")] {
        assert!(provider.install(&target(), image, data, &op(1)).await.is_err(), "{image} {data}");
    }
    assert!(world.told().is_empty());
    assert!(provider.install(&target(), "24.04", "", &op(1)).await.is_ok(), "for MAAS to know");
}
