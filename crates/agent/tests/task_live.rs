//! Leftovers that live in the kernel, for real: processes, control groups, mounts, System V segments, an open GPU device.
//! Each test runs itself once more in namespaces of its own (`unshare`, of util-linux), so that nothing it makes can be
//! seen, let alone ended, outside.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod task_scratch;

use agent::task::clean::baseline::Baseline;
use agent::task::{Outcome, run};
use proto::agent::v1::task::Kind;
use proto::agent::v1::{CleanPolicy, NodeCleanupStorage, NodeDrain, NodeValidateClean};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use task_scratch::{SITE, Scratch, TENANT, eventually};

const INSIDE: &str = "MILLWRIGHT_INSIDE";

/// Runs this very test again in namespaces of its own; answers whether we are in there.
fn inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let own = std::env::current_exe().expect("this program");
    // removed out here, where nothing is mounted in it any more
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("open to others");
    let output = Command::new("unshare")
        .args(["--mount", "--pid", "--ipc", "--fork", "--mount-proc", "--"])
        .arg(own)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .env("TMPDIR", folder.path())
        .output()
        .expect("unshare runs: apt-get install util-linux, and run as root");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

fn sh(script: &str) {
    let status = Command::new("sh").args(["-ec", script]).status().expect("sh runs");
    assert!(status.success(), "{script}");
}

/// A machine with a real /proc.
fn machine() -> Scratch {
    let scratch = Scratch::bare();
    let proc = scratch.host.path("/proc");
    std::fs::remove_dir_all(&proc).expect("removed");
    std::fs::create_dir(&proc).expect("a folder");
    sh(&format!("mount -t proc proc {}", proc.display()));
    scratch.program("ipcrm", "exec /usr/bin/ipcrm \"$@\"");
    scratch.folder_in("/var/lib/millwright-agent", 0, 0o700);
    Baseline::record(&scratch.host, &scratch.state).expect("a baseline");
    assert!(scratch.host.shows_live_processes());
    scratch
}

/// One that ends only when it must, where `deaf`.
fn process(uid: u32, deaf: bool) -> Child {
    let script = if deaf { "trap '' TERM; while :; do sleep 1; done" } else { "exec sleep 86400" };
    let mut command = Command::new("sh");
    command.args(["-c", script]).uid(uid).gid(uid).current_dir("/").stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("a process")
}

fn runs(child: &mut Child) -> bool {
    child.try_wait().expect("asked").is_none()
}

fn policy() -> Option<CleanPolicy> {
    Some(CleanPolicy { scratch_paths: vec!["/scratch".to_owned()], ..CleanPolicy::default() })
}

async fn validate(scratch: &Scratch) -> Outcome {
    let (context, _) = scratch.context();
    run(&Kind::NodeValidateClean(NodeValidateClean { policy: policy() }), &context).await
}

async fn clean(scratch: &Scratch) -> Outcome {
    let (context, _) = scratch.context();
    run(&Kind::NodeCleanupStorage(NodeCleanupStorage { policy: policy() }), &context).await
}

fn found(outcome: &Outcome) -> Vec<String> {
    let detail = match outcome {
        Ok(done) => &done.detail,
        Err(failed) => &failed.detail,
    };
    let checks = detail["checks"].as_array().unwrap_or_else(|| panic!("{outcome:?}"));
    checks
        .iter()
        .filter(|check| check["found"] != 0)
        .map(|check| check["name"].as_str().expect("a name").to_owned())
        .collect()
}

