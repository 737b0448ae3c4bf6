//! Agents in the store: their keys, sessions and heartbeats, the tokens they come with, and the authority that signs for
//! them. Beside the nodes: to be heard of raises nobody's version.

use crate::codec;
use crate::db::{Pair, Row, Val, params};
use crate::error::{DbError, TxResult};
use crate::point::Point;
use crate::signal::Signal;
use crate::tx::Tx;
use domain::agent::{AgentIdentity, BootstrapToken, IdentityState};
use domain::{NodeId, Timestamp};

macro_rules! agent_columns {
    () => {
        "node_id, key_sha256, key_spki, state, state_reason, epoch, session, confirmed, enrolled_at, certificate_until, agent_version, boot_id, beats, last_beat, skew_ms, inventory, inventory_digest, health, token_id FROM agents"
    };
}

crate::statements! {
    GET = concat!("SELECT ", agent_columns!(), " WHERE node_id = $1");
    BY_KEY = concat!("SELECT ", agent_columns!(), " WHERE key_sha256 = $1");
    AFTER = concat!("SELECT ", agent_columns!(), " WHERE node_id > $1 ORDER BY node_id LIMIT $2");
    ENROL = "INSERT INTO agents(node_id, key_sha256, key_spki, state, state_reason, epoch, session, confirmed, enrolled_at, certificate_until, agent_version, boot_id, beats, skew_ms, inventory, inventory_digest, health, token_id) VALUES ($1, $2, $3, 'good', '', $4, $5, 0, $6, $7, $8, $9, 0, 0, '', '', '', $10) ON CONFLICT (node_id) DO UPDATE SET key_sha256 = excluded.key_sha256, key_spki = excluded.key_spki, state = 'good', state_reason = '', epoch = excluded.epoch, session = excluded.session, confirmed = 0, enrolled_at = excluded.enrolled_at, certificate_until = excluded.certificate_until, agent_version = excluded.agent_version, boot_id = excluded.boot_id, beats = 0, last_beat = NULL, health = '', token_id = excluded.token_id";
    SET_STATE = "UPDATE agents SET state = $2, state_reason = $3 WHERE node_id = $1";
    SET_SESSION = "UPDATE agents SET epoch = $2, session = $3, confirmed = 0, state = 'good', state_reason = '', agent_version = $4, boot_id = $5, skew_ms = $6 WHERE node_id = $1";
    CONFIRM = "UPDATE agents SET confirmed = 1 WHERE node_id = $1 AND session = $2";
    CERTIFIED = "UPDATE agents SET certificate_until = $2 WHERE node_id = $1";
    CAME_WITH = "UPDATE agents SET token_id = $2 WHERE node_id = $1";
    SET_INVENTORY = "UPDATE agents SET inventory = $2, inventory_digest = $3 WHERE node_id = $1 AND session = $4";
    SET_HEALTH = "UPDATE agents SET health = $2 WHERE node_id = $1 AND session = $3";
    LOST = "SELECT n.node_id FROM nodes n LEFT JOIN agents a ON a.node_id = n.node_id WHERE n.status = 'active' AND n.node_id > $1 AND COALESCE(a.last_beat, 0) <= $2 AND n.status_changed_at <= $2 ORDER BY n.node_id LIMIT $3";
    BACK = "SELECT n.node_id FROM nodes n JOIN agents a ON a.node_id = n.node_id WHERE n.status = 'offline' AND n.node_id > $1 AND a.last_beat > $2 AND a.last_beat > n.status_changed_at AND a.beats >= $3 ORDER BY n.node_id LIMIT $4";
    QUARANTINED = "SELECT n.node_id FROM nodes n JOIN agents a ON a.node_id = n.node_id WHERE n.status = 'quarantined' AND n.node_id > $1 AND a.last_beat > $2 AND a.last_beat > n.status_changed_at AND a.beats >= $3 ORDER BY n.node_id LIMIT $4";
    UNWELL = "SELECT n.node_id FROM nodes n JOIN agents a ON a.node_id = n.node_id WHERE n.status = 'active' AND n.node_id > $1 AND a.health LIKE '%\"ok\":false%' ORDER BY n.node_id LIMIT $2";
    TOKEN = "SELECT hash, node_id, expires_at, issued_by, issued_at, key_sha256, bound_at, withdrawn FROM bootstrap_tokens WHERE hash = $1";
    TOKENS_OF = "SELECT hash, node_id, expires_at, issued_by, issued_at, key_sha256, bound_at, withdrawn FROM bootstrap_tokens WHERE node_id = $1 ORDER BY issued_at DESC LIMIT 10";
    ISSUE = "INSERT INTO bootstrap_tokens(hash, node_id, expires_at, issued_by, issued_at, withdrawn) VALUES ($1, $2, $3, $4, $5, 0)";
    BIND = "UPDATE bootstrap_tokens SET key_sha256 = $2, bound_at = $3 WHERE hash = $1 AND key_sha256 IS NULL";
    WITHDRAW = "UPDATE bootstrap_tokens SET withdrawn = 1 WHERE node_id = $1";
    FORGET_TOKENS = "DELETE FROM bootstrap_tokens WHERE node_id = $1";
    AUTHORITY = "SELECT certificate, sealed, key_id FROM agent_authority WHERE one = 1";
    FOUND_AUTHORITY = "INSERT INTO agent_authority(one, certificate, sealed, key_id, created_at) VALUES (1, $1, $2, $3, $4)";
    RESEAL_AUTHORITY = "UPDATE agent_authority SET sealed = $1, key_id = $2 WHERE one = 1";
}

