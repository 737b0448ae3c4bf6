//! The benchmark program: drives a real server over loopback, prints a table for people and JSON for machines,
//! and draws plots for the docs. Every speed is a ratio to a limit that was measured in the same run, because
//! a speed by itself says more about the machine than about the product.
#![allow(clippy::print_stdout, reason = "a program for people, who read what it prints")]

mod client;
mod ground;
mod naive;
mod options;
mod place;
mod process;
mod reads;
mod report;
mod writes;

use crate::ground::{Ground, Kind};
use crate::options::{Options, Section};
use crate::report::Report;
use clap::Parser as _;
use std::process::ExitCode;
use tokio::time::Instant;

pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let options = Options::parse();
    // one thread: on two cores the client must leave the other one to the server
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return failed(&e),
    };
    match runtime.block_on(measure(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => failed(e.as_ref()),
    }
}

#[allow(clippy::print_stderr, reason = "where errors of a program go")]
fn failed(e: &dyn std::error::Error) -> ExitCode {
    let causes = std::iter::successors(Some(e), |e| e.source()).map(ToString::to_string);
    eprintln!("error: {}", causes.collect::<Vec<_>>().join(": "));
    ExitCode::FAILURE
}

async fn measure(options: &Options) -> Outcome<()> {
    process::program()?;
    let begun = Instant::now();
    let mut machine = place::describe()?;
    println!("{machine:#}");
    let mut report = Report::default();
    for kind in options.kinds() {
        if [Section::Reads, Section::Writes].into_iter().any(|s| options.wants(s)) {
            println!("{}: seeding", kind.name());
            let mut ground = Ground::new(kind, None)?;
            ground.register(options.machines).await?;
            if kind == Kind::Postgres {
                machine["postgresql"] = place::postgres(&ground).await?;
            }
            on(&ground, options, &mut report).await?;
        }
    }
    println!("\n{}", report.table());
    println!("took {:.0} s", begun.elapsed().as_secs_f64());
    if let Some(path) = &options.json {
        std::fs::write(path, format!("{:#}\n", report.json(&machine)))?;
    }
    Ok(())
}

/// The sections that want all the machines.
async fn on(ground: &Ground, options: &Options, report: &mut Report) -> Outcome<()> {
    if options.wants(Section::Reads) {
        println!("{}: reads", ground.kind.name());
        reads::run(ground, options, report).await?;
    }
    if options.wants(Section::Writes) {
        println!("{}: writes", ground.kind.name());
        writes::run(ground, options, report).await?;
    }
    Ok(())
}
