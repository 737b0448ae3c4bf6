//! Installing by network boot, for those who drive machines: their orders are the boot service's, and here is where
//! the two meet. Adapters see neither the store nor boot nodes.
//!
//! The image of a step names what is installed: a boot workflow by its id; or else an image of the image store, which
//! is written by the workflow that is assigned to the boot node, in the place of that workflow's own. A name that is
//! neither, or a machine without a boot node, is not installed by network boot.

use crate::reimage;
use crate::vault::told;
use async_trait::async_trait;
use domain::boot_node::{BootNode, BootState, CANCELED, MAX_INSTALL_ATTEMPTS, PROVEN, REPAVE};
use domain::credential::{CredentialKind, CredentialState};
use domain::identity::another_machine;
use domain::image::ImageState;
use domain::install_order::{Closing, InstallOrder, OrderTask};
use domain::limits::short;
use domain::machine::{Machine, MachineSpec};
use domain::plan::{Step, StepKind};
use domain::stage::FailureClass;
use domain::{BootNodeId, Error, MachineId, OrderId, Reason, RunId};
use provider::{
    By, Netboot, NetbootOrder, Offer, Operation, ProviderError, ProviderResult, Providers, Standing, Target,
};
use store::install_order::NewOrder;
use store::{Caller, Cause, Store, Tx, TxResult, boot_node, boot_workflow, credential, image, run};
use workflow::install;

/// The orders of one store. Cheap to clone.
#[derive(Clone)]
pub struct NetbootOrders {
    store: Store,
}

impl NetbootOrders {
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    async fn node_of(&self, machine: &MachineId) -> ProviderResult<Option<BootNode>> {
        self.store.point(boot_node::by_machine(machine)).await.map_err(told)
    }

    async fn write<T: Send + 'static>(
        &self,
        node: &BootNodeId,
        change: impl Fn(&mut Tx<'_>, BootNode) -> TxResult<T> + Send + Sync + 'static,
    ) -> ProviderResult<T> {
        let id = node.clone();
        let caller = Caller::engine();
        let written = self.store.write(&caller, node.as_str(), move |tx| {
            let there = boot_node::get_for_update(tx, &id)?;
            change(tx, there.ok_or_else(|| crate::boot_nodes::not_found(id.as_str()))?)
        });
        written.await.map_err(told)
    }
}

/// What would be installed on a node under this name: the workflow, and the image in the place of its own.
struct Chosen {
    workflow_id: String,
    image: String,
}

fn no_node() -> String {
    "no boot node is linked to it ('millwright boot list' shows those there are)".to_owned()
}

/// `Err`: it is not for network boot, and why.
fn chosen(tx: &mut Tx<'_>, node: &BootNode, name: &str) -> TxResult<Result<Chosen, String>> {
    if tx.point(&boot_workflow::by_id(name))?.is_some() {
        return Ok(Ok(Chosen { workflow_id: name.to_owned(), image: String::new() }));
    }
    let found = tx.point(&image::by_name(name))?.filter(|image| image.state == ImageState::Present);
    Ok(match found {
        Some(_) => Ok(Chosen { workflow_id: node.workflow_id.clone(), image: name.to_owned() }),
        None => Err(format!("{name:?} is neither a boot workflow nor an image in the image store")),
    })
}

/// Whether that can be carried out.
fn check_workflow(tx: &mut Tx<'_>, node: &BootNode, chosen: &Chosen) -> TxResult<()> {
    let missing = |message: String| Error::new(Reason::WorkflowMissing, message);
    if chosen.image.is_empty() {
        return Ok(());
    }
    let (id, image) = (&node.id, &chosen.image);
    let Some(workflow) = tx.point(&boot_workflow::by_id(&chosen.workflow_id))? else {
        let message = format!(
            "no workflow is assigned to boot node {id} that could write image {image:?}; assign one: 'millwright boot assign {id} --workflow ID'"
        );
        return Err(missing(message).into());
    };
    if workflow.image.is_empty() {
        let message = format!(
            "workflow {:?} of boot node {id} writes no image, so that it cannot write {image:?}; name a workflow, or assign another one",
            workflow.id
        );
        return Err(missing(message).into());
    }
    Ok(())
}

