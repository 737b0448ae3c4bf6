//! Machines of our own that a job installs anew: whether that can be done, the run that does it, and what the installed
//! system is told at its first boot. An order names the job; what it tells is made when it is asked for, and kept nowhere.

use crate::access::Principal;
use crate::agents::AgentSetup;
use crate::booting::Ordered;
use crate::start_run::{NewRun, StartRun};
use crate::{Call, Service};
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use domain::boot_node::BootNode;
use domain::job::{Job, JobStatus};
use domain::job_stage::{Ground, JobKind, Mode};
use domain::node::Node;
use domain::plan_defaults;
use domain::run::{RunPhase, RunType};
use domain::{Error, ExecutionId, JobId, Reason, RunId, Secret};
use provider::Providers;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{Caller, Tx, TxResult, agent, boot_node, execution, job, machine, node, run};
use workflow::install::may_be_repaved;
use workflow::job::cloud_init::{self, Told};
use workflow::job::{Bundles as _, Learned, RepaveWish, Runs, is_out, repave_request};

/// What stands before a job's id where an order says whose words the installed system is told.
const OF_JOB: &str = "job:";

/// The job that user data is of; `None`: it is a credential's. No credential's name has a colon.
pub(crate) fn job_named(user_data_ref: &str) -> Option<JobId> {
    user_data_ref.strip_prefix(OF_JOB).map(JobId::from_text)
}

/// Where an agent is fetched from.
fn agent_of(setup: &AgentSetup) -> Result<(&str, &str), Error> {
    match (setup.agent_url.as_str(), setup.agent_sha256.as_str()) {
        ("", _) | (_, "") => {
            let message = "a machine that is installed anew must be told where its agent comes from: set agents.agent_url and agents.agent_sha256 in the configuration, restart the server, then try again";
            Err(Error::new(Reason::CapabilityMissing, message))
        }
        found => Ok(found),
    }
}

/// The boot node whose machine a node is, where our network boot is what installs it.
pub(crate) fn boot_node_of(tx: &mut Tx<'_>, node: &Node) -> TxResult<Option<BootNode>> {
    match (node.ground(), &node.machine_id) {
        (Ground::Bundle, Some(machine)) => tx.point(&boot_node::by_machine(machine)),
        (Ground::Bundle | Ground::Maas | Ground::Boot, _) => Ok(None),
    }
}

/// What is installed by this name, by network boot alone: whatever a provider has of its own knows nothing of bundles.
fn only_by_network(tx: &mut Tx<'_>, providers: &Providers, boot: &BootNode, image: &str) -> TxResult<()> {
    let Some(there) = boot.machine_id.as_ref().map(|id| machine::get(tx, id)).transpose()?.flatten() else {
        return Ok(());
    };
    let name = there.spec.provider_name(&there.labels);
    if providers.get(name)?.knows_image(image) {
        let message = format!(
            "machine {} would not be installed by network boot: its provider {name:?} installs {image:?} by itself, and tells the new system nothing of its agent; name a boot workflow that it does not know with --profile",
            there.id
        );
        return Err(Error::new(Reason::ModeUnavailable, message).into());
    }
    Ok(())
}

impl Service {
    /// Whether a node can be installed anew, before anything is drained for it; and what is installed.
    pub(crate) async fn repaves(&self, boot: &BootNode, image: &str) -> Result<String, Error> {
        agent_of(self.agent_setup())?;
        self.agent_setup().public_url.as_ref().map_err(|why| Error::new(Reason::CapabilityMissing, why.clone()))?;
        may_be_repaved(boot)?;
        let image = if image.is_empty() { boot.workflow_id.clone() } else { image.to_owned() };
        if image.is_empty() {
            let message = format!(
                "no workflow is assigned to boot node {0}, so that nobody knows what to install; 'millwright boot assign {0} --workflow ID', or name one with --profile",
                boot.id
            );
            return Err(Error::new(Reason::WorkflowMissing, message));
        }
        let (providers, boot, wanted) = (self.inner.providers.clone(), boot.clone(), image.clone());
        self.store()
            .read(move |tx| {
                only_by_network(tx, &providers, &boot, &wanted)?;
                match crate::netboot_orders::offered(tx, &boot, &wanted)? {
                    Ok(()) => Ok(()),
                    Err(why) => Err(Error::field("profile", why).into()),
                }
            })
            .await?;
        Ok(image)
    }

