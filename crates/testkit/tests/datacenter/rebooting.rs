//! Reboots: which way is taken, what is done where the first is missing, and that only a boot proves one.

use crate::ground::{Ground, looks_until, operation, options, refused};
use domain::Reason;
use domain::plan::RebootMode;
use provider::{Ack, Inspect as _, PowerControl as _};
use testkit::http_faults::Fault;
use testkit::redfish_responder;

const EVERY: [&str; 6] = ["On", "ForceOff", "GracefulShutdown", "GracefulRestart", "ForceRestart", "PowerCycle"];

async fn reset(g: &Ground, mode: RebootMode) -> provider::ProviderResult<Ack> {
    g.dc.reset(&g.target, mode, &operation("reboot", 1)).await
}

#[tokio::test]
async fn the_gentlest_that_there_is_and_a_note_about_every_other() {
    let without = |lacks: &'static [&'static str]| -> Vec<String> {
        EVERY.iter().filter(|w| !lacks.contains(w)).map(|w| (*w).to_owned()).collect()
    };
    let graceful = &["GracefulRestart"];
    let soft = &["GracefulRestart", "ForceRestart"];
    for (mode, lacks, word, notes) in [
        (RebootMode::Bmc, &[] as &'static [&'static str], "GracefulRestart", 0),
        (RebootMode::Bmc, graceful, "ForceRestart", 1),
        (RebootMode::Bmc, soft, "PowerCycle", 2),
        (RebootMode::Force, &[], "ForceRestart", 0),
        (RebootMode::Force, &["ForceRestart"], "PowerCycle", 1),
    ] {
        let g = Ground::bmc_only(options()).await;
        g.responder.behave(|o| o.reset_types = without(lacks));
        assert_eq!(reset(&g, mode).await, Ok(Ack::Accepted), "{mode:?} without {lacks:?}");
        assert_eq!(g.resets(), [word], "{mode:?} without {lacks:?}");
        let said = g.target.notes.take();
        assert_eq!(said.len(), notes, "{said:?}");
    }
    let g = Ground::bmc_only(options()).await;
    g.responder.behave(|o| o.reset_types = vec!["On".into(), "ForceOff".into()]);
    refused(reset(&g, RebootMode::Bmc).await, Reason::CapabilityMissing, &["does not offer"]);
    assert_eq!(g.resets(), [""; 0], "no other word is put in its place");
    // a machine that is off is switched on
    g.responder.change(1, |s| s.on = false);
    assert_eq!(reset(&g, RebootMode::Force).await, Ok(Ack::Accepted));
    assert_eq!(g.resets(), ["On"]);
}

#[tokio::test]
async fn without_a_system_the_controllers_own_word_is_the_proof() {
    let g = Ground::bmc_only(options()).await;
    let before = g.look().await;
    assert!(!before.boot_id.is_empty() && !before.host_asked);
    reset(&g, RebootMode::Bmc).await.map(drop).expect("a reset");
    assert_ne!(g.look().await.boot_id, before.boot_id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reboot_by_the_bmc_is_proven_by_the_boot_id_of_the_system() {
    let g = Ground::whole(options()).await;
    let before = g.look().await;
    assert_eq!(before.boot_id, g.host().boot_id(), "the system's own");
    assert_eq!(reset(&g, RebootMode::Bmc).await, Ok(Ack::Accepted));
    let after = looks_until(&g, "it is back", |seen| {
        seen.reachable && seen.boot_id != before.boot_id && !seen.boot_id.is_empty()
    })
    .await;
    assert_eq!(after.boot_id, g.host().boot_id());
    assert_eq!(g.resets(), ["GracefulRestart"]);
}

/// Its log says that it was reset, and nothing happened: that is no reboot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bmc_that_says_yes_and_does_nothing_proves_nothing() {
    let g = Ground::whole(options()).await;
    let before = g.look().await;
    g.responder.faults.arm("POST", "ComputerSystem.Reset", Fault::DoNothing, 1);
    assert_eq!(reset(&g, RebootMode::Bmc).await, Ok(Ack::Accepted), "accepted is not done");
    assert_eq!(g.responder.faults.disarm(), 1);
    assert_eq!(g.look().await.boot_id, before.boot_id);
    // and one that even counts the reset that never reached the machine
    g.cut_wire(true);
    reset(&g, RebootMode::Bmc).await.map(drop).expect("a yes");
    g.settled().await;
    assert_eq!(g.resets().len(), 1);
    assert_eq!(g.look().await.boot_id, before.boot_id, "the system says that it was not rebooted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_band_asks_the_system_and_nobody_else() {
    let g = Ground::whole(options()).await;
    let (before, boots) = (g.look().await, g.host().boots());
    assert_eq!(reset(&g, RebootMode::Inband).await, Ok(Ack::Accepted));
    looks_until(&g, "it is back", |seen| !seen.boot_id.is_empty() && seen.boot_id != before.boot_id).await;
    assert_eq!((g.host().boots(), g.resets().len()), (boots + 1, 0));
    // with the system down there is no other way than the one that was asked for
    tokio::task::block_in_place(|| g.host().power_off());
    let no = reset(&g, RebootMode::Inband).await.expect_err("it is down");
    assert!(matches!(no.reason(), Reason::ConnectionRefused | Reason::Unreachable), "{no}");
    assert_eq!(g.resets(), [""; 0], "its BMC was not asked instead");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ssh_endpoint_that_leads_to_another_machine_is_not_rebooted_by_it() {
    let g = Ground::whole(options()).await;
    crate::ground::is_machine(g.host(), "SN-OF-ANOTHER", "");
    let boots = g.host().boots();
    for mode in [RebootMode::Inband] {
        let no = reset(&g, mode).await;
        refused(no, Reason::WrongMachine, &["SN-OF-ANOTHER", &g.target.spec.serial_number, "spec.ssh_endpoint"]);
    }
    refused(g.dc.inspect(&g.target).await, Reason::WrongMachine, &["SN-OF-ANOTHER"]);
    assert_eq!((g.host().boots(), g.resets().len()), (boots, 0));
}

#[tokio::test]
async fn a_reboot_that_nobody_could_prove_is_not_begun() {
    let bmc = redfish_responder::Options::default();
    let g = Ground::with(bmc, options(), None).await;
    g.responder.faults.arm("GET", "/Systems/1", Fault::Status(200, quiet(&g)), usize::MAX);
    refused(reset(&g, RebootMode::Bmc).await, Reason::CapabilityMissing, &["could not be proven"]);
    assert_eq!(g.resets(), [""; 0]);
}

/// The system as a controller shows it that does not tell when it was last reset.
fn quiet(g: &Ground) -> String {
    let system = g.responder.system(1);
    serde_json::json!({
        "@odata.id": "/redfish/v1/Systems/1", "Id": "1", "UUID": system.uuid, "SerialNumber": system.serial,
        "PowerState": "On", "Boot": {},
        "Actions": {"#ComputerSystem.Reset": {
            "target": "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset",
            "ResetType@Redfish.AllowableValues": EVERY,
        }},
    })
    .to_string()
}
