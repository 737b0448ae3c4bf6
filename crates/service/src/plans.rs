//! Plans: the built-in ones, and those that administrators add. None is ever changed.

use crate::change::Answer;
use crate::{Call, Service};
use domain::limits::PLANS_BYTES_MAX;
use domain::plan::Plan;
use domain::plan_defaults::built_in_plans;
use domain::{Error, Reason};
use std::sync::Arc;
use store::{Tx, TxResult, plan};

pub(crate) fn not_found(id: &str) -> Error {
    Error::new(Reason::PlanNotFound, format!("there is no plan {id:?}; 'plan list' shows those there are"))
        .with("plan_id", id)
}

pub(crate) fn built_in(id: &str) -> Option<Plan> {
    built_in_plans().into_iter().find(|p| p.id == id)
}

impl Answer for Plan {
    fn id(&self) -> String {
        self.id.clone()
    }

    fn again(tx: &mut Tx<'_>, _: &Call, id: &str) -> TxResult<Self> {
        find(tx, id)
    }
}

pub(crate) fn find(tx: &mut Tx<'_>, id: &str) -> TxResult<Plan> {
    let found = match built_in(id) {
        Some(plan) => Some(plan),
        None => plan::get(tx, id)?,
    };
    Ok(found.ok_or_else(|| not_found(id))?)
}

impl Service {
    pub async fn get_plan(&self, id: &str) -> Result<Plan, Error> {
        let key = crate::machines::required("plan_id", id)?;
        self.store().read(move |tx| find(tx, &key)).await
    }

    /// All plans, by id.
    pub async fn list_plans(&self) -> Result<Vec<Plan>, Error> {
        let mut plans = self.store().read(plan::list).await?;
        plans.extend(built_in_plans());
        plans.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(plans)
    }

    /// Adds a plan. The same plan again is no change; the same id with another body is refused.
    pub async fn create_plan(&self, call: &Arc<Call>, new: Plan, source: &'static str) -> Result<Plan, Error> {
        new.validate()?;
        let exists = |there: &Plan, new: &Plan| {
            if there == new {
                return Ok(());
            }
            Err(Error::new(
                Reason::PlanExists,
                format!("plan {:?} exists with another body; a plan is never changed, so choose a new plan_id", new.id),
            )
            .with("plan_id", new.id.clone()))
        };
        let actor = call.by.name.clone();
        let key = format!("plan {}", new.id);
        self.change(call, &key, move |tx| {
            let there = match built_in(&new.id) {
                Some(plan) => Some(plan),
                None => plan::get(tx, &new.id)?,
            };
            if let Some(there) = there {
                exists(&there, &new)?;
            } else if plan::total_bytes(tx)? >= PLANS_BYTES_MAX {
                let message = format!("the plans take {PLANS_BYTES_MAX} bytes already, which is the limit");
                return Err(Error::new(Reason::LimitReached, message).into());
            } else {
                plan::insert(tx, &new, source, &actor)?;
            }
            Ok(new.clone())
        })
        .await
    }
}
