//! Removing what somebody has made to hurt: names that are no text, links to everywhere, folders a thousand deep or very
//! full, locked files, links swapped in while we remove. `MILLWRIGHT_RACES` (50) says how often the last is tried.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod task_scratch;

use agent::task::beneath::Folder;
use agent::task::{Outcome, run};
use proto::agent::v1::task::Kind;
use proto::agent::v1::{CleanPolicy, NodeCleanupStorage};
use rustix::fs::{IFlags, Mode, OFlags, RenameFlags};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use task_scratch::{Scratch, TENANT, differences, hostile};

async fn clean(scratch: &Scratch) -> Outcome {
    let (context, _) = scratch.context();
    let policy = CleanPolicy { scratch_paths: vec!["/scratch".to_owned()], ..CleanPolicy::default() };
    run(&Kind::NodeCleanupStorage(NodeCleanupStorage { policy: Some(policy) }), &context).await
}

#[tokio::test]
async fn names_that_are_no_text_are_removed_like_others() {
    let scratch = Scratch::new();
    let before = scratch.tree();
    let long = [b'x'; 255];
    for name in [
        &b"with\nline end"[..],
        b"-rf",
        b" ",
        b"\xff\xfe",
        b"\"; rm -rf *;",
        b"\x1b[31m",
        &long,
        b"*",
        b"$(reboot)",
        b"...",
        b"~",
    ] {
        for folder in ["/tmp", "/scratch", "/home", "/etc/cron.d", "/etc/sudoers.d"] {
            scratch.bytes(&Path::new(folder).join(hostile(name)), b"x", TENANT);
        }
    }
    // and lines that are no text, in files of the site's
    for path in ["/root/.ssh/authorized_keys", "/etc/crontab", "/root/.bash_history"] {
        let path = scratch.host.path(path);
        let mut content = std::fs::read(&path).expect("read");
        content.extend(b"\xff\x00\x1b no text \r\n\xfe");
        std::fs::write(&path, content).expect("written");
    }
    let done = clean(&scratch).await.expect("all gone");
    assert_eq!(differences(&before, &scratch.tree()), [""; 0]);
    let record = done.detail.to_string();
    assert!(record.chars().all(|letter| !letter.is_control()), "a record is shown to people");
}

#[tokio::test]
async fn links_are_removed_themselves_and_what_they_point_to_stays() {
    let scratch = Scratch::new();
    let outside = tempfile::tempdir().expect("a folder");
    std::fs::write(outside.path().join("precious"), "x").expect("a file");
    let before = scratch.tree();
    let (out, root) = (outside.path().to_str().expect("text"), scratch.root().to_str().expect("text").to_owned());
    for (number, target) in
        ["/", "/etc", "..", "../../../../../../..", out, &root, "/proc/self/root", "loop3", ""].iter().enumerate()
    {
        for folder in ["/scratch", "/tmp", "/home", "/var/lib/docker/containers", "/etc/systemd/system"] {
            let at = scratch.host.path(&format!("{folder}/loop{number}"));
            if !target.is_empty() {
                symlink(target, &at).expect("a link");
                std::os::unix::fs::lchown(&at, Some(TENANT), Some(TENANT)).expect("its owner");
            }
        }
    }
    // hard links to what is the site's: only the other name goes, and neither content nor rights change
    for path in ["/etc/passwd", "/opt/site", "/etc/shadow"] {
        let name = path.replace('/', "_");
        std::fs::hard_link(scratch.host.path(path), scratch.host.path(&format!("/scratch/{name}")))
            .expect("a hard link");
    }
    std::fs::hard_link(outside.path().join("precious"), scratch.host.path("/scratch/hard"))
        .or_else(|_| std::fs::write(scratch.host.path("/scratch/hard"), "x"))
        .expect("a file");
    clean(&scratch).await.expect("all gone");
    assert_eq!(differences(&before, &scratch.tree()), [""; 0]);
    assert_eq!(std::fs::read_to_string(outside.path().join("precious")).expect("still there"), "x");
    assert_eq!(std::fs::metadata(scratch.host.path("/etc/passwd")).expect("there").nlink(), 1);
}

