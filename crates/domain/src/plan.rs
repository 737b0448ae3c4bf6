//! A plan: an immutable, ordered list of typed steps. Not a workflow language.

use crate::error::{Error, Reason};
use crate::id::check_name;
use crate::limits;
use crate::machine::check_text;
use crate::words::words;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub id: String,
    pub display_name: String,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub name: String,
    /// Of one attempt; unset or zero inherits the server's default.
    pub timeout_seconds: Option<i32>,
    /// Retries after the first attempt; unset inherits, zero means none.
    pub max_retries: Option<i32>,
    pub kind: StepKind,
}

pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);
pub const DEFAULT_MAX_RETRIES: u32 = 2;

impl Step {
    pub fn timeout(&self) -> Duration {
        match self.timeout_seconds {
            Some(s) if s > 0 => Duration::from_secs(s.unsigned_abs().into()),
            Some(_) | None => DEFAULT_TIMEOUT,
        }
    }

    pub fn max_retries(&self) -> u32 {
        self.max_retries.map_or(DEFAULT_MAX_RETRIES, i32::unsigned_abs)
    }
}

words!(RebootMode { Bmc = "bmc", Inband = "inband", Force = "force" });
words!(BootMode { Pxe = "PXE", Http = "HTTP", Disk = "DISK", Cd = "CD" });
words!(
    /// The actions of an RMA, in the order they are taken.
    RmaAction { DrainCheck = "drain-check", Shutdown = "shutdown", Return = "return" });

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepKind {
    Ssh { command: String, args: Vec<String>, environment: BTreeMap<String, String> },
    Reboot { mode: RebootMode },
    Netboot { mode: BootMode, persistent: bool },
    Repave { image: String, user_data_ref: String },
    Join { cluster_ref: String },
    Verify { cluster_ref: String },
    Net { parameters: BTreeMap<String, String> },
    Rma { action: RmaAction, reason: String },
}

/// What a provider must be able to do for a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Capability {
    Inspect,
    Power,
    Boot,
    Image,
    Exec,
    Cluster,
    Network,
    Rma,
}

impl Capability {
    pub const fn as_str(self) -> &'static str {
        match self {
            Capability::Inspect => "inspect",
            Capability::Power => "power",
            Capability::Boot => "boot",
            Capability::Image => "image",
            Capability::Exec => "exec",
            Capability::Cluster => "cluster",
            Capability::Network => "network",
            Capability::Rma => "rma",
        }
    }
}

