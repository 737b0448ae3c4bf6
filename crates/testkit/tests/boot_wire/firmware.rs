//! Real firmware boots from us: iPXE as it is in the ROM of QEMU's cards, and UEFI with its own PXE client (OVMF), in both
//! modes. They are judged by what they fetch over HTTP in the end.

use crate::network::{PATIENCE, command, ip, privately, program};
use crate::proxy::{OtherServer, bridge};
use crate::service::{Shelf, World, only_server};
use boot::counts::Count;
use boot::dhcp::Mode;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::process::Child;
use tokio::task::JoinHandle;

const INSTALL: &str =
    "apt-get install -y --no-install-recommends qemu-system-x86 ipxe-qemu seabios ovmf ipxe (or run scripts/test)";
const OVMF: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
const VARIABLES: &str = "/usr/share/OVMF/OVMF_VARS_4M.fd";
const LOADER: &str = "/usr/lib/ipxe/ipxe.efi";
const CARD: &str = "52:54:00:4d:57:01";

/// Notes what is fetched; iPXE's script ends the boot.
struct Web {
    asked: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Web {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Web {
    async fn new() -> Self {
        Self::serving("#!ipxe\nsleep 3600\n".to_owned()).await
    }

    /// Gives this script; whoever asks what to boot is told that it cannot be said now.
    async fn serving(script: String) -> Self {
        let listener = TcpListener::bind("10.77.0.1:8080").await.expect("our own network");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = asked.clone();
        let task = tokio::spawn(async move {
            loop {
                let Ok((mut socket, _)) = listener.accept().await else { continue };
                let (noted, script) = (noted.clone(), script.clone());
                tokio::spawn(async move {
                    let mut buffer = vec![0; 4096];
                    let length = socket.read(&mut buffer).await.unwrap_or(0);
                    let line = String::from_utf8_lossy(&buffer[..length]).lines().next().unwrap_or_default().to_owned();
                    noted.lock().expect("nobody panics").push(line.clone());
                    let loader = line.contains("/images/ipxe.efi");
                    let body = if loader { std::fs::read(LOADER).unwrap_or_default() } else { script.into_bytes() };
                    let length = body.len();
                    let status = if line.contains("/api/") { "503 Service Unavailable" } else { "200 OK" };
                    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
                    let body = if line.starts_with("HEAD") { Vec::new() } else { body };
                    drop(socket.write_all(&[head.into_bytes(), body].concat()).await);
                });
            }
        });
        Self { asked, task }
    }

    fn was_asked(&self, path: &str) -> bool {
        self.asked.lock().expect("nobody panics").iter().any(|line| line.starts_with(&format!("GET {path} ")))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Firmware {
    /// With iPXE in the card's ROM.
    Bios,
    Uefi,
    /// UEFI that is told to leave PXE out, and so boots by HTTP.
    UefiHttp,
}

struct Machine {
    _process: Child,
    folder: tempfile::TempDir,
}

impl Machine {
    /// Powers one on whose card is on the bridge.
    async fn on(firmware: Firmware) -> Self {
        let qemu = program("qemu-system-x86_64", INSTALL);
        for needed in [OVMF, VARIABLES, LOADER, "/usr/lib/ipxe/qemu/pxe-virtio.rom"] {
            assert!(Path::new(needed).is_file(), "{needed} is not there; install it: {INSTALL}");
        }
        ip("tuntap add dev tap0 mode tap").await;
        ip("link set tap0 master br0 up").await;
        let folder = testkit::scratch::folder();
        let serial = format!("file:{}", folder.path().join("serial").display());
        let network = "tap,id=n0,ifname=tap0,script=no,downscript=no";
        let mut arguments: Vec<String> =
            "-cpu max -smp 1 -m 256 -no-reboot -display none -vga none -monitor none -nodefaults"
                .split(' ')
                .map(str::to_owned)
                .collect();
        arguments.extend(["-serial".to_owned(), serial, "-netdev".to_owned(), network.to_owned()]);
        let card = format!("virtio-net-pci,netdev=n0,mac={CARD},bootindex=1");
        if firmware != Firmware::Bios {
            let own = folder.path().join("variables");
            std::fs::copy(VARIABLES, &own).expect("copied");
            arguments.extend(["-machine".to_owned(), "q35,accel=tcg".to_owned()]);
            for flash in [
                format!("if=pflash,format=raw,unit=0,readonly=on,file={OVMF}"),
                format!("if=pflash,format=raw,unit=1,file={}", own.display()),
            ] {
                arguments.extend(["-drive".to_owned(), flash]);
            }
            if firmware == Firmware::UefiHttp {
                for way in ["IPv4PXESupport", "IPv6PXESupport"] {
                    arguments.extend(["-fw_cfg".to_owned(), format!("name=opt/org.tianocore/{way},string=n")]);
                }
            }
            // without iPXE in the card
            arguments.extend(["-device".to_owned(), card + ",romfile="]);
        } else {
            arguments.extend(["-machine".to_owned(), "pc,accel=tcg,graphics=off".to_owned()]);
            arguments.extend(["-device".to_owned(), card]);
        }
        let mut qemu = command(&qemu, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
        Self { _process: qemu.spawn().expect("QEMU starts"), folder }
    }

    fn console(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.folder.path().join("serial")).unwrap_or_default()).into_owned()
    }
}

fn world() -> World {
    let files = BTreeMap::from([("ipxe.efi".to_owned(), LOADER.into())]);
    World::new("br0", Shelf(files))
}

async fn fetches(web: &Web, machine: &Machine, path: &str) {
    let fetched = async {
        while !web.was_asked(path) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let fetched = tokio::time::timeout(PATIENCE, fetched).await;
    let asked = web.asked.lock().expect("nobody panics").join("\n");
    assert!(fetched.is_ok(), "{path} was not fetched, but {asked}; on its console:\n{}", machine.console());
}

#[test]
fn ipxe_boots_beside_another_server() {
    privately(|| async {
        let _other = OtherServer::on_a_bridge().await;
        let (web, service) = (Web::new().await, world().start(Mode::Proxy).await.expect("it starts"));
        let machine = Machine::on(Firmware::Bios).await;
        fetches(&web, &machine, "/boot.ipxe").await;
        assert!(service.counted(Count::DhcpOffers) >= 1);
        service.stop().await;
    });
}

#[test]
fn ipxe_boots_from_the_only_server() {
    privately(|| async {
        bridge().await;
        let (web, service) = (Web::new().await, world().start(only_server()).await.expect("it starts"));
        let machine = Machine::on(Firmware::Bios).await;
        fetches(&web, &machine, "/boot.ipxe").await;
        assert!(service.counted(Count::DhcpAcks) >= 1);
        service.stop().await;
    });
}

/// Our own script, run by the real thing: it asks the processor, and gives up in the end.
#[test]
fn ipxe_says_what_the_machine_is_and_does_not_ask_for_ever() {
    privately(|| async {
        bridge().await;
        let places = boot::script::Places {
            public_url: "http://10.77.0.1:8080".to_owned(),
            installer_cmdline: String::new(),
            installer_kernel: String::new(),
            installer_initrd: String::new(),
        };
        let tries = boot::script::TRIES_MAX;
        let web = Web::serving(boot::script::first(&places, tries - 2)).await;
        let service = world().start(only_server()).await.expect("it starts");
        let machine = Machine::on(Firmware::Bios).await;
        let gives_up = async {
            while !machine.console().contains("Millwright does not answer; booting from disk") {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let gave_up = tokio::time::timeout(PATIENCE, gives_up).await;
        let asked: Vec<String> = web.asked.lock().expect("nobody panics").clone();
        assert!(gave_up.is_ok(), "{asked:?}; on its console:\n{}", machine.console());
        let asked: Vec<&String> = asked.iter().filter(|line| line.contains("/api/v1/boot?mac=")).collect();
        assert_eq!(asked.len(), 2, "{asked:?}");
        for (line, tries) in asked.iter().zip([tries - 2, tries - 1]) {
            // iPXE for BIOS is built for i386, and this processor is more than that
            assert!(line.contains(&format!("&arch=x86_64&platform=pcbios&tries={tries} ")), "{line}");
        }
        service.stop().await;
    });
}

#[test]
fn uefi_loads_ipxe_beside_another_server() {
    privately(|| async {
        let _other = OtherServer::on_a_bridge().await;
        let (web, service) = (Web::new().await, world().start(Mode::Proxy).await.expect("it starts"));
        let machine = Machine::on(Firmware::Uefi).await;
        fetches(&web, &machine, "/boot.ipxe").await;
        assert!(service.counted(Count::TftpDone) >= 1);
        assert!(service.counted(Count::DhcpAcks) >= 1, "it asked again at port 4011");
        service.stop().await;
    });
}

#[test]
fn uefi_loads_ipxe_from_the_only_server() {
    privately(|| async {
        bridge().await;
        let (web, service) = (Web::new().await, world().start(only_server()).await.expect("it starts"));
        let machine = Machine::on(Firmware::Uefi).await;
        fetches(&web, &machine, "/boot.ipxe").await;
        assert!(service.counted(Count::TftpDone) >= 1);
        service.stop().await;
    });
}

#[test]
fn uefi_loads_ipxe_by_http_from_the_only_server() {
    privately(|| async {
        bridge().await;
        let (web, service) = (Web::new().await, world().start(only_server()).await.expect("it starts"));
        let machine = Machine::on(Firmware::UefiHttp).await;
        fetches(&web, &machine, "/images/ipxe.efi").await;
        fetches(&web, &machine, "/boot.ipxe").await;
        assert_eq!(service.counted(Count::TftpReceived), 0);
        service.stop().await;
    });
}

#[test]
fn uefi_loads_ipxe_by_http_beside_another_server() {
    privately(|| async {
        let _other = OtherServer::on_a_bridge().await;
        let (web, service) = (Web::new().await, world().start(Mode::Proxy).await.expect("it starts"));
        let machine = Machine::on(Firmware::UefiHttp).await;
        fetches(&web, &machine, "/images/ipxe.efi").await;
        fetches(&web, &machine, "/boot.ipxe").await;
        assert_eq!(service.counted(Count::TftpReceived), 0);
        service.stop().await;
    });
}
