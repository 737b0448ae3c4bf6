//! An installation by network boot, as its rows see it: ordered, begun, reported, failed, called off. Each is one piece of
//! a transaction; the machine itself does the work between them.

use domain::boot_node::{BootNode, BootState, CANCELED, COMPLETE, ERASED, PROMOTED, PROVEN, REPAVE, STARTED};
use domain::condition::{self, Condition, ConditionType};
use domain::finding::FindingKind;
use domain::install_order::{Closing, InstallOrder, OrderTask};
use domain::install_report::{Effect, Ignored, Said, effect, is_spent};
use domain::lifecycle::Guard;
use domain::limits::{STEP_LOG_MAX_BYTES, short};
use domain::{Error, FindingId, Reason, RunId};
use serde_json::json;
use store::install_order::{self, NewOrder};
use store::{Cause, Tx, TxResult, boot_node, finding, machine, step_log};

/// In whose name what follows by itself is done.
const SYSTEM: &str = "boot";
/// What is kept of an installer's own lines beside the order.
const LOG_TAIL_MAX: usize = 8 * 1024;
/// Of the condition of a machine whose installation or erasure was tried as often as is allowed.
const INSTALL_FAILED: &str = "InstallFailed";

/// One report of an installer that has shown its token.
#[derive(Clone, Debug)]
pub struct Told {
    pub said: Option<Said>,
    pub progress: Option<u8>,
    pub error: String,
    /// The installer's own lines since the last report.
    pub lines: Vec<String>,
    /// What an erasure proves itself by, as JSON.
    pub evidence: String,
    /// For a finding, if one must be made.
    pub finding: FindingId,
    /// The setting of its group: an installation that is complete needs nobody's word.
    pub promote: bool,
}

fn unguarded(guard: Guard) -> Result<(), Error> {
    match guard {
        Guard::None | Guard::AttemptsSpent => Ok(()),
        Guard::NoActiveRun
        | Guard::InClusterAndNoActiveRun
        | Guard::Inspected
        | Guard::WorkflowAssigned
        | Guard::ForcedReset
        | Guard::NotInUse
        | Guard::Node(_) => Err(Error::internal("a machine's own moves have no such guard")),
    }
}

/// Opens an order for a node, which is where it must be.
pub fn order(tx: &mut Tx<'_>, node: &BootNode, new: &NewOrder, cause: &Cause) -> TxResult<BootNode> {
    boot_node::open_order(tx, node, new, cause)
}

/// By which moves of its own a run brings a node to where it can be installed, or why it must not.
fn way_to_pending(node: &BootNode) -> Result<&'static [BootState], Error> {
    let id = &node.id;
    let why = match node.state {
        BootState::Active => return Ok(&[BootState::Reprovision, BootState::Pending]),
        BootState::Reprovision | BootState::InstallFailed => return Ok(&[BootState::Pending]),
        BootState::Pending => return Ok(&[]),
        BootState::Discovered => {
            format!(
                "nobody has approved it, and a run does not do that by itself; approve it first: 'millwright boot approve {id}'"
            )
        }
        BootState::Installed => {
            format!("what was installed on it last was never verified; verify it first: 'millwright boot verify {id}'")
        }
        BootState::Installing => "it is being installed; wait for the end of that".to_owned(),
        BootState::Migrating => {
            format!("it is being moved to other hardware; end that first: 'millwright boot migrate {id} --to MAC'")
        }
        BootState::Deprovisioning => "its disks are being erased, and after that it is retired".to_owned(),
        BootState::Retired => "it is retired; register the hardware anew".to_owned(),
    };
    let message = format!("boot node {id} ({}) is {} and cannot be installed by a run: {why}", node.mac, node.state);
    Err(Error::new(Reason::IllegalTransition, message).with("node_id", id.as_str()))
}

/// Whether a run could bring it there now.
pub fn may_be_repaved(node: &BootNode) -> Result<(), Error> {
    way_to_pending(node).map(drop)
}

/// A run installs a node: it is brought to `pending`, whatever it was installed with before, and an order is opened.
pub fn repave(tx: &mut Tx<'_>, node: &BootNode, new: &NewOrder, cause: &Cause) -> TxResult<BootNode> {
    let way = way_to_pending(node)?;
    if node.state == BootState::InstallFailed {
        settled(tx, node, "a run installs it anew")?;
    }
    let run = new.run.as_ref().map_or("", |(run, _)| run.as_str());
    let metadata = json!({ "run_id": run, "workflow_id": new.workflow_id, "image": new.image });
    let mut node = BootNode { workflow_id: new.workflow_id.clone(), ..node.clone() };
    for to in way {
        let mut after = BootNode { state: *to, ..node.clone() };
        if *to == BootState::Pending {
            after.install_attempts = 0;
            after.last_install_error = None;
        }
        node = boot_node::move_to(tx, &node, &after, &metadata, &cause.then(REPAVE), with_workflow)?;
    }
    order(tx, &node, new, cause)
}

