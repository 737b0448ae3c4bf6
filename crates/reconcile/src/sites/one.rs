//! One site's watch: when to look, at what, and what follows from it.

use super::look::{self, Looked};
use super::record::{self, Recorded};
use super::{SiteReach, findings};
use crate::options::TROUBLE_PAUSE;
use crate::reconciler::Core;
use domain::maas_machine::Sight;
use domain::node::MaasRef;
use domain::site::{Site, SiteState};
use domain::{Error, Reason};
use provider::{ProviderResult, reach};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use store::{maas_machine, node, site, site_sight};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The longest pause before a site that does not answer is asked again.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// What is remembered between two looks. What a restart forgets costs one list.
#[derive(Default)]
struct Watch {
    /// Everything was listed by us.
    listed: bool,
    /// Told of by events, and not read yet.
    waiting: BTreeSet<String>,
    /// Where the turn of the nodes' machines stands, and that of the urgent ones among them.
    turn: String,
    urgent: String,
    failures: u32,
    /// What another server has written last, and since when it stands.
    rival: Option<(u64, Instant)>,
    /// When all nodes were last compared.
    judged: Option<Instant>,
}

/// Looks again and again, until told to stop.
pub(super) async fn run(core: Arc<Core>, reach: SiteReach, name: String, stop: CancellationToken) {
    let mut watch = Watch::default();
    loop {
        let pause = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            turned = turn(&core, &reach, &name, &mut watch) => match turned {
                Ok(pause) => pause,
                Err(e) if e.reason == Reason::ShuttingDown => return,
                Err(e) => {
                    tracing::warn!(error = %e, site = name, "looking at a site");
                    TROUBLE_PAUSE
                }
            },
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause + jitter(&core, pause)) => {}
        }
    }
}

/// Up to a tenth more: many sites that were started together do not go on in step.
fn jitter(core: &Core, pause: Duration) -> Duration {
    let random = core.store.ambient().uuid().as_u64_pair().1 & 0xffff;
    pause.mul_f64(random as f64 / f64::from(0xffff_u32) / 10.0)
}

impl Watch {
    /// Whether another server looks at the site, as far as its round still moves. Judged by our own clock.
    fn is_anothers(&mut self, core: &Core, sight: &Sight, site: &Site) -> bool {
        if !core.store.is_shared() || sight.round == 0 || sight.observer == core.options.sweeper {
            self.rival = None;
            return false;
        }
        let now = Instant::now();
        match self.rival {
            Some((round, since)) if round == sight.round => now.duration_since(since) < take_over_after(site),
            Some(_) | None => {
                self.rival = Some((sight.round, now));
                true
            }
        }
    }
}

/// A server that was in the middle of a long list is not dead.
fn take_over_after(site: &Site) -> Duration {
    site.policy.poll * 3 + PAUSE_MAX * 2
}

async fn turn(core: &Core, reach: &SiteReach, name: &str, watch: &mut Watch) -> Result<Duration, Error> {
    let asked = name.to_owned();
    let read =
        move |tx: &mut store::Tx<'_>| Ok((tx.point(&site::by_name(&asked))?, tx.point(&site_sight::of_site(&asked))?));
    let (found, sight) = core.store.read(read).await?;
    let Some(site) = found.filter(|site| site.state == SiteState::Present) else { return Ok(core.options.period) };
    let sight = sight.unwrap_or_default();
    if watch.is_anothers(core, &sight, &site) {
        // whoever takes over knows nothing of what was told meanwhile
        watch.listed = false;
        return Ok(site.policy.poll);
    }
    let due = due(core, name, watch).await?;
    let recorded = match look(reach, &site, &sight, watch, &due.ids, core).await? {
        Ok(looked) => {
            watch.listed |= looked.whole;
            watch.failures = 0;
            (watch.turn, watch.urgent) = (due.turn, due.urgent);
            // what could not be written is not read again for what was told of it
            record::record(core, name, looked, &sight).await.inspect_err(|_| watch.listed = false)?
        }
        Err(e) => {
            watch.failures = watch.failures.saturating_add(1);
            tracing::debug!(site = name, error = %e, "a site does not answer");
            if let Some(sight) = record::failed(core, name, &sight, &e.to_string()).await? {
                findings::unreachable(core, &site, &sight).await?;
            }
            return Ok((site.policy.poll * watch.failures.min(6)).min(PAUSE_MAX.max(site.policy.poll)));
        }
    };
    match recorded {
        Recorded::Kept(changed) => {
            findings::reachable(core, name).await?;
            findings::of_machines(core, name, &changed).await?;
            if watch.judged.is_none_or(|at| at.elapsed() >= core.options.period) {
                findings::of_all(core, name).await?;
                watch.judged = Some(Instant::now());
            }
        }
        Recorded::Overtaken => watch.listed = false,
    }
    Ok(site.policy.poll)
}

