//! `millwright workflow …`: what an installation boots and writes.

use super::connect::{call, connect};
use super::dry_run::DryRun;
use super::exit::{CliError, Exit};
use super::output::{self, Column, Listed, Screen};
use super::plan_file::read_as;
use super::sheet::Sheet;
use super::text::{clean, dated, now, relative, rfc3339};
use super::{ClientOptions, ListArgs};
use clap::Subcommand;
use domain::boot_workflow::BootWorkflow;
use proto::millwright::v1::{GetWorkflowRequest, ListWorkflowsRequest, Workflow};
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum WorkflowCommand {
    /// List workflows
    #[command(after_help = "Examples:
  millwright workflow list
  millwright workflow list --filter 'arch=arm64 AND boot_mode=uefi' -o name

Filters: id, name, kernel, initrd, cmdline, image, image_sha256, arch, boot_mode, disk, created_at, created_by.")]
    List(ListArgs),
    /// Show one workflow
    #[command(
        after_help = "Examples:\n  millwright workflow show debian-12\n  millwright workflow show debian-12 -o yaml > mine.yaml"
    )]
    Show {
        /// The workflow's id
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Create a workflow; it never changes afterwards
    #[command(after_help = "Examples:
  millwright workflow create -f debian-12.yaml
  millwright workflow create -f debian-12.yaml --dry-run       (is it sound, and is the id free?)

A workflow file is JSON or YAML with the API's field names. One that writes an image, by our own installer:
  id: debian-12
  name: Debian 12
  kernel: installer-vmlinuz          # a URL, or a name among the images
  initrd: installer-initrd
  cmdline: console=ttyS0
  image: debian-12.raw.gz
One that boots a distribution's own installer with a file of answers:
  id: ubuntu-24.04-auto
  name: Ubuntu 24.04, autoinstall
  kernel: ubuntu-vmlinuz
  initrd: ubuntu-initrd
  cmdline: autoinstall ds=nocloud;s=${answers_url}
  template: |
    #cloud-config
    hostname: ${hostname:yaml}
Variables, as ${name}, ${name:shell} or ${name:yaml} (quoted for a shell, for YAML), and $$ for a dollar:
  node_id mac ip hostname serial uuid vendor model arch machine_id url token answers_url image_url image_sha256
In cmdline only ${name}; what machines say of themselves (ip hostname serial uuid vendor model arch) behind an
option's name, as in host=${hostname}.
For administrators: what a workflow boots is root on the fleet.")]
    Create {
        /// The workflow's file, or - for stdin
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Check it, print what would be sent, and create nothing
        #[arg(long)]
        dry_run: bool,
    },
}

pub async fn execute(command: WorkflowCommand, options: &ClientOptions) -> Result<(), CliError> {
    match command {
        WorkflowCommand::List(args) => {
            let boot = connect(options).await?.boot;
            output::list(options.output, &args.filter, args.limit, async |page_size, page_token| {
                let request = ListWorkflowsRequest { page_size, page_token, filter: args.filter.clone() };
                let page = call(boot.clone().list_workflows(request)).await?;
                Ok((page.workflows, page.next_page_token))
            })
            .await
        }
        WorkflowCommand::Show { id } => {
            let mut boot = connect(options).await?.boot;
            let found = call(boot.get_workflow(GetWorkflowRequest { id })).await?;
            output::one(options.output, &found, &found.id, |w| sheet(w, Screen::stdout()))
        }
        WorkflowCommand::Create { file, dry_run } => {
            let new: Workflow = read_as(&file)?;
            if dry_run {
                return look(new, options).await;
            }
            let mut boot = connect(options).await?.boot;
            let made = call(boot.create_workflow(new)).await?;
            output::one(options.output, &made, &made.id, |w| vec![clean(&format!("{} created: {}", w.id, what(w)))])
        }
    }
}

/// The rules of the domain, asked here.
pub(super) fn checked(new: &Workflow) -> Result<(), domain::Error> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let workflow = BootWorkflow {
        id: new.id.clone(),
        name: new.name.clone(),
        kernel: new.kernel.clone(),
        initrd: new.initrd.clone(),
        cmdline: new.cmdline.clone(),
        image: text(&new.image),
        image_sha256: text(&new.image_sha256),
        arch: new.arch.clone(),
        boot_mode: new.boot_mode.clone(),
        template: new.template.clone(),
        disk: new.disk.clone(),
        ..BootWorkflow::default()
    };
    workflow.checked().map(drop)
}

