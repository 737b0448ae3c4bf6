//! Every kind of leftover in the catalogue, planted in a scratch root: found, removed, and nothing of the site's touched.
//! The verdict is a comparison of the whole tree by content, owner and rights, made by code that the agent does not have.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod task_scratch;

use agent::task::clean::baseline::Baseline;
use agent::task::clean::catalogue::CHECKS;
use agent::task::{Failed, Outcome, run};
use domain::stage::FailureClass;
use proto::agent::v1::task::Kind;
use proto::agent::v1::{CleanPolicy, NodeCleanupStorage, NodeValidateClean};
use serde_json::Value;
use std::collections::BTreeSet;
use task_scratch::{MOUNTS, MSG, SEM, SHM, SITE, Scratch, TENANT, differences};

fn policy() -> CleanPolicy {
    CleanPolicy { scratch_paths: vec!["/scratch".to_owned()], ..CleanPolicy::default() }
}

async fn validate(scratch: &Scratch) -> Outcome {
    let (context, _) = scratch.context();
    run(&Kind::NodeValidateClean(NodeValidateClean { policy: Some(policy()) }), &context).await
}

async fn clean(scratch: &Scratch) -> Outcome {
    let (context, _) = scratch.context();
    run(&Kind::NodeCleanupStorage(NodeCleanupStorage { policy: Some(policy()) }), &context).await
}

/// The checks of a record in which something was found, with how much of it was left.
fn found(detail: &Value) -> Vec<(String, u64)> {
    let checks = detail["checks"].as_array().expect("a list of checks");
    assert_eq!(checks.len(), CHECKS.len(), "every check is in the record");
    checks
        .iter()
        .filter(|check| check["found"].as_u64() != Some(0))
        .map(|check| (check["name"].as_str().expect("a name").to_owned(), check["left"].as_u64().expect("a number")))
        .collect()
}

fn not_clean(outcome: Outcome) -> Failed {
    let failed = outcome.expect_err("something was planted");
    assert_eq!(failed.code, "NOT_CLEAN", "{failed:?}");
    failed
}

struct Planted {
    what: &'static str,
    check: &'static str,
    plant: fn(&Scratch),
}

const fn planted(check: &'static str, what: &'static str, plant: fn(&Scratch)) -> Planted {
    Planted { what, check, plant }
}

fn user(scratch: &Scratch) {
    scratch.append("/etc/passwd", "bob:x:1001:1001::/home/bob:/bin/bash");
    scratch.append("/etc/shadow", "bob:$6$bob:19000:0:99999:7:::");
    scratch.append("/etc/group", "bob:x:1001:");
    scratch.append("/etc/gshadow", "bob:!::");
    scratch.append("/etc/subuid", "bob:165536:65536");
    scratch.append("/etc/subgid", "bob:165536:65536");
    let group = std::fs::read_to_string(scratch.host.path("/etc/group")).expect("groups");
    std::fs::write(scratch.host.path("/etc/group"), group.replace("sudo:x:27:site", "sudo:x:27:site,bob"))
        .expect("written");
}

