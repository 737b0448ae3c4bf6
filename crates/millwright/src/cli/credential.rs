//! `millwright credential …`: what machines and clusters are reached with.
//!
//! A secret comes from a file, from stdin or from the keyboard, never from an argument: arguments stand in process
//! lists and in shell histories. It goes to the server and is shown by nothing here, not by a dry run either.

use super::connect::{Clients, call, connect};
use super::dry_run::DryRun;
use super::exit::CliError;
use super::output::{self, Column, Listed, Screen};
use super::secret_input;
use super::sheet::Sheet;
use super::text::{dated, now, relative, rfc3339};
use super::token::quoted;
use super::{ClientOptions, ListArgs};
use clap::{Args, Subcommand, ValueEnum};
use domain::Secret;
use proto::millwright::v1::{
    Credential, DeleteCredentialRequest, ListCredentialsRequest, RotateSecretKeyRequest, RotateSecretKeyResponse,
    SetCredentialRequest,
};
use std::path::PathBuf;

const SET: &str = "millwright.v1.CredentialService/SetCredential";
const DELETE: &str = "millwright.v1.CredentialService/DeleteCredential";
const ROTATE: &str = "millwright.v1.CredentialService/RotateSecretKey";

#[derive(Subcommand)]
pub enum CredentialCommand {
    /// Keep a credential under a name, in the place of the one that was there
    #[command(after_help = "Examples:
  millwright credential set rack-12 --kind bmc --username admin                asks for the password
  millwright credential set rack-12 --kind bmc --username admin --password-file bmc.password
  pass show bmc/rack-12 | millwright credential set rack-12 --kind bmc --username admin --password-stdin
  millwright credential set fleet --kind ssh --username root --private-key ~/.ssh/fleet_ed25519
  millwright credential set fleet --kind ssh --username root --private-key fleet.pem --passphrase-file fleet.pass
  millwright credential set bmc-ca --kind ca --certificates bmc-ca.pem
  millwright credential set worker --kind user-data --file worker.yaml
  millwright credential set lab-maas --kind maas --api-key-file maas.key       a MAAS's API key; without a file it is asked for

Machines name theirs with --credentials-ref NAME, or several with commas between: --credentials-ref rack-12,fleet.
A name keeps its kind. What is kept is sealed with the server's key and never shown again.")]
    Set(SetArgs),
    /// List credentials by name; never what they hold
    #[command(after_help = "Examples:
  millwright credential list
  millwright credential list --filter kind=bmc -o wide")]
    List(ListArgs),
    /// Show one credential: its kind, who set it when, how many machines name it
    #[command(after_help = "Example:\n  millwright credential show rack-12")]
    Show {
        /// The credential's name
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Delete a credential and wipe what it holds
    #[command(after_help = "Examples:
  millwright credential delete rack-12
  millwright credential delete rack-12 --force      although machines name it, and cannot be reached without it")]
    Delete(DeleteArgs),
    /// Seal every credential under the server's current key
    #[command(
        after_help = "Example, after secrets.key_file names a new key and secrets.previous_key_files the old one:
  millwright credential rotate-key

Can be repeated, and goes on where it was cut short. When it ends with 0, the old key is needed no longer."
    )]
    RotateKey {
        /// Print what would be sent, and send nothing
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Args)]
pub struct SetArgs {
    /// Under which name
    #[arg(value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    name: String,
    /// What it opens: a BMC; a host by SSH; a cluster; which certificates of BMCs are trusted; what cloud-init is given; a MAAS
    #[arg(long, value_enum, value_name = "KIND", ignore_case = true)]
    kind: Kind,
    /// The user (bmc, ssh)
    #[arg(long, value_name = "USER")]
    username: Option<String>,
    /// A file that holds the password (bmc); without it and --password-stdin it is asked for
    #[arg(long, value_name = "FILE", conflicts_with = "password_stdin")]
    password_file: Option<PathBuf>,
    /// Read the password from stdin (bmc)
    #[arg(long)]
    password_stdin: bool,
    /// A file that holds the private key (ssh), in OpenSSH's or PEM form
    #[arg(long, value_name = "FILE")]
    private_key: Option<PathBuf>,
    /// A file that holds the private key's passphrase (ssh)
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
    /// A whole kubeconfig (kubeconfig); `millwright cluster add` is the same
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Certificates in PEM (ca)
    #[arg(long, value_name = "FILE")]
    certificates: Option<PathBuf>,
    /// What cloud-init reads at the first boot, at most 64 KiB (user-data)
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// A file that holds the API key (maas), CONSUMER:TOKEN:SECRET; without it it is asked for
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Print what would be sent, without what is secret in it, and send nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
pub struct DeleteArgs {
    /// The credential's name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Also while machines name it
    #[arg(long)]
    pub force: bool,
    /// Print what would be sent, and send nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Bmc,
    Ssh,
    Kubeconfig,
    Ca,
    UserData,
    Maas,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Kind::Bmc => "bmc",
            Kind::Ssh => "ssh",
            Kind::Kubeconfig => "kubeconfig",
            Kind::Ca => "ca",
            Kind::UserData => "user-data",
            Kind::Maas => "maas",
        }
    }

    /// The options that belong to it.
    fn options(self) -> &'static [&'static str] {
        match self {
            Kind::Bmc => &["--username", "--password-file", "--password-stdin"],
            Kind::Ssh => &["--username", "--private-key", "--passphrase-file"],
            Kind::Kubeconfig => &["--kubeconfig"],
            Kind::Ca => &["--certificates"],
            Kind::UserData => &["--file"],
            Kind::Maas => &["--api-key-file"],
        }
    }
}

