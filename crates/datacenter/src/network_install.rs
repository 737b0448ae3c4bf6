//! Installing by network boot. The order, its attempts and the reports of the installer are the boot service's
//! ([`provider::Netboot`]); here the machine is told to boot from the network for as long as the order is open, and seen
//! to come up from its disk.
//!
//! What proves that: a login on its system that began after the installer had said that it was done, since the system
//! from before is gone by then. Where there is no way to log in: that the machine has asked the boot service since, and
//! was sent to its disk.

use crate::datacenter::Inner;
use crate::guarded::Guarded;
use crate::installation::{Begun, Installation, NOTHING, must_be_known, must_confirm};
use crate::lane::For;
use crate::steps::hard_restart;
use crate::sweep::{Disk, System};
use domain::boot_node::MAX_INSTALL_ATTEMPTS;
use domain::hardware::{BootOverride, PowerAction};
use domain::plan::BootMode;
use domain::stage::FailureClass;
use provider::{
    Ack, Because, Bmc as _, BmcState, FailedInstall, Install, Netboot, NetbootOrder, Offer, Operation, Pin, PowerState,
    ProviderError, ProviderResult, Standing, Target,
};
use std::sync::Arc;

fn is_network(boot: BootOverride) -> bool {
    match boot.mode {
        BootMode::Pxe | BootMode::Http => true,
        BootMode::Disk | BootMode::Cd => false,
    }
}

/// By which of its network ways it is to boot until it is installed: the one that is set, be it for one boot, else PXE.
fn wanted(now: &BmcState) -> BootOverride {
    let mode = now.boot.filter(|boot| is_network(*boot)).map_or(BootMode::Pxe, |boot| boot.mode);
    BootOverride { mode, persistent: true }
}

/// When it was last reset, as one word.
fn reset_word(state: &BmcState) -> String {
    if state.last_reset.is_empty() { NOTHING.to_owned() } else { state.last_reset.replace(' ', "_") }
}

/// Whether the controller says that it was not reset since this was begun. Many do not tell.
fn surely_not_reset(begun: &Installation, now: Option<&BmcState>) -> bool {
    begun.before != NOTHING && now.is_some_and(|now| reset_word(now) == begun.before)
}

fn surely_reset(begun: &Installation, now: &BmcState) -> bool {
    let word = reset_word(now);
    begun.before != NOTHING && word != NOTHING && word != begun.before
}

impl Inner {
    /// The way by network boot, if this machine and this image have it. Why not is for the step's log.
    pub async fn by_network(&self, target: &Target, image: &str) -> ProviderResult<Option<Arc<dyn Netboot>>> {
        let Some(netboot) = &self.netboot else { return Ok(None) };
        Ok(match netboot.offer(&target.machine_id, image).await? {
            Offer::Yes(what) => {
                target.notes.add(format!("{image} is installed by network boot: {what}"));
                Some(netboot.clone())
            }
            Offer::No(why) => {
                if self.options.images.contains_key(image) {
                    target.notes.add(format!("{image} is installed as [images] says, not by network boot: {why}"));
                }
                None
            }
        })
    }

    /// The order that has the say about what is on the disk: the one of what was begun last, if that was by network.
    pub async fn network_order(
        &self,
        target: &Target,
        begun: Option<&Installation>,
    ) -> ProviderResult<Option<NetbootOrder>> {
        match &self.netboot {
            Some(netboot) if begun.is_none_or(Installation::is_by_network) => netboot.state(&target.machine_id).await,
            Some(_) | None => Ok(None),
        }
    }

