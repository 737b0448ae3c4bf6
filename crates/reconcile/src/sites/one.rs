//! One site's watch: when to look, at what, and what follows from it.

use super::look::{self, BATCH};
use super::record::{self, Recorded};
use super::{SiteReach, findings};
use crate::options::TROUBLE_PAUSE;
use crate::reconciler::Core;
use domain::maas_machine::Sight;
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
    /// Where the turn of the nodes' machines stands.
    turn: String,
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
    let (linked, last) = linked(core, name, &watch.turn).await?;
    let recorded = match look(reach, &site, &sight, watch, &linked, core).await {
        Ok(looked) => {
            watch.listed |= looked.whole;
            watch.failures = 0;
            watch.turn = last;
            record::record(core, name, looked, &sight).await?
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
    linked: &[String],
    core: &Core,
) -> ProviderResult<look::Looked> {
    let maas = reach(site, reach_by.keyring.as_ref(), reach_by.clients.as_ref()).await?;
    let now = core.store.ambient().now();
    let due = sight.last_list_at.is_none_or(|at| now.since(at) >= site.policy.list);
    let lost = sight.unreachable_since.is_some();
    if let Some(mark) = sight.event_mark.filter(|_| watch.listed && !due && !lost)
        && let Some(looked) = look::what_moved(maas.as_ref(), mark, &mut watch.waiting, linked).await?
    {
        return Ok(looked);
    }
    let looked = look::everything(maas.as_ref()).await?;
    watch.waiting.clear();
    Ok(looked)
}

/// The machines of nodes that are due for a read: those that were never seen and those of a job under way first, then the
/// next ones of the turn. With where that goes on.
async fn linked(core: &Core, name: &str, after: &str) -> Result<(Vec<String>, String), Error> {
    let (site, from) = (name.to_owned(), after.to_owned());
    core.store
        .read(move |tx| {
            let mut due = maas_machine::urgent(tx, &site, BATCH)?;
            let turn = node::of_site(tx, &site, &from, BATCH)?;
            let next = match turn.last().and_then(|node| node.maas.as_ref()) {
                Some(last) if turn.len() >= BATCH => last.system_id.clone(),
                Some(_) | None => String::new(),
            };
            due.extend(turn.into_iter().filter_map(|node| node.maas).map(|maas| maas.system_id));
            Ok((due, next))
        })
        .await
}
