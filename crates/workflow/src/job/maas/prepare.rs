//! A machine is made ready for what is to run on it: commissioned, its disks laid out, its networks linked. Everything is
//! done while it is Ready, before anybody has it.

use super::{
    Looked, OnMaas, Standing, asked, asked_idempotent, done, fail, part, part_in_hand, passed, unmoved, unread, waiting,
};
use domain::maas;
use domain::site::{DiskRule, LinkMode, RoceNetwork};
use domain::stage::FailureClass;
use engine::{Acted, Look, StageCx};
use provider::{
    Commissioning, MaasDisk, MaasInterface, MaasLink, MaasMachine, MaasSubnet, NewLink, ResultKind, StorageLayout,
};

const BOOT_DISK: &str = "the choice of the boot disk";
const LAYOUT: &str = "the layout of its disks";
/// Each is a part of its own: a slow MAAS is asked for one thing at a time.
const TAG: &str = "the tag ";

impl OnMaas<'_> {
    pub(super) async fn commissioned(&self, at: &Standing, cx: &StageCx) -> Looked<Look> {
        let machine = at.machine().await?;
        Ok(match machine.status {
            // one that somebody has marked as broken is theirs to mend
            maas::FAILED_COMMISSIONING if cx.acted => done("it was commissioned, and failed"),
            maas::NEW | maas::FAILED_COMMISSIONING => super::clear_or_lost(cx, "commissioning").into(),
            maas::COMMISSIONING | maas::TESTING => done("MAAS is commissioning it"),
            maas::READY => done("it is commissioned"),
            maas::FAILED_TESTING => return self.unfit(at, &machine).await,
            maas::ALLOCATED if at.learned.is_ours() => passed(&machine),
            _ if at.is_beyond(&machine) => passed(&machine),
            _ => return at.surprise(&machine, "a machine that can be commissioned"),
        })
    }

    pub(super) async fn commission(&self, at: &Standing) -> Acted {
        let machine = match at.machine().await {
            Ok(machine) => machine,
            Err(stopped) => return unmoved(stopped),
        };
        if let Err(failure) = self
            .learn(at, |learned| {
                learned.commissioned = true;
                // it lays out its own default
                learned.laid_in = 0;
            })
            .await
        {
            return Acted::No(failure);
        }
        // a login that MAAS was given is the one to keep: its own would take the place of ours there and in the record
        let given = at.wish.power.is_some() || !matches!(machine.power_type.as_str(), "" | "manual");
        let how = Commissioning { testing_scripts: at.profile.testing_scripts.clone(), keep_bmc_login: given };
        asked(at.maas.commission(at.system_id(), &how).await)
    }

    pub(super) async fn ready(&self, at: &Standing, cx: &StageCx) -> Looked<Look> {
        let machine = at.machine().await?;
        Ok(match machine.status {
            maas::READY => done("it is Ready"),
            maas::COMMISSIONING | maas::TESTING => waiting(format!("MAAS: {}", machine.says()), cx).into(),
            maas::FAILED_COMMISSIONING | maas::FAILED_TESTING => return self.unfit(at, &machine).await,
            maas::NEW => {
                let message = format!(
                    "commissioning of {} ended where it began: MAAS could not drive its power",
                    machine.system_id
                );
                return fail("COMMISSIONING_REVERTED", FailureClass::Transient, message);
            }
            maas::ALLOCATED if at.learned.is_ours() => passed(&machine),
            _ if at.is_beyond(&machine) => passed(&machine),
            _ => return at.surprise(&machine, "Ready"),
        })
    }

    /// It was looked at and found wanting: which scripts say so.
    async fn unfit(&self, at: &Standing, machine: &MaasMachine) -> Looked<Look> {
        let (kind, code) = match machine.status {
            maas::FAILED_TESTING => (ResultKind::Testing, "TESTS_FAILED"),
            _ => (ResultKind::Commissioning, "COMMISSIONING_FAILED"),
        };
        let results = at.maas.results(at.system_id(), kind, false).await.map_err(|e| unread(&e))?;
        let failed: Vec<String> = results
            .iter()
            .filter(|result| super::failure::is_bad(result.status))
            .map(|result| format!("{} ({})", result.name, result.status_name))
            .collect();
        let which = if failed.is_empty() { "MAAS names no script".to_owned() } else { failed.join(", ") };
        let then = match machine.status {
            maas::FAILED_TESTING => "; mend it and have it tested again in MAAS, or override the results there",
            _ => "",
        };
        let message = format!("MAAS says {} of {}: {which}{then}", machine.status_name, machine.system_id);
        fail(code, FailureClass::Hardware, message)
    }

    pub(super) async fn stored(&self, at: &Standing, cx: &StageCx) -> Looked<Look> {
        let machine = at.machine().await?;
        if at.is_beyond(&machine) || (machine.status == maas::ALLOCATED && at.learned.is_ours()) {
            return Ok(passed(&machine));
        }
        if machine.status != maas::READY {
            return at.surprise(&machine, "Ready, to lay out its disks");
        }
        let disk = boot_disk(&at.profile.boot_disk, &machine)?;
        if machine.boot_disk != Some(disk.id) {
            return Ok(part(&cx.facts, BOOT_DISK, cx));
        }
        // it replaces whatever was there, so that it may be done twice; what it came to is not shown, so that MAAS's word
        // counts, and no answer is none
        if at.learned.laid_in != at.sight.job.attempt {
            return Ok(part(&cx.facts, LAYOUT, cx));
        }
        match at.profile.tags.iter().find(|tag| !machine.tags.contains(tag)) {
            None => Ok(done(format!("{} on {}", at.profile.layout, disk.told()))),
            Some(tag) => Ok(part(&cx.facts, &format!("{TAG}{tag}"), cx)),
        }
    }

    pub(super) async fn store_out(&self, at: &Standing, cx: &StageCx) -> Acted {
        let machine = match at.machine().await {
            Ok(machine) => machine,
            Err(stopped) => return unmoved(stopped),
        };
        let disk = match boot_disk(&at.profile.boot_disk, &machine) {
            Ok(disk) => disk,
            Err(stopped) => return unmoved(stopped),
        };
        if !part_in_hand(cx).starts_with(TAG)
            && let Err(stopped) = self.is_the_only_one(at, &machine).await
        {
            return unmoved(stopped);
        }
        match part_in_hand(cx) {
            BOOT_DISK => {
                // what was laid out is on another disk
                if let Err(failure) = self.learn(at, |learned| learned.laid_in = 0).await {
                    return Acted::No(failure);
                }
                asked_idempotent(at.maas.set_boot_disk(at.system_id(), disk.id).await)
            }
            tag if tag.starts_with(TAG) => {
                let tag = tag.strip_prefix(TAG).unwrap_or_default();
                asked_idempotent(at.maas.tag(at.system_id(), tag).await)
            }
            _ => {
                let (root_size, attempt) = (at.profile.root_size.clone(), at.sight.job.attempt);
                let layout = StorageLayout { layout: at.profile.layout, root_size, root_device: None };
                match asked_idempotent(at.maas.set_storage_layout(at.system_id(), &layout).await) {
                    Acted::Yes => match self.learn(at, move |learned| learned.laid_in = attempt).await {
                        Ok(()) => Acted::Yes,
                        Err(failure) => Acted::No(failure),
                    },
                    other => other,
                }
            }
        }
    }

    pub(super) async fn fabric(&self, at: &Standing, cx: &StageCx) -> Looked<Look> {
        if at.profile.roce.is_empty() {
            return Ok(done("passed over: the profile has no such network"));
        }
        let machine = at.machine().await?;
        if at.is_beyond(&machine) {
            return Ok(passed(&machine));
        }
        can_be_linked(at, &machine)?;
        let subnets = at.maas.subnets().await.map_err(|e| unread(&e))?;
        match next_of_fabric(at, &machine, &subnets)? {
            Some(step) => Ok(part(&cx.facts, &step.named(), cx)),
            None => Ok(done(format!("{} networks are linked", at.profile.roce.len()))),
        }
    }

    pub(super) async fn set_fabric(&self, at: &Standing, _: &StageCx) -> Acted {
        let (machine, subnets) = match with_subnets(at).await {
            Ok(both) => both,
            Err(stopped) => return unmoved(stopped),
        };
        match next_of_fabric(at, &machine, &subnets) {
            Ok(Some(Step::Mtu { interface, mtu })) => {
                asked_idempotent(at.maas.set_mtu(at.system_id(), interface, mtu).await)
            }
            Ok(Some(Step::Link { interface, link })) => {
                asked_idempotent(at.maas.link(at.system_id(), interface, &link).await)
            }
            Ok(None) => Acted::Yes,
            Err(stopped) => unmoved(stopped),
        }
    }

    pub(super) async fn pxe(&self, at: &Standing, cx: &StageCx) -> Looked<Look> {
        let machine = at.machine().await?;
        if at.is_beyond(&machine) {
            return Ok(passed(&machine));
        }
        can_be_linked(at, &machine)?;
        let subnets = at.maas.subnets().await.map_err(|e| unread(&e))?;
        let (interface, subnet) = pxe_subnet(at, &machine, &subnets)?;
        let wanted = |link: &MaasLink| link.mode == LinkMode::Auto.as_str() && link.subnet == Some(subnet.id);
        match interface.links.as_slice() {
            [only] if wanted(only) => Ok(done(format!("{} gets its address from {}", interface.name, subnet.cidr))),
            _ => Ok(super::clear_or_lost(cx, "its link").into()),
        }
    }

    pub(super) async fn set_pxe(&self, at: &Standing) -> Acted {
        let (machine, subnets) = match with_subnets(at).await {
            Ok(both) => both,
            Err(stopped) => return unmoved(stopped),
        };
        match pxe_subnet(at, &machine, &subnets) {
            // in the place of all that are there: another one beside it would be a second address
            Ok((interface, subnet)) => {
                let link = NewLink { mode: LinkMode::Auto, subnet: subnet.id.to_string(), force: true };
                asked_idempotent(at.maas.link(at.system_id(), interface.id, &link).await)
            }
            Err(stopped) => unmoved(stopped),
        }
    }
}

