//! Which machine it is: the site, how its power is driven, and the one record upstream that is it. What is ambiguous stops
//! the job: automation never makes two machines of one.

use super::super::EXECUTOR;
use super::{Looked, OnMaas, Standing, asked, asked_idempotent, done, fail, part, part_in_hand, unread};
use domain::credential::Credential;
use domain::finding::FindingKind;
use domain::identity::{same_uuid, tells, uuid_spellings, uuid_tells};
use domain::job::Job;
use domain::maas;
use domain::maas_machine::Identifier;
use domain::mac::MacAddress;
use domain::node::{MaasRef, Node};
use domain::stage::FailureClass;
use domain::{Secret, Timestamp};
use engine::{Acted, Failure, Look, StageCx};
use provider::{Changes, MaasMachine, NewMachine, PowerAccess, Which};
use std::collections::{BTreeMap, BTreeSet};
use store::{finding, job, maas_machine, node, site_sight};

const WISHES: &str = "what is wished of its record";

/// In the record of a machine that we have made, for whoever reads it there.
fn described(at: &Standing) -> String {
    format!("millwright node {} job {}", at.sight.node.id, at.sight.job.id)
}

impl OnMaas<'_> {
    pub(super) async fn site_loaded(&self, at: &Standing) -> Looked<Look> {
        let account = at.maas.account().await.map_err(|e| unread(&e))?;
        if !account.is_admin {
            let message = format!(
                "the key of site {} is {}'s, who is no administrator there: storage, networks and tags need one; set another key with 'millwright credential set {} --kind maas'",
                at.site.name, account.username, at.site.credentials_ref
            );
            return fail("KEY_NOT_ADMIN", FailureClass::NeedsOperator, message);
        }
        let (profile, username) = (at.profile.name.clone(), account.username.clone());
        self.learn(at, move |learned| {
            learned.profile.clone_from(&profile);
            learned.account.clone_from(&username);
        })
        .await?;
        let (site, profile) = (&at.site.name, &at.profile.name);
        Ok(done(format!("site {site} (MAAS {}), profile {profile}", account.version)))
    }

    pub(super) async fn power_resolved(&self, at: &Standing) -> Looked<Look> {
        let Some(wish) = &at.wish.power else {
            return Ok(done("its power is driven by what MAAS has of it"));
        };
        self.power(at).await?;
        Ok(done(match wish.credentials_ref.as_str() {
            "" => format!("{} without a login", wish.kind),
            credential => format!("{} at {} with credential {credential}", wish.kind, wish.address),
        }))
    }

    async fn power(&self, at: &Standing) -> Looked<Option<PowerAccess>> {
        let Some(wish) = &at.wish.power else { return Ok(None) };
        let mut parameters: BTreeMap<String, Secret> =
            wish.parameters.iter().map(|(name, value)| (name.clone(), Secret::new(value.clone()))).collect();
        if !wish.address.is_empty() {
            parameters.insert("power_address".to_owned(), Secret::new(wish.address.clone()));
        }
        if !wish.credentials_ref.is_empty() {
            match self.work.hands.keyring.credential(&wish.credentials_ref).await {
                Ok(Credential::Bmc(login)) => {
                    parameters.insert("power_user".to_owned(), Secret::new(login.username));
                    parameters.insert("power_pass".to_owned(), login.password);
                }
                Ok(Credential::BmcChanging { .. }) => {
                    let message = format!("credential {:?} is being changed", wish.credentials_ref);
                    return fail("CREDENTIAL_CHANGING", FailureClass::Transient, message);
                }
                Ok(other) => {
                    let (name, kind) = (&wish.credentials_ref, other.kind());
                    let message = format!("credential {name:?} is a {kind}, not a login of a BMC (bmc)");
                    return fail("CREDENTIAL_MISSING", FailureClass::NeedsOperator, message);
                }
                Err(e) => return Err(unread(&e)),
            }
        }
        Ok(Some(PowerAccess { kind: wish.kind.clone(), parameters }))
    }

    pub(super) async fn found(&self, at: &Standing, cx: &StageCx) -> Looked<Look> {
        let candidates = self.candidates(at).await?;
        match candidates.as_slice() {
            [] if !at.learned.system_id.is_empty() => at.is_gone(),
            [] if at.wish.system_id.is_empty() && !at.wish.macs.is_empty() && at.wish.power.is_some() => {
                self.all_were_seen(at).await?;
                Ok(super::clear_or_lost(cx, "its record").into())
            }
            [] => {
                self.all_were_seen(at).await?;
                let message = format!(
                    "site {} has no machine that {}, and one is made only from its MAC address and power (see --power of node onboard)",
                    at.site.name,
                    wanted(at)
                );
                fail("NOT_IN_MAAS", FailureClass::NeedsOperator, message)
            }
            [one] if at.is_to_be_told(one) => {
                self.take(at, one).await?;
                Ok(part(&cx.facts, WISHES, cx))
            }
            [one] => self.take(at, one).await,
            several => {
                let named: Vec<String> = several.iter().map(named).collect();
                let message = format!(
                    "site {} has {} machines that {}: {}; remove or mend all but one there, then 'millwright job retry_stage {}'",
                    at.site.name,
                    several.len(),
                    wanted(at),
                    named.join("; "),
                    at.sight.job.id
                );
                self.conflicting(&message).await?;
                fail("CONFLICTING_CANDIDATES", FailureClass::Conflict, message)
            }
        }
    }

    /// Every record that one of the identifiers names. More than one is told as such, whatever we know already: a late
    /// duplicate has the same MAC.
    async fn candidates(&self, at: &Standing) -> Looked<Vec<MaasMachine>> {
        let mut found: BTreeMap<String, MaasMachine> = BTreeMap::new();
        let macs: Vec<MacAddress> = at.wish.macs.iter().filter_map(|mac| MacAddress::parse(mac)).collect();
        let id = if at.learned.system_id.is_empty() { &at.wish.system_id } else { &at.learned.system_id };
        if !id.is_empty() {
            let read = at.maas.machine(id).await.map_err(|e| unread(&e))?;
            found.extend(read.map(|machine| (machine.system_id.clone(), machine)));
        }
        if !macs.is_empty() {
            let read = at.maas.machines(&Which::Macs(macs)).await.map_err(|e| unread(&e))?;
            found.extend(read.into_iter().map(|machine| (machine.system_id.clone(), machine)));
        }
        let (serial, uuid) = (at.wish.serial_number.as_str(), at.wish.system_uuid.as_str());
        let seen = self.seen_so(at, serial, uuid).await?.into_iter().filter(|id| !found.contains_key(id)).collect();
        found.extend(known_by(at, seen, serial, uuid).await?.into_iter().map(|m| (m.system_id.clone(), m)));
        Ok(found.into_values().collect())
    }

    /// MAAS finds nobody by serial number or UUID; whoever observes the site has seen them all.
    async fn seen_so(&self, at: &Standing, serial: &str, uuid: &str) -> Looked<Vec<String>> {
        let mut known: Vec<(Identifier, String)> = Vec::new();
        if tells(serial) {
            known.push((Identifier::Serial, serial.to_owned()));
        }
        // it is kept as it came, in one of its two spellings
        if uuid_tells(uuid) {
            known.extend(uuid_spellings(uuid).into_iter().map(|uuid| (Identifier::Uuid, uuid)));
        }
        if known.is_empty() {
            return Ok(Vec::new());
        }
        let site = at.site.name.clone();
        let read = self.work.store.read(move |tx| {
            let mut ids = Vec::new();
            for (kind, value) in &known {
                let there = maas_machine::by_identifier(tx, *kind, value)?;
                ids.extend(there.into_iter().filter(|m| m.at.site == site).map(|m| m.at.system_id));
            }
            Ok(ids)
        });
        read.await.map_err(|e| super::failed(&e).into())
    }

    /// That nobody was seen with this serial number or UUID says something only if everything was: the site was listed, and
    /// what moved there since was read after this job began. MACs are asked for there and then.
    async fn all_were_seen(&self, at: &Standing) -> Looked<()> {
        if !tells(&at.wish.serial_number) && !uuid_tells(&at.wish.system_uuid) {
            return Ok(());
        }
        let site = at.site.name.clone();
        let read = self.work.store.read(move |tx| tx.point(&site_sight::of_site(&site)));
        let sight = read.await.map_err(|e| super::failed(&e))?.unwrap_or_default();
        let newer = sight.last_poll_at.is_some_and(|at_last| at_last > at.sight.job.created_at);
        if sight.last_list_at.is_some() && newer && sight.unreachable_since.is_none() {
            return Ok(());
        }
        let why = match sight.unreachable_why.as_str() {
            "" => "before that, a second record of the same machine could be made".to_owned(),
            why => format!("it does not answer: {why}"),
        };
        let site = &at.site.name;
        Err(super::Stopped::Waits(format!("a look at all machines of site {site} that is newer than this job; {why}")))
    }

    /// Another record of the same machine, made since it was found, would have two of us at one machine: whatever writes to
    /// its disks looks for one first.
    pub(super) async fn is_the_only_one(&self, at: &Standing, machine: &MaasMachine) -> Looked<()> {
        let mut others: BTreeMap<String, MaasMachine> = BTreeMap::new();
        let its_own = machine.interfaces.iter().map(|interface| interface.mac.as_str());
        let macs: BTreeSet<MacAddress> =
            its_own.chain(at.wish.macs.iter().map(String::as_str)).filter_map(MacAddress::parse).collect();
        if !macs.is_empty() {
            let read = at.maas.machines(&Which::Macs(macs.into_iter().collect())).await.map_err(|e| unread(&e))?;
            others.extend(read.into_iter().map(|other| (other.system_id.clone(), other)));
        }
        let known = [
            (machine.serial.as_str(), machine.hardware_uuid.as_str()),
            // MAAS forgets a UUID that two of its records have
            (at.wish.serial_number.as_str(), at.wish.system_uuid.as_str()),
        ];
        for (serial, uuid) in known {
            let seen =
                self.seen_so(at, serial, uuid).await?.into_iter().filter(|id| !others.contains_key(id)).collect();
            others.extend(known_by(at, seen, serial, uuid).await?.into_iter().map(|m| (m.system_id.clone(), m)));
        }
        others.remove(&machine.system_id);
        if others.is_empty() {
            return Ok(());
        }
        let told: Vec<String> = others.values().map(named).collect();
        let message = format!(
            "site {} has more records of the machine that {} is: {}; remove or mend all but one there, then 'millwright job retry_stage {}'",
            at.site.name,
            named(machine),
            told.join("; "),
            at.sight.job.id
        );
        self.conflicting(&message).await?;
        fail("CONFLICTING_CANDIDATES", FailureClass::Conflict, message)
    }

    /// The one it is, if nothing speaks against that; from now on the node knows it.
    async fn take(&self, at: &Standing, machine: &MaasMachine) -> Looked<Look> {
        if let Some(why) = at.contradiction(machine) {
            self.conflicting(&why).await?;
            return fail("CONFLICTING_CANDIDATES", FailureClass::Conflict, why);
        }
        let created = machine.description == described(at);
        let (place, id) =
            (MaasRef { site: at.site.name.clone(), system_id: machine.system_id.clone() }, machine.system_id.clone());
        let written = self.work.write(move |tx, there, of| {
            if let Some(other) = tx.point(&node::by_maas(&place))?.filter(|other| other.id != there.id) {
                let message = format!(
                    "machine {place} is node {} ({}), which is {}; remove that one first",
                    other.id, other.name, other.status
                );
                return Err(domain::Error::new(domain::Reason::IdentityTaken, message).into());
            }
            finding::gone(tx, FindingKind::NodeIdentityConflict, there.id.as_str(), "one machine is it", EXECUTOR)?;
            if there.maas.as_ref() != Some(&place) {
                node::save(tx, &Node { maas: Some(place.clone()), ..there })?;
            }
            let learned = super::Learned::read(&of.learned).of_record(&id, created);
            let text = super::Learned { sent_at_us: None, ..learned }.text();
            if text != of.learned {
                job::save(tx, &Job { learned: text, ..of })?;
            }
            Ok(())
        });
        match written.await {
            Ok(true) => {}
            Ok(false) => return fail("SUPERSEDED", FailureClass::NeedsOperator, "another attempt has begun"),
            Err(e) if e.reason == domain::Reason::IdentityTaken => {
                return fail("CONFLICTING_CANDIDATES", FailureClass::Conflict, e.message);
            }
            Err(e) => return Err(super::failed(&e).into()),
        }
        let how = if created { "made" } else { "found" };
        Ok(done(format!("{how}: {}", named(machine))))
    }

    async fn conflicting(&self, message: &str) -> Result<(), Failure> {
        let (fresh, message) = (self.work.fresh.finding.clone(), message.to_owned());
        let raised = self.work.write(move |tx, there, _| {
            let kind = FindingKind::NodeIdentityConflict;
            finding::raise(tx, fresh.clone(), kind, there.id.as_str(), &message, EXECUTOR)
        });
        raised.await.map(drop).map_err(|e| super::failed(&e))
    }

    /// The record that was made by this job, where nothing was heard of that.
    pub(super) async fn made_unheard(&self, at: &Standing) -> Looked<Option<MaasMachine>> {
        let macs: Vec<MacAddress> = at.wish.macs.iter().filter_map(|mac| MacAddress::parse(mac)).collect();
        if at.learned.sent_at_us.is_none() || macs.is_empty() {
            return Ok(None);
        }
        let read = at.maas.machines(&Which::Macs(macs)).await.map_err(|e| unread(&e))?;
        // what somebody has taken since is theirs, whoever has made it
        let ours = |machine: &MaasMachine| {
            machine.description == described(at)
                && at.taken_by(machine).is_none()
                && !at.is_taken_anew(machine)
                && at.contradiction(machine).is_none()
        };
        Ok(read.into_iter().find(ours))
    }

    /// Whether what was sent last may still be carried out, for all that is known.
    pub(super) fn may_still_come(&self, at: &Standing) -> bool {
        let now = self.work.store.ambient().now();
        at.learned.sent_at_us.is_some_and(|sent| now < Timestamp::from_micros(sent).plus(super::TAKEN_WITHIN))
    }

    pub(super) async fn create(&self, at: &Standing, cx: &StageCx) -> Acted {
        if part_in_hand(cx) == WISHES {
            return self.tell_wishes(at).await;
        }
        let power = match self.power(at).await {
            Ok(Some(power)) => power,
            Ok(None) => PowerAccess { kind: "manual".to_owned(), parameters: BTreeMap::new() },
            Err(stopped) => return super::unmoved(stopped),
        };
        let new = NewMachine {
            architecture: at.profile.architecture.clone(),
            macs: at.wish.macs.iter().filter_map(|mac| MacAddress::parse(mac)).collect(),
            hostname: at.wish.hostname.clone(),
            description: described(at),
            power,
            pool: at.profile.pool.clone(),
            zone: at.profile.zone.clone(),
        };
        // durable before it is sent: whoever calls this off looks for what may have come of it
        let now = self.work.store.ambient().now().micros();
        if let Err(failure) = self.learn(at, move |learned| learned.sent_at_us = Some(now)).await {
            return Acted::No(failure);
        }
        asked(at.maas.create(&new).await.map(drop))
    }

    /// A record that was there before is told what one that we make is told.
    async fn tell_wishes(&self, at: &Standing) -> Acted {
        let machine = match at.machine().await {
            Ok(machine) => machine,
            Err(stopped) => return super::unmoved(stopped),
        };
        let power = match self.power(at).await {
            Ok(power) => power,
            Err(stopped) => return super::unmoved(stopped),
        };
        let other = |wished: &str, is: &str| (!wished.is_empty() && wished != is).then(|| wished.to_owned());
        // one that people have worked with keeps its name
        let enlisted = machine.status == maas::NEW;
        let changes = Changes {
            hostname: other(&at.wish.hostname, &machine.hostname).filter(|_| enlisted),
            pool: other(&at.profile.pool, &machine.pool),
            zone: other(&at.profile.zone, &machine.zone),
            power,
        };
        match asked_idempotent(at.maas.change(at.system_id(), &changes).await.map(drop)) {
            Acted::Yes => match self.learn(at, |learned| learned.told = true).await {
                Ok(()) => Acted::Yes,
                Err(failure) => Acted::No(failure),
            },
            other => other,
        }
    }
}

