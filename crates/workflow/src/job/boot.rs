//! A machine that our own network boot installs: a run does that, and the job starts it, follows it, and calls it off. Each
//! run has a number, and a bundle of that number; both are found again by it, so that no attempt ever makes a second one.

use super::maas::Learned;
use super::stage::{JobWork, Sight, failed};
use super::{Parameters, hardware_of};
use async_trait::async_trait;
use domain::agent::{AgentIdentity, BootstrapToken, IdentityState};
use domain::boot_node::{BootNode, BootState};
use domain::identity::another_machine;
use domain::install_order::{Closing, InstallOrder};
use domain::job::Job;
use domain::job_stage::JobStage;
use domain::machine::Machine;
use domain::node::{AgentMode, Node};
use domain::run::{Run, RunPhase};
use domain::stage::FailureClass;
use domain::{Code, Error, ExecutionId, JobId, MachineId, Reason, RunId, Timestamp};
use engine::{Acted, Failure, Look, Seen, StageCx};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use store::{Tx, TxResult, agent, boot_node, idempotency, job, machine, node, run};

/// What is installed has its agent within minutes.
const COMES_WITHIN: Duration = Duration::from_secs(3600);
/// Runs of one job that are ever made.
const RUNS_MAX: u32 = 64;

/// A run that a job wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepaveWish {
    pub job: JobId,
    /// The attempt that wants it: one that has been called off since starts nothing.
    pub execution: ExecutionId,
    pub number: u32,
    pub machine: MachineId,
    /// A boot workflow, or an image in the place of its own.
    pub image: String,
}

impl RepaveWish {
    /// By which the run is found again.
    pub fn request_id(&self) -> String {
        repave_request(&self.job, self.number)
    }
}

pub fn repave_request(job: &JobId, number: u32) -> String {
    format!("{job}/{number}")
}

/// Where the keys of runs on this machine are kept.
pub fn runs_of(machine: &MachineId) -> String {
    format!("run/{machine}")
}

/// Runs, as jobs start and stop them.
#[async_trait]
pub trait Runs: Send + Sync {
    /// Again: the same one.
    async fn repave(&self, wish: &RepaveWish) -> Result<RunId, Error>;

    /// Asks it to stop; one that has ended is left as it is.
    async fn cancel(&self, run: &RunId, by: &str, reason: &str) -> Result<(), Error>;
}

/// Where no machine is ever installed.
pub struct NoRuns;

#[async_trait]
impl Runs for NoRuns {
    async fn repave(&self, _: &RepaveWish) -> Result<RunId, Error> {
        Err(Error::new(Reason::CapabilityMissing, "this server starts no runs"))
    }

    async fn cancel(&self, _: &RunId, _: &str, _: &str) -> Result<(), Error> {
        Ok(())
    }
}

/// Whether a bundle can still be used by somebody.
pub fn is_out(token: Option<&BootstrapToken>, now: Timestamp) -> bool {
    token.is_some_and(|token| !token.withdrawn && token.key_sha256.is_none() && token.expires_at > now)
}

/// Which run an attempt follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Following {
    attempt: u32,
    number: u32,
}

/// The stages of a job that need our network boot.
pub(super) struct OnBoot<'a> {
    pub work: &'a JobWork,
}

/// What a stage stands on.
struct Standing {
    sight: Sight,
    learned: Learned,
    /// Who wants the stage in hand taken as it is found.
    adopting: Option<String>,
    machine: Machine,
    boot: Option<BootNode>,
    /// Of the last number.
    run: Option<Run>,
    token: Option<BootstrapToken>,
    now: Timestamp,
}

fn superseded() -> Failure {
    Failure::new("SUPERSEDED", FailureClass::NeedsOperator, "another attempt of this job has begun")
}

fn needs(code: &str, message: String) -> Failure {
    Failure::new(code, FailureClass::NeedsOperator, message)
}

/// A refusal in the engine's words: what only time settles is tried again.
fn refused(e: &Error, job: &JobId) -> Failure {
    match e.code() {
        Code::Internal | Code::Unavailable | Code::Aborted | Code::ResourceExhausted | Code::DeadlineExceeded => {
            failed(e)
        }
        _ => needs(
            e.reason.as_str(),
            format!("the run could not be started: {}; then 'millwright job retry_stage {job}'", e.message),
        ),
    }
}

/// The run of a number. Its key is remembered with it, in one commit.
fn run_of(tx: &mut Tx<'_>, machine: &MachineId, job: &JobId, number: u32) -> TxResult<Option<Run>> {
    match idempotency::find(tx, &runs_of(machine), &repave_request(job, number))? {
        Some(known) => run::get(tx, &RunId::from_text(known.answer)),
        None => Ok(None),
    }
}

