//! Jobs: read, listed, begun by an operator, acted on. What carries them out is the engine; what an action does is
//! decided in the domain and done in the workflow crate.

use crate::change::Answer;
use crate::machines::required;
use crate::nodes::{NodeRef, find_node, lock_node};
use crate::reimage::boot_node_of;
use crate::why::at_hand;
use crate::{Call, Page, PageRequest, Service};
use domain::filter::Filter;
use domain::job::{Afterwards, Job, JobStatus, Purpose};
use domain::job_action::{JobAction, judge_action, judge_all, recommend};
use domain::job_stage::{Ground, JobKind, JobStage, Mode};
use domain::limits::{COMMENT_MAX, TEXT_MAX};
use domain::machine::check_text;
use domain::node::{Node, NodeStatus};
use domain::task::Task;
use domain::token::Role;
use domain::{Error, JobId, NodeId, Reason, Timestamp};
use std::collections::HashMap;
use std::sync::Arc;
use store::execution::{Execution, Status};
use store::switch::{self, Freeze};
use store::{Cause, Tx, TxResult, execution, job, node, task};
use workflow::job::{Act, Fresh, Learned, MaasWish, NewJob, Parameters, begin};

/// A job, and what it waits for right now.
#[derive(Clone, Debug, PartialEq)]
pub struct JobView {
    pub job: Job,
    pub node: NodeStatus,
    /// Of its last attempt, while it is under way.
    pub execution: Option<Execution>,
    /// The last one that its node's agent was given for it; not in lists.
    pub task: Option<Task>,
    pub frozen: Option<Freeze>,
    pub now: Timestamp,
}

/// How one stage of a job stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageView {
    pub stage: JobStage,
    pub state: &'static str,
    pub message: String,
    pub finished_at: Option<Timestamp>,
}

/// What an operator may do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub action: JobAction,
    /// What it does, or why it is not offered.
    pub judged: Result<String, String>,
}

impl JobView {
    /// The one in hand, or the one that failed; of one that has not begun, the first.
    pub fn stage(&self) -> Option<JobStage> {
        self.job.stage.or_else(|| self.job.stages().first().copied())
    }

