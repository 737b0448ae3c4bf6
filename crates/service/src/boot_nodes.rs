//! Boot nodes: brought, assigned, approved, verified, marked, retired. What a person decides; the machines' own part is
//! in `booting`.

use crate::change::{Answer, Key};
use crate::machines::required;
use crate::{Call, Page, PageRequest, Service};
use domain::boot_node::{BootNode, BootState, Claims, REGISTERED, SET_STATE};
use domain::finding::FindingKind;
use domain::id::check_name;
use domain::install_order::{Closing, OrderTask};
use domain::lifecycle::{Guard, Owner, State as _, Verdict, allowed_next, judge};
use domain::limits::{COMMENT_MAX, TEXT_MAX};
use domain::machine::{Machine, Phase, check_text};
use domain::node::{Node, NodeStatus};
use domain::token::Role;
use domain::{BootNodeId, Code, Error, MacAddress, MachineId, OrderId, Reason};
use serde_json::json;
use std::sync::Arc;
use store::boot_node::{self, Move};
use store::install_order::{self, NewOrder};
use store::{Cause, Tx, TxResult, boot_workflow, finding, machine, node};

/// One that is brought before it has booted.
#[derive(Clone, Debug, Default)]
pub struct NewBootNode {
    pub mac_address: String,
    pub workflow_id: String,
    pub group: String,
    pub hostname: String,
    pub machine_id: String,
}

/// What is set is changed.
#[derive(Clone, Debug, Default)]
pub struct BootNodeUpdate {
    pub id: String,
    pub workflow_id: Option<String>,
    pub group: Option<String>,
    pub hostname: Option<String>,
    pub machine_id: Option<String>,
    /// Only the empty one: it is not the machine that is proposed.
    pub proposed_machine_id: Option<String>,
}

/// An operator's word about one boot node.
#[derive(Clone, Debug, Default)]
pub struct BootNodeMove {
    pub id: String,
    pub state: String,
    pub comment: String,
    /// Lifts the limit of attempts and resets the counter; nothing else.
    pub force: bool,
    /// It is the machine that is proposed.
    pub link: bool,
    /// The card of new hardware, at the end of a migration.
    pub mac_address: Option<String>,
}

/// What became of one of several.
#[derive(Clone, Debug)]
pub struct BootNodeResult {
    pub id: String,
    pub outcome: Result<BootNode, Error>,
}

/// How many can be moved by one call.
const BULK_MAX: usize = 1000;
const HISTORY_DEFAULT: i32 = 50;
const HISTORY_MAX: i32 = 200;

pub(crate) fn not_found(id: &str) -> Error {
    Error::new(Reason::BootNodeNotFound, format!("there is no boot node {id:?}")).with("node_id", id)
}

pub(crate) fn mac_of(field: &str, text: &str) -> Result<MacAddress, Error> {
    let mac = MacAddress::parse(text)
        .ok_or_else(|| Error::field(field, format!("{text:?} is not a MAC address like aa:bb:cc:dd:ee:ff")))?;
    if !mac.is_a_cards() {
        return Err(Error::field(field, format!("{mac} is no card's own address")));
    }
    Ok(mac)
}

impl Answer for BootNode {
    fn id(&self) -> String {
        self.id.to_string()
    }

    fn again(tx: &mut Tx<'_>, _: &Call, id: &str) -> TxResult<Self> {
        Ok(tx.point(&boot_node::by_id(&BootNodeId::from_text(id)))?.ok_or_else(|| not_found(id))?)
    }
}

/// By its id, or by its MAC address.
fn locked(tx: &mut Tx<'_>, id: &str) -> TxResult<BootNode> {
    let id = match MacAddress::parse(id) {
        Some(mac) => tx.point(&boot_node::by_mac(&mac))?.ok_or_else(|| not_found(id))?.id,
        None => BootNodeId::from_text(id),
    };
    Ok(boot_node::get_for_update(tx, &id)?.ok_or_else(|| not_found(id.as_str()))?)
}

/// What a boot node is linked to: its machine, and the node that this is enrolled as.
pub(crate) type Linked = (Option<Machine>, Option<Node>);

