//! The images, and the verdict on one: it is written to a folder, the binary serves it, the ledger is asked for,
//! the process is killed, and what lies there is looked at without it.

use crate::fleet::text;
use crate::inside;
use crate::ledger::{self, Entry};
use crate::load::{Recorded, config};
use crate::server::{Home, Server};
use std::collections::BTreeMap;
use std::path::Path;
use testkit::below::Change;
use testkit::power::{Disk, Fate, Image};

/// The disk just before a sync, and what may have become of it.
pub struct Cut {
    pub name: String,
    /// How far the recording had come.
    pub at: u64,
    disk: Disk,
    pub fates: Vec<Fate>,
}

/// One cut before every sync at which something is in doubt, and one at the end.
pub fn cuts(recorded: &Recorded, per_sync: u64) -> Vec<Cut> {
    let mut disk = Disk::new(&recorded.root.0, recorded.root.1);
    let mut cuts = Vec::new();
    let mut at = 0;
    for (n, record) in recorded.trace.iter().enumerate() {
        if matches!(record.change, Change::Sync { .. }) && disk.in_doubt() {
            let name = format!("before sync {} (record {n})", cuts.len() + 1);
            let fates = fates(cuts.len() as u64, per_sync);
            cuts.push(Cut { name, at, disk: disk.clone(), fates });
        }
        disk.apply(&record.change);
        at = record.end;
    }
    let fates = vec![Fate::Dropped, Fate::Kept];
    cuts.push(Cut { name: "at the end".to_owned(), at, disk, fates });
    cuts
}

/// Nothing of it first; then, from cut to cut, another way to have some of it.
fn fates(cut: u64, per_sync: u64) -> Vec<Fate> {
    let some = |n: u64| {
        let seed = cut * 1_000 + n;
        match (cut + n) % 4 {
            0 => Fate::Torn(seed),
            1 => Fate::Scattered(seed),
            2 => Fate::Hollow(seed),
            _ => Fate::Kept,
        }
    };
    std::iter::once(Fate::Dropped).chain((1..per_sync).map(some)).collect()
}

/// How many acknowledgements were due and are there.
pub fn judge(recorded: &Recorded, cut: &Cut, fate: Fate, finish: bool) -> Result<usize, String> {
    let due: Vec<&Entry> = recorded.ledger.iter().filter(|entry| entry.at <= cut.at).collect();
    // an image is not about this machine's disk
    let home = Home::of(testkit::scratch::Watched::in_memory());
    let data = home.path("data");
    write(&cut.disk.image(fate), &recorded.data, &data);
    let world = home.path("world.jsonl");
    std::fs::write(&world, cut.disk.image(Fate::Kept).remove(&recorded.world).unwrap_or_default())
        .map_err(|e| format!("writing the world: {e}"))?;
    let launch = home.launch("data").config(&config(&world));
    let server = launch.try_start().map_err(|ended| format!("the server did not start: {}{}", ended.out, ended.err))?;
    if !due.is_empty() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(ledger::check(&server.url, recorded.admin(), &due))?;
    }
    if finish && !due.is_empty() {
        work_goes_on(&server, &world)?;
    }
    server.kill();
    inside::look(&data.join("millwright.db"))?;
    Ok(due.len())
}

fn write(image: &Image, from: &Path, to: &Path) {
    for (path, bytes) in image.iter().filter(|(path, _)| path.starts_with(from)) {
        // the index of the log is made anew by every start; after a power cut it may hold anything
        let rubbish = path.to_string_lossy().ends_with("-shm").then(|| vec![0xa5; bytes.len()]);
        let path = to.join(path.strip_prefix(from).expect("in the data folder"));
        std::fs::create_dir_all(path.parent().expect("below")).expect("a folder");
        std::fs::write(path, rubbish.as_ref().unwrap_or(bytes)).expect("written");
    }
}

/// Every run in the image comes to its end, none fails, and nothing is done to a machine twice.
fn work_goes_on(server: &Server, world: &Path) -> Result<(), String> {
    let ended = |phase: &str| matches!(phase, "SUCCEEDED" | "FAILED" | "CANCELED");
    let runs = crate::process::until("every run ends", || {
        Some(server.runs()).filter(|runs| runs.iter().all(|run| ended(text(run, "phase"))))
    });
    if let Some(failed) = runs.iter().find(|run| text(run, "phase") == "FAILED") {
        return Err(format!("a run failed: {failed:#}"));
    }
    let mut done: BTreeMap<(String, String, String), usize> = BTreeMap::new();
    for effect in crate::audit::World(world.to_owned()).effects() {
        if ["netboot", "repave_started", "repaved", "reset"].contains(&effect.kind.as_str()) {
            let execution = effect.operation.split('.').next().unwrap_or_default().to_owned();
            *done.entry((effect.machine, execution, effect.kind)).or_default() += 1;
        }
    }
    match done.into_iter().find(|(_, times)| *times > 1) {
        Some((what, times)) => Err(format!("{what:?} was done {times} times")),
        None => Ok(()),
    }
}
