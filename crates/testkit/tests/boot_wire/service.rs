//! The service under test, with files that are real, leases that outlive it and a clock that the test holds.

use crate::network::PATIENCE;
use boot::counts::Count;
use boot::dhcp::{Architecture, BootFiles, InMemory, Limits, Mode, Pool, Settings};
use boot::interface::{Interface, Subnet};
use boot::server::{Handle, Options, Server, StartError};
use boot::tftp::{Files, Open};
use domain::time::Timestamp;
use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub const US: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub const SCRIPT: &str = "http://10.77.0.1:8080/boot.ipxe";
pub const UEFI_LOADER_URL: &str = "http://10.77.0.1:8080/images/ipxe.efi";

pub fn files() -> BootFiles {
    let by = |pairs: &[(Architecture, &str)]| pairs.iter().map(|(a, name)| (*a, (*name).to_owned())).collect();
    BootFiles {
        script: SCRIPT.to_owned(),
        by_tftp: by(&[
            (Architecture::Bios, "undionly.kpxe"),
            (Architecture::UefiX64, "ipxe.efi"),
            (Architecture::UefiArm64, "ipxe-arm64.efi"),
        ]),
        by_http: by(&[(Architecture::UefiX64, UEFI_LOADER_URL)]),
    }
}

pub fn pool(first: u8, last: u8) -> Pool {
    let at = |last| Ipv4Addr::new(10, 77, 0, last);
    Pool {
        subnet: Subnet::around(US, Ipv4Addr::new(255, 255, 255, 0)).expect("a mask"),
        first: at(first),
        last: at(last),
        lease: Duration::from_secs(600),
        router: Some(US),
        dns: vec![at(53)],
        reserved: BTreeMap::new(),
    }
}

pub fn only_server() -> Mode {
    Mode::Authoritative(vec![pool(100, 120)])
}

/// Files by name, wherever they lie.
#[derive(Default)]
pub struct Shelf(pub BTreeMap<String, PathBuf>);

#[async_trait::async_trait]
impl Files for Shelf {
    async fn open(&self, name: &str) -> io::Result<Option<Open>> {
        let Some(path) = self.0.get(name) else { return Ok(None) };
        let file = tokio::fs::File::open(path).await?;
        Ok(Some(Open { size: file.metadata().await?.len(), bytes: Box::new(file) }))
    }
}

/// What stays when the service is started anew.
#[derive(Clone)]
pub struct World {
    pub leases: Arc<InMemory>,
    pub shelf: Arc<Shelf>,
    pub interface: String,
    now: Arc<AtomicI64>,
}

impl World {
    pub fn new(interface: &str, shelf: Shelf) -> Self {
        let now = Arc::new(AtomicI64::new(1_800_000_000_000_000));
        Self { leases: Arc::default(), shelf: Arc::new(shelf), interface: interface.to_owned(), now }
    }

    pub fn passes(&self, span: Duration) {
        self.now.fetch_add(i64::try_from(span.as_micros()).expect("short"), Ordering::Relaxed);
    }

    pub async fn start(&self, mode: Mode) -> Result<Service, StartError> {
        let now = self.now.clone();
        // the limits have windows of a second by this clock, which stands still: they are tried elsewhere
        let limits = Limits { of_one: 10_000, of_all: 10_000 };
        let server = Server::start(Options {
            interface: self.interface.clone(),
            dhcp: Settings { files: files(), mode, limits },
            tftp: boot::tftp::Limits::default(),
            files: self.shelf.clone(),
            leases: self.leases.clone(),
            clock: Arc::new(move || Timestamp::from_micros(now.load(Ordering::Relaxed))),
        })
        .await?;
        let (handle, stop) = (server.handle(), CancellationToken::new());
        Ok(Service { handle, stop: stop.clone(), task: tokio::spawn(server.run(stop)) })
    }
}

pub struct Service {
    pub handle: Handle,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Service {
    pub async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.expect("it stops").expect("without a panic");
    }

    pub fn counted(&self, count: Count) -> u64 {
        self.handle.counts().of(count)
    }
}

/// The interface with our address, as a wire to `host`.
pub async fn wired(host: &crate::network::Host) {
    host.wire("boot0", "eth0").await;
    crate::network::ip("address add 10.77.0.1/24 dev boot0").await;
    assert_eq!(Interface::look("boot0").expect("it is there").address(), US);
}