impl StepKind {
    /// The name used in plan files, fault rules and messages.
    pub const fn name(&self) -> &'static str {
        match self {
            StepKind::Ssh { .. } => "ssh",
            StepKind::Reboot { .. } => "reboot",
            StepKind::Netboot { .. } => "netboot",
            StepKind::Repave { .. } => "repave",
            StepKind::Join { .. } => "join",
            StepKind::Verify { .. } => "verify",
            StepKind::Net { .. } => "net",
            StepKind::Rma { .. } => "rma",
        }
    }

    pub const fn needs(&self) -> &'static [Capability] {
        match self {
            StepKind::Ssh { .. } => &[Capability::Exec],
            StepKind::Reboot { .. } => &[Capability::Power, Capability::Inspect],
            StepKind::Netboot { .. } => &[Capability::Boot, Capability::Inspect],
            StepKind::Repave { .. } => &[Capability::Image, Capability::Inspect],
            StepKind::Join { .. } | StepKind::Verify { .. } => &[Capability::Cluster],
            StepKind::Net { .. } => &[Capability::Network],
            StepKind::Rma { action: RmaAction::DrainCheck, .. } => &[Capability::Cluster],
            StepKind::Rma { action: RmaAction::Shutdown, .. } => &[Capability::Power, Capability::Inspect],
            StepKind::Rma { action: RmaAction::Return, .. } => &[Capability::Rma],
        }
    }

    /// The cluster a step speaks of, to be filled from the machine when empty.
    pub fn cluster_ref_mut(&mut self) -> Option<&mut String> {
        match self {
            StepKind::Join { cluster_ref } | StepKind::Verify { cluster_ref } => Some(cluster_ref),
            StepKind::Ssh { .. }
            | StepKind::Reboot { .. }
            | StepKind::Netboot { .. }
            | StepKind::Repave { .. }
            | StepKind::Net { .. }
            | StepKind::Rma { .. } => None,
        }
    }

    /// The cluster a step speaks of; empty: the machine's own.
    pub const fn cluster_ref(&self) -> Option<&String> {
        match self {
            StepKind::Join { cluster_ref } | StepKind::Verify { cluster_ref } => Some(cluster_ref),
            StepKind::Ssh { .. }
            | StepKind::Reboot { .. }
            | StepKind::Netboot { .. }
            | StepKind::Repave { .. }
            | StepKind::Net { .. }
            | StepKind::Rma { .. } => None,
        }
    }

    /// What must be seen for a step of this kind to be done.
    pub fn expected(&self) -> String {
        match self {
            StepKind::Ssh { command, .. } => format!("{command} to end with exit code 0"),
            StepKind::Reboot { .. } => "a new boot, and the host answering".to_owned(),
            StepKind::Netboot { mode, .. } => format!("the next boot set to {mode}"),
            StepKind::Repave { image, .. } => format!("{image} installed by this run"),
            StepKind::Join { cluster_ref } => format!("the machine to be a member of {cluster_ref}"),
            StepKind::Verify { cluster_ref } => format!("the machine to be ready in {cluster_ref}"),
            StepKind::Net { .. } => "the network parameters in force".to_owned(),
            StepKind::Rma { action: RmaAction::DrainCheck, .. } => "nothing running on the machine any more".to_owned(),
            StepKind::Rma { action: RmaAction::Shutdown, .. } => "the machine powered off".to_owned(),
            StepKind::Rma { action: RmaAction::Return, .. } => "a return opened with the vendor".to_owned(),
        }
    }

    /// Overrides the payload field called `name`. `Ok(false)`: this kind has no such field.
    fn override_field(&mut self, name: &str, value: &str) -> Result<bool, Error> {
        let field = format!("parameters.{name}");
        match (self, name) {
            (StepKind::Ssh { command, .. }, "command") => value.clone_into(command),
            (StepKind::Reboot { mode }, "mode") => *mode = RebootMode::parse(&field, value)?,
            (StepKind::Netboot { mode, .. }, "mode") => *mode = BootMode::parse(&field, value)?,
            (StepKind::Netboot { persistent, .. }, "persistent") => {
                *persistent =
                    value.parse().map_err(|_| Error::field(&field, format!("{value:?} is neither true nor false")))?;
            }
            (StepKind::Repave { image, .. }, "image") => value.clone_into(image),
            (StepKind::Repave { user_data_ref, .. }, "user_data_ref") => value.clone_into(user_data_ref),
            (StepKind::Join { cluster_ref } | StepKind::Verify { cluster_ref }, "cluster_ref") => {
                value.clone_into(cluster_ref)
            }
            (StepKind::Rma { reason, .. }, "reason") => value.clone_into(reason),
            (
                StepKind::Ssh { .. }
                | StepKind::Reboot { .. }
                | StepKind::Netboot { .. }
                | StepKind::Repave { .. }
                | StepKind::Join { .. }
                | StepKind::Verify { .. }
                | StepKind::Net { .. }
                | StepKind::Rma { .. },
                _,
            ) => return Ok(false),
        }
        Ok(true)
    }

    fn payload_bytes(&self) -> usize {
        match self {
            StepKind::Ssh { command, args, environment } => {
                command.len()
                    + args.iter().map(String::len).sum::<usize>()
                    + environment.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>()
            }
            StepKind::Repave { image, user_data_ref } => image.len() + user_data_ref.len(),
            StepKind::Join { cluster_ref } | StepKind::Verify { cluster_ref } => cluster_ref.len(),
            StepKind::Net { parameters } => parameters.iter().map(|(k, v)| k.len() + v.len()).sum(),
            StepKind::Rma { reason, .. } => reason.len(),
            StepKind::Reboot { .. } | StepKind::Netboot { .. } => 0,
        }
    }
}