#[tokio::test]
async fn processes_of_tenants_are_ended_and_those_of_the_site_run_on() {
    if !inside("processes_of_tenants_are_ended_and_those_of_the_site_run_on") {
        return;
    }
    let scratch = machine();
    let mut of_site = [process(SITE, false), process(0, false), process(65_534, false)];
    let mut of_tenants = [process(TENANT, false), process(TENANT, true), process(100_007, false)];
    assert_eq!(found(&validate(&scratch).await), ["processes"]);
    assert!(of_tenants.iter_mut().all(runs), "looking ends nobody");
    clean(&scratch).await.expect("ended");
    eventually("tenants' processes are gone", || !of_tenants.iter_mut().any(runs)).await;
    assert!(of_site.iter_mut().all(runs));
    validate(&scratch).await.expect("clean");
}

#[tokio::test]
async fn a_forced_drain_ends_what_the_grace_did_not() {
    if !inside("a_forced_drain_ends_what_the_grace_did_not") {
        return;
    }
    let scratch = machine();
    let (context, _) = scratch.context();
    let mut of_site = process(SITE, false);
    let mut of_tenants = [process(TENANT, false), process(TENANT, true)];
    let drain = |force| Kind::NodeDrain(NodeDrain { grace_seconds: 1, force });
    assert_eq!(run(&drain(false), &context).await.expect_err("they run").code, "STILL_IN_USE");
    assert!(of_tenants.iter_mut().all(runs), "without force nobody is ended");
    let done = run(&drain(true), &context).await.expect("ended");
    // the deaf one waits for a child of its own, which counts as well
    assert!(done.detail["ended"].as_u64() >= Some(2), "{}", done.detail);
    eventually("gone", || !of_tenants.iter_mut().any(runs)).await;
    assert!(runs(&mut of_site));
}

#[tokio::test]
async fn whoever_holds_a_gpu_is_found_and_ended() {
    if !inside("whoever_holds_a_gpu_is_found_and_ended") {
        return;
    }
    // a /dev of our own, with a file where the driver has a device
    sh(
        "mount -t tmpfs dev /dev; mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/urandom c 1 9; touch /dev/nvidia0 /dev/nvidiactl",
    );
    let scratch = machine();
    let hold = |device: &str| {
        let script = format!("exec sleep 86400 <{device}");
        Command::new("sh").args(["-c", &script]).spawn().expect("a process")
    };
    let (mut holder, mut asker) = (hold("/dev/nvidia0"), hold("/dev/nvidiactl"));
    eventually("it is open", || {
        std::fs::read_link(format!("/proc/{}/fd/0", holder.id())).is_ok_and(|target| target.ends_with("nvidia0"))
    })
    .await;
    assert_eq!(found(&validate(&scratch).await), ["gpu_processes"]);
    clean(&scratch).await.expect("ended");
    eventually("gone", || !runs(&mut holder)).await;
    assert!(runs(&mut asker), "who only asks the driver holds no memory");
}

#[tokio::test]
async fn mounts_of_tenants_are_taken_down_and_those_of_the_site_stay() {
    if !inside("mounts_of_tenants_are_taken_down_and_those_of_the_site_stay") {
        return;
    }
    let scratch = machine();
    scratch.folder_in("/srv", 0, 0o755);
    let mount = |path: &str| {
        std::fs::create_dir_all(scratch.host.path(path)).expect("a folder");
        sh(&format!("mount -t tmpfs none '{}'", scratch.host.path(path).display()));
    };
    mount("/srv");
    Baseline::record(&scratch.host, &scratch.state).expect("a baseline with a mount");
    mount("/mnt/with blank\nand line end");
    mount("/mnt/with blank\nand line end/and one in it");
    mount("/scratch/in-the-way");
    scratch.file("/scratch/in-the-way/x", "x", TENANT);
    // the same file system in a second place: its number alone would not tell
    let (site, bound) = (scratch.host.path("/opt"), scratch.host.path("/scratch/bound"));
    std::fs::create_dir(&bound).expect("a folder");
    sh(&format!("mount --bind {} {}", site.display(), bound.display()));
    let seen = validate(&scratch).await;
    assert_eq!(found(&seen), ["mounts", "scratch"]);
    clean(&scratch).await.expect("taken down, and emptied");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    assert!(
        !mounts.contains("/mnt/with") && !mounts.contains("in-the-way") && !mounts.contains("/scratch/bound"),
        "{mounts}"
    );
    assert!(mounts.contains(scratch.host.path("/srv").to_str().expect("text")));
    assert!(scratch.host.path("/opt/site").exists(), "what was bound is not emptied through it");
    assert_eq!(std::fs::read_dir(scratch.host.path("/scratch")).expect("there").count(), 1, "lost+found");
    validate(&scratch).await.expect("clean");
}

