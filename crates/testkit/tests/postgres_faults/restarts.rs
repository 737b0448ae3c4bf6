//! The server is stopped, crashes and comes back while clients keep asking and runs are under way.

use crate::fixture::{Told, Witness, blocking, from_environment, told};
use crate::load::Load;
use proto::baremetal::v1 as pb;
use std::sync::Arc;
use testkit::fleet::{Fleet, quick};
use testkit::postgres::{Cluster, Durability};
use testkit::server::TestServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_and_crashed_under_load_it_loses_nothing_and_fails_no_run() {
    let cluster = Arc::new(blocking(|| Cluster::start(Durability::Stock)).await);
    let maker = cluster.clone();
    let database = blocking(move || maker.database()).await;
    let options = store::Options::Postgres(Box::new(database.clone()));
    let server = TestServer::start_with(blocking(move || Fleet::on_database(&options, 1)).await, quick("test")).await;
    let load = Load::on(&server, 6, 4).await;
    let rounds = from_environment("MILLWRIGHT_FAULT_ROUNDS", 1);
    load.some_more("the first work").await;
    for _ in 0..rounds {
        for down in [Cluster::stop, Cluster::kill] {
            let victim = cluster.clone();
            blocking(move || down(&victim)).await;
            load.a_refusal().await;
            let request = pb::GetMachineRequest { machine_id: "moved-0".into() };
            let away = told(server.machines().await.get_machine(request).await, "while it is away");
            assert!(matches!(away, Told::NotDone), "{away:?}");
            let healed = cluster.clone();
            blocking(move || healed.start_again()).await;
            load.some_more("work goes on").await;
        }
    }
    let sum = load.finish(&Witness::on(&database).await, &server).await;
    println!("restarts: {} of PostgreSQL, {sum}", 2 * rounds);
    let fleet = server.stop().await;
    blocking(move || fleet.store.close()).await;
}