/// What is installed is only known to be once a workflow is named: by the run.
fn with_workflow(guard: Guard) -> Result<(), Error> {
    match guard {
        Guard::WorkflowAssigned => Ok(()),
        Guard::None
        | Guard::AttemptsSpent
        | Guard::NoActiveRun
        | Guard::InClusterAndNoActiveRun
        | Guard::Inspected
        | Guard::ForcedReset
        | Guard::NotInUse
        | Guard::Node(_) => unguarded(guard),
    }
}

/// What was installed has come up from its disk, which whoever ordered it has waited for.
pub fn prove(tx: &mut Tx<'_>, node: &BootNode, cause: &Cause) -> TxResult<BootNode> {
    if node.state != BootState::Installed {
        return Ok(node.clone());
    }
    let after = BootNode { state: BootState::Active, ..node.clone() };
    let run = node.order.as_ref().and_then(|order| order.run.as_ref()).map_or("", |(run, _)| run.as_str());
    boot_node::move_to(tx, node, &after, &json!({ "run_id": run }), &cause.then(PROVEN), unguarded)
}

/// No order outlives its run: a machine must not be installed by what nobody follows any more. First of all that a
/// transaction locks, as reports do.
pub fn close_with_run(tx: &mut Tx<'_>, run: &RunId) -> TxResult<()> {
    let Some(id) = install_order::of_run(tx, run)? else { return Ok(()) };
    let Some(node) = boot_node::get_for_update(tx, &id)? else { return Ok(()) };
    let is_its = |order: &&InstallOrder| order.run.as_ref().is_some_and(|(of, _)| of == run);
    if node.open_order().filter(is_its).is_some() {
        let cause = Cause::executor("system", CANCELED, &format!("run {run} has ended"));
        call_off(tx, &node, &cause)?;
    }
    Ok(())
}

/// An erasure that says that it is done and does not prove it has failed.
fn judged(happens: Effect, open: Option<&InstallOrder>, failures: u32, told: &Told) -> (Effect, Told) {
    let told = told.clone();
    let erases = open.is_some_and(|order| order.task == OrderTask::Erase);
    if happens != Effect::Completes || !erases {
        return (happens, told);
    }
    let evidence = serde_json::from_str(&told.evidence).unwrap_or_default();
    match crate::erasure::proven(&evidence) {
        Ok(()) => (happens, told),
        Err(why) => {
            let error = format!("it says that its disks are erased, and does not prove it: {why}");
            (Effect::Fails(failures + 1), Told { error, ..told })
        }
    }
}

/// What a report does. The attempt is what its token was made for.
pub fn report(tx: &mut Tx<'_>, node: &BootNode, attempt: u32, told: &Told) -> TxResult<(BootNode, Effect)> {
    let open = node.open_order().filter(|order| order.attempt == attempt).cloned();
    let happens = match told.said {
        Some(said) => effect(node.state, node.install_attempts, node.order.as_ref(), attempt, said, told.progress),
        None => Effect::Nothing(Ignored::NoStatus),
    };
    let (happens, told) = judged(happens, open.as_ref(), node.install_attempts, told);
    let node = match (&open, told.lines.is_empty()) {
        (Some(order), false) => keep_lines(tx, node, order, &told.lines)?,
        (Some(_) | None, _) => node.clone(),
    };
    let Some(order) = node.open_order().cloned() else { return Ok((node, happens)) };
    let by = |trigger| Cause::node(node.mac.as_str(), trigger, "");
    let now = tx.now();
    let after = match happens {
        Effect::Nothing(_) => node.clone(),
        Effect::Begins | Effect::BeginsAgain => {
            let begun =
                InstallOrder { started_at: Some(now), last_report_at: Some(now), progress: Some(0), ..order.clone() };
            install_order::save(tx, &begun)?;
            finding::gone(tx, FindingKind::NotBooted, node.id.as_str(), "it has booted its installer", SYSTEM)?;
            if happens == Effect::Begins {
                let after = BootNode {
                    state: BootState::Installing,
                    install_attempts: 0,
                    last_install_error: None,
                    ..node.clone()
                };
                let metadata = json!({ "attempt": attempt, "workflow_id": order.workflow_id });
                boot_node::move_to(tx, &node, &after, &metadata, &by(STARTED), unguarded)?
            } else {
                again(tx, &node)?
            }
        }
        Effect::Progresses(percent) => {
            // its word that it began may have been lost on the way
            let started_at = order.started_at.or(Some(now));
            let on = InstallOrder { started_at, last_report_at: Some(now), progress: Some(percent), ..order };
            install_order::save(tx, &on)?;
            tx.signal(store::Signal::BootNodeChanged(node.id.clone()));
            let order = InstallOrder { version: on.version + 1, ..on };
            BootNode { order: Some(order), ..node.clone() }
        }
        Effect::Completes => complete(tx, &node, &order, &told)?,
        Effect::Fails(_) => fail_attempt(tx, &node, &told.error, &told.finding, &by(domain::boot_node::FAILED))?,
    };
    Ok((after, happens))
}

