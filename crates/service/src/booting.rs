//! The machines' own door: what one that boots from the network is served, and what its installer reports. Nobody here
//! has an account; whoever serves an installer's bytes has made a token for that one attempt.

use crate::boot_identity::{Fresh, conflicts, identified, linked};
use crate::boot_nodes::{mac_of, not_found};
use crate::reimage::job_named;
use crate::report_tokens::{self, Attempt};
use crate::{Service, workflows};
use domain::boot_decision::{Serve, Setup, decide, held_back};
use domain::boot_node::{BOOTED, BOOTED_AGAIN, BootNode, BootState, Claims};
use domain::boot_workflow::BootWorkflow;
use domain::credential::Credential;
use domain::finding::FindingKind;
use domain::install_order::{Closing, InstallOrder, OrderTask};
use domain::install_report::{Effect, Ignored, Said};
use domain::limits::MESSAGE_MAX;
use domain::{BootNodeId, Error, FindingId, MacAddress, Reason, Secret, Timestamp};
use std::collections::BTreeSet;
use std::time::Duration;
use store::{Caller, Cause, Tx, TxResult, boot_node, boot_workflow, finding, install_order, switch};
use workflow::install::{Told, fail_attempt};

/// How the boot service is set up.
#[derive(Clone, Debug, Default)]
pub struct BootSetup {
    pub serves: Setup,
    /// Groups whose nodes are `active` as soon as they are installed.
    pub promoted_groups: BTreeSet<String>,
    /// Nodes that nobody has approved; beyond that strangers are not written down.
    pub discovered_max: usize,
    /// What drives a machine that is found; empty: nothing, until somebody says.
    pub provider: String,
}

/// A machine that asks what to boot.
#[derive(Clone, Debug, Default)]
pub struct BootRequest {
    pub mac: String,
    pub claims: Claims,
    /// It comes from an address that our DHCP gave to another: what is said of a known machine is not believed, changes
    /// nothing, and gets no installer.
    pub foreign: bool,
}

/// Why an installer is not handed out.
const FOREIGN: &str = "this address was not leased to this machine";

/// What it is served, and what is known of it.
#[derive(Clone, Debug)]
pub struct Booting {
    pub node: BootNode,
    pub serve: Serve,
    /// Of the open order.
    pub workflow: Option<BootWorkflow>,
    /// Of this attempt, where an installer is served.
    pub token: Option<Secret>,
}

/// What an installer or a discovery boot sends.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub mac: String,
    pub token: Option<Secret>,
    pub claims: Claims,
    pub status: Option<String>,
    pub progress: Option<i64>,
    pub error: Option<String>,
    pub lines: Vec<String>,
    /// What a discovery boot has found, as JSON.
    pub inventory: Option<String>,
    /// What an erasure proves itself by, as JSON.
    pub evidence: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reported {
    pub applied: bool,
    pub state: &'static str,
    pub reason: &'static str,
}

/// What is kept of one report's lines, and of its documents.
const LINES_MAX: usize = 200;
const LINE_MAX: usize = 1024;
const DOCUMENT_MAX: usize = 64 * 1024;
const CLAIM_MAX: usize = 128;
/// To be seen again within this is no news.
const SEEN_EVERY: Duration = Duration::from_secs(60);

/// What a stranger says of itself may be anything: what is kept is short, and printable.
fn kept(text: &str) -> String {
    if text.len() <= CLAIM_MAX && !text.contains(char::is_control) && text.trim().len() == text.len() {
        return text.to_owned();
    }
    text.chars().filter(|c| !c.is_control()).take(CLAIM_MAX).collect::<String>().trim().to_owned()
}

/// One line, whatever an installer makes of it.
fn said_of_an_error(text: &str) -> String {
    let words = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    words.take(MESSAGE_MAX).collect::<String>().trim().to_owned()
}

