//! The contexts file: several servers by name, each with its address, token and authority.
//!
//! It may hold tokens, so it is written whole or not at all, for its owner's eyes only, and not believed
//! when others can read it. What is wrong with it is told by file and line, never by the line's text.

use super::exit::CliError;
use crate::toml_error;
use domain::limits::short;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

const FILE_MAX_BYTES: u64 = 1024 * 1024;
const HEAD: &str =
    "# Servers that millwright knows by name. Written by `millwright context`; comments are not kept.\n\n";
/// Others may read it.
const READABLE: u32 = 0o044;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Contexts {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current: String,
    pub contexts: BTreeMap<String, Context>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Context {
    pub server: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}

/// Where the file is, whether or not it exists.
pub fn place(env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    if let Some(path) = env("MILLWRIGHT_CONTEXTS") {
        return Some(PathBuf::from(path));
    }
    let folder = match env("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute()) {
        Some(folder) => folder,
        None => PathBuf::from(env("HOME")?).join(".config"),
    };
    Some(folder.join("millwright").join("contexts.toml"))
}

/// A name that can be typed without thinking about quotes.
pub fn check_name(name: &str) -> Result<(), CliError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 100 || !name.chars().all(plain) {
        return Err(CliError::usage(format!("{name:?} is no name for a context: letters, digits, - _ . only")));
    }
    Ok(())
}

impl Contexts {
    /// What the file says; nothing when there is none.
    pub fn load(path: &Path) -> Result<Self, CliError> {
        let wrong = |why: String| CliError::usage(format!("the contexts file {}{why}", path.display()));
        let (text, mode) = match read(path) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Self::default()),
            Err(e) => return Err(wrong(format!(": {e}"))),
        };
        let contexts = Self::parse(&text).map_err(|(line, why)| wrong(format!(", line {line}: {why}")))?;
        let holds_token = contexts.contexts.values().any(|context| context.token.is_some());
        if holds_token && mode & READABLE != 0 {
            let why = format!(" holds a token and others can read it (mode {:03o})", mode & 0o777);
            return Err(wrong(why).hint(format!("chmod 600 {}; then make a new token in its place", path.display())));
        }
        Ok(contexts)
    }

    /// Line and reason of what is wrong; never the line itself, which may hold a token.
    pub(super) fn parse(text: &str) -> Result<Self, (usize, String)> {
        // names are told as they stand there, and can be of any length
        Self::parse_whole(text).map_err(|(line, why)| (line, short(&why)))
    }

    fn parse_whole(text: &str) -> Result<Self, (usize, String)> {
        let contexts: Self = toml::from_str(text).map_err(|e| toml_error::problem(text, &e))?;
        let at = |name: &str| toml_error::line_of(text, text.find(name).unwrap_or(0));
        for (name, context) in &contexts.contexts {
            let section = at(&format!("contexts.{name}"));
            check_name(name).map_err(|e| (section, e.to_string()))?;
            if context.server.is_empty() {
                return Err((section, format!("the context {name} has no server")));
            }
            if context.token.is_some() && context.token_file.is_some() {
                return Err((section, format!("the context {name} has both a token and a token_file")));
            }
        }
        if !contexts.current.is_empty() && !contexts.contexts.contains_key(&contexts.current) {
            return Err((
                at("current"),
                format!("current names {:?}, which is not among the contexts", contexts.current),
            ));
        }
        Ok(contexts)
    }

    /// Writes the file beside itself and puts it in place: whole or not at all, and for nobody else to read.
    pub fn save(&self, path: &Path) -> Result<(), CliError> {
        let failed =
            |e: &dyn std::fmt::Display| CliError::failed(format!("writing the contexts file {}: {e}", path.display()));
        let text = toml::to_string(self).map_err(|e| failed(&e))?;
        let write = || -> std::io::Result<()> {
            // a link stays a link: what it points at is replaced
            let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            let mut file = tempfile::Builder::new().prefix(".contexts-").tempfile_in(folder)?;
            file.write_all(HEAD.as_bytes())?;
            file.write_all(text.as_bytes())?;
            file.as_file().set_permissions(std::fs::Permissions::from_mode(0o600))?;
            file.as_file().sync_all()?;
            file.persist(&path).map_err(|e| e.error)?;
            Ok(())
        };
        write().map_err(|e| failed(&e))
    }

    /// The context of that name, or an error that names those there are.
    pub fn named(&self, name: &str, path: &Path) -> Result<&Context, CliError> {
        self.contexts.get(name).ok_or_else(|| {
            let error = CliError::not_found(format!("there is no context {name:?} in {}", path.display()));
            match self.contexts.is_empty() {
                true => error.hint(format!("millwright context set {name} --server URL")),
                false => error.allowing(self.contexts.keys()).hint("millwright context list"),
            }
        })
    }
}

