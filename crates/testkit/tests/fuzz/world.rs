//! A server without an engine that works, so that nothing changes but by the calls that are made; and a look at
//! its database from beside, to see whether it did.

use domain::machine::Phase;
use service::{CallerLimits, PageRequest, Service};
use std::time::Duration;
use testkit::fleet::{Database, Fleet, admin, labelled, quick, start};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// A request whose rest never comes is given up soon.
const SOON: Duration = Duration::from_millis(250);

pub struct World {
    pub runtime: Runtime,
    pub service: Service,
    pub address: String,
    pub token: String,
    beside: rusqlite::Connection,
    counts: String,
    _fleet: Fleet,
}

impl World {
    /// With a few machines, a plan, a run that waits, a second token.
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let fleet = {
            let _inside = runtime.enter();
            Fleet::new(Database::Sqlite, 1)
        };
        let (service, address, token) = runtime.block_on(serve(&fleet));
        let beside = rusqlite::Connection::open(fleet.database_file().expect("a file")).expect("opens");
        let counts = counts(&beside);
        Self { runtime, service, address, token, beside, counts, _fleet: fleet }
    }

    /// How much of everything there is, refusals on record apart.
    pub fn state(&self) -> Vec<i64> {
        let mut statement = self.beside.prepare_cached(&self.counts).expect("prepared");
        let columns = statement.column_count();
        statement.query_row([], |row| (0..columns).map(|i| row.get(i)).collect()).expect("counted")
    }

    /// Ids that inputs can name and nobody can know beforehand.
    pub fn ids(&self) -> (String, String) {
        self.runtime.block_on(async {
            let page = PageRequest::default();
            let runs = self.service.list_runs(&admin(), &page).await.expect("lists");
            let tokens = self.service.list_tokens(&page).await.expect("lists");
            (runs.items[0].run.id.to_string(), tokens.items[0].id.to_string())
        })
    }
}

async fn serve(fleet: &Fleet) -> (Service, String, String) {
    let engine = fleet.engine(quick("fuzz"), None);
    let limits = CallerLimits { calls_per_second: u32::MAX, burst: u32::MAX, streams: 100_000 };
    let service = Service::new(fleet.store.clone(), engine, fleet.providers(), limits).await.expect("a service");
    let token = service::new_secret().expect("randomness");
    service.access().add_admin(&token, "fuzzer").await.expect("a token");
    for (id, labels) in [("m-1", [("env", "prod")]), ("m-2", [("env", "test")]), ("m-3", [("a.b", "c d")])] {
        service.register_machine(&admin(), labelled(id, &labels)).await.expect("registers");
    }
    service.set_phase(&admin(), "m-2", Phase::Ready, "a test").await.expect("set");
    service.start_run(&admin(), start("m-3", "REBOOT", "r-1")).await.expect("starts");
    let new = service::NewToken { name: "v".into(), role: "viewer".into(), ..Default::default() };
    service.create_token(&admin(), new).await.expect("made");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let options = api::ServerOptions { headers_within: SOON, body_within: SOON, ..Default::default() };
    tokio::spawn(api::serve(listener, service.clone(), options, CancellationToken::new()));
    (service, address, token)
}

/// One statement that counts the rows of every table but the audit's, which grows with every refusal.
fn counts(beside: &rusqlite::Connection) -> String {
    let mut statement = beside.prepare("SELECT name FROM sqlite_master WHERE type = 'table'").expect("prepared");
    let names = statement.query_map([], |row| row.get::<_, String>(0)).expect("listed");
    let mut parts = vec!["(SELECT seq FROM log_head)".to_owned(), "(SELECT sum(version) FROM machines)".to_owned()];
    for name in names.map(|name| name.expect("a name")) {
        if name != "audit" && !name.starts_with("sqlite_") {
            parts.push(format!("(SELECT count(*) FROM {name})"));
        }
    }
    assert!(parts.len() > 15, "found the tables: {parts:?}");
    format!("SELECT {}", parts.join(", "))
}
