//! A machine that really boots: QEMU, owned by a libvirt of its own, behind sushy-emulator as its Redfish service.
//! Emulated, so it needs no special host, and some ten seconds to boot. Gone when the process ends, however it ends.
//!
//! Its disk is as the test has filled it. By itself it is on QEMU's own network and boots the medium of `scripts/boot-iso`, put
//! in by virtual media; or all of it lives in a [`Netns`], with its card on a tap: then it is reached only from in there, and
//! boots from what is served there. What it did is on its serial console, which is a file: tests judge by that.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use crate::netns::Netns;
use crate::sushy;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub const UUID: &str = "4d570000-0000-4000-8000-00000000f00d";
pub const MAC: &str = "52:54:00:4d:f0:0d";
const INSTALL: &str = "apt-get install -y --no-install-recommends qemu-system-x86 seabios ipxe-qemu libvirt-daemon \
    libvirt-daemon-driver-qemu libvirt-clients curl busybox-static cpio isolinux syslinux-common xorriso && \
    scripts/boot-iso (or run scripts/test)";

/// Starts everything, and ends it when its input ends. libvirt runs as an ordinary user, in session mode: as root it
/// wants users and services that a test does not make. Says `ready` once its Redfish service answers, or nothing. Arguments:
/// the folder, the service's port, then the emulator's command.
const GUARD: &str = r#"
folder=$1 port=$2; shift 2
as="setpriv --reuid nobody --regid nogroup --clear-groups env -i PATH=$PATH HOME=$folder XDG_RUNTIME_DIR=$folder/run
    XDG_CONFIG_HOME=$folder/config XDG_CACHE_HOME=$folder/cache XDG_DATA_HOME=$folder/data"
virsh() { $as virsh -q -c "qemu+unix:///session?socket=$folder/run/libvirt/libvirt-sock" "$@"; }
chown -R nobody "$folder"
$as /usr/sbin/libvirtd </dev/null >"$folder/libvirtd.log" 2>&1 & libvirtd=$!
for _ in $(seq 300); do virsh uri >/dev/null 2>&1 && break; sleep 0.1; done
virsh pool-define-as default dir --target "$folder/pool" && virsh pool-start default && virsh define "$folder/domain.xml"
"$@" </dev/null >"$folder/sushy.log" 2>&1 & emulator=$!
for _ in $(seq 1200); do curl -sf -o "$folder/root.json" "http://127.0.0.1:$port/redfish/v1/" && echo ready && break; sleep 0.1; done
exec >&-
while read -r _; do :; done
virsh destroy node-0000
kill "$emulator" "$libvirtd"; wait "$emulator" "$libvirtd"
rm -rf "$folder"
"#;

/// A tap is opened by way of a device that not everywhere is everybody's: here there is one that is. Arguments: those of `sh`.
const WITH_TAPS: &str = r#"mount -t tmpfs tmpfs /dev/net && mknod -m 666 /dev/net/tun c 10 200 && exec sh "$@""#;

/// Dropped: switched off and gone.
pub struct RedfishVm {
    port: u16,
    folder: PathBuf,
    guard: Option<Child>,
}

impl RedfishVm {
    /// Off, on the user network, with an empty disk. Answers once its Redfish service does.
    pub fn start(password: &str) -> Self {
        Self::launch(password, 8 << 20, "<interface type='user'>", Command::new("sh"))
    }

    /// Off, with all that belongs to it in the network, its card on that tap, and a disk of zeros.
    pub fn on_tap(password: &str, network: &Netns, tap: &str, disk_bytes: u64) -> Self {
        let card = format!("<interface type='ethernet'><target dev='{tap}' managed='no'/>");
        let mut shell = network.command("unshare");
        shell.args(["--mount", "sh", "-c", WITH_TAPS, "vm-taps"]);
        Self::launch(password, disk_bytes, &card, shell)
    }

