//! `millwright plan …`

use super::ClientOptions;
use super::connect::{call, connect};
use super::dry_run::DryRun;
use super::exit::{CliError, Exit};
use super::output::{self, Column, Listed, Screen};
use super::plan_file;
use super::sheet::Sheet;
use super::text::{now, show_pairs};
use clap::Subcommand;
use proto::baremetal::v1::step::Kind;
use proto::baremetal::v1::{CreatePlanRequest, GetPlanRequest, ListPlansRequest, Plan, Step};
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum PlanCommand {
    /// List all plans: built in, from the server's plan folder, and created
    #[command(after_help = "Examples:\n  millwright plan list\n  millwright plan list -o name")]
    List,
    /// Show one plan and its steps
    #[command(
        after_help = "Examples:\n  millwright plan show default-repave\n  millwright plan show default-repave -o yaml > mine.yaml"
    )]
    Show {
        /// The plan's id
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Create a plan; it never changes afterwards
    #[command(after_help = "Examples:
  millwright plan create -f repave.yaml
  millwright plan show default-repave -o yaml > mine.yaml      (then edit it: another plan_id)
  millwright plan create -f mine.yaml --dry-run                (is it sound, and is the id free?)

A plan file is JSON or YAML with the API's field names:
  plan_id: repave-ubuntu-v1
  display_name: Repave Ubuntu
  steps:
  - {name: set-netboot, timeout_seconds: 60, netboot: {mode: PXE}}
  - {name: repave-os, timeout_seconds: 1800, max_retries: 1, repave: {image: ubuntu-22.04}}
  - {name: reboot, reboot: {mode: bmc}}
Step kinds: ssh, reboot, netboot, repave, join, verify, net, rma.")]
    Create {
        /// The plan's file, or - for stdin
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Check it, print what would be sent, and create nothing
        #[arg(long)]
        dry_run: bool,
    },
}

pub async fn execute(command: PlanCommand, options: &ClientOptions) -> Result<(), CliError> {
    match command {
        PlanCommand::List => {
            let plans = connect(options).await?.plans;
            output::list(options.output, "", None, async |_, _| {
                Ok((call(plans.clone().list_plans(ListPlansRequest {})).await?.plans, String::new()))
            })
            .await
        }
        PlanCommand::Show { id } => {
            let mut plans = connect(options).await?.plans;
            let plan = call(plans.get_plan(GetPlanRequest { plan_id: id })).await?;
            output::one(options.output, &plan, &plan.plan_id, |plan| sheet(plan, Screen::stdout()))
        }
        PlanCommand::Create { file, dry_run } => {
            let plan = plan_file::read(&file)?;
            if dry_run {
                return look(plan, options).await;
            }
            let mut plans = connect(options).await?.plans;
            let plan = call(plans.create_plan(CreatePlanRequest { plan: Some(plan) })).await?;
            output::one(options.output, &plan, &plan.plan_id, |plan| {
                vec![format!("{} created: {} steps", plan.plan_id, plan.steps.len())]
            })
        }
    }
}

/// Whether a plan would be taken: its own rules, and whether its id is free.
async fn look(plan: Plan, options: &ClientOptions) -> Result<(), CliError> {
    let id = plan.plan_id.clone();
    let request = CreatePlanRequest { plan: Some(plan.clone()) };
    let mut trial = DryRun::new("baremetal.v1.PlanService/CreatePlan", &id, &request)?;
    match api::plan_from_proto(plan.clone()).and_then(|plan| plan.validate()) {
        Ok(()) => trial.fine(format!("the plan is sound: {} steps", plan.steps.len())),
        Err(e) => trial.obstacle(CliError::from(&e)),
    }
    let mut plans = connect(options).await?.plans;
    match call(plans.get_plan(GetPlanRequest { plan_id: id.clone() })).await {
        Ok(there) if there == plan => trial.fine(format!("plan {id} is there already, just so")),
        Ok(_) => trial.obstacle(
            CliError::refused(format!("plan {id} is there already, with another body"))
                .because("PLAN_EXISTS")
                .hint("a plan never changes once created; choose another plan_id"),
        ),
        Err(e) if e.exit() == Exit::NotFound => trial.fine(format!("the id {id} is free")),
        Err(e) => return Err(e),
    }
    trial.print(options.output)
}