/// What cloud-init will be given must be there before anything is overwritten.
fn check_user_data(tx: &mut Tx<'_>, name: &str, run: Option<&RunId>) -> TxResult<()> {
    if name.is_empty() {
        return Ok(());
    }
    if let Some(job) = reimage::job_named(name) {
        return reimage::owner(tx, &job, run).map(drop);
    }
    let there = tx.point(&credential::by_name(name))?.filter(|there| there.record.state == CredentialState::Present);
    let make = format!("set it with 'millwright credential set {name} --kind user-data --file FILE'");
    let message = match there {
        Some(there) if there.record.kind == CredentialKind::UserData => return Ok(()),
        Some(there) => {
            format!("user_data_ref names credential {name:?}, which is of kind {}, not user-data", there.record.kind)
        }
        None => format!("user_data_ref names credential {name:?}, which is not there; {make}"),
    };
    Err(Error::new(Reason::CredentialMissing, message).with("credential", name).into())
}

/// In whose name a run or a person orders.
fn by(tx: &mut Tx<'_>, by: &By) -> TxResult<(String, Option<RunId>)> {
    Ok(match by {
        By::Run(id) => (run::starter(tx, id)?.unwrap_or_else(|| "executor".to_owned()), Some(id.clone())),
        By::Person(name) => (name.clone(), None),
        By::System => ("system".to_owned(), None),
    })
}

/// An order as those who drive machines see it.
fn seen(node: &BootNode, order: &InstallOrder) -> Option<NetbootOrder> {
    match order.task {
        OrderTask::Install => {}
        OrderTask::Erase => return None,
    }
    let attempt = order.attempt;
    let standing = match order.closed.map(|(_, why)| why) {
        None if order.started_at.is_some() => Standing::Installing { attempt, percent: order.progress },
        None if order.offered_at.is_some() => Standing::Booting { attempt },
        None => Standing::Ordered { attempt },
        Some(Closing::Done) => match node.state {
            BootState::Installed => Standing::Written { disk_booted: order.disk_boot_at.is_some() },
            BootState::Discovered
            | BootState::Pending
            | BootState::Installing
            | BootState::InstallFailed
            | BootState::Active
            | BootState::Reprovision
            | BootState::Deprovisioning
            | BootState::Migrating
            | BootState::Retired => Standing::Installed,
        },
        Some(Closing::Failed) => {
            let error = node.last_install_error.as_deref().unwrap_or("nobody knows why");
            let id = &node.id;
            let why = format!(
                "{MAX_INSTALL_ATTEMPTS} attempts to install boot node {id} have failed, the last with: {error}; mend that and start the run again, or reset it: 'millwright boot retry {id} --comment WHY'"
            );
            Standing::Failed { why }
        }
        Some(Closing::Canceled | Closing::Retired) => Standing::CalledOff,
    };
    let whose = match &order.run {
        Some((run, step)) => format!("step {step} of run {run}"),
        None => format!("{}, who ordered it for boot node {}; wait for its end", order.opened_by, node.id),
    };
    let (operation, image) = (order.operation.clone(), order.names().to_owned());
    Some(NetbootOrder { operation, image, whose, standing })
}

fn last(node: &BootNode) -> Option<NetbootOrder> {
    node.order.as_ref().and_then(|order| seen(node, order))
}

