//! The deployment: what the machine is told at its first boot, the order, the wait, and the way out of a failure that may
//! pass. Deployed is not done: MAAS says so before anything works, which is why the agent must come, too.

use super::super::Parameters;
use super::cloud_init::{self, Told};
use super::failure::{Cause, cause_of};
use super::{
    JOB_ANNOTATION, Learned, Looked, NODE_ANNOTATION, OnMaas, Standing, asked, asked_idempotent, done, fail, part,
    part_in_hand, unread, waiting,
};
use domain::agent::{BootstrapToken, IdentityState};
use domain::id::is_hostname;
use domain::job::Job;
use domain::maas;
use domain::node::{AgentMode, Node};
use domain::site::Erase;
use domain::stage::FailureClass;
use engine::{Acted, Failure, Look, Seen, StageCx};
use provider::{Deployment, MaasMachine, Release, ResultKind};
use std::collections::BTreeMap;
use std::time::Duration;
use store::{agent, job, node};

const ORDER: &str = "the deployment";
const CLAIM: &str = "our mark on the machine";
const RELEASE: &str = "the release before another try";
const AGAIN: &str = "the deployment, once more";

/// A bundle must outlast the deployment that it is given to.
const GOOD_FOR: Duration = Duration::from_secs(6 * 3600);
/// What is deployed installs its agent within minutes.
const COMES_WITHIN: Duration = Duration::from_secs(3600);
/// After an error at the first boot, so long may the agent still come: not every error keeps it away.
const PATIENCE: Duration = Duration::from_secs(900);