impl OnBoot<'_> {
    async fn stand(&self, sight: Sight) -> Result<Standing, Failure> {
        let learned = Learned::read(&sight.job.learned);
        let of_stage = |stage: &str| sight.job.stage.is_some_and(|at| at.as_str() == stage);
        let adopting = Parameters::of(&sight.job).adopting.filter(|wish| of_stage(&wish.stage)).map(|wish| wish.by);
        let no_machine = || {
            let message = format!(
                "node {} is linked to no machine: nobody knows what to install; 'millwright job cancel {}'",
                sight.node.id, sight.job.id
            );
            needs("NO_MACHINE", message)
        };
        let id = sight.node.machine_id.clone().ok_or_else(no_machine)?;
        let (job, number, hash) = (sight.job.id.clone(), learned.bundles, learned.token.clone());
        let read = self.work.store.read(move |tx| {
            let run = run_of(tx, &id, &job, number)?;
            let boot = tx.point(&boot_node::by_machine(&id))?;
            Ok((machine::get(tx, &id)?, boot, run, tx.point(&agent::token(&hash))?, tx.now()))
        });
        let (machine, boot, run, token, now) = read.await.map_err(|e| failed(&e))?;
        let machine = machine.ok_or_else(no_machine)?;
        Ok(Standing { sight, learned, adopting, machine, boot, run, token, now })
    }

    pub async fn look(&self, stage: JobStage, cx: &StageCx, sight: Sight) -> Result<Look, Failure> {
        let at = self.stand(sight).await?;
        match stage {
            JobStage::WaitForAgentEnrollment => self.enrolled(&at, cx).await,
            _ => self.repaved(&at, cx).await,
        }
    }

    async fn repaved(&self, at: &Standing, cx: &StageCx) -> Result<Look, Failure> {
        let mut follow: Following = serde_json::from_value(cx.facts.clone()).unwrap_or_default();
        let goes_on = at.run.as_ref().is_some_and(|run| !run.phase.is_terminal());
        match (at.adopted_by(), at.as_it_is()) {
            // what was taken as it was found once is so for the stages after this one, too
            (Some(by), Ok(found)) if !goes_on => {
                self.adopt(by).await?;
                return Ok(Seen::Done(format!("taken as it is found, by {by}: {found}")).into());
            }
            (Some(_), Err(failure)) if !goes_on && at.adopting.is_some() => return Err(failure),
            (Some(_) | None, _) => {}
        }
        let fresh = follow.attempt != cx.attempt;
        if fresh {
            follow = Following { attempt: cx.attempt, number: at.learned.bundles + u32::from(at.is_spent()) };
        }
        if follow.number > RUNS_MAX {
            let message =
                format!("{RUNS_MAX} runs of this job have come to nothing; cancel it, and look at the machine");
            return Err(needs("RUNS_SPENT", message));
        }
        let run = at.run.as_ref().filter(|_| follow.number == at.learned.bundles);
        let seen = match run {
            Some(run) => at.judged(run, cx),
            None => match at.machine.active_run.as_ref() {
                // one of the two holds it at a time
                Some(other) => waiting(format!("run {} on machine {} to end", other.id, at.machine.id), cx),
                None => {
                    self.may_destroy(at).await?;
                    Seen::Clear
                }
            },
        };
        Ok(Look { seen, output: Vec::new(), facts: Some(serde_json::json!(follow)) })
    }

    /// The last word before what cannot be undone: it is the machine that is meant, nothing is placed on it, and this job
    /// has drained it. The run reads the identity once more from the machine itself.
    async fn may_destroy(&self, at: &Standing) -> Result<(), Failure> {
        let (node, job, machine) = (&at.sight.node.id, &at.sight.job, &at.machine);
        let facts = at.sight.agent.as_ref().map(hardware_of).unwrap_or_default();
        if let Some(why) = another_machine(&machine.spec, &facts.serial_number, &facts.system_uuid) {
            let message = format!("node {node} is linked to machine {}, but {why}: it is left alone", machine.id);
            return Err(Failure::new("WRONG_MACHINE", FailureClass::Conflict, message));
        }
        let Some(boot) = &at.boot else {
            let message = format!(
                "no boot node is linked to machine {} any more; 'millwright boot assign NODE --machine {0}', then 'millwright job retry_stage {}'",
                machine.id, job.id
            );
            return Err(needs("NO_BOOT_NODE", message));
        };
        let claims = &boot.claims;
        if let Some(why) = another_machine(&machine.spec, &claims.serial_number, &claims.system_uuid) {
            let message =
                format!("boot node {} is linked to machine {}, but {why}: it is left alone", boot.id, machine.id);
            return Err(Failure::new("WRONG_MACHINE", FailureClass::Conflict, message));
        }
        let placed = self.work.hands.allocations.on(node).await.map_err(|e| failed(&e))?;
        if !placed.is_empty() {
            let placed = placed.join(", ");
            let message = format!(
                "{placed} is still placed on node {node}: have it released, then 'millwright job retry_stage {}'",
                job.id
            );
            return Err(needs("STILL_ASSIGNED", message));
        }
        if !job.is_done(JobStage::DrainNode) {
            let message =
                format!("node {node} was not drained by this job: 'millwright job rerun {}' begins with that", job.id);
            return Err(needs("NOT_DRAINED", message));
        }
        Ok(())
    }

    /// The bundle first, then the run: what installs the machine is known to be this job's before there is anything of it.
    pub async fn repave(&self, cx: &StageCx) -> Acted {
        match self.try_repave(cx).await {
            Ok(()) => Acted::Yes,
            Err(failure) => Acted::No(failure),
        }
    }

    async fn try_repave(&self, cx: &StageCx) -> Result<(), Failure> {
        let Following { number, .. } = serde_json::from_value(cx.facts.clone()).unwrap_or_default();
        let at = self.stand(self.work.sight().await?).await?;
        self.may_destroy(&at).await?;
        let job = &at.sight.job.id;
        let made = self.work.hands.bundles.make(&at.sight.node.id, job, number).await;
        let made = made.map_err(|e| refused(&e, job))?;
        self.issue(number, made.hash, made.expires_at).await?;
        let wish = RepaveWish {
            job: job.clone(),
            execution: self.work.execution.clone(),
            number,
            machine: at.machine.id.clone(),
            image: Parameters::of(&at.sight.job).image,
        };
        let run = self.work.hands.runs.repave(&wish).await.map_err(|e| refused(&e, job))?;
        self.learn(move |learned| {
            if !learned.runs.iter().any(|known| known == run.as_str()) {
                learned.runs.push(run.to_string());
            }
        })
        .await
    }

    async fn adopt(&self, by: &str) -> Result<(), Failure> {
        let by = by.to_owned();
        self.learn(move |learned| learned.adopted_by.clone_from(&by)).await
    }

    async fn issue(&self, number: u32, hash: String, expires_at: Timestamp) -> Result<(), Failure> {
        let written = self.work.write(move |tx, there, of| {
            let before = Learned::read(&of.learned);
            if before.bundles == number && before.token == hash {
                return Ok(());
            }
            let token = BootstrapToken {
                hash: hash.clone(),
                node_id: there.id.clone(),
                expires_at,
                issued_by: format!("job {}", of.id),
                issued_at: tx.now(),
                key_sha256: None,
                bound_at: None,
                withdrawn: false,
            };
            agent::issue(tx, &token)?;
            // whoever had its key before is overwritten by what is installed
            if tx.point(&agent::by_node(&there.id))?.is_some() && there.agent_mode != AgentMode::Rebootstrap {
                let agent_mode_by = of.requested_by.clone();
                node::save(tx, &Node { agent_mode: AgentMode::Rebootstrap, agent_mode_by, ..there })?;
            }
            // what somebody has said of the one before is not true of this one
            let adopted_by = String::new();
            let learned = Learned { bundles: number, token: hash.clone(), adopted_by, ..before };
            job::save(tx, &Job { learned: learned.text(), ..of }).map(drop)
        });
        written_or(written.await)
    }

    async fn learn(&self, change: impl Fn(&mut Learned) + Send + 'static) -> Result<(), Failure> {
        let written = self.work.write(move |tx, _, of| {
            let mut learned = Learned::read(&of.learned);
            change(&mut learned);
            job::save(tx, &Job { learned: learned.text(), ..of }).map(drop)
        });
        written_or(written.await)
    }

    /// The agent that came with this job's own bundle, on the machine that was installed, and no other.
    async fn enrolled(&self, at: &Standing, cx: &StageCx) -> Result<Look, Failure> {
        // where somebody has said that the machine is to be taken as it is: one that came since, with whatever bundle
        let since = at.sight.job.created_at;
        let adopted = at.adopted_by();
        let is_ours = |agent: &&AgentIdentity| at.has_come() || adopted.is_some() && agent.enrolled_at > since;
        let job = &at.sight.job.id;
        if let Some(agent) = at.sight.agent.as_ref().filter(is_ours) {
            if agent.state != IdentityState::Good {
                let message = format!("the agent's identity is {}: {}", agent.state, agent.state_reason);
                return Err(needs("IDENTITY_STOPPED", message));
            }
            if !agent.confirmed || agent.last_beat.is_none() {
                return Ok(waiting("the agent's first heartbeat".to_owned(), cx).into());
            }
            let agrees = self.work.agrees(&at.machine.id, &at.sight).await?;
            if !matches!(agrees, Seen::Done(_)) {
                return Ok(agrees.into());
            }
            let with = match adopted {
                Some(by) if !at.has_come() => {
                    self.adopt(by).await?;
                    format!("taken as it is found, by {by}")
                }
                Some(_) | None => format!("with bundle {} of this job", at.learned.bundles),
            };
            return Ok(
                Seen::Done(format!("enrolled at {} on machine {}, {with}", agent.enrolled_at, at.machine.id)).into()
            );
        }
        if adopted.is_none() && !is_out(at.token.as_ref(), at.now) {
            let message = format!(
                "no agent has come with bundle {} of this job, and nobody can any more; 'millwright job resume {job}' installs the machine again, with another one",
                at.learned.bundles
            );
            return Err(needs("NO_BUNDLE", message));
        }
        if cx.elapsed > COMES_WITHIN {
            let message = format!(
                "no agent has come from machine {} within {} min of its installation: look at /var/log/cloud-init-output.log there, and whether it reaches the agents' port and agents.agent_url; then 'millwright job retry_stage {job}' waits again, 'millwright job restart_clean {job} --reason WHY' installs it anew",
                at.machine.id,
                COMES_WITHIN.as_secs() / 60,
            );
            return Err(needs("AGENT_NOT_COME", message));
        }
        Ok(waiting("the agent of what was installed to enrol".to_owned(), cx).into())
    }

    /// The run has ended, and nobody can use its bundle.
    pub async fn look_back(&self, cx: &StageCx, sight: Sight) -> Result<Look, Failure> {
        let Some((run, tokens)) = self.stand_back(sight).await? else {
            return Ok(Seen::Done("nothing was begun".to_owned()).into());
        };
        let out = tokens.iter().any(|token| !token.withdrawn && token.key_sha256.is_none());
        Ok(match run.filter(|run| !run.phase.is_terminal()) {
            Some(run) if cx.acted => waiting(format!("run {} to stop", run.id), cx),
            Some(_) => Seen::Clear,
            None if out => Seen::Clear,
            None => Seen::Done("its run has ended, and its bundle is withdrawn".to_owned()),
        }
        .into())
    }

    pub async fn take_back(&self) -> Acted {
        let taken = async {
            let sight = self.work.sight().await?;
            let Some((run, _)) = self.stand_back(sight).await? else { return Ok(()) };
            written_or(self.work.write(|tx, node, _| agent::withdraw(tx, &node.id)).await)?;
            match run.filter(|run| !run.phase.is_terminal()) {
                Some(run) => {
                    let by = format!("job {}", self.work.job_id);
                    let cancelled = self.work.hands.runs.cancel(&run.id, &by, "its job is taken back").await;
                    cancelled.map_err(|e| failed(&e))
                }
                None => Ok(()),
            }
        };
        match taken.await {
            Ok(()) => Acted::Yes,
            Err(failure) => Acted::No(failure),
        }
    }

    /// What is to be taken back, also where the machine is not what it was.
    async fn stand_back(&self, sight: Sight) -> Result<Option<(Option<Run>, Vec<BootstrapToken>)>, Failure> {
        let number = Learned::read(&sight.job.learned).bundles;
        let Some(id) = sight.node.machine_id.clone().filter(|_| number > 0) else { return Ok(None) };
        let (job, node) = (sight.job.id, sight.node.id);
        let read = self.work.store.read(move |tx| Ok((run_of(tx, &id, &job, number)?, agent::tokens_of(tx, &node)?)));
        read.await.map(Some).map_err(|e| failed(&e))
    }
}