/// Everything that a file system can hold of a tenant.
const ON_DISK: &[Planted] = &[
    planted("container_storage", "a container", |s| s.file("/var/lib/docker/containers/4e38/config.v2.json", "{}", 0)),
    planted("container_storage", "a volume", |s| s.file("/var/lib/docker/volumes/data/_data/model.bin", "x", 100_000)),
    planted("container_storage", "a layer", |s| s.file("/var/lib/docker/overlay2/abcd/diff/etc/secret", "x", 0)),
    planted("container_storage", "a layer's short name", |s| {
        s.link("../abcd/diff", "/var/lib/docker/overlay2/l/QWERTY")
    }),
    planted("container_storage", "an image", |s| {
        s.file("/var/lib/docker/image/overlay2/imagedb/content/sha256/11aa", "{}", 0)
    }),
    planted("container_storage", "a volume of podman", |s| {
        s.file("/var/lib/containers/storage/volumes/v/_data/x", "x", 0)
    }),
    planted("container_storage", "a pod", |s| s.file("/var/lib/kubelet/pods/77/volumes/x", "x", 0)),
    planted("container_storage", "a system container", |s| s.file("/var/lib/lxc/box/rootfs/etc/passwd", "x", 0)),
    planted("container_storage", "rootless containers of a kept user", |s| {
        s.file("/root/.local/share/containers/storage/overlay/x", "x", 0);
    }),
    planted("cron", "a line in the system's table", |s| s.append("/etc/crontab", "* * * * * root /tmp/miner")),
    planted("cron", "a table of its own", |s| s.file("/etc/cron.d/miner", "* * * * * root /tmp/miner\n", 0)),
    planted("cron", "a line in the site's table", |s| s.append("/etc/cron.d/site", "* * * * * root /tmp/miner")),
    planted("cron", "a daily script", |s| s.file("/etc/cron.daily/miner", "#!/bin/sh\n", 0)),
    planted("cron", "a user's table", |s| s.file("/var/spool/cron/crontabs/bob", "* * * * * /tmp/miner\n", TENANT)),
    planted("cron", "a line in root's table", |s| s.append("/var/spool/cron/crontabs/root", "* * * * * /tmp/miner")),
    planted("at_jobs", "a job of at", |s| s.file("/var/spool/cron/atjobs/a0000101", "#!/bin/sh\n", TENANT)),
    planted("at_jobs", "a job of at elsewhere", |s| s.file("/var/spool/at/a0000101", "#!/bin/sh\n", TENANT)),
    planted("systemd_units", "a service", |s| s.file("/etc/systemd/system/miner.service", "[Service]\n", 0)),
    planted("systemd_units", "a timer that is wanted", |s| {
        s.link("/opt/miner.timer", "/etc/systemd/system/multi-user.target.wants/miner.timer");
    }),
    planted("systemd_units", "a drop-in", |s| s.file("/etc/systemd/system/site.service.d/x.conf", "[Service]\n", 0)),
    planted("systemd_units", "a unit of root's own", |s| {
        s.file("/root/.config/systemd/user/miner.service", "[Service]\n", 0)
    }),
    planted("systemd_units", "a lingering user", |s| s.file("/var/lib/systemd/linger/bob", "", 0)),
    planted("startup_files", "a profile", |s| s.file("/etc/profile.d/miner.sh", "miner &\n", 0)),
    planted("startup_files", "a library in every program", |s| s.file("/etc/ld.so.preload", "/tmp/x.so\n", 0)),
    planted("startup_files", "a rule for devices", |s| s.file("/etc/udev/rules.d/99-x.rules", "RUN+=\"/tmp/x\"\n", 0)),
    planted("sudoers", "a line", |s| s.append("/etc/sudoers", "bob ALL=(ALL) NOPASSWD: ALL")),
    planted("sudoers", "a file", |s| s.file("/etc/sudoers.d/bob", "bob ALL=(ALL) NOPASSWD: ALL\n", 0)),
    planted("sudoers", "a line in the site's file", |s| s.append("/etc/sudoers.d/site", "bob ALL=(ALL) ALL")),
    planted("ssh_keys", "a key that opens root", |s| s.append("/root/.ssh/authorized_keys", "ssh-ed25519 AAAAbob bob")),
    planted("ssh_keys", "the other file of keys", |s| {
        s.file("/root/.ssh/authorized_keys2", "ssh-ed25519 AAAAbob\n", 0)
    }),
    planted("ssh_keys", "a key that opens a kept user", |s| {
        s.append("/home/site/.ssh/authorized_keys", "ssh-ed25519 AAAAbob bob");
    }),
    planted("ssh_keys", "a private key", |s| s.file("/root/.ssh/id_rsa", "-----BEGIN", 0)),
    planted("ssh_keys", "known machines", |s| s.append("/root/.ssh/known_hosts", "git ssh-ed25519 AAAAgit")),
    planted("histories", "what root typed", |s| s.append("/root/.bash_history", "export AWS_SECRET=abc")),
    planted("histories", "another history", |s| s.file("/root/.python_history", "import os\n", 0)),
    planted("histories", "what a kept user typed", |s| s.append("/home/site/.bash_history", "mysql -psecret")),
    planted("core_dumps", "a dump", |s| s.file("/var/lib/systemd/coredump/core.python.1001.zst", "x", 0)),
    planted("core_dumps", "a report", |s| s.file("/var/crash/_usr_bin_python.1001.crash", "x", TENANT)),
    planted("scratch", "a file", |s| s.file("/scratch/model.bin", "x", TENANT)),
    planted("scratch", "a file of root", |s| s.file("/scratch/root-made-it", "x", 0)),
    planted("scratch", "folders", |s| s.file("/scratch/a/b/c/d", "x", TENANT)),
    planted("scratch", "what a check of the disk saved", |s| s.file("/scratch/lost+found/#1234", "x", 0)),
    planted("temporary_files", "a file", |s| s.file("/tmp/x", "x", TENANT)),
    planted("temporary_files", "a folder", |s| {
        s.file("/var/tmp/bob/x", "x", TENANT);
        s.folder_in("/var/tmp/bob", TENANT, 0o700);
    }),
    planted("temporary_files", "shared memory", |s| s.file("/dev/shm/psm_1234", "x", TENANT)),
    planted("temporary_files", "a queue", |s| s.file("/dev/mqueue/q", "x", TENANT)),
    planted("temporary_files", "of a container's user", |s| s.file("/tmp/y", "x", 100_123)),
    planted("temporary_files", "in a folder of the site's", |s| s.file("/tmp/deep/er/x", "x", TENANT)),
    planted("temporary_files", "shared memory of root", |s| s.file("/dev/shm/loader", "x", 0)),
    planted("temporary_files", "a file of root", |s| s.file("/tmp/.hidden", "x", 0)),
    planted("temporary_files", "folders of root", |s| s.file("/var/tmp/kit/bin/x", "x", 0)),
    planted("temporary_files", "of root, in a folder of the site's", |s| s.file("/tmp/deep/er/loader", "x", 0)),
    planted("temporary_files", "of a tenant, in a folder of the system's", |s| {
        s.file("/tmp/systemd-private-1-x.service-2/tmp/x", "x", TENANT);
    }),
    planted("systemd_units", "a unit until the next boot", |s| s.file("/run/systemd/system/miner.service", "x", 0)),
    planted("systemd_units", "a unit of systemd-run", |s| s.file("/run/systemd/transient/run-u7.service", "x", 0)),
    planted("mail", "a spool", |s| s.file("/var/mail/bob", "From x\n", TENANT)),
    planted("homes", "a folder that nobody owns up to", |s| s.file("/home/old/x", "x", TENANT)),
    planted("homes", "a file", |s| s.file("/home/x", "x", 0)),
    planted("accounts", "a user", user),
    planted("accounts", "a second root", |s| s.append("/etc/passwd", "toor:x:0:0::/root:/bin/bash")),
    planted("accounts", "a group", |s| s.append("/etc/group", "team:x:1500:")),
    planted("accounts", "a membership that outlived its user", |s| {
        let path = s.host.path("/etc/group");
        let group = std::fs::read_to_string(&path).expect("groups");
        std::fs::write(path, group.replace("sudo:x:27:site", "sudo:x:27:site,gone")).expect("written");
    }),
    planted("accounts", "a password that outlived its user", |s| {
        s.append("/etc/shadow", "gone:$6$x:19000:0:99999:7:::")
    }),
    planted("accounts", "a user in a backup", |s| s.append("/etc/passwd-", "bob:x:1001:1001::/home/bob:/bin/bash")),
    planted("accounts", "a range of numbers", |s| s.append("/etc/subuid", "1001:231072:65536")),
];