    pub fn stage_name(&self) -> &'static str {
        self.stage().map_or("none", JobStage::as_str)
    }

    pub fn failure_class(&self) -> &'static str {
        self.job.failure.as_ref().map_or("none", |f| f.class.as_str())
    }

    pub fn observed(&self) -> String {
        if self.job.observed.is_empty() { "nothing was seen yet".to_owned() } else { self.job.observed.clone() }
    }

    /// An action, `wait` or `none`; and why.
    pub fn recommended(&self) -> (&'static str, &'static str) {
        let (action, why) = recommend(&self.job, self.node);
        match action {
            Some(action) => (action.as_str(), why),
            None if self.job.status.is_terminal() => ("none", why),
            None => ("wait", why),
        }
    }

    pub fn offers(&self) -> Vec<Offer> {
        let described = |(action, judged): (JobAction, Result<domain::job_action::Effect, String>)| Offer {
            action,
            judged: judged.map(|effect| effect.describe(&self.job)),
        };
        judge_all(&self.job, self.node).into_iter().map(described).collect()
    }

    pub fn stages(&self) -> Vec<StageView> {
        self.job.stages().iter().map(|stage| self.stage_view(*stage)).collect()
    }

    fn stage_view(&self, stage: JobStage) -> StageView {
        let job = &self.job;
        if let Some(done) = job.done.iter().find(|d| d.stage == stage) {
            let state = if done.adopted_by.is_empty() { "done" } else { "adopted" };
            return StageView { stage, state, message: done.message.clone(), finished_at: Some(done.at) };
        }
        let said = job.failure.as_ref().map_or(String::new(), |f| f.message.clone());
        let (state, message) = match job.status {
            _ if job.stage != Some(stage) => ("waiting", String::new()),
            JobStatus::Pending => ("waiting", String::new()),
            JobStatus::Running => ("running", self.waiting_for()),
            JobStatus::FailedRetryable | JobStatus::FailedManualIntervention => ("failed", said),
            // what is being taken back goes on with what was begun
            JobStatus::Compensating if job.failure.is_some() => ("failed", said),
            JobStatus::Compensating => ("waiting", String::new()),
            JobStatus::Completed | JobStatus::Reconciled | JobStatus::Cancelled if job.failure.is_some() => {
                ("failed", said)
            }
            JobStatus::Completed | JobStatus::Reconciled | JobStatus::Cancelled => ("waiting", String::new()),
        };
        StageView { stage, state, message, finished_at: None }
    }

    /// What keeps it from going on; empty once it has ended.
    pub fn waiting_for(&self) -> String {
        let job = &self.job;
        if job.status.is_terminal() {
            return String::new();
        }
        if !job.status.is_under_way() {
            let (action, why) = self.recommended();
            return format!("somebody to act: {action} ({why})");
        }
        if let Some(freeze) = &self.frozen {
            return format!("somebody to unfreeze: {} ({})", freeze.reason, freeze.by);
        }
        match &self.execution {
            Some(e) => at_hand(e, self.now),
            None => "a sweep to find that its execution is missing".to_owned(),
        }
    }

    /// While it sleeps.
    pub fn next_try(&self) -> Option<Timestamp> {
        let e = self.execution.as_ref().filter(|_| self.job.status.is_under_way() && self.frozen.is_none())?;
        matches!(e.status, Status::Ready | Status::Waiting).then(|| e.wake_at.max(self.now))
    }

    /// Whether somebody who follows it has something new to see.
    pub(crate) fn is_news_after(&self, before: &Self) -> bool {
        let seen = |v: &Self| (v.job.clone(), v.node, v.task.clone(), v.waiting_for(), v.frozen.clone());
        seen(self) != seen(before)
    }
}

pub(crate) fn not_found(id: &str) -> Error {
    Error::new(Reason::JobNotFound, format!("there is no job {id:?}")).with("job_id", id)
}

/// Jobs of one kind, as they are listed by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobsOf {
    All,
    Onboarding,
    Decommission,
}

impl JobsOf {
    fn has(self, kind: JobKind) -> bool {
        match (self, kind) {
            (JobsOf::All, _)
            | (JobsOf::Onboarding, JobKind::Onboarding(_))
            | (JobsOf::Decommission, JobKind::Decommission(_)) => true,
            (JobsOf::Onboarding | JobsOf::Decommission, _) => false,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            JobsOf::All => "jobs",
            JobsOf::Onboarding => "onboardings",
            JobsOf::Decommission => "decommissions",
        }
    }

    fn narrowed(self, filter: Filter) -> Filter {
        let kind = match self {
            JobsOf::All => return filter,
            JobsOf::Onboarding => "onboarding",
            JobsOf::Decommission => "decommission",
        };
        Filter::And(vec![Filter::Is { field: "kind", value: kind.to_owned() }, filter])
    }
}

pub(crate) fn find(tx: &mut Tx<'_>, id: &JobId, of: JobsOf) -> TxResult<Job> {
    let found = tx.point(&job::by_id(id))?.filter(|job| of.has(job.kind));
    Ok(found.ok_or_else(|| not_found(id.as_str()))?)
}

pub(crate) fn view(tx: &mut Tx<'_>, job: Job) -> TxResult<JobView> {
    let node = tx.point(&node::by_id(&job.node_id))?.map_or(NodeStatus::Deleted, |n| n.status);
    let under_way = job.status.is_under_way();
    let execution = if under_way { execution::get(tx, &job.execution_id)? } else { None };
    let frozen = if under_way { switch::frozen(tx)? } else { None };
    let task = tx.point(&task::last_of_job(&job.id))?;
    Ok(JobView { node, execution, task, frozen, now: tx.now(), job })
}

