//! The audit: what was done is recorded with the change itself (`change`), what was refused here.

use crate::access_table::{Effect, Rule};
use crate::call::bounded;
use crate::{Call, Page, PageRequest, Service};
use domain::limits::short;
use domain::{Code, Error};
use store::Caller;
use store::audit::{self, Entry};

impl Service {
    /// Entries, newest first.
    pub async fn list_audit(&self, request: &PageRequest) -> Result<Page<Entry>, Error> {
        let size = request.size()?;
        let filter = audit::FILTER.parse(&request.filter)?;
        let before = request.number("audit")?;
        let items = self.store().read(move |tx| audit::list(tx, &filter, before, size + 1)).await?;
        Ok(request.page("audit", items, size, |e: &Entry| e.number.to_string()))
    }

    /// Puts a refusal on record: every one of a change, and of a read the one for want of rights.
    pub async fn audit_refusal(&self, call: &Call, rule: &Rule, error: &Error) {
        let judged = match error.code() {
            Code::PermissionDenied => true,
            // nothing was decided: the caller will ask again
            Code::Unavailable | Code::Internal | Code::DeadlineExceeded | Code::Unauthenticated => false,
            _ => rule.effect == Effect::Changes,
        };
        if !judged || call.is_on_record() {
            return;
        }
        let Some(count) = call.by.standing.refusals.sample() else { return };
        let Entry { code, reason, message, .. } = refused(error);
        let entry = Entry { code, reason, message, count, ..of(call) };
        self.record(call.by.caller(), entry).await;
    }

    /// The same for somebody whom we do not know: a sample, with the count it stands for.
    pub async fn audit_stranger(&self, call: &str, request_id: &str, error: &Error) {
        if error.code() != Code::Unauthenticated {
            return;
        }
        let Some(count) = self.access().strangers.sample() else { return };
        let entry = Entry { call: bounded(call), request_id: bounded(request_id), count, ..refused(error) };
        // known once, and good no longer
        let token_id = error.details.get("token_id").cloned().unwrap_or_default();
        self.record(Caller::new("strangers"), Entry { token_id, ..entry }).await;
    }

    async fn record(&self, caller: Caller, entry: Entry) {
        if let Err(e) = self
            .store()
            .write(&caller, "audit", move |tx| {
                audit::insert(tx, &entry);
                Ok(())
            })
            .await
        {
            tracing::warn!(error = %e, "a refusal could not be put on record");
        }
    }
}

/// Who asked for what.
pub(crate) fn of(call: &Call) -> Entry {
    Entry {
        actor: call.by.name.clone(),
        token_id: call.by.token_id.to_string(),
        role: call.by.role.to_string(),
        call: call.name.to_owned(),
        target: call.target().to_owned(),
        request_id: call.request_id.clone(),
        ..Entry::default()
    }
}

pub(crate) fn refused(error: &Error) -> Entry {
    Entry {
        code: error.code().as_str().to_owned(),
        reason: error.reason.as_str().to_owned(),
        message: short(&error.message),
        ..Entry::default()
    }
}
