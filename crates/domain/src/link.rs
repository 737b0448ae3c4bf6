//! Which machine a boot node is. What a stranger claims when it boots links it to nothing by itself: at once only if we
//! had just ordered that very machine to boot from the network; otherwise it is proposed, for whoever approves.

use crate::boot_node::Claims;
use crate::id::MachineId;
use crate::identity::{another_machine, tells, uuid_tells};
use crate::mac::MacAddress;
use crate::machine::MachineSpec;
use crate::plan::{BootMode, Step, StepKind};
use crate::step::{StepState, StepStatus};

/// A machine that shares an identifier with a boot node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub id: MachineId,
    pub spec: MachineSpec,
    /// A run has just told it to boot from the network ([`told_to_netboot`]).
    pub expected: bool,
    /// Another boot node is linked to it already.
    pub taken: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// It matches nothing that is known.
    New,
    Linked(MachineId),
    Proposed(MachineId),
    /// Several machines, or one of which something else contradicts: for a person to sort out.
    Conflict(String),
}

/// Whether the steps of a run have had its machine boot from the network: of those that are done, the last one that
/// says where it boots from says so. A step that has only begun may not have done anything; and one that installs over
/// the network has a boot node already.
pub fn told_to_netboot(steps: &[Step], states: &[StepStatus]) -> bool {
    let done = |step: &&Step| states.iter().any(|s| s.name == step.name && s.state == StepState::Succeeded);
    let set = |step: &Step| match step.kind {
        StepKind::Netboot { mode, .. } => Some(mode),
        StepKind::Ssh { .. }
        | StepKind::Reboot { .. }
        | StepKind::Repave { .. }
        | StepKind::Join { .. }
        | StepKind::Verify { .. }
        | StepKind::Net { .. }
        | StepKind::Rma { .. } => None,
    };
    match steps.iter().filter(done).filter_map(set).next_back() {
        Some(BootMode::Pxe | BootMode::Http) => true,
        Some(BootMode::Disk | BootMode::Cd) | None => false,
    }
}

/// `candidates` are the machines that hold its MAC, its UUID (in either byte order) or its serial number.
pub fn link(mac: &MacAddress, claims: &Claims, candidates: &[Candidate]) -> Link {
    match candidates {
        [] => Link::New,
        [one] => {
            if let Some(why) = contradiction(mac, claims, one) {
                return Link::Conflict(why);
            }
            if one.taken {
                return Link::Conflict(format!("machine {} has another boot node", one.id));
            }
            if one.expected { Link::Linked(one.id.clone()) } else { Link::Proposed(one.id.clone()) }
        }
        several => {
            let named: Vec<&str> = several.iter().map(|c| c.id.as_str()).collect();
            Link::Conflict(format!("its identifiers belong to several machines: {}", named.join(", ")))
        }
    }
}

/// What an agent says of the hardware it runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HardwareFacts {
    pub system_uuid: String,
    pub serial_number: String,
    pub macs: Vec<MacAddress>,
}

impl HardwareFacts {
    /// Whether any of it tells one machine from another.
    pub fn tell(&self) -> bool {
        tells(&self.serial_number) || uuid_tells(&self.system_uuid) || !self.macs.is_empty()
    }
}

/// Which machine a node is. Its agent came with a token that somebody gave to that very machine: so one machine that
/// agrees is the one, and several, or one of which something contradicts, are for a person.
pub fn link_node(facts: &HardwareFacts, candidates: &[Candidate]) -> Link {
    match candidates {
        [] => Link::New,
        [one] => {
            if let Some(why) = another_machine(&one.spec, &facts.serial_number, &facts.system_uuid) {
                return Link::Conflict(format!("compared with machine {}, {why}", one.id));
            }
            if one.taken {
                return Link::Conflict(format!("machine {} has another node", one.id));
            }
            Link::Linked(one.id.clone())
        }
        several => {
            let named: Vec<&str> = several.iter().map(|c| c.id.as_str()).collect();
            Link::Conflict(format!("its identifiers belong to several machines: {}", named.join(", ")))
        }
    }
}

