//! Scripts, restarts, drains and scrubs on a scratch root; scripts are real processes.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod task_scratch;

use agent::host::Host;
use agent::task::{Context, Failed, Outcome, after_restart, run};
use domain::stage::FailureClass;
use proto::agent::v1::task::Kind;
use proto::agent::v1::{HostExec, HostReboot, NodeDrain, NodeScrubGpu, NodeUninstall, NodeValidateClean};
use sha2::{Digest, Sha256};
use std::os::unix::fs::{PermissionsExt, chown};
use task_scratch::{BOOT_ID, Scratch, TENANT, eventually};

fn sha256(script: &str) -> String {
    Sha256::digest(script.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn allow(scratch: &Scratch, lines: &str) {
    scratch.folder_in("/etc/millwright-agent", 0, 0o755);
    scratch.file("/etc/millwright-agent/allowed-scripts", lines, 0);
}

fn exec(script: &str, args: &[&str]) -> Kind {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    Kind::HostExec(HostExec { sha256: sha256(script), script: script.as_bytes().to_vec(), args })
}

async fn refused(scratch: &Scratch, task: &Kind) -> Failed {
    let (context, said) = scratch.context();
    let failed = run(task, &context).await.expect_err("refused");
    assert_eq!(said.text(), "", "nothing has run");
    failed
}

#[tokio::test]
async fn an_allowed_script_runs_as_nobody_in_a_fresh_folder_with_nothing_of_ours() {
    let scratch = Scratch::new();
    let script = "#!/bin/sh\nid -u\nid -G\npwd\nls -A | wc -l\ngrep NoNewPrivs /proc/self/status\nenv | cut -d= -f1 | sort | tr '\\n' ' '\ncat\necho $#:$1:$2 >&2\ntouch mine && echo wrote\n";
    allow(&scratch, &format!("# for the night shift\n\n{}   # id\n", sha256(script).to_uppercase()));
    let (context, said) = scratch.context();
    let done = run(&exec(script, &["a b", "$(id)"]), &context).await.expect("ran");
    drop(context);
    eventually("all was printed", || said.text().contains("2:a b:$(id)") && said.text().contains("wrote")).await;
    let text = said.text();
    assert!(text.starts_with("65534\n65534\n"), "{text}");
    assert!(text.contains("\n0\nNoNewPrivs:\t1\n"), "{text}");
    assert!(text.contains("HOME LC_ALL MILLWRIGHT_TASK_MARK PATH PWD TMPDIR"), "{text}");
    assert_eq!(done.detail["ran_as"], "nobody");
    assert_eq!(done.detail["exit_code"], 0);
    assert!(!scratch.host.path("/var/lib/millwright-agent-exec").exists(), "its folder is gone");
}

#[tokio::test]
async fn only_a_line_that_says_so_makes_a_script_run_as_root() {
    let scratch = Scratch::new().with_control_groups();
    let script = "#!/bin/sh\nid -u\n";
    allow(&scratch, &format!("{} root\n", sha256(script)));
    let (context, said) = scratch.context();
    let done = run(&exec(script, &[]), &context).await.expect("ran");
    eventually("printed", || said.text() == "0\n").await;
    assert_eq!((&done.detail["ran_as"], &done.detail["enclosed_by"]), (&"root".into(), &"control group".into()));
}

#[tokio::test]
async fn without_a_control_group_a_script_of_roots_is_refused_and_nobodys_is_marked() {
    let scratch = Scratch::new();
    let script = "#!/bin/sh\necho ran\n";
    allow(&scratch, &format!("{} root\n", sha256(script)));
    let failed = refused(&scratch, &exec(script, &[])).await;
    assert_eq!((failed.code, failed.class), ("NOT_ENCLOSED", FailureClass::NeedsOperator));
    assert!(!scratch.host.path("/var/lib/millwright-agent-exec").exists(), "its folder is gone");
    allow(&scratch, &sha256(script));
    let (context, _) = scratch.context();
    let done = run(&exec(script, &[]), &context).await.expect("ran");
    assert_eq!(done.detail["enclosed_by"], "mark");
}

#[tokio::test]
async fn a_script_is_read_by_nobody_but_its_user() {
    let script = "#!/bin/sh\nstat -c '%a %u' . .. ../script\n";
    for (line, uid) in [("", 65_534), (" root", 0)] {
        let scratch = Scratch::new().with_control_groups();
        allow(&scratch, &format!("{}{line}\n", sha256(script)));
        let (context, said) = scratch.context();
        run(&exec(script, &[]), &context).await.expect("ran");
        eventually("printed", || said.text() == format!("700 {uid}\n700 {uid}\n500 {uid}\n")).await;
    }
}

#[tokio::test]
async fn a_script_that_is_not_allowed_does_not_run() {
    let script = "#!/bin/sh\necho ran\n";
    type Spoil = fn(&Scratch);
    let cases: [(&str, &str, Spoil); 9] = [
        ("no list", "NOT_ALLOWED", |_| {}),
        ("an empty list", "NOT_ALLOWED", |s| allow(s, "")),
        ("another digest", "NOT_ALLOWED", |s| allow(s, &sha256("other"))),
        ("commented out", "NOT_ALLOWED", |s| allow(s, &format!("#{}", sha256("#!/bin/sh\necho ran\n")))),
        ("a list that others can write", "LIST_NOT_TRUSTED", |s| {
            allow(s, &sha256("#!/bin/sh\necho ran\n"));
            let path = s.host.path("/etc/millwright-agent/allowed-scripts");
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o666)).expect("rights");
        }),
        ("a list of somebody else's", "LIST_NOT_TRUSTED", |s| {
            allow(s, &sha256("#!/bin/sh\necho ran\n"));
            chown(s.host.path("/etc/millwright-agent/allowed-scripts"), Some(TENANT), Some(0)).expect("owner");
        }),
        ("a folder that others can write", "LIST_NOT_TRUSTED", |s| {
            allow(s, &sha256("#!/bin/sh\necho ran\n"));
            std::fs::set_permissions(s.host.path("/etc/millwright-agent"), PermissionsExt::from_mode(0o777))
                .expect("rights");
        }),
        ("a link", "LIST_NOT_TRUSTED", |s| {
            s.folder_in("/etc/millwright-agent", 0, 0o755);
            s.file("/tmp/list", &sha256("#!/bin/sh\necho ran\n"), 0);
            s.link(s.host.path("/tmp/list").to_str().expect("text"), "/etc/millwright-agent/allowed-scripts");
        }),
        ("a list that is not understood", "LIST_NOT_TRUSTED", |s| allow(s, "rights for everybody please\n")),
    ];
    for (what, code, spoil) in cases {
        let scratch = Scratch::new();
        spoil(&scratch);
        let failed = refused(&scratch, &exec(script, &[])).await;
        assert_eq!((failed.code, failed.class), (code, FailureClass::NeedsOperator), "{what}");
    }
    let scratch = Scratch::new();
    allow(&scratch, &sha256(script));
    let lie =
        Kind::HostExec(HostExec { sha256: sha256(script), script: b"#!/bin/sh\nrm -rf /\n".to_vec(), args: vec![] });
    assert_eq!(refused(&scratch, &lie).await.code, "WRONG_DIGEST");
    assert_eq!(refused(&scratch, &exec(script, &["zero\0byte"])).await.code, "INVALID");
}

