//! Sites in the store: under their names, with what they are to be as JSON. One that was removed keeps its row.

use crate::codec;
use crate::db::{Pair, Row, Val, params};
use crate::error::{DbError, Failure, TxResult};
use crate::filter_sql::Where;
use crate::point::Point;
use crate::signal::Signal;
use crate::transition::{Cause, Moved, Transition};
use crate::tx::Tx;
use domain::filter::{Field, Filter, Schema};
use domain::site::{DiskRule, Erase, Layout, LinkMode, Profile, RoceNetwork, Site, SitePolicy, SiteState};
use domain::{Error, Timestamp};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What sites can be filtered by.
pub const FILTER: Schema = Schema {
    fields: &[
        Field::text("name"),
        Field::text("url"),
        Field::text("credentials_ref"),
        Field::time("created_at"),
        Field::time("updated_at"),
    ],
    labels: false,
};

macro_rules! site_columns {
    () => {
        "name, state, version, url, ca_pem, credentials_ref, policy, profiles, created_at, updated_at FROM sites"
    };
}

crate::statements! {
    GET = concat!("SELECT ", site_columns!(), " WHERE name = $1");
    LIST = concat!("SELECT ", site_columns!(), " WHERE name > $1 AND state = 'present'");
    WITH_CREDENTIAL = "SELECT name FROM sites WHERE credentials_ref = $1 AND state = 'present' ORDER BY name LIMIT 1";
    NODES = "SELECT COUNT(*), MIN(name) FROM nodes WHERE maas_site = $1 AND (status <> 'deleted' OR active_job_id IS NOT NULL)";
    INSERT = "INSERT INTO sites(name, state, version, url, ca_pem, credentials_ref, policy, profiles, created_at, updated_at) VALUES ($1, 'present', 1, $2, $3, $4, $5, $6, $7, $7)";
    UPDATE = "UPDATE sites SET state = $3, version = version + 1, url = $4, ca_pem = $5, credentials_ref = $6, policy = $7, profiles = $8, updated_at = $9 WHERE name = $1 AND version = $2";
}

macro_rules! lock {
    () => {
        "SELECT 1 FROM sites WHERE name = $1"
    };
}

const LOCK: Pair = Pair { sqlite: lock!(), postgres: concat!(lock!(), " FOR UPDATE") };

/// By whoever begins something there: the site stays, and others may do the same.
const HOLD: Pair = Pair { sqlite: lock!(), postgres: concat!(lock!(), " FOR SHARE") };

pub(crate) const PAIRS: &[(&str, Pair)] = &[("LOCK", LOCK), ("HOLD", HOLD)];