pub(crate) fn linked(tx: &mut Tx<'_>, node: &BootNode) -> TxResult<Linked> {
    match &node.machine_id {
        Some(id) => Ok((machine::get(tx, id)?, tx.point(&node::by_machine(id))?)),
        None => Ok((None, None)),
    }
}

/// Whether a workflow is there to be assigned.
fn check_workflow(tx: &mut Tx<'_>, id: &str) -> TxResult<()> {
    if !id.is_empty() && tx.point(&boot_workflow::by_id(id))?.is_none() {
        return Err(crate::workflows::not_found(id).into());
    }
    Ok(())
}

/// Links a node to a machine that has none.
fn link(tx: &mut Tx<'_>, node: &BootNode, to: &str) -> TxResult<BootNode> {
    let id = MachineId::from_text(to);
    let there = machine::get(tx, &id)?.ok_or_else(|| crate::machines::not_found(to))?;
    if there.phase == Phase::Retired {
        let message = format!("machine {to} is retired; register the hardware anew");
        return Err(Error::new(Reason::MachineRetired, message).into());
    }
    if let Some(other) = tx.point(&boot_node::by_machine(&id))?.filter(|other| other.id != node.id) {
        let message =
            format!("machine {to} is boot node {} ({}); retire that one first, or unlink it", other.id, other.mac);
        return Err(Error::new(Reason::IdentityTaken, message).with("node_id", other.id.as_str()).into());
    }
    let why = format!("it was linked to machine {to}");
    finding::gone(tx, FindingKind::IdentityConflict, node.id.as_str(), &why, "boot")?;
    Ok(BootNode { machine_id: Some(id), proposed_machine_id: None, ..node.clone() })
}

/// Whether what is known of a node may be changed so.
fn may_update(there: &BootNode, update: &BootNodeUpdate) -> Result<(), Error> {
    if there.state == BootState::Retired {
        let message = format!("boot node {} is retired, and its record stays as it is", there.id);
        return Err(Error::new(Reason::IllegalTransition, message));
    }
    if update.proposed_machine_id.as_deref().is_some_and(|proposed| !proposed.is_empty()) {
        let message = "a machine is proposed by what the node says; use \"\" to say that it is not that one, or machine_id to say which it is";
        return Err(Error::field("proposed_machine_id", message));
    }
    if update.workflow_id.as_deref() == Some("") && there.state == BootState::Pending {
        let message = format!(
            "boot node {} is pending and must be installed with something; assign another workflow instead",
            there.id
        );
        return Err(Error::new(Reason::WorkflowMissing, message));
    }
    Ok(())
}

/// What the guards of an operator's moves are judged by.
struct Facts<'a> {
    node: &'a BootNode,
    machine: Option<&'a Machine>,
    enrolled: Option<&'a Node>,
    force: bool,
    comment: &'a str,
}