fn kept_claims(claims: &Claims) -> Claims {
    Claims {
        hostname: kept(&claims.hostname),
        ip_address: kept(&claims.ip_address),
        vendor: kept(&claims.vendor),
        model: kept(&claims.model),
        serial_number: kept(&claims.serial_number),
        system_uuid: kept(&claims.system_uuid).to_ascii_lowercase(),
        arch: kept(&claims.arch),
        boot_mode: kept(&claims.boot_mode),
    }
}

fn seen_recently(node: &BootNode, now: Timestamp) -> bool {
    node.last_seen.is_some_and(|at| now.since(at) < SEEN_EVERY)
}

fn caller() -> Caller {
    Caller::new("machines")
}

impl Service {
    /// Decides what a machine boots. The first contact of an unknown one writes it down.
    pub async fn boot(&self, request: &BootRequest, setup: &BootSetup) -> Result<Booting, Error> {
        let mac = mac_of("mac", &request.mac)?;
        let claims = kept_claims(&request.claims);
        let mut node = match self.store().point(boot_node::by_mac(&mac)).await? {
            Some(node) if request.foreign => return self.asked_by_another(node, setup, FOREIGN.to_owned()).await,
            Some(node) => match node.contradicts(&claims) {
                None => self.seen_booting(node, &claims, &setup.provider).await?,
                Some(why) => {
                    self.another_has_its_card(&node, &why, &setup.provider).await?;
                    return self.asked_by_another(node, setup, why).await;
                }
            },
            None => self.discovered(&mac, claims, setup).await?,
        };
        // an attempt that ended with this boot is counted once, and then there is another answer
        for _ in 0..2 {
            let workflow = self.workflow_of(&node).await?;
            let serve = self.unless_frozen(decide(&node, workflow.as_ref(), setup.serves)).await?;
            match serve {
                Serve::AttemptLost => node = self.attempt_lost(&node).await?,
                Serve::Installer { .. } => {
                    let (node, token) = self.offer(&node).await?;
                    return Ok(Booting { node, serve, workflow, token: Some(Secret::new(token)) });
                }
                Serve::LocalDisk { .. } => {
                    let node = self.sent_to_its_disk(node).await?;
                    return Ok(Booting { node, serve, workflow, token: None });
                }
                Serve::Discover | Serve::Wait { .. } | Serve::Error { .. } => {
                    return Ok(Booting { node, serve, workflow, token: None });
                }
            }
        }
        let why = "its attempt ends again and again; wait a moment".to_owned();
        Ok(Booting { node, serve: Serve::Error { why }, workflow: None, token: None })
    }

    /// Whoever asks in the name of a machine that it is not: told what that machine would do, and nothing that helps.
    async fn asked_by_another(&self, node: BootNode, setup: &BootSetup, why: String) -> Result<Booting, Error> {
        let workflow = self.workflow_of(&node).await?;
        let serve = match decide(&node, workflow.as_ref(), setup.serves) {
            Serve::AttemptLost | Serve::Installer { .. } | Serve::Discover => Serve::Error { why: why.clone() },
            serve @ (Serve::LocalDisk { .. } | Serve::Wait { .. } | Serve::Error { .. }) => serve,
        };
        tracing::warn!(node = %node.id, mac = %node.mac, why, "somebody asks what to boot in the name of a machine that it is not");
        Ok(Booting { node, serve, workflow: None, token: None })
    }

    /// The card of an approved machine says that it is in another one: for a person to sort out.
    async fn another_has_its_card(&self, node: &BootNode, why: &str, provider: &str) -> Result<(), Error> {
        let (fresh, node, why) = (Fresh::new(self, provider), node.clone(), why.to_owned());
        self.store().write(&caller(), node.id.clone().as_str(), move |tx| conflicts(tx, &node, &why, &fresh)).await
    }

    /// Nothing is handed out that writes to a disk while all automation is frozen.
    async fn unless_frozen(&self, serve: Serve) -> Result<Serve, Error> {
        if !matches!(serve, Serve::Installer { .. } | Serve::AttemptLost) {
            return Ok(serve);
        }
        Ok(match self.store().read(switch::frozen).await? {
            Some(freeze) => held_back(serve, &freeze.by, &freeze.reason),
            None => serve,
        })
    }

