//! `millwright finding …`: what does not belong together, until somebody has settled it.

use super::connect::{call, connect};
use super::dry_run::DryRun;
use super::exit::CliError;
use super::output::{self, Column, Listed, Screen};
use super::sheet::Sheet;
use super::text::{clean, dated, now, relative, rfc3339};
use super::{ClientOptions, ListArgs};
use clap::{Args, Subcommand};
use proto::millwright::v1::{Finding, GetFindingRequest, HandleFindingRequest, ListFindingsRequest};

#[derive(Subcommand)]
pub enum FindingCommand {
    /// List findings; without a filter, those that are not resolved
    #[command(after_help = "Examples:
  millwright finding list
  millwright finding list --filter 'kind=IDENTITY_CONFLICT'
  millwright finding list --filter 'state=resolved' -o wide

Filters: id, kind, subject, state, first_seen, last_seen, handled_by.")]
    List(ListArgs),
    /// Show one finding, and what to do about it
    #[command(after_help = "Examples:\n  millwright finding show fnd_0198c5…\n  millwright why fnd_0198c5…")]
    Show {
        /// The finding's id
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Say that somebody has taken it up
    #[command(after_help = "Example:\n  millwright finding acknowledge fnd_0198c5… --comment 'ticket 4711'")]
    Acknowledge(HandleArgs),
    /// Say that it is settled; it is opened again if it is seen again
    #[command(after_help = "Example:\n  millwright finding resolve fnd_0198c5… --comment 'cards were swapped back'")]
    Resolve(HandleArgs),
}

#[derive(Args)]
pub struct HandleArgs {
    /// The finding's id
    #[arg(value_name = "ID")]
    id: String,
    /// What was done, or will be
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    comment: String,
    /// Print what would be sent, and change nothing
    #[arg(long)]
    dry_run: bool,
}

pub async fn execute(command: FindingCommand, options: &ClientOptions) -> Result<(), CliError> {
    match command {
        FindingCommand::List(args) => {
            let findings = connect(options).await?.findings;
            output::list(options.output, &args.filter, args.limit, async |page_size, page_token| {
                let request = ListFindingsRequest { filter: args.filter.clone(), page_size, page_token };
                let page = call(findings.clone().list_findings(request)).await?;
                Ok((page.findings, page.next_page_token))
            })
            .await
        }
        FindingCommand::Show { id } => {
            let mut findings = connect(options).await?.findings;
            let found = call(findings.get_finding(GetFindingRequest { id })).await?;
            output::one(options.output, &found, &found.id, |f| sheet(f, Screen::stdout()))
        }
        FindingCommand::Acknowledge(args) => {
            let (request, dry_run) = asked(args);
            if dry_run {
                let name = "millwright.v1.FindingService/AcknowledgeFinding";
                return DryRun::new(name, &request.id, &request)?.print(options.output);
            }
            let mut findings = connect(options).await?.findings;
            handled(options, &call(findings.acknowledge_finding(request)).await?)
        }
        FindingCommand::Resolve(args) => {
            let (request, dry_run) = asked(args);
            if dry_run {
                let name = "millwright.v1.FindingService/ResolveFinding";
                return DryRun::new(name, &request.id, &request)?.print(options.output);
            }
            let mut findings = connect(options).await?.findings;
            handled(options, &call(findings.resolve_finding(request)).await?)
        }
    }
}

fn asked(args: HandleArgs) -> (HandleFindingRequest, bool) {
    (HandleFindingRequest { id: args.id, comment: args.comment }, args.dry_run)
}

fn handled(options: &ClientOptions, finding: &Finding) -> Result<(), CliError> {
    output::one(options.output, finding, &finding.id, |f| {
        vec![clean(&format!("{} is {}: {} of {}", f.id, f.state, f.kind, f.subject))]
    })
}

static COLUMNS: [Column<Finding>; 11] = [
    Column::new("FINDING", |f: &Finding, _| f.id.clone()),
    Column::new("KIND", |f: &Finding, _| f.kind.clone()),
    Column::new("STATE", |f: &Finding, _| f.state.clone()).state(),
    Column::new("SUBJECT", |f: &Finding, _| f.subject.clone()),
    Column::new("SEEN", |f: &Finding, now| relative(f.last_seen.as_ref(), now)).narrow(),
    Column::new("FIRST SEEN", |f: &Finding, _| rfc3339(f.first_seen.as_ref())).wide(),
    Column::new("LAST SEEN", |f: &Finding, _| rfc3339(f.last_seen.as_ref())).wide(),
    Column::new("HANDLED BY", |f: &Finding, _| f.handled_by.clone()).wide(),
    Column::new("COMMENT", |f: &Finding, _| f.comment.clone()).wide(),
    Column::new("NEXT", |f: &Finding, _| f.next_action.clone()).wide(),
    Column::new("MESSAGE", |f: &Finding, _| f.message.clone()).flex(),
];

impl Listed for Finding {
    type Message = Self;
    const PLURAL: &'static str = "findings";
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

fn sheet(f: &Finding, screen: Screen) -> Vec<String> {
    let now = now();
    let mut sheet = Sheet::new(screen, now);
    sheet
        .row("Finding", &f.id)
        .row("Kind", &f.kind)
        .state("State", &f.state)
        .row("Subject", &f.subject)
        .row("Message", &f.message)
        .row("Next", &f.next_action)
        .row("First seen", &dated(f.first_seen.as_ref(), now))
        .row("Last seen", &dated(f.last_seen.as_ref(), now))
        .row("Handled by", &f.handled_by)
        .row("Comment", &f.comment);
    sheet.lines()
}
