//! A request for every call of the API that would be served for an administrator, so that whatever else
//! is answered is about the caller. A call that has none here fails the tests that walk all calls.

use crate::callers::machine_of;
use crate::fixture::{Api, map, reboot, start, step};
use prost_reflect::prost::Message;
use prost_reflect::prost_types::FieldMask;
use prost_reflect::{DescriptorPool, MethodDescriptor};
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase;
use proto::millwright::v1 as mw;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use testkit::fleet::admin;

/// Every method of every service of ours, with its name as the access table spells it.
pub fn every_call() -> Vec<(String, MethodDescriptor)> {
    let pool = DescriptorPool::decode(proto::DESCRIPTORS).expect("descriptors");
    let methods = pool.services().flat_map(|s| s.methods().collect::<Vec<_>>());
    methods.map(|m| (format!("{}/{}", m.parent_service().full_name(), m.name()), m)).collect()
}

/// A request, and another one for the same call.
pub struct Ask {
    pub body: Vec<u8>,
    pub other: Vec<u8>,
}

pub(crate) fn ask(body: &impl Message, other: &impl Message) -> Ask {
    Ask { body: body.encode_to_vec(), other: other.encode_to_vec() }
}

/// Of a request that has no other.
pub(crate) fn only(body: &impl Message) -> Ask {
    ask(body, body)
}

/// The customers whose things are asked for.
pub const OWN: &str = "acme";
pub const FOREIGN: &str = "globex";

pub struct Asks<'a> {
    pub(crate) api: &'a Api,
    /// A machine of each customer with a run that has ended.
    settled: HashMap<&'static str, (String, String)>,
    made: AtomicUsize,
}

impl<'a> Asks<'a> {
    pub async fn new(api: &'a Api) -> Self {
        let mut settled = HashMap::new();
        for customer in [OWN, FOREIGN] {
            let id = format!("{customer}-settled");
            api.register(machine_of(customer, &id, &[])).await;
            let run = api.carry_out(start(&id, "UPGRADE", "settled")).await;
            settled.insert(customer, (id, run.run_id));
        }
        Self { api, settled, made: AtomicUsize::new(0) }
    }

    /// A name that was not used before.
    pub fn fresh(&self, word: &str) -> String {
        format!("{word}-{}", self.number())
    }

    pub(crate) fn number(&self) -> usize {
        self.made.fetch_add(1, Ordering::Relaxed)
    }

    async fn machine(&self, customer: &str) -> String {
        let id = self.fresh(customer);
        self.api.register(machine_of(customer, &id, &[("sim.fault.reboot", "hang")])).await;
        id
    }

    /// One that does what it is told.
    async fn plain(&self, customer: &str) -> String {
        let id = self.fresh(customer);
        self.api.register(machine_of(customer, &id, &[])).await;
        id
    }

    /// A run that will not end by itself soon.
    async fn run(&self, customer: &str) -> String {
        let machine = self.machine(customer).await;
        self.api.start(start(&machine, "REBOOT", "r1")).await.run_id
    }

    async fn token(&self) -> String {
        crate::callers::caller(self.api, &self.fresh("token"), "viewer", "").await.token.token_id
    }

    /// A request about something of this customer's, where the call is about one thing.
    pub async fn of(&self, call: &str, customer: &'static str) -> Ask {
        let (service, method) = call.split_once('/').expect("a service and a method");
        let made = match service {
            "baremetal.v1.MachineService" => self.of_machines(method, customer).await,
            "baremetal.v1.PlanService" => self.of_plans(method),
            "baremetal.v1.RunService" => self.of_runs(method, customer).await,
            "millwright.v1.EngineService" => self.of_engine(method, customer).await,
            "millwright.v1.HardwareService" => self.of_hardware(method, customer).await,
            "millwright.v1.ClusterService" => self.of_clusters(method, customer).await,
            "millwright.v1.BootService" => self.of_boot(method).await,
            "millwright.v1.ImageService" => self.of_images(method).await,
            "millwright.v1.FindingService" => self.of_findings(method).await,
            "millwright.v1.NodeService" => self.of_nodes(method).await,
            "millwright.v1.JobService" => self.of_jobs(method).await,
            "millwright.v1.SiteService" => self.of_sites(method).await,
            "millwright.v1.TaskService" => self.of_tasks(method).await,
            _ => self.of_others(service, method, customer).await,
        };
        made.unwrap_or_else(|| panic!("no request for {call}: add one, then look at its row in golden/access.txt"))
    }

