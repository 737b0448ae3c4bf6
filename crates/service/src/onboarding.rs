//! Machines that a MAAS knows, or is to know, become nodes: the node comes to be together with the job that onboards it.
//! What identifies the machine is claimed at once, so that two wishes never make two nodes of one machine.

use crate::change::Answer;
use crate::jobs::{self, JobView};
use crate::machines::required;
use crate::nodes::{NodeView, not_found, view as view_of, view_again};
use crate::{Call, Service};
use domain::credential::CredentialKind;
use domain::id::{check_name, is_hostname};
use domain::identity::{tells, uuid_tells};
use domain::job_stage::{Ground, JobKind, JobStage};
use domain::limits::{COMMENT_MAX, MAC_ADDRESSES_MAX, TEXT_MAX};
use domain::mac::MacAddress;
use domain::machine::check_text;
use domain::node::{MaasRef, Node, NodeStatus, ONBOARD};
use domain::site::SiteState;
use domain::{Error, NodeId, Reason};
use std::sync::Arc;
use store::{Cause, Tx, TxResult, credential, job, maas_machine, node, site};
use workflow::job::{Fresh, MaasWish, NewJob, Parameters, PowerWish, begin};

/// A machine of a site that is wished for as a node.
#[derive(Clone, Debug, Default)]
pub struct NewOnboarding {
    /// Empty: its hostname, or made from its first MAC address or id.
    pub name: String,
    pub wish: MaasWish,
    pub reason: String,
    pub dry_run: bool,
}

/// The node with its job; or what would be done.
#[derive(Clone)]
pub struct Onboarded {
    pub node: Option<NodeView>,
    pub job: Option<JobView>,
    pub effect: String,
    pub done: bool,
}

impl Answer for Onboarded {
    fn id(&self) -> String {
        self.node.as_ref().map_or(String::new(), |view| view.node.id.to_string())
    }

    fn again(tx: &mut Tx<'_>, _: &Call, id: &str) -> TxResult<Self> {
        let node = view_again(tx, id)?;
        let there = tx.point(&job::last_of_node(&node.node.id))?;
        let job = there.map(|there| jobs::view(tx, there)).transpose()?;
        let effect = "it was begun by an earlier request with this key".to_owned();
        Ok(Self { node: Some(node), job, effect, done: true })
    }
}

/// What drives power, as far as this product knows it; MAAS knows more, and checks the rest itself.
const POWER_KINDS: [&str; 6] = ["redfish", "ipmi", "webhook", "manual", "virsh", "amt"];
const PARAMETERS_MAX: usize = 32;

fn checked(new: &mut NewOnboarding) -> Result<(), Error> {
    let wish = &mut new.wish;
    wish.site = required("site", &wish.site)?;
    check_text("profile", &wish.profile, TEXT_MAX)?;
    check_text("reason", &new.reason, COMMENT_MAX)?;
    if wish.macs.len() > MAC_ADDRESSES_MAX {
        return Err(Error::field("mac_addresses", format!("more than {MAC_ADDRESSES_MAX} entries")));
    }
    let mut macs = Vec::new();
    for text in &wish.macs {
        let mac = MacAddress::parse(text).filter(MacAddress::is_a_cards);
        let mac = mac.ok_or_else(|| Error::field("mac_addresses", format!("{text:?} is no card's MAC address")))?;
        if !macs.contains(&mac.to_string()) {
            macs.push(mac.to_string());
        }
    }
    wish.macs = macs;
    for (field, text) in [("serial_number", &wish.serial_number), ("system_uuid", &wish.system_uuid)] {
        check_text(field, text, TEXT_MAX)?;
    }
    if !wish.serial_number.is_empty() && !tells(&wish.serial_number) {
        let message = format!("{:?} is what makers leave where a serial number should be", wish.serial_number);
        return Err(Error::field("serial_number", message));
    }
    if !wish.system_uuid.is_empty() && !uuid_tells(&wish.system_uuid) {
        return Err(Error::field(
            "system_uuid",
            format!("{:?} is no UUID that tells machines apart", wish.system_uuid),
        ));
    }
    if !wish.system_id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) || wish.system_id.len() > 32 {
        return Err(Error::field("system_id", format!("{:?} is no id of a MAAS, such as 4y3h7n", wish.system_id)));
    }
    if wish.macs.is_empty() && [&wish.serial_number, &wish.system_uuid, &wish.system_id].iter().all(|t| t.is_empty()) {
        let message = "say which machine: by mac_addresses, serial_number, system_uuid, or its system_id in MAAS";
        return Err(Error::field("mac_addresses", message));
    }
    if !wish.hostname.is_empty() {
        hostname(&wish.hostname)?;
    }
    if let Some(power) = &wish.power {
        checked_power(power)?;
    }
    Ok(())
}

