//! Every capability in the ways that every adapter must stand: refused, never answered, given up in the middle, asked
//! for twice. (That each does what it says, and says what is already so, is in the files of its own.)

use crate::fixture::{adapter, impatient, login, options, patient, refused, unknown, until};
use domain::hardware::{BootOverride, PowerAction};
use domain::plan::BootMode;
use domain::{Reason, Secret};
use provider::{Bmc as _, ProviderResult};
use redfish::{Redfish, Timeouts};
use testkit::http_faults::Fault;
use testkit::redfish_responder::Responder;

const ISO: &str = "http://127.0.0.1/x.iso";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Power,
    Boot,
    Insert,
    Eject,
    Bios,
    Firmware,
    Lamp,
    Password,
}

impl Change {
    const ALL: [Change; 8] = [
        Change::Power,
        Change::Boot,
        Change::Insert,
        Change::Eject,
        Change::Bios,
        Change::Firmware,
        Change::Lamp,
        Change::Password,
    ];

    /// The question by which it is done.
    fn question(self) -> (&'static str, &'static str) {
        match self {
            Change::Power => ("POST", "ComputerSystem.Reset"),
            Change::Boot | Change::Lamp => ("PATCH", "/Systems/1"),
            Change::Insert => ("POST", "InsertMedia"),
            Change::Eject => ("POST", "EjectMedia"),
            Change::Bios => ("PATCH", "/Bios/Settings"),
            Change::Firmware => ("POST", "SimpleUpdate"),
            Change::Password => ("PATCH", "/Accounts/"),
        }
    }

    async fn ask(self, bmc: &Redfish) -> ProviderResult<()> {
        match self {
            Change::Power => bmc.power(PowerAction::On).await.map(drop),
            Change::Boot => bmc.set_boot(Some(BootOverride { mode: BootMode::Pxe, persistent: false })).await.map(drop),
            Change::Insert => bmc.insert_media(ISO).await.map(drop),
            Change::Eject => bmc.eject_media().await.map(drop),
            Change::Bios => bmc.set_bios(&[("Cores".to_owned(), "8".to_owned())].into()).await.map(drop),
            Change::Firmware => bmc.update_firmware("http://127.0.0.1/fw", &[]).await.map(drop),
            Change::Lamp => bmc.identify(true).await.map(drop),
            Change::Password => bmc.set_password("auditor", &Secret::new("long enough")).await.map(drop),
        }
    }

    /// Whether what is already so is told from what is not.
    fn can_be_looked_at(self) -> bool {
        !matches!(self, Change::Firmware | Change::Password)
    }
}

/// With a medium in its drive if it is to be ejected; the way there is known.
async fn ready(change: Change, timeouts: Timeouts) -> (Responder, Redfish) {
    let responder = Responder::start(options()).await;
    if change == Change::Eject {
        responder.change(1, |s| s.media = Some(ISO.into()));
    }
    let bmc = adapter(&responder.endpoint(1), login(), timeouts);
    bmc.state().await.expect("a state");
    (responder, bmc)
}

/// What was done, logins and boots apart.
fn effects(responder: &Responder) -> usize {
    use testkit::redfish_responder::What;
    let own = |what: &What| !matches!(what, What::LoggedIn | What::Booted { .. });
    responder.journal().iter().filter(|effect| own(&effect.what)).count()
}

#[tokio::test]
async fn each_change_can_be_refused() {
    let info = r#"{"error": {"@Message.ExtendedInfo": [{"Message": "Not today."}]}}"#;
    for change in Change::ALL {
        let (responder, bmc) = ready(change, patient()).await;
        let (method, path) = change.question();
        responder.faults.arm(method, path, Fault::Status(403, info.into()), 1);
        refused(change.ask(&bmc).await, Reason::ProviderRefused, &["Not today.", "refuses to", "403"]);
        assert_eq!((responder.faults.disarm(), effects(&responder)), (1, 0), "{change:?}");
        change.ask(&bmc).await.unwrap_or_else(|e| panic!("{change:?}, the day after: {e}"));
        assert_eq!(effects(&responder), 1, "{change:?}");
    }
}

#[tokio::test]
async fn each_change_that_is_never_answered_is_unknown_done_or_not() {
    let one = |change: Change, fault: Fault, done: usize| async move {
        let (responder, bmc) = ready(change, impatient()).await;
        let (method, path) = change.question();
        responder.faults.arm(method, path, fault, usize::MAX);
        unknown(change.ask(&bmc).await);
        assert_eq!((responder.faults.disarm(), effects(&responder)), (1, done), "{change:?}");
    };
    let held = Change::ALL.map(|change| one(change, Fault::Hold, 0));
    futures::future::join_all(held).await;
    let lost = Change::ALL.map(|change| one(change, Fault::HoldAnswer, 1));
    futures::future::join_all(lost).await;
}

#[tokio::test]
async fn each_change_can_be_given_up_in_the_middle_and_is_found_done() {
    for change in Change::ALL {
        let (responder, bmc) = ready(change, patient()).await;
        let (method, path) = change.question();
        responder.faults.arm(method, path, Fault::HoldAnswer, 1);
        let underway = until("it is being done", || async { effects(&responder) == 1 });
        tokio::select! {
            () = underway => {}
            done = change.ask(&bmc) => panic!("{change:?} was answered: {done:?}"),
        }
        assert_eq!(responder.faults.disarm(), 1);
        bmc.state().await.unwrap_or_else(|e| panic!("after {change:?}: {e}"));
        if change.can_be_looked_at() {
            change.ask(&bmc).await.unwrap_or_else(|e| panic!("{change:?}, again: {e}"));
            assert_eq!(effects(&responder), 1, "{change:?} is found done");
        }
    }
}

#[tokio::test]
async fn each_read_that_is_never_answered_ends() {
    let held = |path: &'static str| async move {
        let responder = Responder::start(options()).await;
        let bmc = adapter(&responder.endpoint(1), login(), impatient());
        bmc.state().await.expect("a state");
        responder.faults.arm("GET", path, Fault::Hold, usize::MAX);
        (responder, bmc)
    };
    let late = Reason::Unreachable;
    let media = async { drop(refused(held("/VirtualMedia").await.1.media().await, late, &["no answer"])) };
    let bios = async { drop(refused(held("/Bios").await.1.bios().await, late, &["no answer"])) };
    let log = async { drop(refused(held("/Entries").await.1.event_log(3).await, late, &["no answer"])) };
    let sensors = async { drop(refused(held("/Sensors").await.1.sensors().await, late, &["no answer"])) };
    let console = async { drop(refused(held("/Managers").await.1.console().await, late, &["no answer"])) };
    let task = async {
        let (_responder, bmc) = held("/Tasks").await;
        refused(bmc.task("/redfish/v1/TaskService/Tasks/1").await, late, &["no answer"]);
    };
    let whole = async {
        let (_responder, bmc) = held("/Processors").await;
        let told = bmc.describe().await.expect("a description");
        assert!(told.gaps.iter().any(|gap| gap.starts_with("processors")), "{:?}", told.gaps);
    };
    tokio::join!(media, bios, log, sensors, console, task, whole);
}
