//! Two servers on one PostgreSQL: to a client they are one.

use crate::fixture::{ByHand, brisk, is_terminal, sim_machine, start, within};
use crate::refusal::refused;
use engine::{Engine, EngineOptions};
use futures::future::join_all;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_service_client::MachineServiceClient;
use proto::baremetal::v1::machine_status::Phase;
use proto::baremetal::v1::run::Phase as RunPhase;
use provider::Providers;
use sim::SimFleet;
use std::collections::BTreeSet;
use std::sync::Arc;
use store::{Ambient, Options, Store};
use testkit::ambient::VirtualAmbient;
use testkit::fleet::eventually;
use testkit::server::door;
use tonic::{Code, Status, Streaming};

pub struct Two {
    pub servers: [ByHand; 2],
    sim: Arc<SimFleet>,
}

impl Two {
    pub async fn start() -> Self {
        let ambient: Arc<dyn Ambient> = VirtualAmbient::new(1);
        let clock = ambient.clone();
        let sim = Arc::new(SimFleet::in_memory(1, Arc::new(move || clock.now())));
        let stores = tokio::task::spawn_blocking(move || {
            let options = Options::Postgres(Box::new(testkit::postgres::database()));
            ["a", "b"].map(|_| Store::open(&options, ambient.clone()).expect("the store opens"))
        });
        let [one, two] = stores.await.expect("stores");
        Self { servers: [serve(one, "a", &sim).await, serve(two, "b", &sim).await], sim }
    }

    pub async fn register(&self, id: &str, labels: &[(&str, &str)]) {
        let request = pb::RegisterMachineRequest { machine: Some(sim_machine(id, labels)) };
        self.servers[0].machines().await.register_machine(request).await.expect("registers");
    }

    /// The same call to both servers in turn, all at once.
    async fn at_once(&self, requests: Vec<pb::StartRunRequest>) -> Vec<Result<pb::Run, Status>> {
        let mut calls = Vec::new();
        for (i, request) in requests.into_iter().enumerate() {
            let mut client = self.servers[i % 2].runs().await;
            calls.push(async move { client.start_run(request).await.map(tonic::Response::into_inner) });
        }
        join_all(calls).await
    }

    async fn run(&self, server: usize, id: &str) -> pb::Run {
        let request = pb::GetRunRequest { run_id: id.into() };
        self.servers[server].runs().await.get_run(request).await.expect("is there").into_inner()
    }

    async fn ended(&self, id: &str) -> pb::Run {
        eventually("the run to end", || async { Some(self.run(1, id).await).filter(is_terminal) }).await
    }

    async fn watch(&self, server: usize) -> Streaming<pb::RunEvent> {
        let request = pb::WatchRunsRequest { filter: String::new(), after_sequence: Some(0) };
        self.servers[server].runs().await.watch_runs(request).await.expect("begins").into_inner()
    }
}

async fn serve(store: Store, instance: &str, sim: &Arc<SimFleet>) -> ByHand {
    let providers = Providers::default().with("sim", sim.clone());
    let workflow = Arc::new(workflow::RunWorkflow::new(providers.clone()));
    let options = EngineOptions { instance_id: instance.into(), ..brisk() };
    let engine = Engine::new(store.clone(), options, vec![workflow], None);
    let (vault, limits) = (testkit::fleet::vault(&store), service::CallerLimits::default());
    let service =
        service::Service::with_vault(store, engine.clone(), providers, limits, vault).await.expect("a service");
    engine.start().await.expect("the engine starts");
    ByHand::serve(service).await
}

// G-12-03, G-20-07: enforced at store level, not in a process
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_starts_through_two_servers_have_one_winner() {
    let two = Two::start().await;
    two.register("m-1", &[("sim.fault.repave", "hang")]).await;
    let requests = (0..10).map(|i| start("m-1", "REPAVE", &format!("req-{i}"))).collect();
    let (won, lost): (Vec<_>, Vec<_>) = two.at_once(requests).await.into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 9));
    let winner = won.into_iter().next().and_then(Result::ok).expect("one").run_id;
    for refusal in lost {
        assert_eq!(refused(refusal, Code::FailedPrecondition, "ACTIVE_RUN").details["run_id"], winner);
    }
}

// G-12-02, T-23: a client may repeat its request at the other server
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_starts_with_the_same_id_through_two_servers_are_one_run() {
    let two = Two::start().await;
    two.register("m-1", &[]).await;
    let answers = two.at_once(vec![start("m-1", "REPAVE", "req-1"); 10]).await;
    let ids: BTreeSet<String> = answers.into_iter().map(|r| r.expect("is answered").run_id).collect();
    assert_eq!(ids.len(), 1);
    let id = ids.into_iter().next().expect("one");
    assert_eq!(two.ended(&id).await.phase(), RunPhase::Succeeded);
    let effects = two.sim.effects().expect("a journal");
    assert_eq!(effects.iter().filter(|e| e.kind == "repave_started").count(), 1, "and carried out once");
}