impl Plan {
    /// Everything that makes a plan unusable, found before it is stored.
    pub fn validate(&self) -> Result<(), Error> {
        check_name("plan_id", &self.id)?;
        check_text("display_name", &self.display_name, limits::TEXT_MAX)?;
        let bad = |field: String, problem: String| {
            Error::new(Reason::InvalidPlan, format!("plan {}: {field}: {problem}", self.id)).with("field", field)
        };
        if self.steps.is_empty() {
            return Err(bad("steps".into(), "a plan needs at least one step".into()));
        }
        if self.steps.len() > limits::PLAN_STEPS_MAX {
            return Err(bad(
                "steps".into(),
                format!("has {}, at most {} are allowed", self.steps.len(), limits::PLAN_STEPS_MAX),
            ));
        }
        let bytes: usize = self.steps.iter().map(|s| s.kind.payload_bytes()).sum();
        if bytes > limits::PLAN_PAYLOAD_MAX {
            let problem = format!("payloads have {bytes} bytes, at most {} are allowed", limits::PLAN_PAYLOAD_MAX);
            return Err(bad("steps".into(), problem));
        }
        let mut names = BTreeSet::new();
        for (i, step) in self.steps.iter().enumerate() {
            check_name(&format!("steps[{i}].name"), &step.name)?;
            if !names.insert(&step.name) {
                return Err(bad(
                    format!("steps[{i}].name"),
                    format!("{:?} stands twice; step names are unique", step.name),
                ));
            }
            if let Some(t) = step.timeout_seconds
                && !(0..=limits::STEP_TIMEOUT_MAX_SECONDS).contains(&t)
            {
                return Err(bad(
                    format!("steps[{i}].timeout_seconds"),
                    format!("{t} is outside 0 to {}", limits::STEP_TIMEOUT_MAX_SECONDS),
                ));
            }
            if let Some(r) = step.max_retries
                && !(0..=limits::STEP_RETRIES_MAX).contains(&r)
            {
                return Err(bad(
                    format!("steps[{i}].max_retries"),
                    format!("{r} is outside 0 to {}", limits::STEP_RETRIES_MAX),
                ));
            }
            step.validate_payload().map_err(|problem| bad(format!("steps[{i}]"), problem))?;
        }
        Ok(())
    }

    /// The steps as they will run: parameters applied, clusters filled in, empty payloads refused.
    pub fn resolve(&self, parameters: &BTreeMap<String, String>, cluster: &str) -> Result<Vec<Step>, Error> {
        let mut steps = self.steps.clone();
        for (name, value) in parameters {
            let mut used = false;
            for step in &mut steps {
                used |= step.kind.override_field(name, value)?;
            }
            if !used {
                // Network parameters have no fixed names: the network steps take what nobody else knows.
                for step in &mut steps {
                    if let StepKind::Net { parameters } = &mut step.kind {
                        parameters.insert(name.clone(), value.clone());
                        used = true;
                    }
                }
            }
            if !used {
                return Err(Error::field(
                    &format!("parameters.{name}"),
                    format!("no step of plan {} has a field of that name", self.id),
                ));
            }
        }
        for step in &mut steps {
            if let Some(cluster_ref) = step.kind.cluster_ref_mut()
                && cluster_ref.is_empty()
            {
                if cluster.is_empty() {
                    return Err(Error::new(
                        Reason::ClusterMissing,
                        format!(
                            "plan {}, step {}: no cluster to {}; set spec.target_cluster_ref on the machine, or pass parameters.cluster_ref",
                            self.id,
                            step.name,
                            step.kind.name()
                        ),
                    ));
                }
                cluster.clone_into(cluster_ref);
            }
            step.validate_payload()
                .map_err(|problem| Error::field("parameters", format!("step {}: {problem}", step.name)))?;
        }
        Ok(steps)
    }
}

