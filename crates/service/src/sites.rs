//! Sites: made, described anew, removed; and what was last seen of their machines, which only the observer writes.

use crate::change::Answer;
use crate::machines::required;
use crate::{Call, Page, PageRequest, Service};
use domain::credential::{CredentialKind, CredentialState};
use domain::maas_machine::{ObservedMachine, Sight};
use domain::node::MaasRef;
use domain::site::{CHANGED, CREATED, REMOVED, Site, SiteState};
use domain::{Error, NodeId, Reason, Timestamp};
use std::sync::Arc;
use store::maas_machine::WithNode;
use store::{Cause, Tx, TxResult, credential, maas_machine, site, site_sight};
use x509_parser::pem::Pem;

/// A site as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteView {
    pub site: Site,
    /// `None`: nobody has looked yet.
    pub sight: Option<Sight>,
    /// That are there.
    pub machines: u64,
    /// That run on its machines.
    pub nodes: u64,
}

/// A machine of a site, as it was last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteMachine {
    pub machine: ObservedMachine,
    pub node: Option<(NodeId, String)>,
    /// When MAAS last said so: when it was read, or when everything was.
    pub confirmed_at: Timestamp,
}

pub(crate) fn not_found(name: &str) -> Error {
    let message = format!("there is no site {name:?}; 'millwright site list' shows those there are");
    Error::new(Reason::SiteNotFound, message).with("site", name)
}

fn is_present(site: &Site) -> bool {
    site.state == SiteState::Present
}

fn view(tx: &mut Tx<'_>, site: Site) -> TxResult<SiteView> {
    let sight = tx.point(&site_sight::of_site(&site.name))?;
    let machines = maas_machine::count(tx, &site.name)?;
    let (nodes, _) = site::nodes(tx, &site.name)?;
    Ok(SiteView { site, sight, machines, nodes })
}

pub(crate) fn seen(found: WithNode, sight: Option<&Sight>) -> SiteMachine {
    let listed = sight.and_then(|sight| sight.last_list_at).unwrap_or(found.machine.changed_at);
    let confirmed_at = found.machine.changed_at.max(listed);
    SiteMachine { confirmed_at, machine: found.machine, node: found.node }
}

/// What MAAS has said of the machine that a node runs on, and how the site was last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnMaas {
    pub at: MaasRef,
    /// `None`: nobody has seen it yet.
    pub machine: Option<SiteMachine>,
    pub sight: Option<Sight>,
}

impl OnMaas {
    /// In a sentence. Not seen yet, out of reach and gone are three things.
    pub fn says(&self) -> String {
        if self.at.found().is_none() {
            return format!("which machine of site {} it is, is still to be found out", self.at.site);
        }
        let of_site = match self.sight.as_ref().and_then(|s| s.unreachable_since.map(|since| (since, s))) {
            Some((since, sight)) => format!("; the site is out of reach since {since}: {}", sight.unreachable_why),
            None => String::new(),
        };
        let Some(seen) = &self.machine else {
            return format!("MAAS was not heard about machine {} yet{of_site}", self.at);
        };
        let (m, as_of) = (&seen.machine, seen.confirmed_at);
        match m.absent_since {
            Some(since) => format!("MAAS has no machine {} since {since}, as of {as_of}{of_site}", self.at),
            None => format!(
                "MAAS says of {} ({}): {} since {}, as of {as_of}{of_site}",
                self.at,
                m.told.hostname,
                m.told.says(),
                m.status_since
            ),
        }
    }

    /// The same without what changes while nothing happens.
    pub(crate) fn still(self) -> Self {
        let machine = self.machine.map(|mut seen| {
            seen.confirmed_at = seen.machine.changed_at;
            seen.machine.told.last_sync.clear();
            seen
        });
        let unreachable = self.sight.and_then(|sight| sight.unreachable_since);
        let sight = unreachable.map(|since| Sight { unreachable_since: Some(since), ..Sight::default() });
        Self { machine, sight, ..self }
    }
}

pub(crate) fn on_maas(tx: &mut Tx<'_>, at: Option<&MaasRef>) -> TxResult<Option<OnMaas>> {
    let Some(at) = at else { return Ok(None) };
    let sight = tx.point(&site_sight::of_site(&at.site))?;
    let machine = tx.point(&maas_machine::with_node(at))?.map(|found| seen(found, sight.as_ref()));
    Ok(Some(OnMaas { at: at.clone(), machine, sight }))
}

