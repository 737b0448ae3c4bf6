//! A whole machine: QEMU in software emulation, with disks, firmware, a network card and identity strings of the test's
//! choice. Gone when dropped or when the test process ends, however it ends.
//!
//! ```text
//! let _turn = qemu::turn();                                       two machines at a time: they are slow enough so
//! let mut machine = Plan::new("52:54:00:4d:00:01").disk(Disk::virtio(&file, "SERIAL")).kernel(&vmlinuz, &initrd, "…").start();
//! machine.wait_for_line("booted");  machine.wait_for_exit();  machine.cut_power();
//! ```
//!
//! On the user network the guest reaches this host's loopback as 10.0.2.2; on a tap ([`crate::netns`]) it is a card on a
//! wire. A reboot ends the process unless the plan lets it reboot; so does switching off. The serial console is a file.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use crate::netns::Netns;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

const QEMU: &str = "/usr/bin/qemu-system-x86_64";
const UEFI_CODE: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
const UEFI_VARS: &str = "/usr/share/OVMF/OVMF_VARS_4M.fd";
const INSTALL: &str =
    "apt-get install -y --no-install-recommends qemu-system-x86 seabios ipxe-qemu ovmf (or run scripts/test)";
/// For what an emulated machine does on a busy host. What has not come by then is not coming.
pub const PATIENCE: Duration = Duration::from_secs(480);
/// This host, seen from a machine on the user network.
pub const HOST: &str = "10.0.2.2";

/// Ends the machine when the input ends, and itself when the machine does. Arguments: QEMU's command.
const GUARD: &str = r#"
exec 3<&0
"$@" 3<&- </dev/null & machine=$!
{ while read -r _; do :; done; kill -9 "$machine"; } <&3 & watcher=$!
wait "$machine"; code=$?
kill "$watcher" 2>/dev/null
exit "$code"
"#;

/// Each takes a processor for itself.
const AT_ONCE: usize = 2;
static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// Held while a machine runs, so that others wait for their turn.
pub struct Turn(());

pub fn turn() -> Turn {
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut running = ENDED.wait_while(running, |n| *n >= AT_ONCE).unwrap_or_else(PoisonError::into_inner);
    *running += 1;
    Turn(())
}

impl Drop for Turn {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_one();
    }
}

/// A disk of a machine: QEMU's arguments for it.
pub struct Disk {
    drive: String,
    device: String,
}

impl Disk {
    pub fn virtio(file: &Path, serial: &str) -> Self {
        Self::on(raw(file), format!("virtio-blk-pci,serial={serial}"))
    }

    pub fn nvme(file: &Path, serial: &str) -> Self {
        Self::on(raw(file), format!("nvme,serial={serial}"))
    }

    /// On an AHCI controller, which the machine then has; its ports are numbered by `port`.
    pub fn sata(file: &Path, serial: &str, port: usize) -> Self {
        Self::on(raw(file), format!("ide-hd,bus=ahci.{port},serial={serial}"))
    }

    /// A virtio disk that fails with an I/O error whenever it is to `read` or to `write` (as said) something that holds a
    /// sector.
    pub fn failing(file: &Path, serial: &str, operation: &str, sector: u64) -> Self {
        let drive = format!(
            "format=raw,cache=unsafe,werror=report,rerror=report,file.driver=blkdebug,file.image.driver=file,\
             file.image.filename={},file.inject-error.0.event=none,file.inject-error.0.iotype={operation},\
             file.inject-error.0.errno=5,file.inject-error.0.sector={sector}",
            file.display()
        );
        Self::on(drive, format!("virtio-blk-pci,serial={serial}"))
    }

    fn on(drive: String, device: String) -> Self {
        Self { drive, device }
    }
}

