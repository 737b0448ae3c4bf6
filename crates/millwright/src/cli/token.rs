//! `millwright token …` and `millwright me`.
//!
//! A secret is shown once, alone on stdout, so that `TOKEN=$(millwright token create ci --role operator)` is
//! the token and nothing else; or it goes straight into a file that nobody else can read.

use super::connect::{Clients, call, connect};
use super::dry_run::DryRun;
use super::events::{FromArgs, both, follow};
use super::exit::CliError;
use super::output::{self, Column, Format, Listed, Screen, note};
use super::sheet::Sheet;
use super::text::{dated, now, relative, rfc3339};
use super::{ClientOptions, ListArgs};
use clap::{Args, Subcommand, ValueEnum};
use proto::millwright::v1::{
    CreateTokenRequest, CreateTokenResponse, GetMeRequest, ListTokensRequest, Me, RevokeTokenRequest, Token,
};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub enum TokenCommand {
    /// List tokens, newest first; never their secrets
    #[command(after_help = "Examples:
  millwright token list
  millwright token list --filter 'state=active AND role=admin' -o wide")]
    List(ListArgs),
    /// Show one token: its role, its scope, who made it, until when it is good
    #[command(after_help = "Example:\n  millwright token show tok_0198c5…")]
    Show {
        /// The token's id (not its secret)
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Make a token; its secret is shown this once
    #[command(after_help = "Examples:
  millwright token create ci --role operator --ttl 30d --write ci.token
  TOKEN=$(millwright token create ci --role operator)
  millwright token create acme --role viewer --customer acme --ttl 12h -o json
  millwright token create ci --role operator --dry-run

The secret stands alone on stdout, all else is said on stderr. With -o json or yaml the whole answer is printed.
--dry-run prints the request and sends nothing.")]
    Create(CreateArgs),
    /// Revoke a token at once: its next call is refused, its streams end
    #[command(after_help = "Examples:
  millwright token revoke tok_0198c5…
  millwright token list --filter 'name=ci' -o name | xargs -n1 millwright token revoke")]
    Revoke {
        /// The token's id (not its secret)
        #[arg(value_name = "ID")]
        id: String,
        /// Also when it is the token that makes this call
        #[arg(long)]
        force: bool,
        /// Print what would be sent, and send nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Follow what happens to tokens, one line for each change
    #[command(after_help = "Examples:\n  millwright token watch\n  millwright token watch --no-follow -o json")]
    Watch {
        /// Only what matches; by id, to, trigger or actor
        #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true)]
        filter: String,
        #[command(flatten)]
        from: FromArgs,
    },
}

#[derive(Args)]
#[command(after_help = "Example:\n  millwright me -o json")]
pub struct MeArgs {}

#[derive(Args)]
pub struct CreateArgs {
    /// Whom or what it is for; stands as the actor in events and audit
    #[arg(value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    name: String,
    /// What it may do: look; also change machines and start runs; everything
    #[arg(long, value_enum, value_name = "ROLE", ignore_case = true)]
    role: Role,
    /// Only this customer's machines; without it, the whole fleet's
    #[arg(long, value_name = "ID", value_parser = parse_customer)]
    customer: Option<String>,
    /// How long it is good, e.g. 12h or 30d; 0: until it is revoked
    #[arg(long, value_name = "TTL", default_value = "0", value_parser = parse_ttl)]
    ttl: i64,
    /// Write the secret to this file (mode 0600), which must not exist, instead of stdout
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Print what would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    Viewer,
    Operator,
    Admin,
}

impl Role {
    fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }
}

/// A variable that is not set must not make a token for everybody's machines.
pub(super) fn parse_customer(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("it is empty; leave --customer out for the whole fleet".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

/// `0`, or a duration with days and weeks.
pub(super) fn parse_ttl(text: &str) -> Result<i64, String> {
    let text = text.trim();
    let wrong = || format!("{text:?} is not a time to live; write it like 12h, 30d or 0 for ever");
    if text == "0" {
        return Ok(0);
    }
    let span: jiff::Span = text.parse().map_err(|_| wrong())?;
    let days = jiff::SpanRelativeTo::days_are_24_hours();
    let seconds = span.to_duration(days).map_err(|_| wrong())?.as_secs();
    if seconds > 0 { Ok(seconds) } else { Err(wrong()) }
}

pub async fn execute(command: TokenCommand, options: &ClientOptions) -> Result<(), CliError> {
    match command {
        TokenCommand::List(args) => {
            let tokens = connect(options).await?.tokens;
            output::list(options.output, &args.filter, args.limit, async |page_size, page_token| {
                let request = ListTokensRequest { filter: args.filter.clone(), page_size, page_token };
                let page = call(tokens.clone().list_tokens(request)).await?;
                Ok((page.tokens, page.next_page_token))
            })
            .await
        }
        TokenCommand::Show { id } => {
            let token = find(&connect(options).await?, &id).await?;
            output::one(options.output, &token, &token.token_id, |t| sheet(t, Screen::stdout(), now()))
        }
        TokenCommand::Create(args) => create(args, options).await,
        TokenCommand::Revoke { id, force, dry_run } => revoke(id, force, dry_run, options).await,
        TokenCommand::Watch { filter, from } => {
            let clients = connect(options).await?;
            follow(&clients, both("kind=token", &filter), &from, options).await
        }
    }
}

/// There is no call for one: the list is asked for it.
async fn find(clients: &Clients, id: &str) -> Result<Token, CliError> {
    let filter = format!("token_id={}", quoted(id));
    let request = ListTokensRequest { filter, page_size: 2, page_token: String::new() };
    let page = call(clients.tokens.clone().list_tokens(request)).await?;
    page.tokens.into_iter().find(|token| token.token_id == id).ok_or_else(|| {
        CliError::not_found(format!("there is no token {id:?}"))
            .because("TOKEN_NOT_FOUND")
            .hint("millwright token list")
    })
}

/// A text as a value in a filter.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

async fn create(args: CreateArgs, options: &ClientOptions) -> Result<(), CliError> {
    let request = CreateTokenRequest {
        name: args.name,
        role: args.role.as_str().to_owned(),
        customer_id: args.customer.unwrap_or_default(),
        ttl_seconds: args.ttl,
    };
    if args.dry_run {
        return DryRun::new("millwright.v1.TokenService/CreateToken", &request.name, &request)?.print(options.output);
    }
    // before anything is made: a secret that cannot be written is lost
    let file = args.write.as_deref().map(|path| SecretFile::create("--write", path)).transpose()?;
    let clients = connect(options).await?;
    let mut answer = call(clients.tokens.clone().create_token(request)).await?;
    if answer.secret.is_empty() {
        let why = if answer.reason.is_empty() { "SECRET_ALREADY_SHOWN" } else { &answer.reason };
        return Err(CliError::refused("the server shows a secret only once, and has shown this one")
            .because(why)
            .hint("make another token, and revoke this one"));
    }
    if let Some(file) = file {
        let path = file.keep(&answer.secret).map_err(|e| lost(e, &answer))?;
        note(&format!("the secret is in {}", path.display()));
        answer.secret.clear();
    }
    print_created(&answer, options.output)
}

fn lost(error: CliError, answer: &CreateTokenResponse) -> CliError {
    let id = answer.token.as_ref().map(|token| token.token_id.as_str()).unwrap_or_default();
    error.hint(format!("the token was made and its secret is lost: millwright token revoke {id}"))
}

/// The secret alone on stdout, or the whole answer; what is beside it on stderr.
fn print_created(answer: &CreateTokenResponse, format: Format) -> Result<(), CliError> {
    let token = answer.token.clone().unwrap_or_default();
    match format {
        Format::Json | Format::Yaml => {
            output::one(format, answer, &token.token_id, |_| Vec::new()).map_err(|e| lost(e.outcome_unknown(), answer))
        }
        Format::Table | Format::Wide | Format::Name => {
            if format.is_for_people() {
                let scope = match token.customer_id.as_str() {
                    "" => "for the whole fleet".to_owned(),
                    customer => format!("for customer {customer}"),
                };
                let until = match token.expires_at.as_ref() {
                    Some(at) => format!("good until {}", rfc3339(Some(at))),
                    None => "good until it is revoked".to_owned(),
                };
                note(&format!("{} {} created: {} {scope}, {until}", token.token_id, token.name, token.role));
                if !answer.secret.is_empty() {
                    note("this is its secret, shown this once:");
                }
            }
            if answer.secret.is_empty() {
                return Ok(());
            }
            let mut out = std::io::stdout().lock();
            // an unread secret is lost: a reader that is gone is no success
            writeln!(out, "{}", answer.secret)
                .and_then(|()| out.flush())
                .map_err(|e| lost(CliError::from(e).outcome_unknown(), answer))
        }
    }
}

/// A file for a secret: there before the secret is, and for its owner alone.
pub(super) struct SecretFile<'a> {
    path: &'a Path,
    file: std::fs::File,
}

impl<'a> SecretFile<'a> {
    /// `flag` is what named it.
    pub(super) fn create(flag: &str, path: &'a Path) -> Result<Self, CliError> {
        let opened = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = opened.map_err(|e| CliError::usage(format!("{flag} {}: {e}", path.display())))?;
        Ok(Self { path, file })
    }

    pub(super) fn keep(mut self, secret: &str) -> Result<&'a Path, CliError> {
        let written = writeln!(self.file, "{secret}").and_then(|()| self.file.sync_all());
        let path = std::mem::replace(&mut self.path, Path::new(""));
        written.map_err(|e| CliError::failed(format!("writing {}: {e}", path.display())))?;
        Ok(path)
    }
}

impl Drop for SecretFile<'_> {
    /// What was not filled is not left behind.
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            drop(std::fs::remove_file(self.path));
        }
    }
}

