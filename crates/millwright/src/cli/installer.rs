//! The installer's own files, carried in the program: whoever has it can make the installer without a checkout.

use super::exit::CliError;
use super::output::Format;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

macro_rules! carried {
    ($($name:literal),+ $(,)?) => {
        /// As they lie in the folder `installer`.
        const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../../../installer/", $name)))),+];
    };
}

carried!(
    "build",
    "init",
    "udhcpc",
    "lib/console.sh",
    "lib/discover.sh",
    "lib/disks.sh",
    "lib/erase.sh",
    "lib/http.sh",
    "lib/install.sh",
    "lib/json.awk",
    "lib/json.sh",
    "lib/network.sh",
    "lib/order.sh",
    "lib/seed.sh",
    "lib/stream.sh",
);

/// Packages may have to come over a slow line.
const BUILD_WITHIN: Duration = Duration::from_secs(30 * 60);

/// What is made, and what each is called among the images.
pub fn made<'a>(kernel: &'a str, initrd: &'a str) -> [(&'static str, &'a str); 4] {
    [
        ("vmlinuz", kernel),
        ("initrd.gz", initrd),
        (crate::netboot_config::LOADER_BIOS, crate::netboot_config::LOADER_BIOS),
        (crate::netboot_config::LOADER_UEFI, crate::netboot_config::LOADER_UEFI),
    ]
}

/// Lays the files down in a folder.
fn lay(folder: &Path) -> std::io::Result<()> {
    for (name, text) in FILES {
        let path = folder.join(name);
        if let Some(above) = path.parent() {
            std::fs::create_dir_all(above)?;
        }
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Makes the installer and the loaders in a folder.
pub async fn build(folder: &Path, kernel: Option<&str>, format: Format) -> Result<(), CliError> {
    let own = tempfile::tempdir().map_err(|e| CliError::failed(format!("making a temporary folder: {e}")))?;
    lay(own.path()).map_err(|e| CliError::failed(format!("writing the installer's files: {e}")))?;
    let mut command = tokio::process::Command::new("bash");
    command.arg(own.path().join("build")).arg(folder).stdin(Stdio::null()).kill_on_drop(true);
    if let Some(kernel) = kernel {
        command.args(["--kernel", kernel]);
    }
    if !format.is_for_people() {
        command.stdout(Stdio::null());
    }
    let running = |e: std::io::Error| CliError::failed(format!("running the installer's build: {e}"));
    let mut child = command.spawn().map_err(running)?;
    let ended = match tokio::time::timeout(BUILD_WITHIN, child.wait()).await {
        Ok(ended) => ended.map_err(running)?,
        Err(_) => {
            return Err(CliError::failed(format!("the build did not end within {} s", BUILD_WITHIN.as_secs())));
        }
    };
    if ended.success() {
        return Ok(());
    }
    Err(CliError::failed(format!("the installer was not made: {ended}; what is above says why")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_installer_is_carried() {
        let root = testkit::golden::root().join("installer");
        let mut there = vec!["build".to_owned(), "init".to_owned(), "udhcpc".to_owned()];
        for entry in std::fs::read_dir(root.join("lib")).expect("a folder") {
            there.push(format!("lib/{}", entry.expect("an entry").file_name().to_string_lossy()));
        }
        there.sort();
        let mut carried: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        carried.sort_unstable();
        assert_eq!(carried, there);
        let folder = tempfile::tempdir().expect("a folder");
        lay(folder.path()).expect("laid down");
        let init = folder.path().join("init");
        assert_eq!(std::fs::read(&init).expect("read"), std::fs::read(root.join("init")).expect("read"));
        assert_eq!(std::fs::metadata(init).expect("there").permissions().mode() & 0o111, 0o111);
    }
}