    async fn of_machines(&self, method: &str, customer: &'static str) -> Option<Ask> {
        let settled = self.settled[customer].0.clone();
        Some(match method {
            "RegisterMachine" => {
                let new =
                    || pb::RegisterMachineRequest { machine: Some(machine_of(customer, &self.fresh("new"), &[])) };
                ask(&new(), &new())
            }
            "GetMachine" => only(&pb::GetMachineRequest { machine_id: settled }),
            "ListMachines" => {
                only(&pb::ListMachinesRequest { filter: format!("machine_id={settled}"), ..Default::default() })
            }
            "UpdateMachine" => {
                let id = self.machine(customer).await;
                let to = |colour: &str| pb::UpdateMachineRequest {
                    machine: Some(pb::Machine {
                        machine_id: id.clone(),
                        labels: map(&[("colour", colour)]),
                        ..Default::default()
                    }),
                    update_mask: Some(FieldMask { paths: vec!["labels.colour".into()] }),
                };
                ask(&to("red"), &to("blue"))
            }
            "SetPhase" => {
                let machine_id = self.machine(customer).await;
                let to = |phase: Phase| pb::SetPhaseRequest {
                    machine_id: machine_id.clone(),
                    phase: phase.into(),
                    reason: "a test".into(),
                };
                ask(&to(Phase::Ready), &to(Phase::Rma))
            }
            "ExplainMachine" => only(&pb::ExplainMachineRequest { machine_id: settled }),
            _ => return None,
        })
    }

    fn of_plans(&self, method: &str) -> Option<Ask> {
        Some(match method {
            "GetPlan" => only(&pb::GetPlanRequest { plan_id: "default-reboot".into() }),
            "ListPlans" => only(&pb::ListPlansRequest {}),
            "CreatePlan" => {
                let new = || pb::CreatePlanRequest {
                    plan: Some(pb::Plan {
                        plan_id: self.fresh("plan"),
                        steps: vec![step("one", reboot())],
                        ..Default::default()
                    }),
                };
                ask(&new(), &new())
            }
            _ => return None,
        })
    }

    async fn of_runs(&self, method: &str, customer: &'static str) -> Option<Ask> {
        let run_id = self.settled[customer].1.clone();
        Some(match method {
            "StartRun" => {
                let (one, two) = (self.machine(customer).await, self.machine(customer).await);
                ask(&start(&one, "REBOOT", "r1"), &start(&two, "REBOOT", "r1"))
            }
            "GetRun" => only(&pb::GetRunRequest { run_id }),
            "ListRuns" => only(&pb::ListRunsRequest { filter: format!("run_id={run_id}"), ..Default::default() }),
            "CancelRun" => ask(
                &pb::CancelRunRequest { run_id: self.run(customer).await },
                &pb::CancelRunRequest { run_id: self.run(customer).await },
            ),
            "WatchRuns" => only(&pb::WatchRunsRequest { filter: format!("run_id={run_id}"), after_sequence: Some(0) }),
            "StreamRunLogs" => only(&pb::StreamRunLogsRequest { run_id, ..Default::default() }),
            "ExplainRun" => only(&pb::ExplainRunRequest { run_id }),
            _ => return None,
        })
    }

