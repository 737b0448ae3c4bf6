//! Network boot in this process: the image store, the machines' door on the main port, and, where an interface is
//! named, DHCP, TFTP and an HTTP port of its own on that network.

use crate::config::Config;
use crate::netboot_config::Mode;
use axum::Router;
use boot::dhcp::LeaseKeeper;
use boot::door::{Door, Leases};
use boot::images::{Images, Keeper, Loaders, Names, NamesInDatabase, Options as ImageOptions, Store};
use boot::interface::Interface;
use boot::lease_file::LeaseFile;
use boot::port::{PortOptions, serve};
use boot::server::{Handle, Options, Server};
use domain::{MacAddress, metric};
use service::Service;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use store::Ambient;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

/// In the data folder.
const LEASES: &str = "netboot-leases";

/// What machines and those who bring images are served.
pub struct Netboot {
    images: Arc<Images>,
    keeper: Arc<Keeper>,
    store: Arc<Store>,
    names: Arc<dyn Names>,
    /// Only with an interface.
    line: Option<Line>,
}

/// The provisioning network, bound and ready.
struct Line {
    server: Server,
    handle: Handle,
    listener: TcpListener,
    address: SocketAddr,
    public_url: String,
    leases: Option<Arc<dyn Leases>>,
}

/// Whom our DHCP gave an address to.
struct Leased(Handle);

impl Leases for Leased {
    fn leased_to(&self, address: Ipv4Addr) -> Option<MacAddress> {
        MacAddress::parse(&self.0.leased_to(address)?.to_string())
    }
}

impl Netboot {
    /// Opens the image store, and the sockets on the interface that is configured.
    pub async fn open(
        config: &Config,
        data: &Path,
        service: &Service,
        ambient: &Arc<dyn Ambient>,
    ) -> Result<Self, String> {
        let folder = config.netboot.images_folder(data);
        let bytes_max = config.netboot.image_bytes_max;
        let opening = tokio::task::spawn_blocking(move || Store::open(&folder, bytes_max)).await;
        let store = Arc::new(opening.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?);
        let names: Arc<dyn Names> = Arc::new(NamesInDatabase(service.clone()));
        let images = Arc::new(Images::new(store.clone(), names.clone(), ImageOptions::default()));
        let keeper = Arc::new(Keeper::new(store.clone()));
        service.keeps_image_bytes(keeper.clone());
        service.fails_silence_after(config.netboot.silent_after());
        let mut netboot = Self { images, keeper, store, names, line: None };
        if let Some(interface) = &config.netboot.interface {
            let failed = |e: String| format!("network boot on {interface}: {e}");
            netboot.line = Some(netboot.bind(config, interface, data, ambient).await.map_err(failed)?);
        }
        Ok(netboot)
    }

    async fn bind(
        &self,
        config: &Config,
        interface: &str,
        data: &Path,
        ambient: &Arc<dyn Ambient>,
    ) -> Result<Line, String> {
        let netboot = &config.netboot;
        let there = Interface::look(interface).map_err(|e| e.to_string())?;
        let listen = netboot.listen_at(there.address());
        let failed = |e: std::io::Error| format!("listening on {listen}: {e}");
        let listener = TcpListener::bind(&listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        if address.ip().is_unspecified() && netboot.public_url.is_none() {
            return Err(format!("netboot.public_url: is missing; machines cannot come to {address}"));
        }
        let public_url = netboot.public_url("http", address);
        let path = data.join(LEASES);
        let kept = LeaseFile::open(&path).map_err(|e| format!("opening the leases {}: {e}", path.display()))?;
        let leases: Arc<dyn LeaseKeeper> = Arc::new(kept);
        let clock = ambient.clone();
        let options = Options {
            interface: interface.to_owned(),
            dhcp: netboot.dhcp(there.subnet(), &public_url)?,
            tftp: boot::tftp::Limits::default(),
            files: Arc::new(Loaders { store: self.store.clone(), names: self.names.clone() }),
            leases,
            clock: Arc::new(move || clock.now()),
        };
        let server = Server::start(options).await.map_err(|e| innermost(&e))?;
        let handle = server.handle();
        let leases: Option<Arc<dyn Leases>> = match netboot.mode {
            Mode::Proxy => None,
            Mode::Authoritative => Some(Arc::new(Leased(handle.clone()))),
        };
        Ok(Line { server, handle, listener, address, public_url, leases })
    }

    fn door(&self, config: &Config, service: &Service, main: &str) -> Router {
        let (public_url, leases) = match &self.line {
            Some(line) => (line.public_url.clone(), line.leases.clone()),
            None => (main.to_owned(), None),
        };
        let setup = config.netboot.setup();
        let door = Door { service: service.clone(), setup, places: config.netboot.places(public_url), leases };
        boot::door::router(Arc::new(door)).merge(self.images.clone().router())
    }

    /// What stands beside the calls on the main port, which machines reach as `main` where they have no port of their
    /// own.
    pub fn beside(&self, config: &Config, service: &Service, main: &str) -> Router {
        self.door(config, service, main).merge(self.keeper.clone().router(service.clone()))
    }

    /// The metrics with what is counted here.
    pub fn measured(&self, render: api::Render) -> api::Render {
        let (images, handle) = (self.images.clone(), self.line.as_ref().map(|line| line.handle.clone()));
        Arc::new(move || {
            metrics::gauge!(metric::IMAGE_READERS.name).set(images.streams() as f64);
            for (count, number) in handle.iter().flat_map(|handle| handle.counts().snapshot()) {
                metrics::counter!(metric::NETBOOT.name, "what" => count.word()).absolute(number);
            }
            render()
        })
    }

    /// Serves the provisioning network until `stop`. `guard` goes when nobody does any more.
    pub fn run(self, config: &Config, service: &Service, stop: &CancellationToken, guard: DropGuard) -> Running {
        let router = self.door(config, service, "");
        let keeping = tokio::spawn(self.keeper.clone().keep(service.clone(), stop.clone()));
        let Some(line) = self.line else {
            drop(guard.disarm());
            return Running { tasks: vec![keeping], told: None };
        };
        let told = Some(format!(
            "network boot on {}, machines come to {} ({})",
            line.server.interface().name(),
            line.public_url,
            line.address
        ));
        let port = serve(line.listener, router, PortOptions::default(), stop.clone());
        let wire = line.server.run(stop.clone());
        let both = tokio::spawn(async move {
            tokio::join!(port, wire);
            drop(guard);
        });
        Running { tasks: vec![keeping, both], told }
    }
}

/// What runs beside the main port.
pub struct Running {
    tasks: Vec<JoinHandle<()>>,
    /// For whoever started it.
    pub told: Option<String>,
}

impl Running {
    /// Waits for the end of what was told to stop.
    pub async fn ended(self) {
        for task in self.tasks {
            if let Err(e) = task.await {
                tracing::error!(error = %e, "network boot");
            }
        }
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
