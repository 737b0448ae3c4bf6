//! What must not grow: the cost of a page with its place in the list, and the cost of a run with the number of
//! runs that are stored.

use crate::Outcome;
use crate::client::{Clients, Tally, costing};
use crate::ground::Ground;
use crate::options::Options;
use crate::report::{Figure, Goal, Report, Series, middle};
use crate::runs::{take, wave};
use proto::baremetal::v1 as pb;
use std::time::Duration;
use tokio::time::Instant;

const SECTION: &str = "lists";
const PAGE: usize = 1000;
const ROUNDS: usize = 5;
/// How much dearer the last may be than the first.
const FLAT: f64 = 1.2;
/// Stored runs at which their cost is taken.
const STORED: [usize; 3] = [1_000, 10_000, 100_000];
const WAVE: usize = 250;
const WAVES: usize = 3;

pub async fn run(ground: &Ground, _: &Options, report: &mut Report) -> Outcome<()> {
    pages(ground, report).await?;
    stored_runs(ground, report).await
}

async fn pages(ground: &Ground, report: &mut Report) -> Outcome<()> {
    let server = ground.start().await?;
    let clients = Clients::with(&server, 1).await?;
    let count = ground.machines.div_ceil(PAGE);
    let mut costs = vec![Vec::new(); count];
    for round in 0..=ROUNDS {
        let mut token = String::new();
        let mut machines = 0;
        for (n, cost) in costs.iter_mut().enumerate() {
            let request = pb::ListMachinesRequest { page_size: PAGE as i32, page_token: token, ..Default::default() };
            let mut page = None;
            let load = async {
                let begun = Instant::now();
                page = Some(clients.machines(0).list_machines(request).await?.into_inner());
                Ok(Tally { calls: 1, took: begun.elapsed() })
            };
            let slice = costing(&server, load).await?;
            let page = page.ok_or("no page")?;
            machines += page.machines.len();
            token = page.next_page_token;
            // the first round warms
            if round > 0 {
                cost.push(slice.cpu_per_call() / 1e3);
            }
            if token.is_empty() != (n + 1 == count) {
                return Err(format!("page {n} of {count} ends the list, or the last one does not").into());
            }
        }
        if machines != ground.machines {
            return Err(format!("the pages have {machines} machines, not {}", ground.machines).into());
        }
    }
    let points: Vec<(f64, f64)> = costs.iter().enumerate().map(|(n, c)| (n as f64 + 1.0, middle(c))).collect();
    let tenth = (count / 10).max(1);
    let part =
        |pages: &[Vec<f64>]| (0..ROUNDS).map(|r| middle(&pages.iter().map(|p| p[r]).collect::<Vec<_>>())).collect();
    report.add(Figure {
        section: SECTION,
        database: ground.kind.name(),
        what: format!("CPU of a page of {PAGE}, last tenth of {}", ground.machines),
        unit: "ms",
        measured: part(&costs[count - tenth..]),
        limit: part(&costs[..tenth]),
        against: "the first tenth".to_owned(),
        goal: Goal::AtMost(FLAT),
    });
    report.series.push(Series {
        section: SECTION,
        title: format!("Server CPU of a page of {PAGE} machines by its place in the list"),
        x: "page",
        y: "ms",
        lines: vec![(ground.kind.name().to_owned(), points)],
    });
    server.stop()
}

