//! The section `[netboot]`: how machines boot from the network, on which interface, and with what.

use boot::dhcp::{Architecture, BootFiles, Limits, Mode as DhcpMode, Pool, Settings};
use boot::interface::Subnet;
use boot::script::Places;
use domain::boot_decision::Setup;
use serde::Deserialize;
use service::BootSetup;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Without an interface, boot scripts, reports and images are served at the main port, and nothing else.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Netboot {
    /// DHCP and TFTP are answered on this one only.
    pub interface: Option<String>,
    /// Where machines fetch scripts and images and report; the interface's address and port 7702 if unset.
    pub listen: Option<String>,
    /// What machines are told to come to; `http://` and the address that is listened on if unset.
    pub public_url: Option<String>,
    pub mode: Mode,
    /// FIRST-LAST, of the addresses that an authoritative server gives out.
    pub range: Option<String>,
    pub lease_seconds: u64,
    pub router: Option<Ipv4Addr>,
    pub dns: Vec<Ipv4Addr>,
    /// MAC to address.
    pub reservations: BTreeMap<String, Ipv4Addr>,
    pub strangers: Strangers,
    /// A stranger's first boot looks at what it is made of.
    pub discover: bool,
    /// Nodes that nobody has approved; further strangers are not written down.
    pub discovered_max: usize,
    /// Groups whose nodes are active as soon as they are installed.
    pub promoted_groups: Vec<String>,
    /// What drives a machine that is found.
    pub provider: String,
    /// In the data folder if unset. Servers of one database must share it.
    pub images_folder: Option<PathBuf>,
    /// Of one image.
    pub image_bytes_max: u64,
    /// An installation that says nothing for so long has failed.
    pub silent_after_seconds: u64,
    /// What our own installer is called among the images.
    pub installer_kernel: String,
    pub installer_initrd: String,
    /// What its kernel is told where no workflow says so.
    pub installer_cmdline: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Another server gives out addresses.
    #[default]
    Proxy,
    /// The only DHCP server of an isolated network.
    Authoritative,
}

/// What a machine that nobody has approved does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strangers {
    /// Boots from its disk.
    #[default]
    Disk,
    /// Asks again, for half an hour.
    Wait,
}

impl Default for Netboot {
    fn default() -> Self {
        Self {
            interface: None,
            listen: None,
            public_url: None,
            mode: Mode::Proxy,
            range: None,
            lease_seconds: 3600,
            router: None,
            dns: Vec::new(),
            reservations: BTreeMap::new(),
            strangers: Strangers::Disk,
            discover: true,
            discovered_max: 1000,
            promoted_groups: Vec::new(),
            provider: crate::providers::DATACENTER.to_owned(),
            images_folder: None,
            image_bytes_max: 64 << 30,
            silent_after_seconds: domain::boot_node::SILENT_AFTER.as_secs(),
            installer_kernel: "installer-vmlinuz".to_owned(),
            installer_initrd: "installer-initrd".to_owned(),
            installer_cmdline: "console=ttyS0,115200 console=tty0".to_owned(),
        }
    }
}

/// Where machines come to where nothing else is said.
const PORT: u16 = 7702;
const SILENT_SECONDS: std::ops::RangeInclusive<u64> = 60..=24 * 3600;
const DISCOVERED_MAX: usize = 100_000;
/// The loaders that firmware is told to load, by their names among the images.
pub const LOADER_BIOS: &str = "undionly.kpxe";
pub const LOADER_UEFI: &str = "ipxe.efi";
pub const LOADER_ARM64: &str = "ipxe-arm64.efi";

