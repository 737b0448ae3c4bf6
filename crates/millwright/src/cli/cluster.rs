//! `millwright cluster …`: the Kubernetes clusters that machines join, each a kubeconfig among the credentials.

use super::cluster_nodes::{self, NodeCommand};
use super::connect::connect;
use super::credential::{self, DeleteArgs};
use super::exit::CliError;
use super::secret_input;
use super::{ClientOptions, ListArgs};
use clap::Subcommand;
use proto::millwright::v1::SetCredentialRequest;
use std::path::PathBuf;

const KIND: &str = "kubeconfig";

#[derive(Subcommand)]
pub enum ClusterCommand {
    /// Make a cluster known by name, or replace the kubeconfig it is reached with
    #[command(after_help = "Examples:
  kubectl config view --raw --flatten --minify > prod.kubeconfig
  millwright cluster add prod --kubeconfig prod.kubeconfig
  millwright machine update m-1 --cluster prod

The kubeconfig is kept as the credential of that name: sealed, and never shown. It must hold everything: no paths of
files, no programs to run.")]
    Add {
        /// The cluster's name, as machines give it in target_cluster_ref
        #[arg(value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
        name: String,
        /// Its kubeconfig
        #[arg(long, value_name = "FILE")]
        kubeconfig: PathBuf,
        /// Print what would be sent, without what is secret in it, and send nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// List the clusters that are known, and how many machines name each
    #[command(after_help = "Example:\n  millwright cluster list")]
    List(ListArgs),
    /// Forget a cluster and wipe its kubeconfig
    #[command(after_help = "Examples:\n  millwright cluster remove prod\n  millwright cluster remove prod --force")]
    Remove(DeleteArgs),
    #[command(flatten)]
    Node(NodeCommand),
}

pub async fn execute(command: ClusterCommand, options: &ClientOptions) -> Result<(), CliError> {
    match command {
        ClusterCommand::Add { name, kubeconfig, dry_run } => {
            let request = SetCredentialRequest {
                name,
                kind: KIND.to_owned(),
                kubeconfig: secret_input::file(&kubeconfig)?.reveal().to_owned(),
                ..SetCredentialRequest::default()
            };
            credential::set(request, dry_run, options).await
        }
        ClusterCommand::Node(command) => cluster_nodes::execute(command, options).await,
        ClusterCommand::List(args) => credential::list(&args, "kind=kubeconfig", options).await,
        ClusterCommand::Remove(args) => {
            if !args.dry_run {
                let found = credential::find(&connect(options).await?, &args.name).await?;
                if found.kind != KIND {
                    return Err(CliError::refused(format!(
                        "{} is no cluster: a credential of kind {}",
                        found.name, found.kind
                    ))
                    .hint(format!("millwright credential delete {}", found.name)));
                }
            }
            credential::delete(args, options).await
        }
    }
}
