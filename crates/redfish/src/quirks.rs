//! What some controllers do otherwise than the schema says, each by its name, and whose it is. Everything that is
//! lenient towards all of them is in `json`; what is here would be wrong towards the others.

use crate::json;
use serde_json::Value;

/// Known by what the service root or the system say of themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    /// sushy-emulator knows one boot device and no override: `Once` is taken and reads back as `Continuous`, nothing
    /// can be disabled, and the disk is what it has when nothing else was set. So an override is reported as
    /// persistent (whoever set it must clear it), and to clear it is to set the disk.
    pub boot_device_only: bool,
    /// sushy-emulator boots by PXE when asked for UEFI HTTP without a URL, and says so when read.
    pub http_reads_as_pxe: bool,
    /// Supermicro's drive for virtual media is a USB one: `Cd` is accepted and the machine boots from its disk.
    pub cd_is_usb_cd: bool,
    /// Supermicro drops an override that does not say for which boot mode it is.
    pub wants_boot_mode: bool,
}

impl Quirks {
    pub fn of(root: &Value, system: &Value) -> Self {
        let mut quirks = Self::default();
        let maker = json::text(system, "/Manufacturer").to_ascii_lowercase();
        let service = json::text(root, "/Id");
        if service == "RedvirtService" || maker == "sushy emulator" {
            (quirks.boot_device_only, quirks.http_reads_as_pxe) = (true, true);
        }
        let vendor = json::text(root, "/Vendor").to_ascii_lowercase();
        if maker.contains("supermicro") || vendor.contains("supermicro") {
            (quirks.cd_is_usb_cd, quirks.wants_boot_mode) = (true, true);
        }
        quirks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_is_for_those_who_have_it() {
        let none = Quirks::of(&json!({"Vendor": "Contoso"}), &json!({"Manufacturer": "Contoso"}));
        assert_eq!(none, Quirks::default());
        let emulator = Quirks::of(&json!({"Id": "RedvirtService"}), &json!({}));
        assert!(emulator.boot_device_only && emulator.http_reads_as_pxe && !emulator.cd_is_usb_cd);
        let usb = Quirks::of(&json!({}), &json!({"Manufacturer": "Supermicro"}));
        assert!(usb.cd_is_usb_cd && usb.wants_boot_mode && !usb.boot_device_only);
    }
}
