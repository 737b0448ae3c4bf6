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
/// What MAAS says of every machine every few minutes, with what its BMC has said.
const POWER_EVENT: (&str, &str) = ("Queried node's BMC", "Power state queried: ");
/// Machines in one request: ids stand in the address, which has its bounds.
const BATCH: usize = 100;
/// Machines that moved and are read in one look; what is left waits for the next. With the two below and the events it
/// makes less than a request each second.
const MOVED: usize = 300;
/// Machines that are read although nothing was told of them: the urgent ones, and those whose turn it is.
pub(super) const URGENT: usize = 200;
pub(super) const TURN: usize = 200;
/// Pages of events that are followed in one look, and the fewest that a page has which is not the last.
const PAGES: usize = 10;
const PAGE_MIN: usize = 100;
/// With more that wait, the whole list is cheaper.
pub(super) const WAITING_MAX: usize = 1000;
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

/// What events have told of.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Machines that something happened to.
    pub moved: BTreeSet<String>,
    /// Machines of which only their power was asked, with what it was found to be.
    pub powers: BTreeSet<(String, String)>,
    /// The last event that was read.
    pub mark: i64,
}

impl News {
    fn add(&mut self, event: MaasEvent) {
        self.mark = self.mark.max(event.id);
        if !is_system_id(&event.system_id) {
            return;
        }
        match event.description.strip_prefix(POWER_EVENT.1).filter(|_| event.kind == POWER_EVENT.0) {
            Some(power) => self.powers.insert((event.system_id, power.to_owned())),
            None => self.moved.insert(event.system_id),
        };
    }
}

/// What all events after the mark tell of. `None`: there is no end of them.
pub(super) async fn news(maas: &dyn Maas, mark: i64) -> ProviderResult<Option<News>> {
    let mut news = News { mark, ..News::default() };
    for _ in 0..PAGES {
        let before = news.mark;
        let page: Vec<MaasEvent> = answered(CALL_MAX, maas.events(Some(before), LEVEL, &[])).await?;
        let last = page.len() < PAGE_MIN;
        page.into_iter().for_each(|event| news.add(event));
        // a page that leads nowhere ends it, too
        if last || news.mark == before {
            return Ok(Some(news));
        }
        if news.moved.len() > WAITING_MAX {
            return Ok(None);
        }
    }
    Ok(None)
}

/// Reads machines that moved, as many as `waiting` has and one look may read, and all that are `due` for a read anyway.
pub(super) async fn what_moved(
    maas: &dyn Maas,
    mark: i64,
    waiting: &mut BTreeSet<String>,
    due: &BTreeSet<String>,
) -> ProviderResult<Looked> {
    let moved: BTreeSet<String> = waiting.iter().take(MOVED).cloned().collect();
    let asked: Vec<String> = moved.union(due).cloned().collect();
    let mut looked = Looked { mark: Some(mark), ..Looked::default() };
    for ids in asked.chunks(BATCH) {
        let machines = answered(CALL_MAX, maas.machines(&Which::Ids(ids.to_vec()))).await?;
        looked.machines.extend(by_id(&machines));
        looked.asked.extend(ids.iter().cloned());
    }
    waiting.retain(|id| !looked.asked.contains(id));
    Ok(looked)
}
