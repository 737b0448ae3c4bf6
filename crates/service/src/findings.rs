//! Findings: listed, taken up, settled. They are made and closed by whoever sees what they are about.

use crate::change::Answer;
use crate::machines::required;
use crate::{Call, Page, PageRequest, Service};
use domain::finding::{ACKNOWLEDGED, Finding, FindingState, RESOLVED};
use domain::limits::COMMENT_MAX;
use domain::machine::check_text;
use domain::{Error, FindingId, Reason};
use std::sync::Arc;
use store::{Cause, Tx, TxResult, finding};

fn not_found(id: &str) -> Error {
    Error::new(Reason::FindingNotFound, format!("there is no finding {id:?}")).with("finding_id", id)
}

impl Answer for Finding {
    fn id(&self) -> String {
        self.id.to_string()
    }

    fn again(tx: &mut Tx<'_>, _: &Call, id: &str) -> TxResult<Self> {
        Ok(tx.point(&finding::by_id(&FindingId::from_text(id)))?.ok_or_else(|| not_found(id))?)
    }
}

impl Service {
    /// Without a filter, those that are not resolved.
    pub async fn list_findings(&self, request: &PageRequest) -> Result<Page<Finding>, Error> {
        let size = request.size()?;
        let asked = if request.filter.is_empty() { "NOT state=resolved" } else { request.filter.as_str() };
        let filter = finding::FILTER.parse(asked)?;
        let after = request.cursor("findings")?;
        let items = self.store().read(move |tx| finding::list(tx, &filter, &after, size + 1)).await?;
        Ok(request.page("findings", items, size, |f| f.id.to_string()))
    }

    pub async fn get_finding(&self, id: &str) -> Result<Finding, Error> {
        let id = FindingId::from_text(required("id", id)?);
        self.store().point(finding::by_id(&id)).await?.ok_or_else(|| not_found(id.as_str()))
    }

    pub async fn acknowledge_finding(&self, call: &Arc<Call>, id: &str, comment: &str) -> Result<Finding, Error> {
        self.handle_finding(call, id, comment, FindingState::Acknowledged, ACKNOWLEDGED).await
    }

    pub async fn resolve_finding(&self, call: &Arc<Call>, id: &str, comment: &str) -> Result<Finding, Error> {
        self.handle_finding(call, id, comment, FindingState::Resolved, RESOLVED).await
    }

    async fn handle_finding(
        &self,
        call: &Arc<Call>,
        id: &str,
        comment: &str,
        to: FindingState,
        trigger: &'static str,
    ) -> Result<Finding, Error> {
        check_text("comment", comment, COMMENT_MAX)?;
        let (id, comment) = (FindingId::from_text(required("id", id)?), comment.to_owned());
        let (key, by) = (id.to_string(), call.by.name.clone());
        self.change(call, &key, move |tx| {
            let there = finding::get_for_update(tx, &id)?.ok_or_else(|| not_found(id.as_str()))?;
            let after = Finding { state: to, handled_by: by.clone(), comment: comment.clone(), ..there.clone() };
            let _ = finding::move_to(tx, &there, &after, &Cause::operator(&by, trigger, &comment))?;
            Ok(tx.point(&finding::by_id(&id))?.ok_or_else(|| not_found(id.as_str()))?)
        })
        .await
    }
}