impl SetArgs {
    /// What belongs to another kind is a mistake, and better found before anything is typed in.
    fn check(&self) -> Result<(), CliError> {
        let kind = self.kind;
        for (option, given) in [
            ("--username", self.username.is_some()),
            ("--password-file", self.password_file.is_some()),
            ("--password-stdin", self.password_stdin),
            ("--private-key", self.private_key.is_some()),
            ("--passphrase-file", self.passphrase_file.is_some()),
            ("--kubeconfig", self.kubeconfig.is_some()),
            ("--certificates", self.certificates.is_some()),
            ("--file", self.file.is_some()),
            ("--api-key-file", self.api_key_file.is_some()),
        ] {
            if given && !kind.options().contains(&option) {
                let words = kind.options().join(", ");
                return Err(CliError::usage(format!("{option} does not go with --kind {}", kind.as_str()))
                    .hint(format!("it takes {words}")));
            }
        }
        let wanted = match kind {
            Kind::Bmc => self.username.is_none().then_some("--username"),
            Kind::Ssh if self.username.is_none() => Some("--username"),
            Kind::Ssh => self.private_key.is_none().then_some("--private-key"),
            Kind::Kubeconfig => self.kubeconfig.is_none().then_some("--kubeconfig"),
            Kind::Ca => self.certificates.is_none().then_some("--certificates"),
            Kind::UserData => self.file.is_none().then_some("--file"),
            Kind::Maas => None,
        };
        match wanted {
            Some(option) => Err(CliError::usage(format!("--kind {} wants {option}", kind.as_str()))),
            None => Ok(()),
        }
    }

    fn request(&self) -> Result<SetCredentialRequest, CliError> {
        let mut request = SetCredentialRequest {
            name: self.name.clone(),
            kind: self.kind.as_str().to_owned(),
            username: self.username.clone().unwrap_or_default(),
            ..SetCredentialRequest::default()
        };
        let file = |path: &Option<PathBuf>| path.as_deref().map(secret_input::file).transpose();
        let whole = |secret: Option<Secret>| secret.map(|s| s.reveal().to_owned()).unwrap_or_default();
        match self.kind {
            Kind::Bmc => {
                let password = match (file(&self.password_file)?, self.password_stdin) {
                    (Some(password), _) => password,
                    (None, true) => secret_input::stdin()?,
                    (None, false) => secret_input::asked(
                        &format!("password of {}: ", request.username),
                        "--password-file or --password-stdin",
                    )?,
                };
                password.reveal().clone_into(&mut request.password);
            }
            Kind::Ssh => {
                // its last line ends with a newline, as such files do
                request.private_key = whole(file(&self.private_key)?) + "\n";
                request.passphrase = whole(file(&self.passphrase_file)?);
            }
            Kind::Kubeconfig => request.kubeconfig = whole(file(&self.kubeconfig)?),
            Kind::Ca => request.certificates = whole(file(&self.certificates)?),
            // as it was written, up to the end of its last line
            Kind::UserData => request.user_data = whole(file(&self.file)?) + "\n",
            Kind::Maas => {
                let key = match file(&self.api_key_file)? {
                    Some(key) => key,
                    None => secret_input::asked("API key (CONSUMER:TOKEN:SECRET): ", "--api-key-file")?,
                };
                key.reveal().clone_into(&mut request.api_key);
            }
        }
        Ok(request)
    }
}

