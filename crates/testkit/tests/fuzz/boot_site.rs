//! Machines that boot from a server without an engine that works: what they are, and the tokens that they hold. The door
//! is reached through both ports that it has.

use crate::wire::{Answer, exchange};
use domain::boot_node::BootNode;
use domain::boot_workflow::BootWorkflow;
use service::{BootNodeMove, BootNodeUpdate, BootRequest, BootSetup, CallerLimits, Report, Service};
use std::sync::Arc;
use std::time::Duration;
use testkit::fleet::{Database, Fleet, admin, quick, vault};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// As scripts name us.
pub const URL: &str = "http://boot.test";
/// A request whose rest never comes is given up soon.
const SOON: Duration = Duration::from_millis(250);

pub struct BootSite {
    pub runtime: Runtime,
    pub service: Service,
    pub setup: BootSetup,
    /// The main port, and the one of a provisioning network.
    pub addresses: [String; 2],
    pub admin: String,
    fresh: u32,
    _fleet: Fleet,
}

impl BootSite {
    /// With a workflow `named`, whose command line has everything that machines say of themselves.
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let fleet = {
            let _inside = runtime.enter();
            Fleet::new(Database::Memory, 1)
        };
        let setup = BootSetup { discovered_max: 300, provider: "sim".to_owned(), ..BootSetup::default() };
        let (service, addresses, admin) = runtime.block_on(serve(&fleet, setup.clone()));
        Self { runtime, service, setup, addresses, admin, fresh: 0, _fleet: fleet }
    }

    pub fn node(&self, mac: &str) -> BootNode {
        self.runtime.block_on(self.service.get_boot_node(mac)).expect("a node that is known")
    }

    /// What is answered to these bytes; `None`: it was cut off.
    pub fn answer(&self, port: usize, request: &[u8]) -> Result<Option<Answer>, String> {
        self.runtime.block_on(exchange(&self.addresses[port], request))
    }

    /// An address that no node has yet.
    pub fn fresh_mac(&mut self) -> String {
        self.fresh += 1;
        let [_, a, b, c] = self.fresh.to_be_bytes();
        format!("52:54:01:{a:02x}:{b:02x}:{c:02x}")
    }

    /// The token of the installer that this machine is served, which must be one.
    pub fn token(&self, mac: &str) -> String {
        let request = BootRequest { mac: mac.to_owned(), ..BootRequest::default() };
        let booting = self.runtime.block_on(self.service.boot(&request, &self.setup)).expect("boots");
        booting.token.expect("an installer").reveal().to_owned()
    }

    /// Approved, to be installed by `named`.
    pub fn approved(&self, mac: &str) {
        self.runtime.block_on(async {
            let request = BootRequest { mac: mac.to_owned(), ..BootRequest::default() };
            self.service.boot(&request, &self.setup).await.expect("boots");
            let id = mac.to_owned();
            let named = BootNodeUpdate { id, workflow_id: Some("named".to_owned()), ..BootNodeUpdate::default() };
            self.service.update_boot_node(&admin(), named).await.expect("assigned");
            let pending = BootNodeMove { id: mac.to_owned(), state: "pending".to_owned(), ..BootNodeMove::default() };
            self.service.move_boot_node(&admin(), pending).await.expect("approved");
        });
    }

    /// A report that must count.
    pub fn says(&self, mac: &str, token: &str, status: &str) {
        let (mac, token, status) = (mac.to_owned(), Some(domain::Secret::new(token)), Some(status.to_owned()));
        let report = Report { mac, token, status, ..Report::default() };
        let told = self.runtime.block_on(self.service.report(report, &self.setup)).expect("reported");
        assert!(told.applied, "{told:?}");
    }

    /// One whose second attempt has begun: its card, the token of that attempt, and that of the first.
    pub fn installing(&mut self) -> Installing {
        let mac = self.fresh_mac();
        self.approved(&mac);
        let old = self.token(&mac);
        self.says(&mac, &old, "started");
        // the machine has booted again in the middle
        let token = self.token(&mac);
        self.says(&mac, &token, "started");
        let id = self.node(&mac).id.to_string();
        Installing { mac, id, token, old }
    }
}

/// A machine that is being installed.
#[derive(Clone, Debug)]
pub struct Installing {
    pub mac: String,
    pub id: String,
    pub token: String,
    pub old: String,
}

async fn serve(fleet: &Fleet, setup: BootSetup) -> (Service, [String; 2], String) {
    let engine = fleet.engine(quick("fuzz"), None);
    let limits = CallerLimits { calls_per_second: u32::MAX, burst: u32::MAX, streams: 100_000 };
    let (store, providers) = (fleet.store.clone(), fleet.providers());
    let vault = vault(&store);
    let service = Service::with_vault(store, engine, providers, limits, vault).await.expect("a service");
    let token = service::new_secret().expect("randomness");
    service.access().add_admin(&token, "fuzzer").await.expect("a token");
    let named = BootWorkflow {
        id: "named".to_owned(),
        name: "named".to_owned(),
        kernel: "vmlinuz".to_owned(),
        initrd: "initrd".to_owned(),
        cmdline: "quiet host=${hostname} serial=${serial} vendor=${vendor} model=${model} uuid=${uuid} arch=${arch}"
            .to_owned(),
        ..BootWorkflow::default()
    };
    service.create_workflow(&admin(), named).await.expect("made");
    let places = boot::script::Places {
        public_url: URL.to_owned(),
        installer_cmdline: "console=ttyS0".to_owned(),
        installer_kernel: "installer-vmlinuz".to_owned(),
        installer_initrd: "installer-initrd".to_owned(),
    };
    let door = Arc::new(boot::door::Door { service: service.clone(), setup, places, leases: None });
    let mut addresses = [String::new(), String::new()];
    let (main, machines) = (listener(&mut addresses[0]).await, listener(&mut addresses[1]).await);
    let beside = boot::door::router(door.clone());
    let options = api::ServerOptions { headers_within: SOON, body_within: SOON, beside, ..Default::default() };
    tokio::spawn(api::serve(main, service.clone(), options, CancellationToken::new()));
    let options = boot::port::PortOptions { headers_within: SOON, ..boot::port::PortOptions::default() };
    tokio::spawn(boot::port::serve(machines, boot::door::router(door), options, CancellationToken::new()));
    (service, addresses, token)
}

async fn listener(address: &mut String) -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    *address = listener.local_addr().expect("an address").to_string();
    listener
}