fn kind(step: &Step) -> &'static str {
    match &step.kind {
        None => "",
        Some(Kind::Ssh(_)) => "ssh",
        Some(Kind::Reboot(_)) => "reboot",
        Some(Kind::Netboot(_)) => "netboot",
        Some(Kind::Repave(_)) => "repave",
        Some(Kind::Join(_)) => "join",
        Some(Kind::Verify(_)) => "verify",
        Some(Kind::Net(_)) => "net",
        Some(Kind::Rma(_)) => "rma",
    }
}

/// What a step does, in a few words.
fn payload(step: &Step) -> String {
    let given = |list: &[(&str, &str)]| {
        let set = list.iter().filter(|(_, value)| !value.is_empty());
        set.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    };
    match &step.kind {
        None => String::new(),
        Some(Kind::Ssh(ssh)) => {
            let mut words: Vec<String> = ssh.environment.iter().map(|(k, v)| format!("{k}={v}")).collect();
            words.push(ssh.command.clone());
            words.extend(ssh.args.iter().cloned());
            words.join(" ")
        }
        Some(Kind::Reboot(reboot)) => given(&[("mode", &reboot.mode)]),
        Some(Kind::Netboot(boot)) => {
            given(&[("mode", &boot.mode), ("persistent", if boot.persistent { "true" } else { "" })])
        }
        Some(Kind::Repave(repave)) => given(&[("image", &repave.image), ("user_data_ref", &repave.user_data_ref)]),
        Some(Kind::Join(join)) => given(&[("cluster_ref", &join.cluster_ref)]),
        Some(Kind::Verify(verify)) => given(&[("cluster_ref", &verify.cluster_ref)]),
        Some(Kind::Net(net)) => show_pairs(&net.parameters),
        Some(Kind::Rma(rma)) => given(&[("action", &rma.action), ("reason", &rma.reason)]),
    }
}

fn number(given: Option<i32>, unit: &str) -> String {
    given.map_or_else(|| "default".to_owned(), |n| format!("{n}{unit}"))
}

static COLUMNS: [Column<Plan>; 4] = [
    Column::new("PLAN", |p: &Plan, _| p.plan_id.clone()),
    Column::new("NAME", |p: &Plan, _| p.display_name.clone()).flex(),
    Column::new("STEPS", |p: &Plan, _| p.steps.len().to_string()).wide(),
    Column::new("STEPS", |p: &Plan, _| p.steps.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(" → ")).flex(),
];

static STEPS: [Column<Step>; 5] = [
    Column::new("STEP", |s: &Step, _| s.name.clone()),
    Column::new("KIND", |s: &Step, _| kind(s).to_owned()),
    Column::new("TIMEOUT", |s: &Step, _| number(s.timeout_seconds, "s")),
    Column::new("RETRIES", |s: &Step, _| number(s.max_retries, "")),
    Column::new("WITH", |s: &Step, _| payload(s)),
];

impl Listed for Plan {
    type Message = Self;
    const PLURAL: &'static str = "plans";
    const PAGED: bool = false;

    fn columns() -> &'static [Column<Self>] {
        &COLUMNS
    }

    fn id(&self) -> &str {
        &self.plan_id
    }

    fn message(&self) -> &Self {
        self
    }
}

fn sheet(plan: &Plan, screen: Screen) -> Vec<String> {
    let mut sheet = Sheet::new(screen, now());
    sheet.row("Plan", &plan.plan_id).row("Name", &plan.display_name).table("Steps", &STEPS, &plan.steps);
    sheet.lines()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::baremetal::v1::{SetNetboot, SshCommand};

    #[test]
    fn steps_tell_what_they_do() {
        let environment = [("A".to_owned(), "1".to_owned())].into();
        let args = vec!["-x".to_owned()];
        let ssh = SshCommand { command: "run".to_owned(), args, environment };
        let netboot = SetNetboot { mode: "PXE".to_owned(), persistent: false };
        let step = |kind| Step { name: "s".to_owned(), kind: Some(kind), ..Default::default() };
        let steps = vec![step(Kind::Ssh(ssh)), step(Kind::Netboot(netboot))];
        let plan = Plan { plan_id: "p".to_owned(), steps, ..Default::default() };
        let lines = sheet(&plan, Screen::PLAIN);
        assert_eq!(
            lines[3..],
            [
                "  STEP  KIND     TIMEOUT  RETRIES  WITH",
                "  s     ssh      default  default  A=1 run -x",
                "  s     netboot  default  default  mode=PXE",
            ]
        );
    }
}
