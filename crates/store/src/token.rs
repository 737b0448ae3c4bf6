//! Access tokens: only a hash is stored, and a prefix by which a person can tell them apart.

use crate::codec;
use crate::db::{Pair, Row, Val, params};
use crate::error::{DbError, TxResult};
use crate::filter_sql::Where;
use crate::point::Point;
use crate::transition::{Cause, Moved, Transition};
use crate::tx::Tx;
use domain::filter::{Field, Filter, Schema};
use domain::lifecycle::State as _;
use domain::token::{Role, Token, TokenState};
use domain::{Error, Timestamp, TokenId};

/// What tokens can be filtered by.
pub const FILTER: Schema = Schema {
    fields: &[
        Field::text("token_id"),
        Field::text("name"),
        Field::one_of("role", &["viewer", "operator", "admin"]),
        Field::text("customer_id"),
        Field::one_of("state", &["active", "revoked"]),
    ],
    labels: false,
};

macro_rules! token_columns {
    () => {
        "token_id, name, role, customer_id, prefix, state, created_at, created_by, expires_at, revoked_at, revoked_by, version FROM tokens"
    };
}

crate::statements! {
    BY_HASH = concat!("SELECT ", token_columns!(), " WHERE hash = $1");
    GET = concat!("SELECT ", token_columns!(), " WHERE token_id = $1");
    LIST = concat!("SELECT ", token_columns!(), " WHERE token_id < $1");
    COUNT_ADMINS = "SELECT COUNT(*) FROM tokens WHERE role = 'admin' AND customer_id = '' AND state = 'active' AND token_id <> $1 AND (expires_at IS NULL OR expires_at > $2)";
    INSERT = "INSERT INTO tokens(token_id, hash, prefix, name, role, created_at, customer_id, state, version, created_by, expires_at, revoked_at, revoked_by) VALUES ($1, $2, $3, $4, $5, $6, $7, 'active', 1, $8, $9, NULL, '')";
    REVOKE = "UPDATE tokens SET state = 'revoked', version = version + 1, revoked_at = $3, revoked_by = $4 WHERE token_id = $1 AND version = $2";
}

macro_rules! lock_admins {
    () => {
        "SELECT token_id FROM tokens WHERE role = 'admin' AND customer_id = '' ORDER BY token_id"
    };
}

/// Two servers that each revoke one of the last two administrators must not both find the other's.
const LOCK_ADMINS: Pair = Pair { sqlite: lock_admins!(), postgres: concat!(lock_admins!(), " FOR UPDATE") };

pub(crate) const PAIRS: &[(&str, Pair)] = &[("LOCK_ADMINS", LOCK_ADMINS)];

fn read(row: &Row) -> Result<(Token, u64), DbError> {
    let role = row.text(2)?;
    let token = Token {
        id: TokenId::from_text(row.string(0)?),
        name: row.string(1)?,
        role: Role::parse(role).map_err(|e| DbError::Defect(e.message))?,
        customer_id: row.string(3)?,
        prefix: row.string(4)?,
        state: codec::state(row.text(5)?)?,
        created_at: row.time(6)?,
        created_by: row.string(7)?,
        expires_at: row.maybe(8, Row::time)?,
        revoked_at: row.maybe(9, Row::time)?,
        revoked_by: row.string(10)?,
    };
    Ok((token, row.uint(11)?))
}

fn only(row: &Row, _: Timestamp) -> Result<Token, DbError> {
    read(row).map(|(token, _)| token)
}

pub fn by_hash(hash: &str) -> Point<Token> {
    Point { sql: BY_HASH, params: vec![Val::from(hash)], read: only }
}

pub fn get(tx: &mut Tx<'_>, id: &TokenId) -> TxResult<Option<Token>> {
    tx.point(&Point { sql: GET, params: vec![Val::from(id.as_str())], read: only })
}

/// Tokens, newest first, before `before` (empty: from the newest).
pub fn list(tx: &mut Tx<'_>, filter: &Filter, before: &str, limit: usize) -> TxResult<Vec<Token>> {
    let mut clause = Where::before(before);
    clause.and(filter, &|field| match field {
        "token_id" => "token_id",
        "name" => "name",
        "role" => "role",
        "customer_id" => "customer_id",
        "state" => "state",
        _ => "NULL",
    });
    let sql = format!("{LIST}{} ORDER BY token_id DESC LIMIT {limit}", clause.sql);
    Ok(tx.rows(&sql, &clause.params)?.iter().map(|r| read(r).map(|t| t.0)).collect::<Result<_, _>>()?)
}

/// How many tokens other than this one can administer the whole fleet now.
pub fn count_other_admins(tx: &mut Tx<'_>, but: &TokenId) -> TxResult<u64> {
    let now = tx.now();
    tx.row(COUNT_ADMINS, params![but.as_str(), now])?.map_or(Ok(0), |row| Ok(row.uint(0)?))
}

/// Keeps the administrators' tokens as they are until this transaction ends.
pub fn lock_admins(tx: &mut Tx<'_>) -> TxResult<()> {
    tx.pair(LOCK_ADMINS, &[])?;
    Ok(())
}

pub fn insert(tx: &mut Tx<'_>, token: &Token, hash: &str, cause: &Cause) -> TxResult<()> {
    let now = tx.now();
    let t = transition(token, None, TokenState::Active, 1);
    let moved = tx.transition(t, cause, no_guard, |tx| {
        Ok(tx.exec(
            INSERT,
            params![
                token.id.as_str(),
                hash,
                &token.prefix,
                &token.name,
                token.role.as_str(),
                now,
                &token.customer_id,
                &token.created_by,
                token.expires_at,
            ],
        )?)
    })?;
    debug_assert_eq!(moved, Moved::Moved);
    Ok(())
}

/// Takes a token back. Again: no change.
pub fn revoke(tx: &mut Tx<'_>, id: &TokenId, cause: &Cause) -> TxResult<Option<Token>> {
    let row = tx.row(GET, params![id.as_str()])?;
    let Some((token, version)) = row.as_ref().map(read).transpose()? else { return Ok(None) };
    let now = tx.now();
    let t = transition(&token, Some(token.state), TokenState::Revoked, version + 1);
    let moved = tx.transition(t, cause, no_guard, |tx| {
        Ok(tx.exec(REVOKE, params![token.id.as_str(), version, now, &cause.actor])?)
    })?;
    match moved {
        Moved::AlreadyThere => Ok(Some(token)),
        Moved::Moved => get(tx, id),
    }
}

fn transition(token: &Token, from: Option<TokenState>, to: TokenState, version: u64) -> Transition<'_, TokenState> {
    let metadata = codec::to_json(&serde_json::json!({ "name": token.name, "role": token.role.as_str() }));
    Transition {
        entity_id: token.id.as_str(),
        subject: token.id.as_str(),
        customer_id: "",
        from,
        to,
        version,
        metadata,
    }
}

fn no_guard(_: domain::lifecycle::Guard) -> Result<(), Error> {
    Ok(())
}

/// Whether a log row says that a token was taken back.
pub fn revoked_by_row(row: &crate::LogRow) -> Option<TokenId> {
    let revoked = row.entity_kind == TokenState::ENTITY && row.to_state == TokenState::Revoked.as_str();
    revoked.then(|| TokenId::from_text(row.entity_id.clone()))
}
