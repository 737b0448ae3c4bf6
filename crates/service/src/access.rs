//! Who is asking. Tokens are random, shown once, and stored as a hash.

use crate::access_table::{Rule, Scope};
use crate::lookup::Lookups;
use crate::standing::{CallerLimits, Sampler, Standing};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::token::{self as tokens, Role, Token};
use domain::{Error, Reason, Timestamp, TokenId};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::{Caller, Cause, Store, token};

/// An authenticated caller.
#[derive(Clone)]
pub struct Principal {
    pub token_id: TokenId,
    pub name: String,
    pub role: Role,
    /// The only customer whose machines it sees; empty: all.
    pub customer_id: String,
    pub expires_at: Option<Timestamp>,
    pub(crate) standing: Arc<Standing>,
}

impl Principal {
    /// The caller's share of the store's queue.
    pub fn caller(&self) -> Caller {
        Caller::new(self.token_id.as_str())
    }

    pub(crate) fn system() -> Self {
        Self {
            token_id: TokenId::from_text("system"),
            name: "system".to_owned(),
            role: Role::Admin,
            customer_id: String::new(),
            expires_at: None,
            standing: Arc::new(Standing::new(CallerLimits::default())),
        }
    }

    pub(crate) fn is_scoped(&self) -> bool {
        !self.customer_id.is_empty()
    }

    pub(crate) fn sees_customer(&self, customer_id: &str) -> bool {
        !self.is_scoped() || self.customer_id == customer_id
    }

    /// The table's verdict on this caller.
    pub fn may(&self, rule: &Rule) -> Result<(), Error> {
        self.needs(rule.role, rule.call)?;
        match rule.scope {
            Scope::Fleet => self.for_fleet(rule.call),
            Scope::Customers => Ok(()),
        }
    }

    /// Refuses what only a higher role may ask for.
    pub(crate) fn needs(&self, role: Role, what: &str) -> Result<(), Error> {
        if self.role >= role {
            return Ok(());
        }
        let message = format!("{what} needs the role {role}; the token {} has the role {}", self.name, self.role);
        Err(Error::new(Reason::RoleTooLow, message).with("needs", role.as_str()))
    }

    /// Refuses what is not for a token of one customer.
    pub(crate) fn for_fleet(&self, what: &str) -> Result<(), Error> {
        if !self.is_scoped() {
            return Ok(());
        }
        let message = format!("{what} is not for a token of one customer, and the token {} is one", self.name);
        Err(Error::new(Reason::OutOfScope, message))
    }
}

/// Tokens remembered after their first use, and callers whose share is counted.
const REMEMBERED_MAX: usize = 10_000;
/// Refusals of strangers that are put on record one by one; beyond that one stands for many.
const STRANGERS_PER_SECOND: u32 = 1;
const STRANGERS_AT_ONCE: u32 = 20;
const SECRET_PREFIX: &str = "mwt_";
/// Longer than any token: not worth hashing.
const SECRET_MAX: usize = 256;
/// The part of the secret that is shown.
const SHOWN: usize = SECRET_PREFIX.len() + 4;

pub struct Access {
    store: Store,
    limits: CallerLimits,
    lookups: Lookups,
    known: Mutex<Known>,
    standings: Mutex<HashMap<TokenId, Arc<Standing>>>,
    pub(crate) strangers: Sampler,
}

/// What was read of tokens. Used where no other process can revoke one behind our back, and to know who
/// may hear that the database is away.
#[derive(Default)]
struct Known {
    by_digest: HashMap<Digest, Arc<Remembered>>,
    /// Raised by every revocation: what was read before one is not remembered after it.
    revocations: u64,
}

struct Remembered {
    token: Token,
    caller: Arc<Principal>,
}

/// What a secret is known by.
pub(crate) type Digest = [u8; 32];