/// What lives in the kernel: here it is only told of, and cannot be removed. `task_live` has the real ones.
const IN_KERNEL: &[Planted] = &[
    planted("processes", "a user's process", |s| s.process(100, TENANT, TENANT, "/user.slice", &[])),
    planted("processes", "behind sudo", |s| s.process(101, 0, TENANT, "/system.slice/ssh.service", &[])),
    planted("processes", "in a user's slice", |s| {
        s.process(102, 0, u32::MAX, "/user.slice/user-1001.slice/x.scope", &[])
    }),
    planted("containers", "a container", |s| s.process(103, 0, u32::MAX, "/system.slice/docker-4e38f4c8.scope", &[])),
    planted("gpu_processes", "a GPU in use", |s| {
        s.process(104, 0, u32::MAX, "/system.slice/x.service", &["/dev/nvidia0"])
    }),
    planted("gpu_processes", "unified memory in use", |s| {
        s.process(105, 0, u32::MAX, "/system.slice/x.service", &["/dev/null", "/dev/nvidia-uvm"]);
    }),
    planted("mounts", "a mount", |s| {
        let more = format!("{MOUNTS}25 22 0:44 / /mnt/with\\040blank rw - nfs4 filer:/bob rw\n");
        s.file("/proc/self/mountinfo", &more, 0);
    }),
    planted("block_devices", "a loop device", |s| s.file("/sys/block/loop7/loop/backing_file", "/tmp/disk.img\n", 0)),
    planted("block_devices", "a mapped device", |s| s.file("/sys/block/dm-3/dm/name", "cryptbob\n", 0)),
    planted("shared_memory", "a segment", |s| {
        let line = "         0          7   600     393216    1     1      0  1001  1001  1001  1001\n";
        s.file("/proc/sysvipc/shm", &format!("{SHM}{line}"), 0);
    }),
    planted("shared_memory", "a segment of root", |s| {
        let had = std::fs::read_to_string(s.host.path("/proc/sysvipc/shm")).expect("segments");
        let line = "         0          9   600     393216    1     1      0     0     0     0     0\n";
        s.file("/proc/sysvipc/shm", &format!("{had}{line}"), 0);
    }),
    planted("shared_memory", "a queue", |s| {
        let line = "         0  3   644  0   0   0  0  1001  1001  1001  1001  0  0  0\n";
        s.file("/proc/sysvipc/msg", &format!("{MSG}{line}"), 0);
    }),
    planted("shared_memory", "semaphores", |s| {
        let line = "         0  9   600  1  0  0  1001  1001  0  0\n";
        s.file("/proc/sysvipc/sem", &format!("{SEM}{line}"), 0);
    }),
];