    pub async fn install_by_network(
        &self,
        netboot: &dyn Netboot,
        target: &Target,
        image: &str,
        user_data_ref: &str,
        op: &Operation,
    ) -> ProviderResult<Ack> {
        must_be_known(target)?;
        let (bmc, now) = self.checked(target, For::Work).await?;
        must_confirm(target, "the BMC", &now.serial_number, &now.system_uuid)?;
        let why = format!("{} installs {image} by network boot", op.key());
        let earlier = self.begun(target).await?;
        // of the same attempt, before we were lost: when it was last reset before that is what counts
        let resumed = earlier.as_ref().filter(|begun| begun.operation == op.key() && begun.is_by_network());
        let begun = match resumed {
            Some(begun) => begun.clone(),
            None => {
                let (operation, image, before) = (op.key(), image.to_owned(), reset_word(&now));
                // what an installation has set that nobody has ended is ours to take back, too
                let left = earlier.as_ref().is_some_and(Installation::sets_boot);
                // and what a step has set for one boot, on a controller that knows only all of them
                let asked = self.boot_asked_for(target, now.boot);
                let for_good = asked.is_some_and(|asked| is_network(asked) && asked.persistent);
                let state = Begun::Ordering { sets_boot: left || !for_good };
                let begun = Installation { operation, image, before, state };
                self.must_remember(target, earlier.as_ref(), &begun, &why).await?;
                begun
            }
        };
        let order = netboot.order(target, image, user_data_ref, op).await?;
        let boots_by_itself = match order.standing {
            Standing::Ordered { .. } => matches!(begun.state, Begun::Network { .. }) && surely_reset(&begun, &now),
            Standing::Booting { .. }
            | Standing::Installing { .. }
            | Standing::Written { .. }
            | Standing::Installed
            | Standing::Failed { .. }
            | Standing::CalledOff => true,
        };
        if boots_by_itself {
            return Ok(Ack::Accepted);
        }
        match self.boot_from_network(target, &bmc, &now, &begun, &why).await {
            Err(no @ ProviderError::Refused { .. }) => {
                // it will not boot into it: an open order would only lie in wait for whoever boots it next
                netboot.call_off(&target.machine_id, &op.key(), &no.to_string()).await?;
                Err(no)
            }
            answer => answer,
        }
    }

    async fn boot_from_network(
        &self,
        target: &Target,
        bmc: &Guarded,
        now: &BmcState,
        begun: &Installation,
        why: &str,
    ) -> ProviderResult<Ack> {
        // until it is installed, whatever boots it must find the boot service: another attempt after a failure, and
        // after success the way to its disk. What was not answered is simply done again: nothing has begun yet
        let wanted = wanted(now);
        if now.boot != Some(wanted) {
            let set = match bmc.set_boot(Some(wanted)).await {
                Err(no @ ProviderError::Refused { .. }) => {
                    target.notes.add(format!(
                        "the machine is to boot from the network once: for as long as it is installed cannot be had ({no}), so \
                         that after a failed attempt it must come back by itself"
                    ));
                    bmc.set_boot(Some(BootOverride { persistent: false, ..wanted })).await
                }
                answer => answer,
            };
            let _ = set.map_err(|e| match e {
                ProviderError::Unknown { message } => ProviderError::transient(message),
                no @ ProviderError::Refused { .. } => no,
            })?;
        }
        // from here on it may have begun, whatever is heard
        let sets_boot = begun.sets_boot();
        let booting = Installation { state: Begun::Network { sets_boot }, ..begun.clone() };
        if booting != *begun {
            self.must_remember(target, Some(begun), &booting, why).await?;
        }
        let told = match now.power {
            PowerState::Off => bmc.power(PowerAction::On).await,
            PowerState::On => hard_restart(bmc, target).await,
        };
        if let Err(no @ ProviderError::Refused { .. }) = told {
            let ordering = Installation { state: Begun::Ordering { sets_boot }, ..begun.clone() };
            let _ = self.remember(target, Some(&booting), &ordering, "the BMC refused to start the machine").await?;
            return Err(no);
        }
        told
    }

