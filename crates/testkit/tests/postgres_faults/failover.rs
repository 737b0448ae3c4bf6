//! A primary, its synchronous standby, and both given to the store by name. The primary dies and the standby
//! is promoted; the old primary comes back as if nothing had happened; the standby goes away.

use crate::fixture::{Witness, blocking};
use crate::load::Load;
use std::sync::Arc;
use store::{Caller, Options, Store, Tx};
use testkit::fleet::{Fleet, eventually, quick};
use testkit::postgres::{Cluster, Durability};
use testkit::server::TestServer;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

struct Pair {
    primary: Arc<Cluster>,
    standby: Arc<Cluster>,
    database: String,
}

impl Pair {
    async fn start() -> Self {
        blocking(|| {
            let primary = Cluster::start(Durability::Stock);
            let database = primary.database().get_dbname().expect("a name").to_owned();
            let standby = primary.with_standby();
            Self { primary: Arc::new(primary), standby: Arc::new(standby), database }
        })
        .await
    }

    /// Both, the first primary first.
    fn both(&self) -> Config {
        let mut both = self.primary.config(&self.database);
        match self.standby.config(&self.database).get_hosts() {
            [Host::Unix(folder)] => both.host_path(folder),
            other => panic!("{other:?}"),
        };
        both
    }
}

async fn on(cluster: &Arc<Cluster>, f: impl FnOnce(&Cluster) + Send + 'static) {
    let cluster = cluster.clone();
    blocking(move || f(&cluster)).await;
}

/// Ends every session but the one that asks.
const END_SESSIONS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_on_with_the_standby_and_never_back_to_the_old_primary() {
    let pair = Pair::start().await;
    let options = Options::Postgres(Box::new(pair.both()));
    let server = TestServer::start_with(blocking(move || Fleet::on_database(&options, 1)).await, quick("test")).await;
    let load = Load::on(&server, 6, 4).await;
    load.some_more("the first work").await;
    on(&pair.primary, Cluster::kill).await;
    load.a_refusal().await;
    on(&pair.standby, Cluster::promote).await;
    load.some_more("work goes on with the standby").await;

    // the old primary is back and takes itself for the only one; all have to connect anew, to it first
    on(&pair.primary, Cluster::start_again).await;
    let old = Witness::on(&pair.primary.config(&pair.database)).await;
    let head = old.count("transitions WHERE $1 = ''", "").await;
    for _ in 0..2 {
        on(&pair.standby, |standby| standby.execute(END_SESSIONS)).await;
        load.some_more("work goes on where it was").await;
    }
    // nor does a server that starts only now, and has seen nothing of it
    let both = Options::Postgres(Box::new(pair.both()));
    let fresh = blocking(move || Store::open(&both, Arc::new(store::SystemAmbient::new())).expect("opens")).await;
    let seen = fresh.read(store::log_range).await.expect("reads").head;
    assert!(i64::try_from(seen).expect("a count") > head, "a new server began with the old primary");
    blocking(move || fresh.close()).await;
    let strangers = old
        .count("pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND $1 = ''", "")
        .await;
    assert_eq!(strangers, 0, "somebody has stayed with the old primary");
    assert_eq!(old.count("transitions WHERE $1 = ''", "").await, head, "something was written to the old primary");
    let sum = load.finish(&Witness::on(&pair.standby.config(&pair.database)).await, &server).await;
    println!("failover: {sum}");
    let fleet = server.stop().await;
    blocking(move || fleet.store.close()).await;
}

// what was committed waits for the standby; who waits for it must not use up the server's connections
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_is_away_holds_commits_up_and_nothing_else() {
    let pair = Pair::start().await;
    let options = Options::Postgres(Box::new(pair.both()));
    let store = blocking(move || Store::open(&options, Arc::new(store::SystemAmbient::new())).expect("opens")).await;
    let witness = Witness::on(&pair.primary.config(&pair.database)).await;
    let add = |n: usize| {
        // rows that nobody else touches, and no row of the log: only the commit is waited for
        let key = format!("waits-{n}");
        let put = move |tx: &mut Tx<'_>| store::idempotency::remember(tx, "test", &key, "", "");
        let store = store.clone();
        async move { store.write(&Caller::new("tester"), "key", put).await.map_err(|e| e.reason) }
    };
    assert_eq!(add(0).await, Ok(()));
    on(&pair.standby, Cluster::stop).await;
    let mut unknown = 0;
    for n in 1..=6 {
        match add(n).await {
            Err(domain::Reason::OutcomeUnknown) => unknown += 1,
            Err(domain::Reason::StoreUnavailable) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(unknown > 0, "nobody has waited for the standby");
    let waiting = witness.count("pg_stat_activity WHERE wait_event = 'SyncRep' AND $1 = ''", "").await;
    assert!((1..=3).contains(&waiting), "{waiting} sessions of the server wait for the standby");
    on(&pair.standby, Cluster::start_again).await;
    eventually("writes to work again", || async { (add(7).await == Ok(())).then_some(()) }).await;
    let there = witness.count("idempotency WHERE scope = 'test' AND request_key LIKE 'waits-%' AND $1 = ''", "").await;
    assert_eq!(there, 2 + unknown, "what is not known to be done was done when the standby came back");
    blocking(move || store.close()).await;
}