impl Facts<'_> {
    fn judge(&self, guard: Guard) -> Result<(), Error> {
        match guard {
            Guard::None => Ok(()),
            Guard::WorkflowAssigned => self.may_be_installed(),
            Guard::ForcedReset => {
                let next = allowed_next(Some(self.node.state), Owner::Operator).into_iter().map(BootState::as_str);
                if !self.force {
                    let message = format!(
                        "boot node {} has failed {} times and is not tried again by itself; assign another workflow and repeat with force",
                        self.node.id, self.node.install_attempts
                    );
                    return Err(Error::new(Reason::ForceNeeded, message).allowing(next.collect::<Vec<_>>()));
                }
                self.may_be_installed()?;
                if self.node.workflow_id == self.node.failed_workflow_id && self.comment.trim().is_empty() {
                    let message = format!(
                        "boot node {} failed with workflow {:?}, which is still assigned; assign another one, or say in a comment why this one will do now",
                        self.node.id, self.node.workflow_id
                    );
                    return Err(Error::new(Reason::ForceNeeded, message).allowing(next.collect::<Vec<_>>()));
                }
                Ok(())
            }
            Guard::NotInUse => self.not_in_use(),
            Guard::NoActiveRun
            | Guard::InClusterAndNoActiveRun
            | Guard::Inspected
            | Guard::AttemptsSpent
            | Guard::Node(_) => Err(Error::internal("not a guard of an operator's move of a boot node")),
        }
    }

    fn may_be_installed(&self) -> Result<(), Error> {
        self.workflow_assigned()?;
        self.not_in_use()
    }

    fn workflow_assigned(&self) -> Result<(), Error> {
        if self.node.workflow_id.is_empty() {
            let message = format!(
                "nothing says what boot node {} is to be installed with; assign a workflow first: 'millwright boot assign {} --workflow ID'",
                self.node.id, self.node.id
            );
            return Err(Error::new(Reason::WorkflowMissing, message));
        }
        Ok(())
    }

    fn not_in_use(&self) -> Result<(), Error> {
        let Some(machine) = self.machine else { return Ok(()) };
        let why = match (&machine.active_run, machine.phase) {
            (Some(run), _) => format!("run {} is active on it; wait for its end or cancel it", run.id),
            (None, Phase::InService) => "it is IN_SERVICE; take it out of service first".to_owned(),
            (
                None,
                Phase::FactoryReady
                | Phase::Ready
                | Phase::Provisioning
                | Phase::Maintenance
                | Phase::Rma
                | Phase::Retired,
            ) => return self.not_enrolled(machine),
        };
        let message = format!("boot node {} is machine {}, which is in use: {why}", self.node.id, machine.id);
        Err(Error::new(Reason::MachineInUse, message).with("machine_id", machine.id.as_str()))
    }

    /// What a machine does as a node goes on until that is out of service.
    fn not_enrolled(&self, machine: &Machine) -> Result<(), Error> {
        let Some(enrolled) = self.enrolled else { return Ok(()) };
        let way = match enrolled.status {
            NodeStatus::Retired | NodeStatus::Deleted => return Ok(()),
            NodeStatus::Active | NodeStatus::Offline | NodeStatus::Quarantined => {
                format!("drain it first: 'millwright node drain {}'", enrolled.id)
            }
            NodeStatus::Draining => "wait until it is retired".to_owned(),
            NodeStatus::Removing => "wait until it is removed".to_owned(),
            NodeStatus::BootstrapIssued | NodeStatus::Enrolling => {
                format!("see what it waits for: 'millwright why {}'", enrolled.id)
            }
        };
        let message = format!(
            "boot node {} is machine {}, which is in use as node {} ({}), {}; {way}",
            self.node.id, machine.id, enrolled.id, enrolled.name, enrolled.status
        );
        let refused = Error::new(Reason::MachineInUse, message).with("machine_id", machine.id.as_str());
        Err(refused.with("node_id", enrolled.id.as_str()))
    }
}

/// Whether an operator's move would be made now, as far as it hangs on facts: `force` and a comment are the operator's.
pub(crate) fn may_move(
    node: &BootNode,
    machine: Option<&Machine>,
    enrolled: Option<&Node>,
    to: BootState,
) -> Result<(), Error> {
    let facts = Facts { node, machine, enrolled, force: true, comment: "said" };
    match judge(Some(node.state), to, SET_STATE, Owner::Operator) {
        Verdict::Allowed(guard) => facts.judge(guard),
        Verdict::NotYours(_) | Verdict::Illegal if node.state == to => match to {
            BootState::Pending => facts.may_be_installed(),
            BootState::Deprovisioning => facts.not_in_use(),
            BootState::Discovered
            | BootState::Installing
            | BootState::InstallFailed
            | BootState::Installed
            | BootState::Active
            | BootState::Reprovision
            | BootState::Migrating
            | BootState::Retired => Err(Error::internal("there is no such move")),
        },
        Verdict::NotYours(owner) => Err(Error::internal(format!("the {owner} does that"))),
        Verdict::Illegal => Err(Error::internal("there is no such move")),
    }
}