#[derive(Serialize, Deserialize)]
struct PolicyRow {
    poll_ms: u64,
    list_ms: u64,
    calls_max: u32,
    erase: String,
    keep_record: bool,
    datasource_retries: u32,
    hardware_sync: bool,
    sync_intervals: u32,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn word<T>(read: Result<T, Error>) -> Result<T, DbError> {
    read.map_err(|e| DbError::Defect(e.message))
}

fn policy_to_json(policy: &SitePolicy) -> String {
    codec::to_json(&PolicyRow {
        poll_ms: millis(policy.poll),
        list_ms: millis(policy.list),
        calls_max: policy.calls_max,
        erase: policy.erase.to_string(),
        keep_record: policy.keep_record,
        datasource_retries: policy.datasource_retries,
        hardware_sync: policy.hardware_sync,
        sync_intervals: policy.sync_intervals,
    })
}

fn policy_from_json(text: &str) -> Result<SitePolicy, DbError> {
    let row: PolicyRow = codec::from_json("the policy of a site", text)?;
    Ok(SitePolicy {
        poll: Duration::from_millis(row.poll_ms),
        list: Duration::from_millis(row.list_ms),
        calls_max: row.calls_max,
        erase: word(Erase::parse("erase", &row.erase))?,
        keep_record: row.keep_record,
        datasource_retries: row.datasource_retries,
        hardware_sync: row.hardware_sync,
        sync_intervals: row.sync_intervals,
    })
}

#[derive(Serialize, Deserialize)]
struct ProfileRow {
    name: String,
    architecture: String,
    series: String,
    kernel: String,
    layout: String,
    root_size: String,
    boot_disk: DiskRow,
    pxe_subnet: String,
    roce: Vec<RoceRow>,
    cloud_init: String,
    agent_url: String,
    agent_sha256: String,
    tags: Vec<String>,
    pool: String,
    zone: String,
    testing_scripts: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct DiskRow {
    model: String,
    tag: String,
    min_bytes: u64,
    max_bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct RoceRow {
    interface: String,
    subnet: String,
    mode: String,
    mtu: u32,
}

impl From<&Profile> for ProfileRow {
    fn from(p: &Profile) -> Self {
        let roce = |r: &RoceNetwork| RoceRow {
            interface: r.interface.clone(),
            subnet: r.subnet.clone(),
            mode: r.mode.to_string(),
            mtu: r.mtu,
        };
        let disk = p.boot_disk.clone();
        Self {
            name: p.name.clone(),
            architecture: p.architecture.clone(),
            series: p.series.clone(),
            kernel: p.kernel.clone(),
            layout: p.layout.to_string(),
            root_size: p.root_size.clone(),
            boot_disk: DiskRow {
                model: disk.model,
                tag: disk.tag,
                min_bytes: disk.min_bytes,
                max_bytes: disk.max_bytes,
            },
            pxe_subnet: p.pxe_subnet.clone(),
            roce: p.roce.iter().map(roce).collect(),
            cloud_init: p.cloud_init.clone(),
            agent_url: p.agent_url.clone(),
            agent_sha256: p.agent_sha256.clone(),
            tags: p.tags.clone(),
            pool: p.pool.clone(),
            zone: p.zone.clone(),
            testing_scripts: p.testing_scripts.clone(),
        }
    }
}

impl TryFrom<ProfileRow> for Profile {
    type Error = DbError;
    fn try_from(p: ProfileRow) -> Result<Self, DbError> {
        let roce = |r: RoceRow| -> Result<RoceNetwork, DbError> {
            let mode = word(LinkMode::parse("mode", &r.mode))?;
            Ok(RoceNetwork { interface: r.interface, subnet: r.subnet, mode, mtu: r.mtu })
        };
        let disk = p.boot_disk;
        Ok(Profile {
            name: p.name,
            architecture: p.architecture,
            series: p.series,
            kernel: p.kernel,
            layout: word(Layout::parse("layout", &p.layout))?,
            root_size: p.root_size,
            boot_disk: DiskRule {
                model: disk.model,
                tag: disk.tag,
                min_bytes: disk.min_bytes,
                max_bytes: disk.max_bytes,
            },
            pxe_subnet: p.pxe_subnet,
            roce: p.roce.into_iter().map(roce).collect::<Result<_, _>>()?,
            cloud_init: p.cloud_init,
            agent_url: p.agent_url,
            agent_sha256: p.agent_sha256,
            tags: p.tags,
            pool: p.pool,
            zone: p.zone,
            testing_scripts: p.testing_scripts,
        })
    }
}

fn profiles_to_json(profiles: &[Profile]) -> String {
    codec::to_json(&profiles.iter().map(ProfileRow::from).collect::<Vec<_>>())
}

fn profiles_from_json(text: &str) -> Result<Vec<Profile>, DbError> {
    let rows: Vec<ProfileRow> = codec::from_json("the profiles of a site", text)?;
    rows.into_iter().map(Profile::try_from).collect()
}

fn read(row: &Row, _: Timestamp) -> Result<Site, DbError> {
    Ok(Site {
        name: row.string(0)?,
        state: codec::state(row.text(1)?)?,
        version: row.uint(2)?,
        url: row.string(3)?,
        ca_pem: row.string(4)?,
        credentials_ref: row.string(5)?,
        policy: policy_from_json(row.text(6)?)?,
        profiles: profiles_from_json(row.text(7)?)?,
        created_at: row.time(8)?,
        updated_at: row.time(9)?,
    })
}

/// Also one that was removed.
pub fn by_name(name: &str) -> Point<Site> {
    Point { sql: GET, params: vec![Val::from(name)], read }
}

/// For an operation that will write it; also one that was removed.
pub fn get_for_update(tx: &mut Tx<'_>, name: &str) -> TxResult<Option<Site>> {
    tx.locked(LOCK, &by_name(name))
}

/// The site, if it is there; it stays there until this transaction ends.
pub fn hold(tx: &mut Tx<'_>, name: &str) -> TxResult<Option<Site>> {
    Ok(tx.locked(HOLD, &by_name(name))?.filter(|site| site.state == SiteState::Present))
}

/// Those that are there, in order of their names, after `after`.
pub fn list(tx: &mut Tx<'_>, filter: &Filter, after: &str, limit: usize) -> TxResult<Vec<Site>> {
    let mut clause = Where::new(vec![Val::from(after)]);
    clause.and(filter, &|field| match field {
        "name" => "name",
        "url" => "url",
        "credentials_ref" => "credentials_ref",
        "created_at" => "created_at",
        "updated_at" => "updated_at",
        _ => "NULL",
    });
    let sql = format!("{LIST}{} ORDER BY name LIMIT {limit}", clause.sql);
    let now = tx.now();
    Ok(tx.rows(&sql, &clause.params)?.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?)
}

/// A site that is reached with this credential, if there is one.
pub fn with_credential(tx: &mut Tx<'_>, credential: &str) -> TxResult<Option<String>> {
    Ok(tx.row(WITH_CREDENTIAL, params![credential])?.map(|row| row.string(0)).transpose()?)
}

/// How many nodes are on machines of it, and the name of one.
pub fn nodes(tx: &mut Tx<'_>, name: &str) -> TxResult<(u64, Option<String>)> {
    let Some(row) = tx.row(NODES, params![name])? else { return Ok((0, None)) };
    Ok((row.uint(0)?, row.maybe(1, Row::string)?))
}

/// Puts `new` in the place of `there`, as it was read for update.
pub fn put(tx: &mut Tx<'_>, there: Option<&Site>, new: &Site, cause: &Cause) -> TxResult<Site> {
    let now = tx.now();
    let version = there.map_or(0, |there| there.version);
    let t = transition(new, there.map(|there| there.state), version + 1);
    let (policy, profiles) = (policy_to_json(&new.policy), profiles_to_json(&new.profiles));
    let (name, url, ca, credential) = (&new.name, &new.url, &new.ca_pem, &new.credentials_ref);
    let moved = tx.transition(t, cause, no_guard, |tx| {
        Ok(match there {
            None => tx.exec(INSERT, params![name, url, ca, credential, policy, profiles, now])?,
            Some(_) => {
                let state = codec::spelt(new.state);
                tx.exec(UPDATE, params![name, version, state, url, ca, credential, policy, profiles, now])?
            }
        })
    })?;
    debug_assert_eq!(moved, Moved::Moved);
    tx.signal(Signal::SitesChanged);
    tx.point(&by_name(name))?.ok_or_else(|| Failure::Lost(format!("site {name}")))
}

fn transition(site: &Site, from: Option<SiteState>, version: u64) -> Transition<'_, SiteState> {
    let metadata = codec::to_json(&serde_json::json!({ "url": site.url, "credentials_ref": site.credentials_ref }));
    let name = site.name.as_str();
    Transition { entity_id: name, subject: name, customer_id: "", from, to: site.state, version, metadata }
}

fn no_guard(_: domain::lifecycle::Guard) -> Result<(), Error> {
    Ok(())
}
