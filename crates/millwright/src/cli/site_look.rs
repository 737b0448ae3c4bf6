//! Sites and their machines, as people read them.

use super::output::{Column, Listed, Screen, painted};
use super::sheet::Sheet;
use super::text::{clean, dated, now, relative, rfc3339};
use proto::millwright::v1::{Site, SiteCheck, SiteCheckPoint, SiteMachine, SiteProfile, SiteSight};

fn sight(site: &Site) -> SiteSight {
    site.sight.clone().unwrap_or_default()
}

static COLUMNS: [Column<Site>; 8] = [
    Column::new("SITE", |s: &Site, _| s.name.clone()).flex(),
    Column::new("SEEN", |s: &Site, _| sight(s).state),
    Column::new("MACHINES", |s: &Site, _| sight(s).machines.to_string()),
    Column::new("NODES", |s: &Site, _| sight(s).nodes.to_string()),
    Column::new("PROFILES", |s: &Site, _| s.profiles.len().to_string()),
    Column::new("LISTED", |s: &Site, now| relative(sight(s).last_list_at.as_ref(), now)).narrow(),
    Column::new("LISTED", |s: &Site, _| rfc3339(sight(s).last_list_at.as_ref())).wide(),
    Column::new("URL", |s: &Site, _| s.url.clone()).flex(),
];

impl Listed for Site {
    type Message = Self;
    const PLURAL: &'static str = "sites";
    const PAGED: bool = true;

    fn columns() -> &'static [Column<Self>] {
        &COLUMNS
    }

    fn id(&self) -> &str {
        &self.name
    }

    fn message(&self) -> &Self {
        self
    }
}

static PROFILES: [Column<SiteProfile>; 7] = [
    Column::new("PROFILE", |p: &SiteProfile, _| p.name.clone()),
    Column::new("ARCHITECTURE", |p: &SiteProfile, _| p.architecture.clone()),
    Column::new("SERIES", |p: &SiteProfile, _| p.series.clone()),
    Column::new("LAYOUT", |p: &SiteProfile, _| p.layout.clone()),
    Column::new("POOL", |p: &SiteProfile, _| p.pool.clone()),
    Column::new("ZONE", |p: &SiteProfile, _| p.zone.clone()),
    Column::new("TAGS", |p: &SiteProfile, _| p.tags.join(",")),
];

pub(super) fn sheet(site: &Site, screen: Screen) -> Vec<String> {
    let (now, seen, policy) = (now(), sight(site), site.policy.clone().unwrap_or_default());
    let number = |n: Option<u32>| n.map(|n| n.to_string()).unwrap_or_default();
    let yes = |on: Option<bool>| on.map_or("", |on| if on { "yes" } else { "no" });
    let certificates = if site.ca_pem.is_empty() { "what the system trusts" } else { "its own authority" };
    let mut sheet = Sheet::new(screen, now);
    sheet
        .row("Site", &site.name)
        .row("Url", &site.url)
        .row("Trusts", certificates)
        .row("Credential", &site.credentials_ref)
        .row("Version", &site.version.to_string())
        .row("Changed", &dated(site.updated_at.as_ref(), now))
        .gap()
        .state("Seen", &seen.state)
        .row("Because", &seen.unreachable_because)
        .row("Since", &seen.unreachable_since.map(|at| dated(Some(&at), now)).unwrap_or_default())
        .row("Polled", &dated(seen.last_poll_at.as_ref(), now))
        .row("Listed", &dated(seen.last_list_at.as_ref(), now))
        .row("Machines", &seen.machines.to_string())
        .row("Nodes", &seen.nodes.to_string())
        .gap()
        .row("Poll", &format!("every {} s, all every {} s", number(policy.poll_seconds), number(policy.list_seconds)))
        .row("Erase", &policy.erase)
        .row("Keep record", yes(policy.keep_record))
        .row("Hardware sync", yes(policy.hardware_sync))
        .table("Profiles", &PROFILES, &site.profiles);
    sheet.lines()
}

