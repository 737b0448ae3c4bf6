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
/// Total bytes of one step's payload texts.
pub const STEP_PAYLOAD_MAX: usize = 64 * 1024;
pub const STEP_TIMEOUT_MAX_SECONDS: i32 = 24 * 3600;
pub const STEP_RETRIES_MAX: i32 = 20;
pub const PARAMETERS_MAX: usize = 64;
pub const PARAMETER_VALUE_MAX: usize = 4096;
pub const COMMENT_MAX: usize = 2048;
pub const FILTER_MAX: usize = 2048;
pub const FILTER_TERMS_MAX: usize = 32;
pub const PAGE_SIZE_DEFAULT: usize = 100;
pub const PAGE_SIZE_MAX: usize = 1000;
/// What one step may print before its log is cut, with a marker where.
pub const STEP_LOG_MAX_BYTES: usize = 1024 * 1024;