impl Service {
    pub async fn create_boot_node(&self, call: &Arc<Call>, new: NewBootNode) -> Result<BootNode, Error> {
        let mac = mac_of("mac_address", &new.mac_address)?;
        check_text("hostname", &new.hostname, TEXT_MAX)?;
        if !new.group.is_empty() {
            check_name("group", &new.group)?;
        }
        let id = BootNodeId::generate(self.store().ambient().uuid());
        let (key, by) = (mac.to_string(), call.by.name.clone());
        self.change(call, &key, move |tx| {
            if let Some(there) = tx.point(&boot_node::by_mac(&mac))? {
                let message = format!("{mac} is boot node {}", there.id);
                return Err(Error::new(Reason::IdentityTaken, message).with("node_id", there.id.as_str()).into());
            }
            check_workflow(tx, &new.workflow_id)?;
            let fresh = BootNode::new(id.clone(), mac.clone(), tx.now());
            let claims = Claims { hostname: new.hostname.clone(), ..Claims::default() };
            let node = BootNode { workflow_id: new.workflow_id.clone(), group: new.group.clone(), claims, ..fresh };
            let node = match new.machine_id.as_str() {
                "" => node,
                machine => link(tx, &node, machine)?,
            };
            boot_node::insert(tx, &node, &Cause::operator(&by, REGISTERED, ""))
        })
        .await
    }

    /// By its id, or by its MAC address.
    pub async fn get_boot_node(&self, id: &str) -> Result<BootNode, Error> {
        let id = required("id", id)?;
        let point = match MacAddress::parse(&id) {
            Some(mac) => boot_node::by_mac(&mac),
            None => boot_node::by_id(&BootNodeId::from_text(id.as_str())),
        };
        self.store().point(point).await?.ok_or_else(|| not_found(&id))
    }

    pub async fn list_boot_nodes(&self, request: &PageRequest) -> Result<Page<BootNode>, Error> {
        let size = request.size()?;
        let filter = boot_node::FILTER.parse(&request.filter)?;
        let after = request.cursor("nodes")?;
        let items = self.store().read(move |tx| boot_node::list(tx, &filter, &after, size + 1)).await?;
        Ok(request.page("nodes", items, size, |node| node.id.to_string()))
    }

    pub async fn update_boot_node(&self, call: &Arc<Call>, update: BootNodeUpdate) -> Result<BootNode, Error> {
        if let Some(hostname) = &update.hostname {
            check_text("hostname", hostname, TEXT_MAX)?;
        }
        if let Some(group) = update.group.as_deref().filter(|group| !group.is_empty()) {
            check_name("group", group)?;
        }
        let key = required("id", &update.id)?;
        self.change(call, &key, move |tx| {
            let there = locked(tx, &update.id)?;
            may_update(&there, &update)?;
            let mut node = there.clone();
            if update.proposed_machine_id.is_some() {
                node.proposed_machine_id = None;
            }
            if let Some(workflow) = &update.workflow_id {
                check_workflow(tx, workflow)?;
                node.workflow_id.clone_from(workflow);
            }
            if let Some(group) = &update.group {
                node.group.clone_from(group);
            }
            if let Some(hostname) = &update.hostname {
                node.claims.hostname.clone_from(hostname);
            }
            match update.machine_id.as_deref() {
                None => {}
                Some(machine) => {
                    // what a machine in use must not suffer must not be had by unlinking it first
                    let (linked, enrolled) = linked(tx, &there)?;
                    let linked = linked.filter(|linked| linked.id.as_str() != machine);
                    let (machine_now, enrolled) = (linked.as_ref(), enrolled.as_ref());
                    Facts { node: &there, machine: machine_now, enrolled, force: false, comment: "" }.not_in_use()?;
                    if machine.is_empty() {
                        node.machine_id = None;
                    } else {
                        node = link(tx, &node, machine)?;
                    }
                }
            }
            if node != there {
                boot_node::save(tx, &node)?;
            }
            <BootNode as Answer>::again(tx, &Call::system(), there.id.as_str())
        })
        .await
    }

    pub async fn move_boot_node(&self, call: &Arc<Call>, change: BootNodeMove) -> Result<BootNode, Error> {
        let to = BootState::parse(&change.state).ok_or_else(|| {
            let known: Vec<&str> = BootState::ALL.iter().map(|state| state.as_str()).collect();
            let message = format!("{:?} is no state; there are {}", change.state, known.join(", "));
            Error::field("state", message).allowing(known)
        })?;
        check_text("comment", &change.comment, COMMENT_MAX)?;
        if to == BootState::Retired {
            call.needs(Role::Admin, "retiring a boot node")?;
        }
        let mac = change.mac_address.as_deref().map(|mac| mac_of("mac_address", mac)).transpose()?;
        let order = OrderId::generate(self.store().ambient().uuid());
        let (key, by) = (required("id", &change.id)?, call.by.name.clone());
        self.change(call, &key, move |tx| {
            let there = locked(tx, &change.id)?;
            let cause = Cause::operator(&by, SET_STATE, &change.comment);
            decided(tx, &there, to, &change, mac.as_ref(), &order, &cause)
        })
        .await
    }