    /// How a machine stands of which the boot service keeps the last order.
    pub async fn network_disk(
        &self,
        target: &Target,
        bmc: Option<&BmcState>,
        system: &System,
        begun: Option<Installation>,
        order: NetbootOrder,
        whom: For,
    ) -> ProviderResult<Disk> {
        let in_hand = begun.as_ref().filter(|begun| begun.operation == order.operation);
        let install = Install { image: order.image.clone(), operation: order.operation.clone() };
        let going = |note: String| Disk { installing: Some(install.clone()), note, ..Disk::default() };
        let attempt_of = |attempt: u32| format!("attempt {attempt} of {MAX_INSTALL_ATTEMPTS}");
        let whose = |note: String| if in_hand.is_some() { note } else { order.whose.clone() };
        match &order.standing {
            Standing::Ordered { attempt } => {
                let ordering = |b: &Installation| matches!(b.state, Begun::Ordering { .. });
                let not_told = in_hand.is_some_and(|b| ordering(b) || (*attempt == 1 && surely_not_reset(b, bmc)));
                if not_told {
                    return Ok(Disk::default());
                }
                let power = bmc.filter(|bmc| bmc.power == PowerState::Off).map_or("", |_| ", which is without power,");
                let note = format!("{}: the machine{power} is to boot from the network", attempt_of(*attempt));
                Ok(going(whose(note)))
            }
            Standing::Booting { attempt } => {
                let note = format!("{}: it was given the installer, which is to report", attempt_of(*attempt));
                Ok(going(whose(note)))
            }
            Standing::Installing { attempt, percent } => {
                let percent = percent.map_or(String::new(), |percent| format!(", {percent} %"));
                Ok(going(whose(format!("installing{percent} ({})", attempt_of(*attempt)))))
            }
            Standing::Written { disk_booted } => match (in_hand, proof(system, *disk_booted)) {
                (Some(begun), Ok(how)) if whom == For::Work => {
                    self.proven(target, bmc, begun, &how).await?;
                    Ok(Disk { read: true, installed: Some(install), ..Disk::default() })
                }
                (Some(_), Ok(_)) => Ok(going("written, and up from its disk".to_owned())),
                (Some(_), Err(on)) => Ok(going(format!("written; its first boot from disk is to be proven: {on}"))),
                // its run has ended: that it works is for a person to say
                (None, Ok(_) | Err(_)) => Ok(Disk::default()),
            },
            Standing::Installed => {
                if let Some(begun) = in_hand.filter(|_| whom == For::Work) {
                    self.close_network(target, bmc, begun).await?;
                }
                Ok(Disk { read: true, installed: Some(install), ..Disk::default() })
            }
            Standing::Failed { why } => {
                let (operation, why) = (order.operation.clone(), why.clone());
                // three in a row: a person must look, and another attempt of the step is none
                let failed = FailedInstall { operation, why, class: FailureClass::NeedsOperator };
                Ok(Disk { failed: Some(failed), ..Disk::default() })
            }
            // what is there is what was there before, or half of something
            Standing::CalledOff => self.disk(target, system, begun, whom).await,
        }
    }

    async fn proven(
        &self,
        target: &Target,
        bmc: Option<&BmcState>,
        begun: &Installation,
        how: &str,
    ) -> ProviderResult<()> {
        if let Some(netboot) = &self.netboot {
            netboot.proven(&target.machine_id, &begun.operation, how).await?;
        }
        target.notes.add(format!("its first boot from disk is proven: {how}"));
        self.close_network(target, bmc, begun).await
    }

    /// What was set for the sake of an installation is taken back, and nothing of it is in hand any more.
    async fn close_network(&self, target: &Target, bmc: Option<&BmcState>, begun: &Installation) -> ProviderResult<()> {
        if begun.sets_boot() && bmc.and_then(|bmc| bmc.boot).is_some_and(is_network) {
            let _ = self.controller(target, For::Work).await?.set_boot(None).await?;
            self.boots.forget(&target.machine_id);
        }
        self.forget_network(target, &format!("{} has ended", begun.operation)).await
    }

    /// From now on the order alone says what is there.
    pub async fn forget_network(&self, target: &Target, why: &str) -> ProviderResult<()> {
        let because = Because { by: &target.by, why };
        self.keyring.forget(&target.machine_id, &[Pin::Installation], because).await
    }

    /// Gives it up: the order first, so that the machine boots from its disk whatever becomes of the rest.
    pub async fn abort_network(&self, target: &Target, op: &Operation, begun: &Installation) -> ProviderResult<Ack> {
        if let Some(netboot) = &self.netboot {
            netboot.call_off(&target.machine_id, &op.key(), &format!("{} was given up", op.key())).await?;
        }
        let (_, state) = self.checked(target, For::Work).await?;
        self.close_network(target, Some(&state), begun).await?;
        Ok(Ack::Done)
    }
}

/// How it is proven that the machine came up from its disk since the installer was done; else what is waited for.
fn proof(system: &System, disk_booted: bool) -> Result<String, String> {
    match system {
        System::Read(host) => Ok(format!("its system lets us in, with boot id {}", host.boot_id)),
        System::NotAsked if disk_booted => {
            Ok("it has asked the boot service since, and was sent to its disk".to_owned())
        }
        System::NotAsked => {
            Err("there is no SSH endpoint to log in at, and it has not asked the boot service since; does it \
             boot from the network first?"
                .to_owned())
        }
        System::Down => Err("its system does not answer yet".to_owned()),
        System::Closed => Err("its system answers, and does not let us in".to_owned()),
        System::Up => Err("its system answers".to_owned()),
    }
}
