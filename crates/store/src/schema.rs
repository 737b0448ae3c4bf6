//! The tables, as forward migrations embedded in the binary. Written once: the few words that differ
//! between the databases are filled in when a migration is run.

use crate::db::{Closing, Connection, Dialect, params};
use crate::error::DbError;
use domain::Timestamp;

/// The schema this binary speaks.
pub const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

const MIGRATIONS: &[&[&str]] = &[&[
    "CREATE TABLE meta(name {key} PRIMARY KEY, value TEXT NOT NULL)",
    "INSERT INTO meta(name, value) VALUES ('epoch', '1')",
    "CREATE TABLE log_head(one BIGINT PRIMARY KEY CHECK (one = 1), seq BIGINT NOT NULL, kept_from BIGINT NOT NULL)",
    "INSERT INTO log_head(one, seq, kept_from) VALUES (1, 0, 1)",
    "CREATE TABLE transitions(
        sequence BIGINT PRIMARY KEY, at BIGINT NOT NULL, entity_kind {key} NOT NULL, entity_id {key} NOT NULL, subject {key} NOT NULL,
        from_state TEXT NOT NULL, to_state TEXT NOT NULL, version BIGINT NOT NULL, cause TEXT NOT NULL, owner TEXT NOT NULL,
        actor TEXT NOT NULL, comment TEXT NOT NULL, metadata TEXT NOT NULL)",
    "CREATE INDEX transitions_by_subject ON transitions(subject, sequence)",
    "CREATE TABLE machines(
        machine_id {key} PRIMARY KEY, version BIGINT NOT NULL, phase {key} NOT NULL, phase_set_by TEXT NOT NULL, phase_set_at BIGINT NOT NULL,
        previous_phase TEXT NOT NULL, active_run_id {key}, provider {key} NOT NULL, location {key} NOT NULL, rack {key} NOT NULL,
        serial_number {key} NOT NULL, system_uuid {key} NOT NULL, customer_id {key} NOT NULL, target_cluster_ref {key} NOT NULL,
        ssh_endpoint TEXT NOT NULL, bmc_endpoint TEXT NOT NULL, credentials_ref TEXT NOT NULL, mac_addresses TEXT NOT NULL,
        labels TEXT NOT NULL, conditions TEXT NOT NULL, last_seen BIGINT, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL)",
    "CREATE INDEX machines_by_phase ON machines(phase, machine_id)",
    "CREATE INDEX machines_by_rack ON machines(rack, machine_id)",
    "CREATE INDEX machines_by_customer ON machines(customer_id, machine_id)",
    "CREATE INDEX machines_by_cluster ON machines(target_cluster_ref, machine_id)",
    "CREATE INDEX machines_by_serial ON machines(serial_number)",
    "CREATE INDEX machines_by_uuid ON machines(system_uuid)",
    "CREATE TABLE machine_labels(
        label_key {key} NOT NULL, label_value {key} NOT NULL, machine_id {key} NOT NULL REFERENCES machines(machine_id),
        PRIMARY KEY (machine_id, label_key))",
    "CREATE INDEX machine_labels_by_value ON machine_labels(label_key, label_value, machine_id)",
    "CREATE TABLE machine_identifiers(
        kind {key} NOT NULL, value {key} NOT NULL, machine_id {key} NOT NULL REFERENCES machines(machine_id), PRIMARY KEY (kind, value))",
    "CREATE INDEX machine_identifiers_by_machine ON machine_identifiers(machine_id)",
    "CREATE TABLE plans(
        plan_id {key} PRIMARY KEY, display_name TEXT NOT NULL, body TEXT NOT NULL, source TEXT NOT NULL, created_at BIGINT NOT NULL,
        created_by TEXT NOT NULL)",
    "CREATE TABLE runs(
        run_id {key} PRIMARY KEY, machine_id {key} NOT NULL REFERENCES machines(machine_id), request_id {key} NOT NULL, type {key} NOT NULL,
        plan_id {key} NOT NULL, phase {key} NOT NULL, current_step TEXT NOT NULL, version BIGINT NOT NULL, spec TEXT NOT NULL,
        status TEXT NOT NULL, created_at BIGINT NOT NULL, started_at BIGINT, finished_at BIGINT)",
    "CREATE INDEX runs_by_machine ON runs(machine_id, run_id)",
    "CREATE INDEX runs_by_phase ON runs(phase, run_id)",
    "CREATE INDEX runs_by_request ON runs(request_id, run_id)",
    // the database itself refuses a second active run on a machine
    "CREATE UNIQUE INDEX one_active_run ON runs(machine_id) WHERE phase IN ('PENDING', 'RUNNING')",
    "CREATE TABLE idempotency(
        scope {key} NOT NULL, request_key {key} NOT NULL, fingerprint TEXT NOT NULL, answer TEXT NOT NULL, at BIGINT NOT NULL,
        PRIMARY KEY (scope, request_key))",
    "CREATE TABLE step_logs(
        run_id {key} NOT NULL REFERENCES runs(run_id), sequence BIGINT NOT NULL, at BIGINT NOT NULL, step TEXT NOT NULL,
        stream TEXT NOT NULL, data {bytes} NOT NULL, PRIMARY KEY (run_id, sequence))",
    "CREATE TABLE sessions(
        session_id {key} PRIMARY KEY, instance_id {key} NOT NULL, started_at BIGINT NOT NULL, renewals BIGINT NOT NULL,
        lease_ms BIGINT NOT NULL, call_ms BIGINT NOT NULL, state TEXT NOT NULL, ended_because TEXT NOT NULL)",
    "CREATE INDEX live_sessions ON sessions(state) WHERE state = 'live'",
    "CREATE TABLE executions(
        execution_id {key} PRIMARY KEY, workflow TEXT NOT NULL, workflow_version BIGINT NOT NULL, subject {key} NOT NULL,
        machine_id {key} NOT NULL, status {key} NOT NULL, position TEXT NOT NULL, stage TEXT NOT NULL, attempt BIGINT NOT NULL,
        settle_ms BIGINT NOT NULL, facts TEXT NOT NULL, failure TEXT NOT NULL, waiting_for TEXT NOT NULL, wake_at BIGINT NOT NULL,
        deadline BIGINT NOT NULL, holder {key}, epoch BIGINT NOT NULL, fence BIGINT NOT NULL, cancel_by TEXT NOT NULL,
        cancel_reason TEXT NOT NULL, entries BIGINT NOT NULL, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL)",
    "CREATE INDEX executions_due ON executions(wake_at, execution_id) WHERE status IN ('ready', 'waiting')",
    "CREATE INDEX executions_by_holder ON executions(holder) WHERE status = 'running'",
    "CREATE INDEX executions_by_subject ON executions(subject)",
    "CREATE INDEX open_executions ON executions(execution_id) WHERE status IN ('ready', 'running', 'waiting')",
    "CREATE TABLE journal(
        execution_id {key} NOT NULL REFERENCES executions(execution_id), number BIGINT NOT NULL, at BIGINT NOT NULL,
        fence TEXT NOT NULL, entry TEXT NOT NULL, detail TEXT NOT NULL, PRIMARY KEY (execution_id, number))",
    "CREATE TABLE destructive_acts(rack {key} NOT NULL, at BIGINT NOT NULL, execution_id {key} NOT NULL, stage TEXT NOT NULL)",
    "CREATE INDEX destructive_acts_by_rack ON destructive_acts(rack, at)",
    "CREATE TABLE switches(name {key} PRIMARY KEY, set_by TEXT NOT NULL, reason TEXT NOT NULL, at BIGINT NOT NULL)",
    "CREATE TABLE tokens(
        token_id {key} PRIMARY KEY, hash {key} NOT NULL UNIQUE, prefix TEXT NOT NULL, name TEXT NOT NULL, role TEXT NOT NULL,
        created_at BIGINT NOT NULL)",
], &[
    "ALTER TABLE tokens ADD COLUMN customer_id TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE tokens ADD COLUMN state TEXT NOT NULL DEFAULT 'active'",
    "ALTER TABLE tokens ADD COLUMN version BIGINT NOT NULL DEFAULT 1",
    "ALTER TABLE tokens ADD COLUMN created_by TEXT NOT NULL DEFAULT 'system'",
    "ALTER TABLE tokens ADD COLUMN expires_at BIGINT",
    "ALTER TABLE tokens ADD COLUMN revoked_at BIGINT",
    "ALTER TABLE tokens ADD COLUMN revoked_by TEXT NOT NULL DEFAULT ''",
    // what has happened stays the customer's whose it was then
    "ALTER TABLE runs ADD COLUMN customer_id {key} NOT NULL DEFAULT ''",
    "UPDATE runs SET customer_id = (SELECT m.customer_id FROM machines m WHERE m.machine_id = runs.machine_id)",
    "CREATE INDEX runs_by_customer ON runs(customer_id, run_id)",
    "ALTER TABLE transitions ADD COLUMN customer_id TEXT NOT NULL DEFAULT ''",
    "UPDATE transitions SET customer_id = COALESCE((SELECT m.customer_id FROM machines m WHERE m.machine_id = transitions.subject), '') WHERE entity_kind = 'machine'",
    "UPDATE transitions SET customer_id = COALESCE((SELECT r.customer_id FROM runs r WHERE r.run_id = transitions.subject), '') WHERE entity_kind IN ('run', 'step')",
    "CREATE TABLE audit(
        number {serial}, at BIGINT NOT NULL, actor {key} NOT NULL, token_id {key} NOT NULL, role TEXT NOT NULL, call {key} NOT NULL,
        target {key} NOT NULL, outcome {key} NOT NULL, code TEXT NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL,
        request_id {key} NOT NULL, count BIGINT NOT NULL)",
    "CREATE INDEX audit_by_target ON audit(target, number)",
    "CREATE INDEX audit_by_actor ON audit(actor, number)",
    "CREATE INDEX audit_by_request ON audit(request_id, number)",
    "CREATE INDEX idempotency_by_age ON idempotency(scope, at)",
    // beside the machines: to be seen raises nobody's version
    "CREATE TABLE observations(
        machine_id {key} PRIMARY KEY REFERENCES machines(machine_id), version BIGINT NOT NULL, lane {key} NOT NULL, source TEXT NOT NULL,
        conditions TEXT NOT NULL, facts TEXT NOT NULL, trouble TEXT NOT NULL, last_seen BIGINT, observed_at BIGINT NOT NULL)",
    "CREATE TABLE sweeps(
        lane {key} PRIMARY KEY, round BIGINT NOT NULL, beats BIGINT NOT NULL, sweeper TEXT NOT NULL, started_at BIGINT NOT NULL,
        finished_at BIGINT, swept_at BIGINT, stale_after_ms BIGINT NOT NULL)",
], &[
    // what they hold is sealed before it comes here, and wiped when they are deleted
    "CREATE TABLE credentials(
        name {key} PRIMARY KEY, state {key} NOT NULL, kind {key} NOT NULL, sealed {bytes} NOT NULL, key_id {key} NOT NULL,
        version BIGINT NOT NULL, created_at BIGINT NOT NULL, created_by TEXT NOT NULL, updated_at BIGINT NOT NULL,
        updated_by TEXT NOT NULL)",
    "CREATE INDEX credentials_by_key ON credentials(key_id, name)",
    // to see how many machines name one
    "CREATE INDEX machines_by_credentials ON machines(credentials_ref) WHERE credentials_ref <> ''",
    // by endpoint, too: a look at where a machine was must not touch what is known of where it is
    "CREATE TABLE pins(
        machine_id {key} NOT NULL REFERENCES machines(machine_id), pin {key} NOT NULL, endpoint {key} NOT NULL, state TEXT NOT NULL,
        value TEXT NOT NULL, version BIGINT NOT NULL, pinned_at BIGINT NOT NULL, PRIMARY KEY (machine_id, pin, endpoint))",
], &[
    "CREATE TABLE holds(
        machine_id {key} PRIMARY KEY REFERENCES machines(machine_id), act TEXT NOT NULL, what TEXT NOT NULL, held_by TEXT NOT NULL,
        since BIGINT NOT NULL, ends_at BIGINT NOT NULL)",
], &[
    "CREATE TABLE boot_workflows(
        workflow_id {key} PRIMARY KEY, name TEXT NOT NULL, kernel TEXT NOT NULL, initrd TEXT NOT NULL, cmdline TEXT NOT NULL,
        image {key} NOT NULL, image_sha256 TEXT NOT NULL, arch TEXT NOT NULL, boot_mode TEXT NOT NULL, template TEXT NOT NULL,
        disk TEXT NOT NULL, created_at BIGINT NOT NULL, created_by TEXT NOT NULL)",
    "CREATE TABLE install_orders(
        order_id {key} PRIMARY KEY, node_id {key} NOT NULL, task TEXT NOT NULL, state {key} NOT NULL, version BIGINT NOT NULL,
        workflow_id {key} NOT NULL, image TEXT NOT NULL, user_data_ref TEXT NOT NULL, opened_by TEXT NOT NULL, run_id {key},
        step TEXT NOT NULL, opened_at BIGINT NOT NULL, attempt BIGINT NOT NULL, offered_at BIGINT, started_at BIGINT,
        last_report_at BIGINT, progress BIGINT, log_tail TEXT NOT NULL, evidence TEXT NOT NULL, closed_at BIGINT, closed_because TEXT,
        operation TEXT NOT NULL, disk_boot_at BIGINT)",
    // the database itself refuses a second wish for one node
    "CREATE UNIQUE INDEX one_open_order ON install_orders(node_id) WHERE state = 'open'",
    "CREATE INDEX open_orders ON install_orders(order_id) WHERE state = 'open'",
    "CREATE INDEX install_orders_by_run ON install_orders(run_id) WHERE run_id IS NOT NULL",
    "CREATE TABLE boot_nodes(
        node_id {key} PRIMARY KEY, mac_address {key} NOT NULL, state {key} NOT NULL, version BIGINT NOT NULL,
        workflow_id {key} NOT NULL, failed_workflow_id TEXT NOT NULL, device_group {key} NOT NULL, hostname {key} NOT NULL,
        ip_address {key} NOT NULL, vendor {key} NOT NULL, model {key} NOT NULL, serial_number {key} NOT NULL,
        system_uuid {key} NOT NULL, arch {key} NOT NULL, inventory TEXT NOT NULL, install_attempts BIGINT NOT NULL,
        last_install_error TEXT, state_changed_at BIGINT NOT NULL, machine_id {key} REFERENCES machines(machine_id),
        proposed_machine_id {key}, created_at BIGINT NOT NULL, last_seen BIGINT, boot_mode TEXT NOT NULL,
        looks BIGINT NOT NULL, order_id {key} REFERENCES install_orders(order_id))",
    // whoever comes again after it was retired is another node
    "CREATE UNIQUE INDEX boot_nodes_by_mac ON boot_nodes(mac_address) WHERE state <> 'retired'",
    "CREATE UNIQUE INDEX boot_nodes_by_machine ON boot_nodes(machine_id) WHERE machine_id IS NOT NULL AND state <> 'retired'",
    "CREATE INDEX boot_nodes_by_state ON boot_nodes(state, node_id)",
    "CREATE INDEX boot_nodes_by_serial ON boot_nodes(serial_number)",
    "CREATE INDEX boot_nodes_by_uuid ON boot_nodes(system_uuid)",
    // the log as the documents of network boot know it: one row for each move of a boot node
    "CREATE VIEW node_state_logs AS SELECT CAST(sequence AS TEXT) AS id, entity_id AS node_id, from_state, to_state,
        CASE owner WHEN 'operator' THEN 'admin' WHEN 'node' THEN 'node_report' ELSE 'system' END AS triggered_by,
        CASE WHEN owner IN ('operator', 'executor') THEN actor END AS user_id,
        CASE WHEN comment <> '' THEN comment END AS comment, CASE WHEN metadata <> '{}' THEN metadata END AS metadata_json,
        {at as datetime} AS created_at
        FROM transitions WHERE entity_kind = 'boot_node'",
    "CREATE TABLE images(
        name {key} PRIMARY KEY, state TEXT NOT NULL, version BIGINT NOT NULL, sha256 {key} NOT NULL, bytes BIGINT NOT NULL,
        kind {key} NOT NULL, added_at BIGINT NOT NULL, added_by {key} NOT NULL)",
    "CREATE INDEX images_by_digest ON images(sha256)",
    "CREATE TABLE findings(
        finding_id {key} PRIMARY KEY, kind {key} NOT NULL, subject {key} NOT NULL, state {key} NOT NULL, version BIGINT NOT NULL,
        message TEXT NOT NULL, first_seen BIGINT NOT NULL, last_seen BIGINT NOT NULL, handled_by TEXT NOT NULL, comment TEXT NOT NULL)",
    "CREATE UNIQUE INDEX findings_by_subject ON findings(subject, kind)",
    "CREATE INDEX findings_by_state ON findings(state, finding_id)",
    // a machine that boots is looked for by its serial number in whatever case
    "CREATE INDEX machine_identifiers_folded ON machine_identifiers(kind, lower(value))",
], &[
    "CREATE TABLE nodes(
        node_id {key} PRIMARY KEY, name {key} NOT NULL, status {key} NOT NULL, version BIGINT NOT NULL, status_reason TEXT NOT NULL,
        status_changed_at BIGINT NOT NULL, cordoned_by {key} NOT NULL, cordon_reason TEXT NOT NULL,
        machine_id {key} REFERENCES machines(machine_id), active_job_id {key}, agent_mode {key} NOT NULL, agent_mode_by TEXT NOT NULL,
        task_fence BIGINT NOT NULL, created_at BIGINT NOT NULL, created_by TEXT NOT NULL, quarantined_by TEXT NOT NULL,
        unclean TEXT NOT NULL)",
    "CREATE INDEX nodes_by_status ON nodes(status, node_id)",
    // one enrolment of a machine at a time; after a removal another one may come
    "CREATE UNIQUE INDEX nodes_by_machine ON nodes(machine_id) WHERE machine_id IS NOT NULL AND status <> 'deleted'",
    "CREATE UNIQUE INDEX nodes_by_name ON nodes(name) WHERE status <> 'deleted'",
    // beside the nodes: to be heard of raises nobody's version
    "CREATE TABLE agents(
        node_id {key} PRIMARY KEY REFERENCES nodes(node_id), key_sha256 {key} NOT NULL, key_spki {bytes} NOT NULL, state {key} NOT NULL,
        state_reason TEXT NOT NULL, epoch BIGINT NOT NULL, session BIGINT NOT NULL, confirmed BIGINT NOT NULL, enrolled_at BIGINT NOT NULL,
        certificate_until BIGINT NOT NULL, agent_version TEXT NOT NULL, boot_id TEXT NOT NULL, beats BIGINT NOT NULL, last_beat BIGINT,
        skew_ms BIGINT NOT NULL, inventory TEXT NOT NULL, inventory_digest TEXT NOT NULL, health TEXT NOT NULL)",
    // a key is one node's, for ever
    "CREATE UNIQUE INDEX agents_by_key ON agents(key_sha256)",
    "CREATE TABLE bootstrap_tokens(
        hash {key} PRIMARY KEY, node_id {key} NOT NULL REFERENCES nodes(node_id), expires_at BIGINT NOT NULL, issued_by TEXT NOT NULL,
        issued_at BIGINT NOT NULL, key_sha256 TEXT, bound_at BIGINT, withdrawn BIGINT NOT NULL)",
    "CREATE INDEX bootstrap_tokens_by_node ON bootstrap_tokens(node_id)",
    // the authority that signs agents' certificates; its key is sealed before it comes here
    "CREATE TABLE agent_authority(
        one BIGINT PRIMARY KEY CHECK (one = 1), certificate {bytes} NOT NULL, sealed {bytes} NOT NULL, key_id {key} NOT NULL,
        created_at BIGINT NOT NULL)",
    "CREATE TABLE jobs(
        job_id {key} PRIMARY KEY, kind {key} NOT NULL, mode {key} NOT NULL, node_id {key} NOT NULL REFERENCES nodes(node_id),
        status {key} NOT NULL, version BIGINT NOT NULL, stage {key} NOT NULL, attempt BIGINT NOT NULL, execution_id {key} NOT NULL,
        purpose TEXT NOT NULL, first_stage BIGINT NOT NULL, afterwards TEXT NOT NULL, failure_class {key} NOT NULL,
        failure_code {key} NOT NULL, failure_message TEXT NOT NULL, observed TEXT NOT NULL, done TEXT NOT NULL, parameters TEXT NOT NULL,
        clean_record TEXT NOT NULL, requested_by {key} NOT NULL, reason TEXT NOT NULL, created_at BIGINT NOT NULL,
        updated_at BIGINT NOT NULL, finished_at BIGINT, tasks_since BIGINT NOT NULL)",
    // the database itself refuses a second job at work on a node
    "CREATE UNIQUE INDEX one_open_job ON jobs(node_id) WHERE status NOT IN ('completed', 'cancelled', 'reconciled')",
    "CREATE INDEX jobs_by_node ON jobs(node_id, job_id)",
    "CREATE INDEX jobs_by_status ON jobs(status, job_id)",
    "CREATE VIEW node_onboardings AS SELECT job_id, node_id, status, stage, attempt, failure_class, observed FROM jobs WHERE kind = 'onboarding'",
    "CREATE VIEW node_decommissions AS SELECT job_id, node_id, mode, status, stage, attempt, failure_class, observed FROM jobs WHERE kind = 'decommission'",
    "CREATE TABLE tasks(
        task_id {key} PRIMARY KEY, node_id {key} NOT NULL REFERENCES nodes(node_id), job_id {key} NOT NULL, stage TEXT NOT NULL,
        operation {key} NOT NULL, kind {key} NOT NULL, body {bytes} NOT NULL, status {key} NOT NULL, version BIGINT NOT NULL,
        epoch BIGINT NOT NULL, fence BIGINT NOT NULL, requeues BIGINT NOT NULL, queued_at BIGINT NOT NULL, dispatched_at BIGINT,
        lease_until BIGINT, take_by BIGINT NOT NULL, result TEXT NOT NULL, signature {bytes} NOT NULL, expired_because TEXT NOT NULL,
        output_bytes BIGINT NOT NULL, ordered_by {key} NOT NULL)",
    // one at a time, and the same operation never twice
    "CREATE UNIQUE INDEX one_live_task ON tasks(node_id) WHERE status IN ('queued', 'dispatched')",
    "CREATE UNIQUE INDEX tasks_by_operation ON tasks(operation)",
    "CREATE INDEX tasks_by_node ON tasks(node_id, task_id)",
    "CREATE INDEX tasks_by_job ON tasks(job_id, task_id)",
    "CREATE INDEX live_tasks ON tasks(task_id) WHERE status IN ('queued', 'dispatched')",
    "CREATE TABLE task_output(
        task_id {key} NOT NULL REFERENCES tasks(task_id), start_at BIGINT NOT NULL, at BIGINT NOT NULL, stream TEXT NOT NULL,
        data {bytes} NOT NULL, PRIMARY KEY (task_id, start_at))",
], &[
    "CREATE TABLE sites(
        name {key} PRIMARY KEY, state {key} NOT NULL, version BIGINT NOT NULL, url {key} NOT NULL, ca_pem TEXT NOT NULL,
        credentials_ref {key} NOT NULL, policy TEXT NOT NULL, profiles TEXT NOT NULL, created_at BIGINT NOT NULL,
        updated_at BIGINT NOT NULL)",
    "CREATE INDEX sites_by_credentials ON sites(credentials_ref)",
    // what a MAAS has said of its machines: written by the observer alone, and only when it says something new
    "CREATE TABLE maas_machines(
        site {key} NOT NULL REFERENCES sites(name), system_id {key} NOT NULL, status BIGINT NOT NULL, status_name {key} NOT NULL,
        class {key} NOT NULL, power_state {key} NOT NULL, hostname {key} NOT NULL, owner {key} NOT NULL, hardware_uuid {key} NOT NULL,
        serial {key} NOT NULL, pool {key} NOT NULL, zone {key} NOT NULL, osystem {key} NOT NULL, series {key} NOT NULL,
        body TEXT NOT NULL, settled TEXT NOT NULL, first_seen_at BIGINT NOT NULL, status_since BIGINT NOT NULL,
        changed_at BIGINT NOT NULL, absent_since BIGINT, PRIMARY KEY (site, system_id))",
    // two machines that share one are a finding, so nothing here is unique
    "CREATE TABLE maas_identifiers(
        kind {key} NOT NULL, value {key} NOT NULL, site {key} NOT NULL, system_id {key} NOT NULL,
        PRIMARY KEY (kind, value, site, system_id), FOREIGN KEY (site, system_id) REFERENCES maas_machines(site, system_id))",
    "CREATE INDEX maas_identifiers_by_machine ON maas_identifiers(site, system_id)",
    "CREATE TABLE site_sights(
        site {key} PRIMARY KEY REFERENCES sites(name), round BIGINT NOT NULL, observer TEXT NOT NULL, last_poll_at BIGINT,
        last_list_at BIGINT, event_mark BIGINT, unreachable_since BIGINT, unreachable_why TEXT NOT NULL)",
    "ALTER TABLE nodes ADD COLUMN maas_site {key}",
    "ALTER TABLE nodes ADD COLUMN maas_system_id {key}",
    "CREATE UNIQUE INDEX nodes_by_maas ON nodes(maas_site, maas_system_id) WHERE maas_system_id IS NOT NULL AND status <> 'deleted'",
    "ALTER TABLE jobs ADD COLUMN ground TEXT NOT NULL DEFAULT 'bundle'",
    "ALTER TABLE jobs ADD COLUMN learned TEXT NOT NULL DEFAULT '{}'",
    "ALTER TABLE agents ADD COLUMN token_id TEXT NOT NULL DEFAULT ''",
    // whoever onboards a machine has what names it: nobody else makes a node of it meanwhile
    "CREATE TABLE node_claims(
        site {key} NOT NULL REFERENCES sites(name), kind {key} NOT NULL, value {key} NOT NULL,
        node_id {key} NOT NULL REFERENCES nodes(node_id), PRIMARY KEY (site, kind, value))",
]];