#[tokio::test]
async fn a_script_that_fails_says_how() {
    let scratch = Scratch::new();
    let (script, killed) = ("#!/bin/sh\necho no >&2\nexit 7\n", "#!/bin/sh\nkill -9 $$\n");
    allow(&scratch, &format!("{}\n{}\n", sha256(script), sha256(killed)));
    let (context, said) = scratch.context();
    let failed = run(&exec(script, &[]), &context).await.expect_err("7");
    assert_eq!((failed.code, failed.detail["exit_code"].as_i64()), ("SCRIPT_FAILED", Some(7)));
    eventually("printed", || said.text() == "no\n").await;
    let failed = run(&exec(killed, &[]), &context).await.expect_err("killed");
    assert_eq!(failed.detail["signal"].as_i64(), Some(9));
}

/// Whether a process runs whose command line has this in it: asked of /proc, not of the agent.
fn runs(mark: &str) -> bool {
    std::fs::read_dir("/proc").expect("processes").flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(mark)
    })
}

#[tokio::test]
async fn what_a_script_has_detached_ends_with_it() {
    let scratch = Scratch::new().with_control_groups();
    // only a control group (version 2, where we may make one) holds the first of these: it forks twice, in a session of its own, deaf to everything, with an empty environment, holding our pipe
    let script = "#!/bin/sh\n(setsid env -i sh -c 'trap \"\" TERM HUP; sleep 98989.1' &)\n(setsid sleep 98989.2 >/dev/null 2>&1 &)\nsleep 98989.3 &\necho started\nsleep 0.5\n";
    allow(&scratch, &sha256(script));
    let (context, _) = scratch.context();
    let done = run(&exec(script, &[]), &context).await.expect("the script itself has ended");
    assert!(done.detail["processes_left_and_ended"].as_u64() >= Some(2), "{}", done.detail);
    eventually("nobody is left", || !runs("98989.")).await;
}

