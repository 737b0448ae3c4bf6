//! What heartbeats tell of the machine. Looking at hardware may take long, or for ever where a driver hangs: it happens
//! beside the connection, one look at a time, and a look that does not end is told, not waited for.

use crate::host::Host;
use crate::inventory;
use proto::agent::v1::{Facts, Health, Inventory, Probe};
use std::path::PathBuf;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// Hardware changes rarely, and counters slowly: an idle agent costs next to nothing.
const INVENTORY_EVERY: Duration = Duration::from_secs(600);
const HEALTH_EVERY: Duration = Duration::from_secs(60);
/// A look that takes longer is told of.
const LONG: Duration = Duration::from_secs(30);
/// The first words on a connection wait for the machine's names at most this long.
const FACTS_WITHIN: Duration = Duration::from_secs(3);

pub struct Survey {
    host: Host,
    state: PathBuf,
    look: Option<Look>,
    inventory_at: Option<Instant>,
    health_at: Option<Instant>,
    inventory: Option<(Inventory, String)>,
    /// Not told yet.
    health: Option<Health>,
    sent_digest: String,
    wanted: bool,
}

struct Look {
    began: Instant,
    whole: bool,
    work: JoinHandle<(Option<Inventory>, Health)>,
}

/// What goes into the next heartbeat.
pub struct News {
    /// When it has changed, or somebody has asked.
    pub inventory: Option<Inventory>,
    /// When somebody has looked since the last one.
    pub health: Option<Health>,
    /// Of the inventory that was sent last.
    pub digest: String,
}

impl Survey {
    pub fn new(host: Host, state: PathBuf) -> Self {
        inventory::remember_in(&host, &state);
        Self {
            host,
            state,
            look: None,
            inventory_at: None,
            health_at: None,
            inventory: None,
            health: None,
            sent_digest: String::new(),
            wanted: false,
        }
    }

    /// The server asks for everything.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// Who the hardware says it is.
    pub async fn facts(&self) -> Facts {
        let host = self.host.clone();
        let look = tokio::task::spawn_blocking(move || inventory::facts(&host));
        match timeout(FACTS_WITHIN, look).await {
            Ok(Ok(facts)) => facts,
            // better unknown than not connected
            _ => Facts::default(),
        }
    }

    /// Returns when a look has ended that was begun by a heartbeat: there may be news.
    pub async fn looked(&mut self) {
        let Some(look) = &mut self.look else { return std::future::pending().await };
        let found = (&mut look.work).await;
        self.health_at = Some(look.began);
        if look.whole {
            self.inventory_at = Some(look.began);
        }
        self.look = None;
        match found {
            Ok((inventory, health)) => {
                self.health = Some(health);
                if let Some(found) = inventory {
                    let digest = inventory::digest(&found);
                    self.inventory = Some((found, digest));
                }
            }
            Err(e) => {
                let message = format!("looking at the hardware went wrong: {e}");
                self.health = Some(complaint(message, "the survey fails"));
            }
        }
    }

    /// What there is to tell now; begins another look if it is time for one.
    pub fn news(&mut self) -> News {
        let due = |at: Option<Instant>, every| at.is_none_or(|at: Instant| at.elapsed() >= every);
        if let Some(look) = &self.look {
            let long = look.began.elapsed();
            if long >= LONG {
                let message =
                    format!("looking at the hardware has taken {} s so far: does a driver hang?", long.as_secs());
                self.health = Some(complaint(message, "the survey hangs"));
            }
        } else {
            let whole = due(self.inventory_at, INVENTORY_EVERY);
            if whole || due(self.health_at, HEALTH_EVERY) {
                let (host, state) = (self.host.clone(), self.state.clone());
                let work = tokio::task::spawn_blocking(move || {
                    (whole.then(|| inventory::inventory(&host)), inventory::health_of(&host, &state))
                });
                self.look = Some(Look { began: Instant::now(), whole, work });
            }
        }
        let inventory = match &self.inventory {
            Some((found, digest)) if self.wanted || *digest != self.sent_digest => {
                self.sent_digest.clone_from(digest);
                self.wanted = false;
                Some(found.clone())
            }
            _ => None,
        };
        News { inventory, health: self.health.take(), digest: self.sent_digest.clone() }
    }
}

/// What was well when somebody last looked may not be now: every probe is told, and none of them as well.
fn complaint(message: String, why: &str) -> Health {
    let mut probes = inventory::unknown(why);
    probes.push(Probe { name: "agent_survey".to_owned(), ok: false, message });
    Health { gpus: Vec::new(), probes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(health: &Health) -> Vec<&str> {
        health.probes.iter().map(|probe| probe.name.as_str()).filter(|name| *name != "agent_survey").collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_hangs_or_fails_leaves_no_probe_out_and_calls_none_well() {
        let folder = tempfile::tempdir().expect("a folder");
        let host = Host::new(folder.path());
        let well = inventory::health_of(&host, folder.path());
        let mut survey = Survey::new(host, folder.path().to_owned());
        let hangs = tokio::spawn(std::future::pending());
        survey.look = Some(Look { began: Instant::now(), whole: false, work: hangs });
        assert!(survey.news().health.is_none(), "it has only begun");
        tokio::time::advance(LONG).await;
        let told = survey.news().health.expect("a complaint");
        assert_eq!(names(&told), names(&well));
        assert!(told.probes.iter().all(|probe| !probe.ok), "{told:?}");
        let said = |probe: &Probe| probe.name == "gpu_present" && probe.message == "not known: the survey hangs";
        assert!(told.probes.iter().any(said), "{told:?}");
        let fails = tokio::spawn(async { panic!("a planted fault") });
        survey.look = Some(Look { began: Instant::now(), whole: false, work: fails });
        survey.looked().await;
        let told = survey.news().health.expect("a complaint");
        assert!(names(&told) == names(&well) && told.probes.iter().all(|probe| !probe.ok), "{told:?}");
    }
}