#[tokio::test]
async fn a_mount_that_cannot_be_taken_down_is_never_emptied() {
    if !inside("a_mount_that_cannot_be_taken_down_is_never_emptied") {
        return;
    }
    let scratch = machine();
    let (site, bound) = (scratch.host.path("/opt"), scratch.host.path("/scratch/a/bound"));
    std::fs::create_dir_all(&bound).expect("folders");
    sh(&format!("mount --bind {} {}", site.display(), bound.display()));
    // somebody of the site's works there
    let mut busy = Command::new("sleep").arg("86400").current_dir(&bound).spawn().expect("a process");
    let outcome = clean(&scratch).await;
    assert_eq!(outcome.as_ref().expect_err("busy").code, "NOT_CLEAN");
    assert!(scratch.host.path("/opt/site").exists());
    busy.kill().expect("ended");
    busy.wait().expect("ended");
    clean(&scratch).await.expect("a retry helps");
    assert!(scratch.host.path("/opt/site").exists());
}

#[tokio::test]
async fn segments_of_tenants_go_and_those_of_the_site_stay() {
    if !inside("segments_of_tenants_go_and_those_of_the_site_stay") {
        return;
    }
    let scratch = machine();
    for uid in [SITE, TENANT] {
        for option in [&["-M", "4096"][..], &["-Q"], &["-S", "3"]] {
            let made = Command::new("ipcmk").args(option).uid(uid).gid(uid).stdout(Stdio::null()).status();
            assert!(made.expect("ipcmk runs: apt-get install util-linux").success());
        }
    }
    let count = || {
        ["shm", "msg", "sem"].map(|table| {
            let text = std::fs::read_to_string(format!("/proc/sysvipc/{table}")).expect("a table");
            text.lines().count() - 1
        })
    };
    assert_eq!(count(), [2, 2, 2]);
    assert_eq!(found(&validate(&scratch).await), ["shared_memory"]);
    clean(&scratch).await.expect("removed");
    assert_eq!(count(), [1, 1, 1]);
    validate(&scratch).await.expect("clean");
}

#[tokio::test]
async fn a_container_is_known_by_its_control_group_and_ended() {
    if !inside("a_container_is_known_by_its_control_group_and_ended") {
        return;
    }
    let scratch = machine();
    let folder = tempfile::tempdir().expect("a folder");
    sh(&format!("mount -t cgroup2 none {}", folder.path().display()));
    // control groups are the whole machine's: a name that nobody else has
    let name =
        folder.path().file_name().and_then(|name| name.to_str()).expect("text").trim_start_matches('.').to_owned();
    let scope = folder.path().join(format!("docker-{name}.scope"));
    std::fs::create_dir(&scope).expect("a control group");
    let mut contained = process(0, false);
    std::fs::write(scope.join("cgroup.procs"), contained.id().to_string()).expect("moved");
    let seen = validate(&scratch).await;
    let cleaned = clean(&scratch).await;
    eventually("ended", || !runs(&mut contained)).await;
    // undone before anything is judged
    for _ in 0..1000 {
        if std::fs::remove_dir(&scope).is_ok() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    sh(&format!("umount {}", folder.path().display()));
    assert!(found(&seen).contains(&"containers".to_owned()), "{seen:?}");
    // the mount of the test's own is outside of the scratch root, and no part of that machine
    cleaned.expect("clean");
}
