//! The way to the server: one channel, encrypted where the address says so, and clients that carry the token.

use super::ClientOptions;
use super::exit::{CliError, TOKEN_HINT};
use super::output::{Format, note};
use super::target::Target;
use super::tls;
use proto::baremetal::v1::machine_service_client::MachineServiceClient;
use proto::baremetal::v1::plan_service_client::PlanServiceClient;
use proto::baremetal::v1::run_service_client::RunServiceClient;
use proto::millwright::v1::audit_service_client::AuditServiceClient;
use proto::millwright::v1::boot_service_client::BootServiceClient;
use proto::millwright::v1::cluster_service_client::ClusterServiceClient;
use proto::millwright::v1::credential_service_client::CredentialServiceClient;
use proto::millwright::v1::engine_service_client::EngineServiceClient;
use proto::millwright::v1::event_service_client::EventServiceClient;
use proto::millwright::v1::explain_service_client::ExplainServiceClient;
use proto::millwright::v1::finding_service_client::FindingServiceClient;
use proto::millwright::v1::hardware_service_client::HardwareServiceClient;
use proto::millwright::v1::image_service_client::ImageServiceClient;
use proto::millwright::v1::job_service_client::JobServiceClient;
use proto::millwright::v1::node_service_client::NodeServiceClient;
use proto::millwright::v1::site_service_client::SiteServiceClient;
use proto::millwright::v1::task_service_client::TaskServiceClient;
use proto::millwright::v1::token_service_client::TokenServiceClient;
use std::path::Path;
use std::time::Duration;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest a call with one answer may take. The server's own waits are shorter.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// A watch that hears nothing asks whether the server still lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// One page of a list, at its very largest.
const ANSWER_MAX_BYTES: usize = 64 * 1024 * 1024;

/// Puts the token on every call.
#[derive(Clone)]
pub struct Bearer(MetadataValue<Ascii>);

impl Bearer {
    fn new(token: &str) -> Result<Self, CliError> {
        let mut value = MetadataValue::try_from(format!("Bearer {token}"))
            .map_err(|_| CliError::usage("the token has characters that no token has").hint(TOKEN_HINT))?;
        value.set_sensitive(true);
        Ok(Self(value))
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

/// The channel below every client.
pub type Door = InterceptedService<Channel, Bearer>;

/// A client for each service, over one connection. Cheap to clone.
#[derive(Clone)]
pub struct Clients {
    pub machines: MachineServiceClient<Door>,
    pub plans: PlanServiceClient<Door>,
    pub runs: RunServiceClient<Door>,
    pub engine: EngineServiceClient<Door>,
    pub tokens: TokenServiceClient<Door>,
    pub credentials: CredentialServiceClient<Door>,
    pub events: EventServiceClient<Door>,
    pub audit: AuditServiceClient<Door>,
    pub explain: ExplainServiceClient<Door>,
    pub hardware: HardwareServiceClient<Door>,
    pub clusters: ClusterServiceClient<Door>,
    pub boot: BootServiceClient<Door>,
    pub images: ImageServiceClient<Door>,
    pub findings: FindingServiceClient<Door>,
    pub nodes: NodeServiceClient<Door>,
    pub jobs: JobServiceClient<Door>,
    pub tasks: TaskServiceClient<Door>,
    pub sites: SiteServiceClient<Door>,
    /// For what is sent as it is: the bytes of images.
    pub door: Door,
}

/// Connects as the options say. The server must be there: a wrong address is told at once.
pub async fn connect(options: &ClientOptions) -> Result<Clients, CliError> {
    let target = Target::resolve(options)?;
    // beside JSON nothing but an error stands on stderr
    if let Some(doubt) = target.doubt().filter(|_| options.output != Format::Json) {
        note(&format!("warning: {doubt}"));
    }
    connect_as(&target).await
}

/// Connects to where the settings point.
pub async fn connect_as(target: &Target) -> Result<Clients, CliError> {
    let secret = target.secret()?;
    open(&target.server, &secret, target.ca_file.as_ref().map(|(path, _)| path.as_path())).await
}

/// Connects to a known server with a known token.
pub async fn connect_to(server: &str, token: &str) -> Result<Clients, CliError> {
    open(&super::target::address(server).map_err(CliError::usage)?, token, None).await
}

pub(super) async fn open(server: &str, token: &str, ca_file: Option<&Path>) -> Result<Clients, CliError> {
    let bearer = Bearer::new(token)?;
    let mut endpoint = Endpoint::from_shared(server.to_owned())
        .map_err(|e| CliError::usage(format!("{server}: {}", innermost(&e))))?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    if tls::is_wanted(server) {
        endpoint = tls::encrypted(&endpoint, server, ca_file)?;
    }
    let channel = match endpoint.connect().await {
        Ok(channel) => channel,
        Err(e) => return Err(tls::refusal(server, &e).unwrap_or_else(|| not_there(server, &innermost(&e)))),
    };
    let door = InterceptedService::new(channel, bearer);
    Ok(Clients {
        machines: MachineServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        plans: PlanServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        runs: RunServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        engine: EngineServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        tokens: TokenServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        credentials: CredentialServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        events: EventServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        audit: AuditServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        hardware: HardwareServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        clusters: ClusterServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        boot: BootServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        images: ImageServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        findings: FindingServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        nodes: NodeServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        jobs: JobServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        sites: SiteServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        tasks: TaskServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        door: door.clone(),
        explain: ExplainServiceClient::new(door).max_decoding_message_size(ANSWER_MAX_BYTES),
    })
}

fn not_there(server: &str, why: &str) -> CliError {
    CliError::unreachable(format!("cannot reach {server}: {why}"))
        .hint("is `millwright serve` running there? --server, MILLWRIGHT_SERVER or --context names another address")
}

/// One call with one answer, within a bounded time.
pub async fn call<T>(answer: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, CliError> {
    match tokio::time::timeout(CALL_TIMEOUT, answer).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(CliError::unreachable(format!("the server did not answer within {} s", CALL_TIMEOUT.as_secs()))),
    }
}

pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unreachable_server_is_told_at_once() {
        let error = connect_to("127.0.0.1:1", "t").await.map(|_| ()).expect_err("nobody listens there");
        assert_eq!(error.exit().code(), 6);
        assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    }
}
