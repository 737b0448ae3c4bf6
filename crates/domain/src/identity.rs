//! Who a machine is: what it says of itself against what our record says.

use crate::machine::MachineSpec;

/// Whether a serial number says something. Makers leave placeholders where one should be.
pub fn tells(serial_number: &str) -> bool {
    let bare: String =
        serial_number.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    // zeros, x's: whatever one key gives
    let same = bare.chars().next().is_none_or(|first| bare.chars().all(|c| c == first));
    let begun = ["tobefilled", "notspecified", "notapplicable", "notavailable", "defaultstring"];
    !same && !PLACEHOLDERS.contains(&bare.as_str()) && !begun.iter().any(|begins| bare.starts_with(begins))
}

/// What makers, and those who build machines at home, leave where a serial number should be; spelt without anything
/// but letters and digits.
const PLACEHOLDERS: &[&str] = &[
    "0123456789",
    "123456789",
    "1234567890",
    "01234567890123456789",
    "012345678",
    "12345678",
    "assettag",
    "baseboardserialnumber",
    "chassisserialnumber",
    "default",
    "empty",
    "invalid",
    "na",
    "none",
    "notset",
    "null",
    "oem",
    "sernum",
    "serial",
    "serialnumber",
    "systemserialnumber",
    "test",
    "undefined",
    "unknown",
];

/// A UUID that says something: makers leave zeros, ones and counted digits where one should be.
pub fn uuid_tells(uuid: &str) -> bool {
    let digits: String = uuid.chars().filter(char::is_ascii_hexdigit).collect::<String>().to_ascii_lowercase();
    let same = digits.chars().next().is_some_and(|first| digits.chars().all(|c| c == first));
    let counted = ["03000200040005000006000700080009", "00020003000400050006000700080009"];
    digits.len() == 32 && !same && !counted.contains(&digits.as_str())
}

/// Whether two spellings are one UUID. The first three fields of an SMBIOS UUID are stored with their bytes
/// swapped since 2.6, and kernels and controllers do not agree on whether to swap them back.
pub fn same_uuid(ours: &str, theirs: &str) -> bool {
    if ours.is_empty() || theirs.is_empty() {
        return false;
    }
    match (digits(ours), digits(theirs)) {
        (Some(ours), Some(theirs)) => ours == theirs || swapped(&ours) == theirs,
        _ => ours.eq_ignore_ascii_case(theirs),
    }
}

/// The other spelling of a UUID, in the usual form.
pub fn swapped_uuid(uuid: &str) -> Option<String> {
    Some(usual(&swapped(&digits(uuid)?)))
}

/// Both spellings of a UUID in the usual form; none of what is no UUID.
pub fn uuid_spellings(uuid: &str) -> Vec<String> {
    digits(uuid).map_or(Vec::new(), |digits| vec![usual(&digits), usual(&swapped(&digits))])
}

fn usual(d: &str) -> String {
    let part = |from: usize, to: usize| d.get(from..to).unwrap_or_default();
    format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

fn digits(uuid: &str) -> Option<String> {
    let digits: String = uuid.chars().filter(|c| *c != '-').collect::<String>().to_ascii_lowercase();
    (digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit())).then_some(digits)
}

fn swapped(digits: &str) -> String {
    let bytes: Vec<&str> = (0..16).filter_map(|i| digits.get(2 * i..2 * i + 2)).collect();
    let order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    order.into_iter().filter_map(|i| bytes.get(i).copied()).collect()
}

/// Which identifier of the spec is contradicted, if one is.
pub fn another_machine(spec: &MachineSpec, serial_number: &str, system_uuid: &str) -> Option<String> {
    let differs = |what: &str, expected: &str, found: &str| {
        format!("this is another machine: {what} {found}, not {expected}; check its endpoints")
    };
    let (serial, uuid) = (&spec.serial_number, &spec.system_uuid);
    if !serial.is_empty() && tells(serial_number) && !serial.eq_ignore_ascii_case(serial_number) {
        return Some(differs("serial number", serial, serial_number));
    }
    if !uuid.is_empty() && uuid_tells(system_uuid) && !same_uuid(uuid, system_uuid) {
        return Some(differs("system UUID", uuid, system_uuid));
    }
    None
}

