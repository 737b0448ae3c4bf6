//! What hardware looks like on paper: the sheet of `machine inspect`, and the columns of its lists.

use super::output::{Column, Listed, Screen};
use super::sheet::Sheet;
use super::text::{dated, rfc3339};
use jiff::Timestamp;
use proto::millwright::v1::{
    Console, FirmwareVersion, HardwareDescription, HardwareEvent, HardwareNic, HardwarePart, Sensor,
};

static PARTS: [Column<HardwarePart>; 6] = [
    Column::new("NAME", |p: &HardwarePart, _| p.name.clone()),
    Column::new("KIND", |p: &HardwarePart, _| p.kind.clone()),
    Column::new("MODEL", |p: &HardwarePart, _| p.model.clone()),
    Column::new("SIZE", |p: &HardwarePart, _| size(p)),
    Column::new("SERIAL", |p: &HardwarePart, _| p.serial_number.clone()),
    Column::new("HEALTH", |p: &HardwarePart, _| p.health.clone()),
];

static NICS: [Column<HardwareNic>; 4] = [
    Column::new("NAME", |n: &HardwareNic, _| n.name.clone()),
    Column::new("MAC", |n: &HardwareNic, _| n.mac_address.clone()),
    Column::new("LINK", |n: &HardwareNic, _| match n.link_up {
        Some(true) => "up".to_owned(),
        Some(false) => "down".to_owned(),
        None => String::new(),
    }),
    Column::new("SPEED", |n: &HardwareNic, _| match n.speed_mbps {
        0 => String::new(),
        mbps if mbps.is_multiple_of(1000) => format!("{} Gbit/s", mbps / 1000),
        mbps => format!("{mbps} Mbit/s"),
    }),
];

static FIRMWARE: [Column<FirmwareVersion>; 3] = [
    Column::new("NAME", |f: &FirmwareVersion, _| f.name.clone()),
    Column::new("VERSION", |f: &FirmwareVersion, _| f.version.clone()),
    Column::new("UPDATEABLE", |f: &FirmwareVersion, _| if f.updateable { "yes" } else { "no" }.to_owned()),
];

static CONSOLES: [Column<Console>; 4] = [
    Column::new("KIND", |c: &Console, _| c.kind.clone()),
    Column::new("PROTOCOL", |c: &Console, _| c.protocol.clone()),
    Column::new("CONNECT", |c: &Console, _| c.connect.clone()),
    Column::new("NOTE", |c: &Console, _| c.note.clone()),
];

static EVENTS: [Column<HardwareEvent>; 4] = [
    Column::new("AT", |e: &HardwareEvent, _| rfc3339(e.at.as_ref())),
    Column::new("SEVERITY", |e: &HardwareEvent, _| e.severity.clone()),
    Column::new("MESSAGE", |e: &HardwareEvent, _| e.message.clone()).flex(),
    Column::new("ID", |e: &HardwareEvent, _| e.id.clone()).wide(),
];

static SENSORS: [Column<Sensor>; 3] = [
    Column::new("SENSOR", |s: &Sensor, _| s.name.clone()),
    Column::new("READING", |s: &Sensor, _| s.reading.clone()),
    Column::new("HEALTH", |s: &Sensor, _| s.health.clone()),
];

impl Listed for HardwareEvent {
    type Message = Self;
    const PLURAL: &'static str = "events";
    const PAGED: bool = false;

    fn columns() -> &'static [Column<Self>] {
        &EVENTS
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn message(&self) -> &Self {
        self
    }
}

impl Listed for Sensor {
    type Message = Self;
    const PLURAL: &'static str = "sensors";
    const PAGED: bool = false;

    fn columns() -> &'static [Column<Self>] {
        &SENSORS
    }

    fn id(&self) -> &str {
        &self.name
    }

    fn message(&self) -> &Self {
        self
    }
}

/// Cores of a processor, else bytes as they are sold.
fn size(part: &HardwarePart) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB")];
    match (part.size, part.kind.as_str()) {
        (0, _) => String::new(),
        (cores, "CPU") => format!("{cores} cores"),
        (bytes, _) => match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
            Some((unit, name)) => {
                let hundredths = bytes / (unit / 100);
                format!("{}.{:02} {name}", hundredths / 100, hundredths % 100)
            }
            None => format!("{bytes} B"),
        },
    }
}

/// Equal parts as one line: `4 × SSD Simulated NVMe, 3.84 TB`.
fn grouped(parts: &[HardwarePart]) -> Vec<String> {
    let mut groups: Vec<(usize, String)> = Vec::new();
    for part in parts {
        let mut text = [part.kind.as_str(), part.model.as_str()].join(" ").trim().to_owned();
        for more in [size(part), if part.health == "OK" { String::new() } else { part.health.clone() }] {
            if !more.is_empty() {
                text = format!("{text}, {more}");
            }
        }
        match groups.iter_mut().find(|(_, there)| *there == text) {
            Some((count, _)) => *count += 1,
            None => groups.push((1, text)),
        }
    }
    groups.into_iter().map(|(count, text)| format!("{count} × {text}")).collect()
}

