//! `host.reboot`: proven by another boot id. Who orders it does not live to tell: the agent that starts afterwards does.

use super::{Context, Done, Failed, Outcome, canceled, failed, in_background};
use crate::host::Host;
use domain::stage::FailureClass;
use proto::agent::v1::HostReboot;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// For the machine to go down.
const PATIENCE: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_secs(1);
const PROGRAM: Duration = Duration::from_secs(60);

fn proof(before: &str, now: &str) -> Done {
    Done {
        message: "the machine was restarted: its boot id is another".to_owned(),
        detail: json!({"boot_id_before": before, "boot_id": now}),
    }
}

fn boot_id(host: &Host) -> Result<String, Failed> {
    host.boot_id()
        .map_err(|error| failed("CHECK_FAILED", FailureClass::NeedsOperator, format!("reading the boot id: {error}")))
}

pub async fn run(reboot: &HostReboot, context: &Context) -> Outcome {
    let before = reboot.boot_id.trim();
    if before.is_empty() {
        return Err(failed(
            "INVALID",
            FailureClass::InvalidInput,
            "a reboot is ordered by the boot id that it shall end",
        ));
    }
    let now = boot_id(&context.host)?;
    if now != before {
        return Ok(proof(before, &now));
    }
    if context.cancel.is_cancelled() {
        return Err(canceled(Value::Null));
    }
    context.printer.say("ordering the restart of this machine").await;
    let host = context.host.clone();
    in_background(context, move || order(&host)).await??;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        tokio::select! {
            // it was ordered and cannot be called back: whether it happens, the next start tells
            () = context.cancel.cancelled() => return Err(canceled(json!({"boot_id": before, "ordered": true}))),
            () = tokio::time::sleep(PAUSE) => {}
        }
        let now = boot_id(&context.host)?;
        if now != before {
            return Ok(proof(before, &now));
        }
    }
    let message = format!("the restart was ordered, but the machine still runs after {} s", PATIENCE.as_secs());
    Err(failed("STILL_RUNNING", FailureClass::Transient, message))
}

/// By systemd where it is there, by `reboot` where it is not or does not want to.
fn order(host: &Host) -> Result<(), Failed> {
    let mut troubles = Vec::new();
    for (program, args) in [("systemctl", &["reboot"][..]), ("reboot", &[])] {
        match host.call(program, args, PROGRAM) {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => troubles.push(format!("{program}: {status}")),
            Err(error) => troubles.push(error.to_string()),
        }
    }
    let message = format!("the machine cannot be told to restart: {}", troubles.join("; "));
    Err(failed("REBOOT_REFUSED", FailureClass::NeedsOperator, message))
}

pub fn after_restart(reboot: &HostReboot, host: &Host) -> Outcome {
    let before = reboot.boot_id.trim();
    match boot_id(host)? {
        now if now != before => Ok(proof(before, &now)),
        _ => Err(failed(
            "INTERRUPTED",
            FailureClass::Transient,
            "the agent was restarted, the machine was not: its boot id is the same",
        )),
    }
}
