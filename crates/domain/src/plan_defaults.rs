//! The built-in plans: one for each run type, chosen by what the machine is part of.

use crate::plan::{BootMode, Plan, RebootMode, RmaAction, Step, StepKind};
use crate::run::RunType;
use std::collections::BTreeMap;

pub const REPAVE: &str = "default-repave";
pub const REPAVE_JOIN: &str = "default-repave-join";
pub const RMA: &str = "default-rma";
pub const REBOOT: &str = "default-reboot";
pub const UPGRADE: &str = "default-upgrade";
pub const NET_RECONFIG: &str = "default-net-reconfig";

/// The image of the built-in plans; `parameters.image` names another.
pub const IMAGE: &str = "ubuntu-24.04";

/// The plan for a type that was named without one.
pub fn default_plan_id(run_type: RunType, has_cluster: bool) -> &'static str {
    match (run_type, has_cluster) {
        (RunType::Repave, false) => REPAVE,
        (RunType::Repave, true) => REPAVE_JOIN,
        (RunType::Rma, _) => RMA,
        (RunType::Reboot, _) => REBOOT,
        (RunType::Upgrade, _) => UPGRADE,
        (RunType::NetReconfig, _) => NET_RECONFIG,
    }
}

/// Steps of the upgrade plan that only make sense in a cluster.
const UPGRADE_CLUSTER_STEPS: [&str; 3] = ["drain", "uncordon", "verify"];

/// A built-in plan as it fits the machine: an upgrade outside a cluster has nothing to drain or verify.
pub fn tailored(mut plan: Plan, has_cluster: bool) -> Plan {
    if plan.id == UPGRADE && !has_cluster {
        plan.steps.retain(|s| !UPGRADE_CLUSTER_STEPS.contains(&s.name.as_str()));
    }
    plan
}

fn step(name: &str, timeout_seconds: i32, kind: StepKind) -> Step {
    Step { name: name.to_owned(), timeout_seconds: Some(timeout_seconds), max_retries: None, kind }
}

/// A command on the machine itself, with the kubelet's own credentials for what concerns its node.
fn on_host(name: &str, timeout_seconds: i32, script: &str) -> Step {
    let kind = StepKind::Ssh {
        command: "sh".to_owned(),
        args: vec!["-c".to_owned(), script.to_owned()],
        environment: BTreeMap::from([("KUBECONFIG".to_owned(), "/etc/kubernetes/kubelet.conf".to_owned())]),
    };
    step(name, timeout_seconds, kind)
}

fn rma(name: &str, timeout_seconds: i32, action: RmaAction) -> Step {
    step(name, timeout_seconds, StepKind::Rma { action, reason: String::new() })
}

fn plan(id: &str, display_name: &str, steps: Vec<Step>) -> Plan {
    Plan { id: id.to_owned(), display_name: display_name.to_owned(), steps }
}

pub fn built_in_plans() -> Vec<Plan> {
    let netboot = || step("set-netboot", 60, StepKind::Netboot { mode: BootMode::Pxe, persistent: false });
    let repave = || step("repave", 1800, StepKind::Repave { image: IMAGE.to_owned(), user_data_ref: String::new() });
    let reboot = |name: &str, mode| step(name, 600, StepKind::Reboot { mode });
    let join = step("join-cluster", 600, StepKind::Join { cluster_ref: String::new() });
    let verify = || step("verify", 300, StepKind::Verify { cluster_ref: String::new() });
    let upgrade = on_host("upgrade", 1800, "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get -y dist-upgrade");
    vec![
        plan(REPAVE, "Repave", vec![netboot(), repave(), reboot("reboot", RebootMode::Bmc)]),
        plan(
            REPAVE_JOIN,
            "Repave and join the cluster",
            vec![netboot(), repave(), reboot("reboot", RebootMode::Bmc), join, verify()],
        ),
        plan(
            RMA,
            "Return to the vendor",
            vec![
                rma("drain-check", 300, RmaAction::DrainCheck),
                rma("shutdown", 600, RmaAction::Shutdown),
                rma("return", 300, RmaAction::Return),
            ],
        ),
        plan(REBOOT, "Reboot", vec![reboot("reboot", RebootMode::Bmc)]),
        plan(
            UPGRADE,
            "Upgrade in place, drained",
            vec![
                on_host(
                    "drain",
                    900,
                    "kubectl drain \"$(hostname)\" --ignore-daemonsets --delete-emptydir-data --timeout=840s",
                ),
                upgrade,
                reboot("restart", RebootMode::Inband),
                on_host("uncordon", 120, "kubectl uncordon \"$(hostname)\""),
                verify(),
            ],
        ),
        plan(
            NET_RECONFIG,
            "Apply network parameters",
            vec![step("net-reconfig", 300, StepKind::Net { parameters: BTreeMap::new() })],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_valid_default_plan() {
        let plans = built_in_plans();
        for p in &plans {
            p.validate().expect("built-in plans are valid");
        }
        for run_type in RunType::ALL {
            for has_cluster in [false, true] {
                let id = default_plan_id(run_type, has_cluster);
                let plan = plans.iter().find(|p| p.id == id).expect(id).clone();
                let plan = tailored(plan, has_cluster);
                let cluster = if has_cluster { "prod" } else { "" };
                assert!(plan.resolve(&BTreeMap::new(), cluster).is_ok(), "{id} for cluster {cluster:?}");
            }
        }
    }
}