impl OnMaas<'_> {
    /// The bundle of the next deployment is out, and fits into what the machine is told.
    pub(super) async fn rendered(&self, at: &Standing) -> Looked<Look> {
        if at.learned.is_ours() {
            let machine = at.machine().await?;
            // what has failed is deployed once more, with a bundle of its own
            if at.is_beyond(&machine) && machine.status != maas::FAILED_DEPLOYMENT {
                return Ok(done("passed over: it is being deployed already"));
            }
        }
        let fresh = !at.learned.token.is_empty() && !at.learned.is_ordered();
        if fresh && self.is_out(at).await? {
            return Ok(done(format!("for profile {}, with bundle {}", at.profile.name, at.learned.bundles)));
        }
        Ok(Seen::Clear.into())
    }

    /// Whether the bundle that was made last can still be used by somebody.
    async fn is_out(&self, at: &Standing) -> Looked<bool> {
        let hash = at.learned.token.clone();
        let read = self.work.store.read(move |tx| Ok((tx.point(&agent::token(&hash))?, tx.now())));
        let (token, now) = read.await.map_err(|e| super::failed(&e))?;
        // one that was made with an older key of the server's cannot be made again
        let made = self.work.hands.bundles.make(&at.sight.node.id, &at.sight.job.id, at.learned.bundles).await;
        if made.map_err(|e| super::failed(&e))?.hash != at.learned.token {
            return Ok(false);
        }
        let until = now.plus(GOOD_FOR);
        Ok(token.is_some_and(|token| !token.withdrawn && token.key_sha256.is_none() && token.expires_at > until))
    }

    /// Whether the bundle that was deployed can still bring an agent.
    async fn may_bring_an_agent(&self, at: &Standing) -> Looked<bool> {
        let hash = at.learned.token.clone();
        let read = self.work.store.read(move |tx| Ok((tx.point(&agent::token(&hash))?, tx.now())));
        let (token, now) = read.await.map_err(|e| super::failed(&e))?;
        Ok(token.is_some_and(|token| !token.withdrawn && token.expires_at > now))
    }

    pub(super) async fn render(&self, at: &Standing) -> Acted {
        match self.new_bundle(at, 0).await {
            Ok(()) => Acted::Yes,
            Err(failure) => Acted::No(failure),
        }
    }

    /// Makes the next bundle, and what a machine is told with it. Nothing secret is kept: the same is made again for the
    /// same number.
    async fn new_bundle(&self, at: &Standing, recoveries: u32) -> Result<(), Failure> {
        let number = at.learned.bundles + 1;
        let made = self.work.hands.bundles.make(&at.sight.node.id, &at.sight.job.id, number).await;
        let made = made.map_err(|e| super::failed(&e))?;
        self.user_data(at, &made.text, "")?;
        let (hash, expires_at) = (made.hash, made.expires_at);
        let written = self.work.write(move |tx, there, of| {
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
            if tx.point(&agent::token(&hash))?.is_none() {
                agent::issue(tx, &token)?;
            }
            // whoever had its key before is overwritten by what is deployed
            if tx.point(&agent::by_node(&there.id))?.is_some() && there.agent_mode != AgentMode::Rebootstrap {
                let agent_mode_by = of.requested_by.clone();
                node::save(tx, &Node { agent_mode: AgentMode::Rebootstrap, agent_mode_by, ..there })?;
            }
            let before = Learned::read(&of.learned);
            let learned = Learned { bundles: number, token: hash.clone(), recoveries, ..before };
            job::save(tx, &Job { learned: learned.text(), ..of }).map(drop)
        });
        match written.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::new("SUPERSEDED", FailureClass::NeedsOperator, "another attempt has begun")),
            Err(e) => Err(super::failed(&e)),
        }
    }

    fn user_data(&self, at: &Standing, bundle: &domain::Secret, hostname: &str) -> Result<domain::Secret, Failure> {
        let told = Told {
            hostname,
            node_id: at.sight.node.id.as_str(),
            node_name: &at.sight.node.name,
            site: &at.site.name,
            bundle,
        };
        cloud_init::render(&at.profile, &told).map_err(|why| {
            let message = format!(
                "the cloud-init template of profile {} cannot be filled in: {why}; 'millwright site edit {}', then try again",
                at.profile.name, at.site.name
            );
            Failure::new("TEMPLATE", FailureClass::NeedsOperator, message)
        })
    }

    pub(super) async fn ordered(&self, at: &Standing, cx: &StageCx) -> Looked<Look> {
        let machine = at.machine().await?;
        Ok(match machine.status {
            maas::READY => part(&cx.facts, ORDER, cx),
            maas::ALLOCATED
                if at.learned.is_ours() || machine.annotations.get(NODE_ANNOTATION).is_some_and(|n| n == at.node()) =>
            {
                part(&cx.facts, ORDER, cx)
            }
            maas::DEPLOYING | maas::DEPLOYED if at.learned.is_ordered() || !at.learned.adopted_by.is_empty() => {
                // who finds it there knows whose it is, also where we take it as it is; only its owner may mark it
                match at.bears_mark(&machine) || at.taken_by(&machine).is_some() {
                    true => {
                        let marked = at.bears_mark(&machine);
                        self.learn(at, move |learned| learned.marked = marked).await?;
                        done(format!("MAAS is at it: {}", machine.status_name))
                    }
                    false => part(&cx.facts, CLAIM, cx),
                }
            }
            maas::FAILED_DEPLOYMENT if at.learned.is_ordered() => done("it was deployed, and failed"),
            maas::FAILED_DEPLOYMENT if at.learned.is_ours() => part(&cx.facts, RELEASE, cx),
            maas::RELEASING | maas::DISK_ERASING if at.learned.is_ours() => {
                waiting(format!("MAAS: {}", machine.says()), cx).into()
            }
            maas::RELEASING_FAILED | maas::FAILED_DISK_ERASING if at.learned.is_ours() => {
                return release_failed(at, &machine, cx);
            }
            _ => return at.surprise(&machine, "Ready"),
        })
    }

    pub(super) async fn deploy(&self, at: &Standing, cx: &StageCx) -> Acted {
        match part_in_hand(cx) {
            CLAIM => self.claim(at).await,
            RELEASE => self.release_for_another_try(at).await,
            _ => self.order_with_a_good_bundle(at, false).await,
        }
    }

    async fn claim(&self, at: &Standing) -> Acted {
        let mark = BTreeMap::from([
            (NODE_ANNOTATION.to_owned(), at.node().to_owned()),
            (JOB_ANNOTATION.to_owned(), at.sight.job.id.to_string()),
        ]);
        asked_idempotent(at.maas.annotate(at.system_id(), &mark).await)
    }

    async fn release_for_another_try(&self, at: &Standing) -> Acted {
        let comment = format!("millwright job {}: tries again", at.sight.job.id);
        asked(at.maas.release(at.system_id(), &Release { erase: Erase::None, comment }).await)
    }

    /// A bundle that was used, or that nobody may use any more, is not given out: a new one is made first.
    async fn order_with_a_good_bundle(&self, at: &Standing, recovers: bool) -> Acted {
        match self.is_out(at).await {
            Ok(true) if !recovers => return self.order(at).await,
            Ok(_) => {}
            Err(stopped) => return super::unmoved(stopped),
        }
        let recoveries = at.learned.recoveries + u32::from(recovers);
        if let Err(failure) = self.new_bundle(at, recoveries).await {
            return Acted::No(failure);
        }
        // read anew with what was just learned
        let sight = match self.work.sight().await {
            Ok(sight) => sight,
            Err(failure) => return Acted::No(failure),
        };
        self.order(&at.since(sight)).await
    }

    /// That it is ordered, and with which bundle, is durable before it is: whatever runs there later is known to be ours.
    async fn order(&self, at: &Standing) -> Acted {
        let made = self.work.hands.bundles.make(&at.sight.node.id, &at.sight.job.id, at.learned.bundles).await;
        let made = match made {
            Ok(made) if made.hash == at.learned.token => made,
            // the server's keys have changed since: what was issued cannot be made again
            Ok(_) => {
                let message =
                    "the bundle was made with another key of the server's; a resume of the job makes a new one";
                return Acted::No(Failure::new("BUNDLE_OUTDATED", FailureClass::NeedsOperator, message));
            }
            Err(e) => return Acted::No(super::failed(&e)),
        };
        let machine = match at.machine().await {
            Ok(machine) => machine,
            Err(stopped) => return super::unmoved(stopped),
        };
        // somebody may have taken it since the look: what they have is not ordered over
        let bears_mark = machine.annotations.get(NODE_ANNOTATION).is_some_and(|node| node == at.node());
        let free = match machine.status {
            maas::READY => true,
            maas::ALLOCATED => bears_mark || at.learned.is_ours(),
            _ => false,
        };
        if !free {
            return super::not_yet(format!("MAAS: {}", machine.says()));
        }
        if let Err(stopped) = self.is_the_only_one(at, &machine).await {
            return super::unmoved(stopped);
        }
        let hostname = at.hostname(&machine);
        if !is_hostname(&hostname) {
            let message = format!(
                "machine {} is called {hostname:?} in MAAS, which no system can be called: rename it there, then 'millwright job resume {}'",
                machine.system_id, at.sight.job.id
            );
            return Acted::No(Failure::new("HOSTNAME_UNUSABLE", FailureClass::NeedsOperator, message));
        }
        let user_data = match self.user_data(at, &made.text, &hostname) {
            Ok(user_data) => user_data,
            Err(failure) => return Acted::No(failure),
        };
        let mark = match at.maas.events(None, "DEBUG", &[at.system_id().to_owned()]).await {
            Ok(events) => events.iter().map(|event| event.id).max().unwrap_or(0),
            Err(e) => return super::unmoved(unread(&e)),
        };
        let (token, now) = (at.learned.token.clone(), self.work.store.ambient().now().micros());
        let learned = self.learn(at, move |learned| {
            learned.ordered.clone_from(&token);
            learned.event_mark = mark;
            // what was true of the one before is not of this one, whoever has said so
            learned.synced_at.clear();
            learned.adopted_by.clear();
            learned.marked = false;
            learned.erases = false;
            learned.sent_at_us = Some(now);
        });
        if let Err(failure) = learned.await {
            return Acted::No(failure);
        }
        if let Err(failure) = self.nothing_is_adopted(at).await {
            return Acted::No(failure);
        }
        let deployment = Deployment {
            series: at.profile.series.clone(),
            kernel: at.profile.kernel.clone(),
            user_data,
            hardware_sync: at.site.policy.hardware_sync,
            agent_name: format!("millwright {}", at.node()),
            comment: format!("millwright job {}", at.sight.job.id),
        };
        let acted = asked(at.maas.deploy(at.system_id(), &deployment).await);
        // nothing was sent: the bundle is still to be given out, and what was ordered before still is what was
        self.unless_sent(at, acted).await
    }

    /// What is ordered by this job is its own: a wish to take things as they are found was for what was there before.
    async fn nothing_is_adopted(&self, at: &Standing) -> Result<(), Failure> {
        if Parameters::of(&at.sight.job).adopting.is_none() {
            return Ok(());
        }
        let written = self.work.write(|tx, _, there| {
            let parameters = Parameters { adopting: None, ..Parameters::of(&there) }.to_text();
            job::save(tx, &Job { parameters, ..there }).map(drop)
        });
        written.await.map(drop).map_err(|e| super::failed(&e))
    }

    pub(super) async fn deployed(&self, at: &Standing, cx: &StageCx) -> Looked<Look> {
        let machine = at.deployed_machine().await?;
        match machine.status {
            maas::DEPLOYED => self.is_deployed(at, &machine).await,
            maas::DEPLOYING => Ok(waiting(format!("MAAS: {}", machine.says()), cx).into()),
            maas::FAILED_DEPLOYMENT => Ok(done("the deployment failed, which is classified next")),
            _ => at.surprise(&machine, "Deployed"),
        }
    }

    /// What is known of it then: later looks are compared with that.
    async fn is_deployed(&self, at: &Standing, machine: &MaasMachine) -> Looked<Look> {
        let (synced_at, address) = (machine.hardware_sync.last_sync.clone(), address(machine));
        let said = if address.is_empty() { "without an address".to_owned() } else { format!("at {address}") };
        self.learn(at, move |learned| {
            if learned.synced_at.is_empty() {
                learned.synced_at.clone_from(&synced_at);
            }
            learned.address.clone_from(&address);
        })
        .await?;
        Ok(done(format!("{} {} {said}", machine.osystem, machine.distro_series)))
    }

    pub(super) async fn classified(&self, at: &Standing, cx: &StageCx) -> Looked<Look> {
        let machine = at.deployed_machine().await?;
        match machine.status {
            // also where it had failed, and came up after all: what is compared later is what is known now
            maas::DEPLOYED => {
                self.is_deployed(at, &machine).await?;
                Ok(done("passed over: it deployed"))
            }
            maas::DEPLOYING => Ok(waiting(format!("MAAS: {}", machine.says()), cx).into()),
            maas::FAILED_DEPLOYMENT => {
                let cause = self.cause(at).await?;
                let told = cause.clone();
                self.learn(at, move |learned| told.word().clone_into(&mut learned.cause)).await?;
                match cause {
                    Cause::Datasource(why) => Ok(done(format!("its system could not be told anything: {why}"))),
                    other => Err(other.failure(at).into()),
                }
            }
            _ => at.surprise(&machine, "a failed deployment"),
        }
    }

    async fn cause(&self, at: &Standing) -> Looked<Cause> {
        let results = at.maas.results(at.system_id(), ResultKind::Installation, true).await.map_err(|e| unread(&e))?;
        let ids = [at.system_id().to_owned()];
        let events = at.maas.events(Some(at.learned.event_mark), "ERROR", &ids).await.map_err(|e| unread(&e))?;
        Ok(cause_of(&results, &events))
    }

    /// A deployment whose system could not reach MAAS is released and tried again, as often as the site's policy says.
    pub(super) async fn recovered(&self, at: &Standing, cx: &StageCx) -> Looked<Look> {
        let machine = at.machine().await?;
        match machine.status {
            // the release before it has taken our mark away
            maas::DEPLOYED | maas::DEPLOYING
                if !at.is_marked(&machine) && [AGAIN, CLAIM].contains(&part_in_hand(cx)) && at.learned.is_ordered() =>
            {
                Ok(part(&cx.facts, CLAIM, cx))
            }
            maas::DEPLOYED if !at.is_marked(&machine) => at.surprise(&machine, "what this job has deployed"),
            maas::DEPLOYED if at.learned.recoveries == 0 => {
                self.is_deployed(at, &machine).await?;
                Ok(done("passed over: nothing is left to mend"))
            }
            maas::DEPLOYED => {
                let marked = at.bears_mark(&machine);
                self.learn(at, move |learned| learned.marked = marked).await?;
                self.is_deployed(at, &machine).await
            }
            // a site may erase whatever is released
            maas::DEPLOYING | maas::RELEASING | maas::DISK_ERASING => {
                Ok(waiting(format!("MAAS: {}", machine.says()), cx).into())
            }
            maas::RELEASING_FAILED | maas::FAILED_DISK_ERASING => release_failed(at, &machine, cx),
            maas::FAILED_DEPLOYMENT => {
                if [AGAIN, CLAIM].contains(&part_in_hand(cx)) {
                    // it was tried again: of what has it failed this time?
                    match self.cause(at).await? {
                        Cause::Datasource(_) => {}
                        other => return Err(other.failure(at).into()),
                    }
                }
                let (tried, most) = (at.learned.recoveries, at.site.policy.datasource_retries);
                if tried >= most {
                    let message = format!(
                        "the system of machine {} could not be told anything, {} times in a row (the site's policy allows {most} more tries): look at its console, its network and the image; then 'millwright job resume {}' releases it and deploys it again",
                        machine.system_id,
                        tried + 1,
                        at.sight.job.id
                    );
                    return fail("DATASOURCE_REPEATED", FailureClass::NeedsOperator, message);
                }
                Ok(part(&cx.facts, RELEASE, cx))
            }
            maas::READY => Ok(part(&cx.facts, AGAIN, cx)),
            _ => at.surprise(&machine, "a failed deployment"),
        }
    }

    pub(super) async fn recover(&self, at: &Standing, cx: &StageCx) -> Acted {
        match part_in_hand(cx) {
            RELEASE => self.release_for_another_try(at).await,
            CLAIM => self.claim(at).await,
            // a bundle that was used, or may have been, is not given out twice
            _ => self.order_with_a_good_bundle(at, at.learned.is_ordered()).await,
        }
    }

    /// The agent that came with this job's own bundle, and no other: one that was there before proves nothing.
    pub(super) async fn enrolled(&self, at: &Standing, cx: &StageCx) -> Looked<Look> {
        // where somebody has said that the machine is to be taken as it is: one that came since, with whatever bundle
        let adopted = !at.learned.adopted_by.is_empty();
        let since = at.sight.job.created_at;
        let is_ours = |agent: &&domain::agent::AgentIdentity| {
            agent.token_id == at.learned.token || adopted && agent.enrolled_at > since
        };
        let ours = at.sight.agent.as_ref().filter(is_ours);
        if let Some(agent) = ours {
            if agent.state != IdentityState::Good {
                let message = format!("the agent's identity is {}: {}", agent.state, agent.state_reason);
                return fail("IDENTITY_STOPPED", FailureClass::NeedsOperator, message);
            }
            // one that has enrolled and is never heard of may run on what somebody has released since
            let machine = at.deployed_machine().await?;
            if machine.status != maas::DEPLOYED {
                return at.surprise(&machine, "Deployed");
            }
            if agent.confirmed && agent.last_beat.is_some() {
                let address = address(&machine);
                let said = address.clone();
                self.learn(at, move |learned| learned.address.clone_from(&address)).await?;
                let mark = at.learned.bundles;
                return Ok(done(format!(
                    "enrolled at {} with bundle {mark} of this job; reached at {said}",
                    agent.enrolled_at
                )));
            }
            return Ok(waiting("the agent's first heartbeat", cx).into());
        }
        let machine = at.deployed_machine().await?;
        if machine.status != maas::DEPLOYED {
            return at.surprise(&machine, "Deployed");
        }
        if !adopted && !self.may_bring_an_agent(at).await? {
            let message = format!(
                "the bundle that machine {} was deployed with is good no more, and no agent came with it: 'millwright job restart_clean {} --reason WHY' deploys it anew",
                machine.system_id, at.sight.job.id
            );
            return fail("NO_BUNDLE", FailureClass::NeedsOperator, message);
        }
        let ids = [at.system_id().to_owned()];
        let events = at.maas.events(Some(at.learned.event_mark), "ERROR", &ids).await.map_err(|e| unread(&e))?;
        let error =
            events.iter().rev().find(|event| event.kind.contains("post-installation")).map(|e| e.description.clone());
        match error {
            Some(error) if cx.elapsed > PATIENCE => {
                let message = format!(
                    "its first boot reported an error ({error}), and no agent has come since; look at /var/log/cloud-init-output.log there, then 'millwright job retry_stage {}' or 'restart_clean'",
                    at.sight.job.id
                );
                fail("CLOUD_INIT_FAILED", FailureClass::NeedsOperator, message)
            }
            Some(error) => {
                Ok(waiting(format!("the agent of this deployment; its first boot reported an error: {error}"), cx)
                    .into())
            }
            None if cx.elapsed > COMES_WITHIN => {
                let message = format!(
                    "no agent of this deployment has come within {} min: look at /var/log/cloud-init-output.log on machine {} ({}), and whether it reaches the agents' port; then 'millwright job retry_stage {}' waits again, 'restart_clean' deploys anew",
                    COMES_WITHIN.as_secs() / 60,
                    machine.system_id,
                    address(&machine),
                    at.sight.job.id
                );
                fail("AGENT_NOT_COME", FailureClass::NeedsOperator, message)
            }
            None => Ok(waiting("the agent of this deployment to enrol", cx).into()),
        }
    }
}

/// The release before another try has failed, or the erasure that the site has made of it: for a person if it was ours,
/// and otherwise asked for once more.
fn release_failed(at: &Standing, machine: &MaasMachine, cx: &StageCx) -> Looked<Look> {
    if cx.acted && part_in_hand(cx) == RELEASE {
        let message = format!(
            "MAAS says {} of machine {}, which is released to be deployed again; look at its release results and its BMC in MAAS, then 'millwright job resume {}' releases it once more",
            machine.status_name, machine.system_id, at.sight.job.id
        );
        return fail("RELEASE_FAILED", FailureClass::Hardware, message);
    }
    Ok(part(&cx.facts, RELEASE, cx))
}

/// Where it is reached: the address of the interface that it boots from, or the first that it has.
pub(super) fn address(machine: &MaasMachine) -> String {
    let boots = machine.interfaces.iter().find(|i| machine.boot_interface == Some(i.id));
    let linked = boots.into_iter().flat_map(|i| &i.links).map(|link| link.ip_address.clone()).find(|ip| !ip.is_empty());
    linked.or_else(|| machine.ip_addresses.first().cloned()).unwrap_or_default()
}
