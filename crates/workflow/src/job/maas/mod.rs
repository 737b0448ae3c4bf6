//! Stages that ask a MAAS. Each looks at what MAAS says of the machine, decides by its status alone, and asks for one thing
//! at a time; what it learns is kept with the job. A site that does not answer is waited for, within the stage's time.

pub mod cloud_init;
mod deploy;
mod failure;
mod find;
mod give_back;
mod learned;
mod prepare;
mod standing;
mod sync;

pub use learned::{Learned, MaasWish, PowerWish};

use super::Parameters;
use super::stage::{JobWork, Sight, failed};
use domain::Reason;
use domain::credential::Credential;
use domain::job::Job;
use domain::job_stage::Undo;
use domain::maas_stage::MaasStage;
use domain::site::SiteState;
use domain::stage::FailureClass;
use engine::{Acted, Failure, Look, Seen, StageCx};
use provider::{MaasAccess, MaasMachine, ProviderError};
use standing::Standing;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use store::{job, site};
use tokio::time::{Instant, timeout};

/// Between two looks of a stage that waits: whoever observes the site wakes it sooner.
const POLL: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// What MAAS has said yes to, or may have, is seen by then; if not it was lost, and is asked for again.
const TAKEN_WITHIN: Duration = Duration::from_secs(180);

/// So long a look waits for its turn at the site, among all others who ask there.
const TURN_WITHIN: Duration = Duration::from_secs(3);

/// The annotations by which our machines are known upstream.
pub const NODE_ANNOTATION: &str = "millwright-node";
pub const JOB_ANNOTATION: &str = "millwright-job";

/// The stages of a job that ask a MAAS.
pub(super) struct OnMaas<'a> {
    pub work: &'a JobWork,
}

/// Which one.
#[derive(Clone, Copy)]
pub(super) enum Asks {
    Stage(MaasStage),
    /// The agent of what was deployed.
    Enrolment,
}

/// A look that ends in a failure is one; that a stage must wait is none.
enum Stopped {
    Failed(Failure),
    Waits(String),
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Stopped::Failed(failure)
    }
}

type Looked<T> = Result<T, Stopped>;

fn fail<T>(code: &str, class: FailureClass, message: impl Into<String>) -> Looked<T> {
    Err(Stopped::Failed(Failure::new(code, class, message)))
}

/// A refusal in the engine's words.
fn refused(e: &ProviderError) -> Failure {
    match e {
        ProviderError::Refused { class, reason, message } => Failure::new(reason.as_str(), *class, message.clone()),
        ProviderError::Unknown { message } => {
            Failure::new("PROVIDER_SILENT", FailureClass::DependencyDown, message.clone())
        }
    }
}

/// Whether nothing has reached the site: it is left alone, others have their turn there, or there is no way to it.
fn was_not_asked(e: &ProviderError) -> bool {
    match e {
        ProviderError::Unknown { .. } => false,
        ProviderError::Refused { reason, .. } => matches!(
            reason,
            Reason::EndpointBusy | Reason::CircuitOpen | Reason::Unreachable | Reason::ConnectionRefused
        ),
    }
}

/// Nothing was sent: that is waited for, within the stage's own time, and no attempt is spent on it.
fn not_yet(on: impl Into<String>) -> Acted {
    Acted::NotYet { on: on.into(), look_again: POLL.0 }
}

/// A read that went wrong: what may pass is waited for, what may not is told.
fn unread(e: &ProviderError) -> Stopped {
    let failure = refused(e);
    if failure.class.may_pass() { Stopped::Waits(silence(&failure.message)) } else { Stopped::Failed(failure) }
}

/// What came of something that was asked for. What may be repeated without harm is, where nobody knows.
fn asked(answer: Result<(), ProviderError>) -> Acted {
    match answer {
        Ok(()) => Acted::Yes,
        Err(ProviderError::Unknown { message }) => Acted::Unknown(message),
        Err(e) if was_not_asked(&e) => not_yet(silence(&e.to_string())),
        Err(e) => Acted::No(anew(&e)),
    }
}

/// As above, of something that does no harm when it is done twice.
fn asked_idempotent(answer: Result<(), ProviderError>) -> Acted {
    match answer {
        Ok(()) => Acted::Yes,
        Err(e) if was_not_asked(&e) => not_yet(silence(&e.to_string())),
        Err(e) => Acted::No(anew(&e)),
    }
}

/// A machine that is in another state than a moment ago is looked at again.
fn anew(e: &ProviderError) -> Failure {
    let failure = refused(e);
    match failure.code.as_str() {
        "WRONG_STATE" => Failure { class: FailureClass::Transient, ..failure },
        _ => failure,
    }
}

