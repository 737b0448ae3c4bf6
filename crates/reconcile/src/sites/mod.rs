//! Sites: what each MAAS says of its machines, kept beside the nodes, and what of it does not belong there.
//!
//! - **No site delays another.** Each has a task of its own, with its own pace.
//! - **What moves is looked at often, everything rarely.** Events tell which machines changed; those are read by id, with a
//!   turn of the nodes' own. The whole list comes at the start, after an outage, and once in a while.
//! - **Silence is no answer.** That a machine is gone is believed of a list or a read by id that was answered, never of
//!   a call that failed. Not seen yet, out of reach and absent are three things.
//! - **Only findings follow.** Nothing is healed by guessing.

mod findings;
mod look;
mod one;
mod record;
mod told;

use crate::options::{PAGE, TROUBLE_PAUSE};
use crate::reconciler::Core;
use domain::Error;
use domain::filter::Filter;
use provider::{Keyring, MaasClients};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::site;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How sites are reached.
#[derive(Clone)]
pub struct SiteReach {
    pub keyring: Arc<dyn Keyring>,
    pub clients: Arc<dyn MaasClients>,
}

impl std::fmt::Debug for SiteReach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SiteReach")
    }
}

/// Sites that are watched; more are told of in the log.
const SITES_MAX: usize = 1000;

struct Watched {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

/// Has one task for each site, as they come and go, until told to stop.
pub(crate) async fn run(core: Arc<Core>) {
    let Some(reach) = core.options.sites.clone() else { return };
    let mut changed = core.store.signals().sites();
    let mut watched: BTreeMap<String, Watched> = BTreeMap::new();
    loop {
        changed.look();
        let pause = match names(&core).await {
            Ok(names) => {
                keep_watch(&core, &reach, &mut watched, &names);
                match findings::of_removed_sites(&core, &names).await {
                    Ok(()) => core.options.period,
                    Err(e) => {
                        tracing::warn!(error = %e, "settling findings of sites that are gone");
                        TROUBLE_PAUSE
                    }
                }
            }
            Err(e) => {
                tracing::warn!(error = %e, "reading the sites");
                TROUBLE_PAUSE
            }
        };
        tokio::select! {
            biased;
            () = core.stop.cancelled() => break,
            () = changed.grew() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
    for (_, site) in watched {
        site.stop.cancel();
        drop(site.task.await);
    }
}

fn keep_watch(core: &Arc<Core>, reach: &SiteReach, watched: &mut BTreeMap<String, Watched>, names: &BTreeSet<String>) {
    watched.retain(|name, site| {
        let stays = names.contains(name) && !site.task.is_finished();
        if !stays {
            site.stop.cancel();
        }
        stays
    });
    for name in names {
        watched.entry(name.clone()).or_insert_with(|| {
            let stop = core.stop.child_token();
            let task = tokio::spawn(one::run(core.clone(), reach.clone(), name.clone(), stop.clone()));
            Watched { task, stop }
        });
    }
}

async fn names(core: &Core) -> Result<BTreeSet<String>, Error> {
    let (mut names, mut after) = (BTreeSet::new(), String::new());
    loop {
        let from = after.clone();
        let page = core.store.read(move |tx| site::list(tx, &Filter::Everything, &from, PAGE)).await?;
        names.extend(page.iter().map(|site| site.name.clone()));
        match page.last() {
            Some(last) if page.len() >= PAGE && names.len() < SITES_MAX => after.clone_from(&last.name),
            Some(last) if page.len() >= PAGE => {
                tracing::warn!(sites = names.len(), last = last.name, "sites after this one are not observed");
                return Ok(names);
            }
            Some(_) | None => return Ok(names),
        }
    }
}