fn again(tx: &mut Tx<'_>, node: &BootNode) -> TxResult<BootNode> {
    Ok(tx.point(&boot_node::by_id(&node.id))?.unwrap_or_else(|| node.clone()))
}

fn complete(tx: &mut Tx<'_>, node: &BootNode, order: &InstallOrder, told: &Told) -> TxResult<BootNode> {
    let now = tx.now();
    let by = Cause::node(node.mac.as_str(), COMPLETE, "");
    let done = InstallOrder {
        last_report_at: Some(now),
        progress: Some(100),
        evidence: told.evidence.clone(),
        ..order.clone()
    };
    let _ = install_order::close(tx, &done, Closing::Done, &by)?;
    let node = again(tx, node)?;
    let clean = BootNode { install_attempts: 0, last_install_error: None, ..node.clone() };
    match order.task {
        OrderTask::Install => {
            let metadata = json!({ "attempt": order.attempt, "workflow_id": order.workflow_id });
            let after = BootNode { state: BootState::Installed, failed_workflow_id: String::new(), ..clean };
            let installed = boot_node::move_to(tx, &node, &after, &metadata, &by, unguarded)?;
            settled(tx, &installed, "it was installed")?;
            // a run proves what it has ordered, and does not take a setting's word for it
            if !told.promote || order.run.is_some() {
                return Ok(installed);
            }
            let active = BootNode { state: BootState::Active, ..installed.clone() };
            let comment = format!("group {:?} needs nobody to verify it", node.group);
            let cause = Cause::reconciler(SYSTEM, PROMOTED, &comment);
            boot_node::move_to(tx, &installed, &active, &json!({}), &cause, unguarded)
        }
        OrderTask::Erase => {
            let after = BootNode { state: BootState::Retired, ..clean };
            settled(tx, &node, "its disks were erased")?;
            let evidence = serde_json::from_str::<serde_json::Value>(&told.evidence).unwrap_or_default();
            let cause = Cause::reconciler(SYSTEM, ERASED, "its disks are proven to be empty");
            boot_node::move_to(tx, &node, &after, &json!({ "evidence": evidence }), &cause, unguarded)
        }
    }
}

/// An attempt has failed, whoever says so. `cause` is the move that the last one makes.
pub fn fail_attempt(
    tx: &mut Tx<'_>,
    node: &BootNode,
    error: &str,
    finding: &FindingId,
    cause: &Cause,
) -> TxResult<BootNode> {
    let Some(order) = node.open_order().cloned() else { return Ok(node.clone()) };
    let (now, failures) = (tx.now(), node.install_attempts + 1);
    let error = short(error);
    let failed = BootNode {
        install_attempts: failures,
        last_install_error: Some(error.clone()),
        failed_workflow_id: match order.task {
            OrderTask::Install => order.workflow_id.clone(),
            OrderTask::Erase => node.failed_workflow_id.clone(),
        },
        ..node.clone()
    };
    // beside what the installer itself had to say
    let node = &keep_lines(tx, node, &order, &[format!("[attempt {failures} has failed: {error}]")])?;
    let failed = BootNode { order: node.order.clone(), ..failed };
    let order = node.open_order().cloned().unwrap_or(order);
    tracing::warn!(node = %node.id, mac = %node.mac, attempt = failures, error, "an installation has failed");
    let metadata = json!({ "error": error, "attempt": failures });
    if !is_spent(failures) {
        let next = InstallOrder {
            attempt: order.attempt + 1,
            offered_at: None,
            started_at: None,
            last_report_at: Some(now),
            progress: None,
            ..order
        };
        install_order::save(tx, &next)?;
        boot_node::save(tx, &failed)?;
        return again(tx, node);
    }
    let _ = install_order::close(tx, &order, Closing::Failed, cause)?;
    let (kind, task) = match order.task {
        OrderTask::Install => (FindingKind::InstallFailed, "install"),
        OrderTask::Erase => (FindingKind::EraseFailed, "erase"),
    };
    let message = format!("boot node {} ({}) could not {task} in {failures} attempts: {error}", node.id, node.mac);
    finding::raise(tx, finding.clone(), kind, node.id.as_str(), &message, SYSTEM)?;
    needs_intervention(tx, node, Some(&message))?;
    match order.task {
        OrderTask::Install => {
            let after = BootNode { state: BootState::InstallFailed, ..failed };
            boot_node::move_to(tx, node, &after, &metadata, cause, unguarded)
        }
        // there is no way out but another try or the end: the finding says so
        OrderTask::Erase => {
            boot_node::save(tx, &failed)?;
            again(tx, node)
        }
    }
}