fn silence(why: &str) -> String {
    format!("the site to answer: {why}")
}

fn look_again(cx: &StageCx) -> Duration {
    cx.look_again().clamp(POLL.0, POLL.1)
}

fn waiting(on: impl Into<String>, cx: &StageCx) -> Seen {
    Seen::Waiting { on: on.into(), look_again: look_again(cx) }
}

/// Nothing of what was asked for is seen: a moment of patience, then it is asked for again.
fn clear_or_lost(cx: &StageCx, what: &str) -> Seen {
    if cx.acted && cx.since_act > TAKEN_WITHIN {
        let message = format!("{what} was asked for, and MAAS shows nothing of it");
        return Seen::Failed(Failure::new("NOT_TAKEN", FailureClass::Transient, message));
    }
    Seen::Clear
}

impl OnMaas<'_> {
    pub async fn look(&self, asks: Asks, cx: &StageCx, sight: Sight) -> Result<Look, Failure> {
        let has_machine = sight.node.maas.as_ref().is_some_and(|there| !there.system_id.is_empty());
        // its onboarding was called off: no MAAS need answer for it to go
        if sight.job.kind.removes() && !has_machine {
            return Ok(done("it has no machine in MAAS"));
        }
        let looked = match self.stand(sight).await {
            Ok(at) => {
                // what was taken as it was found once is so for the stages after this one, too
                let by = at.learned.adopted_by.clone();
                self.learn(&at, move |learned| learned.adopted_by.clone_from(&by)).await?;
                let seen = self.see(asks, &at, cx).await;
                self.tell(&at).await?;
                seen
            }
            Err(stopped) => Err(stopped),
        };
        match looked {
            // what cannot be told to a site that is away is not late
            Err(Stopped::Waits(on)) if matches!(asks, Asks::Stage(MaasStage::WaitForHardwareSyncHealthy)) => {
                Ok(Look { facts: Some(sync::site_was_away(cx)), ..waiting(on, cx).into() })
            }
            looked => settled(looked, cx).map_err(|failure| self.with_way_on(failure)),
        }
    }

    async fn see(&self, asks: Asks, at: &Standing, cx: &StageCx) -> Looked<Look> {
        let stage = match asks {
            Asks::Stage(stage) => stage,
            Asks::Enrolment => return self.enrolled(at, cx).await,
        };
        match stage {
            MaasStage::LoadSiteConfig => self.site_loaded(at).await,
            MaasStage::ResolvePowerCredentials => self.power_resolved(at).await,
            MaasStage::CreateOrFindInMaas => self.found(at, cx).await,
            MaasStage::CommissionNode => self.commissioned(at, cx).await,
            MaasStage::WaitForReady => self.ready(at, cx).await,
            MaasStage::ConfigureStorage => self.stored(at, cx).await,
            MaasStage::ApplyRocePhase2 => self.fabric(at, cx).await,
            MaasStage::EnsurePxeInterfaceAuto => self.pxe(at, cx).await,
            MaasStage::RenderCloudInit => self.rendered(at).await,
            MaasStage::DeployViaMaas => self.ordered(at, cx).await,
            MaasStage::WaitForDeployed => self.deployed(at, cx).await,
            MaasStage::ClassifyDeployFailure => self.classified(at, cx).await,
            MaasStage::RecoverForDatasourceRetry => self.recovered(at, cx).await,
            MaasStage::EnsureHardwareSyncConfigured => self.sync_configured(at).await,
            MaasStage::WaitForHardwareSyncHealthy => self.sync_moves(at, cx).await,
            MaasStage::ReleaseMaasNode => self.released(at, cx).await,
            MaasStage::PowerOffMaasNode => self.powered_off(at, cx).await,
            MaasStage::RemoveMaasRecord => self.record_gone(at, cx).await,
        }
    }

    pub async fn act(&self, asks: Asks, cx: &StageCx) -> Acted {
        match self.work.sight().await {
            Ok(sight) => self.in_time(cx, sight, |at| async move { self.do_stage(asks, &at, cx).await }).await,
            Err(failure) => Acted::No(failure),
        }
    }

    /// A deed as far as it comes before the engine gives it up: whether anything was sent by then is known here alone.
    async fn in_time<F>(&self, cx: &StageCx, sight: Sight, deed: impl FnOnce(Standing) -> F) -> Acted
    where
        F: Future<Output = Acted>,
    {
        let begun = Instant::now();
        let limit = cx.call_limit.mul_f64(0.8);
        let late = || format!("no answer within {:.0} s", limit.as_secs_f64());
        let at = match timeout(limit, self.stand(sight)).await {
            Ok(Ok(at)) => at,
            Ok(Err(stopped)) => return paced(unmoved(stopped), cx),
            Err(_) => return paced(not_yet(silence(&late())), cx),
        };
        let maas = at.maas.clone();
        let acted = match timeout(limit.saturating_sub(begun.elapsed()), deed(at)).await {
            Ok(acted) => acted,
            Err(_) if maas.may_have_changed_anything() => Acted::Unknown(late()),
            Err(_) => not_yet(silence(&late())),
        };
        match paced(acted, cx) {
            Acted::No(failure) => Acted::No(self.with_way_on(failure)),
            acted => acted,
        }
    }

    async fn do_stage(&self, asks: Asks, at: &Standing, cx: &StageCx) -> Acted {
        let Asks::Stage(stage) = asks else { return Acted::Yes };
        match stage {
            MaasStage::CreateOrFindInMaas => self.create(at, cx).await,
            MaasStage::CommissionNode => self.commission(at).await,
            MaasStage::ConfigureStorage => self.store_out(at, cx).await,
            MaasStage::ApplyRocePhase2 => self.set_fabric(at, cx).await,
            MaasStage::EnsurePxeInterfaceAuto => self.set_pxe(at).await,
            MaasStage::RenderCloudInit => self.render(at).await,
            MaasStage::DeployViaMaas => self.deploy(at, cx).await,
            MaasStage::RecoverForDatasourceRetry => self.recover(at, cx).await,
            MaasStage::ReleaseMaasNode => self.release(at, cx).await,
            MaasStage::PowerOffMaasNode => asked(at.maas.power_off(at.system_id()).await),
            MaasStage::RemoveMaasRecord => self.remove_record(at).await,
            // they only look
            MaasStage::LoadSiteConfig
            | MaasStage::ResolvePowerCredentials
            | MaasStage::WaitForReady
            | MaasStage::WaitForDeployed
            | MaasStage::ClassifyDeployFailure
            | MaasStage::EnsureHardwareSyncConfigured
            | MaasStage::WaitForHardwareSyncHealthy => Acted::Yes,
        }
    }

    pub async fn look_back(&self, undo: Undo, cx: &StageCx, sight: Sight) -> Result<Look, Failure> {
        let looked = match self.stand(sight).await {
            Ok(at) => self.given_back(undo, &at, cx).await.map(Look::from),
            Err(stopped) => Err(stopped),
        };
        settled(looked, cx).map_err(|failure| self.with_way_on(failure))
    }

    pub async fn take_back(&self, undo: Undo, cx: &StageCx, sight: Sight) -> Acted {
        self.in_time(cx, sight, |at| async move { self.give_back(undo, &at).await }).await
    }

    /// What a person must settle names the way on from there.
    fn with_way_on(&self, failure: Failure) -> Failure {
        if failure.class.may_pass() || failure.message.contains("millwright ") {
            return failure;
        }
        let message =
            format!("{}; settle that, then 'millwright job retry_stage {}'", failure.message, self.work.job_id);
        Failure { message, ..failure }
    }

    /// Site, profile and client, anew for every look: a site that was changed meanwhile is used as it is now.
    async fn stand(&self, sight: Sight) -> Looked<Standing> {
        let told = Parameters::of(&sight.job);
        let mut wish = told.maas.unwrap_or_default();
        let mut learned = Learned::read(&sight.job.learned);
        // for the stage that it was said of; those after it find it with what was learned
        let of_stage = |stage: &str| sight.job.stage.is_some_and(|at| at.as_str() == stage);
        if let Some(adopting) = told.adopting.filter(|wish| of_stage(&wish.stage)) {
            learned.adopted_by = adopting.by;
        }
        if let Some(there) = &sight.node.maas {
            wish.site.clone_from(&there.site);
            if learned.system_id.is_empty() {
                learned.system_id.clone_from(&there.system_id);
            }
        }
        let name = wish.site.clone();
        let read = self.work.store.read(move |tx| tx.point(&site::by_name(&name)));
        let there = read.await.map_err(|e| failed(&e))?.filter(|site| site.state == SiteState::Present);
        let Some(site) = there else {
            let message = format!("there is no site {:?}; 'millwright site create', then try again", wish.site);
            return fail("SITE_UNKNOWN", FailureClass::NeedsOperator, message);
        };
        let profile = if wish.profile.is_empty() { &learned.profile } else { &wish.profile };
        // a node that goes is made to nothing any more
        let any = site.profiles.first().filter(|_| sight.job.kind.removes());
        let Some(profile) = site.profile(profile).or(any).cloned() else {
            let message =
                format!("site {} has no profile {profile:?}; 'millwright site edit', then try again", site.name);
            return fail("PROFILE_UNKNOWN", FailureClass::NeedsOperator, message);
        };
        let key = match self.work.hands.keyring.credential(&site.credentials_ref).await {
            Ok(Credential::Maas(key)) => key,
            Ok(other) => {
                let (name, kind) = (&site.credentials_ref, other.kind());
                let message = format!("credential {name:?} of site {} is a {kind}, not a maas key", site.name);
                return fail("CREDENTIAL_MISSING", FailureClass::NeedsOperator, message);
            }
            Err(e) => return Err(unread(&e)),
        };
        let access = MaasAccess {
            site: site.name.clone(),
            url: site.url.clone(),
            ca_pem: site.ca_pem.clone(),
            key,
            calls_max: site.policy.calls_max,
        };
        // one for all that is asked in this look, or for this deed
        let maas = self.work.hands.maas.in_turn(&access, TURN_WITHIN).await.map_err(|e| unread(&e))?;
        Ok(Standing { sight, site, profile, wish, learned, maas, said: Mutex::new(None) })
    }

    /// What MAAS said last stands with the job, for whoever looks at it.
    async fn tell(&self, at: &Standing) -> Result<(), Failure> {
        let said = at.said.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(observed) = said.filter(|said| *said != at.sight.job.observed) else { return Ok(()) };
        let written =
            self.work.write(move |tx, _, there| job::save(tx, &Job { observed: observed.clone(), ..there }).map(drop));
        written.await.map(drop).map_err(|e| failed(&e))
    }

    /// What was written down before something was sent, that it is, is taken back where it was not, or was refused.
    async fn unless_sent(&self, at: &Standing, acted: Acted) -> Acted {
        if matches!(acted, Acted::Yes | Acted::Unknown(_)) {
            return acted;
        }
        let learned = at.sight.job.learned.clone();
        let written =
            self.work.write(move |tx, _, there| job::save(tx, &Job { learned: learned.clone(), ..there }).map(drop));
        match written.await {
            Ok(_) => acted,
            Err(e) => Acted::No(failed(&e)),
        }
    }

    /// Keeps what was learned, if it is news; as long as the job is this attempt's.
    async fn learn(&self, at: &Standing, change: impl Fn(&mut Learned) + Send + Sync + 'static) -> Result<(), Failure> {
        let before = Learned::read(&at.sight.job.learned);
        let mut after = before.clone();
        change(&mut after);
        if after == before {
            return Ok(());
        }
        let written = self.work.write(move |tx, _, there| {
            let mut learned = Learned::read(&there.learned);
            change(&mut learned);
            job::save(tx, &Job { learned: learned.text(), ..there }).map(drop)
        });
        match written.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::new("SUPERSEDED", FailureClass::NeedsOperator, "another attempt has begun")),
            Err(e) => Err(failed(&e)),
        }
    }
}