#[tokio::test]
async fn a_script_that_ignores_everything_is_ended_when_it_is_canceled() {
    let scratch = Scratch::new();
    let script =
        "#!/bin/sh\ntrap '' TERM INT HUP\necho deaf\n(setsid sleep 97979.1 &)\nwhile :; do sleep 97979.2; done\n";
    allow(&scratch, &sha256(script));
    let (context, said) = scratch.context();
    let task = tokio::spawn({
        let context = context.clone();
        async move { run(&exec(script, &[]), &context).await }
    });
    eventually("it runs", || said.text().contains("deaf") && runs("97979.1")).await;
    context.cancel.cancel();
    let failed = task.await.expect("no panic").expect_err("canceled");
    assert_eq!((failed.code, failed.class), ("CANCELED", FailureClass::Transient));
    eventually("nobody is left", || !runs("97979.")).await;
    assert!(!scratch.host.path("/var/lib/millwright-agent-exec").exists());
}

#[tokio::test]
async fn a_flood_of_output_waits_for_its_reader_and_can_be_stopped() {
    let scratch = Scratch::new();
    let script = "#!/bin/sh\nexec cat /dev/zero\n";
    allow(&scratch, &sha256(script));
    let (mut context, _) = scratch.context();
    let (sender, mut receiver) = tokio::sync::mpsc::channel(2);
    context.printer = agent::task::Printer::new(sender);
    let cancel = context.cancel.clone();
    let task = tokio::spawn(async move { run(&exec(script, &[]), &context).await });
    let (_, first) = receiver.recv().await.expect("output");
    assert!(!first.is_empty() && first.len() <= 16 << 10);
    // from here on nobody reads; it is stopped all the same
    cancel.cancel();
    let failed = task.await.expect("no panic").expect_err("canceled");
    assert_eq!(failed.code, "CANCELED");
    let mut left = 0;
    while let Ok((_, bytes)) = receiver.try_recv() {
        left += bytes.len();
    }
    assert!(left <= 64 << 10, "no more was held than the channel has room for: {left}");
}

fn reboot(boot_id: &str) -> Kind {
    Kind::HostReboot(HostReboot { boot_id: boot_id.to_owned() })
}

const ANOTHER: &str = "00000000-1111-2222-3333-444444444444";

#[tokio::test]
async fn a_restart_that_has_happened_is_proven_and_not_ordered_again() {
    let scratch = Scratch::new();
    scratch.program("systemctl", &format!("touch {}", scratch.host.path("/ordered").display()));
    let (context, _) = scratch.context();
    let done = run(&reboot(ANOTHER), &context).await.expect("done already");
    assert_eq!(
        (done.detail["boot_id_before"].as_str(), done.detail["boot_id"].as_str()),
        (Some(ANOTHER), Some(BOOT_ID))
    );
    assert!(!scratch.host.path("/ordered").exists());
    assert_eq!(run(&reboot(""), &context).await.expect_err("which one?").code, "INVALID");
}

#[tokio::test]
async fn a_restart_is_ordered_by_systemd_and_else_by_reboot() {
    let cases: [(&str, &str, &str); 3] = [
        ("echo \"$@\" >ORDERED; echo ANOTHER >BOOT_ID", "exit 1", "reboot"),
        ("exit 1", "echo fallback >ORDERED; echo ANOTHER >BOOT_ID", "fallback"),
        ("", "echo fallback >ORDERED; echo ANOTHER >BOOT_ID", "fallback"),
    ];
    for (systemctl, fallback, ordered) in cases {
        let scratch = Scratch::new();
        let paths = |script: &str| {
            let id = scratch.host.path("/proc/sys/kernel/random/boot_id");
            script
                .replace("ORDERED", scratch.host.path("/ordered").to_str().expect("text"))
                .replace("BOOT_ID", id.to_str().expect("text"))
                .replace("ANOTHER", ANOTHER)
        };
        if !systemctl.is_empty() {
            scratch.program("systemctl", &paths(systemctl));
        }
        scratch.program("reboot", &paths(fallback));
        let (context, _) = scratch.context();
        let done = run(&reboot(BOOT_ID), &context).await.expect("restarted");
        assert_eq!(done.detail["boot_id"], ANOTHER);
        assert_eq!(std::fs::read_to_string(scratch.host.path("/ordered")).expect("ordered").trim(), ordered);
    }
}