fn wrong_machine(target: &MachineId, spec: &MachineSpec, node: &BootNode) -> Result<(), Error> {
    match another_machine(spec, &node.claims.serial_number, &node.claims.system_uuid) {
        None => Ok(()),
        Some(why) => {
            let message = format!(
                "boot node {} ({}) is linked to machine {target}, and what it said of itself when it booted is another's: {why}; if its hardware was changed, say so: 'millwright machine update {target} --serial SERIAL --system-uuid UUID --mac {}'",
                node.id, node.mac, node.mac
            );
            Err(Error::new(Reason::WrongMachine, message))
        }
    }
}

/// One wish, as it is written.
struct Wish {
    id: OrderId,
    machine: MachineId,
    spec: MachineSpec,
    name: String,
    user_data_ref: String,
    by: By,
    step: String,
    operation: String,
}

impl Wish {
    fn open(&self, tx: &mut Tx<'_>, node: BootNode) -> TxResult<NetbootOrder> {
        let gone = || Error::internal("an order that was just opened is not there");
        if node.machine_id.as_ref() != Some(&self.machine) {
            return Err(Error::new(Reason::Contention, "its boot node was linked to another machine meanwhile").into());
        }
        if let Some(order) = node.order.as_ref().filter(|order| order.operation == self.operation) {
            let there = seen(&node, order).ok_or_else(gone)?;
            if there.standing == Standing::CalledOff {
                // what was stopped is not begun again by a call that comes late
                return Err(Error::new(Reason::Contention, "the order of this attempt was called off").into());
            }
            return Ok(there);
        }
        let (actor, run) = by(tx, &self.by)?;
        let comment = run.as_ref().map_or(String::new(), |run| format!("run {run}"));
        let cause = Cause::executor(&actor, REPAVE, &comment);
        let mut node = node;
        if let Some(open) = node.open_order() {
            let same_run = run.is_some() && open.run.as_ref().map(|(run, _)| run) == run.as_ref();
            if !same_run {
                let whose = last(&node).map_or_else(|| format!("{} ({})", open.opened_by, open.task), |o| o.whose);
                let message = format!("an order is open for boot node {}, by {whose}", node.id);
                return Err(Error::new(Reason::IllegalTransition, message).into());
            }
            // of an earlier attempt, which never got so far
            node = install::call_off(tx, &node, &Cause::executor("system", CANCELED, "another attempt is made"))?;
        }
        wrong_machine(&self.machine, &self.spec, &node)?;
        let chosen = match chosen(tx, &node, &self.name)? {
            Ok(chosen) => chosen,
            Err(why) => return Err(Error::new(Reason::InvalidField, why).into()),
        };
        check_workflow(tx, &node, &chosen)?;
        check_user_data(tx, &self.user_data_ref, run.as_ref())?;
        let new = NewOrder {
            id: self.id.clone(),
            task: OrderTask::Install,
            workflow_id: chosen.workflow_id,
            image: chosen.image,
            user_data_ref: self.user_data_ref.clone(),
            run: run.map(|run| (run, self.step.clone())),
            operation: self.operation.clone(),
        };
        let ordered = install::repave(tx, &node, &new, &cause)?;
        tracing::info!(node = %ordered.id, machine = %self.machine, order = %new.id, by = actor, "an installation was ordered");
        Ok(last(&ordered).ok_or_else(gone)?)
    }
}

#[async_trait]
impl Netboot for NetbootOrders {
    async fn offer(&self, machine: &MachineId, image: &str) -> ProviderResult<Offer> {
        let (machine, image) = (machine.clone(), image.to_owned());
        self.store.read(move |tx| offer(tx, &machine, &image)).await.map_err(told)
    }

