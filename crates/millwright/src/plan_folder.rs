//! Plans from a folder: read at the start, each as if an administrator had created it.

use service::{Call, Service};
use std::path::{Path, PathBuf};

/// Files looked at; a folder with more is surely not a folder of plans.
const FILES_MAX: usize = 1000;

pub async fn load(service: &Service, folder: &Path) -> Result<usize, String> {
    let files = plan_files(folder)?;
    for file in &files {
        let plan = crate::cli::read_plan_file(file).map_err(|e| e.to_string())?;
        let plan = api::plan_from_proto(plan).map_err(|e| format!("plan file {}: {e}", file.display()))?;
        service
            .create_plan(&Call::system(), plan, "folder")
            .await
            .map_err(|e| format!("plan file {}: {e}", file.display()))?;
    }
    Ok(files.len())
}

pub fn plan_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |e: std::io::Error| format!("reading the plan folder {}: {e}", folder.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().and_then(|e| e.to_str()).is_some_and(|e| matches!(e, "json" | "yaml" | "yml")) {
            files.push(path);
        }
        if files.len() > FILES_MAX {
            return Err(format!("the plan folder {} has more than {FILES_MAX} files", folder.display()));
        }
    }
    files.sort();
    Ok(files)
}
