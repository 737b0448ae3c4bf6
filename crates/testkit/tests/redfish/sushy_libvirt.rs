//! Against sushy-emulator over libvirt's built-in test hypervisor: what its fake driver lacks. One test, since there is
//! one machine.

use crate::fixture::{accepted, adapter, done, password, patient, refused};
use crate::sushy::login;
use domain::Reason;
use domain::hardware::{BootOverride, ControllerTask, Description, PowerAction};
use domain::plan::BootMode;
use provider::{Bmc as _, PowerState};
use testkit::sushy::Sushy;

fn bios_version(told: &Description) -> String {
    told.firmware.iter().find(|f| f.name == "BIOS").map(|f| f.version.clone()).expect("a BIOS")
}

#[tokio::test]
async fn a_machine_of_libvirt_is_described_driven_and_set_up() {
    let emulator = Sushy::start_libvirt(password());
    // the only one: it need not be named
    let bmc = adapter(&format!("http://localhost:{}", emulator.port), login(), patient());
    let told = bmc.describe().await.expect("a description");
    assert_eq!((told.system_uuid.as_str(), told.cpus.len(), told.memory_mib), (Sushy::uuid(0).as_str(), 4, 8192));
    assert_eq!(told.nics.iter().map(|n| n.mac_address.as_str()).collect::<Vec<_>>(), ["52:54:00:4d:00:00"]);
    for name in ["bios", "firmware-update", "virtual-media", "power.force-restart"] {
        assert!(told.capabilities.iter().any(|c| c == name), "{name} is not among {:?}", told.capabilities);
    }

    // at once, here
    done(bmc.power(PowerAction::ForceOff).await);
    accepted(bmc.power(PowerAction::On).await);
    assert_eq!(bmc.state().await.expect("a state").power, PowerState::On);
    done(bmc.power(PowerAction::On).await);
    accepted(bmc.power(PowerAction::ForceRestart).await);
    assert_eq!(bmc.state().await.expect("a state").power, PowerState::On);
    accepted(bmc.power(PowerAction::ForceOff).await);
    assert_eq!(bmc.state().await.expect("a state").power, PowerState::Off);

    let pxe = |persistent| Some(BootOverride { mode: BootMode::Pxe, persistent });
    done(bmc.set_boot(pxe(false)).await);
    assert_eq!(bmc.state().await.expect("a state").boot, pxe(true));
    done(bmc.set_boot(None).await);
    assert_eq!(bmc.state().await.expect("a state").boot, None);

    assert_eq!(bmc.bios().await.expect("attributes").current["ProcTurboMode"], "Enabled");
    let wanted = [("ProcTurboMode".to_owned(), "Disabled".to_owned())].into();
    done(bmc.set_bios(&wanted).await);
    done(bmc.set_bios(&wanted).await);
    let bios = bmc.bios().await.expect("attributes");
    assert_eq!((bios.current["ProcTurboMode"].as_str(), bios.pending.len()), ("Disabled", 0));
    refused(
        bmc.set_bios(&[("Nonsense".to_owned(), "1".to_owned())].into()).await,
        Reason::ProviderRefused,
        &["Nonsense"],
    );

    let target = format!("/redfish/v1/Systems/{}", Sushy::uuid(0));
    let task = bmc.update_firmware("http://127.0.0.1:1/fw.bin", &[target]).await.expect("begun");
    assert!(matches!(bmc.task(&task).await.expect("a task"), ControllerTask::Done { .. }));
    let after = bmc.describe().await.expect("a description");
    assert_ne!(bios_version(&after), bios_version(&told), "it has another version");
}
