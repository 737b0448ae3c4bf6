//! What the server acknowledged, and how far the recording had come when the answer was there. The client
//! writes it; a server on an image is asked for it again.

use proto::baremetal::v1::machine_service_client::MachineServiceClient;
use proto::baremetal::v1::plan_service_client::PlanServiceClient;
use proto::baremetal::v1::run_service_client::RunServiceClient;
use proto::baremetal::v1::{ListMachinesRequest, ListPlansRequest, ListRunsRequest};
use proto::millwright::v1::event_service_client::EventServiceClient;
use proto::millwright::v1::token_service_client::TokenServiceClient;
use proto::millwright::v1::{Event, GetMeRequest, WatchEventsRequest};
use std::collections::{BTreeMap, BTreeSet};
use testkit::server::{Door, door};
use tonic::Code;
use tonic::transport::Channel;

/// One acknowledgement.
#[derive(Clone, Debug)]
pub enum Fact {
    /// A machine has at least this version, and at this version this label.
    Machine {
        id: String,
        version: u64,
        note: String,
    },
    Run(String),
    Plan(String),
    /// Lets its bearer in.
    Token(String),
    /// Lets nobody in any more.
    Revoked(String),
    /// A watcher was told.
    Event(Box<Event>),
}

#[derive(Clone, Debug)]
pub struct Entry {
    /// How far the recording had come.
    pub at: u64,
    pub fact: Fact,
}

/// The label that the load changes.
pub const NOTE: &str = "note";

pub async fn connect(url: &str, token: &str) -> Door {
    let channel = Channel::from_shared(url.to_owned()).expect("a URL").connect().await.expect("connects");
    door(channel, Some(token))
}

/// Everything that a server shows.
struct Shown {
    events: BTreeMap<u64, Event>,
    machines: BTreeMap<String, (u64, String)>,
    runs: BTreeSet<String>,
    plans: BTreeSet<String>,
}

impl Shown {
    async fn by(door: &Door) -> Result<Self, tonic::Status> {
        let mut events = BTreeMap::new();
        let all = WatchEventsRequest { after: Some(0), no_follow: true, ..WatchEventsRequest::default() };
        let mut stream = EventServiceClient::new(door.clone()).watch_events(all).await?.into_inner();
        while let Some(event) = stream.message().await? {
            events.insert(event.sequence, event);
        }
        let machines = ListMachinesRequest { page_size: 1000, ..ListMachinesRequest::default() };
        let machines = MachineServiceClient::new(door.clone()).list_machines(machines).await?.into_inner().machines;
        let runs = ListRunsRequest { page_size: 1000, ..ListRunsRequest::default() };
        let runs = RunServiceClient::new(door.clone()).list_runs(runs).await?.into_inner().runs;
        let plans = PlanServiceClient::new(door.clone()).list_plans(ListPlansRequest {}).await?.into_inner().plans;
        let note = |labels: &BTreeMap<String, String>| labels.get(NOTE).cloned().unwrap_or_default();
        Ok(Self {
            events,
            machines: machines.into_iter().map(|m| (m.machine_id, (m.version, note(&m.labels)))).collect(),
            runs: runs.into_iter().map(|run| run.run_id).collect(),
            plans: plans.into_iter().map(|plan| plan.plan_id).collect(),
        })
    }

    fn has(&self, fact: &Fact) -> bool {
        match fact {
            Fact::Machine { id, version, note } => self
                .machines
                .get(id)
                .is_some_and(|(found, found_note)| found > version || found == version && found_note == note),
            Fact::Run(id) => self.runs.contains(id),
            Fact::Plan(id) => self.plans.contains(id),
            Fact::Event(event) => self.events.get(&event.sequence) == Some(event),
            Fact::Token(_) | Fact::Revoked(_) => true,
        }
    }

    /// The first row that is missing while later ones are there. Only a restore leaps, and says so.
    fn gap(&self) -> Option<u64> {
        let mut expected = 1;
        for (sequence, event) in &self.events {
            if *sequence != expected && event.trigger != "restored" {
                return Some(expected);
            }
            expected = sequence + 1;
        }
        None
    }
}

/// Asks the server for everything that is due. Answers how much that was.
pub async fn check(url: &str, admin: &str, due: &[&Entry]) -> Result<usize, String> {
    let door = connect(url, admin).await;
    let shown = Shown::by(&door).await.map_err(|status| format!("asking the server: {status}"))?;
    if let Some(gap) = shown.gap() {
        return Err(format!("the log has no row {gap}, but later ones"));
    }
    for entry in due {
        if !shown.has(&entry.fact) {
            return Err(format!("acknowledged and not there: {:?}", entry.fact));
        }
        let (secret, lets_in) = match &entry.fact {
            Fact::Token(secret) => (secret, true),
            Fact::Revoked(secret) => (secret, false),
            Fact::Machine { .. } | Fact::Run(_) | Fact::Plan(_) | Fact::Event(_) => continue,
        };
        let answer = TokenServiceClient::new(connect(url, secret).await).get_me(GetMeRequest {}).await;
        match (answer, lets_in) {
            (Ok(_), true) => {}
            (Err(status), false) if status.code() == Code::Unauthenticated => {}
            (answer, _) => return Err(format!("a token that should let in: {lets_in}; the answer: {answer:?}")),
        }
    }
    Ok(due.len())
}
