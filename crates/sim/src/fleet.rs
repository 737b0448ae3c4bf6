//! The fleet: the world behind one lock, with the seed and the clock that make it repeatable. The lock
//! is held for the moment of a change or a look, never across a wait.

use crate::effect::Effect;
use crate::journal::Journal;
use crate::world::World;
use domain::Timestamp;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What time it is in the simulated world. Work under way ends by this clock, across restarts.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// A provider with every capability, whose machines come to be when they are first named.
///
/// Labels on a machine set its behaviour:
/// - `sim.latency_ms=N`: how long each act takes; 0 to 50 by the seed if unset.
/// - `sim.output_bytes=N`: commands print that much, in numbered lines.
/// - `sim.fault.STEPKIND=RULE`, with STEPKIND one of `ssh`, `reboot`, `netboot`, `repave`, `join`,
///   `verify`, `net`, `rma`, or `inspect` for every look at its BMC, or `bmc` for what a person does with its
///   lamp, media, BIOS and firmware (power goes by `reboot`, boot by `netboot`), and RULE one of
///   - `fail`: answers no (a command runs and exits 1; a verification finds the node not ready),
///   - `hang`: never answers, does nothing,
///   - `forget`: answers yes, does nothing,
///   - `lie`: answers that it is done, does it a second late,
///   - `drop`: does it, and the answer is lost,
///   - `power-loss`: power goes half-way, and with it the answer,
///   - any of these as `RULE:N`: N times, then work,
///   - `slow:MS`: takes so much longer,
///   - `wrong-machine`: another machine answers.
pub struct SimFleet {
    pub(crate) seed: u64,
    pub(crate) clock: Clock,
    world: Mutex<World>,
}

impl SimFleet {
    /// Opens the world kept in the journal at `path`, or a new one.
    pub fn open(path: &Path, seed: u64, clock: Clock) -> io::Result<Self> {
        let mut world = World::new(Journal::open(path)?);
        world.alone(|_| Ok::<(), io::Error>(()))?;
        Ok(Self { seed, clock, world: Mutex::new(world) })
    }

    /// A world that ends with the process, for tests.
    pub fn in_memory(seed: u64, clock: Clock) -> Self {
        Self { seed, clock, world: Mutex::new(World::new(Journal::in_memory())) }
    }

    /// All that has happened by now.
    pub fn effects(&self) -> io::Result<Vec<Effect>> {
        let now = (self.clock)().micros();
        let source = self.world().alone(|world| {
            world.settle_all(now)?;
            Ok::<_, io::Error>(world.journal.source())
        })?;
        source.effects()
    }

