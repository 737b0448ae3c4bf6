//! Everything that is asked of a MAAS, each in its own form.

use crate::access::encoded;
use crate::client::{Call, Client, ONE_MAX};
use crate::items::Items;
use crate::read;
use crate::said::{clean, clean_lines};
use crate::sunk::Whole;
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use domain::maas::MaasPower;
use domain::mac::MacAddress;
use domain::site::{Erase, LinkMode};
use domain::stage::FailureClass;
use domain::{Reason, Secret};
use http::Method;
use provider::{
    Changes, Commissioning, Deployment, Maas, MaasAccount, MaasEvent, MaasMachine, MaasSubnet, NewLink, NewMachine,
    PowerAccess, ProviderError, ProviderResult, Release, ResultKind, ScriptResult, StorageLayout, Which,
};
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// A machine has about 10 kB.
const LIST_MAX: usize = 512 * 1024 * 1024;
const MACHINES_MAX: usize = 50_000;
const SUBNETS_MAX: (usize, usize) = (64 * 1024 * 1024, 20_000);
const NAMES_MAX: (usize, usize) = (16 * 1024 * 1024, 10_000);
const RESULTS_MAX: (usize, usize) = (64 * 1024 * 1024, 1_000);
/// How many are named in one question.
const NAMED_MAX: usize = 100;
/// As many as MAAS gives in one answer.
const EVENTS_PAGE: &str = "1000";
/// Of what a script has printed.
const OUTPUT_MAX: usize = 8 * 1024;
const TAG_MAX: usize = 255;

impl Client {
    fn get(&self, path: impl Into<String>, doing: impl Into<String>) -> Call {
        Call::get(path, doing, self.options.read)
    }

    /// A change of a machine, or of what belongs to it: `rest` stands behind its place.
    fn change_of(&self, method: Method, folder: &str, id: &str, rest: &str, doing: &str) -> ProviderResult<Call> {
        self.check_id(id)?;
        Ok(Call::new(method, format!("{folder}/{id}/{rest}"), format!("{doing} machine {id}"), self.options.change))
    }

    fn op(&self, id: &str, op: &'static str, doing: &str) -> ProviderResult<Call> {
        Ok(self.change_of(Method::POST, "machines", id, "", doing)?.op(op))
    }

    fn check_id(&self, id: &str) -> ProviderResult<()> {
        if read::is_system_id(id) {
            return Ok(());
        }
        let message = format!("{:?} is no system id of {}: it has small letters and digits", clean(id, 40), self.name);
        Err(ProviderError::because(Reason::InvalidField, FailureClass::InvalidInput, message))
    }

    fn invalid_field(&self, what: &str) -> ProviderError {
        ProviderError::because(Reason::InvalidField, FailureClass::InvalidInput, format!("{}: {what}", self.name))
    }

    /// Told, and answered with the machine that was meant.
    async fn machine_told(&self, call: &Call, id: &str) -> ProviderResult<MaasMachine> {
        let said: read::Machine = self.tell(call).await?;
        let machine = said.kept().map_err(|why| self.not_understood(call, &why))?;
        if machine.system_id != id {
            return Err(self.not_understood(call, "it speaks of another machine"));
        }
        Ok(machine)
    }

    async fn list(&self, call: &Call) -> ProviderResult<Vec<MaasMachine>> {
        let mut items = Items::of(LIST_MAX, MACHINES_MAX, read::Machine::kept);
        self.told(call, &mut items).await?;
        Ok(items.kept)
    }