fn raw(file: &Path) -> String {
    format!("format=raw,cache=unsafe,file={}", file.display())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Firmware {
    Bios,
    Uefi,
}

/// What a machine is made of.
pub struct Plan {
    firmware: Firmware,
    /// Kept beside the disks where the machine is to remember its boot entries.
    variables: Option<PathBuf>,
    network: Vec<String>,
    enter: Option<String>,
    mac: String,
    disks: Vec<Disk>,
    more: Vec<String>,
    from_network: bool,
    reboots: bool,
}

impl Plan {
    /// A BIOS machine on the user network, with a virtio card of this address and nothing else.
    pub fn new(mac: &str) -> Self {
        Self {
            firmware: Firmware::Bios,
            variables: None,
            network: vec!["user,id=n0".into()],
            enter: None,
            mac: mac.into(),
            disks: Vec::new(),
            more: Vec::new(),
            from_network: false,
            reboots: false,
        }
    }

    /// UEFI (OVMF); what it keeps between boots is in the file, made if it is missing.
    #[must_use]
    pub fn uefi(mut self, variables: &Path) -> Self {
        self.firmware = Firmware::Uefi;
        self.variables = Some(variables.to_owned());
        self
    }

    /// On a tap of a network of its own.
    #[must_use]
    pub fn tap(mut self, network: &Netns, tap: &str) -> Self {
        self.network = vec![format!("tap,id=n0,ifname={tap},script=no,downscript=no")];
        self.enter = Some(network.flag());
        self
    }

    /// Its firmware boots from the network card first: BIOS by the iPXE in the card's ROM, UEFI by its own PXE client.
    #[must_use]
    pub fn from_network(mut self) -> Self {
        self.from_network = true;
        self
    }

    /// Disks boot in the order they were given, after the network where that is booted from.
    #[must_use]
    pub fn disk(mut self, disk: Disk) -> Self {
        self.disks.push(disk);
        self
    }

    /// Booted at once, without firmware looking for anything.
    #[must_use]
    pub fn kernel(mut self, kernel: &Path, initrd: &Path, words: &str) -> Self {
        let path = |p: &Path| p.display().to_string();
        self.more.extend([
            "-kernel".into(),
            path(kernel),
            "-initrd".into(),
            path(initrd),
            "-append".into(),
            words.into(),
        ]);
        self
    }

    /// One structure of the machine's identity, as QEMU's `-smbios` takes it: `type=1,serial=…` (a comma in a value is two).
    #[must_use]
    pub fn smbios(mut self, structure: &str) -> Self {
        self.more.extend(["-smbios".into(), structure.into()]);
        self
    }

    /// Any other device.
    #[must_use]
    pub fn device(mut self, device: &str) -> Self {
        self.more.extend(["-device".into(), device.into()]);
        self
    }

    /// A reboot is one; the process goes on.
    #[must_use]
    pub fn reboots(mut self) -> Self {
        self.reboots = true;
        self
    }

    fn arguments(&self, serial: &Path) -> Vec<String> {
        let machine = match self.firmware {
            Firmware::Bios => "pc,accel=tcg,graphics=off",
            Firmware::Uefi => "q35,accel=tcg",
        };
        let serial = format!("file:{}", serial.display());
        let mut all: Vec<String> = [
            "-machine",
            machine,
            "-cpu",
            "max",
            "-smp",
            "1",
            "-m",
            "512",
            "-nodefaults",
            "-display",
            "none",
            "-vga",
            "none",
            "-monitor",
            "none",
            "-serial",
            &serial,
        ]
        .map(str::to_owned)
        .to_vec();
        if !self.reboots {
            all.push("-no-reboot".into());
        }
        // the card's ROM only where it is what boots: UEFI has a network boot of its own
        let boot = match (self.from_network, self.firmware) {
            (true, Firmware::Bios) => ",bootindex=1",
            (true, Firmware::Uefi) => ",bootindex=1,romfile=",
            (false, _) => ",romfile=",
        };
        all.extend(["-netdev".into(), self.network.join(",")]);
        all.extend(["-device".into(), format!("virtio-net-pci,netdev=n0,mac={}{boot}", self.mac)]);
        if self.disks.iter().any(|d| d.device.contains("bus=ahci.")) {
            all.extend(["-device".into(), "ahci,id=ahci".into()]);
        }
        for (number, disk) in self.disks.iter().enumerate() {
            all.extend(["-drive".into(), format!("if=none,id=d{number},{}", disk.drive)]);
            all.extend(["-device".into(), format!("{},drive=d{number},bootindex={}", disk.device, number + 2)]);
        }
        if let Some(variables) = &self.variables {
            if !variables.exists() {
                std::fs::copy(UEFI_VARS, variables).expect("UEFI's variables are copied");
            }
            all.extend(["-drive".into(), format!("if=pflash,format=raw,unit=0,readonly=on,file={UEFI_CODE}")]);
            all.extend(["-drive".into(), format!("if=pflash,format=raw,unit=1,file={}", variables.display())]);
            // nobody answers there, and it is waited for at every boot
            all.extend(["-fw_cfg".into(), "name=opt/org.tianocore/IPv6PXESupport,string=n".into()]);
        }
        all.extend(self.more.iter().cloned());
        all
    }

    /// Switched on.
    pub fn start(self) -> Machine {
        let needed: &[&str] = match self.firmware {
            Firmware::Bios => &[QEMU],
            Firmware::Uefi => &[QEMU, UEFI_CODE, UEFI_VARS],
        };
        for file in needed {
            assert!(Path::new(file).is_file(), "{file} is not there; install it: {INSTALL}");
        }
        let folder = tempfile::Builder::new().prefix("millwright-machine-").tempdir_in(crate::scratch::place());
        let folder = folder.expect("a folder");
        let serial = folder.path().join("serial.log");
        let log = folder.path().join("qemu.log");
        let mut command = Command::new("sh");
        command.args(["-c", GUARD, "machine-guard"]);
        if let Some(flag) = &self.enter {
            command.args(["nsenter", flag, "--"]);
        }
        let guard = command
            .arg(QEMU)
            .args(self.arguments(&serial))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).expect("a file"))
            .process_group(0)
            .spawn()
            .expect("sh runs");
        Machine { guard, serial, log, _folder: folder }
    }
}