/// Whether it has said a name that our record has, and no other. That nothing is contradicted is not enough before
/// a disk is overwritten.
pub fn confirms(spec: &MachineSpec, serial_number: &str, system_uuid: &str) -> bool {
    let serial = tells(serial_number) && spec.serial_number.eq_ignore_ascii_case(serial_number);
    let uuid = uuid_tells(system_uuid) && same_uuid(&spec.system_uuid, system_uuid);
    (serial || uuid) && another_machine(spec, serial_number, system_uuid).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(serial: &str, uuid: &str) -> MachineSpec {
        MachineSpec { serial_number: serial.into(), system_uuid: uuid.into(), ..MachineSpec::default() }
    }

    const UUID: &str = "4d570000-0001-4002-8000-5254004d5800";
    const SWAPPED: &str = "0000574D-0100-0240-8000-5254004D5800";

    #[test]
    fn one_uuid_in_both_byte_orders() {
        assert!(same_uuid(UUID, SWAPPED) && same_uuid(UUID, &UUID.to_uppercase()));
        assert!(!same_uuid(UUID, "") && !same_uuid("", "") && !same_uuid(UUID, "4d570000-0001-4002-8000-5254004d5801"));
        assert_eq!(another_machine(&spec("", UUID), "", SWAPPED), None);
        let both = vec![UUID.to_owned(), SWAPPED.to_lowercase()];
        assert_eq!(uuid_spellings(&UUID.to_uppercase().replace('-', "")), both);
        assert_eq!(uuid_spellings("Not Settable"), Vec::<String>::new());
    }

    #[test]
    fn junk_is_no_uuid() {
        for junk in [
            "",
            "00000000-0000-0000-0000-000000000000",
            "ffffffff-ffff-ffff-ffff-ffffffffffff",
            "03000200-0400-0500-0006-000700080009",
            "00020003-0004-0005-0006-000700080009",
            "Not Settable",
        ] {
            assert!(!uuid_tells(junk), "{junk}");
            assert_eq!(another_machine(&spec("", UUID), "", junk), None);
        }
        assert!(uuid_tells(UUID));
    }

    #[test]
    fn placeholders_are_no_names() {
        for none in [
            "",
            "0000000",
            "To be filled by O.E.M.",
            "To be filled",
            "to_be_filled_by_the_maker",
            "Default string",
            "Default",
            "N/A",
            "Not Applicable",
            "Not Available",
            "NOT SPECIFIED",
            "System Serial Number",
            "Chassis Serial Number",
            "0123456789",
            "1234567890",
            "XXXXXXXX",
            "x.x.x",
            "........",
            "Invalid",
            "OEM",
            "<null>",
        ] {
            assert!(!tells(none), "{none}");
            assert_eq!(another_machine(&spec("S1", ""), none, ""), None);
            assert!(!confirms(&spec(none, ""), none, ""), "{none}");
        }
        for name in ["CZ3-0001", "S-1", "OEM-17", "0123456780", "XX1", "TEST-1"] {
            assert!(tells(name), "{name}");
        }
    }

    #[test]
    fn nobody_is_confirmed_by_silence_or_by_another_kind_of_name() {
        assert!(confirms(&spec("S1", UUID), "s1", ""));
        assert!(confirms(&spec("", UUID), "other", UUID));
        assert!(!confirms(&spec("S1", ""), "", UUID), "the record cannot be compared with it");
        assert!(!confirms(&spec("S1", UUID), "", ""));
        assert!(!confirms(&spec("S1", UUID), "S2", UUID), "one is right and one is wrong");
    }
}