    async fn order(
        &self,
        target: &Target,
        image: &str,
        user_data_ref: &str,
        op: &Operation,
    ) -> ProviderResult<NetbootOrder> {
        let machine = &target.machine_id;
        let Some(node) = self.node_of(machine).await? else {
            let message = format!("machine {machine} cannot be installed by network boot: {}", no_node());
            return Err(ProviderError::because(Reason::BootNodeNotFound, FailureClass::NeedsOperator, message));
        };
        let wish = Wish {
            id: OrderId::generate(self.store.ambient().uuid()),
            machine: machine.clone(),
            spec: target.spec.clone(),
            name: image.to_owned(),
            user_data_ref: user_data_ref.to_owned(),
            by: target.by.clone(),
            step: op.stage.clone(),
            operation: op.key(),
        };
        self.write(&node.id, move |tx, node| wish.open(tx, node)).await
    }

    async fn state(&self, machine: &MachineId) -> ProviderResult<Option<NetbootOrder>> {
        Ok(self.node_of(machine).await?.as_ref().and_then(last))
    }

    async fn call_off(&self, machine: &MachineId, operation: &str, why: &str) -> ProviderResult<()> {
        let Some(node) = self.node_of(machine).await? else { return Ok(()) };
        if node.open_order().is_none_or(|order| order.operation != operation) {
            return Ok(());
        }
        let (operation, why) = (operation.to_owned(), short(why));
        self.write(&node.id, move |tx, node| {
            if node.open_order().is_some_and(|order| order.operation == operation) {
                install::call_off(tx, &node, &Cause::executor("system", CANCELED, &why))?;
            }
            Ok(())
        })
        .await
    }

    async fn proven(&self, machine: &MachineId, operation: &str, how: &str) -> ProviderResult<()> {
        let Some(node) = self.node_of(machine).await? else { return Ok(()) };
        let (operation, how) = (operation.to_owned(), short(how));
        self.write(&node.id, move |tx, node| {
            let Some(order) = node.order.as_ref().filter(|order| order.operation == operation) else { return Ok(()) };
            let of = order.run.as_ref().map_or(String::new(), |(run, _)| format!("run {run}: "));
            let cause = Cause::executor(&order.opened_by, PROVEN, &format!("{of}{how}"));
            install::prove(tx, &node, &cause).map(drop)
        })
        .await
    }
}

/// Whether this can be installed on a node; `Err`: it is nothing that network boot knows.
pub(crate) fn offered(tx: &mut Tx<'_>, node: &BootNode, name: &str) -> TxResult<Result<(), String>> {
    match chosen(tx, node, name)? {
        Ok(chosen) => check_workflow(tx, node, &chosen).map(Ok),
        Err(why) => Ok(Err(why)),
    }
}

fn offer(tx: &mut Tx<'_>, machine: &MachineId, name: &str) -> TxResult<Offer> {
    let Some(node) = tx.point(&boot_node::by_machine(machine))? else { return Ok(Offer::No(no_node())) };
    Ok(match chosen(tx, &node, name)? {
        Ok(Chosen { workflow_id, image }) if image.is_empty() => {
            Offer::Yes(format!("boot node {} ({}), workflow {workflow_id}", node.id, node.mac))
        }
        Ok(Chosen { workflow_id, image }) => {
            Offer::Yes(format!("boot node {} ({}), image {image} by workflow {workflow_id:?}", node.id, node.mac))
        }
        Err(why) => Offer::No(why),
    })
}

/// What a provider has not by itself, network boot must: a name that nobody knows is found before a run begins.
pub(crate) fn check_images(tx: &mut Tx<'_>, providers: &Providers, machine: &Machine, steps: &[Step]) -> TxResult<()> {
    let provider = providers.get(machine.spec.provider_name(&machine.labels))?;
    for step in steps {
        let StepKind::Repave { image, .. } = &step.kind else { continue };
        if provider.knows_image(image) {
            continue;
        }
        if let Offer::No(why) = offer(tx, &machine.id, image)? {
            let message = format!(
                "step {} (repave) cannot be carried out on machine {}: there is no image {image:?} in the configuration's [images], and by network boot it cannot be installed: {why}",
                step.name, machine.id
            );
            return Err(Error::new(Reason::CapabilityMissing, message).into());
        }
    }
    Ok(())
}