    async fn workflow_of(&self, node: &BootNode) -> Result<Option<BootWorkflow>, Error> {
        match node.open_order() {
            Some(order) if order.task == OrderTask::Install => {
                self.store().point(boot_workflow::by_id(&order.workflow_id)).await
            }
            Some(_) | None => Ok(None),
        }
    }

    /// What it says anew is written before it is answered; that it was heard of is not worth waiting for.
    async fn seen_booting(&self, node: BootNode, claims: &Claims, provider: &str) -> Result<BootNode, Error> {
        let nothing_new = || !claims.is_news_to(&node.claims) || node.believes(claims) == node.claims;
        if node.last_seen.is_some() && nothing_new() {
            if !seen_recently(&node, self.now()) {
                self.inner.sightings.note(&node.id);
            }
            return Ok(node);
        }
        let (id, claims) = (node.id, claims.clone());
        let fresh = Fresh::new(self, provider);
        self.store()
            .write(&caller(), id.clone().as_str(), move |tx| {
                let there = boot_node::get_for_update(tx, &id)?.ok_or_else(|| not_found(id.as_str()))?;
                let said = there.believes(&claims);
                let heard = BootNode { claims: said, last_seen: Some(tx.now()), ..there.clone() };
                let heard = identified(tx, &there, heard, &fresh)?;
                boot_node::save(tx, &heard)?;
                Ok(tx.point(&boot_node::by_id(&id))?.ok_or_else(|| not_found(id.as_str()))?)
            })
            .await
    }

    async fn discovered(&self, mac: &MacAddress, claims: Claims, setup: &BootSetup) -> Result<BootNode, Error> {
        let id = BootNodeId::generate(self.store().ambient().uuid());
        let fresh_ids = Fresh::new(self, &setup.provider);
        let (mac, setup) = (mac.clone(), setup.clone());
        self.store()
            .write(&caller(), mac.clone().as_str(), move |tx| {
                if let Some(there) = tx.point(&boot_node::by_mac(&mac))? {
                    return Ok(there);
                }
                let strangers = boot_node::count_discovered(tx)?;
                if strangers >= setup.discovered_max as u64 {
                    let message = format!("{strangers} boot nodes wait for somebody to approve them; retire those that are junk, or raise netboot.discovered_max");
                    return Err(Error::new(Reason::LimitReached, message).into());
                }
                let now = tx.now();
                let node = BootNode { claims: claims.clone(), last_seen: Some(now), ..BootNode::new(id.clone(), mac.clone(), now) };
                let (node, conflict) = linked(tx, node, &fresh_ids)?;
                let node = boot_node::insert(tx, &node, &Cause::node(mac.as_str(), BOOTED, ""))?;
                if let Some(why) = conflict {
                    conflicts(tx, &node, &why, &fresh_ids)?;
                }
                Ok(node)
            })
            .await
    }

    /// The first boot after an installation is worth knowing: it is what whoever ordered it may wait for.
    async fn sent_to_its_disk(&self, node: BootNode) -> Result<BootNode, Error> {
        if first_disk_boot(&node).is_none() {
            return Ok(node);
        }
        let id = node.id;
        self.store()
            .write(&caller(), id.clone().as_str(), move |tx| {
                let there = boot_node::get_for_update(tx, &id)?.ok_or_else(|| not_found(id.as_str()))?;
                let Some(order) = first_disk_boot(&there) else { return Ok(there) };
                let now = tx.now();
                install_order::save(tx, &InstallOrder { disk_boot_at: Some(now), ..order.clone() })?;
                Ok(tx.point(&boot_node::by_id(&id))?.ok_or_else(|| not_found(id.as_str()))?)
            })
            .await
    }

