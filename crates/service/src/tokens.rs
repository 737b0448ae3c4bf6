//! Tokens: make, list, revoke.

use crate::access::{hash, new_secret, shown};
use crate::change::Answer;
use crate::machines::required;
use crate::{Call, Page, PageRequest, Service};
use domain::id::check_name;
use domain::machine::check_text;
use domain::token::{self as tokens, Role, Token, TokenState};
use domain::{Error, Reason, TokenId, limits};
use std::sync::Arc;
use std::time::Duration;
use store::{Cause, Tx, TxResult, token};

/// Ten years: longer is for ever, which can be said as 0.
const TTL_MAX_SECONDS: i64 = 10 * 366 * 24 * 3600;

/// Actors that are no callers.
const RESERVED: [&str; 3] = ["system", "executor", "reconciler"];

#[derive(Clone, Debug, Default)]
pub struct NewToken {
    pub name: String,
    pub role: String,
    /// Empty: for the whole fleet.
    pub customer_id: String,
    /// 0: does not expire.
    pub ttl_seconds: i64,
}

/// A token that was just made, or was made by an earlier sending of the same request.
#[derive(Clone)]
pub struct CreatedToken {
    pub token: Token,
    /// Only in the first answer: it is stored nowhere.
    pub secret: Option<String>,
}

impl Answer for CreatedToken {
    fn id(&self) -> String {
        self.token.id.to_string()
    }

    fn again(tx: &mut Tx<'_>, _: &Call, id: &str) -> TxResult<Self> {
        Ok(Self { token: find(tx, id)?, secret: None })
    }
}

impl Answer for Token {
    fn id(&self) -> String {
        self.id.to_string()
    }

    fn again(tx: &mut Tx<'_>, _: &Call, id: &str) -> TxResult<Self> {
        find(tx, id)
    }
}

pub(crate) fn not_found(id: &str) -> Error {
    Error::new(Reason::TokenNotFound, format!("there is no token {id:?}; 'token list' shows those there are"))
        .with("token_id", id)
}

fn find(tx: &mut Tx<'_>, id: &str) -> TxResult<Token> {
    Ok(token::get(tx, &TokenId::from_text(id))?.ok_or_else(|| not_found(id))?)
}

/// Not if nobody could administer the fleet then.
pub(crate) fn may_revoke(tx: &mut Tx<'_>, token: &Token) -> TxResult<Result<(), Error>> {
    let admin = token.role == Role::Admin && token.customer_id.is_empty() && token.state == TokenState::Active;
    if admin && token::count_other_admins(tx, &token.id)? == 0 {
        let message = format!("token {} is the last that can administer the fleet; create another first", token.id);
        return Ok(Err(Error::new(Reason::LastAdmin, message)));
    }
    Ok(Ok(()))
}

impl Service {
    pub async fn list_tokens(&self, request: &PageRequest) -> Result<Page<Token>, Error> {
        let size = request.size()?;
        let filter = token::FILTER.parse(&request.filter)?;
        let before = request.cursor("tokens")?;
        let items = self.store().read(move |tx| token::list(tx, &filter, &before, size + 1)).await?;
        Ok(request.page("tokens", items, size, |t| t.id.to_string()))
    }

    pub async fn create_token(&self, call: &Arc<Call>, new: NewToken) -> Result<CreatedToken, Error> {
        check_name("name", &new.name)?;
        if RESERVED.contains(&new.name.as_str()) {
            return Err(Error::field(
                "name",
                format!("{:?} is what the server calls itself in logs and audit", new.name),
            ));
        }
        let role = Role::parse(&new.role)?;
        check_text("customer_id", &new.customer_id, limits::TEXT_MAX)?;
        if new.customer_id.trim() != new.customer_id {
            return Err(Error::field("customer_id", "begins or ends with a space, and would match no machine"));
        }
        if !(0..=TTL_MAX_SECONDS).contains(&new.ttl_seconds) {
            return Err(Error::field("ttl_seconds", format!("use 0 (does not expire) to {TTL_MAX_SECONDS}")));
        }
        let ambient = self.store().ambient();
        let now = ambient.now();
        let ttl = u64::try_from(new.ttl_seconds).unwrap_or(0);
        let secret = new_secret()?;
        let id = TokenId::generate(ambient.uuid());
        let mut token = Token::new(id, &new.name, role, &shown(&secret), now, &call.by.name);
        token.customer_id = new.customer_id;
        token.expires_at = (ttl > 0).then(|| now.plus(Duration::from_secs(ttl)));
        let cause = Cause::operator(&call.by.name, tokens::CREATED, "");
        let hash = hash(&secret);
        self.change(call, "tokens", move |tx| {
            token::insert(tx, &token, &hash, &cause)?;
            Ok(CreatedToken { token: find(tx, token.id.as_str())?, secret: Some(secret.clone()) })
        })
        .await
    }

    /// Takes a token back: from when this answers, no call with it is served. Again: no change.
    pub async fn revoke_token(&self, call: &Arc<Call>, id: &str) -> Result<Token, Error> {
        let id = TokenId::from_text(required("token_id", id)?);
        let (cause, key) = (Cause::operator(&call.by.name, tokens::REVOKED, ""), id.clone());
        let revoked = self
            .change(call, "tokens", move |tx| {
                token::lock_admins(tx)?;
                let there = find(tx, key.as_str())?;
                may_revoke(tx, &there)??;
                Ok(token::revoke(tx, &key, &cause)?.ok_or_else(|| not_found(key.as_str()))?)
            })
            .await?;
        self.access().revoked(&id);
        Ok(revoked)
    }
}
