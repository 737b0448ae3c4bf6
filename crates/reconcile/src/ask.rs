//! One look at one machine: its BMC and its cluster are asked side by side, within one deadline. Whatever
//! a provider does (refuse, hang, panic), there is a look.

use domain::Timestamp;
use domain::look::{Facts, Hardware, Look, Member, Workload};
use domain::machine::Machine;
use futures::FutureExt as _;
use provider::{
    ClusterControl, Drain, Inspection, Membership, PowerState, Provider, ProviderError, ProviderResult, Providers,
    Target,
};
use std::panic::AssertUnwindSafe;
use std::time::Duration;
use tokio::time::Instant;

/// What became of one question.
enum Answer<T> {
    Given(T),
    Refused(ProviderError),
    Late,
    Panicked,
}

struct Asking<'a> {
    source: &'a str,
    target: Target,
    timeout: Duration,
    deadline: Instant,
}

pub(crate) async fn look(providers: &Providers, machine: &Machine, at: Timestamp, timeout: Duration) -> Look {
    let source = machine.spec.provider_name(&machine.labels);
    let target = Target::of(machine);
    let asking = Asking { source, target, timeout, deadline: Instant::now() + timeout };
    let (hardware, (member, workload)) = match providers.get(source) {
        Ok(provider) => {
            tokio::join!(asking.hardware(provider.as_ref()), asking.cluster(provider.as_ref()))
        }
        Err(e) => {
            let member = asking.without_cluster(&e.message);
            (Hardware::blind("NoProvider", &e.message), (member, Workload::NotAsked(e.message)))
        }
    };
    Look { at, source: source.to_owned(), hardware, member, workload }
}

impl Asking<'_> {
    async fn ask<T>(&self, question: impl Future<Output = ProviderResult<T>>) -> Answer<T> {
        match tokio::time::timeout_at(self.deadline, AssertUnwindSafe(question).catch_unwind()).await {
            Ok(Ok(Ok(answer))) => Answer::Given(answer),
            Ok(Ok(Err(e))) => Answer::Refused(e),
            Ok(Err(_)) => {
                tracing::error!(provider = self.source, machine = %self.target.machine_id, "a provider panicked");
                Answer::Panicked
            }
            Err(_) => Answer::Late,
        }
    }

    fn late(&self) -> String {
        format!("no answer within {} s", self.timeout.as_secs_f32())
    }

    async fn hardware(&self, provider: &dyn Provider) -> Hardware {
        let Some(inspect) = provider.inspect() else {
            return Hardware::blind("CannotInspect", "its provider cannot inspect machines");
        };
        match self.ask(inspect.watch(&self.target)).await {
            Answer::Given(seen) => Hardware::Answered(facts(seen)),
            Answer::Refused(ProviderError::Refused { class, reason, message }) => {
                Hardware::refused(class, reason, &message)
            }
            Answer::Refused(ProviderError::Unknown { message }) => Hardware::no_answer(&message),
            Answer::Late => Hardware::no_answer(&self.late()),
            Answer::Panicked => Hardware::blind("ProviderFailed", "the provider failed; the server's log has more"),
        }
    }

    fn without_cluster(&self, why: &str) -> Member {
        if self.target.spec.target_cluster_ref.is_empty() {
            Member::NoClusterRef
        } else {
            Member::NotAsked(why.to_owned())
        }
    }

    async fn cluster(&self, provider: &dyn Provider) -> (Member, Workload) {
        let cluster_ref = &self.target.spec.target_cluster_ref;
        let not_asked = || Workload::NotAsked(String::new());
        let cluster = match provider.cluster() {
            Some(cluster) if !cluster_ref.is_empty() => cluster,
            Some(_) | None => return (self.without_cluster("its provider knows no clusters"), not_asked()),
        };
        let member = match self.ask(cluster.watch_membership(&self.target, cluster_ref)).await {
            Answer::Given(Membership::Ready) => Member::Joined,
            Answer::Given(Membership::NotReady(why)) => Member::NotReady(why),
            Answer::Given(Membership::NotFound) => Member::NotJoined,
            other => Member::NotAsked(self.why_not(other)),
        };
        let workload = match &member {
            Member::Joined | Member::NotReady(_) => self.workload(cluster, cluster_ref).await,
            Member::NotJoined | Member::NoClusterRef | Member::NotAsked(_) => not_asked(),
        };
        (member, workload)
    }

    async fn workload(&self, cluster: &dyn ClusterControl, cluster_ref: &str) -> Workload {
        match self.ask(cluster.watch_drain(&self.target, cluster_ref)).await {
            Answer::Given(Drain::Drained) => Workload::Drained,
            Answer::Given(Drain::InUse(what)) => Workload::InUse(what),
            other => Workload::NotAsked(self.why_not(other)),
        }
    }

    fn why_not<T>(&self, answer: Answer<T>) -> String {
        match answer {
            Answer::Given(_) => String::new(),
            Answer::Refused(e) => e.to_string(),
            Answer::Late => self.late(),
            Answer::Panicked => "the provider failed".to_owned(),
        }
    }
}

fn facts(seen: Inspection) -> Facts {
    Facts {
        serial_number: seen.serial_number,
        system_uuid: seen.system_uuid,
        powered: match seen.power {
            PowerState::On => true,
            PowerState::Off => false,
        },
        reachable: seen.reachable,
        host_asked: seen.host_asked,
        installed: seen.installed.map(|i| i.image),
        disk_read: seen.disk_read,
        installing: seen.installing.map(|i| i.image),
    }
}