async fn revoke(id: String, force: bool, dry_run: bool, options: &ClientOptions) -> Result<(), CliError> {
    let request = RevokeTokenRequest { token_id: id.clone() };
    if dry_run {
        return DryRun::new("millwright.v1.TokenService/RevokeToken", &id, &request)?.print(options.output);
    }
    let clients = connect(options).await?;
    if !force {
        let me = call(clients.tokens.clone().get_me(GetMeRequest {})).await?;
        if me.token_id == id {
            return Err(CliError::refused(format!(
                "{id} is the token that makes this call; you would lock yourself out"
            ))
            .because("TOKEN_IN_USE")
            .hint(format!("use another token, or say: millwright token revoke {id} --force")));
        }
    }
    let token = call(clients.tokens.clone().revoke_token(request)).await?;
    output::one(options.output, &token, &token.token_id, |t| {
        vec![format!("{} {} revoked: its calls are refused from now on", t.token_id, t.name)]
    })
}

pub async fn me(options: &ClientOptions) -> Result<(), CliError> {
    let clients = connect(options).await?;
    let me = call(clients.tokens.clone().get_me(GetMeRequest {})).await?;
    output::one(options.output, &me, &me.token_id, |me| who(me, Screen::stdout(), now()))
}

fn who(me: &Me, screen: Screen, now: jiff::Timestamp) -> Vec<String> {
    let mut sheet = Sheet::new(screen, now);
    let until = if me.expires_at.is_some() { dated(me.expires_at.as_ref(), now) } else { "it is revoked".to_owned() };
    sheet
        .row("Name", &me.name)
        .row("Role", &me.role)
        .row("Customer", if me.customer_id.is_empty() { "all" } else { &me.customer_id })
        .row("Token", &me.token_id)
        .row("Good until", &until)
        .row("Server", &me.server_version);
    sheet.lines()
}

