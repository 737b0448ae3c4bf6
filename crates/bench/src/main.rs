//! The benchmark program: drives a real server over loopback, prints a table for people and JSON for machines,
//! and draws plots for the docs. Every speed is a ratio to a limit that was measured in the same run, because
//! a speed by itself says more about the machine than about the product.
#![allow(clippy::print_stdout, reason = "a program for people, who read what it prints")]

mod agents;
mod bmcs;
mod boot;
mod boot_nodes;
mod carry;
mod client;
mod flight;
mod ground;
mod hardware;
mod image_servers;
mod images;
mod inspect;
mod lists;
mod maas;
mod maas_agents;
mod maas_observed;
mod maas_site;
mod naive;
mod options;
mod place;
mod plain_http;
mod plot;
mod process;
mod reads;
mod report;
mod restart;
mod runs;
mod size;
mod waiting;
mod watching;
mod writes;

use crate::boot::Fleets;
use crate::flight::Flight;
use crate::ground::{Ground, Kind};
use crate::options::{Options, Section};
use crate::report::Report;
use clap::Parser as _;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(folder) = &options.serve_images {
        return image_servers::be_one(folder).map_or_else(|e| failed(e.as_ref()), |()| ExitCode::SUCCESS);
    }
    // one thread: on two cores the client must leave the other one to the server
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return failed(&e),
    };
    match runtime.block_on(interruptible(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => failed(e.as_ref()),
    }
}

/// Whoever stops this program stops its server too, and leaves no folders behind.
async fn interruptible(options: &Options) -> Outcome<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        outcome = measure(options) => outcome,
        _ = terminated.recv() => Err("terminated".into()),
        interrupted = tokio::signal::ctrl_c() => Err(interrupted.map_or_else(Into::into, |()| "interrupted".into())),
    }
}

#[allow(clippy::print_stderr, reason = "where errors of a program go")]
fn failed(e: &(dyn std::error::Error + 'static)) -> ExitCode {
    let causes = std::iter::successors(Some(e), |e| e.source()).map(ToString::to_string);
    eprintln!("error: {}", causes.collect::<Vec<_>>().join(": "));
    ExitCode::FAILURE
}

async fn measure(options: &Options) -> Outcome<()> {
    if options.needs_the_product() {
        process::program()?;
    }
    let begun = Instant::now();
    let mut machine = place::describe()?;
    println!("{machine:#}");
    let mut report = Report::default();
    let outcome = sections(options, &mut machine, &mut report).await;
    // also of a run that failed half-way: what was measured was measured
    report.sorted();
    println!("\n{}", report.table());
    println!("took {:.0} s", begun.elapsed().as_secs_f64());
    if let Some(path) = &options.json {
        std::fs::write(path, format!("{:#}\n", report.json(&machine)))?;
    }
    if let Some(folder) = &options.plots {
        plot::draw(&report, folder)?;
    }
    outcome
}

async fn sections(options: &Options, machine: &mut serde_json::Value, report: &mut Report) -> Outcome<()> {
    if options.wants(Section::Size) {
        println!("size");
        size::run(options, report)?;
    }
    if options.wants(Section::Hardware) {
        println!("hardware");
        hardware::run(options, report).await?;
    }
    if options.wants(Section::Images) {
        println!("images");
        images::run(options, report).await?;
    }
    if options.wants(Section::Agents) {
        println!("agents");
        agents::run(options, report).await?;
    }
    if options.wants(Section::Maas) {
        println!("maas");
        maas::run(options, report).await?;
    }
    let (on_each, on_file) =
        ([Section::Reads, Section::Writes, Section::Runs], [Section::Waiting, Section::Lists, Section::Restart]);
    let some = |sections: &[Section]| sections.iter().any(|s| options.wants(*s));
    if !some(&on_each) && !some(&on_file) && !options.wants(Section::Boot) {
        return Ok(());
    }
    println!("seeding");
    let mut sqlite = Ground::new(Kind::Sqlite)?;
    sqlite.register(options.machines).await?;
    for kind in options.kinds() {
        if kind == Kind::Postgres && some(&on_each) {
            println!("PostgreSQL: the same rows");
            let postgres = sqlite.in_postgres().await?;
            machine["postgresql"] = place::postgres(&postgres).await?;
            on_both(&postgres, options, report).await?;
        }
        if kind == Kind::Sqlite {
            // what must not find anything changed comes first
            on_a_file(&sqlite, options, report).await?;
            if some(&on_each) {
                on_both(&sqlite.branch("work")?, options, report).await?;
            }
        }
    }
    if options.wants(Section::Boot) {
        println!("boot");
        let fleets = Fleets::new(sqlite).await?;
        for kind in options.kinds() {
            println!("{}: boot", kind.name());
            boot::run(&fleets.on(kind).await?, options, report).await?;
        }
    }
    Ok(())
}

async fn on_both(ground: &Ground, options: &Options, report: &mut Report) -> Outcome<()> {
    let name = ground.kind.name();
    if options.wants(Section::Reads) {
        println!("{name}: reads");
        reads::run(ground, options, report).await?;
    }
    if options.wants(Section::Writes) {
        println!("{name}: writes");
        writes::run(ground, options, report).await?;
    }
    if options.wants(Section::Runs) {
        println!("{name}: runs");
        runs::run(ground, options, report).await?;
    }
    Ok(())
}

/// What shows on one database shows on the other: these are about the engine, the doors and memory.
async fn on_a_file(ground: &Ground, options: &Options, report: &mut Report) -> Outcome<()> {
    if options.wants(Section::Lists) {
        println!("lists");
        lists::run(ground, options, report).await?;
    }
    if options.wants(Section::Waiting) {
        println!("waiting");
        waiting::idle(ground, report).await?;
        watching::run(&ground.branch("watched")?, report).await?;
    }
    if options.wants(Section::Restart) {
        println!("restart");
        restart::starts(ground, report)?;
    }
    if options.wants(Section::Waiting) || options.wants(Section::Restart) {
        println!("a flight of {} runs", options.runs);
        let flight = Flight::start(ground, options.runs).await?;
        if options.wants(Section::Waiting) {
            waiting::measure(ground, &flight, options, report).await?;
        }
        if options.wants(Section::Restart) {
            restart::killed(flight, report).await?;
        }
    }
    Ok(())
}
