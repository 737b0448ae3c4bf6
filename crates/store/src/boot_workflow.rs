//! Boot workflows in the store. One is written once and never changed: what was installed with it stays known.

use crate::db::{Row, Val, params};
use crate::error::{DbError, TxResult};
use crate::filter_sql::Where;
use crate::point::Point;
use crate::tx::Tx;
use domain::Timestamp;
use domain::boot_workflow::BootWorkflow;
use domain::filter::{Field, Filter, Schema};

/// What workflows can be filtered by.
pub const FILTER: Schema = Schema {
    fields: &[
        Field::text("id"),
        Field::text("name"),
        Field::text("kernel"),
        Field::text("initrd"),
        Field::text("cmdline"),
        Field::text("image"),
        Field::lower_case("image_sha256"),
        Field::text("arch"),
        Field::text("boot_mode"),
        Field::text("disk"),
        Field::time("created_at"),
        Field::text("created_by"),
    ],
    labels: false,
};

macro_rules! workflow_columns {
    () => {
        "workflow_id, name, kernel, initrd, cmdline, image, image_sha256, arch, boot_mode, template, disk, created_at, created_by FROM boot_workflows"
    };
}

crate::statements! {
    GET = concat!("SELECT ", workflow_columns!(), " WHERE workflow_id = $1");
    LIST = concat!("SELECT ", workflow_columns!(), " WHERE workflow_id > $1");
    INSERT = "INSERT INTO boot_workflows(workflow_id, name, kernel, initrd, cmdline, image, image_sha256, arch, boot_mode, template, disk, created_at, created_by) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
}

fn read(row: &Row, _: Timestamp) -> Result<BootWorkflow, DbError> {
    Ok(BootWorkflow {
        id: row.string(0)?,
        name: row.string(1)?,
        kernel: row.string(2)?,
        initrd: row.string(3)?,
        cmdline: row.string(4)?,
        image: row.string(5)?,
        image_sha256: row.string(6)?,
        arch: row.string(7)?,
        boot_mode: row.string(8)?,
        template: row.string(9)?,
        disk: row.string(10)?,
        created_at: row.time(11)?,
        created_by: row.string(12)?,
    })
}

pub fn by_id(id: &str) -> Point<BootWorkflow> {
    Point { sql: GET, params: vec![Val::from(id)], read }
}

/// In order of their ids, after `after`.
pub fn list(tx: &mut Tx<'_>, filter: &Filter, after: &str, limit: usize) -> TxResult<Vec<BootWorkflow>> {
    let mut clause = Where::new(vec![Val::from(after)]);
    clause.and(filter, &|field| match field {
        "id" => "workflow_id",
        "name" => "name",
        "kernel" => "kernel",
        "initrd" => "initrd",
        "cmdline" => "cmdline",
        "image" => "image",
        "image_sha256" => "image_sha256",
        "arch" => "arch",
        "boot_mode" => "boot_mode",
        "disk" => "disk",
        "created_at" => "created_at",
        "created_by" => "created_by",
        _ => "NULL",
    });
    let sql = format!("{LIST}{} ORDER BY workflow_id LIMIT {limit}", clause.sql);
    let now = tx.now();
    Ok(tx.rows(&sql, &clause.params)?.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?)
}

pub fn insert(tx: &mut Tx<'_>, w: &BootWorkflow) -> TxResult<()> {
    let now = tx.now();
    tx.exec(
        INSERT,
        params![
            &w.id,
            &w.name,
            &w.kernel,
            &w.initrd,
            &w.cmdline,
            &w.image,
            &w.image_sha256,
            &w.arch,
            &w.boot_mode,
            &w.template,
            &w.disk,
            now,
            &w.created_by,
        ],
    )?;
    Ok(())
}
