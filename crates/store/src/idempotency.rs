//! One store for all idempotency keys, with a scope. The same key with the same request finds its
//! answer; with another request it is refused by the caller of [`find`].

use crate::db::params;
use crate::error::TxResult;
use crate::tx::Tx;
use sha2::{Digest, Sha256};

crate::statements! {
    FIND = "SELECT fingerprint, answer FROM idempotency WHERE scope = $1 AND request_key = $2";
    FORGET = "DELETE FROM idempotency WHERE scope = $1 AND at < $2";
    SETTLE = "UPDATE idempotency SET answer = $3 WHERE scope = $1 AND request_key = $2";
    FREE = "DELETE FROM idempotency WHERE scope = $1 AND request_key = $2";
    INSERT = "INSERT INTO idempotency(scope, request_key, fingerprint, answer, at) VALUES ($1, $2, $3, $4, $5)";
}

pub struct Known {
    pub fingerprint: String,
    /// What identifies the answer: an id to read again, never a stored secret.
    pub answer: String,
}

pub fn find(tx: &mut Tx<'_>, scope: &str, key: &str) -> TxResult<Option<Known>> {
    let row = tx.row(FIND, params![scope, key])?;
    Ok(row
        .map(|r| Ok::<_, crate::error::DbError>(Known { fingerprint: r.string(0)?, answer: r.string(1)? }))
        .transpose()?)
}

pub fn remember(tx: &mut Tx<'_>, scope: &str, key: &str, fingerprint: &str, answer: &str) -> TxResult<()> {
    let now = tx.now();
    tx.exec(INSERT, params![scope, key, fingerprint, answer, now])?;
    Ok(())
}

/// Puts another answer in the place of the one that was remembered when the work began.
pub fn settle(tx: &mut Tx<'_>, scope: &str, key: &str, answer: &str) -> TxResult<()> {
    tx.exec(SETTLE, params![scope, key, answer])?;
    Ok(())
}

/// Forgets one key: what it stood for was not done.
pub fn free(tx: &mut Tx<'_>, scope: &str, key: &str) -> TxResult<()> {
    tx.exec(FREE, params![scope, key])?;
    Ok(())
}

/// Drops the keys of a scope that are older than that.
pub fn forget(tx: &mut Tx<'_>, scope: &str, older_than: domain::Timestamp) -> TxResult<()> {
    tx.exec(FORGET, params![scope, older_than])?;
    Ok(())
}

/// Equal for equal requests. Each part is preceded by its length, so that parts cannot run together.
pub fn fingerprint<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        let part = part.as_ref();
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}
