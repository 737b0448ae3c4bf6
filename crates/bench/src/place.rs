//! Where the figures come from: the machine, its disk, the versions. A figure without them says little.

use crate::Outcome;
use crate::ground::{Ground, connect};
use serde_json::{Value, json};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tokio::time::Instant;

/// File systems that keep nothing: durability costs nothing there, and means nothing.
const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];

pub fn describe() -> Outcome<Value> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|l| l.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or(String::new(), |(_, value)| value.trim().to_owned())
    };
    let folder = std::env::temp_dir();
    let (system, mount) = file_system(&folder)?;
    if IN_MEMORY.contains(&system.as_str()) {
        let folder = folder.display();
        return Err(format!("{folder} is on {system}, which keeps nothing; set TMPDIR to a folder on a disk").into());
    }
    Ok(json!({
        "cores": std::thread::available_parallelism()?.get(),
        "processor": field(&read("/proc/cpuinfo"), "model name"),
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "file_system": format!("{system} on {mount}"),
        "syncs_per_second": syncs_per_second(&folder)?,
        "revision": revision(),
        "sqlite": rusqlite::version(),
        "load_before": read("/proc/loadavg").split_whitespace().next().unwrap_or_default(),
    }))
}

/// The file system of a folder, and what it is mounted from.
fn file_system(folder: &Path) -> Outcome<(String, String)> {
    let folder = folder.canonicalize()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let mount = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        Some((words.next()?, words.next()?, words.next()?))
    };
    let over = mounts.lines().filter_map(mount).filter(|(_, at, _)| folder.starts_with(at));
    // the last one mounted lies on top
    let (from, _, system) = over.max_by_key(|(_, at, _)| at.len()).ok_or("no file system")?;
    Ok((system, from))
}

/// How often the disk takes a page and says that it is there: no commit can be quicker than one of these.
fn syncs_per_second(folder: &Path) -> Outcome<f64> {
    let mut file = tempfile::tempfile_in(folder)?;
    let begun = Instant::now();
    let mut syncs = 0;
    while begun.elapsed() < Duration::from_secs(1) {
        file.write_all(&[7; 4096])?;
        file.sync_data()?;
        syncs += 1;
    }
    Ok(f64::from(syncs) / begun.elapsed().as_secs_f64())
}

fn revision() -> String {
    let git = |words: &[&str]| {
        let out = Command::new("git").args(words).output().ok().filter(|out| out.status.success());
        out.map_or(String::new(), |out| String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    let changed = if git(&["status", "--porcelain", "--untracked-files=no"]).is_empty() { "" } else { ", changed" };
    format!("{}{changed}", git(&["rev-parse", "--short=12", "HEAD"]))
}

/// The version, and that nothing was switched off which makes a commit durable.
pub async fn postgres(ground: &Ground) -> Outcome<Value> {
    let client = connect(ground.config().ok_or("no PostgreSQL")?).await?;
    let mut settings = serde_json::Map::new();
    for name in ["server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_sync_method"] {
        let row = client.query_one(&format!("SHOW {name}"), &[]).await?;
        settings.insert(name.to_owned(), Value::from(row.get::<_, String>(0)));
    }
    for name in ["fsync", "synchronous_commit", "full_page_writes"] {
        if settings[name] != "on" {
            return Err(format!("PostgreSQL has {name}={}, which is not stock", settings[name]).into());
        }
    }
    Ok(Value::Object(settings))
}