impl Netboot {
    pub fn check(&self) -> Result<(), String> {
        if !SILENT_SECONDS.contains(&self.silent_after_seconds) {
            let (least, most) = (SILENT_SECONDS.start(), SILENT_SECONDS.end());
            return Err(format!(
                "netboot.silent_after_seconds: {} is outside {least} to {most}",
                self.silent_after_seconds
            ));
        }
        if self.discovered_max > DISCOVERED_MAX {
            return Err(format!("netboot.discovered_max: {} is above {DISCOVERED_MAX}", self.discovered_max));
        }
        if self.image_bytes_max == 0 {
            return Err("netboot.image_bytes_max: must be at least 1".to_owned());
        }
        for (key, name) in [("installer_kernel", &self.installer_kernel), ("installer_initrd", &self.installer_initrd)]
        {
            domain::id::check_name(key, name).map_err(|e| format!("netboot.{key}: {}", e.message))?;
        }
        let cmdline = &self.installer_cmdline;
        if cmdline.len() > 1024 || cmdline.chars().any(|c| !matches!(c, ' '..='~') || "$|&#".contains(c)) {
            return Err("netboot.installer_cmdline: is not a line of plain words, without any of $|&#".to_owned());
        }
        for group in &self.promoted_groups {
            domain::id::check_name("promoted_groups", group)
                .map_err(|e| format!("netboot.promoted_groups: {}", e.message))?;
        }
        if let Some(url) = &self.public_url {
            let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
            let host = !rest.is_empty() && !rest.starts_with('/') && !rest.contains(['@', '?', '#', ' ']);
            if !matches!(scheme, "http" | "https") || !host || url.ends_with('/') {
                return Err(format!(
                    "netboot.public_url: {url:?} is not a URL such as http://10.77.0.1:{PORT}, without a slash at its end"
                ));
            }
        }
        if let Some(range) = &self.range {
            range_of(range)?;
        } else if self.mode == Mode::Authoritative {
            return Err(
                "netboot.range: is missing; an authoritative server needs addresses to give out, such as \"10.77.0.100-10.77.0.200\""
                    .to_owned(),
            );
        }
        for mac in self.reservations.keys() {
            mac.parse::<boot::Mac>().map_err(|e| format!("netboot.reservations: {e}"))?;
        }
        Ok(())
    }

    pub fn images_folder(&self, data: &Path) -> PathBuf {
        self.images_folder.clone().unwrap_or_else(|| data.join("images"))
    }

    /// Where to listen, given the interface's own address.
    pub fn listen_at(&self, own: Ipv4Addr) -> String {
        self.listen.clone().unwrap_or_else(|| format!("{own}:{PORT}"))
    }

    /// What machines are told, by where somebody listens for them.
    pub fn public_url(&self, scheme: &str, listens: SocketAddr) -> String {
        self.public_url.clone().unwrap_or_else(|| format!("{scheme}://{listens}"))
    }

    pub fn places(&self, public_url: String) -> Places {
        Places {
            public_url,
            installer_cmdline: self.installer_cmdline.trim().to_owned(),
            installer_kernel: self.installer_kernel.clone(),
            installer_initrd: self.installer_initrd.clone(),
        }
    }

    pub fn setup(&self) -> BootSetup {
        BootSetup {
            serves: Setup { can_discover: self.discover, strangers_wait: self.strangers == Strangers::Wait },
            promoted_groups: self.promoted_groups.iter().cloned().collect(),
            discovered_max: self.discovered_max,
            provider: self.provider.clone(),
        }
    }

    pub fn silent_after(&self) -> Duration {
        Duration::from_secs(self.silent_after_seconds)
    }

