//! Callers of every kind: tokens made through the API, and the clients that carry them.

use crate::fixture::{Api, sim_machine};
use crate::raw;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_service_client::MachineServiceClient;
use proto::baremetal::v1::plan_service_client::PlanServiceClient;
use proto::baremetal::v1::run_service_client::RunServiceClient;
use proto::millwright::v1 as mw;
use proto::millwright::v1::audit_service_client::AuditServiceClient;
use proto::millwright::v1::cluster_service_client::ClusterServiceClient;
use proto::millwright::v1::credential_service_client::CredentialServiceClient;
use proto::millwright::v1::engine_service_client::EngineServiceClient;
use proto::millwright::v1::event_service_client::EventServiceClient;
use proto::millwright::v1::explain_service_client::ExplainServiceClient;
use proto::millwright::v1::hardware_service_client::HardwareServiceClient;
use proto::millwright::v1::site_service_client::SiteServiceClient;
use proto::millwright::v1::token_service_client::TokenServiceClient;
use testkit::server::Door;
use tonic::{Request, Status};

/// A token and a connection that carries it.
#[derive(Clone)]
pub struct Caller {
    pub token: mw::Token,
    pub secret: String,
    door: Door,
}

macro_rules! clients {
    ($($name:ident: $client:ident),+ $(,)?) => {
        impl Caller {
            $(pub fn $name(&self) -> $client<Door> {
                $client::new(self.door.clone())
            })+
        }
    };
}

clients! {
    machines: MachineServiceClient,
    plans: PlanServiceClient,
    runs: RunServiceClient,
    engines: EngineServiceClient,
    tokens: TokenServiceClient,
    credentials: CredentialServiceClient,
    events: EventServiceClient,
    audit: AuditServiceClient,
    explain: ExplainServiceClient,
    hardware: HardwareServiceClient,
    clusters: ClusterServiceClient,
    sites: SiteServiceClient,
}

impl Caller {
    /// Makes a token; its id and its secret.
    pub async fn make(&self, name: &str, role: &str, customer: &str, ttl_seconds: i64) -> (mw::Token, String) {
        let request =
            mw::CreateTokenRequest { name: name.into(), role: role.into(), customer_id: customer.into(), ttl_seconds };
        let created = self.tokens().create_token(request).await.expect("makes a token").into_inner();
        (created.token.expect("a token"), created.secret)
    }

    /// Entries that match, newest first.
    pub async fn entries(&self, filter: &str) -> Vec<mw::AuditEntry> {
        let request = mw::ListAuditRequest { filter: filter.into(), page_size: 1000, page_token: String::new() };
        self.audit().list_audit(request).await.expect("lists").into_inner().entries
    }

    pub async fn revoke(&self, token_id: &str) -> Result<mw::Token, Status> {
        let request = mw::RevokeTokenRequest { token_id: token_id.into() };
        Ok(self.tokens().revoke_token(request).await?.into_inner())
    }

    pub async fn me(&self) -> Result<mw::Me, Status> {
        Ok(self.tokens().get_me(mw::GetMeRequest {}).await?.into_inner())
    }

    pub async fn machine(&self, id: &str) -> Result<pb::Machine, Status> {
        Ok(self.machines().get_machine(pb::GetMachineRequest { machine_id: id.into() }).await?.into_inner())
    }

    pub async fn machine_ids(&self, filter: &str) -> Vec<String> {
        let request = pb::ListMachinesRequest { filter: filter.into(), page_size: 1000, page_token: String::new() };
        let listed = self.machines().list_machines(request).await.expect("lists").into_inner();
        assert_eq!(listed.next_page_token, "");
        listed.machines.into_iter().map(|m| m.machine_id).collect()
    }

    pub async fn run_ids(&self, filter: &str) -> Vec<String> {
        let request = pb::ListRunsRequest { filter: filter.into(), page_size: 1000, page_token: String::new() };
        let listed = self.runs().list_runs(request).await.expect("lists").into_inner();
        listed.runs.into_iter().map(|r| r.run_id).collect()
    }

    pub async fn start(&self, request: pb::StartRunRequest) -> Result<pb::Run, Status> {
        Ok(self.runs().start_run(request).await?.into_inner())
    }

    /// Everything in the log that this caller may see, from its beginning.
    pub async fn all_events(&self, filter: &str) -> Vec<mw::Event> {
        let request = mw::WatchEventsRequest { filter: filter.into(), after: Some(0), no_follow: true };
        let mut stream = self.events().watch_events(request).await.expect("begins").into_inner();
        let mut events = Vec::new();
        while let Some(event) = stream.message().await.expect("no error") {
            events.push(event);
        }
        events
    }
}

/// Whoever holds this secret, at any server.
pub async fn caller_at(url: &str, secret: &str) -> Caller {
    let door = testkit::server::door(raw::channel(url).await, Some(secret));
    let mut caller = Caller { token: mw::Token::default(), secret: secret.to_owned(), door };
    let me = caller.me().await.expect("is known");
    caller.token = mw::Token { token_id: me.token_id, name: me.name, role: me.role, ..Default::default() };
    caller
}

/// The administrator that every test server begins with.
pub async fn root(api: &Api) -> Caller {
    caller_at(&api.server.url, &api.server.token).await
}

/// A new token, for as long as the test lasts.
pub async fn caller(api: &Api, name: &str, role: &str, customer: &str) -> Caller {
    caller_for(api, name, role, customer, 0).await
}

pub async fn caller_for(api: &Api, name: &str, role: &str, customer: &str, ttl_seconds: i64) -> Caller {
    let (token, secret) = root(api).await.make(name, role, customer, ttl_seconds).await;
    let door = api.server.door_with(Some(&secret)).await;
    Caller { token, secret, door }
}

/// A simulated machine of a customer's.
pub fn machine_of(customer: &str, id: &str, labels: &[(&str, &str)]) -> pb::Machine {
    let mut machine = sim_machine(id, labels);
    machine.spec.as_mut().expect("a spec").customer_id = customer.into();
    machine
}

/// Gives a machine to another customer.
pub async fn hand_over(api: &Api, id: &str, customer: &str) {
    api.machines().update_machine(handing_over(id, customer)).await.expect("changes hands");
}

pub fn handing_over(id: &str, customer: &str) -> pb::UpdateMachineRequest {
    pb::UpdateMachineRequest {
        machine: Some(machine_of(customer, id, &[])),
        update_mask: Some(prost_reflect::prost_types::FieldMask { paths: vec!["spec.customer_id".into()] }),
    }
}

/// The same request with a key by which it can be repeated.
pub fn keyed<T>(message: T, key: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("x-idempotency-key", key.parse().expect("a header"));
    request
}