/// The same for a page of them, in a few statements.
fn views(tx: &mut Tx<'_>, jobs: Vec<Job>) -> TxResult<Vec<JobView>> {
    let under_way: Vec<String> = jobs.iter().filter(|j| j.status.is_under_way()).map(|j| j.id.to_string()).collect();
    let executions = execution::open_of_subjects(tx, &under_way)?;
    let executions: HashMap<&str, &Execution> = executions.iter().map(|e| (e.id.as_str(), e)).collect();
    let (frozen, now) = (switch::frozen(tx)?, tx.now());
    let mut nodes = HashMap::new();
    // only what stands still hangs on its node
    for job in jobs.iter().filter(|j| !j.status.is_terminal() && !j.status.is_under_way()) {
        if !nodes.contains_key(&job.node_id) {
            let status = tx.point(&node::by_id(&job.node_id))?.map_or(NodeStatus::Deleted, |n| n.status);
            nodes.insert(job.node_id.clone(), status);
        }
    }
    let view = |job: Job| JobView {
        node: nodes.get(&job.node_id).copied().unwrap_or(NodeStatus::Deleted),
        execution: executions.get(job.execution_id.as_str()).map(|e| (*e).clone()),
        task: None,
        frozen: frozen.clone().filter(|_| job.status.is_under_way()),
        now,
        job,
    };
    Ok(jobs.into_iter().map(view).collect())
}

impl Answer for JobView {
    fn id(&self) -> String {
        self.job.id.to_string()
    }

    fn again(tx: &mut Tx<'_>, _: &Call, id: &str) -> TxResult<Self> {
        let job = find(tx, &JobId::from_text(id), JobsOf::All)?;
        view(tx, job)
    }
}

/// An operator's word about one job.
#[derive(Clone, Debug)]
pub struct JobAct {
    pub id: String,
    pub action: String,
    pub reason: String,
    pub dry_run: bool,
    pub of: JobsOf,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct JobActed {
    pub view: JobView,
    pub effect: String,
    /// `false`: a preview.
    pub done: bool,
}

impl Answer for JobActed {
    fn id(&self) -> String {
        self.view.job.id.to_string()
    }

    fn kept(&self) -> String {
        format!("{} {}", self.id(), self.effect)
    }

