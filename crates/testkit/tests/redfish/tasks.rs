//! 202 answers are followed to their task's end; firmware updates are looked at by whoever began them.

use crate::fixture::{accepted, adapter, done, login, one, options, patient, refused, unknown};
use domain::Reason;
use domain::hardware::{BootOverride, ControllerTask, PowerAction};
use domain::plan::BootMode;
use provider::Bmc as _;
use redfish::Timeouts;
use std::time::Duration;
use testkit::http_faults::Fault;
use testkit::redfish_responder::{Responder, What};

const PXE: Option<BootOverride> = Some(BootOverride { mode: BootMode::Pxe, persistent: false });

#[tokio::test]
async fn a_change_that_becomes_a_task_is_followed_to_its_end() {
    let mut slow = options();
    slow.tasks = Some(3);
    let (responder, bmc) = one(slow).await;
    done(bmc.set_boot(PXE).await);
    done(bmc.insert_media("http://127.0.0.1/x.iso").await);
    accepted(bmc.power(PowerAction::On).await);
    let looks = responder.take_questions().iter().filter(|q| q.contains("/Tasks/")).count();
    assert_eq!(looks, 3 * 4, "each task was seen to its end");
    assert!(responder.done_to(1).contains(&What::Booted { from: "Pxe".into() }));
}

#[tokio::test]
async fn a_task_that_fails_is_a_no_with_its_messages() {
    let mut failing = options();
    failing.task_failure = Some("the power supply is missing".into());
    let (responder, bmc) = one(failing).await;
    refused(bmc.power(PowerAction::On).await, Reason::ProviderRefused, &["power supply is missing", "failed"]);
    refused(bmc.set_boot(PXE).await, Reason::ProviderRefused, &["power supply is missing"]);
    assert_eq!(responder.done_to(1), []);
}

#[tokio::test]
async fn a_task_without_end_is_accepted_and_left_to_itself() {
    let mut endless = options();
    endless.tasks = Some(1_000_000);
    let responder = Responder::start(endless).await;
    let hasty = Timeouts { task: Duration::from_millis(20), ..patient() };
    let bmc = adapter(&responder.endpoint(1), login(), hasty);
    accepted(bmc.set_boot(PXE).await);
    accepted(bmc.power(PowerAction::On).await);
}

#[tokio::test]
async fn a_task_that_is_gone_leaves_its_change_unknown() {
    let mut slow = options();
    slow.tasks = Some(3);
    let (responder, bmc) = one(slow).await;
    responder.faults.arm("GET", "/Tasks/", Fault::Status(404, String::new()), 1);
    unknown(bmc.power(PowerAction::On).await);
    assert_eq!(responder.faults.disarm(), 1);
}

#[tokio::test]
async fn a_look_at_a_task_that_fails_is_tried_again() {
    let mut slow = options();
    slow.tasks = Some(1);
    let (responder, bmc) = one(slow).await;
    responder.faults.arm("GET", "/Tasks/", Fault::Status(500, String::new()), 1);
    responder.faults.arm("GET", "/Tasks/", Fault::Malformed, 1);
    responder.faults.arm("GET", "/Tasks/", Fault::Reset, 1);
    done(bmc.set_boot(PXE).await);
    assert_eq!(responder.faults.disarm(), 3);
}

#[tokio::test]
async fn a_firmware_update_is_begun_and_watched() {
    let (responder, bmc) = one(options()).await;
    let task = bmc.update_firmware("http://127.0.0.1/bmc-2.bin", &[]).await.expect("begun");
    let mut percents = Vec::new();
    loop {
        match bmc.task(&task).await.expect("a task") {
            ControllerTask::Running { percent, .. } => percents.push(percent.expect("a percentage")),
            ControllerTask::Done { message } => break assert_eq!(message, "the task has completed"),
            ControllerTask::Failed { message } => panic!("{message}"),
        }
    }
    assert_eq!(percents.len(), 3);
    assert!(percents.is_sorted(), "{percents:?}");
    assert_eq!(bmc.describe().await.expect("a description").firmware[0].version, "2.0.0");
    let updated = What::Updated { image: "http://127.0.0.1/bmc-2.bin".into(), targets: Vec::new() };
    assert_eq!(responder.done_to(1), [updated]);
}

#[tokio::test]
async fn a_firmware_update_that_fails_says_why() {
    let (responder, bmc) = one(options()).await;
    let task = bmc.update_firmware("http://127.0.0.1/bad.bin", &["/redfish/v1/Systems/1".into()]).await.expect("begun");
    let ended = loop {
        match bmc.task(&task).await.expect("a task") {
            ControllerTask::Running { .. } => {}
            ended => break ended,
        }
    };
    assert_eq!(ended, ControllerTask::Failed { message: "the image is damaged".into() });
    assert_eq!(responder.done_to(1), []);
    refused(bmc.task("42").await, Reason::ProviderRefused, &["42", "path"]);
    refused(bmc.task("/redfish/v1/TaskService/Tasks/99").await, Reason::ProviderRefused, &["404"]);
}