static POINTS: [Column<SiteCheckPoint>; 4] = [
    Column::new("", |p: &SiteCheckPoint, _| p.verdict.clone()),
    Column::new("WHAT", |p: &SiteCheckPoint, _| p.what.clone()),
    Column::new("FOUND", |p: &SiteCheckPoint, _| p.found.clone()),
    Column::new("WHAT TO DO", |p: &SiteCheckPoint, _| p.todo.clone()),
];

pub(super) fn check_lines(check: &SiteCheck, screen: Screen) -> Vec<String> {
    let mut sheet = Sheet::new(screen, now());
    let word = if check.ok { "ok" } else { "failed" };
    sheet
        .row("Site", &check.name)
        .row("MAAS", &check.maas_version)
        .row("Check", &painted(word, word, screen.colour))
        .table("Points", &POINTS, &check.points);
    sheet.lines()
}

static MACHINES: [Column<SiteMachine>; 11] = [
    Column::new("SYSTEM ID", |m: &SiteMachine, _| m.system_id.clone()),
    Column::new("HOSTNAME", |m: &SiteMachine, _| m.hostname.clone()).flex(),
    Column::new("STATUS", |m: &SiteMachine, _| status(m)),
    Column::new("POWER", |m: &SiteMachine, _| m.power_state.clone()),
    Column::new("NODE", |m: &SiteMachine, _| m.node_name.clone()),
    Column::new("SERIES", |m: &SiteMachine, _| m.series.clone()),
    Column::new("ADDRESS", |m: &SiteMachine, _| m.management_ip.clone()),
    Column::new("CHANGED", |m: &SiteMachine, now| relative(m.changed_at.as_ref(), now)).narrow(),
    Column::new("CHANGED", |m: &SiteMachine, _| rfc3339(m.changed_at.as_ref())).wide(),
    Column::new("SERIAL", |m: &SiteMachine, _| m.serial.clone()).wide(),
    Column::new("MACS", |m: &SiteMachine, _| m.mac_addresses.join(",")).wide(),
];

/// A machine that is gone has no status any more.
fn status(machine: &SiteMachine) -> String {
    match machine.absent_since {
        Some(_) => "(gone)".to_owned(),
        None => machine.status_name.clone(),
    }
}

impl Listed for SiteMachine {
    type Message = Self;
    const PLURAL: &'static str = "machines";
    const PAGED: bool = true;

    fn columns() -> &'static [Column<Self>] {
        &MACHINES
    }

    fn id(&self) -> &str {
        &self.system_id
    }

    fn message(&self) -> &Self {
        self
    }
}

pub(super) fn machine_sheet(m: &SiteMachine, screen: Screen) -> Vec<String> {
    let now = now();
    let mut sheet = Sheet::new(screen, now);
    let node = if m.node_id.is_empty() { String::new() } else { format!("{} ({})", m.node_name, m.node_id) };
    sheet
        .row("Machine", &format!("{}/{}", m.site, m.system_id))
        .row("Hostname", &m.hostname)
        .row("Node", &node)
        .gap()
        .row("Gone", &m.absent_since.map(|at| format!("since {}", dated(Some(&at), now))).unwrap_or_default())
        .row("Status", &format!("{} ({}), {}", m.status_name, m.status, m.class))
        .row("Since", &dated(m.status_since.as_ref(), now))
        .row("Power", &m.power_state)
        .row("Owner", &m.owner)
        .row("System", clean(&format!("{} {}", m.osystem, m.series)).trim())
        .row("Netboot", if m.netboot { "yes" } else { "no" })
        .row("Last sync", &m.last_sync)
        .gap()
        .row("Management", &m.management_ip)
        .rows("Addresses", m.addresses.clone())
        .rows("Macs", m.mac_addresses.clone())
        .row("Boot mac", &m.boot_mac)
        .row("Serial", &m.serial)
        .row("UUID", &m.hardware_uuid)
        .row("Architecture", &m.architecture)
        .row("Pool", &m.pool)
        .row("Zone", &m.zone)
        .row("Tags", &m.tags.join(", "))
        .gap()
        .row("First seen", &dated(m.first_seen_at.as_ref(), now))
        .row("Changed", &dated(m.changed_at.as_ref(), now))
        .row("Confirmed", &dated(m.confirmed_at.as_ref(), now));
    sheet.lines()
}