    fn again(tx: &mut Tx<'_>, call: &Call, kept: &str) -> TxResult<Self> {
        let (id, effect) = kept.split_once(' ').unwrap_or((kept, ""));
        Ok(Self { view: <JobView as Answer>::again(tx, call, id)?, effect: effect.to_owned(), done: true })
    }
}

pub(crate) fn job_action(text: &str) -> Result<JobAction, Error> {
    JobAction::parse(text).ok_or_else(|| {
        let known = JobAction::ALL.map(JobAction::as_str);
        Error::field("action", format!("{text:?} is no action; there are {}", known.join(", "))).allowing(known)
    })
}

/// The action is not for a job as it stands.
fn not_allowed(job: &Job, node: NodeStatus, action: JobAction, why: &str) -> Error {
    let allowed: Vec<&str> =
        judge_all(job, node).into_iter().filter(|(_, j)| j.is_ok()).map(|(a, _)| a.as_str()).collect();
    let instead = if allowed.is_empty() { "nothing is".to_owned() } else { allowed.join(", ") };
    let message = format!("{action} of job {} ({}, {}): {why}; allowed: {instead}", job.id, job.kind, job.status);
    Error::new(Reason::ActionNotAllowed, message).with("job_id", job.id.as_str()).allowing(allowed)
}

pub(crate) fn checked_reason(needed: bool, reason: &str, action: &str) -> Result<(), Error> {
    check_text("reason", reason, COMMENT_MAX)?;
    if needed && reason.trim().is_empty() {
        return Err(Error::field("reason", format!("{action} is kept with a reason; say why")));
    }
    Ok(())
}

/// A decommission that is wished for.
#[derive(Clone, Debug, Default)]
pub struct NewDecommission {
    pub node: String,
    pub mode: String,
    pub reason: String,
    pub grace_seconds: u32,
    pub force: bool,
    pub scratch_paths: Vec<String>,
    /// What a reimage deploys: a profile of its site, or what network boot installs; empty: what was deployed last.
    pub profile: String,
    pub dry_run: bool,
}

/// A job that was begun, or what one would do.
#[derive(Clone, Debug, PartialEq)]
pub enum Begun {
    Job(Box<JobView>),
    Preview { node: NodeId, kind: JobKind, effect: String },
}

/// What runs on a node has so long before a drain fails or ends it.
const GRACE_SECONDS: u32 = 600;
/// Within what the agent's task may take.
const GRACE_SECONDS_MAX: u32 = 3000;
const SCRATCH_PATHS_MAX: usize = 16;
const PATH_MAX: usize = 1024;
/// What a machine cannot lose: neither these nor anything below them is ever emptied; nor `/lib` and its kin.
const SYSTEM_TREES: [&str; 12] =
    ["usr", "etc", "var", "boot", "bin", "sbin", "root", "home", "proc", "sys", "dev", "run"];

/// Everything below it is removed: it must say plainly what that is, and be nothing that the machine lives by.
fn scratch_path(path: &str) -> Result<(), String> {
    let Some(below) = path.strip_prefix('/') else { return Err("is not an absolute path".to_owned()) };
    let mut parts = below.split('/');
    if parts.clone().any(|part| matches!(part, "" | "." | "..")) {
        return Err("is not a plain path below /, as it would be after resolving it".to_owned());
    }
    let top = parts.next().unwrap_or_default();
    if SYSTEM_TREES.contains(&top) || top.starts_with("lib") {
        return Err(format!("is within /{top}, which belongs to the system"));
    }
    Ok(())
}

pub(crate) fn parameters(grace_seconds: u32, force: bool, scratch_paths: Vec<String>) -> Result<Parameters, Error> {
    if grace_seconds > GRACE_SECONDS_MAX {
        return Err(Error::field("grace_seconds", format!("{grace_seconds} is more than {GRACE_SECONDS_MAX}")));
    }
    if scratch_paths.len() > SCRATCH_PATHS_MAX {
        return Err(Error::field("scratch_paths", format!("more than {SCRATCH_PATHS_MAX} entries")));
    }
    for path in &scratch_paths {
        check_text("scratch_paths", path, PATH_MAX)?;
        scratch_path(path).map_err(|why| Error::field("scratch_paths", format!("{path:?} {why}")))?;
    }
    let grace_seconds = if grace_seconds == 0 { GRACE_SECONDS } else { grace_seconds };
    Ok(Parameters { grace_seconds, force, scratch_paths, ..Parameters::default() })
}

/// What a mode means for this node, whose machine may be installed by our network boot.
fn decommission_mode(text: &str, node: &Node, ground: Ground) -> Result<Mode, Error> {
    let reimage = Mode::Reimage(Ground::Boot).as_str();
    let known = [Mode::SoftReset.as_str(), Mode::StorageCleanup.as_str(), reimage, "full_decommission"];
    if let Some(mode) = Mode::of(text, ground) {
        return Ok(mode);
    }
    if text == reimage {
        let message = format!(
            "mode reimage deploys the machine anew, and node {} was enrolled by hand: neither is it a MAAS site's, nor is a boot node linked to its machine ('millwright boot list'); install it as it was, then 'millwright node rebootstrap {0}'",
            node.id
        );
        let others: Vec<&str> = known.into_iter().filter(|name| *name != reimage).collect();
        return Err(Error::new(Reason::ModeUnavailable, message).allowing(others));
    }
    Err(Error::field("mode", format!("{text:?} is no mode; there are {}", known.join(", "))).allowing(known))
}

/// Whether a job of this kind may begin; `Some`: it is under way already.
fn may_begin(node: &Node, open: Option<&Job>, kind: JobKind) -> Result<Option<Job>, Error> {
    if let Some(job) = open {
        if job.kind == kind {
            return Ok(Some(job.clone()));
        }
        let message = format!(
            "node {} ({}) is held by job {} ({}, {}); wait for its end, or call it off: 'millwright job cancel {}'",
            node.id, node.name, job.id, job.kind, job.status, job.id
        );
        return Err(Error::new(Reason::NodeHeld, message).with("job_id", job.id.as_str()));
    }
    if !kind.begins_from().contains(&node.status) {
        let from: Vec<&str> = kind.begins_from().iter().map(|s| domain::lifecycle::State::as_str(*s)).collect();
        let message =
            format!("node {} ({}) is {}: {kind} begins from {}", node.id, node.name, node.status, from.join(", "));
        return Err(Error::new(Reason::ActionNotAllowed, message).with("status", node.status.to_string()));
    }
    Ok(None)
}

impl Service {
    pub async fn list_jobs(&self, request: &PageRequest, of: JobsOf) -> Result<Page<JobView>, Error> {
        let size = request.size()?;
        let filter = of.narrowed(job::FILTER.parse(&request.filter)?);
        let before = request.cursor(of.name())?;
        let items = self
            .store()
            .read(move |tx| {
                let jobs = job::list(tx, &filter, &before, size + 1)?;
                views(tx, jobs)
            })
            .await?;
        Ok(request.page(of.name(), items, size, |v: &JobView| v.job.id.to_string()))
    }

