//! Findings in the store: one for each kind of trouble of each subject, opened again where it comes back.

use crate::codec;
use crate::db::{Pair, Row, Val, params};
use crate::error::{DbError, TxResult};
use crate::filter_sql::Where;
use crate::point::Point;
use crate::transition::{Cause, Moved, Transition};
use crate::tx::Tx;
use domain::filter::{Field, Filter, Schema};
use domain::finding::{FOUND, Finding, FindingKind, FindingState, RESOLVED};
use domain::{Error, FindingId, Timestamp};

/// What findings can be filtered by.
pub const FILTER: Schema = Schema {
    fields: &[
        Field::text("id"),
        // as it was called first
        Field::text("finding_id"),
        Field::text("kind"),
        Field::text("subject"),
        Field::one_of("state", &["open", "acknowledged", "resolved"]),
        Field::time("first_seen"),
        Field::time("last_seen"),
        Field::text("handled_by"),
    ],
    labels: false,
};

macro_rules! finding_columns {
    () => {
        "finding_id, kind, subject, state, version, message, first_seen, last_seen, handled_by, comment FROM findings"
    };
}

crate::statements! {
    GET = concat!("SELECT ", finding_columns!(), " WHERE finding_id = $1");
    OF_SUBJECT = concat!("SELECT ", finding_columns!(), " WHERE subject = $1 AND kind = $2");
    UNRESOLVED = concat!("SELECT ", finding_columns!(), " WHERE subject = $1 AND state <> 'resolved' ORDER BY finding_id");
    LIST = concat!("SELECT ", finding_columns!(), " WHERE finding_id > $1");
    OPEN_OF_KIND = concat!("SELECT ", finding_columns!(), " WHERE kind = $1 AND state <> 'resolved' AND finding_id > $2 ORDER BY finding_id LIMIT $3");
    INSERT = "INSERT INTO findings(finding_id, kind, subject, state, version, message, first_seen, last_seen, handled_by, comment) VALUES ($1, $2, $3, 'open', 1, $4, $5, $5, '', '')";
    UPDATE = "UPDATE findings SET state = $3, version = version + 1, message = $4, first_seen = $5, last_seen = $6, handled_by = $7, comment = $8 WHERE finding_id = $1 AND version = $2";
    SEEN = "UPDATE findings SET last_seen = $2, message = $3 WHERE finding_id = $1";
}

macro_rules! lock {
    () => {
        "SELECT 1 FROM findings WHERE finding_id = $1"
    };
}

const LOCK: Pair = Pair { sqlite: lock!(), postgres: concat!(lock!(), " FOR UPDATE") };

pub(crate) const PAIRS: &[(&str, Pair)] = &[("LOCK", LOCK)];

fn read(row: &Row, _: Timestamp) -> Result<Finding, DbError> {
    let kind = row.text(1)?;
    let unknown = || DbError::Defect(format!("finding {kind:?} in the database is unknown to this version"));
    Ok(Finding {
        id: FindingId::from_text(row.string(0)?),
        kind: FindingKind::parse(kind).ok_or_else(unknown)?,
        subject: row.string(2)?,
        state: codec::state(row.text(3)?)?,
        version: row.uint(4)?,
        message: row.string(5)?,
        first_seen: row.time(6)?,
        last_seen: row.time(7)?,
        handled_by: row.string(8)?,
        comment: row.string(9)?,
    })
}

pub fn by_id(id: &FindingId) -> Point<Finding> {
    Point { sql: GET, params: vec![Val::from(id.as_str())], read }
}

pub fn get_for_update(tx: &mut Tx<'_>, id: &FindingId) -> TxResult<Option<Finding>> {
    tx.locked(LOCK, &by_id(id))
}

/// Of one kind, those that are not resolved, in order of their ids, after `after`.
pub fn open_of_kind(tx: &mut Tx<'_>, kind: FindingKind, after: &str, limit: usize) -> TxResult<Vec<Finding>> {
    let (now, rows) = (tx.now(), tx.rows(OPEN_OF_KIND, params![kind.as_str(), after, limit])?);
    Ok(rows.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?)
}