/// What is written down of a machine that a node was the first to be on.
pub fn record_of_node(facts: &HardwareFacts, provider: &str) -> MachineSpec {
    let claims = Claims {
        serial_number: facts.serial_number.clone(),
        system_uuid: facts.system_uuid.clone(),
        ..Claims::default()
    };
    let mac_addresses = facts.macs.iter().map(ToString::to_string).collect();
    named(MachineSpec { mac_addresses, provider: provider.to_owned(), ..MachineSpec::default() }, &claims)
}

/// What is written down of a machine that nobody knew: its card, and what of its claims says something and is spelt as
/// a record must be. One that is not leaves the others as they are.
pub fn record_of(mac: &MacAddress, claims: &Claims, provider: &str) -> MachineSpec {
    let mac_addresses = vec![mac.to_string()];
    named(MachineSpec { mac_addresses, provider: provider.to_owned(), ..MachineSpec::default() }, claims)
}

fn named(mut spec: MachineSpec, claims: &Claims) -> MachineSpec {
    if tells(&claims.serial_number) {
        let named = MachineSpec { serial_number: claims.serial_number.clone(), ..spec.clone() };
        spec = named.normalized().unwrap_or(spec);
    }
    if uuid_tells(&claims.system_uuid) {
        let named = MachineSpec { system_uuid: claims.system_uuid.clone(), ..spec.clone() };
        spec = named.normalized().unwrap_or(spec);
    }
    spec
}

