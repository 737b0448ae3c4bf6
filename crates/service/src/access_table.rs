//! Who may call what: the one table. Every call of the API stands here, and a test walks the
//! descriptors and fails on one that does not.

use domain::token::Role::{self, Admin, Operator, Viewer};

/// Whose tokens a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Also those of one customer, who then sees and touches only that customer's machines and runs.
    Customers,
    /// Only those for the whole fleet.
    Fleet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Reads,
    /// Changes something: is audited, and may carry an idempotency key.
    Changes,
}

/// The verdict on one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub call: &'static str,
    /// The least role that may.
    pub role: Role,
    pub effect: Effect,
    pub scope: Scope,
}

use Effect::{Changes, Reads};
use Scope::{Customers, Fleet};

const fn rule(call: &'static str, role: Role, effect: Effect, scope: Scope) -> Rule {
    Rule { call, role, effect, scope }
}

pub const RULES: &[Rule] = &[
    // a customer neither brings hardware nor decides about its life
    rule("baremetal.v1.MachineService/RegisterMachine", Operator, Changes, Fleet),
    rule("baremetal.v1.MachineService/GetMachine", Viewer, Reads, Customers),
    rule("baremetal.v1.MachineService/ListMachines", Viewer, Reads, Customers),
    // a customer may change labels only, see `machines::may_update`
    rule("baremetal.v1.MachineService/UpdateMachine", Operator, Changes, Customers),
    rule("baremetal.v1.MachineService/SetPhase", Operator, Changes, Fleet),
    rule("baremetal.v1.MachineService/ExplainMachine", Viewer, Reads, Customers),
    rule("baremetal.v1.PlanService/GetPlan", Viewer, Reads, Customers),
    rule("baremetal.v1.PlanService/ListPlans", Viewer, Reads, Customers),
    // a plan can hold commands, which run as root on the fleet
    rule("baremetal.v1.PlanService/CreatePlan", Admin, Changes, Fleet),
    rule("baremetal.v1.RunService/StartRun", Operator, Changes, Customers),
    rule("baremetal.v1.RunService/GetRun", Viewer, Reads, Customers),
    rule("baremetal.v1.RunService/ListRuns", Viewer, Reads, Customers),
    rule("baremetal.v1.RunService/CancelRun", Operator, Changes, Customers),
    rule("baremetal.v1.RunService/WatchRuns", Viewer, Reads, Customers),
    rule("baremetal.v1.RunService/StreamRunLogs", Viewer, Reads, Customers),
    rule("baremetal.v1.RunService/ExplainRun", Viewer, Reads, Customers),
    rule("millwright.v1.EngineService/ListExecutions", Viewer, Reads, Fleet),
    rule("millwright.v1.EngineService/DescribeExecution", Viewer, Reads, Fleet),
    rule("millwright.v1.EngineService/CancelExecution", Operator, Changes, Fleet),
    // leaves a machine as it is, in the middle of something
    rule("millwright.v1.EngineService/TerminateExecution", Admin, Changes, Fleet),
    // whoever is on watch must reach the brake
    rule("millwright.v1.EngineService/Freeze", Operator, Changes, Fleet),
    rule("millwright.v1.EngineService/Unfreeze", Operator, Changes, Fleet),
    rule("millwright.v1.EngineService/GetFreeze", Viewer, Reads, Customers),
    rule("millwright.v1.TokenService/ListTokens", Admin, Reads, Fleet),
    rule("millwright.v1.TokenService/CreateToken", Admin, Changes, Fleet),
    rule("millwright.v1.TokenService/RevokeToken", Admin, Changes, Fleet),
    rule("millwright.v1.TokenService/GetMe", Viewer, Reads, Customers),
    // whoever sets one decides where it is sent; whoever works with machines may know which there are
    rule("millwright.v1.CredentialService/SetCredential", Admin, Changes, Fleet),
    rule("millwright.v1.CredentialService/ListCredentials", Operator, Reads, Fleet),
    rule("millwright.v1.CredentialService/DeleteCredential", Admin, Changes, Fleet),
    rule("millwright.v1.CredentialService/RotateSecretKey", Admin, Changes, Fleet),
    rule("millwright.v1.EventService/WatchEvents", Viewer, Reads, Customers),
    rule("millwright.v1.AuditService/ListAudit", Operator, Reads, Fleet),
    rule("millwright.v1.ExplainService/Explain", Viewer, Reads, Customers),
    rule("millwright.v1.BootService/ListBootNodes", Viewer, Reads, Fleet),
    rule("millwright.v1.BootService/CreateBootNode", Operator, Changes, Fleet),
    rule("millwright.v1.BootService/GetBootNode", Viewer, Reads, Fleet),
    rule("millwright.v1.BootService/WatchBootNode", Viewer, Reads, Fleet),
    rule("millwright.v1.BootService/UpdateBootNode", Operator, Changes, Fleet),
    rule("millwright.v1.BootService/RetireBootNode", Admin, Changes, Fleet),
    // retiring by way of it needs an admin, too
    rule("millwright.v1.BootService/SetBootNodeState", Operator, Changes, Fleet),
    rule("millwright.v1.BootService/SetBootNodeStates", Operator, Changes, Fleet),
    rule("millwright.v1.BootService/GetBootNodeHistory", Viewer, Reads, Fleet),
    rule("millwright.v1.BootService/ListWorkflows", Viewer, Reads, Fleet),
    rule("millwright.v1.BootService/GetWorkflow", Viewer, Reads, Fleet),
    // what a workflow boots is root on the fleet
    rule("millwright.v1.BootService/CreateWorkflow", Admin, Changes, Fleet),
    rule("millwright.v1.ImageService/ListImages", Viewer, Reads, Fleet),
    rule("millwright.v1.ImageService/GetImage", Viewer, Reads, Fleet),
    rule("millwright.v1.ImageService/RemoveImage", Admin, Changes, Fleet),
    rule("millwright.v1.FindingService/ListFindings", Viewer, Reads, Fleet),
    rule("millwright.v1.FindingService/GetFinding", Viewer, Reads, Fleet),
    rule("millwright.v1.FindingService/AcknowledgeFinding", Operator, Changes, Fleet),
    rule("millwright.v1.FindingService/ResolveFinding", Operator, Changes, Fleet),
    rule("millwright.v1.NodeService/ListNodes", Viewer, Reads, Fleet),
    rule("millwright.v1.NodeService/GetNode", Viewer, Reads, Fleet),
    rule("millwright.v1.NodeService/WatchNode", Viewer, Reads, Fleet),
    rule("millwright.v1.NodeService/GetNodeHistory", Viewer, Reads, Fleet),
    rule("millwright.v1.NodeService/CreateNode", Operator, Changes, Fleet),
    rule("millwright.v1.NodeService/OnboardNode", Operator, Changes, Fleet),
    rule("millwright.v1.NodeService/DrainNode", Operator, Changes, Fleet),
    rule("millwright.v1.NodeService/CordonNode", Operator, Changes, Fleet),
    rule("millwright.v1.NodeService/UncordonNode", Operator, Changes, Fleet),
    rule("millwright.v1.NodeService/ReactivateNode", Operator, Changes, Fleet),
    rule("millwright.v1.NodeService/RemoveNode", Operator, Changes, Fleet),
    rule("millwright.v1.NodeService/QuarantineNode", Operator, Changes, Fleet),
    rule("millwright.v1.NodeService/RecoverNode", Operator, Changes, Fleet),
    rule("millwright.v1.NodeService/ResumeNode", Operator, Changes, Fleet),
    rule("millwright.v1.NodeService/RebootstrapNode", Operator, Changes, Fleet),
    rule("millwright.v1.NodeService/RepairNode", Operator, Changes, Fleet),
    rule("millwright.v1.NodeService/RevokeNode", Operator, Changes, Fleet),
    rule("millwright.v1.NodeService/ActOnNodes", Operator, Changes, Fleet),
    rule("millwright.v1.JobService/ListJobs", Viewer, Reads, Fleet),
    rule("millwright.v1.JobService/GetJob", Viewer, Reads, Fleet),
    rule("millwright.v1.JobService/WatchJob", Viewer, Reads, Fleet),
    rule("millwright.v1.JobService/ActOnJob", Operator, Changes, Fleet),
    rule("millwright.v1.JobService/ActOnJobs", Operator, Changes, Fleet),
    rule("millwright.v1.JobService/ListOnboardings", Viewer, Reads, Fleet),
    rule("millwright.v1.JobService/StartOnboarding", Operator, Changes, Fleet),
    rule("millwright.v1.JobService/GetOnboarding", Viewer, Reads, Fleet),
    rule("millwright.v1.JobService/ActOnOnboarding", Operator, Changes, Fleet),
    rule("millwright.v1.JobService/ListDecommissions", Viewer, Reads, Fleet),
    rule("millwright.v1.JobService/StartDecommission", Operator, Changes, Fleet),
    rule("millwright.v1.JobService/GetDecommission", Viewer, Reads, Fleet),
    rule("millwright.v1.JobService/ActOnDecommission", Operator, Changes, Fleet),
    rule("millwright.v1.TaskService/ListTasks", Viewer, Reads, Fleet),
    rule("millwright.v1.TaskService/GetTask", Viewer, Reads, Fleet),
    rule("millwright.v1.TaskService/StreamTaskOutput", Viewer, Reads, Fleet),
    // host.exec by way of it needs an admin: it is root on the fleet
    rule("millwright.v1.TaskService/OrderTask", Operator, Changes, Fleet),
    rule("millwright.v1.TaskService/CancelTask", Operator, Changes, Fleet),
    rule("millwright.v1.SiteService/ListSites", Viewer, Reads, Fleet),
    rule("millwright.v1.SiteService/GetSite", Viewer, Reads, Fleet),
    rule("millwright.v1.SiteService/ListSiteMachines", Viewer, Reads, Fleet),
    rule("millwright.v1.SiteService/GetSiteMachine", Viewer, Reads, Fleet),
    // costs the MAAS
    rule("millwright.v1.SiteService/CheckSite", Operator, Reads, Fleet),
    // decides where an API key is sent, and what runs as root on machines
    rule("millwright.v1.SiteService/CreateSite", Admin, Changes, Fleet),
    rule("millwright.v1.SiteService/UpdateSite", Admin, Changes, Fleet),
    rule("millwright.v1.SiteService/RemoveSite", Admin, Changes, Fleet),
    // each costs the machine's controller, which has little to spend
    rule("millwright.v1.HardwareService/InspectMachine", Operator, Reads, Fleet),
    rule("millwright.v1.HardwareService/GetConsoleInfo", Operator, Reads, Fleet),
    rule("millwright.v1.HardwareService/ListHardwareEvents", Operator, Reads, Fleet),
    rule("millwright.v1.HardwareService/ListSensors", Operator, Reads, Fleet),
    rule("millwright.v1.HardwareService/GetMedia", Operator, Reads, Fleet),
    rule("millwright.v1.HardwareService/GetBios", Operator, Reads, Fleet),
    rule("millwright.v1.HardwareService/GetHardwareTask", Operator, Reads, Fleet),
    rule("millwright.v1.HardwareService/SetPower", Operator, Changes, Fleet),
    rule("millwright.v1.HardwareService/SetBoot", Operator, Changes, Fleet),
    rule("millwright.v1.HardwareService/IdentifyMachine", Operator, Changes, Fleet),
    rule("millwright.v1.HardwareService/InsertMedia", Operator, Changes, Fleet),
    rule("millwright.v1.HardwareService/EjectMedia", Operator, Changes, Fleet),
    // outlives every repave, or decides whom we trust
    rule("millwright.v1.HardwareService/SetBios", Admin, Changes, Fleet),
    rule("millwright.v1.HardwareService/UpdateFirmware", Admin, Changes, Fleet),
    rule("millwright.v1.HardwareService/RotateBmcPassword", Admin, Changes, Fleet),
    rule("millwright.v1.HardwareService/RepinMachine", Admin, Changes, Fleet),
    // sends credentials to whatever the endpoint names
    rule("millwright.v1.HardwareService/DiscoverHardware", Admin, Changes, Fleet),
    rule("millwright.v1.ClusterService/CheckCluster", Operator, Reads, Fleet),
    rule("millwright.v1.ClusterService/CordonMachine", Operator, Changes, Fleet),
    rule("millwright.v1.ClusterService/DrainMachine", Operator, Changes, Fleet),
    rule("millwright.v1.ClusterService/DeleteClusterNode", Operator, Changes, Fleet),
];

/// Bytes of images come by plain HTTP, which no proto declares; what machines boot is root on the fleet.
pub const PUT_IMAGE: Rule = rule("millwright.v1.ImageService/PutImage", Admin, Changes, Fleet);

/// The calls and pages that are not ours to declare in proto, by the beginning of their path. `None`:
/// open to anybody.
pub const PATHS: &[(&str, Option<Role>)] = &[
    ("/healthz", None),
    ("/readyz", None),
    ("/grpc.health.v1.Health/", None),
    ("/grpc.reflection.", Some(Viewer)),
    // unless `metrics.public` is set
    ("/metrics", Some(Viewer)),
    ("/api/v1/openapi.json", Some(Viewer)),
];

/// The rule of a call, by its path without the leading slash.
pub fn rule_of(call: &str) -> Option<&'static Rule> {
    // a few dozen short comparisons; the first bytes mostly decide
    RULES.iter().find(|r| r.call == call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_one_verdict_and_viewers_change_nothing() {
        for (i, rule) in RULES.iter().enumerate() {
            assert!(!RULES[..i].iter().any(|r| r.call == rule.call), "{} stands twice", rule.call);
            assert!(rule.effect == Reads || rule.role > Viewer, "{} changes something", rule.call);
        }
    }
}
