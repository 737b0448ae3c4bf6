//! How large the release binary is, and how long an incremental debug build takes.

use crate::Outcome;
use crate::options::Options;
use crate::process::program;
use crate::report::{Figure, Goal, Report};
use std::process::Command;
use tokio::time::Instant;

const SECTION: &str = "size";
/// The file that is changed.
const CHANGED: &str = "crates/service/src/machines.rs";
const BUILDS: usize = 3;

pub fn run(options: &Options, report: &mut Report) -> Outcome<()> {
    let figure = |what: &str, unit, measured, limit| Figure {
        section: SECTION,
        database: "",
        what: what.to_owned(),
        unit,
        measured,
        limit: vec![limit],
        against: "the goal itself".to_owned(),
        goal: Goal::AtMost(1.0),
    };
    let bytes = std::fs::metadata(program()?)?.len() as f64;
    report.add(figure("release binary", "MiB", vec![bytes / 1024.0 / 1024.0], 40.0));
    if options.build {
        build()?;
        let mut took = Vec::new();
        for _ in 0..BUILDS {
            // the same text, written anew: the compiler goes by the time
            let path = testkit::golden::root().join(CHANGED);
            std::fs::write(&path, std::fs::read(&path)?)?;
            let begun = Instant::now();
            build()?;
            took.push(begun.elapsed().as_secs_f64());
        }
        report.add(figure("incremental debug build after a change in service", "s", took, 20.0));
    }
    Ok(())
}

fn build() -> Outcome<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    let built = command.args(["build", "--quiet", "-p", "millwright"]).current_dir(testkit::golden::root()).status()?;
    if built.success() { Ok(()) } else { Err("the debug build failed".into()) }
}
