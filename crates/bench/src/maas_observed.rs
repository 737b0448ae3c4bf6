//! A site of thousands that nobody works on: how soon a change there is seen, and what looking costs.

use crate::Outcome;
use crate::ground::at_rest;
use crate::maas::figure;
use crate::maas_site::{Call, Ground, Maas, SITE, bmc_address, mac};
use crate::options::Options;
use crate::process::Cpu;
use crate::report::{Goal, Report, plain};
use rusqlite::Connection;
use std::collections::BTreeMap;
use std::time::Duration;
use testkit::maas_sim::status;
use tokio::time::Instant;

const MIB: f64 = 1024.0 * 1024.0;
const THERE: &str = "SELECT COUNT(*) FROM maas_machines WHERE status = 6 AND absent_since IS NULL";
/// Of all machines that change in a minute.
const CHANGING: f64 = 0.01;
/// So often MAAS asks the BMC of every machine, and tells of it.
const BMC_EVERY: Duration = Duration::from_secs(300);
const TICK: Duration = Duration::from_millis(100);
/// The goals.
const SEEN_WITHIN: f64 = 15.0;
const A_SECOND: f64 = 1.0;

pub async fn run(options: &Options, report: &mut Report) -> Outcome<()> {
    let maas = Maas::start()?;
    let ground = Ground::new(&maas).await?;
    at_rest(&ground.server).await?;
    let empty = ground.server.resident()? / MIB;
    let ids = deployed(&maas, options.observed);
    ground.until("machines are seen", THERE, ids.len()).await?;
    at_rest(&ground.server).await?;
    let full = ground.server.resident()? / MIB;
    let mut watched = Watched { look: ground.look()?, pending: BTreeMap::new(), took: Vec::new() };
    let (from, cpu, begun) = (maas.requests(), Cpu::of(ground.server.pid())?, Instant::now());
    let span = Duration::from_secs(options.observed_seconds);
    change(&maas, &ids, span, &mut watched).await?;
    let elapsed = begun.elapsed().as_secs_f64();
    let share = Cpu::of(ground.server.pid())?.since(&cpu).as_secs_f64() / elapsed;
    // those that came last have their time, too
    while !watched.pending.is_empty() && begun.elapsed() < span + Duration::from_secs(120) {
        tokio::time::sleep(TICK).await;
        watched.look()?;
    }
    let asked = maas.asked(from);
    let within = begun.elapsed().as_secs_f64();
    let count = |call: Call| asked.iter().filter(|asked| asked.call == call).count();
    let n = ids.len();
    watched.took.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let at = (watched.took.len() as f64 * share) as usize;
        watched.took.get(at.min(watched.took.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
    };
    let (changes, lost) = (watched.took.len() + watched.pending.len(), watched.pending.len());
    // one that was never seen is later than any
    let latest = if lost == 0 { at(1.0) } else { f64::INFINITY };
    let (own, met) = ("the goal itself", Goal::AtMost(1.0));
    report.add(figure(
        format!("a change on a site of {n} until it is seen, the latest of {changes}"),
        "s",
        latest,
        SEEN_WITHIN,
        own,
        met,
    ));
    report.add(figure(format!("the same, p99 of {changes}"), "s", at(0.99), SEEN_WITHIN, own, met));
    let rate = count(Call::Look) as f64 / within;
    report.add(figure("requests to MAAS a second, without lists of everything".into(), "/s", rate, A_SECOND, own, met));
    report.add(figure(
        "memory for 1,000 machines of a site".into(),
        "MiB",
        (full - empty) / n as f64 * 1000.0,
        empty,
        "the server without any",
        Goal::None,
    ));
    report.note(format!(
        "over {} s with {} lists of everything; half of the changes were seen within {} s; the server used {} of a core",
        plain(within),
        count(Call::List),
        plain(at(0.5)),
        plain(share),
    ));
    ground.server.stop()
}

/// Machines that are deployed, nobody's of ours.
fn deployed(maas: &Maas, count: usize) -> Vec<String> {
    let somebody = maas.sim.as_somebody();
    (0..count)
        .map(|number| {
            maas.rack(number);
            let id = somebody.create(&format!("host-{number:05}"), &mac(number), &bmc_address(number));
            somebody.commission(&id);
            somebody.deploy(&id, "noble");
            id
        })
        .collect()
}

/// Changes that were made and are not seen yet.
struct Watched {
    look: Connection,
    /// By machine: the status it has been given, and when.
    pending: BTreeMap<String, (u8, Instant)>,
    took: Vec<f64>,
}

impl Watched {
    fn look(&mut self) -> Outcome<()> {
        let mut asked =
            self.look.prepare_cached("SELECT status FROM maas_machines WHERE site = ?1 AND system_id = ?2")?;
        let mut seen = Vec::new();
        for (id, (status, since)) in &self.pending {
            let known: i64 = asked.query_row([SITE, id.as_str()], |row| row.get(0))?;
            if known == i64::from(*status) {
                seen.push((id.clone(), since.elapsed().as_secs_f64()));
            }
        }
        for (id, took) in seen {
            self.pending.remove(&id);
            self.took.push(took);
        }
        Ok(())
    }
}

/// One machine after the other breaks or is mended, and every BMC is asked now and then.
async fn change(maas: &Maas, ids: &[String], span: Duration, watched: &mut Watched) -> Outcome<()> {
    let begun = Instant::now();
    let (mut changed, mut asked) = (0usize, 0usize);
    let changes_a_second = ids.len() as f64 * CHANGING / 60.0;
    let asks_a_second = ids.len() as f64 / BMC_EVERY.as_secs_f64();
    // in no order that anybody could rely on
    let pick = |n: usize| ids.get(n.wrapping_mul(7919) % ids.len().max(1));
    while begun.elapsed() < span {
        let passed = begun.elapsed().as_secs_f64();
        while (asked as f64) < passed * asks_a_second {
            if let Some(id) = ids.get(asked % ids.len()) {
                maas.sim.asks_bmc(id);
            }
            asked += 1;
        }
        while (changed as f64) < passed * changes_a_second {
            if let Some(id) = pick(changed).filter(|id| !watched.pending.contains_key(*id)) {
                let was = maas.sim.machine(id).map_or(status::DEPLOYED, |machine| machine.status);
                let to = if was == status::DEPLOYED { status::BROKEN } else { status::DEPLOYED };
                maas.sim.as_somebody().set_status(id, to);
                watched.pending.insert(id.clone(), (to, Instant::now()));
            }
            changed += 1;
        }
        watched.look()?;
        tokio::time::sleep(TICK).await;
    }
    Ok(())
}