/// Its interfaces are only changed before anything runs on it.
fn can_be_linked(at: &Standing, machine: &MaasMachine) -> Looked<()> {
    match machine.status {
        maas::READY | maas::ALLOCATED => Ok(()),
        _ => at.surprise(machine, "Ready, to link its networks"),
    }
}

/// The machine, and the subnets that it can be linked to.
async fn with_subnets(at: &Standing) -> Looked<(MaasMachine, Vec<MaasSubnet>)> {
    Ok((at.machine().await?, at.maas.subnets().await.map_err(|e| unread(&e))?))
}

/// The disk to boot from, by the profile's rule. One that is not there, or not the only one, is for a person: a guess
/// would wipe the wrong disk.
fn boot_disk<'a>(rule: &DiskRule, machine: &'a MaasMachine) -> Looked<&'a MaasDisk> {
    let told: Vec<String> = machine.disks.iter().map(MaasDisk::told).collect();
    let told = if told.is_empty() { "none".to_owned() } else { told.join(", ") };
    if rule.is_empty() {
        let chosen = machine.disks.iter().find(|disk| machine.boot_disk == Some(disk.id));
        return chosen.map_or_else(
            || {
                fail(
                    "BOOT_DISK_NOT_FOUND",
                    FailureClass::NeedsOperator,
                    format!("MAAS names no boot disk; disks: {told}"),
                )
            },
            Ok,
        );
    }
    let fits = |disk: &&MaasDisk| {
        (rule.model.is_empty() || disk.model.to_ascii_lowercase().contains(&rule.model.to_ascii_lowercase()))
            && (rule.tag.is_empty() || disk.tags.contains(&rule.tag))
            && disk.size >= rule.min_bytes
            && (rule.max_bytes == 0 || disk.size <= rule.max_bytes)
    };
    let fitting: Vec<&MaasDisk> = machine.disks.iter().filter(fits).collect();
    match fitting.as_slice() {
        [one] => Ok(one),
        [] => {
            let message = format!("no disk fits the profile's rule for the boot disk; disks: {told}");
            fail("BOOT_DISK_NOT_FOUND", FailureClass::NeedsOperator, message)
        }
        several => {
            let message = format!("{} disks fit the profile's rule for the boot disk; disks: {told}", several.len());
            fail("BOOT_DISK_AMBIGUOUS", FailureClass::NeedsOperator, message)
        }
    }
}

