//! The statuses of a machine, by number, and from which of them what is allowed.

pub const NEW: u8 = 0;
pub const COMMISSIONING: u8 = 1;
pub const FAILED_COMMISSIONING: u8 = 2;
pub const READY: u8 = 4;
pub const RESERVED: u8 = 5;
pub const DEPLOYED: u8 = 6;
pub const BROKEN: u8 = 8;
pub const DEPLOYING: u8 = 9;
pub const ALLOCATED: u8 = 10;
pub const FAILED_DEPLOYMENT: u8 = 11;
pub const RELEASING: u8 = 12;
pub const FAILED_RELEASING: u8 = 13;
pub const DISK_ERASING: u8 = 14;
pub const FAILED_DISK_ERASING: u8 = 15;
pub const RESCUE_MODE: u8 = 16;
pub const ENTERING_RESCUE_MODE: u8 = 17;
pub const FAILED_ENTERING_RESCUE_MODE: u8 = 18;
pub const EXITING_RESCUE_MODE: u8 = 19;
pub const FAILED_EXITING_RESCUE_MODE: u8 = 20;
pub const TESTING: u8 = 21;
pub const FAILED_TESTING: u8 = 22;

/// As they are shown, and as the list's filter takes them.
const NAMES: [(&str, &str); 23] = [
    ("New", "new"),
    ("Commissioning", "commissioning"),
    ("Failed commissioning", "failed_commissioning"),
    ("Missing", "missing"),
    ("Ready", "ready"),
    ("Reserved", "reserved"),
    ("Deployed", "deployed"),
    ("Retired", "retired"),
    ("Broken", "broken"),
    ("Deploying", "deploying"),
    ("Allocated", "allocated"),
    ("Failed deployment", "failed_deployment"),
    ("Releasing", "releasing"),
    ("Releasing failed", "failed_releasing"),
    ("Disk erasing", "disk_erasing"),
    ("Failed disk erasing", "failed_disk_erasing"),
    ("Rescue mode", "rescue_mode"),
    ("Entering rescue mode", "entering_rescue_mode"),
    ("Failed to enter rescue mode", "failed_entering_rescue_mode"),
    ("Exiting rescue mode", "exiting_rescue_mode"),
    ("Failed to exit rescue mode", "failed_exiting_rescue_mode"),
    ("Testing", "testing"),
    ("Failed testing", "failed_testing"),
];

pub fn name(status: u8) -> &'static str {
    NAMES.get(usize::from(status)).map_or("Unknown", |n| n.0)
}

/// By the word of the filter.
pub fn by_word(word: &str) -> Option<u8> {
    NAMES.iter().position(|n| n.1 == word).and_then(|n| u8::try_from(n).ok())
}

/// On the way to somewhere.
pub fn is_intermediate(status: u8) -> bool {
    failed(status).is_some()
}

/// Where what is under way ends when it fails.
pub fn failed(status: u8) -> Option<u8> {
    match status {
        COMMISSIONING => Some(FAILED_COMMISSIONING),
        DEPLOYING => Some(FAILED_DEPLOYMENT),
        RELEASING => Some(FAILED_RELEASING),
        DISK_ERASING => Some(FAILED_DISK_ERASING),
        ENTERING_RESCUE_MODE => Some(FAILED_ENTERING_RESCUE_MODE),
        EXITING_RESCUE_MODE => Some(FAILED_EXITING_RESCUE_MODE),
        TESTING => Some(FAILED_TESTING),
        _ => None,
    }
}

pub(super) fn may_commission(status: u8) -> bool {
    matches!(status, NEW | FAILED_COMMISSIONING | READY | BROKEN)
}

pub(super) fn may_test(status: u8) -> bool {
    let resting = matches!(status, READY | ALLOCATED | DEPLOYED | BROKEN);
    resting || matches!(status, FAILED_TESTING | FAILED_DEPLOYMENT | FAILED_COMMISSIONING | FAILED_DISK_ERASING)
}

pub(super) fn may_release(status: u8) -> bool {
    let held = matches!(status, RESERVED | DEPLOYED | BROKEN | DEPLOYING | ALLOCATED);
    held || matches!(status, FAILED_DEPLOYMENT | FAILED_RELEASING | FAILED_DISK_ERASING)
}

pub(super) fn may_rescue(status: u8) -> bool {
    matches!(status, READY | BROKEN | ALLOCATED | DEPLOYED | FAILED_COMMISSIONING | FAILED_DEPLOYMENT)
        || matches!(status, FAILED_RELEASING | FAILED_DISK_ERASING | FAILED_TESTING | FAILED_ENTERING_RESCUE_MODE)
}

pub(super) fn may_edit_network(status: u8) -> bool {
    matches!(status, NEW | READY | FAILED_TESTING | ALLOCATED | BROKEN)
}

pub(super) fn may_edit_storage(status: u8) -> bool {
    matches!(status, READY | ALLOCATED)
}

/// Of scripts and sets of them.
pub(super) fn script_status(status: i64) -> &'static str {
    match status {
        0 => "Pending",
        1 => "Running",
        2 => "Passed",
        3 => "Failed",
        4 => "Timed out",
        5 => "Aborted",
        6 => "Degraded",
        7 => "Installing",
        8 => "Failed installing",
        9 => "Skipped",
        10 => "Applying custom network configuration",
        11 => "Failed to apply custom network configuration",
        _ => "Unknown",
    }
}