/// What of the record speaks against this being that machine, though something speaks for it.
fn contradiction(mac: &MacAddress, claims: &Claims, machine: &Candidate) -> Option<String> {
    let (spec, id) = (&machine.spec, &machine.id);
    if let Some(why) = another_machine(spec, &claims.serial_number, &claims.system_uuid) {
        return Some(format!("compared with machine {id}, {why}"));
    }
    let cards = &spec.mac_addresses;
    let foreign = !cards.is_empty() && !cards.iter().any(|known| known == mac.as_str());
    foreign.then(|| format!("it boots from {mac}, and machine {id} has {}", cards.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "4d570000-0001-4002-8000-5254004d5800";
    const SWAPPED: &str = "0000574D-0100-0240-8000-5254004D5800";

    fn mac() -> MacAddress {
        MacAddress::from_text("52:54:00:4d:59:01")
    }

    fn claims(serial: &str, uuid: &str) -> Claims {
        Claims { serial_number: serial.into(), system_uuid: uuid.into(), ..Claims::default() }
    }

    fn candidate(serial: &str, uuid: &str, macs: &[&str]) -> Candidate {
        let spec = MachineSpec {
            serial_number: serial.into(),
            system_uuid: uuid.into(),
            mac_addresses: macs.iter().map(|m| (*m).to_owned()).collect(),
            ..MachineSpec::default()
        };
        Candidate { id: MachineId::from_text("m-1"), spec, expected: false, taken: false }
    }

    #[test]
    fn a_stranger_is_linked_to_nothing_by_what_it_says() {
        let m = MachineId::from_text("m-1");
        let known = candidate("S1", UUID, &["52:54:00:4d:59:01"]);
        assert_eq!(link(&mac(), &claims("S1", SWAPPED), &[]), Link::New);
        assert_eq!(link(&mac(), &claims("s1", SWAPPED), std::slice::from_ref(&known)), Link::Proposed(m.clone()));
        let expected = Candidate { expected: true, ..known.clone() };
        assert_eq!(link(&mac(), &claims("S1", UUID), &[expected]), Link::Linked(m));
        let taken = Candidate { expected: true, taken: true, ..known };
        assert!(matches!(link(&mac(), &claims("S1", UUID), &[taken]), Link::Conflict(_)));
    }

    #[test]
    fn what_contradicts_or_is_ambiguous_is_for_a_person() {
        let expected = |c: Candidate| Candidate { expected: true, ..c };
        let conflict = |claims: &Claims, c: Candidate| matches!(link(&mac(), claims, &[c]), Link::Conflict(_));
        assert!(conflict(&claims("S2", UUID), expected(candidate("S1", UUID, &[]))));
        assert!(conflict(&claims("S1", UUID), expected(candidate("S1", "4d570000-0001-4002-8000-5254004d5801", &[]))));
        assert!(conflict(&claims("S1", UUID), expected(candidate("S1", UUID, &["52:54:00:4d:59:02"]))));
        let (a, mut b) = (candidate("S1", "", &[]), candidate("", UUID, &[]));
        b.id = MachineId::from_text("m-2");
        assert!(matches!(link(&mac(), &claims("S1", UUID), &[a, b]), Link::Conflict(_)));
    }

    #[test]
    fn only_a_step_that_is_done_has_told_it_to_boot_from_the_network() {
        let step = |name: &str, kind| Step { name: name.into(), timeout_seconds: None, max_retries: None, kind };
        let netboot = |name: &str, mode| step(name, StepKind::Netboot { mode, persistent: false });
        let reboot = step("reboot", StepKind::Reboot { mode: crate::plan::RebootMode::Bmc });
        let steps = [netboot("first", BootMode::Pxe), reboot, netboot("last", BootMode::Disk)];
        let told = |states: [StepState; 3]| {
            let states: Vec<StepStatus> = steps
                .iter()
                .zip(states)
                .map(|(s, state)| StepStatus { state, ..StepStatus::waiting(&s.name) })
                .collect();
            told_to_netboot(&steps, &states)
        };
        use StepState::{Failed, Running, Succeeded, Waiting};
        assert!(!told([Waiting, Waiting, Waiting]));
        assert!(!told([Running, Waiting, Waiting]), "it may not have done anything yet");
        assert!(!told([Failed, Waiting, Waiting]));
        assert!(told([Succeeded, Running, Waiting]));
        assert!(told([Succeeded, Succeeded, Running]));
        assert!(!told([Succeeded, Succeeded, Succeeded]), "it was told otherwise since");
        assert!(!told_to_netboot(&steps[1..2], &[StepStatus { state: Succeeded, ..StepStatus::waiting("reboot") }]));
    }

    #[test]
    fn one_claim_that_is_no_name_leaves_the_others() {
        let card = vec!["52:54:00:4d:59:01".to_owned()];
        let odd = "4d570000/0001/4002/8000/5254004d5800";
        let spec = record_of(&mac(), &claims("S1", odd), "sim");
        assert_eq!((spec.serial_number.as_str(), spec.system_uuid.as_str()), ("S1", ""));
        assert_eq!((spec.provider.as_str(), &spec.mac_addresses), ("sim", &card));
        let long = "s".repeat(crate::limits::TEXT_MAX) + "1";
        let spec = record_of(&mac(), &claims(&long, SWAPPED), "sim");
        assert_eq!((spec.serial_number.as_str(), spec.system_uuid), ("", SWAPPED.to_ascii_lowercase()));
        let spec = record_of(&mac(), &claims("To be filled", "00000000-0000-0000-0000-000000000000"), "");
        assert_eq!((spec.serial_number.as_str(), spec.system_uuid.as_str()), ("", ""));
        assert_eq!(spec.mac_addresses, card);
    }

    #[test]
    fn junk_names_nobody() {
        let known = candidate("S1", UUID, &["52:54:00:4d:59:01"]);
        let junk = claims("To be filled by O.E.M.", "00000000-0000-0000-0000-000000000000");
        assert!(matches!(link(&mac(), &junk, &[known]), Link::Proposed(_)), "its card alone speaks for it");
    }
}