    pub async fn get_job(&self, id: &str, of: JobsOf) -> Result<JobView, Error> {
        let id = JobId::from_text(required("id", id)?);
        self.store()
            .snapshot(move |tx| {
                let job = find(tx, &id, of)?;
                view(tx, job)
            })
            .await
    }

    /// Safe to repeat: what is under way is not begun again.
    pub async fn act_on_job(&self, call: &Arc<Call>, act: JobAct) -> Result<JobActed, Error> {
        let action = job_action(&act.action)?;
        checked_reason(action.needs_reason(), &act.reason, action.as_str())?;
        let now = self.get_job(&act.id, act.of).await?;
        // the same judgement as the deed's, and the same refusal, before anything is begun
        let judged = move |view: &JobView| {
            judge_action(action, &view.job, view.node)
                .map(|effect| effect.describe(&view.job))
                .map_err(|why| not_allowed(&view.job, view.node, action, &why))
        };
        if act.dry_run {
            let effect = judged(&now)?;
            return Ok(JobActed { view: now, effect, done: false });
        }
        let (key, engine) = (now.job.node_id.to_string(), self.engine().clone());
        let fresh = Fresh::make(self.store().ambient().as_ref());
        let act = Act { job: now.job.id, action, by: call.by.name.clone(), reason: act.reason };
        self.change(call, &key, move |tx| {
            let there = find(tx, &act.job, JobsOf::All)?;
            let effect = judged(&view(tx, there)?)?;
            let acted = workflow::job::act(tx, &engine, &act, &fresh)?;
            Ok(JobActed { view: view(tx, acted.job)?, effect, done: true })
        })
        .await
    }

    /// Its bundle was issued; from now on its onboarding waits for the agent. Again: the same one.
    pub async fn start_onboarding(&self, call: &Arc<Call>, node: &str, reason: &str) -> Result<JobView, Error> {
        check_text("reason", reason, COMMENT_MAX)?;
        match self
            .begin_job(call, node, JobKind::Onboarding(Ground::Bundle), Parameters::default(), reason, false)
            .await?
        {
            Begun::Job(view) => Ok(*view),
            Begun::Preview { .. } => Err(Error::internal("a preview that nobody asked for")),
        }
    }