    fn launch(password: &str, disk_bytes: u64, card: &str, mut shell: Command) -> Self {
        for program in ["/usr/sbin/libvirtd", "/usr/bin/virsh", "/usr/bin/qemu-system-x86_64", "/usr/bin/curl"] {
            assert!(Path::new(program).is_file(), "{program} is not there; install it: {INSTALL}");
        }
        let folder = tempfile::Builder::new().prefix("millwright-vm-").tempdir_in(crate::scratch::place());
        let folder = folder.expect("a folder").keep();
        for name in ["run", "config/libvirt", "cache", "data", "pool"] {
            std::fs::create_dir_all(folder.join(name)).expect("a folder");
        }
        sushy::hash_password(&folder, password);
        let port = sushy::free_port();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("written");
        write(
            "config/libvirt/qemu.conf",
            "security_driver = \"none\"\nnamespaces = []\ncgroup_controllers = []\nremember_owner = 0\nstdio_handler = \"file\"\n",
        );
        write("domain.xml", &domain(&folder, card));
        std::fs::File::create(folder.join("disk.raw")).and_then(|disk| disk.set_len(disk_bytes)).expect("a disk");
        let socket = folder.join("run/libvirt/libvirt-sock");
        write(
            "sushy.conf.py",
            &format!(
                "SUSHY_EMULATOR_LISTEN_IP = '127.0.0.1'\nSUSHY_EMULATOR_LISTEN_PORT = {port}\n\
                 SUSHY_EMULATOR_LIBVIRT_URI = 'qemu+unix:///session?socket={}'\nSUSHY_EMULATOR_STATE_DIR = {folder:?}\n\
                 SUSHY_EMULATOR_AUTH_FILE = {:?}\nSUSHY_EMULATOR_IGNORE_BOOT_DEVICE = False\n",
                socket.display(),
                folder.join("htpasswd")
            ),
        );
        let mut guard = shell
            .args(["-c", GUARD, "vm-guard"])
            .arg(&folder)
            .arg(port.to_string())
            .arg(sushy::program("sushy-emulator"))
            .arg("--config")
            .arg(folder.join("sushy.conf.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(folder.join("guard.log")).expect("a file"))
            .current_dir("/")
            .process_group(0)
            .spawn()
            .expect("sh runs");
        let said = guard.stdout.take().expect("a pipe");
        let vm = Self { port, folder, guard: Some(guard) };
        let mut lines = BufReader::new(said).lines();
        if !lines.any(|line| line.is_ok_and(|line| line == "ready")) {
            let log = |name: &str| std::fs::read_to_string(vm.folder.join(name)).unwrap_or_default();
            let said = format!("{}\n{}\n{}", log("guard.log"), log("libvirtd.log"), log("sushy.log"));
            panic!("the virtual machine's Redfish service does not come up:\n{said}");
        }
        vm
    }

    /// As a machine's `bmc_endpoint` says it.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}/redfish/v1/Systems/{UUID}", self.port)
    }

    /// The disk, as QEMU writes it.
    pub fn disk(&self) -> PathBuf {
        self.folder.join("disk.raw")
    }

    /// What the serial console has shown in all its boots until now.
    pub fn console(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.folder.join("console.log")).unwrap_or_default()).into_owned()
    }

    /// The boots from the medium, each by the boot id that the kernel gave itself.
    pub fn boots(&self) -> Vec<String> {
        let said = self.said("booted-from-medium boot=");
        said.into_iter()
            .filter(|words| words.last().is_some_and(|last| last.ends_with(UUID)))
            .map(|words| words[0].clone())
            .collect()
    }

    /// The boots of what `scripts/boot-image` makes, from the disk: each by its boot id, and the instance that its seed names.
    pub fn disk_boots(&self) -> Vec<(String, String)> {
        let said = self.said("installed-system boot=");
        said.into_iter()
            .filter_map(|words| Some((words[0].clone(), words.get(1)?.strip_prefix("instance=")?.to_owned())))
            .collect()
    }

    /// What stands after this on every line of the console that has it and is whole, as words.
    fn said(&self, before: &str) -> Vec<Vec<String>> {
        let console = self.console();
        let whole = console.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        whole
            .filter_map(|line| line.split_once(before))
            .map(|(_, rest)| rest.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
            .filter(|words| !words.is_empty())
            .collect()
    }
}

impl Drop for RedfishVm {
    fn drop(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            drop(guard.stdin.take());
            drop(guard.wait());
        }
    }
}

/// Serves the boot medium to whoever asks, at this URL, for as long as the process lives.
pub fn medium() -> String {
    let file = sushy::cache().join("boot-iso-1/boot.iso");
    let image = std::fs::read(&file)
        .unwrap_or_else(|e| panic!("the boot medium {} is not there ({e}); make it: {INSTALL}", file.display()));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // a request without a body fits into one read
            let mut request = [0; 4096];
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", image.len());
            let read = stream.read(&mut request);
            let sent = read.and_then(|_| stream.write_all(head.as_bytes())).and_then(|()| stream.write_all(&image));
            // whoever asked and left is no fault of the test
            drop(sent);
        }
    });
    format!("http://{at}/boot.iso")
}

fn domain(folder: &Path, card: &str) -> String {
    let folder = folder.display();
    format!(
        "<domain type='qemu'><name>node-0000</name><uuid>{UUID}</uuid><memory unit='MiB'>512</memory><vcpu>1</vcpu>\
         <sysinfo type='smbios'><system><entry name='manufacturer'>Millwright</entry>\
         <entry name='product'>TestNode</entry><entry name='serial'>SN-VM-1</entry></system></sysinfo>\
         <os><type arch='x86_64' machine='pc'>hvm</type><boot dev='hd'/><smbios mode='sysinfo'/></os>\
         <features><acpi/></features><cpu mode='maximum'/><on_reboot>restart</on_reboot>\
         <devices><emulator>/usr/bin/qemu-system-x86_64</emulator>\
         <disk type='file' device='disk'><driver name='qemu' type='raw' cache='unsafe'/>\
         <source file='{folder}/disk.raw'/><target dev='vda' bus='virtio'/></disk>\
         {card}<mac address='{MAC}'/><model type='virtio'/></interface>\
         <serial type='file'><source path='{folder}/console.log' append='on'/><target port='0'/></serial>\
         <memballoon model='none'/></devices></domain>"
    )
}
