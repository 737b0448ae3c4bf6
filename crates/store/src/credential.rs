//! Credentials in the store: under their names, sealed by whoever writes them. Nothing here can open one.

use crate::codec;
use crate::db::{Pair, Row, Val, params};
use crate::error::{DbError, Failure, TxResult};
use crate::filter_sql::Where;
use crate::point::Point;
use crate::transition::{Cause, Moved, Transition};
use crate::tx::Tx;
use domain::credential::{CredentialKind, CredentialRecord, CredentialState, names};
use domain::filter::{Field, Filter, Schema};
use domain::{Error, Timestamp};
use std::collections::BTreeMap;

/// What credentials can be filtered by.
pub const FILTER: Schema = Schema {
    fields: &[
        Field::text("name"),
        Field::one_of("kind", &["bmc", "ssh", "kubeconfig", "ca", "user-data", "maas"]),
        Field::text("key_id"),
        Field::text("created_by"),
        Field::text("updated_by"),
    ],
    labels: false,
};

macro_rules! credential_columns {
    () => {
        "name, kind, state, version, key_id, created_at, created_by, updated_at, updated_by, sealed FROM credentials"
    };
}

crate::statements! {
    GET = concat!("SELECT ", credential_columns!(), " WHERE name = $1");
    LIST = concat!("SELECT ", credential_columns!(), " WHERE name > $1 AND state = 'present'");
    UNDER_OTHER_KEYS = concat!("SELECT ", credential_columns!(), " WHERE name > $1 AND state = 'present' AND key_id <> $2 ORDER BY name LIMIT $3");
    KEYS = "SELECT key_id, COUNT(*) FROM credentials WHERE state = 'present' GROUP BY key_id ORDER BY key_id";
    INSERT = "INSERT INTO credentials(name, state, kind, sealed, key_id, version, created_at, created_by, updated_at, updated_by) VALUES ($1, 'present', $2, $3, $4, 1, $5, $6, $5, $6)";
    CREATE_AGAIN = "UPDATE credentials SET state = 'present', kind = $3, sealed = $4, key_id = $5, version = version + 1, created_at = $6, created_by = $7, updated_at = $6, updated_by = $7 WHERE name = $1 AND version = $2";
    CHANGE = "UPDATE credentials SET sealed = $3, key_id = $4, version = version + 1, updated_at = $5, updated_by = $6 WHERE name = $1 AND version = $2";
    RESEAL = "UPDATE credentials SET sealed = $4, key_id = $5 WHERE name = $1 AND version = $2 AND key_id = $3";
    DELETE = "UPDATE credentials SET state = 'deleted', sealed = $3, key_id = '', version = version + 1, updated_at = $4, updated_by = $5 WHERE name = $1 AND version = $2";
}

macro_rules! lock {
    () => {
        "SELECT 1 FROM credentials WHERE name = $1"
    };
}

const LOCK: Pair = Pair { sqlite: lock!(), postgres: concat!(lock!(), " FOR UPDATE") };

/// By whoever begins to use it: it stays, and others may do the same.
const HOLD: Pair = Pair { sqlite: lock!(), postgres: concat!(lock!(), " FOR SHARE") };

/// Which machines name what, grouped: there are few ways, however many machines. One that is retired is reached by
/// nobody any more.
const USES: Pair = Pair {
    sqlite: "SELECT credentials_ref, target_cluster_ref, CASE WHEN instr(bmc_endpoint, 'tls=ca:') > 0 THEN substr(bmc_endpoint, instr(bmc_endpoint, 'tls=ca:') + 7) ELSE '' END, COUNT(*) FROM machines WHERE phase <> 'RETIRED' GROUP BY 1, 2, 3",
    postgres: "SELECT credentials_ref, target_cluster_ref, CASE WHEN strpos(bmc_endpoint, 'tls=ca:') > 0 THEN substr(bmc_endpoint, strpos(bmc_endpoint, 'tls=ca:') + 7) ELSE '' END, COUNT(*) FROM machines WHERE phase <> 'RETIRED' GROUP BY 1, 2, 3",
};

pub(crate) const PAIRS: &[(&str, Pair)] = &[("LOCK", LOCK), ("HOLD", HOLD), ("USES", USES)];

/// A row: what is known of a credential, and what it holds, sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    pub record: CredentialRecord,
    /// Empty once it is deleted.
    pub sealed: Vec<u8>,
}

/// What is to be kept under a name.
pub struct NewContent<'a> {
    pub name: &'a str,
    pub kind: CredentialKind,
    pub sealed: Vec<u8>,
    pub key_id: &'a str,
}

fn read(row: &Row, _: Timestamp) -> Result<Sealed, DbError> {
    let record = CredentialRecord {
        name: row.string(0)?,
        kind: CredentialKind::parse("kind", row.text(1)?).map_err(|e| DbError::Defect(e.message))?,
        state: codec::state(row.text(2)?)?,
        version: row.uint(3)?,
        key_id: row.string(4)?,
        created_at: row.time(5)?,
        created_by: row.string(6)?,
        updated_at: row.time(7)?,
        updated_by: row.string(8)?,
    };
    Ok(Sealed { record, sealed: row.bytes(9)?.to_owned() })
}

/// Also one that was deleted.
pub fn by_name(name: &str) -> Point<Sealed> {
    Point { sql: GET, params: vec![Val::from(name)], read }
}

