//! Installing: from virtual media and by a script, what counts as done and what does not, and what is left behind.

use crate::ground::{
    FAILING_IMAGE, Ground, ISO, Installer, MEDIA_IMAGE, SCRIPT_IMAGE, SLOW_IMAGE, is_machine, looks_until, operation,
    options, refused, until,
};
use domain::Reason;
use provider::{Ack, ImageControl as _, Inspect as _, Operation, Pin, ProviderError, ProviderResult};
use testkit::http_faults::Fault;
use testkit::redfish_responder::What;

async fn install(g: &Ground, image: &str, op: &Operation) -> ProviderResult<Ack> {
    g.dc.install(&g.target, image, "", op).await
}

/// It is installed by this operation, and nobody else's.
async fn is_there(g: &Ground, image: &str, op: &Operation) {
    let seen = looks_until(g, "it is installed", |seen| {
        seen.installed.as_ref().is_some_and(|i| i.image == image && i.operation == op.key())
    })
    .await;
    assert_eq!((seen.installing, seen.failed_install), (None, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn media_are_put_in_booted_once_and_taken_out() {
    let g = Ground::whole(options()).await;
    let before = g.look().await;
    assert_eq!((before.installed, before.disk_read), (None, true));
    let (op, old_key) = (operation("repave", 1), g.host().fingerprint());
    assert_eq!(install(&g, MEDIA_IMAGE, &op).await, Ok(Ack::Accepted));
    is_there(&g, MEDIA_IMAGE, &op).await;
    assert_eq!(g.boots_from(), ["Cd"], "once");
    let now = g.responder.system(1);
    assert_eq!((now.media, now.boot_enabled.as_str()), (None, "Disabled"), "the next boot is from the disk");
    assert!(g.responder.done_to(1).contains(&What::MediaIn(ISO.into())));
    // the key changed while it was open: accepted, and pinned
    assert_ne!(g.host().fingerprint(), old_key);
    let pinned = g.keyring.pin_of(g.target.machine_id.as_str(), Pin::SshHostKey);
    assert_eq!(pinned, Some(g.host().fingerprint()));
    // it is closed now: the next change of the key is nobody's installation
    g.target.notes.take();
    tokio::task::block_in_place(|| g.host().change_host_key());
    let seen = g.look().await;
    assert!(seen.boot_id.is_empty(), "{seen:?}");
    let notes = g.target.notes.take().join("\n");
    assert!(notes.contains(&g.host().fingerprint()) && notes.contains("repin"), "{notes}");
    assert_eq!(g.keyring.pin_of(g.target.machine_id.as_str(), Pin::SshHostKey), pinned, "the pin stands");
}

/// However often it is looked at by those who only watch, and be it under a freeze: the drive is the step's to empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_sees_that_it_is_there_and_touches_nothing() {
    let g = Ground::whole(options()).await;
    let op = operation("repave", 1);
    install(&g, MEDIA_IMAGE, &op).await.map(drop).expect("begun");
    g.settled().await;
    let begun = tokio::time::Instant::now();
    let mut seen = 0;
    while seen < 3 {
        let look = g.dc.watch(&g.target).await;
        let there = look.as_ref().ok().and_then(|look| look.installed.as_ref());
        seen += usize::from(there.is_some_and(|i| i.image == MEDIA_IMAGE && i.operation == op.key()));
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "never seen: {look:?}");
    }
    let outs = || g.responder.done_to(1).iter().filter(|what| **what == What::MediaOut).count();
    assert_eq!((outs(), g.responder.system(1).media.as_deref()), (0, Some(ISO)), "{:?}", g.responder.done_to(1));
    is_there(&g, MEDIA_IMAGE, &op).await;
    g.dc.watch(&g.target).await.map(drop).expect("a look");
    assert_eq!((outs(), g.responder.system(1).media), (1, None), "by the step, once");
}

/// The same image is on the disk already, so that it is there proves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_image_again_is_done_only_by_a_new_system() {
    let g = Ground::whole(options()).await;
    let first = operation("repave", 1);
    install(&g, MEDIA_IMAGE, &first).await.map(drop).expect("begun");
    is_there(&g, MEDIA_IMAGE, &first).await;
    // the controller boots the old disk in spite of all; and the system was down before, so nobody could ask it
    g.installer(Installer::IgnoresTheDisc);
    for off in [false, true] {
        if off {
            tokio::task::block_in_place(|| g.host().power_off());
        }
        let second = operation("repave", 2);
        install(&g, MEDIA_IMAGE, &second).await.map(drop).expect("begun");
        g.settled().await;
        let seen = looks_until(&g, "it is up again", |seen| !seen.boot_id.is_empty()).await;
        assert_eq!(seen.installed, None, "off before: {off}");
        assert_eq!(seen.installing.map(|i| i.operation), Some(second.key()));
        // given up: nothing is left in the drive
        assert_eq!(g.dc.abort_install(&g.target, &second).await, Ok(Ack::Done));
        assert_eq!(g.responder.system(1).media, None);
        assert_eq!(g.look().await.installing, None);
    }
    g.installer(Installer::Works);
    let third = operation("repave", 3);
    install(&g, MEDIA_IMAGE, &third).await.map(drop).expect("begun");
    is_there(&g, MEDIA_IMAGE, &third).await;
}