impl Step {
    fn validate_payload(&self) -> Result<(), String> {
        match &self.kind {
            StepKind::Ssh { command, args, environment } => {
                if command.is_empty() {
                    return Err("ssh.command must not be empty".into());
                }
                if args.len() > limits::STEP_ARGS_MAX || environment.len() > limits::STEP_ARGS_MAX {
                    return Err(format!("ssh: at most {} args and variables are allowed", limits::STEP_ARGS_MAX));
                }
                if let Some(name) = environment.keys().find(|k| !is_variable_name(k)) {
                    return Err(format!("ssh.environment: {name:?} is not a variable name"));
                }
                Ok(())
            }
            StepKind::Repave { image, .. } if image.is_empty() => Err("repave.image must not be empty".into()),
            StepKind::Repave { .. }
            | StepKind::Reboot { .. }
            | StepKind::Netboot { .. }
            | StepKind::Join { .. }
            | StepKind::Verify { .. }
            | StepKind::Net { .. }
            | StepKind::Rma { .. } => Ok(()),
        }
    }
}

fn is_variable_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, kind: StepKind) -> Step {
        Step { name: name.into(), timeout_seconds: None, max_retries: None, kind }
    }

    fn plan(steps: Vec<Step>) -> Plan {
        Plan { id: "p".into(), display_name: String::new(), steps }
    }

    fn repave() -> StepKind {
        StepKind::Repave { image: "a".into(), user_data_ref: String::new() }
    }

    #[test]
    fn defaults_and_explicit_zero_are_told_apart() {
        let mut s = step("a", repave());
        assert_eq!((s.timeout(), s.max_retries()), (DEFAULT_TIMEOUT, 2));
        s.timeout_seconds = Some(0);
        s.max_retries = Some(0);
        assert_eq!((s.timeout(), s.max_retries()), (DEFAULT_TIMEOUT, 0));
    }

    #[test]
    fn bad_plans_are_refused_by_field() {
        let reason = |p: Plan| p.validate().map_err(|e| e.details["field"].clone());
        assert_eq!(reason(plan(vec![])), Err("steps".into()));
        assert_eq!(reason(plan(vec![step("a", repave()), step("a", repave())])), Err("steps[1].name".into()));
        let mut s = step("a", repave());
        s.max_retries = Some(-1);
        assert_eq!(reason(plan(vec![s])), Err("steps[0].max_retries".into()));
        let many = (0..65).map(|i| step(&format!("s{i}"), repave())).collect();
        assert_eq!(reason(plan(many)), Err("steps".into()));
    }

    #[test]
    fn parameters_override_same_named_fields_and_typos_are_caught() {
        let p = plan(vec![step("a", repave()), step("b", StepKind::Join { cluster_ref: String::new() })]);
        let with = |k: &str, v: &str| BTreeMap::from([(k.to_owned(), v.to_owned())]);
        let steps = p.resolve(&with("image", "b"), "prod").expect("resolves");
        assert_eq!(steps[0].kind, StepKind::Repave { image: "b".into(), user_data_ref: String::new() });
        assert_eq!(steps[1].kind, StepKind::Join { cluster_ref: "prod".into() });
        assert_eq!(
            p.resolve(&with("imgae", "b"), "prod").map_err(|e| e.details["field"].clone()),
            Err("parameters.imgae".into())
        );
        assert_eq!(p.resolve(&BTreeMap::new(), "").map_err(|e| e.reason), Err(Reason::ClusterMissing));
    }
}