    /// What cloud-init is given by the job that the order names: its node's bundle, and how its agent is installed; beside
    /// what the workflow itself says. For the bearer of the order's token, and nobody else.
    pub async fn agent_user_data(&self, ordered: &Ordered, own: Option<&str>) -> Result<Secret, Error> {
        let Some(id) = job_named(&ordered.order.user_data_ref) else {
            return Err(Error::internal(format!("order {} names no job", ordered.order.id)));
        };
        let run = ordered.order.run.as_ref().map(|(run, _)| run.clone());
        let (job, node) = self.store().read(move |tx| owner(tx, &id, run.as_ref())).await?;
        let learned = Learned::read(&job.learned);
        let made = self.make(&node.id, &job.id, learned.bundles).await?;
        if made.hash != learned.token {
            return Err(outdated(&job.id, "was made with another key of the server's"));
        }
        let (url, sum) = agent_of(self.agent_setup())?;
        let hostname = ordered.hostname();
        let (node_id, node_name) = (node.id.as_str(), node.name.as_str());
        let told = Told { hostname: &hostname, node_id, node_name, site: "", bundle: &made.text };
        let text = cloud_init::own(url, sum, &told).map_err(Error::internal)?;
        Ok(match own {
            Some(own) => beside(own, &text),
            None => text,
        })
    }
}

fn outdated(job: &JobId, why: &str) -> Error {
    let message = format!("the bundle of job {job} {why}; 'millwright job retry_stage {job}' makes another");
    Error::new(Reason::BootstrapTokenInvalid, message)
}

/// The job that may have its node's bundle put onto what this run installs.
pub(crate) fn owner(tx: &mut Tx<'_>, id: &JobId, run: Option<&RunId>) -> TxResult<(Job, Node)> {
    let wrong = |why: &str| Error::new(Reason::InvalidField, format!("user_data_ref names job {id}, {why}"));
    let there = tx.point(&job::by_id(id))?.filter(|job| !job.status.is_terminal());
    let there = there.ok_or_else(|| wrong("which is not there, or has ended"))?;
    let node = tx.point(&node::by_id(&there.node_id))?.ok_or_else(|| wrong("whose node is not there"))?;
    let learned = Learned::read(&there.learned);
    let run = run.map(|run| run::get(tx, run)).transpose()?.flatten();
    let is_its = run.is_some_and(|run| {
        Some(&run.machine_id) == node.machine_id.as_ref() && run.request_id == repave_request(id, learned.bundles)
    });
    if !is_its {
        return Err(wrong("which has not asked for this run").into());
    }
    let (token, now) = (tx.point(&agent::token(&learned.token))?, tx.now());
    if !is_out(token.as_ref(), now) {
        return Err(outdated(id, "was used or withdrawn, or has expired").into());
    }
    Ok((there, node))
}

/// Two documents for cloud-init, each as it is. Lists of ours are added to those that are there, and nothing is replaced.
fn beside(own: &str, agent: &Secret) -> Secret {
    // no line of base64 begins with a dash
    const BOUNDARY: &str = "millwright-user-data";
    let mut text = format!("Content-Type: multipart/mixed; boundary=\"{BOUNDARY}\"\nMIME-Version: 1.0\n\n");
    for (part, more) in [
        // what it is shows by its first line, as it would alone
        (own, "Content-Type: text/plain; charset=\"utf-8\"\n"),
        (
            agent.reveal(),
            "Content-Type: text/cloud-config; charset=\"utf-8\"\nX-Merge-Type: list(append)+dict(no_replace,recurse_list)+str()\n",
        ),
    ] {
        text.push_str(&format!("--{BOUNDARY}\n{more}MIME-Version: 1.0\nContent-Transfer-Encoding: base64\n\n"));
        for line in STANDARD.encode(part).as_bytes().chunks(76) {
            text.push_str(&String::from_utf8_lossy(line));
            text.push('\n');
        }
    }
    text.push_str(&format!("--{BOUNDARY}--\n"));
    Secret::new(text)
}

