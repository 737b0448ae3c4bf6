//! Reboots are proven by the boot id, and a command that one has ended is not taken for one that runs.

use crate::fixture::*;
use crate::wire::{Spoil, Wire};
use domain::Reason;
use provider::{Ack, ExecState, ProviderError};
use ssh::Host;
use testkit::sshd::{SshHost, WORKER};

#[tokio::test]
async fn a_host_says_who_it_is() {
    let machine = SshHost::start();
    let host = reach(&machine);
    let read = |path: &str| std::fs::read_to_string(machine.inside(path)).expect(path).trim().to_owned();
    let id = host.identity().await.expect("an identity");
    assert_eq!(id.serial_number, read("/sys/class/dmi/id/product_serial"));
    assert_eq!(id.system_uuid, read("/sys/class/dmi/id/product_uuid"));
    assert_eq!(id.boot_id, machine.boot_id());
    assert_eq!(
        id.hostname,
        String::from_utf8_lossy(&std::process::Command::new("uname").arg("-n").output().expect("uname").stdout).trim()
    );
    assert_eq!(id.image, None);
    std::fs::write(machine.inside("/etc/millwright-image"), "ubuntu-24.04\nbuild 7\n").expect("written");
    assert_eq!(host.identity().await.expect("an identity").image.as_deref(), Some("ubuntu-24.04\nbuild 7"));
    std::fs::remove_file(machine.inside("/sys/class/dmi/id/product_serial")).expect("removed");
    let id = host.identity().await.expect("an identity");
    assert_eq!((id.serial_number.as_str(), id.boot_id), ("", machine.boot_id()), "what is not there is empty");
}

#[tokio::test]
async fn a_reboot_is_proven_by_the_boot_id() {
    let machine = SshHost::start();
    let host = reach(&machine);
    let before = host.boot_id().await.expect("a boot id");
    assert_eq!((before.as_str(), machine.boots()), (machine.boot_id().as_str(), 1));
    assert_eq!(host.reboot().await, Ok(Ack::Accepted));
    until("the boot", || machine.boots() == 2).await;
    machine.wait_until_up();
    let after = host.boot_id().await.expect("a boot id");
    assert_eq!(after, machine.boot_id());
    assert_ne!(before, after);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reboot_is_accepted_only_if_it_was_delivered() {
    let machine = SshHost::start();
    // it gets no further than this
    machine.program("reboot", "#!/bin/sh\necho asked >>/tmp/asked\nsleep 86444\n");
    let wire = Wire::to(machine.at()).await;
    let host = Host::new(wire.at.clone(), machine.login(), "fleet", machine.fingerprint(), None, patient());
    let asked = || std::fs::read_to_string(machine.inside("/tmp/asked")).map_or(0, |text| text.lines().count());
    host.boot_id().await.expect("connected");
    let cut = async {
        until("the reboot", || asked() == 1).await;
        wire.cut();
    };
    assert_eq!(tokio::join!(host.reboot(), cut).0, Ok(Ack::Accepted), "it was heard to begin");
    host.boot_id().await.expect("connected");
    wire.spoil_after(2048, Spoil::Deafen);
    let cut = async {
        until("the reboot", || asked() == 2).await;
        wire.cut();
    };
    let unheard = tokio::join!(host.reboot(), cut).0;
    assert!(matches!(&unheard, Err(ProviderError::Unknown { .. })), "{unheard:?}");
    host.boot_id().await.expect("connected");
    wire.spoil_after(2048, Spoil::Cut);
    let unsent = host.reboot().await;
    assert!(matches!(&unsent, Err(ProviderError::Unknown { .. })), "{unsent:?}");
    assert_eq!(host.boot_id().await, Ok(machine.boot_id()));
    assert_eq!(asked(), 2, "half a script asks for nothing");
}

#[tokio::test]
async fn a_reboot_that_is_refused_is_no_reboot() {
    let machine = SshHost::start();
    let host = Host::new(machine.at(), machine.login_as(WORKER), "fleet", machine.fingerprint(), None, patient());
    let refused = host.reboot().await.expect_err("not root");
    assert_eq!((refused.reason(), machine.boots()), (Reason::ProviderRefused, 1), "{refused}");
    machine.program("reboot", "#!/bin/sh\necho 'Operation inhibited' >&2\nexit 1\n");
    let refused = reach(&machine).reboot().await.expect_err("inhibited");
    assert!(refused.to_string().contains("Operation inhibited"), "{refused}");
}

#[tokio::test]
async fn a_reboot_in_the_middle_of_a_command_is_told() {
    let machine = SshHost::start();
    let (host, key) = (reach(&machine), key());
    let command = sh("echo begun; sleep 86442");
    assert_eq!(host.start(&command, &key, None).await, Ok(Ack::Accepted));
    let (_, _, offset) = follow(&host, &key, 0, |_, output| !output.is_empty()).await;
    machine.reboot();
    let (state, output, _) = follow(&host, &key, offset, |state, _| *state != ExecState::Running).await;
    assert_eq!(state, ExecState::Exited(ssh::INTERRUPTED_STATUS));
    assert!(words(&output).contains("the host has rebooted before the command ended"), "{}", words(&output));
    let (_, whole) = ended(&host, &key).await;
    assert!(words(&whole).starts_with("stdout:begun\n|stderr:"), "what it printed is still there: {}", words(&whole));
    assert_eq!(host.start(&command, &key, None).await, Ok(Ack::Accepted), "no second start");
    assert_eq!(processes_with("sleep 86442"), Vec::<String>::new());
    assert_eq!(host.kill(&key).await, Ok(Ack::Done));
}

#[tokio::test]
async fn a_command_that_had_ended_before_a_reboot_has_ended() {
    let machine = SshHost::start();
    let (host, key) = (reach(&machine), key());
    assert_eq!(host.start(&sh("echo x; exit 8"), &key, None).await, Ok(Ack::Accepted));
    assert_eq!(ended(&host, &key).await.0, 8);
    machine.reboot();
    let (status, output) = ended(&host, &key).await;
    assert_eq!((status, words(&output).as_str()), (8, "stdout:x\n"));
}

#[tokio::test]
async fn a_host_that_is_off_refuses_and_comes_back() {
    let machine = SshHost::start();
    let host = reach(&machine);
    host.boot_id().await.expect("up");
    machine.power_off();
    assert_eq!(host.boot_id().await.map_err(|e| e.reason()), Err(Reason::ConnectionRefused));
    machine.power_on();
    assert_eq!(host.boot_id().await, Ok(machine.boot_id()));
}