/// Those of them that still are known by it, as they are now.
async fn known_by(at: &Standing, ids: Vec<String>, serial: &str, uuid: &str) -> Looked<Vec<MaasMachine>> {
    let mut ids: Vec<String> = ids.into_iter().filter(|id| id != at.system_id()).collect();
    ids.sort();
    ids.dedup();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut read = at.maas.machines(&Which::Ids(ids)).await.map_err(|e| unread(&e))?;
    let same_serial = |other: &str| tells(serial) && tells(other) && serial.eq_ignore_ascii_case(other);
    let same = |other: &str| uuid_tells(uuid) && same_uuid(uuid, other);
    read.retain(|machine| same_serial(&machine.serial) || same(&machine.hardware_uuid));
    Ok(read)
}

/// What it is looked for by.
fn wanted(at: &Standing) -> String {
    let wish = &at.wish;
    let mut by = Vec::new();
    for (what, text) in
        [("the id", &wish.system_id), ("serial number", &wish.serial_number), ("UUID", &wish.system_uuid)]
    {
        if !text.is_empty() {
            by.push(format!("{what} {text}"));
        }
    }
    if !wish.macs.is_empty() {
        by.push(format!("MAC address {}", wish.macs.join(" or ")));
    }
    format!("has {}", by.join(", "))
}

