//! The plan folder, each plan in it, and the providers.

use super::report::Report;
use crate::config::{Config, Provider, ProviderKind};
use crate::plan_folder::plan_files;
use domain::plan_defaults::built_in_plans;
use rustix::fs::{Access, access};
use std::collections::BTreeMap;
use std::path::Path;

pub fn check(report: &mut Report, config: &Config) {
    match &config.plans.folder {
        Some(folder) => folder_of_plans(report, folder),
        None => report.skipped("plans", "no folder is set (plans.folder)"),
    }
    for (name, provider) in &config.providers {
        check_provider(report, name, provider, &config.server.data);
    }
}

fn folder_of_plans(report: &mut Report, folder: &Path) {
    const AREA: &str = "plans";
    let files = match plan_files(folder) {
        Ok(files) => files,
        Err(e) => return report.failed(AREA, e, "set plans.folder right, or take it out"),
    };
    let mut sound: BTreeMap<String, &Path> = BTreeMap::new();
    let built_in = built_in_plans();
    for file in &files {
        let name = file.display();
        let plan = crate::cli::read_plan_file(file).map_err(|e| e.to_string());
        let plan = plan.and_then(|plan| {
            let plan = api::plan_from_proto(plan).map_err(|e| format!("{name}: {e}"))?;
            plan.validate().map_err(|e| format!("{name}: {e}"))?;
            Ok(plan)
        });
        match plan {
            Err(e) => report.failed(AREA, e, "a server with this plan does not start; set it right"),
            Ok(plan) if built_in.iter().any(|own| own.id == plan.id) => {
                report.failed(AREA, format!("{name}: {} is a built-in plan", plan.id), "choose another plan_id");
            }
            Ok(plan) => {
                if let Some(other) = sound.insert(plan.id.clone(), file) {
                    let what = format!("{name} and {} both hold {}", other.display(), plan.id);
                    report.doubtful(AREA, what, "if they differ, a server does not start; keep one");
                }
            }
        }
    }
    if sound.len() == files.len() {
        report.fine(AREA, format!("{}: {} plans, all sound", folder.display(), files.len()));
    }
}

fn check_provider(report: &mut Report, name: &str, provider: &Provider, data: &Path) {
    const AREA: &str = "provider";
    if provider.enabled == Some(false) {
        return report.skipped(AREA, format!("{name} is switched off"));
    }
    if provider.kind(name) == Ok(ProviderKind::Maas) {
        return report.fine(AREA, format!("{name}: machines of site {}", provider.site));
    }
    let journal = provider.journal.clone().unwrap_or_else(|| data.join(format!("{name}-world.jsonl")));
    let shown = journal.display();
    let folder = journal.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let fine = match (journal.exists(), folder.exists()) {
        (true, _) => access(&journal, Access::READ_OK | Access::WRITE_OK).is_ok(),
        (false, true) => access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok(),
        // the data folder is made by the first start
        (false, false) => folder == data,
    };
    match fine {
        true => report.fine(AREA, format!("{name}: simulated, journal {shown}")),
        false => report.failed(
            AREA,
            format!("{name}: its journal {shown} cannot be written"),
            format!("set providers.{name}.journal right"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "plan_id: twice\nsteps:\n- {name: one, reboot: {mode: bmc}}\n";

    #[test]
    fn every_plan_is_read_and_the_bad_ones_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
        let lines = || {
            let mut report = Report::new();
            folder_of_plans(&mut report, folder.path());
            report.lines(false)
        };
        write("good.yaml", GOOD);
        assert!(lines()[0].contains("1 plans, all sound"), "{:?}", lines());
        write("again.yaml", GOOD);
        write("bad.yaml", "plan_id: bad\nsteps:\n- {name: one, nap: {}}\n");
        write("own.yaml", &GOOD.replace("twice", "default-repave"));
        write("empty.json", r#"{"plan_id": "empty", "steps": []}"#);
        let told = lines();
        for (name, part) in [("bad.yaml", "steps[0].nap"), ("own.yaml", "built-in"), ("empty.json", "steps")] {
            assert!(told.iter().any(|l| l.starts_with("FAIL") && l.contains(name) && l.contains(part)), "{told:?}");
        }
        assert!(told.iter().any(|line| line.starts_with("warn") && line.contains("both hold twice")), "{told:?}");
    }
}