macro_rules! beats {
    ($rows:literal) => {
        concat!(
            "UPDATE agents SET last_beat = heard.at, beats = heard.beats, skew_ms = heard.skew FROM (",
            $rows,
            ") AS heard WHERE agents.node_id = heard.node AND agents.session = heard.session AND agents.state = 'good'"
        )
    };
}

/// `$1`: `[[node, session, at, beats, skew], …]`.
const BEATS: Pair = Pair {
    sqlite: beats!(
        "SELECT value->>0 AS node, value->>1 AS session, value->>2 AS at, value->>3 AS beats, value->>4 AS skew FROM json_each($1)"
    ),
    postgres: beats!(
        "SELECT value->>0 AS node, (value->>1)::bigint AS session, (value->>2)::bigint AS at, (value->>3)::bigint AS beats, (value->>4)::bigint AS skew FROM jsonb_array_elements($1::text::jsonb)"
    ),
};

macro_rules! of_nodes {
    ($nodes:literal) => {
        concat!("SELECT ", agent_columns!(), " WHERE node_id IN (", $nodes, ") ORDER BY node_id")
    };
}

/// `$1`: `[node, …]`.
const OF_NODES: Pair = Pair {
    sqlite: of_nodes!("SELECT value FROM json_each($1)"),
    postgres: of_nodes!("SELECT jsonb_array_elements_text($1::text::jsonb)"),
};

macro_rules! strayed {
    ($rows:literal) => {
        concat!(
            "SELECT held.node FROM (",
            $rows,
            ") AS held LEFT JOIN agents ON agents.node_id = held.node WHERE agents.node_id IS NULL OR agents.session <> held.session OR agents.state <> 'good'"
        )
    };
}

/// `$1`: `[[node, session], …]`.
const STRAYED: Pair = Pair {
    sqlite: strayed!("SELECT value ->> 0 AS node, value ->> 1 AS session FROM json_each($1)"),
    postgres: strayed!(
        "SELECT value->>0 AS node, (value->>1)::bigint AS session FROM jsonb_array_elements($1::text::jsonb)"
    ),
};

macro_rules! lock {
    () => {
        "SELECT 1 FROM agents WHERE node_id = $1"
    };
}