fn memory(mib: u64) -> String {
    match mib {
        0 => String::new(),
        mib if mib.is_multiple_of(1024) => format!("{} GiB", mib / 1024),
        mib => format!("{mib} MiB"),
    }
}

fn boot(described: &HardwareDescription) -> String {
    match &described.boot {
        None => String::new(),
        Some(boot) if boot.persistent => format!("{} from now on", boot.mode),
        Some(boot) => format!("{} at the next boot", boot.mode),
    }
}

/// All of it; `every_part` by itself, or equal ones together.
pub fn sheet(d: &HardwareDescription, every_part: bool, screen: Screen, now: Timestamp) -> Vec<String> {
    let mut sheet = Sheet::new(screen, now);
    sheet
        .row("Machine", &d.machine_id)
        .row("Maker", &d.manufacturer)
        .row("Model", &d.model)
        .row("Serial", &d.serial_number)
        .row("System UUID", &d.system_uuid)
        .row("Host name", &d.hostname)
        .row("Power", &d.power)
        .row("Health", &d.health)
        .row("Boot", &boot(d));
    if every_part {
        sheet.row("Memory", &memory(d.memory_mib));
    } else {
        sheet
            .rows("Processors", grouped(&d.cpus))
            .row("Memory", &memory(d.memory_mib))
            .rows("Drives", grouped(&d.drives))
            .rows("Devices", grouped(&d.devices));
    }
    sheet
        .row("Offers", &d.capabilities.join(" "))
        .rows("Not read", d.gaps.iter().cloned())
        .row("Read", &format!("{} by {}", dated(d.read_at.as_ref(), now), d.source));
    if every_part {
        sheet
            .table("Processors", &PARTS, &d.cpus)
            .table("Drives", &PARTS, &d.drives)
            .table("Devices", &PARTS, &d.devices);
    }
    sheet.table("Network", &NICS, &d.nics).table("Firmware", &FIRMWARE, &d.firmware);
    sheet.lines()
}

pub fn firmware(d: &HardwareDescription, screen: Screen, now: Timestamp) -> Vec<String> {
    let mut sheet = Sheet::new(screen, now);
    sheet.row("Machine", &d.machine_id).table("Firmware", &FIRMWARE, &d.firmware);
    sheet.lines()
}

pub fn consoles(machine: &str, list: &[Console], screen: Screen, now: Timestamp) -> Vec<String> {
    let mut sheet = Sheet::new(screen, now);
    sheet.row("Machine", machine).table("Consoles", &CONSOLES, list);
    sheet.lines()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(kind: &str, model: &str, size: u64, health: &str) -> HardwarePart {
        HardwarePart { kind: kind.into(), model: model.into(), size, health: health.into(), ..Default::default() }
    }

    #[test]
    fn equal_parts_stand_together_and_a_sick_one_alone() {
        let drives = [
            part("SSD", "X1", 3_840_755_982_336, "OK"),
            part("SSD", "X1", 3_840_755_982_336, "OK"),
            part("SSD", "X1", 3_840_755_982_336, "Critical"),
        ];
        assert_eq!(grouped(&drives), ["2 × SSD X1, 3.84 TB", "1 × SSD X1, 3.84 TB, Critical"]);
        assert_eq!(grouped(&[part("CPU", "9000", 32, "OK")]), ["1 × CPU 9000, 32 cores"]);
        assert_eq!(size(&part("HDD", "", 500_107_862_016, "")), "500.10 GB");
        assert_eq!(size(&part("SSD", "", 12, "")), "12 B");
    }

    #[test]
    fn the_sheet_says_what_is_known_and_what_could_not_be_read() {
        let described = HardwareDescription {
            machine_id: "m-1".into(),
            source: "redfish".into(),
            power: "on".into(),
            memory_mib: 512 << 10,
            cpus: vec![part("CPU", "9000", 32, "OK")],
            nics: vec![HardwareNic {
                name: "NIC 1".into(),
                mac_address: "02:00:00:00:00:01".into(),
                link_up: Some(true),
                speed_mbps: 25_000,
            }],
            gaps: vec!["firmware: 503".into()],
            ..HardwareDescription::default()
        };
        let lines = sheet(&described, false, Screen::PLAIN, Timestamp::UNIX_EPOCH);
        assert_eq!(
            lines,
            [
                "Machine     m-1",
                "Power       on",
                "Processors  1 × CPU 9000, 32 cores",
                "Memory      512 GiB",
                "Not read    firmware: 503",
                "Read         by redfish",
                "",
                "Network",
                "  NAME   MAC                LINK  SPEED",
                "  NIC 1  02:00:00:00:00:01  up    25 Gbit/s",
            ]
        );
        let wide = sheet(&described, true, Screen::PLAIN, Timestamp::UNIX_EPOCH);
        assert!(wide.iter().any(|line| line == "Processors"), "{wide:?}");
    }
}
