//! One suite for every controller: each capability done, done twice, already done, never answered, given up in the
//! middle, refused; and what a controller lacks is missing by name. Where a case cannot be had with a counterpart,
//! the table says why.

use crate::subjects::{Kind, NEW_PASSWORD, Subject, image_server, is_silence};
use Cap::*;
use domain::hardware::{BootOverride, PowerAction};
use domain::plan::BootMode;
use domain::{Reason, Secret};
use futures::StreamExt as _;
use provider::{Ack, Bmc, PowerState, ProviderError, ProviderResult};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cap {
    State,
    Describe,
    Sensors,
    EventLog,
    Console,
    Media,
    Bios,
    On,
    ForceOff,
    GracefulOff,
    GracefulRestart,
    ForceRestart,
    Cycle,
    BootOnce,
    BootAll,
    BootHttp,
    ClearBoot,
    InsertMedia,
    EjectMedia,
    SetBios,
    Firmware,
    Identify,
    Password,
}

const CAPS: [Cap; 23] = [
    State,
    Describe,
    Sensors,
    EventLog,
    Console,
    Media,
    Bios,
    On,
    ForceOff,
    GracefulOff,
    GracefulRestart,
    ForceRestart,
    Cycle,
    BootOnce,
    BootAll,
    BootHttp,
    ClearBoot,
    InsertMedia,
    EjectMedia,
    SetBios,
    Firmware,
    Identify,
    Password,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Does,
    Twice,
    AlreadyDone,
    TimesOut,
    GivenUp,
    Refused,
}

const CASES: [Case; 6] = [Case::Does, Case::Twice, Case::AlreadyDone, Case::TimesOut, Case::GivenUp, Case::Refused];