/// The request with nothing secret in it.
fn veiled(request: &SetCredentialRequest) -> SetCredentialRequest {
    let veil = |text: &str| if text.is_empty() { String::new() } else { "(a secret)".to_owned() };
    SetCredentialRequest {
        name: request.name.clone(),
        kind: request.kind.clone(),
        username: request.username.clone(),
        password: veil(&request.password),
        private_key: veil(&request.private_key),
        passphrase: veil(&request.passphrase),
        kubeconfig: veil(&request.kubeconfig),
        certificates: request.certificates.clone(),
        user_data: veil(&request.user_data),
        api_key: veil(&request.api_key),
    }
}

pub async fn execute(command: CredentialCommand, options: &ClientOptions) -> Result<(), CliError> {
    match command {
        CredentialCommand::Set(args) => {
            args.check()?;
            set(args.request()?, args.dry_run, options).await
        }
        CredentialCommand::List(args) => list(&args, "", options, |c| c).await,
        CredentialCommand::Show { name } => {
            let found = find(&connect(options).await?, &name).await?;
            output::one(options.output, &found, &found.name, |c| sheet(c, Screen::stdout(), now()))
        }
        CredentialCommand::Delete(args) => delete(args, options).await,
        CredentialCommand::RotateKey { dry_run } => rotate(dry_run, options).await,
    }
}

pub(super) async fn set(request: SetCredentialRequest, dry_run: bool, options: &ClientOptions) -> Result<(), CliError> {
    if dry_run {
        return DryRun::new(SET, &request.name, &veiled(&request))?.print(options.output);
    }
    let mut clients = connect(options).await?;
    let set = call(clients.credentials.set_credential(request)).await?;
    output::one(options.output, &set, &set.name, |c| {
        vec![format!("{} ({}) is set: version {}, sealed under key {}", c.name, c.kind, c.version, c.key_id)]
    })
}

/// `shown`: as what they are listed.
pub(super) async fn list<T: Listed<Message = Credential> + 'static>(
    args: &ListArgs,
    only: &str,
    options: &ClientOptions,
    shown: fn(Credential) -> T,
) -> Result<(), CliError> {
    let filter = super::events::both(only, &args.filter);
    let credentials = connect(options).await?.credentials;
    output::list(options.output, &args.filter, args.limit, async |page_size, page_token| {
        let request = ListCredentialsRequest { filter: filter.clone(), page_size, page_token };
        let page = call(credentials.clone().list_credentials(request)).await?;
        Ok((page.credentials.into_iter().map(shown).collect(), page.next_page_token))
    })
    .await
}

/// There is no call for one: the list is asked for it.
pub(super) async fn find(clients: &Clients, name: &str) -> Result<Credential, CliError> {
    let filter = format!("name={}", quoted(name));
    let request = ListCredentialsRequest { filter, page_size: 2, page_token: String::new() };
    let page = call(clients.credentials.clone().list_credentials(request)).await?;
    page.credentials.into_iter().find(|credential| credential.name == name).ok_or_else(|| {
        CliError::not_found(format!("there is no credential {name:?}"))
            .because("CREDENTIAL_NOT_FOUND")
            .hint("millwright credential list")
    })
}

pub(super) async fn delete(args: DeleteArgs, options: &ClientOptions) -> Result<(), CliError> {
    let request = DeleteCredentialRequest { name: args.name.clone(), force: args.force };
    if args.dry_run {
        return DryRun::new(DELETE, &args.name, &request)?.print(options.output);
    }
    let mut clients = connect(options).await?;
    let deleted = call(clients.credentials.delete_credential(request)).await?;
    output::one(options.output, &deleted, &deleted.name, |c| {
        vec![format!("{} ({}) is deleted, and what it held is wiped", c.name, c.kind)]
    })
}