/// `{key}`: text compared byte by byte, so that keyset paging has one order on both databases.
fn spell(sql: &str, dialect: Dialect) -> String {
    match dialect {
        Dialect::Sqlite => sql
            .replace("{key}", "TEXT")
            .replace("{bytes}", "BLOB")
            .replace("{at as datetime}", "strftime('%Y-%m-%dT%H:%M:%fZ', at / 1000000.0, 'unixepoch')")
            .replace("{serial}", "INTEGER PRIMARY KEY AUTOINCREMENT"),
        Dialect::Postgres => sql
            .replace("{key}", "TEXT COLLATE \"C\"")
            .replace("{bytes}", "BYTEA")
            .replace("{at as datetime}", "to_timestamp(at / 1000000.0)")
            .replace("{serial}", "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
    }
}

/// The views that SQLite has of ours, word for word.
pub(crate) fn views() -> Vec<String> {
    let all = MIGRATIONS.iter().flat_map(|statements| statements.iter());
    all.filter(|sql| sql.starts_with("CREATE VIEW ")).map(|sql| spell(sql, Dialect::Sqlite)).collect()
}

/// Brings the database to this binary's schema, or says why not. Several processes may try at once.
pub(crate) fn migrate(connection: &mut dyn Connection, now: Timestamp) -> Result<(), DbError> {
    migrate_with(connection, now, MIGRATIONS)
}

fn migrate_with(connection: &mut dyn Connection, now: Timestamp, migrations: &[&[&str]]) -> Result<(), DbError> {
    connection.begin_write()?;
    match migrate_in_transaction(connection, now, migrations) {
        Ok(()) => connection.commit(&Closing::default()),
        Err(e) => {
            connection.rollback();
            Err(e)
        }
    }
}

fn migrate_in_transaction(
    connection: &mut dyn Connection,
    now: Timestamp,
    migrations: &[&[&str]],
) -> Result<(), DbError> {
    let dialect = connection.dialect();
    if dialect == Dialect::Postgres {
        // a migration may take its time, and so may waiting for another process's
        connection
            .rows("SELECT set_config('lock_timeout', '0', true), set_config('statement_timeout', '0', true)", &[])?;
        // one at a time, also before there is any table to lock; the number is ours alone
        connection.rows("SELECT pg_advisory_xact_lock(7700)::text", &[])?;
    }
    let table = "CREATE TABLE IF NOT EXISTS schema_migrations(version BIGINT PRIMARY KEY, applied_at BIGINT NOT NULL)";
    connection.exec(table, &[])?;
    let have = version(connection)?;
    let want = migrations.len() as i64;
    if have > want {
        return Err(DbError::Defect(newer(have, want)));
    }
    for (number, statements) in (1i64..).zip(migrations).skip(usize::try_from(have).unwrap_or(0)) {
        for statement in *statements {
            connection.exec(&spell(statement, dialect), &[])?;
        }
        connection.exec("INSERT INTO schema_migrations(version, applied_at) VALUES ($1, $2)", params![number, now])?;
    }
    Ok(())
}

pub(crate) fn newer(have: i64, want: i64) -> String {
    format!(
        "the database has schema version {have}, this binary knows only up to {want}: run a newer millwright, or restore a backup made before the upgrade"
    )
}

pub(crate) const VERSION: &str = "SELECT COALESCE(MAX(version), 0) FROM schema_migrations";

pub(crate) fn version(connection: &mut dyn Connection) -> Result<i64, DbError> {
    connection.rows(VERSION, &[])?.first().map_or(Ok(0), |row| row.int(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::Sqlite;

    /// What a released version wrote is read by the next one as it was.
    #[test]
    fn a_database_of_the_first_version_keeps_its_data() {
        let mut db = Sqlite::in_memory().expect("opens");
        let now = Timestamp::from_micros(1);
        migrate_with(&mut db, now, &MIGRATIONS[..1]).expect("as the first version left it");
        let insert = "INSERT INTO machines(machine_id, version, phase, phase_set_by, phase_set_at, previous_phase, provider, location, rack, serial_number, system_uuid, customer_id, target_cluster_ref, ssh_endpoint, bmc_endpoint, credentials_ref, mac_addresses, labels, conditions, created_at, updated_at) VALUES ('m-1', 7, 'MAINTENANCE', 'executor', 1, '', 'sim', '', '', '', '', '', '', '', '', '', '[]', '{}', '[{\"type\":\"NeedsIntervention\",\"status\":true,\"reason\":\"RunFailed\",\"message\":\"x\",\"last_transition\":1,\"observed_at\":1}]', 1, 1)";
        db.exec(insert, &[]).expect("inserts");
        let insert = "INSERT INTO tokens(token_id, hash, prefix, name, role, created_at) VALUES ('tok_1', 'h', 'mwt_abcd', 'admin', 'admin', 1)";
        db.exec(insert, &[]).expect("inserts");
        migrate(&mut db, now).expect("the next version migrates");
        let mut tx = crate::tx::Tx::new(&mut db, now);
        let m = crate::machine::get(&mut tx, &domain::MachineId::from_text("m-1")).expect("reads").expect("is there");
        assert_eq!((m.version, m.phase, m.conditions.len()), (7, domain::machine::Phase::Maintenance, 1));
        assert_eq!((m.observation.is_none(), m.conditions[0].reason.as_str()), (true, "RunFailed"));
        let token = tx.point(&crate::token::by_hash("h")).expect("reads").expect("is there");
        assert_eq!((token.role, token.customer_id.as_str()), (domain::token::Role::Admin, ""));
        assert_eq!(token.valid(now), Ok(()), "who could administer still can");
    }

    #[test]
    fn nodes_jobs_and_agents_from_before_there_were_sites_stand_on_their_bundles() {
        let mut db = Sqlite::in_memory().expect("opens");
        let now = Timestamp::from_micros(1);
        migrate_with(&mut db, now, &MIGRATIONS[..6]).expect("as the version before left it");
        for insert in [
            "INSERT INTO nodes(node_id, name, status, version, status_reason, status_changed_at, cordoned_by, cordon_reason, agent_mode, agent_mode_by, task_fence, created_at, created_by, quarantined_by, unclean) VALUES ('nod_1', 'gpu-1', 'active', 3, '', 1, '', '', 'keep', '', 0, 1, 'alice', '', '')",
            "INSERT INTO agents(node_id, key_sha256, key_spki, state, state_reason, epoch, session, confirmed, enrolled_at, certificate_until, agent_version, boot_id, beats, skew_ms, inventory, inventory_digest, health) VALUES ('nod_1', 'k', x'00', 'good', '', 1, 1, 1, 1, 1, '', '', 0, 0, '', '', '')",
            "INSERT INTO jobs(job_id, kind, mode, node_id, status, version, stage, attempt, execution_id, purpose, first_stage, afterwards, failure_class, failure_code, failure_message, observed, done, parameters, clean_record, requested_by, reason, created_at, updated_at, tasks_since) VALUES ('job_1', 'onboarding', '', 'nod_1', 'completed', 5, '', 1, 'exe_1', 'forward', 0, '', '', '', '', '', '[]', '{}', '', 'alice', '', 1, 1, 1)",
        ] {
            db.exec(insert, &[]).expect("inserts");
        }
        migrate(&mut db, now).expect("the next version migrates");
        let id = domain::NodeId::from_text("nod_1");
        let mut tx = crate::tx::Tx::new(&mut db, now);
        let node = tx.point(&crate::node::by_id(&id)).expect("reads").expect("is there");
        assert_eq!((node.version, node.maas), (3, None));
        let job = tx.point(&crate::job::last_of_node(&id)).expect("reads").expect("is there");
        assert_eq!((job.kind.ground().as_str(), job.learned.as_str()), ("bundle", "{}"));
        let agent = tx.point(&crate::agent::by_node(&id)).expect("reads").expect("is there");
        assert_eq!((agent.key_sha256.as_str(), agent.token_id.as_str()), ("k", ""));
    }

    #[test]
    fn running_twice_changes_nothing_and_an_older_binary_refuses() {
        let mut db = Sqlite::in_memory().expect("opens");
        let now = Timestamp::from_micros(1);
        migrate(&mut db, now).expect("first");
        migrate(&mut db, now).expect("second");
        assert_eq!(version(&mut db), Ok(SCHEMA_VERSION));
        let mut longer: Vec<&[&str]> = MIGRATIONS.to_vec();
        longer.push(&["CREATE TABLE future(x BIGINT)"]);
        migrate_with(&mut db, now, &longer).expect("a newer binary migrates");
        let error = migrate(&mut db, now).expect_err("the older one refuses");
        assert!(matches!(&error, DbError::Defect(m) if m.contains("run a newer millwright")), "{error:?}");
        assert_eq!(version(&mut db), Ok(SCHEMA_VERSION + 1), "and changes nothing");
    }
}