fn until(token: &Token) -> String {
    if token.expires_at.is_some() { rfc3339(token.expires_at.as_ref()) } else { "-".to_owned() }
}

static COLUMNS: [Column<Token>; 13] = [
    Column::new("TOKEN", |t: &Token, _| t.token_id.clone()),
    Column::new("NAME", |t: &Token, _| t.name.clone()).flex().narrow(),
    Column::new("NAME", |t: &Token, _| t.name.clone()).wide(),
    Column::new("ROLE", |t: &Token, _| t.role.clone()),
    Column::new("STATE", |t: &Token, _| t.state.clone()).state(),
    Column::new("CUSTOMER", |t: &Token, _| t.customer_id.clone()),
    Column::new("CREATED", |t: &Token, now| relative(t.created_at.as_ref(), now)).narrow(),
    Column::new("EXPIRES", |t: &Token, now| relative(t.expires_at.as_ref(), now)).narrow(),
    Column::new("PREFIX", |t: &Token, _| t.prefix.clone()).wide(),
    Column::new("CREATED", |t: &Token, _| rfc3339(t.created_at.as_ref())).wide(),
    Column::new("BY", |t: &Token, _| t.created_by.clone()).wide(),
    Column::new("EXPIRES", |t: &Token, _| until(t)).wide(),
    Column::new("REVOKED", |t: &Token, _| rfc3339(t.revoked_at.as_ref())).wide(),
];