    /// A panic elsewhere leaves the world as its last whole change left it, so the lock stays usable.
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::machine::{Labels, MachineSpec};
    use domain::plan::{BootMode, RebootMode};
    use domain::{ExecutionId, MachineId};
    use provider::{
        Ack, BootControl, ClusterControl, Command, Exec, ImageControl, NetworkControl, Operation, PowerControl,
        ProviderResult, RmaControl, Target,
    };
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicI64, Ordering};

    trait Yes {
        fn yes(self);
    }

    impl Yes for ProviderResult<Ack> {
        fn yes(self) {
            assert!(self.is_ok(), "{self:?}");
        }
    }

    fn target(machine: &str, labels: &[(&str, &str)]) -> Target {
        let mut labels: Labels = labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        labels.insert("sim.latency_ms".into(), "10".into());
        Target {
            machine_id: MachineId::from_text(machine),
            labels,
            spec: MachineSpec::default(),
            notes: provider::Notes::default(),
            by: provider::By::System,
        }
    }

    fn op(stage: &str, attempt: u32) -> Operation {
        Operation { execution: ExecutionId::from_text("exe_1"), stage: stage.into(), attempt, fence: "7".into() }
    }

    /// Leaves something of every kind in the journal, and work of every kind under way.
    async fn busy_day(fleet: &SimFleet, clock: &AtomicI64) {
        let command = Command { command: "echo".into(), args: vec!["hi".into()], environment: BTreeMap::new() };
        for name in ["a", "b"] {
            let plain = target(name, &[]);
            let slow = target(name, &[("sim.fault.repave", "slow:5000")]);
            let lying = target(name, &[("sim.fault.net", "lie"), ("sim.fault.rma", "lie"), ("sim.fault.ssh", "lie")]);
            fleet.set_boot(&plain, BootMode::Pxe, true, &op("netboot", 1)).await.yes();
            fleet.install(&plain, "img", "ud", &op("repave", 1)).await.yes();
            fleet.reset(&plain, RebootMode::Bmc, &op("reboot", 1)).await.yes();
            // the reset has taken effect, and the boot has not ended
            clock.fetch_add(11_000, Ordering::Relaxed);
            fleet.join(&plain, "c1", &op("join", 1)).await.unwrap_err();
            clock.fetch_add(60_000_000, Ordering::Relaxed);
            fleet.join(&plain, "c1", &op("join", 2)).await.yes();
            fleet.start(&plain, &command, &op("ssh", 1)).await.yes();
            fleet.start(&lying, &command, &op("ssh", 2)).await.yes();
            fleet.apply(&plain, &BTreeMap::from([("mtu".into(), "9000".into())]), &op("net", 1)).await.yes();
            fleet.apply(&lying, &BTreeMap::new(), &op("net", 2)).await.yes();
            fleet.open_return(&plain, "disk", &op("rma", 1)).await.yes();
            fleet.open_return(&lying, "disk", &op("rma", 2)).await.yes();
            fleet.kill(&plain, &op("ssh", 2)).await.yes();
            fleet.clear_boot(&plain, &op("netboot", 1)).await.yes();
            let failing = target(name, &[("sim.fault.netboot", "fail:2"), ("sim.fault.reboot", "power-loss:1")]);
            fleet.set_boot(&failing, BootMode::Cd, false, &op("netboot", 2)).await.unwrap_err();
            fleet.reset(&failing, RebootMode::Force, &op("reboot", 2)).await.unwrap_err();
            fleet.install(&slow, "img2", "", &op("repave", 2)).await.yes();
        }
        fleet.abort_install(&target("b", &[]), &op("repave", 3)).await.yes();
        fleet.power_off(&target("b", &[]), &op("off", 1)).await.yes();
    }

    fn held_clock() -> (Arc<AtomicI64>, Clock) {
        let micros = Arc::new(AtomicI64::new(1_000_000));
        let held = Arc::clone(&micros);
        (micros, Arc::new(move || Timestamp::from_micros(held.load(Ordering::Relaxed))))
    }

    #[tokio::test(start_paused = true)]
    async fn a_replay_ends_in_the_same_world() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fleet.jsonl");
        let (micros, clock) = held_clock();
        let fleet = SimFleet::open(&path, 1, Arc::clone(&clock)).unwrap();
        busy_day(&fleet, &micros).await;
        let before = fleet.world().machines().clone();
        drop(fleet);

        let again = SimFleet::open(&path, 1, Arc::clone(&clock)).unwrap();
        assert_eq!(again.world().machines(), &before);

        // Work under way ends once, whoever notices.
        micros.fetch_add(60_000_000, Ordering::Relaxed);
        let effects = again.effects().unwrap();
        let ended = again.world().machines().clone();
        assert_ne!(ended, before);
        drop(again);
        let third = SimFleet::open(&path, 1, clock).unwrap();
        assert_eq!(third.effects().unwrap(), effects);
        assert_eq!(third.world().machines(), &ended);
        assert!(ended.values().all(|m| m.owes() == 0));
    }

    #[tokio::test(start_paused = true)]
    async fn processes_that_share_a_journal_share_the_world() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fleet.jsonl");
        let (micros, clock) = held_clock();
        let one = SimFleet::open(&path, 1, Arc::clone(&clock)).unwrap();
        let two = SimFleet::open(&path, 1, clock).unwrap();
        let machine = target("m", &[]);
        one.install(&machine, "img", "", &op("repave", 1)).await.yes();
        two.reset(&machine, RebootMode::Bmc, &op("reboot", 1)).await.yes();
        busy_day(&one, &micros).await;
        assert_eq!(one.effects().unwrap(), two.effects().unwrap());
        assert_eq!(one.world().machines(), two.world().machines());
    }
}