fn waiting(on: String, cx: &StageCx) -> Seen {
    Seen::Waiting { on, look_again: cx.look_again() }
}

fn written_or(written: Result<bool, Error>) -> Result<(), Failure> {
    match written {
        Ok(true) => Ok(()),
        Ok(false) => Err(superseded()),
        Err(e) => Err(failed(&e)),
    }
}

impl Standing {
    /// Whether the agent of what the last run has installed is here.
    fn has_come(&self) -> bool {
        !self.learned.token.is_empty()
            && self.sight.agent.as_ref().is_some_and(|agent| agent.token_id == self.learned.token)
    }

    /// Whether nothing more comes of the last number: another one is due.
    fn is_spent(&self) -> bool {
        let out = is_out(self.token.as_ref(), self.now);
        match self.run.as_ref().map(|run| run.phase) {
            None => !out,
            Some(RunPhase::Pending | RunPhase::Running) => false,
            Some(RunPhase::Succeeded) => !out && !self.has_come(),
            Some(RunPhase::Failed | RunPhase::Canceled) => true,
        }
    }

    fn judged(&self, run: &Run, cx: &StageCx) -> Seen {
        let step = if run.current_step.is_empty() { String::new() } else { format!(", at {}", run.current_step) };
        match run.phase {
            RunPhase::Pending | RunPhase::Running => {
                waiting(format!("run {} ({}{step}) on machine {}", run.id, run.phase, self.machine.id), cx)
            }
            RunPhase::Succeeded => {
                Seen::Done(format!("installed by run {}, with bundle {}", run.id, self.learned.bundles))
            }
            RunPhase::Failed | RunPhase::Canceled => Seen::Failed(self.of_run(run)),
        }
    }