    async fn of_engine(&self, method: &str, customer: &'static str) -> Option<Ask> {
        let (machine, run) = self.settled[customer].clone();
        let reason = || "a test".to_owned();
        Some(match method {
            "ListExecutions" => {
                only(&mw::ListExecutionsRequest { filter: format!("machine_id={machine}"), ..Default::default() })
            }
            "DescribeExecution" => only(&mw::DescribeExecutionRequest { execution_id: run }),
            "CancelExecution" => {
                let to = |execution_id| mw::CancelExecutionRequest { execution_id, reason: reason() };
                ask(&to(self.run(customer).await), &to(self.run(customer).await))
            }
            "TerminateExecution" => {
                let to = |execution_id| mw::TerminateExecutionRequest { execution_id, reason: reason() };
                ask(&to(self.run(customer).await), &to(self.run(customer).await))
            }
            "Freeze" => ask(&mw::FreezeRequest { reason: reason() }, &mw::FreezeRequest { reason: "another".into() }),
            "Unfreeze" => only(&mw::UnfreezeRequest {}),
            "GetFreeze" => only(&mw::GetFreezeRequest {}),
            _ => return None,
        })
    }

    async fn of_hardware(&self, method: &str, customer: &'static str) -> Option<Ask> {
        let machine_id = self.settled[customer].0.clone();
        let reason = || "a test".to_owned();
        // of two machines, so that what is done to one is not there already
        let (one, two) = (self.plain(customer).await, self.plain(customer).await);
        let url = |n: u8| format!("https://images.example/{n}.iso");
        Some(match method {
            "InspectMachine" => only(&mw::InspectMachineRequest { machine_id }),
            "GetConsoleInfo" => only(&mw::GetConsoleInfoRequest { machine_id }),
            "ListHardwareEvents" => only(&mw::ListHardwareEventsRequest { machine_id, limit: 5 }),
            "ListSensors" => only(&mw::ListSensorsRequest { machine_id }),
            "GetMedia" => only(&mw::GetMediaRequest { machine_id }),
            "GetBios" => only(&mw::GetBiosRequest { machine_id }),
            "GetHardwareTask" => {
                let service = &self.api.server.service;
                service.update_firmware(&admin(), &one, &url(1), vec![], "").await.expect("begins");
                only(&mw::GetHardwareTaskRequest { machine_id: one, task: "update-1".into() })
            }
            "SetPower" => {
                let to =
                    |id, action: &str| mw::SetPowerRequest { machine_id: id, action: action.into(), reason: reason() };
                ask(&to(one, "force-off"), &to(two, "graceful-off"))
            }
            "SetBoot" => {
                let to = |id, mode: &str| mw::SetBootRequest {
                    machine_id: id,
                    mode: mode.into(),
                    persistent: true,
                    reason: reason(),
                };
                ask(&to(one, "PXE"), &to(two, "DISK"))
            }
            "IdentifyMachine" => {
                let to = |id, on| mw::IdentifyMachineRequest { machine_id: id, on };
                ask(&to(one, true), &to(two, true))
            }
            "InsertMedia" => {
                let to = |id, n| mw::InsertMediaRequest { machine_id: id, url: url(n), reason: reason() };
                ask(&to(one, 1), &to(two, 2))
            }
            "EjectMedia" => {
                let to = |id| mw::EjectMediaRequest { machine_id: id };
                ask(&to(one), &to(two))
            }
            "SetBios" => {
                let to = |id, value: &str| mw::SetBiosRequest {
                    machine_id: id,
                    attributes: map(&[("SecureBoot", value)]),
                    reason: reason(),
                };
                ask(&to(one, "Enabled"), &to(two, "Disabled"))
            }
            "UpdateFirmware" => {
                let to = |id, n| mw::UpdateFirmwareRequest {
                    machine_id: id,
                    image_url: url(n),
                    targets: vec![],
                    reason: reason(),
                };
                ask(&to(one, 1), &to(two, 2))
            }
            "RotateBmcPassword" => {
                let to = |id| mw::RotateBmcPasswordRequest { machine_id: id, reason: reason() };
                ask(&to(one), &to(two))
            }
            "RepinMachine" => {
                let to = |id| mw::RepinMachineRequest { machine_id: id, reason: reason() };
                ask(&to(one), &to(two))
            }
            "DiscoverHardware" => {
                let at = |host: String| mw::DiscoverHardwareRequest { bmc_endpoint: host, ..Default::default() };
                ask(&at(self.fresh("bmc")), &at(self.fresh("bmc")))
            }
            _ => return None,
        })
    }

