//! What ipmitool prints, understood: strict in what counts as an answer, lenient about what stands around it.

use domain::hardware::{EventLogEntry, Firmware, Health, Sensor};
use domain::identity::tells;
use domain::time::Timestamp;
use provider::PowerState;

/// The value behind `key :`, trimmed; `None` where the key is missing or has nothing behind it.
fn value<'a>(out: &'a str, key: &str) -> Option<&'a str> {
    let behind = |line: &'a str| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == key).then(|| value.trim()).filter(|value| !value.is_empty())
    };
    out.lines().find_map(behind)
}

/// Out of `chassis status`.
pub(crate) fn power(out: &str) -> Option<PowerState> {
    match value(out, "System Power")? {
        "on" => Some(PowerState::On),
        "off" => Some(PowerState::Off),
        _ => None,
    }
}

/// Out of `chassis status`: its faults.
pub(crate) fn health(out: &str) -> Option<Health> {
    value(out, "System Power")?;
    let faults = ["Power Overload", "Main Power Fault", "Power Control Fault", "Drive Fault", "Cooling/Fan Fault"];
    let faulty = faults.iter().any(|fault| value(out, fault) == Some("true"));
    Some(if faulty { Health::Critical } else { Health::Ok })
}

/// Out of `mc guid`, in lower case; empty where there is none, or one that says nothing.
///
/// The bytes of a GUID stand in one order in IPMI and in another in SMBIOS, and controllers send either. ipmitool
/// finds out which by the version in it and prints the text accordingly; that text is taken as it is.
pub(crate) fn uuid(out: &str) -> String {
    let text = value(out, "System GUID").unwrap_or_default().to_ascii_lowercase();
    let groups: Vec<&str> = text.split('-').collect();
    let shape = groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]);
    let digits = || groups.iter().flat_map(|group| group.chars());
    let says_something = !digits().all(|c| c == '0') && !digits().all(|c| c == 'f');
    if shape && digits().all(|c| c.is_ascii_hexdigit()) && says_something { text } else { String::new() }
}

/// Out of `fru print 0`: the first of these that is filled in with more than a maker's placeholder.
fn fru(out: &str, keys: &[&str]) -> String {
    let found = keys.iter().find_map(|key| value(out, key).filter(|text| tells(text)));
    found.unwrap_or_default().to_owned()
}

pub(crate) fn serial_number(out: &str) -> String {
    fru(out, &["Product Serial", "Chassis Serial"])
}

pub(crate) fn manufacturer(out: &str) -> String {
    fru(out, &["Product Manufacturer", "Board Mfg"])
}

pub(crate) fn model(out: &str) -> String {
    fru(out, &["Product Name", "Board Product"])
}

/// Out of `mc info`.
pub(crate) fn firmware(out: &str) -> Option<Firmware> {
    let version = value(out, "Firmware Revision")?.to_owned();
    Some(Firmware { name: "BMC".to_owned(), version, updateable: false })
}

/// Out of `sdr elist`: `name | number | status | entity | reading`.
pub(crate) fn sensors(out: &str) -> Vec<Sensor> {
    let sensor = |line: &str| {
        // from the right: a name may hold anything
        let mut fields = line.rsplitn(5, '|').map(str::trim);
        let reading = fields.next()?.to_owned();
        let (_entity, status, _number, name) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let health = match status {
            "ok" => Some(Health::Ok),
            "nc" | "lnc" | "unc" => Some(Health::Warning),
            "cr" | "lcr" | "ucr" | "nr" | "lnr" | "unr" => Some(Health::Critical),
            _ => None,
        };
        Some(Sensor { name: name.to_owned(), reading, health }).filter(|sensor| !sensor.name.is_empty())
    };
    out.lines().filter_map(sensor).collect()
}

/// Out of `sel elist`, newest first: `id | date | time | sensor | event | direction`.
pub(crate) fn events(out: &str) -> Vec<EventLogEntry> {
    let entry = |line: &str| {
        let mut fields = line.splitn(4, '|').map(str::trim);
        let (id, date, time, rest) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        u32::from_str_radix(id, 16).ok()?;
        let parts: Vec<&str> = rest.split('|').map(str::trim).filter(|part| !part.is_empty()).collect();
        let message = parts.join(", ");
        Some(EventLogEntry { id: id.to_owned(), at: moment(date, time), severity: severity(&message), message })
    };
    let mut all: Vec<EventLogEntry> = out.lines().filter_map(entry).collect();
    all.reverse();
    all
}

/// IPMI's log has no severities; those of thresholds are in their words, the rest is left empty.
fn severity(message: &str) -> String {
    let lower = message.to_ascii_lowercase();
    let word = if lower.contains("deasserted") {
        "OK"
    } else if lower.contains("non-critical") {
        "Warning"
    } else if ["upper critical", "lower critical", "non-recoverable"].iter().any(|word| lower.contains(word)) {
        "Critical"
    } else {
        ""
    };
    word.to_owned()
}

