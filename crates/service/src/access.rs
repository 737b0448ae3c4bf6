//! Who is asking. Tokens are random, shown once, and stored as a hash.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::{Error, Reason, TokenId};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use store::{Caller, Store, token};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Admin,
}

impl Role {
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Admin => "admin",
        }
    }
}

/// An authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    pub token_id: TokenId,
    pub name: String,
    pub role: Role,
}

impl Principal {
    /// The caller's share of the store's queue.
    pub fn caller(&self) -> Caller {
        Caller::new(self.token_id.as_str())
    }

    /// The server itself, for what it does at its start.
    pub fn system() -> Self {
        Self { token_id: TokenId::from_text("system"), name: "system".to_owned(), role: Role::Admin }
    }
}

/// Tokens remembered after their first use. None can be revoked yet, so none can be stale.
const REMEMBERED_MAX: usize = 10_000;
const SECRET_PREFIX: &str = "mwt_";
/// Longer than any token: not worth hashing.
const SECRET_MAX: usize = 256;

pub struct Access {
    store: Store,
    known: Mutex<HashMap<String, Arc<Principal>>>,
}

/// A fresh token: 256 random bits behind a prefix that scanners know.
pub fn new_secret() -> Result<String, Error> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes).map_err(|e| Error::internal(format!("the system gave no randomness: {e}")))?;
    Ok(format!("{SECRET_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

fn hash(secret: &str) -> String {
    Sha256::digest(secret.as_bytes()).iter().map(|b| format!("{b:02x}")).collect()
}

impl Access {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, known: Mutex::new(HashMap::new()) }
    }

    /// Whether an administrator's token exists.
    pub async fn has_admin(&self) -> Result<bool, Error> {
        Ok(self.store.read(|tx| token::count_role(tx, Role::Admin.as_str())).await? > 0)
    }

    /// Makes a secret an administrator's token.
    pub async fn add_admin(&self, secret: &str, name: &str) -> Result<(), Error> {
        let token = token::Token {
            id: TokenId::generate(self.store.ambient().uuid()),
            name: name.to_owned(),
            role: Role::Admin.as_str().to_owned(),
        };
        let (hash, prefix) = (hash(secret), secret.chars().take(SECRET_PREFIX.len() + 4).collect::<String>());
        self.store
            .write(&Caller::new("system"), "tokens", move |tx| match token::by_hash(tx, &hash)? {
                Some(_) => Ok(()),
                None => token::insert(tx, &token, &hash, &prefix),
            })
            .await
    }

    /// The caller behind an `Authorization` header.
    pub async fn authenticate(&self, header: Option<&str>) -> Result<Arc<Principal>, Error> {
        let Some(header) = header else {
            return Err(Error::new(Reason::TokenMissing, "no token was sent; send 'Authorization: Bearer TOKEN'"));
        };
        let secret = header.strip_prefix("Bearer ").or_else(|| header.strip_prefix("bearer ")).map(str::trim);
        let Some(secret) = secret.filter(|s| !s.is_empty() && s.len() <= SECRET_MAX) else {
            return Err(Error::new(
                Reason::TokenInvalid,
                "the Authorization header is malformed; send 'Authorization: Bearer TOKEN'",
            ));
        };
        // compared by hash: how long that takes says nothing about the secret
        let hash = hash(secret);
        if let Some(principal) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&hash) {
            return Ok(principal.clone());
        }
        let key = hash.clone();
        let found = self.store.read(move |tx| token::by_hash(tx, &key)).await?;
        let Some(token) = found.filter(|t| t.role == Role::Admin.as_str()) else {
            return Err(Error::new(Reason::TokenInvalid, "the token is not known here; check MILLWRIGHT_TOKEN"));
        };
        let principal = Arc::new(Principal { token_id: token.id, name: token.name, role: Role::Admin });
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(hash, principal.clone());
        Ok(principal)
    }
}