    /// Each by itself: one that is refused holds up none of the others.
    pub async fn move_boot_nodes(
        &self,
        call: &Arc<Call>,
        ids: &[String],
        change: &BootNodeMove,
    ) -> Result<Vec<BootNodeResult>, Error> {
        if ids.is_empty() || ids.len() > BULK_MAX {
            return Err(Error::field("ids", format!("has {} entries; use 1 to {BULK_MAX}", ids.len())));
        }
        if let Some(key) = Key::of(call) {
            // each node has a key of its own below, which would not notice that they are others
            let (caller, entity) = (call.by.caller(), format!("bulk/{}", call.by.token_id));
            let known = move |tx: &mut Tx<'_>| match key.known(tx)? {
                Some(_) => Ok(()),
                None => key.remember(tx, "several"),
            };
            self.store().write(&caller, &entity, known).await?;
        }
        let mut results = Vec::with_capacity(ids.len());
        for id in ids {
            // a key of its own for each, so that the whole can be repeated
            let call = Arc::new(call.part(id));
            let outcome = self.move_boot_node(&call, BootNodeMove { id: id.clone(), ..change.clone() }).await;
            if let Err(e) = &outcome
                && matches!(e.code(), Code::Unavailable | Code::Internal | Code::DeadlineExceeded)
            {
                // that nothing could be decided is about the call. What was done is told, the rest is not tried
                if results.is_empty() {
                    return Err(e.clone());
                }
                let untried = ids.iter().skip(results.len());
                let untried = untried.map(|id| BootNodeResult { id: id.clone(), outcome: Err(e.clone()) });
                let untried: Vec<_> = untried.collect();
                results.extend(untried);
                return Ok(results);
            }
            results.push(BootNodeResult { id: id.clone(), outcome });
        }
        Ok(results)
    }

    /// The newest first, and how many there are in all.
    pub async fn boot_node_history(
        &self,
        id: &str,
        limit: Option<i32>,
        offset: i32,
    ) -> Result<(Vec<Move>, u64), Error> {
        let limit = limit.unwrap_or(HISTORY_DEFAULT);
        if !(1..=HISTORY_MAX).contains(&limit) {
            return Err(Error::field("limit", format!("{limit} is not within 1 to {HISTORY_MAX}")));
        }
        let offset = usize::try_from(offset).map_err(|_| Error::field("offset", "must not be negative"))?;
        let limit = usize::try_from(limit).unwrap_or(1);
        let node = self.get_boot_node(id).await?;
        self.store().read(move |tx| boot_node::history(tx, &node.id, limit, offset)).await
    }
}