fn edit(scratch: &Scratch, path: &str, from: &str, to: &str) {
    let path = scratch.host.path(path);
    let content = std::fs::read_to_string(&path).expect("a file");
    assert!(content.contains(from), "{from} in {content}");
    std::fs::write(path, content.replace(from, to)).expect("written");
}

/// What may be the site's doing: told of, and left as it is.
const FOR_A_PERSON: &[Planted] = &[
    planted("accounts", "an account of the system's own kind", |s| s.append("/etc/passwd", "svc:x:999:999::/:/bin/sh")),
    planted("accounts", "a shell", |s| edit(s, "/etc/passwd", "/usr/sbin:/usr/sbin/nologin", "/usr/sbin:/bin/bash")),
    planted("accounts", "a password", |s| edit(s, "/etc/shadow", "daemon:*:", "daemon:$6$known$x:")),
    planted("systemd_units", "a unit where packages have theirs", |s| {
        s.file("/usr/lib/systemd/system/miner.service", "[Service]\n", 0);
    }),
    planted("temporary_files", "a file of root that was there, changed", |s| s.append("/tmp/of-root", "more")),
];

#[tokio::test]
async fn what_may_be_the_sites_own_doing_is_for_a_person_and_stays() {
    for planted in FOR_A_PERSON {
        let scratch = Scratch::new();
        (planted.plant)(&scratch);
        let with_it = scratch.tree();
        for removing in [false, true] {
            let outcome = if removing { clean(&scratch).await } else { validate(&scratch).await };
            let failed = not_clean(outcome);
            assert_eq!(failed.class, FailureClass::NeedsOperator, "{}", planted.what);
            assert_eq!(found(&failed.detail), [(planted.check.to_owned(), 1)], "{}", planted.what);
            assert_eq!(differences(&with_it, &scratch.tree()), [""; 0], "{}", planted.what);
        }
    }
}

#[tokio::test]
async fn what_the_system_makes_for_itself_is_no_leftover() {
    let scratch = Scratch::new();
    for path in ["/tmp/systemd-private-1-x.service-2/tmp/x", "/tmp/.X11-unix/X0", "/var/tmp/snap.lxd/x"] {
        scratch.file(path, "x", 0);
    }
    scratch.file("/run/systemd/transient/session-3.scope", "x", 0);
    let before = scratch.tree();
    clean(&scratch).await.expect("clean");
    assert_eq!(differences(&before, &scratch.tree()), [""; 0]);
}

