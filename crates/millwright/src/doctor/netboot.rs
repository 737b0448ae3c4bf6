//! Network boot: is the interface there, can its ports be had, where are machines told to come, is there an installer?

use super::report::Report;
use crate::config::Config;
use crate::netboot_config::{LOADER_BIOS, LOADER_UEFI, Netboot};
use boot::dhcp::{PXE_PORT, SERVER_PORT};
use boot::interface::Interface;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

const AREA: &str = "netboot";

/// `held`: a server runs on this data folder, and has the ports.
pub fn check(report: &mut Report, config: &Config, held: bool, images: Option<&[(String, String)]>) {
    let netboot = &config.netboot;
    match &netboot.interface {
        None => {
            let listens = config.server.listen.parse::<SocketAddr>();
            let nowhere = netboot.public_url.is_none() && listens.is_ok_and(|at| at.ip().is_unspecified());
            let but = if nowhere { ", and machines need netboot.public_url to come there" } else { "" };
            let what = "no interface is set: boot scripts and images are at the main port only";
            report.skipped(AREA, format!("{what}{but}"));
        }
        Some(name) => match Interface::look(name) {
            Ok(interface) => on(report, netboot, &interface, held),
            Err(e) => report.failed(AREA, e.to_string(), "set netboot.interface right, or bring the interface up"),
        },
    }
    if let Some(images) = images {
        installer(report, netboot, images);
        bytes(report, config, images);
    }
}

/// Names without bytes, as a restored database has them on another disk.
fn bytes(report: &mut Report, config: &Config, images: &[(String, String)]) {
    let folder = config.netboot.images_folder(&config.server.data).join("sha256");
    let missing: Vec<&str> =
        images.iter().filter(|(_, digest)| !folder.join(digest).is_file()).map(|(name, _)| name.as_str()).collect();
    if !missing.is_empty() {
        let what = format!("{} has no bytes of: {}", folder.display(), missing.join(", "));
        report.doubtful("boot images", what, "millwright image add FILE --name NAME puts them back");
    } else if !images.is_empty() {
        report.fine("boot images", format!("{} in {}", images.len(), folder.display()));
    }
}

fn on(report: &mut Report, netboot: &Netboot, interface: &Interface, held: bool) {
    let (name, address) = (interface.name(), interface.address());
    let listen = netboot.listen_at(address);
    let url = match listen.parse::<SocketAddr>() {
        Ok(listens) if listens.ip().is_unspecified() && netboot.public_url.is_none() => {
            let what = format!("machines cannot come to {listens}");
            return report.failed(AREA, what, "set netboot.public_url to an address of this machine on their network");
        }
        Ok(listens) => netboot.public_url("http", listens),
        Err(_) => netboot.public_url.clone().unwrap_or_else(|| format!("http://{listen}")),
    };
    match netboot.dhcp(interface.subnet(), &url) {
        Ok(_) => report.fine(AREA, format!("{name} has {address} in {}; machines come to {url}", interface.subnet())),
        Err(e) => return report.failed(AREA, e, "set it right in [netboot]"),
    }
    if let Some(host) = host_of(&url)
        && !interface.subnet().contains(host)
        && netboot.router.is_none()
    {
        let what = format!("{url} is not in the network of {name}, and no router is given to machines");
        report.doubtful(AREA, what, "set netboot.public_url to an address there, or netboot.router");
    }
    if held {
        return report.skipped("netboot ports", "a server runs and has them");
    }
    let mut taken = Vec::new();
    for port in [SERVER_PORT, PXE_PORT, boot::tftp::PORT] {
        if let Err(e) = interface.hear_all(port) {
            taken.push(e.to_string());
        }
    }
    if let Err(e) = TcpListener::bind(&listen) {
        taken.push(format!("listening on {listen}: {e}"));
    }
    match taken.first() {
        None => report.fine("netboot ports", format!("UDP 67, 69 and 4011 on {name} and TCP {listen} can be had")),
        Some(first) => report.failed("netboot ports", first.clone(), "a server with --netboot does not start so"),
    }
}

/// The host of a URL, where it is an address.
fn host_of(url: &str) -> Option<Ipv4Addr> {
    let rest = url.split_once("://")?.1;
    rest.split([':', '/']).next()?.parse().ok()
}

fn installer(report: &mut Report, netboot: &Netboot, there: &[(String, String)]) {
    let wanted = [netboot.installer_kernel.as_str(), &netboot.installer_initrd, LOADER_BIOS, LOADER_UEFI];
    let missing: Vec<&str> = wanted.into_iter().filter(|name| !there.iter().any(|(image, _)| image == name)).collect();
    if missing.is_empty() {
        report.fine("installer", wanted.join(", "));
    } else if netboot.interface.is_none() {
        report.skipped("installer", format!("not among the images: {}", missing.join(", ")));
    } else {
        let what = format!("not among the images: {}", missing.join(", "));
        report.doubtful("installer", what, "millwright image build-installer makes and adds them");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(look: impl FnOnce(&mut Report)) -> String {
        let mut report = Report::new();
        look(&mut report);
        report.lines(false).join("\n")
    }

    #[test]
    fn an_interface_that_is_not_there_is_named_with_those_that_are() {
        let mut config = Config::default();
        assert!(lines(|r| check(r, &config, false, None)).starts_with("skip  netboot"));
        config.netboot.interface = Some("nosuchif0".to_owned());
        let told = lines(|r| check(r, &config, false, None));
        assert!(told.starts_with("FAIL  netboot") && told.contains("nosuchif0") && told.contains("lo"), "{told}");
    }

    #[test]
    fn an_installer_that_is_not_there_is_doubtful_where_it_is_needed() {
        let mut netboot = Netboot::default();
        assert!(lines(|r| installer(r, &netboot, &[])).starts_with("skip"));
        netboot.interface = Some("eno2".to_owned());
        let told = lines(|r| installer(r, &netboot, &[("snponly.efi".to_owned(), String::new())]));
        assert!(
            told.starts_with("warn") && told.contains("installer-initrd") && !told.contains("snponly.efi"),
            "{told}"
        );
        let all = ["installer-vmlinuz", "installer-initrd", "undionly.kpxe", "snponly.efi"]
            .map(|name| (name.to_owned(), String::new()));
        assert!(lines(|r| installer(r, &netboot, &all)).starts_with("ok"));
    }

    #[test]
    fn a_host_is_read_out_of_a_url_where_it_is_an_address() {
        assert_eq!(host_of("http://10.77.0.1:7702"), Some(Ipv4Addr::new(10, 77, 0, 1)));
        assert_eq!(host_of("http://boot.example/x"), None);
    }
}
