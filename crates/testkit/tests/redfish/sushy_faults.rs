//! The same faults between the adapter and sushy-emulator. What became of a change is read past the proxy.

use crate::fixture::{adapter, done, impatient, patient, refused, unknown};
use crate::sushy::{login, shared};
use domain::Reason;
use domain::hardware::BootOverride;
use domain::plan::BootMode;
use provider::Bmc as _;
use redfish::{Redfish, Timeouts};
use std::time::Duration;
use testkit::http_faults::Fault;
use testkit::http_proxy::HttpProxy;
use testkit::sushy::Sushy;

const PXE: Option<BootOverride> = Some(BootOverride { mode: BootMode::Pxe, persistent: true });

/// By way of the proxy, and past it.
async fn both(number: usize, timeouts: Timeouts) -> (HttpProxy, Redfish, Redfish) {
    let emulator = shared();
    let proxy = HttpProxy::before(emulator.address()).await;
    let at = format!("http://localhost:{}/redfish/v1/Systems/{}", proxy.port, Sushy::uuid(number));
    let by_proxy = adapter(&at, login(), timeouts);
    by_proxy.state().await.expect("a state");
    (proxy, by_proxy, adapter(&emulator.endpoint(number), login(), patient()))
}

#[tokio::test]
async fn reads_fail_for_their_reason_and_are_fine_again() {
    let (proxy, bmc, _) = both(8, patient()).await;
    for (fault, times, reason) in [
        (Fault::Reset, usize::MAX, Some(Reason::Unreachable)),
        (Fault::Truncate, 1, Some(Reason::BadAnswer)),
        (Fault::Malformed, 1, Some(Reason::BadAnswer)),
        (Fault::Status(500, String::new()), 1, Some(Reason::ProviderRefused)),
        (Fault::Busy(0), 1, None),
        (Fault::Delay(Duration::from_millis(50)), 1, None),
    ] {
        proxy.faults.arm("GET", "/Systems/", fault.clone(), times);
        match reason {
            Some(reason) => drop(refused(bmc.state().await, reason, &[])),
            None => drop(bmc.state().await.unwrap_or_else(|e| panic!("{fault:?}: {e}"))),
        }
        assert!(proxy.faults.disarm() >= 1, "{fault:?} came");
        bmc.state().await.unwrap_or_else(|e| panic!("after {fault:?}: {e}"));
    }
}

#[tokio::test]
async fn a_login_that_ends_in_the_middle_is_not_tried_again() {
    let (proxy, bmc, _) = both(9, patient()).await;
    proxy.faults.arm("GET", "/Systems/", Fault::Status(401, String::new()), 1);
    refused(bmc.state().await, Reason::LoginRefused, &["rack-12"]);
    refused(bmc.state().await, Reason::LoginRefused, &["rack-12"]);
    assert_eq!(proxy.faults.disarm(), 1);
}

#[tokio::test]
async fn a_lost_answer_is_unknown_and_a_look_past_it_tells() {
    for (fault, was_done) in [
        (Fault::LoseAnswer, true),
        (Fault::Truncate, true),
        (Fault::HoldAnswer, true),
        (Fault::Reset, false),
        (Fault::Hold, false),
    ] {
        let (proxy, bmc, truth) = both(10, impatient()).await;
        proxy.faults.arm("PATCH", "/Systems/", fault.clone(), usize::MAX);
        unknown(bmc.set_boot(PXE).await);
        assert_eq!(proxy.faults.disarm(), 1, "{fault:?} came once, and nothing was sent again");
        let boot = truth.state().await.expect("a state").boot;
        assert_eq!(boot, if was_done { PXE } else { None }, "{fault:?}");
        done(truth.set_boot(None).await);
    }
}

#[tokio::test]
async fn ok_and_did_nothing_is_found_out() {
    let (proxy, bmc, truth) = both(11, patient()).await;
    proxy.faults.arm("PATCH", "/Systems/", Fault::DoNothing, 1);
    refused(bmc.set_boot(PXE).await, Reason::ProviderRefused, &["PXE", "Hdd", "ignores"]);
    assert_eq!((proxy.faults.disarm(), truth.state().await.expect("a state").boot), (1, None));
    proxy.faults.arm("PATCH", "/Systems/", Fault::Malformed, 1);
    done(bmc.set_boot(PXE).await);
    assert_eq!((proxy.faults.disarm(), truth.state().await.expect("a state").boot), (1, PXE));
}
