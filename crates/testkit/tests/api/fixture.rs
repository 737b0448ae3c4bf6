//! A server with its clients, and the small things most tests begin with.

use crate::raw::{self, Signed};
use engine::EngineOptions;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_service_client::MachineServiceClient;
use proto::baremetal::v1::machine_status::Phase;
use proto::baremetal::v1::plan_service_client::PlanServiceClient;
use proto::baremetal::v1::run::Phase as RunPhase;
use proto::baremetal::v1::run_service_client::RunServiceClient;
use proto::baremetal::v1::step::Kind;
use proto::millwright::v1 as mw;
use proto::millwright::v1::engine_service_client::EngineServiceClient;
use sim::Effect;
use std::collections::BTreeMap;
use std::time::Duration;
use testkit::fleet::{Database, Fleet, eventually, quick};
use testkit::server::{Door, TestServer};
use tonic::Status;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

/// Runs one body on both databases: `name::sqlite` and `name::postgres`.
macro_rules! on_both {
    ($name:ident, |$api:ident| $body:expr) => {
        crate::fixture::on_both!($name, crate::fixture::brisk(), |$api| $body);
    };
    ($name:ident, $options:expr, |$api:ident| $body:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            async fn body($api: crate::fixture::Api) {
                $body.await
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                body(crate::fixture::Api::with(testkit::fleet::Database::Sqlite, $options).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                body(crate::fixture::Api::with(testkit::fleet::Database::Postgres, $options).await).await;
            }
        }
    };
}
pub(crate) use on_both;

/// A call that hangs is given up soon, so that nobody waits long for what never answers.
pub fn brisk() -> EngineOptions {
    EngineOptions { call_timeout: Duration::from_millis(300), ..quick("test") }
}

/// A slow call is waited for.
pub fn patient() -> EngineOptions {
    EngineOptions { call_timeout: Duration::from_secs(3), lease: Duration::from_secs(10), ..quick("test") }
}

pub struct Api {
    pub server: TestServer,
    machines: MachineServiceClient<Door>,
    plans: PlanServiceClient<Door>,
    runs: RunServiceClient<Door>,
    engines: EngineServiceClient<Door>,
}

impl Api {
    pub async fn new() -> Self {
        Self::with(Database::Sqlite, brisk()).await
    }

    pub async fn with(database: Database, options: EngineOptions) -> Self {
        // on a thread where blocking is allowed, and still on this runtime's clock
        let fleet = tokio::task::spawn_blocking(move || Fleet::new(database, 1)).await.expect("a fleet");
        let server = TestServer::start_with(fleet, options).await;
        let (machines, plans) = (server.machines().await, server.plans().await);
        let (runs, engines) = (server.runs().await, server.engines().await);
        Self { server, machines, plans, runs, engines }
    }

    /// Handles are cheap: each call takes its own.
    pub fn machines(&self) -> MachineServiceClient<Door> {
        self.machines.clone()
    }

    pub fn plans(&self) -> PlanServiceClient<Door> {
        self.plans.clone()
    }

    pub fn runs(&self) -> RunServiceClient<Door> {
        self.runs.clone()
    }

    pub fn engines(&self) -> EngineServiceClient<Door> {
        self.engines.clone()
    }

    pub async fn try_register(&self, machine: pb::Machine) -> Result<pb::Machine, Status> {
        let request = pb::RegisterMachineRequest { machine: Some(machine) };
        Ok(self.machines().register_machine(request).await?.into_inner())
    }

    pub async fn register(&self, machine: pb::Machine) -> pb::Machine {
        self.try_register(machine).await.expect("registers")
    }

    /// A simulated machine with these labels.
    pub async fn sim(&self, id: &str, labels: &[(&str, &str)]) -> pb::Machine {
        self.register(sim_machine(id, labels)).await
    }

    pub async fn try_machine(&self, id: &str) -> Result<pb::Machine, Status> {
        Ok(self.machines().get_machine(pb::GetMachineRequest { machine_id: id.into() }).await?.into_inner())
    }

    pub async fn machine(&self, id: &str) -> pb::Machine {
        self.try_machine(id).await.expect("the machine is there")
    }

    pub async fn status(&self, id: &str) -> pb::MachineStatus {
        self.machine(id).await.status.expect("a machine has a status")
    }

    pub async fn phase(&self, id: &str) -> Phase {
        self.status(id).await.phase()
    }

