//! Answers with values that nobody expects where they stand: every call ends, and none panics. Each round is one seed;
//! `MILLWRIGHT_REDFISH_ROUNDS` sets how many (default 60).

use crate::fixture::{adapter, login, options, password, patient};
use domain::Secret;
use domain::hardware::{BootOverride, PowerAction};
use domain::plan::BootMode;
use provider::Bmc as _;
use redfish::Timeouts;
use std::time::Duration;
use testkit::http_faults::Fault;
use testkit::redfish_responder::Responder;

#[tokio::test]
async fn odd_answers_are_read_or_refused_and_nothing_panics() {
    let rounds = std::env::var("MILLWRIGHT_REDFISH_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(60_u64);
    let pause = Duration::from_millis(1);
    let timeouts = Timeouts { task: 10 * pause, poll: pause, ..patient() };
    let (mut read, mut told) = (0_u64, 0_u64);
    for seed in 0..rounds {
        let mut service = options();
        service.old_schema = seed % 2 == 1;
        service.media_of_manager = seed % 3 == 1;
        service.action_info = seed % 5 == 1;
        service.tasks = (seed % 7 == 1).then_some(2);
        let responder = Responder::start(service).await;
        let bmc = adapter(&responder.endpoint(1), login(), timeouts);
        // the login and the way are found half of the time, so that what comes after is reached, too
        if seed % 2 == 0 {
            bmc.state().await.expect("a state");
        }
        responder.faults.arm("", "/redfish/v1/", Fault::Odd(seed), usize::MAX);
        read += u64::from(bmc.state().await.is_ok());
        told += u64::from(bmc.describe().await.is_ok());
        drop(bmc.power(PowerAction::On).await);
        drop(bmc.set_boot(Some(BootOverride { mode: BootMode::Pxe, persistent: false })).await);
        drop(bmc.set_boot(None).await);
        drop(bmc.insert_media("http://127.0.0.1/x.iso").await);
        drop(bmc.eject_media().await);
        drop(bmc.bios().await);
        drop(bmc.set_bios(&[("Cores".to_owned(), "8".to_owned())].into()).await);
        if let Ok(task) = bmc.update_firmware("http://127.0.0.1/fw", &[]).await {
            drop(bmc.task(&task).await);
        }
        drop(bmc.event_log(10).await);
        drop(bmc.sensors().await);
        drop(bmc.identify(true).await);
        drop(bmc.set_password("operator", &Secret::new(password())).await);
        drop(bmc.console().await);
        assert!(responder.faults.disarm() > 0);
    }
    assert!(rounds < 10 || (0 < read && read < rounds), "some could be read and some could not: {read} of {rounds}");
    assert!(rounds < 10 || 0 < told, "some could be described: {told} of {rounds}");
}