/// Whether a workflow would be taken: its own rules, and whether its id is free.
async fn look(new: Workflow, options: &ClientOptions) -> Result<(), CliError> {
    let id = new.id.clone();
    let mut trial = DryRun::new("millwright.v1.BootService/CreateWorkflow", &id, &new)?;
    match checked(&new) {
        Ok(()) => trial.fine(format!("the workflow is sound: {}", what(&new))),
        Err(e) => trial.obstacle(CliError::from(&e)),
    }
    let mut boot = connect(options).await?.boot;
    match call(boot.get_workflow(GetWorkflowRequest { id: id.clone() })).await {
        Ok(_) => trial.obstacle(
            CliError::refused(format!("workflow {id} is there already"))
                .because("WORKFLOW_EXISTS")
                .hint("a workflow never changes once created; choose another id"),
        ),
        Err(e) if e.exit() == Exit::NotFound => trial.fine(format!("the id {id} is free")),
        Err(e) => return Err(e),
    }
    trial.print(options.output)
}

/// What it does, in a few words.
fn what(workflow: &Workflow) -> String {
    match &workflow.image {
        Some(image) => format!("writes {image}"),
        None => format!("boots {}", workflow.kernel),
    }
}

static COLUMNS: [Column<Workflow>; 12] = [
    Column::new("WORKFLOW", |w: &Workflow, _| w.id.clone()),
    Column::new("NAME", |w: &Workflow, _| w.name.clone()).flex(),
    Column::new("IMAGE", |w: &Workflow, _| w.image.clone().unwrap_or_default()).flex(),
    Column::new("KERNEL", |w: &Workflow, _| w.kernel.clone()).flex(),
    Column::new("INITRD", |w: &Workflow, _| w.initrd.clone()).wide(),
    Column::new("CMDLINE", |w: &Workflow, _| w.cmdline.clone()).wide(),
    Column::new("ARCH", |w: &Workflow, _| w.arch.clone()).wide(),
    Column::new("BOOT MODE", |w: &Workflow, _| w.boot_mode.clone()).wide(),
    Column::new("DISK", |w: &Workflow, _| w.disk.clone()).wide(),
    Column::new("CREATED", |w: &Workflow, now| relative(w.created_at.as_ref(), now)).narrow(),
    Column::new("CREATED", |w: &Workflow, _| rfc3339(w.created_at.as_ref())).wide(),
    Column::new("BY", |w: &Workflow, _| w.created_by.clone()),
];

impl Listed for Workflow {
    type Message = Self;
    const PLURAL: &'static str = "workflows";
    const PAGED: bool = true;

    fn columns() -> &'static [Column<Self>] {
        &COLUMNS
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn message(&self) -> &Self {
        self
    }
}

fn sheet(w: &Workflow, screen: Screen) -> Vec<String> {
    let now = now();
    let mut sheet = Sheet::new(screen, now);
    sheet
        .row("Workflow", &w.id)
        .row("Name", &w.name)
        .row("Kernel", &w.kernel)
        .row("Initrd", &w.initrd)
        .row("Cmdline", &w.cmdline)
        .row("Image", w.image.as_deref().unwrap_or_default())
        .row("SHA-256", w.image_sha256.as_deref().unwrap_or_default())
        .row("Disk", &w.disk)
        .row("Arch", &w.arch)
        .row("Boot mode", &w.boot_mode)
        .row("Created", &dated(w.created_at.as_ref(), now))
        .row("By", &w.created_by)
        .rows("Template", w.template.lines().map(str::to_owned));
    sheet.lines()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::json::{Wire as _, descriptor};
    use crate::cli::plan_file::parse;
    use clap::CommandFactory as _;
    use domain::boot_workflow::VARIABLES;

    #[derive(clap::Parser)]
    struct Top {
        #[command(subcommand)]
        _command: WorkflowCommand,
    }

    #[test]
    fn the_help_names_every_variable_and_its_examples_are_sound() {
        let top = Top::command();
        let create = top.find_subcommand("create").expect("a command");
        let help = create.get_after_help().expect("help").to_string();
        for (name, _) in VARIABLES {
            assert!(help.split_whitespace().any(|word| word == *name), "{name}");
        }
        let mut found = 0;
        for text in help.split("\n  id: ").skip(1) {
            let lines = text.lines().take_while(|line| line.starts_with("  ") || !line.contains(' '));
            let example: String = std::iter::once("id: ".to_owned())
                .chain(
                    lines
                        .enumerate()
                        .map(|(n, line)| if n == 0 { format!("{line}\n") } else { format!("{}\n", &line[2..]) }),
                )
                .collect();
            let workflow: Workflow = parse(&example, &descriptor(Workflow::NAME).expect("known")).expect(&example);
            checked(&workflow).unwrap_or_else(|e| panic!("{e}\n{example}"));
            found += 1;
        }
        assert_eq!(found, 2);
    }

    #[test]
    fn unknown_variables_are_refused_before_anything_is_sent() {
        let new = Workflow {
            id: "w".into(),
            name: "w".into(),
            kernel: "k".into(),
            cmdline: "x=${nonsense}".into(),
            ..Workflow::default()
        };
        assert!(checked(&new).is_err_and(|e| e.message.contains("nonsense")));
    }
}