#[tokio::test]
async fn a_restart_that_cannot_be_ordered_is_a_failure() {
    let scratch = Scratch::new();
    let (context, _) = scratch.context();
    let failed = run(&reboot(BOOT_ID), &context).await.expect_err("no program");
    assert_eq!((failed.code, failed.class), ("REBOOT_REFUSED", FailureClass::NeedsOperator));
}

#[tokio::test]
async fn after_a_restart_of_the_agent_only_the_boot_id_tells() {
    let scratch = Scratch::new();
    let done = after_restart(&reboot(ANOTHER), &scratch.host).expect("it can tell").expect("restarted");
    assert_eq!(done.detail["boot_id"], BOOT_ID);
    let failed = after_restart(&reboot(BOOT_ID), &scratch.host).expect("it can tell").expect_err("not restarted");
    assert_eq!((failed.code, failed.class), ("INTERRUPTED", FailureClass::Transient));
    for kind in [
        Kind::NodeDrain(NodeDrain::default()),
        Kind::NodeUninstall(NodeUninstall {}),
        Kind::NodeValidateClean(NodeValidateClean::default()),
        exec("x", &[]),
    ] {
        assert_eq!(after_restart(&kind, &scratch.host), None);
    }
}

async fn drain(context: &Context, grace_seconds: u32, force: bool) -> Outcome {
    run(&Kind::NodeDrain(NodeDrain { grace_seconds, force }), context).await
}

#[tokio::test]
async fn a_drain_tells_what_runs_and_is_done_when_nothing_does() {
    let scratch = Scratch::new();
    let (context, _) = scratch.context();
    drain(&context, 0, false).await.expect("nothing of a tenant runs");
    scratch.process(100, TENANT, TENANT, "/user.slice", &[]);
    scratch.process(101, 0, u32::MAX, "/system.slice/docker-4e38f4c8.scope", &["/dev/nvidia0"]);
    let failed = drain(&context, 0, false).await.expect_err("they run");
    assert_eq!((failed.code, failed.class), ("STILL_IN_USE", FailureClass::NeedsOperator));
    let pids: Vec<i64> =
        failed.detail["processes"].as_array().expect("a list").iter().filter_map(|one| one["pid"].as_i64()).collect();
    assert_eq!(pids, [100, 101]);
    // within the grace they end by themselves
    let task = tokio::spawn({
        let context = context.clone();
        async move { drain(&context, 600, false).await }
    });
    for pid in [100, 101] {
        std::fs::remove_dir_all(scratch.host.path(&format!("/proc/{pid}"))).expect("ended");
    }
    task.await.expect("no panic").expect("drained");
    for pid in 200..400 {
        scratch.process(pid, TENANT, TENANT, "/user.slice", &[]);
    }
    let failed = drain(&context, 0, false).await.expect_err("many run");
    assert_eq!(failed.detail["running"], 200);
    assert_eq!(failed.detail["processes"].as_array().map(Vec::len), Some(50), "the list is bounded");
}

#[tokio::test]
async fn a_drain_is_canceled_in_its_grace() {
    let scratch = Scratch::new();
    scratch.process(100, TENANT, TENANT, "/user.slice", &[]);
    let (context, said) = scratch.context();
    let task = tokio::spawn({
        let context = context.clone();
        async move { drain(&context, 36_000, true).await }
    });
    eventually("it waits", || said.text().contains("still run")).await;
    context.cancel.cancel();
    assert_eq!(task.await.expect("no panic").expect_err("canceled").code, "CANCELED");
}

#[tokio::test]
async fn without_a_gpu_a_scrub_says_so_and_with_one_it_never_pretends() {
    let scratch = Scratch::new();
    let (context, _) = scratch.context();
    let done = run(&Kind::NodeScrubGpu(NodeScrubGpu::default()), &context).await.expect("nothing to do");
    assert_eq!(done.detail["gpus"], serde_json::json!([]));
    assert!(done.message.contains("no GPU"), "{}", done.message);
    // something that calls itself a driver, and is none
    scratch.file("/dev/nvidiactl", "", 0);
    let failed = run(&Kind::NodeScrubGpu(NodeScrubGpu::default()), &context).await.expect_err("no driver to call");
    assert_eq!(failed.code, "GPU_NOT_DRIVEN");
}

#[test]
fn a_host_knows_its_own_programs_and_no_others() {
    let scratch = Scratch::bare();
    assert_eq!(scratch.host.program("sh"), None, "the one of the machine that the test runs on is not this one's");
    assert!(Host::new("/").program("sh").is_some());
    assert!(!scratch.host.shows_live_processes());
    assert!(Host::new("/").shows_live_processes());
}