/// The attempt that asks still is the job's: what was called off meanwhile starts nothing.
pub(crate) fn is_asked_for(tx: &mut Tx<'_>, wish: &RepaveWish) -> TxResult<()> {
    let late = || Error::new(Reason::Contention, format!("job {} does not want this run any more", wish.job));
    let there = job::get_for_update(tx, &wish.job)?.ok_or_else(late)?;
    let wants = there.kind == JobKind::Decommission(Mode::Reimage(Ground::Boot))
        && there.status == JobStatus::Running
        && there.execution_id == wish.execution
        && there.afterwards.is_none()
        && Learned::read(&there.learned).bundles == wish.number;
    if wants { Ok(()) } else { Err(late().into()) }
}

#[async_trait]
impl Runs for Service {
    async fn repave(&self, wish: &RepaveWish) -> Result<RunId, Error> {
        agent_of(self.agent_setup())?;
        let by = Principal { name: format!("job {}", wish.job), ..Principal::system() };
        let call = Arc::new(Call::new(Arc::new(by), "system", String::new(), None));
        let request = StartRun {
            request_id: wish.request_id(),
            machine_id: wish.machine.to_string(),
            run_type: RunType::Repave.as_str().to_owned(),
            plan_id: plan_defaults::REPAVE.to_owned(),
            parameters: BTreeMap::from([
                ("image".to_owned(), wish.image.clone()),
                ("user_data_ref".to_owned(), format!("{OF_JOB}{}", wish.job)),
            ]),
            override_reason: String::new(),
        };
        let new = NewRun {
            run_id: RunId::generate(self.store().ambient().uuid()),
            execution_id: ExecutionId::generate(self.store().ambient().uuid()),
            machine_id: wish.machine.clone(),
            run_type: Some(RunType::Repave),
            fingerprint: request.fingerprint(),
            call: call.clone(),
            providers: self.inner.providers.clone(),
            request,
            for_job: Some(wish.clone()),
        };
        let started = self.change(&call, wish.machine.as_str(), move |tx| new.start(tx)).await?;
        Ok(started.run.id)
    }

    async fn cancel(&self, id: &RunId, by: &str, reason: &str) -> Result<(), Error> {
        let (id, engine, by, reason) = (id.clone(), self.engine().clone(), by.to_owned(), reason.to_owned());
        let wanted = id.clone();
        let there = self.store().read(move |tx| run::get(tx, &wanted)).await?;
        let Some(machine_id) = there.map(|run| run.machine_id) else { return Ok(()) };
        let key = machine_id.to_string();
        self.store()
            .write(&Caller::engine(), &key, move |tx| {
                // the machine's row first, as everywhere
                machine::get_for_update(tx, &machine_id)?;
                match run::get(tx, &id)?.map(|run| run.phase) {
                    Some(RunPhase::Pending | RunPhase::Running) => {}
                    Some(RunPhase::Succeeded | RunPhase::Failed | RunPhase::Canceled) | None => return Ok(()),
                }
                match execution::by_subject(tx, id.as_str())? {
                    Some(execution) => engine.request_cancel(tx, &execution, &by, &reason),
                    None => Ok(()),
                }
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_documents_reach_cloud_init_as_they_are() {
        let own = "#cloud-config\nusers: [{name: \"é --millwright-user-data\"}]\n".repeat(9);
        let text = beside(&own, &Secret::new("#cloud-config\nruncmd: []\n"));
        let text = text.reveal();
        assert_eq!(text.matches("\n--millwright-user-data").count(), 3, "{text}");
        let parts: Vec<String> = text
            .split("\n--millwright-user-data")
            .filter_map(|part| part.split_once("base64\n\n"))
            .map(|(_, body)| STANDARD.decode(body.replace('\n', "")).expect("base64"))
            .map(|bytes| String::from_utf8(bytes).expect("text"))
            .collect();
        assert_eq!(parts, [own.as_str(), "#cloud-config\nruncmd: []\n"]);
    }

    #[test]
    fn only_an_order_of_a_job_names_one() {
        assert_eq!(job_named("job:job_1"), Some(JobId::from_text("job_1")));
        assert_eq!((job_named(""), job_named("user-data")), (None, None));
        assert!(domain::id::check_name("name", "job:job_1").is_err(), "no credential can be named so");
    }
}