fn hostname(name: &str) -> Result<(), Error> {
    if is_hostname(name) && !name.bytes().any(|b| b.is_ascii_uppercase()) {
        return Ok(());
    }
    Err(Error::field("hostname", format!("{name:?} is not 1 to 63 of a-z, 0-9 and - (not at an end)")))
}

fn checked_power(power: &PowerWish) -> Result<(), Error> {
    if !POWER_KINDS.contains(&power.kind.as_str()) {
        let message = format!("{:?} is unknown; there are {}", power.kind, POWER_KINDS.join(", "));
        return Err(Error::field("power.kind", message).allowing(POWER_KINDS));
    }
    check_text("power.address", &power.address, TEXT_MAX)?;
    if power.address.is_empty() && matches!(power.kind.as_str(), "redfish" | "ipmi") {
        return Err(Error::field("power.address", format!("{} needs the address of its BMC", power.kind)));
    }
    if power.parameters.len() > PARAMETERS_MAX {
        return Err(Error::field("power.parameters", format!("more than {PARAMETERS_MAX} entries")));
    }
    for (name, value) in &power.parameters {
        let plain = !name.is_empty() && name.len() <= 64 && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        let secret = ["pass", "token", "secret", "k_g"].iter().any(|part| name.contains(part));
        // as in https://user:password@host
        let login = value.split_once("://").is_some_and(|(_, rest)| rest.contains('@'));
        if !plain || secret || login {
            let message = format!(
                "{name:?} is no parameter, or holds something secret; that belongs into a credential (--credential)"
            );
            return Err(Error::field("power.parameters", message));
        }
        check_text("power.parameters", value, TEXT_MAX)?;
    }
    Ok(())
}

/// What people call it, where they do not say.
fn named(new: &NewOnboarding) -> String {
    let wish = &new.wish;
    let made = || match (wish.macs.first(), wish.system_id.as_str(), wish.serial_number.as_str()) {
        (Some(mac), _, _) => format!("node-{}", mac.replace(':', "")),
        (None, id, _) if !id.is_empty() => format!("node-{id}"),
        (None, _, serial) if !serial.is_empty() => format!("node-{}", serial.to_ascii_lowercase()),
        (None, _, _) => format!("node-{}", wish.system_uuid),
    };
    [new.name.as_str(), wish.hostname.as_str()].into_iter().find(|t| !t.is_empty()).map_or_else(made, str::to_owned)
}

