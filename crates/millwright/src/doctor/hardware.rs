//! What real machines are reached with: is it installed, and are the images there that are configured?

use super::report::Report;
use crate::config::Config;
use crate::open_files;
use crate::providers;
use std::ffi::OsStr;

const AREA: &str = "hardware";
const IPMITOOL: &str = "ipmitool";

pub fn check(report: &mut Report, config: &Config) {
    if !config.datacenter.enabled {
        return report.skipped(AREA, "real machines are not driven here (datacenter.enabled)");
    }
    program(report, &std::env::var_os("PATH").unwrap_or_default());
    open_files(report, open_files::most(), open_files::wanted(config));
    match providers::images(config) {
        Ok(images) if images.is_empty() => {
            report.skipped("images", "none are configured ([images.NAME]): real machines cannot be repaved");
        }
        Ok(images) => {
            let names: Vec<&str> = images.keys().map(String::as_str).collect();
            report.fine("images", names.join(", "));
        }
        Err(e) => report.failed("images", e, "a server with this image does not start; set it right"),
    }
}

/// A server takes all that it may have.
fn open_files(report: &mut Report, most: u64, wanted: u64) {
    if most < wanted {
        report.doubtful(
            "open files",
            format!("a process may have {most} here, and the calls that are configured can come to need {wanted}"),
            "raise LimitNOFILE= of the service (ulimit -Hn), or lower datacenter.redfish_calls and ssh_calls",
        );
    } else {
        report.fine("open files", format!("{wanted} can come to be needed, {most} are allowed"));
    }
}

fn program(report: &mut Report, path: &OsStr) {
    let found = std::env::split_paths(path).map(|folder| folder.join(IPMITOOL)).find(|file| file.is_file());
    match found {
        Some(file) => {
            report.fine(AREA, format!("{} speaks IPMI; Redfish, SSH and Kubernetes are built in", file.display()))
        }
        None => report.doubtful(
            AREA,
            "ipmitool is not installed: machines with ipmi:// endpoints cannot be reached",
            "apt-get install ipmitool, unless all of them have Redfish",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ImageSource;

    fn lines(look: impl FnOnce(&mut Report)) -> String {
        let mut report = Report::new();
        look(&mut report);
        report.lines(false).join("\n")
    }

    #[test]
    fn a_missing_ipmitool_is_doubtful_and_told_with_what_to_do() {
        let empty = tempfile::tempdir().expect("a folder");
        let told = lines(|report| program(report, empty.path().as_os_str()));
        assert!(told.starts_with("warn  hardware  ipmitool is not installed"), "{told}");
        assert!(told.contains("apt-get install ipmitool"), "{told}");
        std::fs::write(empty.path().join(IPMITOOL), "").expect("written");
        assert!(lines(|report| program(report, empty.path().as_os_str())).starts_with("ok"));
    }

    #[test]
    fn too_few_open_files_are_told_with_what_to_do() {
        let told = lines(|report| open_files(report, 1024, 2000));
        assert!(told.starts_with("warn") && told.contains("1024") && told.contains("LimitNOFILE"), "{told}");
        assert!(lines(|report| open_files(report, 2000, 2000)).starts_with("ok"));
    }

    #[test]
    fn images_that_would_stop_a_start_are_told() {
        let mut config = Config::default();
        let image = ImageSource { script: Some("/nowhere/install.sh".into()), media: None };
        config.images.insert("ubuntu".into(), image);
        let told = lines(|report| check(report, &config));
        assert!(told.contains("FAIL  images") && told.contains("/nowhere/install.sh"), "{told}");
        config.datacenter.enabled = false;
        assert!(lines(|report| check(report, &config)).starts_with("skip"));
    }
}
