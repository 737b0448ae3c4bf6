//! The capabilities other than commands, each a few lines on top of acts and looks.

use crate::act::{APPLY, CLEAR_BOOT, CORDON, INSTALL, JOIN, OPEN_RETURN, POWER_OFF, RESET, SET_BOOT};
use crate::bmc::by_hand;
use crate::change::Change;
use crate::fault::{Rule, step};
use crate::fleet::SimFleet;
use crate::identity::Identity;
use crate::inventory;
use crate::look::Look;
use crate::visit::Failure;
use crate::world::Cause;
use async_trait::async_trait;
use domain::plan::{BootMode, RebootMode};
use domain::stage::FailureClass;
use provider::{
    Ack, BootControl, ClusterCheck, ClusterControl, Drain, DrainPass, EvictOptions, Exec, ImageControl, Inspect,
    Inspection, Install, Management, Membership, NetworkControl, Operation, PowerControl, PowerState, Provider,
    ProviderError, ProviderResult, RmaControl, Target,
};
use std::collections::BTreeMap;

impl Provider for SimFleet {
    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
    fn power(&self) -> Option<&dyn PowerControl> {
        Some(self)
    }
    fn boot(&self) -> Option<&dyn BootControl> {
        Some(self)
    }
    fn image(&self) -> Option<&dyn ImageControl> {
        Some(self)
    }
    fn exec(&self) -> Option<&dyn Exec> {
        Some(self)
    }
    fn cluster(&self) -> Option<&dyn ClusterControl> {
        Some(self)
    }
    fn network(&self) -> Option<&dyn NetworkControl> {
        Some(self)
    }
    fn rma(&self) -> Option<&dyn RmaControl> {
        Some(self)
    }
    fn management(&self) -> Option<&dyn Management> {
        Some(self)
    }
}

#[async_trait]
impl Inspect for SimFleet {
    async fn inspect(&self, target: &Target) -> ProviderResult<Inspection> {
        let wrong = Rule::another_machine_shows(&target.labels);
        let identity = if wrong { Identity::of_another(target) } else { Identity::of(target) };
        if !wrong && matches!(self.look(target, step::INSPECT).await?, Look::No) {
            return Err(ProviderError::transient("simulated: the BMC does not answer"));
        }
        self.visit(target, |visit| {
            let machine = visit.machine()?;
            Ok(Inspection {
                serial_number: identity.serial_number,
                system_uuid: identity.system_uuid,
                power: if machine.powered { PowerState::On } else { PowerState::Off },
                reachable: machine.up,
                host_asked: true,
                boot_id: machine.boots.to_string(),
                last_reset: String::new(),
                boot_override: inventory::boot_override(machine),
                installed: machine.installed.clone(),
                disk_read: true,
                installing: machine
                    .installing
                    .as_ref()
                    .map(|i| Install { image: i.what.clone(), operation: i.operation.clone() }),
                install_note: String::new(),
                // what a simulated machine loses it forgets; the step waits for it and tries again
                failed_install: None,
            })
        })
    }
}

#[async_trait]
impl PowerControl for SimFleet {
    async fn reset(&self, target: &Target, mode: RebootMode, op: &Operation) -> ProviderResult<Ack> {
        let change = Change::Reset { mode: mode.as_str().to_owned(), due_micros: 0 };
        self.act(target, op, &RESET, change).await
    }

    async fn power_off(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        self.act(target, op, &POWER_OFF, Change::PowerOff {}).await
    }
}

#[async_trait]
impl BootControl for SimFleet {
    async fn set_boot(&self, target: &Target, mode: BootMode, persistent: bool, op: &Operation) -> ProviderResult<Ack> {
        self.act(target, op, &SET_BOOT, Change::Netboot { mode, persistent }).await
    }

    async fn clear_boot(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        self.act(target, op, &CLEAR_BOOT, Change::ClearNetboot {}).await
    }
}

#[async_trait]
impl ImageControl for SimFleet {
    async fn install(&self, target: &Target, image: &str, user_data_ref: &str, op: &Operation) -> ProviderResult<Ack> {
        let change =
            Change::RepaveStarted { image: image.to_owned(), user_data_ref: user_data_ref.to_owned(), due_micros: 0 };
        self.act(target, op, &INSTALL, change).await
    }

    /// Never spoilt by a rule: cancelling must be possible where repaving is made to fail.
    async fn abort_install(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        let key = op.key();
        self.visit(target, |visit| {
            if visit.machine()?.can_abort(&key) {
                visit.change(Cause { operation: &key, fence: &op.fence }, Change::RepaveAborted {})?;
            }
            Ok(Ack::Done)
        })
    }
}

#[async_trait]
impl ClusterControl for SimFleet {
    async fn join(&self, target: &Target, cluster_ref: &str, op: &Operation) -> ProviderResult<Ack> {
        let change = Change::JoinStarted { cluster: cluster_ref.to_owned(), due_micros: 0 };
        self.act(target, op, &JOIN, change).await
    }

