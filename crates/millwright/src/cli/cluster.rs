//! `millwright cluster …`: the Kubernetes clusters that machines join, each a kubeconfig among the credentials.

use super::cluster_nodes::{self, NodeCommand};
use super::connect::connect;
use super::credential::{self, DeleteArgs};
use super::exit::{CliError, Exit};
use super::output::{Column, Listed};
use super::secret_input;
use super::text::{relative, rfc3339};
use super::{ClientOptions, ListArgs};
use clap::Subcommand;
use proto::millwright::v1::{Credential, SetCredentialRequest};
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
        ClusterCommand::List(args) => credential::list(&args, "kind=kubeconfig", options, Cluster).await,
        ClusterCommand::Remove(args) => {
            if !args.dry_run {
                let found =
                    credential::find(&connect(options).await?, &args.name).await.map_err(|e| match e.exit() {
                        Exit::NotFound => CliError::not_found(format!("there is no cluster {:?}", args.name))
                            .because("CREDENTIAL_NOT_FOUND")
                            .hint("millwright cluster list"),
                        _ => e,
                    })?;
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

/// A cluster is the kubeconfig that it is reached with.
struct Cluster(Credential);

static COLUMNS: [Column<Cluster>; 5] = [
    Column::new("CLUSTER", |c: &Cluster, _| c.0.name.clone()).flex(),
    Column::new("MACHINES", |c: &Cluster, _| c.0.machines.to_string()),
    Column::new("CHANGED", |c: &Cluster, now| relative(c.0.updated_at.as_ref(), now)).narrow(),
    Column::new("CHANGED", |c: &Cluster, _| rfc3339(c.0.updated_at.as_ref())).wide(),
    Column::new("BY", |c: &Cluster, _| c.0.updated_by.clone()),
];

impl Listed for Cluster {
    type Message = Credential;
    const PLURAL: &'static str = "clusters";
    const PAGED: bool = true;

    fn columns() -> &'static [Column<Self>] {
        &COLUMNS
    }

    fn id(&self) -> &str {
        &self.0.name
    }

    fn message(&self) -> &Credential {
        &self.0
    }
}