/// The text and the mode, of the same file.
fn read(path: &Path) -> std::io::Result<Option<(String, u32)>> {
    use std::io::Read as _;
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mode = file.metadata()?.permissions().mode();
    let mut text = String::new();
    let bytes = file.take(FILE_MAX_BYTES + 1).read_to_string(&mut text)?;
    if bytes as u64 > FILE_MAX_BYTES {
        return Err(std::io::Error::other(format!("is larger than {FILE_MAX_BYTES} bytes")));
    }
    Ok(Some((text, mode)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contexts() -> Contexts {
        let prod = Context {
            server: "https://mw.example:7700".to_owned(),
            token: Some("mwt_x".to_owned()),
            ..Context::default()
        };
        Contexts { current: "prod".to_owned(), contexts: [("prod".to_owned(), prod)].into() }
    }

    #[test]
    fn what_is_saved_is_read_again_and_is_for_the_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deep/er/contexts.toml");
        assert_eq!(Contexts::load(&path).expect("none is fine"), Contexts::default());
        contexts().save(&path).expect("saved");
        assert_eq!(Contexts::load(&path).expect("read"), contexts());
        let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().expect("a folder"))), (0o600, 0o700));
        let left: Vec<_> = std::fs::read_dir(path.parent().expect("a folder")).expect("read").collect();
        assert_eq!(left.len(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_token_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("contexts.toml");
        contexts().save(&path).expect("saved");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("set");
        let error = Contexts::load(&path).expect_err("others can read it").to_string();
        assert!(error.contains("contexts.toml") && error.contains("640") && !error.contains("mwt_"), "{error}");
        let mut without = contexts();
        without.contexts.values_mut().for_each(|context| context.token = None);
        without.save(&path).expect("saved");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("set");
        assert!(Contexts::load(&path).is_ok(), "there is nothing to hide");
    }

    #[test]
    fn mistakes_are_told_by_line_and_without_the_secret() {
        for (text, line, part) in [
            ("current = 'x'\n[contexts.a]\nserver = 'h'\n", 1, "\"x\""),
            ("[contexts.a]\nserver = 'h'\ntoken = mwt_secret\n", 3, ""),
            ("[contexts]\nprod = 'mwt_secret'\n", 2, "expected"),
            ("[contexts.a]\nserver = 'h'\nsevrer = 'h'\n", 3, "sevrer"),
            ("\n[contexts.a]\nca_file = 'x'\n", 2, "no server"),
            ("[contexts.a]\nserver = 'h'\ntoken = 'mwt_secret'\ntoken_file = 'f'\n", 1, "both"),
        ] {
            let (found, why) = Contexts::parse(text).expect_err(text);
            assert_eq!(found, line, "{text}: {why}");
            assert!(why.contains(part) && !why.contains("mwt_secret"), "{why}");
        }
    }

    #[test]
    fn the_place_follows_the_environment() {
        let env = |pairs: &'static [(&'static str, &'static str)]| {
            place(&move |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
        };
        assert_eq!(env(&[("HOME", "/h")]), Some("/h/.config/millwright/contexts.toml".into()));
        assert_eq!(env(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")]), Some("/x/millwright/contexts.toml".into()));
        assert_eq!(env(&[("XDG_CONFIG_HOME", "/x"), ("MILLWRIGHT_CONTEXTS", "c.toml")]), Some("c.toml".into()));
        assert_eq!(env(&[]), None);
    }
}