/// Nothing is wrong with it any more, or nobody wants it: what was found is settled.
pub fn settled(tx: &mut Tx<'_>, node: &BootNode, how: &str) -> TxResult<()> {
    for kind in [FindingKind::NotBooted, FindingKind::InstallFailed, FindingKind::EraseFailed] {
        finding::gone(tx, kind, node.id.as_str(), how, SYSTEM)?;
    }
    needs_intervention(tx, node, None)
}

/// The linked machine says it too. One that a run is active on is that run's to speak for.
fn needs_intervention(tx: &mut Tx<'_>, node: &BootNode, message: Option<&str>) -> TxResult<()> {
    let Some(id) = &node.machine_id else { return Ok(()) };
    let Some(there) = machine::get_for_update(tx, id)?.filter(|there| there.active_run.is_none()) else {
        return Ok(());
    };
    let kind = ConditionType::NeedsIntervention;
    let ours = there.conditions.iter().any(|c| c.kind == kind && c.reason == INSTALL_FAILED);
    let (is, reason, message) = match message {
        Some(message) => (true, INSTALL_FAILED, message),
        None if there.condition(kind) && ours => (false, "InstallSettled", ""),
        None => return Ok(()),
    };
    let mut conditions = there.conditions.clone();
    let mut said = Condition::new(kind, is, reason, tx.now());
    message.clone_into(&mut said.message);
    condition::set(&mut conditions, said);
    machine::set_hold(tx, &there, None, &conditions)
}

/// Calls an installation off. What is on the disk is whatever was written; from now on the machine boots from it.
pub fn call_off(tx: &mut Tx<'_>, node: &BootNode, cause: &Cause) -> TxResult<BootNode> {
    let Some(order) = node.open_order().cloned() else { return Ok(node.clone()) };
    let _ = install_order::close(tx, &order, Closing::Canceled, cause)?;
    finding::gone(tx, FindingKind::NotBooted, node.id.as_str(), "its order was called off", SYSTEM)?;
    let node = again(tx, node)?;
    if node.state != BootState::Installing {
        return Ok(node);
    }
    let after = BootNode { state: BootState::InstallFailed, last_install_error: None, ..node.clone() };
    let metadata = json!({ "canceled": true, "attempt": order.attempt });
    boot_node::move_to(tx, &node, &after, &metadata, &cause.then(CANCELED), unguarded)
}

fn keep_lines(tx: &mut Tx<'_>, node: &BootNode, order: &InstallOrder, lines: &[String]) -> TxResult<BootNode> {
    let mut text = String::new();
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    if let Some((run, step)) = &order.run {
        let room = STEP_LOG_MAX_BYTES.saturating_sub(step_log::stored(tx, run, step)?);
        if text.len() <= room {
            step_log::append(tx, run, step, &[("stdout", text.clone().into_bytes())])?;
        }
    }
    let mut tail = format!("{}{text}", order.log_tail);
    if tail.len() > LOG_TAIL_MAX {
        let from = (tail.len() - LOG_TAIL_MAX..tail.len()).find(|i| tail.is_char_boundary(*i)).unwrap_or(0);
        tail.drain(..from);
    }
    install_order::save(tx, &InstallOrder { log_tail: tail, ..order.clone() })?;
    again(tx, node)
}