/// One thing to be set on one interface.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Mtu { interface: i64, mtu: u32 },
    Link { interface: i64, link: NewLink },
}

impl Step {
    fn named(&self) -> String {
        match self {
            Step::Mtu { interface, mtu } => format!("MTU {mtu} of interface {interface}"),
            Step::Link { interface, link } => format!("link of interface {interface} to {:?}", link.subnet),
        }
    }
}

/// A name, with `*` for any rest.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, end)) => name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end),
        None => pattern == name,
    }
}

/// The subnet that is meant, by number, `cidr:` or `name:`.
fn subnet<'a>(wanted: &str, subnets: &'a [MaasSubnet]) -> Option<&'a MaasSubnet> {
    let is = |subnet: &&MaasSubnet| match wanted.split_once(':') {
        Some(("cidr", cidr)) => subnet.cidr == cidr,
        Some(("name", name)) => subnet.name == name,
        _ => wanted.parse() == Ok(subnet.id),
    };
    subnets.iter().find(is)
}

fn next_of_fabric(at: &Standing, machine: &MaasMachine, subnets: &[MaasSubnet]) -> Looked<Option<Step>> {
    for network in &at.profile.roce {
        let wanted = subnet(&network.subnet, subnets);
        if wanted.is_none() && !network.subnet.is_empty() {
            let message = format!("site {} has no subnet {:?}", at.site.name, network.subnet);
            return fail("SUBNET_UNKNOWN", FailureClass::NeedsOperator, message);
        }
        // the one that it boots from has a network of its own, whatever a pattern says
        let others = || machine.interfaces.iter().filter(|i| machine.boot_interface != Some(i.id));
        let interfaces: Vec<&MaasInterface> = others().filter(|i| matches(&network.interface, &i.name)).collect();
        if interfaces.is_empty() {
            let names: Vec<&str> = others().map(|i| i.name.as_str()).collect();
            let message = format!(
                "no interface is called {:?}; beside the one it boots from there are {}",
                network.interface,
                names.join(", ")
            );
            return fail("ROCE_INTERFACE_MISSING", FailureClass::NeedsOperator, message);
        }
        for interface in interfaces {
            if let Some(step) = next_of_interface(network, wanted, interface) {
                return Ok(Some(step));
            }
        }
    }
    Ok(None)
}