    /// A machine that is in its cluster.
    async fn member(&self, customer: &str) -> String {
        let id = self.fresh(customer);
        let mut machine = machine_of(customer, &id, &[]);
        machine.spec.as_mut().expect("a spec").target_cluster_ref = "cluster-a".into();
        self.api.register(machine).await;
        crate::hardware::put_into_cluster(self.api, &id).await;
        id
    }

    async fn of_clusters(&self, method: &str, customer: &'static str) -> Option<Ask> {
        let (one, two) = (self.member(customer).await, self.member(customer).await);
        Some(match method {
            "CheckCluster" => only(&mw::CheckClusterRequest { cluster_ref: "cluster-a".into(), ..Default::default() }),
            "CordonMachine" => {
                let to = |id| mw::CordonMachineRequest { machine_id: id, on: true, reason: "a test".into() };
                ask(&to(one), &to(two))
            }
            "DrainMachine" => {
                let to = |id| mw::DrainMachineRequest { machine_id: id, ..Default::default() };
                ask(&to(one), &to(two))
            }
            "DeleteClusterNode" => {
                let to = |id| mw::DeleteClusterNodeRequest { machine_id: id };
                ask(&to(one), &to(two))
            }
            _ => return None,
        })
    }

    async fn of_credentials(&self, method: &str) -> Option<Ask> {
        let new = |password: &str| mw::SetCredentialRequest {
            name: self.fresh("credential"),
            kind: "bmc".into(),
            username: "admin".into(),
            password: password.into(),
            ..Default::default()
        };
        let delete = async || {
            let set = new("one");
            let name = set.name.clone();
            let root = crate::callers::root(self.api).await;
            root.credentials().set_credential(set).await.expect("is set");
            mw::DeleteCredentialRequest { name, force: false }
        };
        Some(match method {
            "SetCredential" => ask(&new("one"), &new("two")),
            "ListCredentials" => only(&mw::ListCredentialsRequest::default()),
            "DeleteCredential" => ask(&delete().await, &delete().await),
            "RotateSecretKey" => only(&mw::RotateSecretKeyRequest {}),
            _ => return None,
        })
    }

    async fn of_others(&self, service: &str, method: &str, customer: &'static str) -> Option<Ask> {
        let settled = self.settled[customer].0.clone();
        Some(match (service, method) {
            ("millwright.v1.TokenService", "ListTokens") => only(&mw::ListTokensRequest::default()),
            ("millwright.v1.TokenService", "CreateToken") => {
                let new =
                    || mw::CreateTokenRequest { name: self.fresh("made"), role: "viewer".into(), ..Default::default() };
                ask(&new(), &new())
            }
            ("millwright.v1.TokenService", "RevokeToken") => ask(
                &mw::RevokeTokenRequest { token_id: self.token().await },
                &mw::RevokeTokenRequest { token_id: self.token().await },
            ),
            ("millwright.v1.TokenService", "GetMe") => only(&mw::GetMeRequest {}),
            ("millwright.v1.CredentialService", _) => return self.of_credentials(method).await,
            ("millwright.v1.EventService", "WatchEvents") => {
                only(&mw::WatchEventsRequest { filter: format!("id={settled}"), after: Some(0), no_follow: true })
            }
            ("millwright.v1.AuditService", "ListAudit") => only(&mw::ListAuditRequest::default()),
            ("millwright.v1.ExplainService", "Explain") => only(&mw::ExplainRequest { id: settled }),
            _ => return None,
        })
    }
}
