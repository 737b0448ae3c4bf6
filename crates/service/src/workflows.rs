//! Boot workflows: made once, and never changed.

use crate::change::Answer;
use crate::machines::required;
use crate::{Call, Page, PageRequest, Service};
use domain::boot_workflow::BootWorkflow;
use domain::{Error, Reason};
use std::sync::Arc;
use store::{Tx, TxResult, boot_workflow};

pub(crate) fn not_found(id: &str) -> Error {
    Error::new(Reason::WorkflowNotFound, format!("there is no workflow {id:?}")).with("workflow_id", id)
}

impl Answer for BootWorkflow {
    fn id(&self) -> String {
        self.id.clone()
    }

    fn again(tx: &mut Tx<'_>, _: &Call, id: &str) -> TxResult<Self> {
        find(tx, id)
    }
}

pub(crate) fn find(tx: &mut Tx<'_>, id: &str) -> TxResult<BootWorkflow> {
    Ok(tx.point(&boot_workflow::by_id(id))?.ok_or_else(|| not_found(id))?)
}

impl Service {
    pub async fn create_workflow(&self, call: &Arc<Call>, new: BootWorkflow) -> Result<BootWorkflow, Error> {
        let new = BootWorkflow { created_by: call.by.name.clone(), ..new.checked()? };
        let key = new.id.clone();
        self.change(call, &key, move |tx| match tx.point(&boot_workflow::by_id(&new.id))? {
            None => {
                boot_workflow::insert(tx, &new)?;
                find(tx, &new.id)
            }
            Some(there) => {
                let same =
                    BootWorkflow { created_at: there.created_at, created_by: there.created_by.clone(), ..new.clone() };
                if same == there {
                    return Ok(there);
                }
                let message = format!(
                    "workflow {:?} is there with another content, and workflows do not change; use another id",
                    new.id
                );
                Err(Error::new(Reason::WorkflowExists, message).with("workflow_id", &new.id).into())
            }
        })
        .await
    }

    pub async fn get_workflow(&self, id: &str) -> Result<BootWorkflow, Error> {
        let id = required("id", id)?;
        self.store().point(boot_workflow::by_id(&id)).await?.ok_or_else(|| not_found(&id))
    }

    pub async fn list_workflows(&self, request: &PageRequest) -> Result<Page<BootWorkflow>, Error> {
        let size = request.size()?;
        let filter = boot_workflow::FILTER.parse(&request.filter)?;
        let after = request.cursor("workflows")?;
        let items = self.store().read(move |tx| boot_workflow::list(tx, &filter, &after, size + 1)).await?;
        Ok(request.page("workflows", items, size, |w| w.id.clone()))
    }
}
