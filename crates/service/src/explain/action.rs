//! What a caller could do about it, and why not where it cannot be done.

use crate::Call;
use crate::access_table::rule_of;
use domain::Error;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Action {
    pub name: String,
    pub allowed: bool,
    pub why_not: String,
    /// How to do it from the command line.
    pub command: String,
}

impl Action {
    /// Allowed if the facts allow it and the caller's token does.
    pub fn new(caller: &Call, rpc: &str, name: impl Into<String>, command: String, judged: Result<(), Error>) -> Self {
        let judged = judged.and_then(|()| rule_of(rpc).map_or(Ok(()), |rule| caller.by.may(rule)));
        let why_not = judged.as_ref().err().map_or(String::new(), |e| e.message.clone());
        Self { name: name.into(), allowed: judged.is_ok(), why_not, command }
    }
}
