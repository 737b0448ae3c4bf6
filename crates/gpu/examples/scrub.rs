//! Asks and overwrites the GPUs of this machine, and measures what that costs.
//!
//!     scrub probe | probe-apart
//!     scrub cost                                     what asking costs a process: memory, time
//!     scrub here | apart [OPTIONS AS JSON]           overwrites; `{"tamper":{"pass":0,"place":500}}` spoils a word
//!
//! Ends with 0 if all memory was overwritten, 3 if there is no GPU, 1 otherwise.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example prints, and measures")]

use gpu::apart::Apart;
use gpu::{Error, Options, Progress};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    if let Some(code) = gpu::apart::answer() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let apart = Apart::of_this_program(Duration::from_secs(120));
    match args.first().map(String::as_str) {
        Some("probe") => println!("{:#?}", gpu::probe()),
        Some("probe-apart") => println!("{:#?}", apart.probe()),
        Some("cost") => cost(&apart),
        Some(how @ ("here" | "apart")) => return scrub(how, args.get(1).map_or("{}", String::as_str), &apart),
        _ => {
            eprintln!("scrub probe | probe-apart | cost | here [OPTIONS] | apart [OPTIONS]");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn scrub(how: &str, given: &str, apart: &Apart) -> ExitCode {
    // what is not given is as it is by default
    let (Ok(mut options), Ok(serde_json::Value::Object(given))) =
        (serde_json::to_value(Options::default()), serde_json::from_str(given))
    else {
        eprintln!("the options are no JSON object");
        return ExitCode::from(2);
    };
    given.into_iter().for_each(|(key, value)| options[key] = value);
    let options: Options = match serde_json::from_value(options) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let begun = Instant::now();
    let mut progress = |progress: Progress| println!("GPU {}: {}", progress.gpu, progress.message);
    let never = AtomicBool::new(false);
    let result = if how == "here" {
        gpu::scrub(&options, &mut progress, &never)
    } else {
        apart.scrub(&options, &mut progress, &never)
    };
    println!("{how}: {:.2} s in all; resident now {} KiB", begun.elapsed().as_secs_f64(), resident());
    match result {
        Ok(report) => {
            println!("clean {}", serde_json::to_string_pretty(&report).unwrap_or_default());
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{}: {error}", error.code());
            match error {
                Error::NoGpu(_) => return ExitCode::from(3),
                Error::NotClean(report) => println!("{}", serde_json::to_string_pretty(&report).unwrap_or_default()),
                _ => {}
            }
            ExitCode::FAILURE
        }
    }
}

fn cost(apart: &Apart) {
    let step = |what: &str, work: &mut dyn FnMut()| {
        let (begun, cpu, before) = (Instant::now(), own_cpu(), resident());
        work();
        println!(
            "{what}: {:.2} ms, {:.2} ms of a core, resident {} -> {} KiB",
            begun.elapsed().as_secs_f64() * 1000.0,
            (own_cpu() - cpu) * 10.0,
            before,
            resident()
        );
    };
    step("ten times apart", &mut || (0..10).for_each(|_| drop(apart.probe())));
    step("first time here", &mut || drop(gpu::probe()));
    step("second time here", &mut || drop(gpu::probe()));
    step("a hundred times here", &mut || (0..100).for_each(|_| drop(gpu::probe())));
}

/// In KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// Its own and its ended children's, in hundredths of a second.
fn own_cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    after.split_whitespace().skip(11).take(4).filter_map(|ticks| ticks.parse::<f64>().ok()).sum()
}