const LOCK: Pair = Pair { sqlite: lock!(), postgres: concat!(lock!(), " FOR UPDATE") };

pub(crate) const PAIRS: &[(&str, Pair)] =
    &[("BEATS", BEATS), ("OF_NODES", OF_NODES), ("STRAYED", STRAYED), ("LOCK", LOCK)];

fn read(row: &Row, _: Timestamp) -> Result<AgentIdentity, DbError> {
    let state = row.text(3)?;
    Ok(AgentIdentity {
        node_id: NodeId::from_text(row.string(0)?),
        key_sha256: row.string(1)?,
        key_spki: row.bytes(2)?.to_vec(),
        state: IdentityState::parse(state).ok_or_else(|| codec::unknown("state of an identity", state))?,
        state_reason: row.string(4)?,
        epoch: row.uint(5)?,
        session: row.uint(6)?,
        confirmed: row.uint(7)? == 1,
        enrolled_at: row.time(8)?,
        certificate_until: row.time(9)?,
        agent_version: row.string(10)?,
        boot_id: row.string(11)?,
        beats: u32::try_from(row.uint(12)?).unwrap_or(u32::MAX),
        last_beat: row.maybe(13, Row::time)?,
        skew_ms: row.int(14)?,
        inventory: row.string(15)?,
        inventory_digest: row.string(16)?,
        health: row.string(17)?,
        token_id: row.string(18)?,
    })
}

pub fn by_node(node: &NodeId) -> Point<AgentIdentity> {
    Point { sql: GET, params: vec![Val::from(node.as_str())], read }
}

pub fn by_key(key_sha256: &str) -> Point<AgentIdentity> {
    Point { sql: BY_KEY, params: vec![Val::from(key_sha256)], read }
}

pub fn get_for_update(tx: &mut Tx<'_>, node: &NodeId) -> TxResult<Option<AgentIdentity>> {
    tx.locked(LOCK, &by_node(node))
}

/// In order of their nodes, after `after`.
pub fn after(tx: &mut Tx<'_>, after: &str, limit: usize) -> TxResult<Vec<AgentIdentity>> {
    let now = tx.now();
    Ok(tx.rows(AFTER, params![after, limit])?.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?)
}

/// Those of these nodes, by one statement.
pub fn of_nodes<'a>(tx: &mut Tx<'_>, nodes: impl IntoIterator<Item = &'a NodeId>) -> TxResult<Vec<AgentIdentity>> {
    let (now, ids) = (tx.now(), nodes.into_iter().map(NodeId::as_str).collect::<Vec<_>>());
    let rows = tx.pair(OF_NODES, params![codec::to_json(&ids)])?;
    Ok(rows.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?)
}

/// Its key becomes the node's, in the place of any before it.
pub fn enrol(tx: &mut Tx<'_>, agent: &AgentIdentity) -> TxResult<()> {
    tx.exec(
        ENROL,
        params![
            agent.node_id.as_str(),
            &agent.key_sha256,
            agent.key_spki.clone(),
            agent.epoch,
            agent.session,
            agent.enrolled_at,
            agent.certificate_until,
            &agent.agent_version,
            &agent.boot_id,
            &agent.token_id,
        ],
    )?;
    tx.signal(Signal::NodeChanged(agent.node_id.clone()));
    Ok(())
}

/// Stops an identity, or takes it back for good. Whoever has its stream is told.
pub fn set_state(tx: &mut Tx<'_>, node: &NodeId, state: IdentityState, reason: &str) -> TxResult<()> {
    tx.exec(SET_STATE, params![node.as_str(), state.as_str(), reason])?;
    tx.signal(Signal::NodeChanged(node.clone()));
    Ok(())
}