/// The one of this subject and kind, resolved or not.
pub fn of(tx: &mut Tx<'_>, subject: &str, kind: FindingKind) -> TxResult<Option<Finding>> {
    tx.point(&Point { sql: OF_SUBJECT, params: vec![Val::from(subject), Val::from(kind.as_str())], read })
}

/// What is not resolved about a subject.
pub fn unresolved(tx: &mut Tx<'_>, subject: &str) -> TxResult<Vec<Finding>> {
    let now = tx.now();
    Ok(tx.rows(UNRESOLVED, params![subject])?.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?)
}

/// In order of their ids, after `after`.
pub fn list(tx: &mut Tx<'_>, filter: &Filter, after: &str, limit: usize) -> TxResult<Vec<Finding>> {
    let mut clause = Where::new(vec![Val::from(after)]);
    clause.and(filter, &|field| match field {
        "id" | "finding_id" => "finding_id",
        "kind" => "kind",
        "subject" => "subject",
        "state" => "state",
        "first_seen" => "first_seen",
        "last_seen" => "last_seen",
        "handled_by" => "handled_by",
        _ => "NULL",
    });
    let sql = format!("{LIST}{} ORDER BY finding_id LIMIT {limit}", clause.sql);
    let now = tx.now();
    Ok(tx.rows(&sql, &clause.params)?.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?)
}

/// It was seen: opened, opened again, or still there. `id` is for one that is new.
pub fn raise(
    tx: &mut Tx<'_>,
    id: FindingId,
    kind: FindingKind,
    subject: &str,
    message: &str,
    by: &str,
) -> TxResult<()> {
    let now = tx.now();
    let cause = Cause::reconciler(by, FOUND, message);
    match of(tx, subject, kind)? {
        None => {
            let t = transition(&id, subject, kind, None, FindingState::Open, 1);
            let moved = tx.transition(t, &cause, no_guard, |tx| {
                Ok(tx.exec(INSERT, params![id.as_str(), kind.as_str(), subject, message, now])?)
            })?;
            debug_assert_eq!(moved, Moved::Moved);
            Ok(())
        }
        Some(there) if there.state == FindingState::Resolved => {
            let open = Finding {
                state: FindingState::Open,
                message: message.to_owned(),
                first_seen: now,
                last_seen: now,
                handled_by: String::new(),
                comment: String::new(),
                ..there.clone()
            };
            move_to(tx, &there, &open, &cause).map(drop)
        }
        Some(there) => {
            tx.exec(SEEN, params![there.id.as_str(), now, message])?;
            Ok(())
        }
    }
}

/// It was seen to be gone. Not there, or resolved already: no change.
pub fn gone(tx: &mut Tx<'_>, kind: FindingKind, subject: &str, evidence: &str, by: &str) -> TxResult<()> {
    let Some(there) = of(tx, subject, kind)?.filter(|f| f.state != FindingState::Resolved) else { return Ok(()) };
    let resolved = Finding { state: FindingState::Resolved, comment: evidence.to_owned(), ..there.clone() };
    move_to(tx, &there, &resolved, &Cause::reconciler(by, RESOLVED, evidence)).map(drop)
}

pub fn move_to(tx: &mut Tx<'_>, before: &Finding, after: &Finding, cause: &Cause) -> TxResult<Moved> {
    let (from, to) = (Some(before.state), after.state);
    let t = transition(&before.id, &before.subject, before.kind, from, to, before.version + 1);
    tx.transition(t, cause, no_guard, |tx| {
        Ok(tx.exec(
            UPDATE,
            params![
                before.id.as_str(),
                before.version,
                codec::spelt(after.state),
                &after.message,
                after.first_seen,
                after.last_seen,
                &after.handled_by,
                &after.comment,
            ],
        )?)
    })
}

fn transition<'a>(
    id: &'a FindingId,
    subject: &'a str,
    kind: FindingKind,
    from: Option<FindingState>,
    to: FindingState,
    version: u64,
) -> Transition<'a, FindingState> {
    let metadata = codec::to_json(&serde_json::json!({ "kind": kind.as_str() }));
    Transition { entity_id: id.as_str(), subject, customer_id: "", from, to, version, metadata }
}

fn no_guard(_: domain::lifecycle::Guard) -> Result<(), Error> {
    Ok(())
}
