//! A whole server in this process, reached through its real door over loopback.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use crate::fleet::{Database, Fleet, quick};
use engine::{Engine, EngineOptions};
use proto::baremetal::v1::machine_service_client::MachineServiceClient;
use proto::baremetal::v1::plan_service_client::PlanServiceClient;
use proto::baremetal::v1::run_service_client::RunServiceClient;
use proto::millwright::v1::engine_service_client::EngineServiceClient;
use service::Service;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// Puts a token on every call.
#[derive(Clone)]
pub struct Bearer(Option<MetadataValue<tonic::metadata::Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

pub type Door = InterceptedService<Channel, Bearer>;

/// A door of any server, through a connection that the caller has made.
pub fn door(channel: Channel, token: Option<&str>) -> Door {
    let value = token.map(|t| format!("Bearer {t}").parse().expect("a header"));
    InterceptedService::new(channel, Bearer(value))
}

/// Where machines boot and report.
fn boot_door(service: &Service, url: &str) -> axum::Router {
    let places = boot::script::Places {
        public_url: url.to_owned(),
        installer_cmdline: "console=ttyS0".to_owned(),
        installer_kernel: "installer-vmlinuz".to_owned(),
        installer_initrd: "installer-initrd".to_owned(),
    };
    let setup = service::BootSetup {
        promoted_groups: ["promoted".to_owned()].into(),
        discovered_max: 1000,
        provider: "sim".to_owned(),
        ..service::BootSetup::default()
    };
    boot::door::router(Arc::new(boot::door::Door { service: service.clone(), setup, places, leases: None }))
}

pub struct TestServer {
    pub fleet: Fleet,
    pub engine: Engine,
    pub service: Service,
    pub url: String,
    pub token: String,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

impl TestServer {
    pub async fn start(database: Database) -> Self {
        Self::start_with(Fleet::new(database, 1), quick("test")).await
    }

    pub async fn start_with(fleet: Fleet, options: EngineOptions) -> Self {
        Self::start_serving(fleet, options, api::ServerOptions::default()).await
    }

    pub async fn start_serving(fleet: Fleet, options: EngineOptions, serving: api::ServerOptions) -> Self {
        let engine = fleet.engine(options, None);
        let service = fleet.service(&engine).await;
        let token = service::new_secret().expect("randomness");
        service.access().add_admin(&token, "tester").await.expect("a token");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        engine.start().await.expect("the engine starts");
        let serving = api::ServerOptions { beside: boot_door(&service, &url), ..serving };
        let stop = CancellationToken::new();
        let (serving_service, serving_stop) = (service.clone(), stop.clone());
        let serving = tokio::spawn(async move {
            api::serve(listener, serving_service, serving, serving_stop).await.expect("serves");
        });
        Self { fleet, engine, service, url, token, stop, serving }
    }

    /// Host and port.
    pub fn address(&self) -> &str {
        self.url.split("://").nth(1).unwrap_or_default()
    }

    async fn door(&self, token: Option<&str>) -> Door {
        let channel = Channel::from_shared(self.url.clone()).expect("a URL").connect().await.expect("connects");
        door(channel, token)
    }

    /// A connection of its own for each client, as different programs would have.
    pub async fn machines(&self) -> MachineServiceClient<Door> {
        MachineServiceClient::new(self.door(Some(&self.token)).await)
    }

    pub async fn plans(&self) -> PlanServiceClient<Door> {
        PlanServiceClient::new(self.door(Some(&self.token)).await)
    }

    pub async fn runs(&self) -> RunServiceClient<Door> {
        RunServiceClient::new(self.door(Some(&self.token)).await)
    }

    pub async fn engines(&self) -> EngineServiceClient<Door> {
        EngineServiceClient::new(self.door(Some(&self.token)).await)
    }

    /// A door with another token, or none.
    pub async fn door_with(&self, token: Option<&str>) -> Door {
        self.door(token).await
    }

    /// As SIGTERM does it.
    pub async fn stop(self) -> Fleet {
        self.service.refuse_calls();
        self.service.close();
        self.engine.stop().await;
        self.stop.cancel();
        self.serving.await.expect("stops serving");
        self.fleet
    }
}