impl Listed for Token {
    type Message = Self;
    const PLURAL: &'static str = "tokens";
    const PAGED: bool = true;

    fn columns() -> &'static [Column<Self>] {
        &COLUMNS
    }

    fn id(&self) -> &str {
        &self.token_id
    }

    fn message(&self) -> &Self {
        self
    }
}

fn sheet(token: &Token, screen: Screen, now: jiff::Timestamp) -> Vec<String> {
    let revoked = match (dated(token.revoked_at.as_ref(), now), token.revoked_by.as_str()) {
        (at, "") => at,
        (at, by) => format!("{at} by {by}"),
    };
    let mut sheet = Sheet::new(screen, now);
    sheet
        .row("Token", &token.token_id)
        .row("Name", &token.name)
        .row("Role", &token.role)
        .state("State", &token.state)
        .row("Customer", if token.customer_id.is_empty() { "all" } else { &token.customer_id })
        .row("Secret", &if token.prefix.is_empty() { String::new() } else { format!("{}…", token.prefix) })
        .row("Created", &dated(token.created_at.as_ref(), now))
        .row("Created by", &token.created_by)
        .row("Expires", &dated(token.expires_at.as_ref(), now))
        .row("Revoked", &revoked);
    sheet.lines()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_time_to_live_is_read_as_people_write_it() {
        for (text, seconds) in [("0", 0), ("12h", 43_200), ("30d", 2_592_000), ("1d12h", 129_600), ("2w", 1_209_600)] {
            assert_eq!(parse_ttl(text), Ok(seconds), "{text}");
        }
        for bad in ["", "soon", "30", "-1d", "0s"] {
            assert!(parse_ttl(bad).is_err_and(|e| e.contains("30d")), "{bad:?}");
        }
    }

    #[test]
    fn a_secret_goes_into_a_file_of_its_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ci.token");
        SecretFile::create("--write", &path).expect("made").keep("mwt_x").expect("kept");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "mwt_x\n");
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        let there = SecretFile::create("--write", &path).map(|_| ()).expect_err("it exists");
        assert!(there.to_string().contains("ci.token"));
        // no secret came: no empty file is left
        let other = folder.path().join("none.token");
        drop(SecretFile::create("--write", &other).expect("made"));
        assert!(!other.exists());
    }

    #[test]
    fn a_token_is_shown_without_its_secret_and_with_its_end() {
        let (token_id, prefix, role) = ("tok_1".to_owned(), "mwt_abcd".to_owned(), "viewer".to_owned());
        let token = Token { token_id, prefix, role, state: "active".to_owned(), ..Token::default() };
        let lines = sheet(&token, Screen::PLAIN, jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(
            lines,
            ["Token     tok_1", "Role      viewer", "State     active", "Customer  all", "Secret    mwt_abcd…"]
        );
    }

    #[test]
    fn values_in_filters_are_quoted() {
        assert_eq!(quoted(r#"a"b\c"#), r#""a\"b\\c""#);
    }
}