    /// The run's failure is the stage's. Its own retries are spent: nothing is installed again by itself.
    fn of_run(&self, run: &Run) -> Failure {
        let error = run.error.clone();
        let told = error.as_ref().and_then(|e| FailureClass::parse(&e.class)).filter(|class| class.retry_budget() == 0);
        let code = match run.phase {
            RunPhase::Canceled => "RUN_CANCELED".to_owned(),
            RunPhase::Failed | RunPhase::Succeeded | RunPhase::Pending | RunPhase::Running => {
                error.as_ref().map_or("RUN_FAILED".to_owned(), |e| e.code.clone())
            }
        };
        let why = error.map_or(String::new(), |e| format!(": {}", e.message));
        let message = format!(
            "run {} has ended as {}{why}; settle that ('millwright run show {0}'), then 'millwright job retry_stage {}' starts another",
            run.id, run.phase, self.sight.job.id
        );
        Failure::new(&code, told.unwrap_or(FailureClass::NeedsOperator), message)
    }

    /// Who has said that the machine is to be taken as it is found.
    fn adopted_by(&self) -> Option<&str> {
        let said = Some(self.learned.adopted_by.as_str()).filter(|by| !by.is_empty());
        self.adopting.as_deref().or(said)
    }

    /// Whether what network boot knows of the machine agrees with that somebody else has installed it.
    fn as_it_is(&self) -> Result<&'static str, Failure> {
        let job = &self.sight.job.id;
        if let Some(other) = &self.machine.active_run {
            let message = format!(
                "run {} is at machine {}: wait for its end, then 'millwright job adopt_observed_state {job} --reason WHY'",
                other.id, self.machine.id
            );
            return Err(Failure::new("ACTIVE_RUN", FailureClass::Conflict, message));
        }
        let since = self.sight.job.created_at;
        let agent_came = self.sight.agent.as_ref().is_some_and(|agent| agent.enrolled_at > since);
        let Some(boot) = &self.boot else {
            return if agent_came { Ok("its agent came since this job began") } else { Err(self.nothing_new("")) };
        };
        let written = |order: &InstallOrder| order.closed.is_some_and(|(at, how)| at > since && how == Closing::Done);
        match boot.state {
            BootState::Installed | BootState::Active if boot.order.as_ref().is_some_and(written) => {
                Ok("its boot node was installed since this job began")
            }
            BootState::Installed | BootState::Active if agent_came => Ok("its agent came since this job began"),
            BootState::Installed
            | BootState::Active
            | BootState::Discovered
            | BootState::Pending
            | BootState::Installing
            | BootState::InstallFailed
            | BootState::Reprovision
            | BootState::Deprovisioning
            | BootState::Migrating
            | BootState::Retired => Err(self.nothing_new(&format!(" (boot node {} is {})", boot.id, boot.state))),
        }
    }

    fn nothing_new(&self, state: &str) -> Failure {
        let message = format!(
            "nothing was installed on machine {} since this job began{state}: there is nothing to take as it is; install it, or 'millwright job retry_stage {}' has a run do it",
            self.machine.id, self.sight.job.id
        );
        needs("NOT_INSTALLED", message)
    }
}