async fn look(
    reach_by: &SiteReach,
    site: &Site,
    sight: &Sight,
    watch: &mut Watch,
    due: &BTreeSet<String>,
    core: &Core,
) -> Result<ProviderResult<Looked>, Error> {
    let maas = match reach(site, reach_by.keyring.as_ref(), reach_by.clients.as_ref()).await {
        Ok(maas) => maas,
        Err(e) => return Ok(Err(e)),
    };
    let now = core.store.ambient().now();
    let list_due = sight.last_list_at.is_none_or(|at| now.since(at) >= site.policy.list);
    // one answer that did not come is no outage, and a site that is slow is not to be asked for everything
    let was_away = sight.unreachable_since.is_some_and(|since| now.since(since) >= site.policy.poll * 3);
    if let Some(mark) = sight.event_mark.filter(|_| watch.listed && !list_due && !was_away) {
        match look::news(maas.as_ref(), mark).await {
            Ok(Some(news)) => {
                let powers = new_powers(core, &site.name, news.powers).await?;
                watch.waiting.extend(news.moved.into_iter().chain(powers));
                if watch.waiting.len() <= look::WAITING_MAX {
                    return Ok(look::what_moved(maas.as_ref(), news.mark, &mut watch.waiting, due).await);
                }
            }
            Ok(None) => {}
            Err(e) => return Ok(Err(e)),
        }
    }
    let looked = look::everything(maas.as_ref()).await;
    if looked.is_ok() {
        watch.waiting.clear();
    }
    Ok(looked)
}

/// Of machines whose power was asked, those where it is another than was known.
async fn new_powers(core: &Core, name: &str, powers: BTreeSet<(String, String)>) -> Result<Vec<String>, Error> {
    if powers.is_empty() {
        return Ok(Vec::new());
    }
    let site = name.to_owned();
    core.store
        .read(move |tx| {
            let mut new = Vec::new();
            for (id, power) in &powers {
                let at = MaasRef { site: site.clone(), system_id: id.clone() };
                let known = tx.point(&maas_machine::by_ref(&at))?;
                if known.is_none_or(|known| known.told.power_state != *power) {
                    new.push(id.clone());
                }
            }
            Ok(new)
        })
        .await
}

/// The machines of nodes that are read although nothing was told of them, with where their turns go on.
struct Due {
    ids: BTreeSet<String>,
    turn: String,
    urgent: String,
}

/// Those that were never seen and those of a job under way, and the next ones of all: each in a turn of its own, so that
/// neither keeps the other waiting.
async fn due(core: &Core, name: &str, watch: &Watch) -> Result<Due, Error> {
    let (site, turn, urgent) = (name.to_owned(), watch.turn.clone(), watch.urgent.clone());
    let read = move |tx: &mut store::Tx<'_>| {
        let urgent = maas_machine::urgent(tx, &site, &urgent, look::URGENT)?;
        let nodes = node::of_site(tx, &site, &turn, look::TURN)?;
        Ok((urgent, nodes))
    };
    let (urgent, nodes) = core.store.read(read).await?;
    let turn: Vec<String> = nodes.into_iter().filter_map(|node| node.maas).map(|maas| maas.system_id).collect();
    let after = |ids: &[String], most: usize| match ids.last() {
        Some(last) if ids.len() >= most => last.clone(),
        Some(_) | None => String::new(),
    };
    Ok(Due {
        turn: after(&turn, look::TURN),
        urgent: after(&urgent, look::URGENT),
        ids: urgent.into_iter().chain(turn).collect(),
    })
}
