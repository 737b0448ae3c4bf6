//! The bootstrap bundle: where the server is, how to know it, and a token that is good for one key. Whoever holds it can
//! become the node, so that nothing here prints it.

use crate::folder::{Folder, read_file};
use domain::Secret;
use serde::Deserialize;
use std::io::Read as _;
use std::path::Path;

/// Its name in the state folder, until it is used up.
pub const FILE: &str = "bundle.json";
/// Larger than any bundle.
const MAX: u64 = 256 * 1024;
pub const PORT: u16 = 7701;

#[derive(Clone, Debug)]
pub struct Bundle {
    pub server: Server,
    pub token: Secret,
    pub authority_pem: String,
    /// For messages only: the server says who it is.
    pub node_id: String,
}

/// Where the server listens for agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub host: String,
    pub port: u16,
}

#[derive(Deserialize)]
struct File {
    server: String,
    token: String,
    authority_pem: String,
    #[serde(default)]
    node_id: String,
}

impl Server {
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("the server {text:?} {why}; it looks like https://millwright.example:{PORT}");
        let uri: tonic::transport::Uri = text.trim().parse().map_err(|_| wrong("is no address"))?;
        if uri.scheme_str() != Some("https") {
            return Err(wrong("does not begin with https://"));
        }
        if !uri.path().trim_end_matches('/').is_empty() || uri.query().is_some() {
            return Err(wrong("has a path, and agents use none"));
        }
        let host = uri.host().filter(|h| !h.is_empty()).ok_or_else(|| wrong("has no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { host, port: uri.port_u16().unwrap_or(PORT) })
    }
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (host, port) = (&self.host, self.port);
        if host.contains(':') { write!(f, "https://[{host}]:{port}") } else { write!(f, "https://{host}:{port}") }
    }
}

impl Bundle {
    /// Read as JSON. What is wrong is told by its place: the reader's own words would quote what it read.
    pub fn parse(content: &[u8], from: &str) -> Result<Self, String> {
        let file: File = serde_json::from_slice(content).map_err(|e| {
            format!(
                "the bundle {from} does not read at line {}, column {}: it is JSON with server, token and authority_pem, as \
                 `millwright node create` prints it",
                e.line(),
                e.column()
            )
        })?;
        let token = Secret::new(file.token.trim());
        if token.is_empty() {
            return Err(format!("the bundle {from} has no token: ask for a new one, millwright node rebootstrap NODE"));
        }
        let server = Server::parse(&file.server).map_err(|e| format!("the bundle {from}: {e}"))?;
        Ok(Self { server, token, authority_pem: file.authority_pem, node_id: file.node_id })
    }

    /// From a file, or from standard input if it is `-`.
    pub fn load(path: &Path) -> Result<Self, String> {
        Self::parse(&read_or_stdin(path)?, &path.display().to_string())
    }

    /// What an installation has left in the state folder for the first start.
    pub fn waiting(folder: &Folder) -> Result<Option<Self>, String> {
        let name = folder.path().join(FILE).display().to_string();
        folder.read(FILE)?.map(|content| Self::parse(&content, &name)).transpose()
    }
}

/// A file's content, or that of standard input for `-`.
pub fn read_or_stdin(path: &Path) -> Result<Vec<u8>, String> {
    if path != Path::new("-") {
        return read_file(path).map_err(|e| format!("reading {}: {e}", path.display()));
    }
    let mut content = Vec::new();
    std::io::stdin().lock().take(MAX).read_to_end(&mut content).map_err(|e| format!("reading standard input: {e}"))?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_and_written_the_same() {
        for (text, host, port) in [
            ("https://mw.example:7701", "mw.example", 7701),
            ("https://mw.example", "mw.example", 7701),
            ("https://10.0.0.1:8000/", "10.0.0.1", 8000),
            ("https://[fd00::1]:7701", "fd00::1", 7701),
        ] {
            let server = Server::parse(text).expect(text);
            assert_eq!((server.host.as_str(), server.port), (host, port), "{text}");
            assert_eq!(Server::parse(&server.to_string()).expect("its own words"), server);
        }
        for text in ["", "mw.example:7701", "http://mw.example", "https://", "https://mw.example/api", "https://a b"] {
            let refused = Server::parse(text).expect_err(text);
            assert!(refused.contains("https://millwright.example:7701"), "{refused}");
        }
    }

    #[test]
    fn a_bundle_that_does_not_read_is_not_quoted() {
        for content in
            [r#"{"server": "https://mw", "token": {"hunter2": 1}}"#, r#"{"server": 1, "token": "hunter2"}"#, "hunter2"]
        {
            let refused = Bundle::parse(content.as_bytes(), "b.json").expect_err(content);
            assert!(refused.contains("b.json") && !refused.contains("hunter2"), "{refused}");
        }
        let good = r#"{"server": "https://mw", "token": "hunter2\n", "authority_pem": "x", "expires_at": "soon"}"#;
        let bundle = Bundle::parse(good.as_bytes(), "b.json").expect("a bundle");
        assert_eq!(bundle.token.reveal(), "hunter2");
        assert!(!format!("{bundle:?}").contains("hunter2"));
    }
}
