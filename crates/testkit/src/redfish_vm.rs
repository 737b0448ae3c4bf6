//! A machine that really boots: QEMU, owned by a libvirt of its own, behind sushy-emulator as its Redfish service.
//! Emulated, so it needs no special host, and some ten seconds to boot. Gone when the process ends, however it ends.
//!
//! What it boots is the medium of `scripts/boot-iso`, put in by virtual media; its disk is empty. What it did is on its
//! serial console, which is a file: tests judge by that.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use crate::sushy;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub const UUID: &str = "4d570000-0000-4000-8000-00000000f00d";
pub const MAC: &str = "52:54:00:4d:f0:0d";
const INSTALL: &str = "apt-get install -y --no-install-recommends qemu-system-x86 seabios libvirt-daemon \
    libvirt-daemon-driver-qemu libvirt-clients busybox-static cpio isolinux syslinux-common xorriso && scripts/boot-iso \
    (or run scripts/test)";
const PATIENCE: Duration = Duration::from_secs(120);

/// Starts everything, and ends it when its input ends. libvirt runs as an ordinary user, in session mode: as root it
/// wants users and services that a test does not make. Arguments: the folder, then the emulator's command.
const GUARD: &str = r#"
folder=$1; shift
as="setpriv --reuid nobody --regid nogroup --clear-groups env -i PATH=$PATH HOME=$folder XDG_RUNTIME_DIR=$folder/run
    XDG_CONFIG_HOME=$folder/config XDG_CACHE_HOME=$folder/cache XDG_DATA_HOME=$folder/data"
virsh() { $as virsh -q -c "qemu+unix:///session?socket=$folder/run/libvirt/libvirt-sock" "$@"; }
chown -R nobody "$folder"
$as /usr/sbin/libvirtd </dev/null >"$folder/libvirtd.log" 2>&1 & libvirtd=$!
for _ in $(seq 300); do virsh uri >/dev/null 2>&1 && break; sleep 0.1; done
virsh pool-define-as default dir --target "$folder/pool" && virsh pool-start default && virsh define "$folder/domain.xml"
"$@" </dev/null >"$folder/sushy.log" 2>&1 & emulator=$!
while read -r _; do :; done
virsh destroy node-0000
kill "$emulator" "$libvirtd"; wait "$emulator" "$libvirtd"
rm -rf "$folder"
"#;

/// Dropped: switched off and gone.
pub struct RedfishVm {
    port: u16,
    folder: PathBuf,
    guard: Option<Child>,
}

impl RedfishVm {
    /// Off, with an empty disk. Answers once its Redfish service does.
    pub fn start(password: &str) -> Self {
        for program in ["/usr/sbin/libvirtd", "/usr/bin/virsh", "/usr/bin/qemu-system-x86_64"] {
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
        write("domain.xml", &domain(&folder));
        std::fs::File::create(folder.join("disk.raw")).and_then(|disk| disk.set_len(8 << 20)).expect("a disk");
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
        let guard = Command::new("sh")
            .args(["-c", GUARD, "vm-guard"])
            .arg(&folder)
            .arg(sushy::program("sushy-emulator"))
            .arg("--config")
            .arg(folder.join("sushy.conf.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(folder.join("guard.log")).expect("a file"))
            .current_dir("/")
            .process_group(0)
            .spawn()
            .expect("sh runs");
        let vm = Self { port, folder, guard: Some(guard) };
        vm.wait_until_up();
        vm
    }

    /// As a machine's `bmc_endpoint` says it.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}/redfish/v1/Systems/{UUID}", self.port)
    }

    /// The boots from the medium, each by the boot id that the kernel gave itself.
    pub fn boots(&self) -> Vec<String> {
        let console = std::fs::read(self.folder.join("console.log")).unwrap_or_default();
        let console = String::from_utf8_lossy(&console).into_owned();
        let said = console.lines().filter_map(|line| line.split_once("booted-from-medium boot="));
        said.filter(|(_, rest)| rest.trim_end().ends_with(UUID))
            .filter_map(|(_, rest)| rest.split(' ').next().map(str::to_owned))
            .collect()
    }

    fn wait_until_up(&self) {
        let begun = tokio::time::Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let log = |name: &str| std::fs::read_to_string(self.folder.join(name)).unwrap_or_default();
            let said = || format!("{}\n{}\n{}", log("guard.log"), log("libvirtd.log"), log("sushy.log"));
            assert!(begun.elapsed() < PATIENCE, "the virtual machine's Redfish service does not come up:\n{}", said());
            std::thread::park_timeout(Duration::from_millis(50));
        }
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

fn domain(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "<domain type='qemu'><name>node-0000</name><uuid>{UUID}</uuid><memory unit='MiB'>256</memory><vcpu>1</vcpu>\
         <sysinfo type='smbios'><system><entry name='manufacturer'>Millwright</entry>\
         <entry name='product'>TestNode</entry><entry name='serial'>SN-VM-1</entry></system></sysinfo>\
         <os><type arch='x86_64' machine='pc'>hvm</type><boot dev='hd'/><smbios mode='sysinfo'/></os>\
         <features><acpi/></features><cpu mode='maximum'/><on_reboot>restart</on_reboot>\
         <devices><emulator>/usr/bin/qemu-system-x86_64</emulator>\
         <disk type='file' device='disk'><driver name='qemu' type='raw' cache='unsafe'/>\
         <source file='{folder}/disk.raw'/><target dev='vda' bus='virtio'/></disk>\
         <interface type='user'><mac address='{MAC}'/><model type='virtio'/></interface>\
         <serial type='file'><source path='{folder}/console.log' append='on'/><target port='0'/></serial>\
         <memballoon model='none'/></devices></domain>"
    )
}
