//! Nodes and their bundles: a bundle is a secret, shown once. It goes into a file for its owner alone, or stands alone on
//! stdout.

use super::ClientOptions;
use super::connect::{call, connect};
use super::dry_run::DryRun;
use super::exit::CliError;
use super::node_act::OneArgs;
use super::output::{self, Format, note};
use super::text::{clean, parse_duration, rfc3339};
use super::token::SecretFile;
use clap::Args;
use proto::millwright::v1::{CreateNodeRequest, IssuedNode, NodeActionRequest};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Args)]
pub struct CreateArgs {
    /// What people call it; unique among nodes that are not deleted
    #[arg(value_name = "NAME")]
    name: String,
    /// The machine that it is, where that is known
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    machine: String,
    /// How long the bundle is good, e.g. 2h [default: 24h]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    bundle_for: Option<Duration>,
    /// Begin its onboarding at once, and not when its agent comes
    #[arg(long)]
    onboard: bool,
    /// Write the bundle to this file (mode 0600), which must not exist, instead of stdout
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print what would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
pub struct RebootstrapArgs {
    #[command(flatten)]
    one: OneArgs,
    /// Write the bundle to this file (mode 0600), which must not exist, instead of stdout
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub async fn create(args: CreateArgs, options: &ClientOptions) -> Result<(), CliError> {
    let seconds = args.bundle_for.map_or(0, |d| d.as_secs());
    let bundle_seconds =
        i32::try_from(seconds).map_err(|_| CliError::usage(format!("--bundle-for: {seconds} s is too long")))?;
    let request =
        CreateNodeRequest { name: args.name, machine_id: args.machine, bundle_seconds, onboard: args.onboard };
    if args.dry_run {
        return DryRun::new("millwright.v1.NodeService/CreateNode", &request.name, &request)?.print(options.output);
    }
    // before anything is made: a bundle that cannot be written is lost
    let file = args.out.as_deref().map(|path| SecretFile::create("--out", path)).transpose()?;
    let mut nodes = connect(options).await?.nodes;
    let answer = call(nodes.create_node(request)).await?;
    hand_out(answer, file, options)
}

pub async fn rebootstrap(args: RebootstrapArgs, options: &ClientOptions) -> Result<(), CliError> {
    let RebootstrapArgs { one: OneArgs { node, reason, dry_run }, out } = args;
    let file = match out.as_deref().filter(|_| !dry_run) {
        Some(path) => Some(SecretFile::create("--out", path)?),
        None => None,
    };
    let request = NodeActionRequest { id: node, reason, dry_run, ..NodeActionRequest::default() };
    let mut nodes = connect(options).await?.nodes;
    let answer = call(nodes.rebootstrap_node(request)).await?;
    if dry_run {
        let node = answer.node.clone().unwrap_or_default();
        return output::one(options.output, &answer, &node.id, |answer| {
            vec![clean(&format!(
                "{} ({}) dry run of rebootstrap: nothing was done: {}",
                node.id, node.name, answer.effect
            ))]
        });
    }
    hand_out(answer, file, options)
}

fn lost(error: CliError, answer: &IssuedNode) -> CliError {
    let id = answer.node.as_ref().map(|node| node.id.as_str()).unwrap_or_default();
    error.hint(format!("the bundle was issued and is lost; issue another: millwright node rebootstrap {id}"))
}

/// The bundle in its file, or alone on stdout; what is beside it on stderr.
fn hand_out(mut answer: IssuedNode, file: Option<SecretFile<'_>>, options: &ClientOptions) -> Result<(), CliError> {
    let node = answer.node.clone().unwrap_or_default();
    if answer.secret_bundle.is_empty() {
        return Err(CliError::refused("the server shows a bundle only once, and has shown this one")
            .because(if answer.reason.is_empty() { "SECRET_ALREADY_SHOWN" } else { &answer.reason })
            .hint(format!("issue another: millwright node rebootstrap {}", node.id)));
    }
    let mut at = None;
    if let Some(file) = file {
        let path = file.keep(answer.secret_bundle.trim_end()).map_err(|e| lost(e, &answer))?;
        at = Some(path.to_path_buf());
        answer.secret_bundle.clear();
    }
    match options.output {
        Format::Json | Format::Yaml => output::one(options.output, &answer, &node.id, |_| Vec::new())
            .map_err(|e| lost(e.outcome_unknown(), &answer)),
        Format::Table | Format::Wide | Format::Name => {
            let until = rfc3339(node.bundle_expires_at.as_ref());
            note(&clean(&format!("{} ({}) is {}; its bundle is good until {until}", node.id, node.name, node.status)));
            install(at.as_deref());
            let mut out = std::io::stdout().lock();
            let text = match at {
                // the id, so that a script has something to go on with
                Some(_) => format!("{}\n", node.id),
                None => format!("{}\n", answer.secret_bundle.trim_end()),
            };
            out.write_all(text.as_bytes())
                .and_then(|()| out.flush())
                .map_err(|e| lost(CliError::from(e).outcome_unknown(), &answer))
        }
    }
}

fn install(at: Option<&Path>) {
    match at {
        Some(path) => note(&format!(
            "bring {0} to the machine, and run there: millwright-agent install --bundle {0}",
            path.display()
        )),
        None => note(
            "warning: this is a secret, and shown this once; keep it in a file that nobody else can read (--out FILE), \
             bring it to the machine, and run there: millwright-agent install --bundle FILE",
        ),
    }
}