    /// The attempt that had begun has ended: it asks again what to boot.
    async fn attempt_lost(&self, node: &BootNode) -> Result<BootNode, Error> {
        let finding = FindingId::generate(self.store().ambient().uuid());
        let (id, lost) = (node.id.clone(), node.open_order().map(|order| (order.id.clone(), order.attempt)));
        let mac = node.mac.clone();
        self.store()
            .write(&caller(), id.clone().as_str(), move |tx| {
                let there = boot_node::get_for_update(tx, &id)?.ok_or_else(|| not_found(id.as_str()))?;
                let now = there.open_order().map(|order| (order.id.clone(), order.attempt));
                if now != lost || there.open_order().is_some_and(|order| order.started_at.is_none()) {
                    return Ok(there);
                }
                let cause = Cause::node(mac.as_str(), BOOTED_AGAIN, "");
                let error = "the machine booted again before its installer had reported an end";
                fail_attempt(tx, &there, error, &finding, &cause)
            })
            .await
    }

    /// Hands out the installer of an attempt, with its token.
    async fn offer(&self, node: &BootNode) -> Result<(BootNode, String), Error> {
        let Some(order) = node.open_order() else { return Err(Error::internal("no order is open")) };
        let key = self.inner.vault.key().await?;
        let token = report_tokens::make(&key, &attempt_of(node, order));
        if order.offered_at.is_some() {
            return Ok((node.clone(), token));
        }
        let id = node.id.clone();
        let offered = self
            .store()
            .write(&caller(), id.clone().as_str(), move |tx| {
                let there = boot_node::get_for_update(tx, &id)?.ok_or_else(|| not_found(id.as_str()))?;
                if let Some(order) = there.open_order() {
                    let now = tx.now();
                    install_order::save(tx, &InstallOrder { offered_at: Some(now), ..order.clone() })?;
                }
                finding::gone(tx, FindingKind::NotBooted, id.as_str(), "it has booted from the network", "boot")?;
                Ok(tx.point(&boot_node::by_id(&id))?.ok_or_else(|| not_found(id.as_str()))?)
            })
            .await?;
        Ok((offered, token))
    }

    /// Whom a token was made for.
    async fn bearer(&self, token: &str) -> Result<(BootNodeId, OrderAttempt), Error> {
        let attempt = OrderAttempt::of(token).ok_or_else(token_invalid)?;
        let id = self.store().point(install_order::node_of(&attempt.order)).await?.ok_or_else(token_invalid)?;
        if self.made(token, &id, &attempt) { Ok((id, attempt)) } else { Err(token_invalid()) }
    }

    fn made(&self, token: &str, node: &BootNodeId, of: &OrderAttempt) -> bool {
        let attempt = Attempt { node: node.clone(), order: of.order.clone(), number: of.number };
        report_tokens::is_good(self.inner.vault.keys(), token, &attempt)
    }

    /// The node whose token this is, retired or not: its last report may come twice. A card that nobody knows is not found,
    /// whatever it shows.
    async fn reporter(&self, token: &str, mac: &MacAddress) -> Result<(BootNode, OrderAttempt), Error> {
        let known = self.store().point(boot_node::by_mac(mac)).await?;
        let refused = if known.is_some() { token_invalid() } else { not_found(mac.as_str()) };
        // it is bound to its node, so that of the one that has the card no order need be looked at
        if let (Some(node), Some(attempt)) = (known, OrderAttempt::of(token))
            && self.made(token, &node.id, &attempt)
        {
            return Ok((node, attempt));
        }
        let Ok((id, attempt)) = self.bearer(token).await else { return Err(refused) };
        let node = self.store().point(boot_node::by_id(&id)).await?;
        match node.filter(|node| node.mac == *mac) {
            Some(node) => Ok((node, attempt)),
            None => Err(refused),
        }
    }