/// Makes an operator's move, and what belongs to it.
fn decided(
    tx: &mut Tx<'_>,
    there: &BootNode,
    to: BootState,
    change: &BootNodeMove,
    mac: Option<&MacAddress>,
    order: &OrderId,
    cause: &Cause,
) -> TxResult<BootNode> {
    // nobody should believe that they have just made a move that was made before
    if there.state == to && task_again(there).is_none() {
        let next = next_states(there);
        let message = match next.len() {
            0 => format!("boot node {} is {to} already; from here nothing is allowed", there.id),
            _ => format!("boot node {} is {to} already; from here allowed are {}", there.id, next.join(", ")),
        };
        return Err(Error::new(Reason::IllegalTransition, message).allowing(next).into());
    }
    let mut node = there.clone();
    if change.link {
        let proposed = node.proposed_machine_id.clone().ok_or_else(|| {
            Error::new(Reason::NotConfirmed, format!("no machine is proposed for boot node {}", node.id))
        })?;
        node = link(tx, &node, proposed.as_str())?;
    }
    if let Some(mac) = mac {
        if there.state != BootState::Migrating || to != BootState::Active {
            return Err(Error::field("mac_address", "another card belongs to the end of a migration only").into());
        }
        if let Some(other) = tx.point(&boot_node::by_mac(mac))?.filter(|other| other.id != node.id) {
            let message = format!("{mac} is boot node {}; retire that one first", other.id);
            return Err(Error::new(Reason::IdentityTaken, message).with("node_id", other.id.as_str()).into());
        }
        // what the new hardware is, it says when it boots; what the old one said is not true any more
        let Claims { hostname, .. } = node.claims;
        node = BootNode {
            mac: mac.clone(),
            claims: Claims { hostname, ..Claims::default() },
            inventory: String::new(),
            ..node
        };
    }
    let (machine, enrolled) = linked(tx, &node)?;
    let (machine, enrolled) = (machine.as_ref(), enrolled.as_ref());
    let facts = Facts { node: &node, machine, enrolled, force: change.force, comment: &change.comment };
    if let Some(task) = task_again(there).filter(|_| there.state == to) {
        match task {
            OrderTask::Install => facts.may_be_installed()?,
            OrderTask::Erase => facts.not_in_use()?,
        }
        workflow::install::settled(tx, &node, "it was ordered again")?;
        let node = BootNode { install_attempts: 0, last_install_error: None, ..node.clone() };
        return open(tx, &node, task, order, cause);
    }
    let mut after = BootNode { state: to, ..node.clone() };
    let mut metadata = json!({});
    match to {
        BootState::Pending => {
            after.install_attempts = 0;
            after.last_install_error = None;
            metadata = json!({ "workflow_id": node.workflow_id });
            if change.force {
                metadata["force"] = json!(true);
                metadata["attempts"] = json!(there.install_attempts);
            }
        }
        BootState::Retired => {
            facts.not_in_use().map_err(|e| e.allowing(next_states(there)))?;
            if let Some(open) = there.open_order() {
                let _ = install_order::close(tx, open, Closing::Retired, cause)?;
            }
            workflow::install::settled(tx, &node, "it was retired")?;
        }
        BootState::Deprovisioning
        | BootState::Discovered
        | BootState::Installing
        | BootState::InstallFailed
        | BootState::Installed
        | BootState::Active
        | BootState::Reprovision
        | BootState::Migrating => {}
    }
    let judged = |guard| facts.judge(guard).map_err(|e| e.allowing(next_states(there)));
    let moved = boot_node::move_to(tx, &node, &after, &metadata, cause, judged)?;
    match to {
        BootState::Pending => {
            workflow::install::settled(tx, &moved, "it was reset")?;
            open(tx, &moved, OrderTask::Install, order, cause)
        }
        BootState::Deprovisioning => open(tx, &moved, OrderTask::Erase, order, cause),
        BootState::Discovered
        | BootState::Installing
        | BootState::InstallFailed
        | BootState::Installed
        | BootState::Active
        | BootState::Reprovision
        | BootState::Migrating
        | BootState::Retired => Ok(moved),
    }
}

/// What can be ordered once more without a move: its order was called off, or spent.
fn task_again(node: &BootNode) -> Option<OrderTask> {
    let task = match node.state {
        BootState::Pending => OrderTask::Install,
        BootState::Deprovisioning => OrderTask::Erase,
        BootState::Discovered
        | BootState::Installing
        | BootState::InstallFailed
        | BootState::Installed
        | BootState::Active
        | BootState::Reprovision
        | BootState::Migrating
        | BootState::Retired => return None,
    };
    node.open_order().is_none().then_some(task)
}

/// For whoever was refused.
fn next_states(node: &BootNode) -> Vec<String> {
    allowed_next(Some(node.state), Owner::Operator).iter().map(ToString::to_string).collect()
}

fn open(tx: &mut Tx<'_>, node: &BootNode, task: OrderTask, order: &OrderId, cause: &Cause) -> TxResult<BootNode> {
    let new = NewOrder {
        id: order.clone(),
        task,
        // nothing but our own installer erases
        workflow_id: match task {
            OrderTask::Install => node.workflow_id.clone(),
            OrderTask::Erase => String::new(),
        },
        image: String::new(),
        user_data_ref: String::new(),
        run: None,
        operation: String::new(),
    };
    workflow::install::order(tx, node, &new, cause)
}
