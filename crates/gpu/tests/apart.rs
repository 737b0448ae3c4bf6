//! The process apart: this test is the program that is started again. Children that are none of ours (shell scripts)
//! show what is done about one that says nothing, rubbish, too much, or does not end.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test throughout")]

use gpu::apart::Apart;
use gpu::{Error, Options, Progress};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    if let Some(code) = gpu::apart::answer() {
        return code;
    }
    let tests: [(&str, fn()); 6] = [
        ("a_child_of_this_program_says_what_this_process_would", a_child_of_this_program_says_what_this_process_would),
        ("without_a_gpu_a_scrub_says_so_and_never_pretends", without_a_gpu_a_scrub_says_so_and_never_pretends),
        ("a_child_that_says_nothing_or_rubbish_is_no_answer", a_child_that_says_nothing_or_rubbish_is_no_answer),
        ("a_child_that_does_not_end_is_ended", a_child_that_does_not_end_is_ended),
        ("a_canceled_scrub_ends_and_is_not_done", a_canceled_scrub_ends_and_is_not_done),
        ("a_report_that_is_not_clean_stays_so_on_its_way", a_report_that_is_not_clean_stays_so_on_its_way),
    ];
    for (name, test) in tests {
        test();
        println!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}

fn scrub(apart: &Apart) -> (Result<gpu::Report, Error>, Vec<Progress>) {
    let mut said = Vec::new();
    let result = apart.scrub(&Options::default(), &mut |progress| said.push(progress), &AtomicBool::new(false));
    (result, said)
}

fn script(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("child");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a script is written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it may be run");
    path
}

fn a_child_of_this_program_says_what_this_process_would() {
    let (mut here, mut apart) = (gpu::probe(), Apart::of_this_program(LONG).probe());
    // what changes by itself
    for gpu in here.gpus.iter_mut().chain(&mut apart.gpus) {
        gpu.health = gpu::Health::default();
    }
    assert_eq!(here, apart);
    assert!(apart.driver.is_some() || apart.note.is_some());
}

fn without_a_gpu_a_scrub_says_so_and_never_pretends() {
    let (result, _) = scrub(&Apart::of_this_program(LONG));
    if gpu::pci::on_bus(Path::new("/")).is_empty() && gpu::probe().gpus.is_empty() {
        let error = result.expect_err("there is nothing to overwrite");
        assert_eq!(error.code(), "NO_GPU", "{error}");
        let here = gpu::scrub(&Options::default(), &mut |_| (), &AtomicBool::new(false));
        assert_eq!(here, Err(error), "here as apart");
    } else {
        assert!(!matches!(result, Err(Error::NoGpu(_))), "there is one");
    }
}

fn a_child_that_says_nothing_or_rubbish_is_no_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let endless =
        "while :; do printf 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'; done";
    for text in ["", "exit 1", "kill -9 $$", "echo rubbish", "printf '{\"Scrubbed\":'", "printf '\\377\\n'", endless] {
        let apart = Apart::new(script(folder.path(), text), LONG);
        let gpus = apart.probe();
        assert!(gpus.gpus.is_empty() && gpus.note.is_some(), "{text}: {gpus:?}");
        let (result, _) = scrub(&apart);
        assert_eq!(result.expect_err(text).code(), "GPU_ERROR", "{text}");
    }
    let missing = Apart::new(folder.path().join("missing"), LONG);
    assert!(missing.probe().note.is_some());
    assert_eq!(scrub(&missing).0.expect_err("no program").code(), "GPU_ERROR");
}

fn a_child_that_does_not_end_is_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let pid = folder.path().join("pid");
    let text = format!("echo $$ > {}\nexec sleep 1000", pid.display());
    let note = Apart::new(script(folder.path(), &text), Duration::from_millis(1500)).probe().note.unwrap_or_default();
    assert!(note.contains("no answer within"), "{note}");
    let pid = std::fs::read_to_string(pid).expect("it has run");
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "it was ended and buried");
}

fn a_canceled_scrub_ends_and_is_not_done() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = r#"echo '{"Progress":{"gpu":0,"message":"begun"}}'
exec sleep 1000"#;
    let cancel = AtomicBool::new(false);
    let apart = Apart::new(script(folder.path(), text), LONG);
    let result = apart.scrub(&Options::default(), &mut |_| cancel.store(true, Ordering::Relaxed), &cancel);
    assert_eq!(result, Err(Error::Canceled));
}

fn a_report_that_is_not_clean_stays_so_on_its_way() {
    let folder = tempfile::tempdir().expect("a folder");
    let gpu = gpu::GpuReport {
        index: Some(3),
        mismatches: 1,
        failure: Some(gpu::Failure { code: "GPU_MISMATCH".to_owned(), message: "one word".to_owned() }),
        ..gpu::GpuReport::default()
    };
    let error = Error::NotClean(Box::new(gpu::Report { gpus: vec![gpu], ..gpu::Report::default() }));
    let json = serde_json::to_string(&error).expect("it can be written");
    let text =
        format!("echo '{{\"Progress\":{{\"gpu\":3,\"message\":\"on\"}}}}'\necho '{{\"Scrubbed\":{{\"Err\":{json}}}}}'");
    let (result, said) = scrub(&Apart::new(script(folder.path(), &text), LONG));
    assert_eq!(result, Err(error));
    assert_eq!(said, [Progress { gpu: 3, message: "on".to_owned() }]);
}