    /// Takes a report. What does not fit is answered, changes nothing and can be seen in the log.
    pub async fn report(&self, report: Report, setup: &BootSetup) -> Result<Reported, Error> {
        let mac = mac_of("mac_address", &report.mac)?;
        let said = report.status.as_deref().map(Said::parse).transpose()?;
        let progress = match report.progress {
            Some(percent @ 0..=100) => u8::try_from(percent).ok(),
            Some(other) => {
                return Err(Error::field("installation_progress", format!("{other} is not within 0 to 100")));
            }
            None => None,
        };
        for (field, text) in [("facts", &report.inventory), ("evidence", &report.evidence)] {
            if text.as_ref().is_some_and(|text| text.len() > DOCUMENT_MAX) {
                return Err(Error::field(field, format!("has more than {DOCUMENT_MAX} bytes")));
            }
        }
        if report.lines.len() > LINES_MAX {
            return Err(Error::field("log_lines", format!("has {} entries, at most {LINES_MAX}", report.lines.len())));
        }
        let (node, bearer) = match &report.token {
            None => {
                let found = self.store().point(boot_node::by_mac(&mac)).await?;
                (found.ok_or_else(|| not_found(mac.as_str()))?, None)
            }
            Some(token) => match self.reporter(token.reveal(), &mac).await {
                Ok((node, attempt)) => (node, Some(attempt)),
                Err(e) => {
                    self.audit_stranger("report", "", &e).await;
                    return Err(e);
                }
            },
        };
        let told = Told {
            said,
            progress,
            error: said_of_an_error(&report.error.unwrap_or_default()),
            lines: report
                .lines
                .iter()
                .map(|line| line.chars().filter(|c| !c.is_control()).take(LINE_MAX).collect())
                .collect(),
            evidence: report.evidence.unwrap_or_default(),
            finding: FindingId::generate(self.store().ambient().uuid()),
            promote: setup.promoted_groups.contains(&node.group),
        };
        let (claims, inventory) = (kept_claims(&report.claims), report.inventory);
        let fresh = Fresh::new(self, &setup.provider);
        let id = node.id.clone();
        let (node, effect) = self
            .store()
            .write(&caller(), id.clone().as_str(), move |tx| {
                let there = boot_node::get_for_update(tx, &id)?.ok_or_else(|| not_found(id.as_str()))?;
                // an installer that has shown its token is the machine itself
                let said = match &bearer {
                    Some(_) => claims.clone().over(&there.claims),
                    None => there.believes(&claims),
                };
                let there = described(tx, there, said, inventory.as_deref(), &fresh)?;
                match &bearer {
                    None => Ok((there, Effect::Nothing(Ignored::NoToken))),
                    Some(of) if there.order.as_ref().is_none_or(|order| order.id != of.order) => {
                        Ok((there, Effect::Nothing(Ignored::OrderClosed)))
                    }
                    Some(of) => workflow::install::report(tx, &there, of.number, &told),
                }
            })
            .await?;
        let (applied, reason) = match effect {
            Effect::Begins | Effect::BeginsAgain | Effect::Progresses(_) | Effect::Completes | Effect::Fails(_) => {
                (true, "")
            }
            Effect::Nothing(why) => (false, why.as_str()),
        };
        let (said, state) = (said.map_or("", Said::as_str), domain::lifecycle::State::as_str(node.state));
        // every installation says every two seconds how far it is
        if let Effect::Progresses(percent) = effect {
            tracing::debug!(node = %node.id, mac = %node.mac, percent, "an installation goes on");
        } else {
            tracing::info!(node = %node.id, mac = %node.mac, said, applied, reason, state, "a machine has reported");
        }
        Ok(Reported { applied, state, reason })
    }

