//! Backup and restore of the embedded database.

use crate::data_dir::{DataDir, database_in};
use clap::Args;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use store::SystemAmbient;

#[derive(Args)]
#[command(after_help = "Example:\n  millwright backup --data /var/lib/millwright fleet-2026-11-15.db")]
pub struct BackupOptions {
    /// The file to write; it must not exist
    file: PathBuf,
    /// The server's data folder
    #[arg(long, default_value = "millwright-data")]
    data: PathBuf,
}

#[derive(Args)]
#[command(after_help = "Example:\n  millwright restore --data /var/lib/millwright fleet-2026-11-15.db")]
pub struct RestoreOptions {
    /// The backup to restore
    file: PathBuf,
    /// The server's data folder; the server must be stopped
    #[arg(long, default_value = "millwright-data")]
    data: PathBuf,
}

pub fn backup(options: &BackupOptions) -> Result<ExitCode, String> {
    store::backup(&database_in(&options.data), &options.file).map_err(|e| e.to_string())?;
    say(&format!("backed up to {}", options.file.display()));
    Ok(ExitCode::SUCCESS)
}

pub fn restore(options: &RestoreOptions) -> Result<ExitCode, String> {
    let data = DataDir::open(&options.data)?;
    let kept = store::restore(&options.file, &data.database(), &SystemAmbient::new()).map_err(|e| e.to_string())?;
    say(&format!("restored {} into {}", options.file.display(), data.path.display()));
    if let Some(kept) = kept {
        say(&format!("what was there is kept as {}", kept.display()));
    }
    say(
        "tokens that were revoked after the backup are good again: start the server, look with `millwright token list`, and revoke them again",
    );
    Ok(ExitCode::SUCCESS)
}

pub fn say(line: &str) {
    // a closed stdout leaves nobody to tell
    drop(writeln!(std::io::stdout(), "{line}"));
}
