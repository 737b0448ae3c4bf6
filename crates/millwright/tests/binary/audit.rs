//! The auditor: what really happened to the simulated machines, from the journal that no server can change.

use crate::fleet::text;
use crate::process::until;
use crate::server::Server;
use serde_json::Value;
use sim::Effect;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub struct World(pub PathBuf);

impl World {
    /// Where a server keeps it when nothing else was said.
    pub fn of(data: &Path) -> Self {
        Self(data.join("sim-world.jsonl"))
    }

    pub fn effects(&self) -> Vec<Effect> {
        match sim::read_effects(&self.0) {
            Ok(effects) => effects,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => panic!("reading the effect journal: {e}"),
        }
    }

    pub fn count(&self, kind: &str) -> usize {
        self.effects().iter().filter(|effect| effect.kind == kind).count()
    }

    /// Waits for so many effects of a kind.
    pub fn wait_for(&self, kind: &str, count: usize) {
        until(&format!("{count} times {kind}"), || (self.count(kind) >= count).then_some(()));
    }

    /// Stops a server, but not while it holds the lock of the world: nobody could act any more, which no
    /// real world does.
    pub fn freeze(&self, server: &Server) {
        until("the server stands still and holds no lock", || {
            server.process.freeze();
            let file = std::fs::File::open(&self.0).expect("the journal");
            for _ in 0..50 {
                if file.try_lock().is_ok() {
                    return Some(());
                }
                std::thread::park_timeout(std::time::Duration::from_millis(2));
            }
            server.process.signal("CONT");
            None
        });
    }

    /// Every execution did each of these to its machine exactly once, and no other machine was touched.
    pub fn each_once(&self, kinds: &[&str], executions: &[Value]) {
        let effects = self.effects();
        for kind in kinds {
            let mut done: BTreeMap<(String, String), usize> = BTreeMap::new();
            for effect in effects.iter().filter(|effect| effect.kind == *kind) {
                let execution = effect.operation.split('.').next().unwrap_or_default().to_owned();
                *done.entry((effect.machine.clone(), execution)).or_default() += 1;
            }
            let once = |e: &Value| ((text(e, "machine_id").to_owned(), text(e, "execution_id").to_owned()), 1);
            let expected: BTreeMap<_, usize> = executions.iter().map(once).collect();
            assert_eq!(done, expected, "{kind}");
        }
    }
}
