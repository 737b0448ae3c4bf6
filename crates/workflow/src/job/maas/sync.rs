//! Hardware sync: the deployed system tells MAAS of its hardware again and again. That it was told of once proves nothing,
//! since MAAS sets that itself at the end of a deployment: it must move.

use super::{Looked, OnMaas, Standing, done, fail, waiting};
use domain::maas;
use domain::stage::FailureClass;
use engine::{Look, StageCx};
use std::time::Duration;

/// Where MAAS does not tell.
const INTERVAL: Duration = Duration::from_secs(15 * 60);

/// Whatever MAAS says: more would be beyond the time of the stage.
const INTERVAL_MAX: Duration = Duration::from_secs(24 * 3600);
const LISTENS_MAX: Duration = Duration::from_secs(20 * 3600);

/// How far into the stage the site was last seen not to answer.
pub(super) fn site_was_away(cx: &StageCx) -> serde_json::Value {
    serde_json::json!({ "away_until_s": cx.elapsed.as_secs() })
}

fn away_until(cx: &StageCx) -> Duration {
    let seconds = cx.facts.get("away_until_s").and_then(serde_json::Value::as_u64);
    Duration::from_secs(seconds.unwrap_or(0))
}

impl OnMaas<'_> {
    pub(super) async fn sync_configured(&self, at: &Standing) -> Looked<Look> {
        if !at.site.policy.hardware_sync {
            return Ok(done("passed over: the site's policy does not ask for it"));
        }
        let machine = at.deployed_machine().await?;
        if machine.status != maas::DEPLOYED {
            return at.surprise(&machine, "Deployed");
        }
        if machine.hardware_sync.enabled {
            return Ok(done(format!("every {} s", machine.hardware_sync.interval_seconds)));
        }
        let message = format!(
            "machine {} was deployed without hardware sync, which can only be set at a deployment: 'millwright job restart_clean {} --reason WHY', or switch it off in the site's policy",
            machine.system_id, at.sight.job.id
        );
        fail("HARDWARE_SYNC_OFF", FailureClass::NeedsOperator, message)
    }

    pub(super) async fn sync_moves(&self, at: &Standing, cx: &StageCx) -> Looked<Look> {
        if !at.site.policy.hardware_sync {
            return Ok(done("passed over: the site's policy does not ask for it"));
        }
        let machine = at.deployed_machine().await?;
        if machine.status != maas::DEPLOYED {
            return at.surprise(&machine, "Deployed");
        }
        let sync = &machine.hardware_sync;
        if !sync.last_sync.is_empty() && sync.last_sync != at.learned.synced_at {
            return Ok(done(format!("it told of its hardware at {}", sync.last_sync)));
        }
        let interval = match sync.interval_seconds {
            0 => INTERVAL,
            seconds => Duration::from_secs(seconds).min(INTERVAL_MAX),
        };
        // late is what is older than one and a half, and so many of those in a row are no accident
        let most = (interval.mul_f64(1.5) * at.site.policy.sync_intervals.max(1)).min(LISTENS_MAX);
        let listened = cx.elapsed.saturating_sub(away_until(cx));
        if listened > most {
            let message = format!(
                "machine {} has not told of its hardware for {} s, in {} intervals: look at the timer maas_hardware_sync there and at its way to MAAS, then 'millwright job retry_stage {}'; to go on without, 'millwright job adopt_observed_state {3} --reason WHY'",
                machine.system_id,
                listened.as_secs(),
                at.site.policy.sync_intervals,
                at.sight.job.id
            );
            return fail("HARDWARE_SYNC_SILENT", FailureClass::NeedsOperator, message);
        }
        Ok(waiting("the machine to tell MAAS of its hardware by itself", cx).into())
    }
}