    /// The condition of that type, if the machine has one.
    pub async fn condition(&self, id: &str, kind: &str) -> Option<pb::Condition> {
        self.status(id).await.conditions.into_iter().find(|c| c.r#type == kind)
    }

    pub async fn needs_intervention(&self, id: &str) -> bool {
        self.condition(id, "NeedsIntervention").await.is_some_and(|c| c.status)
    }

    pub async fn try_set_phase(&self, id: &str, phase: Phase) -> Result<pb::Machine, Status> {
        let request = pb::SetPhaseRequest { machine_id: id.into(), phase: phase.into(), reason: "a test".into() };
        Ok(self.machines().set_phase(request).await?.into_inner())
    }

    pub async fn set_phase(&self, id: &str, phase: Phase) -> pb::Machine {
        self.try_set_phase(id, phase).await.expect("the phase is set")
    }

    /// All machines that match, over as many pages as it takes.
    pub async fn list_machines(&self, filter: &str) -> Vec<pb::Machine> {
        let mut request = pb::ListMachinesRequest { filter: filter.into(), ..Default::default() };
        let mut all = Vec::new();
        loop {
            let page = self.machines().list_machines(request.clone()).await.expect("lists").into_inner();
            all.extend(page.machines);
            if page.next_page_token.is_empty() {
                return all;
            }
            request.page_token = page.next_page_token;
        }
    }

    pub async fn machine_ids(&self, filter: &str) -> Vec<String> {
        self.list_machines(filter).await.into_iter().map(|m| m.machine_id).collect()
    }

    pub async fn try_create_plan(&self, plan: pb::Plan) -> Result<pb::Plan, Status> {
        Ok(self.plans().create_plan(pb::CreatePlanRequest { plan: Some(plan) }).await?.into_inner())
    }

    pub async fn create_plan(&self, id: &str, steps: Vec<pb::Step>) -> pb::Plan {
        let plan = pb::Plan { plan_id: id.into(), display_name: String::new(), steps };
        self.try_create_plan(plan).await.expect("the plan is created")
    }

    pub async fn try_start(&self, request: pb::StartRunRequest) -> Result<pb::Run, Status> {
        Ok(self.runs().start_run(request).await?.into_inner())
    }

    pub async fn start(&self, request: pb::StartRunRequest) -> pb::Run {
        self.try_start(request).await.expect("the run starts")
    }

    pub async fn run(&self, id: &str) -> pb::Run {
        self.runs().get_run(pb::GetRunRequest { run_id: id.into() }).await.expect("the run is there").into_inner()
    }

    /// All runs that match, newest first.
    pub async fn list_runs(&self, filter: &str) -> Vec<pb::Run> {
        let request = pb::ListRunsRequest { filter: filter.into(), page_size: 1000, page_token: String::new() };
        self.runs().list_runs(request).await.expect("lists").into_inner().runs
    }

    pub async fn try_cancel(&self, id: &str) -> Result<pb::Run, Status> {
        Ok(self.runs().cancel_run(pb::CancelRunRequest { run_id: id.into() }).await?.into_inner())
    }

    pub async fn ended(&self, id: &str) -> pb::Run {
        self.until(id, "ended", is_terminal).await
    }

    /// The run once it is as wanted.
    pub async fn until(&self, id: &str, what: &str, wanted: impl Fn(&pb::Run) -> bool) -> pb::Run {
        let wanted = &wanted;
        eventually(&format!("run {id} {what}"), || async move { Some(self.run(id).await).filter(wanted) }).await
    }

    /// The run once it works at this step.
    pub async fn at_step(&self, id: &str, step: &str) -> pb::Run {
        let at = |r: &pb::Run| r.phase() == RunPhase::Running && r.current_step == step;
        self.until(id, &format!("at {step}"), at).await
    }

    /// Starts and waits for the end.
    pub async fn carry_out(&self, request: pb::StartRunRequest) -> pb::Run {
        let run = self.start(request).await;
        self.ended(&run.run_id).await
    }

    pub async fn freeze(&self) -> mw::FreezeState {
        let request = mw::FreezeRequest { reason: "a test holds everything".into() };
        self.engines().freeze(request).await.expect("freezes").into_inner()
    }

    pub async fn unfreeze(&self) -> mw::FreezeState {
        self.engines().unfreeze(mw::UnfreezeRequest {}).await.expect("unfreezes").into_inner()
    }

    /// An execution with its journal, by its id or its run's.
    pub async fn execution(&self, id: &str) -> (mw::Execution, Vec<mw::JournalEntry>) {
        let request = mw::DescribeExecutionRequest { execution_id: id.into() };
        let described = self.engines().describe_execution(request).await.expect("is described").into_inner();
        (described.execution.expect("an execution"), described.journal)
    }

    /// What happened to a machine in the simulated world.
    pub fn effects(&self, machine: &str) -> Vec<Effect> {
        let all = self.server.fleet.sim.effects().expect("the journal can be read");
        all.into_iter().filter(|e| e.machine == machine).collect()
    }

    pub fn effect_kinds(&self, machine: &str) -> Vec<String> {
        self.effects(machine).into_iter().map(|e| e.kind).filter(|k| k != "created").collect()
    }

    pub fn count_effects(&self, machine: &str, kind: &str) -> usize {
        self.effects(machine).iter().filter(|e| e.kind == kind).count()
    }
}

/// A server made of parts that [`TestServer`] does not offer. Serves until dropped.
pub struct ByHand {
    pub store: store::Store,
    pub url: String,
    pub token: String,
    _stop: tokio_util::sync::DropGuard,
}

impl ByHand {
    pub async fn serve(service: service::Service) -> Self {
        let store = service.store().clone();
        let token = service::new_secret().expect("randomness");
        service.access().add_admin(&token, "tester").await.expect("a token");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let stop = tokio_util::sync::CancellationToken::new();
        tokio::spawn(api::serve(listener, service, api::ServerOptions::default(), stop.clone()));
        Self { store, url, token, _stop: stop.drop_guard() }
    }

