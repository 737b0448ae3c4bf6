//! Names of images in the store. Their bytes are elsewhere, by their digests.

use crate::codec;
use crate::db::{Pair, Row, Val, params};
use crate::error::{DbError, TxResult};
use crate::filter_sql::Where;
use crate::point::Point;
use crate::transition::{Cause, Moved, Transition};
use crate::tx::Tx;
use domain::filter::{Field, Filter, Schema};
use domain::image::{Image, ImageState};
use domain::{Error, Timestamp};

/// What images can be filtered by.
pub const FILTER: Schema = Schema {
    fields: &[Field::text("name"), Field::text("sha256"), Field::text("kind"), Field::text("added_by")],
    labels: false,
};

macro_rules! image_columns {
    () => {
        "name, state, version, sha256, bytes, kind, added_at, added_by FROM images"
    };
}

crate::statements! {
    GET = concat!("SELECT ", image_columns!(), " WHERE name = $1");
    LIST = concat!("SELECT ", image_columns!(), " WHERE name > $1 AND state = 'present'");
    NAMED = "SELECT COUNT(*) FROM images WHERE sha256 = $1 AND state = 'present'";
    WORKFLOWS = "SELECT workflow_id FROM boot_workflows WHERE kernel = $1 OR initrd = $1 OR image = $1 ORDER BY workflow_id LIMIT 1";
    INSERT = "INSERT INTO images(name, state, version, sha256, bytes, kind, added_at, added_by) VALUES ($1, 'present', 1, $2, $3, $4, $5, $6)";
    UPDATE = "UPDATE images SET state = $3, version = version + 1, sha256 = $4, bytes = $5, kind = $6, added_at = $7, added_by = $8 WHERE name = $1 AND version = $2";
}

macro_rules! lock {
    () => {
        "SELECT 1 FROM images WHERE name = $1"
    };
}

const LOCK: Pair = Pair { sqlite: lock!(), postgres: concat!(lock!(), " FOR UPDATE") };

pub(crate) const PAIRS: &[(&str, Pair)] = &[("LOCK", LOCK)];

fn read(row: &Row, _: Timestamp) -> Result<Image, DbError> {
    Ok(Image {
        name: row.string(0)?,
        state: codec::state(row.text(1)?)?,
        version: row.uint(2)?,
        sha256: row.string(3)?,
        bytes: row.uint(4)?,
        kind: row.string(5)?,
        added_at: row.time(6)?,
        added_by: row.string(7)?,
    })
}

/// Also one that was removed.
pub fn by_name(name: &str) -> Point<Image> {
    Point { sql: GET, params: vec![Val::from(name)], read }
}

pub fn get_for_update(tx: &mut Tx<'_>, name: &str) -> TxResult<Option<Image>> {
    tx.locked(LOCK, &by_name(name))
}

/// In order of their names, after `after`.
pub fn list(tx: &mut Tx<'_>, filter: &Filter, after: &str, limit: usize) -> TxResult<Vec<Image>> {
    let mut clause = Where::new(vec![Val::from(after)]);
    clause.and(filter, &|field| match field {
        "name" => "name",
        "sha256" => "sha256",
        "kind" => "kind",
        "added_by" => "added_by",
        _ => "NULL",
    });
    let sql = format!("{LIST}{} ORDER BY name LIMIT {limit}", clause.sql);
    let now = tx.now();
    Ok(tx.rows(&sql, &clause.params)?.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?)
}

/// How many names mean these bytes.
pub fn named(tx: &mut Tx<'_>, sha256: &str) -> TxResult<u64> {
    tx.row(NAMED, params![sha256])?.map_or(Ok(0), |row| Ok(row.uint(0)?))
}

/// A workflow that names it, if one does.
pub fn workflow_with(tx: &mut Tx<'_>, name: &str) -> TxResult<Option<String>> {
    Ok(tx.row(WORKFLOWS, params![name])?.map(|row| row.string(0)).transpose()?)
}

/// Puts `new` in the place of `there`, as it was read for update.
pub fn put(tx: &mut Tx<'_>, there: Option<&Image>, new: &Image, cause: &Cause) -> TxResult<()> {
    let now = tx.now();
    let version = there.map_or(0, |there| there.version);
    let t = transition(new, there.map(|there| there.state), version + 1);
    let (name, by) = (&new.name, &cause.actor);
    let (digest, bytes, kind) = (&new.sha256, new.bytes, &new.kind);
    let moved = tx.transition(t, cause, no_guard, |tx| {
        Ok(match there {
            None => tx.exec(INSERT, params![name, digest, bytes, kind, now, by])?,
            Some(_) => {
                tx.exec(UPDATE, params![name, version, codec::spelt(new.state), digest, bytes, kind, now, by])?
            }
        })
    })?;
    debug_assert_eq!(moved, Moved::Moved);
    Ok(())
}

fn transition(image: &Image, from: Option<ImageState>, version: u64) -> Transition<'_, ImageState> {
    let metadata = codec::to_json(&serde_json::json!({ "sha256": image.sha256, "bytes": image.bytes }));
    let name = image.name.as_str();
    Transition { entity_id: name, subject: name, customer_id: "", from, to: image.state, version, metadata }
}

fn no_guard(_: domain::lifecycle::Guard) -> Result<(), Error> {
    Ok(())
}