#[tokio::test]
async fn a_machine_of_the_sites_own_is_clean_and_stays_as_it_is() {
    let scratch = Scratch::new();
    let before = scratch.tree();
    let done = validate(&scratch).await.expect("clean");
    assert_eq!(done.detail["clean"], true);
    assert_eq!(found(&done.detail), []);
    let examined: u64 =
        done.detail["checks"].as_array().expect("checks").iter().filter_map(|check| check["examined"].as_u64()).sum();
    assert!(examined > 50, "it has looked: {examined}");
    clean(&scratch).await.expect("clean");
    assert_eq!(differences(&before, &scratch.tree()), [""; 0]);
}

#[tokio::test]
async fn each_leftover_alone_is_found_and_removed_and_nothing_else() {
    for planted in ON_DISK {
        let scratch = Scratch::new();
        let before = scratch.tree();
        (planted.plant)(&scratch);
        let with_it = scratch.tree();
        let says = format!("{}: {}", planted.check, planted.what);
        assert_ne!(before, with_it, "{says}: was planted");
        let failed = not_clean(validate(&scratch).await);
        assert_eq!(failed.class, FailureClass::NeedsOperator, "{says}");
        let names: Vec<String> = found(&failed.detail).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, [planted.check], "{says}");
        assert_eq!(differences(&with_it, &scratch.tree()), [""; 0], "{says}: looking changes nothing");
        let done = clean(&scratch).await.unwrap_or_else(|failed| panic!("{says}: {failed:?}"));
        assert_eq!(found(&done.detail), [(planted.check.to_owned(), 0)], "{says}");
        let left = left_over(&before, &scratch.tree());
        assert_eq!(left, [""; 0], "{says}");
        validate(&scratch).await.unwrap_or_else(|failed| panic!("{says}: {failed:?}"));
        let again = clean(&scratch).await.unwrap_or_else(|failed| panic!("{says}: {failed:?}"));
        assert_eq!(found(&again.detail), [], "{says}: a second time there is nothing to do");
    }
}

/// Differences, but for empty folders on the way to what was planted: an engine makes those again anyway.
fn left_over(before: &task_scratch::Tree, after: &task_scratch::Tree) -> Vec<String> {
    let mut after = after.clone();
    let is_empty = |tree: &task_scratch::Tree, path: &std::path::PathBuf| {
        !before.contains_key(path)
            && tree[path].ends_with("folder")
            && !tree.keys().any(|other| other.parent() == Some(path))
    };
    while let Some(empty) = after.keys().find(|path| is_empty(&after, path)).cloned() {
        after.remove(&empty);
    }
    differences(before, &after)
}

#[tokio::test]
async fn all_leftovers_together_are_found_and_removed() {
    let scratch = Scratch::new();
    let before = scratch.tree();
    for planted in ON_DISK {
        (planted.plant)(&scratch);
    }
    let failed = not_clean(validate(&scratch).await);
    let names: BTreeSet<String> = found(&failed.detail).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ON_DISK.iter().map(|planted| planted.check.to_owned()).collect());
    let done = clean(&scratch).await.expect("everything goes");
    let removed: u64 =
        done.detail["checks"].as_array().expect("checks").iter().filter_map(|check| check["removed"].as_u64()).sum();
    assert!(removed >= ON_DISK.len() as u64, "{removed}");
    assert_eq!(left_over(&before, &scratch.tree()), [""; 0]);
    validate(&scratch).await.expect("clean");
}

#[tokio::test]
async fn what_lives_in_the_kernel_is_found_and_never_claimed_to_be_gone() {
    for planted in IN_KERNEL {
        let scratch = Scratch::new();
        (planted.plant)(&scratch);
        let says = format!("{}: {}", planted.check, planted.what);
        let names: Vec<String> =
            found(&not_clean(validate(&scratch).await).detail).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, [planted.check], "{says}");
        // numbers in a folder that is no /proc must not reach a process of the machine that the test runs on
        let failed = not_clean(clean(&scratch).await);
        assert_eq!(found(&failed.detail), [(planted.check.to_owned(), 1)], "{says}");
        let person = planted.check == "block_devices";
        assert_eq!(failed.class == FailureClass::NeedsOperator, person, "{says}: {:?}", failed.class);
    }
}