    /// What DHCP says on a network.
    pub fn dhcp(&self, subnet: Subnet, public_url: &str) -> Result<Settings, String> {
        let by_tftp = [
            (Architecture::Bios, LOADER_BIOS),
            (Architecture::UefiX64, LOADER_UEFI),
            (Architecture::UefiArm64, LOADER_ARM64),
        ];
        let by_http = [(Architecture::UefiX64, LOADER_UEFI), (Architecture::UefiArm64, LOADER_ARM64)];
        let files = BootFiles {
            script: format!("{public_url}/boot.ipxe"),
            by_tftp: by_tftp.into_iter().map(|(of, name)| (of, name.to_owned())).collect(),
            by_http: by_http.into_iter().map(|(of, name)| (of, format!("{public_url}/images/{name}"))).collect(),
        };
        let mode = match self.mode {
            Mode::Proxy => DhcpMode::Proxy,
            Mode::Authoritative => {
                let (first, last) = range_of(self.range.as_deref().unwrap_or_default())?;
                let reserved = self.reservations.iter().map(|(mac, address)| {
                    Ok((mac.parse::<boot::Mac>().map_err(|e| format!("netboot.reservations: {e}"))?, *address))
                });
                DhcpMode::Authoritative(vec![Pool {
                    subnet,
                    first,
                    last,
                    lease: Duration::from_secs(self.lease_seconds),
                    router: self.router,
                    dns: self.dns.clone(),
                    reserved: reserved.collect::<Result<_, String>>()?,
                }])
            }
        };
        let settings = Settings { files, mode, limits: Limits::default() };
        settings.check().map_err(|e| format!("netboot: {e}"))?;
        Ok(settings)
    }
}

fn range_of(range: &str) -> Result<(Ipv4Addr, Ipv4Addr), String> {
    let wrong = || format!("netboot.range: {range:?} is not a range such as \"10.77.0.100-10.77.0.200\"");
    let (first, last) = range.split_once('-').ok_or_else(wrong)?;
    let address = |text: &str| text.trim().parse().map_err(|_| wrong());
    Ok((address(first)?, address(last)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnet() -> Subnet {
        Subnet::around(Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(255, 255, 255, 0)).expect("a mask")
    }

    fn authoritative(range: &str) -> Netboot {
        Netboot { mode: Mode::Authoritative, range: Some(range.to_owned()), ..Netboot::default() }
    }

    #[test]
    fn mistakes_are_named_by_their_key() {
        let with = |change: fn(&mut Netboot)| {
            let mut netboot = Netboot::default();
            change(&mut netboot);
            netboot.check().expect_err("wrong")
        };
        for (error, key) in [
            (with(|n| n.silent_after_seconds = 5), "silent_after_seconds"),
            (with(|n| n.image_bytes_max = 0), "image_bytes_max"),
            (with(|n| n.installer_kernel = "a/b".to_owned()), "installer_kernel"),
            (with(|n| n.installer_cmdline = "a || reboot".to_owned()), "installer_cmdline"),
            (with(|n| n.public_url = Some("10.77.0.1".to_owned())), "public_url"),
            (with(|n| n.public_url = Some("http://h/".to_owned())), "public_url"),
            (with(|n| n.range = Some("10.77.0.100".to_owned())), "range"),
            (with(|n| n.mode = Mode::Authoritative), "range"),
            (with(|n| n.reservations = [("zz".to_owned(), Ipv4Addr::LOCALHOST)].into()), "reservations"),
        ] {
            assert!(error.starts_with(&format!("netboot.{key}")), "{error}");
        }
        assert_eq!(Netboot::default().check(), Ok(()));
    }

    #[test]
    fn a_range_must_lie_in_the_interfaces_network() {
        let fits = authoritative("10.77.0.100 - 10.77.0.200");
        assert!(fits.dhcp(subnet(), "http://10.77.0.1:7702").is_ok());
        let error = authoritative("10.78.0.100-10.78.0.200").dhcp(subnet(), "http://h").expect_err("elsewhere");
        assert!(error.contains("10.78.0.100") && error.contains("10.77.0.0/24"), "{error}");
    }

    #[test]
    fn what_machines_are_told_follows_from_where_we_listen() {
        let netboot = Netboot::default();
        assert_eq!(netboot.listen_at(Ipv4Addr::new(10, 77, 0, 1)), "10.77.0.1:7702");
        let listens = SocketAddr::from(([10, 77, 0, 1], 7702));
        assert_eq!(netboot.public_url("http", listens), "http://10.77.0.1:7702");
        let named = Netboot { public_url: Some("http://boot.example".to_owned()), ..netboot };
        assert_eq!(named.public_url("http", listens), "http://boot.example");
        let settings = named.dhcp(subnet(), "http://boot.example").expect("settings");
        assert_eq!(settings.files.script, "http://boot.example/boot.ipxe");
    }
}