    /// Some of the machines, by a name that they have: what is not asked for is no answer.
    async fn some<'a>(
        &self,
        filter: &'static str,
        named: impl Iterator<Item = &'a str>,
        fits: impl Fn(&MaasMachine, &[&str]) -> bool,
    ) -> ProviderResult<Vec<MaasMachine>> {
        let named: Vec<&str> = named.collect();
        let mut all: Vec<MaasMachine> = Vec::new();
        for names in named.chunks(NAMED_MAX) {
            let doing = format!("finding machines by {filter} {}", clean(&names.join(", "), 100));
            let call = names.iter().fold(self.get("machines/", doing), |call, name| call.query(filter, *name));
            let found = self.list(&call).await?;
            if found.iter().any(|machine| !fits(machine, names)) {
                return Err(self.not_understood(&call, "it names machines that were not asked for"));
            }
            // one that has two of the names may be in two answers
            all.extend(found);
        }
        let mut seen = std::collections::BTreeSet::new();
        all.retain(|machine| seen.insert(machine.system_id.clone()));
        Ok(all)
    }

    /// Without a login that is taken, a create is a machine's own introduction, and makes a stranger.
    async fn must_be_known(&self) -> ProviderResult<()> {
        if !self.known.load(Ordering::Relaxed) {
            self.who_am_i().await?;
        }
        Ok(())
    }

    async fn who_am_i(&self) -> ProviderResult<read::WhoAmI> {
        let call = self.get("users/", "asking who we are there").op("whoami");
        let who: Option<read::WhoAmI> = self.read(&call, ONE_MAX).await?;
        let who = who.filter(|who| !who.username.0.is_empty()).ok_or_else(|| self.gone(&call))?;
        self.known.store(true, Ordering::Relaxed);
        Ok(who)
    }

    fn power(&self, mut call: Call, power: &PowerAccess) -> ProviderResult<Call> {
        let plain = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        call = call.field("power_type", &power.kind);
        for (name, value) in &power.parameters {
            if !plain(name) {
                return Err(self.invalid_field(&format!("{:?} is no name of a power parameter", clean(name, 40))));
            }
            call = call.secret(value).field(format!("power_parameters_{name}"), value.reveal());
        }
        Ok(call)
    }

    async fn names(&self, path: &str, doing: &str) -> ProviderResult<Vec<String>> {
        let mut items = Items::of(NAMES_MAX.0, NAMES_MAX.1, |named: read::Named| Ok(named.name.0));
        self.told(&self.get(path, doing), &mut items).await?;
        Ok(items.kept)
    }

    async fn add_to_tag(&self, id: &str, tag: &str) -> ProviderResult<bool> {
        let doing = format!("giving machine {id} the tag {tag}");
        let call = Call::new(Method::POST, format!("tags/{}/", encoded(tag)), doing, self.options.change);
        let call = call.op("update_nodes").field("add", id);
        let mut whole = Whole::of(ONE_MAX);
        if !self.ask(&call, &mut whole).await? {
            return Ok(false);
        }
        let tagged: read::Tagged = self.parse(&call, &whole.body)?;
        // ids that are not there are passed over without a word
        if tagged.added < 1 { Err(self.gone(&call)) } else { Ok(true) }
    }
}

#[async_trait]
impl Maas for Client {
    fn may_have_changed_anything(&self) -> bool {
        self.has_sent_a_change()
    }

    async fn account(&self) -> ProviderResult<MaasAccount> {
        let who = self.who_am_i().await?;
        let call = self.get("version/", "asking its version");
        let version: Option<read::Version> = self.read(&call, ONE_MAX).await?;
        let version = version.ok_or_else(|| self.gone(&call))?;
        let version = format!("{} {}", version.version.0, version.subversion.0).trim_end().to_owned();
        Ok(MaasAccount { username: who.username.0, is_admin: who.is_superuser, version })
    }

    async fn machines(&self, which: &Which) -> ProviderResult<Vec<MaasMachine>> {
        match which {
            Which::All => self.list(&Call::get("machines/", "listing the machines", self.options.list)).await,
            Which::Ids(ids) => {
                ids.iter().try_for_each(|id| self.check_id(id))?;
                let fits = |machine: &MaasMachine, ids: &[&str]| ids.contains(&machine.system_id.as_str());
                self.some("id", ids.iter().map(String::as_str), fits).await
            }
            Which::Macs(macs) => {
                let spelt = |mac: &str| MacAddress::parse(mac).is_some_and(|mac| macs.contains(&mac));
                let fits = |machine: &MaasMachine, _: &[&str]| machine.interfaces.iter().any(|i| spelt(&i.mac));
                self.some("mac_address", macs.iter().map(|mac| mac.as_str()), fits).await
            }
        }
    }

    async fn machine(&self, system_id: &str) -> ProviderResult<Option<MaasMachine>> {
        self.check_id(system_id)?;
        let call = self.get(format!("machines/{system_id}/"), format!("reading machine {system_id}"));
        let Some(said) = self.read::<read::Machine>(&call, ONE_MAX).await? else { return Ok(None) };
        let machine = said.kept().map_err(|why| self.not_understood(&call, &why))?;
        if machine.system_id != system_id {
            return Err(self.not_understood(&call, "it speaks of another machine"));
        }
        Ok(Some(machine))
    }