/// A connection begins.
pub fn begin_session(tx: &mut Tx<'_>, agent: &AgentIdentity) -> TxResult<()> {
    let (version, boot) = (&agent.agent_version, &agent.boot_id);
    tx.exec(
        SET_SESSION,
        params![agent.node_id.as_str(), agent.epoch, agent.session, version, boot, Val::Int(agent.skew_ms)],
    )?;
    // whoever has an older stream of it ends that
    tx.signal(Signal::NodeChanged(agent.node_id.clone()));
    Ok(())
}

/// The agent has written the number down. `false`: it is not the last one any more.
pub fn confirm(tx: &mut Tx<'_>, node: &NodeId, session: u64) -> TxResult<bool> {
    Ok(tx.exec(CONFIRM, params![node.as_str(), session])? == 1)
}

pub fn certified(tx: &mut Tx<'_>, node: &NodeId, until: Timestamp) -> TxResult<()> {
    tx.exec(CERTIFIED, params![node.as_str(), until])?;
    Ok(())
}

/// The same key has come with this token, too.
pub fn came_with(tx: &mut Tx<'_>, node: &NodeId, token: &str) -> TxResult<()> {
    tx.exec(CAME_WITH, params![node.as_str(), token])?;
    Ok(())
}

/// Told by this session; of an agent that has come anew since, what the older one says late is nothing.
pub fn set_inventory(tx: &mut Tx<'_>, node: &NodeId, session: u64, inventory: &str, digest: &str) -> TxResult<()> {
    tx.exec(SET_INVENTORY, params![node.as_str(), inventory, digest, session])?;
    Ok(())
}

/// The same of its probes.
pub fn set_health(tx: &mut Tx<'_>, node: &NodeId, session: u64, health: &str) -> TxResult<()> {
    tx.exec(SET_HEALTH, params![node.as_str(), health, session])?;
    Ok(())
}

/// A heartbeat, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    pub node_id: NodeId,
    /// The connection that it was heard by.
    pub session: u64,
    pub at: Timestamp,
    pub beats: u32,
    pub skew_ms: i64,
}

/// Many at once, by one statement; of an agent that has come anew since, what the older connection has noted is nothing.
pub fn heard(tx: &mut Tx<'_>, beats: &[Beat]) -> TxResult<()> {
    let rows: Vec<_> =
        beats.iter().map(|b| (b.node_id.as_str(), b.session, b.at.micros(), b.beats, b.skew_ms)).collect();
    let sql = BEATS.get(tx.dialect());
    tx.exec(sql, params![codec::to_json(&rows)])?;
    Ok(())
}

/// Of these connections, those whose agent has come anew elsewhere, was stopped or is gone.
pub fn strayed(tx: &mut Tx<'_>, held: &[(NodeId, u64)]) -> TxResult<Vec<NodeId>> {
    let held: Vec<_> = held.iter().map(|(node, session)| (node.as_str(), session)).collect();
    Ok(ids(&tx.pair(STRAYED, params![codec::to_json(&held)])?)?)
}