#[test]
fn every_check_of_the_catalogue_has_a_leftover_planted_for_it() {
    let planted: BTreeSet<&str> = ON_DISK.iter().chain(IN_KERNEL).map(|planted| planted.check).collect();
    let checks: BTreeSet<&str> = CHECKS.iter().map(|check| check.name).collect();
    let without: Vec<_> = checks.difference(&planted).copied().collect();
    assert_eq!(without, ["rights"], "nothing can be planted for it");
    assert!(planted.is_subset(&checks));
}

#[tokio::test]
async fn what_the_site_has_changed_itself_is_for_a_person_and_stays() {
    for path in [
        "/etc/systemd/system/site.service",
        "/etc/profile.d/site.sh",
        "/etc/cron.daily/rotate",
        "/root/.ssh/id_ed25519",
        "/root/.bashrc",
    ] {
        let scratch = Scratch::new();
        scratch.append(path, "# changed");
        let with_it = scratch.tree();
        let failed = not_clean(clean(&scratch).await);
        assert_eq!(failed.class, FailureClass::NeedsOperator, "{path}");
        assert!(failed.detail.to_string().contains("not as it was in the baseline"), "{path}");
        assert_eq!(differences(&with_it, &scratch.tree()), [""; 0], "{path}");
    }
}

#[tokio::test]
async fn a_kept_user_is_kept_with_everything() {
    let scratch = Scratch::new();
    user(&scratch);
    scratch.file("/home/bob/x", "x", TENANT);
    scratch.file("/tmp/of-bob", "x", TENANT);
    scratch.file("/var/mail/bob", "x", TENANT);
    scratch.process(100, TENANT, TENANT, "/user.slice/user-1001.slice", &[]);
    let with_it = scratch.tree();
    let policy = CleanPolicy { kept_users: vec!["bob".to_owned()], ..policy() };
    let (context, _) = scratch.context();
    let done =
        run(&Kind::NodeCleanupStorage(NodeCleanupStorage { policy: Some(policy) }), &context).await.expect("clean");
    assert_eq!(differences(&with_it, &scratch.tree()), [""; 0]);
    assert_eq!(done.detail["homes_not_judged"], serde_json::json!(["/home/bob"]), "and says what it did not judge");
}

#[tokio::test]
async fn a_tenants_home_outside_of_the_usual_place_goes_but_nothing_that_a_line_merely_claims() {
    let scratch = Scratch::new();
    let before = scratch.tree();
    scratch.append("/etc/passwd", "bob:x:1001:1001::/data/people/bob:/bin/bash");
    scratch.append("/etc/passwd", "eve:x:1002:1002::/etc/cron.d:/bin/bash");
    scratch.append("/etc/passwd", "mal:x:1003:1003::/home/site/../../opt:/bin/bash");
    scratch.append("/etc/passwd", "zoe:x:1004:1004::/home/site:/bin/bash");
    scratch.file("/data/people/bob/x", "x", TENANT);
    scratch.folder_in("/data/people/bob", TENANT, 0o700);
    clean(&scratch).await.expect("clean");
    assert!(!scratch.host.path("/data/people/bob").exists());
    assert_eq!(left_over(&before, &scratch.tree()), [""; 0]);
}