/// A fresh token: 256 random bits behind a prefix that scanners know.
pub fn new_secret() -> Result<String, Error> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes).map_err(|e| Error::internal(format!("the system gave no randomness: {e}")))?;
    Ok(format!("{SECRET_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// A secret as it is stored.
pub(crate) fn hash(secret: &str) -> String {
    hex(&digest(secret))
}

fn digest(secret: &str) -> Digest {
    Sha256::digest(secret.as_bytes()).into()
}

pub(crate) fn hex(digest: &Digest) -> String {
    digest.iter().map(|b| format!("{b:02x}")).collect()
}

pub(crate) fn shown(secret: &str) -> String {
    secret.chars().take(SHOWN).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unknown() -> Error {
    Error::new(Reason::TokenInvalid, "the token is not known here; check MILLWRIGHT_TOKEN")
}

fn secret_in(header: Option<&str>) -> Result<&str, Error> {
    let Some(header) = header else {
        return Err(Error::new(Reason::TokenMissing, "no token was sent; send 'Authorization: Bearer TOKEN'"));
    };
    let secret = header.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|s| s.1.trim());
    secret.filter(|s| !s.is_empty() && s.len() <= SECRET_MAX).ok_or_else(|| {
        Error::new(Reason::TokenInvalid, "the Authorization header is malformed; send 'Authorization: Bearer TOKEN'")
    })
}

impl Access {
    pub(crate) fn new(store: Store, limits: CallerLimits) -> Self {
        Self {
            lookups: Lookups::new(store.clone()),
            store,
            limits,
            known: Mutex::default(),
            standings: Mutex::default(),
            strangers: Sampler::new(STRANGERS_PER_SECOND, STRANGERS_AT_ONCE),
        }
    }

    /// Whether somebody can administer the fleet.
    pub async fn has_admin(&self) -> Result<bool, Error> {
        let nobody = TokenId::from_text("");
        Ok(self.store.read(move |tx| token::count_other_admins(tx, &nobody)).await? > 0)
    }

    /// Makes a secret an administrator's token, unless it is known: whose it is then is the answer, and
    /// nothing was changed.
    pub async fn add_admin(&self, secret: &str, name: &str) -> Result<Option<Token>, Error> {
        let ambient = self.store.ambient();
        let id = TokenId::generate(ambient.uuid());
        let token = Token::new(id, name, Role::Admin, &shown(secret), ambient.now(), "system");
        let hash = hash(secret);
        let cause = Cause::operator("system", tokens::CREATED, "");
        self.store
            .write(&Caller::new("system"), "tokens", move |tx| match tx.point(&token::by_hash(&hash))? {
                Some(there) => Ok(Some(there)),
                None => token::insert(tx, &token, &hash, &cause).map(|()| None),
            })
            .await
    }

    /// The caller behind an `Authorization` header, within its share of calls.
    pub async fn authenticate(&self, header: Option<&str>) -> Result<Arc<Principal>, Error> {
        // compared by hash: how long that takes says nothing about the secret
        let digest = digest(secret_in(header)?);
        let remembered = self.remembered(digest).await?;
        remembered.token.valid(self.store.ambient().now())?;
        remembered.caller.standing.count_call()?;
        Ok(remembered.caller.clone())
    }

    /// Whether this token, when the database last answered, was good for the whole fleet. For the one page
    /// that must be readable while the database is away: the one that says so.
    pub fn was_of_the_fleet(&self, header: Option<&str>) -> bool {
        let Ok(secret) = secret_in(header) else { return false };
        let known = lock(&self.known);
        let there = known.by_digest.get(&digest(secret));
        there.is_some_and(|r| !r.caller.is_scoped() && r.token.valid(self.store.ambient().now()).is_ok())
    }

    /// Whose token it is: from memory where no other process can revoke it, else as the database has it now.
    async fn remembered(&self, digest: Digest) -> Result<Arc<Remembered>, Error> {
        if !self.store.is_shared()
            && let Some(there) = lock(&self.known).by_digest.get(&digest)
        {
            return Ok(there.clone());
        }
        loop {
            let before = lock(&self.known).revocations;
            let token = self.lookups.find(digest).await?.ok_or_else(unknown)?;
            if let Some(there) = lock(&self.known).by_digest.get(&digest)
                && there.token == token
            {
                return Ok(there.clone());
            }
            token.valid(self.store.ambient().now())?;
            let caller = Arc::new(Principal {
                token_id: token.id.clone(),
                name: token.name.clone(),
                role: token.role,
                customer_id: token.customer_id.clone(),
                expires_at: token.expires_at,
                standing: self.standing(&token.id),
            });
            let remembered = Arc::new(Remembered { token, caller });
            let mut known = lock(&self.known);
            // one that was revoked meanwhile must not get a standing that nobody will ever end
            if known.revocations == before {
                if known.by_digest.len() >= REMEMBERED_MAX {
                    known.by_digest.clear();
                }
                known.by_digest.insert(digest, remembered.clone());
                return Ok(remembered);
            }
        }
    }

    fn standing(&self, id: &TokenId) -> Arc<Standing> {
        let mut standings = lock(&self.standings);
        if let Some(standing) = standings.get(id) {
            return standing.clone();
        }
        if standings.len() >= REMEMBERED_MAX {
            // those that nothing is under way for; their share begins anew
            standings.retain(|_, standing| Arc::strong_count(standing) > 1);
        }
        let standing = Arc::new(Standing::new(self.limits));
        standings.insert(id.clone(), standing.clone());
        standing
    }

    /// A token was taken back: it is known no longer, and what it has open ends.
    pub(crate) fn revoked(&self, id: &TokenId) {
        let mut known = lock(&self.known);
        known.revocations += 1;
        known.by_digest.retain(|_, there| there.token.id != *id);
        drop(known);
        if let Some(standing) = lock(&self.standings).remove(id) {
            standing.revoke();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_strictly() {
        assert_eq!(secret_in(Some("Bearer mwt_x")), Ok("mwt_x"));
        assert_eq!(secret_in(Some("bearer  mwt_x ")), Ok("mwt_x"));
        assert_eq!(secret_in(None).map_err(|e| e.reason), Err(Reason::TokenMissing));
        for bad in ["", "Bearer", "Bearer ", "Basic abc", "mwt_x", &format!("Bearer {}", "x".repeat(300))] {
            assert_eq!(secret_in(Some(bad)).map_err(|e| e.reason), Err(Reason::TokenInvalid), "{bad}");
        }
    }
}