    pub async fn machines(&self) -> MachineServiceClient<InterceptedService<Channel, Signed>> {
        MachineServiceClient::with_interceptor(raw::channel(&self.url).await, Signed(self.token.clone()))
    }

    pub async fn runs(&self) -> RunServiceClient<InterceptedService<Channel, Signed>> {
        RunServiceClient::with_interceptor(raw::channel(&self.url).await, Signed(self.token.clone()))
    }
}

/// A bound on what would otherwise wait for ever, far above what it takes; not a verdict about time.
pub async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), work).await.unwrap_or_else(|_| panic!("never happened: {what}"))
}

pub fn is_terminal(run: &pb::Run) -> bool {
    match run.phase() {
        RunPhase::Unspecified => panic!("a run without a phase: {run:?}"),
        RunPhase::Pending | RunPhase::Running => false,
        RunPhase::Succeeded | RunPhase::Failed | RunPhase::Canceled => true,
    }
}

/// Strings as they stand in a proto's map.
pub fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

/// A simulated machine that answers at once, unless its labels say otherwise.
pub fn sim_machine(id: &str, labels: &[(&str, &str)]) -> pb::Machine {
    let mut all = map(&[("sim.latency_ms", "0")]);
    all.extend(map(labels));
    let spec = pb::MachineSpec { provider: "sim".into(), ..Default::default() };
    pb::Machine { machine_id: id.into(), labels: all, spec: Some(spec), ..Default::default() }
}

/// The same, with a cluster to join.
pub fn cluster_machine(id: &str, labels: &[(&str, &str)]) -> pb::Machine {
    let mut machine = sim_machine(id, labels);
    machine.spec.as_mut().expect("a spec").target_cluster_ref = "cluster-a".into();
    machine
}

/// A request for a type, with the type's default plan.
pub fn start(machine: &str, kind: &str, request: &str) -> pb::StartRunRequest {
    pb::StartRunRequest {
        request_id: request.into(),
        machine_id: machine.into(),
        r#type: kind.into(),
        ..Default::default()
    }
}

/// A request for a plan, with no type.
pub fn start_plan(machine: &str, plan: &str, request: &str) -> pb::StartRunRequest {
    pb::StartRunRequest {
        request_id: request.into(),
        machine_id: machine.into(),
        plan_id: plan.into(),
        ..Default::default()
    }
}

pub fn step(name: &str, kind: Kind) -> pb::Step {
    pb::Step { name: name.into(), timeout_seconds: None, max_retries: None, kind: Some(kind) }
}

pub fn ssh(command: &str, args: &[&str]) -> Kind {
    let args = args.iter().map(|a| (*a).to_owned()).collect();
    Kind::Ssh(pb::SshCommand { command: command.into(), args, environment: BTreeMap::new() })
}

pub fn reboot() -> Kind {
    Kind::Reboot(pb::Reboot { mode: "bmc".into() })
}

pub fn netboot() -> Kind {
    Kind::Netboot(pb::SetNetboot { mode: "PXE".into(), persistent: false })
}

pub fn repave(image: &str) -> Kind {
    Kind::Repave(pb::RepaveImage { image: image.into(), user_data_ref: String::new() })
}

pub fn join(cluster: &str) -> Kind {
    Kind::Join(pb::KubeadmJoin { cluster_ref: cluster.into() })
}

pub fn states(run: &pb::Run) -> Vec<pb::step_status::State> {
    run.steps.iter().map(pb::StepStatus::state).collect()
}
