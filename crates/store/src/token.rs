//! Access tokens: only a hash is stored, and a prefix by which a person can tell them apart.

use crate::db::params;
use crate::error::{DbError, TxResult};
use crate::tx::Tx;
use domain::TokenId;

crate::statements! {
    BY_HASH = "SELECT token_id, name, role FROM tokens WHERE hash = $1";
    COUNT_ROLE = "SELECT COUNT(*) FROM tokens WHERE role = $1";
    INSERT = "INSERT INTO tokens(token_id, hash, prefix, name, role, created_at) VALUES ($1, $2, $3, $4, $5, $6)";
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub id: TokenId,
    pub name: String,
    pub role: String,
}

pub fn by_hash(tx: &mut Tx<'_>, hash: &str) -> TxResult<Option<Token>> {
    let row = tx.row(BY_HASH, params![hash])?;
    Ok(row
        .map(|r| {
            Ok::<_, DbError>(Token { id: TokenId::from_text(r.string(0)?), name: r.string(1)?, role: r.string(2)? })
        })
        .transpose()?)
}

pub fn count_role(tx: &mut Tx<'_>, role: &str) -> TxResult<u64> {
    tx.row(COUNT_ROLE, params![role])?.map_or(Ok(0), |row| Ok(row.uint(0)?))
}

pub fn insert(tx: &mut Tx<'_>, token: &Token, hash: &str, prefix: &str) -> TxResult<()> {
    let now = tx.now();
    tx.exec(INSERT, params![token.id.as_str(), hash, prefix, &token.name, &token.role, now])?;
    Ok(())
}