/// What a deed found that has changed since the look.
fn unmoved(stopped: Stopped) -> Acted {
    match stopped {
        Stopped::Failed(failure) => Acted::No(failure),
        Stopped::Waits(on) => not_yet(on),
    }
}

/// What is waited for is looked at as often as anything else.
fn paced(acted: Acted, cx: &StageCx) -> Acted {
    match acted {
        Acted::NotYet { on, .. } => Acted::NotYet { on, look_again: look_again(cx) },
        Acted::Yes | Acted::Unknown(_) | Acted::No(_) => acted,
    }
}

fn settled(looked: Looked<Look>, cx: &StageCx) -> Result<Look, Failure> {
    match looked {
        Ok(look) => Ok(look),
        Err(Stopped::Failed(failure)) => Err(failure),
        Err(Stopped::Waits(on)) => Ok(waiting(on, cx).into()),
    }
}

/// Done, since what it is for has happened already.
fn passed(machine: &MaasMachine) -> Look {
    Seen::Done(format!("passed over: MAAS says {} already", machine.status_name)).into()
}

fn done(message: impl Into<String>) -> Look {
    Seen::Done(message.into()).into()
}

/// A stage of several parts: which one is in hand stands in the facts, stored before it is done.
fn part(facts: &serde_json::Value, name: &str, cx: &StageCx) -> Look {
    let facts_after = serde_json::json!({ "part": name, "attempt": cx.attempt });
    let in_hand = *facts == facts_after;
    let seen = match (cx.acted, in_hand) {
        (true, false) => Seen::NextPart,
        (_, true) => clear_or_lost(cx, name),
        (false, false) => Seen::Clear,
    };
    Look { seen, output: Vec::new(), facts: Some(facts_after) }
}

fn part_in_hand(cx: &StageCx) -> &str {
    cx.facts.get("part").and_then(serde_json::Value::as_str).unwrap_or_default()
}
