//! A look at one MAAS: what moved since the last one, or everything. Every call ends within bounds; what is known after a
//! look is what was answered.

use super::told::{is_system_id, told};
use domain::maas_machine::Told;
use provider::{Maas, MaasEvent, MaasMachine, ProviderError, ProviderResult, Which};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::timeout;

/// Status changes are told there, and nowhere above.
const LEVEL: &str = "DEBUG";
/// Machines in one request: ids stand in the address, which has its bounds.
pub(super) const BATCH: usize = 50;
/// Requests for machines in one look; what is left waits for the next.
const BATCHES: usize = 4;
/// Pages of events that are followed in one look, and the fewest that a page has which is not the last.
const PAGES: usize = 10;
const PAGE_MIN: usize = 100;
/// With more that wait, the whole list is cheaper.
const WAITING_MAX: usize = 1000;
/// Over the client's own bounds.
const CALL_MAX: Duration = Duration::from_secs(90);
const LIST_MAX: Duration = Duration::from_secs(300);

/// What a look has shown.
#[derive(Debug, Default)]
pub(super) struct Looked {
    pub machines: BTreeMap<String, Told>,
    /// Those that were asked for by id: whichever is not among the machines is not there.
    pub asked: BTreeSet<String>,
    /// Everything was listed: whatever is not among the machines is not there.
    pub whole: bool,
    /// The last event that was read.
    pub mark: Option<i64>,
}

async fn answered<T>(within: Duration, asking: impl Future<Output = ProviderResult<T>>) -> ProviderResult<T> {
    match timeout(within, asking).await {
        Ok(answer) => answer,
        Err(_) => Err(ProviderError::transient(format!("no answer within {} s", within.as_secs()))),
    }
}

fn by_id(machines: &[MaasMachine]) -> BTreeMap<String, Told> {
    let good = machines.iter().filter(|machine| is_system_id(&machine.system_id));
    good.map(|machine| (machine.system_id.clone(), told(machine))).collect()
}

/// Everything. The mark comes first: what changes while the list is made is told again, and not missed.
pub(super) async fn everything(maas: &dyn Maas) -> ProviderResult<Looked> {
    let newest = answered(CALL_MAX, maas.events(None, LEVEL, &[])).await?;
    let machines = answered(LIST_MAX, maas.machines(&Which::All)).await?;
    // where nothing ever happened, whatever happens is new
    let mark = Some(newest.iter().map(|event| event.id).max().unwrap_or(0));
    Ok(Looked { machines: by_id(&machines), asked: BTreeSet::new(), whole: true, mark })
}

/// What moved. `waiting` has what was told of earlier and not read yet; `linked` those that are due for a read anyway, the
/// most urgent first. `None`: so much has moved that everything is to be listed.
pub(super) async fn what_moved(
    maas: &dyn Maas,
    mark: i64,
    waiting: &mut BTreeSet<String>,
    linked: &[String],
) -> ProviderResult<Option<Looked>> {
    let Some(mark) = follow(maas, mark, waiting).await? else { return Ok(None) };
    if waiting.len() > WAITING_MAX {
        return Ok(None);
    }
    // those that changed first; room is left for one request of the others
    let mut due: Vec<String> = waiting.iter().take(BATCH * (BATCHES - 1)).cloned().collect();
    for id in linked {
        if due.len() < BATCH * BATCHES && !due.contains(id) {
            due.push(id.clone());
        }
    }
    let mut looked = Looked { mark: Some(mark), ..Looked::default() };
    for ids in due.chunks(BATCH) {
        let machines = answered(CALL_MAX, maas.machines(&Which::Ids(ids.to_vec()))).await?;
        looked.machines.extend(by_id(&machines));
        looked.asked.extend(ids.iter().cloned());
        waiting.retain(|id| !ids.contains(id));
    }
    Ok(Some(looked))
}

/// Notes the machines of all events after the mark. `None`: there is no end of them.
async fn follow(maas: &dyn Maas, mark: i64, waiting: &mut BTreeSet<String>) -> ProviderResult<Option<i64>> {
    let mut mark = mark;
    for _ in 0..PAGES {
        let page: Vec<MaasEvent> = answered(CALL_MAX, maas.events(Some(mark), LEVEL, &[])).await?;
        let newest = page.iter().map(|event| event.id).max().unwrap_or(mark);
        waiting.extend(page.iter().map(|event| event.system_id.clone()).filter(|id| is_system_id(id)));
        // a page that leads nowhere ends it, too
        if newest <= mark || page.len() < PAGE_MIN {
            return Ok(Some(newest.max(mark)));
        }
        mark = newest;
        if waiting.len() > WAITING_MAX {
            return Ok(None);
        }
    }
    Ok(None)
}
