//! Bad hardware between the provider and a BMC: late, torn, reset, busy, nonsense, a session that ends, a yes that did
//! nothing; at every question of every act. Never is anything done twice, never is a yes a lie where the BMC can be
//! asked, and the next look is fine.

use crate::ground::{Ground, MEDIA_IMAGE, operation, options};
use domain::plan::{BootMode, RebootMode};
use provider::{Ack, BootControl as _, ImageControl as _, PowerControl as _, ProviderResult};
use std::time::Duration;
use testkit::http_faults::Fault;
use testkit::redfish_responder::What;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Reset,
    PowerOff,
    SetBoot,
    Install,
}

impl Act {
    async fn ask(self, g: &Ground) -> ProviderResult<Ack> {
        let (t, op) = (&g.target, operation("any", 1));
        match self {
            Act::Reset => g.dc.reset(t, RebootMode::Force, &op).await,
            Act::PowerOff => g.dc.power_off(t, &op).await,
            Act::SetBoot => g.dc.set_boot(t, BootMode::Pxe, false, &op).await,
            Act::Install => g.dc.install(t, MEDIA_IMAGE, "", &op).await,
        }
    }

    /// How often it was really done.
    fn done(self, g: &Ground) -> usize {
        let is_it = |what: &What| match self {
            Act::Reset | Act::PowerOff | Act::Install => matches!(what, What::Power { .. }),
            Act::SetBoot => matches!(what, What::BootSet { .. }),
        };
        g.responder.done_to(1).iter().filter(|what| is_it(what)).count()
    }
}

#[tokio::test]
async fn every_fault_at_every_question_of_every_act() {
    let faults = [
        Fault::Delay(Duration::from_millis(20)),
        Fault::Truncate,
        Fault::Reset,
        Fault::LoseAnswer,
        Fault::Status(500, "{}".into()),
        Fault::Status(401, "{}".into()),
        Fault::Busy(0),
        Fault::Malformed,
        Fault::DoNothing,
    ];
    let mut plays = 0;
    for act in [Act::Reset, Act::PowerOff, Act::SetBoot, Act::Install] {
        for fault in &faults {
            for (method, path) in [("GET", "/Systems/1"), ("POST", ""), ("PATCH", "")] {
                let what = format!("{act:?}, {fault:?} at {method} {path}");
                let g = Ground::bmc_only(options()).await;
                g.look().await;
                g.responder.faults.arm(method, path, fault.clone(), 1);
                let answer = act.ask(&g).await;
                let struck = g.responder.faults.disarm();
                plays += usize::from(struck > 0);
                assert!(act.done(&g) <= 1, "{what}: done twice");
                // where nothing went wrong at the act itself it was done; where it shows, a yes is true
                let lied = *fault == Fault::DoNothing && method == "POST" && act != Act::SetBoot;
                if answer.is_ok() && !lied {
                    assert_eq!(act.done(&g), 1, "{what}: a yes, and nothing done");
                }
                if struck == 0 {
                    assert!(answer.is_ok(), "{what}: {answer:?}");
                }
                // a login that was refused in the middle is not tried again by the same adapter, and rightly
                if *fault != Fault::Status(401, "{}".into()) {
                    g.look().await;
                }
            }
        }
    }
    assert!(plays >= 70, "{plays} plays had their fault");
    println!("{plays} plays had their fault");
}

/// Sessions end whenever a controller likes.
#[tokio::test]
async fn a_session_that_ends_in_the_middle_is_renewed_and_nothing_is_done_twice() {
    for act in [Act::Reset, Act::PowerOff, Act::SetBoot, Act::Install] {
        let g = Ground::bmc_only(options()).await;
        g.look().await;
        g.responder.end_sessions();
        act.ask(&g).await.map(drop).unwrap_or_else(|e| panic!("{act:?}: {e}"));
        assert_eq!(act.done(&g), 1, "{act:?}");
        assert_eq!(g.responder.open_sessions(), 1);
    }
}
