//! GPUs, asked in a process apart: NVIDIA's library costs 20 MiB that are never given back, and waits for ever on a GPU
//! that has died. Nobody waits for it here but the first who asks: the others are told what was last heard.

use crate::folder::Folder;
use crate::host::Host;
use gpu::apart::Apart;
use gpu::pci::{self, OnBus};
use gpu::{Gpu, Gpus};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long one asking may take, driver and all.
const LIMIT: Duration = Duration::from_secs(20);
/// Asked no oftener than this, and than a two-thousandth of the time allows; but at least this often.
const OFTEN: Duration = Duration::from_secs(60);
const SELDOM: Duration = Duration::from_secs(900);
const SHARE: u32 = 2000;

/// What is known of a machine's GPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    pub gpus: Gpus,
    pub on_bus: Vec<OnBus>,
    /// Were there since the baseline was recorded, and are no more.
    pub missing: Vec<String>,
    /// Nobody has answered yet: nothing of the above is known.
    pub unanswered: bool,
}

/// In the state folder: every GPU that was ever seen here. One that leaves the bus is missed also by an agent that was
/// started after it.
pub const FILE: &str = "gpus.json";

static WATCH: LazyLock<Watch> = LazyLock::new(Watch::default);

/// From here on what is seen is kept in this folder, and what was kept there is missed.
pub fn keep_in(state: &Path) {
    WATCH.keep_in(state);
}

pub fn seen(host: &Host) -> Seen {
    if !host.is_real() {
        let note = "not asked: this is not the machine itself".to_owned();
        let gpus = Gpus { note: Some(note), ..Gpus::default() };
        return Seen { gpus, on_bus: pci::on_bus(host.root()), ..Seen::default() };
    }
    let root = host.root().to_owned();
    // without its kernel module the driver has nothing to say, and a process need not be started to hear that
    let driven = host.path("/proc/driver/nvidia").exists() || host.path("/dev/nvidiactl").exists();
    WATCH.look(LIMIT + Duration::from_secs(5), move || {
        let on_bus = pci::on_bus(&root);
        if driven {
            return (Apart::of_this_program(LIMIT).probe(), on_bus);
        }
        (Gpus { note: Some("the NVIDIA driver is not loaded".to_owned()), ..Gpus::default() }, on_bus)
    })
}

/// What was last heard, and when to ask again.
#[derive(Clone, Default)]
struct Watch(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    heard: Option<Seen>,
    /// Since when somebody is asking.
    asking: Option<Instant>,
    again: Option<Instant>,
    known: BTreeMap<String, String>,
    folder: Option<PathBuf>,
    /// As many of them are on disk.
    kept: usize,
    /// Why it is not known which were here.
    forgotten: Option<String>,
}

impl State {
    fn missing(&self, there: &[String]) -> Vec<String> {
        let gone = self.known.iter().filter(|(name, _)| !there.contains(name)).map(|(_, called)| called);
        gone.chain(&self.forgotten).cloned().collect()
    }

    /// What cannot be kept counts all the same, and is tried again with the next look.
    fn learn(&mut self, gpus: &Gpus) {
        for gpu in gpus.gpus.iter().filter(|gpu| gpu.fault.is_none()) {
            self.known.entry(name(gpu)).or_insert_with(|| called(gpu));
        }
        let Some(folder) = self.folder.as_ref().filter(|_| self.forgotten.is_none()) else { return };
        if self.kept < self.known.len() {
            let json = serde_json::to_vec(&self.known).map_err(|e| e.to_string());
            match json.and_then(|json| Folder::open(folder)?.write(FILE, &json)) {
                Ok(()) => self.kept = self.known.len(),
                Err(e) => tracing::error!("which GPUs are here cannot be kept: {e}"),
            }
        }
    }
}

impl Watch {
    fn look(&self, patience: Duration, ask: impl FnOnce() -> (Gpus, Vec<OnBus>) + Send + 'static) -> Seen {
        let mut state = self.state();
        let due = state.again.is_none_or(|again| Instant::now() >= again);
        if due && state.asking.is_none() {
            let begun = Instant::now();
            state.asking = Some(begun);
            let watch = self.clone();
            let started = std::thread::Builder::new().name("gpus".to_owned()).spawn(move || {
                let (gpus, on_bus) = ask();
                watch.hear(gpus, on_bus, begun);
            });
            if started.is_err() {
                state.asking = None;
            }
        }
        let waiting = |state: &mut State| state.heard.is_none() && state.asking.is_some();
        let waited = self.0.1.wait_timeout_while(state, patience, waiting);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.heard.clone().unwrap_or_else(|| {
            let note = "the GPUs were asked, and have not answered yet".to_owned();
            let gpus = Gpus { note: Some(note), ..Gpus::default() };
            Seen { gpus, missing: state.missing(&[]), unanswered: true, ..Seen::default() }
        })
    }

