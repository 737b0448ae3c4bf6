//! The runs that the harness disturbs: every run type, and a plan with two steps to take back. What each does
//! is written down here by hand, beside the product's own plans.

use crate::model::{Act, Stage};
use domain::plan::{BootMode, Plan, Step, StepKind};
use service::{NewMachine, StartRun};
use std::collections::BTreeMap;
use testkit::fleet::{labelled, start};

/// The phase of a new machine: a run that neither installs nor returns it gives it back so.
const UNCHANGED: &str = "FACTORY_READY";

pub const CLUSTER: &str = "prod";

#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The run type, or the name of a plan of our own.
    pub name: &'static str,
    pub stages: &'static [Stage],
    /// The machine is assigned to the cluster,
    assigned: bool,
    /// and is a member of it beforehand.
    pub member: bool,
    /// The machine's phase after success.
    pub phase: &'static str,
    /// Steps that count against the cap of a rack.
    pub destructive: u64,
    /// How long each act takes.
    pub latency_ms: u64,
}

const fn stage(name: &'static str, act: Act) -> Stage {
    Stage { name, act }
}

const fn case(name: &'static str, phase: &'static str, stages: &'static [Stage]) -> Case {
    Case { name, stages, assigned: false, member: false, phase, destructive: 0, latency_ms: 0 }
}

const TWO_UNDOS: &str = "two-undos";

pub const CASES: [Case; 6] = [
    Case {
        assigned: true,
        destructive: 1,
        ..case(
            "REPAVE",
            "IN_SERVICE",
            &[
                stage("set-netboot", Act::SetBoot),
                stage("repave", Act::Install),
                stage("reboot", Act::Reset),
                stage("join-cluster", Act::Join),
                stage("verify", Act::Nothing),
            ],
        )
    },
    Case { assigned: true, member: true, ..case("REBOOT", UNCHANGED, &[stage("reboot", Act::Reset)]) },
    Case {
        assigned: true,
        member: true,
        destructive: 2,
        ..case(
            "RMA",
            "RMA",
            &[stage("drain-check", Act::Nothing), stage("shutdown", Act::PowerOff), stage("return", Act::OpenReturn)],
        )
    },
    case("NET_RECONFIG", UNCHANGED, &[stage("net-reconfig", Act::ApplyNetwork)]),
    Case {
        assigned: true,
        member: true,
        ..case(
            "UPGRADE",
            UNCHANGED,
            &[
                stage("drain", Act::Command),
                stage("upgrade", Act::Command),
                stage("restart", Act::Reset),
                stage("uncordon", Act::Command),
                stage("verify", Act::Nothing),
            ],
        )
    },
    case(
        TWO_UNDOS,
        UNCHANGED,
        &[stage("boot-pxe", Act::SetBoot), stage("boot-cd", Act::SetBoot), stage("command", Act::Command)],
    ),
];

impl Case {
    /// The same run on a machine that takes its time, so that work is under way when something happens.
    pub fn slow(self) -> Self {
        Self { latency_ms: 3_000, ..self }
    }

    pub fn title(&self) -> String {
        if self.latency_ms == 0 { self.name.to_owned() } else { format!("{} (slow)", self.name) }
    }

    /// Each in a rack of its own, so that the cap counts this run alone.
    pub fn machine(&self, id: &str) -> NewMachine {
        let mut machine = labelled(id, &[("sim.latency_ms", &self.latency_ms.to_string())]);
        machine.spec.rack = format!("rack-of-{id}");
        if self.assigned {
            CLUSTER.clone_into(&mut machine.spec.target_cluster_ref);
        }
        machine
    }

    pub fn plan(&self) -> Option<Plan> {
        (self.name == TWO_UNDOS).then(|| {
            let step =
                |name: &str, kind| Step { name: name.into(), timeout_seconds: Some(60), max_retries: None, kind };
            let netboot = |mode| StepKind::Netboot { mode, persistent: false };
            let command = StepKind::Ssh { command: "true".into(), args: vec![], environment: BTreeMap::new() };
            Plan {
                id: TWO_UNDOS.into(),
                display_name: String::new(),
                steps: vec![
                    step("boot-pxe", netboot(BootMode::Pxe)),
                    step("boot-cd", netboot(BootMode::Cd)),
                    step("command", command),
                ],
            }
        })
    }

    pub fn request(&self, machine: &str) -> StartRun {
        match self.name {
            TWO_UNDOS => StartRun { plan_id: TWO_UNDOS.into(), ..start(machine, "", "request-1") },
            "NET_RECONFIG" => StartRun {
                parameters: BTreeMap::from([("mtu".to_owned(), "9000".to_owned())]),
                ..start(machine, self.name, "request-1")
            },
            run_type => start(machine, run_type, "request-1"),
        }
    }
}
