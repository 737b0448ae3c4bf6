//! A refusal as a client sees it: the gRPC code, the stable reason, a sentence, and facts for scripts.

use std::collections::HashMap;
use std::fmt::Debug;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

#[derive(Debug)]
pub struct Refusal {
    pub code: Code,
    pub reason: String,
    pub message: String,
    pub details: HashMap<String, String>,
    /// The field named in `google.rpc.BadRequest`.
    pub field: String,
}

impl Refusal {
    pub fn of(status: &Status) -> Self {
        let details = status.get_error_details();
        let info = details.error_info().unwrap_or_else(|| panic!("a refusal without ErrorInfo: {status:?}"));
        assert_eq!(info.domain, "millwright");
        assert!(!status.message().is_empty(), "a refusal without a sentence: {status:?}");
        let violations = details.bad_request().map(|b| b.field_violations.as_slice()).unwrap_or_default();
        Self {
            code: status.code(),
            reason: info.reason.clone(),
            message: status.message().to_owned(),
            details: info.metadata.clone(),
            field: violations.first().map_or(String::new(), |v| v.field.clone()),
        }
    }

    /// The sentence must speak of this.
    #[track_caller]
    pub fn says(self, part: &str) -> Self {
        assert!(self.message.contains(part), "{:?} does not say {part:?}", self.message);
        self
    }

    /// The legal alternatives.
    pub fn allowed(&self) -> Vec<&str> {
        self.details.get("allowed").map(|a| a.split(',').collect()).unwrap_or_default()
    }
}

#[track_caller]
pub fn refused<T: Debug>(result: Result<T, Status>, code: Code, reason: &str) -> Refusal {
    let refusal = Refusal::of(&result.expect_err("should be refused"));
    assert_eq!((refusal.code, refusal.reason.as_str()), (code, reason), "{refusal:?}");
    refusal
}

/// INVALID_ARGUMENT that names the field, in its details and in its sentence.
#[track_caller]
pub fn refused_field<T: Debug>(result: Result<T, Status>, field: &str) -> Refusal {
    let refusal = Refusal::of(&result.expect_err("should be refused"));
    assert_eq!(refusal.code, Code::InvalidArgument, "{refusal:?}");
    assert_eq!(refusal.field, field, "{refusal:?}");
    assert_eq!(refusal.details.get("field").map(String::as_str), Some(field), "{refusal:?}");
    refusal
}