enum Expect {
    Holds,
    /// `CAPABILITY_MISSING`, with this word in it.
    Lacks(&'static str),
    /// Cannot be had here, and why.
    Not(&'static str),
}

/// The table.
fn expect(kind: Kind, cap: Cap, case: Case) -> Expect {
    use Expect::{Holds, Lacks, Not};
    match (kind, cap) {
        (Kind::Sushy, Cycle) => return Lacks("cycle"),
        (Kind::Sushy, Bios | SetBios) => return Lacks("BIOS"),
        (Kind::Sushy, EventLog) => return Lacks("event log"),
        (Kind::Sushy, Password) => return Lacks("account"),
        (Kind::Sushy, Firmware) => return Not("it says that it can, and fails whatever the image"),
        (Kind::Sushy, BootHttp) => return Not("it takes HTTP without a URL for PXE"),
        (Kind::Ipmi, Media | InsertMedia | EjectMedia) => return Lacks("virtual media"),
        (Kind::Ipmi, Bios | SetBios) => return Lacks("BIOS"),
        (Kind::Ipmi, Firmware) => return Lacks("firmware"),
        (Kind::Ipmi, GracefulRestart) => return Lacks("graceful restart"),
        (Kind::Ipmi, BootHttp) => return Lacks("HTTP boot"),
        (Kind::Ipmi, BootAll) => return Not("ipmi_sim never marks its boot flags valid, for one boot or for all"),
        (Kind::Ipmi, Console) if case != Case::Does && case != Case::Twice => return Not("nobody is asked for it"),
        _ => {}
    }
    match (kind, cap, case) {
        (_, State | Describe | Sensors | EventLog | Console | Media | Bios, Case::AlreadyDone) => Not("a look"),
        (_, GracefulRestart | ForceRestart | Cycle, Case::AlreadyDone) => Not("every restart is one"),
        (_, Firmware | Password, Case::AlreadyDone) => Not("nobody can see it beforehand"),
        (Kind::Ipmi, BootOnce | ClearBoot, Case::AlreadyDone) => Not("ipmi_sim never marks its boot flags valid"),
        (Kind::Ipmi, Identify, Case::AlreadyDone) => Not("IPMI cannot tell whether the lamp is lit"),
        (Kind::Ipmi, On | ForceOff | GracefulOff | ForceRestart | Cycle | Identify, Case::Refused) => Holds,
        (Kind::Ipmi, _, Case::Refused) => Not("ipmi_sim refuses nothing but power and lamp"),
        _ => Holds,
    }
}

const PXE: BootMode = BootMode::Pxe;

impl Cap {
    const fn is_look(self) -> bool {
        matches!(self, State | Describe | Sensors | EventLog | Console | Media | Bios)
    }

    /// The machine is such that there is something to do; `done`: such that it is done already.
    async fn prepare(self, s: &Subject, done: bool) {
        match self {
            On => s.set_power(done).await,
            ForceOff | GracefulOff => s.set_power(!done).await,
            GracefulRestart | ForceRestart | Cycle => s.set_power(true).await,
            BootOnce if done => s.set_next_boot_to_pxe(),
            BootAll if done => drop(s.bmc.set_boot(Some(BootOverride { mode: PXE, persistent: true })).await),
            BootHttp if done => {
                drop(s.bmc.set_boot(Some(BootOverride { mode: BootMode::Http, persistent: false })).await)
            }
            ClearBoot if !done => s.set_next_boot_to_pxe(),
            InsertMedia if done => s.put_medium_in(),
            EjectMedia if !done => s.put_medium_in(),
            SetBios if done => drop(s.bmc.set_bios(&cores()).await),
            Identify => s.set_lamp(done),
            _ => {}
        }
    }

    async fn ask(self, bmc: &dyn Bmc, s: &Subject) -> ProviderResult<Ack> {
        let boot = |mode, persistent| bmc.set_boot(Some(BootOverride { mode, persistent }));
        let read = Ack::Done;
        match self {
            State => {
                let state = bmc.state().await?;
                assert!(state.system_uuid.eq_ignore_ascii_case(&s.identity()), "{state:?}");
                assert_eq!(state.power == PowerState::On, s.is_on(), "{state:?}");
                Ok(read)
            }
            Describe => {
                let told = bmc.describe().await?;
                assert!(told.system_uuid.eq_ignore_ascii_case(&s.identity()), "{told:?}");
                Ok(read)
            }
            Sensors => bmc.sensors().await.map(|sensors| assert!(!sensors.is_empty())).map(|()| read),
            EventLog => bmc.event_log(3).await.map(|entries| assert!(entries.len() <= 3)).map(|()| read),
            Console => {
                bmc.console().await.map(|ways| assert!(!ways.is_empty() || s.kind == Kind::Sushy)).map(|()| read)
            }
            Media => bmc.media().await.map(|medium| assert_eq!(medium, s.medium())).map(|()| read),
            Bios => bmc.bios().await.map(|bios| assert_eq!(bios.current["Cores"], "16")).map(|()| read),
            On => bmc.power(PowerAction::On).await,
            ForceOff => bmc.power(PowerAction::ForceOff).await,
            GracefulOff => bmc.power(PowerAction::GracefulOff).await,
            GracefulRestart => bmc.power(PowerAction::GracefulRestart).await,
            ForceRestart => bmc.power(PowerAction::ForceRestart).await,
            Cycle => bmc.power(PowerAction::Cycle).await,
            BootOnce => boot(PXE, false).await,
            BootAll => boot(PXE, true).await,
            BootHttp => boot(BootMode::Http, false).await,
            ClearBoot => bmc.set_boot(None).await,
            InsertMedia => bmc.insert_media(&s.image).await,
            EjectMedia => bmc.eject_media().await,
            SetBios => bmc.set_bios(&cores()).await,
            Firmware => bmc.update_firmware(&s.image, &[]).await.map(|_| read),
            Identify => bmc.identify(true).await,
            Password => bmc.set_password(s.account(), &Secret::new(NEW_PASSWORD)).await,
        }
    }

    /// Whether the machine is as it was asked for, by its own word.
    fn shows(self, s: &Subject) -> bool {
        match self {
            State | Describe | Sensors | EventLog | Console | Media | Bios => true,
            On => s.is_on(),
            ForceOff | GracefulOff => !s.is_on(),
            GracefulRestart | ForceRestart | Cycle => s.kind == Kind::Sushy || !s.effects().is_empty(),
            BootOnce => s.next_boot() == if s.kind == Kind::Sushy { "pxe for all" } else { "pxe" },
            BootAll => s.next_boot() == "pxe for all",
            BootHttp => s.next_boot() == "uefihttp",
            ClearBoot => s.next_boot().is_empty(),
            InsertMedia => s.medium().as_ref() == Some(&s.image),
            EjectMedia => s.medium().is_none(),
            SetBios => s.pending_cores() == Some(8.into()),
            Firmware => s.firmware() == "2.0.0",
            Identify => s.lamp(),
            Password => s.takes(NEW_PASSWORD),
        }
    }
}

fn cores() -> BTreeMap<String, String> {
    BTreeMap::from([("Cores".to_owned(), "8".to_owned())])
}

/// The suite, for one controller: every line of the table is tried or declared. Each has a machine of its own, so some
/// go on at the same time.
async fn passes(kind: Kind) {
    let (image, closed) = image_server().await;
    let (mut tried, mut lacking, mut declared) = (0, 0, 0);
    let mut lines = Vec::new();
    for cap in CAPS {
        for case in CASES {
            let what = format!("{kind:?}, {cap:?}, {case:?}");
            let number = lines.len();
            match expect(kind, cap, case) {
                Expect::Not(why) => {
                    declared += 1;
                    println!("{what}: not tried: {why}");
                }
                Expect::Lacks(_) if case != Case::Does => lacking += 1,
                Expect::Lacks(word) => {
                    lacking += 1;
                    lines.push((cap, case, what, number, Some(word)));
                }
                Expect::Holds => {
                    tried += 1;
                    lines.push((cap, case, what, number, None));
                }
            }
        }
    }
    let play = |(cap, case, what, number, lacks): (Cap, Case, String, usize, Option<&'static str>)| {
        let image = &image;
        async move {
            let s = Subject::new(kind, number, image).await;
            let played = async {
                match lacks {
                    Some(word) => is_missing(&s, cap, word, &what).await,
                    None => holds(&s, cap, case, &what).await,
                }
            };
            tokio::time::timeout(Duration::from_secs(150), played).await.unwrap_or_else(|_| panic!("{what}: no end"));
        }
    };
    futures::stream::iter(lines.into_iter().map(play)).buffer_unordered(8).collect::<Vec<()>>().await;
    closed.cancel();
    assert_eq!(tried + lacking + declared, CAPS.len() * CASES.len());
    println!("{kind:?}: {tried} tried, {lacking} missing by name, {declared} declared");
}

async fn is_missing(s: &Subject, cap: Cap, word: &str, what: &str) {
    if matches!(cap, GracefulRestart | ForceRestart | Cycle) {
        // what is off is not restarted, whoever offers it
        s.set_power(true).await;
    }
    let before = s.effects();
    let no = cap.ask(&*s.bmc, s).await.expect_err(what);
    assert_eq!(no.reason(), Reason::CapabilityMissing, "{what}: {no}");
    assert!(no.to_string().contains(word), "{what}: {no}");
    assert_eq!(s.effects(), before, "{what}: nothing was done");
}

async fn holds(s: &Subject, cap: Cap, case: Case, what: &str) {
    cap.prepare(s, case == Case::AlreadyDone).await;
    let before = s.effects();
    match case {
        Case::Does => {
            let _ = cap.ask(&*s.bmc, s).await.unwrap_or_else(|e| panic!("{what}: {e}"));
        }
        Case::Twice => {
            let _ = cap.ask(&*s.bmc, s).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            s.until(what, || cap.shows(s)).await;
            if matches!(cap, GracefulRestart | ForceRestart | Cycle) {
                // on its way through being off there is nothing to restart
                s.until("it is on again", || s.is_on()).await;
            }
            match cap.ask(&*s.bmc, s).await {
                Ok(_) => {}
                // the adapter still has the old one, and that is as it should be
                Err(e) if cap == Password && e.reason() == Reason::LoginRefused => {}
                Err(e) => panic!("{what}, the second time: {e}"),
            }
        }
        Case::AlreadyDone => {
            let answer = cap.ask(&*s.bmc, s).await;
            // what waits for the next boot is accepted, however often it is asked for
            let fine = if cap == SetBios { Ack::Accepted } else { Ack::Done };
            assert_eq!(answer, Ok(fine), "{what}");
            assert_eq!(s.effects(), before, "{what}: nothing was done again");
        }
        Case::TimesOut => {
            // impatient as it is, it may find a busy machine silent
            let mut before_it = s.impatient.state().await;
            for _ in 0..20 {
                if before_it.is_ok() {
                    break;
                }
                before_it = s.impatient.state().await;
            }
            before_it.unwrap_or_else(|e| panic!("{what}, before: {e}"));
            s.hang();
            let e = cap.ask(&*s.impatient, s).await.expect_err(what);
            is_silence(&e, what);
            s.mend();
            assert_eq!(s.effects(), before, "{what}: nothing was done");
            let _ = cap.ask(&*s.bmc, s).await.unwrap_or_else(|e| panic!("{what}, afterwards: {e}"));
        }
        Case::GivenUp => {
            s.bmc.state().await.unwrap_or_else(|e| panic!("{what}, before: {e}"));
            s.hang();
            let asked = s.asked();
            tokio::select! {
                () = s.until("it is asked", || s.asked() > asked) => {}
                answer = cap.ask(&*s.bmc, s) => panic!("{what} was answered: {answer:?}"),
            }
            s.mend();
            let _ = cap.ask(&*s.bmc, s).await.unwrap_or_else(|e| panic!("{what}, afterwards: {e}"));
        }
        Case::Refused => {
            s.bmc.state().await.unwrap_or_else(|e| panic!("{what}, before: {e}"));
            s.refuse(!cap.is_look());
            let e = cap.ask(&*s.bmc, s).await.expect_err(what);
            assert!(matches!(e, ProviderError::Refused { .. }), "{what}: {e:?}");
            assert_eq!(e.reason(), Reason::ProviderRefused, "{what}: {e}");
            assert_ne!(s.mend(), Some(0), "{what}: it was refused by its controller");
            assert_eq!(s.effects(), before, "{what}: nothing was done");
            let _ = cap.ask(&*s.bmc, s).await.unwrap_or_else(|e| panic!("{what}, the day after: {e}"));
        }
    }
    s.until(what, || cap.shows(s)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redfish_on_our_responder_passes_the_suite() {
    passes(Kind::Responder).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redfish_on_the_emulator_passes_the_suite() {
    passes(Kind::Sushy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ipmi_on_the_simulator_passes_the_suite() {
    passes(Kind::Ipmi).await;
}