/// What the machine is claimed by: nobody else onboards it meanwhile.
fn claims(wish: &MaasWish) -> Vec<(&'static str, String)> {
    let mut claims: Vec<(&'static str, String)> = wish.macs.iter().map(|mac| ("mac", mac.clone())).collect();
    for (kind, value) in [("serial", &wish.serial_number), ("uuid", &wish.system_uuid), ("id", &wish.system_id)] {
        if !value.is_empty() {
            claims.push((kind, value.to_ascii_lowercase()));
        }
    }
    claims
}

/// Whether it may be onboarded, as things are.
fn may_onboard(tx: &mut Tx<'_>, name: &str, wish: &MaasWish) -> TxResult<()> {
    if let Some(there) = tx.point(&node::by_name(name))? {
        let message = format!("{name:?} is node {}, which is {}; names are used once", there.id, there.status);
        return Err(Error::new(Reason::NodeExists, message).with("node_id", there.id.as_str()).into());
    }
    let site = tx.point(&site::by_name(&wish.site))?.filter(|site| site.state == SiteState::Present);
    let Some(site) = site else {
        let message = format!("there is no site {:?}; 'millwright site list' shows those there are", wish.site);
        return Err(Error::new(Reason::SiteNotFound, message).with("site", &wish.site).into());
    };
    if site.profile(&wish.profile).is_none() {
        let known: Vec<String> = site.profiles.iter().map(|profile| profile.name.clone()).collect();
        let message = format!("site {} has no profile {:?}; it has {}", site.name, wish.profile, known.join(", "));
        return Err(Error::field("profile", message).allowing(known).into());
    }
    let place = MaasRef { site: wish.site.clone(), system_id: wish.system_id.clone() };
    let seen = tx.point(&maas_machine::by_ref(&place))?;
    if let Some(since) = seen.as_ref().and_then(|machine| machine.absent_since) {
        let message = format!(
            "machine {} is not in the MAAS of site {} any more: it was gone at {since}; 'millwright site machines {1}' shows those there are",
            wish.system_id, wish.site
        );
        return Err(Error::field("system_id", message).into());
    }
    for (kind, value) in claims(wish) {
        if let Some(other) = tx.point(&node::by_claim(&wish.site, kind, &value))? {
            let message = format!(
                "the machine with {kind} {value} of site {} is node {} ({}), which is {}; go on with that one, or remove it first",
                wish.site, other.id, other.name, other.status
            );
            return Err(Error::new(Reason::IdentityTaken, message).with("node_id", other.id.as_str()).into());
        }
    }
    if let Some(name) = wish.power.as_ref().map(|p| p.credentials_ref.as_str()).filter(|name| !name.is_empty()) {
        let there = tx.point(&credential::by_name(name))?;
        let kind = there.map(|there| there.record.kind);
        if kind != Some(CredentialKind::Bmc) {
            let why = kind.map_or("is not there".to_owned(), |kind| format!("is a {kind}, not a login of a BMC (bmc)"));
            return Err(Error::field("power.credentials_ref", format!("credential {name:?} {why}")).into());
        }
    }
    Ok(())
}

impl Service {
    /// Makes the node and begins its onboarding, in one step; or says what that would do.
    pub async fn onboard_node(&self, call: &Arc<Call>, mut new: NewOnboarding) -> Result<Onboarded, Error> {
        checked(&mut new)?;
        let name = named(&new);
        // what people call it is what it calls itself, where it can
        if new.wish.hostname.is_empty() && new.wish.system_id.is_empty() && hostname(&name).is_ok() {
            new.wish.hostname.clone_from(&name);
        }
        check_name("name", &name)?;
        let kind = JobKind::Onboarding(Ground::Maas);
        if new.dry_run {
            let wish = new.wish.clone();
            let shown = name.clone();
            self.store().snapshot(move |tx| may_onboard(tx, &shown, &wish)).await?;
            // of many, each has a line
            let (first, last) = (kind.stages().first(), kind.stages().last());
            let name_of = |stage: Option<&JobStage>| stage.map_or("", |stage| stage.as_str());
            let effect = format!(
                "node {name} is made on site {}, and onboarded in {} stages, {} to {}",
                new.wish.site,
                kind.stages().len(),
                name_of(first),
                name_of(last)
            );
            return Ok(Onboarded { node: None, job: None, effect, done: false });
        }
        let ambient = self.store().ambient();
        let (id, fresh) = (NodeId::generate(ambient.uuid()), Fresh::make(ambient.as_ref()));
        let (by, policy, key) = (call.by.name.clone(), self.heartbeat_policy(), name.clone());
        let change = self.change(call, &key, move |tx| {
            // one after the other: what names a machine is claimed by one node
            site::get_for_update(tx, &new.wish.site)?;
            may_onboard(tx, &name, &new.wish)?;
            let reason = format!("it is onboarded from site {}", new.wish.site);
            let place = MaasRef { site: new.wish.site.clone(), system_id: String::new() };
            let fresh_node = Node::new(id.clone(), &name, NodeStatus::Enrolling, &reason, &by, tx.now());
            let wished = Node { maas: Some(place), ..fresh_node };
            let cause = Cause::operator(&by, ONBOARD, &new.reason);
            let made = node::insert(tx, &wished, &cause)?;
            for (kind, value) in claims(&new.wish) {
                node::claim(tx, &new.wish.site, kind, &value, &made.id)?;
            }
            let parameters = Parameters { maas: Some(new.wish.clone()), ..Parameters::default() };
            let begun = begin(tx, &made, &NewJob { kind, parameters, reason: new.reason.clone() }, &fresh, &cause)?;
            let made = tx.point(&node::by_id(&id))?.ok_or_else(|| not_found(id.as_str()))?;
            let effect = format!("node {} was made, and its onboarding begun", made.name);
            Ok(Onboarded {
                node: Some(view_of(tx, made, policy)?),
                job: Some(jobs::view(tx, begun)?),
                effect,
                done: true,
            })
        });
        change.await
    }
}