#[tokio::test]
async fn a_check_that_cannot_be_made_is_a_failure_that_names_it() {
    type Spoil = fn(&Scratch);
    let cases: [(&str, Spoil, &str); 5] = [
        ("no processes", |s| std::fs::remove_dir_all(s.host.path("/proc")).expect("removed"), "processes"),
        ("no devices", |s| std::fs::remove_dir_all(s.host.path("/sys")).expect("removed"), "block_devices"),
        ("no baseline", |s| std::fs::remove_file(s.state.join("baseline.json")).expect("removed"), "cron"),
        (
            "a torn baseline",
            |s| std::fs::write(s.state.join("baseline.json"), "{\"users\":").expect("written"),
            "accounts",
        ),
        ("no scratch path", |s| std::fs::remove_dir_all(s.host.path("/scratch")).expect("removed"), "scratch"),
    ];
    for (what, spoil, check) in cases {
        let scratch = Scratch::new();
        spoil(&scratch);
        let before = scratch.tree();
        let failed = validate(&scratch).await.expect_err(what);
        assert_eq!((failed.code, failed.class), ("CHECK_FAILED", FailureClass::NeedsOperator), "{what}");
        let checks = failed.detail["checks"].as_array().expect("checks");
        assert_eq!(checks.len(), CHECKS.len(), "{what}: the others are made all the same");
        let named = checks.iter().find(|one| one["name"] == check).expect("in the record");
        assert!(named["error"].is_string(), "{what}: {named}");
        assert_eq!(failed.detail["clean"], false);
        let failed = clean(&scratch).await.expect_err(what);
        assert_eq!(failed.code, "CHECK_FAILED", "{what}");
        assert_eq!(differences(&before, &scratch.tree()), [""; 0], "{what}");
    }
}

#[tokio::test]
async fn a_link_where_a_folder_belongs_is_not_followed_and_goes() {
    let scratch = Scratch::new();
    std::fs::remove_dir_all(scratch.host.path("/var/spool/cron")).expect("removed");
    scratch.link("/opt", "/var/spool/cron");
    let before = scratch.tree();
    let failed = validate(&scratch).await.expect_err("what is behind it is not looked at");
    assert_eq!(failed.code, "CHECK_FAILED", "{failed:?}");
    clean(&scratch).await.expect("the link goes");
    assert_eq!(differences(&before, &scratch.tree()), ["gone: \"var/spool/cron\""]);
}

#[tokio::test]
async fn an_empty_folder_under_a_mount_that_is_away_proves_nothing() {
    let scratch = Scratch::bare();
    scratch.file("/proc/self/mountinfo", &format!("{MOUNTS}25 22 8:3 / /scratch rw - ext4 /dev/sdb rw\n"), 0);
    scratch.folder_in("/var/lib/millwright-agent", 0, 0o700);
    Baseline::record(&scratch.host, &scratch.state).expect("a baseline");
    validate(&scratch).await.expect("mounted and empty");
    scratch.file("/proc/self/mountinfo", MOUNTS, 0);
    assert_eq!(validate(&scratch).await.expect_err("not mounted").code, "CHECK_FAILED");
}

#[tokio::test]
async fn no_policy_can_empty_the_machine() {
    for path in ["/", "/etc", "/etc/", "//usr", "/home/..", "scratch", "", "/var/./../etc", "/scratch/../etc"] {
        let scratch = Scratch::new();
        let before = scratch.tree();
        let (context, _) = scratch.context();
        let policy = CleanPolicy { scratch_paths: vec![path.to_owned()], ..CleanPolicy::default() };
        let task = Kind::NodeCleanupStorage(NodeCleanupStorage { policy: Some(policy) });
        let failed = run(&task, &context).await.expect_err(path);
        assert_eq!((failed.code, failed.class), ("INVALID_POLICY", FailureClass::InvalidInput), "{path}");
        assert_eq!(differences(&before, &scratch.tree()), [""; 0], "{path}");
    }
    let scratch = Scratch::new();
    let (context, _) = scratch.context();
    let policy = CleanPolicy { uid_min: 1, ..CleanPolicy::default() };
    let task = Kind::NodeCleanupStorage(NodeCleanupStorage { policy: Some(policy) });
    assert_eq!(run(&task, &context).await.expect_err("system users").code, "INVALID_POLICY");
}

async fn with_scratch(scratch: &Scratch, path: &str) -> Outcome {
    let (context, _) = scratch.context();
    let policy = CleanPolicy { scratch_paths: vec![path.to_owned()], ..CleanPolicy::default() };
    run(&Kind::NodeCleanupStorage(NodeCleanupStorage { policy: Some(policy) }), &context).await
}