/// The first thousand runs are real; the others are copies of their rows, made with SQL while no server runs.
async fn stored_runs(ground: &Ground, report: &mut Report) -> Outcome<()> {
    let branch = ground.branch("stored")?;
    let mut machines = branch.machines / 2..branch.machines;
    let (mut costs, mut points) = (Vec::new(), Vec::new());
    for stored in STORED {
        let server = if costs.is_empty() {
            let server = branch.start().await?;
            let clients = Clients::connect(&server).await?;
            wave(&server, &clients, take(&mut machines, STORED[0])?, "first").await?;
            server
        } else {
            copy_runs(&branch, stored)?;
            branch.start().await?
        };
        let clients = Clients::connect(&server).await?;
        let mut cpu = Vec::new();
        for n in 0..WAVES {
            cpu.push(wave(&server, &clients, take(&mut machines, WAVE)?, &format!("s{stored}-{n}")).await?.cpu / 1e3);
            // what the looks after it cost is the next one's otherwise
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        points.push((stored as f64, middle(&cpu)));
        costs.push(cpu);
        server.stop()?;
    }
    let (first, last) = (costs.first().cloned().unwrap_or_default(), costs.last().cloned().unwrap_or_default());
    report.add(Figure {
        section: SECTION,
        database: ground.kind.name(),
        what: format!("CPU of a run with {} stored", STORED[STORED.len() - 1]),
        unit: "ms",
        measured: last,
        limit: first,
        against: format!("with {} stored", STORED[0]),
        goal: Goal::AtMost(FLAT),
    });
    report.series.push(Series {
        section: SECTION,
        title: "Server CPU of a five-step run by the number of stored runs".to_owned(),
        x: "stored runs",
        y: "ms",
        lines: vec![(ground.kind.name().to_owned(), points)],
    });
    Ok(())
}

/// Ids of copies sort before those of real runs, as those of older runs would.
const COPIES: &str = "
CREATE TEMP TABLE copies(n INTEGER PRIMARY KEY);
WITH RECURSIVE k(n) AS (VALUES(?1) UNION ALL SELECT n + 1 FROM k WHERE n < ?2) INSERT INTO copies SELECT n FROM k;
CREATE TEMP TABLE originals(run_id TEXT PRIMARY KEY, execution_id TEXT);
INSERT INTO originals SELECT r.run_id, e.execution_id FROM runs r JOIN executions e ON e.subject = r.run_id WHERE r.request_id LIKE 'first-%' AND r.run_id LIKE 'run_01%';
INSERT INTO runs(run_id, machine_id, request_id, type, plan_id, phase, current_step, version, spec, status, created_at, started_at, finished_at, customer_id)
 SELECT {run}, r.machine_id, r.request_id || '-' || n, type, plan_id, phase, current_step, version, spec, status, created_at, started_at, finished_at, customer_id FROM copies, originals o JOIN runs r ON r.run_id = o.run_id;
INSERT INTO executions(execution_id, workflow, workflow_version, subject, machine_id, status, position, stage, attempt, settle_ms, facts, failure, waiting_for, wake_at, deadline, holder, epoch, fence, cancel_by, cancel_reason, entries, created_at, updated_at)
 SELECT {execution}, workflow, workflow_version, {run}, machine_id, status, position, stage, attempt, settle_ms, facts, failure, waiting_for, wake_at, deadline, holder, epoch, fence, cancel_by, cancel_reason, entries, created_at, updated_at FROM copies, originals o JOIN executions e ON e.execution_id = o.execution_id;
INSERT INTO journal(execution_id, number, at, fence, entry, detail)
 SELECT {execution}, number, at, fence, entry, detail FROM copies, originals o JOIN journal j ON j.execution_id = o.execution_id;
INSERT INTO idempotency(scope, request_key, fingerprint, answer, at)
 SELECT scope, request_key || '-' || n, fingerprint, {run}, i.at FROM copies, originals o JOIN idempotency i ON i.answer = o.run_id;
INSERT INTO transitions(sequence, at, entity_kind, entity_id, subject, from_state, to_state, version, cause, owner, actor, comment, metadata, customer_id)
 SELECT (SELECT seq FROM log_head) + ROW_NUMBER() OVER (ORDER BY n, t.sequence), at, entity_kind, replace(entity_id, o.run_id, {run}), {run}, from_state, to_state, version, cause, owner, actor, comment, metadata, customer_id FROM copies, originals o JOIN transitions t ON t.subject = o.run_id;
UPDATE log_head SET seq = (SELECT MAX(sequence) FROM transitions);
DROP TABLE copies;
DROP TABLE originals;
";

fn copy_runs(ground: &Ground, wanted: usize) -> Outcome<()> {
    let mut db = rusqlite::Connection::open(ground.database_file())?;
    let tx = db.transaction()?;
    let have: i64 = tx.query_row("SELECT COUNT(*) FROM runs", [], |row| row.get(0))?;
    let made: i64 = tx.query_row("SELECT COUNT(*) FROM runs WHERE run_id LIKE 'run_00%'", [], |row| row.get(0))?;
    let originals = STORED[0] as i64;
    let first = made / originals + 1;
    let last = first + (wanted as i64 - have).max(0) / originals;
    let sql = COPIES
        .replace("{run}", "'run_00' || printf('%06d', n) || substr(o.run_id, 13)")
        .replace(
            "{execution}",
            "substr(o.execution_id, 1, 4) || '00' || printf('%06d', n) || substr(o.execution_id, 13)",
        )
        .replace("?1", &first.to_string())
        .replace("?2", &last.to_string());
    tx.execute_batch(&sql)?;
    tx.commit()?;
    Ok(())
}
