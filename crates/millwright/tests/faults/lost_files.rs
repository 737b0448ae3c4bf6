//! The database's files are deleted, or moved away, under a running server. It still has them open, and every
//! write would succeed, and be lost.

use crate::process::until;
use crate::site::Site;
use std::path::{Path, PathBuf};

const WRITERS: usize = 3;
const ENOUGH: u64 = 30;
const FILES: [&str; 3] = ["millwright.db", "millwright.db-wal", "millwright.db-shm"];

fn in_data(site: &Site, names: &[&str]) -> Vec<PathBuf> {
    names.iter().map(|name| site.data.join(name)).collect()
}

/// From now on nothing may be acknowledged.
fn refused_from_now_on(site: &Site) {
    let stretch = site.tally.begin();
    let answers = site.tally.wait_for(stretch, "writes are refused", |answers| answers.refused() >= ENOUGH);
    answers.refusals_are_honest();
    assert_eq!(answers.written, 0, "acknowledged into a file that nobody will find: {answers:?}");
    assert!(answers.read > 0 && answers.refused_reads.is_empty(), "what is there can still be read: {answers:?}");
}

#[test]
fn deleted_files_are_saved_and_can_be_restored_with_everything_in_them() {
    for names in [&FILES[..], &FILES[..1], &FILES[1..2]] {
        let (mut site, server) = Site::start();
        let writers = site.writers(&server, WRITERS);
        site.run(&server, "m-1", &["sim.latency_ms=300"], None);
        site.under_way("m-1");
        in_data(&site, names).iter().for_each(|path| std::fs::remove_file(path).expect("removed"));
        refused_from_now_on(&site);
        let rescued = site.data.join("millwright.db.rescued");
        until("what was in it is saved", || rescued.exists().then_some(()));
        assert!(server.process.err().contains("millwright restore"), "the operator is told what to do");
        writers.stop();
        drop(server.terminate().with(0));
        let data = site.data.to_str().expect("a plain path");
        site.home.run(&["restore", rescued.to_str().expect("a plain path"), "--data", data]).with(0);
        let server = site.start_again();
        site.everything_is_there(&server);
        site.writers(&server, WRITERS).stop();
        site.all_succeed(&server);
        site.ends_whole(server);
    }
}

#[test]
fn files_that_are_moved_away_and_back_go_on_without_a_restart() {
    let (mut site, server) = Site::start();
    let writers = site.writers(&server, WRITERS);
    site.run(&server, "m-1", &["sim.latency_ms=300"], None);
    site.under_way("m-1");
    let away = site.home.path("disk/away");
    std::fs::create_dir(&away).expect("a folder");
    let moved = |from: &Path, to: &Path| {
        FILES.iter().for_each(|name| std::fs::rename(from.join(name), to.join(name)).expect("moved"));
    };
    moved(&site.data, &away);
    refused_from_now_on(&site);
    let back = site.tally.begin();
    moved(&away, &site.data);
    site.tally.wait_for(back, "writes go on", |answers| answers.written >= ENOUGH);
    site.all_succeed(&server);
    writers.stop();
    let server = site.survives_a_kill(server);
    site.ends_whole(server);
}
