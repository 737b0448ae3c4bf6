//! The way to the server: address, token, one channel, and clients that carry the token.

use super::ClientOptions;
use super::exit::{CliError, TOKEN_HINT};
use proto::baremetal::v1::machine_service_client::MachineServiceClient;
use proto::baremetal::v1::plan_service_client::PlanServiceClient;
use proto::baremetal::v1::run_service_client::RunServiceClient;
use proto::millwright::v1::engine_service_client::EngineServiceClient;
use std::path::Path;
use std::time::Duration;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

pub const DEFAULT_SERVER: &str = "http://127.0.0.1:7700";
/// Where `serve` leaves the administrator's token when it is started in this folder.
const LOCAL_TOKEN: &str = "./millwright-data/admin.token";
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
}

/// Connects as the options say. The server must be there: a wrong address is told at once.
pub async fn connect(options: &ClientOptions) -> Result<Clients, CliError> {
    connect_to(&options.server, &token(options)?).await
}

/// Connects to a known server with a known token.
pub async fn connect_to(server: &str, token: &str) -> Result<Clients, CliError> {
    let server = address(server)?;
    let bearer = Bearer::new(token)?;
    let endpoint = Endpoint::from_shared(server.clone())
        .map_err(|e| CliError::usage(format!("--server {server}: {}", innermost(&e))))?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    let channel = endpoint.connect().await.map_err(|e| {
        CliError::unreachable(format!("cannot reach {server}: {}", innermost(&e)))
            .hint("is `millwright serve` running there? --server or MILLWRIGHT_SERVER names another address")
    })?;
    let door = InterceptedService::new(channel, bearer);
    Ok(Clients {
        machines: MachineServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        plans: PlanServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        runs: RunServiceClient::new(door.clone()).max_decoding_message_size(ANSWER_MAX_BYTES),
        engine: EngineServiceClient::new(door).max_decoding_message_size(ANSWER_MAX_BYTES),
    })
}

/// One call with one answer, within a bounded time.
pub async fn call<T>(answer: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, CliError> {
    match tokio::time::timeout(CALL_TIMEOUT, answer).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(CliError::unreachable(format!("the server did not answer within {} s", CALL_TIMEOUT.as_secs()))),
    }
}

/// `host:port` is enough; a scheme may stand before it.
fn address(server: &str) -> Result<String, CliError> {
    let server = server.trim().trim_end_matches('/');
    match server.split_once("://") {
        _ if server.is_empty() => Err(CliError::usage("--server is empty")),
        None => Ok(format!("http://{server}")),
        Some(("http", _)) => Ok(server.to_owned()),
        Some((scheme, _)) => Err(CliError::usage(format!("--server {server}: {scheme} is not supported, use http"))),
    }
}

/// The token: from the file that was named, else as given, else from the data folder beside us.
fn token(options: &ClientOptions) -> Result<String, CliError> {
    if let Some(path) = &options.token_file {
        return read_token(path)
            .map_err(|e| CliError::denied(format!("--token-file {}: {e}", path.display())).hint(TOKEN_HINT));
    }
    if let Some(token) = options.token.as_deref().map(str::trim).filter(|token| !token.is_empty()) {
        return Ok(token.to_owned());
    }
    let local = Path::new(LOCAL_TOKEN);
    read_token(local).map_err(|e| {
        let tried = match e.kind() {
            std::io::ErrorKind::NotFound => format!("there is no {LOCAL_TOKEN}"),
            _ => format!("{LOCAL_TOKEN}: {e}"),
        };
        CliError::denied(format!("no token was given, and {tried}")).hint(TOKEN_HINT)
    })
}

fn read_token(path: &Path) -> std::io::Result<String> {
    let token = std::fs::read_to_string(path)?.trim().to_owned();
    if token.is_empty() {
        return Err(std::io::Error::other("the file is empty"));
    }
    Ok(token)
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::*;

    fn options(token: Option<&str>, token_file: Option<&Path>) -> ClientOptions {
        ClientOptions {
            server: DEFAULT_SERVER.to_owned(),
            token: token.map(str::to_owned),
            token_file: token_file.map(Path::to_path_buf),
            output: Format::Table,
        }
    }

    #[test]
    fn addresses_need_no_scheme_and_have_no_wrong_one() {
        assert_eq!(address("127.0.0.1:7700/").expect("an address"), "http://127.0.0.1:7700");
        assert_eq!(address("http://h:1").expect("an address"), "http://h:1");
        assert_eq!(address("https://h:1").expect_err("no TLS yet").exit().code(), 2);
        assert_eq!(address(" ").expect_err("empty").exit().code(), 2);
    }

    #[test]
    fn the_file_wins_over_the_token_and_is_trimmed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        std::fs::write(&path, "mw_secret\n").expect("written");
        assert_eq!(token(&options(Some("other"), Some(&path))).expect("a token"), "mw_secret");
        assert_eq!(token(&options(Some(" given "), None)).expect("a token"), "given");
    }

    #[test]
    fn without_a_token_it_says_how_to_give_one() {
        let missing = Path::new("/nonexistent/token");
        let error = token(&options(None, Some(missing))).expect_err("there is none");
        assert_eq!(error.exit().code(), 5);
        assert!(error.to_string().contains("/nonexistent/token"));
    }

    #[tokio::test]
    async fn an_unreachable_server_is_told_at_once() {
        let error = connect_to("127.0.0.1:1", "t").await.map(|_| ()).expect_err("nobody listens there");
        assert_eq!(error.exit().code(), 6);
        assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    }
}
