//! Which machine a boot node is. What it says of itself proves nothing, so that it is linked by that only where we had
//! ordered it; otherwise a person confirms, and what does not belong together is a finding. Asked at its first boot, and
//! again when it says something new about who it is: firmware does not tell everything at once, and one that was
//! brought by hand has said nothing yet.

use crate::Service;
use domain::boot_node::{BootNode, BootState, Claims};
use domain::finding::FindingKind;
use domain::identity::another_machine;
use domain::link::{Candidate, Link, link, record_of, told_to_netboot};
use domain::machine::{Labels, Machine, REGISTERED};
use domain::run::RunPhase;
use domain::{FindingId, MachineId};
use store::{Cause, Tx, TxResult, boot_node, finding, machine, run};

/// In whose name findings are made here.
const BY: &str = "boot";

/// For what may have to be made; a transaction may run twice, and makes the same both times.
pub(crate) struct Fresh {
    machine: MachineId,
    finding: FindingId,
    /// What drives a machine that is made.
    provider: String,
}

impl Fresh {
    pub(crate) fn new(service: &Service, provider: &str) -> Self {
        let ambient = service.store().ambient();
        Self {
            machine: MachineId::generate(ambient.uuid()),
            finding: FindingId::generate(ambient.uuid()),
            provider: provider.to_owned(),
        }
    }
}

/// Whether a run has just had this machine boot from the network.
fn expected(tx: &mut Tx<'_>, machine: &Machine) -> TxResult<bool> {
    let Some(active) = machine.active_run.as_ref().filter(|run| run.phase == RunPhase::Running) else {
        return Ok(false);
    };
    let run = run::get_with_steps(tx, &active.id)?;
    Ok(run.is_some_and(|(run, steps)| told_to_netboot(&steps, &run.steps)))
}

/// Which machine it is: a new one, one that we expected, one that a person must confirm, or a conflict.
pub(crate) fn linked(tx: &mut Tx<'_>, node: BootNode, fresh: &Fresh) -> TxResult<(BootNode, Option<String>)> {
    let mut candidates = Vec::new();
    for id in boot_node::candidates(tx, &node)? {
        let Some(there) = machine::get(tx, &id)? else { continue };
        let taken = tx.point(&boot_node::by_machine(&id))?.is_some_and(|other| other.id != node.id);
        let expected = expected(tx, &there)?;
        candidates.push(Candidate { id, spec: there.spec, expected, taken });
    }
    match link(&node.mac, &node.claims, &candidates) {
        Link::Linked(id) => Ok((BootNode { machine_id: Some(id), proposed_machine_id: None, ..node }, None)),
        Link::Proposed(id) => Ok((BootNode { proposed_machine_id: Some(id), ..node }, None)),
        Link::Conflict(why) => Ok((BootNode { proposed_machine_id: None, ..node }, Some(why))),
        Link::New => {
            let spec = record_of(&node.mac, &node.claims, &fresh.provider);
            let comment =
                format!("boot node {} ({}) has booted from the network, and nobody knew it", node.id, node.mac);
            let cause = Cause::node(node.mac.as_str(), REGISTERED, &comment);
            let made = machine::insert(tx, &fresh.machine, &spec, &Labels::new(), &cause)?;
            Ok((BootNode { machine_id: Some(made.id), proposed_machine_id: None, ..node }, None))
        }
    }
}

/// For a person to sort out.
pub(crate) fn conflicts(tx: &mut Tx<'_>, node: &BootNode, why: &str, fresh: &Fresh) -> TxResult<()> {
    finding::raise(tx, fresh.finding.clone(), FindingKind::IdentityConflict, node.id.as_str(), why, BY)
}

/// By what it can be known.
fn names(claims: &Claims) -> (&str, &str) {
    (&claims.serial_number, &claims.system_uuid)
}

/// A node that is there has said who it is, for the first time or otherwise than before.
pub(crate) fn identified(tx: &mut Tx<'_>, before: &BootNode, heard: BootNode, fresh: &Fresh) -> TxResult<BootNode> {
    let first = before.last_seen.is_none();
    if !first && names(&before.claims) == names(&heard.claims) {
        return Ok(heard);
    }
    let (node, conflict) = match (&heard.machine_id, heard.state) {
        (Some(_), _) => {
            let why = contradicted(tx, &heard)?;
            (heard, why)
        }
        // whoever approved it has said what it is, or that it is nothing that we know
        (None, BootState::Discovered) => linked(tx, heard, fresh)?,
        (
            None,
            BootState::Pending
            | BootState::Installing
            | BootState::InstallFailed
            | BootState::Installed
            | BootState::Active
            | BootState::Reprovision
            | BootState::Deprovisioning
            | BootState::Migrating
            | BootState::Retired,
        ) => return Ok(heard),
    };
    match conflict {
        Some(why) => conflicts(tx, &node, &why, fresh)?,
        None => {
            let evidence = "what it says of itself agrees with what we know";
            finding::gone(tx, FindingKind::IdentityConflict, node.id.as_str(), evidence, BY)?;
        }
    }
    Ok(node)
}

/// What speaks against a node's being the machine that it is linked to.
fn contradicted(tx: &mut Tx<'_>, node: &BootNode) -> TxResult<Option<String>> {
    let Some(id) = &node.machine_id else { return Ok(None) };
    let Some(machine) = machine::get(tx, id)? else { return Ok(None) };
    let (serial, uuid) = names(&node.claims);
    if let Some(why) = another_machine(&machine.spec, serial, uuid) {
        return Ok(Some(format!("it is linked to machine {id}, and {why}")));
    }
    let others: Vec<MachineId> = boot_node::candidates(tx, node)?.into_iter().filter(|other| other != id).collect();
    if others.is_empty() {
        return Ok(None);
    }
    let named: Vec<&str> = others.iter().map(MachineId::as_str).collect();
    Ok(Some(format!("it is linked to machine {id}, and its identifiers belong to {}, too", named.join(", "))))
}