/// The image was on the disk before anybody could read it, and the controller ignores the disc: that it is there
/// is no proof of anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_system_that_nobody_could_read_before_is_not_taken_for_a_new_one() {
    let g = Ground::whole(options()).await;
    std::fs::write(g.host().inside("/etc/millwright-image"), format!("{MEDIA_IMAGE}\n")).expect("a mark");
    tokio::task::block_in_place(|| g.host().power_off());
    g.installer(Installer::IgnoresTheDisc);
    let first = operation("repave", 1);
    install(&g, MEDIA_IMAGE, &first).await.map(drop).expect("begun");
    g.settled().await;
    let seen = looks_until(&g, "it is up", |seen| !seen.boot_id.is_empty()).await;
    assert_eq!((seen.installed, seen.installing.map(|i| i.operation)), (None, Some(first.key())));
    g.look().await;
    let notes = g.target.notes.take();
    assert_eq!(notes.iter().filter(|note| note.contains("cannot be told")).count(), 1, "{notes:?}");
    // the next attempt has read it, and knows the new one
    assert_eq!(g.dc.abort_install(&g.target, &first).await, Ok(Ack::Done));
    g.installer(Installer::Works);
    let second = operation("repave", 2);
    install(&g, MEDIA_IMAGE, &second).await.map(drop).expect("begun");
    is_there(&g, MEDIA_IMAGE, &second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_never_began_is_not_taken_for_under_way() {
    let g = Ground::whole(options()).await;
    g.look().await;
    for (path, no) in [("InsertMedia", 403), ("ComputerSystem.Reset", 403)] {
        let op = operation("repave", 1);
        g.responder.faults.arm("POST", path, Fault::Status(no, "{}".into()), 1);
        refused(install(&g, MEDIA_IMAGE, &op).await, Reason::ProviderRefused, &[]);
        assert_eq!(g.responder.faults.disarm(), 1);
        let seen = g.look().await;
        assert_eq!((seen.installing, seen.failed_install), (None, None), "{path} was refused");
        // the same operation can be begun again, and is
        install(&g, MEDIA_IMAGE, &op).await.map(drop).expect("begun");
        is_there(&g, MEDIA_IMAGE, &op).await;
    }
    assert_eq!(g.boots_from(), ["Cd", "Cd"]);
    // lost before the controller was told to boot: dropped in the middle
    let op = operation("repave", 1);
    g.responder.faults.arm("PATCH", "/Systems/1", Fault::Hold, 1);
    tokio::select! {
        () = until("it is at it", || g.responder.faults.hits() == 1) => {}
        answer = install(&g, MEDIA_IMAGE, &op) => panic!("answered: {answer:?}"),
    }
    g.responder.faults.disarm();
    assert_eq!(g.look().await.installing, None, "nothing was booted: it is done again");
    install(&g, MEDIA_IMAGE, &op).await.map(drop).expect("begun");
    is_there(&g, MEDIA_IMAGE, &op).await;
    assert_eq!(g.boots_from().len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_to_the_boot_is_waited_out() {
    let g = Ground::whole(options()).await;
    g.look().await;
    let op = operation("repave", 1);
    g.responder.faults.arm("POST", "ComputerSystem.Reset", Fault::LoseAnswer, 1);
    let silent = install(&g, MEDIA_IMAGE, &op).await.expect_err("no answer");
    assert!(matches!(silent, ProviderError::Unknown { .. }), "{silent:?}");
    assert_eq!(g.responder.faults.disarm(), 1);
    is_there(&g, MEDIA_IMAGE, &op).await;
    assert_eq!(g.boots_from(), ["Cd"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_installs_once_however_often_it_is_asked() {
    let g = Ground::whole(options()).await;
    let op = operation("repave", 1);
    for _ in 0..2 {
        assert_eq!(install(&g, SCRIPT_IMAGE, &op).await, Ok(Ack::Accepted));
    }
    is_there(&g, SCRIPT_IMAGE, &op).await;
    assert_eq!((g.installs(), g.resets().len()), (1, 0));
    let again = operation("repave", 1);
    install(&g, SCRIPT_IMAGE, &again).await.map(drop).expect("begun");
    is_there(&g, SCRIPT_IMAGE, &again).await;
    assert_eq!(g.installs(), 2, "another operation is another installation");
    // long after: nothing is in hand, and a sweep need not ask the system to know
    let sessions = || g.host().console().matches("Starting session").count();
    let seen = g.dc.watch(&g.target).await.expect("a look");
    let before = sessions();
    for _ in 0..3 {
        assert_eq!(g.dc.watch(&g.target).await.expect("a look").installed, seen.installed);
    }
    assert_eq!(sessions(), before, "sweeps ask for nothing there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_fails_says_how() {
    let g = Ground::whole(options()).await;
    let op = operation("repave", 1);
    install(&g, FAILING_IMAGE, &op).await.map(drop).expect("begun");
    let seen = looks_until(&g, "it has failed", |seen| seen.failed_install.is_some()).await;
    let failed = seen.failed_install.expect("a failure");
    assert_eq!((failed.operation, seen.installed), (op.key(), None));
    assert!(failed.why.contains("exit status 3") && failed.why.contains("no disk"), "{}", failed.why);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_is_stopped_for_good() {
    let g = Ground::whole(options()).await;
    let op = operation("repave", 1);
    install(&g, SLOW_IMAGE, &op).await.map(drop).expect("begun");
    let seen = looks_until(&g, "it runs", |seen| seen.installing.is_some()).await;
    assert_eq!(seen.installing.map(|i| i.operation), Some(op.key()));
    until("the script has begun", || g.installs() == 1).await;
    assert_eq!(g.dc.abort_install(&g.target, &op).await, Ok(Ack::Done));
    assert_eq!(g.dc.abort_install(&g.target, &op).await, Ok(Ack::Done), "twice");
    let seen = g.look().await;
    assert_eq!((seen.installing, seen.installed, seen.failed_install), (None, None, None));
    // what was stopped is not begun again by an order that comes late
    drop(install(&g, SLOW_IMAGE, &op).await);
    assert_eq!(g.installs(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_overwritten_on_a_machine_that_nobody_knows() {
    let g = Ground::whole(options()).await;
    let op = operation("repave", 1);
    let mut unknown = g.target.clone();
    unknown.spec.serial_number = String::new();
    unknown.spec.system_uuid = String::new();
    for image in [MEDIA_IMAGE, SCRIPT_IMAGE] {
        let no = g.dc.install(&unknown, image, "", &op).await;
        refused(no, Reason::WrongMachine, &["neither serial number nor system UUID", "machine update"]);
    }
    // the record knows, and what is there does not say
    is_machine(g.host(), "", "");
    g.responder.change(1, |s| (s.serial, s.uuid) = (String::new(), String::new()));
    for image in [MEDIA_IMAGE, SCRIPT_IMAGE] {
        refused(
            install(&g, image, &op).await,
            Reason::WrongMachine,
            &["does not confirm", &g.target.spec.serial_number],
        );
    }
    // each must speak for its own disk, and in words that the record has
    let serial = g.target.spec.serial_number.clone();
    let says = serial.clone();
    g.responder.change(1, |s| s.serial = says);
    refused(install(&g, SCRIPT_IMAGE, &op).await, Reason::WrongMachine, &["the system", "does not confirm"]);
    g.responder.change(1, |s| s.serial = String::new());
    is_machine(g.host(), &serial, "");
    refused(install(&g, MEDIA_IMAGE, &op).await, Reason::WrongMachine, &["the BMC", "does not confirm"]);
    let mut by_serial = g.target.clone();
    by_serial.spec.system_uuid = String::new();
    is_machine(g.host(), "", "4d570000-dc00-4000-8000-00000000beef");
    let no = g.dc.install(&by_serial, SCRIPT_IMAGE, "", &op).await;
    refused(no, Reason::WrongMachine, &["does not confirm"]);
    // one of them is another machine
    is_machine(g.host(), "SN-OTHER", "");
    for image in [MEDIA_IMAGE, SCRIPT_IMAGE] {
        refused(install(&g, image, &op).await, Reason::WrongMachine, &["SN-OTHER", &g.target.spec.serial_number]);
    }
    refused(install(&g, "no-such-image", &op).await, Reason::InvalidField, &["no-such-image", MEDIA_IMAGE]);
    assert_eq!((g.installs(), g.resets().len(), g.responder.system(1).media), (0, 0, None));
}

/// Whoever looks at the machine's history finds the run and the person, not us.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_remembered_and_forgotten_names_who_is_behind_it() {
    let g = Ground::whole(options()).await;
    let run = provider::By::Run(domain::RunId::from_text("run_7"));
    let by_run = g.target.clone().on_behalf_of(run.clone());
    g.dc.install(&by_run, SLOW_IMAGE, "", &operation("repave", 1)).await.map(drop).expect("begun");
    assert_eq!(g.keyring.changes(), [(Pin::Installation, run)]);
    let alice = provider::By::Person("alice".into());
    let by_alice = g.target.clone().on_behalf_of(alice.clone());
    provider::Management::repin(&g.dc, &by_alice).await.map(drop).expect("forgotten");
    let changed = g.keyring.changes();
    let all = [Pin::BmcCertificate, Pin::SshHostKey, Pin::JumpHostKey, Pin::Installation];
    assert_eq!(changed, all.map(|pin| (pin, alice.clone())));
}