fn next_of_interface(network: &RoceNetwork, wanted: Option<&MaasSubnet>, interface: &MaasInterface) -> Option<Step> {
    if network.mtu != 0 && interface.mtu != network.mtu {
        return Some(Step::Mtu { interface: interface.id, mtu: network.mtu });
    }
    let linked = matches!(interface.links.as_slice(),
        [only] if only.mode == network.mode.as_str() && (wanted.is_none() || only.subnet == wanted.map(|subnet| subnet.id)));
    let subnet = wanted.map_or(String::new(), |subnet| subnet.id.to_string());
    let link = NewLink { mode: network.mode, subnet, force: true };
    (!linked).then_some(Step::Link { interface: interface.id, link })
}

/// The interface that is booted from, and the subnet it is to have its address from: the profile's, or the only one that
/// it can be.
fn pxe_subnet<'a>(
    at: &Standing,
    machine: &'a MaasMachine,
    subnets: &'a [MaasSubnet],
) -> Looked<(&'a MaasInterface, &'a MaasSubnet)> {
    let unfixable = |why: String| fail("PXE_NOT_FIXABLE", FailureClass::NeedsOperator, why);
    let boots = machine.interfaces.iter().find(|i| machine.boot_interface == Some(i.id));
    let Some(interface) = boots else {
        return unfixable(format!("MAAS does not know which interface machine {} boots from", machine.system_id));
    };
    if !at.profile.pxe_subnet.is_empty() {
        return match subnet(&at.profile.pxe_subnet, subnets) {
            Some(subnet) => Ok((interface, subnet)),
            None => unfixable(format!("site {} has no subnet {:?}", at.site.name, at.profile.pxe_subnet)),
        };
    }
    let linked = interface.links.iter().find_map(|link| subnets.iter().find(|s| link.subnet == Some(s.id)));
    if let Some(subnet) = linked {
        return Ok((interface, subnet));
    }
    let on_vlan: Vec<&MaasSubnet> = subnets.iter().filter(|s| s.vlan.is_some() && s.vlan == interface.vlan).collect();
    match on_vlan.as_slice() {
        [one] => Ok((interface, one)),
        [] => unfixable(format!(
            "interface {} of machine {} is on no VLAN that has a subnet; set pxe_subnet in the profile, or link it in MAAS",
            interface.name, machine.system_id
        )),
        several => unfixable(format!(
            "interface {} of machine {} is on a VLAN with {} subnets; set pxe_subnet in the profile",
            interface.name,
            machine.system_id,
            several.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(disks: &[(i64, &str, u64)], boot: Option<i64>) -> MaasMachine {
        let disk = |(id, model, size): &(i64, &str, u64)| MaasDisk {
            id: *id,
            name: format!("sd{id}"),
            model: (*model).to_owned(),
            size: *size,
            ..MaasDisk::default()
        };
        MaasMachine { disks: disks.iter().map(disk).collect(), boot_disk: boot, ..MaasMachine::default() }
    }

    #[test]
    fn a_boot_disk_is_the_only_one_that_fits_or_nobodys_guess() {
        let code = |looked: Looked<&MaasDisk>| match looked {
            Err(super::super::Stopped::Failed(failure)) => failure.code,
            Err(super::super::Stopped::Waits(on)) => on,
            Ok(disk) => format!("{}", disk.id),
        };
        let boss = DiskRule { model: "BOSS".to_owned(), ..DiskRule::default() };
        let three = machine(&[(1, "DELLBOSS VD", 480), (2, "Micron 7450", 3840), (3, "Micron 7450", 3840)], Some(2));
        assert_eq!(code(boot_disk(&boss, &three)), "1");
        assert_eq!(code(boot_disk(&DiskRule::default(), &three)), "2");
        assert_eq!(
            code(boot_disk(&DiskRule { model: "micron".to_owned(), ..DiskRule::default() }, &three)),
            "BOOT_DISK_AMBIGUOUS"
        );
        assert_eq!(code(boot_disk(&DiskRule { max_bytes: 500, ..DiskRule::default() }, &three)), "1");
        assert_eq!(code(boot_disk(&boss, &machine(&[(2, "Micron", 1)], Some(2)))), "BOOT_DISK_NOT_FOUND");
        assert_eq!(code(boot_disk(&DiskRule::default(), &machine(&[], None))), "BOOT_DISK_NOT_FOUND");
    }

    #[test]
    fn names_match_whole_or_by_a_star() {
        for (pattern, name, is) in [
            ("ens1", "ens1", true),
            ("ens1", "ens10", false),
            ("ens*", "ens10", true),
            ("ens*np0", "ens10np0", true),
            ("ens*np0", "ensnp", false),
            ("*", "eth0", true),
        ] {
            assert_eq!(matches(pattern, name), is, "{pattern} {name}");
        }
    }
}
