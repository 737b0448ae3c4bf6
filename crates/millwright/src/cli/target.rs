//! Which server a command talks to, with which token and authority: flags, then the environment, then the
//! context, then what is there by default. Each setting remembers where it came from.
//!
//! A token goes only to the server it was kept for: a context's token is not sent to an address that was
//! given by other means, and the local administrator's token only to the local server.

use super::ClientOptions;
use super::contexts::{self, Context, Contexts};
use super::exit::{CliError, TOKEN_HINT};
use std::fmt;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

pub const DEFAULT_SERVER: &str = "http://127.0.0.1:7700";
/// Where `serve` leaves the administrator's token when it is started in this folder.
const LOCAL_TOKEN: &str = "./millwright-data/admin.token";
const SERVER: &str = "MILLWRIGHT_SERVER";
const TOKEN: &str = "MILLWRIGHT_TOKEN";
const CA_FILE: &str = "MILLWRIGHT_CA_FILE";
const CONTEXT: &str = "MILLWRIGHT_CONTEXT";

/// Where a setting came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Flag(&'static str),
    Environment(&'static str),
    Context(String),
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(name) | Origin::Environment(name) => f.write_str(name),
            Origin::Context(name) => write!(f, "context {name}"),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// A token, or where it is kept.
#[derive(Clone, PartialEq, Eq)]
pub enum Token {
    Given(String),
    File(PathBuf),
}

/// Everything that is needed to call a server.
pub struct Target {
    /// With its scheme, without a path.
    pub server: String,
    pub server_from: Origin,
    pub token: Option<(Token, Origin)>,
    pub ca_file: Option<(PathBuf, Origin)>,
    /// Why a token that is there is not used.
    token_held_back: Option<String>,
}

type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// An environment variable; an empty one says nothing.
pub fn env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

impl Target {
    pub fn resolve(options: &ClientOptions) -> Result<Self, CliError> {
        Self::resolve_in(options, &env)
    }

    fn resolve_in(options: &ClientOptions, env: Env<'_>) -> Result<Self, CliError> {
        let context = chosen(options, env)?;
        // a context that was asked for on the command line goes over the environment
        let first = context.as_ref().filter(|_| options.context.is_some());
        let (server, server_from) = match (&options.server, first, env(SERVER), &context) {
            (Some(server), ..) => (server.clone(), Origin::Flag("--server")),
            (None, Some(chosen), ..) => (chosen.context.server.clone(), chosen.origin()),
            (None, None, Some(server), _) => (server, Origin::Environment(SERVER)),
            (None, None, None, Some(chosen)) => (chosen.context.server.clone(), chosen.origin()),
            (None, None, None, None) => (DEFAULT_SERVER.to_owned(), Origin::Default),
        };
        let server = address(&server).map_err(|why| CliError::usage(format!("{server_from}: {why}")))?;
        // what a context keeps, it keeps for its own server
        let fits = |chosen: &&Chosen| address(&chosen.context.server).is_ok_and(|own| own == server);
        let own = context.as_ref().filter(fits);
        let own_first = first.filter(fits);
        let mut target = Self { server, server_from, token: None, ca_file: None, token_held_back: None };
        target.token = given_token(options)
            .or_else(|| own_first.and_then(Chosen::token))
            .or_else(|| env(TOKEN).map(|token| (Token::Given(token.trim().to_owned()), Origin::Environment(TOKEN))))
            .or_else(|| own.and_then(Chosen::token))
            .or_else(|| target.local_token());
        target.ca_file = (options.ca_file.clone().map(|path| (path, Origin::Flag("--ca-file"))))
            .or_else(|| own_first.and_then(Chosen::ca_file))
            .or_else(|| env(CA_FILE).map(|path| (PathBuf::from(path), Origin::Environment(CA_FILE))))
            .or_else(|| own.and_then(Chosen::ca_file));
        if target.token.is_none()
            && let Some(chosen) = context.filter(|chosen| chosen.token().is_some())
        {
            target.token_held_back =
                Some(format!("the token of context {} is for {} only", chosen.name, chosen.context.server));
        }
        Ok(target)
    }

    fn local_token(&self) -> Option<(Token, Origin)> {
        (self.server == DEFAULT_SERVER).then(|| (Token::File(PathBuf::from(LOCAL_TOKEN)), Origin::Default))
    }

    /// Whether nobody said which server: the local one is meant, if there is one.
    pub fn is_by_default(&self) -> bool {
        self.server_from == Origin::Default
    }

    /// What is doubtful about where the token is kept.
    pub fn doubt(&self) -> Option<String> {
        match &self.token {
            Some((Token::File(path), _)) => seen_by_all(path),
            Some((Token::Given(_), _)) | None => None,
        }
    }

    /// The token itself, read from where it is kept.
    pub fn secret(&self) -> Result<String, CliError> {
        match &self.token {
            Some((Token::Given(token), _)) => Ok(token.clone()),
            Some((Token::File(path), origin)) => read_token(path).map_err(|e| match (origin, e.kind()) {
                (Origin::Default, std::io::ErrorKind::NotFound) => {
                    CliError::denied(format!("no token was given, and there is no {LOCAL_TOKEN}")).hint(TOKEN_HINT)
                }
                (Origin::Default, _) => {
                    CliError::denied(format!("no token was given, and {LOCAL_TOKEN}: {e}")).hint(TOKEN_HINT)
                }
                _ => CliError::denied(format!("the token file {} ({origin}): {e}", path.display())).hint(TOKEN_HINT),
            }),
            None => {
                let why = match &self.token_held_back {
                    Some(why) => format!("no token was given for {}; {why}", self.server),
                    None => format!("no token was given for {}", self.server),
                };
                Err(CliError::denied(why).hint(TOKEN_HINT))
            }
        }
    }

    /// Where the token is, without saying it.
    pub fn token_described(&self) -> String {
        match &self.token {
            Some((Token::Given(_), origin)) => format!("given ({origin})"),
            Some((Token::File(path), origin)) => format!("in {} ({origin})", path.display()),
            None => "none".to_owned(),
        }
    }
}

fn given_token(options: &ClientOptions) -> Option<(Token, Origin)> {
    if let Some(path) = &options.token_file {
        return Some((Token::File(path.clone()), Origin::Flag("--token-file")));
    }
    let token = options.token.as_deref().map(str::trim).filter(|token| !token.is_empty())?;
    Some((Token::Given(token.to_owned()), Origin::Flag("--token")))
}

/// The context in force.
struct Chosen {
    name: String,
    context: Context,
    /// Paths in the file are relative to its folder.
    folder: PathBuf,
}

impl Chosen {
    fn origin(&self) -> Origin {
        Origin::Context(self.name.clone())
    }

    fn token(&self) -> Option<(Token, Origin)> {
        let file = self.context.token_file.as_ref().map(|path| Token::File(self.folder.join(path)));
        let token = file.or_else(|| self.context.token.clone().map(Token::Given))?;
        Some((token, self.origin()))
    }

    fn ca_file(&self) -> Option<(PathBuf, Origin)> {
        Some((self.folder.join(self.context.ca_file.as_ref()?), self.origin()))
    }
}

fn chosen(options: &ClientOptions, env: Env<'_>) -> Result<Option<Chosen>, CliError> {
    let asked = options.context.clone().or_else(|| env(CONTEXT));
    let Some(path) = contexts::place(env) else {
        return match asked {
            Some(name) => Err(CliError::usage(format!(
                "context {name}: neither HOME nor XDG_CONFIG_HOME says where the contexts are"
            ))
            .hint("MILLWRIGHT_CONTEXTS names the file")),
            None => Ok(None),
        };
    };
    let all = match Contexts::load(&path) {
        Ok(all) => all,
        // a broken file is nobody's business who has said everything
        Err(_)
            if asked.is_none() && (options.server.is_some() || env(SERVER).is_some()) && {
                given_token(options).is_some() || env(TOKEN).is_some()
            } =>
        {
            return Ok(None);
        }
        Err(e) => return Err(e),
    };
    let name = match asked {
        Some(name) => name,
        None if all.current.is_empty() => return Ok(None),
        None => all.current.clone(),
    };
    let context = all.named(&name, &path)?.clone();
    let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
    Ok(Some(Chosen { name, context, folder }))
}

/// `host:port` is enough; a scheme may stand before it.
pub fn address(server: &str) -> Result<String, String> {
    let server = server.trim();
    let (scheme, rest) = server.split_once("://").unwrap_or(("http", server));
    let rest = rest.trim_end_matches('/');
    if rest.is_empty() {
        return Err("the server's address is empty".to_owned());
    }
    if !matches!(scheme, "http" | "https") {
        return Err(format!("{server}: {scheme} is not supported, use http or https"));
    }
    let full = format!("{scheme}://{rest}");
    let wrong = |why: &dyn fmt::Display| format!("{server} is not an address like https://HOST:PORT: {why}");
    let uri: tonic::transport::Uri = full.parse().map_err(|e| wrong(&e))?;
    match uri.authority() {
        Some(authority) if authority.as_str().contains('@') => {
            Err("an address has no user or password in it".to_owned())
        }
        Some(_) if uri.path() == "/" || uri.path().is_empty() => Ok(full),
        Some(_) => Err(wrong(&"it has a path")),
        None => Err(wrong(&"it names no host")),
    }
}

/// A token that everybody on this machine can read. No error: a mounted secret may look so, and be alone.
pub fn seen_by_all(path: &Path) -> Option<String> {
    let known = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let shown = path.display();
    (known.permissions().mode() & 0o004 != 0)
        .then(|| format!("everybody can read the token in {shown}; chmod 600 {shown}"))
}

pub fn read_token(path: &Path) -> std::io::Result<String> {
    const TOKEN_FILE_MAX: u64 = 4096;
    let known = std::fs::metadata(path)?;
    if known.is_file() && known.len() > TOKEN_FILE_MAX {
        return Err(std::io::Error::other("the file is too large for a token"));
    }
    let token = std::fs::read_to_string(path)?.trim().to_owned();
    if token.is_empty() {
        return Err(std::io::Error::other("the file is empty"));
    }
    Ok(token)
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
