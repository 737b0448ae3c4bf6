//! `node.drain`: waits until nothing of a tenant runs; then ends it, where that was asked for.

use super::clean::accounts::Accounts;
use super::clean::baseline::Baseline;
use super::process::{self, Occupant, Who};
use super::{Context, Done, Failed, Outcome, canceled, failed, in_background};
use domain::stage::FailureClass;
use proto::agent::v1::NodeDrain;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// For a process to end after each signal.
const PATIENCE: Duration = Duration::from_secs(10);
/// Rounds of ending: an engine may start again what was ended.
const ROUNDS: usize = 3;
const TOLD_MAX: usize = 50;

pub async fn run(drain: &NodeDrain, context: &Context) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(u64::from(drain.grace_seconds));
    let (mut examined, mut here) = look(context).await?;
    let at_first = here.len();
    while !here.is_empty() && Instant::now() < deadline {
        context.printer.say(&format!("{} processes of tenants still run, {} first", here.len(), here[0].shown())).await;
        tokio::select! {
            () = context.cancel.cancelled() => return Err(canceled(told(examined, &here))),
            () = tokio::time::sleep_until(deadline.min(Instant::now() + PAUSE)) => {}
        }
        (examined, here) = look(context).await?;
    }
    let mut ended: Vec<Occupant> = Vec::new();
    for _ in 0..ROUNDS {
        if here.is_empty() || !drain.force {
            break;
        }
        if context.cancel.is_cancelled() {
            return Err(canceled(told(examined, &here)));
        }
        context.printer.say(&format!("ending {} processes", here.len())).await;
        let (host, cancel, all) = (context.host.clone(), context.cancel.clone(), here.clone());
        in_background(context, move || process::end(&host, &all, PATIENCE, &|| cancel.is_cancelled())).await?.map_err(
            |error| failed("STILL_IN_USE", FailureClass::NeedsOperator, format!("ending processes: {error}")),
        )?;
        ended.extend(here);
        (examined, here) = look(context).await?;
    }
    if here.is_empty() {
        ended.sort_by_key(|one| one.pid);
        ended.dedup_by_key(|one| one.pid);
        let message = match (at_first, ended.len()) {
            (0, 0) => "nothing of a tenant runs".to_owned(),
            (_, 0) => "everything of tenants has ended by itself".to_owned(),
            (_, count) => format!("nothing of a tenant runs any more; {count} processes were ended"),
        };
        let list: Vec<Value> = ended.iter().take(TOLD_MAX).map(Occupant::json).collect();
        return Ok(Done { message, detail: json!({"examined": examined, "ended": ended.len(), "processes": list}) });
    }
    let message = match drain.force {
        false => format!("{} processes of tenants still run after {} s", here.len(), drain.grace_seconds),
        true => format!("{} processes of tenants cannot be ended, or are started again", here.len()),
    };
    Err(Failed { code: "STILL_IN_USE", class: FailureClass::NeedsOperator, message, detail: told(examined, &here) })
}

fn told(examined: u64, here: &[Occupant]) -> Value {
    let list: Vec<Value> = here.iter().take(TOLD_MAX).map(Occupant::json).collect();
    json!({"examined": examined, "running": here.len(), "processes": list})
}

async fn look(context: &Context) -> Result<(u64, Vec<Occupant>), Failed> {
    let (host, state) = (context.host.clone(), context.state.clone());
    let seen = in_background(context, move || {
        // without a baseline nobody is known to be the site's: it says more, never less
        let accounts = Accounts::read(&host, 1000, &[], Baseline::load(&state).as_ref().ok())?;
        let who = Who { uid_min: 1000, kept: accounts.kept_uids() };
        process::look(&host, &who).map_err(|error| format!("looking at processes: {error}"))
    });
    let seen = seen.await?.map_err(|error| failed("CHECK_FAILED", FailureClass::NeedsOperator, error))?;
    Ok((seen.examined, seen.all()))
}