    async fn create(&self, new: &NewMachine) -> ProviderResult<MaasMachine> {
        let Some(first) = new.macs.first() else {
            return Err(self.invalid_field("a machine without a MAC cannot be made"));
        };
        self.must_be_known().await?;
        let doing = format!("making a record of the machine with MAC {first}");
        let mut call = Call::new(Method::POST, "machines/", doing, self.options.change)
            .field("architecture", &new.architecture)
            // here, false is really no; left out, it would mean yes
            .field("commission", "false");
        for mac in &new.macs {
            call = call.field("mac_addresses", mac.as_str());
        }
        for (name, value) in
            [("hostname", &new.hostname), ("description", &new.description), ("pool", &new.pool), ("zone", &new.zone)]
        {
            call = call.field_if_any(name, value);
        }
        let call = self.power(call, &new.power)?;
        let said: read::Machine = self.tell(&call).await?;
        let machine = said.kept().map_err(|why| self.not_understood(&call, &why))?;
        if !machine.interfaces.iter().any(|interface| MacAddress::parse(&interface.mac).as_ref() == Some(first)) {
            return Err(self.not_understood(&call, "it speaks of another machine"));
        }
        Ok(machine)
    }

    async fn change(&self, system_id: &str, changes: &Changes) -> ProviderResult<MaasMachine> {
        let mut call = self.change_of(Method::PUT, "machines", system_id, "", "changing the record of")?;
        for (name, value) in [("hostname", &changes.hostname), ("pool", &changes.pool), ("zone", &changes.zone)] {
            if let Some(value) = value {
                call = call.field(name, value);
            }
        }
        if let Some(power) = &changes.power {
            call = self.power(call, power)?;
        }
        if call.form.is_empty() {
            return self.machine(system_id).await?.ok_or_else(|| self.gone(&call));
        }
        self.machine_told(&call, system_id).await
    }

    async fn allocate(&self, system_id: &str, agent_name: &str, comment: &str) -> ProviderResult<()> {
        self.check_id(system_id)?;
        let doing = format!("allocating machine {system_id}");
        // without its id MAAS takes any, or makes one up
        let call = Call::new(Method::POST, "machines/", doing, self.options.change)
            .op("allocate")
            .field("system_id", system_id)
            .field_if_any("agent_name", agent_name)
            .field_if_any("comment", comment);
        self.machine_told(&call, system_id).await.map(drop)
    }

    async fn commission(&self, system_id: &str, how: &Commissioning) -> ProviderResult<()> {
        let call = self.op(system_id, "commission", "commissioning")?;
        let call = call.field_if_any("testing_scripts", &how.testing_scripts.join(","));
        let call = call.checked("skip_bmc_config", how.keep_bmc_login);
        self.machine_told(&call, system_id).await.map(drop)
    }

    async fn set_boot_disk(&self, system_id: &str, disk: i64) -> ProviderResult<()> {
        let rest = format!("blockdevices/{disk}/");
        let call = self.change_of(Method::POST, "nodes", system_id, &rest, "choosing the boot disk of")?;
        let call = call.op("set_boot_disk");
        let mut whole = Whole::of(ONE_MAX);
        self.told(&call, &mut whole).await?;
        // a text of its own, no JSON
        if whole.body.trim_ascii() == b"OK" { Ok(()) } else { Err(self.not_understood(&call, "it does not say OK")) }
    }

    async fn set_storage_layout(&self, system_id: &str, layout: &StorageLayout) -> ProviderResult<()> {
        let call = self.op(system_id, "set_storage_layout", "laying out the storage of")?;
        let call = call.field("storage_layout", layout.layout.as_str()).field_if_any("root_size", &layout.root_size);
        let root = layout.root_device.map_or(String::new(), |id| id.to_string());
        self.machine_told(&call.field_if_any("root_device", &root), system_id).await.map(drop)
    }

    async fn set_mtu(&self, system_id: &str, interface: i64, mtu: u32) -> ProviderResult<()> {
        let rest = format!("interfaces/{interface}/");
        let call = self.change_of(Method::PUT, "nodes", system_id, &rest, "setting an MTU of")?;
        self.tell::<read::Interface>(&call.field("mtu", mtu.to_string())).await.map(drop)
    }

    async fn link(&self, system_id: &str, interface: i64, link: &NewLink) -> ProviderResult<()> {
        let rest = format!("interfaces/{interface}/");
        let call = self.change_of(Method::POST, "nodes", system_id, &rest, "linking an interface of")?;
        let mode = match link.mode {
            LinkMode::Auto => "AUTO",
            LinkMode::Dhcp => "DHCP",
            LinkMode::LinkUp => "LINK_UP",
        };
        let call = call.op("link_subnet").field("mode", mode).field_if_any("subnet", &link.subnet);
        self.tell::<read::Interface>(&call.checked("force", link.force)).await.map(drop)
    }