pub struct Machine {
    guard: Child,
    serial: PathBuf,
    log: PathBuf,
    _folder: tempfile::TempDir,
}

impl Machine {
    /// What its serial console has shown until now.
    pub fn serial(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.serial).unwrap_or_default()).into_owned()
    }

    pub fn is_running(&mut self) -> bool {
        self.guard.try_wait().expect("its state").is_none()
    }

    /// The first line of the serial console that holds the text.
    pub fn wait_for_line(&mut self, text: &str) -> String {
        self.wait(&format!("the line '{text}'"), |serial| serial.lines().find(|l| l.contains(text)).map(str::to_owned))
    }

    /// Until a look shows something. A machine that has ended meanwhile, or that takes too long, is a failed test.
    pub fn wait<T>(&mut self, what: &str, mut look: impl FnMut(&str) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            let runs = self.is_running();
            if let Some(found) = look(&self.serial()) {
                return found;
            }
            assert!(runs, "the machine ended without {what}:\n{}", self.story());
            assert!(begun.elapsed() < PATIENCE, "{what} does not come:\n{}", self.story());
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }

    /// Until it switches itself off, or reboots where the plan takes that as the end.
    pub fn wait_for_exit(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.guard.try_wait().expect("its state") {
                assert!(status.success(), "QEMU failed: {status}:\n{}", self.story());
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "the machine does not end:\n{}", self.story());
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }

    /// As by pulling the plug: at once, in the middle of whatever it does.
    pub fn cut_power(&mut self) {
        drop(self.guard.stdin.take());
        drop(self.guard.wait());
    }

    fn story(&self) -> String {
        format!("{}\n{}", std::fs::read_to_string(&self.log).unwrap_or_default(), self.serial())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.cut_power();
    }
}
