//! Every bound on what a caller may send or the server may keep, in one place and by name.

/// Names, ids and request ids chosen by callers.
pub const NAME_MAX: usize = 63;
pub const REQUEST_ID_MAX: usize = 128;
pub const LABELS_MAX: usize = 64;
pub const LABEL_KEY_MAX: usize = 128;
pub const LABEL_VALUE_MAX: usize = 256;
/// Endpoints, references and other short texts of a spec.
pub const TEXT_MAX: usize = 512;
pub const MAC_ADDRESSES_MAX: usize = 64;
pub const PLAN_STEPS_MAX: usize = 64;
pub const STEP_ARGS_MAX: usize = 256;
/// Total bytes of one plan's payload texts.
pub const PLAN_PAYLOAD_MAX: usize = 64 * 1024;
pub const STEP_TIMEOUT_MAX_SECONDS: i32 = 24 * 3600;
pub const STEP_RETRIES_MAX: i32 = 20;
/// All plans together: they are listed in one answer.
pub const PLANS_BYTES_MAX: u64 = 1024 * 1024;
pub const PARAMETERS_MAX: usize = 64;
/// Names and values of a run's parameters together: every event of the run carries them.
pub const PARAMETERS_BYTES_MAX: usize = 8 * 1024;
/// A key by which a caller makes a change repeatable.
pub const IDEMPOTENCY_KEY_MAX: usize = 128;
/// Credentials that one machine may name.
pub const CREDENTIALS_MAX: usize = 8;
pub const PASSWORD_MAX: usize = 1024;
pub const PRIVATE_KEY_MAX: usize = 32 * 1024;
pub const KUBECONFIG_MAX: usize = 256 * 1024;
pub const CERTIFICATES_MAX: usize = 256 * 1024;
pub const USER_DATA_MAX: usize = 64 * 1024;
/// What a step's or a run's message is cut to: providers can be talkative.
pub const MESSAGE_MAX: usize = 1024;
pub const COMMENT_MAX: usize = 2048;
pub const FILTER_MAX: usize = 2048;
pub const FILTER_TERMS_MAX: usize = 32;
pub const PAGE_SIZE_DEFAULT: usize = 100;
pub const PAGE_SIZE_MAX: usize = 1000;
/// A page ends early rather than grow beyond what clients take in one message.
pub const PAGE_BYTES_MAX: usize = 3 * 1024 * 1024;
/// What one step may print before its log is cut, with a marker where.
pub const STEP_LOG_MAX_BYTES: usize = 1024 * 1024;

/// Cuts a message from outside to what a row, an event and a terminal can bear.
pub fn short(message: &str) -> String {
    if message.len() <= MESSAGE_MAX {
        return message.to_owned();
    }
    let end = (0..=MESSAGE_MAX).rev().find(|i| message.is_char_boundary(*i)).unwrap_or(0);
    format!("{}…", &message[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut_between_characters() {
        assert_eq!(short("fine"), "fine");
        let cut = short(&"ü".repeat(MESSAGE_MAX));
        assert!(cut.len() <= MESSAGE_MAX + "…".len() && cut.ends_with("ü…"));
    }
}