    async fn unlink(&self, system_id: &str, interface: i64, link: i64) -> ProviderResult<()> {
        let rest = format!("interfaces/{interface}/");
        let call = self.change_of(Method::POST, "nodes", system_id, &rest, "unlinking an interface of")?;
        let call = call.op("unlink_subnet").field("id", link.to_string());
        self.tell::<read::Interface>(&call).await.map(drop)
    }

    async fn deploy(&self, system_id: &str, deployment: &Deployment) -> ProviderResult<()> {
        let mut call = self
            .op(system_id, "deploy", "deploying")?
            .field_if_any("distro_series", &deployment.series)
            .field_if_any("hwe_kernel", &deployment.kernel)
            .field_if_any("agent_name", &deployment.agent_name)
            .field_if_any("comment", &deployment.comment)
            .checked("enable_hw_sync", deployment.hardware_sync);
        if !deployment.user_data.is_empty() {
            let wrapped = Secret::new(BASE64.encode(deployment.user_data.reveal()));
            call = call.field("user_data", wrapped.reveal()).secret(&wrapped).secret(&deployment.user_data);
        }
        self.machine_told(&call, system_id).await.map(drop)
    }

    async fn release(&self, system_id: &str, release: &Release) -> ProviderResult<()> {
        let (quick, secure) = (release.erase == Erase::Quick, release.erase == Erase::Secure);
        let call = self
            .op(system_id, "release", "releasing")?
            .field_if_any("comment", &release.comment)
            .checked("erase", release.erase != Erase::None)
            .checked("quick_erase", quick)
            .checked("secure_erase", secure);
        self.machine_told(&call, system_id).await.map(drop)
    }

    async fn abort(&self, system_id: &str, comment: &str) -> ProviderResult<()> {
        let call = self.op(system_id, "abort", "aborting what goes on with")?.field_if_any("comment", comment);
        self.machine_told(&call, system_id).await.map(drop)
    }

    async fn power_on(&self, system_id: &str) -> ProviderResult<()> {
        let call = self.op(system_id, "power_on", "powering on")?;
        self.machine_told(&call, system_id).await.map(drop)
    }

    async fn power_off(&self, system_id: &str) -> ProviderResult<()> {
        let call = self.op(system_id, "power_off", "powering off")?.field("stop_mode", "hard");
        let mut whole = Whole::of(ONE_MAX);
        self.told(&call, &mut whole).await?;
        if whole.body.trim_ascii() == b"null" {
            let what = format!("powering off machine {system_id}: MAAS has no way to its BMC (power type manual?)");
            let message = format!("{} does not offer {what}; set its power type there", self.name);
            return Err(ProviderError::because(Reason::CapabilityMissing, FailureClass::InvalidInput, message));
        }
        let said: read::Machine = self.parse(&call, &whole.body)?;
        match said.kept() {
            Ok(machine) if machine.system_id == system_id => Ok(()),
            Ok(_) => Err(self.not_understood(&call, "it speaks of another machine")),
            Err(why) => Err(self.not_understood(&call, &why)),
        }
    }

    async fn power_now(&self, system_id: &str) -> ProviderResult<MaasPower> {
        self.check_id(system_id)?;
        let doing = format!("asking the BMC of machine {system_id} for its power");
        let mut call = Call::get(format!("machines/{system_id}/"), doing, self.options.power_now);
        call = call.op("query_power_state");
        call.slow = true;
        let now: Option<read::PowerNow> = self.read(&call, ONE_MAX).await?;
        now.map(|now| MaasPower::read(&now.state.0)).ok_or_else(|| self.gone(&call))
    }

    async fn delete(&self, system_id: &str) -> ProviderResult<bool> {
        let call = self.change_of(Method::DELETE, "machines", system_id, "", "deleting")?;
        self.ask(&call, &mut Whole::of(ONE_MAX)).await
    }

    async fn annotate(&self, system_id: &str, annotations: &BTreeMap<String, String>) -> ProviderResult<()> {
        let mut call = self.op(system_id, "set_workload_annotations", "annotating")?;
        for (name, value) in annotations {
            call = call.field(name, value);
        }
        if call.form.is_empty() {
            return Ok(());
        }
        self.machine_told(&call, system_id).await.map(drop)
    }