    async fn membership(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Membership> {
        let look = self.look(target, step::VERIFY).await?;
        self.member(target, cluster_ref, look)
    }

    /// Nothing else runs on simulated machines, so they are drained unless a rule says no.
    async fn drain_state(&self, target: &Target, _cluster_ref: &str) -> ProviderResult<Drain> {
        drained(self.look(target, step::RMA).await?)
    }

    async fn watch_membership(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Membership> {
        let look = self.glance(target, step::VERIFY).await?;
        self.member(target, cluster_ref, look)
    }

    async fn watch_drain(&self, target: &Target, _cluster_ref: &str) -> ProviderResult<Drain> {
        drained(self.glance(target, step::RMA).await?)
    }

    async fn check(&self, cluster_ref: &str) -> ProviderResult<ClusterCheck> {
        let nodes = u32::try_from(self.members(cluster_ref)?).unwrap_or(u32::MAX);
        let endpoint = format!("sim://{cluster_ref}");
        Ok(ClusterCheck { endpoint, version: "simulated".into(), nodes, ready_nodes: nodes, problems: Vec::new() })
    }

    async fn cordon(&self, target: &Target, cluster_ref: &str, on: bool) -> ProviderResult<Ack> {
        self.node(target, cluster_ref)?;
        if self.visit(target, |visit| Ok(visit.machine()?.cordoned == on))? {
            return Ok(Ack::Done);
        }
        self.act(target, &by_hand("cordon"), &CORDON, Change::Cordoned { on }).await
    }

    /// One pod stands for all; a rule for `rma` that makes the cluster silent keeps it there.
    async fn evict_pass(&self, target: &Target, cluster_ref: &str, _: &EvictOptions) -> ProviderResult<DrainPass> {
        match self.cordon(target, cluster_ref, true).await? {
            Ack::Done | Ack::Accepted => {}
        }
        Ok(match self.look(target, step::RMA).await? {
            Look::Yes | Look::Honest => DrainPass::default(),
            Look::No => DrainPass {
                left: vec![("default/simulated".into(), "simulated: its budget allows no disruption now".into())],
                ..DrainPass::default()
            },
        })
    }

    async fn delete_node(&self, target: &Target, cluster_ref: &str) -> ProviderResult<Ack> {
        if self.visit(target, |visit| Ok(visit.machine()?.member.as_deref() != Some(cluster_ref)))? {
            return Ok(Ack::Done);
        }
        self.act(target, &by_hand("delete_node"), &CORDON, Change::NodeDeleted {}).await
    }
}

impl SimFleet {
    fn members(&self, cluster_ref: &str) -> ProviderResult<usize> {
        let now = (self.clock)().micros();
        Ok(self.world().alone(|world| {
            world.settle_all(now)?;
            Ok::<_, Failure>(world.members(cluster_ref))
        })?)
    }

    /// Refuses what needs a node where there is none.
    fn node(&self, target: &Target, cluster_ref: &str) -> ProviderResult<()> {
        let member = self.visit(target, |visit| Ok(visit.machine()?.member.clone()))?;
        match member.filter(|member| member == cluster_ref) {
            Some(_) => Ok(()),
            None => Err(ProviderError::refused(
                FailureClass::Conflict,
                format!("simulated: cluster {cluster_ref:?} has no node for {}", target.machine_id),
            )),
        }
    }

    fn member(&self, target: &Target, cluster_ref: &str, look: Look) -> ProviderResult<Membership> {
        match look {
            Look::Yes => Ok(Membership::Ready),
            Look::No => Ok(Membership::NotReady("simulated: kubelet not ready".into())),
            Look::Honest => self.visit(target, |visit| {
                let machine = visit.machine()?;
                Ok(match &machine.member {
                    Some(cluster) if cluster == cluster_ref && machine.up => Membership::Ready,
                    Some(cluster) if cluster == cluster_ref => {
                        Membership::NotReady("simulated: the node does not answer".into())
                    }
                    Some(_) | None => Membership::NotFound,
                })
            }),
        }
    }
}

fn drained(look: Look) -> ProviderResult<Drain> {
    match look {
        Look::Yes | Look::Honest => Ok(Drain::Drained),
        Look::No => Err(ProviderError::transient("simulated: the cluster does not tell what runs on the node")),
    }
}

#[async_trait]
impl NetworkControl for SimFleet {
    async fn apply(
        &self,
        target: &Target,
        parameters: &BTreeMap<String, String>,
        op: &Operation,
    ) -> ProviderResult<Ack> {
        self.act(target, op, &APPLY, Change::NetApplied { parameters: parameters.clone() }).await
    }

    async fn current(&self, target: &Target) -> ProviderResult<BTreeMap<String, String>> {
        self.visit(target, |visit| Ok(visit.machine()?.network.clone()))
    }
}

#[async_trait]
impl RmaControl for SimFleet {
    async fn open_return(&self, target: &Target, reason: &str, op: &Operation) -> ProviderResult<Ack> {
        self.act(target, op, &OPEN_RETURN, Change::ReturnOpened { reason: reason.to_owned() }).await
    }

    async fn open_return_of(&self, target: &Target) -> ProviderResult<Option<String>> {
        self.visit(target, |visit| Ok(visit.machine()?.open_return.clone()))
    }
}