/// `05/10/26` or `05/10/2026`, and `04:56:16` with or without a zone, which is UTC by our asking. What stands there
/// before the controller's clock was set (`Pre-Init`) is no time.
fn moment(date: &str, time: &str) -> Option<Timestamp> {
    let numbers = |text: &str, between: char| -> Option<[i64; 3]> {
        let all: Option<Vec<i64>> = text.split(between).map(|part| part.parse::<u16>().ok().map(i64::from)).collect();
        all?.try_into().ok()
    };
    let [month, day, year] = numbers(date, '/')?;
    let [hour, minute, second] = numbers(time.split_whitespace().next()?, ':')?;
    let year = if year < 100 { 2000 + year } else { year };
    let sane = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 61;
    if !sane || !(1970..3000).contains(&year) {
        return None;
    }
    // days since 1970, counting in years that begin in March so that the leap day comes last
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let day_of_year = (153 * m + 2) / 5 + day - 1;
    let days = 365 * y + y / 4 - y / 100 + y / 400 + day_of_year - 719_468;
    Some(Timestamp::from_micros((days * 86_400 + hour * 3600 + minute * 60 + second) * 1_000_000))
}

/// Out of `user list` as CSV: the number of the account with this name.
pub(crate) fn user_id(out: &str, username: &str) -> Option<u8> {
    let of = |line: &str| {
        let (id, rest) = line.split_once(',')?;
        // a name may hold a comma
        rest.strip_prefix(username)?.starts_with(',').then(|| id.trim().parse().ok())?
    };
    out.lines().find_map(of).filter(|id| (1..64).contains(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from ipmitool 1.8.19 against ipmi_sim 2.0.33.
    const STATUS: &str = "System GUID   : 49710000-6745-23A1-efcd-ab89674523a1
GUID Encoding : IPMI
System Power         : off
Power Overload       : false
Main Power Fault     : false
Last Power Event     :\u{20}
Drive Fault          : false
Cooling/Fan Fault    : false
Boot parameter data: 0008000000
";

    #[test]
    fn a_status_is_read() {
        assert_eq!((power(STATUS), health(STATUS)), (Some(PowerState::Off), Some(Health::Ok)));
        assert_eq!(uuid(STATUS), "49710000-6745-23a1-efcd-ab89674523a1");
        let faulty = STATUS.replace("Drive Fault          : false", "Drive Fault          : true");
        assert_eq!(health(&faulty), Some(Health::Critical));
        assert_eq!((power("System Power : maybe"), power(""), health("")), (None, None, None));
        for nothing in ["00000000-0000-0000-0000-000000000000", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", "12", "é"] {
            assert_eq!(uuid(&format!("System GUID  : {nothing}")), "");
        }
    }

    #[test]
    fn a_placeholder_is_no_serial_number() {
        assert_eq!(serial_number(" Chassis Serial        : CH-1\n Product Serial        : SN-9\n"), "SN-9");
        assert_eq!(
            serial_number(" Chassis Serial        : CH-1\n Product Serial        : To be filled by O.E.M.\n"),
            "CH-1"
        );
        assert_eq!(serial_number(" Product Serial        : 0000000000\n Board Serial : B\n"), "");
        assert_eq!(model(" Product Name          : R7: the second\n"), "R7: the second");
    }

    #[test]
    fn sensors_are_read() {
        let out = "CPU Temp         | 01h | ok  |  3.1 | 35 degrees C
Fan|1            | 30h | ucr |  7.1 | 900 RPM
PS2              | 31h | ns  | 10.2 | No Reading
not a sensor
";
        let all = sensors(out);
        let named: Vec<_> = all.iter().map(|s| (s.name.as_str(), s.reading.as_str(), s.health)).collect();
        assert_eq!(
            named,
            [
                ("CPU Temp", "35 degrees C", Some(Health::Ok)),
                ("Fan|1", "900 RPM", Some(Health::Critical)),
                ("PS2", "No Reading", None),
            ]
        );
    }

    #[test]
    fn events_are_read_newest_first() {
        let out = "   1 |  Pre-Init  |0000034688| Temperature #0x30 | Upper Critical going high | Asserted
   4 | 05/10/26 | 04:56:16 UTC | Temperature #0x30 | Upper Non-critical going high | Asserted
   a | 02/29/2024 | 00:00:00 | Power Unit | Power off/down
SEL has no entries
";
        let all = events(out);
        assert_eq!(all.iter().map(|e| e.id.as_str()).collect::<Vec<_>>(), ["a", "4", "1"]);
        let times: Vec<_> = all.iter().map(|e| e.at.map(|at| at.to_string())).collect();
        assert_eq!(times, [Some("2024-02-29T00:00:00.000Z".into()), Some("2026-05-10T04:56:16.000Z".into()), None]);
        assert_eq!(all.iter().map(|e| e.severity.as_str()).collect::<Vec<_>>(), ["", "Warning", "Critical"]);
        assert_eq!(all[2].message, "Temperature #0x30, Upper Critical going high, Asserted");
    }

    #[test]
    fn an_account_is_found_by_its_whole_name() {
        let out = "1,,true,false,false,USER\n2,admin,true,false,true,ADMINISTRATOR\n3,a,b,true,false,true,OPERATOR\n";
        assert_eq!((user_id(out, "admin"), user_id(out, "adm"), user_id(out, "a,b")), (Some(2), None, Some(3)));
        assert_eq!(user_id("70,x,true\nx,y,true\n", "x"), None);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_a_reader_panic(out in "(System (Power|GUID)|Boot parameter data|Product Serial|[-:|,/ 0-9a-fé\n]{0,6}|\\PC){0,40}") {
            std::hint::black_box((power(&out), health(&out), uuid(&out), serial_number(&out), firmware(&out)));
            std::hint::black_box((sensors(&out), events(&out), user_id(&out, "é"), crate::boot::Flags::read(&out)));
        }
    }
}
