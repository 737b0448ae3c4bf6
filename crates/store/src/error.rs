//! How a transaction can fail, and what a caller is told.

use domain::{Error, Reason};

/// What the database said, by what can be done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DbError {
    /// Deadlock, serialization failure, lock time-out: roll back everything and run again.
    Conflict(String),
    /// The disk or a quota is full.
    Full(String),
    /// Not reachable, read-only, or not readable right now.
    Away(String),
    /// The commit was sent and no answer came, or the disk failed in the middle of it.
    CommitUnknown(String),
    /// The statement took longer than its budget.
    Timeout(String),
    /// A defect: bad SQL, a broken constraint, a wrong type.
    Defect(String),
}

/// Why a closure did not go through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The closure itself said no. Its work is rolled back; others in the batch are not affected.
    Refused(Error),
    /// Another holder has taken over: the writer must stop.
    Fenced(String),
    /// A compare-and-swap was lost: run again on fresh rows.
    Lost(String),
    #[doc(hidden)]
    Db(DbFailure),
}

/// Opaque: only the store looks inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DbFailure(pub(crate) DbError);

pub type TxResult<T> = Result<T, Failure>;

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Failure::Refused(e)
    }
}

impl From<DbError> for Failure {
    fn from(e: DbError) -> Self {
        Failure::Db(DbFailure(e))
    }
}

impl Failure {
    /// Whether the whole batch must be rolled back and run again.
    pub(crate) fn retry_batch(&self) -> bool {
        matches!(self, Failure::Lost(_) | Failure::Db(DbFailure(DbError::Conflict(_))))
    }

    /// What the caller is told. Detail about the database goes to the log, not to the caller.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Failure::Refused(e) => e,
            Failure::Fenced(what) => {
                Error::new(Reason::Contention, format!("another holder has taken over: {what}")).with("fenced", "true")
            }
            Failure::Lost(what) => {
                Error::new(Reason::Contention, format!("{what} was changed at the same time; try again"))
            }
            Failure::Db(DbFailure(e)) => e.into_error(),
        }
    }
}

impl DbError {
    pub(crate) fn into_error(self) -> Error {
        match self {
            DbError::Conflict(m) => {
                tracing::warn!(error = %m, "gave up after repeated conflicts in the database");
                Error::new(Reason::Contention, "the same rows were changed by others at the same time; try again")
            }
            DbError::Full(m) => {
                tracing::error!(error = %m, "the database has no space left");
                Error::new(
                    Reason::StorageFull,
                    "the database has no space left; nothing was changed. Free space, then try again",
                )
            }
            DbError::Away(m) => {
                tracing::error!(error = %m, "the database is not available");
                Error::new(
                    Reason::StoreUnavailable,
                    "the database is not available; nothing was changed. Try again in a moment",
                )
            }
            DbError::CommitUnknown(m) => {
                tracing::error!(error = %m, "the outcome of a commit is not known");
                Error::new(
                    Reason::OutcomeUnknown,
                    "the database failed during the commit; the change may or may not have been made. Repeating the call is safe",
                )
            }
            DbError::Timeout(m) => {
                tracing::error!(error = %m, "a statement took too long");
                Error::new(
                    Reason::StoreUnavailable,
                    "the database took too long; nothing was changed. Try again in a moment",
                )
            }
            DbError::Defect(m) => {
                tracing::error!(error = %m, "a statement failed");
                Error::internal("an internal error in the store; nothing was changed. The server's log has the details")
            }
        }
    }
}

/// Whether an error means that this process has lost its hold.
pub fn is_fenced(e: &Error) -> bool {
    e.details.contains_key("fenced")
}