    /// What the bearer of an installation's token is to do.
    pub async fn ordered(&self, token: &str) -> Result<Ordered, Error> {
        let (id, of) = match self.bearer(token).await {
            Ok(bearer) => bearer,
            Err(e) => {
                self.audit_stranger("boot_order", "", &e).await;
                return Err(e);
            }
        };
        let node = self.store().point(boot_node::by_id(&id)).await?.ok_or_else(|| not_found(id.as_str()))?;
        let order = node.open_order().filter(|order| order.id == of.order && order.attempt == of.number).cloned();
        let Some(order) = order else {
            let message =
                format!("the attempt that this token was made for has ended; boot node {} is {}", node.id, node.state);
            return Err(Error::new(Reason::IllegalTransition, message).with("reason", Ignored::OrderClosed.as_str()));
        };
        let workflow = match order.task {
            OrderTask::Erase => None,
            OrderTask::Install => {
                let found = self.store().point(boot_workflow::by_id(&order.workflow_id)).await?;
                Some(found.ok_or_else(|| workflows::not_found(&order.workflow_id))?)
            }
        };
        Ok(Ordered { node, order, workflow })
    }

    /// What cloud-init is given, where the order names a credential with it. For the bearer of its token, and nobody else.
    pub async fn user_data(&self, ordered: &Ordered) -> Result<Option<Secret>, Error> {
        let name = &ordered.order.user_data_ref;
        if name.is_empty() {
            return Ok(None);
        }
        match self.inner.vault.find(name).await? {
            Credential::UserData(text) => Ok(Some(text)),
            other => {
                let message = format!("credential {name:?} is of kind {}, not user-data", other.kind());
                Err(Error::new(Reason::CredentialMissing, message))
            }
        }
    }
}

/// The order that has installed it, if it has not been seen to boot from its disk since.
fn first_disk_boot(node: &BootNode) -> Option<&InstallOrder> {
    let order = node.order.as_ref().filter(|_| node.state == BootState::Installed)?;
    let done = matches!(order.closed, Some((_, Closing::Done)));
    (done && order.task == OrderTask::Install && order.disk_boot_at.is_none()).then_some(order)
}

/// What the bearer of a token is to do.
#[derive(Clone, Debug)]
pub struct Ordered {
    pub node: BootNode,
    pub order: InstallOrder,
    pub workflow: Option<BootWorkflow>,
}

impl Ordered {
    /// Whether a job says what the installed system is told.
    pub fn is_of_a_job(&self) -> bool {
        job_named(&self.order.user_data_ref).is_some()
    }

    /// What the installed system is called.
    pub fn hostname(&self) -> String {
        let machine = || self.node.machine_id.as_ref().map(ToString::to_string).unwrap_or_default();
        let told = &self.node.claims.hostname;
        let name = if told.is_empty() { machine() } else { told.clone() };
        let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
        name.chars().filter(plain).take(63).collect()
    }
}

/// What a token was made for.
#[derive(Clone, Debug)]
struct OrderAttempt {
    order: domain::OrderId,
    number: u32,
}

impl OrderAttempt {
    /// As the token says it, whoever made that.
    fn of(token: &str) -> Option<Self> {
        report_tokens::read(token).map(|(order, number)| Self { order, number })
    }
}

fn token_invalid() -> Error {
    Error::new(Reason::ReportTokenInvalid, "this token was not made by this server, or for another machine")
}

fn attempt_of(node: &BootNode, order: &InstallOrder) -> Attempt {
    Attempt { node: node.id.clone(), order: order.id.clone(), number: order.attempt }
}

/// What it says of itself now.
fn described(
    tx: &mut Tx<'_>,
    node: BootNode,
    said: Claims,
    inventory: Option<&str>,
    fresh: &Fresh,
) -> TxResult<BootNode> {
    let inventory = inventory.map_or_else(|| node.inventory.clone(), str::to_owned);
    if said == node.claims && inventory == node.inventory {
        if !seen_recently(&node, tx.now()) {
            boot_node::seen(tx, [&node.id])?;
        }
        return Ok(node);
    }
    let now = tx.now();
    let heard = BootNode { claims: said, inventory, last_seen: Some(now), ..node.clone() };
    let heard = identified(tx, &node, heard, fresh)?;
    boot_node::save(tx, &heard)?;
    Ok(tx.point(&boot_node::by_id(&node.id))?.unwrap_or(node))
}