/// For an operation that will write it; also one that was deleted.
pub fn get_for_update(tx: &mut Tx<'_>, name: &str) -> TxResult<Option<Sealed>> {
    tx.locked(LOCK, &by_name(name))
}

/// Whether it is there, and stays there until this transaction ends.
pub fn hold(tx: &mut Tx<'_>, name: &str) -> TxResult<bool> {
    let found = tx.locked(HOLD, &by_name(name))?;
    Ok(found.is_some_and(|there| there.record.state == CredentialState::Present))
}

/// Credentials in order of their names, after `after`.
pub fn list(tx: &mut Tx<'_>, filter: &Filter, after: &str, limit: usize) -> TxResult<Vec<CredentialRecord>> {
    let mut clause = Where::new(vec![Val::from(after)]);
    clause.and(filter, &|field| match field {
        "name" => "name",
        "kind" => "kind",
        "key_id" => "key_id",
        "created_by" => "created_by",
        "updated_by" => "updated_by",
        _ => "NULL",
    });
    let sql = format!("{LIST}{} ORDER BY name LIMIT {limit}", clause.sql);
    let now = tx.now();
    let rows = tx.rows(&sql, &clause.params)?;
    Ok(rows.iter().map(|row| read(row, now).map(|s| s.record)).collect::<Result<_, _>>()?)
}

/// Those that are sealed under another key than this one, in order of their names, after `after`.
pub fn under_other_keys(tx: &mut Tx<'_>, key_id: &str, after: &str, limit: usize) -> TxResult<Vec<Sealed>> {
    let now = tx.now();
    let rows = tx.rows(UNDER_OTHER_KEYS, params![after, key_id, limit])?;
    Ok(rows.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?)
}

/// The keys that credentials are sealed under, and how many under each.
pub fn keys(tx: &mut Tx<'_>) -> TxResult<BTreeMap<String, u64>> {
    let rows = tx.rows(KEYS, &[])?;
    Ok(rows.iter().map(|row| Ok::<_, DbError>((row.string(0)?, row.uint(1)?))).collect::<Result<_, _>>()?)
}

/// How many machines name each credential: as theirs, as their cluster's, or as the signer of their BMC's certificate.
pub fn uses(tx: &mut Tx<'_>) -> TxResult<BTreeMap<String, u64>> {
    let mut count = BTreeMap::new();
    for row in tx.pair(USES, &[])? {
        let mut named: Vec<&str> = names(row.text(0)?).collect();
        named.push(row.text(1)?);
        named.push(row.text(2)?.split('&').next().unwrap_or_default());
        named.sort_unstable();
        named.dedup();
        for name in named.into_iter().filter(|name| !name.is_empty()) {
            *count.entry(name.to_owned()).or_default() += row.uint(3)?;
        }
    }
    Ok(count)
}

/// Keeps a content under a name, in the place of `there`, as it was read for update.
pub fn put(tx: &mut Tx<'_>, there: Option<&CredentialRecord>, new: NewContent<'_>, cause: &Cause) -> TxResult<()> {
    let now = tx.now();
    let NewContent { name, kind, sealed, key_id } = new;
    let version = there.map_or(0, |there| there.version);
    let from = there.map(|there| there.state);
    let t = transition(name, kind, from, CredentialState::Present, version + 1);
    let by = &cause.actor;
    let moved = tx.transition(t, cause, no_guard, |tx| {
        Ok(match from {
            None => tx.exec(INSERT, params![name, kind.as_str(), sealed, key_id, now, by])?,
            Some(CredentialState::Deleted) => {
                tx.exec(CREATE_AGAIN, params![name, version, kind.as_str(), sealed, key_id, now, by])?
            }
            Some(CredentialState::Present) => tx.exec(CHANGE, params![name, version, sealed, key_id, now, by])?,
        })
    })?;
    debug_assert_eq!(moved, Moved::Moved);
    Ok(())
}

/// The same content under another key: no change of the credential, so neither its version nor its history moves.
pub fn reseal(tx: &mut Tx<'_>, there: &CredentialRecord, sealed: Vec<u8>, key_id: &str) -> TxResult<()> {
    let changed = tx.exec(RESEAL, params![&there.name, there.version, &there.key_id, sealed, key_id])?;
    if changed == 1 { Ok(()) } else { Err(Failure::Lost(format!("credential {}", there.name))) }
}

/// Deletes it and wipes what it holds. Again: no change.
pub fn delete(tx: &mut Tx<'_>, there: &CredentialRecord, cause: &Cause) -> TxResult<Moved> {
    let now = tx.now();
    let t = transition(&there.name, there.kind, Some(there.state), CredentialState::Deleted, there.version + 1);
    tx.transition(t, cause, no_guard, |tx| {
        Ok(tx.exec(DELETE, params![&there.name, there.version, Vec::new(), now, &cause.actor])?)
    })
}

fn transition(
    name: &str,
    kind: CredentialKind,
    from: Option<CredentialState>,
    to: CredentialState,
    version: u64,
) -> Transition<'_, CredentialState> {
    let metadata = codec::to_json(&serde_json::json!({ "kind": kind.as_str() }));
    Transition { entity_id: name, subject: name, customer_id: "", from, to, version, metadata }
}

fn no_guard(_: domain::lifecycle::Guard) -> Result<(), Error> {
    Ok(())
}
