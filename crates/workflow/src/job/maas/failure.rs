//! Why a deployment failed, from what MAAS kept of it. Pure: the same results and events always mean the same.

use super::Standing;
use domain::limits::short;
use domain::stage::FailureClass;
use engine::Failure;
use provider::{MaasEvent, ScriptResult};

const PENDING: i64 = 0;
const PASSED: i64 = 2;
const FAILED: i64 = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// It was installed, and its system never asked MAAS for what it should do. May pass.
    Datasource(String),
    /// What installs it failed.
    Installation(String),
    /// MAAS could not drive its power.
    Power(String),
    /// It was never seen to boot what installs it.
    NeverBooted(String),
    Unknown(String),
}

/// Whether a script's status is a bad end.
pub(super) const fn is_bad(status: i64) -> bool {
    // failed, timed out, aborted, degraded, failed to install, failed to apply the network's configuration
    matches!(status, 3 | 4 | 5 | 6 | 8 | 11)
}

pub(super) fn cause_of(results: &[ScriptResult], events: &[MaasEvent]) -> Cause {
    let said = |words: &[&str]| {
        let names = |event: &&MaasEvent| {
            let text = format!("{} {}", event.kind, event.description).to_ascii_lowercase();
            words.iter().any(|word| text.contains(word))
        };
        events.iter().rev().find(names).map(|event| format!("{}: {}", event.kind, event.description))
    };
    if let Some(failed) =
        results.iter().find(|result| result.status == FAILED).or_else(|| results.iter().find(|r| is_bad(r.status)))
    {
        let tail = failed.output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        return Cause::Installation(short(&format!("{} ended as {}: {tail}", failed.name, failed.status_name)));
    }
    if let Some(power) = said(&["power", "bmc"]) {
        return Cause::Power(power);
    }
    if results.iter().any(|result| result.status == PASSED) {
        let why = "it was installed, and its system never reached MAAS's metadata service";
        return Cause::Datasource(said(&["datasource", "cloud-init"]).unwrap_or_else(|| why.to_owned()));
    }
    if let Some(told) = said(&["datasource", "cloud-init"]) {
        return Cause::Datasource(told);
    }
    match results.iter().all(|result| result.status == PENDING) {
        true => Cause::NeverBooted("nothing was heard of what installs it".to_owned()),
        false => Cause::Unknown("MAAS kept no reason".to_owned()),
    }
}

impl Cause {
    pub fn word(&self) -> &'static str {
        match self {
            Cause::Datasource(_) => "datasource",
            Cause::Installation(_) => "installation",
            Cause::Power(_) => "power",
            Cause::NeverBooted(_) => "never_booted",
            Cause::Unknown(_) => "unknown",
        }
    }

    pub fn failure(&self, at: &Standing) -> Failure {
        let (code, class, why, look) = match self {
            Cause::Datasource(why) => ("DATASOURCE", FailureClass::Transient, why, "look at its network"),
            Cause::Installation(why) => {
                ("INSTALLATION_FAILED", FailureClass::NeedsOperator, why, "look at its installation's log in MAAS")
            }
            Cause::Power(why) => ("POWER_FAILED", FailureClass::Hardware, why, "look at its BMC and its credential"),
            Cause::NeverBooted(why) => {
                ("NEVER_BOOTED", FailureClass::Hardware, why, "look at its console and its boot order")
            }
            Cause::Unknown(why) => {
                ("DEPLOYMENT_FAILED", FailureClass::NeedsOperator, why, "look at its events in MAAS")
            }
        };
        let message = format!(
            "the deployment of machine {} failed: {why}; {look}, then 'millwright job resume {}' releases it and deploys it again",
            at.system_id(),
            at.sight.job.id
        );
        Failure::new(code, class, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(name: &str, status: i64) -> ScriptResult {
        ScriptResult { name: name.to_owned(), status, ..ScriptResult::default() }
    }

    fn event(kind: &str, description: &str) -> MaasEvent {
        MaasEvent { kind: kind.to_owned(), description: description.to_owned(), ..MaasEvent::default() }
    }

    #[test]
    fn each_known_cause_is_told_from_the_others() {
        let curtin = "/tmp/install.log";
        for (results, events, word) in [
            (vec![result(curtin, 3)], vec![event("Node installation failure", "'curtin' failed")], "installation"),
            (vec![result(curtin, 5), result("x", 3)], vec![], "installation"),
            (
                vec![result(curtin, 2)],
                vec![event("Marking node failed", "Node operation 'Deploying' timed out")],
                "datasource",
            ),
            (vec![], vec![event("Node power error", "Failed to power on: BMC is dead")], "power"),
            (vec![], vec![event("Marking node failed", "timed out")], "never_booted"),
            (vec![result(curtin, 0)], vec![event("Marking node failed", "timed out")], "never_booted"),
            (vec![result(curtin, 1)], vec![], "unknown"),
        ] {
            assert_eq!(cause_of(&results, &events).word(), word, "{results:?} {events:?}");
        }
    }
}