async fn rotate(dry_run: bool, options: &ClientOptions) -> Result<(), CliError> {
    let request = RotateSecretKeyRequest {};
    if dry_run {
        return DryRun::new(ROTATE, "", &request)?.print(options.output);
    }
    let mut clients = connect(options).await?;
    let done = call(clients.credentials.rotate_secret_key(request)).await?;
    output::one(options.output, &done, &done.key_id, rotated)?;
    let Some(first) = done.left.first() else { return Ok(()) };
    let names: Vec<&str> = done.left.iter().take(5).map(|c| c.name.as_str()).collect();
    let more = if done.left.len() > names.len() { " and more" } else { "" };
    Err(CliError::refused(format!("could not be opened, and stay as they are: {}{more}", names.join(", ")))
        .because("SECRET_KEY_UNAVAILABLE")
        .hint(format!("name key {} in secrets.previous_key_files, or set them again", first.key_id)))
}

fn rotated(done: &RotateSecretKeyResponse) -> Vec<String> {
    vec![format!("key {}: {} sealed under it, {} of them just now", done.key_id, done.sealed, done.resealed)]
}

static COLUMNS: [Column<Credential>; 9] = [
    Column::new("NAME", |c: &Credential, _| c.name.clone()).flex(),
    Column::new("KIND", |c: &Credential, _| c.kind.clone()),
    Column::new("MACHINES", |c: &Credential, _| c.machines.to_string()),
    Column::new("CHANGED", |c: &Credential, now| relative(c.updated_at.as_ref(), now)).narrow(),
    Column::new("VERSION", |c: &Credential, _| c.version.to_string()).wide(),
    Column::new("KEY", |c: &Credential, _| c.key_id.clone()).wide(),
    Column::new("CREATED", |c: &Credential, _| rfc3339(c.created_at.as_ref())).wide(),
    Column::new("CHANGED", |c: &Credential, _| rfc3339(c.updated_at.as_ref())).wide(),
    Column::new("BY", |c: &Credential, _| c.updated_by.clone()),
];

impl Listed for Credential {
    type Message = Self;
    const PLURAL: &'static str = "credentials";
    const PAGED: bool = true;

    fn columns() -> &'static [Column<Self>] {
        &COLUMNS
    }

    fn id(&self) -> &str {
        &self.name
    }

    fn message(&self) -> &Self {
        self
    }
}

fn sheet(credential: &Credential, screen: Screen, now: jiff::Timestamp) -> Vec<String> {
    let by = |at: Option<&_>, by: &str| format!("{} by {by}", dated(at, now));
    let mut sheet = Sheet::new(screen, now);
    sheet
        .row("Credential", &credential.name)
        .row("Kind", &credential.kind)
        .row("Machines", &credential.machines.to_string())
        .row("Version", &credential.version.to_string())
        .row("Key", &credential.key_id)
        .row("Created", &by(credential.created_at.as_ref(), &credential.created_by))
        .row("Changed", &by(credential.updated_at.as_ref(), &credential.updated_by));
    sheet.lines()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Top {
        #[command(flatten)]
        args: SetArgs,
    }

    fn args(words: &[&str]) -> SetArgs {
        Top::parse_from([&["set", "rack-12"], words].concat()).args
    }

    #[test]
    fn what_belongs_to_another_kind_is_refused() {
        for (words, part) in [
            (&["--kind", "bmc"][..], "--username"),
            (&["--kind", "bmc", "--username", "u", "--private-key", "f"], "--private-key"),
            (&["--kind", "ssh", "--username", "u"], "--private-key"),
            (&["--kind", "ssh", "--username", "u", "--private-key", "f", "--password-stdin"], "--password-stdin"),
            (&["--kind", "kubeconfig"], "--kubeconfig"),
            (&["--kind", "ca", "--certificates", "f", "--username", "u"], "--username"),
        ] {
            let error = args(words).check().expect_err(part);
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(args(&["--kind", "bmc", "--username", "u"]).check().is_ok());
        assert!(Top::try_parse_from(["set", "x", "--kind", "bmc", "--password", "hunter2"]).is_err());
    }

    #[test]
    fn a_dry_run_shows_nothing_secret() {
        let request = SetCredentialRequest {
            username: "admin".into(),
            password: "hunter2".into(),
            private_key: "hunter2".into(),
            passphrase: "hunter2".into(),
            kubeconfig: "hunter2".into(),
            ..SetCredentialRequest::default()
        };
        let veiled = veiled(&request);
        assert_eq!((veiled.username.as_str(), veiled.password.as_str()), ("admin", "(a secret)"));
        for text in [&veiled.private_key, &veiled.passphrase, &veiled.kubeconfig] {
            assert_eq!(text, "(a secret)");
        }
    }
}