impl Answer for SiteView {
    fn id(&self) -> String {
        self.site.name.clone()
    }

    fn again(tx: &mut Tx<'_>, _: &Call, id: &str) -> TxResult<Self> {
        let found = tx.point(&site::by_name(id))?.ok_or_else(|| not_found(id))?;
        view(tx, found)
    }
}

/// Everything that can be judged without the store.
fn check(site: &Site) -> Result<(), Error> {
    site.check()?;
    if site.ca_pem.is_empty() {
        return Ok(());
    }
    if site.ca_pem.contains("PRIVATE KEY-----") {
        return Err(Error::field("ca_pem", "holds a private key, which has no place there"));
    }
    let mut count = 0;
    for pem in Pem::iter_from_buffer(site.ca_pem.as_bytes()) {
        count += 1;
        if !pem.is_ok_and(|pem| pem.label == "CERTIFICATE" && pem.parse_x509().is_ok()) {
            return Err(Error::field("ca_pem", format!("number {count} cannot be read as a certificate")));
        }
    }
    match count {
        0 => Err(Error::field("ca_pem", "holds no certificate in PEM (-----BEGIN CERTIFICATE-----)")),
        _ => Ok(()),
    }
}

/// The credential is there, is one of a MAAS, and stays there while the site names it.
fn hold_credential(tx: &mut Tx<'_>, name: &str) -> TxResult<()> {
    if !credential::hold(tx, name)? {
        return Err(domain::credential::not_found(name).with("field", "credentials_ref").into());
    }
    let there = tx.point(&credential::by_name(name))?.filter(|c| c.record.state == CredentialState::Present);
    match there.map(|there| there.record.kind) {
        Some(CredentialKind::Maas) => Ok(()),
        Some(kind) => {
            let problem = format!("credential {name:?} is of kind {kind}, not maas");
            Err(Error::field("credentials_ref", problem).into())
        }
        None => Err(domain::credential::not_found(name).with("field", "credentials_ref").into()),
    }
}

impl Service {
    /// Makes a site. The same again: no change.
    pub async fn create_site(&self, call: &Arc<Call>, new: Site) -> Result<SiteView, Error> {
        check(&new)?;
        let (key, by) = (new.name.clone(), call.by.name.clone());
        self.change(call, &key, move |tx| {
            let there = site::get_for_update(tx, &new.name)?;
            if let Some(there) = there.as_ref().filter(|there| is_present(there)) {
                let same = Site {
                    version: there.version,
                    created_at: there.created_at,
                    updated_at: there.updated_at,
                    ..new.clone()
                };
                if same == *there {
                    return view(tx, same);
                }
                let message = format!(
                    "site {:?} is there with another description; change it: 'millwright site edit {}'",
                    new.name, new.name
                );
                return Err(Error::new(Reason::SiteExists, message).with("site", &new.name).into());
            }
            hold_credential(tx, &new.credentials_ref)?;
            let made = Site { state: SiteState::Present, ..new.clone() };
            let made = site::put(tx, there.as_ref(), &made, &Cause::operator(&by, CREATED, ""))?;
            view(tx, made)
        })
        .await
    }

    pub async fn get_site(&self, name: &str) -> Result<SiteView, Error> {
        let name = required("name", name)?;
        self.store()
            .read(move |tx| {
                let found = tx.point(&site::by_name(&name))?.filter(is_present);
                view(tx, found.ok_or_else(|| not_found(&name))?)
            })
            .await
    }

    pub async fn list_sites(&self, request: &PageRequest) -> Result<Page<SiteView>, Error> {
        let size = request.size()?;
        let filter = site::FILTER.parse(&request.filter)?;
        let after = request.cursor("sites")?;
        let items = self
            .store()
            .read(move |tx| {
                let found = site::list(tx, &filter, &after, size + 1)?;
                found.into_iter().map(|site| view(tx, site)).collect::<TxResult<Vec<_>>>()
            })
            .await?;
        Ok(request.page("sites", items, size, |v| v.site.name.clone()))
    }