#[tokio::test]
async fn no_policy_can_empty_a_part_of_the_system_or_what_holds_one() {
    let scratch = Scratch::new();
    // a site that has its programs elsewhere
    std::fs::remove_dir_all(scratch.host.path("/sbin")).unwrap_or_default();
    scratch.file("/data/programs/sbin/x", "x", 0);
    scratch.link("data/programs/sbin", "/sbin");
    let before = scratch.tree();
    for path in [
        "/usr/local/share",
        "/etc/cron.d",
        "/var/lib/docker",
        "/var/tmp",
        "/var/log",
        "/var/lib/millwright-agent",
        "/var/lib/millwright-agent/tasks",
        "/etc/millwright-agent",
        "/boot/efi",
        "/lib64/x",
        "/libexec",
        "/root/.cache",
        "/home",
        "/opt",
        "/proc/1",
        "/sys/fs/cgroup",
        "/dev",
        "/dev/disk",
        "/run/user",
        "/tmp",
        "/data",
        "/data/programs",
        "/data/programs/sbin/x",
    ] {
        let failed = with_scratch(&scratch, path).await.expect_err(path);
        assert_eq!((failed.code, failed.class), ("INVALID_POLICY", FailureClass::InvalidInput), "{path}: {failed:?}");
        assert!(failed.message.contains(path), "{path}: {}", failed.message);
    }
    assert_eq!(differences(&before, &scratch.tree()), [""; 0]);
    for path in ["/scratch", "/data/of-tenants", "/mnt/nvme0", "/srv", "/var/scratch", "/home/shared", "/opt/scratch"] {
        let scratch = Scratch::new();
        scratch.file(&format!("{path}/model.bin"), "x", TENANT);
        drop(with_scratch(&scratch, path).await);
        assert!(!scratch.host.path(path).join("model.bin").exists(), "{path} is emptied");
    }
}

#[tokio::test]
async fn a_state_folder_elsewhere_is_not_emptied_either() {
    let scratch = Scratch::new();
    scratch.folder_in("/srv/agent/state", 0, 0o700);
    let (mut context, _) = scratch.context();
    context.state = scratch.host.path("/srv/agent/state");
    for path in ["/srv", "/srv/agent", "/srv/agent/state", "/srv/agent/state/tasks"] {
        let policy = CleanPolicy { scratch_paths: vec![path.to_owned()], ..CleanPolicy::default() };
        let task = Kind::NodeValidateClean(NodeValidateClean { policy: Some(policy) });
        assert_eq!(run(&task, &context).await.expect_err(path).code, "INVALID_POLICY", "{path}");
    }
}

#[tokio::test]
async fn real_account_files_are_read_as_they_are() {
    let scratch = Scratch::bare();
    for name in ["passwd", "shadow", "group", "gshadow", "subuid", "subgid"] {
        if let Ok(content) = std::fs::read_to_string(format!("/etc/{name}")) {
            scratch.file(&format!("/etc/{name}"), &content, 0);
        }
        drop(std::fs::remove_file(scratch.host.path(&format!("/etc/{name}-"))));
    }
    for folder in ["cron.d", "cron.daily", "init.d", "pam.d", "profile.d"] {
        let to = scratch.host.path("/etc");
        let copied = std::process::Command::new("cp").args(["-a", &format!("/etc/{folder}")]).arg(&to).status();
        assert!(copied.expect("cp runs").success() || !std::path::Path::new("/etc").join(folder).exists(), "{folder}");
    }
    scratch.folder_in("/var/lib/millwright-agent", 0, 0o700);
    Baseline::record(&scratch.host, &scratch.state).expect("a baseline");
    let before = scratch.tree();
    // uid 1000 may be nobody's on this machine: its files in the scratch root would be a tenant's
    let keeps = |s: &Scratch| {
        let passwd = std::fs::read_to_string(s.host.path("/etc/passwd")).expect("users");
        passwd.lines().any(|line| line.split(':').nth(2) == Some(&SITE.to_string()))
    };
    if keeps(&scratch) {
        validate(&scratch).await.expect("a real machine's accounts are its own");
    }
    scratch.append("/etc/passwd", "bob:x:54321:54321::/home/bob:/bin/bash");
    scratch.append("/etc/group", "bob:x:54321:");
    drop(clean(&scratch).await);
    let changed: Vec<String> =
        differences(&before, &scratch.tree()).into_iter().filter(|line| line.contains("etc/")).collect();
    assert_eq!(changed, [""; 0]);
}