fn named(machine: &MaasMachine) -> String {
    let uuid = if machine.hardware_uuid.is_empty() { "no UUID" } else { machine.hardware_uuid.as_str() };
    format!("{} ({}), {}, {uuid}", machine.system_id, machine.hostname, machine.status_name)
}

impl Standing {
    /// Whether MAAS is to be told what is wished of a record that this job has not made: as long as nobody has the machine.
    fn is_to_be_told(&self, machine: &MaasMachine) -> bool {
        let free = matches!(machine.status, maas::NEW | maas::READY) && machine.owner.is_empty();
        let wished = self.wish.power.is_some()
            || (machine.status == maas::NEW
                && !self.wish.hostname.is_empty()
                && self.wish.hostname != machine.hostname)
            || (!self.profile.pool.is_empty() && self.profile.pool != machine.pool)
            || (!self.profile.zone.is_empty() && self.profile.zone != machine.zone);
        let told = self.learned.told && self.learned.system_id == machine.system_id;
        free && wished && !told && machine.description != described(self) && self.contradiction(machine).is_none()
    }

    pub(super) fn hostname(&self, machine: &MaasMachine) -> String {
        match self.wish.hostname.as_str() {
            "" => machine.hostname.clone(),
            name => name.to_owned(),
        }
    }
}