    /// Puts another description in the place of the one that is there, if that is the one that the caller has read.
    pub async fn update_site(&self, call: &Arc<Call>, new: Site) -> Result<SiteView, Error> {
        check(&new)?;
        let (key, by) = (new.name.clone(), call.by.name.clone());
        self.change(call, &key, move |tx| {
            let there = site::get_for_update(tx, &new.name)?.filter(is_present);
            let there = there.ok_or_else(|| not_found(&new.name))?;
            if new.version != 0 && new.version != there.version {
                let message = format!(
                    "site {} has version {}, not {}: read it again and repeat your change",
                    there.name, there.version, new.version
                );
                let error = Error::new(Reason::VersionMismatch, message);
                return Err(error.with("version", there.version.to_string()).into());
            }
            let after = Site {
                state: SiteState::Present,
                version: there.version,
                created_at: there.created_at,
                updated_at: there.updated_at,
                ..new.clone()
            };
            if after == there {
                return view(tx, there);
            }
            if after.credentials_ref != there.credentials_ref {
                hold_credential(tx, &after.credentials_ref)?;
            }
            let changed = site::put(tx, Some(&there), &after, &Cause::operator(&by, CHANGED, ""))?;
            view(tx, changed)
        })
        .await
    }

    /// Removes a site, and what was seen there, unless nodes run on its machines, or a job still gives one back.
    pub async fn remove_site(&self, call: &Arc<Call>, name: &str) -> Result<SiteView, Error> {
        let (name, by) = (required("name", name)?, call.by.name.clone());
        let key = name.clone();
        self.change(call, &key, move |tx| {
            let there = site::get_for_update(tx, &name)?.filter(is_present).ok_or_else(|| not_found(&name))?;
            if let (count @ 1.., node) = site::nodes(tx, &name)? {
                let first = node.unwrap_or_default();
                let message = format!(
                    "{count} nodes run on machines of site {name}, {first} among them; remove or move them first: 'millwright node list --filter maas_site={name}'"
                );
                return Err(Error::new(Reason::SiteInUse, message).with("nodes", count.to_string()).into());
            }
            maas_machine::forget(tx, &name)?;
            site_sight::forget(tx, &name)?;
            let gone = Site { state: SiteState::Removed, ..there.clone() };
            let gone = site::put(tx, Some(&there), &gone, &Cause::operator(&by, REMOVED, ""))?;
            view(tx, gone)
        })
        .await
    }

    /// What was last seen of a site's machines.
    pub async fn list_site_machines(&self, name: &str, request: &PageRequest) -> Result<Page<SiteMachine>, Error> {
        let (name, size) = (required("site", name)?, request.size()?);
        let filter = maas_machine::FILTER.parse(&request.filter)?;
        // a token of one site says nothing about another
        let list = format!("site_machines/{name}");
        let after = request.cursor(&list)?;
        let items = self
            .store()
            .read(move |tx| {
                tx.point(&site::by_name(&name))?.filter(is_present).ok_or_else(|| not_found(&name))?;
                let sight = tx.point(&site_sight::of_site(&name))?;
                let found = maas_machine::list(tx, &name, &filter, &after, size + 1)?;
                Ok(found.into_iter().map(|machine| seen(machine, sight.as_ref())).collect::<Vec<_>>())
            })
            .await?;
        Ok(request.page(&list, items, size, |m| m.machine.at.system_id.clone()))
    }

    pub async fn get_site_machine(&self, name: &str, system_id: &str) -> Result<SiteMachine, Error> {
        let at = MaasRef { site: required("site", name)?, system_id: required("system_id", system_id)? };
        self.store()
            .read(move |tx| {
                tx.point(&site::by_name(&at.site))?.filter(is_present).ok_or_else(|| not_found(&at.site))?;
                let sight = tx.point(&site_sight::of_site(&at.site))?;
                let found = tx.point(&maas_machine::with_node(&at))?.ok_or_else(|| unseen(&at, sight.as_ref()))?;
                Ok(seen(found, sight.as_ref()))
            })
            .await
    }
}

/// Not there, or not seen yet: two different things.
fn unseen(at: &MaasRef, sight: Option<&Sight>) -> Error {
    let message = match sight.and_then(|sight| sight.last_list_at) {
        Some(listed) => format!("site {} has no machine {:?}, as of {listed}", at.site, at.system_id),
        None => format!(
            "the machines of site {} were not listed yet; whether {:?} is there is not known",
            at.site, at.system_id
        ),
    };
    Error::new(Reason::SiteMachineNotFound, message).with("site", &at.site).with("system_id", &at.system_id)
}
