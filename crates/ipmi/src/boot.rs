//! The boot flags of a controller (boot option parameter 5): which device, for how long, and whether they count.

use domain::hardware::BootOverride;
use domain::plan::BootMode;

const VALID: u8 = 0x80;
const PERSISTENT: u8 = 0x40;
/// Without it many controllers switch the machine to its legacy BIOS for that boot; a machine that has only a legacy
/// BIOS does not look at it.
const EFI: u8 = 0x20;

const DEVICE: u8 = 0x3c;
const PXE: u8 = 0x04;
const DISK: u8 = 0x08;
const CD: u8 = 0x14;
/// A CD that the controller itself offers.
const REMOTE_CD: u8 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags {
    first: u8,
    second: u8,
}

/// The flags that ask for this; `None` where IPMI has no word for it.
pub(crate) const fn flags(boot: Option<BootOverride>) -> Option<Flags> {
    let Some(BootOverride { mode, persistent }) = boot else { return Some(Flags { first: 0, second: 0 }) };
    let second = match mode {
        BootMode::Pxe => PXE,
        BootMode::Disk => DISK,
        BootMode::Cd => CD,
        BootMode::Http => return None,
    };
    Some(Flags { first: VALID | EFI | if persistent { PERSISTENT } else { 0 }, second })
}

impl Flags {
    /// Parameter 3 keeps the flags from being forgotten after sixty seconds without a power command; not every
    /// controller has it.
    pub(crate) fn script(self) -> String {
        let Flags { first, second } = self;
        format!(
            "raw 0x00 0x08 0x03 0x08\nraw 0x00 0x08 0x05 0x{first:02x} 0x{second:02x} 0x00 0x00 0x00\nchassis bootparam get 5\n"
        )
    }

    /// Out of what `chassis bootparam get 5` prints.
    pub(crate) fn read(out: &str) -> Option<Self> {
        let digits = out.lines().find_map(|line| line.trim().strip_prefix("Boot parameter data:"))?.trim();
        let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
        Some(Self { first: byte(0)?, second: byte(2)? })
    }

    /// What counts for the next boot. Flags that are not marked valid were used up, or forgotten.
    pub(crate) const fn in_force(self) -> Option<BootOverride> {
        if !self.valid() {
            return None;
        }
        let mode = match self.second & DEVICE {
            PXE => BootMode::Pxe,
            DISK => BootMode::Disk,
            CD | REMOTE_CD => BootMode::Cd,
            _ => return None,
        };
        Some(BootOverride { mode, persistent: self.first & PERSISTENT != 0 })
    }

    pub(crate) const fn valid(self) -> bool {
        self.first & VALID != 0
    }

    pub(crate) const fn persistent(self) -> bool {
        self.first & PERSISTENT != 0
    }

    pub(crate) const fn device(self) -> u8 {
        self.second & DEVICE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_what_is_read() {
        for mode in [BootMode::Pxe, BootMode::Disk, BootMode::Cd] {
            for persistent in [false, true] {
                let boot = BootOverride { mode, persistent };
                let set = flags(Some(boot)).expect("IPMI has it");
                assert_eq!(set.in_force(), Some(boot));
                let printed = format!(
                    "Boot parameter version: 1\nBoot parameter data: {:02x}{:02x}000000\n",
                    set.first, set.second
                );
                assert_eq!(Flags::read(&printed), Some(set));
            }
        }
        assert_eq!(flags(Some(BootOverride { mode: BootMode::Http, persistent: false })), None);
        assert_eq!(flags(None).and_then(Flags::in_force), None);
    }

    #[test]
    fn flags_that_are_not_valid_do_not_count() {
        let used_up = Flags::read("Boot parameter data: 0004000000").expect("readable");
        assert_eq!((used_up.in_force(), used_up.device()), (None, PXE));
        for bad in [
            "",
            "Boot parameter data:",
            "Boot parameter data: 8",
            "Boot parameter data: 80é4",
            "Boot parameter data: xx",
        ] {
            assert_eq!(Flags::read(bad), None, "{bad}");
        }
    }
}
