//! `millwright context …`: several servers by name. Nothing here calls a server.

use super::ClientOptions;
use super::contexts::{Context, Contexts, check_name, place};
use super::exit::CliError;
use super::output::{Column, Format, Screen, Table, note};
use super::sheet::Sheet;
use super::target::{Target, address, env, read_token, seen_by_all};
use super::text::now;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum ContextCommand {
    /// List the servers you know by name
    #[command(after_help = "Examples:\n  millwright context list\n  millwright context list -o name")]
    List,
    /// Show one context, or without NAME what a command would use now and why
    #[command(after_help = "Examples:
  millwright context show
  millwright context show prod -o json
  MILLWRIGHT_SERVER=http://lab:7700 millwright context show")]
    Show {
        /// The context's name
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// Talk to this server from now on
    #[command(after_help = "Example:\n  millwright context use prod\n\nFor one command: --context NAME.")]
    Use {
        /// The context's name
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Add a context, or change what is named of it; the first one becomes the current one
    #[command(after_help = "Examples:
  millwright context set lab --server http://10.0.0.5:7700 --token-file ~/.lab.token
  millwright context set prod --server https://mw.example.com:7700 --ca-file ca.pem --token-stdin < prod.token
  millwright context set prod --server https://mw2.example.com:7700        (its token and authority stay)

The file is $XDG_CONFIG_HOME/millwright/contexts.toml (or ~/.config/…), or what MILLWRIGHT_CONTEXTS names; only
its owner can read it. A context's token is sent to its own server and to no other.")]
    Set(SetArgs),
    /// Forget a context; files it points at stay
    #[command(after_help = "Example:\n  millwright context remove lab")]
    Remove {
        /// The context's name
        #[arg(value_name = "NAME")]
        name: String,
    },
}

#[derive(Args)]
pub struct SetArgs {
    /// The context's name
    #[arg(value_name = "NAME")]
    name: String,
    /// Keep the token that comes on stdin in the contexts file itself
    #[arg(long, conflicts_with = "token_file")]
    token_stdin: bool,
    /// Make it the current one
    #[arg(long = "use")]
    make_current: bool,
}

pub fn execute(command: ContextCommand, options: &ClientOptions) -> Result<(), CliError> {
    let path = place(&env).ok_or_else(|| {
        CliError::usage("neither HOME nor XDG_CONFIG_HOME says where the contexts are")
            .hint("MILLWRIGHT_CONTEXTS names the file")
    })?;
    let file = Place { path, format: options.output };
    match command {
        ContextCommand::List => file.list(),
        ContextCommand::Show { name: Some(name) } => file.show(&name),
        ContextCommand::Show { name: None } => file.effective(options),
        ContextCommand::Use { name } => file.switch(&name),
        ContextCommand::Set(args) => file.set(&args, options),
        ContextCommand::Remove { name } => file.remove(&name),
    }
}

/// A context as it is shown: everything but the secret.
#[derive(Serialize)]
struct Row {
    name: String,
    current: bool,
    server: String,
    token: String,
    ca_file: String,
}

impl Row {
    fn of(name: &str, context: &Context, current: bool) -> Self {
        let token = match (&context.token_file, &context.token) {
            (Some(path), _) => path.display().to_string(),
            (None, Some(_)) => "(kept in the contexts file)".to_owned(),
            (None, None) => String::new(),
        };
        let ca_file = context.ca_file.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        Self { name: name.to_owned(), current, server: context.server.clone(), token, ca_file }
    }
}

static COLUMNS: [Column<Row>; 5] = [
    Column::new("CURRENT", |r: &Row, _| if r.current { "*".to_owned() } else { " ".to_owned() }),
    Column::new("NAME", |r: &Row, _| r.name.clone()),
    Column::new("SERVER", |r: &Row, _| r.server.clone()),
    Column::new("TOKEN", |r: &Row, _| r.token.clone()).flex(),
    Column::new("AUTHORITY", |r: &Row, _| r.ca_file.clone()).flex(),
];

struct Place {
    path: PathBuf,
    format: Format,
}

impl Place {
    fn load(&self) -> Result<Contexts, CliError> {
        Contexts::load(&self.path)
    }

    /// A change was made: a line for people, the name for scripts.
    fn done(&self, contexts: &Contexts, name: &str, what: &str) -> Result<(), CliError> {
        match (self.format, contexts.contexts.get(name)) {
            (Format::Json | Format::Yaml, Some(context)) => {
                self.document(&Row::of(name, context, contexts.current == name))
            }
            (Format::Name, _) => self.write(&format!("{name}\n")),
            _ => self.write(&format!("{name} {what}\n")),
        }
    }

    fn write(&self, text: &str) -> Result<(), CliError> {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    }

    fn document(&self, value: &impl Serialize) -> Result<(), CliError> {
        let failed = |e: &dyn std::fmt::Display| CliError::failed(format!("printing: {e}"));
        let text = match self.format {
            Format::Yaml => serde_yaml_ng::to_string(value).map_err(|e| failed(&e))?,
            _ => serde_json::to_string_pretty(value).map_err(|e| failed(&e))? + "\n",
        };
        self.write(&text)
    }

    fn list(&self) -> Result<(), CliError> {
        #[derive(Serialize)]
        struct List {
            contexts: Vec<Row>,
        }
        let all = self.load()?;
        let rows: Vec<Row> = all.contexts.iter().map(|(n, c)| Row::of(n, c, *n == all.current)).collect();
        match self.format {
            Format::Json | Format::Yaml => self.document(&List { contexts: rows }),
            Format::Name => self.write(&rows.iter().map(|row| format!("{}\n", row.name)).collect::<String>()),
            Format::Table | Format::Wide if rows.is_empty() => {
                note(&format!(
                    "there are no contexts in {}; make one with: millwright context set NAME --server URL",
                    self.path.display()
                ));
                Ok(())
            }
            Format::Table | Format::Wide => {
                let lines = Table::new(&COLUMNS, false, Screen::stdout()).lines(rows.iter(), now());
                self.write(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())
            }
        }
    }

    fn show(&self, name: &str) -> Result<(), CliError> {
        let all = self.load()?;
        let row = Row::of(name, all.named(name, &self.path)?, all.current == name);
        match self.format {
            Format::Json | Format::Yaml => self.document(&row),
            Format::Name => self.write(&format!("{name}\n")),
            Format::Table | Format::Wide => {
                let mut sheet = Sheet::new(Screen::stdout(), now());
                sheet
                    .row("Context", name)
                    .row("Current", if row.current { "yes" } else { "no" })
                    .row("Server", &row.server)
                    .row("Token", &row.token)
                    .row("Authority", &row.ca_file)
                    .row("File", &self.path.display().to_string());
                self.write(&sheet.lines().iter().map(|line| format!("{line}\n")).collect::<String>())
            }
        }
    }

    /// What a command would use now, and where each part comes from.
    fn effective(&self, options: &ClientOptions) -> Result<(), CliError> {
        #[derive(Serialize)]
        struct Effective {
            server: String,
            server_from: String,
            token: String,
            ca_file: String,
        }
        let target = Target::resolve(options)?;
        let ca_file = target.ca_file.as_ref().map(|(path, from)| format!("{} ({from})", path.display()));
        let token = target.token_described();
        let shown = Effective {
            server: target.server,
            server_from: target.server_from.to_string(),
            token,
            ca_file: ca_file.unwrap_or_default(),
        };
        match self.format {
            Format::Json | Format::Yaml => self.document(&shown),
            Format::Name => self.write(&format!("{}\n", shown.server)),
            Format::Table | Format::Wide => {
                let mut sheet = Sheet::new(Screen::stdout(), now());
                sheet
                    .row("Server", &format!("{} ({})", shown.server, shown.server_from))
                    .row("Token", &shown.token)
                    .row("Authority", &shown.ca_file)
                    .row("Contexts", &self.path.display().to_string());
                self.write(&sheet.lines().iter().map(|line| format!("{line}\n")).collect::<String>())
            }
        }
    }

    fn switch(&self, name: &str) -> Result<(), CliError> {
        let mut all = self.load()?;
        let server = all.named(name, &self.path)?.server.clone();
        name.clone_into(&mut all.current);
        all.save(&self.path)?;
        self.done(&all, name, &format!("is the current context: {server}"))
    }

    fn set(&self, args: &SetArgs, options: &ClientOptions) -> Result<(), CliError> {
        check_name(&args.name)?;
        let mut all = self.load()?;
        let known = all.contexts.contains_key(&args.name);
        let context = all.contexts.entry(args.name.clone()).or_default();
        match &options.server {
            Some(server) => {
                let server = address(server).map_err(|why| CliError::usage(format!("--server: {why}")))?;
                let moved = known && server != context.server && context.token.is_some() && !args.token_stdin;
                if moved && options.token_file.is_none() {
                    note(&format!("the token of {} will be sent to {server} from now on", args.name));
                }
                context.server = server;
            }
            None if known => {}
            None => {
                return Err(CliError::usage(format!("the context {} is new: where is its server?", args.name))
                    .hint(format!("millwright context set {} --server URL", args.name)));
            }
        }
        let whole =
            |path: &PathBuf| std::path::absolute(path).map_err(|e| CliError::usage(format!("{}: {e}", path.display())));
        if options.token.is_some() {
            return Err(CliError::usage("a token on the command line is seen by others")
                .hint("use --token-file PATH, or --token-stdin < PATH"));
        }
        if let Some(path) = &options.token_file {
            read_token(path).map_err(|e| CliError::usage(format!("--token-file {}: {e}", path.display())))?;
            if let Some(warning) = seen_by_all(path) {
                note(&format!("warning: {warning}"));
            }
            (context.token_file, context.token) = (Some(whole(path)?), None);
        } else if args.token_stdin {
            (context.token, context.token_file) = (Some(token_from_stdin()?), None);
        }
        if let Some(path) = &options.ca_file {
            super::tls::authorities(path)?;
            context.ca_file = Some(whole(path)?);
        }
        let server = context.server.clone();
        if all.current.is_empty() || args.make_current {
            all.current.clone_from(&args.name);
        }
        all.save(&self.path)?;
        let what = if known { "changed" } else { "added" };
        let current = if all.current == args.name { ", the current context" } else { "" };
        self.done(&all, &args.name, &format!("{what}: {server}{current}"))
    }

    fn remove(&self, name: &str) -> Result<(), CliError> {
        let mut all = self.load()?;
        all.named(name, &self.path)?;
        all.contexts.remove(name);
        if all.current == name {
            all.current.clear();
            note("no context is current now; choose one with: millwright context use NAME");
        }
        all.save(&self.path)?;
        self.done(&all, name, "removed")
    }
}

fn token_from_stdin() -> Result<String, CliError> {
    const TOKEN_MAX: u64 = 4096;
    let mut text = String::new();
    let read = std::io::stdin().lock().take(TOKEN_MAX + 1).read_to_string(&mut text);
    read.map_err(|e| CliError::usage(format!("--token-stdin: {e}")))?;
    match text.trim() {
        "" => Err(CliError::usage("--token-stdin: nothing came on stdin")),
        token if token.len() as u64 > TOKEN_MAX => Err(CliError::usage("--token-stdin: too long for a token")),
        token if token.contains(char::is_whitespace) => {
            Err(CliError::usage("--token-stdin: there is more than a token on stdin"))
        }
        token => Ok(token.to_owned()),
    }
}