    async fn tag(&self, system_id: &str, tag: &str) -> ProviderResult<()> {
        self.check_id(system_id)?;
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if !(1..=TAG_MAX).contains(&tag.len()) || !tag.bytes().all(plain) {
            return Err(self.invalid_field(&format!("{:?} is no tag: letters, digits, _ and - only", clean(tag, 40))));
        }
        if self.add_to_tag(system_id, tag).await? {
            return Ok(());
        }
        let call = Call::new(Method::POST, "tags/", format!("making the tag {tag}"), self.options.change);
        let made = self.tell::<read::Anything>(&call.field("name", tag)).await.map(drop);
        // somebody else may have made it since
        match made {
            Err(no @ ProviderError::Refused { class: FailureClass::InvalidInput, .. })
                if !no.to_string().contains("already exists") =>
            {
                return Err(no);
            }
            Ok(()) | Err(ProviderError::Refused { class: FailureClass::InvalidInput, .. }) => {}
            Err(other) => return Err(other),
        }
        if self.add_to_tag(system_id, tag).await? {
            return Ok(());
        }
        Err(ProviderError::transient(format!("{}: the tag {tag} was made and is gone again", self.name)))
    }

    async fn events(&self, after: Option<i64>, level: &str, ids: &[String]) -> ProviderResult<Vec<MaasEvent>> {
        ids.iter().try_for_each(|id| self.check_id(id))?;
        let mut call = self.get("events/", "reading its events").op("query").query("limit", EVENTS_PAGE);
        if let Some(after) = after {
            call = call.query("after", after.to_string());
        }
        if !level.is_empty() {
            call = call.query("level", level);
        }
        for id in ids {
            call = call.query("id", id);
        }
        let events: Option<read::Events> = self.read(&call, ONE_MAX).await?;
        Ok(events.ok_or_else(|| self.gone(&call))?.kept())
    }

    async fn results(&self, system_id: &str, kind: ResultKind, output: bool) -> ProviderResult<Vec<ScriptResult>> {
        self.check_id(system_id)?;
        let name = match kind {
            ResultKind::Commissioning => "commissioning",
            ResultKind::Testing => "testing",
            ResultKind::Installation => "installation",
            ResultKind::Release => "release",
        };
        let doing = format!("reading what {name} of machine {system_id} came to");
        let mut call = self.get(format!("nodes/{system_id}/results/"), doing).query("type", name);
        if output {
            call = call.query("include_output", "true");
        }
        let mut newest: Option<(i64, Vec<ScriptResult>)> = None;
        let keep = |set: read::ResultSet| {
            if newest.as_ref().is_none_or(|(id, _)| set.id > *id) {
                newest = Some((set.id, set.kept(printed)));
            }
            Ok(())
        };
        let mut items = Items::of(RESULTS_MAX.0, RESULTS_MAX.1, keep);
        let there = self.ask(&call, &mut items).await?;
        drop(items);
        Ok(newest.filter(|_| there).map_or(Vec::new(), |(_, results)| results))
    }

    async fn subnets(&self) -> ProviderResult<Vec<MaasSubnet>> {
        let keep = |subnet: read::Subnet| Ok(subnet.kept());
        let mut items = Items::of(SUBNETS_MAX.0, SUBNETS_MAX.1, keep);
        self.told(&self.get("subnets/", "listing the subnets"), &mut items).await?;
        Ok(items.kept)
    }

    async fn images(&self) -> ProviderResult<Vec<(String, String)>> {
        let keep = |image: read::Image| Ok((image.name.0, image.architecture.0));
        let mut items = Items::of(NAMES_MAX.0, NAMES_MAX.1, keep);
        self.told(&self.get("boot-resources/", "listing the images"), &mut items).await?;
        Ok(items.kept)
    }

    async fn pools(&self) -> ProviderResult<Option<Vec<String>>> {
        self.names("resourcepools/", "listing the pools").await.map(Some)
    }

    async fn zones(&self) -> ProviderResult<Option<Vec<String>>> {
        self.names("zones/", "listing the zones").await.map(Some)
    }

    async fn clock_ahead_ms(&self) -> ProviderResult<Option<i64>> {
        Ok(*self.ahead.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The last of what a script has printed.
fn printed(wrapped: &str) -> String {
    let bytes = BASE64.decode(wrapped.trim()).unwrap_or_default();
    clean_lines(&String::from_utf8_lossy(&bytes), OUTPUT_MAX)
}