#[tokio::test]
async fn a_scratch_path_that_became_a_link_is_not_emptied_through_it() {
    for target in ["/opt", "/", "../opt", "opt"] {
        let scratch = Scratch::new();
        std::fs::remove_dir_all(scratch.host.path("/scratch")).expect("removed");
        scratch.link(target, "/scratch");
        let before = scratch.tree();
        assert_eq!(clean(&scratch).await.expect_err(target).code, "CHECK_FAILED");
        assert_eq!(differences(&before, &scratch.tree()), [""; 0], "{target}");
    }
}

/// Folders in folders, deeper than any path can say.
fn deep(at: &Path, levels: usize) {
    let open = |folder: &rustix::fd::OwnedFd| {
        rustix::fs::mkdirat(folder, "d", Mode::RWXU).expect("a folder");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        rustix::fs::openat(folder, "d", flags, Mode::empty()).expect("opened")
    };
    let mut folder = rustix::fs::open(at, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opened");
    for level in 0..levels {
        folder = open(&folder);
        if level % 100 == 0 {
            let file = rustix::fs::openat(&folder, "f", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).expect("a file");
            drop(file);
        }
    }
}

#[tokio::test]
async fn folders_thousands_deep_go_with_a_bounded_number_of_open_files() {
    let scratch = Scratch::new();
    let before = scratch.tree();
    // more than a process may have files open, and longer than a path may be
    deep(&scratch.host.path("/scratch"), 1000);
    scratch.folder_in("/tmp/of-bob", TENANT, 0o700);
    deep(&scratch.host.path("/tmp/of-bob"), 5000);
    clean(&scratch).await.expect("all gone");
    assert_eq!(differences(&before, &scratch.tree()), [""; 0]);
}

#[tokio::test]
async fn a_folder_of_more_files_than_are_held_at_a_time_is_emptied() {
    let scratch = Scratch::new();
    let before = scratch.tree();
    let count = 70_000;
    for number in 0..count {
        std::fs::File::create(scratch.host.path(&format!("/scratch/{number}"))).expect("a file");
    }
    let done = clean(&scratch).await.expect("all gone");
    let checks = done.detail["checks"].as_array().expect("checks");
    let check = checks.iter().find(|check| check["name"] == "scratch").expect("the check");
    assert_eq!((check["found"].as_u64(), check["removed"].as_u64()), (Some(count), Some(count)));
    assert!(done.detail.to_string().len() < 20_000, "a record stays small");
    assert_eq!(differences(&before, &scratch.tree()), [""; 0]);
}

#[tokio::test]
async fn locked_files_and_folders_go_too() {
    let scratch = Scratch::new();
    let before = scratch.tree();
    let lock = |path: &str, flags: IFlags| {
        let file = std::fs::File::open(scratch.host.path(path)).expect("opened");
        let now = rustix::fs::ioctl_getflags(&file).expect("its flags");
        rustix::fs::ioctl_setflags(&file, now | flags)
            .expect("this file system has locks: set TMPDIR to one that does");
    };
    scratch.file("/scratch/immutable", "x", TENANT);
    scratch.file("/scratch/folder/in/it", "x", TENANT);
    scratch.file("/scratch/folder/other", "x", TENANT);
    lock("/scratch/immutable", IFlags::IMMUTABLE);
    lock("/scratch/folder/in/it", IFlags::APPEND);
    lock("/scratch/folder/in", IFlags::IMMUTABLE);
    lock("/scratch/folder", IFlags::APPEND);
    clean(&scratch).await.expect("all gone");
    assert_eq!(differences(&before, &scratch.tree()), [""; 0]);
}

#[tokio::test]
async fn special_files_hold_nobody_up() {
    let scratch = Scratch::new();
    let before = scratch.tree();
    for folder in ["/scratch", "/etc/cron.d", "/root/.ssh", "/home"] {
        let at = scratch.host.path(&format!("{folder}/pipe"));
        let made = std::process::Command::new("mkfifo").arg(&at).status().expect("mkfifo runs");
        assert!(made.success());
        let socket = scratch.host.path(&format!("{folder}/socket"));
        drop(std::os::unix::net::UnixListener::bind(socket).expect("a socket"));
    }
    clean(&scratch).await.expect("all gone");
    assert_eq!(differences(&before, &scratch.tree()), [""; 0]);
    // a pipe in the place of a file that is compared
    std::fs::remove_file(scratch.host.path("/etc/crontab")).expect("removed");
    let made =
        std::process::Command::new("mkfifo").arg(scratch.host.path("/etc/crontab")).status().expect("mkfifo runs");
    assert!(made.success());
    assert_eq!(clean(&scratch).await.expect_err("for a person").code, "NOT_CLEAN");
}

#[tokio::test]
async fn a_task_that_is_canceled_stops_and_says_so() {
    let scratch = Scratch::new();
    scratch.file("/scratch/x", "x", TENANT);
    let (context, _) = scratch.context();
    context.cancel.cancel();
    let failed = run(&Kind::NodeCleanupStorage(NodeCleanupStorage::default()), &context).await.expect_err("canceled");
    assert_eq!(failed.code, "CANCELED");
    let folder = Folder::open(&scratch.host, Path::new("/"), &Default::default()).expect("opened").expect("there");
    for number in 0..100 {
        scratch.file(&format!("/scratch/many/{number}"), "x", TENANT);
    }
    let asked = std::cell::Cell::new(0);
    let stop = || {
        asked.set(asked.get() + 1);
        asked.get() > 10
    };
    let error = folder.remove("scratch".as_ref(), &stop).expect_err("stopped in the middle");
    assert_eq!(error.kind(), std::io::ErrorKind::Interrupted);
    let left = std::fs::read_dir(scratch.host.path("/scratch/many")).expect("there").count();
    assert!((80..=100).contains(&left), "{left}");
}

#[test]
fn a_link_swapped_in_while_a_folder_is_removed_leads_nowhere() {
    let races: usize = std::env::var("MILLWRIGHT_RACES").ok().and_then(|count| count.parse().ok()).unwrap_or(50);
    let mut swapped = 0;
    for race in 0..races {
        let scratch = Scratch::bare();
        let victim = scratch.host.path("/opt/victim");
        for number in 0..50 {
            scratch.file(&format!("/opt/victim/sub/{number}"), "x", 0);
        }
        for number in 0..200 {
            scratch.file(&format!("/scratch/tree/a/sub/{number}"), "x", TENANT);
        }
        let before = task_scratch::tree(&victim);
        let (stop, swaps) = (AtomicBool::new(false), std::sync::atomic::AtomicU64::new(0));
        let base = scratch.host.path("/scratch/tree");
        let base = rustix::fs::open(&base, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opened");
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // a folder and a link to the victim change places, again and again, and come back when they are gone
                    match rustix::fs::renameat_with(&base, "a", &base, "b", RenameFlags::EXCHANGE) {
                        Ok(()) => drop(swaps.fetch_add(1, Ordering::Relaxed)),
                        Err(_) => {
                            let _ = rustix::fs::mkdirat(&base, "a", Mode::RWXU);
                            let _ = rustix::fs::symlinkat(&victim, &base, "b");
                        }
                    }
                }
            });
            while swaps.load(Ordering::Relaxed) == 0 {
                std::hint::spin_loop();
            }
            let folder = Folder::open(&scratch.host, Path::new("/scratch"), &Default::default());
            let folder = folder.expect("opened").expect("there");
            // it never gets done against somebody so eager: it is told to stop, after a while
            let asked = std::cell::Cell::new(0);
            let stop_after = || {
                asked.set(asked.get() + 1);
                asked.get() > 2000
            };
            while asked.get() <= 2000 && folder.stat("tree".as_ref()).expect("looked").is_some() {
                drop(folder.remove("tree".as_ref(), &stop_after));
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(differences(&before, &task_scratch::tree(&victim)), [""; 0], "race {race}, {swaps:?} swaps");
        swapped += swaps.load(Ordering::Relaxed);
    }
    assert!(swapped > 0, "there was a race at all");
}