// a watcher never misses a row, with several processes
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_of_either_server_see_every_event_of_both() {
    let two = Two::start().await;
    let streams = [two.watch(0).await, two.watch(1).await];
    for i in 0..12 {
        two.register(&format!("m-{i}"), &[]).await;
    }
    let requests = (0..12).map(|i| start(&format!("m-{i}"), "REPAVE", "req-1")).collect();
    for started in two.at_once(requests).await {
        started.expect("starts");
    }
    let seen = join_all(streams.map(|mut stream| async move {
        let (mut events, mut ended) = (Vec::new(), 0);
        while ended < 12 {
            let event = within("an event", stream.message()).await.expect("no error").expect("an event");
            ended += usize::from(event.snapshot.as_ref().is_some_and(is_terminal));
            events.push(event);
        }
        events
    }))
    .await;
    assert_eq!(seen[0], seen[1]);
    assert!(seen[0].windows(2).all(|w| w[0].sequence < w[1].sequence));
    let versions: u64 =
        seen[0].iter().filter_map(|e| e.snapshot.as_ref()).filter(|r| is_terminal(r)).map(|r| r.version).sum();
    assert_eq!(versions, seen[0].len() as u64, "as many events as there were changes");
}

// CancelRun reaches the server that works on it
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_through_either_server_reaches_the_one_that_works() {
    let two = Two::start().await;
    for (i, server) in [(0, 0), (1, 1), (2, 0), (3, 1)] {
        let id = format!("m-{i}");
        two.register(&id, &[("sim.fault.repave", "hang")]).await;
        let run = two.at_once(vec![start(&id, "REPAVE", "req-1")]).await.pop().expect("one").expect("starts");
        eventually("the run to be at its second step", || async {
            (two.run(0, &run.run_id).await.current_step == "repave").then_some(())
        })
        .await;
        let request = pb::CancelRunRequest { run_id: run.run_id.clone() };
        let canceled = two.servers[server].runs().await.cancel_run(request).await.expect("cancels").into_inner();
        assert_eq!(canceled.phase(), RunPhase::Canceled, "{canceled:?}");
        let request = pb::GetMachineRequest { machine_id: id };
        let machine = two.servers[1 - server].machines().await.get_machine(request).await.expect("is there");
        assert_eq!(machine.into_inner().status.expect("a status").phase(), Phase::Maintenance);
    }
}

// logs are read from storage, so either server has them
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_are_followed_through_either_server() {
    let two = Two::start().await;
    two.register("m-1", &[]).await;
    let run = two.at_once(vec![start("m-1", "UPGRADE", "req-1")]).await.pop().expect("one").expect("starts");
    let follow = |server: usize| {
        let (two, run_id) = (&two, run.run_id.clone());
        async move {
            let request = pb::StreamRunLogsRequest { run_id, ..Default::default() };
            let mut stream =
                two.servers[server].runs().await.stream_run_logs(request).await.expect("begins").into_inner();
            let mut chunks = Vec::new();
            while let Some(chunk) = within("a chunk", stream.message()).await.expect("no error") {
                chunks.push(chunk);
            }
            chunks
        }
    };
    let (one, other) = tokio::join!(follow(0), follow(1));
    assert_eq!(one, other);
    assert!(!one.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_change_sent_to_both_servers_at_once_is_made_once_and_answered_alike() {
    let two = Two::start().await;
    two.register("m-1", &[]).await;
    // keys are their caller's: it is one caller that goes to both
    let token = Some(two.servers[0].token.as_str());
    let mut clients = Vec::new();
    for server in &two.servers {
        clients.push(MachineServiceClient::new(door(crate::raw::channel(&server.url).await, token)));
    }
    let get = pb::GetMachineRequest { machine_id: "m-1".into() };
    for n in 0..30 {
        let before = clients[0].clone().get_machine(get.clone()).await.expect("is there").into_inner().version;
        let calls = clients.iter().map(|client| {
            let mut client = client.clone();
            let machine = pb::Machine {
                machine_id: "m-1".into(),
                labels: [("count".to_owned(), n.to_string())].into(),
                version: before,
                ..pb::Machine::default()
            };
            let mut request =
                tonic::Request::new(pb::UpdateMachineRequest { machine: Some(machine), update_mask: None });
            request.metadata_mut().insert("x-idempotency-key", format!("count {n}").parse().expect("printable"));
            async move { client.update_machine(request).await }
        });
        for answer in join_all(calls).await {
            let machine = answer.unwrap_or_else(|e| panic!("{n}: the twin of a change that was made: {e:?}"));
            assert_eq!(machine.into_inner().version, before + 1, "{n}: made once");
        }
    }
}