    fn keep_in(&self, folder: &Path) {
        let mut state = self.state();
        let kept = Folder::open(folder).and_then(|folder| folder.read(FILE));
        let kept = kept.and_then(|kept| match kept {
            None => Ok(BTreeMap::new()),
            Some(json) => serde_json::from_slice::<BTreeMap<String, String>>(&json).map_err(|e| e.to_string()),
        });
        match kept {
            Ok(kept) => {
                state.kept = kept.len();
                state.known.extend(kept);
            }
            Err(e) => {
                let path = folder.join(FILE);
                let why =
                    format!("which GPUs were here is not known ({}: {e}); remove it once they are", path.display());
                tracing::error!("{why}");
                state.forgotten = Some(why);
            }
        }
        state.folder = Some(folder.to_owned());
    }

    fn hear(&self, gpus: Gpus, on_bus: Vec<OnBus>, begun: Instant) {
        let mut state = self.state();
        let there: Vec<String> = gpus.gpus.iter().filter(|gpu| gpu.fault.is_none()).map(name).collect();
        state.learn(&gpus);
        let missing = state.missing(&there);
        state.heard = Some(Seen { gpus, on_bus, missing, unanswered: false });
        state.asking = None;
        state.again = Some(Instant::now() + (begun.elapsed() * SHARE).clamp(OFTEN, SELDOM));
        self.0.1.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name(gpu: &Gpu) -> String {
    let names = [&gpu.uuid, &gpu.serial_number, &gpu.pci_bus_id];
    names.into_iter().flatten().next().cloned().unwrap_or_else(|| format!("index {}", gpu.index))
}

fn called(gpu: &Gpu) -> String {
    format!("GPU {} ({})", gpu.index, name(gpu))
}

/// As the wire has it.
pub fn inventory(gpu: &Gpu) -> proto::agent::v1::Gpu {
    proto::agent::v1::Gpu {
        index: gpu.index,
        uuid: gpu.uuid.clone().unwrap_or_default(),
        name: gpu.name.clone().unwrap_or_default(),
        memory_bytes: gpu.memory_bytes.unwrap_or_default(),
        serial_number: gpu.serial_number.clone().unwrap_or_default(),
        pci_bus_id: gpu.pci_bus_id.clone().unwrap_or_default(),
        mig: gpu.mig.unwrap_or_default(),
    }
}

pub fn health(gpu: &Gpu) -> proto::agent::v1::GpuHealth {
    let health = &gpu.health;
    proto::agent::v1::GpuHealth {
        index: gpu.index,
        ecc_corrected: health.ecc_corrected,
        ecc_uncorrected: health.ecc_uncorrected,
        remapped_rows_corrected: health.remapped_rows_corrected,
        remapped_rows_uncorrected: health.remapped_rows_uncorrected,
        remapping_pending: health.remapping_pending,
        remapping_failed: health.remapping_failed,
        temperature_c: health.temperature_c,
        memory_used_bytes: health.memory_used_bytes,
        processes: health.processes.as_ref().map_or(0, |pids| u32::try_from(pids.len()).unwrap_or(u32::MAX)),
    }
}

/// Why nothing is known, with what the bus has all the same.
pub fn note(seen: &Seen) -> String {
    let note = seen.gpus.note.clone().unwrap_or_default();
    match seen.on_bus.len() {
        gpus if gpus > 0 && !note.is_empty() => format!("{note}; {gpus} NVIDIA GPU(s) on the PCI bus"),
        _ => note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    fn gpus(names: &[&str]) -> Gpus {
        let gpu = |(index, name): (usize, &&str)| Gpu {
            index: u32::try_from(index).unwrap(),
            uuid: Some((*name).to_owned()),
            ..Gpu::default()
        };
        Gpus { driver: Some("1".to_owned()), gpus: names.iter().enumerate().map(gpu).collect(), note: None }
    }

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Asks at once, and counts.
    fn counted(asked: &Arc<AtomicUsize>) -> impl FnOnce() -> (Gpus, Vec<OnBus>) + Send + 'static {
        let asked = Arc::clone(asked);
        move || {
            asked.fetch_add(1, Ordering::SeqCst);
            (gpus(&["a", "b"]), Vec::new())
        }
    }

    #[test]
    fn the_first_waits_and_the_others_hear_the_same_without_asking() {
        let (watch, asked) = (Watch::default(), Arc::default());
        let first = watch.look(PATIENCE, counted(&asked));
        assert_eq!(first.gpus.gpus.len(), 2);
        for _ in 0..100 {
            assert_eq!(watch.look(PATIENCE, counted(&asked)), first);
        }
        assert!(watch.state().asking.is_none() && asked.load(Ordering::SeqCst) == 1);
        watch.state().again = Some(Instant::now());
        while asked.load(Ordering::SeqCst) == 1 {
            assert_eq!(watch.look(PATIENCE, counted(&asked)), first, "when it is time, another asks");
        }
    }

    #[test]
    fn one_that_is_gone_is_missed_until_it_is_back() {
        let watch = Watch::default();
        let heard = |gpus: Gpus| {
            watch.hear(gpus, Vec::new(), Instant::now());
            watch.state().heard.clone().unwrap().missing
        };
        assert!(heard(gpus(&["a", "b"])).is_empty());
        assert_eq!(heard(gpus(&["a"])), ["GPU 1 (b)"]);
        let mut lost = gpus(&["a", "b"]);
        lost.gpus[1] = Gpu { index: 1, fault: Some("lost".to_owned()), ..Gpu::default() };
        assert_eq!(heard(lost), ["GPU 1 (b)"], "listed, but it does not answer");
        assert_eq!(heard(Gpus { note: Some("no answer".to_owned()), ..Gpus::default() }).len(), 2);
        assert!(heard(gpus(&["b", "a"])).is_empty());
    }

    #[test]
    fn one_that_is_gone_is_missed_also_by_the_agent_that_starts_next() {
        let folder = tempfile::tempdir().unwrap();
        let started = || {
            let watch = Watch::default();
            watch.keep_in(folder.path());
            watch
        };
        let heard = |watch: &Watch, gpus: Gpus| {
            watch.hear(gpus, Vec::new(), Instant::now());
            watch.state().heard.clone().unwrap().missing
        };
        assert!(heard(&started(), gpus(&["a", "b"])).is_empty());
        let next = started();
        let (end, ended) = channel::<()>();
        let hang = move || {
            let _ = ended.recv();
            (gpus(&["a"]), Vec::new())
        };
        let seen = next.look(Duration::from_millis(1), hang);
        assert!(seen.unanswered && seen.missing.len() == 2, "before anybody has answered: {seen:?}");
        drop(end);
        assert_eq!(heard(&next, gpus(&["a"])), ["GPU 1 (b)"]);
        assert_eq!(heard(&started(), gpus(&["a", "c"])), ["GPU 1 (b)"], "and one more is known");
        assert_eq!(heard(&started(), gpus(&["a", "b"])), ["GPU 1 (c)"]);
        std::fs::write(folder.path().join(FILE), "{").unwrap();
        let torn = heard(&started(), gpus(&["a", "b", "c"]));
        assert!(torn.len() == 1 && torn[0].contains("not known"), "{torn:?}");
        assert_eq!(std::fs::read(folder.path().join(FILE)).unwrap(), b"{", "for a person to see");
    }

    #[test]
    fn a_driver_that_hangs_holds_nobody_for_ever() {
        let (watch, asked) = (Watch::default(), Arc::default());
        let (end, ended) = channel::<()>();
        let hang = move || {
            let _ = ended.recv();
            (gpus(&["a"]), Vec::new())
        };
        let seen = watch.look(Duration::from_millis(1), hang);
        assert!(seen.unanswered && seen.gpus.note.is_some_and(|note| note.contains("not answered yet")));
        let seen = watch.look(Duration::from_millis(1), counted(&asked));
        assert!(seen.gpus.gpus.is_empty());
        drop(end);
        let seen = watch.look(PATIENCE, counted(&asked));
        assert_eq!(seen.gpus.gpus.len(), 1, "what the first was told in the end");
        assert_eq!(asked.load(Ordering::SeqCst), 0, "nobody has asked beside it");
    }

    #[test]
    fn what_is_on_the_bus_is_said_where_the_driver_says_nothing() {
        let on_bus = vec![OnBus { address: "0000:1b:00.0".to_owned(), driver: None }];
        let silent = Gpus { note: Some("no driver".to_owned()), ..Gpus::default() };
        let seen = Seen { gpus: silent, on_bus: on_bus.clone(), ..Seen::default() };
        assert_eq!(note(&seen), "no driver; 1 NVIDIA GPU(s) on the PCI bus");
        assert_eq!(note(&Seen { gpus: gpus(&["a"]), on_bus, ..Seen::default() }), "");
    }
}