    /// Again in the same mode: the one that is under way.
    pub async fn start_decommission(&self, call: &Arc<Call>, new: NewDecommission) -> Result<Begun, Error> {
        let named = NodeRef::new("node_id", &new.node)?;
        let (there, boot, open) = self
            .store()
            .snapshot(move |tx| {
                let there = find_node(tx, &named)?;
                let boot = boot_node_of(tx, &there)?;
                let open = tx.point(&job::open_of_node(&there.id))?;
                Ok((there, boot, open))
            })
            .await?;
        let ground = if boot.is_some() { Ground::Boot } else { there.ground() };
        let kind = JobKind::Decommission(decommission_mode(&new.mode, &there, ground)?);
        check_text("reason", &new.reason, COMMENT_MAX)?;
        if !new.scratch_paths.is_empty() {
            // root empties them
            call.needs(Role::Admin, "scratch_paths")?;
        }
        let mut parameters = parameters(new.grace_seconds, new.force, new.scratch_paths)?;
        if let (Ground::Maas, Some(place)) = (kind.ground(), &there.maas) {
            check_text("profile", &new.profile, TEXT_MAX)?;
            let profile = match new.profile.as_str() {
                "" => self.last_profile(&there.id).await?,
                named => named.to_owned(),
            };
            let wish = MaasWish { site: place.site.clone(), profile, ..MaasWish::default() };
            parameters.maas = Some(MaasWish { system_id: place.system_id.clone(), ..wish });
        }
        // one that is under way has been looked at
        if let (Ground::Boot, Some(boot), None) = (kind.ground(), &boot, &open) {
            check_text("profile", &new.profile, TEXT_MAX)?;
            parameters.image = self.repaves(boot, &new.profile).await?;
        }
        self.begin_job(call, &new.node, kind, parameters, &new.reason, new.dry_run).await
    }

    /// What a node was last made to: what was only wished for, and called off before it was ordered, is not.
    async fn last_profile(&self, node: &NodeId) -> Result<String, Error> {
        let node = node.clone();
        let last = self.store().snapshot(move |tx| job::learned_of_node(tx, &node)).await?;
        let last: Vec<Learned> = last.iter().map(|learned| Learned::read(learned)).collect();
        let deployed = last.iter().find(|learned| learned.is_ours()).or_else(|| last.first());
        Ok(deployed.map(|learned| learned.profile.clone()).unwrap_or_default())
    }

    async fn begin_job(
        &self,
        call: &Arc<Call>,
        node: &str,
        kind: JobKind,
        parameters: Parameters,
        reason: &str,
        dry_run: bool,
    ) -> Result<Begun, Error> {
        let named = NodeRef::new("node_id", node)?;
        let there = self.store().snapshot(move |tx| find_node(tx, &named)).await?;
        if dry_run {
            return self
                .store()
                .snapshot(move |tx| {
                    let open = tx.point(&job::open_of_node(&there.id))?;
                    let effect = match may_begin(&there, open.as_ref(), kind)? {
                        Some(job) => format!("job {} is under way: nothing happens", job.id),
                        None => format!("{kind} begins and holds the node"),
                    };
                    Ok(Begun::Preview { node: there.id.clone(), kind, effect })
                })
                .await;
        }
        let fresh = Fresh::make(self.store().ambient().as_ref());
        let cause = Cause::operator(&call.by.name, domain::job::REQUESTED, reason);
        let new = NewJob { kind, parameters, reason: reason.to_owned() };
        let key = there.id.to_string();
        let begun = self
            .change(call, &key, move |tx| {
                let locked = lock_node(tx, &there.id)?;
                let open = tx.point(&job::open_of_node(&there.id))?;
                if let Some(job) = may_begin(&locked.node, open.as_ref(), kind)? {
                    return view(tx, job);
                }
                locked.is_free()?;
                let job = begin(tx, &locked.node, &new, &fresh, &cause)?;
                view(tx, job)
            })
            .await?;
        Ok(Begun::Job(Box::new(begun)))
    }
}

/// For whoever explains a job: what an attempt is for, in words.
pub(crate) fn purpose_of(job: &Job) -> &'static str {
    match (job.purpose, job.afterwards) {
        (Purpose::Forward, _) => "carries it out",
        (Purpose::Compensate, Some(Afterwards::Restart)) => "takes back what was done, to begin anew",
        (Purpose::Compensate, Some(Afterwards::Cancelled) | None) => "takes back what was done, to end it",
    }
}