fn ids(rows: &[Row<'_>]) -> Result<Vec<NodeId>, DbError> {
    rows.iter().map(|row| row.string(0).map(NodeId::from_text)).collect()
}

/// Active nodes that nothing was heard of since `before`, after `after`.
pub fn lost(tx: &mut Tx<'_>, after: &str, before: Timestamp, limit: usize) -> TxResult<Vec<NodeId>> {
    Ok(ids(&tx.rows(LOST, params![after, before, limit])?)?)
}

/// Offline nodes that are heard of again, steadily, after `after`.
pub fn back(tx: &mut Tx<'_>, after: &str, since: Timestamp, beats: u32, limit: usize) -> TxResult<Vec<NodeId>> {
    Ok(ids(&tx.rows(BACK, params![after, since, beats, limit])?)?)
}

/// The same of quarantined ones.
pub fn steady_in_quarantine(
    tx: &mut Tx<'_>,
    after: &str,
    since: Timestamp,
    beats: u32,
    limit: usize,
) -> TxResult<Vec<NodeId>> {
    Ok(ids(&tx.rows(QUARANTINED, params![after, since, beats, limit])?)?)
}

/// Active nodes of whose probes one fails, after `after`.
pub fn unwell(tx: &mut Tx<'_>, after: &str, limit: usize) -> TxResult<Vec<NodeId>> {
    Ok(ids(&tx.rows(UNWELL, params![after, limit])?)?)
}

fn read_token(row: &Row, _: Timestamp) -> Result<BootstrapToken, DbError> {
    Ok(BootstrapToken {
        hash: row.string(0)?,
        node_id: NodeId::from_text(row.string(1)?),
        expires_at: row.time(2)?,
        issued_by: row.string(3)?,
        issued_at: row.time(4)?,
        key_sha256: row.maybe(5, Row::string)?,
        bound_at: row.maybe(6, Row::time)?,
        withdrawn: row.uint(7)? == 1,
    })
}

pub fn token(hash: &str) -> Point<BootstrapToken> {
    Point { sql: TOKEN, params: vec![Val::from(hash)], read: read_token }
}

/// Of a node, the newest first.
pub fn tokens_of(tx: &mut Tx<'_>, node: &NodeId) -> TxResult<Vec<BootstrapToken>> {
    let now = tx.now();
    Ok(tx.rows(TOKENS_OF, params![node.as_str()])?.iter().map(|row| read_token(row, now)).collect::<Result<_, _>>()?)
}

/// A new one; those before it are good no more.
pub fn issue(tx: &mut Tx<'_>, token: &BootstrapToken) -> TxResult<()> {
    withdraw(tx, &token.node_id)?;
    let (hash, node, by) = (&token.hash, token.node_id.as_str(), &token.issued_by);
    tx.exec(ISSUE, params![hash, node, token.expires_at, by, token.issued_at])?;
    Ok(())
}

/// The first key that comes with it. `false`: another one was faster.
pub fn bind(tx: &mut Tx<'_>, hash: &str, key_sha256: &str) -> TxResult<bool> {
    let now = tx.now();
    Ok(tx.exec(BIND, params![hash, key_sha256, now])? == 1)
}

pub fn withdraw(tx: &mut Tx<'_>, node: &NodeId) -> TxResult<()> {
    tx.exec(WITHDRAW, params![node.as_str()])?;
    Ok(())
}

/// Nothing of them is history: what was done with them is in the log.
pub fn forget_tokens(tx: &mut Tx<'_>, node: &NodeId) -> TxResult<()> {
    tx.exec(FORGET_TOKENS, params![node.as_str()])?;
    Ok(())
}

/// Who signs agents' certificates; the key is sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    pub certificate: Vec<u8>,
    pub sealed: Vec<u8>,
    pub key_id: String,
}

pub fn authority(tx: &mut Tx<'_>) -> TxResult<Option<Authority>> {
    let read = |row: &Row| -> Result<Authority, DbError> {
        Ok(Authority { certificate: row.bytes(0)?.to_vec(), sealed: row.bytes(1)?.to_vec(), key_id: row.string(2)? })
    };
    Ok(tx.row(AUTHORITY, &[])?.as_ref().map(read).transpose()?)
}

/// The first server founds it; whoever comes second takes what is there.
pub fn found_authority(tx: &mut Tx<'_>, new: &Authority) -> TxResult<Authority> {
    if let Some(there) = authority(tx)? {
        return Ok(there);
    }
    let now = tx.now();
    tx.exec(FOUND_AUTHORITY, params![new.certificate.clone(), new.sealed.clone(), &new.key_id, now])?;
    Ok(new.clone())
}

/// The same key under another sealing.
pub fn reseal_authority(tx: &mut Tx<'_>, sealed: &[u8], key_id: &str) -> TxResult<()> {
    tx.exec(RESEAL_AUTHORITY, params![sealed.to_vec(), key_id])?;
    Ok(())
}
